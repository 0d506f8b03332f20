//! [`Follower::changes`]: the changes of a database that another process writes.
//!
//! Each look runs a round for the list of partitions (`round.rs`), which finds the end of the commits. The feed shows
//! the part of them that the log attests as durable, by the reader of its own place (`changes/log.rs`).

use std::sync::Arc;
use std::time::Duration;

use super::bound::{Bound, BoundSource};
use super::{Follower, Inner, SyncExtent, SyncReach};
use crate::changes::{ChangeLog, ChangeSource, Changes, LoggedStore, Shown, check_history};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Commit, PartitionId, SeqNo};
use crate::version::DbVersion;
use crate::wal::Lsn;

/// The pause between two looks: a look at the cursor is a few loads.
const PAUSE: Duration = Duration::from_millis(1);
/// The same if each look reads the folder and the log.
const READ_PAUSE: Duration = Duration::from_millis(5);

/// The side of a follower.
struct FollowedSource {
    inner: Arc<Inner>,
    has_cursor: bool,
}

impl Follower {
    /// Returns the durable commits after the sequence number `from`, in their order: those in the log, and those that
    /// the primary makes from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if only flushed tables are followed.
    pub fn changes(&self, from: SeqNo) -> Result<Changes> {
        let inner = self.inner.clone();
        inner.tables.check_process()?;
        if inner.follows_tables_only {
            let message = "this follower reads flushed tables only, and the changes are in the log; open it without \
                           tables_only";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let log = ChangeLog::new(&inner.files, &inner.dir, from);
        let source = FollowedSource { inner, has_cursor: false };
        Ok(Changes::new(Box::new(source), log, self.epoch()))
    }

    /// Returns the durable commits after `commit`, as [`Follower::changes`] does.
    ///
    /// # Errors
    /// Those of [`Follower::changes`] and of reading; [`ErrorKind::SessionLost`] if the commit is not in the history of
    /// the database.
    pub fn changes_from(&self, commit: Commit) -> Result<Changes> {
        let changes = self.changes(commit.seq)?;
        check_history(&self.inner.end_of_commits()?.0, commit)?;
        Ok(changes)
    }
}

impl ChangeSource for FollowedSource {
    fn look(&mut self, log: &mut ChangeLog) -> Result<Shown> {
        let (version, bound) = self.inner.end_of_commits()?;
        self.has_cursor = matches!(bound.source, BoundSource::Cursor(_));
        let reach = match bound.source {
            // It is the end of what the log attests.
            BoundSource::Log | BoundSource::EarlierLook => bound.reach,
            BoundSource::Cursor(_) | BoundSource::Fence => {
                log.prepare(&version)?;
                // In an earlier epoch the place of the present one is not asked for.
                let attested = log.attested(&version, bound.reach)?;
                attested.map_or(Lsn(0), |attested| attested.durable.min(bound.reach))
            }
        };
        Ok(Shown { version, reach, mark: 0 })
    }

    fn wait(&self, _: u64, time: Duration) -> Result<()> {
        let pause = if self.has_cursor { PAUSE } else { READ_PAUSE };
        // No one unparks this thread.
        std::thread::park_timeout(pause.min(time));
        Ok(())
    }

    fn store(&self, id: PartitionId) -> LoggedStore {
        let followed = self.inner.partitions.read().by_id.get(&id).cloned();
        followed.map_or(LoggedStore::Dropped, |followed| followed.hooks().store.clone().into())
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    fn notify(&self, _: u64, _: Box<dyn FnOnce() + Send>) -> bool {
        false
    }
}

impl Inner {
    /// The manifest and the end of the commits, as of now.
    fn end_of_commits(&self) -> Result<(Arc<DbVersion>, Bound)> {
        self.tables.check_process()?;
        let mut position = self.position.lock();
        self.sync_under(&mut position, SyncExtent::Layout, SyncReach::Committed)?;
        let bound = position.bound();
        if bound.source == BoundSource::Log {
            // Otherwise the next look would walk over the same headers again.
            position.scan(self, &bound)?;
        }
        Ok((position.version().clone(), bound))
    }
}
