//! The common part of the benches: a store in a temporary folder with records of
//! `testkit::workload`, so that every bench and the command's `bench` do the same work on the same keys.
//!
//! Invariant: equal arguments make equal contents, in memtables and in tables.

#![allow(dead_code, reason = "each bench uses a part of it")]

use std::time::Duration;

use criterion::Criterion;
use siltstone::{Db, Durability, Options, Partition, PartitionOptions};
use tempfile::TempDir;
use testkit::workload::{KeySpace, Values};

/// Records of a store.
pub const RECORDS: u64 = 100_000;
/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 100;
/// Operations in a batch.
pub const BATCH_ENTRIES: u64 = 100;

/// Short runs: a few seconds for each bench file.
pub fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
}

/// A store; the folder goes with it.
pub struct Store {
    pub db: Db,
    pub partition: Partition,
    pub keys: KeySpace,
    pub values: Values,
    pub folder: TempDir,
}

impl Store {
    /// An empty store.
    pub fn empty(options: Options) -> Store {
        Store::sized(RECORDS, options, PartitionOptions::new())
    }

    /// An empty store whose keys are chosen among `records`, in a partition with these options.
    pub fn sized(records: u64, options: Options, partition: PartitionOptions) -> Store {
        let folder = tempfile::tempdir().expect("the system has a temporary folder");
        let db = Db::builder(folder.path()).options(options).open().expect("a new store opens");
        let partition = db.partition_with("bench", partition).expect("a partition can be made");
        let keys = KeySpace::new(records, KEY_BYTES);
        Store { db, partition, keys, values: Values::new(1, VALUE_BYTES), folder }
    }

    /// All records in one level of tables, read once so that the block cache holds them.
    pub fn compacted() -> Store {
        Store::compacted_of(RECORDS, Options::new(), PartitionOptions::new())
    }

    /// As [`Store::compacted`], so many records with these options.
    pub fn compacted_of(records: u64, options: Options, partition: PartitionOptions) -> Store {
        let mut store = Store::sized(records, options, partition);
        store.fill(0..records);
        store.partition.compact(..).expect("a store without readers compacts");
        store.db.wait_idle().expect("background work succeeds");
        for entry in store.partition.iter().chain(store.partition.iter()) {
            entry.expect("every block verifies");
        }
        store
    }

    /// As [`Store::compacted`], and every `nth` record once more in the active memtable.
    pub fn mixed(nth: usize) -> Store {
        let mut store = Store::compacted();
        store.fill((0..RECORDS).step_by(nth));
        store
    }

    /// Puts these records, many in a batch.
    pub fn fill(&mut self, records: impl IntoIterator<Item = u64>) {
        let mut key = Vec::new();
        let mut batch = self.db.batch();
        for n in records {
            self.keys.record(n, &mut key);
            batch = batch.put(&self.partition, &key, self.values.next(VALUE_BYTES));
            if batch.len() as u64 == BATCH_ENTRIES {
                batch.commit(Durability::Os).expect("nothing is beyond a limit");
                batch = self.db.batch();
            }
        }
        batch.commit(Durability::Os).expect("nothing is beyond a limit");
    }
}
