//! Tables and values that are held, and their removal after their release.

use super::*;
use crate::clock::SystemClock;
use crate::compaction::drawing::{draw, table};
use crate::db::background::Worker;
use crate::db::values::Goal;
use crate::db::{BackgroundMode, Db};
use crate::error::{Error, ErrorKind};
use crate::fs::{AppendMode, FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind};
use crate::hooks::KeySpan;
use crate::hooks::{
    PartitionHooks, PendingHandle, StoreEdit, StoreFigures, StoredValue, ValueStore,
};
use crate::partition::ReadView;
use crate::stats::ValueStoreStats;

/// Obsolete files of a folder in memory.
fn obsolete() -> (Arc<FaultFs>, ObsoleteFiles) {
    let fs = Arc::new(FaultFs::over_mem(MemFs::new()));
    fs.create_dir("/db".as_ref()).unwrap();
    let leases = LeaseTable::new(Arc::new(SystemClock::new()), u64::MAX);
    (fs.clone(), ObsoleteFiles::new(fs, "/db".into(), leases, Arc::default()))
}

/// A table with a file.
fn table_in(fs: &FaultFs) -> Arc<Table> {
    drawn_in(fs, "7:a-b")
}

fn drawn_in(fs: &FaultFs, drawn: &str) -> Arc<Table> {
    let table = Arc::new(Table::new(table(drawn)));
    let name = table.meta.file_name();
    fs.open_append(&name.path("/db".as_ref()), AppendMode::IfAbsent).unwrap();
    table
}

fn files(fs: &FaultFs) -> usize {
    fs.list("/db".as_ref(), "").unwrap().len()
}

#[test]
fn a_table_goes_when_no_one_holds_it_any_more() {
    let (fs, obsolete) = obsolete();
    let table = table_in(&fs);
    obsolete.add(1, [&table].into_iter());
    obsolete.remove().expect("no other thread removes").unwrap();
    assert_eq!((files(&fs), obsolete.pinned_bytes()), (1, table.meta.bytes));
    drop(table);
    obsolete.remove().expect("no other thread removes").unwrap();
    assert!(files(&fs) == 0 && obsolete.is_empty());
}

/// The leases are looked at for the other table.
#[test]
fn a_table_that_is_held_outlives_another_one_of_its_edit() {
    let (fs, obsolete) = obsolete();
    let held = table_in(&fs);
    let free = drawn_in(&fs, "8:a-b");
    obsolete.add(1, [&held, &free].into_iter());
    drop(free);
    obsolete.finish_removing().unwrap();
    assert_eq!((files(&fs), obsolete.pinned_bytes()), (1, held.meta.bytes));
    assert!(fs.open_read(&held.meta.file_name().path("/db".as_ref())).is_ok());
    drop(held);
    obsolete.finish_removing().unwrap();
    assert!(files(&fs) == 0 && obsolete.is_empty());
}

#[test]
fn a_file_that_cannot_be_removed_is_tried_again() {
    let (fs, obsolete) = obsolete();
    let meta = table_in(&fs).meta.clone();
    obsolete.add_unnamed(&[meta]);
    let at = FaultAt::Nth { kind: OpKind::Delete, suffix: ".sst".into(), nth: 0 };
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    assert!(obsolete.finish_removing().is_err() && !obsolete.is_empty());
    obsolete.finish_removing().unwrap();
    assert!(files(&fs) == 0 && obsolete.is_empty());
}

/// A secondary may take its first lease after the leases were listed. A table that was dropped or
/// released after the listing used to be deleted although this secondary reads it.
#[test]
fn files_go_only_if_leases_were_looked_at_after_their_edit() {
    let (fs, obsolete) = obsolete();
    let held = table_in(&fs);
    obsolete.add(3, [&held].into_iter());
    let known = obsolete.holds().unwrap();
    drop(held);
    assert!(obsolete.take_free(known).is_empty(), "no lease was looked at");
    let known = obsolete.holds().unwrap();
    let late = Arc::new(Table::new(table("8:a-b")));
    obsolete.add(4, [&late].into_iter());
    drop(late);
    let taken = obsolete.take_free(known);
    assert_eq!(taken.iter().map(|file| file.edit).collect::<Vec<_>>(), [3]);
    let known = obsolete.holds().unwrap();
    assert_eq!(obsolete.take_free(known).len(), 1);
}

/// A file of an earlier epoch used to count as empty, in the statistics and for the limit of leases.
#[test]
fn a_leased_file_of_an_earlier_epoch_counts_with_its_length() {
    let (_, obsolete) = obsolete();
    let name = FileName::new(FileKind::Sst, crate::types::FileNo(3), crate::types::Epoch(1));
    obsolete.add_files(4, [(name, 70)]);
    assert_eq!(obsolete.leased_file_bytes(), 70);
    assert_eq!((obsolete.leased_bytes_after(3), obsolete.leased_bytes_after(4)), (70, 0));
}

/// Collects its calls; refuses edits while it is set to.
#[derive(Default)]
struct Store {
    calls: Mutex<Vec<String>>,
    refuses: Mutex<bool>,
}

impl ValueStore for Store {
    fn put(&self, _: &[u8], _: &[u8]) -> Result<PendingHandle> {
        unreachable!("it wants nothing")
    }

    fn value(&self, _: &[u8]) -> Result<Box<dyn StoredValue + '_>> {
        unreachable!("there are no handles")
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn edit(&self, _: StoreEdit<'_>) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn apply(&self, number: u64, _: &[u8]) -> Result<u64> {
        if *self.refuses.lock() {
            return Err(Error::new(ErrorKind::Io, "not now"));
        }
        self.calls.lock().push(format!("apply {number}"));
        Ok(100 * number)
    }

    fn snapshot(&self) -> StoreSnapshot {
        StoreSnapshot { section: b"state".to_vec(), chunks: Vec::new() }
    }

    fn reclaim(&self, number: u64) -> Result<()> {
        self.calls.lock().push(format!("reclaim {number}"));
        Ok(())
    }

    fn stats(&self, _: StoreFigures) -> ValueStoreStats {
        ValueStoreStats::default()
    }
}

/// A partition whose values in `store` edits 4 and 5 have dropped, and a reader from before.
fn with_dropped_values(
    obsolete: &ObsoleteFiles,
    store: &Arc<Store>,
) -> (PartitionState, Arc<ReadView>) {
    let store = AttachedStore::alone(store.clone());
    let hooks = PartitionHooks { store: Some(store.clone()), ..PartitionHooks::default() };
    let partition = PartitionState::alone(draw(""), hooks);
    let reader = partition.pin();
    partition.install(Arc::new(draw("L6: 1:a-b")), None);
    for (edit, section) in [(4, b"four"), (5, b"five")] {
        obsolete.add_values(edit, &partition, &store, section, partition.past_versions());
    }
    (partition, reader)
}

#[test]
fn stores_hear_of_edits_in_order_and_reclaim_what_no_one_reads() {
    let (_, obsolete) = obsolete();
    let store = Arc::new(Store::default());
    let (partition, reader) = with_dropped_values(&obsolete, &store);
    let attached = partition.store().unwrap();
    *store.refuses.lock() = true;
    obsolete.notify_stores();
    assert!(obsolete.store_state(partition.id, attached).is_none(), "edit 4 is not applied yet");
    *store.refuses.lock() = false;
    obsolete.notify_stores();
    obsolete.finish_removing().unwrap();
    assert_eq!(*store.calls.lock(), ["apply 4", "apply 5"], "a reader may read both");
    assert_eq!(obsolete.store_state(partition.id, attached).unwrap().unwrap().section, b"state");
    drop(reader);
    obsolete.finish_removing().unwrap();
    assert_eq!(store.calls.lock()[2..], ["reclaim 4", "reclaim 5"]);
    assert!(obsolete.is_empty());
}

#[test]
fn values_count_as_leased_when_no_one_here_reads_them() {
    let (_, obsolete) = obsolete();
    let (_partition, reader) = with_dropped_values(&obsolete, &Arc::default());
    obsolete.notify_stores();
    assert_eq!(obsolete.leased_value_bytes(0), 0, "a reader of this process holds them");
    drop(reader);
    assert_eq!(obsolete.leased_value_bytes(0), 900);
    assert_eq!((obsolete.leased_bytes_after(4), obsolete.leased_bytes_after(5)), (500, 0));
}

/// A compaction of a caller may empty the store while the background has a goal for it. The goal used to
/// stay, and `wait_idle` waited for ever.
#[test]
fn a_goal_of_a_store_that_was_emptied_is_given_up() {
    let db = Db::builder("/db").fs(Arc::new(MemFs::new()));
    let db = db.background(BackgroundMode::Stepped).open().unwrap();
    let inner = db.inner();
    let partition = inner.catalog.named("default").unwrap();
    let store = AttachedStore::alone(Arc::new(Store::default()));
    partition.attach(PartitionHooks { store: Some(store.clone()), ..PartitionHooks::default() });
    assert!(!store.holds_values() && !inner.scheduler.has_work());
    let span = KeySpan { smallest: b"a".to_vec(), largest: b"b".to_vec() };
    let goal = Goal { span, through: inner.commit.visible_seq(), moves: None };
    inner.scheduler.reclaimer().goals().choose(partition.id, None).unwrap().set(Some(goal));
    assert!(inner.scheduler.has_work());
    db.wait_idle().unwrap();
    assert!(!inner.scheduler.has_work());
}
