//! The cost of a secondary: a look that finds nothing, catching up with one partition of many, the time
//! until a write is seen, and an open with many tables.
//!
//! `cargo bench --bench secondary`; the experiment of the thesis is `siltstone bench scid`

#![expect(missing_docs, reason = "the macro of criterion makes a function without a page")]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use siltstone::secondary::{Follow, Level, Secondary, Target};
use siltstone::{Db, Options, Partition, PartitionOptions};
use tempfile::TempDir;
use testkit::Rng;

const PARTITIONS: usize = 16;
/// Bytes of the log that is caught up with.
const LOG_BYTES: usize = 64 << 20;
/// Short, so that little of the log is in the segment that is written to.
const SEGMENT_BYTES: u64 = 4 << 20;
const VALUE_BYTES: usize = 1000;
const TABLES: usize = 1000;

/// A primary with a folder of its own.
struct Primary {
    folder: TempDir,
    db: Db,
    partitions: Vec<Partition>,
}

impl Primary {
    fn open(partitions: usize, options: Options) -> Primary {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let db = Db::builder(folder.path()).options(options).open().expect("it is empty");
        let names = (0..partitions).map(|number| format!("p{number:02}"));
        let partitions = names.map(|name| db.partition(&name).expect("it is made")).collect();
        Primary { folder, db, partitions }
    }

    fn secondary(&self) -> Secondary {
        Db::secondary(self.folder.path()).expect("the primary is open")
    }
}

fn nothing_new(c: &mut Criterion) {
    let primary = Primary::open(2, Options::new());
    primary.partitions[0].put("k", "v").expect("the folder is writable");
    let secondary = primary.secondary();
    let p = secondary.partition("p00").expect("it exists");
    p.sync(Target::Latest).expect("the primary lives");
    c.bench_function("secondary/sync/nothing new", |b| {
        b.iter(|| p.sync(black_box(Target::Latest)).expect("the primary lives"));
    });
    c.bench_function("secondary/strong get/nothing new", |b| {
        b.iter(|| {
            let reading = p.at(Level::Strong).expect("the primary lives");
            reading.get(black_box("k")).expect("it is in memory")
        });
    });
}

/// A log of many partitions in equal parts, in segments that are sealed except the last one;
/// nothing is flushed.
fn logged() -> Primary {
    let options = Options::new().write_buffer_bytes(512 << 20).wal_bytes_max(1 << 30);
    let options = options.wal_segment_bytes(SEGMENT_BYTES);
    let primary = Primary::open(PARTITIONS, options);
    let mut rng = Rng::new(1);
    let value = rng.bytes(VALUE_BYTES);
    for number in 0..LOG_BYTES / VALUE_BYTES {
        let key = rng.next_u64().to_be_bytes();
        let partition = &primary.partitions[number % PARTITIONS];
        partition.put(key, &value).expect("the folder is writable");
    }
    // After this all sealed segments have an index.
    primary.db.wait_idle().expect("the folder is writable");
    primary
}

fn catching_up(c: &mut Criterion) {
    let primary = logged();
    let mut group = c.benchmark_group("secondary/catch up");
    group.sample_size(10);
    group.bench_function("1 of 16 partitions", |b| {
        b.iter_batched(
            || primary.secondary(),
            |secondary| {
                let partition = secondary.partition("p03").expect("it exists");
                partition.sync(Target::Latest).expect("the primary lives");
                secondary
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("all 16 partitions", |b| {
        b.iter_batched(
            || primary.secondary(),
            |secondary| {
                secondary.sync(Target::Latest).expect("the primary lives");
                secondary
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn visible(c: &mut Criterion) {
    let primary = Primary::open(1, Options::new());
    let secondary = primary.secondary();
    let p = secondary.partition("p00").expect("it exists");
    p.follow(Follow::Eager).expect("a thread can be started");
    let mut number = 0_u64;
    c.bench_function("secondary/visible on an eager one", |b| {
        b.iter(|| {
            number += 1;
            let value = number.to_be_bytes();
            primary.partitions[0].put("k", value).expect("the folder is writable");
            while p.get("k").expect("the primary lives").as_deref() != Some(&value[..]) {
                std::hint::spin_loop();
            }
        });
    });
}

/// A partition whose entries are in so many small tables.
fn many_tables() -> Primary {
    let primary = Primary::open(1, Options::new());
    let options = PartitionOptions::new().table_bytes(16 << 10);
    let partition = primary.db.partition_with("small tables", options).expect("it is made");
    let mut rng = Rng::new(2);
    for _ in 0..TABLES * 18 {
        let key = rng.next_u64().to_be_bytes();
        partition.put(key, rng.bytes(VALUE_BYTES)).expect("the folder is writable");
    }
    partition.compact(..).expect("the folder is writable");
    primary.db.wait_idle().expect("the folder is writable");
    primary
}

fn open(c: &mut Criterion) {
    let primary = many_tables();
    let stats = primary.db.stats();
    let levels = stats.partitions.iter().flat_map(|partition| partition.levels.iter());
    let tables: u64 = levels.map(|level| level.table_count).sum();
    let mut group = c.benchmark_group("secondary/open");
    group.sample_size(20);
    group.bench_function(format!("{tables} tables"), |b| b.iter(|| primary.secondary()));
    group.finish();
}

criterion_group!(benches, nothing_new, catching_up, visible, open);
criterion_main!(benches);
