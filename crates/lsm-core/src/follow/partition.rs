//! A followed partition: the state that its readers pin, and the handles that read.
//!
//! Invariants:
//! 1. View, hooks, sequence number and epoch are replaced together: tables of a newer version may
//!    lack entries that an older number needs, or need the newer hooks, and a number of another
//!    epoch may be that of another commit.
//! 2. A published view never changes, also during a sync.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::Inner;
use super::bound::SyncGoal;
use super::pins::EditPin;
use crate::db::Commit;
use crate::db::hook_binding::filters_of;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::PartitionHooks;
use crate::partition::ReadView;
use crate::raw::{self, PinnedView, ReadAt};
use crate::read::{
    self, AliveAt, Bounds, Cursor, GetContext, KeyRange, Keys, OpenPartition, Range, ReadPoint,
    RemainingTime, prefix_bounds,
};
use crate::types::{Epoch, KeyForm, PartitionId, SeqNo, Slice};
use crate::version::{HookRecord, PartitionVersion, TableContext};

/// The state of a partition that reads see, published as one value.
pub(super) struct PublishedView {
    pub(super) view: Arc<ReadView>,
    /// Operations up to this one are seen.
    pub(super) seq: SeqNo,
    /// Every operation of the partition up to this one is in `view`.
    pub(super) complete: SeqNo,
    /// The epoch of both numbers.
    pub(super) epoch: Epoch,
    /// The hooks that the partition had in `view`.
    hooks: Arc<PartitionHooks>,
    pub(super) pin: EditPin,
    /// Since the epoch began, the partition was synced only to durable commits.
    pub(super) is_durable: bool,
    /// The newest operation in `view`, when it was made: its memtables grow. Or a later one that a flush
    /// covered.
    newest: SeqNo,
}

impl PublishedView {
    /// Returns the state with this view, whose operations through `seq` are visible, for a
    /// partition with these hooks. It counts as durable.
    pub(super) fn of(
        view: Arc<ReadView>,
        hooks: Arc<PartitionHooks>,
        seq: SeqNo,
        complete: Commit,
        pin: EditPin,
    ) -> PublishedView {
        let in_memory = view.memtables().map(|memtable| memtable.last_seq()).max();
        // Noted now, because the memtables of the view keep growing under later moments.
        let newest = view.version.tables_through().max(in_memory.unwrap_or_default());
        let Commit { seq: complete, epoch } = complete;
        PublishedView { view, seq, complete, epoch, hooks, pin, is_durable: true, newest }
    }

    /// Returns the same state as one of `epoch`, with another pin.
    pub(super) fn again(&self, epoch: Epoch, pin: EditPin) -> PublishedView {
        PublishedView { view: self.view.clone(), epoch, hooks: self.hooks.clone(), pin, ..*self }
    }
}

/// A partition that is followed.
pub(super) struct Followed {
    // Fixed.
    pub(super) id: PartitionId,
    pub(super) name: Arc<str>,
    pub(super) logged: bool,
    key_form: KeyForm,
    /// Replaced as a whole under the lock of the position, when an edit has changed them. A view has those
    /// of its own version.
    hooks: ArcSwap<FollowedHooks>,
    /// Replaced as a whole under the lock of the position.
    shown: ArcSwap<PublishedView>,
    /// The place in the log before which `shown` is complete. A statistic: relaxed.
    reach: AtomicU64,
    is_dropped: AtomicBool,
}

/// The hooks that an edit gave to a partition.
pub(super) struct FollowedHooks {
    records: Arc<[HookRecord]>,
    resolved: Arc<PartitionHooks>,
    /// The last edit that was passed to the value store; changed under the lock of the position.
    store_edit: AtomicU64,
}

impl FollowedHooks {
    /// Returns the hooks with these records, whose store has got no edit yet.
    pub(super) fn new(records: Arc<[HookRecord]>, resolved: PartitionHooks) -> FollowedHooks {
        FollowedHooks { records, resolved: Arc::new(resolved), store_edit: AtomicU64::new(0) }
    }

    /// Returns the hooks for a view.
    pub(super) fn resolved(&self) -> Arc<PartitionHooks> {
        self.resolved.clone()
    }
}

impl Followed {
    pub(super) fn new(shown: PublishedView, hooks: FollowedHooks) -> Followed {
        let version = &shown.view.version;
        Followed {
            id: version.id,
            name: version.name.clone(),
            logged: version.options.logged,
            key_form: hooks.resolved.rules.key_form,
            hooks: ArcSwap::from_pointee(hooks),
            reach: AtomicU64::new(0),
            shown: ArcSwap::from_pointee(shown),
            is_dropped: AtomicBool::new(false),
        }
    }

    /// The present state, to keep.
    pub(super) fn pin(&self) -> Arc<PublishedView> {
        self.shown.load_full()
    }

    /// Shows this state from now on.
    pub(super) fn show(&self, shown: PublishedView) {
        self.shown.store(Arc::new(shown));
    }

    /// The hooks for a view of the newest version.
    pub(super) fn hooks(&self) -> Arc<PartitionHooks> {
        self.hooks.load().resolved()
    }

    /// Returns `true` if the hooks of `version` differ from the noted ones.
    pub(super) fn has_other_hooks(&self, version: &PartitionVersion) -> bool {
        self.hooks.load().records != version.hooks
    }

    /// Notes other hooks, for later views. Existing views keep theirs.
    pub(super) fn change_hooks(&self, hooks: FollowedHooks) {
        self.hooks.store(Arc::new(hooks));
    }

    /// Notes that the present view is complete before this place of the log.
    pub(super) fn note_reach(&self, reach: u64) {
        self.reach.store(reach, Ordering::Relaxed);
    }

    /// The place in the log before which everything is visible.
    pub(super) fn reach(&self) -> u64 {
        self.reach.load(Ordering::Relaxed)
    }

    /// The commit up to which every operation of the partition is visible.
    #[inline]
    pub(super) fn complete(&self) -> Commit {
        let shown = self.shown.load();
        Commit { seq: shown.complete, epoch: shown.epoch }
    }

    /// Passes the new edits to the value store, if there is one.
    ///
    /// # Errors
    /// Those of the store, which then gets the same edits again.
    pub(super) fn apply_to_store(&self, version: &PartitionVersion) -> Result<()> {
        let hooks = self.hooks.load();
        let Some(store) = &hooks.resolved.store else { return Ok(()) };
        let last = hooks.store_edit.load(Ordering::Relaxed);
        for (number, section) in version.store_sections.iter().filter(|(edit, _)| *edit > last) {
            store.call("apply", |store| store.apply(*number, section))?;
            // After each, so that a store that fails gets only the remaining edits again.
            hooks.store_edit.store(*number, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn mark_dropped(&self) {
        self.is_dropped.store(true, Ordering::Release);
    }

    /// An error if it was dropped.
    #[inline]
    pub(super) fn check_live(&self) -> Result<()> {
        if self.is_dropped.load(Ordering::Acquire) {
            let message = format!("partition {:?} was dropped", self.name);
            return Err(Error::new(ErrorKind::PartitionNotFound, message));
        }
        Ok(())
    }

    /// Returns an error if its data needs code that is missing.
    pub(super) fn check_complete(&self) -> Result<()> {
        match &self.hooks.load().resolved.missing {
            None => Ok(()),
            Some(hook) => {
                let name = &self.name;
                let message = format!("partition {name:?} needs {hook:?}, which is not there");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

/// A handle to a followed partition. Cheap to clone.
#[derive(Clone)]
pub struct FollowedPartition {
    pub(super) inner: Arc<Inner>,
    pub(super) followed: Arc<Followed>,
}

impl FollowedPartition {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.followed.name
    }

    /// Returns the id.
    pub fn id(&self) -> PartitionId {
        self.followed.id
    }

    /// Returns whether its writes pass the log.
    pub fn is_logged(&self) -> bool {
        self.followed.logged
    }

    /// Returns the commit up to which every operation of the partition is visible. Its epoch is
    /// that of the last sync of the partition: a later epoch may have lost the commit.
    #[inline]
    pub fn complete(&self) -> Commit {
        self.followed.complete()
    }

    /// Returns whether the partition was synced only to durable commits, since the epoch began.
    pub fn is_durable(&self) -> bool {
        self.followed.pin().is_durable
    }

    /// Returns the number of bytes of the primary's log after the place up to which the partition
    /// is complete, including those of other partitions. `None` without a cursor.
    pub fn bytes_behind(&self) -> Option<u64> {
        self.inner.bytes_behind(&self.followed)
    }

    /// Returns the goal of a read that must see every commit that was acknowledged before this
    /// call; `None` without a primary on this machine that publishes it.
    ///
    /// # Cost
    /// Four loads.
    #[inline]
    pub fn goal(&self) -> Option<SyncGoal> {
        self.inner.goal(&self.followed)
    }

    /// Returns whether the partition has reached `goal`. Never so once another epoch is seen: then
    /// a new goal is needed.
    #[inline]
    pub fn has_reached(&self, goal: &SyncGoal) -> bool {
        self.inner.has_reached(&self.followed, goal)
    }

    /// Returns the partition as it is seen now; the result does not change.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`] if it was dropped.
    #[inline]
    pub fn view(&self) -> Result<ReplicaView> {
        self.followed.check_live()?;
        Ok(self.at(self.followed.pin(), || self.inner.unix_time()))
    }

    /// The partition as it is in `view`, at `unix_time`.
    pub(super) fn at(
        &self,
        view: Arc<PublishedView>,
        unix_time: impl FnOnce() -> Duration,
    ) -> ReplicaView {
        let alive = view.hooks.hiding().map(|rule| AliveAt::new(rule, unix_time()));
        ReplicaView { partition: self.clone(), view, alive }
    }
}

/// The state of a followed partition that one read sees. Cheap to clone; it holds the files that it reads.
#[derive(Clone)]
pub struct ReplicaView {
    partition: FollowedPartition,
    view: Arc<PublishedView>,
    /// The entries that have not expired; `None` if all are seen.
    alive: Option<AliveAt>,
}

impl ReplicaView {
    /// Returns the same state with the expired entries that no compaction has removed.
    #[must_use]
    pub fn with_expired(self) -> ReplicaView {
        ReplicaView { alive: None, ..self }
    }

    /// Returns the time after which the entry of `key` is not there any more; `None` if it is not there.
    ///
    /// # Errors
    /// Those of a get.
    pub fn remaining_time(&self, key: impl AsRef<[u8]>) -> Result<Option<RemainingTime>> {
        let unix_time = self.partition.inner.unix_time();
        self.point().remaining_time(key.as_ref(), &self.view.hooks, unix_time)
    }

    /// Returns the names and parameters of the filters that are stored with the partition, as of this state.
    pub fn filters(&self) -> Vec<(String, Vec<u8>)> {
        filters_of(&self.view.view.version.hooks)
    }

    /// Returns the newest commit that may be seen.
    pub fn commit(&self) -> Commit {
        Commit { seq: self.view.seq, epoch: self.view.epoch }
    }

    /// Returns the name of the partition.
    pub fn name(&self) -> &str {
        &self.partition.followed.name
    }

    /// Returns the newest visible operation on this partition, or a later one that a flush of it
    /// covered.
    pub fn newest(&self) -> SeqNo {
        self.view.newest
    }

    #[inline]
    fn context(&self) -> Result<GetContext<'_>> {
        let tables = &self.partition.inner.tables;
        tables.check_process()?;
        let store = self.view.hooks.store.as_ref();
        let operator = self.view.hooks.operator.as_ref();
        let alive = self.alive.as_ref().map(|it| it.of(self.partition.followed.key_form));
        let seq = self.view.seq;
        Ok(GetContext { view: &self.view.view, tables, store, operator, seq, alive })
    }

    #[inline]
    fn look<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(&PinnedView<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let followed = &self.partition.followed;
        let context = self.context()?;
        let pinned = PinnedView { context, hooks: &self.view.hooks, partition: &followed.name };
        let looked = followed.key_form.with_stored(key, |key| look(&pinned, key));
        looked.map_err(|error| error.in_partition(&followed.name))
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// Corruption; [`ErrorKind::FileGone`] where no lease holds the files.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.look(key.as_ref(), |pinned, key| read::get(&pinned.context, key))
    }

    /// Returns the values of `keys`, in their order.
    ///
    /// # Errors
    /// Those of a get.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        let followed = &self.partition.followed;
        let context = self.context()?;
        let found = read::all_values(keys.len(), |visit| {
            read::multi_get(&context, followed.key_form, keys, visit)
        });
        found.map_err(|error| error.in_partition(&followed.name))
    }

    /// Returns the keys and values in `range`.
    pub fn range(&self, range: impl KeyRange) -> Range {
        Range::new(range.bounds(), Ok(self.point()))
    }

    /// Returns the keys that begin with `prefix`, and their values.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(prefix_bounds(prefix.as_ref()), Ok(self.point()))
    }

    /// Returns all keys.
    pub fn keys(&self) -> Keys {
        self.range(..).keys()
    }

    /// Returns a cursor over the keys in `range`.
    pub fn cursor_in(&self, range: impl KeyRange) -> Cursor {
        let bounds: Bounds = range.bounds();
        Cursor::open(&bounds, Ok(self.point()))
    }

    /// Returns what a read needs of this view.
    pub fn point(&self) -> ReadPoint {
        ReadPoint {
            view: self.view.view.clone(),
            seq: self.view.seq,
            // The view's pin, and with it the lease.
            open: Arc::new(self.clone()),
            key_form: self.partition.followed.key_form,
            store: self.view.hooks.store.clone(),
            operator: self.view.hooks.operator.clone(),
            alive: self.alive.clone(),
            check: None,
        }
    }
}

impl OpenPartition for ReplicaView {
    fn tables(&self) -> &Arc<TableContext> {
        &self.partition.inner.tables
    }

    fn partition(&self) -> &Arc<str> {
        &self.partition.followed.name
    }
}

impl ReadAt for ReplicaView {
    fn with_view<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(&PinnedView<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        self.look(key, look)
    }

    fn read_point(&self) -> Result<(ReadPoint, Arc<PartitionHooks>)> {
        Ok((self.point(), self.view.hooks.clone()))
    }
}

impl raw::Walkable for ReplicaView {
    fn pin_raw(&self) -> Result<raw::Pin> {
        self.partition.inner.tables.check_process()?;
        let ReadPoint { view, open, .. } = self.point();
        let hooks = self.view.hooks.clone();
        let unix_time = self.partition.inner.unix_time();
        let clock = self.partition.inner.clock.clone();
        Ok(raw::Pin { view, open, hooks, clock, unix_time })
    }
}
