//! The reads of a [`Partition`], and the point in time at which they see it: now, or at a snapshot.
//!
//! [`Partition::observe`] is the only function that pairs a view with a sequence number. Gets,
//! ranges, cursors, raw walks and verified reads all begin with it.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;

use super::handle::PartitionHandle;
use super::{DbInner, Partition, Snapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::Expiry;
use crate::hooks::PartitionHooks;
use crate::partition::ReadView;
use crate::raw::{PinnedView, ReadAt};
use crate::read::{
    self, Alive, AliveAt, Cursor, GetContext, KeyRange, Keys, Located, OpenPartition, Range,
    ReadPoint, ReadTime, RemainingTime, prefix_bounds, stored_bounds,
};
use crate::snapshot::RegisteredSnapshot;
use crate::types::{DeletedRange, SeqNo, Slice};
use crate::version::TableContext;

/// A view of a partition, and the sequence number up to which it is read.
pub(super) struct ViewAt {
    pub(super) view: Guard<Arc<ReadView>>,
    pub(super) seq: SeqNo,
}

/// A partition with a snapshot: compactions keep the versions that it sees.
struct AtSnapshot {
    handle: Arc<PartitionHandle>,
    _snapshot: Snapshot,
}

impl OpenPartition for AtSnapshot {
    fn tables(&self) -> &Arc<TableContext> {
        self.handle.tables()
    }

    fn partition(&self) -> &Arc<str> {
        self.handle.partition()
    }
}

impl Partition {
    /// The partition as it is now, or as `snapshot` sees it.
    ///
    /// # Errors
    /// A closed database, a dropped partition, a snapshot of another database.
    #[inline]
    pub(super) fn observe(&self, snapshot: Option<&Snapshot>) -> Result<ViewAt> {
        let Some(snapshot) = snapshot else {
            self.db().check_not_closed()?;
            // The view first. Merges keep the versions that are visible while they run, not those
            // of an older sequence number: if the number were loaded first, it could need a version
            // of a key that the view no longer has, and the key would seem to be missing. In this
            // order the number may be ahead of the view; the view then is the database at the
            // moment when it was replaced: a seal never splits a batch.
            let view = self.state().view();
            // After the view, which a drop removes after it has marked the partition.
            self.state().check_live()?;
            let seq = self.db().commit.visible_seq();
            return Ok(ViewAt { view, seq });
        };
        self.check_snapshot(snapshot)?;
        let seq = snapshot.seq();
        match snapshot.registered.view_of(self.state()) {
            Some(view) => Ok(ViewAt { view, seq }),
            None => Err(self.state().dropped_error()),
        }
    }

    /// The entries that have not expired for a read of `view` now, or as `snapshot` sees it; `None` if all are seen.
    #[inline]
    fn alive<'a>(&'a self, view: &'a ReadView, snapshot: Option<&Snapshot>) -> Option<Alive<'a>> {
        // The whole cost of a partition without a rule.
        let rule = view.expiry.as_ref()?;
        self.alive_by(rule, snapshot)
    }

    fn alive_by<'a>(
        &'a self,
        rule: &'a Arc<dyn Expiry>,
        snapshot: Option<&Snapshot>,
    ) -> Option<Alive<'a>> {
        if self.handle().sees_expired {
            return None;
        }
        let time = match snapshot {
            None => ReadTime::Now(&*self.db().runner.calendar),
            // Without a time it is older than the rule.
            Some(snapshot) => ReadTime::At(rule.now(snapshot.registered.unix_time()?)),
        };
        Some(Alive { rule, key_form: self.state().key_form, time })
    }

    /// The entries that have not expired as `snapshot` sees them; `None` if all are seen.
    pub(super) fn alive_at(&self, snapshot: &Snapshot) -> Option<AliveAt> {
        self.alive(&self.state().view(), Some(snapshot)).map(Alive::fixed)
    }

    /// The arguments of a get in `view` at `seq`.
    #[inline(always)]
    fn get_context<'a>(
        &'a self,
        view: &'a ReadView,
        seq: SeqNo,
        alive: Option<Alive<'a>>,
    ) -> GetContext<'a> {
        let state = self.state();
        let tables = &*self.db().setup.tables;
        GetContext { view, tables, store: state.store(), operator: state.operator(), seq, alive }
    }

    #[inline]
    fn look<T>(
        &self,
        snapshot: Option<&Snapshot>,
        key: &[u8],
        look: impl FnOnce(&PinnedView<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let ViewAt { view, seq } = self.observe(snapshot)?;
        let state = self.state();
        let context = self.get_context(&view, seq, self.alive(&view, snapshot));
        let hooks = state.load_hooks();
        let pinned = PinnedView { context, hooks: &hooks, partition: &state.name };
        let looked = state.key_form.with_stored(key, |key| look(&pinned, key));
        looked.map_err(|error| error.in_partition(&state.name))
    }
}

/// Single keys.
impl Partition {
    /// Returns about how many keys there are: entries of memtables and tables, less two for each
    /// tombstone of a table.
    pub fn len_approx(&self) -> Result<u64> {
        let ViewAt { view, seq } = self.observe(None)?;
        let clear_seq = view.clear_at(seq);
        // Entries below a clear still exist, and no reader sees them.
        let memtables = view.memtables().filter(|memtable| memtable.last_seq() >= clear_seq);
        let in_memory: u64 = memtables.map(|memtable| memtable.entries_above_clear_seqs()).sum();
        let mut entries: u64 = 0;
        let mut tombstones: u64 = 0;
        for (_, table) in
            view.version.tables().filter(|(_, table)| table.meta.newest() >= clear_seq)
        {
            entries += table.meta.entries;
            tombstones += table.meta.tombstones;
        }
        // A tombstone is an entry itself, and hides about one other.
        Ok(in_memory + entries.saturating_sub(2 * tombstones))
    }

    /// Returns the value of `key`; never an older one if the newest is damaged.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.get_at(None, key.as_ref())
    }

    #[inline]
    pub(super) fn get_at(&self, snapshot: Option<&Snapshot>, key: &[u8]) -> Result<Option<Slice>> {
        let ViewAt { view, seq } = self.observe(snapshot)?;
        let state = self.state();
        let context = self.get_context(&view, seq, self.alive(&view, snapshot));
        let found = state.key_form.with_stored(key, |key| read::get(&context, key));
        found.map_err(|error| error.in_partition(&state.name))
    }

    /// Returns the values of `keys` at one moment, in their order.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        self.multi_get_at(None, keys)
    }

    pub(super) fn multi_get_at<K: AsRef<[u8]>>(
        &self,
        snapshot: Option<&Snapshot>,
        keys: &[K],
    ) -> Result<Vec<Option<Slice>>> {
        read::all_values(keys.len(), |visit| self.visit_at(snapshot, keys, visit))
    }

    /// Gives `visit` the place and the value of each of `keys`, at one moment, until it returns `false`. The first 64 that it
    /// is given, and each further 64, come in the order of their places: up to 64 keys in their order.
    ///
    /// # Errors
    /// Those of [`Partition::get`], of any of the keys.
    pub fn multi_get_each<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut visit: impl FnMut(usize, Option<Slice>) -> bool,
    ) -> Result<()> {
        self.visit_at(None, keys, &mut visit)
    }

    /// As [`Partition::multi_get_each`], now or as `snapshot` sees the partition.
    fn visit_at<K: AsRef<[u8]>>(
        &self,
        snapshot: Option<&Snapshot>,
        keys: &[K],
        visit: &mut dyn FnMut(usize, Option<Slice>) -> bool,
    ) -> Result<()> {
        let ViewAt { view, seq } = self.observe(snapshot)?;
        let state = self.state();
        let alive = self.alive(&view, snapshot).map(Alive::fixed);
        let alive = alive.as_ref().map(|alive| alive.of(state.key_form));
        let context = self.get_context(&view, seq, alive);
        let done = read::multi_get(&context, state.key_form, keys, visit);
        done.map_err(|error| error.in_partition(&state.name))
    }

    /// The place of the value of `key`, now or as `snapshot` sees it, with the point that keeps it
    /// there. The value store is not read.
    ///
    /// # Errors
    /// Those of [`Partition::get`].
    pub fn locate(
        &self,
        snapshot: Option<&Snapshot>,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<(Located, ReadPoint)>> {
        self.read_point_at(snapshot)?.locate_kept(key.as_ref())
    }

    /// Returns the partition as it is now, or as `snapshot` sees it, to read from.
    ///
    /// # Errors
    /// A closed database; a dropped partition; a snapshot of another database.
    pub fn read_point_at(&self, snapshot: Option<&Snapshot>) -> Result<ReadPoint> {
        let ViewAt { view, seq } = self.observe(snapshot)?;
        let alive = self.alive(&view, snapshot).map(Alive::fixed);
        // Owned, because a scan may outlive many views. A guard would delay their release.
        let view = Guard::into_inner(view);
        // Keeps the database open: a close could hand the folder to another process under a running scan.
        let open: Arc<dyn OpenPartition> = match snapshot {
            Some(snapshot) => {
                Arc::new(AtSnapshot { handle: self.handle().clone(), _snapshot: snapshot.clone() })
            }
            None => self.handle().clone(),
        };
        let key_form = self.state().key_form;
        let store = self.state().store().cloned();
        let operator = self.state().operator().cloned();
        Ok(ReadPoint { view, seq, open, key_form, store, operator, alive, check: None })
    }

    /// Returns the bytes of tables that hold the keys of `range`, about.
    pub fn size_approx(&self, range: impl KeyRange) -> Result<u64> {
        let point = self.read_point_at(None)?;
        let bounds = stored_bounds(point.key_form, range.bounds());
        let Some(span) = DeletedRange::within(&bounds, SeqNo::MAX) else { return Ok(0) };
        let mut bytes = 0;
        for (_, table) in point.view.version.tables().filter(|(_, it)| it.may_be_below(&span)) {
            let meta = &table.meta;
            if span.contains(&meta.smallest.user) && span.contains(&meta.largest.user) {
                bytes += meta.bytes;
                continue;
            }
            let reader = table.reader(&self.db().setup.tables);
            let reader = reader.map_err(|error| error.in_partition(&self.state().name))?;
            let end = span.end.as_ref().map_or(meta.bytes, |end| reader.approximate_offset(end));
            bytes += end.saturating_sub(reader.approximate_offset(&span.start));
        }
        Ok(bytes)
    }

    /// Returns the time after which the entry of `key` is not there any more; `None` if it is not there.
    pub fn remaining_time(&self, key: impl AsRef<[u8]>) -> Result<Option<RemainingTime>> {
        let unix_time = self.db().runner.calendar.unix_time();
        let point = self.read_point_at(None)?;
        point.remaining_time(key.as_ref(), &self.state().load_hooks(), unix_time)
    }

    /// Returns whether `key` exists.
    #[inline]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.locate(None, key)?.is_some())
    }
}

impl Snapshot {
    /// Returns the time after which the entry of `key` in `partition` is not there any more, counted from the time of
    /// the snapshot; `None` if it is not there. A snapshot that is older than any rule sees entries without a limit.
    pub fn remaining_time(
        &self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<RemainingTime>> {
        let point = partition.read_point_at(Some(self))?;
        match self.registered.unix_time() {
            Some(unix_time) => {
                let hooks = partition.state().load_hooks();
                point.remaining_time(key.as_ref(), &hooks, unix_time)
            }
            None => Ok(point.locate(key.as_ref())?.map(|_| RemainingTime::Unlimited)),
        }
    }
}

/// Scans.
impl Partition {
    /// Returns the keys and values in `range`, as they are now.
    pub fn range(&self, range: impl KeyRange) -> Range {
        Range::new(range.bounds(), self.read_point_at(None))
    }

    /// Returns all keys and values.
    pub fn iter(&self) -> Range {
        self.range(..)
    }

    /// Returns the keys that begin with `prefix`, and their values.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(prefix_bounds(prefix.as_ref()), self.read_point_at(None))
    }

    /// Returns all keys. Values are never touched.
    pub fn keys(&self) -> Keys {
        self.iter().keys()
    }

    /// Returns a cursor over the partition as it is now. An error is reported by the first seek.
    pub fn cursor(&self) -> Cursor {
        self.cursor_in(..)
    }

    /// Returns a cursor over the keys in `range`.
    pub fn cursor_in(&self, range: impl KeyRange) -> Cursor {
        Cursor::open(&range.bounds(), self.read_point_at(None))
    }

    /// Returns an error if a snapshot cannot be read in this partition.
    pub(super) fn check_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        self.db().check_not_closed()?;
        if !Arc::ptr_eq(snapshot.db.inner(), self.db()) {
            let message = "the snapshot is of another database";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if self.state().existed_at(snapshot.registered.order()) {
            Ok(())
        } else {
            self.state().check_live()
        }
    }
}

impl ReadAt for Partition {
    #[inline]
    fn with_view<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(&PinnedView<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        self.look(None, key, look)
    }

    fn read_point(&self) -> Result<(ReadPoint, Arc<PartitionHooks>)> {
        Ok((self.read_point_at(None)?, self.state().hooks()))
    }
}

/// A partition as the snapshot sees it.
impl ReadAt for (&Snapshot, &Partition) {
    #[inline]
    fn with_view<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(&PinnedView<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let (snapshot, partition) = *self;
        partition.look(Some(snapshot), key, look)
    }

    fn read_point(&self) -> Result<(ReadPoint, Arc<PartitionHooks>)> {
        let (snapshot, partition) = *self;
        Ok((partition.read_point_at(Some(snapshot))?, partition.state().hooks()))
    }
}

impl DbInner {
    /// Registers a snapshot of the present.
    pub(super) fn register_snapshot(&self) -> RegisteredSnapshot {
        // The number is taken inside of the registration. Otherwise, a compaction could drop in
        // between the entries that the snapshot has to see.
        let registered =
            self.snapshots.register(|| self.commit.visible_seq(), || self.context.clock.now());
        // Two clocks are read only if it matters.
        let has_expiry = self.catalog.work().has_expiry();
        registered.at(has_expiry.then(|| self.runner.calendar.unix_time()))
    }

    /// The age of the oldest snapshot.
    pub(super) fn oldest_snapshot_age(&self) -> Option<Duration> {
        let since = self.snapshots.oldest_since()?;
        Some(self.context.clock.now().saturating_sub(since))
    }
}
