//! [`DbContext`]: the folder of a database, the epoch of its writer, and its clock; [`Setup`]: what it was
//! opened with.
//!
//! Made by `recovery.rs` from the content of the folder; recovery, the log, jobs and value stores use
//! it. Nothing in it changes while the database is open.

use std::path::PathBuf;
use std::sync::Arc;

use super::inject::Injections;
use super::leases::LeaseTable;
use super::obsolete::ObsoleteFiles;
use super::resources::{Resources, WriteMemory};
use crate::cache::DbCache;
use crate::clock::Clock;
use crate::compaction::TableFactory;
use crate::fs::{FilesUnderWay, Fs, OpenFiles};
use crate::hooks::{EventQueue, HookProvider, OtherWriter, StoreContext, StoreWishes};
use crate::memtable::SlabPool;
use crate::options::Options;
use crate::sstable::BlockCache;
use crate::types::{DbId, Epoch, FileNumbers, PartitionId};
use crate::version::{Missing, PrefixCounts, TableContext};

/// The folder of a database, the epoch of its writer, and its clock.
#[derive(Clone)]
pub(super) struct DbContext {
    pub(super) fs: Arc<dyn Fs>,
    pub(super) dir: PathBuf,
    /// Tables and chunk files that are open for reading.
    pub(super) files: Arc<OpenFiles>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) db_id: DbId,
    pub(super) epoch: Epoch,
    /// The source of the numbers of new files.
    pub(super) numbers: Arc<FileNumbers>,
    /// Tables that are being written.
    pub(super) under_way: Arc<FilesUnderWay>,
    /// Nothing is written: no thread runs, and memtables have the entries of the log.
    pub(super) is_read_only: bool,
    /// The process that may write meanwhile.
    pub(super) other: Option<OtherWriter>,
    /// Queues the events of hooks for listeners.
    pub(super) events: EventQueue,
    /// The wishes of value stores.
    pub(super) wishes: StoreWishes,
}

/// The options of an open database, and the memory and hooks that its parts share. Fixed after the open.
pub(super) struct Setup {
    pub(super) options: Options,
    /// The means to open tables.
    pub(super) tables: Arc<TableContext>,
    pub(super) cache: DbCache,
    /// Memory of the memtables.
    pub(super) slabs: Arc<SlabPool>,
    /// Shared with other databases.
    pub(super) resources: Option<Resources>,
    pub(super) hook_provider: Option<Arc<dyn HookProvider>>,
    /// Changes entries between reading and writing: only for tests.
    pub(super) inject: Injections,
}

impl Setup {
    /// The setup of a database whose memtables take their memory from `memory`.
    pub(super) fn new(
        options: Options,
        tables: Arc<TableContext>,
        cache: DbCache,
        memory: WriteMemory,
        resources: Option<Resources>,
        hook_provider: Option<Arc<dyn HookProvider>>,
        inject: Injections,
    ) -> Setup {
        let slabs = memory.slabs;
        Setup { options, tables, cache, slabs, resources, hook_provider, inject }
    }
}

impl DbContext {
    /// The obsolete files of the folder, none so far.
    pub(super) fn obsolete_files(&self, options: &Options) -> ObsoleteFiles {
        let leases = LeaseTable::new(self.clock.clone(), options.leased_bytes_max);
        let under_way = self.under_way.clone();
        ObsoleteFiles::new(self.fs.clone(), self.dir.clone(), leases, under_way)
    }

    /// The maker of tables. No cache takes their blocks: exported or ingested blocks are not read by the
    /// thread that writes them. Flushes and compactions add the cache, see `db/open.rs`.
    pub(super) fn factory(&self) -> TableFactory {
        TableFactory {
            fs: self.fs.clone(),
            files: Some(self.files.clone()),
            dir: self.dir.clone(),
            db_id: self.db_id,
            epoch: self.epoch,
            numbers: self.numbers.clone(),
            later: None,
            cache: None,
            are_mapped: false,
            under_way: Some(self.under_way.clone()),
        }
    }

    /// The means to open the tables.
    pub(super) fn table_context(
        &self,
        cache: Option<Arc<dyn BlockCache>>,
        missing: Missing,
        are_mapped: bool,
    ) -> Arc<TableContext> {
        Arc::new(TableContext {
            missing,
            fs: self.fs.clone(),
            dir: self.dir.clone(),
            db_id: self.db_id,
            cache,
            are_mapped,
            files: Some(self.files.clone()),
            prefix_counts: PrefixCounts::default(),
        })
    }

    /// The context in which the value store of a partition is opened.
    pub(super) fn store_context(&self, partition: PartitionId, name: &Arc<str>) -> StoreContext {
        StoreContext {
            partition,
            partition_name: name.clone(),
            db_id: self.db_id,
            epoch: self.epoch,
            dir: self.dir.clone(),
            fs: self.fs.clone(),
            files: self.files.clone(),
            clock: self.clock.clone(),
            numbers: self.numbers.clone(),
            is_read_only: self.is_read_only,
            events: self.events.clone(),
            wishes: self.wishes.clone(),
            is_following: false,
            other: self.other.clone(),
        }
    }
}
