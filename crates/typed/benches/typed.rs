//! The cost of types and indexes next to the calls of siltstone that they are made of.
//!
//! `cargo bench -p siltstone-typed`

#![expect(missing_docs, reason = "the macro of criterion makes a function without a page")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use serde::{Deserialize, Serialize};
use siltstone::Db;
use testkit::Rng;
use typed::{IndexDefinition, TableDefinition};

const ROWS: u64 = 100_000;

/// About a hundred bytes, as the values of the other benchmarks.
#[derive(Clone, Serialize, Deserialize)]
struct Record {
    group: u32,
    name: String,
    score: u64,
}

const PLAIN: TableDefinition<u64, Record> = TableDefinition::new("plain");
const INDEXED: TableDefinition<u64, Record> = TableDefinition::new("indexed");
const BY_GROUP: IndexDefinition<u32, u64, Record> =
    IndexDefinition::new("by_group", |_, record| vec![record.group]);

fn record(n: u64) -> Record {
    Record { group: (n % 1000) as u32, name: "n".repeat(90), score: n }
}

fn typed(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(folder.path()).expect("it opens");
    let raw = db.partition("raw").expect("it is made");
    let plain = PLAIN.open(&db).expect("it is made");
    let indexed = INDEXED.index(BY_GROUP).open(&db).expect("it is made");
    let by_group = indexed.by(&BY_GROUP).expect("it was opened with it");
    let bytes = postcard::to_stdvec(&record(7)).expect("it has an encoding");
    for n in 0..ROWS {
        raw.put(n.to_be_bytes(), &bytes).expect("it is writable");
        plain.put(n, &record(n)).expect("it is writable");
        indexed.put(n, &record(n)).expect("it is writable");
    }
    db.flush().expect("it is writable");
    db.wait_idle().expect("it is writable");
    let mut rng = Rng::new(7);
    c.bench_function("typed/get_raw", |b| {
        b.iter(|| raw.get(rng.below(ROWS).to_be_bytes()).expect("it reads"));
    });
    c.bench_function("typed/get", |b| b.iter(|| plain.get(rng.below(ROWS)).expect("it reads")));
    c.bench_function("typed/get_by_index_100_rows", |b| {
        b.iter(|| {
            let rows = by_group.now().expect("the open has built it");
            rows.get(rng.below(1000) as u32).for_each(|row| _ = black_box(row.expect("it reads")));
        });
    });
    c.bench_function("typed/scan_100_raw", |b| {
        b.iter(|| {
            let rows = raw.range(rng.below(ROWS).to_be_bytes()..).take(100);
            rows.for_each(|row| _ = black_box(row.expect("it reads")));
        });
    });
    c.bench_function("typed/scan_100", |b| {
        b.iter(|| {
            let rows = plain.range(rng.below(ROWS)..).take(100);
            rows.for_each(|row| _ = black_box(row.expect("it reads")));
        });
    });
    c.bench_function("typed/put_raw", |b| {
        b.iter(|| raw.put(rng.below(ROWS).to_be_bytes(), &bytes).expect("it is writable"));
    });
    let value = record(7);
    c.bench_function("typed/put", |b| {
        b.iter(|| plain.put(rng.below(ROWS), &value).expect("it is writable"));
    });
    c.bench_function("typed/put_with_an_index", |b| {
        b.iter(|| {
            let n = rng.below(ROWS);
            indexed.put(n, &record(n + rng.below(2))).expect("it is writable")
        });
    });
}

criterion_group! { name = benches; config = Criterion::default().sample_size(20); targets = typed }
criterion_main!(benches);
