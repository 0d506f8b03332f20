//! [`scrub()`]: compares every entry in the tables of a partition with its metadata, on the device.
//!
//! It is for tables that compactions rarely rewrite. Writers, flushes and compactions continue during a
//! scrub. It covers the tables that are live at the call: it ignores later tables, and obsolete tables
//! stay until it has read them. It repairs and changes nothing; the next compaction of a damaged table
//! repairs it.
//!
//! ```text
//! plan -> each table in the order of the file numbers -> inspect.rs -> report, progress, pace
//! ```
//!
//! Invariants:
//! 1. A scrub of an undamaged partition reports no damage, even during other work.
//! 2. A table is reported completely or not at all, so that a stopped run and its continuation cover
//!    every table exactly once. A compaction writes entries to files with greater numbers, which the
//!    continuation reads.
//! 3. Every entry of a table is counted as sealed or unsealed, or there is a fault or damage.
//! 4. No lock is held while a table is read.
//! 5. Damage of a large value counts only if its table is live after it was found: a compaction may have
//!    moved the value since.

mod report;

use std::sync::Arc;

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::AttachedStore;
use lsm_core::raw::{EntryKind, RawEntry, RawMode, RawTable, TableWalk, Walk, Walkable};
use lsm_core::sweep::{Sweep, SweepMark, SweepOptions, SweepProgress};

pub use report::{ScrubCounts, ScrubReport, TableReport, Unflushed};

use crate::inspect::{EntryFault, Inspection, Inspector, Sealing};
use crate::verdict::Verdict;

/// The options of [`scrub()`].
pub type ScrubOptions<'a> = SweepOptions<'a>;
/// The progress of [`scrub()`].
pub type ScrubProgress = SweepProgress;
/// A place in the order of a partition's tables to go on from.
pub type ScrubMark = SweepMark;

/// Reads every live table of the partition, bypassing every cache, and verifies each entry against its
/// metadata, as a compaction would. Entries in memtables have no metadata yet; they are only counted.
/// Nothing is repaired.
///
/// The provider of the partition's [`MetaHive`](crate::MetaHive) checks the metadata. In a partition
/// without MetaHive, the integrity provider checks tables that another node sealed, and all other
/// entries count as unsealed. A scrub also verifies the checksums of indexes, Bloom structures and
/// footers, and that no Bloom structure hides a key; `Db::verify` compares them with all entries. It reads
/// the value of each handle from its value store and compares it with its checksums, as `Db::verify` does.
///
/// # Errors
/// A closed database; a dropped partition; a mark of another partition; `Unsupported` if a filter other
/// than MetaHive seals the partition. Damage and unreadable tables are in the report; they are not
/// errors of this call.
///
/// # Cost
/// Reads the data blocks of the whole partition, and all large values to which they point; see
/// [`ScrubOptions::bytes_per_second`]. Needs a read-ahead buffer of 256 KiB, and 16 bytes for each version
/// of the current key. A table that becomes obsolete stays until this call has read it.
///
/// # Examples
/// ```
/// use metahive::{ScrubOptions, scrub};
///
/// # fn main() -> lsm_core::Result<()> {
/// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
/// let db = lsm_core::Db::builder("/db").fs(fs).open()?;
/// let users = db.partition("users")?;
/// users.put("alice", "admin")?;
/// db.flush()?;
/// let report = scrub(&users, ScrubOptions::new().bytes_per_second(50 << 20))?;
/// assert!(report.is_sound());
/// assert_eq!((report.counts.entries, report.counts.unsealed), (1, 1));
/// # Ok(())
/// # }
/// ```
pub fn scrub(partition: &impl Walkable, options: ScrubOptions<'_>) -> Result<ScrubReport> {
    let walk = Walk::open(partition)?;
    let start = SweepMark::start(walk.db_id(), Some(walk.partition_id()));
    let mut sweep = Sweep::new(options, start, walk.clock().clone())?;
    let inspector = Inspector::of(&walk)?;
    let mut tables: Vec<RawTable> = walk.tables().collect();
    sweep.plan(&mut tables, |table| (table.meta().file, table.meta().bytes));
    let mut report = ScrubReport::new(walk.partition(), Unflushed::of(&walk));
    report.has_metahive = inspector.has_metahive;
    report.lost = walk.gaps().open().filter_map(|gap| walk.lost(gap)).collect();
    let run = ScrubRun {
        inspector: &inspector,
        store: walk.hooks().store.clone(),
        check_open: &|| partition.pin_raw().map(drop),
        is_live: &|table| Ok(Walk::open(partition)?.tables().any(|live| is_same(&live, table))),
        sweep,
    };
    // From here on each table holds its own file, and no memtable is held.
    drop(walk);
    run.all(tables, report)
}

fn is_same(one: &RawTable, other: &RawTable) -> bool {
    one.meta().file == other.meta().file
}

/// One call.
struct ScrubRun<'a> {
    inspector: &'a Inspector,
    /// The values of handles.
    store: Option<Arc<AttachedStore>>,
    /// The check before the files of a database are judged: what a closed one says of them may be
    /// another process's doing.
    check_open: &'a dyn Fn() -> Result<()>,
    /// Returns `true` if the partition has the table now.
    is_live: &'a dyn Fn(&RawTable) -> Result<bool>,
    sweep: Sweep<'a>,
}

impl ScrubRun<'_> {
    fn all(mut self, tables: Vec<RawTable>, mut report: ScrubReport) -> Result<ScrubReport> {
        // Each is dropped when it was read: one that is obsolete by then may go.
        for table in tables {
            let read = self.table(&table)?;
            (self.check_open)()?;
            // The mark is still that after the last complete table, see invariant 2.
            let Some(read) = read else {
                report.mark = Some(self.sweep.mark());
                return Ok(report);
            };
            report.add(read);
            self.sweep.finish_file(table.meta().file, report.bytes);
        }
        self.sweep.finish();
        Ok(report)
    }

    /// Reads one table; `None` if the caller stopped it.
    fn table(&mut self, table: &RawTable) -> Result<Option<TableReport>> {
        let mut report = TableReport::new(table);
        let begun = self.inspector.begin(table).and_then(|begun| match begun {
            Ok(inspection) => Ok(Ok((inspection, table.walk(MODE)?))),
            Err(foreign) => Ok(Err(foreign)),
        });
        let (inspection, mut entries) = match begun {
            Ok(Ok(begun)) => begun,
            Ok(Err(foreign)) => {
                report.counts.entries = table.meta().entries;
                report.counts.foreign = table.meta().entries;
                report.sealing = Sealing::Foreign(foreign);
                return Ok(Some(report));
            }
            Err(error) => {
                report.push_damage(table, &error);
                return Ok(Some(report));
            }
        };
        // The walk follows the index that the open table has in memory. The next open reads it from
        // the device.
        if let Err(error) = table.check_opens() {
            report.push_damage(table, &error);
        }
        let goes_on = self.entries(&mut entries, inspection, &mut report)?;
        // The entries that a damaged block does not show would be missing from the count, for a
        // reason that is reported already.
        let shows_all = report.damage.is_empty() && !entries.damage().iter().any(|d| d.is_lossy);
        report.push_blocks(table, entries.damage());
        if shows_all {
            report.check_count(table);
        }
        if goes_on {
            report.push_incomplete(table);
            report.push_poisons();
        }
        Ok(goes_on.then_some(report))
    }

    /// Returns the fault of a poison: it agrees with its metadata, and its record is lost.
    fn poison(&self, entry: &RawEntry<'_>) -> EntryFault {
        EntryFault {
            key: self.inspector.key_form.user(entry.key).to_vec(),
            seq: entry.stored_seq,
            kind: entry.kind,
            at: entry.at,
            what: EntryKind::POISONED.to_owned(),
            verdict: Verdict::DataCorrupt,
        }
    }

    /// Verifies the entries of one table; `false` if the caller stopped it.
    fn entries(
        &mut self,
        entries: &mut TableWalk,
        mut inspection: Inspection,
        report: &mut TableReport,
    ) -> Result<bool> {
        let mut at = 0;
        let table = entries.table().clone();
        let mut not_in_bloom = None;
        let mut poisons = Vec::new();
        loop {
            match entries.next() {
                Ok(Some(entry)) => {
                    // Block by block, so that the limit and the caller are asked as often as the
                    // device is.
                    let after = entry.at.block_offset.saturating_sub(at);
                    if after > 0 && !self.sweep.advance(after, self.check_open)? {
                        return Ok(false);
                    }
                    at = at.max(entry.at.block_offset);
                    // One key is enough: a bloom that lacks it is wrong as a whole. Reads never ask
                    // it for hidden entries.
                    let is_asked = not_in_bloom.is_none() && !entry.hidden;
                    if is_asked && !table.may_hold(entry.key)? {
                        not_in_bloom = Some(entry.key.to_vec());
                    }
                    if entry.kind == EntryKind::Poison && !entry.hidden {
                        // Noted apart. A poison agrees with its metadata, so the filter has no
                        // fault of it.
                        poisons.push(self.poison(&entry));
                    }
                    inspection.take(&entry);
                    let is_handle = entry.kind == EntryKind::Handle && !entry.hidden;
                    if is_handle && !self.value(&table, &entry, report)? {
                        return Ok(false);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    report.push_damage(entries.table(), &error);
                    break;
                }
            }
        }
        report.take(inspection);
        // A key that is damaged itself is reported by its entry.
        if let Some(key) = not_in_bloom.filter(|_| report.faults.is_empty()) {
            let what = "the bloom does not have a key of the table";
            let error = Error::corruption(table.path(), None, what);
            report.push_damage(&table, &error.at_key(&key));
        }
        report.poisons = poisons;
        self.sweep.advance(report.bytes.saturating_sub(at), self.check_open)
    }

    /// Compares the value of a handle with its checksums; `false` if the caller stopped it.
    fn value(
        &mut self,
        table: &RawTable,
        entry: &RawEntry<'_>,
        report: &mut TableReport,
    ) -> Result<bool> {
        // A handle without a store, whose code is missing here, is an entry like any other.
        let Some(store) = &self.store else { return Ok(true) };
        let check_open = self.check_open;
        let sweep = &mut self.sweep;
        let mut goes_on = true;
        let read = store.call("verify", |store| {
            store.value(entry.value)?.verify(entry.key, &mut |bytes| {
                goes_on = sweep.advance(bytes, check_open)?;
                match goes_on {
                    true => Ok(()),
                    false => Err(Error::new(ErrorKind::InvalidArgument, "the caller stopped it")),
                }
            })
        });
        if !goes_on {
            return Ok(false);
        }
        check_open()?;
        report.counts.values += 1;
        if let Err(error) = read
            && (self.is_live)(table)?
        {
            report.push_damage(table, &error.at_key(entry.key));
        }
        Ok(true)
    }
}

/// From the device, many blocks at once, entry by entry where a block is damaged.
const MODE: RawMode = RawMode::Scrub;
