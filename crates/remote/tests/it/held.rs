//! Objects that stay for views of earlier states; and the remains of puts, which go.

use siltstone::fs::Fs;
use siltstone::secondary::{Level, Target};
use siltstone::{Db, Durability, LargeValueOptions, Partition, PartitionOptions, Readable};

use crate::deletion::{HOUR, Place, clear, collect, flush_one, put, reclaim};
use crate::sim_store::journal_name;

/// A partition with large values, each in a chunk file of its own, about.
fn large_values(db: &Db) -> Partition {
    let large = LargeValueOptions::new().threshold_bytes(16 << 10).chunk_bytes(1 << 20);
    db.partition_with("values", PartitionOptions::new().large_values(large)).unwrap()
}

#[test]
fn an_old_view_reads_large_values_and_tables_that_it_has_not_opened_before() {
    let mut place = Place::new(83);
    let (primary, db) = place.primary();
    let values = large_values(&db);
    for number in 0..6_u8 {
        values.put_with([number], vec![number; 700_000], Durability::Sync).unwrap();
        put(&db, "flushed").unwrap();
        db.flush().unwrap();
    }
    primary.ship().unwrap();
    let reader = place.remote().0.lease(Some(HOUR)).reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    secondary.sync(Target::Latest).unwrap();
    let view = secondary.partition("values").unwrap().at(Level::Eventual).unwrap();
    let users = secondary.partition("users").unwrap().at(Level::Eventual).unwrap();
    // Everything that the views have is dropped, and the secondary goes on.
    for number in 0..6_u8 {
        values.put_with([number], b"small", Durability::Sync).unwrap();
    }
    reclaim(&primary, &db, &values);
    clear(&db);
    primary.ship().unwrap();
    secondary.sync(Target::Latest).unwrap();
    let chunks = reader.list_names(std::path::Path::new(""), "").unwrap();
    assert!(chunks.iter().all(|name| !name.ends_with(".chunk")), "{chunks:?}");
    // The lease is renewed, and deletion goes as far as it may.
    reader.renew_lease().unwrap();
    place.age(&primary, &db);
    secondary.sync(Target::Latest).unwrap();
    reader.renew_lease().unwrap();
    collect(&place, &primary);
    for number in 0..6_u8 {
        assert_eq!(*view.get([number]).unwrap().unwrap(), vec![number; 700_000]);
    }
    assert!(users.contains("flushed").unwrap());
    // Without the views nothing is held. The files that they have opened are closed with the next large value.
    let parts = place.names("part/");
    drop((view, users));
    values.put_with([9], vec![9; 20_000], Durability::Sync).unwrap();
    db.flush().unwrap();
    secondary.sync(Target::Latest).unwrap();
    reader.renew_lease().unwrap();
    place.age(&primary, &db);
    secondary.sync(Target::Latest).unwrap();
    reader.renew_lease().unwrap();
    collect(&place, &primary);
    assert!(parts.iter().all(|name| !place.has(name)), "{parts:?}");
}

/// The manifest does not change: the values are in the log alone.
#[test]
fn a_view_of_a_later_look_reads_large_values_that_are_in_no_table() {
    let mut place = Place::new(86);
    let (primary, db) = place.primary();
    let values = large_values(&db);
    put(&db, "first").unwrap();
    primary.ship().unwrap();
    let reader = place.remote().0.lease(Some(HOUR)).reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    secondary.sync(Target::Latest).unwrap();
    let first = secondary.partition("values").unwrap().at(Level::Eventual).unwrap();
    for number in 0..6_u8 {
        values.put_with([number], vec![number; 700_000], Durability::Sync).unwrap();
    }
    primary.ship().unwrap();
    secondary.sync(Target::Latest).unwrap();
    let view = secondary.partition("values").unwrap().at(Level::Eventual).unwrap();
    for number in 0..6_u8 {
        values.put_with([number], b"small", Durability::Sync).unwrap();
    }
    reclaim(&primary, &db, &values);
    primary.ship().unwrap();
    secondary.sync(Target::Latest).unwrap();
    for number in 0..6_u8 {
        assert_eq!(*view.get([number]).unwrap().unwrap(), vec![number; 700_000]);
        assert!(!first.contains([number]).unwrap());
    }
}

/// A view that stays holds the tables of its state, and none that came and went after it.
#[test]
fn an_old_view_holds_no_tables_that_are_newer() {
    let mut place = Place::new(85);
    let (primary, db) = place.primary();
    flush_one(&db);
    primary.ship().unwrap();
    let reader = place.remote().0.lease(Some(HOUR)).reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    secondary.sync(Target::Latest).unwrap();
    let view = secondary.partition("users").unwrap().at(Level::Eventual).unwrap();
    let of_view = place.names("table/");
    clear(&db);
    secondary.sync(Target::Latest).unwrap();
    for _ in 0..4 {
        flush_one(&db);
        primary.ship().unwrap();
        secondary.sync(Target::Latest).unwrap();
        clear(&db);
        primary.ship().unwrap();
        secondary.sync(Target::Latest).unwrap();
    }
    let newer = place.names("table/");
    for _ in 0..2 {
        place.age(&primary, &db);
        secondary.sync(Target::Latest).unwrap();
        reader.renew_lease().unwrap();
        collect(&place, &primary);
    }
    for table in newer {
        assert_eq!(place.has(&table), of_view.contains(&table), "{table}");
    }
    assert!(view.contains("flushed").unwrap());
}

/// The file that a put of `name` writes on HDFS, before it is renamed.
fn hidden(name: &str) -> String {
    let (dir, file) = name.rsplit_once('/').unwrap();
    format!("{dir}/.{file}.tmp.1")
}

/// On HDFS a put is a hidden file that is renamed, and a dead process leaves it.
#[test]
fn what_dead_puts_have_left_is_no_object_and_is_deleted() {
    let mut place = Place::new(84);
    let (dead, db) = place.primary();
    flush_one(&db);
    dead.ship().unwrap();
    let table = place.names("table/").pop().unwrap();
    let mut left = vec![hidden(&table)];
    for name in ["lease/0000000000000000000000000000002a", "boundary/00000000000000000001"] {
        left.push(hidden(name));
    }
    left.push(hidden("base/00000000000000000001"));
    left.push(hidden(&journal_name(dead.status().number)));
    for name in &left {
        place.objects.lock().insert(name.clone(), b"SILT".to_vec().into());
    }
    let (primary, db) = place.primary();
    let garbage = place.remote().0.status().unwrap().garbage;
    assert!(garbage.objects >= 3, "{garbage:?}");
    for _ in 0..3 {
        place.age(&primary, &db);
        collect(&place, &primary);
    }
    for name in left {
        assert!(!place.has(&name), "{name} stays");
    }
    assert!(place.remote().0.verify().unwrap().is_sound());
}
