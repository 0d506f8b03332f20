//! [`BackupSource`]: a database as a backup reads it.
//!
//! Made for `backup/`, of an open database or of a folder.

use std::path::PathBuf;
use std::sync::Arc;

use super::context::DbContext;
use super::handle::Db;
use super::open::Builder;
use crate::clock::Clock;
use crate::error::Result;
use crate::fs::Fs;
use crate::hooks::HookProvider;

/// The database that is backed up. With hooks, value stores say which bytes of their files never change, so that these
/// are not read again.
pub struct BackupSource {
    pub(crate) dir: PathBuf,
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hooks: Option<Arc<dyn HookProvider>>,
}

impl Builder {
    /// The database of this builder, as a backup reads it.
    pub fn backup_source(self) -> BackupSource {
        let Builder { dir, fs, clock, hooks, .. } = self;
        BackupSource { dir, fs, clock, hooks }
    }
}

impl Db {
    /// Writes the memtables of all partitions without a log to tables, and returns the database as a backup reads it.
    ///
    /// # Errors
    /// Those of the flush; [`Closed`](crate::ErrorKind::Closed).
    pub(crate) fn backup_source(&self) -> Result<BackupSource> {
        let inner = self.inner();
        inner.check_not_closed()?;
        if !inner.ownership.is_read_only() {
            let partitions = inner.catalog.partitions();
            for state in partitions.iter().filter(|it| !it.view().version.options.logged) {
                inner.scheduler.flusher().flush_now(state)?;
            }
            inner.events.deliver();
        }
        let DbContext { fs, dir, clock, .. } = &inner.context;
        let hooks = inner.setup.hook_provider.clone();
        Ok(BackupSource { dir: dir.clone(), fs: fs.clone(), clock: clock.clone(), hooks })
    }
}
