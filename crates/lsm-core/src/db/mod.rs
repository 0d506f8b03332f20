//! The database: the only folder that knows everything below it.
//!
//! A write goes `write.rs` -> `commit.rs` -> `log.rs`; a read goes straight to `crate::read`.
//! `open.rs` makes a database, `background.rs` runs `jobs.rs`, `stall.rs` slows writers down,
//! `obsolete.rs` lets files go, `verify.rs` reads all of them; `checkpoint.rs` and `exchange/` copy
//! to and from other folders; `errors.rs` says what a failure means and `resume.rs` goes on after
//! the worst; `health.rs` and `stats.rs` tell, and so do the listeners of `events.rs`.

mod background;
mod checkpoint;
mod close;
mod commit;
mod errors;
mod events;
mod exchange;
mod handle;
mod health;
mod hooked;
mod jobs;
mod log;
mod moment;
mod obsolete;
mod open;
mod partitions;
mod recovery;
mod repair;
mod resume;
mod stall;
mod stats;
mod verify;
mod write;
mod written;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::cache::Blocks;
use crate::compaction::Inject;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{Fs, LockGuard};
use crate::hooks::{EventListener, HookProvider};
use crate::options::Options;
use crate::partition::PartitionState;
use crate::snapshot::Snapshots;
use crate::stats::Counters;
use crate::types::{DbId, Epoch, SeqNo};
use crate::version::{Change, FileNumbers, TableContext, VersionSet};

pub use background::BackgroundMode;
pub use commit::Commit;
pub use errors::{BackgroundFailure, Class, Reason, Resume, Rule, Severity, rule};
pub use exchange::{ExportSummary, IngestSummary};
pub use handle::{Db, Partition, Snapshot};
pub use health::{Gauge, Health, PartitionHealth, StallHealth};
pub use open::Builder;
pub use verify::{VerifyMark, VerifyOptions, VerifyProgress, VerifyReport};
pub use write::Batch;

use background::Background;
use commit::CommitPath;
use jobs::Jobs;
use obsolete::ObsoleteFiles;
use partitions::Partitions;
use stall::Stall;

/// Everything that the handles of one open database share.
pub(crate) struct DbInner {
    // Fixed after the open.
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    options: Options,
    db_id: DbId,
    epoch: Epoch,
    tables: Arc<TableContext>,
    cache: Arc<Blocks>,
    numbers: Arc<FileNumbers>,
    snapshots: Arc<Snapshots>,
    counters: Counters,
    random: Mutex<Box<dyn FnMut() -> u64 + Send>>,
    hook_provider: Option<Arc<dyn HookProvider>>,
    listeners: Vec<Arc<dyn EventListener>>,
    /// Changes entries between reading and writing: for tests alone.
    inject: Option<Box<Inject>>,

    // Each with a lock of its own inside.
    commit: CommitPath,
    background: Background,
    jobs: Jobs,
    stall: Stall,
    obsolete: ObsoleteFiles,
    events: events::Events,
    in_doubt: Mutex<resume::InDoubt>,
    snapshot_times: health::SnapshotTimes,

    /// Held over the manifest's append and sync, and while views take a new version in.
    versions: Mutex<VersionSet>,
    partitions: RwLock<Partitions>,
    /// Number of the last durable edit: written under `versions`, read anywhere.
    edit_number: AtomicU64,

    /// Why no write is taken until `resume.rs` succeeds. Set and cleared together with the failed
    /// sync of the commit path.
    failure: Mutex<Option<Error>>,
    closed: AtomicBool,
    /// Set under `versions` before the lock file is let go: nothing is installed from then on.
    shut: AtomicBool,
    lock: Mutex<Option<Box<dyn LockGuard>>>,
}

impl DbInner {
    /// An error if the database is closed or takes no writes.
    pub(super) fn check_open(&self) -> Result<()> {
        self.check_not_closed()?;
        match &*self.failure.lock() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn check_not_closed(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the database is closed"));
        }
        Ok(())
    }

    /// Makes changes durable that concern no partition's view.
    pub(super) fn install(&self, changes: Vec<Change>) -> Result<()> {
        let mut versions = self.lock_versions()?;
        let number = versions.install(changes)?.edit_number;
        self.note_edit(number);
        Ok(())
    }

    /// Notes under the lock of the versions that an edit is durable.
    pub(super) fn note_edit(&self, number: u64) {
        self.edit_number.store(number, Ordering::Release);
    }

    /// The lock under which edits are installed; refused once the database has let go of its
    /// folder, which may be another process's by then.
    pub(super) fn lock_versions(&self) -> Result<MutexGuard<'_, VersionSet>> {
        let versions = self.versions.lock();
        if self.shut.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the database is closed"));
        }
        Ok(versions)
    }

    /// The last edit that is durable.
    pub(super) fn durable_edit(&self) -> u64 {
        self.edit_number.load(Ordering::Acquire)
    }

    /// All partitions that exist.
    pub(super) fn live_partitions(&self) -> Vec<Arc<PartitionState>> {
        self.partitions.read().all()
    }

    /// A random number, from the source that the opener named.
    pub(super) fn random(&self) -> u64 {
        (self.random.lock())()
    }

    /// The newest sequence number that readers see.
    pub(super) fn visible_seq(&self) -> SeqNo {
        self.commit.visible_seq()
    }
}
