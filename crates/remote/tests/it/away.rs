//! A bucket that is away: in the status and the health, within the bound of the backlog, and with any patience.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remote::{Ack, Primary, Timer};
use siltstone::fs::MemFs;
use siltstone::{BackgroundMode, Db, Durability, ErrorKind, LargeValueOptions, PartitionOptions};
use testkit::Rng;

use crate::deletion::{HOUR, Place};
use crate::sim_store::{Objects, SimStore, remote_of};

fn put(db: &Db, key: &str, len: usize) -> siltstone::Result<()> {
    db.partition("users")?.put_with(key, vec![1; len], Durability::Sync).map(drop)
}

fn opened(primary: &Primary) -> Db {
    primary.builder().background(BackgroundMode::Stepped).open().unwrap()
}

#[test]
fn a_bucket_that_is_away_shows_in_the_health_until_it_answers() {
    let mut rng = Rng::new(81);
    let store = SimStore::new(Objects::default(), rng.fork());
    let primary =
        remote_of(&store, &MemFs::new(), &mut rng).ack(Ack::Local).primary("/db").unwrap();
    let db = opened(&primary);
    put(&db, "one", 5000).unwrap();
    primary.ship().unwrap();
    assert!(db.health().is_healthy() && primary.status().failure.is_none());
    store.fails_one_of.store(1, Ordering::Relaxed);
    put(&db, "two", 5000).unwrap();
    primary.ship().unwrap_err();
    let failure = primary.status().failure.unwrap();
    assert!(failure.error.contains("503"), "{failure:?}");
    let first = failure.lasts;
    assert!(db.health().is_healthy(), "a hiccup of {first:?}");
    (0..3).for_each(|_| drop(primary.ship().unwrap_err()));
    let status = primary.status();
    assert!(status.failure.unwrap().lasts >= first * 3);
    let health = db.health();
    let why = health.storage_failure.clone().unwrap();
    let waiting = format!("{} bytes of changes wait", status.waiting_bytes);
    assert!(status.waiting_bytes > 5000);
    for part in ["of the application", "503", &waiting] {
        assert!(why.contains(part), "{part:?}: {why}");
    }
    assert!(!health.is_healthy() && health.to_string().contains(&why), "{health}");
    store.fails_one_of.store(0, Ordering::Relaxed);
    primary.ship().unwrap();
    assert!(db.health().is_healthy() && primary.status().failure.is_none());
}

#[test]
fn changes_that_are_not_stored_stay_within_the_backlog() {
    let mut rng = Rng::new(82);
    let store = SimStore::new(Objects::default(), rng.fork());
    let remote = remote_of(&store, &MemFs::new(), &mut rng).ack(Ack::Local).backlog_bytes(20_000);
    let primary = remote.primary("/db").unwrap();
    let db = opened(&primary);
    primary.ship().unwrap();
    let puts = store.puts.load(Ordering::Relaxed);
    for number in 0..3 {
        put(&db, &number.to_string(), 5000).unwrap();
    }
    assert_eq!(store.puts.load(Ordering::Relaxed), puts, "no append waits within the bound");
    for number in 0..20 {
        put(&db, &number.to_string(), 5000).unwrap();
        assert!(primary.status().waiting_bytes <= 20_000);
    }
    assert!(store.puts.load(Ordering::Relaxed) > puts);
    store.fails_one_of.store(1, Ordering::Relaxed);
    let failed = (0..20).find_map(|number| put(&db, &number.to_string(), 5000).err()).unwrap();
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    store.fails_one_of.store(0, Ordering::Relaxed);
    while db.step().unwrap() {}
    put(&db, "after", 5000).unwrap();
}

/// A timer whose waits take no time. The store answers again after a time of it.
struct HealingTimer {
    store: Arc<SimStore>,
    heals_after: Duration,
    now_us: AtomicU64,
}

impl Timer for HealingTimer {
    fn now(&self) -> Duration {
        Duration::from_micros(self.now_us.load(Ordering::Relaxed))
    }

    fn wait(&self, time: Duration) {
        self.now_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
        if self.now() >= self.heals_after {
            self.store.fails_one_of.store(0, Ordering::Relaxed);
        }
    }

    fn random(&self) -> u64 {
        self.now_us.fetch_add(1, Ordering::Relaxed)
    }
}

fn healing(store: &Arc<SimStore>, heals_after: Duration) -> Arc<HealingTimer> {
    Arc::new(HealingTimer { store: store.clone(), heals_after, now_us: AtomicU64::new(0) })
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn a_write_waits_for_the_bucket_as_long_as_the_patience_says() {
    for (patience, is_stored) in [(Duration::from_secs(60), false), (Duration::MAX, true)] {
        let mut rng = Rng::new(83);
        let store = SimStore::new(Objects::default(), rng.fork());
        let timer = healing(&store, DAY);
        let remote = remote_of(&store, &MemFs::new(), &mut rng).timer(timer.clone());
        let primary = remote.patience(patience).primary("/db").unwrap();
        let db = opened(&primary);
        put(&db, "before", 10).unwrap();
        store.fails_one_of.store(1, Ordering::Relaxed);
        let outcome = put(&db, "during", 10).map_err(|error| error.kind());
        let expected = if is_stored { Ok(()) } else { Err(ErrorKind::ReadOnly) };
        assert_eq!(outcome, expected, "{patience:?}");
        assert_eq!(timer.now() >= DAY, is_stored, "{:?}", timer.now());
    }
}

/// It would wait for ever.
#[test]
fn the_drop_of_a_primary_ends_endless_patience() {
    let mut rng = Rng::new(84);
    let store = SimStore::new(Objects::default(), rng.fork());
    let timer = healing(&store, Duration::MAX);
    let remote = remote::Remote::with_store(store.clone()).fs(Arc::new(MemFs::new()));
    let remote = remote.timer(timer).patience(Duration::MAX).ack(Ack::Local);
    let primary = remote.primary("/db").unwrap();
    let db = opened(&primary);
    put(&db, "before", 10).unwrap();
    store.fails_one_of.store(1, Ordering::Relaxed);
    put(&db, "during", 10).unwrap();
    db.close().unwrap();
    while primary.status().failure.is_none() {
        std::thread::yield_now();
    }
    drop(primary);
}

/// Of a put that has failed after its effect no one knows but the primary: the journal does not name its object.
#[test]
fn what_the_living_primary_has_put_in_vain_is_deleted() {
    let mut place = Place::new(83);
    let (remote, store) = place.remote();
    let primary = remote.take_over("/db").unwrap();
    let db = opened(&primary);
    put(&db, "first", 100).unwrap();
    db.flush().unwrap();
    let mut in_vain = Vec::new();
    while in_vain.len() < 3 {
        db.partition("users").unwrap().put("more", "x").unwrap();
        let before = place.names("table/");
        store.fails_one_of.store(1, Ordering::Relaxed);
        db.flush().unwrap_err();
        store.fails_one_of.store(0, Ordering::Relaxed);
        let now = place.names("table/");
        in_vain.extend(now.into_iter().filter(|name| !before.contains(name)));
        while db.step().unwrap() {}
        db.flush().unwrap();
    }
    primary.collect().unwrap();
    assert!(in_vain.iter().all(|name| place.has(name)), "a put that failed may take effect late");
    place.objects.advance(HOUR);
    assert_eq!(primary.collect().unwrap(), in_vain.len() as u64);
    assert!(!in_vain.iter().any(|name| place.has(name)));
    let report = remote.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// The object of a journal names ranges of two chunk files. One of them is stored, and the other one is not.
#[test]
fn a_range_whose_journal_object_was_not_made_is_deleted() {
    let mut place = Place::new(85);
    let (remote, store) = place.remote();
    let remote = remote.ack(Ack::Local).patience(Duration::ZERO);
    let primary = remote.take_over("/db").unwrap();
    let db = opened(&primary);
    let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    let partitions = ["a", "b"].map(|name| db.partition_with(name, options.clone()).unwrap());
    let mut in_vain = 0;
    while in_vain < 5 {
        for partition in &partitions {
            partition.put_with("k", vec![7; 100_000], Durability::Sync).unwrap();
        }
        let before = place.names("part/");
        store.fails_one_of.store(2, Ordering::Relaxed);
        let failed = primary.ship();
        store.fails_one_of.store(0, Ordering::Relaxed);
        primary.ship().unwrap();
        if failed.is_err() {
            // Each of the two ranges is put once more, if the object was not made.
            in_vain += place.names("part/").len() - before.len() - 2;
        }
    }
    primary.collect().unwrap();
    let stored = place.names("part/").len();
    place.objects.advance(HOUR);
    // Also those whose put had no effect.
    assert!(primary.collect().unwrap() >= in_vain as u64);
    assert_eq!(place.names("part/").len(), stored - in_vain);
    let report = place.remote().0.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// A recovery whose table is put in vain is made again, with the same table: its object must not be the one that is given to
/// the deletion.
#[test]
fn a_table_that_a_second_recovery_puts_again_is_not_deleted() {
    let mut place = Place::new(84);
    let (remote, store) = place.remote();
    let primary = remote.take_over("/db").unwrap();
    put(&opened(&primary), "first", 100).unwrap();
    store.fails_one_of.store(1, Ordering::Relaxed);
    while place.names("table/").is_empty() {
        assert!(primary.builder().background(BackgroundMode::Stepped).open().is_err());
    }
    store.fails_one_of.store(0, Ordering::Relaxed);
    primary.collect().unwrap();
    let db = opened(&primary);
    put(&db, "second", 100).unwrap();
    place.objects.advance(HOUR);
    assert!(primary.collect().unwrap() > 0);
    let report = remote.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");
}
