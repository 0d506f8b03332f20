//! Secondaries of the primary's own folder, and their promotion.

use std::sync::Arc;

use remote::{Primary, Remote};
use siltstone::fs::{Fs, MemFs};
use siltstone::secondary::{Level, Secondary};
use siltstone::{BackgroundMode, Builder, Db, Durability, ErrorKind, Readable, Result};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, remote_of};

fn remote(objects: &Objects, disk: &MemFs, rng: &mut Rng) -> Remote {
    remote_of(&SimStore::new(objects.clone(), rng.fork()), disk, rng)
}

fn opened(primary: &Primary) -> Db {
    primary.builder().background(BackgroundMode::Stepped).open().unwrap()
}

/// A database that is opened without its bucket.
fn builder(disk: &MemFs) -> Builder {
    Db::builder("/db").fs(Arc::new(disk.clone()))
}

fn put(db: &Db, key: &str) -> Result<()> {
    db.partition("users")?.put_with(key, "x", Durability::Sync).map(drop)
}

fn has(db: &Db, key: &str) -> bool {
    db.partition("users").unwrap().contains(key).unwrap()
}

fn secondary(fs: Arc<dyn Fs>) -> Result<Secondary> {
    Db::secondary_builder("/db").fs(fs).open()
}

fn reads(secondary: &Secondary, key: &str) -> Result<bool> {
    secondary.partition("users")?.at(Level::Strong)?.contains(key)
}

#[test]
fn a_folder_that_is_shipped_opens_for_writing_only_through_its_bucket() {
    let mut rng = Rng::new(114);
    let objects = Objects::default();
    let disk = MemFs::new();
    let primary = remote(&objects, &disk, &mut rng).primary("/db").unwrap();
    let db = opened(&primary);
    put(&db, "one").unwrap();
    db.close().unwrap();
    drop(primary);
    let before = disk.list_names("/db".as_ref(), "").unwrap();
    let refused = builder(&disk).open().map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("Remote::primary"), "{refused}");
    assert_eq!(disk.list_names("/db".as_ref(), "").unwrap(), before);
    assert!(has(&builder(&disk).read_only(true).open().unwrap(), "one"));
    // Nor one that a takeover has not made whole.
    let half = MemFs::new();
    half.create_dir("/db".as_ref()).unwrap();
    half.put_if_absent("/db/remote-restoring".as_ref(), b"").unwrap();
    let refused = builder(&half).open().map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let again = remote(&objects, &disk, &mut rng).primary("/db").unwrap();
    assert!(has(&opened(&again), "one"));
}

#[test]
fn a_secondary_of_the_own_folder_reads_and_is_not_promoted_past_the_bucket() {
    let mut rng = Rng::new(111);
    let objects = Objects::default();
    let disk = MemFs::new();
    let primary = remote(&objects, &disk, &mut rng).primary("/db").unwrap();
    let db = opened(&primary);
    put(&db, "one").unwrap();
    let follower = secondary(Arc::new(disk.clone())).unwrap();
    assert!(reads(&follower, "one").unwrap());
    let refused = Db::promote(&follower).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("Remote::take_over"), "{refused}");
    assert!(!db.is_fenced());
    put(&db, "two").unwrap();
    assert!(reads(&follower, "two").unwrap());
    // Also after the end of the primary; the way that the message names works.
    db.close().unwrap();
    drop(primary);
    assert_eq!(Db::promote(&follower).map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
    let again = remote(&objects, &disk, &mut rng).primary("/db").unwrap();
    assert!(has(&opened(&again), "two"));
}

#[test]
fn a_promotion_through_the_file_system_of_the_primary_is_shipped() {
    let mut rng = Rng::new(112);
    let objects = Objects::default();
    let primary = remote(&objects, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let old = opened(&primary);
    put(&old, "one").unwrap();
    let follower = secondary(primary.fs()).unwrap();
    assert!(reads(&follower, "one").unwrap());
    let new = Db::promotion(&follower).background(BackgroundMode::Stepped).open().unwrap();
    assert_eq!(put(&old, "late").unwrap_err().kind(), ErrorKind::Fenced);
    put(&new, "two").unwrap();
    let other = remote(&objects, &MemFs::new(), &mut rng).take_over("/db").unwrap();
    let other = opened(&other);
    assert!(has(&other, "one") && has(&other, "two") && !has(&other, "late"));
    assert_eq!(put(&new, "later").unwrap_err().kind(), ErrorKind::Fenced);
}

#[test]
fn a_secondary_after_a_takeover_reads_all_or_fails() {
    let mut rng = Rng::new(113);
    let objects = Objects::default();
    let first = remote(&objects, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let db = opened(&first);
    put(&db, "flushed").unwrap();
    db.flush().unwrap();
    put(&db, "logged").unwrap();
    let disk = MemFs::new();
    let second = remote(&objects, &disk, &mut rng).take_over("/db").unwrap();
    let db = opened(&second);
    put(&db, "new").unwrap();
    assert!(second.status().remote_files > 0);
    let through = secondary(second.fs()).unwrap();
    assert!(reads(&through, "flushed").unwrap() && reads(&through, "new").unwrap());
    // A table that is not on the disk yet is an error for the others, and no missing key.
    let early = secondary(Arc::new(disk.clone())).and_then(|it| reads(&it, "flushed"));
    early.unwrap_err();
    second.restore().unwrap();
    let follower = secondary(Arc::new(disk)).unwrap();
    assert!(["flushed", "logged", "new"].iter().all(|key| reads(&follower, key).unwrap()));
}
