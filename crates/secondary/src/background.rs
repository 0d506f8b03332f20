//! [`Follow`]: partitions that catch up by themselves, on a thread of the secondary.
//!
//! The first partition that needs the thread starts it, and the thread ends with the last handle of
//! the secondary. It uses the same call as a read, so that it skips the work that a read has done
//! already.
//!
//! Invariant: no partition catches up under the lock.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use lsm_core::clock::Clock;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::follow::{FollowedPartition, Follower, SyncExtent};
use lsm_core::types::{PartitionId, Process};
use parking_lot::{Condvar, Mutex};

/// The pause between two looks at the cursor for partitions that are followed eagerly.
const EAGER_PAUSE: Duration = Duration::from_micros(50);
/// The same without a cursor (then a look reads the log), after a failed sync, and for operations
/// that arrive only with a flush.
const EAGER_READ_PAUSE: Duration = Duration::from_millis(10);

/// The way in which a partition catches up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Follow {
    /// The partition catches up when a read or a sync asks for it. The default.
    #[default]
    OnDemand,
    /// The partition catches up at this interval, and when a read or a sync asks for it. In a bucket each look that finds
    /// nothing is a GET: a look a second is 1 $ a month on S3 Standard (November 2026), one each ten seconds 0.10 $.
    Every(Duration),
    /// The partition catches up as soon as the primary has committed to it: a thread looks at the
    /// commit cursor some ten thousand times a second, which takes a few percent of a core. Without
    /// a cursor it reads the end of the log a hundred times a second. In a bucket each of these looks is a GET, one
    /// after the other: at 20 ms for a GET, 33 a second are 35 $ a month. See `docs/remote.md` for the prices.
    Eager,
}

/// A partition that the thread looks after.
struct FollowEntry {
    followed: FollowedPartition,
    follow: Follow,
    due_at: Duration,
    failure: Option<Error>,
}

#[derive(Default)]
struct ThreadState {
    entries: Vec<FollowEntry>,
    is_over: bool,
    thread: Option<JoinHandle<()>>,
}

/// The state that the thread and the handles share.
#[derive(Default)]
struct ThreadShared {
    state: Mutex<ThreadState>,
    changed: Condvar,
}

/// The thread of one secondary, if it has one. Dropped, it is joined.
pub(crate) struct FollowThread {
    shared: Arc<ThreadShared>,
    /// The process that has the thread; no other one takes the lock.
    process: Process,
}

impl Default for FollowThread {
    fn default() -> FollowThread {
        FollowThread { shared: Arc::default(), process: Process::current() }
    }
}

impl FollowThread {
    /// Returns an error in a child of the process that opened the secondary.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.process.check()
    }

    /// Follows a partition in this way from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the thread cannot be started.
    pub(crate) fn set_follow(
        &self,
        follower: &Follower,
        clock: &Arc<dyn Clock>,
        followed: &FollowedPartition,
        follow: Follow,
    ) -> Result<()> {
        self.process.check()?;
        let mut state = self.shared.state.lock();
        // One entry for a partition. With two, the older way would continue in addition to the
        // newer one.
        state.entries.retain(|it| it.followed.id() != followed.id());
        // The thread stays and waits without a limit. Ending it here would be a second way for a
        // thread to end, in addition to the drop of the secondary.
        if follow == Follow::OnDemand {
            return Ok(());
        }
        // Before the partition is listed: it would be listed in vain if the thread cannot be
        // started. Under the lock, because otherwise two calls at once would start two threads.
        if state.thread.is_none() {
            let shared = self.shared.clone();
            // Not the `Secondary`: its last handle stops this thread, and a handle in the thread
            // itself would keep it from ever being the last.
            let follower = follower.clone();
            let clock = clock.clone();
            let thread = std::thread::Builder::new().name("siltstone-follow".to_owned());
            let thread = thread.spawn(move || work(&shared, &follower, &*clock));
            let thread = thread.map_err(|error| {
                Error::new(ErrorKind::Io, format!("cannot start a thread: {error}"))
            })?;
            state.thread = Some(thread);
        }
        let due_at = clock.now();
        let followed = followed.clone();
        state.entries.push(FollowEntry { followed, follow, due_at, failure: None });
        self.shared.changed.notify_all();
        Ok(())
    }

    /// The way in which a partition is followed.
    pub(crate) fn follow_of(&self, id: PartitionId) -> Follow {
        if !self.process.is_current() {
            return Follow::OnDemand;
        }
        let state = self.shared.state.lock();
        let it = state.entries.iter().find(|it| it.followed.id() == id);
        it.map_or(Follow::OnDemand, |it| it.follow)
    }

    /// The error of the last attempt to catch up with a partition, if it failed.
    pub(crate) fn failure_of(&self, id: PartitionId) -> Option<Error> {
        if let Err(error) = self.process.check() {
            return Some(error);
        }
        let state = self.shared.state.lock();
        let it = state.entries.iter().find(|it| it.followed.id() == id);
        it.and_then(|it| it.failure.clone())
    }
}

impl Drop for FollowThread {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // Its handle is forgotten: the thread does not exist in this process.
            std::mem::forget(self.shared.clone());
            return;
        }
        let mut state = self.shared.state.lock();
        // Under the lock, which the thread holds from its look at this until it waits. Otherwise
        // the notice below could come between the two, and would be lost.
        state.is_over = true;
        let thread = state.thread.take();
        // The thread takes the lock before it sees that it is over: a join under the lock would
        // never return.
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = thread {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}

/// The thread: catches up with what is due, then waits.
fn work(shared: &ThreadShared, follower: &Follower, clock: &dyn Clock) {
    loop {
        catch_up_with_due(shared, follower, clock);
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

/// Catches up with the partitions whose time has come.
fn catch_up_with_due(shared: &ThreadShared, follower: &Follower, clock: &dyn Clock) {
    // One after the other. The follower runs one sync at a time in any case, because a sync holds
    // the lock of its place in the log.
    for followed in due(shared, clock.now()) {
        let goal = followed.goal();
        // A few loads instead of a round: a read may have caught up in the meantime.
        if goal.is_some_and(|goal| followed.has_reached(&goal)) {
            continue;
        }
        // It returns a panic as an error. A panic would end the thread, and no one would notice
        // that the partitions are not followed any more.
        let synced = follower.sync_arrived(SyncExtent::Only(followed.id()));
        // A logged partition that has not reached its goal waits for an unfinished commit.
        let is_logged = followed.is_logged() && !follower.follows_tables_only();
        let is_reached = is_logged || goal.is_none_or(|goal| followed.has_reached(&goal));
        let is_soon = synced.is_ok() && is_reached;
        let pause = if is_soon { Duration::ZERO } else { EAGER_READ_PAUSE };
        note(shared, followed.id(), synced.map(drop), clock.now().saturating_add(pause));
    }
}

/// The partitions whose time has come.
fn due(shared: &ThreadShared, now: Duration) -> Vec<FollowedPartition> {
    let mut state = shared.state.lock();
    let mut due = Vec::new();
    for it in &mut state.entries {
        if it.due_at > now {
            continue;
        }
        // Counted from here and not from the end of the round, so that slow rounds do not add up.
        if let Follow::Every(interval) = it.follow {
            it.due_at = now.saturating_add(interval);
        }
        due.push(it.followed.clone());
    }
    due
}

/// Keeps the outcome of an attempt. An eagerly followed partition is due at `again_at`. A dropped
/// partition is not followed any more.
fn note(shared: &ThreadShared, id: PartitionId, outcome: Result<()>, again_at: Duration) {
    let mut state = shared.state.lock();
    // A sync of a dropped partition succeeds and finds nothing, so its outcome does not show the
    // drop. The list would grow with each partition that is created, followed and dropped.
    state.entries.retain(|it| it.followed.id() != id || it.followed.view().is_ok());
    if let Some(it) = state.entries.iter_mut().find(|it| it.followed.id() == id) {
        // A success clears the failure: an old error would look like a present one.
        it.failure = outcome.err();
        if it.follow == Follow::Eager {
            it.due_at = again_at;
        }
    }
}

/// The time until a partition is due; `None` if none will be.
fn pause(state: &ThreadState, has_cursor: bool, now: Duration) -> Option<Duration> {
    let pauses = state.entries.iter().map(|it| match it.follow {
        Follow::Every(_) => it.due_at.saturating_sub(now),
        Follow::Eager | Follow::OnDemand if it.due_at > now => it.due_at.saturating_sub(now),
        // With a cursor a look is a few loads. Without one it lists the folder.
        Follow::Eager | Follow::OnDemand if has_cursor => EAGER_PAUSE,
        Follow::Eager | Follow::OnDemand => EAGER_READ_PAUSE,
    });
    pauses.min()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lsm_core::db::Db;
    use lsm_core::follow::FollowOptions;
    use lsm_core::fs::{Fs, MemFs};

    use super::*;

    /// Partition "p", followed eagerly from time 0 on.
    fn followed_eagerly() -> (Db, ThreadShared, PartitionId) {
        let dir = Path::new("/db");
        let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
        let db = Db::builder(dir).fs(fs.clone()).open().unwrap();
        db.partition("p").unwrap();
        let follower = FollowOptions { fs, ..FollowOptions::new(dir) }.open().unwrap();
        let followed = follower.partition("p").unwrap();
        let id = followed.id();
        let shared = ThreadShared::default();
        let due_at = Duration::ZERO;
        let it = FollowEntry { followed, follow: Follow::Eager, due_at, failure: None };
        shared.state.lock().entries.push(it);
        (db, shared, id)
    }

    #[test]
    fn an_eager_partition_is_not_due_before_the_pause_after_a_failure() {
        let (_db, shared, id) = followed_eagerly();
        let now = Duration::from_secs(5);
        assert_eq!(due(&shared, now).len(), 1);
        assert_eq!(pause(&shared.state.lock(), true, now), Some(EAGER_PAUSE));
        let failed = Error::new(ErrorKind::Io, "the device is gone");
        note(&shared, id, Err(failed), now + EAGER_READ_PAUSE);
        assert!(due(&shared, now).is_empty());
        assert_eq!(pause(&shared.state.lock(), true, now), Some(EAGER_READ_PAUSE));
        assert_eq!(due(&shared, now + EAGER_READ_PAUSE).len(), 1);
        assert!(shared.state.lock().entries[0].failure.is_some());
        note(&shared, id, Ok(()), now);
        assert_eq!(due(&shared, now).len(), 1);
        assert!(shared.state.lock().entries[0].failure.is_none());
    }
}
