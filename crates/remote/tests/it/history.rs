//! Restores to a moment, the look at a whole bucket, and the copy into another one.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use remote::{
    BucketReport, Primary, Remote, RestoreTarget, Store, StoreError, StoreErrorKind, StoreResult,
    UtcTime,
};
use siltstone::fs::MemFs;
use siltstone::secondary::Level;
use siltstone::{
    BackgroundMode, Commit, Db, Durability, ErrorKind, LargeValueOptions, PartitionOptions,
};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, journal_name, remote_with, with_clock};
use crate::store_layer::{Layered, StoreLayer};

const MINUTE: Duration = Duration::from_secs(60);

fn remote(objects: &Objects, disk: &MemFs, rng: &mut Rng) -> Remote {
    with_clock(&SimStore::new(objects.clone(), rng.fork()), disk, rng)
        .retention(100 * MINUTE)
        .grace(MINUTE)
}

fn put(db: &Db, number: u64) -> Commit {
    let large = PartitionOptions::new().large_values(LargeValueOptions::default());
    let values = db.partition_with("values", large).unwrap();
    let len = if number.is_multiple_of(7) { 20_000 } else { 10 };
    values.put_with(number.to_be_bytes(), vec![number as u8; len], Durability::Sync).unwrap()
}

fn count(disk: &MemFs, dir: &str) -> u64 {
    let db = Db::builder(dir).fs(Arc::new(disk.clone())).background(BackgroundMode::Stepped);
    let db = db.open().unwrap();
    let values = db.partition("values").unwrap();
    let mut count = 0;
    for key in values.keys() {
        let key = key.unwrap();
        assert_eq!(*key, u64::to_be_bytes(count));
        assert!(values.get(&*key).unwrap().unwrap().iter().all(|byte| *byte == count as u8));
        count += 1;
    }
    count
}

/// A commit of `filled`.
struct Filled {
    time: Duration,
    commit: Commit,
    /// A base was put after it.
    has_base: bool,
}

/// A primary with 300 commits, one a minute; some are flushed and compacted.
fn filled(objects: &Objects, rng: &mut Rng) -> (Primary, Vec<Filled>) {
    let primary = remote(objects, &MemFs::new(), rng).primary("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    let mut commits = Vec::new();
    for number in 0..300 {
        let commit = put(&db, number);
        let time = objects.now();
        let base = primary.status().base;
        if number % 40 == 0 {
            db.flush().unwrap();
            while db.step().unwrap() {}
        }
        primary.ship().unwrap();
        commits.push(Filled { time, commit, has_base: primary.status().base != base });
        objects.advance(MINUTE);
    }
    (primary, commits)
}

#[test]
fn a_restore_makes_the_state_of_a_sequence_number_or_of_a_moment() {
    let mut rng = Rng::new(81);
    let objects = Objects::default();
    let (primary, commits) = filled(&objects, &mut rng);
    let disk = MemFs::new();
    let remote = remote(&objects, &disk, &mut rng);
    let at_base = commits.iter().rposition(|it| it.has_base).unwrap();
    assert!(at_base > 200);
    for number in [0, 41, at_base - 1, at_base, at_base + 1, 299] {
        let Filled { time, commit, .. } = commits[number];
        let by_seq = format!("/by-seq-{number}");
        let restored = remote.restore(&by_seq, RestoreTarget::Seq(commit.seq)).unwrap();
        assert_eq!(restored.seq, commit.seq);
        assert_eq!(count(&disk, &by_seq), number as u64 + 1);
        let by_time = format!("/by-time-{number}");
        remote.restore(&by_time, RestoreTarget::Time(UNIX_EPOCH + time + MINUTE / 2)).unwrap();
        assert_eq!(count(&disk, &by_time), number as u64 + 1);
    }
    remote.restore("/latest", RestoreTarget::Latest).unwrap();
    assert_eq!(count(&disk, "/latest"), 300);
    // A moment has what was put at it.
    let store = SimStore::new(objects.clone(), rng.fork());
    let folder = journal_name(300);
    let listed = store.list(folder.rsplit_once('/').unwrap().0).unwrap().objects;
    let found = listed.iter().position(|entry| entry.name == journal_name(250)).unwrap();
    let at = UNIX_EPOCH + listed[found].modified;
    for (dir, at, number) in [("/at", at, 250), ("/just-before", at - MINUTE / 1000, 249)] {
        assert_eq!(remote.restore(dir, RestoreTarget::Time(at)).unwrap().number, number);
    }
    assert!(!has_lease(&objects));
    check_ends(&remote, "/whole");
    drop(primary);
}

fn stored_by(time: Duration) -> RestoreTarget {
    RestoreTarget::Time(UNIX_EPOCH + time)
}

fn stored_before(time: Duration) -> RestoreTarget {
    stored_by(time.saturating_sub(Duration::from_millis(1)))
}

/// Checks that the history of a bucket begins and ends when its status says.
fn check_ends(remote: &Remote, dir: &str) {
    let status = remote.status().unwrap();
    let oldest = remote.restore(format!("{dir}-oldest"), stored_by(status.oldest_stored)).unwrap();
    assert_eq!(oldest.number, status.oldest);
    let newest = remote.restore(format!("{dir}-newest"), stored_by(status.stored)).unwrap();
    assert_eq!(newest.number, status.number);
    let refused = remote.restore(format!("{dir}-none"), stored_before(status.oldest_stored));
    let refused = refused.unwrap_err().to_string();
    let oldest = format!("stored {}\n  the newest", UtcTime(status.oldest_stored));
    assert!(refused.contains(&oldest), "{refused}, not {oldest}");
    if status.oldest < status.number {
        let before = remote.restore(format!("{dir}-before"), stored_before(status.stored)).unwrap();
        assert!(before.number < status.number, "{before:?}");
    }
}

/// A store in which much time passes before each get of a base.
struct Slow<F> {
    inner: Arc<SimStore>,
    pass: F,
}

impl<F: Fn() + Send + Sync + 'static> StoreLayer for Slow<F> {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        if name.starts_with("base/") {
            (self.pass)();
        }
        self.inner.get(name)
    }
}

fn delete_old(objects: &Objects, primary: &Primary) {
    for _ in 0..3 {
        objects.advance(10 * MINUTE);
        primary.collect().unwrap();
    }
}

/// A store that fails once there is a lease, but for deletions.
struct AwayAfterLease {
    inner: Arc<SimStore>,
    objects: Objects,
}

impl StoreLayer for AwayAfterLease {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        match has_lease(&self.objects) {
            true => Err(StoreError::new(StoreErrorKind::Final, "away")),
            false => self.inner.get(name),
        }
    }
}

fn lease_names(objects: &Objects) -> Vec<String> {
    objects.lock().keys().filter(|name| name.starts_with("lease/")).cloned().collect()
}

fn has_lease(objects: &Objects) -> bool {
    !lease_names(objects).is_empty()
}

#[test]
fn a_lease_is_given_up_if_the_next_call_fails() {
    let mut rng = Rng::new(90);
    let objects = Objects::default();
    let disk = MemFs::new();
    let primary = remote(&objects, &disk, &mut rng).primary("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    put(&db, 1);
    let inner = SimStore::new(objects.clone(), rng.fork());
    let store = Layered::new(AwayAfterLease { inner, objects: objects.clone() });
    let away = remote_with(store, objects.clone(), &disk, &mut rng).lease(Some(MINUTE));
    let failed = away.restore("/old", RestoreTarget::Latest).unwrap_err();
    assert!(failed.to_string().contains("away"), "{failed}");
    assert!(!has_lease(&objects), "the restore has given its lease up");
    let failed = away.reader().map(drop).unwrap_err();
    assert!(failed.to_string().contains("away"), "{failed}");
    assert!(!has_lease(&objects), "the reader has given its lease up");
}

#[test]
fn a_restore_renews_a_lease_that_keeps_what_it_reads() {
    let mut rng = Rng::new(86);
    let objects = Objects::default();
    let (primary, commits) = filled(&objects, &mut rng);
    // Without a lease the old states go at the first round.
    objects.advance(60 * MINUTE);
    let disk = MemFs::new();
    let inner = SimStore::new(objects.clone(), rng.fork());
    let primary = Arc::new(primary);
    let writer = primary.clone();
    let place = objects.clone();
    let store = Layered::new(Slow { inner, pass: move || delete_old(&place, &writer) });
    let remote = remote_with(store, objects.clone(), &disk, &mut rng).lease(Some(20 * MINUTE));
    let at = RestoreTarget::Seq(commits[3].commit.seq);
    remote.restore("/old", at).unwrap();
    assert_eq!(count(&disk, "/old"), 4);
    // It has given the lease up.
    delete_old(&objects, &primary);
    let gone = remote.restore("/again", at).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::InvalidArgument, "{gone}");
}

/// A primary that finds it expired may delete it at any later moment.
#[test]
fn a_restore_that_renews_its_lease_late_takes_another_name() {
    for (pause, renamed) in [(25 * MINUTE, false), (55 * MINUTE, true)] {
        let mut rng = Rng::new(87);
        let objects = Objects::default();
        let (_primary, commits) = filled(&objects, &mut rng);
        let disk = MemFs::new();
        let inner = SimStore::new(objects.clone(), rng.fork());
        let names = Arc::new(Mutex::new(BTreeSet::new()));
        let place = objects.clone();
        let seen = names.clone();
        let store = Layered::new(Slow {
            inner,
            pass: move || {
                seen.lock().extend(lease_names(&place));
                place.advance(pause);
            },
        });
        let remote = remote_with(store, objects.clone(), &disk, &mut rng).lease(Some(20 * MINUTE));
        remote.restore("/old", RestoreTarget::Seq(commits[3].commit.seq)).unwrap();
        assert_eq!(names.lock().len() > 1, renamed, "{:?}", names.lock());
    }
}

#[test]
fn a_restore_names_the_oldest_and_the_newest_moment_and_wants_an_empty_folder() {
    let mut rng = Rng::new(82);
    let objects = Objects::default();
    let (primary, commits) = filled(&objects, &mut rng);
    objects.advance(200 * MINUTE);
    for _ in 0..3 {
        primary.collect().unwrap();
        objects.advance(MINUTE);
    }
    let disk = MemFs::new();
    let remote = remote(&objects, &disk, &mut rng);
    assert!(!objects.lock().contains_key(&journal_name(3)), "the first objects are deleted");
    let early = RestoreTarget::Time(UNIX_EPOCH + commits[3].time);
    for at in [
        RestoreTarget::Seq(commits[3].commit.seq),
        RestoreTarget::Seq(commits[299].commit.seq.plus(1)),
        early,
    ] {
        let refused = remote.restore("/none", at).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let newest = format!("the newest is sequence number {}", commits[299].commit.seq.get());
        assert!(refused.to_string().contains("the oldest is sequence number"), "{refused}");
        assert!(refused.to_string().contains(&newest), "{refused}");
    }
    remote.restore("/late", RestoreTarget::Seq(commits[299].commit.seq)).unwrap();
    let again = remote.restore("/late", RestoreTarget::Latest).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::InvalidArgument);
    assert_eq!(count(&disk, "/late"), 300);
    check_ends(&remote, "/cut");
}

#[test]
fn a_restore_of_a_damaged_table_is_an_error_and_no_database() {
    let mut rng = Rng::new(83);
    let objects = Objects::default();
    let (primary, _) = filled(&objects, &mut rng);
    let status = primary.status();
    drop(primary);
    let table = objects.lock().keys().rfind(|name| name.starts_with("table/")).cloned().unwrap();
    objects.lock().get_mut(&table).unwrap()[50] ^= 1;
    let disk = MemFs::new();
    let remote = remote(&objects, &disk, &mut rng);
    let refused = remote.restore("/damaged", RestoreTarget::Latest).unwrap_err();
    assert!(refused.is_corruption(), "{refused}");
    assert!(status.number > 300);
}

#[test]
fn all_that_is_wrong_in_a_bucket_is_named() {
    let mut rng = Rng::new(84);
    let objects = Objects::default();
    let (primary, _) = filled(&objects, &mut rng);
    let remote = remote(&objects, &MemFs::new(), &mut rng).retention(1000 * MINUTE);
    let report = remote.verify().unwrap();
    assert!(report.is_sound() && report.checked.objects > 300, "{report:?}");
    let intact = objects.lock().clone();
    let status = remote.status().unwrap();
    assert_eq!(status.garbage.objects, 0);
    assert_eq!(status.number, primary.status().number);
    let all: u64 = intact.values().map(|object| object.len() as u64).sum();
    assert_eq!(status.live.bytes + status.retained.bytes + status.leased.bytes, all);
    let tables: Vec<_> = intact.keys().filter(|name| name.starts_with("table/")).cloned().collect();
    let parts: Vec<_> = intact.keys().filter(|name| name.starts_with("part/")).cloned().collect();
    let base = intact.keys().find(|name| name.starts_with("base/")).cloned().unwrap();
    objects.lock().remove(&tables[0]);
    objects.lock().get_mut(&parts[0]).unwrap().truncate(3);
    objects.lock().get_mut(&base).unwrap()[30] ^= 1;
    objects.lock().get_mut(&journal_name(20)).unwrap()[30] ^= 1;
    objects.lock().remove(&journal_name(25));
    let report = remote.verify().unwrap();
    for name in [&tables[0], &parts[0], &base, &journal_name(20), &journal_name(25)] {
        assert!(report.wrong.iter().any(|it| it.name == **name), "{name}: {report:?}");
    }
    // Damage in the bytes of a live table.
    objects.lock().clone_from(&intact);
    let live = tables.last().unwrap();
    objects.lock().get_mut(live).unwrap()[50] ^= 1;
    let report = remote.verify().unwrap();
    assert_eq!(report.wrong.len(), 1, "{report:?}");
    assert!(live.contains(&report.wrong[0].name), "{report:?}");
}

/// A store that gives nothing for some calls.
struct AwayAt {
    inner: Arc<SimStore>,
    gets: AtomicU64,
    away: Range<u64>,
}

impl AwayAt {
    fn count(&self) -> StoreResult<()> {
        match self.away.contains(&self.gets.fetch_add(1, Ordering::Relaxed)) {
            false => Ok(()),
            true => Err(StoreError::new(StoreErrorKind::Final, "away")),
        }
    }
}

impl StoreLayer for AwayAt {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.count()?;
        self.inner.get(name)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.count()?;
        self.inner.get_range(name, range)
    }
}

/// The outcome of a verification, and the number of its GETs.
fn verify_while_away(
    objects: &Objects,
    rng: &mut Rng,
    away: Range<u64>,
) -> (siltstone::Result<BucketReport>, u64) {
    let inner = SimStore::new(objects.clone(), rng.fork());
    let store = Layered::new(AwayAt { inner, gets: AtomicU64::new(0), away });
    let outcome = remote_with(store.clone(), objects.clone(), &MemFs::new(), rng).verify();
    (outcome, store.gets.load(Ordering::Relaxed))
}

#[test]
fn a_store_that_goes_away_during_a_verification_is_an_error_and_no_damage() {
    let mut rng = Rng::new(91);
    let objects = Objects::default();
    let (primary, _) = filled(&objects, &mut rng);
    drop(primary);
    let (sound, gets) = verify_while_away(&objects, &mut rng, 0..0);
    assert!(sound.unwrap().is_sound());
    // From the last call on. A block is read again, so one or two calls may fail in vain.
    for begin in (0..6).chain((6..gets).step_by(61)).map(|skipped| gets - 1 - skipped) {
        for away in [begin..u64::MAX, begin..begin + 3] {
            match verify_while_away(&objects, &mut rng, away.clone()).0 {
                Ok(report) => assert!(report.is_sound() && away.end < u64::MAX, "{report:?}"),
                Err(error) => assert!(error.to_string().contains("away"), "{away:?}: {error}"),
            }
        }
    }
}

#[test]
fn a_copy_opens_in_the_other_bucket() {
    let mut rng = Rng::new(85);
    let objects = Objects::default();
    let (primary, _) = filled(&objects, &mut rng);
    let other = Objects::default();
    let copy = remote(&other, &MemFs::new(), &mut rng);
    let early = copy.reader().unwrap();
    let remote = remote(&objects, &MemFs::new(), &mut rng);
    assert!(remote.copy_to(&copy).unwrap().objects > 2);
    assert_eq!(remote.copy_to(&copy).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(copy.verify().unwrap().is_sound());
    check_ends(&copy, "/copied");
    let second = copy.take_over("/db").unwrap();
    let db = second.builder().background(BackgroundMode::Stepped).open().unwrap();
    put(&db, 300);
    early.refresh().unwrap();
    let reader = early.secondary().open().unwrap();
    let values = reader.partition("values").unwrap();
    assert_eq!(values.at(Level::Strong).unwrap().keys().count(), 301);
    drop(primary);
}
