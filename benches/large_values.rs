//! Large values: puts, gets into a warm buffer, ranges and deletions, of values from 64 KiB to 16 MiB,
//! and 4 KiB values in the tree beside the same ones apart.
//!
//! `cargo bench --bench large_values`; for the sizes and mixes of the paper `siltstone bench large`

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use siltstone::large_values::Parallelism;
use siltstone::{Db, Durability, LargeValueOptions, Partition, PartitionOptions};
use tempfile::TempDir;

const SIZES: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];
/// Bytes of a value that may be in the tree or apart.
const SMALL_BYTES: usize = 4 << 10;
/// Values that are written in turn, so that each put overwrites one.
const KEYS: u64 = 8;

/// A database in a folder of its own.
struct Store {
    db: Db,
    partition: Partition,
    _folder: TempDir,
}

impl Store {
    fn new(options: LargeValueOptions) -> Store {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let db = Db::open(folder.path()).expect("a fresh folder");
        let options = PartitionOptions::new().large_values(options);
        let partition = db.partition_with("values", options).expect("the options are good");
        Store { db, partition, _folder: folder }
    }

    /// With one value of so many bytes, flushed.
    fn with(len: usize) -> Store {
        let store = Store::new(LargeValueOptions::default());
        store.partition.put("key", vec![7; len]).expect("there is room");
        store.partition.flush().expect("there is room");
        store
    }

    fn put_all(&self, value: &[u8]) {
        for key in 0..KEYS {
            self.partition.put(key.to_be_bytes(), value).expect("there is room");
        }
        self.partition.flush().expect("there is room");
    }

    fn delete_all(&self) {
        for key in 0..KEYS {
            self.partition.delete(key.to_be_bytes()).expect("there is room");
        }
        self.partition.reclaim().expect("nothing is damaged");
    }
}

fn puts(c: &mut Criterion) {
    let mut group = c.benchmark_group("large_values/put");
    group.sample_size(20);
    for len in SIZES {
        group.throughput(Throughput::Bytes(len as u64));
        let value = vec![7; len];
        for (name, durability) in [("os", Durability::Os), ("sync", Durability::Sync)] {
            let store = Store::new(LargeValueOptions::default());
            let mut n = 0_u64;
            group.bench_function(BenchmarkId::new(name, len), |b| {
                b.iter(|| {
                    n += 1;
                    let key = (n % KEYS).to_be_bytes();
                    store.partition.put_with(key, black_box(&value), durability).expect("room")
                });
            });
            store.db.close().expect("it flushes");
        }
    }
    group.finish();
}

/// The default threshold stands on this pair.
fn threshold(c: &mut Criterion) {
    let mut group = c.benchmark_group("large_values/put_4k");
    group.throughput(Throughput::Bytes(SMALL_BYTES as u64));
    let value = vec![7; SMALL_BYTES];
    let apart = LargeValueOptions::new().threshold_bytes(SMALL_BYTES as u64);
    for (name, options) in [("tree", LargeValueOptions::default()), ("apart", apart)] {
        let store = Store::new(options);
        let mut n = 0_u64;
        group.bench_function(name, |b| {
            b.iter(|| {
                n += 1;
                store.partition.put((n % 1024).to_be_bytes(), black_box(&value)).expect("room")
            });
        });
    }
    group.finish();
}

fn gets(c: &mut Criterion) {
    let mut group = c.benchmark_group("large_values/get");
    group.sample_size(20);
    for len in SIZES {
        let store = Store::with(len);
        let mut buf = vec![0; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("into_warm_buffer", len), |b| {
            b.iter(|| store.partition.get_into("key", &mut buf, Parallelism::Auto).expect("sound"));
        });
        group.bench_function(BenchmarkId::new("fresh_buffer", len), |b| {
            b.iter(|| store.partition.get("key").expect("sound"));
        });
        group.throughput(Throughput::Bytes(1000));
        let middle = len as u64 / 2;
        group.bench_function(BenchmarkId::new("range_of_1000", len), |b| {
            b.iter(|| store.partition.get_range("key", middle..middle + 1000).expect("sound"));
        });
    }
    group.finish();
}

/// Deletions of a megabyte each, until the space is back.
fn deletes(c: &mut Criterion) {
    let len = 1 << 20;
    let store = Store::new(LargeValueOptions::default());
    let value = vec![7; len];
    let mut group = c.benchmark_group("large_values/delete");
    group.sample_size(10);
    group.throughput(Throughput::Bytes(KEYS * len as u64));
    group.bench_function("until_reclaimed", |b| {
        b.iter_batched(|| store.put_all(&value), |()| store.delete_all(), BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, puts, threshold, gets, deletes);
criterion_main!(benches);
