//! One key at a time: hits and misses, in tables whose blocks are cached and in memtables.
//!
//! `cargo bench --bench point_read`

#![expect(missing_docs, reason = "the macro of criterion makes a function without a page")]

mod store;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use testkit::Rng;

use store::{RECORDS, Store};

/// Times gets of the keys that `write_key` makes of random numbers below [`RECORDS`].
fn gets(
    c: &mut Criterion,
    name: &str,
    store: &Store,
    found: bool,
    write_key: impl Fn(u64, &mut Vec<u8>),
) {
    let mut rng = Rng::new(2);
    let mut key = Vec::new();
    c.bench_function(&format!("point_read/{name}"), |b| {
        b.iter(|| {
            write_key(rng.below(RECORDS), &mut key);
            let value = store.partition.get(black_box(&key)).expect("every block verifies");
            assert_eq!(value.is_some(), found);
            value
        });
    });
}

fn point_read(c: &mut Criterion) {
    let compacted = Store::compacted();
    let keys = compacted.keys;
    let record = |n: u64, key: &mut Vec<u8>| keys.record(n, key);
    gets(c, "tables_hit", &compacted, true, record);
    gets(c, "tables_miss", &compacted, false, |n, key| keys.missing(n, key));
    gets(c, "tables_miss_outside", &compacted, false, |n, key| keys.in_order(RECORDS + n, key));
    let snapshot = compacted.db.snapshot();
    let mut rng = Rng::new(3);
    let mut key = Vec::new();
    c.bench_function("point_read/tables_hit_snapshot", |b| {
        b.iter(|| {
            keys.record(rng.below(RECORDS), &mut key);
            snapshot.get(&compacted.partition, black_box(&key)).expect("every block verifies")
        });
    });

    let mixed = Store::mixed(4);
    gets(c, "quarter_in_memtable_hit", &mixed, true, record);
    gets(c, "quarter_in_memtable_miss", &mixed, false, |n, key| keys.missing(n, key));

    let mut memtable = Store::empty(siltstone::Options::new());
    memtable.fill(0..RECORDS);
    gets(c, "memtable_hit", &memtable, true, record);
    gets(c, "memtable_miss", &memtable, false, |n, key| keys.missing(n, key));
}

criterion_group! { name = benches; config = store::criterion(); targets = point_read }
criterion_main!(benches);
