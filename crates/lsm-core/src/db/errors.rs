//! The meaning of a failure of the storage or of a hook, and the reaction of the store: one table.
//!
//! [`rule`] returns it for each reason (the failed work) and class (the kind of failure).
//! Background work keeps its last failure with its rule, for [`Health`](super::Health) and
//! listeners. Nothing here is fatal: a later success ends every failure.
//!
//! ```text
//!                no space     I/O          failed sync         corruption        hook               panic
//! WalAppend      soft, call   soft, call   -                   -                 -                  -
//! WalSync        -            -            read-only, rewrite  -                 read-only, rewrite read-only, rewrite
//! ReserveSegment soft, retry  soft, retry  soft, retry         -                 -                  soft, retry
//! Flush          hard, retry  hard, retry  hard, retry         -                 hard, retry        hard, retry
//! Compaction     soft, retry  soft, retry  soft, retry         soft, skipped     soft, retry        soft, retry
//! Manifest       hard, retry  hard, retry  hard, retry         -                 -                  -
//! Obsolete       -            soft, retry  -                   -                 soft, retry        soft, retry
//! Read           -            soft, call   -                   soft, call        soft, call         -
//! ```
//!
//! A hook is code of the application that panicked; if it returns an error, the class of that error
//! counts. Until it works again its partition is served last, so that others continue.
//!
//! A panic is one of the engine, or of a file system or clock given to it: a bug. Background work is
//! tried again after it. A panic in the middle of an edit leaves the manifest in doubt: flushes and
//! compactions fail from then on until the next open.
//!
//! A sync that finds no space is a failed sync. A file whose sync failed is never synced or trusted
//! again, whatever its kind: its content goes to a new file.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::fs::names::{FileKind, FileName};

/// The work that was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Reason {
    /// A commit was appended to the log.
    WalAppend,
    /// The log was synced.
    WalSync,
    /// A segment of the log was made ready.
    ReserveSegment,
    /// Memtables were written to a table.
    Flush,
    /// Tables were merged.
    Compaction,
    /// An edit was appended to the manifest.
    Manifest,
    /// Obsolete files and values were removed.
    Obsolete,
    /// A reader asked for a block.
    Read,
}

/// The class of the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Class {
    /// The device is full.
    NoSpace,
    /// The operating system returned an error; another attempt may succeed.
    Io,
    /// A sync failed: earlier writes to the file may be lost without another error.
    FailedSync,
    /// Stored bytes differ from the written bytes.
    Corruption,
    /// A compaction filter or a value store panicked; the error names it.
    Hook,
    /// The engine panicked, or code given to it that is no hook; the error names the work.
    Panic,
}

/// The consequence for writers. Readers continue in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Severity {
    /// No consequence, or the error of their own call.
    Soft,
    /// Writers continue until memory, level 0 or the log segment is full. Then they get the error until
    /// the failure ends.
    Hard,
    /// Writers are refused until the store has resumed.
    ReadOnly,
}

/// The reaction of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Resume {
    /// The call returned the error. The next call tries again, with a new file if necessary.
    NextCall,
    /// Background work retries with new files.
    Retry,
    /// The store writes its memtables to new files and begins a new log. It retries until it succeeds.
    Rewrite,
    /// Compactions skip the damaged table until the next open, or until no reader sees it. All other work continues.
    LeftAlone,
}

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The consequence for writers.
    pub severity: Severity,
    /// The reaction of the store.
    pub resume: Resume,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Reason; 8] = [
        Reason::WalAppend,
        Reason::WalSync,
        Reason::ReserveSegment,
        Reason::Flush,
        Reason::Compaction,
        Reason::Manifest,
        Reason::Obsolete,
        Reason::Read,
    ];
}

impl Class {
    /// Every class.
    pub const ALL: [Class; 6] = [
        Class::NoSpace,
        Class::Io,
        Class::FailedSync,
        Class::Corruption,
        Class::Hook,
        Class::Panic,
    ];

    /// The class of an error.
    pub fn of(error: &Error) -> Class {
        match error.kind() {
            ErrorKind::Corruption => Class::Corruption,
            // Before `NoSpace`: a sync that fails for lack of space may have lost data, too.
            _ if error.is_failed_sync() => Class::FailedSync,
            ErrorKind::NoSpace => Class::NoSpace,
            ErrorKind::HookPanicked => Class::Hook,
            ErrorKind::Internal => Class::Panic,
            _ => Class::Io,
        }
    }
}

/// The table; `None` if a failure cannot be of that class.
pub fn rule(reason: Reason, class: Class) -> Option<Rule> {
    use Class::{Corruption, FailedSync, Hook, Io, NoSpace, Panic};
    use Resume::{LeftAlone, NextCall, Retry, Rewrite};
    use Severity::{Hard, ReadOnly, Soft};
    let (severity, resume) = match (reason, class) {
        (Reason::WalAppend, NoSpace | Io) => (Soft, NextCall),
        (Reason::WalSync, FailedSync | Hook | Panic) => (ReadOnly, Rewrite),
        (Reason::ReserveSegment, NoSpace | Io | FailedSync | Panic) => (Soft, Retry),
        (Reason::Flush | Reason::Manifest, NoSpace | Io | FailedSync) => (Hard, Retry),
        (Reason::Flush, Hook | Panic) => (Hard, Retry),
        (Reason::Compaction, NoSpace | Io | FailedSync | Hook | Panic) => (Soft, Retry),
        (Reason::Compaction, Corruption) => (Soft, LeftAlone),
        (Reason::Obsolete, Io | Hook | Panic) => (Soft, Retry),
        (Reason::Read, Io | Corruption | Hook) => (Soft, NextCall),
        _ => return None,
    };
    Some(Rule { severity, resume })
}

/// A failure of background work that no success followed yet.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BackgroundFailure {
    /// The work that was being done.
    pub reason: Reason,
    /// The class of the failure.
    pub class: Class,
    /// The consequence for writers.
    pub severity: Severity,
    /// The reaction of the store.
    pub resume: Resume,
    /// The last error.
    pub error: Error,
    /// Failures in a row.
    pub attempts: u32,
    /// The duration of the failure so far.
    pub since: Duration,
    /// The maximum time until the next attempt; `None` if only the next open tries again.
    pub retry_in: Option<Duration>,
}

impl fmt::Display for BackgroundFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason;
        let severity = self.severity;
        let since = self.since;
        write!(f, "{reason:?} fails ({severity:?}, for {since:?}, {} times", self.attempts)?;
        match self.retry_in {
            Some(retry) => write!(f, ", next attempt in {retry:?}): {}", self.error),
            None => write!(f, ", no further attempt): {}", self.error),
        }
    }
}

/// Waits between attempts: the first, and the longest.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(4);

/// Failures in a row of one kind of background work. Times are those of the database's clock.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    pub(super) error: Error,
    reason: Reason,
    attempts: u32,
    began: Duration,
    last: Duration,
}

impl Failing {
    /// Counts one more failure, at `now`; returns whether it is news. The file that the error names
    /// shows the part that failed; `work` is the attempted work.
    pub(super) fn count(
        slot: &mut Option<Failing>,
        work: Reason,
        error: Error,
        now: Duration,
    ) -> bool {
        let reason = reason_of(work, &error);
        match slot {
            Some(failing) if failing.reason == reason && failing.error.kind() == error.kind() => {
                failing.attempts = failing.attempts.saturating_add(1);
                (failing.error, failing.last) = (error, now);
                false
            }
            _ => {
                // A failure of another kind starts a new count, so that listeners get an event for
                // it.
                *slot = Some(Failing { error, reason, attempts: 1, began: now, last: now });
                true
            }
        }
    }

    /// The delay before the next attempt: twice as long after each.
    pub(super) fn delay(&self) -> Duration {
        // The shift is bounded because the attempts are not.
        RETRY_MIN.saturating_mul(1 << (self.attempts - 1).min(10)).min(RETRY_MAX)
    }

    /// The failure as a user sees it, at `now`.
    pub(super) fn reported(&self, now: Duration) -> BackgroundFailure {
        let class = Class::of(&self.error);
        // A cell that the table does not have counts as the mildest that is tried again.
        let unknown = Rule { severity: Severity::Soft, resume: Resume::Retry };
        let Rule { severity, resume } = rule(self.reason, class).unwrap_or(unknown);
        let due = self.last + self.delay();
        BackgroundFailure {
            reason: self.reason,
            class,
            severity,
            resume,
            error: self.error.clone(),
            attempts: self.attempts,
            since: now.saturating_sub(self.began),
            retry_in: (resume != Resume::LeftAlone).then(|| due.saturating_sub(now)),
        }
    }
}

/// The part that failed during `work`, by the file that the error names.
fn reason_of(work: Reason, error: &Error) -> Reason {
    let name = error.path().and_then(|path| FileName::parse(path.file_name()?.to_str()?));
    match name.map(|name| name.kind) {
        Some(FileKind::Manifest) => Reason::Manifest,
        // The latched error of a failed sync: background work gets it too, without being its cause.
        Some(FileKind::Wal) if error.kind() == ErrorKind::ReadOnly => Reason::WalSync,
        Some(FileKind::Wal) => Reason::ReserveSegment,
        _ => work,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn failure(deed: &str, file: &str, kind: std::io::ErrorKind) -> Error {
        Error::io(deed, Path::new(file), kind.into())
    }

    #[test]
    fn a_failure_waits_twice_as_long_each_time_and_keeps_when_it_began() {
        let mut slot = None;
        let seconds = Duration::from_secs;
        let error =
            || failure("append to", "0000000000000004-00000001.sst", std::io::ErrorKind::Other);
        assert!(Failing::count(&mut slot, Reason::Flush, error(), seconds(10)));
        assert!(!Failing::count(&mut slot, Reason::Flush, error(), seconds(20)));
        let reported = slot.as_ref().unwrap().reported(seconds(20));
        assert_eq!((reported.reason, reported.severity), (Reason::Flush, Severity::Hard));
        assert_eq!((reported.since, reported.attempts), (seconds(10), 2));
        assert_eq!(reported.retry_in, Some(2 * RETRY_MIN));
        for _ in 0..40 {
            Failing::count(&mut slot, Reason::Flush, error(), seconds(30));
        }
        assert_eq!(slot.as_ref().unwrap().delay(), RETRY_MAX);
        let full = failure("append to", "x", std::io::ErrorKind::StorageFull);
        assert!(
            Failing::count(&mut slot, Reason::Flush, full, seconds(40)),
            "another class is news"
        );
    }

    #[test]
    fn what_failed_shows_in_the_file() {
        let other = std::io::ErrorKind::Other;
        for (file, reason) in [
            ("/db/0000000000000004-00000001.manifest", Reason::Manifest),
            ("/db/0000000000000004-00000001.wal", Reason::ReserveSegment),
            ("/db/0000000000000004-00000001.sst", Reason::Flush),
            ("/db", Reason::Flush),
        ] {
            assert_eq!(reason_of(Reason::Flush, &failure("sync", file, other)), reason);
        }
        let log = failure("sync", "/db/0000000000000004-00000001.wal", other);
        let latched = Error::because(ErrorKind::ReadOnly, "refused", log);
        assert_eq!(reason_of(Reason::Flush, &latched), Reason::WalSync);
        assert_eq!(Class::of(&latched), Class::FailedSync);
    }
}
