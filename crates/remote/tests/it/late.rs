//! Answers and effects that come late, and a primary that learns late of a takeover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use remote::{Ack, Store, StoreError, StoreResult};
use siltstone::fs::{CrashOutcome, MemFs};
use siltstone::secondary::{Level, Target};
use siltstone::{
    BackgroundMode, Db, Durability, ErrorKind, LargeValueOptions, Partition, PartitionOptions,
    Readable,
};
use testkit::Rng;

use crate::deletion::{HOUR, write};
use crate::read_lease::LossyStore;
use crate::sim_store::{Objects, SimStore, journal_name, remote_of, remote_with};
use crate::store_layer::{Layered, StoreLayer};

/// A store with calls whose effect comes later.
struct LateStore {
    inner: Arc<SimStore>,
    /// The next put of a journal object conflicts with a call that has no effect yet.
    conflicts: AtomicBool,
    /// An object that the next look at the name of such a conflict finds, and no later one.
    ghost: Mutex<Option<Vec<u8>>>,
    ghost_name: Mutex<Option<String>>,
    /// Puts of parts fail; the first one takes effect later.
    holds_parts: AtomicBool,
    held: Mutex<Option<(String, Vec<u8>)>>,
}

impl LateStore {
    fn new(objects: &Objects, rng: &mut Rng) -> Arc<Layered<LateStore>> {
        Layered::new(LateStore {
            inner: SimStore::new(objects.clone(), rng.fork()),
            conflicts: AtomicBool::new(false),
            ghost: Mutex::new(None),
            ghost_name: Mutex::new(None),
            holds_parts: AtomicBool::new(false),
            held: Mutex::new(None),
        })
    }
}

impl StoreLayer for LateStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        if name.starts_with("journal/") && self.conflicts.swap(false, Ordering::Relaxed) {
            *self.ghost_name.lock() = Some(name.to_owned());
            return Ok(false);
        }
        self.inner.put_if_absent(name, bytes)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        if name.starts_with("part/") && self.holds_parts.load(Ordering::Relaxed) {
            self.held.lock().get_or_insert((name.to_owned(), bytes.to_vec()));
            return Err(StoreError::transient("no answer in time"));
        }
        self.inner.put(name, bytes)
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        if self.ghost_name.lock().take_if(|ghost| ghost == name).is_some()
            && let Some(ghost) = self.ghost.lock().take()
        {
            return Ok(Some(ghost));
        }
        self.inner.get(name)
    }
}

fn put(db: &Db, key: &str, durability: Durability) -> siltstone::Result<()> {
    db.partition("users")?.put_with(key, "x", durability).map(drop)
}

fn values(db: &Db) -> Partition {
    let large = PartitionOptions::new().large_values(LargeValueOptions::default());
    db.partition_with("values", large).unwrap()
}

#[test]
fn a_conflict_with_no_object_is_no_fence_and_leaves_no_hole() {
    let mut rng = Rng::new(21);
    let objects = Objects::default();
    let store = LateStore::new(&objects, &mut rng);
    let fs = MemFs::new();
    let primary = remote_of(&store, &fs, &mut rng).primary("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    store.conflicts.store(true, Ordering::Relaxed);
    put(&db, "one", Durability::Sync).unwrap();
    db.close().unwrap();
    drop(primary);
    store.conflicts.store(true, Ordering::Relaxed);
    let second = remote_of(&store, &MemFs::new(), &mut rng).take_over("/db").unwrap();
    let db = second.builder().background(BackgroundMode::Stepped).open().unwrap();
    put(&db, "two", Durability::Sync).unwrap();
    let third = remote_of(&store, &MemFs::new(), &mut rng).take_over("/db").unwrap();
    let db = third.builder().background(BackgroundMode::Stepped).open().unwrap();
    let users = db.partition("users").unwrap();
    assert!(users.contains("one").unwrap() && users.contains("two").unwrap());
}

#[test]
fn a_fenced_primary_with_local_acknowledgement_refuses_the_next_sync() {
    let mut rng = Rng::new(22);
    let objects = Objects::default();
    let store = LateStore::new(&objects, &mut rng);
    let old = remote_of(&store, &MemFs::new(), &mut rng).ack(Ack::Local).primary("/db").unwrap();
    let db = old.builder().background(BackgroundMode::Stepped).open().unwrap();
    put(&db, "before", Durability::Sync).unwrap();
    old.ship().unwrap();
    let new = remote_of(&store, &MemFs::new(), &mut rng).take_over("/db").unwrap();
    put(&db, "unaware", Durability::Sync).unwrap();
    assert_eq!(old.ship().unwrap_err().kind(), ErrorKind::Fenced);
    let refused = put(&db, "late", Durability::Sync).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert!(db.is_fenced());
    drop(new);
}

#[test]
fn a_fence_that_the_sync_of_a_large_value_finds_is_refused_as_such() {
    let mut rng = Rng::new(29);
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let old = remote_of(&store, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let db = old.builder().background(BackgroundMode::Stepped).open().unwrap();
    put(&db, "before", Durability::Sync).unwrap();
    let values = values(&db);
    values.put_with("zero", vec![0; 100_000], Durability::Sync).unwrap();
    let number = old.status().number;
    let other = SimStore::new(objects.clone(), rng.fork());
    let other = remote_of(&other, &MemFs::new(), &mut rng);
    let new = Arc::new(Mutex::new(None));
    let slot = new.clone();
    let writer = values.clone();
    let paused = store.clone();
    // The sync of the log puts an object. Meanwhile another value comes into the chunk file, so that its sync puts one,
    // too.
    store.pause_before_put(&journal_name(number + 1), move || {
        writer.put_with("meanwhile", vec![2; 100_000], Durability::Os).unwrap();
        paused.pause_before_put(&journal_name(number + 2), move || {
            *slot.lock() = Some(other.take_over("/db").unwrap());
        });
    });
    let refused = values.put_with("one", vec![1; 100_000], Durability::Sync).unwrap_err();
    assert!(new.lock().is_some());
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    let refused = put(&db, "late", Durability::Sync).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    assert!(db.is_fenced());
}

#[test]
fn a_put_of_a_part_that_takes_effect_late_changes_no_stored_part() {
    let mut rng = Rng::new(23);
    let objects = Objects::default();
    let store = LateStore::new(&objects, &mut rng);
    let primary = remote_of(&store, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    values(&db).put_with("zero", vec![1; 100_000], Durability::Sync).unwrap();
    store.holds_parts.store(true, Ordering::Relaxed);
    values(&db).put_with("one", vec![2; 100_000], Durability::Os).unwrap();
    primary.ship().unwrap_err();
    store.holds_parts.store(false, Ordering::Relaxed);
    values(&db).put_with("two", vec![3; 100_000], Durability::Sync).unwrap();
    let (name, bytes) = store.held.lock().take().expect("a part was put");
    objects.lock().insert(name, bytes.into());
    let second = remote_of(&store, &MemFs::new(), &mut rng).take_over("/db").unwrap();
    let db = second.builder().background(BackgroundMode::Stepped).open().unwrap();
    assert_eq!(values(&db).get("one").unwrap().unwrap(), vec![2; 100_000]);
    assert_eq!(values(&db).get("two").unwrap().unwrap(), vec![3; 100_000]);
}

#[test]
fn a_value_that_is_stored_outlives_a_power_cut() {
    let mut rng = Rng::new(24);
    for case in 0..70 {
        let objects = Objects::default();
        let store = LateStore::new(&objects, &mut rng);
        let fs = MemFs::new();
        let primary = remote_of(&store, &fs, &mut rng).primary("/db").unwrap();
        let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
        values(&db).put_with("zero", vec![1; 100_000], Durability::Sync).unwrap();
        values(&db).put_with("one", vec![2; 100_000], Durability::Os).unwrap();
        primary.ship().unwrap();
        let outcome = CrashOutcome::ALL[case % CrashOutcome::ALL.len()];
        let disk = fs.crash_clone(outcome, &mut || rng.next_u64());
        let again = remote_of(&store, &disk, &mut rng).primary("/db").unwrap();
        let db = again.builder().background(BackgroundMode::Stepped).open().unwrap();
        let one = values(&db).get("one").unwrap();
        assert!(one.is_some_and(|value| value.to_vec() == vec![2; 100_000]), "{outcome:?}");
    }
}

#[test]
fn a_takeover_by_the_own_folder_after_a_power_cut_continues_from_the_bucket() {
    let mut rng = Rng::new(26);
    let mut refused = 0;
    for outcome in CrashOutcome::ALL {
        let objects = Objects::default();
        let store = LateStore::new(&objects, &mut rng);
        let fs = MemFs::new();
        let primary = remote_of(&store, &fs, &mut rng).ack(Ack::Local).primary("/db").unwrap();
        let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
        put(&db, "before", Durability::Os).unwrap();
        primary.ship().unwrap();
        let disk = fs.crash_clone(outcome, &mut || rng.next_u64());
        let remote = remote_of(&store, &disk, &mut rng).ack(Ack::Local);
        if let Err(error) = remote.primary("/db").map(drop) {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("take_over"), "{error}");
            refused += 1;
        }
        let again = remote.take_over("/db").unwrap();
        let db = again.builder().background(BackgroundMode::Stepped).open().unwrap();
        assert!(db.partition("users").unwrap().contains("before").unwrap(), "{outcome:?}");
    }
    assert!(refused > 0);
}

#[test]
fn a_reader_sees_nothing_that_a_restart_after_a_power_cut_drops() {
    let mut rng = Rng::new(27);
    for len in [9000, 90_000] {
        let mut shipped = 0;
        for case in 0..140 {
            let objects = Objects::default();
            let store = LateStore::new(&objects, &mut rng);
            let fs = MemFs::new();
            let primary = remote_of(&store, &fs, &mut rng).ack(Ack::Local).primary("/db").unwrap();
            let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
            values(&db).put_with("before", vec![1; 100_000], Durability::Sync).unwrap();
            primary.ship().unwrap();
            for number in 0..rng.below(8) {
                values(&db).put_with(number.to_be_bytes(), vec![1; len], Durability::Os).unwrap();
            }
            let outcome = CrashOutcome::ALL[case % CrashOutcome::ALL.len()];
            let disk = fs.crash_clone(outcome, &mut || rng.next_u64());
            let remote = remote_of(&store, &disk, &mut rng).ack(Ack::Local);
            let Ok(again) = remote.primary("/db") else { continue };
            shipped += 1;
            let reader = remote_of(&store, &MemFs::new(), &mut rng).reader().unwrap();
            let secondary = reader.secondary().open().unwrap();
            secondary.sync(Target::Latest).unwrap();
            let of_reader = secondary.partition("values").unwrap();
            let seen = of_reader.at(Level::Eventual).unwrap();
            let db = again.builder().background(BackgroundMode::Stepped).open().unwrap();
            let recovered = values(&db);
            assert!(seen.contains("before").unwrap());
            for key in seen.keys() {
                assert!(recovered.contains(key.unwrap()).unwrap(), "{outcome:?}");
            }
            // The open of the database has put what it has recovered.
            secondary.sync(Target::Latest).unwrap();
            let seen = of_reader.at(Level::Eventual).unwrap();
            assert_eq!(seen.keys().count(), recovered.keys().count(), "{outcome:?}");
        }
        assert!(shipped > 30, "{shipped}");
    }
}

#[test]
fn a_database_that_is_shipped_after_a_power_cut_is_sound_for_a_reader() {
    let mut rng = Rng::new(29);
    for case in 0..140 {
        let fs = MemFs::new();
        let builder = Db::builder("/db").fs(Arc::new(fs.clone()));
        let db = builder.background(BackgroundMode::Stepped).open().unwrap();
        put(&db, "before", Durability::Sync).unwrap();
        let users = db.partition("users").unwrap();
        let large = values(&db);
        for number in 0..rng.below(8) {
            let key = number.to_be_bytes();
            let batch = db.batch().put(&users, key, vec![1; 9000]);
            // Neither the log nor the value is synced: the log may have the commit, and the disk not its value.
            batch.put(&large, key, vec![2; 100_000]).commit(Durability::Os).unwrap();
        }
        let outcome = CrashOutcome::ALL[case % CrashOutcome::ALL.len()];
        let disk = fs.crash_clone(outcome, &mut || rng.next_u64());
        let store = LateStore::new(&Objects::default(), &mut rng);
        let primary = remote_of(&store, &disk, &mut rng).ack(Ack::Local).primary("/db").unwrap();
        let reader = remote_of(&store, &MemFs::new(), &mut rng).reader().unwrap();
        let early = reader.secondary().open().map(drop).unwrap_err();
        assert!(early.to_string().contains("find a database in"), "{outcome:?}: {early}");
        let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
        reader.refresh().unwrap();
        let secondary = reader.secondary().open().unwrap();
        secondary.sync(Target::Latest).unwrap();
        for (name, value) in [("users", vec![1; 9000]), ("values", vec![2; 100_000])] {
            let recovered = db.partition(name).unwrap().keys().count();
            let Ok(partition) = secondary.partition(name) else {
                assert_eq!(recovered, 0, "{outcome:?}");
                continue;
            };
            let seen = partition.at(Level::Eventual).unwrap();
            assert_eq!(seen.keys().count(), recovered, "{outcome:?}");
            let values = seen.iter().map(|entry| entry.unwrap().1);
            assert!(values.filter(|it| it.len() > 10).all(|it| *it == value[..]), "{outcome:?}");
        }
    }
}

#[test]
fn an_open_that_another_claim_precedes_is_refused_and_fences_no_one() {
    let mut rng = Rng::new(28);
    for is_first in [true, false] {
        let objects = Objects::default();
        let store = LateStore::new(&objects, &mut rng);
        let fs = MemFs::new();
        let mut number = 1;
        if !is_first {
            let primary = remote_of(&store, &fs, &mut rng).primary("/db").unwrap();
            put(&primary.builder().open().unwrap(), "before", Durability::Sync).unwrap();
            number = primary.status().number + 1;
        }
        let other = remote_of(&store, &MemFs::new(), &mut rng);
        let own = SimStore::new(objects.clone(), rng.fork());
        let winner = Arc::new(Mutex::new(None));
        let slot = winner.clone();
        own.pause_before_put(&journal_name(number), move || {
            *slot.lock() = Some(other.take_over("/db").unwrap());
        });
        let refused = remote_of(&own, &fs, &mut rng).primary("/db").map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
        let winner = winner.lock().take().unwrap();
        let db = winner.builder().background(BackgroundMode::Stepped).open().unwrap();
        put(&db, "after", Durability::Sync).expect("the refused open has fenced no one");
    }
}

/// Its claim would have been the first one.
#[test]
fn a_folder_that_another_claim_precedes_in_an_empty_bucket_is_never_replaced() {
    let mut rng = Rng::new(29);
    let objects = Objects::default();
    let fs = MemFs::new();
    let own = Db::builder("/db").fs(Arc::new(fs.clone())).open().unwrap();
    put(&own, "own", Durability::Sync).unwrap();
    own.close().unwrap();
    let store = SimStore::new(objects.clone(), rng.fork());
    let other = SimStore::new(objects.clone(), rng.fork());
    let other = remote_of(&other, &MemFs::new(), &mut rng);
    let winner = Arc::new(Mutex::new(None));
    let slot = winner.clone();
    store.pause_before_put(&journal_name(1), move || {
        let primary = other.primary("/db").unwrap();
        let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
        put(&db, "other", Durability::Sync).unwrap();
        *slot.lock() = Some((primary, db));
    });
    let remote = remote_of(&store, &fs, &mut rng);
    let refused = remote.take_over("/db").map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    for _ in 0..2 {
        let refused = remote.take_over("/db").map(drop).unwrap_err();
        assert!(refused.to_string().contains("that was never shipped"), "{refused}");
        let refused = remote.primary("/db").map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    }
    let own = Db::builder("/db").fs(Arc::new(fs)).open().unwrap();
    assert!(own.partition("users").unwrap().contains("own").unwrap());
}

#[test]
fn a_hole_in_the_journal_is_damage_that_names_the_object() {
    let mut rng = Rng::new(25);
    let objects = Objects::default();
    let store = LateStore::new(&objects, &mut rng);
    let primary = remote_of(&store, &MemFs::new(), &mut rng).primary("/db").unwrap();
    drop(primary.builder().open().unwrap());
    let number = primary.status().number;
    *store.ghost.lock() = Some(b"an object that is lost".to_vec());
    store.conflicts.store(true, Ordering::Relaxed);
    let remote = remote_of(&store, &MemFs::new(), &mut rng);
    let refused = remote.take_over("/db").map(drop).unwrap_err();
    let damage = refused.damage().expect("it is damage");
    assert_eq!(damage.file.to_str(), Some(&*journal_name(number + 1)), "{refused}");
}

/// Its next number has its own object. The claim that fences it follows.
#[test]
fn a_fenced_writer_whose_last_put_has_no_answer_deletes_nothing_of_the_next_one() {
    let mut rng = Rng::new(31);
    let objects = Objects::default();
    let inner = SimStore::new(objects.clone(), rng.fork());
    let store = Layered::new(LossyStore { inner, loses_answers: AtomicBool::new(false) });
    let remote = remote_with(store.clone(), objects.clone(), &MemFs::new(), &mut rng);
    let old = remote.retention(2 * HOUR).grace(HOUR).primary("/db").unwrap();
    let db = old.builder().background(BackgroundMode::Stepped).open().unwrap();
    write(&db, &old, 300);
    objects.advance(3 * HOUR);
    old.collect().unwrap();
    store.loses_answers.store(true, Ordering::Relaxed);
    put(&db, "unknown", Durability::Sync).unwrap_err();
    store.loses_answers.store(false, Ordering::Relaxed);
    let other = SimStore::new(objects.clone(), rng.fork());
    let new = remote_of(&other, &MemFs::new(), &mut rng).take_over("/db").unwrap();
    let new_db = new.builder().background(BackgroundMode::Stepped).open().unwrap();
    assert!(new_db.partition("users").unwrap().contains("unknown").unwrap());
    put(&new_db, "new", Durability::Sync).unwrap();
    new_db.flush().unwrap();
    let before: Vec<String> = objects.lock().keys().cloned().collect();
    for _ in 0..4 {
        objects.advance(HOUR);
        assert_eq!(old.collect().unwrap_err().kind(), ErrorKind::Fenced);
    }
    let after = objects.lock();
    let lost: Vec<_> = before.iter().filter(|name| !after.contains_key(*name)).collect();
    assert!(lost.iter().all(|name| name.starts_with("journal/")), "{lost:?}");
}
