//! The main paths, each in a function of its own, for callgrind. `scripts/instructions.sh` runs it, and compares what each
//! function costs with `benches/instructions/bounds.txt`.
//!
//! It prints a line for each function: its name, and the operations that it does.
//!
//! Invariant: one thread, seeded random numbers, and background work step by step. So two runs execute the same
//! instructions, but for the seeds of hash maps.

use std::path::Path;

use siltstone::large_values::Parallelism;
use siltstone::{
    BackgroundMode, Compression, Db, LargeValueOptions, Partition, PartitionOptions, Result,
};
use testkit::Rng;
use testkit::workload::{KeySpace, Values};

/// Records of the data set, of 16 + 100 bytes.
const RECORDS: u64 = 30_000;
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 100;
/// Operations of a workload that reads.
const READS: u64 = 5_000;
/// Entries of a batch, and entries that are read after a seek.
const BATCH_ENTRIES: u64 = 100;
const SEEK_NEXTS: usize = 10;
const LARGE_BYTES: usize = 1 << 20;
const LARGE_READS: u64 = 10;

/// A database with one partition of records.
struct Store {
    db: Db,
    partition: Partition,
    keys: KeySpace,
    values: Values,
    rng: Rng,
    key: Vec<u8>,
}

impl Store {
    fn open(folder: &Path, name: &str, options: PartitionOptions) -> Result<Store> {
        let builder = Db::builder(folder.join(name)).cache_bytes(64 << 20);
        let db = builder.background(BackgroundMode::Stepped).open()?;
        let partition = db.partition_with("records", options)?;
        let keys = KeySpace::new(RECORDS, KEY_BYTES);
        let values = Values::new(1, VALUE_BYTES);
        Ok(Store { db, partition, keys, values, rng: Rng::new(7), key: Vec::new() })
    }

    fn put_all(&mut self, from: u64, to: u64) -> Result<()> {
        for n in from..to {
            self.keys.record(n, &mut self.key);
            self.partition.put(&self.key, self.values.next(VALUE_BYTES))?;
        }
        Ok(())
    }

    fn get_random(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            self.keys.record(self.rng.below(RECORDS), &mut self.key);
            let value = self.partition.get(&self.key)?;
            assert!(value.is_some(), "every record is there");
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        while self.db.step()? {}
        Ok(())
    }
}

#[inline(never)]
fn measure_put(store: &mut Store) -> Result<u64> {
    store.put_all(0, RECORDS / 2)?;
    Ok(RECORDS / 2)
}

#[inline(never)]
fn measure_batch_put(store: &mut Store) -> Result<u64> {
    let mut n = RECORDS / 2;
    while n < RECORDS {
        let mut batch = store.db.batch();
        for _ in 0..BATCH_ENTRIES {
            store.keys.record(n, &mut store.key);
            batch.of(&store.partition).put(&store.key, store.values.next(VALUE_BYTES));
            n += 1;
        }
        batch.commit(siltstone::Durability::Os)?;
    }
    Ok(RECORDS / 2)
}

#[inline(never)]
fn measure_get_memtable(store: &mut Store) -> Result<u64> {
    // Another number than for the tables: the linker makes one of two equal functions.
    store.get_random(READS / 2)?;
    Ok(READS / 2)
}

#[inline(never)]
fn measure_flush(store: &mut Store) -> Result<u64> {
    store.partition.flush()?;
    Ok(RECORDS)
}

#[inline(never)]
fn measure_compaction(store: &mut Store) -> Result<u64> {
    store.partition.compact(..)?;
    // Two tables of level 0, each with all records.
    Ok(2 * RECORDS)
}

#[inline(never)]
fn measure_get_hit(store: &mut Store) -> Result<u64> {
    store.get_random(READS)?;
    Ok(READS)
}

#[inline(never)]
fn measure_get_miss(store: &mut Store) -> Result<u64> {
    for _ in 0..READS {
        store.keys.missing(store.rng.below(RECORDS), &mut store.key);
        let value = store.partition.get(&store.key)?;
        assert!(value.is_none(), "no record has the key");
    }
    Ok(READS)
}

#[inline(never)]
fn measure_seek_and_next(store: &mut Store) -> Result<u64> {
    for _ in 0..READS / 5 {
        store.keys.record(store.rng.below(RECORDS), &mut store.key);
        let mut cursor = store.partition.cursor();
        cursor.seek(&store.key)?;
        for _ in 0..SEEK_NEXTS {
            cursor.next()?;
        }
    }
    Ok(READS / 5)
}

#[inline(never)]
fn measure_scan(store: &mut Store) -> Result<u64> {
    let mut entries = 0;
    for entry in store.partition.iter() {
        entry?;
        entries += 1;
    }
    assert_eq!(entries, RECORDS, "every record is there");
    Ok(entries)
}

#[inline(never)]
fn measure_get_large(store: &mut Store) -> Result<u64> {
    let mut buffer = vec![0; LARGE_BYTES];
    for _ in 0..LARGE_READS {
        store.partition.get_into("large", &mut buffer, Parallelism::Threads(1))?;
    }
    Ok(LARGE_READS)
}

type Measured = fn(&mut Store) -> Result<u64>;

#[expect(clippy::print_stdout, reason = "the script reads it")]
fn report(name: &str, measured: Measured, store: &mut Store) -> Result<()> {
    let operations = measured(store)?;
    println!("{name} {operations}");
    Ok(())
}

fn small_values(folder: &Path) -> Result<()> {
    let options = PartitionOptions::new().compression(Compression::None);
    let mut store = Store::open(folder, "small", options)?;
    report("measure_put", measure_put, &mut store)?;
    report("measure_batch_put", measure_batch_put, &mut store)?;
    report("measure_get_memtable", measure_get_memtable, &mut store)?;
    report("measure_flush", measure_flush, &mut store)?;
    store.put_all(0, RECORDS)?;
    store.partition.flush()?;
    report("measure_compaction", measure_compaction, &mut store)?;
    store.settle()?;
    // Every block is in the cache before the reads are counted.
    assert_eq!(store.partition.iter().count() as u64, RECORDS);
    store.get_random(RECORDS)?;
    report("measure_get_hit", measure_get_hit, &mut store)?;
    report("measure_get_miss", measure_get_miss, &mut store)?;
    report("measure_seek_and_next", measure_seek_and_next, &mut store)?;
    report("measure_scan", measure_scan, &mut store)?;
    store.db.close()
}

fn large_values(folder: &Path) -> Result<()> {
    let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    let mut store = Store::open(folder, "large", options)?;
    store.partition.put("large", vec![7; LARGE_BYTES])?;
    store.partition.flush()?;
    report("measure_get_large", measure_get_large, &mut store)?;
    store.db.close()
}

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).expect("the argument is an empty folder");
    let folder = Path::new(&folder);
    small_values(folder)?;
    large_values(folder)
}
