//! [`Resources`]: cache, memory, threads, rate and files that many databases of a process share.
//!
//! `open.rs` and `follow/options.rs` take from it what a database alone would make for itself: a [`DbCache`], the
//! [`OpenFiles`], a [`WriteMemory`]. Threads and rate are used where a database has its own.
//!
//! Invariant: a database that is closed uses nothing of it any more, in whatever order databases and resources go.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::thread_pool::ThreadPool;
use super::write_budget::{FollowedMemory, WriteBudget};
use crate::cache::{Blocks, CachePart, DbCache};
use crate::clock::{Clock, RateLimiter, SystemClock};
use crate::error::Result;
use crate::fs::{Fs, OpenFiles, OpenFilesBound};
use crate::memtable::SlabPool;
use crate::options::{Options, ResourceOptions, check_background_rate};
use crate::types::DisplayBytes;

/// A block cache, memory for memtables, threads for background work, a rate of its writes, and open files, which many
/// databases of a process share. Cheap to clone.
///
/// A database that is opened with it, by [`Builder::resources`](super::Builder::resources), has none of these by itself. Its
/// options of the same names are limits for this database among the others; but of `cache_bytes` only 0 counts, which
/// turns the cache off for it, and its rate delays its next compaction for which no writer waits, and no flush. A stepped database uses no
/// threads, and its steps wait for no rate. The first 2^24 opens use the cache. A read-only open and a secondary share the cache and the open files, and
/// the memtables of a secondary count in the memory of all, see [`ResourceUsage::followed_memtable_bytes`]. One clone
/// in any place is enough: the open databases keep the rest. Databases and resources may be dropped in any order.
///
/// Trouble of one database stays its own: a writer waits for flushes of its own database alone, and a panic of a hook
/// ends no thread. A hook that runs on one of the threads may write to another database; a write that would have to wait
/// there is [`ErrorKind::WouldStall`](crate::error::ErrorKind::WouldStall). But a call of the system that never returns keeps the thread that has made it.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use lsm_core::fs::MemFs;
/// use lsm_core::options::ResourceOptions;
/// use lsm_core::{Db, Resources};
///
/// let resources = Resources::new(ResourceOptions::new().cache_bytes(64 << 20))?;
/// let fs = Arc::new(MemFs::new());
/// # use lsm_core::fs::Fs;
/// # fs.create_dir("/tenants".as_ref())?;
/// let mut tenants = Vec::new();
/// for name in ["alice", "bob"] {
///     let path = format!("/tenants/{name}");
///     tenants.push(Db::builder(path).fs(fs.clone()).resources(&resources).open()?);
/// }
/// assert_eq!(resources.usage().databases, 2);
/// # Ok::<(), lsm_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Resources(Arc<SharedResources>);

struct SharedResources {
    options: ResourceOptions,
    cache: Arc<Blocks>,
    /// Parts of the cache that were ever made.
    cache_parts: AtomicU64,
    budget: Arc<WriteBudget>,
    slabs: Arc<SlabPool>,
    clock: Arc<dyn Clock>,
    threads: Arc<ThreadPool>,
    limiter: Arc<RateLimiter>,
    files: Arc<OpenFilesBound>,
}

/// The use of [`Resources`] by all databases together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceUsage {
    /// Open databases that are written to.
    pub databases: u64,
    /// Threads that run.
    pub threads: u64,
    /// Memory of the block cache, with its free places, in bytes.
    pub cache_bytes: u64,
    /// The most that it may take, in bytes.
    pub cache_bytes_max: u64,
    /// Memory of active memtables, in bytes.
    pub active_memtable_bytes: u64,
    /// The most that they should have, in bytes.
    pub write_buffer_bytes: u64,
    /// Memory of memtables that wait for their flush, in bytes.
    pub sealed_memtable_bytes: u64,
    /// Memory of the memtables of secondaries, in bytes. Up to half of `write_buffer_bytes` of it counts as active.
    pub followed_memtable_bytes: u64,
    /// Tables and chunk files that are open for reading.
    pub open_files: u64,
    /// The maximum of them.
    pub open_files_max: u64,
    /// The rate of flushes and compactions, in bytes a second; 0 is no limit.
    pub background_bytes_per_second: u64,
}

impl fmt::Display for ResourceUsage {
    /// A line for each resource, without a line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "databases: {}, {} threads", self.databases, self.threads)?;
        let cache = DisplayBytes(self.cache_bytes);
        writeln!(f, "block cache: {cache} of {}", DisplayBytes(self.cache_bytes_max))?;
        let active = DisplayBytes(self.active_memtable_bytes);
        let sealed = DisplayBytes(self.sealed_memtable_bytes);
        let followed = DisplayBytes(self.followed_memtable_bytes);
        write!(f, "memtables: {active} active of {}, ", DisplayBytes(self.write_buffer_bytes))?;
        writeln!(f, "{sealed} wait for a flush, {followed} of secondaries")?;
        match self.open_files_max {
            u64::MAX => writeln!(f, "files: {} open", self.open_files)?,
            most => writeln!(f, "files: {} of {most} open", self.open_files)?,
        }
        match self.background_bytes_per_second {
            0 => write!(f, "background writes: no limit"),
            rate => write!(f, "background writes: at most {} a second", DisplayBytes(rate)),
        }
    }
}

/// The memory of the memtables of a database, and its limit.
pub(super) struct WriteMemory {
    pub(super) slabs: Arc<SlabPool>,
    /// The clock by which idle slabs return to the system.
    pub(super) clock: Arc<dyn Clock>,
    /// That of many databases, if they share it.
    pub(super) budget: Option<Arc<WriteBudget>>,
}

impl Resources {
    /// Makes a block cache and the limits. Threads start with the first database.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for an option out of its range.
    pub fn new(options: ResourceOptions) -> Result<Resources> {
        Resources::with_clock(options, Arc::new(SystemClock::new()))
    }

    /// As [`Resources::new`], with another clock for the rate of background writes.
    ///
    /// # Errors
    /// As [`Resources::new`].
    pub fn with_clock(options: ResourceOptions, clock: Arc<dyn Clock>) -> Result<Resources> {
        options.check()?;
        let rate = options.background_bytes_per_second;
        Ok(Resources(Arc::new(SharedResources {
            cache: Arc::new(Blocks::new(options.cache_bytes)),
            cache_parts: AtomicU64::new(0),
            budget: Arc::new(WriteBudget::new(options.write_buffer_bytes)),
            slabs: Arc::new(SlabPool::new(options.write_buffer_bytes)),
            threads: Arc::new(ThreadPool::new(options.flush_threads, options.compaction_threads)),
            limiter: Arc::new(RateLimiter::new(rate, clock.clone())),
            files: Arc::new(OpenFilesBound::new(options.open_files_max)),
            clock,
            options,
        })))
    }

    /// Returns the options that they were made with.
    pub fn options(&self) -> &ResourceOptions {
        &self.0.options
    }

    /// Changes [`ResourceOptions::background_bytes_per_second`], also for flushes and compactions that run now.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a value out of its range;
    /// [`ErrorKind::Closed`](crate::error::ErrorKind::Closed) in a child of the process that made them.
    pub fn set_background_bytes_per_second(&self, bytes: u64) -> Result<()> {
        self.check_process()?;
        check_background_rate(bytes)?;
        self.0.limiter.set_bytes_per_second(bytes);
        Ok(())
    }

    /// Returns what all databases together use now; nothing in a child of the process that made them.
    pub fn usage(&self) -> ResourceUsage {
        if self.check_process().is_err() {
            return ResourceUsage::default();
        }
        let cache = self.0.cache.stats();
        let [active_memtable_bytes, sealed_memtable_bytes, followed_memtable_bytes] =
            self.0.budget.bytes();
        ResourceUsage {
            databases: self.0.threads.member_count() as u64,
            threads: self.0.threads.thread_count() as u64,
            cache_bytes: cache.memory_bytes(),
            cache_bytes_max: cache.memory_bytes_max(),
            active_memtable_bytes,
            write_buffer_bytes: self.0.budget.bytes_max(),
            sealed_memtable_bytes,
            followed_memtable_bytes,
            open_files: self.0.files.open_count() as u64,
            open_files_max: self.0.files.limit() as u64,
            background_bytes_per_second: self.0.limiter.bytes_per_second(),
        }
    }

    /// Checks that this is no child of the process that made them: their locks may be held there for ever.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::error::ErrorKind::Closed).
    pub(crate) fn check_process(&self) -> Result<()> {
        self.0.threads.check_process()
    }

    pub(super) fn threads(&self) -> &Arc<ThreadPool> {
        &self.0.threads
    }

    pub(super) fn limiter(&self) -> &Arc<RateLimiter> {
        &self.0.limiter
    }
}

/// The block cache of a database: a part of that of `resources`, if it is to have one.
pub(crate) fn block_cache(resources: Option<&Resources>, options: &Options) -> DbCache {
    match resources {
        Some(Resources(shared)) if options.cache_bytes > 0 => {
            let number = shared.cache_parts.fetch_add(1, Ordering::Relaxed);
            DbCache::Part(Arc::new(CachePart::new(shared.cache.clone(), number)))
        }
        _ => DbCache::own(options.cache_bytes),
    }
}

/// The count of the memtables of a secondary.
pub(crate) fn followed_memory(resources: Option<&Resources>) -> FollowedMemory {
    FollowedMemory::new(resources.map(|Resources(shared)| shared.budget.clone()))
}

/// The options of a database, no larger than those of `resources`.
pub(super) fn options_within(resources: Option<&Resources>, options: Options) -> Options {
    let most = resources.map_or(u64::MAX, |resources| resources.0.options.write_buffer_bytes);
    let bytes = options.write_buffer_bytes.min(most);
    options.write_buffer_bytes(bytes)
}

/// The open files of a database, within the bound of `resources`.
pub(crate) fn open_files(
    resources: Option<&Resources>,
    fs: Arc<dyn Fs>,
    options: &Options,
) -> Arc<OpenFiles> {
    let bound = resources.map(|Resources(shared)| shared.files.clone());
    OpenFiles::within(fs, options.open_files_max, bound)
}

impl WriteMemory {
    /// That of `resources`, or one for a database alone.
    pub(super) fn of(
        resources: Option<&Resources>,
        options: &Options,
        clock: &Arc<dyn Clock>,
    ) -> WriteMemory {
        match resources {
            Some(Resources(shared)) => WriteMemory {
                slabs: shared.slabs.clone(),
                clock: shared.clock.clone(),
                budget: Some(shared.budget.clone()),
            },
            None => WriteMemory {
                slabs: Arc::new(SlabPool::new(options.write_buffer_bytes)),
                clock: clock.clone(),
                budget: None,
            },
        }
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resources").field("options", &self.0.options).finish_non_exhaustive()
    }
}
