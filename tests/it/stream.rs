//! Streams of entries: round trips, damage, invalid content with correct checksums, resumed
//! imports.

mod import;
mod text;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use lsm_core::codec::{checksum64_seeded, checksum128};
use lsm_core::fs::{CrashOutcome, Fs, MemFs};
use siltstone::limits::USER_KEY_BYTES_MAX;
use siltstone::stream::{StreamExport, StreamFormat, StreamImport};
use siltstone::{Db, Error, ErrorKind, LargeValueOptions, Options, PartitionOptions};
use testkit::{Rng, assert_golden, hexdump};

use crate::fixtures;
use crate::store::stepped;

/// Bytes of a piece of a value.
const PIECE: usize = 256 << 10;

/// The entries of each partition.
type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn open(fs: &MemFs) -> Db {
    let options = Options::new().write_buffer_bytes(8 << 20);
    stepped(Arc::new(fs.clone()), "/db", 7).options(options).open().unwrap()
}

fn content(db: &Db) -> Content {
    let mut found = Content::new();
    for name in db.partition_names() {
        let entries = found.entry(name.clone()).or_default();
        for entry in db.partition(&name).unwrap().iter() {
            let (key, value) = entry.unwrap();
            entries.insert(key.to_vec(), value.to_vec());
        }
    }
    found.retain(|_, entries| !entries.is_empty());
    found
}

/// One hash over all partitions, keys and values.
fn hash(content: &Content) -> u128 {
    let mut bytes = Vec::new();
    for (name, entries) in content {
        bytes.extend_from_slice(&checksum128(name.as_bytes()).to_le_bytes());
        for (key, value) in entries {
            bytes.extend_from_slice(&checksum128(key).to_le_bytes());
            bytes.extend_from_slice(&checksum128(value).to_le_bytes());
        }
    }
    checksum128(&bytes)
}

fn large() -> PartitionOptions {
    let tiny = LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
    PartitionOptions::new().large_values(tiny.chunk_bytes(4 << 10))
}

/// Two partitions with values around every limit of a piece, and one without entries.
fn filled() -> Db {
    let db = open(&MemFs::new());
    let mut rng = Rng::from_env_or(11);
    let media = db.partition_with("media", large()).unwrap();
    let words = db.partition("words").unwrap();
    db.partition("empty").unwrap();
    let lens = [0, 1, 255, 256, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, (1 << 20) + 1, 3 << 20];
    for len in lens {
        let value: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        let key = [b"key \xff\n\\" as &[u8], &len.to_be_bytes()].concat();
        media.put(&key, &value).unwrap();
        words.put(&key, value).unwrap();
    }
    media.delete("gone").unwrap();
    db
}

fn exported(db: &Db) -> Vec<u8> {
    let mut stream = Vec::new();
    db.export_stream(&mut stream, &StreamExport::new()).unwrap();
    stream
}

/// Imports into a new database. Returns its content.
fn imported(stream: &[u8]) -> (Result<u64, Error>, Content) {
    let db = open(&MemFs::new());
    let outcome = db.import_stream(stream, &StreamImport::new());
    (outcome.map(|summary| summary.entries), content(&db))
}

/// Checks that a power cut now keeps everything.
fn check_durable(fs: &MemFs, content: &Content) {
    let mut rng = Rng::new(4);
    for outcome in CrashOutcome::ALL {
        let left = fs.crash_clone(outcome, &mut || rng.next_u64());
        assert_eq!(hash(&self::content(&open(&left))), hash(content), "{outcome:?}");
    }
}

#[test]
fn all_partitions_come_back_with_the_same_hash() {
    let db = filled();
    let before = content(&db);
    let mut stream = Vec::new();
    let summary = db.export_stream(&mut stream, &StreamExport::new()).unwrap();
    assert_eq!((summary.entries, summary.skipped), (20, 0));
    let fs = MemFs::new();
    let other = open(&fs);
    assert_eq!(other.import_stream(&stream[..], &StreamImport::new()).unwrap(), summary);
    assert_eq!(hash(&content(&other)), hash(&before));
    assert!(other.has_partition("empty"));
    assert!(other.partition("media").unwrap().space().unwrap().live_bytes > 3 << 20);
    assert!(other.partition("words").unwrap().space().is_none());
    check_durable(&fs, &before);
    // One piece at a time, from a source that returns few bytes at once.
    let other = open(&MemFs::new());
    other.import_stream(Trickle(&stream), &StreamImport::new()).unwrap();
    assert_eq!(hash(&content(&other)), hash(&before));
    assert_eq!(exported(&other), stream, "a stream of the same entries is the same");
}

/// A pipe: few bytes at each read, and interruptions.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.0.len().is_multiple_of(2) && self.0.len() > 1 {
            buf[0] = self.0[0];
            self.0 = &self.0[1..];
            return Ok(1.min(buf.len()));
        }
        if self.0.len().is_multiple_of(3) && self.0.len() > 2 {
            let len = buf.len().min(2);
            buf[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            return Ok(len);
        }
        let len = buf.len().min(9973);
        self.0.read(&mut buf[..len])
    }
}

#[test]
fn a_range_of_named_partitions_leaves_and_goes_where_it_is_sent() {
    let db = open(&MemFs::new());
    for name in ["a", "b"] {
        let partition = db.partition(name).unwrap();
        for key in ["1", "2", "3"] {
            partition.put(key, format!("{name}{key}")).unwrap();
        }
    }
    let mut stream = Vec::new();
    let options = StreamExport::new().partitions(["b"]).range("2".."3");
    assert_eq!(db.export_stream(&mut stream, &options).unwrap().entries, 1);
    let there = StreamImport::new().partition("there");
    db.import_stream(&stream[..], &there).unwrap();
    assert_eq!(db.partition("there").unwrap().get("2").unwrap().unwrap(), &b"b2"[..]);
    assert_eq!(db.partition("there").unwrap().iter().count(), 1);
    let whole = exported(&db);
    let refused = db.import_stream(&whole[..], &there).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    let missing = db.export_stream(&mut stream, &StreamExport::new().partitions(["c"]));
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::PartitionNotFound);
}

/// A few short entries in two partitions.
fn small_stream() -> (Content, Vec<u8>) {
    let db = open(&MemFs::new());
    let media = db.partition_with("media", large()).unwrap();
    let words = db.partition("words").unwrap();
    media.put("clip", [9; 300]).unwrap();
    media.put("none", "").unwrap();
    words.put("one", "eins").unwrap();
    words.put("two", "zwei").unwrap();
    (content(&db), exported(&db))
}

/// Checks that the imported entries are among the exported ones.
#[track_caller]
fn check_part(part: &Content, whole: &Content, what: &str) {
    for (name, entries) in part {
        for (key, value) in entries {
            assert_eq!(whole[name].get(key), Some(value), "{what}: {name} {key:?}");
        }
    }
}

#[test]
fn a_stream_that_is_cut_at_any_byte_is_refused_at_that_byte() {
    let (whole, stream) = small_stream();
    let mut most = 0;
    for len in 0..stream.len() {
        let (outcome, part) = imported(&stream[..len]);
        let error = outcome.unwrap_err();
        let damage = error.damage().unwrap_or_else(|| panic!("cut at {len}: {error}"));
        let expected = if len < 8 { 0 } else { len as u64 };
        assert_eq!((damage.offset, damage.file.to_str()), (Some(expected), Some("stream")));
        check_part(&part, &whole, &format!("cut at {len}"));
        let count = part.values().map(BTreeMap::len).sum::<usize>();
        assert!(count >= most, "a longer part has the entries of a shorter one");
        most = count;
    }
    assert_eq!(most, 4, "the last entry is imported before the end record has come");
    assert_eq!(imported(&stream), (Ok(4), whole.clone()));
    // Bytes after the end belong to something else.
    assert_eq!(imported(&[&stream[..], b"more"].concat()), (Ok(4), whole));
}

#[test]
fn no_bit_flips_unseen_and_no_wrong_pair_is_imported() {
    let (whole, stream) = small_stream();
    for bit in 0..stream.len() * 8 {
        let mut damaged = stream.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let (outcome, part) = imported(&damaged);
        let error = outcome.expect_err(&format!("bit {bit}"));
        match error.damage() {
            Some(damage) => assert!(damage.offset.unwrap() <= stream.len() as u64, "{error}"),
            None => assert_eq!((error.kind(), bit / 32), (ErrorKind::Unsupported, 2), "{error}"),
        }
        check_part(&part, &whole, &format!("bit {bit}"));
    }
}

/// A stream of these parts with correct checksums.
fn stream_of(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut sum = 0;
    for part in parts {
        sum = checksum64_seeded(part, sum);
        stream.extend_from_slice(part);
        stream.extend_from_slice(&sum.to_le_bytes());
    }
    stream
}

fn header(names: &[(&str, u8)]) -> Vec<u8> {
    let mut part = b"siltstrm\x01\0\0\0".to_vec();
    part.extend_from_slice(&(names.len() as u32).to_le_bytes());
    for (name, flags) in names {
        part.extend_from_slice(&[name.len() as u8, *flags]);
        part.extend_from_slice(name.as_bytes());
    }
    part
}

fn record(kind: u8, partition: u32, number: u64, key_len: u32, key: &str) -> Vec<u8> {
    let mut part = vec![kind, 0, 0, 0];
    part.extend_from_slice(&partition.to_le_bytes());
    part.extend_from_slice(&number.to_le_bytes());
    part.extend_from_slice(&key_len.to_le_bytes());
    part.extend_from_slice(&[0; 4]);
    part.extend_from_slice(key.as_bytes());
    part
}

fn entry(key: &str, value_len: u64) -> Vec<u8> {
    record(1, 0, value_len, key.len() as u32, key)
}

#[test]
fn invalid_streams_with_correct_checksums_are_errors() {
    let names = header(&[("p", 0)]);
    let end = record(2, 0, 1, 0, "");
    let right = [names.clone(), entry("k", 1), b"v".to_vec(), end.clone()];
    assert_eq!(imported(&stream_of(&right)).0, Ok(1));
    let mut many = names.clone();
    many[12..16].fill(0xff);
    let mut bits = entry("k", 0);
    bits[2] = 1;
    let mut reserved = entry("k", 0);
    reserved[20] = 1;
    let cases: [(&str, Vec<Vec<u8>>); 13] = [
        ("more partitions", vec![many]),
        ("unknown flags", vec![header(&[("p", 2)])]),
        ("not UTF-8", vec![[&header(&[])[..12], &[1, 0, 0, 0, 1, 0, 0xff]].concat()]),
        ("partition name has 0 bytes", vec![header(&[("", 0)]), end.clone()]),
        ("unknown bits", vec![names.clone(), bits]),
        ("unknown bits", vec![names.clone(), reserved]),
        ("unknown kind", vec![names.clone(), record(3, 0, 0, 0, "")]),
        ("unknown kind", vec![names.clone(), record(2, 1, 0, 0, "")]),
        ("longer than any key", vec![names.clone(), record(1, 0, 0, u32::MAX, "")]),
        ("does not name", vec![names.clone(), record(1, 1, 0, 1, "k")]),
        ("ends before its end", vec![names.clone(), entry("k", u64::MAX)]),
        ("counts other entries", vec![names.clone(), end]),
        ("does not agree", vec![names, entry("k", 2), b"v".to_vec(), b"v".to_vec()]),
    ];
    for (expected, parts) in cases {
        let (outcome, part) = imported(&stream_of(&parts));
        let error = outcome.expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert_eq!(part, Content::new(), "{expected}");
    }
}

/// The length of the longest write.
#[derive(Default)]
struct Longest(usize);

impl Write for Longest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.max(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn no_write_is_long() {
    let db = open(&MemFs::new());
    let p = db.partition("p").unwrap();
    p.put(vec![1; USER_KEY_BYTES_MAX], vec![2; 4 * PIECE]).unwrap();
    for format in [StreamFormat::Checked, StreamFormat::BerkeleyText] {
        let mut longest = Longest::default();
        db.export_stream(&mut longest, &StreamExport::new().format(format)).unwrap();
        assert!((PIECE..3 * PIECE).contains(&longest.0), "{format:?}: {} bytes", longest.0);
    }
}

/// Takes so many bytes, then fails.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn errors_of_the_other_side_are_passed_on() {
    let db = filled();
    let refused = db.export_stream(Full(1 << 20), &StreamExport::new()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);

    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    let (whole, stream) = small_stream();
    let other = open(&MemFs::new());
    let source = stream[..stream.len() - 1].chain(Broken);
    let error = other.import_stream(source, &StreamImport::new()).unwrap_err();
    assert_eq!(error.io_source().map(io::Error::kind), Some(io::ErrorKind::ConnectionReset));
    assert_eq!(content(&other), whole, "the entries before the error are there");
}

#[test]
fn a_stream_is_as_described() {
    let (_, stream) = small_stream();
    let notes: Vec<(Range<usize>, &str)> = vec![
        (0..8, "magic"),
        (8..16, "version, number of partitions"),
        (16..25, "default: no flags"),
        (25..32, "media: has large values"),
        (32..39, "words: no flags"),
        (39..47, "checksum of the header"),
        (47..55, "entry: kind, partition"),
        (55..63, "length of the value"),
        (63..71, "length of the key"),
        (71..75, "key"),
        (75..83, "checksum"),
        (83..383, "value, one piece"),
        (383..391, "checksum"),
        (391..427, "an entry with an empty value"),
        (427..stream.len() - 32, "two entries of the next partition"),
        (stream.len() - 32..stream.len() - 8, "end: kind, number of entries"),
        (stream.len() - 8..stream.len(), "checksum of the whole"),
    ];
    assert_golden("stream.txt", &hexdump::annotate(&stream, &notes));
}

/// Every later version reads a stream of version 1: `tests/fixtures/stream-v1/`.
#[test]
fn a_stream_of_version_1_is_imported() {
    fixtures::bless("stream-v1", || {
        let fs = MemFs::new();
        fs.create_dir("/db".as_ref()).unwrap();
        fs.write_raw("/db/checked".as_ref(), &small_stream().1).unwrap();
        fs
    });
    let fs = fixtures::in_memory("stream-v1");
    let stream = fs.read_raw("/db/checked".as_ref()).unwrap();
    assert_eq!(imported(&stream), (Ok(4), small_stream().0));
}
