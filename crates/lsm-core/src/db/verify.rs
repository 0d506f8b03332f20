//! `Db::verify`: reads every live file from its first byte to its last and reports all damage.
//!
//! Works beside writers, flushes and compactions. What is live is decided at the call; files that
//! are made later are not looked at, and files that go meanwhile are either held until they were
//! read (tables) or left out (log segments, manifests). It repairs nothing and changes nothing.
//!
//! ```text
//! plan (files.rs) -> each file in the order of the numbers -> damage, progress, pace (clock/pace.rs)
//! ```
//!
//! Invariants:
//! 1. A sound store is never complained about, whatever goes on: a file is judged only up to what
//!    was written of it at the call, and damage only while the file still counts.
//! 2. A file is reported whole or not at all, so that a run that was stopped and its continuation
//!    cover every file exactly once.
//! 3. No lock is held while a table or a segment is read. The manifest is read under the lock of
//!    its appends.

mod files;

use std::fmt;
use std::str::FromStr;

pub(super) use files::Begun;

use super::DbInner;
use crate::clock::Pace;
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::fs::Uncached;
use crate::types::{DbId, FileNo};

use files::Unit;

/// How far a run came, and what is ahead of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyProgress {
    /// Files that were read to their end.
    pub files_done: u64,
    /// Files in all.
    pub files: u64,
    /// Bytes that were read.
    pub bytes_done: u64,
    /// Bytes in all.
    pub bytes: u64,
}

/// A place in the order of the files, to go on from: everything up to it was read. Its text form
/// ([`fmt::Display`], [`FromStr`]) may be kept in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyMark {
    db: DbId,
    file: FileNo,
}

impl fmt::Display for VerifyMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:016x}", self.db.0, self.file.0)
    }
}

impl FromStr for VerifyMark {
    type Err = Error;

    fn from_str(text: &str) -> Result<VerifyMark> {
        let parsed = text.split_once('-').and_then(|(db, file)| {
            let db = DbId(u128::from_str_radix(db, 16).ok()?);
            Some(VerifyMark { db, file: FileNo(u64::from_str_radix(file, 16).ok()?) })
        });
        parsed.filter(|mark| mark.to_string() == text).ok_or_else(|| {
            let message = format!("{text:?} is no mark of a verification");
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

/// Called after each block; `false` stops.
type OnProgress<'a> = Box<dyn FnMut(&VerifyProgress) -> bool + 'a>;

/// How `Db::verify` goes about it.
#[derive(Default)]
#[must_use = "options do nothing by themselves"]
pub struct VerifyOptions<'a> {
    bytes_per_second: u64,
    resume_after: Option<VerifyMark>,
    on_progress: Option<OnProgress<'a>>,
}

impl<'a> VerifyOptions<'a> {
    /// No limit, from the first file on, nobody told.
    pub fn new() -> VerifyOptions<'a> {
        VerifyOptions::default()
    }

    /// Reads no more than this many bytes a second, by the database's clock; 0, the default, is no
    /// limit. After each block the caller's thread is parked for as long as that takes.
    pub fn bytes_per_second(mut self, bytes: u64) -> VerifyOptions<'a> {
        self.bytes_per_second = bytes;
        self
    }

    /// Goes on behind the mark of a run that was stopped: [`VerifyReport::mark`].
    pub fn resume_after(mut self, mark: Option<VerifyMark>) -> VerifyOptions<'a> {
        self.resume_after = mark;
        self
    }

    /// Calls `told` on the caller's thread, without any lock, after each block, and while a limit
    /// makes it wait. When it answers `false`, the run stops.
    pub fn on_progress(
        mut self,
        told: impl FnMut(&VerifyProgress) -> bool + 'a,
    ) -> VerifyOptions<'a> {
        self.on_progress = Some(Box::new(told));
        self
    }
}

impl fmt::Debug for VerifyOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyOptions")
            .field("bytes_per_second", &self.bytes_per_second)
            .field("resume_after", &self.resume_after)
            .finish_non_exhaustive()
    }
}

/// What `Db::verify` found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    damage: Vec<Damage>,
    /// Files that were read to their end.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Entries of the tables among them, hidden ones too, and operations in the log.
    pub entries: u64,
    /// Where to go on, if the run was stopped; `None` if it came to its end. A run that was
    /// stopped before its first file was done and began at the front has the mark before all.
    pub mark: Option<VerifyMark>,
}

impl VerifyReport {
    /// All damage, file by file in the order of the file numbers.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Whether every live file was read and all of it is sound. A resumed run speaks for its own
    /// files alone.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty() && self.mark.is_none()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VerifyReport { files, bytes, entries, .. } = self;
        let places = self.damage.len();
        let found = match places {
            0 => "no damage".to_owned(),
            1 => "damage in 1 place".to_owned(),
            _ => format!("damage in {places} places"),
        };
        write!(f, "{found}; {files} files, {bytes} bytes, {entries} entries read")?;
        if let Some(mark) = self.mark {
            write!(f, "; stopped, go on behind {mark}")?;
        }
        self.damage.iter().try_for_each(|damage| write!(f, "\n  {damage}"))
    }
}

/// Why a file was not read to its end.
enum Halt {
    /// The caller said so.
    Stopped,
    Failed(Error),
}

/// One call.
struct Run<'a> {
    db: &'a DbInner,
    /// Where log and manifest are read; the reader of a table does so by itself.
    fs: Uncached,
    options: VerifyOptions<'a>,
    pace: Pace,
    progress: VerifyProgress,
    is_stopped: bool,
    damage: Vec<Damage>,
    entries: u64,
}

impl Run<'_> {
    /// Says that `bytes` more were read, and waits as long as the limit asks for.
    fn advance(&mut self, bytes: u64) -> Result<()> {
        self.progress.bytes_done += bytes;
        self.tell()?;
        self.pace.take(bytes, self.db.background.now());
        while self.pace.park(|| self.db.background.now()) {
            self.db.check_not_closed()?;
            self.tell()?;
        }
        Ok(())
    }

    /// Tells the caller; an error if it wants no more. Whoever sees it asks `is_stopped`.
    fn tell(&mut self) -> Result<()> {
        let told = self.options.on_progress.as_mut();
        if told.is_none_or(|told| told(&self.progress)) {
            return Ok(());
        }
        self.is_stopped = true;
        Err(Error::new(ErrorKind::InvalidArgument, "the caller stopped the verification"))
    }

    /// Reads one file. What it found counts only if it came to the end.
    fn unit(&mut self, unit: &Unit) -> Result<(), Halt> {
        let (damage, entries) = (self.damage.len(), self.entries);
        let done = self.check_unit(unit);
        // What a closed database says of its files may be another process's doing.
        let done = done.and_then(|()| self.db.check_not_closed());
        done.map_err(|error| {
            self.damage.truncate(damage);
            self.entries = entries;
            if self.is_stopped { Halt::Stopped } else { Halt::Failed(error) }
        })
    }
}

impl DbInner {
    /// See the module.
    pub(super) fn verify(&self, options: VerifyOptions<'_>) -> Result<VerifyReport> {
        self.check_not_closed()?;
        let after = match options.resume_after {
            Some(mark) if mark.db != self.db_id => {
                let message = "the mark is of another database";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            mark => mark.map_or(FileNo(0), |mark| mark.file),
        };
        let mut units = self.plan_verify()?;
        units.retain(|unit| unit.number > after);
        let mut run = Run {
            db: self,
            fs: Uncached(self.fs.clone()),
            pace: Pace::new(options.bytes_per_second),
            options,
            progress: VerifyProgress {
                files: units.len() as u64,
                bytes: units.iter().map(|unit| unit.bytes).sum(),
                ..VerifyProgress::default()
            },
            is_stopped: false,
            damage: Vec::new(),
            entries: 0,
        };
        let mut mark = VerifyMark { db: self.db_id, file: after };
        let mut bytes = 0;
        // Each is dropped when it was read: a table that is obsolete by then may go.
        for unit in units {
            match run.unit(&unit) {
                Ok(()) => {}
                Err(Halt::Stopped) => return Ok(run.report(bytes, Some(mark))),
                Err(Halt::Failed(error)) => return Err(error),
            }
            mark.file = unit.number;
            bytes += unit.bytes;
            run.progress.files_done += 1;
            // Where the walk fell short of the file, because of damage or of what has gone.
            run.progress.bytes_done = bytes;
        }
        // The last word is that everything is done, and cannot stop anything.
        let _ = run.tell();
        Ok(run.report(bytes, None))
    }
}

impl Run<'_> {
    fn report(self, bytes: u64, mark: Option<VerifyMark>) -> VerifyReport {
        let (files, entries, damage) = (self.progress.files_done, self.entries, self.damage);
        VerifyReport { damage, files, bytes, entries, mark }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_read_back_and_nothing_else_does() {
        let mark = VerifyMark { db: DbId(0xabc), file: FileNo(42) };
        assert_eq!(mark.to_string().parse::<VerifyMark>().ok(), Some(mark));
        for text in ["", "-", "abc-2a", "+bc", &format!("{mark} ")] {
            assert!(text.parse::<VerifyMark>().is_err(), "{text}");
        }
    }
}
