//! [`versions`]: all stored versions of one key.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{EntryKind, Origin, RawEntry, RawMode, RawTable, TableWalk, Walk, Walkable, entry_of};
use crate::error::Result;
use crate::iter::InternalIter;
use crate::memtable::Memtable;
use crate::types::{KeyRef, SeqNo};

/// A version of a key, wherever it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawVersion {
    /// The sequence number that counts.
    pub seq: SeqNo,
    /// The sequence number in the file: another one in a file that was ingested.
    pub stored_seq: SeqNo,
    /// Its kind.
    pub kind: EntryKind,
    /// Its value, payload or handle.
    pub value: Vec<u8>,
    /// `true` if a compaction filter added it.
    pub hidden: bool,
    /// Its place. A version whose block did not verify is suspect.
    pub at: Origin,
    /// The file; `None` in memory.
    pub path: Option<PathBuf>,
    /// `true` if the memtable that it is in waits for its flush.
    pub sealed: bool,
}

/// The time at which a version expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VersionExpiry {
    /// The time, since 1970.
    pub at: Duration,
    /// The time of the walk.
    pub now: Duration,
    /// `true` if reads do not see what has expired.
    pub hides: bool,
}

impl RawVersion {
    fn new(entry: &RawEntry<'_>, path: Option<PathBuf>, sealed: bool) -> RawVersion {
        let RawEntry { seq, stored_seq, kind, hidden, at, .. } = *entry;
        RawVersion { seq, stored_seq, kind, value: entry.value.to_vec(), hidden, at, path, sealed }
    }
}

/// Every version of the stored key `key` in every memtable and table, newest first. Of a damaged
/// block the suspect entries are shown as well, if all of it decodes.
///
/// # Errors
/// A closed or dropped partition; a table that cannot be opened, or whose index or block is so
/// damaged that it might hold a version that is not shown.
///
/// # Cost
/// Reads one block, or a few, of each table whose range covers the key; blooms are not asked.
pub fn versions(partition: &impl Walkable, key: &[u8]) -> Result<Vec<RawVersion>> {
    let walk = Walk::open(partition)?;
    let mut found = walk.memtable_versions(key)?;
    for table in walk.tables().filter(|table| table.meta().covers(key)) {
        table.versions(key, &mut found)?;
    }
    // By level as well: an entry that a crash left twice has one number, and a read finds the upper
    // copy.
    found.sort_by_key(|version| (Reverse(version.seq), version.at.level));
    Ok(found)
}

impl Walk {
    /// The time at which a version of the user key `key` expires by the stored rule of the partition; `None` if it does
    /// not. An operand has none: what it is folded into expires.
    pub fn expiry_of(&self, key: &[u8], version: &RawVersion) -> Option<VersionExpiry> {
        let value = match version.kind {
            EntryKind::Value => Some(&version.value[..]),
            EntryKind::Handle => None,
            _ => return None,
        };
        let expiry = &self.pin.hooks.ageing()?.expiry;
        let at = expiry.unix_time(expiry.expires_at(key, value)?)?;
        Some(VersionExpiry { at, now: self.pin.unix_time, hides: expiry.hides() })
    }

    /// Every version of the stored key `key` in the memtables, newest memtable first.
    pub fn memtable_versions(&self, key: &[u8]) -> Result<Vec<RawVersion>> {
        let mut found = Vec::new();
        for (i, memtable) in self.pin.view.memtables().enumerate() {
            in_memtable(memtable, key, i > 0, &mut found)?;
        }
        Ok(found)
    }
}

impl RawTable {
    /// Adds every version of the stored key `key` in this table to `found`, hidden ones as well,
    /// newest first.
    ///
    /// # Errors
    /// As [`versions`], with the key. What was found before stays.
    ///
    /// # Cost
    /// Reads the index, and the blocks that hold the key.
    pub fn versions(&self, key: &[u8], found: &mut Vec<RawVersion>) -> Result<()> {
        let mut entries = self.walk(RawMode::Suspects)?;
        self.collect(&mut entries, key, found)
            .map_err(|error| error.in_partition(self.partition()).at_key(key))
    }

    fn collect(
        &self,
        entries: &mut TableWalk,
        key: &[u8],
        found: &mut Vec<RawVersion>,
    ) -> Result<()> {
        entries.seek(key)?;
        while let Some(entry) = entries.next()?.filter(|entry| entry.key == key) {
            found.push(RawVersion::new(&entry, Some(self.path()), false));
        }
        // An entry that was left out might be a version of the key.
        match entries.damage().iter().find(|damage| damage.is_lossy) {
            None => Ok(()),
            Some(damage) => Err(damage.error.clone()),
        }
    }
}

fn in_memtable(
    memtable: &Arc<Memtable>,
    key: &[u8],
    sealed: bool,
    found: &mut Vec<RawVersion>,
) -> Result<()> {
    let mut iter = memtable.iter();
    iter.seek(Some(KeyRef::seek(key, SeqNo::MAX)))?;
    while iter.valid() && iter.key().user == key {
        let entry = entry_of(iter.key(), iter.value(), None, false, Origin::MEMTABLE);
        found.push(RawVersion::new(&entry, None, sealed));
        iter.next()?;
    }
    Ok(())
}
