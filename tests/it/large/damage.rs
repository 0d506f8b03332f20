//! Damaged and missing bytes of large values.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, Fs, MemFs, OpKind};
use siltstone::large_values::ReadBlobs;
use siltstone::metahive::ScrubOptions;
use siltstone::{
    Db, Durability, ErrorKind, MetaHiveOptions, Partition, PartitionOptions, ReadCursor, Result,
    Slice,
};
use testkit::Rng;

use super::{ManualClock, compressed, open, open_with, options};

/// The chunk files of the store.
fn chunks(fs: &MemFs) -> Vec<PathBuf> {
    let all = fs.list("/db".as_ref(), "").unwrap();
    let names = all.iter().filter(|entry| entry.name.ends_with(".chunk"));
    names.map(|entry| PathBuf::from("/db").join(&entry.name)).collect()
}

#[test]
fn every_flipped_bit_of_a_chunk_is_found_and_no_wrong_byte_is_read() {
    let value: Vec<u8> = (0..700_u32).map(|n| (n * 7) as u8).collect();
    check_every_bit(options(), &value);
}

#[test]
fn every_flipped_bit_of_a_compressed_chunk_is_found_and_no_wrong_byte_is_read() {
    let mut value = vec![b'v'; 700];
    // The second sub-block is stored uncompressed.
    Rng::from_env_or(4).fill(&mut value[256..512]);
    check_every_bit(compressed(), &value);
    // A value of one sub-block, whose table is not read.
    check_every_bit(compressed(), &[b'v'; 256]);
}

fn check_every_bit(options: PartitionOptions, value: &[u8]) {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options).unwrap();
    p.put("key", value).unwrap();
    p.flush().unwrap();
    let [path] = &chunks(&fs)[..] else { panic!("one chunk") };
    let len = fs.read_raw(path).unwrap().len() as u64;
    for bit in 0..len * 8 {
        let offset = bit / 8;
        let mask = 1 << (bit % 8);
        fs.corrupt(path, offset, mask).unwrap();
        for read in [p.get("key"), p.get_range("key", 0..value.len() as u64)] {
            check_read(read, path, value);
        }
        let report = db.verify(Default::default()).unwrap();
        // Neither a value nor a handle needs the header of the file.
        if offset >= 64 {
            let [damage] = report.damage() else { panic!("offset {offset}: {report}") };
            assert_eq!((&damage.file, damage.key.as_deref()), (path, Some(&b"key"[..])));
        }
        fs.corrupt(path, offset, mask).unwrap();
    }
    assert_eq!(p.get("key").unwrap().unwrap(), value);
}

fn is_named(damage: &siltstone::Damage, files: &[PathBuf]) -> bool {
    files.contains(&damage.file)
}

/// Opens a copy of `fs` in which files have other bytes. Each value is as it was, or its error names one
/// of these files, and `verify` finds no less. Returns the number of its findings.
fn check_harmed(fs: &MemFs, harmed: &[(PathBuf, Vec<u8>)], what: &str) -> usize {
    let fs = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
    for (path, bytes) in harmed {
        fs.write_raw(path, bytes).unwrap();
    }
    let files: Vec<PathBuf> = harmed.iter().map(|(path, _)| path.clone()).collect();
    let db = open(&fs);
    let p = db.partition("p").unwrap();
    let mut errors = 0;
    for n in 0..12_u8 {
        match p.get([n]) {
            Ok(found) => assert_eq!(found.unwrap(), vec![n; 700], "{what}"),
            Err(error) => {
                errors += 1;
                let damage = error.damage().unwrap_or_else(|| panic!("{what}: {error}"));
                assert_eq!(damage.key.as_deref(), Some(&[n][..]), "{what}: {error}");
                assert!(is_named(damage, &files), "{what}: {error}");
            }
        }
    }
    let report = db.verify(Default::default()).unwrap();
    let found = report.damage();
    assert!(found.iter().all(|damage| is_named(damage, &files)), "{what}: {report}");
    assert!(found.len() >= errors, "{what}: {report}");
    assert_eq!(p.keys().count(), 12, "{what}: keys need no chunk");
    found.len()
}

#[test]
fn a_cut_grown_overwritten_or_swapped_chunk_file_gives_no_wrong_value() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..12_u8 {
        p.put([n], vec![n; 700]).unwrap();
    }
    p.flush().unwrap();
    drop(p);
    db.close().unwrap();
    let [first, second, ..] = &chunks(&fs)[..] else { panic!("several chunks") };
    let bytes = fs.read_raw(first).unwrap();
    let others = fs.read_raw(second).unwrap();
    for len in (0..bytes.len()).step_by(29).chain(bytes.len() - 20..bytes.len()) {
        let what = format!("cut to {len} of {} bytes", bytes.len());
        assert!(check_harmed(&fs, &[(first.clone(), bytes[..len].to_vec())], &what) > 0, "{what}");
    }
    for (count, byte) in [(1, 0), (8, 0xff), (512, 0), (4096, 0xff)] {
        let grown = [&bytes[..], &vec![byte; count]].concat();
        let what = format!("{count} bytes of {byte} more");
        assert_eq!(check_harmed(&fs, &[(first.clone(), grown)], &what), 0, "{what}");
    }
    for at in (0..bytes.len()).step_by(512) {
        for byte in [0, 0xff] {
            let mut changed = bytes.clone();
            changed[at..bytes.len().min(at + 512)].fill(byte);
            let what = format!("sector {at} is {byte}");
            assert!(check_harmed(&fs, &[(first.clone(), changed)], &what) > 0, "{what}");
        }
    }
    let copy = check_harmed(&fs, &[(first.clone(), others.clone())], "a copy of another");
    let swapped = [(first.clone(), others), (second.clone(), bytes)];
    assert!(copy > 0 && check_harmed(&fs, &swapped, "swapped") > copy);
}

/// A read of `key` returns the value, or reports its damage.
fn check_read(read: Result<Option<Slice>>, path: &Path, value: &[u8]) {
    match read {
        Ok(found) => assert_eq!(found.unwrap(), value),
        Err(error) => {
            let damage = error.damage().expect("corruption");
            assert_eq!((&*damage.file, damage.key.as_deref()), (path, Some(&b"key"[..])));
            assert!(damage.offset.is_some() && damage.partition.as_deref() == Some("p"));
        }
    }
}

/// A transaction walks over keys and asks for them, without a value of a lost chunk, and returns that of its own.
fn check_transaction_of_keys(db: &Db, p: &Partition) {
    let mut transaction = db.transaction();
    transaction.put(p, "own", "1");
    let mut writer = p.put_stream("pending", None).unwrap();
    writer.write_all(&[9; 700]).unwrap();
    transaction.put_blob(writer.finish().unwrap());
    transaction.delete(p, [3]);
    assert_eq!(transaction.keys(p).collect::<Result<Vec<_>>>().unwrap().len(), 22);
    assert_eq!(transaction.keys(p).rev().collect::<Result<Vec<_>>>().unwrap().len(), 22);
    let mut cursor = transaction.cursor(p);
    cursor.seek_to_first().unwrap();
    let mut damaged = 0;
    while cursor.valid() {
        assert!(transaction.contains(p, cursor.key()).unwrap());
        let read = cursor.value().map(<[u8]>::to_vec);
        assert_eq!(read.is_err(), p.get(cursor.key()).is_err());
        damaged += usize::from(read.is_err());
        cursor.next().unwrap();
    }
    assert!(damaged > 0);
    let of = transaction.of(p);
    assert_eq!(of.stat_blob([3]).unwrap(), None);
    for (key, value) in
        [("own", vec![b'1']), ("pending", vec![9; 700]), ("small", b"in the table".to_vec())]
    {
        let mut read = Vec::new();
        of.open_blob(key).unwrap().unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, value);
        assert_eq!(of.stat_blob(key).unwrap().unwrap().len, value.len() as u64);
        assert_eq!(of.get_ref(key).unwrap().unwrap()[..], value);
    }
    // What it asked for counts as read.
    let mut late = db.transaction();
    assert!(late.of(p).stat_blob("small").unwrap().is_some());
    late.put(p, "own", "2");
    p.put("small", "in the table").unwrap();
    assert_eq!(late.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn a_lost_chunk_damages_its_keys_alone_and_the_rest_goes_on() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..20_u8 {
        p.put([n], vec![n; 700]).unwrap();
    }
    p.put("small", "in the table").unwrap();
    p.flush().unwrap();
    db.close().unwrap();
    let lost = chunks(&fs).remove(1);
    fs.remove_raw(&lost).unwrap();
    let db = open(&fs);
    let p = db.partition("p").unwrap();
    let mut damaged = 0;
    for n in 0..20_u8 {
        match p.get([n]) {
            Ok(found) => assert_eq!(found.unwrap(), vec![n; 700]),
            Err(error) => {
                damaged += 1;
                let damage = error.damage().expect("corruption");
                assert_eq!((&damage.file, damage.key.as_deref()), (&lost, Some(&[n][..])));
            }
        }
    }
    assert!((1..10).contains(&damaged), "{damaged} keys");
    let report = db.verify(Default::default()).unwrap();
    assert_eq!(report.damage().len(), damaged);
    assert!(report.damage().iter().all(|damage| damage.file == lost), "{report}");
    assert_eq!(p.keys().count(), 21, "keys need no chunk");
    check_transaction_of_keys(&db, &p);
    p.compact(..).unwrap();
    p.put("more", vec![7; 900]).unwrap();
    assert_eq!(p.get("more").unwrap().unwrap(), vec![7; 900]);
}

#[test]
fn a_scrub_names_key_file_and_place_of_damaged_and_missing_values() {
    for has_metahive in [false, true] {
        let fs = MemFs::new();
        let db = open(&fs);
        let options = match has_metahive {
            true => options().metahive(MetaHiveOptions::default()),
            false => options(),
        };
        let p = db.partition_with("p", options).unwrap();
        for n in 0..12_u8 {
            p.put([n], vec![n; 700]).unwrap();
        }
        p.put("small", "in the table").unwrap();
        p.flush().unwrap();
        let sound = p.scrub(ScrubOptions::new()).unwrap();
        assert!(sound.is_sound() && sound.counts.values == 12, "{sound}");
        let mut stopped = p.scrub(ScrubOptions::new().on_progress(|_| false)).unwrap();
        assert!(stopped.mark.take().is_some());
        let [flipped, lost, ..] = &chunks(&fs)[..] else { panic!("several chunks") };
        let chunk_infos = p.chunks().unwrap();
        let in_lost = chunk_infos.iter().find(|chunk| chunk.path == *lost).unwrap().live_blocks;
        // In the first value.
        fs.corrupt(flipped, 64 + 48 + 100, 1).unwrap();
        drop(p);
        db.close().unwrap();
        fs.remove_raw(lost).unwrap();
        let db = open(&fs);
        let p = db.partition("p").unwrap();
        let report = p.scrub(ScrubOptions::new()).unwrap();
        let damage: Vec<_> = report.damage().collect();
        assert_eq!(damage.len() as u64, 1 + in_lost, "{report}");
        let first = damage.iter().find(|damage| damage.file == *flipped).unwrap();
        // In the stored form: where any key is accepted, with a zero byte after it.
        let key = if has_metahive { &[0, 0][..] } else { &[0] };
        assert_eq!((first.key.as_deref(), first.partition.as_deref()), (Some(key), Some("p")));
        assert!(first.offset.is_some_and(|at| (64..64 + 48 + 700).contains(&at)), "{first}");
        let missing = damage.iter().filter(|damage| damage.file == *lost);
        assert!(missing.clone().all(|damage| damage.key.is_some()), "{report}");
        assert_eq!(missing.count() as u64, in_lost);
    }
}

/// Each operation of a verification fails in its turn, and so does every read of each file. None of
/// these faults ends the run or hides other damage.
#[test]
fn a_file_that_cannot_be_read_is_a_finding_and_ends_no_verification() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let db = open_with(Arc::new(fs.clone()), "/db", &ManualClock::default()).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    let q = db.partition("q").unwrap();
    for n in 0..4_u8 {
        p.put([n], vec![n; 3000]).unwrap();
        q.put([n], "small").unwrap();
        p.flush().unwrap();
    }
    q.flush().unwrap();
    q.put("in the log", "value").unwrap();
    // The first run opens some files and keeps them open.
    db.verify(Default::default()).unwrap();
    fs.start_log();
    let report = db.verify(Default::default()).unwrap();
    assert!(report.is_sound(), "{report}");
    let log = fs.take_log();
    let mut files: Vec<_> = log.iter().map(|op| op.path.clone()).collect();
    files.sort();
    files.dedup();
    let from = fs.op_count() - log.len() as u64;
    for op in &log {
        let at = FaultAt::Op(fs.op_count() + op.index - from);
        fs.add_rule(FaultRule::once(at, FaultAction::Eio));
        let report = db.verify(Default::default());
        fs.heal();
        let report = report.unwrap_or_else(|error| panic!("{op:?}: {error}"));
        // Bytes that the second attempt read are intact.
        assert!(report.damage().iter().all(|damage| names(damage, &op.path)), "{op:?}: {report}");
    }
    // A damaged value, which the findings must not hide.
    let chunks = mem.list_names("/db".as_ref(), "").unwrap();
    let mut chunks = chunks.iter().filter(|name| name.ends_with(".chunk"));
    let bad = Path::new("/db").join(chunks.next_back().unwrap());
    mem.corrupt(&bad, mem.read_raw(&bad).unwrap().len() as u64 - 1, 1).unwrap();
    for file in files.iter().filter(|file| file.extension().is_some()) {
        for kind in [OpKind::OpenRead, OpKind::Read] {
            let suffix = file.to_string_lossy().into_owned();
            let at = FaultAt::Nth { kind, suffix, nth: 0 };
            fs.add_rule(FaultRule::sticky(at, FaultAction::Eio));
            let names_values = file.extension().is_some_and(|ending| ending == "sst");
            let damaged: &[&Path] = if names_values { &[] } else { &[&bad] };
            check_findings(&db, &fs, file, damaged);
        }
    }
    let report = db.verify(Default::default()).unwrap();
    assert_eq!(report.damage().len(), 1, "{report}");
}

/// Verifies with a fault at `file`, and removes the fault.
fn check_findings(db: &Db, fs: &FaultFs, file: &Path, damaged: &[&Path]) {
    let faults = fs.fault_count();
    let report = db.verify(Default::default());
    fs.heal();
    let report = report.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    // A file that is open is not opened again.
    let is_hit = fs.fault_count() > faults;
    for wanted in damaged.iter().chain(Some(&file).filter(|_| is_hit)) {
        let is_found = report.damage().iter().any(|damage| names(damage, wanted));
        assert!(is_found, "{}: {report}", wanted.display());
    }
}

fn names(damage: &siltstone::Damage, file: &Path) -> bool {
    damage.file == file || damage.to_string().contains(&*file.to_string_lossy())
}
