//! [`scrub()`]: holds every entry of a partition's tables against its metadata, on the device.
//!
//! For tables that no compaction comes by. It works beside writers, flushes and compactions. What
//! is live is decided at the call: tables that are made later are not looked at, and tables that
//! go meanwhile are held until they were read. It repairs nothing and changes nothing; the next
//! compaction of the damaged table repairs.
//!
//! ```text
//! plan -> each table in the order of the file numbers -> inspect.rs -> report, progress, pace
//! ```
//!
//! Invariants:
//! 1. A sound partition is never complained about, whatever goes on.
//! 2. A table is reported whole or not at all, so that a run that was stopped and its continuation
//!    cover every table exactly once. What a compaction moves meanwhile comes to lie in files of
//!    greater numbers, and is read there.
//! 3. Every entry of a table is counted as sealed or unsealed, or there is a fault or damage.
//! 4. No lock is held while a table is read.

mod report;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use lsm_core::clock::{Clock, Pace};
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::raw::{RawMode, RawTable, TableWalk, Walk, Walkable};
use lsm_core::types::{DbId, FileNo, PartitionId};

pub use report::{ScrubCounts, ScrubReport, TableReport, Unflushed};

use crate::inspect::{Inspection, Inspector, Sealing};

/// How far a run came, and what is ahead of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubProgress {
    /// Tables that were read to their end.
    pub tables_done: u64,
    /// Tables in all.
    pub tables: u64,
    /// Bytes that were read.
    pub bytes_done: u64,
    /// Bytes in all.
    pub bytes: u64,
}

/// A place in the order of a partition's tables, to go on from: everything up to it was read. Its
/// text form ([`fmt::Display`], [`FromStr`]) may be kept in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubMark {
    db: DbId,
    partition: PartitionId,
    file: FileNo,
}

impl ScrubMark {
    /// The database that it is of.
    pub fn db(&self) -> DbId {
        self.db
    }

    /// The partition whose tables it is about.
    pub fn partition(&self) -> PartitionId {
        self.partition
    }
}

impl fmt::Display for ScrubMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:08x}-{:016x}", self.db.0, self.partition.0, self.file.0)
    }
}

impl FromStr for ScrubMark {
    type Err = Error;

    fn from_str(text: &str) -> Result<ScrubMark> {
        let parsed = || {
            let (db, rest) = text.split_once('-')?;
            let (partition, file) = rest.split_once('-')?;
            Some(ScrubMark {
                db: DbId(u128::from_str_radix(db, 16).ok()?),
                partition: PartitionId(u32::from_str_radix(partition, 16).ok()?),
                file: FileNo(u64::from_str_radix(file, 16).ok()?),
            })
        };
        parsed().filter(|mark| mark.to_string() == text).ok_or_else(|| {
            let message = format!("{text:?} is no mark of a scrub");
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

/// Called after each block; `false` stops.
type OnProgress<'a> = Box<dyn FnMut(&ScrubProgress) -> bool + 'a>;

/// How [`scrub()`] goes about it.
#[derive(Default)]
#[must_use = "options do nothing by themselves"]
pub struct ScrubOptions<'a> {
    bytes_per_second: u64,
    resume_after: Option<ScrubMark>,
    on_progress: Option<OnProgress<'a>>,
}

impl<'a> ScrubOptions<'a> {
    /// No limit, from the first table on, nobody told.
    pub fn new() -> ScrubOptions<'a> {
        ScrubOptions::default()
    }

    /// Reads no more than this many bytes a second, by the database's clock; 0, the default, is no
    /// limit. After each block the caller's thread is parked for as long as that takes.
    pub fn bytes_per_second(mut self, bytes: u64) -> ScrubOptions<'a> {
        self.bytes_per_second = bytes;
        self
    }

    /// Goes on behind the mark of a run that was stopped: [`ScrubReport::mark`].
    pub fn resume_after(mut self, mark: Option<ScrubMark>) -> ScrubOptions<'a> {
        self.resume_after = mark;
        self
    }

    /// Calls `told` on the caller's thread, without any lock, after each block, and while a limit
    /// makes it wait. When it answers `false`, the run stops.
    pub fn on_progress(
        mut self,
        told: impl FnMut(&ScrubProgress) -> bool + 'a,
    ) -> ScrubOptions<'a> {
        self.on_progress = Some(Box::new(told));
        self
    }
}

impl fmt::Debug for ScrubOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScrubOptions")
            .field("bytes_per_second", &self.bytes_per_second)
            .field("resume_after", &self.resume_after)
            .finish_non_exhaustive()
    }
}

/// Reads every live table of the partition past every cache and verifies each entry by its
/// metadata, as a compaction would. What the memtables hold has no metadata yet and is counted
/// alone. Nothing is repaired.
///
/// The metadata is that of the partition's [`MetaHive`](crate::MetaHive), whichever provider it
/// has; of integrity, if the partition has none: then what another node sealed is verified, and
/// all else is unsealed. Indexes, Bloom structures and footers are not looked at: `Db::verify`
/// does that.
///
/// # Errors
/// Damage is no error but in the report, and so is a table that cannot be read. A closed database,
/// a dropped partition, a mark of another one; `Unsupported` if a filter other than MetaHive seals
/// the partition.
///
/// # Cost
/// Reads the data blocks of the whole partition; see [`ScrubOptions::bytes_per_second`]. Takes a
/// read-ahead of 256 KiB and 16 bytes for each version of the key that it is at. Tables that
/// become obsolete stay until they were read.
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
    let start = ScrubMark { db: walk.db_id(), partition: walk.partition_id(), file: FileNo(0) };
    let mark = options.resume_after.unwrap_or(start);
    if (ScrubMark { file: FileNo(0), ..mark }) != start {
        let message = "the mark is of another database or partition";
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let inspector = Inspector::of(&walk)?;
    let mut tables: Vec<RawTable> = walk.tables().collect();
    tables.retain(|table| table.meta().file > mark.file);
    tables.sort_by_key(|table| table.meta().file);
    let report = ScrubReport::new(walk.partition(), Unflushed::of(&walk));
    let check_open = || partition.pin_raw().map(drop);
    let run = Run {
        inspector: &inspector,
        check_open: &check_open,
        clock: walk.clock().clone(),
        pace: Pace::new(options.bytes_per_second),
        on_progress: options.on_progress,
        progress: ScrubProgress {
            tables: tables.len() as u64,
            bytes: tables.iter().map(|table| table.meta().bytes).sum(),
            ..ScrubProgress::default()
        },
    };
    // From here on each table holds its own file, and no memtable is held.
    drop(walk);
    run.all(tables, mark, report)
}

/// One call.
struct Run<'a> {
    inspector: &'a Inspector,
    /// What a closed database says of its files may be another process's doing.
    check_open: &'a dyn Fn() -> Result<()>,
    clock: Arc<dyn Clock>,
    pace: Pace,
    on_progress: Option<OnProgress<'a>>,
    progress: ScrubProgress,
}

impl Run<'_> {
    fn all(
        mut self,
        tables: Vec<RawTable>,
        mut mark: ScrubMark,
        mut report: ScrubReport,
    ) -> Result<ScrubReport> {
        // Each is dropped when it was read: one that is obsolete by then may go.
        for table in tables {
            let read = self.table(&table)?;
            (self.check_open)()?;
            let Some(read) = read else {
                report.mark = Some(mark);
                return Ok(report);
            };
            report.add(read);
            mark.file = table.meta().file;
            self.progress.tables_done += 1;
            // What the walk left out: the index, and what is damaged.
            self.progress.bytes_done = report.bytes;
        }
        // The last word is that everything is done, and cannot stop anything.
        self.tell();
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
        let goes_on = self.entries(&mut entries, inspection, &mut report)?;
        let shows_all = report.damage.is_empty() && !entries.damage().iter().any(|d| d.is_lossy);
        report.push_blocks(table, entries.damage());
        if shows_all {
            report.check_count(table);
        }
        Ok(goes_on.then_some(report))
    }

    /// Verifies the entries of one table; `false` if the caller stopped it.
    fn entries(
        &mut self,
        entries: &mut TableWalk,
        mut inspection: Inspection,
        report: &mut TableReport,
    ) -> Result<bool> {
        let mut at = 0;
        loop {
            match entries.next() {
                Ok(Some(entry)) => {
                    let behind = entry.at.block_offset.saturating_sub(at);
                    if behind > 0 && !self.advance(behind)? {
                        return Ok(false);
                    }
                    at = at.max(entry.at.block_offset);
                    inspection.take(&entry)?;
                }
                Ok(None) => break,
                Err(error) => {
                    report.push_damage(entries.table(), &error);
                    break;
                }
            }
        }
        report.take(inspection);
        self.advance(report.bytes.saturating_sub(at))
    }

    /// Says that `bytes` more were read, and waits as long as the limit asks for; `false` if the
    /// caller wants no more.
    fn advance(&mut self, bytes: u64) -> Result<bool> {
        self.progress.bytes_done += bytes;
        let mut goes_on = self.tell();
        self.pace.take(bytes, self.clock.now());
        while goes_on && self.pace.park(|| self.clock.now()) {
            (self.check_open)()?;
            goes_on = self.tell();
        }
        Ok(goes_on)
    }

    fn tell(&mut self) -> bool {
        self.on_progress.as_mut().is_none_or(|told| told(&self.progress))
    }
}

/// From the device, many blocks at once, entry by entry where a block is damaged.
const MODE: RawMode = RawMode::Scrub;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_read_back_and_nothing_else_does() {
        let mark = ScrubMark { db: DbId(0xabc), partition: PartitionId(3), file: FileNo(42) };
        assert_eq!(mark.to_string().parse::<ScrubMark>().ok(), Some(mark));
        for text in ["", "-", "--", "abc-3-2a", "+bc--", &format!("{mark} ")] {
            assert!(text.parse::<ScrubMark>().is_err(), "{text}");
        }
    }
}
