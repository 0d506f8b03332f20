//! Partitions of indexes: none is taken from another program or table, and none counts as built that is not.

use std::sync::{Arc, Mutex};

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, FsOp, OpKind};
use siltstone::fs::{CrashOutcome, MemFs};
use siltstone::secondary::Target;
use siltstone::{Db, PartitionOptions};
use testkit::Rng;

use super::{BY_CITY, BY_EMAIL, USERS, User, fresh, open, user};
use crate::catalog::CATALOG;
use crate::{IndexDefinition, IndexReport, Result, TableDefinition, TypedError};

/// Requires that `answer` is the error of other types and contains `what`.
#[track_caller]
fn refuses<T>(answer: Result<T>, what: &str) {
    let error = answer.map(drop).unwrap_err();
    let is_other = matches!(error, TypedError::OtherTypes { .. });
    assert!(is_other && error.to_string().contains(what), "{error}");
}

#[test]
fn a_partition_of_another_program_or_table_becomes_no_index() {
    let db = fresh();
    db.partition("users.by_city").unwrap().put("raw", "entry").unwrap();
    let definition = USERS.index(BY_EMAIL).index(BY_CITY);
    refuses(definition.open(&db), "\"users.by_city\" of the index \"by_city\" has entries");
    assert_eq!(db.partition_names(), ["default", "users.by_city"]);
    assert!(db.open_partition("users.by_city").unwrap().contains("raw").unwrap());
    // Empty, but a table.
    db.drop_partition("users.by_city").unwrap();
    TableDefinition::<u8, u8>::new("users.by_city").open(&db).unwrap();
    refuses(USERS.index(BY_CITY).open(&db), "is the table \"users.by_city\"");
    assert!(!db.has_partition("users"));
    // Likewise if the table exists, and a table with the name of an index.
    USERS.index(BY_EMAIL).open(&db).unwrap();
    refuses(USERS.index(BY_EMAIL).index(BY_CITY).open(&db), "is the table \"users.by_city\"");
    let table = TableDefinition::<u8, u8>::new("users.by_email");
    refuses(table.open(&db), "is the index \"by_email\" of the table \"users\"");
    // The catalog itself.
    let typed: IndexDefinition<u8, u8, u8> = IndexDefinition::new("typed", |_, _| vec![]);
    for db in [&db, &fresh()] {
        refuses(TableDefinition::new(CATALOG).index(typed).open(db), "untyped program");
        refuses(TableDefinition::new("siltstone").index(typed).open(db), "untyped program");
    }
    assert!(USERS.index(BY_EMAIL).open(&db).is_ok());
}

#[test]
fn a_drop_of_no_index_or_no_table_drops_no_partition() {
    let db = fresh();
    USERS.index(BY_CITY).open(&db).unwrap();
    for name in ["users.log", "raw"] {
        db.partition(name).unwrap().put("raw", "entry").unwrap();
    }
    for catalog_is_missing in [USERS.drop_index(&fresh(), "by_city"), USERS.drop_table(&fresh())] {
        refuses(catalog_is_missing, "it was not created");
    }
    refuses(USERS.drop_index(&db, "log"), "it has no index \"log\"");
    let raw = TableDefinition::<u32, User>::new("raw");
    refuses(raw.drop_table(&db), "it was not created");
    refuses(raw.drop_index(&db, "log"), "it was not created");
    for name in ["users.log", "raw"] {
        assert!(db.open_partition(name).unwrap().contains("raw").unwrap());
    }
    USERS.drop_index(&db, "by_city").unwrap();
    refuses(USERS.drop_index(&db, "by_city"), "it has no index \"by_city\"");
    USERS.drop_table(&db).unwrap();
    assert_eq!(db.partition_names(), ["default", "raw", CATALOG, "users.log"]);
}

#[test]
fn nothing_is_made_for_an_index_without_a_log() {
    let db = fresh();
    let unlogged = PartitionOptions::new().logged(false);
    let definition = USERS.index(BY_CITY);
    refuses(definition.open_with(&db, unlogged.clone()), "without a log");
    assert_eq!(db.partition_names(), ["default"]);
    // A partition that is there, empty, and would lose its entries in a crash.
    db.partition_with("users.by_city", unlogged).unwrap();
    refuses(definition.open(&db), "\"users.by_city\" has none");
    assert_eq!(db.partition_names(), ["default", "users.by_city"]);
}

fn both() -> TableDefinition<u32, User> {
    USERS.index(BY_CITY).index(BY_EMAIL)
}

/// A table with 10 rows and two indexes.
fn ten_rows(db: &Db) {
    let users = both().open(db).unwrap();
    for id in 0..10 {
        users.put(id, &user("Bern", Some(id as u8))).unwrap();
    }
    db.wait_durable(db.visible_seq()).unwrap();
}

/// Runs `calls` on a database of [`ten_rows`], and `check` on what a power cut in the middle could leave.
fn cut(calls: fn(&Db) -> Result<()>, check: fn(&Db)) {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let db = open(fs.clone());
    ten_rows(&db);
    let images = Arc::new(Mutex::new(Vec::new()));
    let taken = images.clone();
    let random = Mutex::new(Rng::from_env_or(20_270_101));
    fs.set_observer(Arc::new(move |op: &FsOp| {
        if op.mutates() {
            let mut rng = random.lock().unwrap();
            for outcome in CrashOutcome::ALL {
                taken.lock().unwrap().push(mem.crash_clone(outcome, &mut || rng.next_u64()));
            }
        }
    }));
    calls(&db).unwrap();
    fs.clear_observer();
    drop(db);
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 5);
    for image in images {
        let db = open(image);
        check(&db);
        db.close().unwrap();
    }
}

#[test]
fn a_drop_that_a_power_cut_ended_is_ended_by_the_next() {
    cut(
        |db| USERS.drop_index(db, "by_city"),
        |db| {
            if let Err(error) = USERS.drop_index(db, "by_city") {
                assert!(error.to_string().contains("no index"), "{error}");
            }
            assert!(!db.has_partition("users.by_city"));
            assert_eq!(USERS.index(BY_EMAIL).open(db).unwrap().iter().count(), 10);
        },
    );
    cut(|db| USERS.drop_index(db, "by_city"), |db| assert_ten_rows(&both().open(db).unwrap()));
    cut(
        |db| USERS.drop_table(db),
        |db| {
            if let Err(error) = USERS.drop_table(db) {
                assert!(error.to_string().contains("not created"), "{error}");
            }
            assert_eq!(db.partition_names(), ["default", CATALOG]);
        },
    );
}

#[track_caller]
fn assert_ten_rows(users: &crate::TypedTable<u32, User>) {
    assert_eq!(users.by(&BY_CITY).unwrap().now().unwrap().get("Bern").count(), 10);
    assert!(users.verify().unwrap().iter().all(IndexReport::is_consistent));
}

#[test]
fn an_index_without_its_partition_is_built_again() {
    let db = fresh();
    ten_rows(&db);
    db.drop_partition("users.by_city").unwrap();
    assert_ten_rows(&both().open(&db).unwrap());
    // An open without it, and a drop, succeed as well.
    db.drop_partition("users.by_city").unwrap();
    USERS.index(BY_EMAIL).open(&db).unwrap().put(1, &user("Basel", None)).unwrap();
    both().open(&db).unwrap();
    db.drop_partition("users.by_city").unwrap();
    USERS.drop_index(&db, "by_city").unwrap();
    // Without the table no index has the rows of the next one.
    db.drop_partition("users").unwrap();
    let users = USERS.index(BY_EMAIL).open(&db).unwrap();
    assert_eq!(users.verify().unwrap()[0].entries, 0);
    db.drop_partition("users.by_email").unwrap();
    USERS.drop_table(&db).unwrap();
    cut(
        |db| {
            db.drop_partition("users.by_city")?;
            both().open(db).map(drop)
        },
        |db| assert_ten_rows(&both().open(db).unwrap()),
    );
}

#[test]
fn a_secondary_reads_no_index_that_is_not_built() {
    let mem = MemFs::new();
    let db = open(mem.clone());
    let users = USERS.index(BY_CITY).open(&db).unwrap();
    for id in 0..10 {
        users.put(id, &user("Bern", Some(id.min(8) as u8))).unwrap();
    }
    let secondary = Db::secondary_builder("/db").fs(Arc::new(mem)).open().unwrap();
    refuses(both().follow(&secondary), "the index \"by_email\" is not built");
    // Two rows with one key end the build in the middle.
    assert!(matches!(both().open(&db).unwrap_err(), TypedError::Taken { .. }));
    refuses(both().follow(&secondary), "the index \"by_email\" is not built");
    let followed = USERS.index(BY_CITY).follow(&secondary).unwrap();
    let cut = secondary.cut();
    assert_eq!(followed.by(&BY_CITY).unwrap().at(&cut).unwrap().get("Bern").count(), 10);
    let users = USERS.index(BY_CITY).open(&db).unwrap();
    users.delete(9).unwrap();
    both().open(&db).unwrap();
    both().follow(&secondary).unwrap();
}

#[test]
fn no_reader_sees_a_part_of_an_index_that_is_dropped_or_built_again() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = open(fs.clone());
    let before = db.snapshot();
    ten_rows(&db);
    let users = both().open(&db).unwrap();
    let by_city = users.by(&BY_CITY).unwrap();
    refuses(by_city.at(&before), "the index \"by_city\" is not built");
    assert_eq!(by_city.now().unwrap().get("Bern").count(), 10);
    let secondary = Db::secondary_builder("/db").fs(Arc::new(fs.clone())).open().unwrap();
    let followed = both().follow(&secondary).unwrap();
    let followed = followed.by(&BY_CITY).unwrap();
    // The drop ends after its first commit, which clears the index.
    let rule = FaultRule::sticky(
        FaultAt::Nth { kind: OpKind::Append, suffix: "manifest".to_owned(), nth: 0 },
        FaultAction::Eio,
    );
    fs.add_rule(rule);
    assert!(USERS.drop_index(&db, "by_city").is_err());
    fs.heal();
    refuses(by_city.now(), "was dropped");
    refuses(by_city.at(&db.transaction()), "was dropped");
    secondary.sync(Target::Latest).unwrap();
    refuses(followed.at(&secondary.cut()), "was dropped");
    // The same partition is an index again, and has all rows.
    assert_ten_rows(&both().open(&db).unwrap());
    assert_eq!(by_city.now().unwrap().get("Bern").count(), 10);
    secondary.sync(Target::Latest).unwrap();
    assert_eq!(followed.at(&secondary.cut()).unwrap().get("Bern").count(), 10);
    // Another one is.
    USERS.drop_index(&db, "by_city").unwrap();
    assert_ten_rows(&both().open(&db).unwrap());
    assert!(by_city.now().unwrap().get("Bern").next().unwrap().is_err());
    secondary.sync(Target::Latest).unwrap();
    assert!(followed.at(&secondary.cut()).is_err());
}
