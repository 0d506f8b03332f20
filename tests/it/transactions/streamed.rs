//! Streamed values in transactions: read by them, committed with the other writes, or discarded. `model.rs` has them in
//! its histories.

use std::io::Write;

use lsm_core::fs::{CrashOutcome, MemFs};
use siltstone::large_values::PendingBlob;
use siltstone::operators::AppendOperator;
use siltstone::{Db, Durability, LargeValueOptions, Partition, PartitionOptions};

use super::*;

const LEN: usize = 100_000;

fn scene(fs: &MemFs) -> (Db, Partition) {
    let db = stepped(fs);
    let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    let options = options.merge_operator(Arc::new(AppendOperator::default()));
    let films = db.partition_with("films", options).unwrap();
    (db, films)
}

fn film(films: &Partition, key: &str, byte: u8) -> PendingBlob {
    let mut writer = films.put_stream(key, None).unwrap();
    writer.write_all(&vec![byte; LEN]).unwrap();
    writer.finish().unwrap()
}

fn pending_bytes(films: &Partition) -> u64 {
    films.space().unwrap().pending_bytes
}

fn is_film(found: Option<Slice>, byte: u8) -> bool {
    found.is_some_and(|value| value.len() == LEN && value.iter().all(|it| *it == byte))
}

#[test]
fn a_streamed_value_is_read_by_its_transaction_and_committed_with_it() {
    let fs = MemFs::new();
    let (db, films) = scene(&fs);
    let titles = db.partition("titles").unwrap();
    let mut transaction = db.transaction();
    transaction.put_blob(film(&films, "1", 1));
    transaction.put(&titles, "1", "A film");
    assert!(is_film(transaction.get(&films, "1").unwrap(), 1));
    assert!(is_film(transaction.multi_get(&films, &["0", "1"]).unwrap().remove(1), 1));
    let [entry] = &transaction.iter(&films).collect::<Result<Vec<_>>>().unwrap()[..] else {
        panic!("one entry")
    };
    assert!(is_film(Some(entry.1.clone()), 1));
    assert!(films.get("1").unwrap().is_none(), "no one else sees it");
    let mut range = transaction.iter(&films);
    transaction.commit(Durability::Sync).unwrap();
    assert!(is_film(range.next().map(|entry| entry.unwrap().1), 1), "it outlives the commit");
    assert!(is_film(films.get("1").unwrap(), 1));
    drop(range);
    // A power cut keeps both or none, here both.
    let mut rng = Rng::new(1);
    let left = fs.crash_clone(CrashOutcome::Nothing, &mut || rng.next_u64());
    drop((films, titles, db));
    let (db, films) = scene(&left);
    assert!(is_film(films.get("1").unwrap(), 1));
    assert_eq!(db.partition("titles").unwrap().get("1").unwrap().as_deref(), Some(&b"A film"[..]));
}

#[test]
fn a_streamed_value_that_is_not_committed_is_discarded() {
    let fs = MemFs::new();
    let (db, films) = scene(&fs);
    let before = pending_bytes(&films);
    let mut dropped = db.transaction();
    dropped.put_blob(film(&films, "1", 1));
    assert!(pending_bytes(&films) >= LEN as u64);
    drop(dropped);
    assert_eq!(pending_bytes(&films), before);
    // Refused.
    let mut refused = db.transaction();
    assert!(refused.get(&films, "other").unwrap().is_none());
    refused.put_blob(film(&films, "1", 1));
    films.put("other", "first").unwrap();
    assert!(is_conflict(&refused.commit(Durability::Os)));
    assert_eq!(pending_bytes(&films), before);
    assert!(films.get("1").unwrap().is_none());
    // Overwritten, deleted and taken back.
    let mut transaction = db.transaction();
    transaction.put_blob(film(&films, "1", 1));
    transaction.set_savepoint();
    transaction.put_blob(film(&films, "1", 2));
    assert!(is_film(transaction.get(&films, "1").unwrap(), 2));
    transaction.clear(&films);
    assert!(transaction.get(&films, "1").unwrap().is_none());
    transaction.rollback_to_savepoint().unwrap();
    assert!(is_film(transaction.get(&films, "1").unwrap(), 1));
    transaction.delete(&films, "1");
    assert_eq!(pending_bytes(&films), before);
    transaction.put_blob(film(&films, "2", 3));
    transaction.merge(&films, "2", "the end");
    let merged = transaction.get(&films, "2").unwrap().unwrap();
    assert!(merged.len() > LEN && merged.ends_with(b"the end"));
    transaction.commit(Durability::Os).unwrap();
    assert_eq!(films.get("2").unwrap(), Some(merged));
    db.flush().unwrap();
    assert_eq!(pending_bytes(&films), before);
}

#[test]
fn a_streamed_value_of_another_database_is_refused() {
    let (db, _) = scene(&MemFs::new());
    let (other, films) = scene(&MemFs::new());
    let before = pending_bytes(&films);
    let mut transaction = db.transaction();
    transaction.put_blob(film(&films, "1", 1));
    let refused = transaction.commit(Durability::Os).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert_eq!(pending_bytes(&films), before);
    other.close().unwrap();
}

/// A refused commit discards the value, and a range of the transaction may outlive it.
#[test]
fn a_streamed_value_of_a_refused_commit_is_gone_and_not_damaged() {
    let fs = MemFs::new();
    let (db, films) = scene(&fs);
    let mut transaction = db.transaction();
    transaction.get(&films, "0").unwrap();
    transaction.put_blob(film(&films, "1", 1));
    let mut range = transaction.iter(&films);
    films.put("0", "another write").unwrap();
    assert_eq!(transaction.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Conflict);
    films.reclaim().unwrap();
    let error = range.next().expect("it has the own write").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileGone, "{error}");
    assert!(films.get("1").unwrap().is_none());
}
