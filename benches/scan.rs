//! Ranges: all entries in both directions by iterator and by cursor, short seeks, and the merge
//! with a memtable.
//!
//! `cargo bench --bench scan`

mod store;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use siltstone::Partition;
use testkit::Rng;

use store::{RECORDS, Store};

/// Entries read behind each seek.
const SEEK_ENTRIES: usize = 10;

/// Bytes of all keys and values; forwards by a cursor, which copies nothing.
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

/// As [`walk`], by an iterator.
fn sum(
    entries: impl Iterator<Item = siltstone::Result<(siltstone::Slice, siltstone::Slice)>>,
) -> usize {
    entries.map(|entry| entry.map_or(0, |(key, value)| key.len() + value.len())).sum()
}

fn whole(c: &mut Criterion) {
    let bytes = RECORDS as usize * (store::KEY_BYTES + store::VALUE_BYTES);
    let mut group = c.benchmark_group("scan");
    group.throughput(Throughput::Elements(RECORDS));
    for (name, store) in [("tables", Store::compacted()), ("quarter_in_memtable", Store::mixed(4))]
    {
        let partition = &store.partition;
        assert_eq!([walk(partition), sum(partition.iter().rev())], [bytes; 2]);
        group.bench_function(format!("{name}/cursor"), |b| b.iter(|| walk(partition)));
        group.bench_function(format!("{name}/forward"), |b| b.iter(|| sum(partition.iter())));
        group.bench_function(format!("{name}/backward"), |b| {
            b.iter(|| sum(partition.iter().rev()));
        });
    }
    group.finish();
}

fn seeks(c: &mut Criterion) {
    let mut rng = Rng::new(2);
    let mut key = Vec::new();
    for (name, store) in [("tables", Store::compacted()), ("quarter_in_memtable", Store::mixed(4))]
    {
        c.bench_function(&format!("scan/{name}/seek_and_10"), |b| {
            b.iter(|| {
                store.keys.record(rng.below(RECORDS), &mut key);
                sum(store.partition.range(key.as_slice()..).take(SEEK_ENTRIES))
            });
        });
    }
}

criterion_group! { name = benches; config = store::criterion(); targets = whole, seeks }
criterion_main!(benches);
