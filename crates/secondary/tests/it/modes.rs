//! Groups, durable goals, flushed tables only, bounded memory, and partitions that catch up by
//! themselves.

use std::time::Duration;

use lsm_core::ErrorKind;
use lsm_core::follow::{FollowOptions, SyncExtent};
use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, OpKind};
use lsm_core::options::Durability;
use secondary::{Follow, Level, OnUnmet, ReadOptions, Target};

use super::*;

fn now(level: Level) -> ReadOptions {
    ReadOptions::new(level).wait(Duration::ZERO)
}

#[test]
fn a_group_is_at_one_commit_and_the_others_stay() {
    let fs = in_memory();
    let db = primary(&fs);
    let [a, b, c] = ["a", "b", "c"].map(|name| db.partition(name).unwrap());
    let follower = secondary(&fs);
    let [fa, fb, fc] = ["a", "b", "c"].map(|name| follower.partition(name).unwrap());
    for n in 0..40 {
        let n = n.to_string();
        let batch = db.batch().put(&a, "n", &n).put(&b, "n", &n).put(&c, "n", &n);
        let commit = batch.commit(Durability::Os).unwrap();
        if n.ends_with('3') {
            a.flush().unwrap();
        }
        let cut = follower.sync_group(&[&fa, &fb], Target::Token(commit)).unwrap();
        for partition in [&fa, &fb] {
            let seen = cut.partition(partition).unwrap().get("n").unwrap();
            assert_eq!(seen.as_deref(), Some(n.as_bytes()));
        }
        assert!(cut.partition(&fc).is_none() && fc.get("n").unwrap().is_none());
    }
}

#[test]
fn a_durable_sync_shows_no_commit_that_is_not_durable() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    let commit = p.put("k", "1").unwrap();
    followed.sync(Target::Durable).unwrap();
    assert_eq!(followed.get("k").unwrap(), None, "a power cut may take it");
    db.wait_durable(commit.seq).unwrap();
    db.wait_idle().unwrap();
    followed.sync(Target::Durable).unwrap();
    assert_eq!(followed.get("k").unwrap().as_deref(), Some(&b"1"[..]));
    p.put("k", "2").unwrap();
    follower.sync(Target::Durable).unwrap();
    assert_eq!(followed.get("k").unwrap().as_deref(), Some(&b"1"[..]));
    follower.sync(Target::Latest).unwrap();
    assert_eq!(followed.get("k").unwrap().as_deref(), Some(&b"2"[..]));
}

/// The reported age must not be that of a look which found less than everything.
#[test]
fn a_sync_says_whether_it_came_to_the_present() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let commit = p.put("k", "1").unwrap();
    let follower = FollowOptions { fs: fs.clone(), ..FollowOptions::new(DIR) }.open().unwrap();
    assert!(follower.sync(SyncExtent::All).unwrap().is_present);
    assert!(!follower.sync_durable(SyncExtent::All).unwrap().is_present);
    delete_cursor(&fs);
    let without_cursor =
        FollowOptions { fs: fs.clone(), ..FollowOptions::new(DIR) }.open().unwrap();
    let reached = without_cursor.sync(SyncExtent::All).unwrap();
    assert!(!reached.is_present && reached.seq < commit.seq, "{reached:?}");
    db.close().unwrap();
    let reached = without_cursor.sync(SyncExtent::All).unwrap();
    assert!(reached.is_present && reached.seq == commit.seq, "{reached:?}");
}

/// A panic used to end the thread that follows, silently.
#[test]
fn a_panic_while_following_is_reported_and_following_continues() {
    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let db = primary(&plain);
    let p = db.partition("p").unwrap();
    p.put("k", "1").unwrap();
    let fault = FaultFs::over_mem(mem);
    let follower = secondary(&(Arc::new(fault.clone()) as Arc<dyn Fs>));
    let followed = follower.partition("p").unwrap();
    followed.sync(Target::Latest).unwrap();
    let at = FaultAt::Nth { kind: OpKind::Read, suffix: ".wal".to_owned(), nth: 0 };
    fault.add_rule(FaultRule::sticky(at.clone(), FaultAction::Panic));
    followed.follow(Follow::Eager).unwrap();
    p.put("k", "2").unwrap();
    while followed.follow_failure().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(followed.follow_failure().unwrap().kind(), ErrorKind::Internal);
    assert_eq!(followed.get("k").unwrap().as_deref(), Some(&b"1"[..]));
    let refused = followed.at(Level::Strong).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Internal, "{refused}");
    fault.heal();
    while followed.get("k").unwrap().as_deref() != Some(b"2") {
        std::thread::yield_now();
    }
    p.put("k", "3").unwrap();
    while followed.get("k").unwrap().as_deref() != Some(b"3") {
        std::thread::yield_now();
    }
    assert!(followed.follow_failure().is_none());
}

#[test]
fn flushed_tables_alone_take_no_memory_and_promise_no_more_than_they_have() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let follower = Secondary::builder(DIR).fs(fs.clone()).tables_only(true).open().unwrap();
    let followed = follower.partition("p").unwrap();
    for round in 0..4 {
        let value = format!("{round}");
        let commit = p.put("k", &value).unwrap();
        let strong = followed.read(&now(Level::Strong)).err().unwrap();
        assert_eq!(strong.kind(), ErrorKind::NotLogged, "{strong}");
        let session = followed.read(&now(Level::Session(commit))).err().unwrap();
        assert_eq!(session.kind(), ErrorKind::NotLogged, "{session}");
        p.flush().unwrap();
        db.wait_idle().unwrap();
        follower.sync(Target::Latest).unwrap();
        for level in [Level::Eventual, Level::Strong, Level::Session(commit)] {
            let seen = followed.read(&now(level)).unwrap().get("k").unwrap();
            assert_eq!(seen.as_deref(), Some(value.as_bytes()), "{level:?}");
        }
        assert_eq!(follower.memtable_bytes(), 0);
    }
    let prefix = followed.at(Level::Prefix).err().unwrap();
    assert_eq!(prefix.kind(), ErrorKind::Unsupported, "{prefix}");
}

#[test]
fn memory_is_bounded_and_a_partition_beyond_it_stays_where_it_is() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let builder = Secondary::builder(DIR).fs(fs.clone()).options(options());
    let follower = builder.memtable_bytes_max(20 << 10).open().unwrap();
    let followed = follower.partition("p").unwrap();
    p.put("k", "0").unwrap();
    followed.sync(Target::Latest).unwrap();
    for round in 0..3 {
        for key in 0..30 {
            p.put(format!("{key:02}"), "x".repeat(1000)).unwrap();
        }
        p.put("k", format!("{}", round + 1)).unwrap();
        let refused = followed.read(&now(Level::Strong)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
        let weaker = followed.read(&now(Level::Strong).on_unmet(OnUnmet::Weaker)).unwrap();
        assert_eq!(weaker.served(), Level::Eventual);
        let seen = weaker.get("k").unwrap();
        assert_eq!(seen.as_deref(), Some(round.to_string().as_bytes()), "it never goes back");
        assert!(follower.memtable_bytes() <= 20 << 10);
        p.flush().unwrap();
        db.wait_idle().unwrap();
        assert_eq!(content(&followed.at(Level::Strong).unwrap()), content_of(&p));
    }
}

/// Puts a value of so many bytes into each of these partitions.
fn fill(db: &Db, names: [&str; 3], bytes: usize) {
    for name in names {
        db.partition(name).unwrap().put("k", "x".repeat(bytes)).unwrap();
    }
}

#[test]
fn the_partitions_of_one_sync_share_the_limit_of_memory() {
    let fs = in_memory();
    let db = primary(&fs);
    let names = ["a", "b", "c"];
    fill(&db, names, 4 << 10);
    let unlimited = secondary(&fs);
    unlimited.sync(Target::Latest).unwrap();
    let limit = unlimited.memtable_bytes() + (14 << 10);
    let builder = Secondary::builder(DIR).fs(fs.clone()).options(options());
    let follower = builder.memtable_bytes_max(limit).open().unwrap();
    follower.sync(Target::Latest).unwrap();
    // Each alone would fit, and all three do not.
    fill(&db, names, 5 << 10);
    let refused = follower.sync(Target::Latest).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
    for name in names {
        db.partition(name).unwrap().flush().unwrap();
    }
    follower.sync(Target::Latest).unwrap();
    // The flushed memtables are counted no more within the sync that drops them.
    fill(&db, names, 4 << 10);
    follower.sync(Target::Latest).unwrap();
    assert!(follower.memtable_bytes() <= limit);
}

#[test]
fn a_followed_partition_is_caught_up_with_by_itself() {
    let fs = in_memory();
    let db = primary(&fs);
    for follow in [Follow::Eager, Follow::Every(Duration::from_millis(1))] {
        let p = db.partition("p").unwrap();
        let follower = secondary(&fs);
        let followed = follower.partition("p").unwrap();
        followed.follow(follow).unwrap();
        assert_eq!(followed.followed(), follow);
        for n in 0..20 {
            let n = n.to_string();
            p.put("n", &n).unwrap();
            // The test hangs if no thread catches up.
            while followed.get("n").unwrap().as_deref() != Some(n.as_bytes()) {
                std::thread::yield_now();
            }
            if n.ends_with('5') {
                p.flush().unwrap();
            }
        }
        assert!(followed.follow_failure().is_none());
        followed.follow(Follow::OnDemand).unwrap();
        assert_eq!(followed.followed(), Follow::OnDemand);
    }
}

#[test]
fn news_of_a_partition_is_waited_for_and_that_of_others_is_none() {
    let fs = in_memory();
    let db = primary(&fs);
    let [p, other] = ["p", "other"].map(|name| db.partition(name).unwrap());
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    let mut seen = followed.at(Level::Strong).unwrap().as_of();
    assert_eq!(followed.wait_for_news(seen, Duration::ZERO).unwrap(), None);
    for n in 0..10 {
        other.put("n", n.to_string()).unwrap();
        assert_eq!(followed.wait_for_news(seen, Duration::ZERO).unwrap(), None);
        p.put("n", n.to_string()).unwrap();
        let news = followed.wait_for_news(seen, Duration::from_secs(60)).unwrap().unwrap();
        assert!(news.seq > seen.seq);
        let found = followed.get("n").unwrap();
        assert_eq!(found.as_deref(), Some(n.to_string().as_bytes()));
        seen = news;
    }
    // Another thread writes while this one waits.
    std::thread::scope(|scope| {
        scope.spawn(|| p.put("n", "last").unwrap());
        followed.wait_for_news(seen, Duration::from_secs(60)).unwrap().unwrap();
    });
    assert_eq!(followed.get("n").unwrap().as_deref(), Some(&b"last"[..]));
}

#[test]
fn lag_is_reported_in_operations_and_bytes_of_the_log() {
    let fs = in_memory();
    let db = primary(&fs);
    let [p, other] = ["p", "other"].map(|name| db.partition(name).unwrap());
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    followed.at(Level::Strong).unwrap();
    other.put("k", "x".repeat(500)).unwrap();
    let lag = followed.lag();
    assert_eq!((lag.operations, lag.bytes), (Some(0), Some(0)), "others do not count alone");
    p.put("k", "x".repeat(500)).unwrap();
    let lag = followed.lag();
    assert_eq!(lag.operations, Some(2));
    assert!(lag.bytes.is_some_and(|bytes| (1000..2000).contains(&bytes)), "{lag:?}");
    followed.sync(Target::Latest).unwrap();
    assert_eq!(followed.lag().bytes, Some(0));
}
