//! The rate at which flushes and compactions write, by clocks that the tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone::clock::Clock;
use siltstone::fs::MemFs;
use siltstone::{BackgroundMode, Db, ErrorKind, Options, Partition, PartitionOptions};

use crate::clock::ManualClock;

/// A clock that each look moves on, so that every wait ends.
struct Ticking {
    tick_ms: u64,
    now_ms: AtomicU64,
}

impl Clock for Ticking {
    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms.fetch_add(self.tick_ms, Ordering::Relaxed))
    }
}

fn ticking(tick_ms: u64) -> Arc<Ticking> {
    Arc::new(Ticking { tick_ms, now_ms: AtomicU64::new(1_000_000) })
}

fn open(fs: &MemFs, clock: Arc<dyn Clock>, bytes_per_second: u64) -> Db {
    let options = Options::new().background_bytes_per_second(bytes_per_second);
    let options = options.cache_bytes(0).compaction_threads(1);
    Db::builder("/db").fs(Arc::new(fs.clone())).clock(clock).options(options).open().unwrap()
}

/// Puts so many values of a KiB.
fn put(partition: &Partition, count: u32) {
    for key in 0..count {
        partition.put(key.to_be_bytes(), [7; 1000]).unwrap();
    }
}

fn assert_has(partition: &Partition, count: u32) {
    for key in 0..count {
        assert!(partition.contains(key.to_be_bytes()).unwrap(), "{key}");
    }
}

#[test]
fn a_flush_takes_the_time_of_its_bytes() {
    let clock = ticking(250);
    let db = open(&MemFs::new(), clock, 64 << 10);
    let p = db.partition("p").unwrap();
    put(&p, 1024);
    db.flush().unwrap();
    let stats = db.stats();
    assert!(stats.flush_bytes > 1_000_000, "{}", stats.flush_bytes);
    // The last piece is within the limit only after the flush.
    let paid = Duration::from_secs((stats.flush_bytes - (512 << 10)) / (64 << 10));
    assert!(stats.background_waited >= paid, "{:?} for {paid:?}", stats.background_waited);
    assert_has(&p, 1024);
}

#[test]
fn the_rate_changes_while_a_flush_waits_for_it() {
    // The clock stands still, so that only the change ends the wait.
    let db = open(&MemFs::new(), Arc::new(ManualClock::default()), 64 << 10);
    let p = db.partition("p").unwrap();
    put(&p, 1024);
    let flush = std::thread::spawn({
        let db = db.clone();
        move || db.flush()
    });
    while db.stats().flush_count == 0 {
        db.set_background_bytes_per_second(0).unwrap();
    }
    flush.join().unwrap().unwrap();
    assert_eq!(db.stats().background_bytes_per_second, 0);
    let refused = db.set_background_bytes_per_second(1000).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let other = db.clone();
    db.close().unwrap();
    let closed = other.set_background_bytes_per_second(0).unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
}

#[test]
fn an_open_refuses_a_rate_that_would_stop_it() {
    let options = Options::new().background_bytes_per_second((64 << 10) - 1);
    let builder = Db::builder("/db").fs(Arc::new(MemFs::new()));
    let refused = builder.options(options).open().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.to_string().contains("background_bytes_per_second is 65535"), "{refused}");
}

#[test]
fn a_close_does_not_wait_for_the_rate() {
    let fs = MemFs::new();
    let db = open(&fs, Arc::new(ManualClock::default()), 64 << 10);
    let p = db.partition("p").unwrap();
    // The close flushes this, and the flush may wait already.
    put(&p, 2048);
    let flush = std::thread::spawn({
        let db = db.clone();
        move || db.flush()
    });
    drop(p);
    db.close().unwrap();
    // It was done, or found the database closed.
    if let Err(error) = flush.join().unwrap() {
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
    let db = open(&fs, Arc::new(ManualClock::default()), 0);
    assert_has(&db.partition("p").unwrap(), 2048);
}

#[test]
fn a_drop_does_not_wait_for_the_rate() {
    let fs = MemFs::new();
    let db = open(&fs, Arc::new(ManualClock::default()), 64 << 10);
    put(&db.partition("p").unwrap(), 2048);
    drop(db);
    let db = open(&fs, Arc::new(ManualClock::default()), 0);
    assert_has(&db.partition("p").unwrap(), 2048);
}

/// Level 0 stops the writers, and its compaction waits for the rate, which the flushes use first.
#[test]
fn writers_that_compactions_stop_go_on_at_the_rate() {
    let clock = ticking(1000);
    let options = Options::new().background_bytes_per_second(64 << 10).cache_bytes(0);
    let options = options.write_buffer_bytes(64 << 10).compaction_threads(1);
    let options = options.wal_segment_bytes(64 << 10);
    let db = Db::builder("/db").fs(Arc::new(MemFs::new())).clock(clock).options(options);
    let db = db.open().unwrap();
    let small = PartitionOptions::new().level0_tables(2).table_bytes(64 << 10);
    let p = db.partition_with("p", small.level_base_bytes(64 << 10)).unwrap();
    put(&p, 2048);
    db.wait_idle().unwrap();
    let stats = db.stats();
    assert!(stats.compaction_written_bytes > 0 && stats.background_waited > Duration::ZERO);
    assert_has(&p, 2048);
}

#[test]
fn steps_wait_for_no_rate() {
    let options = Options::new().background_bytes_per_second(64 << 10);
    let builder = Db::builder("/db").fs(Arc::new(MemFs::new())).options(options);
    let clock = Arc::new(ManualClock::default());
    let db = builder.clock(clock).background(BackgroundMode::Stepped).open().unwrap();
    let p = db.partition("p").unwrap();
    put(&p, 2048);
    db.flush().unwrap();
    while db.step().unwrap() {}
    assert_eq!(db.stats().background_waited, Duration::ZERO);
}
