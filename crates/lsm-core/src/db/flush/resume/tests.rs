//! The edit of a resume, planned over versions of drawings, and the files of one in doubt.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::compaction::drawing::{empty, seq, table};
use crate::db::job::JobTables;
use crate::db::unconfirmed::UnconfirmedFiles;
use crate::hooks::{JobValues, PartitionHooks};
use crate::memtable::SlabPool;
use crate::types::{ClearSeqs, DeletedRanges, MemtableId, PartitionId};
use crate::version::{PartitionVersion, VersionEdit, apply};

const NEW: FileNo = FileNo(50);

/// A database with one partition, number 0, and segments 3 and 4 of the log.
fn version() -> DbVersion {
    let before = empty();
    let number = before.edit_number + 1;
    let added = [3, 4].map(|file| Change::SegmentAdded { file: FileNo(file), epoch: Epoch(1) });
    apply(&before, &VersionEdit { number, changes: added.to_vec() }).unwrap()
}

/// The memtables of partition `id` in the table `drawing`.
fn rewritten(id: u32, drawing: &str) -> Rewritten {
    let of = version().partitions[&PartitionId(0)].clone();
    let of = PartitionVersion { id: PartitionId(id), ..(*of).clone() };
    let slabs = Arc::new(SlabPool::new(0));
    let partition =
        PartitionState::new(Arc::new(of), PartitionHooks::default(), &slabs, &Arc::default());
    let made = JobTables {
        tables: vec![table(drawing)],
        values: JobValues::default(),
        gaps: Vec::new(),
        miscounted: Vec::new(),
        clear_of: crate::types::Gaps::default(),
        erased: Default::default(),
        is_repaired: false,
        expired: 0,
    };
    let through = MemtableId(1);
    let last_seq = seq(1000);
    let hooks = partition.view().version.hooks.clone();
    let took = Duration::ZERO;
    let clear_seqs = ClearSeqs::default();
    let spans = DeletedRanges::default();
    (
        Arc::new(partition),
        FlushedTables { made, through, last_seq, clear_seqs, spans, took, hooks, _deciding: None },
    )
}

fn ids(of: &[&Rewritten]) -> Vec<u32> {
    of.iter().map(|(partition, _)| partition.id.0).collect()
}

fn plan<'a>(current: &DbVersion, rewritten: &'a [Rewritten]) -> NewLog<'a> {
    NewLog::plan(current, current.edit_number + 1, rewritten, (NEW, Epoch(2)), seq(2000)).unwrap()
}

#[test]
fn one_edit_takes_all_tables_in_and_replaces_the_whole_log() {
    let current = version();
    let all = [rewritten(0, "7:a-c")];
    let NewLog { number, changes, condemned, .. } = plan(&current, &all);
    assert_eq!(condemned, [FileNo(3), FileNo(4)]);
    let after = apply(&current, &VersionEdit { number, changes }).unwrap();
    let segments: Vec<_> = after.log_segments.iter().map(|(n, e)| (*n, *e)).collect();
    assert_eq!(segments, [(NEW, Epoch(2))]);
    let partition = &after.partitions[&PartitionId(0)];
    let files: Vec<_> = partition.tables().map(|(level, t)| (level, t.meta.file)).collect();
    assert_eq!(files, [(0, FileNo(7))]);
    assert_eq!((partition.flushed_through, after.last_seq), (seq(1000), seq(2000)));
}

#[test]
fn a_partition_that_was_dropped_meanwhile_is_in_no_edit_and_its_tables_go() {
    let current = version();
    let all = [rewritten(0, "7:a-c"), rewritten(9, "8:a-c")];
    let NewLog { changes, kept, dropped, .. } = plan(&current, &all);
    assert_eq!((ids(&kept), ids(&dropped)), (vec![0], vec![9]));
    let named: BTreeSet<_> = changes
        .iter()
        .filter_map(|change| match change {
            Change::TableAdded { meta, .. } => Some(meta.file.0),
            _ => None,
        })
        .collect();
    assert_eq!(named, BTreeSet::from([7]));
}

#[test]
fn files_in_doubt_gather_until_they_are_taken() {
    let doubt = UnconfirmedFiles::default();
    let discarded = Arc::new(AtomicUsize::new(0));
    doubt.note([table("7:a-c")].into_iter(), FileNo(50));
    drop(doubt.until_installed(vec![value(&discarded)]));
    let tables = [table("9:a-c"), table("10:d-e")];
    doubt.note(tables.into_iter(), FileNo(51));
    drop(doubt.until_installed(vec![value(&discarded), value(&discarded)]));
    // Their edit is durable.
    doubt.until_installed(vec![value(&discarded)]).keep();
    let DoubtfulFiles { tables, segments, values } = doubt.take();
    let files: Vec<_> = tables.iter().map(|meta| meta.file.0).collect();
    assert_eq!((files, segments), (vec![7, 9, 10], vec![FileNo(50), FileNo(51)]));
    assert!(doubt.take().tables.is_empty());
    drop(values);
    assert_eq!(discarded.load(Ordering::Relaxed), 3);
    // The manifest may still not take edits.
    drop(doubt.until_installed(vec![value(&discarded)]));
    drop(doubt);
    assert_eq!(discarded.load(Ordering::Relaxed), 3);
}

/// A value that counts its drop.
fn value(discarded: &Arc<AtomicUsize>) -> PendingHandle {
    let discarded = discarded.clone();
    PendingHandle::new(Vec::new(), move || {
        discarded.fetch_add(1, Ordering::Relaxed);
    })
}
