//! The cost of metadata for every entry: the same work on a plain partition and on one with
//! MetaHive, and reads that compare each entry with its metadata.
//!
//! `cargo bench --bench metahive`; for large data sets and pairs in turn
//! `scripts/metahive-overhead.sh`

#![expect(missing_docs, reason = "the macro of criterion makes a function without a page")]

mod store;

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use siltstone::{MetaHiveOptions, Options, Partition, PartitionOptions};
use testkit::Rng;

use store::{RECORDS, Store, VALUE_BYTES};

/// The two sides of each pair.
const SIDES: [(&str, bool); 2] = [("plain", false), ("metahive", true)];

fn options(has_metahive: bool) -> PartitionOptions {
    let options = PartitionOptions::new();
    if has_metahive { options.metahive(MetaHiveOptions::default()) } else { options }
}

/// All records in one level of tables whose blocks are cached.
fn settled(has_metahive: bool) -> Store {
    Store::compacted_of(RECORDS, Options::new(), options(has_metahive))
}

/// Bytes of all keys and values.
fn walk(partition: &Partition) -> usize {
    let mut cursor = partition.cursor();
    cursor.seek_to_first().expect("every block verifies");
    let mut bytes = 0;
    while cursor.valid() {
        bytes += cursor.key().len() + cursor.value().expect("every block verifies").len();
        cursor.next().expect("every block verifies");
    }
    bytes
}

fn reads(c: &mut Criterion) {
    let stores = SIDES.map(|(name, has_metahive)| (name, settled(has_metahive)));
    for (name, store) in &stores {
        let mut rng = Rng::new(2);
        let mut key = Vec::new();
        c.bench_function(&format!("metahive/get/{name}"), |b| {
            b.iter(|| {
                store.keys.record(rng.below(RECORDS), &mut key);
                store.partition.get(black_box(&key)).expect("every block verifies")
            });
        });
    }
    let [_, (_, store)] = &stores;
    let mut rng = Rng::new(2);
    let mut key = Vec::new();
    c.bench_function("metahive/get/verified", |b| {
        b.iter(|| {
            store.keys.record(rng.below(RECORDS), &mut key);
            store.partition.verified_get(black_box(&key)).expect("every entry verifies")
        });
    });
    let mut group = c.benchmark_group("metahive/scan");
    group.throughput(Throughput::Elements(RECORDS));
    for (name, store) in &stores {
        group.bench_function(*name, |b| b.iter(|| walk(&store.partition)));
    }
    group.bench_function("verified", |b| {
        b.iter(|| {
            let entries = store.partition.verified_range(..);
            let bytes =
                entries.map(|item| item.map_or(0, |(k, found)| k.len() + found.value.len()));
            bytes.sum::<usize>()
        });
    });
    group.finish();
}

fn writes(c: &mut Criterion) {
    for (name, has_metahive) in SIDES {
        let mut store = Store::sized(RECORDS, Options::new(), options(has_metahive));
        let mut rng = Rng::new(2);
        let mut key = Vec::new();
        c.bench_function(&format!("metahive/put/{name}"), |b| {
            b.iter(|| {
                store.keys.record(rng.below(RECORDS), &mut key);
                store.partition.put(&key, store.values.next(VALUE_BYTES)).expect("it is writable")
            });
        });
    }
}

fn flushed(store: Store) -> Store {
    store.db.flush().expect("background work succeeds");
    store
}

fn compacted(store: Store) -> Store {
    store.partition.compact(..).expect("a store without readers compacts");
    store
}

/// From a memtable to a table, and from two tables whose records alternate to one level.
fn background(c: &mut Criterion) {
    let mut group = c.benchmark_group("metahive");
    group.throughput(Throughput::Elements(RECORDS)).sample_size(10);
    for (name, has_metahive) in SIDES {
        let empty = || Store::sized(RECORDS, Options::new(), options(has_metahive));
        group.bench_function(format!("flush/{name}"), |b| {
            b.iter_batched(
                || {
                    let mut store = empty();
                    store.fill(0..RECORDS);
                    store
                },
                flushed,
                BatchSize::PerIteration,
            );
        });
        group.bench_function(format!("compact/{name}"), |b| {
            let two_tables = || {
                let mut store = empty();
                for first in [0, 1] {
                    store.fill((first..RECORDS).step_by(2));
                    store.db.flush().expect("background work succeeds");
                }
                store
            };
            b.iter_batched(two_tables, compacted, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group! { name = benches; config = store::criterion(); targets = reads, writes, background }
criterion_main!(benches);
