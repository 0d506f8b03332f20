//! The calls of [`Secondary`] that make one partition catch up: to a level of a read, to a token, or to the
//! present. The invariants of `secondary.rs` hold here as well.

use std::time::Duration;

use lsm_core::db::Commit;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::follow::{FollowedPartition, ReplicaView, SyncExtent, SyncGoal};
use lsm_core::types::SeqNo;

use super::Secondary;
use crate::background::{Follow, FollowThread};
use crate::lag::{Lag, is_within};
use crate::level::{Level, ReadOptions, Target};
use crate::partition::SecondaryPartition;

/// The pause between two looks at a primary that has not finished a step.
const PAUSE: Duration = Duration::from_micros(50);
/// The same if each look reads the log.
const READ_PAUSE: Duration = Duration::from_millis(5);

impl Secondary {
    pub(crate) fn sync_partition(
        &self,
        followed: &FollowedPartition,
        to: Target,
    ) -> Result<Commit> {
        let started = self.0.clock.now();
        let reached = self.sync_extent(SyncExtent::Only(followed.id()), to)?;
        // A dropped partition reaches no further goal.
        followed.view()?;
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
    pub(crate) fn catch_up(
        &self,
        followed: &FollowedPartition,
        options: &ReadOptions,
    ) -> Result<()> {
        self.0.thread.check_process()?;
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
            Level::Session(token) => self.catch_up_to_token(followed, token, options.wait),
            Level::Bounded { operations, age } => {
                let lag = self.lag(followed);
                let is_near = is_within(lag.operations, operations);
                if is_near && is_within(lag.age, age) {
                    return Ok(());
                }
                // A sync cannot stop at a bound: it reads to the end in any case.
                self.catch_up_to_present(followed, options.wait)
            }
            Level::Strong => self.catch_up_to_present(followed, options.wait),
        }
    }

    /// Makes a partition catch up to the moment of the call.
    fn catch_up_to_present(&self, followed: &FollowedPartition, wait: Duration) -> Result<()> {
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
            followed.view()?;
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
                // The storage has answered for all commits.
                if reached.is_present {
                    if !self.follows_log(followed) {
                        return Err(not_logged(followed));
                    }
                    self.0.complete_at.lock().partitions.insert(followed.id(), started);
                    return Ok(());
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

    fn catch_up_to_token(
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
    pub(super) fn check_history(&self, token: Commit) -> Result<()> {
        let follower = &self.0.follower;
        let has_commit = follower.has_commit(token.epoch, token.seq);
        let is_ahead = token.epoch > follower.epoch();
        match has_commit {
            Some(true) => Ok(()),
            // Without a visible primary the epoch may have begun on another machine.
            None if is_ahead && !follower.has_cursor() => Err(after(token)),
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
            _ => after(token),
        }
    }

    fn follows_log(&self, followed: &FollowedPartition) -> bool {
        followed.is_logged() && !self.0.follower.follows_tables_only()
    }

    /// See [`SecondaryPartition::follow`].
    pub(crate) fn follow(&self, followed: &FollowedPartition, follow: Follow) -> Result<()> {
        self.0.thread.set_follow(&self.0.follower, &self.0.clock, followed, follow)
    }

    pub(crate) fn thread(&self) -> &FollowThread {
        &self.0.thread
    }

    /// See [`SecondaryPartition::wait_for_news`].
    pub(crate) fn wait_for_news(
        &self,
        followed: &FollowedPartition,
        seen: Commit,
        time: Duration,
    ) -> Result<Option<Commit>> {
        self.0.thread.check_process()?;
        let until = self.0.clock.now().saturating_add(time);
        loop {
            let goal = followed.goal();
            if goal.is_none_or(|goal| !followed.has_reached(&goal)) {
                self.0.follower.sync(SyncExtent::Only(followed.id()))?;
            }
            let view = followed.view()?;
            let present = view.commit();
            if present.epoch != seen.epoch || view.newest() > seen.seq {
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
    pub(super) fn pause(&self, until: Duration, unmet: Error) -> Result<()> {
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

    pub(crate) fn view_in_cut(
        &self,
        partition: &SecondaryPartition,
    ) -> Result<Option<ReplicaView>> {
        if let Some(view) = self.0.follower.cut().partition(partition.followed.id()) {
            return Ok(Some(view));
        }
        // It may have been made since.
        self.sync(self.target_of_cut())?;
        Ok(self.0.follower.cut().partition(partition.followed.id()))
    }

    pub(crate) fn lag(&self, followed: &FollowedPartition) -> Lag {
        if self.0.thread.check_process().is_err() {
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

pub(super) fn after(token: Commit) -> Error {
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
