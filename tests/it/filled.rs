//! The common part of the tests of clears and of deleted ranges: a partition with tables on two levels and entries in
//! memory, its content in every way, and background work with a clock.

use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{Fs, MemFs};
use siltstone::{Db, Options, Partition, PartitionOptions, Slice};

use crate::clock::ManualClock;
use crate::store::{Content, stepped};

/// Opens a database with a small write buffer, which runs in steps.
pub fn open_on(fs: Arc<dyn Fs>, dir: &str, clock: &ManualClock) -> Db {
    let builder = stepped(fs, dir, 7).clock(Arc::new(clock.clone()));
    builder.options(Options::new().write_buffer_bytes(64 << 10)).open().unwrap()
}

/// The same in `/db`.
pub fn open(fs: &MemFs) -> Db {
    open_on(Arc::new(fs.clone()), "/db", &ManualClock::default())
}

/// Many small tables.
pub fn small() -> PartitionOptions {
    PartitionOptions::new().table_bytes(2 << 10).block_bytes(256)
}

/// A key of [`filled`].
pub fn key(number: u32) -> String {
    format!("key {number:04}")
}

/// Puts these keys.
pub fn fill(p: &Partition, numbers: std::ops::Range<u32>, value: &str) {
    for number in numbers {
        p.put(key(number), value).unwrap();
    }
}

/// An entry of a scan.
pub fn pair(pair: siltstone::Result<(Slice, Slice)>) -> (Vec<u8>, Vec<u8>) {
    let (key, value) = pair.unwrap();
    (key.to_vec(), value.to_vec())
}

/// Reads everything in every way.
pub fn content(p: &Partition) -> Content {
    let forward: Content = p.iter().map(pair).collect();
    let backward: Content = p.iter().rev().map(pair).collect();
    assert_eq!(forward, backward);
    let keys: Vec<_> = (0..400).map(|n| key(n).into_bytes()).collect();
    let together = p.multi_get(&keys).unwrap();
    let mut cursor = p.cursor();
    for (key, together) in keys.iter().zip(together) {
        let expected = forward.get(key).map(Vec::as_slice);
        assert_eq!(p.get(key).unwrap().as_deref(), expected);
        assert_eq!(together.as_deref(), expected);
        assert_eq!(p.contains(key).unwrap(), expected.is_some());
        cursor.seek(key).unwrap();
        let next = forward.range(key.clone()..).next().map(|(key, _)| &key[..]);
        assert_eq!(cursor.valid().then(|| cursor.key()), next);
        cursor.seek_before(key).unwrap();
        let before = forward.range(..key.clone()).next_back().map(|(key, _)| &key[..]);
        assert_eq!(cursor.valid().then(|| cursor.key()), before);
    }
    let ends = [p.first().unwrap(), p.last().unwrap()].map(|end| end.map(|(key, _)| key.to_vec()));
    assert_eq!(ends, [forward.keys().next().cloned(), forward.keys().next_back().cloned()]);
    forward
}

/// The number of files with this ending.
pub fn files(fs: &MemFs, dir: &str, ending: &str) -> usize {
    let all = fs.list(Path::new(dir), "").unwrap();
    all.iter().filter(|entry| entry.name.ends_with(ending)).count()
}

/// Tables on two levels, and entries in memory.
pub fn filled(db: &Db, options: PartitionOptions) -> Partition {
    let p = db.partition_with("p", options).unwrap();
    fill(&p, 0..300, "first");
    p.compact(..).unwrap();
    fill(&p, 100..200, "second");
    db.flush().unwrap();
    fill(&p, 150..350, "third");
    p
}

/// Background work for as long as time brings new work.
pub fn idle(db: &Db, clock: &ManualClock) {
    for _ in 0..20 {
        clock.pass(1);
        db.wait_idle().unwrap();
    }
}
