//! The last object of the journal is lost in the bucket: it looks like the journal's end.

use std::path::Path;
use std::time::Duration;

use remote::{Primary, Remote};
use siltstone::fs::{CrashOutcome, Fs, MemFs};
use siltstone::secondary::Target;
use siltstone::{BackgroundMode, Db, Durability};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, journal_name, with_clock};

struct Bucket {
    objects: Objects,
    rng: Rng,
}

impl Bucket {
    fn new(seed: u64) -> Bucket {
        Bucket { objects: Objects::default(), rng: Rng::new(seed) }
    }

    fn remote(&mut self, disk: &MemFs) -> Remote {
        let store = SimStore::new(self.objects.clone(), self.rng.fork());
        with_clock(&store, disk, &mut self.rng)
    }

    fn lose(&self, number: u64) {
        self.objects.lock().remove(&journal_name(number)).expect("it was there");
    }
}

fn opened(primary: &Primary) -> Db {
    primary.builder().background(BackgroundMode::Stepped).open().unwrap()
}

fn put(db: &Db, key: &str) {
    db.partition("users").unwrap().put_with(key, "x", Durability::Sync).unwrap();
}

fn has(db: &Db, key: &str) -> bool {
    db.partition("users").unwrap().contains(key).unwrap()
}

#[test]
fn a_living_primary_names_a_lost_object_and_puts_what_the_next_open_needs() {
    for is_last in [true, false] {
        let mut bucket = Bucket::new(101);
        let primary = bucket.remote(&MemFs::new()).primary("/db").unwrap();
        let db = opened(&primary);
        put(&db, "before");
        primary.ship().unwrap();
        primary.collect().unwrap();
        let reader = bucket.remote(&MemFs::new()).reader().unwrap();
        let secondary = reader.secondary().open().unwrap();
        put(&db, "lost");
        let lost = primary.status().number;
        if !is_last {
            put(&db, "after");
        }
        bucket.lose(lost);
        let error = primary.collect().unwrap_err();
        let named = error.damage().map(|damage| damage.file.to_string_lossy().into_owned());
        assert_eq!(named, Some(journal_name(lost)), "{error}");
        assert_eq!(primary.status().lost_object, named);
        let why = db.health().storage_failure.unwrap();
        assert!(why.contains(&journal_name(lost)), "{why}");
        assert!(primary.status().base >= lost);
        primary.collect().unwrap();
        // The reader that has come to the hole goes on from the base, after a minute.
        put(&db, "newer");
        bucket.objects.advance(Duration::from_secs(61));
        secondary.sync(Target::Latest).unwrap();
        let users = secondary.partition("users").unwrap();
        assert!(users.get("lost").unwrap().is_some() && users.get("newer").unwrap().is_some());
        let other = bucket.remote(&MemFs::new()).take_over("/db").unwrap();
        let db = opened(&other);
        assert!(has(&db, "before") && has(&db, "lost") && has(&db, "newer"));
    }
}

#[test]
fn an_open_of_the_own_folder_ships_what_is_lost_again_and_names_it() {
    for is_killed in [true, false] {
        let mut bucket = Bucket::new(102);
        let disk = MemFs::new();
        let primary = bucket.remote(&disk).primary("/db").unwrap();
        let db = opened(&primary);
        put(&db, "before");
        primary.ship().unwrap();
        put(&db, "lost");
        let lost = primary.status().number;
        let killed = disk.crash_clone(CrashOutcome::Everything, &mut || 0);
        bucket.lose(lost);
        drop(db);
        drop(primary);
        let disk = if is_killed { killed } else { disk };
        // What the close of the database has put is lost as well.
        bucket
            .objects
            .lock()
            .retain(|name, _| !name.starts_with("journal/") || *name < journal_name(lost));
        let primary = bucket.remote(&disk).primary("/db");
        if let Ok(primary) = &primary {
            assert!(has(&opened(primary), "lost"));
            let expected = (!is_killed).then(|| journal_name(lost));
            assert_eq!(primary.status().lost_object, expected);
            let other = bucket.remote(&MemFs::new()).take_over("/db").unwrap();
            assert!(has(&opened(&other), "lost"));
            continue;
        }
        let error = primary.map(drop).unwrap_err();
        assert!(!is_killed && error.to_string().contains(&journal_name(lost)), "{error}");
    }
}

#[test]
fn an_open_is_refused_if_the_folder_cannot_make_what_is_lost_again() {
    let mut bucket = Bucket::new(103);
    let disk = MemFs::new();
    let primary = bucket.remote(&disk).primary("/db").unwrap();
    let db = opened(&primary);
    put(&db, "before");
    primary.ship().unwrap();
    let base = primary.status().base;
    put(&db, "lost");
    let lost = primary.status().number;
    assert!(base < lost);
    // The next open of the database has it in a table, and deletes its log.
    db.close().unwrap();
    let db = opened(&primary);
    while db.step().unwrap() {}
    primary.ship().unwrap();
    assert!(primary.status().base < lost);
    let all = bucket.objects.lock().clone();
    let killed = disk.crash_clone(CrashOutcome::Everything, &mut || 0);
    drop((db, primary));
    *bucket.objects.lock() = all.clone();
    bucket
        .objects
        .lock()
        .retain(|name, _| !name.starts_with("journal/") || *name < journal_name(lost));
    let error = bucket.remote(&killed).primary("/db").map(drop).unwrap_err();
    let named = error.damage().map(|damage| damage.file.to_string_lossy().into_owned());
    assert_eq!(named, Some(journal_name(lost)), "{error}");
    assert!(error.to_string().contains("take_over"), "{error}");
    // With the objects the same folder opens.
    bucket.objects.lock().extend(all);
    let primary = bucket.remote(&killed).primary("/db").unwrap();
    assert!(has(&opened(&primary), "lost"));
    assert_eq!(primary.status().lost_object, None);
}

#[test]
fn an_open_whose_own_claim_is_lost_names_it_and_no_other_writer() {
    let mut bucket = Bucket::new(105);
    let disk = MemFs::new();
    let primary = bucket.remote(&disk).primary("/db").unwrap();
    drop(opened(&primary));
    drop(primary);
    let before = bucket.objects.lock().clone();
    let primary = bucket.remote(&disk).primary("/db").unwrap();
    let lost = primary.status().number;
    put(&opened(&primary), "lost");
    drop(primary);
    *bucket.objects.lock() = before;
    let error = bucket.remote(&disk).primary("/db").map(drop).unwrap_err();
    let named = error.damage().map(|damage| damage.file.to_string_lossy().into_owned());
    assert_eq!(named, Some(journal_name(lost)), "{error}");
    assert!(error.to_string().contains("back, or call take_over"), "{error}");
    bucket.remote(&disk).take_over("/db").unwrap();
}

#[test]
fn a_damaged_record_of_what_is_stored_is_an_older_one() {
    let mut bucket = Bucket::new(104);
    let disk = MemFs::new();
    let primary = bucket.remote(&disk).primary("/db").unwrap();
    put(&opened(&primary), "one");
    drop(primary);
    let dir = Path::new("/db");
    let names = disk.list_names(dir, "remote-stored-").unwrap();
    assert_eq!(names.len(), 1);
    let mut bytes = disk.read_raw(&dir.join(&names[0])).unwrap();
    bytes.extend([0xff; 20]);
    disk.write_raw(&dir.join(&names[0]), &bytes).unwrap();
    let primary = bucket.remote(&disk).primary("/db").unwrap();
    assert!(has(&opened(&primary), "one"));
    assert_eq!(disk.list_names(dir, "remote-stored-").unwrap(), Vec::<String>::new());
}
