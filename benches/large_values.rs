//! Large values: puts, gets into a warm buffer, ranges, scans from the device and deletions, of
//! values from 64 KiB to 16 MiB, and 4 KiB values in tables and in chunk files.
//!
//! `cargo bench --bench large_values`; for the sizes and mixes of the paper `siltstone bench large`

#![expect(missing_docs, reason = "the macro of criterion makes a function without a page")]

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use siltstone::large_values::Parallelism;
use siltstone::{Db, Durability, LargeValueOptions, Partition, PartitionOptions};
use tempfile::TempDir;

const SIZES: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];
/// Bytes of a value that may be in a table or in a chunk file.
const SMALL_BYTES: usize = 4 << 10;
/// Values that are written in turn, so that each put overwrites one.
const KEYS: u64 = 8;
/// Values of a scan.
const SCANNED: u64 = 64;

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

    /// Makes a store with one value of so many bytes, flushed.
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

/// The default threshold is chosen by this pair.
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

/// Asks the system to forget the chunk files, so that the next reads come from the device.
#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "the system is asked from outside")]
fn forget(store: &Store) {
    for chunk in store.partition.chunks().expect("it has large values") {
        let file = std::fs::File::open(&chunk.path).expect("it is there");
        // The system keeps what the device does not have.
        file.sync_all().expect("the device works");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    }
}

/// On other systems the reads come from the cache.
#[cfg(not(target_os = "linux"))]
fn forget(_store: &Store) {}

/// A scan from the device, which reads ahead, and gets of the same keys, which do not.
fn scans(c: &mut Criterion) {
    let len = 1 << 20;
    let store = Store::new(LargeValueOptions::default());
    let mut keys: Vec<[u8; 8]> = (0..SCANNED).map(|n| (n * 37 % SCANNED).to_be_bytes()).collect();
    // Neighbours are not next to each other on the device, so that the kernel does not read ahead
    // of the gets.
    for key in &keys {
        store.partition.put(key, vec![7; len]).expect("there is room");
    }
    store.partition.flush().expect("there is room");
    keys.sort_unstable();
    let mut group = c.benchmark_group("large_values/scan");
    group.sample_size(10);
    group.throughput(Throughput::Bytes(SCANNED * len as u64));
    group.bench_function("read_ahead", |b| {
        b.iter_batched(|| forget(&store), |()| scan_all(&store), BatchSize::PerIteration);
    });
    group.bench_function("gets", |b| {
        b.iter_batched(|| forget(&store), |()| get_all(&store, &keys), BatchSize::PerIteration);
    });
    group.finish();
}

fn scan_all(store: &Store) -> u64 {
    store.partition.range(..).map(|entry| used(&entry.expect("sound").1)).sum()
}

fn get_all(store: &Store, keys: &[[u8; 8]]) -> u64 {
    let values = keys.iter().map(|key| store.partition.get(key).expect("sound"));
    values.map(|value| used(&value.expect("it is there"))).sum()
}

/// Uses a value, as a caller may while the device reads the next one.
fn used(value: &[u8]) -> u64 {
    value.iter().map(|byte| u64::from(*byte)).sum()
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

criterion_group!(benches, puts, threshold, gets, scans, deletes);
criterion_main!(benches);
