//! `Db::verify`: reads every live file from its first byte to its last and reports all damage.
//!
//! Works while writers, flushes and compactions run. The set of live files is determined at the
//! call; later files are not read, and files that are deleted meanwhile are either held until they
//! were read (tables) or left out (log segments, manifests). It repairs nothing and changes
//! nothing.
//!
//! ```text
//! plan (files.rs) -> each file in the order of the numbers -> damage; progress and pace: storage's `sweep.rs`
//! ```
//!
//! Invariants:
//! 1. An intact store is never reported as damaged, whatever runs, also in another process: a file is verified only up to
//!    its length at the call, and damage counts only while the file is live.
//! 2. A file is reported whole or not at all, as in every [`Sweep`]. One that cannot be read is reported as far as it
//!    was, with the reason.
//! 3. No lock is held while a table or a segment is read. The manifest is read under the lock of
//!    its appends.

mod files;
mod retained;
mod values;

use std::fmt;

use super::DbInner;
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::fs::{Uncached, is_out_of_handles};
use crate::read::lost;
use crate::sweep::{Sweep, SweepMark, SweepOptions, SweepProgress};

use files::Unit;

/// The options of `Db::verify`.
pub type VerifyOptions<'a> = SweepOptions<'a>;
/// The progress of `Db::verify`.
pub type VerifyProgress = SweepProgress;
/// A place in the order of the files from which a run continues.
pub type VerifyMark = SweepMark;

/// The findings of `Db::verify`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    damage: Vec<Damage>,
    /// Number of files that were read. Missing and unreadable files do not count.
    pub files: u64,
    /// Bytes of them that were read.
    pub bytes: u64,
    /// Entries of the tables among them, and operations in the log. Hidden entries, and entries of
    /// blocks that do not verify, do not count.
    pub entries: u64,
    /// Hidden entries of the tables among them, for example metadata.
    pub hidden: u64,
    /// Files that this build cannot read to their end, each as a message that names the file and the feature that is
    /// missing. They may be sound.
    pub unsupported: Vec<String>,
    /// The place to continue from, if the run was stopped; `None` if it was complete. A run that
    /// was stopped before its first file was done and began at the front has the mark before all.
    pub mark: Option<SweepMark>,
}

impl VerifyReport {
    /// The report of a database that cannot be read.
    pub(crate) fn of_damage(found: Damage) -> VerifyReport {
        VerifyReport { damage: vec![found], ..VerifyReport::default() }
    }

    /// All damage, file by file in the order of the file numbers.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Returns `true` if every live file was read and none is damaged. For a resumed run this covers
    /// only the files of that run.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty() && self.unsupported.is_empty() && self.mark.is_none()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VerifyReport { files, bytes, entries, hidden, .. } = self;
        let places = self.damage.len();
        let found = match places {
            0 => "no damage".to_owned(),
            1 => "damage in 1 place".to_owned(),
            _ => format!("damage in {places} places"),
        };
        write!(f, "{found}; {files} files, {bytes} bytes, {entries} entries read")?;
        if *hidden > 0 {
            write!(f, ", and {hidden} hidden ones")?;
        }
        if let Some(mark) = self.mark {
            write!(f, "; stopped, continue after {mark}")?;
        }
        self.damage.iter().try_for_each(|damage| write!(f, "\n  {damage}"))?;
        self.unsupported.iter().try_for_each(|file| write!(f, "\n  not verified: {file}"))
    }
}

/// The reason why a file was not read to its end.
enum Halt {
    /// The caller said so.
    Stopped,
    Failed(Error),
}

/// One call.
struct VerifyRun<'a> {
    db: &'a DbInner,
    /// The file system through which log and manifest are read; the reader of a table does so by
    /// itself.
    fs: Uncached,
    sweep: Sweep<'a>,
    is_stopped: bool,
    // What was found so far.
    damage: Vec<Damage>,
    unsupported: Vec<String>,
    read: Read,
}

/// The amount that was read.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    files: u64,
    bytes: u64,
    entries: u64,
    hidden: u64,
}

impl VerifyRun<'_> {
    /// Notes that `bytes` more were read, and waits as the limit requires; an error if the caller
    /// stops the run. A caller that sees it checks `is_stopped`.
    fn advance(&mut self, bytes: u64) -> Result<()> {
        self.read.bytes += bytes;
        if self.sweep.advance(bytes, || self.db.check_not_closed())? {
            return Ok(());
        }
        self.is_stopped = true;
        Err(Error::new(ErrorKind::InvalidArgument, "the caller stopped the verification"))
    }

    /// Reads one file. Its findings count only if it came to the end.
    fn unit(&mut self, unit: &Unit) -> Result<(), Halt> {
        let damage = self.damage.len();
        let read = self.read;
        let done = self.check_unit(unit);
        // The files of a closed database may be changed by another process, so findings in them do
        // not count.
        let done = done.and_then(|is_read| self.db.check_not_closed().map(|()| is_read));
        match done {
            Ok(is_read) => {
                self.read.files += u64::from(is_read);
                Ok(())
            }
            // Another process has deleted it, without a lease. The newest manifest does not name it.
            Err(error) if self.is_deleted_elsewhere(&error) => {
                self.damage.truncate(damage);
                self.read = read;
                Ok(())
            }
            Err(error) if self.ends_run(&error) => {
                // A run that continues from here begins with this file, and would count it twice.
                self.damage.truncate(damage);
                self.read = read;
                Err(if self.is_stopped { Halt::Stopped } else { Halt::Failed(error) })
            }
            // The other files are verified: damage in them must not wait for another build.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.read = read;
                self.unsupported.push(error.to_string());
                Ok(())
            }
            // Something cannot be read. Earlier findings count, and the other files do.
            Err(error) => {
                self.read = read;
                self.damage.push(unit.unreadable(&error));
                Ok(())
            }
        }
    }

    fn is_deleted_elsewhere(&self, error: &Error) -> bool {
        self.db.ownership.has_live_writer()
            && error.kind() == ErrorKind::FileGone
            && !self.is_stopped
    }

    /// Returns `true` if the error means that nothing more should be read, not that something cannot be read.
    fn ends_run(&self, error: &Error) -> bool {
        let is_taken_away = matches!(error.kind(), ErrorKind::LeaseLost | ErrorKind::FileGone);
        // Without a handle the process cannot read a file that may be sound.
        let is_taken_away = is_taken_away || is_out_of_handles(error);
        self.is_stopped || is_taken_away || self.db.check_not_closed().is_err()
    }
}

impl DbInner {
    /// The damage beyond repair, which is in no file any more.
    fn lost(&self) -> Vec<Damage> {
        let mut damage = Vec::new();
        for partition in self.catalog.partitions() {
            for gap in partition.view().version.gaps.open() {
                let error = lost(gap, &self.setup.tables).in_partition(&partition.name);
                damage.extend(error.damage().cloned());
            }
        }
        damage
    }

    /// Verifies all live files. `found` was found before.
    pub(super) fn verify(
        &self,
        options: VerifyOptions<'_>,
        found: Option<Damage>,
    ) -> Result<VerifyReport> {
        self.check_not_closed()?;
        let start = SweepMark::start(self.context.db_id, None);
        let mut run = VerifyRun {
            db: self,
            fs: Uncached(self.context.fs.clone()),
            sweep: Sweep::new(options, start, self.scheduler.background().clock().clone())?,
            is_stopped: false,
            damage: found.into_iter().chain(self.lost()).collect(),
            unsupported: Vec::new(),
            read: Read::default(),
        };
        let mut units = self.plan_verify()?;
        run.sweep.plan(&mut units, |unit| (unit.number, unit.bytes));
        let mut bytes = 0;
        // Each is dropped after it was read: then an obsolete table may be deleted.
        for unit in units {
            match run.unit(&unit) {
                Ok(()) => {}
                Err(Halt::Stopped) => {
                    let mark = run.sweep.mark();
                    return Ok(run.report(Some(mark)));
                }
                Err(Halt::Failed(error)) => return Err(error),
            }
            // The planned length, even if less was read: progress must reach the total.
            bytes += unit.bytes;
            run.sweep.finish_file(unit.number, bytes);
        }
        run.sweep.finish();
        Ok(run.report(None))
    }
}

impl VerifyRun<'_> {
    fn report(self, mark: Option<SweepMark>) -> VerifyReport {
        let Read { files, bytes, entries, hidden } = self.read;
        let VerifyRun { damage, unsupported, .. } = self;
        VerifyReport { damage, files, bytes, entries, hidden, unsupported, mark }
    }
}
