//! Invalid content with correct checksums.
//!
//! A checksum detects faults. It does not detect a bug in the writer, nor malice. So each case
//! changes bytes of a small store and then corrects every checksum over them. A reader may return
//! any result; it may not panic, hang, or use memory that the files do not account for. Reads run
//! in a process of their own, whose peak of memory is measured.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use lsm_core::codec::{checksum64, checksum64_seeded};
use lsm_core::fs::{CrashOutcome, MemFs};
use lsm_core::internals::names::{FileKind, FileName};
use siltstone::secondary::{Level, Target};
use siltstone::{Compression, Db, Options, PartitionOptions, PrefixExtractor, TtlFilter, TtlRule};
use testkit::Rng;

use crate::store::{follow_all, stepped};

const DIR: &str = "/db";
const CHILD: &str = "SILTSTONE_HOSTILE_CHILD";
const CASES: usize = 6000;

fn open(fs: &MemFs) -> siltstone::Result<Db> {
    let options = Options::new()
        .wal_segment_bytes(4 << 10)
        .write_buffer_bytes(1 << 20)
        .cache_bytes(1 << 20)
        .log_retained_bytes(16 << 10)
        .compaction_threads(1);
    stepped(Arc::new(fs.clone()), DIR, 3).options(options).open()
}

fn build() -> MemFs {
    let fs = MemFs::new();
    // The log of the epoch before is retained.
    open(&fs).unwrap().partition("packed").unwrap().put("before", "this epoch").unwrap();
    let db = open(&fs).unwrap();
    let options = PartitionOptions::new()
        .block_bytes(256)
        .table_bytes(1 << 10)
        .level0_tables(2)
        .level_base_bytes(1 << 10)
        .level_multiplier(2)
        .prefix_extractor(PrefixExtractor::Fixed(2));
    let packed =
        db.partition_with("packed", options.clone().compression(Compression::Lz4)).unwrap();
    let plain = db.partition_with("plain", options.clone().compression(Compression::None)).unwrap();
    let expiring = options.clone().filter(Arc::new(TtlFilter::stored(&TtlRule::in_value(0))));
    let expiring = db.partition_with("expiring", expiring).unwrap();
    // The manifest has its rules, with the form of its keys.
    let sealed = options.clone().metahive(metahive::MetaHiveOptions::new());
    let sealed = db.partition_with("sealed", sealed).unwrap();
    for n in 0..40u64 {
        sealed.put(n.to_be_bytes(), "any key").unwrap();
    }
    sealed.compact(..).unwrap();
    let large = siltstone::LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
    let large = options.clone().large_values(large.chunk_bytes(8 << 10));
    let large = db.partition_with("large", large).unwrap();
    for n in 0..60_usize {
        large.put(format!("key{:03}", n * 7 % 40), vec![n as u8; 200 + n * 13]).unwrap();
        if n % 20 == 0 {
            large.flush().unwrap();
        }
    }
    large.compact(..).unwrap();
    large.put("key007", vec![7; 600]).unwrap();
    let values = siltstone::LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
    let values = values.chunk_bytes(8 << 10).compression(Compression::Lz4);
    let shrunk = db.partition_with("shrunk", options.large_values(values)).unwrap();
    for n in 0..30_usize {
        shrunk.put(format!("key{n:03}"), vec![n as u8; 200 + n * 40]).unwrap();
    }
    shrunk.compact(..).unwrap();
    shrunk.put("key007", vec![7; 600]).unwrap();
    for n in 0..160 {
        expiring.put(n.to_string(), u64::MAX.to_be_bytes()).unwrap();
        let key = format!("key{:03}", n * 7 % 60);
        let batch = db.batch().put(&packed, &key, "ab".repeat(n % 30)).delete(&plain, "gone");
        batch.put(&plain, &key, n.to_string()).commit(siltstone::Durability::Os).unwrap();
        plain.put("count", n.to_string()).unwrap();
        if n == 40 || n == 80 || n == 120 {
            db.flush().unwrap();
            packed.compact(..).unwrap();
            db.wait_idle().unwrap();
        }
    }
    db.wait_idle().unwrap();
    packed.put("last", "one").unwrap();
    // In the manifest, with tables below that a snapshot keeps, and in the log.
    let cleared = db.partition("cleared").unwrap();
    cleared.put("key", "value").unwrap();
    cleared.flush().unwrap();
    let snapshot = db.snapshot();
    cleared.clear().unwrap();
    cleared.flush().unwrap();
    let erased = db.partition("erased").unwrap();
    for key in ["a", "b", "c"] {
        erased.put(key, "value").unwrap();
    }
    erased.flush().unwrap();
    let before = db.snapshot();
    erased.delete_range("b"..).unwrap();
    erased.flush().unwrap();
    erased.delete_range("a".."b").unwrap();
    let append = siltstone::operators::AppendOperator::new(",");
    let append = PartitionOptions::new().merge_operator(Arc::new(append));
    let merged = db.partition_with("merged", append).unwrap();
    merged.merge("a", "0").unwrap();
    let between = db.snapshot();
    merged.merge("a", "1").unwrap();
    merged.flush().unwrap();
    merged.merge("a", "2").unwrap();
    db.batch()
        .put(&cleared, "key", "again")
        .clear(&plain)
        .commit(siltstone::Durability::Os)
        .unwrap();
    drop((snapshot, before, between));
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes(word.try_into().unwrap()))
}

/// Number and length of the varint at `at`.
fn varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut number = 0u64;
    let mut len = 0;
    loop {
        let byte = *bytes.get(at + len)?;
        number |= u64::from(byte & 0x7f).checked_shl(7 * len as u32)?;
        len += 1;
        if byte < 0x80 {
            return Some((number, len));
        }
    }
}

/// Changes a few bytes of `bytes` to the values that break most decoders.
fn lie(rng: &mut Rng, bytes: &mut [u8]) {
    if bytes.is_empty() {
        return;
    }
    let at = (rng.next_u64() % bytes.len() as u64) as usize;
    match rng.next_u64() % 6 {
        0 => bytes[at] = 0,
        1 => bytes[at] = bytes[at].wrapping_add(1),
        2 => bytes[at] = bytes[at].wrapping_sub(1),
        3 => bytes[at] = rng.next_u64() as u8,
        // A large varint, or a large fixed number.
        4 => bytes[at..].iter_mut().take(9).for_each(|byte| *byte = 0xff),
        _ => {
            let len = 1 + (rng.next_u64() % 4) as usize;
            bytes[at..].iter_mut().take(len).for_each(|byte| *byte = 0x80 | rng.next_u64() as u8);
        }
    }
}

fn lie_in_manifest(rng: &mut Rng, bytes: &mut [u8]) {
    let mut frames = Vec::new();
    let mut at = 80;
    while at < bytes.len() {
        let end = at + 28 + half(bytes, at + 16) as usize;
        frames.push(at..end);
        at = end;
    }
    let frame = frames[(rng.next_u64() % frames.len() as u64) as usize].clone();
    // Sometimes the number of the edit, otherwise its content.
    let from = if rng.next_u64().is_multiple_of(16) { 20 } else { 28 };
    lie(rng, &mut bytes[frame.start + from..frame.end]);
    seal_manifest_frame(bytes, frame);
}

/// Corrects both checksums of a frame of the manifest.
fn seal_manifest_frame(bytes: &mut [u8], frame: std::ops::Range<usize>) {
    let sum = checksum64(&bytes[frame.start + 28..frame.end]);
    bytes[frame.start + 8..frame.start + 16].copy_from_slice(&sum.to_le_bytes());
    let mut place = bytes[40..64].to_vec();
    place.extend_from_slice(&(frame.start as u64).to_le_bytes());
    let head = &bytes[frame.start + 8..frame.start + 28];
    let sum = checksum64_seeded(head, checksum64(&place));
    bytes[frame.start..frame.start + 8].copy_from_slice(&sum.to_le_bytes());
}

fn lie_in_segment(rng: &mut Rng, bytes: &mut [u8]) {
    if rng.next_u64().is_multiple_of(6) {
        lie(rng, &mut bytes[28..112]);
        let sum = checksum64(&bytes[..120]);
        bytes[120..128].copy_from_slice(&sum.to_le_bytes());
        return;
    }
    // Frames as (start, end of the header, length of the body).
    let mut frames = Vec::new();
    let mut at = 128;
    while let Some((rest, len)) = varint(bytes, at + 9).filter(|_| word(bytes, at) != 0) {
        if bytes[at..].starts_with(b"SILTSECTIONS") {
            if rng.next_u64().is_multiple_of(2) {
                return lie_in_index(rng, bytes, at);
            }
            break;
        }
        let header_end = at + 9 + len + rest as usize;
        let body = varint(bytes, at + 9 + len).map_or(0, |(body, _)| body as usize);
        frames.push((at, header_end, body));
        at = (header_end + body).next_multiple_of(8);
    }
    if frames.is_empty() {
        return;
    }
    let (start, header_end, body) = frames[(rng.next_u64() % frames.len() as u64) as usize];
    if body > 0 && bytes[start + 8] == 1 && rng.next_u64().is_multiple_of(2) {
        lie(rng, &mut bytes[header_end..header_end + body]);
        let sum = checksum64(&bytes[header_end..header_end + body]);
        bytes[header_end - 8..header_end].copy_from_slice(&sum.to_le_bytes());
    } else {
        lie(rng, &mut bytes[start + 8..header_end]);
    }
    // The length of the header as the header now states it, if that is inside the file.
    let end = varint(bytes, start + 9).map_or(header_end, |(rest, len)| {
        (start + 9 + len).saturating_add(usize::try_from(rest).unwrap_or(usize::MAX))
    });
    let end = if end <= bytes.len() { end } else { header_end };
    let sum = checksum64_seeded(&bytes[start + 8..end], log_seed(bytes, start));
    bytes[start..start + 8].copy_from_slice(&sum.to_le_bytes());
}

/// The seed of a checksum of the frame or header at `start` of the segment in `bytes`.
fn log_seed(bytes: &[u8], start: usize) -> u64 {
    let salt = word(bytes, 56);
    let epoch = u64::from(half(bytes, 28));
    salt ^ epoch.wrapping_mul(0xd6e8_feb8_6659_fd93)
        ^ (start as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Changes the index of sections at `start`, after the last frame.
fn lie_in_index(rng: &mut Rng, bytes: &mut [u8], start: usize) {
    let sum_at = start + (48 + half(bytes, start + 40) as usize).next_multiple_of(8);
    // The magic stays: without it there is no index.
    lie(rng, &mut bytes[start + 12..sum_at]);
    let seed = log_seed(bytes, start) ^ 0x2f1c_9a35_77e4_b0d1;
    let sum = checksum64_seeded(&bytes[start..sum_at], seed);
    bytes[sum_at..sum_at + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Syncs all partitions as a secondary, which reads indexes of sections.
fn follow_it(fs: &MemFs) -> siltstone::Result<()> {
    let secondary = Db::secondary_builder(DIR).fs(Arc::new(fs.clone())).open()?;
    for name in secondary.partition_names() {
        let partition = secondary.partition(&name)?;
        partition.sync(Target::Latest)?;
        partition.at(Level::Eventual)?.iter().take(100_000).try_for_each(|pair| pair.map(drop))?;
    }
    Ok(())
}

fn lie_in_table(rng: &mut Rng, bytes: &mut [u8]) {
    let len = bytes.len();
    let footer = len - 152;
    if rng.next_u64().is_multiple_of(8) {
        lie(rng, &mut bytes[footer + 16..len - 24]);
        let sum = checksum64_seeded(&bytes[footer..len - 8], len as u64);
        bytes[len - 8..].copy_from_slice(&sum.to_le_bytes());
        return;
    }
    // Only the index records where blocks end, but a checksum that matches shows it as well.
    let unique_id = word(bytes, footer + 48);
    let seed = |at: usize| unique_id ^ (at as u64).wrapping_mul(0x9e6c_63d0_876a_9a99);
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < footer {
        let end = (at + 9..=footer)
            .find(|end| checksum64_seeded(&bytes[at..end - 8], seed(at)) == word(bytes, end - 8));
        let end = end.expect("blocks follow each other up to the footer");
        blocks.push(at..end);
        at = end;
    }
    let block = blocks[(rng.next_u64() % blocks.len() as u64) as usize].clone();
    // The payload, and the byte that names the compression.
    lie(rng, &mut bytes[block.start..block.end - 8]);
    let sum = checksum64_seeded(&bytes[block.start..block.end - 8], seed(block.start));
    bytes[block.end - 8..block.end].copy_from_slice(&sum.to_le_bytes());
}

/// Changes the header of a chunk file, the header of a block, or any byte of the blocks. The
/// checksums of headers are corrected. The checksum of a value is in its handle too.
fn lie_in_chunk(rng: &mut Rng, bytes: &mut [u8]) {
    if rng.next_u64().is_multiple_of(4) {
        lie(rng, &mut bytes[..56]);
        let sum = checksum64(&bytes[..56]);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        return;
    }
    let starts = bytes.windows(4).enumerate().filter(|(_, window)| window == b"blok");
    let starts: Vec<usize> = starts.map(|(at, _)| at).collect();
    let start = starts[(rng.next_u64() % starts.len() as u64) as usize];
    let key_end = start + 48 + half(bytes, start + 12) as usize;
    if rng.next_u64().is_multiple_of(2) {
        lie(rng, &mut bytes[key_end..]);
        return;
    }
    lie(rng, &mut bytes[start..key_end]);
    let summed = [&bytes[start..start + 40], &bytes[start + 48..key_end]].concat();
    let sum = checksum64(&summed);
    bytes[start + 40..start + 48].copy_from_slice(&sum.to_le_bytes());
}

fn files(fs: &MemFs) -> Vec<(FileKind, PathBuf)> {
    fs.paths().into_iter().filter_map(|path| Some((kind_of(&path)?, path))).collect()
}

fn kind_of(path: &Path) -> Option<FileKind> {
    Some(FileName::parse(path.file_name()?.to_str()?)?.kind)
}

/// Reads, writes and compacts as far as the store accepts it.
fn use_it(fs: &MemFs) -> siltstone::Result<()> {
    let db = open(fs)?;
    let mut first_error = follow_all(&db);
    let mut note = |result: siltstone::Result<()>| {
        if first_error.is_ok() {
            first_error = result;
        }
    };
    for name in db.partition_names() {
        let partition = db.partition(&name)?;
        // Invalid content may make an iteration longer, but not endless.
        let bound = 100_000;
        note(partition.iter().take(bound).try_for_each(|pair| pair.map(drop)));
        note(partition.iter().rev().take(bound).try_for_each(|pair| pair.map(drop)));
        for n in 0..60 {
            note(partition.get(format!("key{n:03}")).map(drop));
            note(partition.prefix(format!("key{n:03}")).try_for_each(|pair| pair.map(drop)));
        }
        note(partition.put("new", "value").map(drop));
        note(partition.get_range("key007", 90..300).map(drop));
        note(partition.reclaim());
        note(partition.compact(..));
        note(partition.iter().take(bound).try_for_each(|pair| pair.map(drop)));
    }
    note(db.close());
    first_error
}

/// Reads a store in all the ways that read a file of this kind.
fn read_it(fs: &MemFs, changed: FileKind) -> siltstone::Result<()> {
    match changed {
        // The secondary comes first: the open removes the segments.
        FileKind::Wal => follow_it(fs).and(use_it(fs)),
        FileKind::Sst | FileKind::Manifest | FileKind::Chunk => use_it(fs),
    }
}

fn peak_kib() -> u64 {
    let file = lsm_core::fs::Fs::open_read(&lsm_core::fs::OsFs, Path::new("/proc/self/status"));
    let mut text = vec![0; 8192];
    let got = file.unwrap().read_at(0, &mut text).unwrap();
    let text = String::from_utf8_lossy(&text[..got]).into_owned();
    let line = text.lines().find(|line| line.starts_with("VmHWM")).expect("Linux reports it");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The process that reads: does nothing unless a parent starts it.
#[test]
fn child_that_reads_invalid_content() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let store = build();
    let files = files(&store);
    let mut rng = Rng::from_env_or(17);
    let indexed = files.iter().filter(|(_, path)| {
        store.read_raw(path).unwrap().windows(12).any(|window| window == b"SILTSECTIONS")
    });
    assert!(indexed.count() > 0, "no segment has an index of sections");
    follow_it(&store.crash_clone(CrashOutcome::Everything, &mut || 0)).unwrap();
    use_it(&store.crash_clone(CrashOutcome::Everything, &mut || 0)).unwrap();
    let before = peak_kib();
    let mut refused = 0;
    let mut panicked = std::collections::BTreeMap::<String, usize>::new();
    for case in 0..CASES {
        let (kind, path) = &files[case % files.len()];
        let mut bytes = store.read_raw(path).unwrap();
        let forge = match kind {
            FileKind::Manifest => lie_in_manifest,
            FileKind::Wal => lie_in_segment,
            FileKind::Sst => lie_in_table,
            FileKind::Chunk => lie_in_chunk,
        };
        forge(&mut rng, &mut bytes);
        let fs = store.crash_clone(CrashOutcome::Everything, &mut || 0);
        fs.write_raw(path, &bytes).unwrap();
        match catch_unwind(AssertUnwindSafe(|| read_it(&fs, *kind))) {
            Ok(outcome) => refused += usize::from(outcome.is_err()),
            Err(payload) => {
                let text = payload.downcast_ref::<String>().cloned();
                let text = text.or(payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                let sort = text.unwrap_or_default().replace(|c: char| c.is_ascii_digit(), "");
                *panicked.entry(format!("{kind:?}: {sort}")).or_default() += 1;
            }
        }
    }
    let grown_kib = peak_kib() - before;
    println!("{CASES} lies, {refused} refused, peak grown by {grown_kib} KiB");
    assert!(panicked.is_empty(), "{panicked:#?}");
    assert!(grown_kib < 64 << 10, "memory grew by {grown_kib} KiB");
}

#[test]
#[cfg(target_os = "linux")]
fn invalid_content_with_correct_checksums_neither_panics_nor_takes_memory() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hostile::child_that_reads_invalid_content", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let failed = String::from_utf8_lossy(&child.stderr);
    let end = failed.len().saturating_sub(6000);
    let tail = failed.get(end..).unwrap_or_default();
    assert!(child.status.success(), "{said}\n{tail}");
    println!("{}", said.lines().find(|line| line.contains("lies,")).unwrap_or_default());
}

/// A manifest edit with one change, given as its bytes, after the last edit.
fn append_change(bytes: &mut Vec<u8>, change: &[u8]) {
    let mut at = 80;
    let mut number = 0;
    while at < bytes.len() {
        number = word(bytes, at + 20);
        at += 28 + half(bytes, at + 16) as usize;
    }
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 16]);
    bytes.extend_from_slice(&(change.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(number + 1).to_le_bytes());
    bytes.extend_from_slice(change);
    let end = bytes.len();
    seal_manifest_frame(bytes, start..end);
}

#[test]
fn numbers_at_their_maximum_are_refused_at_open_and_never_panic() {
    let store = build();
    let manifest = files(&store).into_iter().find(|(kind, _)| *kind == FileKind::Manifest);
    let manifest = manifest.unwrap().1;
    // Tag and length, then the number as a varint.
    let mut segments = files(&store);
    segments.retain(|(kind, _)| *kind == FileKind::Wal);
    let last = &segments.last().unwrap().1;
    let last = FileName::parse(last.file_name().unwrap().to_str().unwrap()).unwrap().number.0;
    assert!(last < 128, "a varint of one byte");
    let changes: [(&[u8], &str); 16] = [
        (&[12 << 1, 10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], "file numbers"),
        (&[13 << 1, 8, 255, 255, 255, 255, 255, 255, 255, 127], "sequence numbers"),
        (&[8 << 1, 10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], "absent"),
        (&[18 << 1, 9, 0, 255, 255, 255, 255, 255, 255, 255, 127], "sequence numbers"),
        (&[19 << 1, 2, 0, 7], "no clear sequence 7"),
        // Ranges: beyond all numbers, at none, inverted, and one that is not there.
        (&[22 << 1, 12, 0, 1, 7, 0, 255, 255, 255, 255, 255, 255, 255, 127], "sequence numbers"),
        (&[22 << 1, 4, 0, 0, 0, 0], "no sequence number"),
        (&[22 << 1, 6, 0, 1, 7, 1, 7, 9], "ends before it begins"),
        (&[23 << 1, 5, 0, 1, 7, 0, 9], "no such deleted range"),
        // Start of the replay: in no segment of the log, and after other frames than it states.
        (&[20 << 1 | 1, 4, 127, 128, 1, 7], "not live"),
        (&[20 << 1 | 1, 4, last as u8, 128, 1, 7], "does not continue the sequence"),
        // Ahead of the log: with numbers that no database has, and less far than the log itself.
        (&[21 << 1, 10, 255, 255, 255, 255, 255, 255, 255, 127, 255, 127], "sequence numbers"),
        (&[21 << 1, 2, 3, 5], "is ahead of 5"),
        // Retained segments: a live one, one that is not retained, and one that is longer than any file.
        (&[24 << 1 | 1, 4, last as u8, 1, 7, 7], "or live"),
        (&[25 << 1 | 1, 1, 127], "forgotten but not retained"),
        (&[24 << 1 | 1, 12, 127, 1, 255, 255, 255, 255, 255, 255, 255, 255, 127, 7], "bytes"),
    ];
    for (change, said) in changes {
        let fs = store.crash_clone(CrashOutcome::Everything, &mut || 0);
        let mut bytes = fs.read_raw(&manifest).unwrap();
        append_change(&mut bytes, change);
        fs.write_raw(&manifest, &bytes).unwrap();
        let error = use_it(&fs).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
    let fs = store.crash_clone(CrashOutcome::Everything, &mut || 0);
    fs.write_raw(&Path::new(DIR).join("ffffffffffffffff-00000001.sst"), b"?").unwrap();
    // No writer made it, and it uses no numbers.
    use_it(&fs).unwrap();
}
