//! The simulator next to the engine: the same load with the same options, in a database in memory that works step by step,
//! and as numbers. Counts of bytes, no times.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::sync::Arc;

use siltstone::fs::MemFs;
use siltstone::simulate::{FillOrder, Growth, OverwriteChoice, SimulatedLoad, Simulation};
use siltstone::{BackgroundMode, Compression, Db, Options, Partition, PartitionOptions};
use testkit::Rng;
use testkit::workload::{KeySpace, Permutation, Values, Zipfian};

/// Number of records. With the options below the data are on four levels.
const RECORDS: u64 = 40_000;
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 100;
/// The costs of the two differ by no more than this share.
const BOUND: f64 = 0.05;

fn options() -> Options {
    Options::new().write_buffer_bytes(128 << 10)
}

fn partition_options() -> PartitionOptions {
    PartitionOptions::new()
        .compression(Compression::None)
        .table_bytes(64 << 10)
        .level_base_bytes(256 << 10)
        .level_multiplier(4)
}

/// Bytes that the engine has put and written, and bytes of its tables.
#[derive(Clone, Copy, Debug)]
struct Counted {
    put: u64,
    written: u64,
    tables: u64,
}

impl Counted {
    fn real(db: &Db) -> Counted {
        let stats = db.stats();
        let written = stats.wal_bytes + stats.flush_bytes + stats.compaction_written_bytes;
        Counted { put: stats.user_bytes, written, tables: stats.table_bytes }
    }

    fn simulated(growth: &Growth) -> Counted {
        Counted {
            put: growth.put_bytes,
            written: growth.written_bytes(),
            tables: growth.table_bytes(),
        }
    }

    fn write_amplification_since(self, earlier: Counted) -> f64 {
        (self.written - earlier.written) as f64 / (self.put - earlier.put) as f64
    }
}

const NOTHING: Counted = Counted { put: 0, written: 0, tables: 0 };

/// A database and its simulation.
struct Both {
    db: Db,
    partition: Partition,
    values: Values,
    simulation: Simulation,
}

impl Both {
    fn new(order: FillOrder, choice: OverwriteChoice) -> Both {
        let builder = Db::builder("/db").fs(Arc::new(MemFs::new())).options(options());
        let db = builder.background(BackgroundMode::Stepped).open().unwrap();
        let partition = db.partition_with("records", partition_options()).unwrap();
        let mut load = SimulatedLoad::default();
        load.records = RECORDS;
        load.order = order;
        load.choice = choice;
        let simulation = Simulation::new(load, &options(), &partition_options()).unwrap();
        Both { db, partition, values: Values::new(1, VALUE_BYTES), simulation }
    }

    /// Puts a record, and does all the background work that follows.
    fn put(&mut self, key: &[u8]) {
        self.partition.put(key, self.values.next(VALUE_BYTES)).unwrap();
        if self.partition.stats().sealed_memtable_count > 0 {
            while self.db.step().unwrap() {}
        }
    }

    fn flush(&mut self) -> (Counted, Counted) {
        self.partition.flush().unwrap();
        while self.db.step().unwrap() {}
        self.simulation.flush();
        (Counted::real(&self.db), Counted::simulated(&self.simulation.growth()))
    }
}

fn check_near(what: &str, real: f64, simulated: f64) {
    let off = simulated / real - 1.0;
    assert!(off.abs() <= BOUND, "{what}: {real:.3} in the engine, {simulated:.3} simulated");
}

/// Fills and overwrites both, and compares what it cost.
fn check(order: FillOrder, choice: OverwriteChoice) {
    let mut both = Both::new(order, choice);
    let keys = KeySpace::new(RECORDS, KEY_BYTES);
    let mut key = Vec::new();
    for n in 0..RECORDS {
        match order {
            FillOrder::Ascending => keys.in_order(n, &mut key),
            _ => keys.record(n, &mut key),
        }
        both.put(&key);
    }
    both.simulation.fill(RECORDS);
    let (real_filled, filled) = both.flush();
    let mut rng = Rng::new(7);
    let zipfian = Zipfian::new(RECORDS);
    let scattered = Permutation::new(RECORDS);
    for _ in 0..RECORDS {
        let n = match choice {
            OverwriteChoice::Zipfian => scattered.apply(zipfian.next(&mut rng)),
            _ => rng.below(RECORDS),
        };
        keys.record(n, &mut key);
        both.put(&key);
    }
    both.simulation.overwrite(RECORDS);
    let (real_end, end) = both.flush();
    let what = format!("{order:?}, {choice:?}");
    check_near(
        &format!("{what}: writes of the fill"),
        real_filled.write_amplification_since(NOTHING),
        filled.write_amplification_since(NOTHING),
    );
    check_near(
        &format!("{what}: writes of the overwrites"),
        real_end.write_amplification_since(real_filled),
        end.write_amplification_since(filled),
    );
    let live = end_live(&both);
    check_near(&format!("{what}: space"), real_end.tables as f64 / live, end.tables as f64 / live);
    both.db.close().unwrap();
}

/// Bytes of the live records, which are as many in both.
fn end_live(both: &Both) -> f64 {
    let growth = both.simulation.growth();
    assert_eq!(growth.records, RECORDS);
    growth.live_bytes as f64
}

#[test]
fn uniform_overwrites_cost_what_they_cost_in_the_engine() {
    check(FillOrder::Random, OverwriteChoice::Uniform);
}

#[test]
fn zipfian_overwrites_cost_what_they_cost_in_the_engine() {
    check(FillOrder::Random, OverwriteChoice::Zipfian);
}

#[test]
fn a_fill_in_key_order_is_moved_down_as_in_the_engine() {
    check(FillOrder::Ascending, OverwriteChoice::Uniform);
}
