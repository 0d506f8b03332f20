//! The target `operations`: bytes are calls on a whole database, which is compared with a map, closed, killed, cut off
//! and opened again.

use std::collections::BTreeMap;
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, MemFs};
use siltstone::{
    BackgroundMode, Db, Durability, LargeValueOptions, Options, Partition, PartitionOptions,
    Readable, Snapshot,
};

/// More calls than this of one input are not made.
const CALLS_MAX: usize = 120;
const NAMES: [&str; 2] = ["plain", "large"];
/// A snapshot for each, at most.
const SNAPSHOTS_MAX: usize = 3;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;
/// The content of each partition.
type State = [Content; 2];

struct Store {
    mem: MemFs,
    db: Db,
    partitions: [Partition; 2],
    state: State,
    /// Dropped at each open.
    snapshots: Vec<(Snapshot, State)>,
    opens: u64,
}

fn open(mem: &MemFs, opens: u64) -> Db {
    let options = Options::new().write_buffer_bytes(4 << 10).wal_segment_bytes(8 << 10);
    let mut number = opens << 32;
    let builder = Db::builder("/db").fs(Arc::new(mem.clone())).background(BackgroundMode::Stepped);
    let builder = builder.options(options.cache_bytes(64 << 10)).random(move || {
        number += 1;
        number
    });
    builder.open().expect("a database in memory opens")
}

fn partitions(db: &Db) -> [Partition; 2] {
    NAMES.map(|name| {
        let options = PartitionOptions::new().block_bytes(128).table_bytes(1 << 10);
        let options = options.level_base_bytes(2 << 10).level0_tables(2);
        let options = match name {
            "large" => options.large_values(LargeValueOptions::default().threshold_bytes(256)),
            _ => options,
        };
        db.partition_with(name, options).expect("memory takes a partition")
    })
}

fn content(reader: &impl Readable) -> Content {
    let entries = reader.iter().map(|entry| entry.expect("nothing is damaged"));
    entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

impl Store {
    fn new() -> Store {
        let mem = MemFs::new();
        let db = open(&mem, 0);
        let partitions = partitions(&db);
        Store { mem, db, partitions, state: State::default(), snapshots: Vec::new(), opens: 0 }
    }

    /// Makes the call of four bytes.
    fn call(&mut self, call: [u8; 4]) {
        let [what, which, key, arg] = call;
        let which = usize::from(which) % 2;
        let partition = &self.partitions[which];
        let state = &mut self.state[which];
        let key = vec![b'k', key % 32];
        let done = match what % 16 {
            0..=3 => {
                let value = vec![arg; usize::from(arg) * (1 + usize::from(what >> 4))];
                let put = partition.put(&key, &value).map(drop);
                state.insert(key, value);
                put
            }
            4 => {
                state.remove(&key);
                partition.delete(&key).map(drop)
            }
            5 => {
                let end = vec![b'k', key[1].saturating_add(arg % 8)];
                state.retain(|there, _| *there < key || *there >= end);
                partition.delete_range(key..end).map(drop)
            }
            6 => self.batch(&key, arg),
            7 => self.db.flush(),
            8 => partition.compact(..),
            9 => (0..=arg % 8).try_for_each(|_| self.db.step().map(drop)),
            10 => {
                self.snapshot(arg);
                Ok(())
            }
            11 => self.transaction(which, &key, arg),
            12 if arg % 4 == 0 => {
                state.clear();
                partition.clear().map(drop)
            }
            13 => self.reopen(arg % 2 == 0),
            14 => self.cut_off(arg),
            _ => {
                let found = partition.get(&key).expect("nothing is damaged");
                assert_eq!(found.as_deref(), state.get(&key).map(Vec::as_slice), "{key:?}");
                Ok(())
            }
        };
        done.expect("a call in memory succeeds");
    }

    /// Puts into both partitions at once, or deletes.
    fn batch(&mut self, key: &[u8], arg: u8) -> siltstone::Result<()> {
        let mut batch = self.db.batch();
        for (partition, state) in self.partitions.iter().zip(&mut self.state) {
            if arg.is_multiple_of(3) {
                batch = batch.delete(partition, key);
                state.remove(key);
            } else {
                batch = batch.put(partition, key, vec![arg; 80]);
                state.insert(key.to_vec(), vec![arg; 80]);
            }
        }
        batch.commit(Durability::Os).map(drop)
    }

    fn snapshot(&mut self, arg: u8) {
        if self.snapshots.len() < SNAPSHOTS_MAX {
            self.snapshots.push((self.db.snapshot(), self.state.clone()));
        } else {
            self.snapshots.swap_remove(usize::from(arg) % SNAPSHOTS_MAX);
        }
    }

    /// Reads and writes a key, or gives up.
    fn transaction(&mut self, which: usize, key: &[u8], arg: u8) -> siltstone::Result<()> {
        let partition = &self.partitions[which];
        let mut transaction = self.db.transaction();
        let found = transaction.get_for_update(partition, key)?;
        assert_eq!(found.as_deref(), self.state[which].get(key).map(Vec::as_slice), "{key:?}");
        transaction.put(partition, key, vec![arg; 70]);
        if arg.is_multiple_of(2) {
            return Ok(());
        }
        self.state[which].insert(key.to_vec(), vec![arg; 70]);
        transaction.commit(Durability::Os).map(drop)
    }

    /// Ends the database, and opens it: closed, or as a process leaves it that is killed.
    fn reopen(&mut self, is_closed: bool) -> siltstone::Result<()> {
        self.snapshots.clear();
        self.opens += 1;
        if is_closed {
            self.db.clone().close()?;
        }
        self.begin(self.mem.clone());
        Ok(())
    }

    /// Cuts the power after everything was made durable.
    fn cut_off(&mut self, arg: u8) -> siltstone::Result<()> {
        self.snapshots.clear();
        self.opens += 1;
        self.db.wait_durable(self.db.visible_seq())?;
        let outcomes = [CrashOutcome::Nothing, CrashOutcome::Subset, CrashOutcome::Everything];
        let mut number = u64::from(arg);
        let image = self.mem.crash_clone(outcomes[usize::from(arg) % 3], &mut || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            number >> 24
        });
        self.begin(image);
        Ok(())
    }

    /// Opens what `mem` has, which is compared.
    fn begin(&mut self, mem: MemFs) {
        // The lock of a folder ends with its last handle.
        let idle = open(&MemFs::new(), 0);
        self.partitions = partitions(&idle);
        self.db = idle;
        self.mem = mem;
        self.db = open(&self.mem, self.opens);
        self.partitions = partitions(&self.db);
        self.check();
    }

    /// Compares everything with the maps.
    fn check(&self) {
        for (which, partition) in self.partitions.iter().enumerate() {
            assert!(content(partition) == self.state[which], "{} differs", NAMES[which]);
            let backwards = partition.iter().rev().count();
            assert_eq!(backwards, self.state[which].len(), "{} backwards", NAMES[which]);
            for (snapshot, state) in &self.snapshots {
                assert!(content(&snapshot.of(partition)) == state[which], "a snapshot differs");
            }
        }
    }
}

/// Makes the calls that `bytes` are, four bytes each.
pub(super) fn operations(bytes: &[u8]) {
    let mut store = Store::new();
    for call in bytes.as_chunks().0.iter().take(CALLS_MAX) {
        store.call(*call);
    }
    store.check();
    store.reopen(true).expect("a database in memory closes");
    let report = store.db.verify(siltstone::VerifyOptions::new()).expect("it is verified");
    assert!(report.is_sound(), "{:?}", report.damage());
}
