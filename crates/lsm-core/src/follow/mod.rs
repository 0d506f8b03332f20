//! Following a database that another process writes: the engine's half of secondaries.
//!
//! A [`Follower`] reads manifest and log as they grow, keeps what is not flushed in memtables of its own,
//! and shows partitions through the same `ReadView` and the same read path as the primary. It
//! writes nothing into the database but its lease. Levels of consistency, waiting and threads are the
//! crate `secondary`.
//!
//! ```text
//! round.rs      one catching up: cursor, manifest, log, then the partitions that were asked for
//! tail.rs       the places in manifest and log, and how they move on
//!   version/tail.rs   the manifest, edit by edit
//!   log.rs            the log: headers in order, sections where they are wanted
//!   growing.rs        a partition's memtables
//! partition.rs  a partition as a reader sees it
//! pins.rs       which files readers hold; shared/lease.rs tells the primary
//! ```
//!
//! Invariants:
//! 1. Nothing is shown that the primary has not committed: with its cursor, what lies before the
//!    cursor's end; without one, what the log attests as durable. A whole frame proves nothing, its
//!    write may still have been refused.
//! 2. A file that vanished is a reason to look again, and never a missing key.
//! 3. Within an epoch a partition never goes back.

mod growing;
mod log;
mod partition;
mod pins;
mod round;
mod tail;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};

use crate::cache::Blocks;
use crate::clock::{Clock, SystemClock};
use crate::db::hooked::resolve;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{Fs, OpenFiles, OsFs};
use crate::hooks::{HookProvider, PartitionHooks};
use crate::limits::check_partition_name;
use crate::memtable::{Memtable, SlabPool};
use crate::options::Options;
use crate::partition::ReadView;
use crate::shared::{CursorReader, CursorState, Lease};
use crate::sstable::BlockCache;
use crate::types::{Epoch, MemtableId, PartitionId, SeqNo};
use crate::version::{DbVersion, HookKind, Missing, PartitionVersion, TableContext};

pub use partition::{FollowedMoment, FollowedPartition};

use partition::{Followed, Shown};
use pins::Pins;
use tail::Tail;

/// The world that a [`Follower`] lives in.
#[must_use = "a builder does nothing until it opens"]
pub struct FollowBuilder {
    dir: PathBuf,
    fs: Arc<dyn Fs>,
    clock: Arc<dyn Clock>,
    hooks: Option<Arc<dyn HookProvider>>,
    options: Options,
    takes_lease: bool,
    random: Option<Box<dyn FnMut() -> u64 + Send>>,
}

impl FollowBuilder {
    /// Another file system. Default: the operating system's.
    pub fn fs(mut self, fs: Arc<dyn Fs>) -> FollowBuilder {
        self.fs = fs;
        self
    }

    /// Another clock. Default: the machine's monotonic one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> FollowBuilder {
        self.clock = clock;
        self
    }

    /// The code of the hooks that partitions name. Default: none.
    pub fn hooks(mut self, provider: Arc<dyn HookProvider>) -> FollowBuilder {
        self.hooks = Some(provider);
        self
    }

    /// Of these, the block cache and the number of open files matter to a follower.
    pub fn options(mut self, options: Options) -> FollowBuilder {
        self.options = options;
        self
    }

    /// Takes a lease, or none. Default: it takes one. Without one the primary may delete files that are
    /// read here; that is right for a copy that nobody writes, and for a medium that cannot be written.
    pub fn lease(mut self, takes_lease: bool) -> FollowBuilder {
        self.takes_lease = takes_lease;
        self
    }

    /// Another source of random numbers, which name leases.
    pub fn random(mut self, random: impl FnMut() -> u64 + Send + 'static) -> FollowBuilder {
        self.random = Some(Box::new(random));
        self
    }

    /// Opens the database that is there.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is none; corruption; those of the file system.
    pub fn open(self) -> Result<Follower> {
        self.options.check()?;
        let FollowBuilder { dir, fs, clock, hooks, options, takes_lease, random } = self;
        let held = fs.hold_dir(&dir)?;
        let fs = held.fs.unwrap_or(fs);
        let dir = held.path;
        let random = random.unwrap_or_else(|| Box::new(random_from_hasher_keys));
        // Before the manifest is read, so that no file that it names goes meanwhile.
        let lease = match takes_lease {
            true => take_lease(&fs, &dir, random)?,
            false => None,
        };
        let manifest = tail::open_manifest(&*fs, &dir, None)?;
        let version = manifest.version().clone();
        let cache = Arc::new(Blocks::new(options.cache_bytes));
        let block_cache = (options.cache_bytes > 0).then(|| cache.clone() as Arc<dyn BlockCache>);
        let tables = Arc::new(TableContext {
            fs: fs.clone(),
            dir: dir.clone(),
            db_id: version.db_id,
            missing: Missing::Gone,
            cache: block_cache,
            files: Some(Arc::new(OpenFiles::new(fs.clone(), options.open_files_max))),
        });
        let slabs = Arc::new(SlabPool::new(options.write_buffer_bytes));
        let present = FollowerState { cursor: None, epoch: version.epoch, edit: 0 };
        let inner = Arc::new(Inner {
            fs,
            dir,
            clock,
            tables,
            empty: Arc::new(Memtable::new(MemtableId(0), &slabs)),
            slabs,
            provider: hooks,
            pins: Arc::default(),
            partitions: RwLock::default(),
            present: ArcSwap::from_pointee(present),
            cut: ArcSwap::default(),
            tail: Mutex::new(Tail::new(manifest, lease)),
        });
        let follower = Follower { inner };
        follower.sync(SyncExtent::Layout)?;
        Ok(follower)
    }
}

/// The part of a database that is to be caught up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncExtent {
    /// Every partition, all at one commit.
    All,
    /// One partition; the others stay where they are.
    Only(PartitionId),
    /// The list of partitions, and nothing of what is in them.
    Layout,
}

/// The place that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Every operation through this one is seen in the partitions that were asked for; of a partition
    /// without a log, only what is flushed.
    pub seq: SeqNo,
    /// The epoch of the writer.
    pub epoch: Epoch,
    /// The manifest edit.
    pub edit: u64,
    /// The primary had closed the database when the call began: there is nothing more.
    pub is_final: bool,
}

/// The sequence and the edit that a partition must have to be up to a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncGoal {
    seq: u64,
    layout: u64,
    epoch: Epoch,
}

impl SyncGoal {
    /// Returns whether the goal is of `epoch`.
    pub fn is_of(&self, epoch: Epoch) -> bool {
        self.epoch == epoch
    }
}

/// All partitions at one commit. Cheap to clone.
#[derive(Clone)]
pub struct FollowedCut {
    inner: Arc<Inner>,
    kept: Arc<CutViews>,
}

/// The views of a cut. They hold no handle: the follower keeps one of these itself.
#[derive(Default)]
struct CutViews {
    reached: Option<Reached>,
    partitions: HashMap<PartitionId, (Arc<Followed>, Arc<Shown>)>,
}

impl FollowedCut {
    /// Returns the commit; `None` if there was no whole sync yet.
    pub fn reached(&self) -> Option<Reached> {
        self.kept.reached
    }

    /// Returns the partition as it was; `None` if it did not exist.
    pub fn partition(&self, id: PartitionId) -> Option<FollowedMoment> {
        let (followed, view) = self.kept.partitions.get(&id)?;
        let handle = FollowedPartition { inner: self.inner.clone(), followed: followed.clone() };
        Some(handle.at(view.clone()))
    }
}

/// A database that another process writes. Cheap to clone.
#[derive(Clone)]
pub struct Follower {
    inner: Arc<Inner>,
}

/// The things that tell, without a lock, whether there is news.
struct FollowerState {
    cursor: Option<Arc<CursorReader>>,
    epoch: Epoch,
    /// The manifest edit that partitions are known of.
    edit: u64,
}

/// Everything that the handles of one follower share.
struct Inner {
    // Fixed after the open.
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    clock: Arc<dyn Clock>,
    tables: Arc<TableContext>,
    slabs: Arc<SlabPool>,
    /// Stands in for the memtable of partitions that nobody asked for.
    empty: Arc<Memtable>,
    provider: Option<Arc<dyn HookProvider>>,
    pins: Arc<Pins>,

    /// A leaf.
    partitions: RwLock<FollowedPartitions>,
    /// Replaced as a whole at the end of a round, under `tail`.
    present: ArcSwap<FollowerState>,
    cut: ArcSwap<CutViews>,
    /// Held over a round, and over its I/O; no reader takes it unless it wants to be brought further.
    tail: Mutex<Tail>,
}

/// The partitions that there are, by id and by name.
#[derive(Default)]
struct FollowedPartitions {
    by_id: BTreeMap<PartitionId, Arc<Followed>>,
    by_name: HashMap<Arc<str>, PartitionId>,
}

impl Follower {
    /// Options for following the database in the folder `path`.
    pub fn builder(path: impl AsRef<Path>) -> FollowBuilder {
        FollowBuilder {
            dir: path.as_ref().to_owned(),
            fs: Arc::new(OsFs),
            clock: Arc::new(SystemClock::new()),
            hooks: None,
            options: Options::default(),
            takes_lease: true,
            random: None,
        }
    }

    /// Catches up with everything that the primary has committed by now, for the partitions of
    /// `extent`. Reads go on meanwhile, and see what they saw.
    ///
    /// # Errors
    /// Those of the file system; corruption, after which what was seen before is still there.
    ///
    /// # Cost
    /// With a cursor and nothing new: a few loads, under a lock. Otherwise the manifest's new edits,
    /// the headers of the log's new frames, and the sections of the partitions.
    pub fn sync(&self, extent: SyncExtent) -> Result<Reached> {
        self.inner.sync(extent)
    }

    /// Returns the partition `name`, looking for it anew if it is not known.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`]; [`ErrorKind::Unsupported`] if it needs a hook that is not
    /// there, or keeps large values in a store.
    pub fn partition(&self, name: &str) -> Result<FollowedPartition> {
        check_partition_name(name)?;
        let mut found = self.inner.named(name);
        if found.is_none() {
            self.sync(SyncExtent::Layout)?;
            found = self.inner.named(name);
        }
        let followed = found.ok_or_else(|| {
            Error::new(ErrorKind::PartitionNotFound, format!("there is no partition {name:?}"))
        })?;
        followed.check_complete()?;
        Ok(FollowedPartition { inner: self.inner.clone(), followed })
    }

    /// Returns the names of all partitions that are known, in order.
    pub fn partition_names(&self) -> Vec<String> {
        let partitions = self.inner.partitions.read();
        let mut names: Vec<_> =
            partitions.by_id.values().map(|followed| followed.name.to_string()).collect();
        names.sort_unstable();
        names
    }

    /// Returns all partitions as of the last whole sync.
    pub fn cut(&self) -> FollowedCut {
        FollowedCut { inner: self.inner.clone(), kept: self.inner.cut.load_full() }
    }

    /// Returns whether the primary says on this machine what it has committed, so that a partition
    /// can be brought up to the present moment.
    pub fn has_cursor(&self) -> bool {
        self.inner.present.load().live_cursor().is_some()
    }

    /// Returns whether a primary on this machine writes or is about to: where [`FollowedPartition::goal`]
    /// finds nothing, it soon will.
    pub fn is_primary_there(&self) -> bool {
        let present = self.inner.present.load();
        present.cursor.as_deref().is_some_and(|cursor| cursor.state() != CursorState::Closed)
    }

    /// Returns the epoch that was last seen.
    pub fn epoch(&self) -> Epoch {
        self.inner.present.load().epoch
    }

    /// Returns the last sequence that readers of the primary see; `None` without a cursor.
    pub fn primary_seq(&self) -> Option<SeqNo> {
        self.inner.present.load().live_cursor()?.visible().ok()
    }

    /// Returns whether a commit of `epoch` is in this history, as far as that is known here.
    pub fn has_commit(&self, epoch: Epoch, seq: SeqNo) -> Option<bool> {
        self.inner.tail.lock().has_commit(epoch, seq)
    }

    /// Returns the memory of the memtables, in bytes.
    pub fn memtable_bytes(&self) -> u64 {
        let partitions = self.inner.partitions.read();
        partitions.by_id.values().map(|followed| followed.pin().view.memtable_bytes()).sum()
    }
}

impl FollowerState {
    fn live_cursor(&self) -> Option<&CursorReader> {
        self.cursor.as_deref().filter(|cursor| cursor.state() == CursorState::Live)
    }
}

impl Inner {
    fn named(&self, name: &str) -> Option<Arc<Followed>> {
        let partitions = self.partitions.read();
        partitions.by_id.get(partitions.by_name.get(name)?).cloned()
    }

    /// See [`FollowedPartition::goal`].
    #[inline]
    fn goal(&self, followed: &Followed) -> Option<SyncGoal> {
        let present = self.present.load();
        let cursor = present.live_cursor()?;
        let seq = cursor.last_seq_of(followed.id);
        let layout = cursor.layout_edit();
        // Asked last: of an epoch that is over the numbers above may be those of the past.
        present.live_cursor()?;
        Some(SyncGoal { seq, layout, epoch: present.epoch })
    }

    /// See [`FollowedPartition::has_reached`].
    #[inline]
    fn has_reached(&self, followed: &Followed, goal: &SyncGoal) -> bool {
        let present = self.present.load();
        let is_same_history = present.epoch == goal.epoch;
        let has_all = followed.complete().get() >= goal.seq;
        is_same_history && has_all && present.edit >= goal.layout
    }

    /// Takes in which partitions `version` has.
    fn take_partitions(&self, version: &DbVersion) {
        let mut partitions = self.partitions.write();
        let FollowedPartitions { by_id, by_name } = &mut *partitions;
        by_id.retain(|id, followed| {
            let is_there = version.partitions.contains_key(*id);
            if !is_there {
                followed.mark_dropped();
                by_name.remove(&followed.name);
            }
            is_there
        });
        for partition in version.partitions.values() {
            by_id.entry(partition.id).or_insert_with(|| {
                by_name.insert(partition.name.clone(), partition.id);
                Arc::new(self.begin_following(partition, version.edit_number))
            });
        }
    }

    fn begin_following(&self, partition: &Arc<PartitionVersion>, edit: u64) -> Followed {
        let resolved = resolve(&partition.name, &partition.hooks, self.provider.as_deref(), None);
        let mut hooks: PartitionHooks = resolved.unwrap_or_else(|error| PartitionHooks {
            missing: Some(error.to_string()),
            ..PartitionHooks::default()
        });
        let mut records = partition.hooks.iter();
        if let Some(store) = records.find(|record| record.kind == HookKind::ValueStore) {
            // A value store would have to know that it only reads, and none says so yet.
            hooks.missing = Some(store.name.clone());
        }
        let active = self.empty.clone();
        let view = ReadView { active, sealed: Vec::new(), version: partition.clone() };
        let seq = partition.flushed_through;
        Followed::new(Arc::new(view), Arc::new(hooks), seq, self.pins.pin(edit))
    }
}

fn take_lease(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    random: Box<dyn FnMut() -> u64 + Send>,
) -> Result<Option<Lease>> {
    match Lease::take(fs.clone(), dir, random) {
        Ok(lease) => Ok(Some(lease)),
        // A medium that nobody writes needs no lease.
        Err(error) if is_read_only(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_read_only(error: &Error) -> bool {
    let kind = error.io_source().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied))
}

/// The error of a file that is not there: the primary deleted it.
fn gone(path: &Path, error: Error) -> Error {
    if is_missing(&error) {
        let message = format!("{} is gone", path.display());
        return Error::because(ErrorKind::FileGone, message, error);
    }
    error
}

fn is_missing(error: &Error) -> bool {
    error.io_source().is_some_and(|e| e.kind() == io::ErrorKind::NotFound)
}

/// Distinct in every process, which is all that the names of leases ask for.
fn random_from_hasher_keys() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
