//! [`apply()`]: the pure function from a version and an edit to the next version.
//!
//! The running database, recovery, secondaries and tools use it, so all of them reach the same
//! state or refuse the same edit. It does no I/O. [`VersionBuilder`] applies many edits and
//! rebuilds the levels once at the end; recovery applies thousands of edits with it.
//!
//! Invariants:
//! 1. Every rule that an edit can break is checked here. A refused edit leaves no trace.
//! 2. A change costs its own size. An edit costs one pass over the levels that it touches.
//! 3. A table that moves between levels keeps its `Arc`.

mod log;
mod spans;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::change::Change;
use super::edit::VersionEdit;
use super::level::Level;
use super::table::{SstMeta, Table};
use spans::SpansDraft;

use super::{DbVersion, HookRecord, PartitionVersion};
use crate::limits::{LEVEL_COUNT, PARTITIONS_MAX, check_partition_name};
use crate::options::PartitionOptions;
use crate::types::{
    ClearSeqs, DbId, DeletedRanges, FileNo, Gap, Gaps, MemtableId, PartitionId, SeqNo,
};

/// The reason why an edit does not fit a version. The caller knows the file and the offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn refuse<T>(what: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(what.into()))
}

/// The version after `edit`.
///
/// # Errors
/// If the edit breaks a rule; `version` does not change.
pub fn apply(version: &DbVersion, edit: &VersionEdit) -> Result<DbVersion, Refused> {
    let mut builder = VersionBuilder::new(version.clone());
    builder.apply(edit)?;
    builder.finish()
}

/// The edit that makes this very version out of an empty one; its number is the version's.
pub fn snapshot_edit(version: &DbVersion) -> VersionEdit {
    let mut changes = vec![
        Change::EpochBegan { epoch: version.epoch, cut: version.log_cut },
        Change::NextFile(version.next_file),
        Change::LastSeq(version.last_seq),
    ];
    // After `EpochBegan`, which clears the place where the log was closed.
    changes.extend(version.log_closed.map(Change::LogClosed));
    // Before the tables: a number that names both a table and a segment is refused in either order.
    for (&file, &epoch) in &version.log_segments {
        changes.push(Change::SegmentAdded { file, epoch });
    }
    for (&file, &segment) in &version.retained.segments {
        changes.push(Change::SegmentRetained { file, segment });
    }
    for (&epoch, &end) in &version.retained.ends {
        changes.push(Change::RetainedEnd { epoch, end });
    }
    // After the segments: it names one of them.
    changes.extend(version.replay_from.map(Change::ReplayFrom));
    changes.extend(version.flush_beyond_sync.map(Change::FlushBeyondSync));
    for partition in version.partitions.values() {
        changes.push(Change::PartitionCreated {
            id: partition.id,
            name: partition.name.to_string(),
            options: (*partition.options).clone(),
            hooks: partition.hooks.to_vec(),
            created_at_edit: partition.created_at_edit,
        });
        changes.push(Change::FlushedThrough {
            partition: partition.id,
            seq: partition.flushed_through,
            // Ids of memtables are meaningless to another run of the program.
            memtables_through: MemtableId(0),
        });
        changes.extend(partition.tables().map(|(level, table)| Change::TableAdded {
            partition: partition.id,
            level: level as u8,
            meta: table.meta.clone(),
        }));
        changes.extend(
            partition
                .gaps
                .iter()
                .map(|gap| Change::GapAdded { partition: partition.id, gap: gap.clone() }),
        );
        changes.extend(
            partition.clear_seqs.all().iter().map(|clear_seq| Change::ClearSeqAdded {
                partition: partition.id,
                seq: *clear_seq,
            }),
        );
        changes.extend(
            partition
                .spans
                .list()
                .into_iter()
                .map(|span| Change::SpanAdded { partition: partition.id, span }),
        );
        changes.extend(partition.store_sections.iter().map(|(number, bytes)| {
            Change::StoreSection { partition: partition.id, number: *number, bytes: bytes.to_vec() }
        }));
    }
    // Last: a partition whose id is below the next one would be refused as reused.
    changes.push(Change::NextPartition(version.next_partition));
    VersionEdit { number: version.edit_number, changes }
}

/// Applies edits one after another.
#[derive(Debug)]
pub struct VersionBuilder {
    version: DbVersion,
    drafts: BTreeMap<PartitionId, Draft>,
}

impl VersionBuilder {
    /// Begins at `version`.
    pub fn new(version: DbVersion) -> VersionBuilder {
        VersionBuilder { version, drafts: BTreeMap::new() }
    }

    /// Begins with the snapshot of a generation.
    ///
    /// # Errors
    /// If the snapshot contradicts itself.
    pub fn from_snapshot(db_id: DbId, edit: &VersionEdit) -> Result<VersionBuilder, Refused> {
        let mut builder = VersionBuilder::new(DbVersion::empty(db_id));
        // First: a partition in the snapshot may not come from a later edit.
        builder.version.edit_number = edit.number;
        for change in &edit.changes {
            builder.change(change)?;
        }
        Ok(builder)
    }

    /// Number of the last edit.
    pub fn edit_number(&self) -> u64 {
        self.version.edit_number
    }

    /// Applies the next edit. After an error the builder must not be used.
    ///
    /// # Errors
    /// If the edit breaks a rule. [`VersionBuilder::finish`] checks the rules about the tables of a
    /// level.
    pub fn apply(&mut self, edit: &VersionEdit) -> Result<(), Refused> {
        let next = self.version.edit_number.checked_add(1);
        // A hole in the numbers is a lost edit, whatever the checksums say.
        if next != Some(edit.number) {
            let last = self.version.edit_number;
            return refuse(format!("edit {} does not follow edit {last}", edit.number));
        }
        self.version.edit_number = edit.number;
        edit.changes.iter().try_for_each(|change| self.change(change))
    }

    /// The version after all edits.
    ///
    /// # Errors
    /// If a table was added twice or removed without being there, or if two tables of a level
    /// overlap.
    pub fn finish(mut self) -> Result<DbVersion, Refused> {
        for (id, draft) in self.drafts {
            debug_assert_eq!(id, draft.partition.id, "a draft is of its partition");
            self.version.partitions.insert(Arc::new(draft.finish()?));
        }
        Ok(self.version)
    }

    fn change(&mut self, change: &Change) -> Result<(), Refused> {
        match change {
            Change::PartitionCreated { id, name, options, hooks, created_at_edit } => {
                self.create(*id, name, options, hooks, *created_at_edit)
            }
            Change::StoreSection { partition, number, bytes } => {
                let partition = &mut self.draft(*partition)?.partition;
                // A store applies sections in the order of their edits.
                if partition.store_sections.last().is_some_and(|(last, _)| last > number) {
                    return refuse("sections of a value store are out of order".to_owned());
                }
                partition.store_sections.push((*number, bytes.as_slice().into()));
                Ok(())
            }
            Change::PartitionOptionsChanged { id, options, hooks } => {
                let partition = &mut self.draft(*id)?.partition;
                // Fixed: a replay relies on the frames that a partition has or lacks.
                if partition.options.logged != options.logged {
                    return refuse(format!("partition {id} changes an option fixed at creation"));
                }
                partition.options = Arc::new(options.clone());
                partition.hooks = hooks.as_slice().into();
                Ok(())
            }
            Change::PartitionDropped { id } => self.drop_partition(*id),
            Change::TableAdded { partition, level, meta } => {
                self.used(meta.file);
                if self.version.log_segments.contains_key(&meta.file) {
                    return refuse(format!("file {} is a table and a log segment", meta.file));
                }
                self.draft(*partition)?.add(usize::from(*level), meta)
            }
            Change::TableRemoved { partition, level, file } => {
                self.draft(*partition)?.remove(usize::from(*level), *file)
            }
            Change::FlushedThrough { partition, seq, memtables_through: _ } => {
                self.flushed_through(*partition, *seq)
            }
            Change::GapAdded { partition, gap } => self.add_gap(*partition, gap),
            Change::ClearSeqAdded { partition, seq } => {
                self.known(*seq);
                self.draft(*partition)?.clear_seqs().insert(*seq);
                Ok(())
            }
            Change::ClearSeqRemoved { partition, seq } => self.remove_clear_seq(*partition, *seq),
            Change::SpanAdded { partition, span } => {
                self.known(span.seq);
                self.draft(*partition).map(|draft| draft.spans.add(span))
            }
            Change::SpanRemoved { partition, span } => {
                self.draft(*partition).map(|draft| draft.spans.remove(span))
            }
            Change::GapRemoved { partition, gap } => self.remove_gap(*partition, gap),
            // Listed by name, so that a new change does not compile until it is applied.
            Change::SegmentAdded { .. }
            | Change::SegmentRemoved { .. }
            | Change::SegmentRetained { .. }
            | Change::SegmentForgotten { .. }
            | Change::RetainedEnd { .. }
            | Change::EpochBegan { .. }
            | Change::LogClosed(_)
            | Change::ReplayFrom(_)
            | Change::FlushBeyondSync(_)
            | Change::NextFile(_)
            | Change::NextPartition(_)
            | Change::LastSeq(_)
            | Change::Superseded { .. } => self.log_change(change),
        }
    }

    fn flushed_through(&mut self, partition: PartitionId, seq: SeqNo) -> Result<(), Refused> {
        self.known(seq);
        let through = &mut self.draft(partition)?.partition.flushed_through;
        // No flush makes less durable: an older number would replay flushed entries.
        if seq < *through {
            return refuse(format!("partition {partition} is flushed back to {seq}"));
        }
        *through = seq;
        Ok(())
    }

    fn add_gap(&mut self, partition: PartitionId, gap: &Gap) -> Result<(), Refused> {
        if let Some(fault) = gap.fault() {
            return refuse(format!("a gap of partition {partition} is impossible: {fault}"));
        }
        self.draft(partition)?.partition.gaps.add(gap.clone());
        Ok(())
    }

    fn remove_gap(&mut self, partition: PartitionId, gap: &Gap) -> Result<(), Refused> {
        if !self.draft(partition)?.partition.gaps.remove(gap) {
            return refuse(format!("partition {partition} has no gap {gap} to remove"));
        }
        Ok(())
    }

    fn remove_clear_seq(&mut self, partition: PartitionId, seq: SeqNo) -> Result<(), Refused> {
        if !self.draft(partition)?.clear_seqs().remove(&seq) {
            return refuse(format!("partition {partition} has no clear sequence {seq} to remove"));
        }
        Ok(())
    }

    fn create(
        &mut self,
        id: PartitionId,
        name: &str,
        options: &PartitionOptions,
        hooks: &[HookRecord],
        created_at_edit: u64,
    ) -> Result<(), Refused> {
        check_partition_name(name).map_err(|e| Refused(e.to_string()))?;
        // Frames of the log name a partition by its id, so a reused id would receive entries of a
        // dropped partition.
        if id < self.version.next_partition {
            return refuse(format!("partition id {id} is used again"));
        }
        if created_at_edit > self.version.edit_number {
            return refuse(format!("partition {id} was created by a later edit"));
        }
        if self.version.partitions.count() >= PARTITIONS_MAX {
            return refuse(format!("more than {PARTITIONS_MAX} partitions"));
        }
        if self.version.partitions.named(name).is_some() {
            return refuse(format!("two partitions are named {name:?}"));
        }
        let Some(next) = id.0.checked_add(1) else {
            return refuse("partition ids are exhausted");
        };
        self.version.next_partition = PartitionId(next);
        let partition = Arc::new(PartitionVersion {
            id,
            name: name.into(),
            options: Arc::new(options.clone()),
            levels: Default::default(),
            flushed_through: SeqNo::ZERO,
            created_at_edit,
            hooks: hooks.into(),
            gaps: Gaps::default(),
            clear_seqs: ClearSeqs::default(),
            spans: DeletedRanges::default(),
            store_sections: Vec::new(),
        });
        self.version.partitions.insert(partition);
        Ok(())
    }

    fn drop_partition(&mut self, id: PartitionId) -> Result<(), Refused> {
        // Without this, `finish` would restore the partition.
        self.drafts.remove(&id);
        match self.version.partitions.remove(id) {
            Some(_) => Ok(()),
            None => refuse(format!("partition {id} is dropped but unknown")),
        }
    }

    fn draft(&mut self, id: PartitionId) -> Result<&mut Draft, Refused> {
        let Some(partition) = self.version.partitions.get(id) else {
            return refuse(format!("partition {id} is unknown"));
        };
        Ok(self.drafts.entry(id).or_insert_with(|| Draft::new(partition)))
    }

    fn used(&mut self, file: FileNo) {
        // Saturating, because the number comes from disk.
        self.version.next_file = self.version.next_file.max(FileNo(file.0.saturating_add(1)));
    }

    fn known(&mut self, seq: SeqNo) {
        self.version.last_seq = self.version.last_seq.max(seq);
    }
}

/// A partition with changes that its levels do not contain yet.
#[derive(Debug)]
struct Draft {
    partition: PartitionVersion,
    levels: [LevelDraft; LEVEL_COUNT],
    /// The clear sequences, once one of them has changed.
    clear_seqs: Option<BTreeSet<SeqNo>>,
    spans: SpansDraft,
    /// The files that some level has in `added`.
    added_files: HashSet<FileNo>,
}

#[derive(Debug, Default)]
struct LevelDraft {
    added: BTreeMap<FileNo, Arc<Table>>,
    removed: HashSet<FileNo>,
}

impl Draft {
    fn new(partition: &PartitionVersion) -> Draft {
        Draft {
            partition: partition.clone(),
            levels: Default::default(),
            clear_seqs: None,
            spans: SpansDraft::default(),
            added_files: HashSet::new(),
        }
    }

    fn clear_seqs(&mut self) -> &mut BTreeSet<SeqNo> {
        let partition = &self.partition;
        self.clear_seqs.get_or_insert_with(|| partition.clear_seqs.all().iter().copied().collect())
    }

    fn level(&mut self, level: usize) -> Result<&mut LevelDraft, Refused> {
        match self.levels.get_mut(level) {
            Some(draft) => Ok(draft),
            None => refuse(format!("there is no level {level}")),
        }
    }

    fn add(&mut self, level: usize, meta: &SstMeta) -> Result<(), Refused> {
        // Descriptions come from disk, and later code relies on ordered bounds.
        if let Some(fault) = meta.fault() {
            return refuse(format!("table {} is impossible: {fault}", meta.file));
        }
        self.level(level)?.added.insert(meta.file, Arc::new(Table::new(meta.clone())));
        // Over all levels of the partition: the same table on two levels would show its entries
        // twice.
        if !self.added_files.insert(meta.file) {
            return refuse(format!("table {} is added twice", meta.file));
        }
        Ok(())
    }

    fn remove(&mut self, level: usize, file: FileNo) -> Result<(), Refused> {
        let draft = self.level(level)?;
        // Over many edits a table may be added and removed before any level is rebuilt: it leaves
        // no trace.
        if draft.added.remove(&file).is_some() {
            self.added_files.remove(&file);
        } else if !draft.removed.insert(file) {
            return refuse(format!("table {file} is removed twice"));
        }
        Ok(())
    }

    /// Rebuilds the levels that changed. In two passes, because a table that moves is removed from
    /// one level and added to another: the second pass gives the new place the same table
    /// object, with its open file, which only the first pass knows.
    fn finish(mut self) -> Result<PartitionVersion, Refused> {
        let mut gone = HashMap::new();
        let mut kept: [Option<Vec<Arc<Table>>>; LEVEL_COUNT] = Default::default();
        for (number, draft) in self.levels.iter().enumerate() {
            let tables = self.partition.levels[number].tables();
            if !draft.removed.is_empty() || !draft.added.is_empty() {
                let (out, stay): (Vec<_>, Vec<_>) =
                    tables.iter().cloned().partition(|t| draft.removed.contains(&t.meta.file));
                // Counted: a removal that finds nothing means that the edit was made for another
                // version.
                if out.len() != draft.removed.len() {
                    return refuse(format!("a table of level {number} is removed but absent"));
                }
                gone.extend(out.into_iter().map(|table| (table.meta.file, table)));
                kept[number] = Some(stay);
            }
            let stay = kept[number].as_deref().unwrap_or(tables);
            // Removed tables are not checked: a table that moves is in both lists.
            if let Some(twice) = stay.iter().find(|t| self.added_files.contains(&t.meta.file)) {
                return refuse(format!("table {} is added twice", twice.meta.file));
            }
        }
        for (number, draft) in self.levels.into_iter().enumerate() {
            let Some(mut tables) = kept[number].take() else {
                continue;
            };
            tables.extend(draft.added.into_values().map(
                |table| match gone.get(&table.meta.file) {
                    // Only under the same description: the open reader was placed by the old one.
                    Some(moved) if *moved == table => moved.clone(),
                    _ => table,
                },
            ));
            self.partition.levels[number] = if number == 0 {
                Level::newest_first(tables)
            } else {
                Level::sorted(tables).map_err(|(left, right)| {
                    let files = format!("tables {} and {}", left.meta.file, right.meta.file);
                    Refused(format!("{files} overlap on level {number}"))
                })?
            };
        }
        if let Some(clear_seqs) = self.clear_seqs {
            self.partition.clear_seqs = ClearSeqs::of(clear_seqs.into_iter().collect());
        }
        if !self.spans.is_unchanged() {
            let id = self.partition.id;
            let Some(spans) = self.spans.finish(&self.partition.spans) else {
                return refuse(format!("partition {id} has no such deleted range to remove"));
            };
            self.partition.spans = spans;
        }
        Ok(self.partition)
    }
}
