//! Catching up by the indexes of sections of sealed segments: whole, damaged and missing.

use std::path::PathBuf;

use lsm_core::ErrorKind;
use lsm_core::codec::checksum64_seeded;
use lsm_core::db::BackgroundMode;
use lsm_core::fs::{FaultFs, OpKind};
use lsm_core::options::Durability;
use secondary::Target;

use super::*;

const MAGIC: &[u8] = b"SILTSECTIONS";

/// A primary whose log has several sealed segments, each with an index. Everything stays in the log.
fn logged(mem: &MemFs) -> Db {
    let options = options().write_buffer_bytes(1 << 20).wal_segment_bytes(8 << 10);
    let fs = Arc::new(mem.clone());
    let db = Db::builder(DIR).fs(fs).options(options.wal_bytes_max(1 << 20));
    let db = db.background(BackgroundMode::Stepped).open().unwrap();
    let a = db.partition("a").unwrap();
    let b = db.partition("b").unwrap();
    for number in 0..120_u32 {
        a.put(number.to_be_bytes(), [1; 90]).unwrap();
        b.put(number.to_be_bytes(), [2; 150]).unwrap();
        if number % 8 == 0 {
            let batch = db.batch().put(&b, "last", number.to_string());
            batch.put(&a, "last", number.to_string()).commit(Durability::Os).unwrap();
        }
    }
    db.wait_idle().unwrap();
    db
}

/// The segments that have an index, oldest first, and its offset.
fn indexes(mem: &MemFs) -> Vec<(PathBuf, usize)> {
    let mut found = Vec::new();
    for path in mem.paths() {
        let bytes = mem.read_raw(&path).unwrap();
        let at = bytes.windows(MAGIC.len()).position(|window| window == MAGIC);
        found.extend(at.map(|at| (path, at)));
    }
    found
}

/// The content of both partitions as a new secondary catches up with them, one after the other.
fn followed(mem: &MemFs) -> [Content; 2] {
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let follower = secondary(&fs);
    ["a", "b"].map(|name| {
        let partition = follower.partition(name).unwrap();
        partition.sync(Target::Latest).unwrap();
        content(&partition.at(secondary::Level::Strong).unwrap())
    })
}

#[test]
fn an_index_that_is_damaged_anywhere_changes_nothing() {
    let mem = MemFs::new();
    let db = logged(&mem);
    let expected = ["a", "b"].map(|name| content_of(&db.partition(name).unwrap()));
    assert_eq!(followed(&mem), expected);
    let indexes = indexes(&mem);
    assert!(indexes.len() >= 3, "{indexes:?}");
    let (path, at) = &indexes[1];
    let whole = mem.read_raw(path).unwrap();
    let len = whole.len() - at;
    for offset in *at..whole.len().min(at + 200) {
        mem.corrupt(path, offset as u64, 0x10).unwrap();
        assert_eq!(followed(&mem), expected, "byte {offset} of {len}");
        mem.corrupt(path, offset as u64, 0x10).unwrap();
    }
    for cut in [0, 1, 47, 48, 60] {
        mem.truncate_raw(path, (at + cut) as u64).unwrap();
        assert_eq!(followed(&mem), expected, "cut at {cut}");
    }
}

/// The checksums of the index are right and its operations add up: only reading the sections shows
/// that a group is wrong. Then the log is walked.
#[test]
fn an_index_that_lies_is_not_believed() {
    let mem = MemFs::new();
    let db = logged(&mem);
    let expected = ["a", "b"].map(|name| content_of(&db.partition(name).unwrap()));
    let (path, at) = indexes(&mem)[1].clone();
    let whole = mem.read_raw(&path).unwrap();
    let groups = u32::from_le_bytes(whole[at + 40..at + 44].try_into().unwrap()) as usize;
    let sum_at = at + (48 + groups).next_multiple_of(8);
    let mut lies = 0;
    for offset in at + 48..at + 48 + groups {
        let mut bytes = whole.clone();
        bytes[offset] ^= 1;
        let salt = u64::from_le_bytes(bytes[56..64].try_into().unwrap());
        let epoch = u64::from(u32::from_le_bytes(bytes[28..32].try_into().unwrap()));
        let seed = salt
            ^ epoch.wrapping_mul(0xd6e8_feb8_6659_fd93)
            ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ 0x2f1c_9a35_77e4_b0d1;
        if offset == at + 48 {
            // The test seals as the writer does.
            let sum = checksum64_seeded(&whole[at..sum_at], seed);
            assert_eq!(whole[sum_at..sum_at + 8], sum.to_le_bytes());
            // Partition 0 would be a partition that was dropped.
            continue;
        }
        let sum = checksum64_seeded(&bytes[at..sum_at], seed);
        bytes[sum_at..sum_at + 8].copy_from_slice(&sum.to_le_bytes());
        mem.write_raw(&path, &bytes).unwrap();
        assert_eq!(followed(&mem), expected, "byte {offset}");
        lies += 1;
    }
    assert!(lies > 20, "{lies}");
}

/// The frames of other partitions are not read, so their damage does not concern this one.
#[test]
fn a_partition_catches_up_despite_damage_of_another() {
    let mem = MemFs::new();
    let db = logged(&mem);
    let (path, end) = indexes(&mem)[1].clone();
    let bytes = mem.read_raw(&path).unwrap();
    let of_b = bytes[..end].windows(150).position(|window| window == [2; 150]).unwrap();
    // In the header before the section.
    mem.corrupt(&path, of_b as u64 - 12, 1).unwrap();
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let follower = secondary(&fs);
    let a = follower.partition("a").unwrap();
    a.sync(Target::Latest).unwrap();
    let reading = a.at(secondary::Level::Eventual).unwrap();
    assert_eq!(content(&reading), content_of(&db.partition("a").unwrap()));
    let error = follower.partition("b").unwrap().sync(Target::Latest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}

/// Also a partition that was never requested before: no walk over the others comes first.
#[test]
fn a_partition_in_sealed_segments_costs_its_own_bytes() {
    const PARTITIONS: usize = 16;
    let fault = FaultFs::over_mem(MemFs::new());
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let options = options().write_buffer_bytes(64 << 20).wal_segment_bytes(256 << 10);
    let db = Db::builder(DIR).fs(fs.clone()).options(options.wal_bytes_max(128 << 20));
    let db = db.background(BackgroundMode::Stepped).open().unwrap();
    let names: Vec<String> = (0..PARTITIONS).map(|number| format!("p{number:02}")).collect();
    let partitions: Vec<_> = names.iter().map(|name| db.partition(name).unwrap()).collect();
    for key in 0..300_u32 {
        for partition in &partitions {
            partition.put(key.to_be_bytes(), [7; 1000]).unwrap();
        }
    }
    db.wait_idle().unwrap();
    for name in &names {
        let follower = secondary(&fs);
        let followed = follower.partition(name).unwrap();
        fault.start_log();
        followed.sync(Target::Latest).unwrap();
        let log = fault.take_log();
        let read: u64 = log.iter().filter(|op| op.kind == OpKind::Read).map(|op| op.len).sum();
        let own = 300 * 1000;
        // The last segment is not sealed, and is walked.
        assert!(own < read && read < own * 5 / 4 + (256 << 10), "{read} bytes were read for {own}");
        assert_eq!(content(&followed.at(secondary::Level::Eventual).unwrap()).len(), 300);
    }
}
