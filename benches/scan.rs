//! Ranges: all entries in both directions by iterator and by cursor, short seeks, the merge with a
//! memtable, and the raw walk of tables compared with a scan of the same ones.
//!
//! `cargo bench --bench scan`

#![expect(missing_docs, reason = "the macro of criterion makes a function without a page")]

mod store;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use siltstone::raw::RawMode;
use siltstone::{MetaHiveOptions, Options, Partition, PartitionOptions};
use testkit::Rng;

use store::{RECORDS, Store};

/// Records of a store whose tables are walked.
const RAW_RECORDS: u64 = 200_000;

/// Entries read after each seek.
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

/// Bytes of all keys and values in the tables, as they are stored.
fn walk_raw(partition: &Partition, mode: RawMode) -> usize {
    let mut bytes = 0;
    for table in partition.walk().expect("the store is open").tables() {
        let mut entries = table.walk(mode).expect("the table opens");
        while let Some(entry) = entries.next().expect("every block verifies") {
            bytes += entry.key.len() + entry.value.len();
        }
    }
    bytes
}

/// The raw walk may take a quarter longer than a forward scan: measured with all blocks in the
/// block cache, and with reads that read from the file, verify and parse.
fn raw(c: &mut Criterion) {
    let bytes = RAW_RECORDS as usize * (store::KEY_BYTES + store::VALUE_BYTES);
    let mut group = c.benchmark_group("scan/raw");
    group.throughput(Throughput::Elements(RAW_RECORDS));
    for (name, cache_bytes) in [("cached", Options::new().cache_bytes), ("uncached", 0)] {
        let options = Options::new().cache_bytes(cache_bytes);
        let store = Store::compacted_of(RAW_RECORDS, options, PartitionOptions::new());
        let partition = &store.partition;
        let plain = RawMode::Cached;
        let read_ahead = RawMode::Streaming;
        assert_eq!([walk(partition), walk_raw(partition, plain)], [bytes; 2]);
        group.bench_function(format!("{name}/cursor"), |b| b.iter(|| walk(partition)));
        group.bench_function(format!("{name}/forward"), |b| b.iter(|| sum(partition.iter())));
        group.bench_function(format!("{name}/walk"), |b| b.iter(|| walk_raw(partition, plain)));
        if cache_bytes == 0 {
            group.bench_function(format!("{name}/walk_ahead"), |b| {
                b.iter(|| walk_raw(partition, read_ahead));
            });
        }
    }
    // With a metadata entry after each record, which the scan skips and the walk returns.
    let store = Store::compacted_of(RAW_RECORDS, Options::new(), PartitionOptions::new());
    let options = store.partition.options().metahive(MetaHiveOptions::default());
    let partition = store.db.partition_with("bench", options);
    let partition = &partition.expect("no key has the reserved ending");
    partition.compact(..).expect("a store without readers compacts");
    assert!(walk(partition) == bytes && walk_raw(partition, RawMode::default()) > bytes);
    group.bench_function("sealed/cursor", |b| b.iter(|| walk(partition)));
    group.bench_function("sealed/walk", |b| b.iter(|| walk_raw(partition, RawMode::default())));
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

criterion_group! { name = benches; config = store::criterion(); targets = whole, raw, seeks }
criterion_main!(benches);
