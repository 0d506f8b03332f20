//! Damaged objects: each is an error that names the object, and never a panic or a wrong answer.

use remote::Remote;
use siltstone::fs::MemFs;
use siltstone::secondary::Level;
use siltstone::{BackgroundMode, Durability, Readable, Result};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, remote_of};

/// A journal of some objects with a base, a table and a chunk file.
fn objects(rng: &mut Rng) -> Objects {
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let primary = remote_of(&store, &MemFs::new(), rng).primary("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    let users = db.partition("users").unwrap();
    users.put_with("flushed", vec![7; 1000], Durability::Sync).unwrap();
    db.flush().unwrap();
    primary.ship().unwrap();
    users.put_with("logged", "x", Durability::Sync).unwrap();
    primary.ship().unwrap();
    objects
}

fn remote(objects: &Objects, rng: &mut Rng) -> Remote {
    remote_of(&SimStore::new(objects.clone(), rng.fork()), &MemFs::new(), rng)
}

fn read(remote: &Remote) -> Result<bool> {
    let secondary = remote.reader()?.secondary().open()?;
    let users = secondary.partition("users")?;
    let view = users.at(Level::Strong)?;
    Ok(view.get("flushed")?.is_some_and(|value| *value == [7; 1000]) && view.contains("logged")?)
}

#[test]
fn a_changed_byte_of_a_journal_object_or_a_base_is_damage_with_its_place() {
    let mut rng = Rng::from_env_or(11);
    let intact = objects(&mut rng);
    assert!(read(&remote(&intact, &mut rng)).unwrap());
    let base = intact.lock().keys().rfind(|name| name.starts_with("base/")).unwrap().clone();
    let number: u64 = base["base/".len()..].parse().unwrap();
    let last = crate::sim_store::journal_name(number + 1);
    for name in [base, last] {
        for _ in 0..60 {
            let objects = Objects::default();
            objects.lock().clone_from(&intact.lock());
            let mut all = objects.lock();
            let bytes = all.get_mut(&name).expect("the object is there");
            let at = rng.index(bytes.len());
            bytes[at] ^= 1 << rng.below(8);
            if rng.chance(1, 4) {
                bytes.truncate(at);
            }
            drop(all);
            for error in [
                read(&remote(&objects, &mut rng)).unwrap_err(),
                remote(&objects, &mut rng).take_over("/db").map(drop).unwrap_err(),
            ] {
                let damage = error.damage().expect("it is damage");
                assert_eq!(damage.file.to_str(), Some(&*name), "{error}");
                assert!(damage.offset.is_some());
            }
        }
    }
}

#[test]
fn a_damaged_or_missing_table_is_an_error_and_no_missing_key() {
    let mut rng = Rng::from_env_or(12);
    let intact = objects(&mut rng);
    let tables: Vec<_> =
        intact.lock().keys().filter(|name| name.starts_with("table/")).cloned().collect();
    assert!(!tables.is_empty());
    for name in tables {
        for case in 0..20 {
            let objects = Objects::default();
            objects.lock().clone_from(&intact.lock());
            let mut all = objects.lock();
            match case {
                0 => drop(all.remove(&name)),
                1 => all.get_mut(&name).expect("it is there").truncate(100),
                _ => {
                    let bytes = all.get_mut(&name).expect("it is there");
                    let at = rng.index(bytes.len());
                    bytes[at] ^= 1 << rng.below(8);
                }
            }
            drop(all);
            // A byte that no read needs changes nothing.
            assert!(read(&remote(&objects, &mut rng)).unwrap_or(true), "a wrong answer");
            if case < 2 {
                read(&remote(&objects, &mut rng)).unwrap_err();
            }
        }
    }
}

/// A log that ends with zeros looks like one that ends there.
#[test]
fn a_part_of_a_log_that_is_cut_is_named_and_no_end_of_the_log() {
    let mut rng = Rng::from_env_or(13);
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let primary = remote_of(&store, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    let users = db.partition("users").unwrap();
    users.put_with("flushed", vec![7; 1000], Durability::Sync).unwrap();
    users.put_with("long", vec![8; 200_000], Durability::Sync).unwrap();
    users.put_with("logged", "x", Durability::Sync).unwrap();
    primary.ship().unwrap();
    let mut parts: Vec<String> = objects.lock().keys().cloned().collect();
    parts.retain(|name| name.starts_with("part/") && name.contains(".wal/"));
    let part = parts.pop().expect("the base has the log there");
    assert!(read(&remote(&objects, &mut rng)).unwrap());
    let len = objects.lock()[&part].len();
    objects.lock().get_mut(&part).unwrap().truncate(len - 60);
    for error in [
        read(&remote(&objects, &mut rng)).unwrap_err(),
        remote(&objects, &mut rng).take_over("/db").map(drop).unwrap_err(),
    ] {
        assert_eq!(error.damage().expect("it is damage").file.to_str(), Some(&*part), "{error}");
    }
}

#[test]
fn a_range_after_the_end_of_an_object_has_no_bytes() {
    let store = Remote::memory().unwrap().store();
    store.put("some/object", b"three").unwrap();
    assert_eq!(store.get_range("some/object", 3..9).unwrap().unwrap(), b"ee");
    for begin in [5, 7] {
        assert_eq!(store.get_range("some/object", begin..9).unwrap().unwrap(), b"");
    }
    assert_eq!(store.get_range("some/other", 7..9).unwrap(), None);
}
