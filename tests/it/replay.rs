//! The position at which a replay begins: opens do not read frames that are in tables already.

use std::path::PathBuf;
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, FaultFs, Fs, MemFs, OpKind};
use lsm_core::internals::names::{FileKind, FileName};
use siltstone::secondary::{Level, Secondary, Target};
use siltstone::{Builder, Db, Durability, Options};

use crate::store::stepped;

const DIR: &str = "/db";
const SEGMENT: u64 = 4 << 20;
/// The least bytes of the flushed log: segments of 256 KiB and 2 MiB, because they grow with the
/// written bytes, and most of one of 4 MiB.
const FLUSHED: u64 = 5900 << 10;
/// Nine partitions, and one that is behind them.
const PARTITIONS: u8 = 10;

fn builder(fs: impl Fs, segment_bytes: u64) -> Builder {
    let options = Options::new().wal_segment_bytes(segment_bytes).write_buffer_bytes(16 << 20);
    let options = options.cache_bytes(1 << 20);
    stepped(Arc::new(fs), DIR, 1).options(options)
}

fn name(n: u8) -> String {
    format!("partition {n}")
}

/// Nine partitions that are flushed completely, and one that wrote last, which is not. A later
/// frame proves the last frame durable, so that a log which lost it is damaged.
fn one_after(fs: impl Fs, segment_bytes: u64, flushed: u64) -> Db {
    let db = builder(fs, segment_bytes).open().unwrap();
    let partitions: Vec<_> = (0..PARTITIONS).map(|n| db.partition(&name(n)).unwrap()).collect();
    let mut count = 0_u32;
    while u64::from(count) * 1060 < flushed {
        for partition in &partitions[1..] {
            partition.put(count.to_be_bytes(), vec![7; 1024]).unwrap();
            count += 1;
        }
    }
    for n in 0..3 {
        partitions[0].put([n], "not flushed").unwrap();
    }
    partitions[1..].iter().for_each(|partition| partition.flush().unwrap());
    let mut batch = db.batch();
    batch = batch.put(&partitions[0], "x", "after the flush");
    batch.commit(Durability::Sync).unwrap();
    partitions[0].put("y", "proves it").unwrap();
    db
}

fn check(db: &Db) {
    assert_eq!(db.partition(&name(0)).unwrap().iter().count(), 5);
    for n in 1..PARTITIONS {
        assert!(db.partition(&name(n)).unwrap().iter().count() > 3, "partition {n}");
    }
}

/// The segments of the log.
fn segments(fs: &MemFs) -> Vec<PathBuf> {
    let mut paths = fs.paths();
    paths.retain(|path| {
        let name = FileName::parse(path.file_name().unwrap().to_str().unwrap());
        name.is_some_and(|name| name.kind == FileKind::Wal)
    });
    paths
}

fn copy(fs: &MemFs) -> MemFs {
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

/// Bytes of segments that `read` reads.
fn log_bytes(fs: &FaultFs, read: impl FnOnce()) -> u64 {
    fs.start_log();
    read();
    let log = fs.take_log();
    let reads = log.iter().filter(|op| op.kind == OpKind::Read);
    reads.filter(|op| op.path.extension().is_some_and(|it| it == "wal")).map(|op| op.len).sum()
}

#[test]
fn an_open_reads_the_log_from_the_replay_position_of_the_oldest_partition() {
    let mem = MemFs::new();
    let db = one_after(mem.clone(), SEGMENT, FLUSHED);
    let crashed = copy(&mem);
    drop(db);
    let begun = segments(&crashed).into_iter().map(|path| crashed.read_raw(&path).unwrap());
    let begun: Vec<_> = begun.filter(|bytes| bytes[0] != 0).collect();
    let [last] = &begun[..] else { panic!("{} segments", begun.len()) };
    // After the last frame there are zeros, which are read ahead, and again to check that they are
    // zeros.
    let end = last.iter().rposition(|byte| *byte != 0).unwrap();
    assert!(end > 3 << 20, "{end}");
    let bound = 2 * (last.len() - end) as u64 + (64 << 10);
    assert!(bound < 3 << 19, "{bound}");

    let fs = FaultFs::over_mem(copy(&crashed));
    let read = log_bytes(&fs, || check(&builder(fs.clone(), SEGMENT).open().unwrap()));
    assert!(read <= bound, "an open for writing read {read} bytes");
    let fs = FaultFs::over_mem(copy(&crashed));
    let read_only = builder(fs.clone(), SEGMENT).read_only(true);
    let read = log_bytes(&fs, || check(&read_only.open().unwrap()));
    assert!(read <= bound, "a read-only open read {read} bytes");
    let fs = FaultFs::over_mem(copy(&crashed));
    let read = log_bytes(&fs, || {
        let secondary = Secondary::builder(DIR).fs(Arc::new(fs.clone())).open().unwrap();
        secondary.sync(Target::Latest).unwrap();
        let after = secondary.partition(&name(0)).unwrap().at(Level::Eventual).unwrap();
        // Nothing proves the last frame durable.
        assert_eq!(after.iter().count(), 4);
    });
    assert!(read <= bound, "a secondary read {read} bytes");
}

/// Only a verification reads frames that are completely in tables.
#[test]
fn damage_before_the_replay_position_is_found_by_verify_and_after_it_by_every_open() {
    let mem = MemFs::new();
    let db = one_after(mem.clone(), 64 << 10, 30 << 10);
    let crashed = copy(&mem);
    drop(db);
    let [segment] = &segments(&crashed)[..] else { panic!("one segment") };
    let end = crashed.read_raw(segment).unwrap().iter().rposition(|byte| *byte != 0).unwrap();

    let fs = copy(&crashed);
    fs.corrupt(segment, 2000, 0x10).unwrap();
    let read_only = builder(fs.clone(), 64 << 10).read_only(true).open().unwrap();
    check(&read_only);
    let report = read_only.verify(Default::default()).unwrap();
    let [damage] = report.damage() else { panic!("{report}") };
    assert_eq!(&damage.file, segment);
    assert!(damage.offset.is_some_and(|at| at <= 2000 && 2000 < at + 1200), "{damage:?}");
    drop(read_only);
    check(&builder(fs, 64 << 10).open().unwrap());

    // In the frame before the last one, which proves it durable.
    let fs = copy(&crashed);
    fs.corrupt(segment, end as u64 - 60, 0x10).unwrap();
    for is_read_only in [true, false] {
        let refused = builder(fs.clone(), 64 << 10).read_only(is_read_only).open();
        assert!(refused.err().unwrap().is_corruption());
    }
}
