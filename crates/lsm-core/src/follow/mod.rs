//! Following a database that another process writes: the engine's half of secondaries.
//!
//! A [`Follower`] reads manifest and log as they grow, keeps unflushed data in memtables of its
//! own, and shows partitions through the same `ReadView` and the same read path as the primary. It
//! writes nothing into the database but its lease. The crate `secondary` adds levels of
//! consistency, waiting and threads.
//!
//! ```text
//! options.rs    opening one
//! round.rs      one catching up: cursor, manifest, log, then the partitions that were asked for
//! attach.rs     the manifest of a folder, at first and after each change
//! layout.rs     which partitions there are, and their hooks
//! verify.rs     the verification of all files
//! changes.rs    how far the log may be shown to a feed of changes
//! position.rs   the places in manifest and log, and how they move on
//!   bound.rs           how far a round goes, and who says so
//!   version/tail.rs   the manifest, edit by edit
//!   log.rs            the log: headers in order, sections where they are wanted
//!   memtables.rs      a partition's memtables
//! partition.rs  a partition as a reader sees it
//! pinned.rs     the files of one state, for a backup
//! pins.rs       which files readers hold; shared/lease.rs shows that to the primary
//! ```
//!
//! Invariants:
//! 1. Only commits of the primary are shown: with its cursor, the operations before the cursor's
//!    end, or before its fence; without one, those that the log attests as durable. A whole frame
//!    or edit proves nothing, its write may still have been refused.
//! 2. A missing file is a reason to look again, and never a missing key.
//! 3. Within an epoch a partition never goes back.

mod attach;
mod bound;
mod changes;
mod layout;
mod log;
mod memtables;
mod options;
mod partition;
mod pinned;
mod pins;
mod position;
mod round;
mod verify;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};

use crate::clock::{CalendarGuard, Clock};
use crate::db::{Builder, Db, FollowedMemory, Resources, VerifyOptions, VerifyReport};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{Fs, OpenFiles};
use crate::hooks::HookProvider;
use crate::limits::check_partition_name;
use crate::memtable::{Memtable, SlabPool};
use crate::options::Options;
use crate::shared::{CommitCursorReader, CommitCursorState};
use crate::types::{Epoch, Opened, PartitionId, SeqNo};
use crate::version::TableContext;

pub use bound::{SyncExtent, SyncGoal, SyncReach};
pub use options::FollowOptions;
pub use partition::{FollowedPartition, ReplicaView};
pub(crate) use pinned::PinnedFiles;

use partition::{Followed, PublishedView};
use pins::Pins;
use position::FollowPosition;
use verify::verify_live;

/// The place that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncResult {
    /// Every operation through this one is visible in the requested partitions; for a partition
    /// without a log, only the flushed ones.
    pub seq: SeqNo,
    /// The epoch of the writer.
    pub epoch: Epoch,
    /// The manifest edit.
    pub edit: u64,
    /// The primary had closed the database when the call began, or was fenced and no other had
    /// begun: there is nothing more.
    pub is_final: bool,
    /// Everything that was committed when the call began is visible, according to the cursor, its
    /// fence, the closed database or the storage, and not only what the log attests.
    pub is_present: bool,
}

/// All partitions at one commit. Cheap to clone.
#[derive(Clone)]
pub struct FollowedCut {
    inner: Arc<Inner>,
    kept: Arc<CutViews>,
    /// The time by which entries have expired in it.
    unix_time: Duration,
}

/// The views of a cut. They hold no handle: the follower keeps one of these itself.
#[derive(Default)]
struct CutViews {
    reached: Option<SyncResult>,
    /// Made by a sync to durable commits.
    is_durable: bool,
    partitions: HashMap<PartitionId, (Arc<Followed>, Arc<PublishedView>)>,
}

impl FollowedCut {
    /// Returns the commit; `None` if there was no whole sync yet.
    pub fn reached(&self) -> Option<SyncResult> {
        self.kept.reached
    }

    /// Returns whether it was made by a sync to durable commits.
    pub fn is_durable(&self) -> bool {
        self.kept.is_durable
    }

    /// Returns the partition as it was; `None` if it did not exist.
    pub fn partition(&self, id: PartitionId) -> Option<ReplicaView> {
        let (followed, view) = self.kept.partitions.get(&id)?;
        let handle = FollowedPartition { inner: self.inner.clone(), followed: followed.clone() };
        Some(handle.at(view.clone(), || self.unix_time))
    }
}

/// A database that another process writes. Cheap to clone.
#[derive(Clone)]
pub struct Follower {
    inner: Arc<Inner>,
}

/// The state that shows, without a lock, whether there are news.
struct FollowerState {
    cursor: Option<Arc<CommitCursorReader>>,
    epoch: Epoch,
    /// The manifest edit that partitions are known of.
    edit: u64,
}

/// The state that the handles of one follower share.
struct Inner {
    // Fixed after the open.
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    clock: Arc<dyn Clock>,
    /// Says how far the calendar counts.
    calendar: CalendarGuard,
    files: Arc<OpenFiles>,
    tables: Arc<TableContext>,
    slabs: Arc<SlabPool>,
    /// The budget in which memtables count. It has none itself.
    memory: FollowedMemory,
    /// The log is not read.
    follows_tables_only: bool,
    memtable_bytes_max: u64,
    /// The memtable of partitions that were not requested.
    empty: Arc<Memtable>,
    provider: Option<Arc<dyn HookProvider>>,
    resources: Option<Resources>,
    pins: Arc<Pins>,

    /// A leaf.
    partitions: RwLock<FollowedPartitions>,
    /// Replaced as a whole at the end of a round, under `position`.
    present: ArcSwap<FollowerState>,
    cut: ArcSwap<CutViews>,
    /// Held over a round, and over its I/O; a reader takes it only to catch up.
    position: Mutex<FollowPosition>,
    /// Last, after everything that may wait for a lock.
    _opened: Opened,
}

/// The partitions that there are, by id and by name.
#[derive(Default)]
struct FollowedPartitions {
    by_id: BTreeMap<PartitionId, Arc<Followed>>,
    by_name: HashMap<Arc<str>, PartitionId>,
}

impl Inner {
    /// The time since 1970 by which entries expire.
    fn unix_time(&self) -> Duration {
        self.calendar.look(&*self.clock).0
    }
}

impl Follower {
    /// Catches up with everything that the primary has committed by now, for the partitions of
    /// `extent`. Reads continue meanwhile, and see their old state.
    ///
    /// # Errors
    /// Those of the file system; corruption, after which the previous state is still readable.
    ///
    /// # Cost
    /// With a cursor and nothing new: a few loads, under a lock. Otherwise the manifest's new edits,
    /// the headers of the log's new frames, and the sections of the partitions.
    pub fn sync(&self, extent: SyncExtent<'_>) -> Result<SyncResult> {
        self.inner.sync(extent, SyncReach::Committed)
    }

    /// As [`Follower::sync`], with what has come to this machine. A storage that is far away is asked once, and may
    /// lack the newest commits.
    ///
    /// # Errors
    /// As [`Follower::sync`].
    pub fn sync_arrived(&self, extent: SyncExtent<'_>) -> Result<SyncResult> {
        self.inner.sync(extent, SyncReach::Arrived)
    }

    /// As [`Follower::sync`], for durable commits only: if a follower is only synced this way, a
    /// crash cannot undo what it shows.
    ///
    /// # Errors
    /// As [`Follower::sync`].
    ///
    /// # Cost
    /// As [`Follower::sync`], and a look at the headers of all frames that are not known durable.
    pub fn sync_durable(&self, extent: SyncExtent<'_>) -> Result<SyncResult> {
        self.inner.sync(extent, SyncReach::Durable)
    }

    /// Catches up with some partitions, which are at one commit then, and returns them. The others
    /// do not change.
    ///
    /// # Errors
    /// As [`Follower::sync`]; [`ErrorKind::Unsupported`] if only flushed tables are followed.
    pub fn sync_group(&self, group: &[PartitionId], reach: SyncReach) -> Result<FollowedCut> {
        let kept = self.inner.sync_group(group, reach)?;
        Ok(self.cut_of(Arc::new(kept)))
    }

    /// Returns whether flushed tables alone are followed.
    pub fn follows_tables_only(&self) -> bool {
        self.inner.follows_tables_only
    }

    /// Returns the partition `name`; looks for it again if it is not known.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`]; [`ErrorKind::Unsupported`] if it needs a hook that is not
    /// there.
    pub fn partition(&self, name: &str) -> Result<FollowedPartition> {
        self.inner.tables.check_process()?;
        check_partition_name(name)?;
        let mut found = self.inner.named(name);
        // Only then: a known partition costs no look at the manifest.
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
        if self.inner.tables.check_process().is_err() {
            return Vec::new();
        }
        let partitions = self.inner.partitions.read();
        let mut names: Vec<_> =
            partitions.by_id.values().map(|followed| followed.name.to_string()).collect();
        names.sort_unstable();
        names
    }

    /// Returns all partitions as of the last whole sync.
    pub fn cut(&self) -> FollowedCut {
        self.cut_of(self.inner.cut.load_full())
    }

    fn cut_of(&self, kept: Arc<CutViews>) -> FollowedCut {
        let unix_time = self.inner.unix_time();
        FollowedCut { inner: self.inner.clone(), kept, unix_time }
    }

    /// Returns whether the primary publishes its commits on this machine, so that a partition can
    /// catch up to the present moment.
    pub fn has_cursor(&self) -> bool {
        self.inner.present.load().live_cursor().is_some()
    }

    /// Returns whether a primary on this machine writes or is about to: if
    /// [`FollowedPartition::goal`] finds nothing, it soon will.
    pub fn is_primary_there(&self) -> bool {
        let present = self.inner.present.load();
        present.cursor.as_deref().is_some_and(|cursor| cursor.state() != CommitCursorState::Closed)
    }

    /// Checks whether the primary's process has ended without closing the database. Returns `true`
    /// if this call has found that out: then a sync includes the operations that the primary had
    /// logged and not published.
    ///
    /// # Cost
    /// Opens a file, and takes a lock for a moment.
    pub fn look_for_dead_primary(&self) -> bool {
        self.inner.tables.check_process().is_ok()
            && self.inner.position.lock().look_for_dead_primary(&self.inner)
    }

    /// Returns the epoch that was last seen.
    pub fn epoch(&self) -> Epoch {
        self.inner.present.load().epoch
    }

    /// Returns the last sequence that readers of the primary see; `None` without a cursor.
    pub fn primary_seq(&self) -> Option<SeqNo> {
        self.inner.present.load().live_cursor()?.visible().ok()
    }

    /// Returns whether a commit of `epoch` is in this history, as far as it is known here.
    pub fn has_commit(&self, epoch: Epoch, seq: SeqNo) -> Option<bool> {
        self.inner.tables.check_process().ok()?;
        self.inner.position.lock().has_commit(epoch, seq)
    }

    /// Reads every live file as the primary has it now, and reports all damage. The unflushed data
    /// of the primary is read into memory meanwhile.
    ///
    /// # Errors
    /// As [`Db::verify`](crate::db::Db::verify); those of the folder and of the manifest, but for damage; a
    /// limit if the unflushed data takes more than 1 GiB.
    pub fn verify(&self, options: VerifyOptions<'_>) -> Result<VerifyReport> {
        let inner = &*self.inner;
        // No cache: verification reads every block once, past every cache.
        let options_without_cache = Options::new().cache_bytes(0).write_buffer_bytes(256 << 20);
        verify_live(|| self.db_builder(&options_without_cache), &inner.dir, options)
    }

    /// A builder of the same folder, with the same file system, clock and hooks.
    fn db_builder(&self, options: &Options) -> Builder {
        let inner = &*self.inner;
        let builder = Db::builder(&inner.dir).options(options.clone()).fs(inner.fs.clone());
        let mut builder = builder.clock(inner.clock.clone());
        if let Some(resources) = &inner.resources {
            builder = builder.resources(resources);
        }
        match &inner.provider {
            Some(provider) => builder.hooks(provider.clone()),
            None => builder,
        }
    }

    /// Returns a builder that opens the database in the place of its primary, see
    /// [`Builder::take_over`](crate::db::Builder::take_over): in the same folder, with the same file system,
    /// clock and hooks.
    pub fn promotion(&self) -> Builder {
        self.db_builder(&Options::default()).take_over(true)
    }

    /// Returns the memory of the memtables, in bytes.
    pub fn memtable_bytes(&self) -> u64 {
        self.inner.memtable_bytes()
    }
}

impl FollowerState {
    fn live_cursor(&self) -> Option<&CommitCursorReader> {
        self.cursor.as_deref().filter(|cursor| cursor.state() == CommitCursorState::Live)
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
        // Checked last: if the epoch is over, the numbers above may be outdated.
        present.live_cursor()?;
        Some(SyncGoal { seq, layout, epoch: present.epoch })
    }

    /// See [`FollowedPartition::has_reached`].
    #[inline]
    fn has_reached(&self, followed: &Followed, goal: &SyncGoal) -> bool {
        let present = self.present.load();
        let complete = followed.complete();
        let is_same_history = present.epoch == goal.epoch && complete.epoch == goal.epoch;
        is_same_history && complete.seq.get() >= goal.seq && present.edit >= goal.layout
    }

    /// Memory of all memtables that are shown, in bytes.
    fn memtable_bytes(&self) -> u64 {
        if self.tables.check_process().is_err() {
            return 0;
        }
        let partitions = self.partitions.read();
        partitions.by_id.values().map(|followed| followed.pin().view.memtable_bytes()).sum()
    }

    /// See [`FollowedPartition::bytes_behind`].
    fn bytes_behind(&self, followed: &Followed) -> Option<u64> {
        let present = self.present.load();
        let end = present.live_cursor()?.end();
        Some(end.saturating_sub(followed.reach()))
    }
}
