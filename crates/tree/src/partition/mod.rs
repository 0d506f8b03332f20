//! A partition at run time: its memtables and the version of its tables, as one view.
//!
//! Invariants:
//! 1. `view` is replaced as a whole, under `change`; what a reader loaded never changes.
//! 2. A memtable leaves the view in the same step in which the version that covers it enters.
//! 3. Only the commit path seals, and only between two groups, so a sealed memtable holds every
//!    operation of the partition up to its last sequence.

mod view;
mod work_list;

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::fs::is_out_of_handles;
use crate::hooks::{AttachedOperator, AttachedStore, PartitionHooks, Rules};
use crate::memtable::{Memtable, SharedOperator, SlabPool};
use crate::options::{CompactionStyle, PartitionOptions};
use crate::types::{Counter, KeyForm, MemtableId, PartitionId};
use crate::version::PartitionVersion;

pub use view::ReadView;
pub use work_list::WorkList;

use work_list::size_class;

/// See [`PartitionState::reserved_last`].
fn reserved_last(hooks: &PartitionHooks) -> u16 {
    hooks.rules.reserved_suffix.last().map_or(0, |last| 0x100 | u16::from(*last))
}

/// The state of a partition at run time.
pub struct PartitionState {
    /// Its identity.
    pub id: PartitionId,
    /// Its name.
    pub name: Arc<str>,
    /// `true` if its writes pass the WAL.
    pub logged: bool,
    view: ArcSwap<ReadView>,
    /// Held while the view is replaced; the id of the next memtable.
    change: Mutex<MemtableId>,
    /// Versions that were replaced and that a reader still holds; only kept with a value store.
    past: Mutex<Vec<Weak<PartitionVersion>>>,
    // Set once, under the commit path's lock; read anywhere. The number of snapshots that were
    // taken before the drop, plus one; 0 means that the partition was not dropped.
    dropped_at: AtomicU64,
    /// The form in which keys are stored: fixed when the partition is made.
    pub key_form: KeyForm,
    /// The store of large values: attached once, by a durable edit, and never changed.
    store: OnceLock<Arc<AttachedStore>>,
    /// The merge operator: as the store. All memtables of the partition share it.
    operator: SharedOperator,
    /// Replaced as a whole; loaded by jobs, and by writes of keys that end in `reserved_last`.
    hooks: ArcSwap<PartitionHooks>,
    /// The last byte of the reserved suffix and 0x100, or 0: a write looks at this alone.
    reserved_last: AtomicU16,
    /// Grows with every change of the hooks: the commit path looks again at writes that were
    /// checked before one.
    rules_epoch: AtomicU32,
    /// Changed under the commit path's lock.
    doubtful: AtomicBool,
    /// A sync of the store has failed since the open.
    failed_sync: AtomicBool,
    /// See [`lacks_codec`]: of the version of the view.
    lacks_codec: AtomicBool,
    /// The pressure on writers, in thousandths, and its cause: written by `db/stall.rs`, relaxed.
    pub pressure: AtomicU32,
    /// Entries that flushes and compactions have removed since the open because they had expired.
    pub expired_removed: Counter,
    /// The work list of the database; it has an entry for everything that the view holds.
    work: Arc<WorkList>,
}

/// Returns `true` if a compaction of this partition would need a compression that this build lacks. Tables of level 0
/// are not compressed, and those of FIFO stay there.
fn lacks_codec(version: &PartitionVersion) -> bool {
    let PartitionOptions { compression, compaction_style, .. } = &*version.options;
    !compression.is_built_in() && *compaction_style == CompactionStyle::Leveled
}

impl PartitionState {
    /// A partition with the tables of `version`, an empty memtable, and these hooks; memtables take
    /// their memory from `slabs`. Its work is noted in `work`.
    pub fn new(
        version: Arc<PartitionVersion>,
        hooks: PartitionHooks,
        slabs: &Arc<SlabPool>,
        work: &Arc<WorkList>,
    ) -> PartitionState {
        let active = Arc::new(Memtable::new(MemtableId(1), slabs));
        PartitionState::with_active(version, hooks, active, work)
    }

    /// As [`PartitionState::new`], by itself.
    #[cfg(any(test, feature = "internals"))]
    pub fn alone(version: PartitionVersion, hooks: PartitionHooks) -> PartitionState {
        let slabs = Arc::new(SlabPool::new(0));
        PartitionState::new(Arc::new(version), hooks, &slabs, &Arc::default())
    }

    /// A partition with the tables of `version`, what `active` holds, which is the first memtable,
    /// and these hooks.
    pub fn with_active(
        version: Arc<PartitionVersion>,
        hooks: PartitionHooks,
        active: Arc<Memtable>,
        work: &Arc<WorkList>,
    ) -> PartitionState {
        let view = ReadView::new(active, Vec::new(), version).with_expiry(hooks.hiding());
        if view.expiry.is_some() {
            work.note_expiry();
        }
        let version = &view.version;
        work.note(version.id, &view, version.options.logged);
        // Compactions may be due from the time before the database was opened.
        if version.tables().next().is_some() {
            work.note_changed(version.id);
        }
        if hooks.store.is_some() {
            work.note_store(version.id);
        }
        let lacks_codec = lacks_codec(version);
        let operator = view.active.operator().clone();
        if let Some(attached) = &hooks.operator {
            operator.get_or_init(|| attached.clone());
        }
        PartitionState {
            id: version.id,
            name: version.name.clone(),
            logged: version.options.logged,
            view: ArcSwap::from_pointee(view),
            change: Mutex::new(MemtableId(2)),
            past: Mutex::default(),
            dropped_at: AtomicU64::new(0),
            key_form: hooks.rules.key_form,
            reserved_last: AtomicU16::new(reserved_last(&hooks)),
            store: hooks.store.clone().map_or_else(OnceLock::new, OnceLock::from),
            operator,
            hooks: ArcSwap::from_pointee(hooks),
            rules_epoch: AtomicU32::new(0),
            doubtful: AtomicBool::new(false),
            failed_sync: AtomicBool::new(false),
            lacks_codec: AtomicBool::new(lacks_codec),
            pressure: AtomicU32::new(0),
            expired_removed: Counter::default(),
            work: work.clone(),
        }
    }

    /// The partition's hooks.
    pub fn hooks(&self) -> Arc<PartitionHooks> {
        self.hooks.load_full()
    }

    /// The partition's hooks, for the length of a call.
    #[inline]
    pub fn load_hooks(&self) -> Guard<Arc<PartitionHooks>> {
        self.hooks.load()
    }

    /// Returns the store of large values, if they do not live in tables.
    #[inline]
    pub fn store(&self) -> Option<&Arc<AttachedStore>> {
        self.store.get()
    }

    /// Returns the merge operator, if there is one and its code is present.
    #[inline]
    pub fn operator(&self) -> Option<&Arc<AttachedOperator>> {
        self.operator.get()
    }

    /// Attaches other hooks. Checks, jobs and writes use them from then on; a store of large values
    /// stays for good. Only under the commit path's lock, and once the edit that names the hooks is
    /// durable. Earlier, filters would remove entries by a change that may be refused, and the next
    /// open would remove the values of the store.
    pub fn attach(&self, hooks: PartitionHooks) {
        if let Some(store) = &hooks.store {
            self.store.get_or_init(|| store.clone());
            self.work.note_store(self.id);
        }
        if let Some(operator) = &hooks.operator {
            self.operator.get_or_init(|| operator.clone());
        }
        // A write between these two stores may pass unchecked: the new epoch below makes the commit
        // path check it again.
        self.reserved_last.store(reserved_last(&hooks), Ordering::Release);
        let is_hiding = hooks.hiding().is_some();
        if is_hiding {
            // Before the view: a snapshot that is taken from then on knows its time.
            self.work.note_expiry();
        }
        self.hooks.store(Arc::new(hooks));
        {
            let _change = self.change.lock();
            let view = self.view.load_full();
            if is_hiding || view.expiry.is_some() {
                let ReadView { active, sealed, version, .. } = &*view;
                self.put_view(ReadView::new(active.clone(), sealed.clone(), version.clone()));
            }
        }
        // Last: a writer that reads the new number also sees the new rules, so a write that was
        // checked under the old number is checked again.
        self.rules_epoch.fetch_add(1, Ordering::Release);
        self.work.note_changed(self.id);
    }

    /// Returns the number of the rules that a write is checked against.
    #[inline]
    pub fn rules_epoch(&self) -> u32 {
        self.rules_epoch.load(Ordering::Acquire)
    }

    /// An error if the partition reserves the ending of `key`, and stores keys as they are given.
    #[inline]
    pub fn check_key(&self, key: &[u8]) -> Result<()> {
        if self.key_form.takes_any_key() {
            return Ok(());
        }
        let reserved = self.reserved_last.load(Ordering::Acquire);
        if reserved == 0 || key.last() != Some(&(reserved as u8)) {
            return Ok(());
        }
        self.check_suffix(key)
    }

    #[cold]
    fn check_suffix(&self, key: &[u8]) -> Result<()> {
        // Just before the hooks are replaced they may have no rules: the commit path looks again.
        check_reserved(&self.name, &self.hooks.load().rules, key)
    }

    /// The present view, for the length of a call.
    #[inline]
    pub fn view(&self) -> Guard<Arc<ReadView>> {
        self.view.load()
    }

    /// The present view, to keep.
    pub fn pin(&self) -> Arc<ReadView> {
        self.view.load_full()
    }

    /// Seals the active memtable unless it is empty; returns the id of the new active one.
    /// Only the commit path calls this.
    pub fn seal(&self) -> Option<MemtableId> {
        let mut next = self.change.lock();
        let view = self.view.load_full();
        // An empty memtable has nothing to flush.
        if view.active.is_empty() {
            return None;
        }
        let id = *next;
        next.0 += 1;
        let mut sealed = Vec::with_capacity(view.sealed.len() + 1);
        // Newest first: a read stops at the first memtable that has the key.
        sealed.push(view.active.clone());
        sealed.extend_from_slice(&view.sealed);
        // The successor expects similar keys: it skips the prefix that all keys share, which would
        // decide no comparison.
        let active = Arc::new(view.active.successor(id));
        active.begin();
        self.put_view(ReadView::new(active, sealed, view.version.clone()));
        Some(id)
    }

    /// Puts a view in the place of the present one. The caller holds `change`.
    fn put_view(&self, view: ReadView) {
        let view = view.with_expiry(self.hooks.load().hiding());
        // Before the view is visible: invariant 2 of the work list.
        self.work.note(self.id, &view, self.logged);
        self.lacks_codec.store(lacks_codec(&view.version), Ordering::Release);
        self.view.store(Arc::new(view));
    }

    /// Notes that the active memtable grew from `before` bytes. Only the commit path calls this,
    /// before what it inserted becomes visible.
    #[inline]
    pub fn note_growth(&self, before: u64, after: u64) {
        // A lock per insert would cost more than the insert; the list needs the size within a
        // factor of two.
        if size_class(before) != size_class(after) {
            self.note_size();
        }
    }

    #[cold]
    fn note_size(&self) {
        // A flush may remove the view meanwhile: the present one is noted.
        let _change = self.change.lock();
        self.work.note(self.id, &self.view.load(), self.logged);
    }

    /// Installs `version` and drops the memtables through `flushed_through`.
    pub fn install(&self, version: Arc<PartitionVersion>, flushed_through: Option<MemtableId>) {
        let _change = self.change.lock();
        self.put_version(version, flushed_through);
    }

    /// As [`PartitionState::install`]; `is_foreign` if the version has entries that no memtable of the
    /// partition had.
    pub fn install_from(
        &self,
        version: &Arc<PartitionVersion>,
        flushed_through: Option<MemtableId>,
        is_foreign: bool,
    ) {
        let _change = self.change.lock();
        // With the view, under one lock: no view with the new epoch lacks the entries.
        if is_foreign {
            self.view.load().active.dead().forget();
        }
        self.put_version(version.clone(), flushed_through);
    }

    /// The caller holds `change`.
    fn put_version(&self, version: Arc<PartitionVersion>, flushed_through: Option<MemtableId>) {
        let view = self.view.load_full();
        if self.store().is_some() {
            // A value is removed when no version that names it is held. Only versions from before
            // the edit that dropped it can name it, so weak references to them are kept here.
            let mut past = self.past.lock();
            // At each change, so the list has one entry per version that a reader still holds.
            past.retain(|version| version.strong_count() > 0);
            past.push(Arc::downgrade(&view.version));
        }
        let mut sealed = view.sealed.clone();
        // Ids ascend with age: one number says which memtables the version covers.
        sealed.retain(|memtable| flushed_through.is_none_or(|through| memtable.id > through));
        self.put_view(ReadView::new(view.active.clone(), sealed, version));
        self.work.note_changed(self.id);
    }

    /// Versions that were replaced and that a reader may still hold.
    pub fn past_versions(&self) -> Vec<Weak<PartitionVersion>> {
        self.past.lock().clone()
    }

    /// All versions that a reader may hold, and the present one: for a partition that is dropped,
    /// which releases its own.
    pub fn all_versions(&self) -> Vec<Weak<PartitionVersion>> {
        let _change = self.change.lock();
        let mut versions = self.past_versions();
        versions.push(Arc::downgrade(&self.view.load().version));
        versions
    }

    /// Marks the partition as dropped after so many snapshots were taken. Only under the commit
    /// path's lock.
    pub fn mark_dropped(&self, snapshots_before: u64) {
        self.dropped_at.store(snapshots_before + 1, Ordering::Release);
    }

    /// Releases memtables and tables; readers keep those that they use. Called after the partition
    /// was marked as dropped.
    pub fn release_data(&self) {
        let mut next = self.change.lock();
        let view = self.view.load_full();
        // A view needs an active memtable; an empty one holds no memory of the dropped data.
        let active = Arc::new(view.active.successor(*next));
        next.0 += 1;
        let version = Arc::new(view.version.without_tables());
        self.put_view(ReadView::new(active, Vec::new(), version));
        self.work.forget(self.id);
    }

    /// Sets whether the drop of the partition is in doubt: its edit failed, and may be on disk.
    pub fn set_doubtful(&self, doubtful: bool) {
        self.doubtful.store(doubtful, Ordering::Release);
    }

    /// Returns `true` if a failed drop of the partition may be on disk.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Acquire)
    }

    /// Notes the outcome of a sync of the partition's store, and returns it.
    pub fn note_sync(&self, outcome: Result<()>) -> Result<()> {
        // Without a handle no sync was begun, so nothing is in doubt.
        if outcome.as_ref().is_err_and(|error| !is_out_of_handles(error)) {
            self.failed_sync.store(true, Ordering::Release);
        }
        outcome.map_err(|error| error.in_partition(&self.name))
    }

    /// Returns `true` if a sync of the partition's store has failed since the open, so that values may be
    /// in doubt.
    pub fn has_failed_sync(&self) -> bool {
        self.failed_sync.load(Ordering::Acquire)
    }

    /// Returns `true` if it was dropped.
    pub fn is_dropped(&self) -> bool {
        self.dropped_at.load(Ordering::Acquire) != 0
    }

    /// The number of snapshots that were taken before it was dropped; `None` if it was not.
    pub fn dropped_after(&self) -> Option<u64> {
        self.dropped_at.load(Ordering::Acquire).checked_sub(1)
    }

    /// Returns `true` if a snapshot that `order` others were taken before was taken while the partition existed.
    pub fn existed_at(&self, order: u64) -> bool {
        self.dropped_after().is_none_or(|taken_before| order < taken_before)
    }

    /// An error if it was dropped.
    #[inline]
    pub fn check_live(&self) -> Result<()> {
        if self.is_dropped() { Err(self.dropped_error()) } else { Ok(()) }
    }

    /// An error if this build cannot compress its tables. A write would be accepted until level 0 is full, because no
    /// compaction can merge it into the deeper levels.
    #[inline]
    pub fn check_codec(&self) -> Result<()> {
        if !self.lacks_codec.load(Ordering::Acquire) {
            return Ok(());
        }
        self.view().version.options.check_built_in(&self.name)
    }

    /// The error of a call on a dropped partition.
    #[cold]
    pub fn dropped_error(&self) -> Error {
        let message = format!("partition {:?} was dropped", self.name);
        Error::new(ErrorKind::PartitionNotFound, message)
    }
}

/// An error if `rules`, those of partition `name`, reserve the ending of `key`, a stored key.
pub fn check_reserved(name: &str, rules: &Rules, key: &[u8]) -> Result<()> {
    let suffix = &rules.reserved_suffix;
    if suffix.is_empty() || !key.ends_with(suffix) {
        return Ok(());
    }
    let message = format!(
        "partition {name:?} reserves keys that end in \"{}\", as \"{}\" does",
        suffix.escape_ascii(),
        key.escape_ascii()
    );
    Err(Error::new(ErrorKind::ReservedKey, message))
}
