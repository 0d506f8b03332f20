//! Edits, and partitions that come and go, over a manifest in memory.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::db::testing::{catalog, version_of};
use crate::hooks::PartitionHooks;
use crate::types::{DbId, EntryKind, Operation, OperationChecksum, SectionBytes, SeqNo};

fn partition(catalog: &Catalog, id: u32, name: &str) -> Arc<PartitionState> {
    Arc::new(PartitionState::new(
        Arc::new(version_of(id, name)),
        PartitionHooks::default(),
        &Arc::new(crate::memtable::SlabPool::new(0)),
        catalog.work(),
    ))
}

#[test]
fn every_installed_edit_is_the_durable_one() {
    let catalog = catalog();
    let before = catalog.durable_edit();
    catalog.install(vec![Change::LastSeq(SeqNo::new(5).unwrap())]).unwrap();
    assert_eq!(catalog.durable_edit(), before + 1);
    let mut editing = catalog.edit().unwrap();
    editing.install(vec![Change::LastSeq(SeqNo::new(6).unwrap())]).unwrap();
    drop(editing);
    assert_eq!(catalog.durable_edit(), before + 2);
    assert_eq!(catalog.current().edit_number, before + 2);
}

#[test]
fn a_refused_edit_is_not_noted() {
    let catalog = catalog();
    let before = catalog.durable_edit();
    let no_one = Change::PartitionDropped { id: PartitionId(9) };
    assert!(catalog.install(vec![no_one]).is_err());
    assert_eq!(catalog.durable_edit(), before);
}

/// Installs an edit when it is dropped.
struct EditsAtItsEnd<'a>(&'a Catalog);

impl Drop for EditsAtItsEnd<'_> {
    fn drop(&mut self) {
        self.0.install(vec![Change::LastSeq(SeqNo::new(5).unwrap())]).unwrap();
    }
}

#[test]
fn a_panic_refuses_further_edits_only_if_it_interrupted_one() {
    let catalog = catalog();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _edits = EditsAtItsEnd(&catalog);
        panic!("of the application");
    }));
    assert!(panicked.is_err());
    catalog.install(vec![Change::LastSeq(SeqNo::new(6).unwrap())]).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _editing = catalog.edit().unwrap();
        panic!("in the middle of it");
    }));
    assert!(panicked.is_err());
    assert_eq!(catalog.install(Vec::new()).unwrap_err().kind(), ErrorKind::Internal);
}

#[test]
fn nothing_is_installed_once_it_is_shut() {
    let catalog = catalog();
    catalog.shut();
    assert_eq!(catalog.install(Vec::new()).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(catalog.current().db_id, DbId(7));
}

#[test]
fn partitions_are_found_by_id_and_by_name_until_they_are_removed() {
    let catalog = catalog();
    let users = partition(&catalog, 2, "users");
    let posts = partition(&catalog, 1, "posts");
    catalog.add(users.clone());
    catalog.add(posts.clone());
    assert_eq!(catalog.names(), ["posts", "users"]);
    let ids: Vec<_> = catalog.partitions().iter().map(|partition| partition.id.0).collect();
    assert_eq!(ids, [1, 2]);
    assert!(Arc::ptr_eq(&catalog.named("users").unwrap(), &users));
    catalog.remove(&users);
    assert!(catalog.named("users").is_none() && catalog.with_id(users.id).is_none());
    assert!(catalog.with_id(posts.id).is_some());
}

/// Seals a memtable of the partition whose only entry begins at `lsn` of the log.
fn seal(partition: &PartitionState, lsn: u64) -> MemtableId {
    let view = partition.view();
    let sums = OperationChecksum::new(EntryKind::Value, b"k", b"v");
    let operation = Operation { kind: EntryKind::Value, key: 0..1, value: 1..2 };
    let section = SectionBytes::Lent(b"kv");
    let seq = SeqNo::new(lsn + 1).unwrap();
    view.active.writer().insert(seq, lsn, sums, &section, &operation).unwrap();
    partition.seal().unwrap();
    partition.view().sealed[0].id
}

#[test]
fn the_log_is_needed_from_the_oldest_memtable_on_that_is_not_flushed() {
    let catalog = catalog();
    let users = partition(&catalog, 1, "users");
    let posts = partition(&catalog, 2, "posts");
    catalog.add(users.clone());
    catalog.add(posts.clone());
    let applied = Lsn(900);
    assert_eq!(catalog.log_low_water(applied, None), applied);
    let first = seal(&users, 300);
    let second = seal(&users, 500);
    seal(&posts, 400);
    assert_eq!(catalog.log_low_water(applied, None), Lsn(300));
    assert_eq!(catalog.log_low_water(applied, Some((users.id, first))), Lsn(400));
    assert_eq!(catalog.log_low_water(applied, Some((users.id, second))), Lsn(400));
    assert_eq!(catalog.log_low_water(applied, Some((posts.id, second))), Lsn(300));
}
