//! [`ThreadPool`]: threads that do the background work of many databases in turn.
//!
//! Made by `resources.rs`. `background.rs` enters the work of a database, wakes it, and takes it out. A database has
//! a *seat* for its flushes, one for its log, and one for each compaction that it may run at once. A thread takes the
//! seat that has waited longest, and does one piece of its work.
//!
//! Invariants:
//! 1. Each kind of work has threads of its own: a compaction may wait for a flush, and both for the log.
//! 2. A seat is on one thread at a time, and goes to the end of the queue after each piece: a database with much
//!    work delays another one by a piece.
//! 3. After [`ThreadPool::leave`] no other thread works for that database.
//! 4. No work runs under the lock of the pool, and no database is dropped under it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::background::{Task, Worker, spawn_thread};
use super::schedule::RETRY;
use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::hooks::catch_engine;
use crate::types::Process;

/// The kinds of work. Seats of the last kind have this index and the ones after it.
const KINDS: [Task; 3] = [Task::Flush, Task::Log, Task::Compaction];
const COMPACTION: usize = KINDS.len() - 1;

/// Threads that work for many databases.
pub(super) struct ThreadPool {
    // Fixed after construction.
    flush_threads: usize,
    compaction_threads: usize,
    process: Process,
    shared: Arc<PoolShared>,
    /// Empty until the first database enters.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct PoolShared {
    clock: SystemClock,
    state: Mutex<PoolState>,
    /// Threads of each kind wait here for a seat.
    woken: [Condvar; KINDS.len()],
    /// Those that leave wait here for the end of a piece of work.
    finished: Condvar,
}

#[derive(Default)]
struct PoolState {
    members: BTreeMap<MemberId, PoolMember>,
    /// Some seats of members that have left.
    queues: [VecDeque<Seat>; KINDS.len()],
    /// Seats that look for work again at a time of the clock.
    timers: [BTreeSet<(Duration, Seat)>; KINDS.len()],
    /// Threads that wait, by kind.
    idle: [usize; KINDS.len()],
    newest: MemberId,
    is_over: bool,
}

/// The number of a database in a pool.
pub(super) type MemberId = u64;

struct PoolMember {
    worker: Arc<dyn Worker>,
    seats: Vec<SeatState>,
    is_leaving: bool,
}

/// Work of a database that one thread does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seat {
    member: MemberId,
    index: usize,
}

impl Seat {
    fn kind(self) -> usize {
        self.index.min(COMPACTION)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeatState {
    /// It waits until it is woken, or for that time.
    Idle(Option<Duration>),
    Queued,
    Running {
        thread: ThreadId,
        /// It was woken since it began.
        is_woken: bool,
    },
}

impl ThreadPool {
    /// A pool of so many threads for flushes, as many for logs, and so many for compactions. None runs yet.
    pub(super) fn new(flush_threads: usize, compaction_threads: usize) -> ThreadPool {
        let shared = PoolShared {
            clock: SystemClock::new(),
            state: Mutex::default(),
            woken: Default::default(),
            finished: Condvar::new(),
        };
        ThreadPool {
            flush_threads,
            compaction_threads,
            process: Process::current(),
            shared: Arc::new(shared),
            threads: Mutex::default(),
        }
    }

    /// Checks that this is the process that made the pool, as [`Process::check`].
    pub(super) fn check_process(&self) -> Result<()> {
        self.process.check()
    }

    /// The number of threads that run.
    pub(super) fn thread_count(&self) -> usize {
        self.threads.lock().len()
    }

    /// The number of databases that they work for.
    pub(super) fn member_count(&self) -> usize {
        self.shared.state.lock().members.len()
    }

    /// Begins to work for a database, with so many compactions at once at most.
    ///
    /// # Errors
    /// If the operating system gives no thread; in a child of the process that made the pool.
    pub(super) fn enter(&self, worker: Arc<dyn Worker>, compactions: usize) -> Result<MemberId> {
        self.process.check()?;
        self.start_threads()?;
        let seat_count = COMPACTION + compactions.clamp(1, self.compaction_threads);
        let mut state = self.shared.state.lock();
        state.newest += 1;
        let id = state.newest;
        let seats = vec![SeatState::Idle(None); seat_count];
        state.members.insert(id, PoolMember { worker, seats, is_leaving: false });
        // A new database looks for work at once.
        self.shared.wake(&mut state, id);
        Ok(id)
    }

    fn start_threads(&self) -> Result<()> {
        let mut threads = self.threads.lock();
        if !threads.is_empty() {
            return Ok(());
        }
        let counts = [self.flush_threads, self.flush_threads, self.compaction_threads];
        for (kind, count) in counts.into_iter().enumerate() {
            for number in 0..count {
                let shared = self.shared.clone();
                let name = format!("siltstone-{}-{number}", KINDS[kind].thread_name());
                match spawn_thread(name, move || shared.work(kind)) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        // The next open tries again.
                        self.end(std::mem::take(&mut *threads));
                        self.shared.state.lock().is_over = false;
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Has every seat of a database look for work.
    pub(super) fn wake(&self, id: MemberId) {
        self.shared.wake(&mut self.shared.state.lock(), id);
    }

    /// Returns `true` if a thread that compacts is idle, and the database has a seat for it.
    pub(super) fn has_idle_compactor(&self, id: MemberId) -> bool {
        let state = self.shared.state.lock();
        let seats = state.members.get(&id).map_or(&[][..], |member| &member.seats[COMPACTION..]);
        state.idle[COMPACTION] > 0 && seats.iter().any(|seat| matches!(seat, SeatState::Idle(_)))
    }

    /// Ends the work for a database: nothing begins any more, and what other threads do has ended.
    pub(super) fn leave(&self, id: MemberId) {
        let own = std::thread::current().id();
        let mut state = self.shared.state.lock();
        while let Some(member) = state.members.get_mut(&id) {
            member.is_leaving = true;
            // A listener may close the database on a thread of the pool, which cannot wait for itself.
            if !member.runs_on_other_than(own) {
                break;
            }
            self.shared.finished.wait(&mut state);
        }
        let left = state.remove(id);
        drop(state);
        // It may be the last owner of the database.
        drop(left);
    }

    /// Ends threads.
    fn end(&self, threads: Vec<JoinHandle<()>>) {
        self.shared.state.lock().is_over = true;
        for woken in &self.shared.woken {
            woken.notify_all();
        }
        let own = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // A panicked thread has reported itself; the result adds nothing.
            let _ = thread.join();
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut());
        if self.process.is_current() {
            self.end(threads);
        } else {
            // The threads of the parent do not exist here.
            std::mem::forget(threads);
        }
    }
}

impl PoolMember {
    fn runs_on_other_than(&self, own: ThreadId) -> bool {
        let mut seats = self.seats.iter();
        seats.any(|seat| matches!(seat, SeatState::Running { thread, .. } if *thread != own))
    }
}

impl PoolState {
    /// Takes a member out, which no other thread works for.
    fn remove(&mut self, id: MemberId) -> Option<PoolMember> {
        let member = self.members.remove(&id)?;
        for (index, state) in member.seats.iter().enumerate() {
            if let SeatState::Idle(Some(at)) = state {
                let seat = Seat { member: id, index };
                self.timers[seat.kind()].remove(&(*at, seat));
            }
        }
        Some(member)
    }

    /// Queues the seats whose time has come; returns the time to the next one.
    fn queue_due(&mut self, kind: usize, now: Duration) -> Option<Duration> {
        while let Some((at, seat)) = self.timers[kind].first().copied() {
            if at > now {
                return Some(at.saturating_sub(now));
            }
            self.timers[kind].pop_first();
            self.queue(seat);
        }
        None
    }

    fn queue(&mut self, seat: Seat) {
        if let Some(member) = self.members.get_mut(&seat.member) {
            member.seats[seat.index] = SeatState::Queued;
            self.queues[seat.kind()].push_back(seat);
        }
    }

    /// The seat that has waited longest, for this thread.
    fn pop(&mut self, kind: usize) -> Option<(Seat, Arc<dyn Worker>)> {
        while let Some(seat) = self.queues[kind].pop_front() {
            let Some(member) = self.members.get_mut(&seat.member) else { continue };
            if !member.is_leaving {
                let thread = std::thread::current().id();
                member.seats[seat.index] = SeatState::Running { thread, is_woken: false };
                return Some((seat, member.worker.clone()));
            }
        }
        None
    }
}

impl PoolShared {
    /// Has every seat of a member look for work.
    fn wake(&self, state: &mut PoolState, id: MemberId) {
        let count = state.members.get(&id).map_or(0, |member| member.seats.len());
        for index in 0..count {
            let seat = Seat { member: id, index };
            let Some(member) = state.members.get_mut(&id) else { return };
            match &mut member.seats[index] {
                SeatState::Queued => {}
                SeatState::Running { is_woken, .. } => *is_woken = true,
                SeatState::Idle(at) => {
                    if let Some(at) = at.take() {
                        state.timers[seat.kind()].remove(&(at, seat));
                    }
                    state.queue(seat);
                    self.woken[seat.kind()].notify_one();
                }
            }
        }
    }

    /// A thread: does work of one kind until all threads end.
    fn work(&self, kind: usize) {
        KINDS[kind].mark_pool_thread();
        while let Some((seat, worker)) = self.take(kind) {
            // What panics here has noted no failure; the thread goes on for the other databases.
            let turn = catch_engine(KINDS[kind].name(), || {
                Ok(worker.background().take_turn(&*worker, KINDS[kind]))
            });
            // Before the seat is free: a close that waits for it finds no other owner of the database.
            drop(worker);
            self.put_back(seat, turn.unwrap_or(Some(RETRY)));
        }
    }

    /// Waits for a seat; `None` when it is time to end.
    fn take(&self, kind: usize) -> Option<(Seat, Arc<dyn Worker>)> {
        let mut state = self.state.lock();
        while !state.is_over {
            let next = state.queue_due(kind, self.clock.now());
            if let Some(taken) = state.pop(kind) {
                return Some(taken);
            }
            state.idle[kind] += 1;
            match next {
                None => self.woken[kind].wait(&mut state),
                Some(timeout) => drop(self.woken[kind].wait_for(&mut state, timeout)),
            }
            state.idle[kind] -= 1;
        }
        None
    }

    /// Ends a turn, after which the seat sleeps for so long, or until it is woken.
    fn put_back(&self, seat: Seat, sleep: Option<Duration>) {
        let kind = seat.kind();
        let mut state = self.state.lock();
        // It is gone if this thread has closed the database.
        let Some(member) = state.members.get_mut(&seat.member) else { return };
        let is_woken =
            matches!(member.seats[seat.index], SeatState::Running { is_woken: true, .. });
        if member.is_leaving {
            member.seats[seat.index] = SeatState::Idle(None);
            self.finished.notify_all();
        } else if is_woken || sleep.is_some_and(|sleep| sleep.is_zero()) {
            // This thread takes the next seat at once, so no other one is woken.
            state.queue(seat);
        } else {
            let at = sleep.map(|sleep| self.clock.now() + sleep);
            member.seats[seat.index] = SeatState::Idle(at);
            if let Some(at) = at {
                state.timers[kind].insert((at, seat));
                // A thread that sleeps until a later time has to know of it.
                self.woken[kind].notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests;
