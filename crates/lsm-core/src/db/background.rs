//! [`Background`]: the threads of background work; single steps in tests.
//!
//! A thread looks for work after each wake-up and continues until there is none. The [`Worker`]
//! knows the work: `flush.rs`, `compaction.rs`, the log. No work needs a foreground write to make
//! progress.
//!
//! Invariants:
//! 1. Threads have names and are joined by [`Background::stop`]; those of a pool have left the database by then.
//! 2. A failure is kept until the same kind of work succeeds; the work is tried again
//!    automatically, at the latest after a wait that grows with the failures in a row: see
//!    `schedule.rs`.

mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::errors::{BackgroundFailure, Reason};
use super::events::{Events, in_listener};
use super::schedule::{Attempt, RETRY, Schedule};
use super::thread_pool::{MemberId, ThreadPool};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{Event, catch_engine};

pub(super) use worker::{Task, Worker, is_pool_thread, spawn_thread};

/// Files that an iterator holds are checked again this often.
const LOOK_AT_HELD_FILES: Duration = Duration::from_secs(1);
/// Tables that kept entries for snapshots, or have some that expire, are checked again this often.
const LOOK_FOR_RELEASES: Duration = Duration::from_secs(1);

/// The threads that do background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundMode {
    /// Threads of the database, or those of its `Resources`.
    #[default]
    Threads,
    /// `Db::step`, one piece at a time, and writers that are stopped: for tests.
    Stepped,
}

/// The amount of a task that a thread does before it looks around.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkExtent {
    /// All of it.
    All,
    /// One piece.
    Turn,
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
    /// The threads of the process that do the work in place of own ones.
    pool: OnceLock<(Arc<ThreadPool>, MemberId)>,
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
            pool: OnceLock::new(),
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
        if let Some((pool, member)) = self.pool.get() {
            pool.wake(*member);
        }
    }

    /// The number of times that all threads were woken.
    #[cfg(test)]
    pub(super) fn wakes(&self) -> u64 {
        self.schedule.lock().ticket
    }

    /// Returns `true` on the log thread: it delivers its events right after its work.
    pub(super) fn is_log_thread() -> bool {
        Task::Log.is_of_this_thread()
    }

    /// Returns `true` if running jobs should give up.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Returns `true` if a compaction thread sleeps: it looks for due work as soon as it is
    /// notified.
    pub(super) fn has_idle_compactor(&self) -> bool {
        match self.pool.get() {
            Some((pool, member)) => pool.has_idle_compactor(*member),
            None => self.schedule.lock().idle_compactors > 0,
        }
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

    /// Starts the threads that `worker` works on, or enters it in a `pool` of the process.
    pub(super) fn start<W: Worker + 'static>(
        &self,
        worker: &Arc<W>,
        compaction_threads: usize,
        pool: Option<&Arc<ThreadPool>>,
    ) -> Result<()> {
        if self.mode == BackgroundMode::Stepped {
            return Ok(());
        }
        if let Some(pool) = pool {
            let member = pool.enter(worker.clone(), compaction_threads)?;
            let _ = self.pool.set((pool.clone(), member));
            // What was noted before the pool was known here.
            self.wake_all();
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
        let thread = spawn_thread(name, move || worker.background().work(&*worker, task))?;
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
        if let Some((pool, member)) = self.pool.get() {
            pool.leave(*member);
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
        task.mark_thread();
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
            timeout = self.perform(schedule, worker, task, WorkExtent::All);
        }
    }

    /// Does one piece of a task on a thread of a pool; returns how long to sleep after it, no time if there
    /// may be more, and `None` for after the next notice.
    pub(super) fn take_turn(&self, worker: &dyn Worker, task: Task) -> Option<Duration> {
        let rest = if task == Task::Compaction { worker.compaction_rest() } else { Duration::ZERO };
        if !rest.is_zero() {
            return Some(rest);
        }
        let schedule = self.schedule.lock();
        if schedule.stop { None } else { self.perform(schedule, worker, task, WorkExtent::Turn) }
    }

    /// Does a task; returns how long to sleep after it, as [`Background::take_turn`].
    fn perform(
        &self,
        mut schedule: MutexGuard<'_, Schedule>,
        worker: &dyn Worker,
        task: Task,
        extent: WorkExtent,
    ) -> Option<Duration> {
        // Counted under the lock under which it was woken: `wait_idle` never sees work that is
        // neither waiting nor active.
        schedule.active += 1;
        let attempt = schedule.begin();
        drop(schedule);
        // A panic that ended the thread would leave it active for ever, and callers that wait
        // for its work would never learn why.
        let outcome = catch_engine(task.name(), || self.attempt(worker, task, extent));
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
        let timeout = match &outcome {
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
        timeout
    }

    /// Does a task; returns how long to sleep if it succeeds.
    fn attempt(
        &self,
        worker: &dyn Worker,
        task: Task,
        extent: WorkExtent,
    ) -> Result<Option<Duration>> {
        let may_be_more = match task {
            Task::Flush => self.repeat(extent, || worker.flush_one())?,
            Task::Compaction => self.repeat(extent, || worker.compact_one())?,
            Task::Log => return worker.tend_log(),
        };
        Ok(match task {
            _ if may_be_more => Some(Duration::ZERO),
            Task::Flush => worker.give_up_memory(),
            _ => worker.waits_for_release().then_some(LOOK_FOR_RELEASES),
        })
    }

    /// Does work until there is none, or one piece of it; `true` if there may be more.
    fn repeat(&self, extent: WorkExtent, once: impl Fn() -> Result<bool>) -> Result<bool> {
        // Listeners are called after each piece of work before the next one begins, with no lock
        // held.
        while !self.is_stopping() && once()? {
            self.events.deliver();
            if extent == WorkExtent::Turn {
                return Ok(true);
            }
        }
        Ok(false)
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
