//! The database: the only folder that knows everything below it.
//!
//! A write goes `write.rs` -> `commit.rs` -> `log/`; a read goes straight to `crate::read`. `open.rs` makes a
//! database, `read_only.rs` opens one without writing, `catalog.rs` has its partitions and files.
//! `scheduler.rs` is the background work: `flush.rs`, `compaction.rs`, `values.rs` and `removal.rs` do it on the
//! threads of `background.rs`, `jobs.rs` lists what runs, `job.rs` runs one job and `install.rs` installs its
//! tables; `sealing.rs` works between two groups of writes, and `stall.rs` slows writers down. `obsolete.rs`
//! deletes files, `verify.rs` reads all of them; `checkpoint.rs` and `exchange/` copy to and from other folders;
//! `errors.rs` defines the reaction to failures and `flush/resume.rs` recovers from the worst; `health.rs`,
//! `stats.rs` and the listeners of `events.rs` report.
//!
//! Invariant: the files of the background work, and those below them, import neither `DbInner` nor a handle.
//! They are made of the parts that they use. The handles, and the calls that need several parts, come above.

mod background;
mod background_io;
mod backup_source;
mod batch;
mod calendar;
mod catalog;
mod changes;
mod checkpoint;
mod clear_seqs;
mod close;
mod commit;
mod compaction;
mod concurrent_reader;
mod context;
mod durable;
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
mod job_parts;
mod jobs;
mod leases;
mod locks;
mod log;
mod log_search;
mod log_upkeep;
mod loss;
mod memtable_repair;
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
pub(crate) mod resources;
mod restore;
pub(crate) mod retries;
mod salvage;
mod schedule;
mod scheduler;
mod sealing;
mod spans;
mod stall;
mod stats;
#[cfg(test)]
mod testing;
mod thread_pool;
mod transaction;
mod unconfirmed;
mod values;
mod verify;
mod write;
mod write_budget;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::snapshot::Snapshots;
use crate::stats::Counters;

pub use background::BackgroundMode;
pub use backup_source::BackupSource;
pub use batch::Batch;
pub(crate) use checkpoint::make_empty_folder;
pub use commit::Commit;
pub use durable::Durable;
pub use errors::{BackgroundFailure, Class, Reason, Resume, Severity};
#[cfg(feature = "internals")]
pub use exchange::check_export_description;
pub use exchange::{BulkLoad, ExportOptions, ExportSummary, IngestSummary};
pub use handle::{Db, Partition, Snapshot};
pub use health::{Gauge, Health, PartitionHealth};
pub use inject::InMemory;
pub use leases::LeaseHolder;
pub use modify::{Swap, Updated};
pub use open::Builder;
pub use resources::{ResourceUsage, Resources};
pub use salvage::{DoubtfulKeys, Salvage, SalvageReport, SalvagedPartition};
pub use stall::StallHealth;
pub use transaction::{Transaction, TransactionCursor, TransactionKeys, TransactionRange};
pub use verify::{VerifyMark, VerifyOptions, VerifyProgress, VerifyReport};
pub(crate) use write_budget::FollowedMemory;

use catalog::Catalog;
use commit::CommitPath;
use context::{DbContext, Setup};
use events::Events;
use job::JobRunner;
use locks::LockTable;
use log::Log;
use ownership::Ownership;
use scheduler::Scheduler;

/// The state that the handles of one open database share.
pub(crate) struct DbInner {
    // Fixed after the open.
    context: DbContext,
    setup: Setup,
    runner: Arc<JobRunner>,

    // Each with locks of its own inside.
    counters: Arc<Counters>,
    snapshots: Arc<Snapshots>,
    locks: Arc<LockTable>,
    catalog: Arc<Catalog>,
    log: Arc<Log>,
    commit: Arc<CommitPath>,
    events: Arc<Events>,
    ownership: Arc<Ownership>,
    scheduler: Arc<Scheduler>,
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
