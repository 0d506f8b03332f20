//! [`CommitCursorWords`]: the words of a primary's cursor, in memory until its file can be made.
//!
//! Used by `shared/commit_cursor.rs` alone. A full disk, for example, takes the file from an open. The
//! primary goes on, and stores the same words to memory of its own. So the file can be made later in the same
//! epoch, with all that the epoch has settled.
//!
//! Invariants:
//! 1. The magic is stored last, after every other word. A reader and a claimant believe a file with the magic
//!    alone, so they see no file, or one that says all that was settled: never an epoch that has settled
//!    nothing.
//! 2. Nothing is stored while the words move to the file: see
//!    [`CommitCursorWriter::appear`](super::CommitCursorWriter::appear). Words in memory cannot be fenced.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::{CHECKSUM_AT, FIXED_WORDS, LOCKED_AT, STATE_AT, WORDS, checksum_of};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{Fs, LockGuard, MapMode, SharedWords};

/// The wait after a failed attempt, which doubles up to the second one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// A file that is made and says nothing yet.
pub struct CommitCursorFile {
    words: Arc<dyn SharedWords>,
    /// Shows secondaries that the writer lives. Not the lock of the folder: a secondary that looks at a
    /// lock holds it for a moment, and would keep the next writer out.
    _lock: Box<dyn LockGuard>,
}

impl CommitCursorFile {
    /// Makes the file; `None` on a medium that maps nothing.
    pub(super) fn make(fs: &dyn Fs, path: &Path) -> Result<Option<CommitCursorFile>> {
        let mut words = fs.map_words(path, MapMode::Create(WORDS));
        if words.is_err() && fs.delete(path).is_ok() {
            // An attempt of this epoch may have failed before.
            words = fs.map_words(path, MapMode::Create(WORDS));
        }
        let Some(words) = words? else { return Ok(None) };
        // Without the lock no promotion would know that the writer lives.
        let lock = take_lock(fs, path).inspect_err(|_| drop(fs.delete(path)))?;
        words.words()[LOCKED_AT].store(1, Ordering::Relaxed);
        Ok(Some(CommitCursorFile { words, _lock: lock }))
    }

    /// Makes the file valid for readers.
    pub(super) fn publish(&self, fixed: &[u64; FIXED_WORDS]) {
        let words = self.words.words();
        words[CHECKSUM_AT].store(checksum_of(fixed), Ordering::Relaxed);
        // The magic last: a secondary that finds it finds the other words.
        for (at, word) in fixed.iter().enumerate().rev() {
            words[at].store(*word, Ordering::Release);
        }
    }
}

/// The lock of a file that was just made.
fn take_lock(fs: &dyn Fs, path: &Path) -> Result<Box<dyn LockGuard>> {
    fs.try_lock(path)?.ok_or_else(|| {
        let message = format!("another process holds the lock of {}", path.display());
        Error::new(ErrorKind::Locked, message)
    })
}

/// The time of the next attempt to make the file.
struct Attempts {
    path: PathBuf,
    /// The error of the last one.
    error: Error,
    /// The wait after it, and its end; `None` before the first question.
    wait: Duration,
    due: Option<Duration>,
}

/// The words of a primary's cursor, in memory until its file can be made.
pub struct CommitCursorWords {
    /// Present if files can be mapped and the first attempt failed.
    memory: Option<Box<[AtomicU64]>>,
    file: OnceLock<CommitCursorFile>,
    /// `None` once there is a file, or will never be one.
    attempts: Mutex<Option<Attempts>>,
    /// The storage has refused the writer. Relaxed: set once, and nothing is published with it.
    is_refused: AtomicBool,
    /// Held by who makes the file: another one would take it for an orphan file and delete it.
    turn: Mutex<()>,
}

impl CommitCursorWords {
    /// No words.
    pub(super) fn none() -> CommitCursorWords {
        let file = OnceLock::new();
        CommitCursorWords {
            memory: None,
            file,
            attempts: Mutex::new(None),
            is_refused: AtomicBool::new(false),
            turn: Mutex::new(()),
        }
    }

    /// The words of `file`.
    pub(super) fn of_file(file: CommitCursorFile) -> CommitCursorWords {
        CommitCursorWords { file: OnceLock::from(file), ..CommitCursorWords::none() }
    }

    /// Words in memory, because the file `path` could not be made.
    pub(super) fn in_memory(path: PathBuf, error: Error) -> CommitCursorWords {
        let memory = std::iter::repeat_with(AtomicU64::default).take(WORDS).collect();
        let attempts = Attempts { path, error, wait: FIRST_WAIT, due: None };
        CommitCursorWords {
            memory: Some(memory),
            attempts: Mutex::new(Some(attempts)),
            ..CommitCursorWords::none()
        }
    }

    /// Notes that the storage has refused the writer.
    pub(super) fn refuse(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the storage has refused the writer.
    #[inline]
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// The words that the writer stores to.
    #[inline]
    pub(super) fn get(&self) -> Option<&[AtomicU64]> {
        self.of_others().or(self.memory.as_deref())
    }

    /// The words that other processes see.
    #[inline]
    pub(super) fn of_others(&self) -> Option<&[AtomicU64]> {
        self.file.get().map(|file| file.words.words())
    }

    /// The reason why there is no file, if it could not be made.
    pub(super) fn failure(&self) -> Option<Error> {
        self.attempts.lock().as_ref().map(|attempts| attempts.error.clone())
    }

    /// Takes the turn to make the file; `None` if another thread has it.
    pub fn take_turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock()
    }

    /// The time from now to the next attempt, which is zero if it is due; `None` if none is to be made.
    pub fn time_to_attempt(&self, now: Duration) -> Option<Duration> {
        let mut attempts = self.attempts.lock();
        let attempts = attempts.as_mut()?;
        let latest = now.saturating_add(attempts.wait);
        // A clock that went back waits once more at most.
        let due = attempts.due.map_or(latest, |due| due.min(latest));
        attempts.due = Some(due);
        Some(due.saturating_sub(now))
    }

    /// Makes the file that could not be made when the epoch began. It says nothing yet; `None` if that fails
    /// again. The caller has the turn.
    pub fn make_file(&self, fs: &dyn Fs) -> Option<CommitCursorFile> {
        let path = self.attempts.lock().as_ref()?.path.clone();
        match CommitCursorFile::make(fs, &path) {
            Ok(Some(file)) => return Some(file),
            // Another medium is mounted there, which maps nothing.
            Ok(None) => *self.attempts.lock() = None,
            Err(error) => self.note_failure(error),
        }
        None
    }

    /// Notes that an attempt failed.
    pub fn note_failure(&self, error: Error) {
        if let Some(attempts) = &mut *self.attempts.lock() {
            attempts.wait = (2 * attempts.wait).min(LONGEST_WAIT);
            attempts.error = error;
            attempts.due = None;
        }
    }

    /// Moves the words to `file`, in which `fix` has changed some, and has it believed.
    pub(super) fn move_to(
        &self,
        file: CommitCursorFile,
        fixed: &[u64; FIXED_WORDS],
        fix: impl FnOnce(&[AtomicU64]),
    ) {
        let Some(memory) = &self.memory else { return };
        let words = file.words.words();
        for at in (STATE_AT..WORDS).filter(|at| *at != LOCKED_AT) {
            words[at].store(memory[at].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        fix(words);
        file.publish(fixed);
        // No other file is there: the caller is the only one at a time, and makes no second one.
        let _ = self.file.set(file);
        *self.attempts.lock() = None;
    }
}
