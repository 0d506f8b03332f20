//! A followed partition: what a reader of it pins, and the handles that read.
//!
//! Invariants:
//! 1. Shown and sequence number are replaced together: tables of a newer version may lack what an older
//!    number needs.
//! 2. What a moment shows never changes, whatever is synced meanwhile.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::pins::EditPin;
use super::{Inner, SyncGoal};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::PartitionHooks;
use crate::partition::ReadView;
use crate::raw::{self, Moment, ReadAtMoment};
use crate::read::{
    self, Bounds, Cursor, GetContext, KeyRange, Keys, Range, ReadPoint, prefix_bounds,
};
use crate::types::{KeyForm, PartitionId, SeqNo, Slice};
use crate::version::PartitionVersion;

/// A partition at one moment.
pub(super) struct Shown {
    pub(super) view: Arc<ReadView>,
    /// Operations up to this one are seen.
    pub(super) seq: SeqNo,
    pub(super) pin: EditPin,
}

/// A partition that is followed.
pub(super) struct Followed {
    // Fixed.
    pub(super) id: PartitionId,
    pub(super) name: Arc<str>,
    pub(super) logged: bool,
    key_form: KeyForm,
    hooks: Arc<PartitionHooks>,
    /// Replaced as a whole under the tail's lock.
    view: ArcSwap<Shown>,
    /// Every operation of the partition up to this one is in `view`. Stored behind `view` with
    /// release, loaded with acquire before it.
    complete: AtomicU64,
    /// The place in the log before which `view` has everything. A figure: relaxed.
    reach: AtomicU64,
    is_dropped: AtomicBool,
    /// The last edit that the value store was told of; changed under the tail's lock.
    told_edit: AtomicU64,
}

impl Followed {
    pub(super) fn new(
        view: Arc<ReadView>,
        hooks: Arc<PartitionHooks>,
        seq: SeqNo,
        pin: EditPin,
    ) -> Followed {
        let version = &view.version;
        Followed {
            id: version.id,
            name: version.name.clone(),
            logged: version.options.logged,
            key_form: hooks.rules.key_form,
            hooks,
            complete: AtomicU64::new(version.flushed_through.get()),
            reach: AtomicU64::new(0),
            view: ArcSwap::from_pointee(Shown { view, seq, pin }),
            is_dropped: AtomicBool::new(false),
            told_edit: AtomicU64::new(0),
        }
    }

    /// The present view, to keep.
    pub(super) fn pin(&self) -> Arc<Shown> {
        self.view.load_full()
    }

    /// Shows `view` from now on, which has every operation through `complete`.
    pub(super) fn show(&self, view: Shown, complete: SeqNo) {
        self.view.store(Arc::new(view));
        self.note_complete(complete);
    }

    /// Notes that the present view has every operation through `complete`.
    pub(super) fn note_complete(&self, complete: SeqNo) {
        self.complete.store(complete.get(), Ordering::Release);
    }

    /// Notes that the present view has everything before this place of the log.
    pub(super) fn note_reach(&self, reach: u64) {
        self.reach.store(reach, Ordering::Relaxed);
    }

    /// The place in the log before which everything is seen.
    pub(super) fn reach(&self) -> u64 {
        self.reach.load(Ordering::Relaxed)
    }

    /// Every operation of the partition up to this one is seen.
    #[inline]
    pub(super) fn complete(&self) -> SeqNo {
        SeqNo::new(self.complete.load(Ordering::Acquire)).expect("it was stored from a SeqNo")
    }

    /// Tells the value store, if there is one, what the edits said that it has not heard of.
    ///
    /// # Errors
    /// Those of the store, which then hears of the same edits again.
    pub(super) fn tell_store(&self, version: &PartitionVersion) -> Result<()> {
        let Some(store) = &self.hooks.store else { return Ok(()) };
        let told = self.told_edit.load(Ordering::Relaxed);
        for (number, section) in version.store_sections.iter().filter(|(edit, _)| *edit > told) {
            store.apply(*number, section)?;
            self.told_edit.store(*number, Ordering::Relaxed);
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

    /// An error if its data means nothing without code that is not there.
    pub(super) fn check_complete(&self) -> Result<()> {
        match &self.hooks.missing {
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

    /// Returns the sequence up to which every operation of the partition is seen.
    #[inline]
    pub fn complete(&self) -> SeqNo {
        self.followed.complete()
    }

    /// Returns how many bytes of the primary's log lie behind the place up to which the partition has
    /// everything; other partitions' are among them. `None` without a cursor.
    pub fn bytes_behind(&self) -> Option<u64> {
        self.inner.bytes_behind(&self.followed)
    }

    /// Returns what the partition must have to see every commit that was acknowledged before this
    /// call; `None` without a primary on this machine that says so.
    ///
    /// # Cost
    /// Four loads.
    #[inline]
    pub fn goal(&self) -> Option<SyncGoal> {
        self.inner.goal(&self.followed)
    }

    /// Returns whether the partition has come to `goal`. Never so once another epoch is seen: then
    /// the goal is to be asked for anew.
    #[inline]
    pub fn has_reached(&self, goal: &SyncGoal) -> bool {
        self.inner.has_reached(&self.followed, goal)
    }

    /// Returns the partition as it is seen now, and stays so.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`] if it was dropped.
    #[inline]
    pub fn moment(&self) -> Result<FollowedMoment> {
        self.followed.check_live()?;
        Ok(self.at(self.followed.pin()))
    }

    pub(super) fn at(&self, view: Arc<Shown>) -> FollowedMoment {
        FollowedMoment { partition: self.clone(), view }
    }
}

/// A followed partition at one moment. Cheap to clone; it holds the files that it reads.
#[derive(Clone)]
pub struct FollowedMoment {
    partition: FollowedPartition,
    view: Arc<Shown>,
}

impl FollowedMoment {
    /// Returns the sequence of the newest operation that may be seen.
    pub fn seq(&self) -> SeqNo {
        self.view.seq
    }

    /// Returns the name of the partition.
    pub fn name(&self) -> &str {
        &self.partition.followed.name
    }

    /// Returns the newest operation on this partition that is seen, or a later one that a flush
    /// of it covered.
    pub fn newest(&self) -> SeqNo {
        let ReadView { active, sealed, version, .. } = &*self.view.view;
        let memtables = sealed.iter().chain([active]);
        let logged = memtables.map(|memtable| memtable.last_seq()).max().unwrap_or_default();
        let tables = version.tables().map(|(_, table)| table.meta.newest()).max();
        logged.max(version.flushed_through).max(tables.unwrap_or_default())
    }

    #[inline]
    fn look<T>(&self, key: &[u8], look: impl FnOnce(&Moment<'_>, &[u8]) -> Result<T>) -> Result<T> {
        let FollowedPartition { inner, followed } = &self.partition;
        let context = GetContext {
            view: &self.view.view,
            tables: &inner.tables,
            store: followed.hooks.store.as_ref(),
            seq: self.seq(),
        };
        let moment = Moment { context, hooks: &followed.hooks, partition: &followed.name };
        let looked = followed.key_form.with_stored(key, |key| look(&moment, key));
        looked.map_err(|error| error.in_partition(&followed.name))
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// Corruption; [`ErrorKind::FileGone`] where no lease holds the files.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.look(key.as_ref(), |moment, key| read::get(&moment.context, key))
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

    /// Returns the moment to read from.
    pub fn point(&self) -> ReadPoint {
        let FollowedPartition { inner, followed } = &self.partition;
        // The view's pin, and with it the lease.
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(self.clone());
        ReadPoint {
            view: self.view.view.clone(),
            seq: self.seq(),
            context: inner.tables.clone(),
            partition: followed.name.clone(),
            key_form: followed.key_form,
            store: followed.hooks.store.clone(),
            check: None,
            keep,
        }
    }
}

impl ReadAtMoment for FollowedMoment {
    fn with_moment<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(&Moment<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        self.look(key, look)
    }

    fn read_point(&self) -> Result<(ReadPoint, Arc<PartitionHooks>)> {
        Ok((self.point(), self.partition.followed.hooks.clone()))
    }
}

impl raw::Walkable for FollowedMoment {
    fn pin_raw(&self) -> Result<raw::Pin> {
        let point = self.point();
        let FollowedPartition { inner, followed } = &self.partition;
        Ok(raw::Pin {
            partition: point.partition,
            view: point.view,
            context: point.context,
            hooks: followed.hooks.clone(),
            clock: inner.clock.clone(),
            keep: point.keep,
        })
    }
}
