//! The guarantees of each level.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lsm_core::ErrorKind;
use lsm_core::clock::Clock;
use lsm_core::filters::{TtlFilter, TtlRule};
use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, OpKind};
use lsm_core::hooks::{CompactionFilterFactory, HookProvider, Hooks};
use lsm_core::options::{Durability, PartitionOptions};
use lsm_core::read::RemainingTime;
use lsm_core::types::{Epoch, SeqNo};
use secondary::{Commit, Level, OnUnmet, ReadOptions, Secondary, SecondaryPartition, Target};

use super::*;

fn now(level: Level) -> ReadOptions {
    ReadOptions::new(level).wait(Duration::ZERO)
}

#[test]
fn a_strong_read_costs_no_storage_operation_while_others_are_written_to() {
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let fs: Arc<dyn Fs> = Arc::new(mem);
    let watched: Arc<dyn Fs> = Arc::new(fault.clone());
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let other = db.partition("other").unwrap();
    p.put("k", "1").unwrap();
    let follower = secondary(&watched);
    let followed = follower.partition("p").unwrap();
    followed.at(Level::Strong).unwrap();
    for n in 0..20 {
        other.put("k", n.to_string()).unwrap();
    }
    let before = fault.op_count();
    let reading = followed.at(Level::Strong).unwrap();
    assert_eq!(fault.op_count(), before, "a few loads");
    assert_eq!(reading.get("k").unwrap().as_deref(), Some(&b"1"[..]));
    p.put("k", "2").unwrap();
    let reading = followed.at(Level::Strong).unwrap();
    assert!(fault.op_count() > before);
    assert_eq!(reading.get("k").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn a_session_reads_its_own_writes_and_never_goes_back() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    let mut token = p.put("n", "0").unwrap();
    for n in 1..50 {
        let reading = followed.read(&now(Level::Session(token))).unwrap();
        let seen: u64 =
            std::str::from_utf8(&reading.get("n").unwrap().unwrap()).unwrap().parse().unwrap();
        assert_eq!(seen, n - 1);
        assert!(reading.as_of().seq >= token.seq);
        followed.read(&now(Level::Session(reading.as_of()))).unwrap();
        token = p.put("n", n.to_string()).unwrap();
        if n % 10 == 0 {
            p.flush().unwrap();
        }
    }
}

#[test]
fn a_token_of_another_history_is_refused_without_a_wait() {
    let fs = in_memory();
    let db = primary(&fs);
    let old = db.partition("p").unwrap().put("k", "1").unwrap();
    db.close().unwrap();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let new = p.put("k", "2").unwrap();
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    for token in [old, new] {
        followed.read(&now(Level::Session(token))).unwrap();
        follower.wait_for(token, Duration::ZERO).unwrap();
    }
    let beyond = SeqNo::new(old.seq.get() + 1000).unwrap();
    let lost = [
        Commit { seq: beyond, epoch: old.epoch },
        Commit { seq: old.seq, epoch: Epoch(77) },
        Commit { seq: old.seq, epoch: Epoch(0) },
    ];
    for token in lost {
        let error = followed.read(&now(Level::Session(token))).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::SessionLost, "{token:?}: {error}");
    }
    let future = Commit { seq: beyond, epoch: new.epoch };
    let error = followed.read(&now(Level::Session(future))).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Behind);
    let weaker = now(Level::Session(future)).on_unmet(OnUnmet::Weaker);
    assert_eq!(followed.read(&weaker).unwrap().served(), Level::Eventual);
    assert!(follower.wait_for(future, Duration::ZERO).unwrap_err().is_retryable());
}

#[test]
fn a_cut_never_tears_a_batch_while_partitions_run_ahead() {
    let fs = in_memory();
    let db = primary(&fs);
    let a = db.partition("a").unwrap();
    let b = db.partition("b").unwrap();
    let follower = secondary(&fs);
    let fa = follower.partition("a").unwrap();
    let fb = follower.partition("b").unwrap();
    let mut last = None;
    for n in 0..60 {
        let n = n.to_string();
        db.batch().put(&a, "n", &n).put(&b, "n", &n).commit(Durability::Os).unwrap();
        match n.len() + n.parse::<usize>().unwrap() % 4 {
            1 => drop(follower.sync(Target::Latest).unwrap()),
            2 => drop(fa.sync(Target::Latest).unwrap()),
            3 => a.flush().unwrap(),
            4 => b.compact(..).unwrap(),
            _ => {}
        }
        let left = fa.at(Level::Prefix).unwrap();
        let right = fb.at(Level::Prefix).unwrap();
        let values = [&left, &right].map(|reading| reading.get("n").unwrap().map(|v| v.to_vec()));
        assert_eq!(values[0], values[1], "at {n}");
        let as_of = follower.cut().as_of();
        assert!(last <= as_of.map(|commit| commit.seq), "it never goes back");
        last = as_of.map(|commit| commit.seq);
        // The present of one partition may be newer than the cut, never older.
        assert!(fa.at(Level::Strong).unwrap().as_of().seq >= last.unwrap());
    }
}

#[test]
fn a_bounded_read_looks_only_beyond_its_bound() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    let bounded = |operations| now(Level::Bounded { operations: Some(operations), age: None });
    let seen = |options: &ReadOptions| {
        let value = followed.read(options).unwrap().get("n").unwrap().unwrap();
        std::str::from_utf8(&value).unwrap().parse::<u64>().unwrap()
    };
    p.put("n", "0").unwrap();
    assert_eq!(seen(&bounded(0)), 0);
    for n in 1..=10_u64 {
        p.put("n", n.to_string()).unwrap();
        assert_eq!(followed.lag().operations, Some(n));
        assert_eq!(seen(&bounded(10)), 0, "it is within");
    }
    assert_eq!(seen(&bounded(9)), 10, "one beyond");
    assert_eq!(followed.lag().operations, Some(0));
    p.put("n", "11").unwrap();
    let old = now(Level::Bounded { operations: None, age: Some(Duration::ZERO) });
    assert_eq!(seen(&old), 11);
}

#[test]
fn a_dropped_partition_is_not_found_at_once_at_every_level() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let token = p.put("k", "1").unwrap();
    for level in [
        Level::Strong,
        Level::Session(Commit { seq: token.seq.plus(5), ..token }),
        Level::Bounded { operations: Some(0), age: Some(Duration::ZERO) },
    ] {
        let follower = secondary(&fs);
        let name = format!("dropped {level:?}");
        let dropped = db.partition(&name).unwrap();
        dropped.put("k", "1").unwrap();
        let followed = {
            follower.sync(Target::Latest).unwrap();
            follower.partition(&name).unwrap()
        };
        db.drop_partition(&name).unwrap();
        // It would wait for as long as the test runs.
        let options = ReadOptions::new(level).wait(Duration::from_secs(3600));
        let refused = followed.read(&options).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PartitionNotFound, "{level:?}: {refused}");
        p.put("k", "2").unwrap();
    }
}

#[test]
fn a_secondary_opens_on_a_full_disk_and_reads() {
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let db = primary(&(Arc::new(mem) as Arc<dyn Fs>));
    let p = db.partition("p").unwrap();
    p.put("k", "1").unwrap();
    for kind in [OpKind::Append, OpKind::Lock] {
        let at = FaultAt::Nth { kind, suffix: String::new(), nth: 0 };
        fault.add_rule(FaultRule::sticky(at, FaultAction::Enospc));
        let follower = secondary(&(Arc::new(fault.clone()) as Arc<dyn Fs>));
        let reading = follower.partition("p").unwrap().at(Level::Strong).unwrap();
        assert_eq!(reading.get("k").unwrap().as_deref(), Some(&b"1"[..]), "{kind:?}");
        fault.heal();
    }
    assert!(db.lease_holders().unwrap().is_empty());
}

/// A removal by a filter is no commit and has no number, so a secondary that has the older tables is not late.
#[test]
fn a_strong_read_does_not_cover_what_a_ttl_removes() {
    let fs = in_memory();
    let db = primary(&fs);
    let now = Arc::new(AtomicU64::new(5));
    let clock = now.clone();
    // All entries expire at 10.
    let ttl = TtlFilter::new(|_, _| Some(10), move || clock.load(Ordering::Relaxed));
    let hooks = Hooks::new().filter(Arc::new(ttl));
    let p = db.partition_with("p", PartitionOptions::new(), Some(hooks)).unwrap();
    p.put("k", "v").unwrap();
    p.flush().unwrap();
    let early = secondary(&fs);
    let has_seen = early.partition("p").unwrap();
    assert_eq!(strong(&has_seen).as_deref(), Some(&b"v"[..]));
    let before = db.visible_seq();
    now.store(20, Ordering::Relaxed);
    p.compact(..).unwrap();
    assert_eq!(db.visible_seq(), before, "a removal takes no sequence number");
    // The entry is gone for the primary, and for a secondary that reads the new tables.
    assert_eq!(p.get("k").unwrap(), None);
    let late = secondary(&fs);
    assert_eq!(strong(&late.partition("p").unwrap()), None);
    // A later read elsewhere returns it all the same.
    assert_eq!(strong(&has_seen).as_deref(), Some(&b"v"[..]));
    // A deletion is a commit: every later read sees it.
    p.delete("k").unwrap();
    assert_eq!(strong(&has_seen), None);
}

/// A clock in seconds that the test sets.
struct Seconds(AtomicU64);

impl Clock for Seconds {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn unix_time(&self) -> Duration {
        self.now()
    }
}

/// Finds stored rules.
struct Stored;

impl HookProvider for Stored {
    fn compaction_filter(
        &self,
        _: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        Some(Arc::new(TtlFilter::from_params(params)?))
    }
}

/// By a stored rule, and by the clock of the secondary.
#[test]
fn an_expired_entry_is_absent_at_every_level() {
    let fs = in_memory();
    let db = primary(&fs);
    let ttl = TtlFilter::stored(&TtlRule::in_key(0));
    let hooks = Hooks::new().filter(Arc::new(ttl));
    let p = db.partition_with("p", PartitionOptions::new(), Some(hooks)).unwrap();
    // The primary's own clock reads a later time: it sees neither, and has not removed them.
    let keys = [30u64.to_be_bytes(), 40u64.to_be_bytes()];
    let commit = p.put(keys[0], "a").unwrap();
    p.put(keys[1], "b").unwrap();
    assert_eq!(p.iter().count(), 0);
    let clock = Arc::new(Seconds(AtomicU64::new(10)));
    let builder = Secondary::builder(DIR).fs(fs.clone()).clock(clock.clone());
    let follower = builder.hooks(Arc::new(Stored)).open().unwrap();
    let followed = follower.partition("p").unwrap();
    follower.sync(Target::Latest).unwrap();
    let bound = Level::Bounded { operations: Some(0), age: None };
    let levels = [Level::Strong, bound, Level::Session(commit), Level::Prefix, Level::Eventual];
    let early = followed.read(&now(Level::Strong)).unwrap();
    for (time, expected) in [(29, &keys[..]), (30, &keys[1..]), (40, &[])] {
        clock.0.store(time, Ordering::Relaxed);
        for level in &levels {
            let reading = followed.read(&now(*level)).unwrap();
            let found: Vec<_> = reading.keys().map(|key| key.unwrap().to_vec()).collect();
            assert_eq!(found, expected, "{level:?} at {time}");
            let many = reading.multi_get(&keys).unwrap();
            for (key, value) in keys.iter().zip(many) {
                assert_eq!(value.is_some(), expected.contains(key), "{level:?} at {time}");
                assert_eq!(reading.get(key).unwrap(), value);
                let left = expected.contains(key).then(|| {
                    RemainingTime::Limited(Duration::from_secs(u64::from_be_bytes(*key) - time))
                });
                assert_eq!(reading.remaining_time(key).unwrap(), left);
            }
            assert_eq!(reading.with_expired().keys().count(), 2);
        }
        assert_eq!(early.keys().count(), 2, "a reading has the time at which it was made");
    }
}

/// The value of `k` at level 1.
fn strong(partition: &SecondaryPartition) -> Option<Vec<u8>> {
    let reading = partition.read(&now(Level::Strong)).unwrap();
    assert_eq!(reading.served(), Level::Strong);
    reading.get("k").unwrap().map(|value| value.to_vec())
}
