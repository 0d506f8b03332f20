//! Entries that expire, and are removed without a call: on a clock that stands still until a test
//! moves it.

mod jumps;
mod reads;

use std::sync::Arc;
use std::time::Duration;

use lsm_core::clock::Clock;
use lsm_core::fs::{CrashOutcome, MemFs};
use siltstone::{
    BackgroundMode, Builder, Db, Durability, ErrorKind, LargeValueOptions, MetaHiveOptions,
    Options, Partition, PartitionOptions, TimeUnit, TtlFilter, TtlRule,
};
use testkit::Rng;

use crate::clock::ManualClock;
use crate::store::{settle, stepped};
use crate::test_value_store::NoHooks;

fn builder(fs: &MemFs, clock: &ManualClock) -> Builder {
    let options = Options::new().cache_bytes(0).write_buffer_bytes(64 << 10);
    let options = options.wal_segment_bytes(8 << 10).wal_bytes_max(64 << 10);
    let builder = stepped(Arc::new(fs.clone()), "/db", 1);
    builder.options(options).clock(Arc::new(clock.clone()))
}

fn small() -> PartitionOptions {
    PartitionOptions::new().block_bytes(1024).table_bytes(64 << 10).level_base_bytes(256 << 10)
}

/// The first eight bytes of a value are the second at which it expires.
fn rule() -> TtlRule {
    TtlRule::in_value(0)
}

fn with(rule: &TtlRule) -> PartitionOptions {
    small().filter(Arc::new(TtlFilter::stored(rule)))
}

/// Puts keys `from..to`, each of which expires at the second of its number.
fn put_all(p: &Partition, keys: std::ops::Range<u64>) {
    for key in keys {
        p.put(format!("key {key:05}"), [&key.to_be_bytes()[..], &[7; 20]].concat()).unwrap();
    }
}

/// Entries of all tables of a partition, tombstones included.
fn entries(db: &Db, name: &str) -> u64 {
    let stats = db.stats();
    let partition = stats.partitions.iter().find(|partition| partition.name == name).unwrap();
    partition.levels.iter().map(|level| level.entry_count).sum()
}

#[test]
fn a_table_is_rewritten_by_itself_once_a_tenth_has_expired() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    put_all(&p, 1000..2000);
    db.flush().unwrap();
    settle(&db);
    assert_eq!(entries(&db, "p"), 1000);
    clock.pass(1050);
    settle(&db);
    assert_eq!(entries(&db, "p"), 1000, "51 of 1000 are not much");
    assert_eq!(p.iter().count(), 949, "reads obey the rule before that");
    assert_eq!(p.with_expired().iter().count(), 1000);
    clock.pass(150);
    settle(&db);
    let left = entries(&db, "p");
    assert!((799..=850).contains(&left), "{left} entries are left of 1000, 201 expired");
    assert_eq!(p.iter().count() as u64, left, "nothing lies below, so no tombstone is left");
    clock.pass(5000);
    settle(&db);
    assert_eq!(entries(&db, "p"), 0, "all that ever expires has");
    let stats = db.stats();
    let p = stats.partitions.iter().find(|partition| partition.name == "p").unwrap();
    assert_eq!(p.expired_removed_count, 1000);
    assert!(stats.to_string().contains(", 1000 expired entries removed"), "{stats}");
    let written = db.stats();
    settle(&db);
    assert_eq!(db.stats().compaction_count, written.compaction_count, "and then nothing is due");
}

#[test]
fn what_little_has_expired_stays_for_a_day_at_most() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    put_all(&p, 10..20);
    put_all(&p, 1_000_000..1_000_990);
    db.flush().unwrap();
    clock.pass(20 + 86_000);
    settle(&db);
    assert_eq!(entries(&db, "p"), 1000);
    clock.pass(400);
    settle(&db);
    assert_eq!(entries(&db, "p"), 990);
}

#[test]
fn every_open_finds_a_stored_rule_before_it_writes_what_the_log_held() {
    for outcome in [CrashOutcome::Nothing, CrashOutcome::Everything] {
        let clock = ManualClock::default();
        let fs = MemFs::new();
        let db = builder(&fs, &clock).open().unwrap();
        let millis = rule().unit(TimeUnit::Millis);
        let p = db.partition_with("p", with(&millis)).unwrap();
        let mut batch = db.batch();
        for key in 0..200u64 {
            batch = batch.put(&p, key.to_be_bytes(), (5000 + key).to_be_bytes());
        }
        batch.commit(Durability::Sync).unwrap();
        let mut random = Rng::new(3);
        let after = fs.crash_clone(outcome, &mut || random.next_u64());
        let db = builder(&after, &clock).open().unwrap();
        assert!(db.health().partitions.iter().all(|p| p.absent_filters.is_empty()));
        assert_eq!(entries(&db, "p"), 200, "the log is in a table, which knows its times");
        settle(&db);
        assert_eq!(entries(&db, "p"), 200, "so it is not written again to find them out");
        assert_eq!(db.stats().compaction_count, 0);
        clock.pass(6);
        settle(&db);
        assert_eq!(entries(&db, "p"), 0);
        db.close().unwrap();
        let db = builder(&after, &clock).open().unwrap();
        assert_eq!(db.open_partition("p").unwrap().iter().count(), 0);
    }
}

#[test]
fn expired_entries_of_a_snapshot_are_kept_until_its_release() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    put_all(&p, 100..200);
    let snapshot = db.snapshot();
    put_all(&p, 200..300);
    db.flush().unwrap();
    clock.pass(1000);
    settle(&db);
    assert_eq!(snapshot.iter(&p).count(), 100);
    assert_eq!(p.iter().count(), 0);
    let left = p.with_expired().iter().count();
    assert_eq!(left, 100, "the others are gone, and their tombstones wait for it");
    let compactions = db.stats().compaction_count;
    settle(&db);
    assert_eq!(db.stats().compaction_count, compactions, "it is not tried again and again");
    drop(snapshot);
    settle(&db);
    clock.pass(60);
    settle(&db);
    assert_eq!(entries(&db, "p"), 0);
}

/// The small part of a table that a snapshot sees must be removed too in the end.
#[test]
fn few_expired_entries_of_a_snapshot_are_removed_a_day_later() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    put_all(&p, 10..20);
    let snapshot = db.snapshot();
    put_all(&p, 1_000_000..1_000_990);
    db.flush().unwrap();
    clock.pass(100_000);
    settle(&db);
    drop(snapshot);
    clock.pass(60);
    settle(&db);
    assert_eq!(entries(&db, "p"), 1000);
    clock.pass(86_400);
    settle(&db);
    assert_eq!(entries(&db, "p"), 990);
}

/// Half a second is rounded down to zero in a rule that counts seconds. With such a rule, a table
/// that keeps expired entries for a snapshot used to be rewritten without end.
#[test]
fn entries_of_a_held_snapshot_are_not_rewritten_repeatedly() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let rule = rule().stays_at_most(Duration::from_millis(500));
    let p = db.partition_with("p", with(&rule)).unwrap();
    put_all(&p, 10..20);
    let snapshot = db.snapshot();
    put_all(&p, 1_000_000..1_000_990);
    db.flush().unwrap();
    clock.pass(100);
    let ends = (0..50).any(|_| !db.step().unwrap());
    assert!(ends, "{} compactions, and still more", db.stats().compaction_count);
    let written = db.stats().compaction_count;
    clock.pass(100);
    settle(&db);
    assert_eq!((db.stats().compaction_count, entries(&db, "p")), (written, 1000));
    drop(snapshot);
    clock.pass(100);
    settle(&db);
    assert_eq!(entries(&db, "p"), 990);
}

/// A table with one entry that expires used to be rewritten as soon as this entry expired.
#[test]
fn one_entry_of_many_stays_for_a_day_although_no_other_ever_expires() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    for key in 0..999u32 {
        p.put(format!("stays {key:05}"), [0; 20]).unwrap();
    }
    put_all(&p, 10..11);
    db.flush().unwrap();
    clock.pass(86_000);
    settle(&db);
    assert_eq!(entries(&db, "p"), 1000);
    clock.pass(500);
    settle(&db);
    assert_eq!(entries(&db, "p"), 999);
}

#[test]
fn an_older_version_never_comes_back_for_one_that_expired() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    for key in 0..100u32 {
        p.put(key.to_be_bytes(), "it stays").unwrap();
    }
    p.compact(..).unwrap();
    for key in 0..100u32 {
        p.put(key.to_be_bytes(), 50u64.to_be_bytes()).unwrap();
    }
    db.flush().unwrap();
    settle(&db);
    clock.pass(60);
    settle(&db);
    assert_eq!(p.iter().count(), 0);
    assert_eq!(entries(&db, "p"), 0, "tombstones of what expired sink to the bottom and vanish");
}

#[test]
fn tables_of_before_the_rule_are_written_once_to_find_their_times() {
    let clock = ManualClock::default();
    let fs = MemFs::new();
    let db = builder(&fs, &clock).open().unwrap();
    let p = db.partition_with("p", small()).unwrap();
    put_all(&p, 100..200);
    p.compact(..).unwrap();
    let before = db.stats().compaction_count;
    db.partition_with("p", with(&rule())).unwrap();
    settle(&db);
    assert_eq!(db.stats().compaction_count, before + 1);
    assert_eq!(entries(&db, "p"), 100);
    // Another rule makes the recorded times of the tables useless.
    let late = rule().time_to_live(Duration::from_secs(1000));
    db.partition_with("p", with(&late)).unwrap();
    settle(&db);
    assert_eq!(db.stats().compaction_count, before + 2);
    clock.pass(900);
    settle(&db);
    assert_eq!(entries(&db, "p"), 100);
    clock.pass(300);
    settle(&db);
    assert_eq!(entries(&db, "p"), 0);
}

#[test]
fn a_compaction_of_everything_removes_all_that_has_expired() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    put_all(&p, 1000..2000);
    p.compact(..).unwrap();
    clock.pass(1010);
    p.compact(..).unwrap();
    assert_eq!(entries(&db, "p"), 989, "1000 to 1010 are gone");
}

#[test]
fn keys_are_read_as_they_were_given_in_partitions_that_store_them_otherwise() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let filter = Arc::new(TtlFilter::stored(&TtlRule::in_key_from_end(0)));
    let options = small().filter(filter).metahive(MetaHiveOptions::default());
    let p = db.partition_with("p", options).unwrap();
    for moment in 250..270u64 {
        p.put([&b"key"[..], &moment.to_be_bytes()].concat(), "v").unwrap();
    }
    db.flush().unwrap();
    // The times 256 and 257 end in 0 and 1: such keys are stored in a longer form.
    clock.pass(257);
    p.compact(..).unwrap();
    let first = p.first().unwrap().unwrap().0;
    assert_eq!(first[3..], 258u64.to_be_bytes());
    clock.pass(100);
    settle(&db);
    assert_eq!(entries(&db, "p"), 0);
}

#[test]
fn health_names_a_filter_of_code_that_an_open_lacks() {
    let clock = ManualClock::default();
    let fs = MemFs::new();
    let now = clock.clone();
    let code = Arc::new(TtlFilter::new(
        |_, value| value.first_chunk().map(|at| u64::from_be_bytes(*at)),
        move || now.now().as_secs(),
    ));
    let db = builder(&fs, &clock).open().unwrap();
    let p = db.partition_with("p", small().filter(code.clone())).unwrap();
    put_all(&p, 100..200);
    assert!(db.health().is_healthy());
    db.close().unwrap();
    drop(p);
    let db = builder(&fs, &clock).hooks(Arc::new(NoHooks)).open().unwrap();
    let health = db.health();
    let p = health.partitions.iter().find(|p| p.name == "p").unwrap();
    assert_eq!(p.absent_filters, ["ttl"]);
    assert!(!health.is_healthy());
    assert!(health.to_string().contains("partition \"p\": without its compaction filter \"ttl\""));
    clock.pass(1000);
    settle(&db);
    assert_eq!(entries(&db, "p"), 100, "their times are unknown");
    db.partition_with("p", small().filter(code)).unwrap();
    assert!(db.health().is_healthy());
    settle(&db);
    assert_eq!(entries(&db, "p"), 0, "code makes tables due as a stored rule does");
}

#[test]
fn a_rule_over_values_and_values_stored_apart_refuse_each_other() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let large = LargeValueOptions::default();
    let both = with(&rule()).large_values(large);
    assert_eq!(db.partition_with("a", both).unwrap_err().kind(), ErrorKind::InvalidArgument);
    db.partition_with("b", with(&rule())).unwrap();
    let later = small().large_values(large);
    assert_eq!(db.partition_with("b", later).unwrap_err().kind(), ErrorKind::InvalidArgument);
    db.partition_with("c", small().large_values(large)).unwrap();
    let later = db.partition_with("c", with(&rule())).unwrap_err();
    assert_eq!(later.kind(), ErrorKind::InvalidArgument);
    let keys = small().filter(Arc::new(TtlFilter::stored(&TtlRule::in_key(0))));
    db.partition_with("c", keys).unwrap();
    let two = with(&rule()).filter(Arc::new(TtlFilter::stored(&TtlRule::in_key(0))));
    assert_eq!(db.partition_with("d", two).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// The compaction threads look by themselves: there are no writes, calls or steps.
#[test]
fn an_idle_store_with_threads_loses_what_expires() {
    let clock = ManualClock::default();
    let builder = builder(&MemFs::new(), &clock).background(BackgroundMode::Threads);
    let db = builder.open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    put_all(&p, 100..200);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(entries(&db, "p"), 100);
    clock.pass(1000);
    while entries(&db, "p") > 0 {
        std::thread::yield_now();
    }
    assert_eq!(p.iter().count(), 0);
}
