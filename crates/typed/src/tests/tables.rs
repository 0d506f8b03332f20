//! Tables: reads and writes by type, types that differ, handles that are outdated, secondaries.

use siltstone::{Db, Durability, PartitionOptions};

use super::{BY_CITY, BY_EMAIL, USERS, User, fresh, open, user};
use crate::catalog::{CATALOG, TableEntry};
use crate::{Codec, Result, TableDefinition, TypedError};

fn keys(rows: Vec<Result<((String, i32), String)>>) -> Vec<i32> {
    rows.into_iter().map(|row| row.unwrap().0.1).collect()
}

#[test]
fn rows_are_read_by_key_range_and_prefix_from_both_ends() {
    let db = fresh();
    let events = TableDefinition::<(String, i32), String>::new("events").open(&db).unwrap();
    for (name, at) in [("a", -5), ("a", 3), ("a\0", 1), ("b", i32::MIN), ("b", 9)] {
        events.put((name, at), &format!("{name} at {at}")).unwrap();
    }
    assert_eq!(events.get(("a", 3)).unwrap().as_deref(), Some("a at 3"));
    assert_eq!(events.get(("a", 4)).unwrap(), None);
    assert!(events.contains(("b", 9)).unwrap());
    let several = events.multi_get(&[("x", 1), ("b", 9)]).unwrap();
    assert_eq!(several, [None, Some("b at 9".to_owned())]);
    assert_eq!(keys(events.range(("a", 0)..("b", 0)).collect()), [3, 1, i32::MIN]);
    assert_eq!(keys(events.range(..=("a", 3)).rev().collect()), [3, -5]);
    assert_eq!(keys(events.prefix(("a",)).collect()), [-5, 3]);
    assert_eq!(keys(events.prefix(("b",)).rev().collect()), [9, i32::MIN]);
    assert_eq!(events.first().unwrap().unwrap().0, ("a".to_owned(), -5));
    assert_eq!(events.last().unwrap().unwrap().0, ("b".to_owned(), 9));
    let before = db.snapshot();
    events.delete(("b", 9)).unwrap();
    assert_eq!((events.iter().count(), events.at(&before).unwrap().iter().count()), (4, 5));
}

#[test]
fn other_types_codecs_and_indexes_are_errors_and_not_garbage() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Other(u8);
    enum Other2 {}
    impl Codec for Other2 {
        const NAME: &'static str = "other";
        fn encode<V: serde::Serialize>(_: &V) -> Result<Vec<u8>, String> {
            Err("it encodes nothing".to_owned())
        }
        fn decode<V: serde::de::DeserializeOwned>(_: &[u8]) -> Result<V, String> {
            Err("it decodes nothing".to_owned())
        }
    }
    let db = fresh();
    USERS.index(BY_CITY).open(&db).unwrap().put(1, &user("Bern", None)).unwrap();
    let refused = [
        TableDefinition::<u64, User>::new("users").open(&db).map(drop),
        TableDefinition::<u32, Other>::new("users").open(&db).map(drop),
        TableDefinition::<u32, User, Other2>::with_codec("users").open(&db).map(drop),
        USERS.value_name("User 2").index(BY_CITY).open(&db).map(drop),
        USERS.open(&db).map(drop),
        USERS
            .index(crate::IndexDefinition::<u8, u32, User>::new("by_city", |_, _| vec![]))
            .open(&db)
            .map(drop),
    ];
    for (answer, what) in refused.into_iter().zip([
        "keys are stored as u32, and the definition says u64",
        "values are stored as User, and the definition says Other",
        "codec are stored as postcard",
        "the definition says User 2",
        "the definition lacks the index by_city",
        "index by_city has other keys",
    ]) {
        let error = answer.unwrap_err();
        assert!(
            matches!(error, TypedError::OtherTypes { .. }) && error.to_string().contains(what),
            "{error}"
        );
    }
    assert!(!db.has_partition("users.by_email"));
    db.partition("raw").unwrap().put("a", "b").unwrap();
    let untyped = TableDefinition::<u64, User>::new("raw").open(&db).map(drop).unwrap_err();
    assert!(untyped.to_string().contains("untyped program"), "{untyped}");
    let unlogged = USERS2.index(BY_CITY).open_with(&db, PartitionOptions::new().logged(false));
    assert!(unlogged.map(drop).unwrap_err().to_string().contains("without a log"));
}

const USERS2: TableDefinition<u32, User> = TableDefinition::new("users2");

#[test]
fn values_of_another_form_are_errors_with_the_table() {
    let db = fresh();
    let numbers = TableDefinition::<u8, u32>::new("numbers").open(&db).unwrap();
    numbers.put(1, &70_000).unwrap();
    for bytes in [&[0x80][..], &[1, 1][..]] {
        numbers.source().put([1], bytes).unwrap();
        let error = numbers.get(1).unwrap_err();
        assert!(
            matches!(error, TypedError::Codec { .. }) && error.to_string().contains("numbers"),
            "{error}"
        );
    }
    numbers.source().put([1, 2], "key").unwrap();
    assert!(matches!(numbers.last().unwrap_err(), TypedError::Codec { .. }));
}

#[test]
fn the_catalog_has_a_text_of_this_form() {
    let db = fresh();
    USERS.index(BY_EMAIL).index(BY_CITY).open(&db).unwrap();
    let text = db.open_partition(CATALOG).unwrap().get("users").unwrap().unwrap();
    let golden = "siltstone-typed 1\nkey\tu32\nvalue\tUser\tpostcard\n\
                  index\tby_city\tmany\tstring\tready\nindex\tby_email\tunique\tu8\tready\n";
    assert_eq!(std::str::from_utf8(&text).unwrap(), golden);
    let entry = TableEntry::from_text("users", &text).unwrap();
    assert_eq!(entry.to_text(), golden);
    for wrong in
        ["siltstone-typed 2\nkey\tu32\nvalue\tUser\tpostcard\n", "", &golden[..golden.len() - 3]]
    {
        assert!(TableEntry::from_text("users", wrong.as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn a_unique_index_refuses_a_second_row_and_lets_the_first_change() {
    let db = fresh();
    let users = USERS.index(BY_EMAIL).open(&db).unwrap();
    users.put(1, &user("Bern", Some(7))).unwrap();
    users.put(1, &user("Basel", Some(7))).unwrap();
    assert!(
        matches!(users.put(2, &user("Bern", Some(7))).unwrap_err(), TypedError::Taken { index } if index == "by_email")
    );
    assert_eq!(users.iter().count(), 1);
    users.put(1, &user("Basel", None)).unwrap();
    users.put(2, &user("Bern", Some(7))).unwrap();
    let by_email = users.by(&BY_EMAIL).unwrap();
    assert_eq!(by_email.now().unwrap().get(7).next().unwrap().unwrap(), (2, user("Bern", Some(7))));
    assert!(users.verify().unwrap().iter().all(super::super::IndexReport::is_consistent));
    users.by(&BY_CITY).map(drop).unwrap_err();
}

#[test]
fn a_build_that_failed_leaves_nothing_and_can_be_repeated() {
    let db = fresh();
    let users = USERS.open(&db).unwrap();
    for id in 0..10 {
        users.put(id, &user("Bern", Some(id as u8))).unwrap();
    }
    // Two rows with one key, in the third transaction of the build.
    users.put(9, &user("Bern", Some(8))).unwrap();
    let built = USERS.index(BY_EMAIL).open(&db);
    assert!(matches!(built.map(drop).unwrap_err(), TypedError::Taken { .. }));
    assert!(db.open_partition("users.by_email").unwrap().first().unwrap().is_some());
    assert!(matches!(users.delete(0).unwrap_err(), TypedError::Stale { .. }));
    let users = USERS.open(&db).unwrap();
    users.delete(0).unwrap();
    users.put(9, &user("Bern", None)).unwrap();
    let users = USERS.index(BY_EMAIL).open(&db).unwrap();
    let reports = users.verify().unwrap();
    assert_eq!((reports[0].entries, reports[0].is_consistent()), (8, true), "{reports:?}");
}

#[test]
fn a_handle_from_before_an_index_writes_nothing() {
    let db = fresh();
    let old = USERS.open(&db).unwrap();
    for id in 0..25 {
        old.put(id, &user("Bern", None)).unwrap();
    }
    let mut batch = db.batch();
    old.batch(&mut batch).unwrap().put(9_000, &user("Bern", None)).unwrap();
    let mut transaction = db.transaction();
    old.put_in(&mut transaction, 9_001, &user("Bern", None)).unwrap();
    // More rows than one transaction of the build takes.
    let users = USERS.index(BY_CITY).open(&db).unwrap();
    batch.commit(Durability::Os).unwrap_err();
    transaction.commit(Durability::Os).unwrap_err();
    for error in [
        old.put(1, &user("Basel", None)).map(drop).unwrap_err(),
        old.delete(1).map(drop).unwrap_err(),
        old.clear().map(drop).unwrap_err(),
        old.put_in(&mut db.transaction(), 1, &user("Basel", None)).unwrap_err(),
    ] {
        assert!(matches!(error, TypedError::Stale { .. }), "{error}");
    }
    assert!(users.batch(&mut db.batch()).is_err());
    assert_eq!(users.by(&BY_CITY).unwrap().now().unwrap().get("Bern").count(), 25);
    assert!(users.verify().unwrap()[0].is_consistent());
    USERS.drop_index(&db, "by_city").unwrap();
    assert!(matches!(users.put(1, &user("Basel", None)).unwrap_err(), TypedError::Stale { .. }));
    USERS.open(&db).unwrap().put(1, &user("Basel", None)).unwrap();
    USERS.drop_table(&db).unwrap();
    assert_eq!(db.partition_names(), [siltstone_default(&db), vec![CATALOG.to_owned()]].concat());
    assert!(USERS.index(BY_CITY).open(&db).unwrap().first().unwrap().is_none());
}

/// The partitions of a new database.
fn siltstone_default(db: &Db) -> Vec<String> {
    db.partition_names().into_iter().filter(|name| name == "default").collect()
}

#[test]
fn verification_counts_what_an_index_lacks_and_has_too_much() {
    let db = fresh();
    let users = USERS.index(BY_CITY).open(&db).unwrap();
    users.put(1, &user("Bern", None)).unwrap();
    users.put(2, &user("Basel", None)).unwrap();
    let index = db.open_partition("users.by_city").unwrap();
    let (entry, _) = index.first().unwrap().unwrap();
    index.delete(&entry).unwrap();
    index.put(b"Zug\0\0\0\0\x09", "").unwrap();
    index.put(b"Zug\0\0\0\0\x0a", "").unwrap();
    let report = &users.verify().unwrap()[0];
    assert_eq!(
        (report.entries, report.missing, report.surplus, report.is_consistent()),
        (3, 1, 2, false)
    );
    let dangling =
        users.by(&BY_CITY).unwrap().now().unwrap().get("Zug").next().unwrap().unwrap_err();
    assert!(dangling.to_string().contains("users.by_city"), "{dangling}");
    let TypedError::Inconsistent { index, key } = dangling else { panic!("{dangling}") };
    assert_eq!((index.as_str(), &key[..]), ("users.by_city", &b"Zug\0\0\0\0\x09"[..]));
    let partition = db.open_partition("users.by_city").unwrap();
    partition.put(b"Zug\0", "").unwrap();
    let short = users.by(&BY_CITY).unwrap().now().unwrap().get("Zug").next().unwrap().unwrap_err();
    assert!(
        matches!(&short, TypedError::Codec { table, .. } if table == "users.by_city"),
        "{short}"
    );
}

#[test]
fn a_secondary_reads_tables_and_indexes_in_one_cut() {
    let fs = siltstone::fs::MemFs::new();
    let db = open(fs.clone());
    let users = USERS.index(BY_CITY).open(&db).unwrap();
    users.put(1, &user("Bern", None)).unwrap();
    let secondary = Db::secondary_builder("/db").fs(std::sync::Arc::new(fs)).open().unwrap();
    let followed = USERS.index(BY_CITY).follow(&secondary).unwrap();
    users.put(1, &user("Basel", None)).unwrap();
    let before = secondary.cut();
    secondary.sync(siltstone::secondary::Target::Latest).unwrap();
    let now = secondary.cut();
    let by_city = followed.by(&BY_CITY).unwrap();
    for (cut, in_bern, in_basel) in [(&before, 1, 0), (&now, 0, 1)] {
        let rows = by_city.at(cut).unwrap();
        assert_eq!((rows.get("Bern").count(), rows.get("Basel").count()), (in_bern, in_basel));
    }
    assert_eq!(followed.at(&now).unwrap().get(1).unwrap(), Some(user("Basel", None)));
    assert!(USERS.follow(&secondary).is_err());
    assert!(TableDefinition::<u32, u32>::new("none").follow(&secondary).is_err());
}
