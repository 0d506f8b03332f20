//! [`Sweep`]: live files, read one after the other within a limit of bytes a second.
//!
//! The parts that `Db::verify` and the scrub of a sister crate have in common: options, progress, a
//! mark from which a later run continues, and the callback that reports progress and may stop the
//! run. Files come in the order of their numbers. A number is never used twice and only grows, so a
//! mark stays a place in that order however many files come and go.
//!
//! Invariants:
//! 1. A file is done as a whole or not at all, so that a run that was stopped and its continuation
//!    cover every file exactly once.
//! 2. The callback runs on the thread of the caller, without a lock.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::clock::{Clock, Pace};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{DbId, FileNo, PartitionId};

/// The files and bytes that a run has read, and those that are ahead of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepProgress {
    /// Files that were read to their end.
    pub files_done: u64,
    /// Files in all.
    pub files: u64,
    /// Bytes that were read.
    pub bytes_done: u64,
    /// Bytes in all.
    pub bytes: u64,
}

/// A position in the order of the files: all earlier files were read. A later run can continue from it.
/// Its text form ([`fmt::Display`], [`FromStr`]) can be stored in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepMark {
    db: DbId,
    /// Absent for a run over all files of the database.
    partition: Option<PartitionId>,
    file: FileNo,
}

impl SweepMark {
    /// The place before all files of a database, or of one partition of it.
    pub fn start(db: DbId, partition: Option<PartitionId>) -> SweepMark {
        SweepMark { db, partition, file: FileNo(0) }
    }

    /// Its database.
    pub fn db(&self) -> DbId {
        self.db
    }

    /// The partition whose tables it is about, if it is about one.
    pub fn partition(&self) -> Option<PartitionId> {
        self.partition
    }
}

impl fmt::Display for SweepMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-", self.db.0)?;
        if let Some(partition) = self.partition {
            write!(f, "{:08x}-", partition.0)?;
        }
        write!(f, "{:016x}", self.file.0)
    }
}

impl FromStr for SweepMark {
    type Err = Error;

    fn from_str(text: &str) -> Result<SweepMark> {
        // Only what it would be written as: a mark that was cut or edited is none.
        parse_mark(text).filter(|mark| mark.to_string() == text).ok_or_else(|| {
            let message = format!("{text:?} is not the mark of a verification or a scrub");
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

fn parse_mark(text: &str) -> Option<SweepMark> {
    let (db, rest) = text.split_once('-')?;
    let (partition, file) = match rest.split_once('-') {
        None => (None, rest),
        Some((partition, file)) => {
            (Some(PartitionId(u32::from_str_radix(partition, 16).ok()?)), file)
        }
    };
    Some(SweepMark {
        db: DbId(u128::from_str_radix(db, 16).ok()?),
        partition,
        file: FileNo(u64::from_str_radix(file, 16).ok()?),
    })
}

/// Called after each block; `false` stops.
type OnProgress<'a> = Box<dyn FnMut(&SweepProgress) -> bool + 'a>;

/// The options of a run: rate limit, start, and a callback for progress.
#[derive(Default)]
#[must_use = "options do nothing by themselves"]
pub struct SweepOptions<'a> {
    bytes_per_second: u64,
    resume_after: Option<SweepMark>,
    on_progress: Option<OnProgress<'a>>,
}

impl<'a> SweepOptions<'a> {
    /// Returns the defaults: no limit, from the first file, no callback.
    pub fn new() -> SweepOptions<'a> {
        SweepOptions::default()
    }

    /// Sets the maximum number of bytes per second, by the clock of the database. The default 0 is no
    /// limit. The run parks the thread of the caller after each block to meet the limit.
    pub fn bytes_per_second(mut self, bytes: u64) -> SweepOptions<'a> {
        self.bytes_per_second = bytes;
        self
    }

    /// Continues a stopped run after its mark, which is the `mark` of its report.
    pub fn resume_after(mut self, mark: Option<SweepMark>) -> SweepOptions<'a> {
        self.resume_after = mark;
        self
    }

    /// Calls `on_progress` on the thread of the caller, without locks, after each block and during waits for
    /// the limit. If it returns `false`, the run stops.
    pub fn on_progress(
        mut self,
        on_progress: impl FnMut(&SweepProgress) -> bool + 'a,
    ) -> SweepOptions<'a> {
        self.on_progress = Some(Box::new(on_progress));
        self
    }
}

impl fmt::Debug for SweepOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SweepOptions")
            .field("bytes_per_second", &self.bytes_per_second)
            .field("resume_after", &self.resume_after)
            .finish_non_exhaustive()
    }
}

/// One run.
pub struct Sweep<'a> {
    clock: Arc<dyn Clock>,
    pace: Pace,
    on_progress: Option<OnProgress<'a>>,
    progress: SweepProgress,
    mark: SweepMark,
}

impl<'a> Sweep<'a> {
    /// A run from `start`, or from the mark of the options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if that mark is of another database or partition.
    pub fn new(
        options: SweepOptions<'a>,
        start: SweepMark,
        clock: Arc<dyn Clock>,
    ) -> Result<Sweep<'a>> {
        let mark = options.resume_after.unwrap_or(start);
        // File numbers mean nothing in another database: the run would leave out files that were never read.
        if (mark.db, mark.partition) != (start.db, start.partition) {
            let message = "the mark is of another database or partition";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(Sweep {
            clock,
            pace: Pace::new(options.bytes_per_second),
            on_progress: options.on_progress,
            progress: SweepProgress::default(),
            mark,
        })
    }

    /// Leaves the files out that were read by the run that this one continues, puts the rest in
    /// order, and counts them. `describe` says the number of a file, and how many bytes of it are
    /// read.
    pub fn plan<T>(&mut self, files: &mut Vec<T>, describe: impl Fn(&T) -> (FileNo, u64)) {
        // New files get greater numbers, so nothing that was written since is left out.
        files.retain(|file| describe(file).0 > self.mark.file);
        files.sort_by_key(|file| describe(file).0);
        self.progress.files = files.len() as u64;
        self.progress.bytes = files.iter().map(|file| describe(file).1).sum();
    }

    /// Notes that `bytes` more were read and waits as long as the limit asks for; `false` if the
    /// caller wants no more. While it waits it asks `check_open`.
    ///
    /// # Errors
    /// Those of `check_open`.
    pub fn advance(&mut self, bytes: u64, check_open: impl Fn() -> Result<()>) -> Result<bool> {
        // Before the wait: what was read counts even if the caller stops here.
        self.progress.bytes_done += bytes;
        let mut goes_on = self.report();
        self.pace.take(bytes, self.clock.now());
        while goes_on && self.pace.park(|| self.clock.now()) {
            check_open()?;
            goes_on = self.report();
        }
        Ok(goes_on)
    }

    /// Notes that a file was read to its end, and with it `bytes` in all: where the walk fell short
    /// of the file, because of damage or of what has gone, that is more than was read.
    pub fn finish_file(&mut self, file: FileNo, bytes: u64) {
        self.mark.file = file;
        self.progress.files_done += 1;
        self.progress.bytes_done = bytes;
    }

    /// Reports to the caller that everything is done. Its answer has no effect.
    pub fn finish(&mut self) {
        self.report();
    }

    /// The place after the last file that is done.
    pub fn mark(&self) -> SweepMark {
        self.mark
    }

    /// The files and bytes that are done and ahead.
    pub fn progress(&self) -> &SweepProgress {
        &self.progress
    }

    /// Reports the progress to the caller; returns `false` if it stops the sweep.
    fn report(&mut self) -> bool {
        self.on_progress.as_mut().is_none_or(|on_progress| on_progress(&self.progress))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    const DB: DbId = DbId(0xabc);

    #[test]
    fn marks_read_back_and_nothing_else_does() {
        for partition in [None, Some(PartitionId(3))] {
            let mark = SweepMark { db: DB, partition, file: FileNo(42) };
            assert_eq!(mark.to_string().parse::<SweepMark>().ok(), Some(mark));
            let longer = format!("{mark} ");
            for text in ["", "-", "--", "abc-2a", "abc-3-2a", "+bc--", &longer, &longer[1..]] {
                assert!(text.parse::<SweepMark>().is_err(), "{text}");
            }
        }
    }

    /// A clock that stands still.
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
    }

    fn sweep(options: SweepOptions<'_>, partition: Option<PartitionId>) -> Result<Sweep<'_>> {
        Sweep::new(options, SweepMark::start(DB, partition), Arc::new(Still))
    }

    #[test]
    fn a_stopped_run_and_its_continuation_cover_every_file_once() {
        let all = [(FileNo(9), 90), (FileNo(2), 20), (FileNo(5), 50)];
        let reported = Cell::new(0);
        let options = SweepOptions::new().on_progress(|progress| {
            reported.set(progress.bytes_done);
            progress.files_done == 0
        });
        let mut first = sweep(options, None).unwrap();
        let mut files = all.to_vec();
        first.plan(&mut files, |file| *file);
        assert_eq!((files[0].0, first.progress().bytes), (FileNo(2), 160));
        assert!(first.advance(20, || Ok(())).unwrap());
        first.finish_file(FileNo(2), 20);
        assert!(!first.advance(50, || Ok(())).unwrap(), "the caller wants no more");
        let mark = first.mark();
        drop(first);
        assert_eq!(reported.get(), 70);
        let mut rest = sweep(SweepOptions::new().resume_after(Some(mark)), None).unwrap();
        let mut files = all.to_vec();
        rest.plan(&mut files, |file| *file);
        assert_eq!(files, [(FileNo(5), 50), (FileNo(9), 90)]);
    }

    #[test]
    fn a_mark_of_something_else_is_refused() {
        let of =
            |partition| SweepOptions::new().resume_after(Some(SweepMark::start(DB, partition)));
        assert!(sweep(of(None), Some(PartitionId(1))).is_err());
        assert!(sweep(of(Some(PartitionId(1))), Some(PartitionId(2))).is_err());
        assert!(sweep(of(Some(PartitionId(2))), Some(PartitionId(2))).is_ok());
        let other = SweepMark::start(DbId(1), None);
        assert!(sweep(SweepOptions::new().resume_after(Some(other)), None).is_err());
    }

    #[test]
    fn while_a_limit_makes_it_wait_it_looks_whether_the_database_is_open() {
        let mut slow = sweep(SweepOptions::new().bytes_per_second(1), None).unwrap();
        assert_eq!(
            slow.advance(10, || Err(Error::new(ErrorKind::Closed, "closed"))).unwrap_err().kind(),
            ErrorKind::Closed
        );
    }
}
