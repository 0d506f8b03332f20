//! The memory that one large value needs in addition to the copy of the caller, in the tree or as a
//! stream, as the kernel counts it, in a process of its own.
//!
//! A put or a recovery copies a value once, and the memtable keeps that copy. A flush needs no
//! further memory; a compaction holds the value that it reads. A put used to take three times the
//! value, a recovery twice, and flush and compaction five times. `MEMORY_MIB=1024 cargo test --test
//! memory` uses the largest value.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]
#![expect(
    clippy::disallowed_methods,
    reason = "the figures of a process are no files of a database"
)]

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use siltstone::metahive::ScrubOptions;
use siltstone::{
    Compression, Db, Durability, LargeValueOptions, MetaHiveOptions, Options, Partition,
    PartitionOptions, VerifyOptions,
};
use testkit::Rng;

/// The environment variable with the folder of the child.
const FOLDER: &str = "SILTSTONE_TEST_MEMORY";
/// The environment variable with the form of the database and of the value, for the child that
/// dies.
const DYING: &str = "SILTSTONE_TEST_MEMORY_DYING";
const MIB: usize = 1 << 20;

fn value_bytes() -> usize {
    let mib = std::env::var("MEMORY_MIB").map_or(160, |mib| mib.parse().unwrap());
    // Bytes of the format in addition to the value count as well.
    mib * MIB - 4096
}

/// A figure of this process, in bytes.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kib = line.trim_start_matches(':').trim().trim_end_matches(" kB");
    1024 * kib.parse::<u64>().unwrap()
}

/// Runs `step`. Its peak, less the memory before, must not exceed so many copies of the value.
fn check<T>(what: &str, copies_max: f64, step: impl FnOnce() -> T) -> T {
    // Sets the peak to the resident memory.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmRSS");
    let result = step();
    let peak = memory("VmHWM").saturating_sub(before);
    let copies = peak as f64 / value_bytes() as f64;
    let line = format!("{what}: {copies:.2} copies\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    // Buffers of a fixed size are small in comparison with a value of this length.
    assert!(copies <= copies_max + 0.15, "{what} takes {copies:.2} copies of the value");
    result
}

fn open(folder: &Path, has_metadata: bool) -> (Db, Partition) {
    let options = Options::new()
        .value_bytes_max(1 << 30)
        .batch_bytes_max(1 << 30)
        .write_buffer_bytes(2 << 30)
        .wal_bytes_max(8 << 30)
        .cache_bytes(8 << 20);
    let db = Db::builder(folder).options(options).open().unwrap();
    let p = match has_metadata {
        false => db.partition("p"),
        true => {
            db.partition_with("p", PartitionOptions::new().metahive(MetaHiveOptions::default()))
        }
    };
    (db, p.unwrap())
}

fn check_value(p: &Partition, key: &str, copies_max: f64, value: &[u8]) {
    let found = check(&format!("a get of {key}"), copies_max, || p.get(key).unwrap());
    assert!(found.unwrap() == *value);
}

/// A value without repetition, or a value that repeats half of its bytes, so that it is stored
/// compressed.
fn value(is_packed: bool) -> Vec<u8> {
    let mut rng = Rng::new(5);
    let mut value = vec![0; value_bytes()];
    for word in value.chunks_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes()[..word.len()]);
    }
    if is_packed {
        let half = value.len() / 2;
        value[..half].fill(7);
    }
    value
}

/// Makes a process put a value and die, so that only the log has it: a close would flush it.
fn write_and_die(folder: &Path, has_metadata: bool, is_packed: bool) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_dies", "--test-threads=1"])
        .env(DYING, format!("{}{}", u8::from(has_metadata), u8::from(is_packed)))
        .env(FOLDER, folder)
        .output()
        .unwrap()
        .status;
    assert_eq!(status.code(), None, "a signal ends it");
}

/// Does nothing unless it is the child that dies.
#[test]
fn child_that_dies() {
    let Ok(kind) = std::env::var(DYING) else { return };
    let folder = std::env::var_os(FOLDER).unwrap();
    let (_db, p) = open(Path::new(&folder), kind.starts_with('1'));
    p.put("the logged", value(kind.ends_with('1'))).unwrap();
    std::process::abort();
}

fn check_all(folder: &Path, has_metadata: bool, value: &[u8], packed: f64) {
    let (db, p) = open(folder, has_metadata);
    check("a put", 1.0, || p.put("put", value).unwrap());
    check_value(&p, "put", 0.0, value);
    check("a flush", 0.0, || p.flush().unwrap());
    check_value(&p, "put", 1.0 + packed, value);
    let compacted = db.stats().compaction_written_bytes;
    check("a compaction", 1.0 + packed, || p.compact(..).unwrap());
    check("a batch", 1.0, || {
        db.batch().put(&p, "batch", value).commit(Durability::Os).unwrap();
    });
    p.flush().unwrap();
    check("a compaction of two", 1.0 + packed, || p.compact(..).unwrap());
    assert!(db.stats().compaction_written_bytes > compacted, "it wrote");
    let table_bytes = db.stats().table_bytes;
    drop(p);
    db.close().unwrap();
    write_and_die(folder, has_metadata, packed > 0.0);
    let (db, p) = check("a recovery", 1.0, || open(folder, has_metadata));
    assert!(db.stats().table_bytes > table_bytes, "the log had the value");
    check_value(&p, "the logged", 1.0 + packed, value);
    // A scan holds a value of each table that it merges. No other table has a key after this one.
    check("a scan", 1.0 + packed, || {
        let lengths = p.prefix("the logged").map(|pair| pair.unwrap().1.len());
        assert_eq!(lengths.collect::<Vec<_>>(), [value.len()]);
    });
    if has_metadata {
        let found = check("a verified get", 1.0 + packed, || p.verified_get("the logged").unwrap());
        assert!(*found.unwrap().value == *value);
        let report = check("a scrub", 2.0, || p.scrub(ScrubOptions::new()).unwrap());
        assert!(report.is_sound() && report.counts.entries == 3, "{report}");
    }
    let report = check("a verify", 2.0, || db.verify(VerifyOptions::new()).unwrap());
    assert!(report.is_sound());
    drop(p);
    db.close().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

/// Does nothing unless it is the child.
#[test]
fn child_that_writes_a_large_value() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let noise = value(false);
    check_all(&Path::new(&folder).join("noise"), false, &noise, 0.0);
    check_all(&Path::new(&folder).join("sealed noise"), true, &noise, 0.0);
    drop(noise);
    let packed = value(true);
    check_all(&Path::new(&folder).join("packed"), false, &packed, 0.5);
    check_all(&Path::new(&folder).join("sealed packed"), true, &packed, 0.5);
}

#[test]
fn a_large_value_is_copied_once() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_writes_a_large_value", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
}

// ---- values in chunk files --------------------------------------------------------------------

/// The environment variable with the folder of the child that streams.
const STREAMING: &str = "SILTSTONE_TEST_MEMORY_STREAMING";
/// The length of the value that is streamed in and out, and the most memory that it may use.
const STREAM_BYTES: u64 = 914_000_000;
const STREAM_MEMORY_MAX: u64 = 64 << 20;

/// The piece of the value at `number`; one half of each is compressible.
fn fill_piece(number: u64, piece: &mut [u8]) {
    let mut rng = Rng::new(number);
    let (noise, even) = piece.split_at_mut(piece.len() / 2);
    for word in noise.chunks_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes()[..word.len()]);
    }
    even.fill(number as u8);
}

/// Runs `step`, which may not take more than [`STREAM_MEMORY_MAX`].
fn check_stream(what: &str, step: impl FnOnce()) {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmRSS");
    step();
    let peak = memory("VmHWM").saturating_sub(before);
    let line = format!("{what}: {} KiB\n", peak >> 10);
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    assert!(peak <= STREAM_MEMORY_MAX, "{what} takes {peak} bytes");
}

fn stream_in(p: &Partition, piece: &mut [u8]) {
    let mut writer = p.put_stream("video", None).unwrap();
    let mut written = 0;
    for number in 0.. {
        let len = piece.len().min((STREAM_BYTES - written) as usize);
        if len == 0 {
            break;
        }
        fill_piece(number, piece);
        writer.write_all(&piece[..len]).unwrap();
        written += len as u64;
    }
    writer.commit(Durability::Sync).unwrap();
}

fn stream_out(p: &Partition, piece: &mut [u8], expected: &mut [u8]) {
    let mut reader = p.open_blob("video").unwrap().unwrap();
    let mut read = 0;
    for number in 0.. {
        let len = piece.len().min((STREAM_BYTES - read) as usize);
        if len == 0 {
            break;
        }
        reader.read_exact(&mut piece[..len]).unwrap();
        fill_piece(number, expected);
        assert!(piece[..len] == expected[..len], "piece {number}");
        read += len as u64;
    }
    assert_eq!(reader.read(piece).unwrap(), 0);
}

/// Does nothing unless it is the child.
#[test]
fn child_that_streams_a_value() {
    let Some(folder) = std::env::var_os(STREAMING) else { return };
    let mut piece = vec![0; 1 << 20];
    let mut expected = vec![0; 1 << 20];
    for (name, compression) in [("plain", Compression::None), ("packed", Compression::Lz4)] {
        let folder = Path::new(&folder).join(name);
        let db = Db::builder(&folder).open().unwrap();
        let values = LargeValueOptions::new().compression(compression);
        let options = PartitionOptions::new().large_values(values);
        let p = db.partition_with("p", options.metahive(MetaHiveOptions::default())).unwrap();
        check_stream(&format!("{name}: a stream in"), || stream_in(&p, &mut piece));
        check_stream(&format!("{name}: a flush"), || p.flush().unwrap());
        check_stream(&format!("{name}: a stream out"), || {
            stream_out(&p, &mut piece, &mut expected);
        });
        check_stream(&format!("{name}: a scrub"), || {
            assert!(p.scrub(ScrubOptions::new()).unwrap().is_sound());
        });
        drop(p);
        db.close().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn a_value_of_914_mb_goes_in_and_out_with_64_mib_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_streams_a_value", "--nocapture", "--test-threads=1"])
        .env(STREAMING, folder.path())
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
}
