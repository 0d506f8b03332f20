//! [`Db::changes`]: the changes of a database that this process writes.
//!
//! Invariants:
//! 1. A commit is shown when it is durable and visible: whoever learns of it finds it in every read.
//! 2. A write does nothing for a feed. A sync of the log, which wakes the writers that wait for it, wakes feeds too.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::handle::Db;
use crate::changes::{ChangeLog, ChangeSource, Changes, LoggedStore, Shown, check_history};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Commit, PartitionId, SeqNo};

/// The pause while a commit is durable and about to be visible.
const PAUSE: Duration = Duration::from_millis(1);
/// The longest wait without a look: nothing wakes a feed when the database is taken over or a partition is dropped.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The side of the writer.
struct PrimarySource {
    db: Db,
    clock: Arc<dyn Clock>,
    /// A commit was durable before it was visible, at the last look.
    is_in_doubt: bool,
}

impl Db {
    /// Returns the commits after the sequence number `from`, in their order: those in the log, and those that are made
    /// from now on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if nothing was committed under that number yet; [`ErrorKind::Unsupported`] for a
    /// database that was opened read-only: a secondary follows it.
    pub fn changes(&self, from: SeqNo) -> Result<Changes> {
        let inner = self.inner();
        inner.check_not_closed()?;
        if inner.ownership.is_read_only() {
            let message = "a database that was opened read-only has no changes; open a secondary";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let visible = self.visible_seq();
        if from > visible {
            let message =
                format!("the position is {from}, but the last commit of the database is {visible}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let dir: &Path = &inner.context.dir;
        let log = ChangeLog::new(&inner.context.files, dir, from);
        let log = log.durable_through(inner.log.durable_point().1);
        let clock = inner.context.clock.clone();
        let source = PrimarySource { db: self.clone(), clock, is_in_doubt: false };
        Ok(Changes::new(Box::new(source), log, inner.context.epoch))
    }

    /// Returns the commits after `commit`, as [`Db::changes`] does.
    ///
    /// # Errors
    /// Those of [`Db::changes`]; [`ErrorKind::SessionLost`] if the commit is not in the history of the database.
    pub fn changes_from(&self, commit: Commit) -> Result<Changes> {
        let changes = self.changes(commit.seq)?;
        check_history(&self.inner().catalog.current(), commit)?;
        Ok(changes)
    }
}

impl ChangeSource for PrimarySource {
    fn look(&mut self, _: &mut ChangeLog) -> Result<Shown> {
        let inner = self.db.inner();
        inner.check_not_closed()?;
        inner.ownership.check_not_fenced()?;
        // In this order: what is in the log before the place is visible, if nothing after it is durable.
        let (durable, last_seq) = inner.log.durable_point();
        let visible = inner.commit.visible_seq();
        self.is_in_doubt = last_seq > visible;
        let reach = match self.is_in_doubt {
            true => inner.commit.applied_lsn().min(durable),
            false => durable,
        };
        Ok(Shown { version: inner.catalog.current(), reach, mark: durable.0 })
    }

    fn wait(&self, mark: u64, time: Duration) -> Result<()> {
        let inner = self.db.inner();
        inner.check_not_closed()?;
        let most = if self.is_in_doubt { PAUSE } else { WAIT_MAX };
        inner.log.wait_durable_after(mark, time.min(most));
        Ok(())
    }

    fn store(&self, id: PartitionId) -> LoggedStore {
        let partition = self.db.inner().catalog.with_id(id);
        partition.map_or(LoggedStore::Dropped, |partition| partition.store().cloned().into())
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn notify(&self, mark: u64, notice: Box<dyn FnOnce() + Send>) -> bool {
        if self.is_in_doubt {
            return false;
        }
        self.db.inner().log.notify_durable_after(mark, Box::new(move |_| notice()));
        true
    }
}
