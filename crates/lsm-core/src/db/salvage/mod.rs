//! [`Salvage`]: what can be read of a database that does not open, or that is damaged.
//!
//! Nothing is written to the folder. Each partition becomes one merge of all sources that verify: blocks of tables, and
//! batches of the log. Sequence numbers order the versions of a key. [Design note
//! 46](../../../../../docs/design/0046-a-repair-writes-a-new-database.md) says which sources are trusted.
//!
//! ```text
//! report.rs  what is lost, and which keys are in doubt
//! state.rs   the partitions and tables: from the manifest, from its remains, from the tables themselves
//! log.rs     the batches of a damaged log
//! walk.rs    the entries of a partition
//! repair.rs  a new database of them
//! ```
//!
//! Invariants:
//! 1. A key outside of all [`DoubtfulKeys`] has the value that the database had, or is absent as it was.
//! 2. Every value was once the value of its key.
//! 3. A database that opens and verifies is read as an open reads it, and nothing of it is in doubt.

mod log;
mod repair;
mod report;
mod state;
mod walk;

use std::sync::Arc;

use super::open::{Builder, DbFolder, OpenCheck, OpenMode};
use crate::error::Result;

use state::SalvageState;

pub use report::{DoubtfulKeys, SalvageReport, SalvagedPartition};
pub use walk::EachEntry;

/// A damaged database, open for reading what is there.
pub struct Salvage {
    builder: Builder,
    /// Held as long as the files are read.
    _folder: DbFolder,
    state: SalvageState,
    report: SalvageReport,
}

impl Builder {
    /// Opens what can be read of the database, whatever is damaged or missing, and writes nothing to it. Of the
    /// builder, the options, file system, clock and hooks count.
    ///
    /// # Errors
    /// [`Locked`](crate::ErrorKind::Locked) while another process has the database open;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if newer code wrote it, or the code of a hook is missing without
    /// which entries have no meaning; a folder without any file of a database; those of the file system.
    ///
    /// # Cost
    /// Reads the manifest, and the log into memory.
    pub fn salvage(self) -> Result<Salvage> {
        self.options.check()?;
        let check = OpenCheck::default();
        let folder = DbFolder::find(self.fs.clone(), &self.dir, OpenMode::Reading, false, check)?;
        let mut report = SalvageReport::default();
        let state = SalvageState::find(&self, &folder, &mut report)?;
        Ok(Salvage { builder: self, _folder: folder, state, report })
    }
}

impl Salvage {
    /// Returns the names of the partitions, in order.
    pub fn partition_names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            self.state.version.partitions.values().map(|it| it.name.to_string()).collect();
        names.sort();
        names
    }

    /// Returns `true` if the values of the partition lie in a value store.
    pub fn has_value_store(&self, partition: &str) -> bool {
        let found = self.state.version.partitions.named(partition);
        found.is_some_and(|it| self.state.hooks[&it.id].store.is_some())
    }

    /// Calls `each` with the keys and values of a partition, in ascending order of the keys.
    ///
    /// # Errors
    /// [`PartitionNotFound`](crate::ErrorKind::PartitionNotFound); [`Unsupported`](crate::ErrorKind::Unsupported) if the
    /// code of its merge operator is missing; those of the device and of `each`. Damage is no error.
    ///
    /// # Cost
    /// Reads all tables of the partition once. A large value is in memory as a whole.
    pub fn each_entry(&mut self, partition: &str, each: &mut EachEntry<'_>) -> Result<()> {
        let found = self.state.version.partitions.named(partition).map(Arc::clone);
        let found = found.ok_or_else(|| super::partitions::not_found(partition))?;
        let entries = walk::each_entry(&self.state, &found, &mut self.report, each)?;
        self.report.partitions.push(SalvagedPartition { name: partition.to_owned(), entries });
        Ok(())
    }

    /// Returns the findings so far: of partitions that were read, and of manifest and log.
    pub fn report(&self) -> &SalvageReport {
        &self.report
    }
}
