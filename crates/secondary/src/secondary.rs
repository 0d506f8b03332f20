//! [`Secondary`]: the read-only instance, and the choice of when a partition catches up.
//!
//! The engine (`lsm_core::follow`) catches up. This file chooses the time, the goal and the wait.
//!
//! Invariants:
//! 1. A goal is determined after the read began, and the partition is read after the goal was reached.
//! 2. No thread waits under a lock. A thread that catches up for a partition does so for all waiting
//!    threads, which then find their goals reached.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsm_core::Db;
use lsm_core::clock::Clock;
use lsm_core::db::{Commit, VerifyOptions, VerifyReport};
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::follow::{
    FollowedCut, FollowedMoment, FollowedPartition, Follower, Reached, SyncExtent, SyncGoal,
    SyncReach,
};
use lsm_core::types::{PartitionId, SeqNo};
use parking_lot::Mutex;

use crate::background::{Follow, FollowThread};
use crate::builder::Builder;
use crate::lag::{CompleteAt, Lag, is_within};
use crate::level::{Level, ReadOptions, Target};
use crate::partition::{Reading, SecondaryPartition};

/// The pause between two looks at a primary that has not finished a step.
const PAUSE: Duration = Duration::from_micros(50);
/// The same if each look reads the log.
const READ_PAUSE: Duration = Duration::from_millis(5);

/// A read-only instance of a database that another process writes. Cheap to clone.
///
/// The lease ends when the last clone, partition, reading and iterator is dropped.
#[derive(Clone)]
pub struct Secondary(Arc<SecondaryInner>);

struct SecondaryInner {
    follower: Follower,
    clock: Arc<dyn Clock>,
    complete_at: Mutex<CompleteAt>,
    tending: FollowThread,
}

/// All partitions as of one commit. Cheap to clone.
#[derive(Clone)]
pub struct SecondaryCut(FollowedCut);

impl SecondaryCut {
    /// Returns the commit; `None` before the first complete sync.
    pub fn as_of(&self) -> Option<Commit> {
        self.0.reached().map(commit_of)
    }

    /// Returns a partition as it was; `None` if it did not exist.
    pub fn partition(&self, partition: &SecondaryPartition) -> Option<Reading> {
        self.0.partition(partition.followed.id()).map(Reading::of_cut)
    }
}

fn commit_of(reached: Reached) -> Commit {
    Commit { seq: reached.seq, epoch: reached.epoch }
}

impl Secondary {
    /// Opens the database in the folder `path`, which another process may have open.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Secondary> {
        Secondary::builder(path).open()
    }

    /// Returns options for opening the database in the folder `path`.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }

    pub(crate) fn new(follower: Follower, clock: Arc<dyn Clock>) -> Secondary {
        let complete_at = Mutex::default();
        let tending = FollowThread::default();
        Secondary(Arc::new(SecondaryInner { follower, clock, complete_at, tending }))
    }

    /// Opens the partition `name`. Catches up first if the partition is not known.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`] if it does not exist; [`ErrorKind::Unsupported`] if it needs a
    /// hook that is not there.
    pub fn partition(&self, name: &str) -> Result<SecondaryPartition> {
        let followed = self.0.follower.partition(name)?;
        Ok(SecondaryPartition { secondary: self.clone(), followed })
    }

    /// Returns the names of all partitions, in order, as of the last sync of anything.
    pub fn partition_names(&self) -> Vec<String> {
        self.0.follower.partition_names()
    }

    /// Catches up with the primary for all partitions, which are then at one commit: see
    /// [`Secondary::cut`].
    ///
    /// # Errors
    /// As [`SecondaryPartition::sync`].
    pub fn sync(&self, to: Target) -> Result<Commit> {
        let started = self.0.clock.now();
        let reached = self.sync_extent(SyncExtent::All, to)?;
        if let Target::Token(token) = to {
            // First: a sequence number of another history says nothing about this one.
            self.check_history(token)?;
            if reached.seq < token.seq {
                return Err(behind(token));
            }
        }
        if reached.is_present {
            let mut complete_at = self.0.complete_at.lock();
            // The start counts: commits of the primary during the sync may be missing.
            complete_at.logged = Some(started);
        }
        Ok(commit_of(reached))
    }

    fn sync_extent(&self, extent: SyncExtent<'_>, to: Target) -> Result<Reached> {
        match to {
            Target::Latest | Target::Token(_) => self.0.follower.sync(extent),
            Target::Durable => self.0.follower.sync_durable(extent),
        }
    }

    /// Catches up for some partitions, and returns them at one commit. The others do not change.
    ///
    /// # Errors
    /// As [`SecondaryPartition::sync`]; [`ErrorKind::Unsupported`] with [`Builder::tables_only`].
    pub fn sync_group(&self, group: &[&SecondaryPartition], to: Target) -> Result<SecondaryCut> {
        let ids: Vec<PartitionId> = group.iter().map(|it| it.followed.id()).collect();
        let reach = match to {
            Target::Latest | Target::Token(_) => SyncReach::Committed,
            Target::Durable => SyncReach::Durable,
        };
        let cut = SecondaryCut(self.0.follower.sync_group(&ids, reach)?);
        if let Target::Token(token) = to {
            self.check_history(token)?;
            if cut.as_of().is_none_or(|commit| commit.seq < token.seq) {
                return Err(behind(token));
            }
        }
        Ok(cut)
    }

    /// Returns all partitions as of the last complete sync.
    pub fn cut(&self) -> SecondaryCut {
        SecondaryCut(self.0.follower.cut())
    }

    /// Waits until every partition has the commit of `token`, for at most `time`.
    ///
    /// # Errors
    /// [`ErrorKind::Behind`] after `time`; otherwise the errors of [`Secondary::sync`].
    pub fn wait_for(&self, token: Commit, time: Duration) -> Result<()> {
        let until = self.0.clock.now().saturating_add(time);
        loop {
            match self.sync(Target::Token(token)) {
                Err(error) if error.kind() == ErrorKind::Behind => self.pause(until, error)?,
                synced => return synced.map(drop),
            }
        }
    }

    /// Reads every live file as the primary has it now, from its first byte to its last, and
    /// reports all damage. Only the committed part of the log and the manifest is verified.
    ///
    /// # Errors
    /// Those of the file system; a limit if the unflushed data takes more than 1 GiB.
    ///
    /// # Cost
    /// Reads the whole database; [`VerifyOptions::bytes_per_second`] limits the rate.
    pub fn verify(&self, options: VerifyOptions<'_>) -> Result<VerifyReport> {
        self.0.follower.verify(options)
    }

    /// Opens the database for writing in the place of its primary, which is fenced if it lives:
    /// each later write of it is [`ErrorKind::Fenced`]. Every commit that it acknowledged is kept,
    /// except those to partitions without a log, and no write that it refuses is there.
    /// `docs/secondary.md` has the details.
    ///
    /// The secondary continues to follow. Its lease holds files of the new primary.
    ///
    /// This call returns a database of the engine. Applications call `Db::promote` of the crate `siltstone`, which
    /// returns one with the methods of that crate.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if another process opens the database or takes it over; call it again.
    /// [`ErrorKind::Unsupported`] if the primary lives and has no commit cursor on this machine; then nothing
    /// was changed. Otherwise as [`Db::open`].
    ///
    /// # Cost
    /// That of an open: the unflushed data of the primary is read again, and written to tables.
    pub fn promote(&self) -> Result<Db> {
        self.promotion().open()
    }

    /// Returns a builder for [`Secondary::promote`], for options and listeners. It has the file system, the
    /// clock and the hooks of the secondary.
    pub fn promotion(&self) -> lsm_core::Builder {
        self.0.follower.promotion()
    }

    /// Returns the memory of the memtables, in bytes. The next sync drops the memtables that the primary
    /// has flushed.
    pub fn memtable_bytes(&self) -> u64 {
        self.0.follower.memtable_bytes()
    }

    /// Returns whether a primary on this machine publishes its commits, so that strong reads are possible
    /// while it writes.
    pub fn has_live_primary(&self) -> bool {
        self.0.follower.has_cursor()
    }

    pub(crate) fn sync_partition(
        &self,
        followed: &FollowedPartition,
        to: Target,
    ) -> Result<Commit> {
        let started = self.0.clock.now();
        let reached = self.sync_extent(SyncExtent::Only(followed.id()), to)?;
        // A dropped partition reaches no further goal.
        followed.moment()?;
        match to {
            Target::Latest | Target::Durable => {}
            Target::Token(token) => {
                self.check_history(token)?;
                if followed.complete().seq < token.seq {
                    return Err(self.lacking(followed, token));
                }
            }
        }
        if followed.is_logged() && reached.is_present {
            self.0.complete_at.lock().partitions.insert(followed.id(), started);
        }
        Ok(followed.complete())
    }

    /// Makes a partition catch up to the level of `options`.
    pub(crate) fn bring(&self, followed: &FollowedPartition, options: &ReadOptions) -> Result<()> {
        self.0.tending.check_process()?;
        match options.level {
            Level::Eventual => Ok(()),
            Level::Prefix if self.0.follower.follows_tables_only() => {
                let message = "this secondary reads flushed tables only, so a group has no common commit; open \
                               it without tables_only";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            // Only the first read makes a cut. Later reads use the existing cut, so they neither
            // wait nor read the log.
            Level::Prefix if self.cut().as_of().is_some() => Ok(()),
            Level::Prefix => self.sync(Target::Latest).map(drop),
            Level::Session(token) => self.bring_to_token(followed, token, options.wait),
            Level::Bounded { operations, age } => {
                let lag = self.lag(followed);
                let is_near = is_within(lag.operations, operations);
                if is_near && is_within(lag.age, age) {
                    return Ok(());
                }
                // A sync cannot stop at a bound: it reads to the end in any case.
                self.bring_to_present(followed, options.wait)
            }
            Level::Strong => self.bring_to_present(followed, options.wait),
        }
    }

    /// Makes a partition catch up to the moment of the call.
    fn bring_to_present(&self, followed: &FollowedPartition, wait: Duration) -> Result<()> {
        // Once, before the first sync. With a steady writer, a goal that moves with the primary
        // might never be reached.
        let mut goal: Option<SyncGoal> = followed.goal();
        if goal.is_some_and(|goal| followed.has_reached(&goal)) {
            return Ok(());
        }
        let until = self.0.clock.now().saturating_add(wait);
        loop {
            let started = self.0.clock.now();
            let reached = self.0.follower.sync(SyncExtent::Only(followed.id()))?;
            // A dropped partition reaches no further goal.
            followed.moment()?;
            // Everything that was committed is here, so no cursor is needed.
            if reached.is_final {
                return Ok(());
            }
            if goal.is_none_or(|goal| !goal.is_of(reached.epoch)) {
                // Another epoch began, or a cursor was found.
                goal = followed.goal();
            }
            let Some(present) = goal else {
                if self.0.follower.is_primary_there() {
                    let message = "the primary has not finished its open; read again";
                    self.pause(until, Error::new(ErrorKind::Behind, message))?;
                    continue;
                }
                let message =
                    "no primary on this machine publishes its commits; read at a weaker level";
                return Err(Error::new(ErrorKind::Unsupported, message));
            };
            if followed.has_reached(&present) {
                self.0.complete_at.lock().partitions.insert(followed.id(), started);
                return Ok(());
            }
            if self.0.follower.look_for_dead_primary() {
                continue;
            }
            if !self.follows_log(followed) {
                return Err(not_logged(followed));
            }
            self.pause(until, unpublished(followed))?;
        }
    }

    fn bring_to_token(
        &self,
        followed: &FollowedPartition,
        token: Commit,
        wait: Duration,
    ) -> Result<()> {
        let complete = followed.complete();
        // Numbers of two epochs cannot be compared: a later epoch may reuse those of lost commits.
        if complete.epoch == token.epoch && complete.seq >= token.seq {
            return Ok(());
        }
        let until = self.0.clock.now().saturating_add(wait);
        loop {
            match self.sync_partition(followed, Target::Token(token)) {
                Err(error) if error.kind() == ErrorKind::Behind => self.pause(until, error)?,
                synced => return synced.map(drop),
            }
        }
    }

    /// Returns an error if the commit of a token cannot come any more. Called after a sync.
    fn check_history(&self, token: Commit) -> Result<()> {
        let follower = &self.0.follower;
        let has_commit = follower.has_commit(token.epoch, token.seq);
        let is_ahead = token.epoch > follower.epoch();
        match has_commit {
            Some(true) => Ok(()),
            // Without a visible primary the epoch may have begun on another machine.
            None if is_ahead && !follower.has_cursor() => Err(behind(token)),
            Some(false) | None => {
                let Commit { seq, epoch } = token;
                let message = format!(
                    "commit {seq} of epoch {epoch} is not in the history of this database, or \
                     older than what is known of it here"
                );
                Err(Error::new(ErrorKind::SessionLost, message))
            }
        }
    }

    fn lacking(&self, followed: &FollowedPartition, token: Commit) -> Error {
        if !self.follows_log(followed) {
            return not_logged(followed);
        }
        match followed.goal() {
            Some(goal) if !followed.has_reached(&goal) => unpublished(followed),
            _ => behind(token),
        }
    }

    fn follows_log(&self, followed: &FollowedPartition) -> bool {
        followed.is_logged() && !self.0.follower.follows_tables_only()
    }

    /// See [`SecondaryPartition::follow`].
    pub(crate) fn follow(&self, followed: &FollowedPartition, follow: Follow) -> Result<()> {
        self.0.tending.tend(&self.0.follower, &self.0.clock, followed, follow)
    }

    pub(crate) fn tending(&self) -> &FollowThread {
        &self.0.tending
    }

    /// See [`SecondaryPartition::wait_for_news`].
    pub(crate) fn wait_for_news(
        &self,
        followed: &FollowedPartition,
        seen: Commit,
        time: Duration,
    ) -> Result<Option<Commit>> {
        self.0.tending.check_process()?;
        let until = self.0.clock.now().saturating_add(time);
        loop {
            let goal = followed.goal();
            if goal.is_none_or(|goal| !followed.has_reached(&goal)) {
                self.0.follower.sync(SyncExtent::Only(followed.id()))?;
            }
            let moment = followed.moment()?;
            let present = moment.commit();
            if present.epoch != seen.epoch || moment.newest() > seen.seq {
                return Ok(Some(present));
            }
            // Operations that are not logged arrive with a flush.
            let is_looked_at = goal.is_some_and(|goal| followed.has_reached(&goal));
            let is_soon = is_looked_at || (goal.is_some() && self.follows_log(followed));
            let pause = if is_soon { PAUSE } else { READ_PAUSE };
            if self.0.clock.now() >= until {
                return Ok(None);
            }
            std::thread::park_timeout(pause);
        }
    }

    /// Waits a moment, unless it is later than `until`.
    fn pause(&self, until: Duration, unmet: Error) -> Result<()> {
        if self.0.clock.now() >= until {
            return Err(unmet);
        }
        std::thread::park_timeout(PAUSE);
        Ok(())
    }

    /// Reads at `level` from a newer state, which is durable if the syncs of the one before were
    /// limited to durable commits.
    pub(crate) fn look_again(&self, followed: &FollowedPartition, level: Level) -> Result<()> {
        // A reader that is limited to durable commits must not see more because a file was deleted.
        let synced = match level {
            // A prefix is read from the cut, and only a sync of all partitions makes a new one.
            // Other partitions in the cut may have been synced to a lesser goal than this one.
            Level::Prefix => self.sync_extent(SyncExtent::All, self.target_of_cut()),
            _ => {
                let to = if followed.is_durable() { Target::Durable } else { Target::Latest };
                self.sync_extent(SyncExtent::Only(followed.id()), to)
            }
        };
        synced.map(drop)
    }

    /// The goal of the sync that made the cut, for the sync that makes the next one automatically.
    fn target_of_cut(&self) -> Target {
        if self.0.follower.cut().is_durable() { Target::Durable } else { Target::Latest }
    }

    pub(crate) fn moment_in_cut(
        &self,
        partition: &SecondaryPartition,
    ) -> Result<Option<FollowedMoment>> {
        if let Some(moment) = self.0.follower.cut().partition(partition.followed.id()) {
            return Ok(Some(moment));
        }
        // It may have been made since.
        self.sync(self.target_of_cut())?;
        Ok(self.0.follower.cut().partition(partition.followed.id()))
    }

    pub(crate) fn lag(&self, followed: &FollowedPartition) -> Lag {
        if self.0.tending.check_process().is_err() {
            return Lag { operations: None, bytes: None, age: None };
        }
        let now = self.0.clock.now();
        let is_current = followed.goal().map(|goal| followed.has_reached(&goal));
        if is_current == Some(true) {
            return Lag { operations: Some(0), bytes: Some(0), age: Some(Duration::ZERO) };
        }
        let primary = self.0.follower.primary_seq();
        let complete = followed.complete();
        // The state of another epoch may have commits that this one does not have.
        let is_present = complete.epoch == self.0.follower.epoch();
        let seen = if is_present { complete.seq } else { SeqNo::ZERO };
        let operations = primary.map(|seq| seq.get().saturating_sub(seen.get()));
        let at = self.0.complete_at.lock().of(followed);
        let bytes = followed.bytes_behind();
        Lag { operations, bytes, age: at.map(|at| now.saturating_sub(at)) }
    }
}

fn behind(token: Commit) -> Error {
    let Commit { seq, epoch } = token;
    let message = format!("commit {seq} of epoch {epoch} does not exist yet");
    Error::new(ErrorKind::Behind, message)
}

/// The error of a read that has everything that is published, while the primary has begun more.
fn unpublished(followed: &FollowedPartition) -> Error {
    let message = format!(
        "the primary is stopped, or slow, in the middle of a commit to partition {:?}: it has not published it",
        followed.name()
    );
    Error::new(ErrorKind::Behind, message)
}

fn not_logged(followed: &FollowedPartition) -> Error {
    let name = followed.name();
    let message = format!(
        "partition {name:?} is not followed by the log: its state is that of its last flush"
    );
    Error::new(ErrorKind::NotLogged, message)
}
