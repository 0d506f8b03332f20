//! Blocks that flushes and compactions write: the block cache keeps them while it has room, and no
//! longer than their tables live.

use std::sync::Arc;

use lsm_core::fs::MemFs;
use siltstone::{
    Compression, Db, MetaHiveOptions, Options, Partition, PartitionOptions, VerifyOptions,
};

use crate::store::stepped;

const KEYS: u32 = 3000;

struct Store {
    fs: MemFs,
    db: Db,
    p: Partition,
}

/// With a reader that has asked the cache for a block.
fn store(cache_bytes: u64, options: PartitionOptions) -> Store {
    let store = unread(cache_bytes, options);
    let read = store.db.partition("read").unwrap();
    read.put("a", "b").unwrap();
    read.flush().unwrap();
    assert!(read.contains("a").unwrap());
    store.db.drop_partition("read").unwrap();
    drop(read);
    store.db.wait_idle().unwrap();
    store
}

fn unread(cache_bytes: u64, options: PartitionOptions) -> Store {
    let fs = MemFs::new();
    let engine = Options::new().cache_bytes(cache_bytes).write_buffer_bytes(8 << 20);
    let db = stepped(Arc::new(fs.clone()), "/db", 1).options(engine).open().unwrap();
    let p = db.partition_with("p", options.block_bytes(2048).table_bytes(64 << 10)).unwrap();
    Store { fs, db, p }
}

fn key(n: u32) -> String {
    format!("key {n:05}")
}

fn value(n: u32, round: u32) -> String {
    format!("{n} of round {round} ").repeat(4)
}

impl Store {
    fn put_all(&self, round: u32) {
        for n in 0..KEYS {
            self.p.put(key(n), value(n, round)).unwrap();
        }
    }

    /// Reads every key. Returns how often the cache lacked a block.
    fn misses(&self, round: u32) -> u64 {
        let before = self.db.stats().cache_misses;
        for n in 0..KEYS {
            assert_eq!(self.p.get(key(n)).unwrap().unwrap(), value(n, round).as_bytes());
        }
        self.db.stats().cache_misses - before
    }

    fn flush(&self) {
        self.p.flush().unwrap();
    }

    fn compact(&self) {
        self.p.compact(..).unwrap();
        self.db.wait_idle().unwrap();
    }
}

#[test]
fn output_of_flushes_and_compactions_is_read_from_the_block_cache() {
    for options in [
        PartitionOptions::new().compression(Compression::None),
        PartitionOptions::new().compression(Compression::Lz4),
        PartitionOptions::new().metahive(MetaHiveOptions::new()),
    ] {
        let store = store(16 << 20, options);
        let mut bytes = Vec::new();
        for round in 0..12 {
            store.put_all(round);
            store.flush();
            assert_eq!(store.misses(round), 0, "round {round}, flushed");
            store.compact();
            assert_eq!(store.misses(round), 0, "round {round}, compacted");
            bytes.push(store.db.stats().cache_bytes);
        }
        // Blocks of deleted tables are gone: otherwise the cache would be full.
        assert!(bytes.iter().all(|held| *held < bytes[0] * 5 / 4), "{bytes:?}");
    }
}

/// They would cost the load a fifth of its processor time, and memory that no one asked for.
#[test]
fn a_load_puts_no_block_into_the_cache_before_a_reader_asks_for_one() {
    let store = unread(16 << 20, PartitionOptions::new());
    for round in 0..2 {
        store.put_all(round);
        store.flush();
    }
    store.compact();
    assert_eq!(store.db.stats().cache_bytes, 0);
    assert!(store.misses(1) > 0);
    let read = store.db.stats().cache_bytes;
    store.put_all(2);
    store.flush();
    assert!(store.db.stats().cache_bytes > read);
    assert_eq!(store.misses(2), 0);
}

/// The call used to look for each block of the partition in the cache, on the thread of the caller.
#[test]
fn blocks_of_a_dropped_partition_leave_the_cache_after_the_call() {
    let store = store(16 << 20, PartitionOptions::new());
    store.put_all(0);
    store.flush();
    // Only an opened table knows its blocks.
    assert_eq!(store.misses(0), 0);
    let cached = store.db.stats().cache_bytes;
    assert!(cached > 0);
    let held = store.p.iter();
    let Store { db, p, .. } = store;
    drop(p);
    db.drop_partition("p").unwrap();
    assert_eq!(db.stats().cache_bytes, cached);
    db.wait_idle().unwrap();
    assert_eq!(db.stats().cache_bytes, 0);
    // Only the iterator holds the tables.
    assert!(db.health().pinned_obsolete_bytes > 0);
    drop(held);
    db.wait_idle().unwrap();
    assert_eq!(db.health().pinned_obsolete_bytes, 0);
}

#[test]
fn few_large_entries_and_no_cache_keep_nothing() {
    let large = store(16 << 20, PartitionOptions::new());
    for n in 0..200 {
        large.p.put(key(n), vec![b'v'; 1000]).unwrap();
    }
    large.flush();
    assert_eq!(large.db.stats().cache_bytes, 0);
    let off = store(0, PartitionOptions::new());
    off.put_all(0);
    off.compact();
    assert_eq!(off.misses(0), 0, "a cache that is off is not read");
    assert_eq!(off.db.stats().cache_bytes, 0);
}

/// A get that the cache answers is right, and the damage on the device is found anyway.
#[test]
fn damage_after_a_cached_block_is_found_by_verify_and_by_the_next_open() {
    let store = store(16 << 20, PartitionOptions::new().compression(Compression::None));
    store.put_all(0);
    store.flush();
    let paths = store.fs.paths();
    let table = paths.iter().find(|path| path.extension().is_some_and(|it| it == "sst")).unwrap();
    store.fs.corrupt(table, 5000, 0x40).unwrap();
    assert_eq!(store.misses(0), 0);
    let report = store.db.verify(VerifyOptions::default()).unwrap();
    assert_eq!(report.damage().len(), 1, "{:?}", report.damage());
    store.db.close().unwrap();
    let again = Db::builder("/db").fs(Arc::new(store.fs.clone())).open().unwrap();
    let p = again.partition("p").unwrap();
    let refused = (0..KEYS).filter(|n| p.get(key(*n)).is_err()).count();
    assert!((5..60).contains(&refused), "{refused} keys are refused");
}
