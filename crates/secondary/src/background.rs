//! [`Follow`]: partitions that are caught up with without being asked, on a thread of the secondary.
//!
//! The thread is started by the first partition that wants it, and ends with the last handle of the
//! secondary. It calls what everybody calls, so that it finds done what a read has done already.
//!
//! Invariant: nothing is caught up with under the lock.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use lsm_core::clock::Clock;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::follow::{FollowedPartition, Follower, SyncExtent};
use lsm_core::types::PartitionId;
use parking_lot::{Condvar, Mutex};

/// Between two looks at the cursor for partitions that are followed eagerly.
const EAGER_PAUSE: Duration = Duration::from_micros(50);
/// The same where there is no cursor, and a look reads the log.
const EAGER_READ_PAUSE: Duration = Duration::from_millis(10);

/// The way in which a partition is caught up with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follow {
    /// When a read or a sync asks for it.
    #[default]
    OnDemand,
    /// That often, and when it is asked for.
    Every(Duration),
    /// As soon as the primary has committed something to it: a thread looks at the commit cursor
    /// some ten thousand times a second, which takes a few percent of a core. Without a cursor it reads
    /// the end of the log a hundred times a second.
    Eager,
}

/// A partition that the thread looks after.
struct Tended {
    followed: FollowedPartition,
    follow: Follow,
    due_at: Duration,
    failure: Option<Error>,
}

#[derive(Default)]
struct TendingState {
    tended: Vec<Tended>,
    is_over: bool,
    thread: Option<JoinHandle<()>>,
}

/// The state that the thread and the handles share.
#[derive(Default)]
struct Shared {
    state: Mutex<TendingState>,
    changed: Condvar,
}

/// The thread of one secondary, if it has one. Dropped, it is joined.
#[derive(Default)]
pub(crate) struct Tending(Arc<Shared>);

impl Tending {
    /// Looks after a partition in this way from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the thread cannot be started.
    pub(crate) fn tend(
        &self,
        follower: &Follower,
        clock: &Arc<dyn Clock>,
        followed: &FollowedPartition,
        follow: Follow,
    ) -> Result<()> {
        let mut state = self.0.state.lock();
        state.tended.retain(|tended| tended.followed.id() != followed.id());
        if follow == Follow::OnDemand {
            return Ok(());
        }
        let due_at = clock.now();
        let followed = followed.clone();
        state.tended.push(Tended { followed, follow, due_at, failure: None });
        if state.thread.is_none() {
            let shared = self.0.clone();
            let follower = follower.clone();
            let clock = clock.clone();
            let thread = std::thread::Builder::new().name("siltstone-follow".to_owned());
            let thread = thread.spawn(move || work(&shared, &follower, &*clock));
            let thread = thread.map_err(|error| {
                Error::new(ErrorKind::Io, format!("cannot start a thread: {error}"))
            })?;
            state.thread = Some(thread);
        }
        self.0.changed.notify_all();
        Ok(())
    }

    /// The way in which a partition is looked after.
    pub(crate) fn follow_of(&self, id: PartitionId) -> Follow {
        let state = self.0.state.lock();
        let tended = state.tended.iter().find(|tended| tended.followed.id() == id);
        tended.map_or(Follow::OnDemand, |tended| tended.follow)
    }

    /// Why the last attempt to catch up with a partition failed, if it did.
    pub(crate) fn failure_of(&self, id: PartitionId) -> Option<Error> {
        let state = self.0.state.lock();
        let tended = state.tended.iter().find(|tended| tended.followed.id() == id);
        tended.and_then(|tended| tended.failure.clone())
    }
}

impl Drop for Tending {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_over = true;
        let thread = state.thread.take();
        drop(state);
        self.0.changed.notify_all();
        if let Some(thread) = thread {
            // One that panicked has told so itself.
            let _ = thread.join();
        }
    }
}

/// The thread: catches up with what is due, then waits.
fn work(shared: &Shared, follower: &Follower, clock: &dyn Clock) {
    loop {
        for followed in due(shared, clock.now()) {
            let goal = followed.goal();
            if goal.is_some_and(|goal| followed.has_reached(&goal)) {
                continue;
            }
            let synced = follower.sync(SyncExtent::Only(followed.id()));
            note(shared, followed.id(), synced.map(drop));
        }
        let mut state = shared.state.lock();
        if state.is_over {
            return;
        }
        match pause(&state, follower.has_cursor(), clock.now()) {
            Some(pause) => drop(shared.changed.wait_for(&mut state, pause)),
            None => shared.changed.wait(&mut state),
        }
    }
}

/// The partitions whose time has come.
fn due(shared: &Shared, now: Duration) -> Vec<FollowedPartition> {
    let mut state = shared.state.lock();
    let mut due = Vec::new();
    for tended in &mut state.tended {
        if let Follow::Every(interval) = tended.follow {
            if tended.due_at > now {
                continue;
            }
            tended.due_at = now.saturating_add(interval);
        }
        due.push(tended.followed.clone());
    }
    due
}

/// Keeps what became of an attempt; a partition that was dropped is looked after no more.
fn note(shared: &Shared, id: PartitionId, outcome: Result<()>) {
    let mut state = shared.state.lock();
    state.tended.retain(|tended| tended.followed.id() != id || tended.followed.moment().is_ok());
    if let Some(tended) = state.tended.iter_mut().find(|tended| tended.followed.id() == id) {
        tended.failure = outcome.err();
    }
}

/// The time until something is due; `None` if nothing will be.
fn pause(state: &TendingState, has_cursor: bool, now: Duration) -> Option<Duration> {
    let pauses = state.tended.iter().map(|tended| match tended.follow {
        Follow::Every(_) => tended.due_at.saturating_sub(now),
        Follow::Eager | Follow::OnDemand if has_cursor => EAGER_PAUSE,
        Follow::Eager | Follow::OnDemand => EAGER_READ_PAUSE,
    });
    pauses.min()
}
