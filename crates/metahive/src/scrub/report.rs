//! The findings of a scrub, table by table and in sum.

use std::fmt;
use std::ops::AddAssign;
use std::path::PathBuf;

use lsm_core::error::{Damage, Error};
use lsm_core::raw::{RawDamage, RawTable, Walk};
use lsm_core::types::FileNo;

use super::ScrubMark;
use crate::inspect::{EntryFault, Inspected, Inspection, Sealing};
use crate::table_seal::INCOMPLETE;

/// Entries by what is known of them. In a table or in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubCounts {
    /// Entries that were read, metadata not counted.
    pub entries: u64,
    /// Of them, those that agree with their metadata.
    pub sealed: u64,
    /// Of them, those without metadata in tables that are not sealed.
    pub unsealed: u64,
    /// Of them, those of tables that another provider sealed: counted by the manifest.
    pub foreign: u64,
    /// Metadata whose entry is not in the table. In a sealed table each is a fault as well;
    /// elsewhere the next compaction drops it.
    pub orphans: u64,
    /// Pairs that may lie in two blocks, by the seals of the tables.
    pub split_pairs: u64,
    /// Sealed entries whose metadata is damaged and has to be rebuilt. Each is a fault as well.
    pub metadata_damaged: u64,
    /// Sealed entries in blocks whose checksum does not agree: good, by their metadata.
    pub suspects: u64,
    /// Large values that were read and compared with their checksums.
    pub values: u64,
}

impl AddAssign for ScrubCounts {
    fn add_assign(&mut self, other: ScrubCounts) {
        self.entries += other.entries;
        self.sealed += other.sealed;
        self.unsealed += other.unsealed;
        self.foreign += other.foreign;
        self.orphans += other.orphans;
        self.split_pairs += other.split_pairs;
        self.metadata_damaged += other.metadata_damaged;
        self.suspects += other.suspects;
        self.values += other.values;
    }
}

/// The entries in memory that were not written to tables yet: it has no metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unflushed {
    /// Memtables that are not empty.
    pub memtables: u64,
    /// Entries in them.
    pub entries: u64,
    /// Their memory, in bytes.
    pub bytes: u64,
}

impl Unflushed {
    pub(super) fn of(walk: &Walk) -> Unflushed {
        let full = walk.memtables().filter(|memtable| memtable.entry_count() > 0);
        full.fold(Unflushed::default(), |sum, memtable| Unflushed {
            memtables: sum.memtables + 1,
            entries: sum.entries + memtable.entry_count(),
            bytes: sum.bytes + memtable.bytes(),
        })
    }
}

/// The findings in one table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableReport {
    /// Its file number.
    pub file: FileNo,
    /// Its file.
    pub path: PathBuf,
    /// The level on which it lay when the run began.
    pub level: usize,
    /// Its length in bytes.
    pub bytes: u64,
    /// The part of its entries for which it has metadata.
    pub sealing: Sealing,
    /// Its entries.
    pub counts: ScrubCounts,
    /// The faults of single entries and their metadata, in the order of the file.
    pub faults: Vec<EntryFault>,
    /// Blocks that do not verify, whatever could be read of them, why the table could not be read, or not
    /// to its end, and large values that are damaged or missing.
    pub damage: Vec<Damage>,
    /// The number of entries that its seal counts, if it is sealed.
    pub seal_entries: Option<u64>,
    /// The offsets of blocks that lack entries, or have others; `None` if it is not known which.
    incomplete: Vec<Option<u64>>,
    /// Records that were damaged before they came to the table.
    pub(super) poisons: Vec<EntryFault>,
}

impl TableReport {
    pub(super) fn new(table: &RawTable) -> TableReport {
        TableReport {
            file: table.meta().file,
            path: table.path(),
            level: table.level(),
            bytes: table.meta().bytes,
            sealing: Sealing::Unsealed,
            counts: ScrubCounts::default(),
            faults: Vec::new(),
            damage: Vec::new(),
            seal_entries: None,
            incomplete: Vec::new(),
            poisons: Vec::new(),
        }
    }

    /// Takes in what the filter says of the table.
    pub(super) fn take(&mut self, inspection: Inspection) {
        self.sealing = inspection.sealing();
        if let Some(seal) = &inspection.seal {
            self.counts.split_pairs = seal.split_pairs;
            self.seal_entries = Some(seal.sealed);
        }
        let Inspected { entries, counts, orphans, faults, incomplete } = inspection.finish();
        self.counts.entries = entries;
        self.counts.sealed = counts.verified;
        self.counts.unsealed = counts.made;
        self.counts.orphans = orphans;
        self.counts.metadata_damaged = counts.metadata_rebuilt;
        self.counts.suspects = counts.suspects_accepted;
        self.faults = faults;
        self.incomplete = incomplete;
    }

    /// Notes why the table could not be read, or not to its end.
    pub(super) fn push_damage(&mut self, table: &RawTable, error: &Error) {
        let mut damage = Damage::of(error, &self.path);
        damage.partition = Some(table.partition().to_owned());
        damage.level = Some(self.level);
        self.damage.push(damage);
    }

    /// Notes the blocks that did not verify.
    pub(super) fn push_blocks(&mut self, table: &RawTable, blocks: &[RawDamage]) {
        let first = &table.meta().smallest.user;
        let last = &table.meta().largest.user;
        for block in blocks {
            let (begin, end) = &block.keys;
            let begin = begin.clone().unwrap_or_else(|| first.to_vec());
            // A separator may lie after the last key of its block.
            let keys = Some((begin, end.clone().min(last.to_vec())));
            self.push_damage(table, &block.error);
            self.damage.last_mut().expect("just pushed").keys = keys;
        }
    }

    /// Notes the blocks that lack entries or have others, where nothing else is said of them.
    pub(super) fn push_incomplete(&mut self, table: &RawTable) {
        for offset in std::mem::take(&mut self.incomplete) {
            let Some(offset) = offset else {
                // The sum of the whole table differs for every other damage as well, which is reported
                // by its place.
                if self.faults.is_empty() && self.damage.is_empty() {
                    let what = "entries of the table are missing, or others have come";
                    self.push_damage(table, &Error::corruption(&self.path, None, what));
                }
                continue;
            };
            // Once for each block: a fault in it, or a damaged block, changes its sum.
            let is_reported = self.faults.iter().any(|fault| fault.at.block_offset == offset)
                || self.damage.iter().any(|damage| damage.offset == Some(offset));
            if !is_reported {
                self.push_damage(table, &Error::corruption(&self.path, offset, INCOMPLETE));
            }
        }
    }

    /// Notes the poisons where nothing else is said of them. After all other checks: the block of a
    /// poison may be damaged as well.
    pub(super) fn push_poisons(&mut self) {
        let mut poisons = std::mem::take(&mut self.poisons);
        // One that also disagrees with its metadata is among the faults already.
        poisons.retain(|poison| self.faults.iter().all(|fault| fault.at != poison.at));
        self.faults.append(&mut poisons);
        self.faults.sort_by_key(|fault| (fault.at.block_offset, fault.at.entry));
    }

    /// Holds the number of entries against the seal: where an entry and its metadata are both
    /// missing, nothing else shows it. Only if the walk showed all that is there.
    pub(super) fn check_count(&mut self, table: &RawTable) {
        let entries = self.counts.entries;
        // The only trace of a block that is gone together with its line in the index.
        if let Some(sealed) = self.seal_entries.filter(|sealed| *sealed != entries) {
            let what = format!("the seal of the table counts {sealed} entries, it has {entries}");
            self.push_damage(table, &Error::corruption(&self.path, None, what));
        }
    }
}

/// The findings of [`scrub`](crate::scrub()).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Name of the partition.
    pub partition: String,
    /// `true` if the partition has MetaHive. Without it entries are verified only in tables that
    /// another node sealed; of all others nothing but the blocks is checked.
    pub has_metahive: bool,
    /// The tables that were read to their end, in the order of their file numbers.
    pub tables: Vec<TableReport>,
    /// The sum over them.
    pub counts: ScrubCounts,
    /// Bytes of them.
    pub bytes: u64,
    /// Stretches of keys that are damaged beyond repair: no table shows them any more.
    pub lost: Vec<Damage>,
    /// The entries that were in memory when the run began.
    pub unflushed: Unflushed,
    /// The place to go on from, if the run was stopped; `None` if it came to its end. A run that
    /// was stopped before its first table was done and began at the front has the mark before all.
    pub mark: Option<ScrubMark>,
}

impl ScrubReport {
    pub(super) fn new(partition: &str, unflushed: Unflushed) -> ScrubReport {
        let partition = partition.to_owned();
        ScrubReport { partition, unflushed, ..ScrubReport::default() }
    }

    pub(super) fn add(&mut self, table: TableReport) {
        self.counts += table.counts;
        self.bytes += table.bytes;
        self.tables.push(table);
    }

    /// The faults of single entries, table by table.
    pub fn faults(&self) -> impl Iterator<Item = &EntryFault> {
        self.tables.iter().flat_map(|table| &table.faults)
    }

    /// Blocks and tables that are damaged, table by table, and what is lost.
    pub fn damage(&self) -> impl Iterator<Item = &Damage> {
        self.tables.iter().flat_map(|table| &table.damage).chain(&self.lost)
    }

    /// Returns `true` if nothing that was read is damaged, entries or metadata. Entries without
    /// metadata are no damage: see [`ScrubReport::is_sealed`].
    pub fn is_undamaged(&self) -> bool {
        self.faults().next().is_none() && self.damage().next().is_none()
    }

    /// Returns `true` if every live table was read and no damage was found. A resumed run speaks
    /// for its own tables alone.
    pub fn is_sound(&self) -> bool {
        self.is_undamaged() && self.mark.is_none()
    }

    /// Returns `true` if every entry of the tables that were read agrees with its metadata.
    pub fn is_sealed(&self) -> bool {
        self.counts.sealed == self.counts.entries
    }
}

/// `word` with its number: `1 fault`, `2 faults`.
fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

impl fmt::Display for ScrubReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScrubReport { partition, counts, unflushed, .. } = self;
        write!(f, "partition {partition:?}: ")?;
        if !self.is_undamaged() {
            let faults = count(self.faults().count(), "fault");
            write!(f, "{faults}, damage in {}", count(self.damage().count(), "place"))?;
        } else if self.has_metahive {
            f.write_str("no damage")?;
        } else {
            f.write_str("no MetaHive, no damaged block")?;
        }
        let tables = count(self.tables.len(), "table");
        let entries = counts.entries;
        write!(f, "; {tables}, {} bytes, {entries} entries: {} sealed", self.bytes, counts.sealed)?;
        for (number, what) in [
            (counts.unsealed, "unsealed"),
            (counts.foreign, "sealed by another provider"),
            (counts.metadata_damaged, "to be sealed again"),
        ] {
            if number > 0 {
                write!(f, ", {number} {what}")?;
            }
        }
        if counts.orphans > 0 {
            write!(f, "; {} metadata entries without their own", counts.orphans)?;
        }
        if counts.values > 0 {
            write!(f, "; {} compared", count(counts.values as usize, "large value"))?;
        }
        if unflushed.entries > 0 {
            write!(f, "; {} entries not flushed yet", unflushed.entries)?;
        }
        if let Some(mark) = self.mark {
            write!(f, "; stopped, go on after {mark}")?;
        }
        for damage in &self.lost {
            write!(f, "\n  {damage}")?;
        }
        for table in &self.tables {
            if let Sealing::Foreign(what) = &table.sealing {
                write!(f, "\n  {what}: {}", table.path.display())?;
            }
            for damage in &table.damage {
                write!(f, "\n  {damage}")?;
            }
            for fault in &table.faults {
                write!(f, "\n  {fault} of {}, level {}", table.path.display(), table.level)?;
            }
        }
        Ok(())
    }
}
