//! Single puts and deletes, batches, and what a sync adds. The synced ones measure the device
//! under the temporary folder more than the engine.
//!
//! `cargo bench --bench point_write`

#![expect(missing_docs, reason = "the macro of criterion makes a function without a page")]

mod store;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use siltstone::{Durability, Options};
use testkit::Rng;

use store::{BATCH_ENTRIES, RECORDS, Store, VALUE_BYTES};

fn single(c: &mut Criterion) {
    let mut store = Store::empty(Options::new());
    let mut rng = Rng::new(2);
    let mut key = Vec::new();
    c.bench_function("point_write/put", |b| {
        b.iter(|| {
            store.keys.record(rng.below(RECORDS), &mut key);
            store.partition.put(&key, store.values.next(VALUE_BYTES)).expect("it is writable")
        });
    });
    c.bench_function("point_write/delete", |b| {
        b.iter(|| {
            store.keys.record(rng.below(RECORDS), &mut key);
            store.partition.delete(&key).expect("it is writable")
        });
    });
}

fn batches(c: &mut Criterion) {
    let mut store = Store::empty(Options::new());
    let mut rng = Rng::new(3);
    let mut key = Vec::new();
    let mut group = c.benchmark_group("point_write");
    for (name, entries, durability) in [
        ("batch", BATCH_ENTRIES, Durability::Os),
        ("put_sync", 1, Durability::Sync),
        ("batch_sync", BATCH_ENTRIES, Durability::Sync),
    ] {
        group.throughput(Throughput::Elements(entries));
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut batch = store.db.batch();
                for _ in 0..entries {
                    store.keys.record(rng.below(RECORDS), &mut key);
                    batch = batch.put(&store.partition, &key, store.values.next(VALUE_BYTES));
                }
                batch.commit(durability).expect("it is writable")
            });
        });
    }
    group.finish();
}

criterion_group! { name = benches; config = store::criterion(); targets = single, batches }
criterion_main!(benches);
