//! The database: the only folder that knows everything below it.
//!
//! A write goes `write.rs` -> `commit.rs` -> `log/`; a read goes straight to `crate::read`. `open.rs` makes a
//! database, `read_only.rs` opens one without writing, `catalog.rs` has its partitions and files;
//! `background.rs` runs `flush.rs` and `compaction.rs`, `jobs.rs` lists the running ones, `job.rs` runs one
//! and `install.rs` installs its tables; `stall.rs` slows writers down, `obsolete.rs` deletes files,
//! `verify.rs` reads all of them; `checkpoint.rs` and `exchange/` copy to and from other folders; `errors.rs`
//! defines the reaction to failures and `flush/resume.rs` recovers from the worst; `health.rs`, `stats.rs` and the
//! listeners of `events.rs` report. `sealing.rs` and `scheduler.rs` are the work of the commit path and of the
//! background threads.

mod background;
mod batch;
mod calendar;
mod catalog;
mod checkpoint;
mod clear_seqs;
mod close;
mod commit;
mod compaction;
mod concurrent_reader;
mod context;
mod durable;
mod epoch;
pub(crate) mod errors;
mod events;
mod exchange;
mod files;
mod flush;
mod gaps;
mod handle;
mod health;
pub(crate) mod hook_binding;
mod inject;
mod install;
mod job;
mod jobs;
mod late_cursor;
mod leases;
mod log;
mod log_search;
mod loss;
mod mend;
mod modify;
mod obsolete;
pub(crate) mod open;
pub(crate) mod ownership;
mod partitions;
mod prepared;
mod read_only;
mod reads;
mod recovery;
mod removal;
mod require;
mod restore;
pub(crate) mod retries;
mod schedule;
mod scheduler;
mod sealing;
mod stall;
mod stats;
#[cfg(test)]
mod testing;
mod transaction;
mod unconfirmed;
mod values;
mod verify;
mod write;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::snapshot::Snapshots;
use crate::stats::Counters;

pub use background::BackgroundMode;
pub use batch::Batch;
pub use commit::Commit;
pub use durable::Durable;
pub use errors::{BackgroundFailure, Class, Reason, Resume, Severity};
pub use exchange::{BulkLoad, ExportOptions, ExportSummary, IngestSummary};
pub use handle::{Db, Partition, Snapshot};
pub use health::{Gauge, Health, PartitionHealth};
pub use inject::InMemory;
pub use leases::LeaseHolder;
pub use modify::Swap;
pub use open::Builder;
pub use stall::StallHealth;
pub use transaction::{Transaction, TransactionCursor, TransactionKeys, TransactionRange};
pub use verify::{VerifyMark, VerifyOptions, VerifyProgress, VerifyReport};

use background::Background;
use catalog::Catalog;
use commit::CommitPath;
use compaction::Compactor;
use context::{DbContext, Setup};
use events::Events;
use flush::Flusher;
use install::Installer;
use job::JobRunner;
use jobs::Jobs;
use log::Log;
use ownership::Ownership;
use removal::Removal;
use restore::Restorer;
use sealing::MemtableSealer;
use stall::Stall;
use values::{ValueReclaimer, ValueTending};

/// The state that the handles of one open database share.
pub(crate) struct DbInner {
    // Fixed after the open.
    context: DbContext,
    setup: Setup,
    runner: Arc<JobRunner>,

    // Each with locks of its own inside.
    counters: Arc<Counters>,
    snapshots: Arc<Snapshots>,
    catalog: Arc<Catalog>,
    log: Arc<Log>,
    commit: Arc<CommitPath>,
    background: Arc<Background>,
    jobs: Arc<Jobs>,
    values: Arc<ValueTending>,
    stall: Arc<Stall>,
    events: Arc<Events>,
    ownership: Arc<Ownership>,
    removal: Arc<Removal>,
    sealer: Arc<MemtableSealer>,
    installer: Arc<Installer>,
    flusher: Arc<Flusher>,
    restorer: Arc<Restorer>,
    compactor: Arc<Compactor>,
    reclaimer: Arc<ValueReclaimer>,
}

impl DbInner {
    /// Returns an error if the database is closed or takes no writes.
    pub(super) fn check_open(&self) -> Result<()> {
        self.log.check_open()
    }

    /// As [`Ownership::check_writable`].
    pub(super) fn check_writable(&self) -> Result<()> {
        self.ownership.check_writable()
    }

    /// The error of writes, if the database takes none.
    pub(super) fn why_read_only(&self) -> Option<Error> {
        self.ownership.why_read_only().or_else(|| self.log.failure())
    }

    /// As [`Ownership::is_own`].
    pub(super) fn is_own(&self) -> bool {
        self.ownership.is_own()
    }

    /// As [`Ownership::check_not_closed`].
    #[inline]
    pub(super) fn check_not_closed(&self) -> Result<()> {
        self.ownership.check_not_closed()
    }
}
