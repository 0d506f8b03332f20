//! [`remains`]: what manifests say that recovery refuses; [`partition_record`]: what each table says of its partition,
//! for a folder without a manifest.
//!
//! Called by the salvage of a database. Every frame that verifies counts, also after damage. The edits between two
//! frames may be missing, so the result is no state that the database was in: a table may be listed that a lost edit
//! removed, and the reverse. The caller says so in its report, and looks for tables in the folder as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::change::{Change, Tag};
use super::edit::VersionEdit;
use super::manifest::{Frame, FrameSearch, HEADER_BYTES, read_header};
use super::recover::{age_of, decode, read_all};
use super::table::{SstMeta, Table};
use super::{DbVersion, HookRecord, Level, PartitionVersion};
use crate::codec::Reader;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names::{FileKind, FileName};
use crate::limits::LEVEL_COUNT;
use crate::options::PartitionOptions;
use crate::types::{
    ClearSeqs, DbId, DeletedRange, DeletedRanges, FileNo, Gaps, PartitionId, SeqNo,
};

/// The property of a table that names its partition.
pub const PARTITION_PROPERTY: &str = "siltstone.partition";

/// The record of a partition in its tables: the body of the change that creates it.
pub fn partition_record(partition: &PartitionVersion) -> Vec<u8> {
    let mut record = Vec::new();
    let PartitionVersion { id, name, options, hooks, created_at_edit, .. } = partition;
    Change::PartitionCreated {
        id: *id,
        name: name.to_string(),
        options: (**options).clone(),
        hooks: hooks.to_vec(),
        created_at_edit: *created_at_edit,
    }
    .put(&mut record);
    record
}

/// A partition as far as it is known.
#[derive(Clone, Debug)]
pub struct KnownPartition {
    /// Its id.
    pub id: PartitionId,
    /// Its name.
    pub name: String,
    /// Its stored options.
    pub options: PartitionOptions,
    /// Its hooks.
    pub hooks: Vec<HookRecord>,
    /// Its tables.
    pub tables: BTreeMap<FileNo, SstMeta>,
    /// The numbers at which it was cleared.
    pub clear_seqs: BTreeSet<SeqNo>,
    /// Its deleted ranges.
    pub spans: Vec<DeletedRange>,
    /// Its gaps.
    pub gaps: Gaps,
}

impl KnownPartition {
    /// A partition that is known by number and name alone.
    pub fn unknown(id: PartitionId, name: String) -> KnownPartition {
        KnownPartition::new(id, name, PartitionOptions::default(), Vec::new())
    }

    fn new(
        id: PartitionId,
        name: String,
        options: PartitionOptions,
        hooks: Vec<HookRecord>,
    ) -> KnownPartition {
        KnownPartition {
            id,
            name,
            options,
            hooks,
            tables: BTreeMap::new(),
            clear_seqs: BTreeSet::new(),
            spans: Vec::new(),
            gaps: Gaps::default(),
        }
    }

    /// The partition in a table's [`partition_record`]; `None` if that does not decode.
    pub fn of_record(record: &[u8]) -> Option<KnownPartition> {
        let change = Change::read(Tag::PartitionCreated, &mut Reader::new(record)).ok()?;
        let Change::PartitionCreated { id, name, options, hooks, .. } = change else { return None };
        Some(KnownPartition::new(id, name, options, hooks))
    }

    /// The state of the partition, with all tables in level 0.
    pub fn into_version(self) -> PartitionVersion {
        let tables = self.tables.into_values().map(|meta| Arc::new(Table::new(meta))).collect();
        let mut levels: [Level; LEVEL_COUNT] = Default::default();
        // The levels are unknown or lost. Sequence numbers order the entries instead, in a merge of all tables.
        levels[0] = Level::newest_first(tables);
        PartitionVersion {
            id: self.id,
            name: self.name.into(),
            options: Arc::new(self.options),
            levels,
            // Everything in the log is read again: an entry twice is one entry.
            flushed_through: SeqNo::ZERO,
            created_at_edit: 0,
            hooks: self.hooks.into(),
            gaps: self.gaps,
            clear_seqs: ClearSeqs::of(self.clear_seqs.into_iter().collect()),
            spans: DeletedRanges::of(&self.spans),
            store_sections: Vec::new(),
        }
    }
}

/// The content of all frames of all manifests that verify.
#[derive(Debug, Default)]
pub struct Remains {
    /// The database, if a header verified.
    pub db_id: Option<DbId>,
    /// The partitions.
    pub partitions: BTreeMap<PartitionId, KnownPartition>,
    /// Tables that an edit removed.
    pub removed: BTreeSet<FileNo>,
    /// Partitions that an edit dropped.
    pub dropped: BTreeSet<PartitionId>,
    /// The largest sequence number in an edit.
    pub last_seq: SeqNo,
    /// The number of the last edit.
    pub edit_number: u64,
    /// The places that do not verify.
    pub damage: Vec<Error>,
}

/// Reads what verifies of the manifests among `names`.
///
/// # Errors
/// Those of reading; `Unsupported` if newer code wrote them.
pub fn remains(fs: &dyn Fs, dir: &Path, names: &[FileName]) -> Result<Remains> {
    let mut generations: Vec<_> =
        names.iter().copied().filter(|name| name.kind == FileKind::Manifest).collect();
    generations.sort_unstable_by_key(|name| age_of(*name));
    let mut remains = Remains::default();
    for name in generations {
        match remains.take_in(fs, dir, name) {
            Err(error) if error.is_corruption() => remains.damage.push(error),
            taken => taken?,
        }
    }
    Ok(remains)
}

impl Remains {
    fn take_in(&mut self, fs: &dyn Fs, dir: &Path, name: FileName) -> Result<()> {
        let path = name.path(dir);
        let bytes = read_all(&*fs.open_read(&path)?)?;
        let seal = read_header(&bytes, Some(name), &path)?.seal;
        if self.db_id.is_some_and(|id| id != seal.db_id) {
            return Err(Error::corruption(&path, 40, "the manifest is of another database"));
        }
        self.db_id = Some(seal.db_id);
        let mut at = HEADER_BYTES;
        while at < bytes.len() {
            let FrameSearch::Found(found, frame) = seal.search(&bytes, at) else {
                let what = "the rest of the manifest does not verify";
                self.damage.push(Error::corruption(&path, at as u64, what));
                break;
            };
            if found != at {
                let what = "an edit of the manifest does not verify";
                self.damage.push(Error::corruption(&path, at as u64, what));
            }
            let Frame { end, .. } = frame;
            match decode(&frame, 0, &path) {
                Ok(edit) => self.apply(&edit, found == HEADER_BYTES),
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(error) => self.damage.push(error),
            }
            at = end;
        }
        Ok(())
    }

    fn apply(&mut self, edit: &VersionEdit, is_snapshot: bool) {
        self.edit_number = self.edit_number.max(edit.number);
        if is_snapshot {
            // It lists all that is live: what it does not list was removed before.
            for (id, partition) in std::mem::take(&mut self.partitions) {
                self.removed.extend(partition.tables.keys());
                self.dropped.insert(id);
            }
        }
        // A table that moves to another level is removed and added in one edit.
        for change in &edit.changes {
            if let Change::TableRemoved { partition, file, .. } = change {
                self.removed.insert(*file);
                if let Some(partition) = self.partitions.get_mut(partition) {
                    partition.tables.remove(file);
                }
            }
        }
        edit.changes.iter().for_each(|change| self.change(change));
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::PartitionCreated { id, name, options, hooks, .. } => {
                self.dropped.remove(id);
                let partition =
                    KnownPartition::new(*id, name.clone(), options.clone(), hooks.clone());
                self.partitions.insert(*id, partition);
            }
            Change::PartitionOptionsChanged { id, options, hooks } => {
                if let Some(partition) = self.partitions.get_mut(id) {
                    partition.options = options.clone();
                    partition.hooks.clone_from(hooks);
                }
            }
            Change::PartitionDropped { id } => {
                self.dropped.insert(*id);
                if let Some(partition) = self.partitions.remove(id) {
                    self.removed.extend(partition.tables.keys());
                }
            }
            Change::TableAdded { partition, meta, .. } => {
                if let Some(partition) = self.partitions.get_mut(partition) {
                    self.removed.remove(&meta.file);
                    partition.tables.insert(meta.file, meta.clone());
                }
            }
            Change::ClearSeqAdded { partition, seq } => {
                if let Some(partition) = self.partitions.get_mut(partition) {
                    partition.clear_seqs.insert(*seq);
                }
            }
            Change::SpanAdded { partition, span } => {
                if let Some(partition) = self.partitions.get_mut(partition) {
                    partition.spans.push(span.clone());
                }
            }
            Change::GapAdded { partition, gap } if gap.fault().is_none() => {
                if let Some(partition) = self.partitions.get_mut(partition) {
                    partition.gaps.add(gap.clone());
                }
            }
            Change::GapRemoved { partition, gap } => {
                if let Some(partition) = self.partitions.get_mut(partition) {
                    partition.gaps.remove(gap);
                }
            }
            Change::FlushedThrough { seq, .. } | Change::LastSeq(seq) => {
                self.last_seq = self.last_seq.max(*seq);
            }
            // A clear or a range stays, although nothing was below it: a table may come back.
            _ => {}
        }
    }

    /// The database of these partitions, each with all of its tables in level 0.
    pub fn into_version(self, db_id: DbId) -> DbVersion {
        let mut version = DbVersion::empty(db_id);
        version.last_seq = self.last_seq;
        version.edit_number = self.edit_number;
        for (id, partition) in self.partitions {
            version.next_partition = version.next_partition.max(PartitionId(id.0 + 1));
            version.partitions.insert(Arc::new(partition.into_version()));
        }
        version
    }
}
