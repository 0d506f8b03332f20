//! Who runs background work, and when: real threads in production, single steps in tests.
//!
//! A thread looks for work when it is told that there may be some, and goes on until there is
//! none. What the work is lies in `flush.rs`, `compaction.rs` and `log.rs`; none of it needs a
//! foreground write to make progress.
//!
//! Invariants:
//! 1. Threads have names and are joined by `stop`.
//! 2. A failure is kept until the same kind of work succeeds; the work is tried again by itself,
//!    at the latest after a wait that grows with the failures in a row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::DbInner;
use super::errors::{BackgroundFailure, Failing, Reason};
use super::events::in_listener;
use super::log::LogChore;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::Event;

/// Who waits looks again this often, for news that nobody told.
const RETRY: Duration = Duration::from_millis(250);
/// An idle log is marked this long after its last sync.
const MARK_AFTER: Duration = Duration::from_millis(10);
/// Files that an iterator holds are looked at again this often.
const LOOK_AT_HELD_FILES: Duration = Duration::from_secs(1);

/// Who does background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundMode {
    /// Threads of the database.
    #[default]
    Threads,
    /// `Db::step`, one piece at a time, and writers that are stopped: for tests.
    Stepped,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Flush,
    Compaction,
    Log,
}

impl Task {
    /// What fails if it does.
    fn work(self) -> Reason {
        match self {
            Task::Flush => Reason::Flush,
            Task::Compaction => Reason::Compaction,
            Task::Log => Reason::ReserveSegment,
        }
    }
}

#[derive(Default)]
struct State {
    stop: bool,
    /// Grows whenever there may be new work.
    ticket: u64,
    /// Threads that are looking for work or doing it.
    active: usize,
    /// By the work that failed and did not succeed since.
    failing: BTreeMap<Reason, Option<Failing>>,
    /// How often background work failed since the open.
    failure_count: u64,
}

impl State {
    /// What keeps work from being done that somebody may wait for: nobody does for what is
    /// obsolete.
    fn error(&self) -> Option<Error> {
        let mut awaited = self.failing.iter().filter(|(work, _)| **work != Reason::Obsolete);
        awaited.find_map(|(_, failing)| Some(failing.as_ref()?.error.clone()))
    }
}

/// Since when the log thread has seen the same chore.
#[derive(Default)]
struct LogWatch(Option<(LogChore, Duration)>);

impl LogWatch {
    /// For how long `chore` has been due, at `now`.
    fn age(&mut self, chore: LogChore, now: Duration) -> Duration {
        match self.0 {
            Some((same, since)) if same == chore => now.saturating_sub(since),
            _ => {
                self.0 = Some((chore, now));
                Duration::ZERO
            }
        }
    }
}

/// See the module.
pub(super) struct Background {
    mode: BackgroundMode,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether the log thread has been told; saves the wake-up per write.
    log_told: AtomicBool,
    log_watch: Mutex<LogWatch>,
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    pub(super) fn new(mode: BackgroundMode, clock: Arc<dyn Clock>) -> Background {
        Background {
            mode,
            clock,
            state: Mutex::default(),
            changed: Condvar::new(),
            log_told: AtomicBool::new(false),
            log_watch: Mutex::default(),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        }
    }

    pub(super) fn mode(&self) -> BackgroundMode {
        self.mode
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The failure that keeps work from being done at present, if one does.
    pub(super) fn error(&self) -> Option<Error> {
        self.state.lock().error()
    }

    /// What fails at present.
    pub(super) fn failures(&self) -> Vec<BackgroundFailure> {
        let now = self.now();
        let state = self.state.lock();
        state.failing.values().flatten().map(|failing| failing.told(now)).collect()
    }

    /// A flush by whomever worked.
    pub(super) fn flush_worked(&self) {
        self.state.lock().failing.remove(&Reason::Flush);
    }

    /// Tells the threads that there may be something to flush or to compact.
    pub(super) fn flush_due(&self) {
        self.wake_all();
    }

    /// Tells the log thread that something was written. Cheap when it knows.
    #[inline]
    pub(super) fn log_active(&self) {
        if !self.log_told.load(Ordering::Relaxed) && !self.log_told.swap(true, Ordering::AcqRel) {
            self.wake_all();
        }
    }

    /// Has every thread look for work, and every waiter look again.
    pub(super) fn wake_all(&self) {
        self.state.lock().ticket += 1;
        self.changed.notify_all();
    }

    /// Whether running jobs should give up.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn tasks(&self, compaction_threads: usize) -> Vec<(Task, String)> {
        if self.mode == BackgroundMode::Stepped {
            return Vec::new();
        }
        let mut tasks = vec![
            (Task::Flush, "siltstone-flush".to_owned()),
            (Task::Log, "siltstone-log".to_owned()),
        ];
        let compaction = |number| (Task::Compaction, format!("siltstone-compact-{number}"));
        tasks.extend((0..compaction_threads).map(compaction));
        tasks
    }

    /// Ends all threads: jobs that run give up, and nothing new is begun.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.state.lock().stop = true;
        self.changed.notify_all();
        let own = std::thread::current().id();
        let threads = std::mem::take(&mut *self.threads.lock());
        // A listener that closes the database runs on one of them: that one ends behind it.
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // A thread that panicked has told so itself; there is nobody else to tell here.
            let _ = thread.join();
        }
    }

    /// Waits for news or `timeout`; `false` when it is time to end.
    fn wait(
        &self,
        state: &mut MutexGuard<'_, State>,
        seen: &mut u64,
        timeout: Option<Duration>,
    ) -> bool {
        while !state.stop && state.ticket == *seen {
            match timeout {
                None => self.changed.wait(state),
                Some(timeout) => {
                    if self.changed.wait_for(state, timeout).timed_out() {
                        break;
                    }
                }
            }
        }
        *seen = state.ticket;
        !state.stop
    }
}

impl DbInner {
    /// Starts the threads.
    pub(super) fn start_background(self: &Arc<Self>) -> Result<()> {
        for (task, name) in self.background.tasks(self.options.compaction_threads) {
            let db = self.clone();
            let thread = std::thread::Builder::new().name(name.clone());
            let thread = thread.spawn(move || db.work(task)).map_err(|error| {
                Error::new(ErrorKind::Io, format!("cannot start thread {name}: {error}"))
            })?;
            self.background.threads.lock().push(thread);
        }
        Ok(())
    }

    fn work(&self, task: Task) {
        let background = &self.background;
        let mut seen = u64::MAX;
        let mut timeout = Some(Duration::ZERO);
        loop {
            let mut state = background.state.lock();
            if !background.wait(&mut state, &mut seen, timeout) {
                return;
            }
            state.active += 1;
            drop(state);
            let outcome = match task {
                Task::Flush => self.repeat(|| self.flush_one()),
                Task::Compaction => self.repeat(|| self.compact_one()),
                Task::Log => self.tend_log(),
            };
            // It notes its own failure.
            let _ = self.remove_obsolete();
            let held = !self.obsolete.is_empty();
            let retry = self.note_outcome(task.work(), outcome.as_ref().map(|_| ()));
            timeout = match &outcome {
                Err(_) => Some(retry),
                Ok(Some(next)) => Some(*next),
                // What could not be removed is still held.
                Ok(None) => held.then_some(LOOK_AT_HELD_FILES),
            };
            background.state.lock().active -= 1;
            // Whoever waits for idleness, for a claim to be given back, or for an error.
            background.changed.notify_all();
            self.ease();
            self.deliver();
        }
    }

    /// Keeps or clears the failure of a kind of work; returns how long to wait before the next
    /// attempt.
    pub(super) fn note_outcome(&self, work: Reason, outcome: Result<(), &Error>) -> Duration {
        let mut state = self.background.state.lock();
        state.failure_count += u64::from(outcome.is_err());
        let failing = state.failing.entry(work).or_default();
        match outcome {
            Ok(()) => {
                *failing = None;
                RETRY
            }
            // Why the store is read-only is kept and told by itself, and ends without this work.
            Err(error) if matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::Closed) => RETRY,
            Err(error) => {
                let now = self.background.now();
                let is_news = Failing::count(failing, work, error.clone(), now);
                let delay = failing.as_ref().map_or(RETRY, Failing::delay);
                drop(state);
                if is_news {
                    self.tell(&Event::BackgroundError(error.clone()));
                }
                delay
            }
        }
    }

    /// Does work until there is none.
    fn repeat(&self, once: impl Fn() -> Result<bool>) -> Result<Option<Duration>> {
        while !self.background.is_stopping() && once()? {
            self.deliver();
        }
        Ok(None)
    }

    /// Syncs and marks the log as they fall due; says when to look again.
    fn tend_log(&self) -> Result<Option<Duration>> {
        let next = self.tend_synced()?;
        // Last: a disk without room for a reserve keeps nothing from being synced.
        self.ensure_reserve()?;
        Ok(next)
    }

    fn tend_synced(&self) -> Result<Option<Duration>> {
        let chore = self.log_chore();
        let age = self.background.log_watch.lock().age(chore, self.background.now());
        match chore {
            LogChore::Mark if age >= MARK_AFTER => self.mark_idle()?,
            LogChore::Sync => {
                // 0 leaves syncing to the operating system and to commits that ask for it.
                let interval = Duration::from_millis(self.options.sync_interval_ms);
                if interval.is_zero() {
                    return Ok(Some(LOOK_AT_HELD_FILES));
                }
                if age >= interval {
                    self.sync_log()?;
                    *self.background.log_watch.lock() = LogWatch::default();
                }
            }
            LogChore::Mark => {}
            LogChore::Rest => {
                self.background.log_told.store(false, Ordering::Release);
                // What was written before that store has told nobody.
                if self.log_chore() == LogChore::Rest {
                    return Ok(None);
                }
                self.background.log_told.store(true, Ordering::Release);
            }
        }
        Ok(Some(MARK_AFTER))
    }

    /// Does one piece of background work on the calling thread; `false` if there was none.
    pub(super) fn step(&self) -> Result<bool> {
        self.check_not_closed()?;
        let done = self.step_once();
        self.deliver();
        done
    }

    fn step_once(&self) -> Result<bool> {
        let noted = |work, done: Result<bool>| {
            self.note_outcome(work, done.as_ref().map(|_| ()));
            done
        };
        if noted(Reason::Flush, self.flush_one())? || noted(Reason::Compaction, self.compact_one())?
        {
            return Ok(true);
        }
        let removed = self.remove_obsolete();
        let done = match self.log_chore() {
            LogChore::Sync => self.sync_log().map(|()| true),
            LogChore::Mark => self.mark_idle().map(|()| true),
            LogChore::Rest => self.ensure_reserve().map(|()| false),
        };
        noted(Reason::ReserveSegment, done).and_then(|done| removed.map(|()| done))
    }

    /// Waits until no work is left.
    pub(super) fn wait_idle(&self) -> Result<()> {
        self.check_not_closed()?;
        if self.background.mode == BackgroundMode::Stepped {
            while self.step()? {}
            return Ok(());
        }
        if in_listener() {
            let message = "a listener cannot wait for the work that it is part of";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let failures_before = self.background.state.lock().failure_count;
        self.background.wake_all();
        let mut state = self.background.state.lock();
        while !state.stop {
            // What failed before has another attempt now.
            if state.failure_count > failures_before
                && let Some(error) = state.error()
            {
                return Err(error);
            }
            if state.active == 0 && state.error().is_none() && !self.has_work() {
                drop(state);
                return self.finish_removing();
            }
            // The timeout is for work that another thread's call does, which tells nobody.
            self.background.changed.wait_for(&mut state, RETRY);
        }
        self.check_not_closed()
    }

    /// Waits for news from background work.
    pub(super) fn wait_for_background(&self) {
        let mut state = self.background.state.lock();
        self.background.changed.wait_for(&mut state, RETRY);
    }
}
