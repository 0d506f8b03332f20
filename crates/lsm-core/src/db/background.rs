//! [`Background`]: the threads of background work; single steps in tests.
//!
//! A thread looks for work after each wake-up and continues until there is none. The [`Worker`]
//! knows the work: `flush.rs`, `compaction.rs`, the log. No work needs a foreground write to make
//! progress.
//!
//! Invariants:
//! 1. Threads have names and are joined by [`Background::stop`].
//! 2. A failure is kept until the same kind of work succeeds; the work is tried again
//!    automatically, at the latest after a wait that grows with the failures in a row: see
//!    `schedule.rs`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::errors::{BackgroundFailure, Reason};
use super::events::{Events, in_listener};
use super::schedule::{Attempt, RETRY, Schedule};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{Event, catch_engine};

/// Files that an iterator holds are checked again this often.
const LOOK_AT_HELD_FILES: Duration = Duration::from_secs(1);
/// Tables that kept entries for snapshots, or have some that expire, are checked again this often.
const LOOK_FOR_RELEASES: Duration = Duration::from_secs(1);

/// The threads that do background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundMode {
    /// Threads of the database.
    #[default]
    Threads,
    /// `Db::step`, one piece at a time, and writers that are stopped: for tests.
    Stepped,
}

/// Pieces of background work, each done on the calling thread.
pub(super) trait Worker: Send + Sync {
    /// Whose threads do it.
    fn background(&self) -> &Background;

    /// An error once the database is closed.
    fn check_working(&self) -> Result<()>;

    /// Flushes one partition; `false` if there was nothing to flush.
    fn flush_one(&self) -> Result<bool>;

    /// Runs one compaction; `false` if none was due.
    fn compact_one(&self) -> Result<bool>;

    /// Syncs and marks the log when due; returns when to look again, `None` for after the next
    /// notice.
    fn tend_log(&self) -> Result<Option<Duration>>;

    /// Does the due work for the log without waiting for its age; `false` if there was none.
    fn tend_log_now(&self) -> Result<bool>;

    /// Removes obsolete files that have no holder, unless another thread is removing; notes its own
    /// failure.
    fn remove_obsolete(&self) -> Result<()>;

    /// As [`Worker::remove_obsolete`], after any other thread that is removing.
    fn finish_removing(&self) -> Result<()>;

    /// Returns `true` if something obsolete waits for its last holder.
    fn holds_obsolete(&self) -> bool;

    /// Returns `true` if tables may become due without a notice: because snapshots are released,
    /// entries expire, or large values are idle.
    fn waits_for_release(&self) -> bool;

    /// Returns memory to the system that no writer took for a while; returns when to look again, `None` for after
    /// the next notice.
    fn give_up_memory(&self) -> Option<Duration>;

    /// Returns `true` if there is something to flush or to compact.
    fn has_work(&self) -> bool;

    /// Has writers that wait look again.
    fn ease(&self);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Flush,
    Compaction,
    Log,
}

impl Task {
    /// Its name in the error after a panic.
    fn name(self) -> &'static str {
        match self {
            Task::Flush => "a flush",
            Task::Compaction => "a compaction",
            Task::Log => "the upkeep of the log",
        }
    }

    /// The work that fails if it does.
    fn reason(self) -> Reason {
        match self {
            Task::Flush => Reason::Flush,
            Task::Compaction => Reason::Compaction,
            Task::Log => Reason::ReserveSegment,
        }
    }
}

thread_local! {
    static IS_LOG_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// The threads of background work, and their schedule.
pub(super) struct Background {
    mode: BackgroundMode,
    clock: Arc<dyn Clock>,
    events: Arc<Events>,
    schedule: Mutex<Schedule>,
    /// Threads wait here for a ticket. Used for nothing else: each notice would restart their
    /// timeouts, and the log thread, which looks every second, would keep others asleep.
    woken: Condvar,
    /// Callers wait here for the outcome of work.
    changed: Condvar,
    /// Read by running jobs, relaxed: a job that sees it late gives up a little later.
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    pub(super) fn new(
        mode: BackgroundMode,
        clock: Arc<dyn Clock>,
        events: Arc<Events>,
    ) -> Background {
        Background {
            mode,
            clock,
            events,
            schedule: Mutex::default(),
            woken: Condvar::new(),
            changed: Condvar::new(),
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

    /// The failure that prevents background work at present, if there is one.
    pub(super) fn error(&self) -> Option<Error> {
        self.schedule.lock().error()
    }

    /// The failure that prevents this work at present.
    pub(super) fn failure_of(&self, work: Reason) -> Option<Error> {
        self.schedule.lock().failure_of(work)
    }

    /// The failures at present.
    pub(super) fn failures(&self) -> Vec<BackgroundFailure> {
        self.schedule.lock().failures(self.now())
    }

    /// Notes that a flush succeeded, on any thread.
    pub(super) fn flush_worked(&self) {
        self.schedule.lock().clear(Reason::Flush);
    }

    /// Makes every thread look for work, and every waiter look again.
    pub(super) fn wake_all(&self) {
        self.schedule.lock().ticket += 1;
        self.woken.notify_all();
        self.changed.notify_all();
    }

    /// The number of times that all threads were woken.
    #[cfg(test)]
    pub(super) fn wakes(&self) -> u64 {
        self.schedule.lock().ticket
    }

    /// Returns `true` on the log thread: it delivers its events right after its work.
    pub(super) fn is_log_thread() -> bool {
        IS_LOG_THREAD.get()
    }

    /// Returns `true` if running jobs should give up.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Returns `true` if a compaction thread sleeps: it looks for due work as soon as it is
    /// notified.
    pub(super) fn has_idle_compactor(&self) -> bool {
        self.schedule.lock().idle_compactors > 0
    }

    /// Begins an attempt to do a piece of work.
    pub(super) fn begin(&self) -> Attempt {
        self.schedule.lock().begin()
    }

    /// Keeps or clears the failure of a kind of work; returns how long to wait before the next
    /// attempt.
    pub(super) fn note_outcome(
        &self,
        work: Reason,
        attempt: Attempt,
        outcome: Result<(), &Error>,
    ) -> Duration {
        let noted = self.schedule.lock().note(work, attempt, outcome, self.now());
        if noted.is_news
            && let Err(error) = outcome
        {
            self.events.tell(&Event::BackgroundError(error.clone()));
        }
        noted.retry
    }

    /// Starts the threads that `worker` works on.
    pub(super) fn start(
        &self,
        worker: &Arc<impl Worker + 'static>,
        compaction_threads: usize,
    ) -> Result<()> {
        if self.mode == BackgroundMode::Stepped {
            return Ok(());
        }
        self.spawn(worker, Task::Flush, "siltstone-flush".to_owned())?;
        self.spawn(worker, Task::Log, "siltstone-log".to_owned())?;
        for number in 0..compaction_threads {
            self.spawn(worker, Task::Compaction, format!("siltstone-compact-{number}"))?;
        }
        Ok(())
    }

    fn spawn(&self, worker: &Arc<impl Worker + 'static>, task: Task, name: String) -> Result<()> {
        let worker = worker.clone();
        let thread = std::thread::Builder::new().name(name.clone());
        let thread = thread.spawn(move || worker.background().work(&*worker, task));
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start thread {name}: {error}"))
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Ends all threads: running jobs give up, and no new one begins.
    pub(super) fn stop(&self) {
        // Jobs check this between entries. The flag in the schedule is for threads that sleep.
        self.stopping.store(true, Ordering::Relaxed);
        self.schedule.lock().stop = true;
        self.woken.notify_all();
        self.changed.notify_all();
        let own = std::thread::current().id();
        let threads = std::mem::take(&mut *self.threads.lock());
        // A listener may close the database on one of these threads. A thread cannot join itself;
        // it ends after the listener.
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // A panicked thread has reported itself; the result adds nothing.
            let _ = thread.join();
        }
    }

    /// Waits for news or `timeout`; `false` when it is time to end.
    fn wait(
        &self,
        schedule: &mut MutexGuard<'_, Schedule>,
        seen: &mut u64,
        timeout: Option<Duration>,
    ) -> bool {
        // A ticket instead of a flag: each thread compares it with the last one that it has seen,
        // so a wake-up before the wait is not lost, and none is consumed by another thread.
        while !schedule.stop && schedule.ticket == *seen {
            match timeout {
                None => self.woken.wait(schedule),
                Some(timeout) => {
                    if self.woken.wait_for(schedule, timeout).timed_out() {
                        break;
                    }
                }
            }
        }
        *seen = schedule.ticket;
        !schedule.stop
    }

    /// A thread: does its task until all threads end.
    fn work(&self, worker: &dyn Worker, task: Task) {
        IS_LOG_THREAD.set(task == Task::Log);
        // No ticket has this number, so a new thread looks for work at once.
        let mut seen = u64::MAX;
        let mut timeout = Some(Duration::ZERO);
        loop {
            let mut schedule = self.schedule.lock();
            schedule.idle_compactors += usize::from(task == Task::Compaction);
            let goes_on = self.wait(&mut schedule, &mut seen, timeout);
            schedule.idle_compactors -= usize::from(task == Task::Compaction);
            if !goes_on {
                return;
            }
            // Counted under the lock under which it was woken: `wait_idle` never sees work that is
            // neither waiting nor active.
            schedule.active += 1;
            let attempt = schedule.begin();
            drop(schedule);
            // A panic that ended the thread would leave it active for ever, and callers that wait
            // for its work would never learn why.
            let outcome = catch_engine(task.name(), || match task {
                Task::Flush => self.repeat(|| worker.flush_one()).map(|()| worker.give_up_memory()),
                Task::Compaction => self
                    .repeat(|| worker.compact_one())
                    .map(|()| worker.waits_for_release().then_some(LOOK_FOR_RELEASES)),
                Task::Log => worker.tend_log(),
            });
            // The log thread looks at the log many times a second while there are writes, and each
            // removal reads the leases.
            if task != Task::Log || matches!(outcome, Ok(None)) {
                // Its failure is noted there.
                let _ = worker.remove_obsolete();
            }
            // There is no notice when a reader releases a file, so the thread looks again after
            // some time.
            let held = worker.holds_obsolete();
            let retry = self.note_outcome(task.reason(), attempt, outcome.as_ref().map(|_| ()));
            timeout = match &outcome {
                Err(_) => Some(retry),
                // Files that could not be removed are still held.
                Ok(next) => next.iter().copied().chain(held.then_some(LOOK_AT_HELD_FILES)).min(),
            };
            self.schedule.lock().active -= 1;
            // For callers that wait for idleness, for a claim, or for an error.
            self.changed.notify_all();
            // Parked writers look again, also after a failure: they must report it instead of
            // waiting for ever.
            worker.ease();
            self.events.deliver();
        }
    }

    /// Does work until there is none.
    fn repeat(&self, once: impl Fn() -> Result<bool>) -> Result<()> {
        // Listeners are called after each piece of work before the next one begins, with no lock
        // held.
        while !self.is_stopping() && once()? {
            self.events.deliver();
        }
        Ok(())
    }

    /// Does one piece of background work on the calling thread; `false` if there was none.
    pub(super) fn step(&self, worker: &dyn Worker) -> Result<bool> {
        worker.check_working()?;
        let done = self.step_once(worker);
        self.events.deliver();
        done
    }

    fn step_once(&self, worker: &dyn Worker) -> Result<bool> {
        // Flushes first: they free memory and the log, and writers wait for them.
        let flushed = self.noted(Task::Flush, || worker.flush_one());
        if matches!(flushed, Ok(true)) {
            return flushed;
        }
        // After a failure too: threads do each kind of work regardless of the others.
        let compacted = self.noted(Task::Compaction, || worker.compact_one());
        if matches!(compacted, Ok(true)) {
            return flushed.and(compacted);
        }
        let tended = self.noted(Task::Log, || worker.tend_log_now());
        // Last, because the upkeep of the log releases segments.
        let removed = worker.remove_obsolete();
        flushed.and(compacted)?;
        let done = tended?;
        removed.map(|()| done)
    }

    /// Notes the outcome of a piece of a task, and returns it.
    fn noted(&self, task: Task, once: impl FnOnce() -> Result<bool>) -> Result<bool> {
        let attempt = self.begin();
        let outcome = catch_engine(task.name(), once);
        self.note_outcome(task.reason(), attempt, outcome.as_ref().map(|_| ()));
        outcome
    }

    /// Waits until no work is left.
    ///
    /// # Errors
    /// The failure of an attempt that began after the call; [`ErrorKind::InvalidArgument`] on
    /// a thread that runs a listener.
    pub(super) fn wait_idle(&self, worker: &dyn Worker) -> Result<()> {
        worker.check_working()?;
        if self.mode == BackgroundMode::Stepped {
            while self.step(worker)? {}
            return Ok(());
        }
        if in_listener() {
            let message = "a listener cannot wait for the background work that calls it";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // Only later attempts end the wait: after an earlier one this call makes another. An attempt
        // that began before may fail for a reason that no longer exists.
        let call = self.begin();
        self.wake_all();
        let mut schedule = self.schedule.lock();
        while !schedule.stop {
            if let Some(error) = schedule.error_after(call) {
                return Err(error);
            }
            if schedule.active == 0 && schedule.error().is_none() && !worker.has_work() {
                drop(schedule);
                return worker.finish_removing();
            }
            // The timeout is for work that a call on another thread does without a notice.
            self.changed.wait_for(&mut schedule, RETRY);
        }
        drop(schedule);
        worker.check_working()
    }

    /// Waits for news, no longer than [`RETRY`].
    pub(super) fn wait_for_news(&self) {
        let mut schedule = self.schedule.lock();
        self.changed.wait_for(&mut schedule, RETRY);
    }
}

#[cfg(test)]
mod tests;
