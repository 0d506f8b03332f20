//! Entries as they are stored: a read-only walk for sister crates, exports and tools.
//!
//! Readers see the newest version of a key; here all versions are seen, with tombstones, handles,
//! poisons and the entries that compaction filters added, and with the place of each. Keys are
//! stored keys: in a partition with [`Rules::key_form`](crate::hooks::Rules::key_form) some or
//! all end in a zero byte more. Nothing is decoded, judged or changed.
//!
//! ```
//! use lsm_core::{Db, raw};
//!
//! # fn main() -> lsm_core::Result<()> {
//! # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
//! let db = Db::builder("/db").fs(fs).open()?;
//! let users = db.partition("users")?;
//! users.put("alice", "admin")?;
//! db.flush()?;
//! users.delete("alice")?;
//!
//! let versions = raw::versions(&users, b"alice")?;
//! assert_eq!(versions.len(), 2);
//! assert_eq!((versions[0].kind, versions[0].at.file), (raw::EntryKind::Tombstone, None));
//! for table in raw::Walk::open(&users)?.tables() {
//!     let mut entries = table.walk(raw::RawMode::default())?;
//!     while let Some(entry) = entries.next()? {
//!         println!("level {}: {:?} {:?}", entry.at.level, entry.key, entry.kind);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Invariants:
//! 1. A walk sees its partition at one moment, and no file of it goes before the walk does. A
//!    table of it holds its own file alone.
//! 2. What is not shown is an error or in [`TableWalk::damage`].

mod describe;
mod reading;
mod versions;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use describe::{Description, FileFormat, describe, describe_path};
pub use reading::{Found, PinnedView, ReadAt, TablePlace, Witness, read};
pub use versions::{RawVersion, VersionExpiry, versions};

pub use crate::hooks::{Origin, OwnedEntry};
pub use crate::sstable::{
    BlockCheck, EntryAt, Hidden, OpenTable, RawDamage, RawMode, SstProperties, TableBlock,
};
pub use crate::types::EntryKind;
pub use crate::version::SstMeta;

use crate::clock::Clock;
use crate::error::{Damage, Result};
use crate::hooks::PartitionHooks;
use crate::iter::InternalIter;
use crate::memtable::MemtableIter;
use crate::partition::ReadView;
use crate::read::{OpenPartition, lost};
use crate::sstable::{RawIter, SstReader};
use crate::types::{DbId, Gap, Gaps, KeyRef, PartitionId, SeqNo};
use crate::version::Table;

/// A thing with entries to walk: a partition of an open database.
pub trait Walkable {
    /// Its present state.
    ///
    /// # Errors
    /// If it is closed or dropped.
    fn pin_raw(&self) -> Result<Pin>;
}

/// A partition at one moment.
#[derive(Clone)]
pub struct Pin {
    /// Its memtables and tables.
    pub(crate) view: Arc<ReadView>,
    /// Opens its tables, and names it.
    pub(crate) open: Arc<dyn OpenPartition>,
    /// Its hooks whose code is present, and the rules of all of them.
    pub(crate) hooks: Arc<PartitionHooks>,
    /// The clock of the database.
    pub(crate) clock: Arc<dyn Clock>,
    /// The time since 1970 by which entries expire.
    pub(crate) unix_time: Duration,
}

/// An entry where it lies. It is lent by the walk and gone when that moves on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawEntry<'a> {
    /// The stored key.
    pub key: &'a [u8],
    /// The sequence number that counts.
    pub seq: SeqNo,
    /// The sequence number in the file: another one in a file that was ingested.
    pub stored_seq: SeqNo,
    /// Its kind.
    pub kind: EntryKind,
    /// Its value, payload or handle.
    pub value: &'a [u8],
    /// `true` if a compaction filter added it.
    pub hidden: bool,
    /// Its place.
    pub at: Origin,
}

impl fmt::Debug for RawEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.escape_ascii();
        let value = self.value.escape_ascii();
        let hidden = if self.hidden { " hidden" } else { "" };
        write!(f, "\"{key}\"{:?}/{:?}{hidden} = \"{value}\" {:?}", self.seq, self.kind, self.at)
    }
}

/// All places of a partition in which entries lie, pinned.
#[derive(Clone)]
pub struct Walk {
    pin: Pin,
}

impl Walk {
    /// The partition as it is now.
    ///
    /// # Errors
    /// If it is closed or dropped.
    pub fn open(partition: &impl Walkable) -> Result<Walk> {
        Ok(Walk { pin: partition.pin_raw()? })
    }

    /// Name of the partition.
    pub fn partition(&self) -> &str {
        self.pin.open.partition()
    }

    /// The partition's number, which no other has before or after it.
    pub fn partition_id(&self) -> PartitionId {
        self.pin.view.version.id
    }

    /// The database.
    pub fn db_id(&self) -> DbId {
        self.pin.open.tables().db_id
    }

    /// The partition's hooks whose code is present, and the rules of all of them.
    pub fn hooks(&self) -> &Arc<PartitionHooks> {
        &self.pin.hooks
    }

    /// Returns the stretches of keys that are damaged beyond repair.
    pub fn gaps(&self) -> &Gaps {
        &self.pin.view.version.gaps
    }

    /// Returns the sequence number at which the partition was cleared last, as far as anything may lie
    /// below it: readers that stand on it do not see what has a smaller number.
    pub fn cleared_at(&self) -> Option<SeqNo> {
        Some(self.pin.view.newest_clear()).filter(|clear_seq| *clear_seq > SeqNo::ZERO)
    }

    /// Returns the same for the last deletion of a range with the stored key `key`.
    pub fn range_deleted_at(&self, key: &[u8]) -> Option<SeqNo> {
        Some(self.pin.view.span_at(key, SeqNo::MAX)).filter(|seq| *seq > SeqNo::ZERO)
    }

    /// Returns the damage of a gap.
    pub fn lost(&self, gap: &Gap) -> Option<Damage> {
        let error = lost(gap, self.pin.open.tables()).in_partition(self.pin.open.partition());
        error.damage().cloned()
    }

    /// The clock of the database.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.pin.clock
    }

    /// Its memtables, newest first. The first one still takes writes.
    pub fn memtables(&self) -> impl Iterator<Item = MemtableWalk> {
        self.pin.view.memtables().map(|memtable| MemtableWalk {
            iter: memtable.iter(),
            bytes: memtable.bytes(),
            entries: memtable.entry_count(),
            begun: false,
        })
    }

    /// Its tables: level 0 newest first, then each deeper level in key order.
    pub fn tables(&self) -> impl Iterator<Item = RawTable> {
        self.pin.view.version.tables().map(|(level, table)| self.table(level, table))
    }

    fn table(&self, level: usize, table: &Arc<Table>) -> RawTable {
        // Without the view: it would hold every file of the partition as long as this one table.
        RawTable { level, table: table.clone(), open: self.pin.open.clone() }
    }
}

impl fmt::Debug for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").field("partition", &self.partition()).finish_non_exhaustive()
    }
}

/// The entries of a memtable, in internal order: keys ascending, versions of one newest first.
pub struct MemtableWalk {
    iter: MemtableIter,
    bytes: u64,
    entries: u64,
    begun: bool,
}

impl MemtableWalk {
    /// Memory that it took when the walk was opened, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Entries that it had when the walk was opened. An active one may show more.
    pub fn entry_count(&self) -> u64 {
        self.entries
    }

    /// The next entry; `None` after the last.
    #[expect(clippy::should_implement_trait, reason = "it lends what it returns")]
    pub fn next(&mut self) -> Result<Option<RawEntry<'_>>> {
        if !self.begun {
            self.begun = true;
            self.iter.seek(None)?;
        // After the last entry a further call is no step: it returns `None` again.
        } else if self.iter.valid() {
            self.iter.next()?;
        }
        if !self.iter.valid() {
            return Ok(None);
        }
        Ok(Some(entry_of(self.iter.key(), self.iter.value(), None, false, Origin::MEMTABLE)))
    }
}

fn entry_of<'a>(
    key: KeyRef<'a>,
    value: &'a [u8],
    global: Option<SeqNo>,
    hidden: bool,
    at: Origin,
) -> RawEntry<'a> {
    let stored_seq = key.trailer.seq();
    RawEntry {
        key: key.user,
        seq: global.unwrap_or(stored_seq),
        stored_seq,
        // An entry of an unknown kind does not decode.
        kind: key.trailer.kind().unwrap_or(EntryKind::Poison),
        value,
        hidden,
        at,
    }
}

/// A table of a walk. It may outlive the walk, and then holds no other file of it.
#[derive(Clone)]
pub struct RawTable {
    level: usize,
    table: Arc<Table>,
    open: Arc<dyn OpenPartition>,
}

impl RawTable {
    /// Name of its partition.
    pub fn partition(&self) -> &str {
        self.open.partition()
    }

    /// The level on which it lies.
    pub fn level(&self) -> usize {
        self.level
    }

    /// The manifest's description of it.
    pub fn meta(&self) -> &SstMeta {
        &self.table.meta
    }

    /// The path of its file.
    pub fn path(&self) -> PathBuf {
        self.table.path(self.open.tables())
    }

    /// The table's account of itself.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn properties(&self) -> Result<SstProperties> {
        Ok(self.reader()?.properties().clone())
    }

    /// Its entries, before the first.
    ///
    /// # Errors
    /// Those of opening it.
    ///
    /// # Cost
    /// Walking them is no dearer than a cursor over the partition: the bench `scan` has both.
    pub fn walk(&self, mode: RawMode) -> Result<TableWalk> {
        let position = WalkPosition::Before;
        Ok(TableWalk { table: self.clone(), iter: self.reader()?.raw_iter(mode), position })
    }

    /// Reads all of the file but the data blocks once more, as for an open.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn check_opens(&self) -> Result<()> {
        // Apart: the reader that the table keeps was loaded before a damage that is looked for.
        let opened = self.table.open_apart(self.open.tables());
        opened.map(drop).map_err(|error| error.in_partition(self.open.partition()))
    }

    /// Returns `true` unless the table's bloom says that it does not have the stored key, or its prefix.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn may_hold(&self, key: &[u8]) -> Result<bool> {
        Ok(!self.reader()?.is_missing_in_bloom(key))
    }

    fn reader(&self) -> Result<&Arc<SstReader>> {
        let reader = self.table.reader(self.open.tables());
        reader.map_err(|error| error.in_partition(self.open.partition()))
    }
}

impl fmt::Debug for RawTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawTable")
            .field("level", &self.level)
            .field("meta", &self.table.meta)
            .finish_non_exhaustive()
    }
}

/// The position of a [`TableWalk`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkPosition {
    Before,
    /// A seek found the entry that comes next.
    Found,
    On,
}

/// The entries of a table, hidden ones included, in internal order: keys ascending, versions of
/// one newest first. After an error it is after the last.
pub struct TableWalk {
    table: RawTable,
    iter: RawIter,
    position: WalkPosition,
}

impl TableWalk {
    /// The table.
    pub fn table(&self) -> &RawTable {
        &self.table
    }

    /// Goes on at the first entry whose key is not before `key`.
    ///
    /// # Errors
    /// As [`TableWalk::next`].
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.position = WalkPosition::Found;
        let sought = self.iter.seek(Some(KeyRef::seek(key, SeqNo::MAX)));
        sought.map_err(|error| error.in_partition(self.table.partition()))
    }

    /// The next entry; `None` after the last.
    ///
    /// # Errors
    /// Corruption that names partition, file and offset; in a tolerant [`RawMode`] only that of
    /// the index: suspect entries of damaged blocks are handed over, see
    /// [`Origin::block_verified`].
    #[expect(clippy::should_implement_trait, reason = "it lends what it returns")]
    pub fn next(&mut self) -> Result<Option<RawEntry<'_>>> {
        // A seek has moved to the next entry already, so the first call after it does not move.
        let moved = match std::mem::replace(&mut self.position, WalkPosition::On) {
            WalkPosition::Before => self.iter.seek(None),
            WalkPosition::On if self.iter.valid() => self.iter.next(),
            WalkPosition::On | WalkPosition::Found => Ok(()),
        };
        moved.map_err(|error| error.in_partition(self.table.partition()))?;
        if !self.iter.valid() {
            return Ok(None);
        }
        let (block_offset, entry, block_verified) = self.iter.origin();
        let meta = &self.table.table.meta;
        let at = Origin {
            file: Some(meta.file),
            level: self.table.level,
            block_offset,
            entry,
            block_verified,
        };
        let hidden = self.iter.hidden();
        Ok(Some(entry_of(self.iter.key(), self.iter.value(), meta.global_seq, hidden, at)))
    }

    /// The damaged blocks that a tolerant walk met so far.
    pub fn damage(&self) -> &[RawDamage] {
        self.iter.damage()
    }
}

#[cfg(test)]
mod tests;
