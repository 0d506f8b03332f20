//! The engine's handles: [`Db`], [`Partition`], [`Snapshot`]. Each call is a few lines over the
//! parts that do the work. The reads of a partition are in `reads.rs`, its writes in `write.rs`.
//!
//! Applications use the types of the same names of siltstone, where errors, durability and cost of
//! each call are documented.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::DbInner;
use super::health::Health;
use super::leases::LeaseHolder;
use super::verify::{VerifyOptions, VerifyReport};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Damage, Result};
use crate::hooks::{AttachedStore, Hooks};
use crate::options::{Options, PartitionOptions, check_background_rate};
use crate::partition::PartitionState;
use crate::raw;
use crate::read::{
    Cursor, KeyRange, Keys, OpenPartition, Range, ReadPoint, prefix_bounds, stored_bounds,
};
use crate::snapshot::RegisteredSnapshot;
use crate::stats::Stats;
use crate::types::{SeqNo, Slice};
use crate::version::TableContext;

/// Closes the database when the last handle, snapshot and iterator is dropped.
pub(super) struct OpenHandle(Arc<DbInner>);

impl Drop for OpenHandle {
    fn drop(&mut self) {
        if !self.0.is_own() {
            self.0.leave_to_parent();
            return;
        }
        // A drop cannot return an error; `Db::close` does.
        let _ = self.0.close();
        self.0.events.deliver();
    }
}

/// An open database. Cheap to clone; all clones are the same database.
///
/// Dropping the last clone, partition, snapshot and iterator closes it, as [`Db::close`] does.
#[derive(Clone)]
pub struct Db(Arc<OpenHandle>);

impl Db {
    pub(super) fn new(inner: Arc<DbInner>) -> Db {
        Db(Arc::new(OpenHandle(inner)))
    }

    /// Opens the database in the folder `path` with default options; creates both if they do not
    /// exist.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if another process, or this one, has it open; corruption if manifest or
    /// log are damaged.
    ///
    /// Reads the manifest and the log since the last flushes, and writes the replayed entries to
    /// tables.
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Db::builder(path).open()
    }

    pub(super) fn inner(&self) -> &Arc<DbInner> {
        &self.0.0
    }

    /// The partition `name`, made with default options if it does not exist.
    pub fn partition(&self, name: &str) -> Result<Partition> {
        let state = self.inner().open_partition(name, None, None)?;
        Ok(Partition::new(self.clone(), state))
    }

    /// The partition `name` with these options and hooks: created if it does not exist, changed if
    /// it has others. Options that are fixed at creation must agree. Without hooks (`None`) it
    /// keeps its hooks. Later opens find them by name, if [`Builder::hooks`](super::Builder::hooks) supplies them. If
    /// entries of the partition are lost, hooks that know a copy are asked for them.
    ///
    /// # Errors
    /// [`ErrorKind::ReservedKey`] if a hook reserves a suffix that keys of the partition have, or
    /// had and [`Partition::compact`] has not been called since they were deleted;
    /// [`ErrorKind::InvalidArgument`] for a change of an option that is fixed at creation.
    pub fn partition_with(
        &self,
        name: &str,
        options: PartitionOptions,
        hooks: Option<Hooks>,
    ) -> Result<Partition> {
        let state = self.inner().open_partition(name, Some(&options), hooks.as_ref())?;
        // The filters of this call may know a copy of lost entries, which was not available before.
        if hooks.is_some() {
            self.inner().scheduler.restorer().retry_gaps(&state);
            self.inner().events.deliver();
        }
        Ok(Partition::new(self.clone(), state))
    }

    /// Opens the partition `name`, which must exist.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`] if it does not exist; otherwise as [`Db::partition`].
    pub fn open_partition(&self, name: &str) -> Result<Partition> {
        let state = self.inner().existing_partition(name)?;
        Ok(Partition::new(self.clone(), state))
    }

    /// Returns whether there is a partition `name`.
    pub fn has_partition(&self, name: &str) -> bool {
        self.inner().is_own() && self.inner().catalog.named(name).is_some()
    }

    /// Returns the options that the database was opened with.
    pub fn options(&self) -> &Options {
        &self.inner().setup.options
    }

    /// Changes [`Options::background_bytes_per_second`], for jobs that run now, too.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a value out of its range, [`ErrorKind::Closed`] after a close.
    pub fn set_background_bytes_per_second(&self, bytes: u64) -> Result<()> {
        self.inner().check_not_closed()?;
        check_background_rate(bytes)?;
        self.inner().runner.io.limiter().set_bytes_per_second(bytes);
        // Compactions that rest under the former rate begin.
        self.inner().scheduler.background().wake_all();
        Ok(())
    }

    /// Returns the names of all partitions, in order.
    pub fn partition_names(&self) -> Vec<String> {
        if self.inner().is_own() { self.inner().catalog.names() } else { Vec::new() }
    }

    /// Drops the partition `name` durably. Existing iterators and snapshots can still read it.
    pub fn drop_partition(&self, name: &str) -> Result<()> {
        self.inner().drop_partition(name)
    }

    /// Returns an error if the database is closed, or is that of a parent process.
    pub fn check_usable(&self) -> Result<()> {
        self.inner().check_not_closed()
    }

    /// Returns whether another process has taken the database over: then no write of this handle succeeds.
    pub fn is_fenced(&self) -> bool {
        self.inner().ownership.is_fenced()
    }

    /// Takes a snapshot of the database.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { db: self.clone(), registered: Arc::new(self.inner().register_snapshot()) }
    }

    /// Returns the newest operation that readers see.
    pub fn visible_seq(&self) -> SeqNo {
        self.inner().commit.visible_seq()
    }

    /// Returns the newest operation that readers see, once they see all that the log has.
    pub fn newest_seq(&self) -> SeqNo {
        let inner = self.inner();
        // The commit path holds the lock from the append until readers see it.
        drop(inner.log.lock());
        inner.commit.visible_seq()
    }

    /// As [`Db::newest_seq`]; `None` while a commit is being written.
    pub fn try_newest_seq(&self) -> Option<SeqNo> {
        let inner = self.inner();
        drop(inner.log.try_lock()?);
        Some(inner.commit.visible_seq())
    }

    /// Writes all memtables to tables and waits for it.
    pub fn flush(&self) -> Result<()> {
        let flushed = self.inner().scheduler.flusher().flush_all();
        self.inner().events.deliver();
        flushed
    }

    /// Waits until no background work is left, and frees the space that the log has reserved.
    ///
    /// # Errors
    /// The failure of background work that prevents it from being done.
    pub fn wait_idle(&self) -> Result<()> {
        self.inner().check_not_closed()?;
        if self.inner().ownership.is_read_only() {
            return Ok(());
        }
        self.inner().scheduler.wait_idle()?;
        // The log thread would do this after a second. A caller that waits for idleness finds it done,
        // and the released files deleted.
        self.inner().log.release_reserve()?;
        self.inner().scheduler.removal().finish()
    }

    /// With [`BackgroundMode::Stepped`](super::BackgroundMode): does one piece of background
    /// work; `false` if there was none.
    pub fn step(&self) -> Result<bool> {
        if self.inner().ownership.is_read_only() {
            return self.inner().check_not_closed().map(|()| false);
        }
        self.inner().scheduler.step()
    }

    /// Reads every live file and reports all damage.
    pub fn verify(&self, options: VerifyOptions<'_>) -> Result<VerifyReport> {
        self.inner().verify(options, None)
    }

    /// As [`Db::verify`], of a database in which `found` was found before.
    pub(crate) fn verify_with(
        &self,
        options: VerifyOptions<'_>,
        found: Option<Damage>,
    ) -> Result<VerifyReport> {
        self.inner().verify(options, found)
    }

    /// Returns the secondaries that hold files of the database.
    ///
    /// # Errors
    /// Those of the file system; a closed database.
    pub fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        self.inner().lease_holders()
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        if self.inner().is_own() { self.inner().stats() } else { Stats::default() }
    }

    /// Returns whether writes are accepted and background work keeps up.
    pub fn health(&self) -> Health {
        self.inner().health()
    }

    /// Makes entries expire by the calendar as it is, although it has jumped.
    pub fn confirm_clock(&self) {
        self.inner().confirm_clock();
    }

    /// Closes the database: flushes the partitions without a log and those with at least 1 MiB in
    /// memory, ends background work, syncs the log and marks its end. The next open replays the rest
    /// from the log. Calls on all other handles then fail. In an [`EventListener`](crate::hooks::EventListener) of this database it
    /// returns at once if another close is under way, which waits for the listener: then it promises nothing.
    ///
    /// # Errors
    /// The errors of this work. Dropping the last handle hides them. [`ErrorKind::Fenced`] if another
    /// process has taken the database over: nothing is written then.
    pub fn close(self) -> Result<()> {
        let closed = self.inner().close();
        self.inner().events.deliver();
        closed
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").field("path", &self.inner().context.dir).finish_non_exhaustive()
    }
}

/// A handle to one partition: a key space with its own tables and options.
#[derive(Clone)]
pub struct Partition(Arc<PartitionHandle>);

/// The shared part of a [`Partition`], its clones and cursors.
pub(super) struct PartitionHandle {
    db: Db,
    state: Arc<PartitionState>,
    /// Reads through it see entries that have expired.
    pub(super) sees_expired: bool,
}

impl OpenPartition for PartitionHandle {
    fn tables(&self) -> &Arc<TableContext> {
        &self.db.inner().setup.tables
    }

    fn partition(&self) -> &Arc<str> {
        &self.state.name
    }
}

impl Partition {
    fn new(db: Db, state: Arc<PartitionState>) -> Partition {
        Partition(Arc::new(PartitionHandle { db, state, sees_expired: false }))
    }

    /// Returns a handle whose reads see expired entries until a compaction removes them, also reads through snapshots
    /// and transactions.
    #[must_use]
    pub fn with_expired(&self) -> Partition {
        let db = self.open_db().clone();
        let state = self.state().clone();
        Partition(Arc::new(PartitionHandle { db, state, sees_expired: true }))
    }

    pub(super) fn handle(&self) -> &Arc<PartitionHandle> {
        &self.0
    }

    pub(super) fn open_db(&self) -> &Db {
        &self.0.db
    }

    pub(super) fn db(&self) -> &Arc<DbInner> {
        self.0.db.inner()
    }

    pub(super) fn state(&self) -> &Arc<PartitionState> {
        &self.0.state
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.state().name
    }

    /// The sequence number of the oldest snapshot of the database: entries that were overwritten or deleted
    /// after it still exist. `None` without a snapshot.
    pub fn oldest_snapshot(&self) -> Option<SeqNo> {
        self.db().snapshots.oldest_held()
    }

    /// Returns the value store, if the partition has one.
    pub fn value_store(&self) -> Option<Arc<AttachedStore>> {
        self.state().store().cloned()
    }

    /// Returns the stored options.
    pub fn options(&self) -> PartitionOptions {
        (*self.state().view().version.options).clone()
    }

    /// Writes the memtables of the partition to tables and waits for it.
    pub fn flush(&self) -> Result<()> {
        let flushed = self.db().scheduler.flusher().flush_now(self.state());
        self.db().events.deliver();
        flushed
    }

    /// Flushes, and compacts `range` to the bottom level.
    pub fn compact(&self, range: impl KeyRange) -> Result<()> {
        let compacted = self.db().scheduler.compact(self.state(), &range.bounds());
        self.db().events.deliver();
        compacted
    }

    /// Reclaims the space of large values that no reader needs, as far as possible now.
    pub fn reclaim_values(&self) -> Result<()> {
        let reclaimed = self.db().scheduler.reclaimer().reclaim_values(self.state(), None);
        self.db().events.deliver();
        reclaimed
    }

    /// As [`Partition::reclaim_values`], and moves the large values of `range` into the order of their
    /// keys.
    pub fn reallocate_values(&self, range: impl KeyRange) -> Result<()> {
        let keys = stored_bounds(self.state().key_form, range.bounds());
        let moved = self.db().scheduler.reclaimer().reclaim_values(self.state(), Some(keys));
        self.db().events.deliver();
        moved
    }

    /// As [`Partition::reclaim_values`], repeatedly until no reader holds dropped values, or until
    /// `timeout` has passed; `true` if none does.
    pub fn wait_values_reclaimed(&self, timeout: Duration) -> Result<bool> {
        let is_done = self.db().scheduler.reclaimer().wait_reclaimed(self.state(), timeout);
        self.db().events.deliver();
        is_done
    }
}

impl raw::Walkable for Partition {
    fn pin_raw(&self) -> Result<raw::Pin> {
        let ReadPoint { view, open, .. } = self.read_point_at(None)?;
        let hooks = self.state().hooks();
        let clock = self.db().scheduler.background().clock().clone();
        let unix_time = self.db().runner.calendar.unix_time();
        Ok(raw::Pin { view, open, hooks, clock, unix_time })
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition").field("name", &self.state().name).finish_non_exhaustive()
    }
}

/// The database at one moment, over all partitions. Cheap to clone.
///
/// It pins no memory and no file, but compactions keep every version that it sees until its last
/// clone is dropped.
#[derive(Clone)]
pub struct Snapshot {
    pub(super) db: Db,
    pub(super) registered: Arc<RegisteredSnapshot>,
}

impl Snapshot {
    /// Returns the sequence number of the newest operation that it sees.
    pub fn seq(&self) -> SeqNo {
        self.registered.seq()
    }

    /// Returns the value that `key` had in `partition`.
    #[inline]
    pub fn get(&self, partition: &Partition, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        partition.get_at(Some(self), key.as_ref())
    }

    /// Returns the values that `keys` had in `partition`, in their order.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        partition: &Partition,
        keys: &[K],
    ) -> Result<Vec<Option<Slice>>> {
        partition.multi_get_at(Some(self), keys)
    }

    /// Returns whether `key` existed in `partition`.
    #[inline]
    pub fn contains(&self, partition: &Partition, key: impl AsRef<[u8]>) -> Result<bool> {
        // The place of a large value is enough. Its bytes are not read.
        Ok(partition.locate(Some(self), key)?.is_some())
    }

    /// Returns the keys and values that were in `range` of `partition`.
    pub fn range(&self, partition: &Partition, range: impl KeyRange) -> Range {
        Range::new(range.bounds(), partition.read_point_at(Some(self)))
    }

    /// Returns all keys and values that were in `partition`.
    pub fn iter(&self, partition: &Partition) -> Range {
        self.range(partition, ..)
    }

    /// Returns the keys that began with `prefix`, and their values, in `partition`.
    pub fn prefix(&self, partition: &Partition, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(prefix_bounds(prefix.as_ref()), partition.read_point_at(Some(self)))
    }

    /// Returns all keys that were in `partition`. Values are never read.
    pub fn keys(&self, partition: &Partition) -> Keys {
        self.iter(partition).keys()
    }

    /// Returns a cursor over `partition` as it was.
    pub fn cursor(&self, partition: &Partition) -> Cursor {
        self.cursor_in(partition, ..)
    }

    /// Returns a cursor over the keys that were in `range` of `partition`.
    pub fn cursor_in(&self, partition: &Partition, range: impl KeyRange) -> Cursor {
        Cursor::open(&range.bounds(), partition.read_point_at(Some(self)))
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("seq", &self.seq()).finish_non_exhaustive()
    }
}
