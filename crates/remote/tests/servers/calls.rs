//! Single calls: puts that race, a takeover and a restart, and a store that enforces nothing.

use std::sync::Arc;

use remote::{ObjectListing, Remote, Store, StoreResult};
use siltstone::secondary::Level;
use siltstone::{Db, Durability, ErrorKind, Readable, VerifyOptions};

use crate::Place;
use crate::store_layer::{Layered, StoreLayer};

const RACERS: u64 = 32;

#[test]
fn one_of_racing_puts_wins() {
    let place = Place::new("race");
    let stores = [place.remote().store(), place.remote().store()];
    for round in 0..20 {
        let name = format!("race/{round:020}");
        let wins: Vec<bool> = std::thread::scope(|scope| {
            let racers = (0..RACERS).map(|racer| {
                let store = &stores[racer as usize % 2];
                let name = &name;
                scope.spawn(move || store.put_if_absent(name, &racer.to_le_bytes()).unwrap())
            });
            let racers: Vec<_> = racers.collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        let winners: Vec<_> = (0..RACERS).filter(|racer| wins[*racer as usize]).collect();
        let [winner] = winners[..] else { panic!("round {round}: {winners:?} have won") };
        assert_eq!(stores[0].get(&name).unwrap().unwrap(), winner.to_le_bytes());
    }
}

#[test]
fn backups_are_made_restored_and_purged() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path().join("db")).unwrap();
    let users = db.partition("users").unwrap();
    let backups = Place::new("backups").remote().backups();
    for number in 0..3_u32 {
        users.put(number.to_be_bytes(), vec![number as u8; 100_000]).unwrap();
        backups.create_backup(&db).unwrap();
    }
    assert!(backups.verify(None).unwrap().is_sound());
    let kept = backups.info().unwrap()[2].clone();
    assert_eq!(backups.purge_old(1).unwrap().backups.len(), 2);
    assert_eq!(backups.info().unwrap(), std::slice::from_ref(&kept));
    assert_eq!(backups.create_backup(&db).unwrap().new_bytes, 0);
    let into = folder.path().join("restored");
    backups.restore(kept.backup_id, &into).unwrap();
    let restored = Db::open(&into).unwrap();
    assert_eq!(restored.partition("users").unwrap().iter().count(), 3);
    assert!(restored.verify(VerifyOptions::new()).unwrap().is_sound());
}

fn names(store: &dyn Store) -> Vec<String> {
    store.list("some").unwrap().objects.into_iter().map(|entry| entry.name).collect()
}

#[test]
fn a_store_keeps_what_was_put() {
    let place = Place::new("store");
    let store = place.remote().store();
    assert_eq!(store.get("some/object").unwrap(), None);
    assert_eq!(store.get_range("some/object", 0..2).unwrap(), None);
    assert_eq!(names(&*store), Vec::<String>::new());
    store.put("some/object", b"one").unwrap();
    store.put("some/object", b"three").unwrap();
    assert!(!store.put_if_absent("some/object", b"four").unwrap());
    assert_eq!(store.get("some/object").unwrap().unwrap(), b"three");
    assert_eq!(store.get_range("some/object", 1..3).unwrap().unwrap(), b"hr");
    // A range ends with the object.
    assert_eq!(store.get_range("some/object", 3..9).unwrap().unwrap(), b"ee");
    assert_eq!(store.get_range("some/object", 5..9).unwrap().unwrap(), b"");
    assert_eq!(store.get_range("some/object", 7..9).unwrap().unwrap(), b"");
    store.put("some/folder/object", b"").unwrap();
    store.put("some/other", b"").unwrap();
    assert_eq!(names(&*store), ["some/object", "some/other"]);
    assert_eq!(store.list("some").unwrap().folders, ["some/folder"]);
    store.delete("some/object").unwrap();
    store.delete("some/object").unwrap();
    assert_eq!(names(&*store), ["some/other"]);
}

fn put(db: &Db, key: &str) -> siltstone::Result<()> {
    db.partition("users")?.put_with(key, "x".repeat(1000), Durability::Sync).map(drop)
}

#[test]
fn a_takeover_fences_and_a_restart_goes_on() {
    let place = Place::new("takeover");
    let remote = place.remote();
    let first = remote.primary(place.dir("first")).unwrap();
    let db = first.builder().open().unwrap();
    (0..100).for_each(|n| put(&db, &format!("{n}")).unwrap());
    db.flush().unwrap();
    put(&db, "late").unwrap();
    let secondary = remote.reader().unwrap().secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    put(&db, "last").unwrap();
    assert!(users.at(Level::Strong).unwrap().contains("last").unwrap());
    let second = remote.take_over(place.dir("second")).unwrap();
    let new = second.builder().open().unwrap();
    assert_eq!(put(&db, "refused").unwrap_err().kind(), ErrorKind::Fenced);
    put(&new, "newer").unwrap();
    assert!(users.at(Level::Strong).unwrap().contains("newer").unwrap());
    new.close().unwrap();
    drop(second);
    let second = place.remote().primary(place.dir("second")).unwrap();
    let new = second.builder().open().unwrap();
    put(&new, "restarted").unwrap();
    second.restore().unwrap();
    assert_eq!(second.status().remote_files, 0);
    let users = new.partition("users").unwrap();
    assert!((0..100).all(|n| users.contains(format!("{n}")).unwrap()));
    assert!(["late", "last", "newer"].iter().all(|key| users.contains(key).unwrap()));
    assert!(!users.contains("refused").unwrap());
    assert!(new.verify(VerifyOptions::default()).unwrap().damage().is_empty());
    let returned = remote.primary(place.dir("first")).map(drop).unwrap_err();
    assert_eq!(returned.kind(), ErrorKind::Locked, "{returned}");
}

/// A store that takes conditions, and does not enforce them.
struct Unconditional(Arc<dyn Store>);

impl StoreLayer for Unconditional {
    fn inner(&self) -> &dyn Store {
        &*self.0
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.0.put(name, bytes).map(|()| true)
    }
}

#[test]
fn a_store_that_enforces_no_condition_is_refused() {
    let place = Place::new("unconditional");
    let remote = Remote::with_store(Layered::new(Unconditional(place.remote().store())));
    let refused = remote.primary(place.dir("folder")).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let listed = place.remote().store().list("journal").unwrap();
    assert_eq!(listed, ObjectListing::default(), "it has put nothing");
}
