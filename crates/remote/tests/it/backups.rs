//! Backups in a bucket: the calls, the races of machines without locks, and a simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use siltstone::backup::{BackupEngine, BackupInfo};
use siltstone::fs::MemFs;
use siltstone::{
    BackgroundMode, Builder, Db, ErrorKind, LargeValueOptions, Options, PartitionOptions, Result,
    SeqNo,
};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, new_bucket, with_clock};

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn content(db: &Db) -> Content {
    let users = db.partition("users").unwrap();
    users
        .iter()
        .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
        .collect::<Result<_>>()
        .unwrap()
}

/// A database, and the bucket of its backups.
struct Place {
    objects: Objects,
    mem: MemFs,
    db: Db,
    known: Mutex<Known>,
}

/// The facts of the model.
struct Known {
    rng: Rng,
    /// The content after each commit.
    states: BTreeMap<SeqNo, Content>,
    /// The backups that must be there.
    made: BTreeSet<u32>,
    /// Those that a purge with an unknown outcome may have deleted, or may delete later.
    perhaps: BTreeSet<u32>,
    /// There may be backups that no machine knows to be added.
    has_unknown: bool,
}

impl Place {
    fn new(rng: Rng) -> Arc<Place> {
        Place::with(Objects::default(), rng)
    }

    fn with(objects: Objects, rng: Rng) -> Arc<Place> {
        let mem = MemFs::new();
        let db = builder(&mem, "/db").open().unwrap();
        let large = LargeValueOptions::default().threshold_bytes(256);
        let options = PartitionOptions::new().table_bytes(1 << 10).large_values(large);
        db.partition_with("users", options).unwrap();
        let states = BTreeMap::new();
        let made = BTreeSet::new();
        let known = Known { rng, states, made, perhaps: BTreeSet::new(), has_unknown: false };
        let place = Place { objects, mem, db, known: Mutex::new(known) };
        place.write();
        Arc::new(place)
    }

    /// A new machine, which reaches the bucket.
    fn machine(&self) -> (Arc<SimStore>, BackupEngine) {
        let mut known = self.known.lock();
        let store = SimStore::new(self.objects.clone(), known.rng.fork());
        let remote = with_clock(&store, &self.mem, &mut known.rng);
        (store, remote.backups())
    }

    fn backups(&self) -> BackupEngine {
        self.machine().1
    }

    fn write(&self) {
        let mut known = self.known.lock();
        let users = self.db.partition("users").unwrap();
        for _ in 0..8 {
            let key = format!("k{:02}", known.rng.below(40));
            let len = 20 + known.rng.below(400) as usize;
            let commit = users.put(key, known.rng.bytes(len)).unwrap();
            known.states.insert(commit.seq, content(&self.db));
        }
        if known.rng.chance(1, 3) {
            drop(known);
            self.db.flush().unwrap();
        }
    }

    /// Makes a backup by `engine`, and returns its number.
    fn make(&self, engine: &BackupEngine) -> Result<u32> {
        let is_open = self.known.lock().rng.chance(1, 2);
        let info = match is_open {
            true => engine.create_backup(&self.db)?,
            false => engine.create_backup_of(builder(&self.mem, "/db"))?,
        };
        self.known.lock().made.insert(info.backup_id);
        Ok(info.backup_id)
    }

    /// Every backup in the list has what it says.
    fn check(&self) {
        let engine = self.backups();
        let listed = engine.info().unwrap();
        assert!(engine.corrupted().unwrap().is_empty());
        let report = engine.verify(None).unwrap();
        assert!(report.is_sound(), "{:?}", report.damaged);
        let ids: BTreeSet<u32> = listed.iter().map(|it| it.backup_id).collect();
        let known = self.known.lock();
        let lost: Vec<_> =
            known.made.difference(&ids).filter(|id| !known.perhaps.contains(id)).collect();
        assert!(lost.is_empty(), "{lost:?} of {:?} are not in {ids:?}", known.made);
        drop(known);
        for info in listed {
            self.check_restored(|dir| engine.restore(info.backup_id, dir)).unwrap();
        }
    }

    /// Restores a backup by `restore` into a folder of its own, and compares the database with the model.
    fn check_restored(&self, restore: impl FnOnce(&str) -> Result<BackupInfo>) -> Result<()> {
        let dir = format!("/restored-{:x}", self.known.lock().rng.next_u64());
        let restored = restore(&dir);
        let files: Vec<_> =
            self.mem.paths().into_iter().filter(|it| it.starts_with(&dir)).collect();
        if let Ok(info) = &restored {
            let db = builder(&self.mem, &dir).open().unwrap();
            assert!(content(&db) == self.known.lock().states[&info.seq], "{info:?}");
            db.close().unwrap();
        } else {
            assert!(files.is_empty(), "a failed restore leaves {files:?}");
        }
        let files = self.mem.paths().into_iter().filter(|it| it.starts_with(&dir));
        files.for_each(|path| self.mem.remove_raw(&path).unwrap());
        restored.map(drop)
    }

    fn shared(&self) -> usize {
        self.objects.lock().keys().filter(|name| name.starts_with("backups/shared/")).count()
    }
}

fn builder(mem: &MemFs, dir: &str) -> Builder {
    let options = Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(8 << 10);
    Db::builder(dir).fs(Arc::new(mem.clone())).options(options).background(BackgroundMode::Stepped)
}

#[test]
fn a_bucket_keeps_backups_that_share_and_are_whole_by_themselves() {
    let place = Place::new(Rng::from_env_or(1));
    let engine = place.backups();
    assert_eq!(engine.info().unwrap(), []);
    let first = place.make(&engine).unwrap();
    let shared = place.shared();
    place.write();
    let second = place.make(&engine).unwrap();
    place.check();
    let again = place.backups().create_backup(&place.db).unwrap();
    assert_eq!(again.new_bytes, 0, "{again:?}");
    assert_eq!(engine.delete(first).unwrap().backups, [first]);
    assert_eq!(engine.delete(first).unwrap_err().kind(), ErrorKind::InvalidArgument);
    place.known.lock().made.remove(&first);
    place.check();
    engine.purge_old(0).unwrap();
    assert_eq!((engine.info().unwrap(), place.shared()), (Vec::new(), 0));
    assert!(shared > 0 && second > first);
    place.known.lock().made.clear();
    place.make(&engine).unwrap();
    place.check();
}

#[test]
fn a_store_without_put_if_absent_gets_no_backups() {
    let place = Place::new(Rng::from_env_or(2));
    let (store, engine) = place.machine();
    store.ignores_conditions.store(true, Ordering::Relaxed);
    let refused = engine.create_backup(&place.db).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert_eq!(place.shared(), 0);
}

#[test]
fn a_purge_during_a_backup_takes_nothing_that_it_needs() {
    let place = Place::new(Rng::from_env_or(3));
    let first = place.make(&place.backups()).unwrap();
    place.write();
    let (store, engine) = place.machine();
    let other = place.clone();
    // It shares files of the first backup, and its own are in no record yet.
    store.pause_before_put(&record(first + 1), move || {
        assert_eq!(other.backups().purge_old(0).unwrap().backups, [first]);
        assert_eq!(other.shared(), 0);
    });
    place.known.lock().made.remove(&first);
    place.make(&engine).unwrap();
    place.check();
}

#[test]
fn a_backup_that_slept_over_purges_is_not_published_in_the_place_of_another() {
    let place = Place::new(Rng::from_env_or(4));
    place.make(&place.backups()).unwrap();
    let (store, engine) = place.machine();
    let other = place.clone();
    store.pause_before_put(&record(2), move || {
        let engine = other.backups();
        // They take the number 2, and give it back.
        for _ in 0..3 {
            let id = other.make(&engine).unwrap();
            other.write();
            engine.purge_old(0).unwrap();
            other.known.lock().made.remove(&id);
        }
        other.known.lock().made.remove(&1);
        assert!(!other.objects.lock().contains_key(&record(2)), "its number is free");
    });
    let id = place.make(&engine).unwrap();
    assert!(id > 2, "{id}");
    place.check();
}

#[test]
fn a_backup_that_slept_over_two_purges_copies_again_what_the_first_one_deleted() {
    let place = Place::new(Rng::from_env_or(9));
    let first = place.make(&place.backups()).unwrap();
    let (store, engine) = place.machine();
    let other = place.clone();
    store.pause_before_put(&record(first + 1), move || {
        // Takes the number, and needs other files.
        other.write();
        other.db.flush().unwrap();
        let engine = other.backups();
        other.make(&engine).unwrap();
        for id in [first, other.make(&engine).unwrap()] {
            assert_eq!(engine.delete(id).unwrap().backups, [id]);
            other.known.lock().made.remove(&id);
        }
    });
    let id = place.make(&engine).unwrap();
    assert!(id > first + 2, "{id}");
    place.check();
}

#[test]
fn a_purge_that_slept_deletes_nothing_of_later_backups() {
    let place = Place::new(Rng::from_env_or(5));
    // The last calls of a purge are its deletions.
    for calls in 0..60 {
        place.make(&place.backups()).unwrap();
        let (store, engine) = place.machine();
        let other = place.clone();
        store.pause_in(calls, move || {
            {
                let known = &mut *other.known.lock();
                known.perhaps.extend(&known.made);
            }
            other.make(&other.backups()).unwrap();
            other.check();
        });
        let gone = engine.purge_old(1).unwrap();
        {
            let mut known = place.known.lock();
            known.made.retain(|id| !gone.backups.contains(id));
            known.perhaps.clear();
        }
        place.check();
    }
}

#[test]
fn a_purge_that_slept_until_its_number_was_free_again_deletes_nothing() {
    let place = Place::new(Rng::from_env_or(10));
    for _ in 0..3 {
        place.make(&place.backups()).unwrap();
        place.write();
    }
    let (store, engine) = place.machine();
    let other = place.clone();
    store.pause_before_put(&record(4), move || {
        let engine = other.backups();
        for id in [1, 2] {
            assert_eq!(engine.delete(id).unwrap().backups, [id]);
            other.known.lock().made.remove(&id);
        }
        // It shares files of the backup 3, which is about to be deleted.
        other.make(&engine).unwrap();
        assert!(!other.objects.lock().contains_key(&record(4)), "its number is free");
    });
    assert_eq!(engine.delete(3).unwrap().backups, [3]);
    place.known.lock().made.remove(&3);
    place.check();
}

#[test]
fn no_backup_is_made_after_a_purge_whose_record_is_damaged() {
    let place = Place::new(Rng::from_env_or(11));
    place.make(&place.backups()).unwrap();
    place.write();
    let (store, engine) = place.machine();
    let other = place.clone();
    store.pause_before_put(&record(2), move || {
        other.backups().purge_old(0).unwrap();
        other.objects.lock().get_mut(&record(2)).unwrap()[30] ^= 1;
    });
    let refused = place.make(&engine).unwrap_err();
    assert!(refused.is_corruption() && refused.to_string().contains("backup-0000000002"));
    assert_eq!(place.backups().info().unwrap(), []);
}

#[test]
fn an_object_of_another_length_is_named_and_not_deleted() {
    let place = Place::new(Rng::from_env_or(12));
    place.make(&place.backups()).unwrap();
    let name = place.objects.lock().keys().find(|it| it.ends_with(".wal")).cloned().unwrap();
    place.objects.lock().get_mut(&name).unwrap().push(0);
    let refused = place.make(&place.backups()).unwrap_err();
    assert!(refused.is_corruption() && refused.to_string().contains(&name), "{refused}");
    assert!(place.objects.lock().contains_key(&name));
    place.objects.lock().remove(&name);
    place.make(&place.backups()).unwrap();
    place.check();
}

#[test]
fn a_backup_that_is_deleted_during_its_restore_is_an_error_that_says_so() {
    let place = Place::new(Rng::from_env_or(6));
    let mut refused = 0;
    for calls in 0..40 {
        let id = place.make(&place.backups()).unwrap();
        let (store, engine) = place.machine();
        let other = place.clone();
        store.pause_in(calls, move || drop(other.backups().purge_old(0).unwrap()));
        if let Err(error) = place.check_restored(|dir| engine.restore(id, dir)) {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            refused += 1;
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_damaged_object_is_named_and_the_next_backup_makes_it_whole() {
    let place = Place::new(Rng::from_env_or(7));
    let engine = place.backups();
    let id = place.make(&engine).unwrap();
    engine.purge_old(1).unwrap();
    let name = place.objects.lock().keys().find(|it| it.ends_with(".sst")).cloned();
    let name = name
        .or_else(|| place.objects.lock().keys().find(|it| it.ends_with(".wal")).cloned())
        .unwrap();
    place.objects.lock().get_mut(&name).unwrap()[60] ^= 1;
    let report = engine.verify(None).unwrap();
    assert_eq!(report.damaged.len(), 1);
    assert_eq!(
        (report.damaged[0].path.to_str(), &report.damaged[0].backups[..]),
        (Some(&*name), &[id][..])
    );
    assert!(engine.restore(id, "/restored").unwrap_err().is_corruption());
    place.objects.lock().remove(&name);
    place.make(&engine).unwrap();
    place.check();
}

/// Something happens; while a call of it waits, other machines do something as well.
fn step(place: &Arc<Place>, depth: usize) {
    let (deed, keep, faults, calls, steps) = {
        let rng = &mut place.known.lock().rng;
        (rng.below(8), rng.index(4), rng.below(6), rng.below(60), rng.range(1..6))
    };
    if deed == 0 {
        return place.write();
    }
    let (store, engine) = place.machine();
    match faults {
        0 => store.die_in(calls),
        1 => store.fails_one_of.store(4, Ordering::Relaxed),
        2 | 3 if depth < 2 => {
            let other = place.clone();
            store.pause_in(calls % 25, move || (0..steps).for_each(|_| step(&other, depth + 1)));
        }
        _ => {}
    }
    match deed {
        1..=4 => {
            let is_unknown = place.make(&engine).is_err();
            place.known.lock().has_unknown |= is_unknown;
        }
        5 => {
            let purged = engine.purge_old(keep);
            let mut known = place.known.lock();
            match purged {
                Ok(summary) => known.made.retain(|id| !summary.backups.contains(id)),
                Err(_) => {
                    let made: Vec<u32> = known.made.iter().copied().collect();
                    // A backup that is there and was never acknowledged may be the newest one, which is kept.
                    let kept = if known.has_unknown { 0 } else { keep.min(1) };
                    let older = made.len() - kept.min(made.len());
                    known.perhaps.extend(&made[..older]);
                }
            }
        }
        6 => {
            let chosen = place.known.lock().made.first().copied().unwrap_or(1);
            let deleted = engine.delete(chosen);
            let mut known = place.known.lock();
            match deleted {
                Ok(_) => known.made.retain(|id| *id != chosen),
                Err(error) if error.kind() == ErrorKind::InvalidArgument => {}
                Err(_) => known.perhaps.extend([chosen]),
            }
        }
        _ => drop(place.check_restored(|dir| engine.restore_latest(dir))),
    }
}

#[test]
fn machines_without_locks_keep_every_backup_whole() {
    let mut rng = Rng::from_env_or(8);
    for _ in 0..25 {
        let objects = new_bucket(&mut rng);
        let place = Place::with(objects, rng.fork());
        for _ in 0..40 {
            step(&place, 0);
            let mut late = place.known.lock().rng.fork();
            place.objects.take_effect_late(&mut late);
            place.check();
        }
    }
}

fn record(number: u32) -> String {
    format!("backups/backup-{number:010}")
}
