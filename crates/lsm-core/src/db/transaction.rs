//! [`Transaction`]: reads at a snapshot, private writes, and a batch that requires that the reads
//! are still valid.
//!
//! It holds no lock while it is open and delays no other caller, but for the keys that it locks on
//! request: `locks.rs`, between transactions alone. At the commit, `require.rs`
//! validates its reads. If two transactions read and wrote the same data, the second to commit gets
//! a conflict and starts again. So committed transactions are as if they had run one after another,
//! in the order of their sequence numbers.
//!
//! Invariants:
//! 1. A read is noted before its result is returned.
//! 2. The snapshot lives until the commit is answered: see invariant 3 of `require.rs`.

mod cursor;
mod merging;
mod own;
mod range;
mod reads;
mod savepoints;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::commit::Commit;
use super::handle::{Db, Partition, Snapshot};
use super::locks::HeldLocks;
use super::write::check_operand;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::PendingHandle;
use crate::limits::check_key;
use crate::options::{Durability, WriteOptions};
use crate::read::{Bounds, KeyRange, LazyRange, Located, ReadPoint, RemainingTime, prefix_bounds};
use crate::types::{SeqNo, Slice};

pub use cursor::TransactionCursor;
use merging::{Merging, seen};
use own::{OwnPartitions, OwnPending, OwnRange, OwnWrite, OwnWrites};
pub use range::{TransactionKeys, TransactionRange};
use reads::Reads;
use savepoints::Savepoints;

/// The time for which a transaction waits for the lock of a key, unless it sets another.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads and writes on any partitions of one database that are committed together if no one changed
/// the data that it read.
#[must_use = "a transaction does nothing until it is committed"]
pub struct Transaction {
    db: Db,
    snapshot: Snapshot,
    reads: Arc<Reads>,
    /// The newest of its own operations on each key.
    writes: OwnPartitions,
    /// The requirements that the caller named.
    required: Vec<(Partition, Vec<u8>, SeqNo)>,
    savepoints: Savepoints,
    /// The error for which it cannot be committed.
    refused: Option<Error>,
    /// Freed after the commit is answered.
    locks: Option<HeldLocks>,
    lock_timeout: Duration,
    is_deadlocked: bool,
}

impl Db {
    /// Begins a transaction, at a snapshot that is taken now.
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self.clone())
    }
}

impl Transaction {
    pub(super) fn new(db: Db) -> Transaction {
        let snapshot = db.snapshot();
        Transaction {
            db,
            snapshot,
            reads: Arc::default(),
            writes: BTreeMap::new(),
            required: Vec::new(),
            savepoints: Savepoints::default(),
            refused: None,
            locks: None,
            lock_timeout: LOCK_TIMEOUT,
            is_deadlocked: false,
        }
    }

    /// Returns the snapshot that it reads. Reads through it are not validated.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the value of `key` in `partition`, own writes included.
    pub fn get(&self, partition: &Partition, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        let key = key.as_ref();
        partition.check_snapshot(&self.snapshot)?;
        let own = self.own(partition).and_then(|own| own.get(key));
        seen((partition, &self.snapshot), key, own, || {
            // Before the read: a failed read gives its caller information, too. The transaction's own
            // writes need no validation.
            partition.get_at(self.noted(partition, key), key)
        })
    }

    /// Notes that `key` is read. Returns the snapshot to read, or `None` for the newest value of a locked key.
    fn noted(&self, partition: &Partition, key: &[u8]) -> Option<&Snapshot> {
        let is_locked = self.reads.note_key(partition.state(), key);
        (!is_locked).then_some(&self.snapshot)
    }

    /// Returns the place of the value of `key` in `partition`, own writes included, with the point that keeps it there.
    /// The value store is not read.
    pub fn locate(
        &self,
        partition: &Partition,
        key: &[u8],
    ) -> Result<Option<(Located, ReadPoint)>> {
        partition.check_snapshot(&self.snapshot)?;
        let located = match self.own(partition).and_then(|own| own.get(key)) {
            None => return partition.locate(self.noted(partition, key), key),
            Some(OwnWrite::Apart(pending)) => {
                let is_shown = Merging::of(partition, &self.snapshot).is_shown(key);
                is_shown.unwrap_or(true).then(|| Located::Apart(pending.handle()))
            }
            Some(_) => self.get(partition, key)?.map(Located::Here),
        };
        let point = partition.read_point_at(Some(&self.snapshot))?;
        Ok(located.map(|located| (located, point)))
    }

    /// Returns the time after which the entry of `key` in `partition` is not there any more, counted from the begin of
    /// the transaction, own writes included; `None` if it is not there. Reads the value, as [`Transaction::get`].
    pub fn remaining_time(
        &self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<RemainingTime>> {
        let key = key.as_ref();
        let Some(value) = self.get(partition, key)? else { return Ok(None) };
        let hooks = partition.state().load_hooks();
        let time = self.snapshot.registered.unix_time();
        let left = time.map(|time| RemainingTime::of(&hooks, key, Some(&value), time));
        Ok(Some(left.unwrap_or(RemainingTime::Unlimited)))
    }

    /// Returns the values of `keys` in `partition`, in their order, own writes included.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        partition: &Partition,
        keys: &[K],
    ) -> Result<Vec<Option<Slice>>> {
        partition.check_snapshot(&self.snapshot)?;
        let own = self.own(partition);
        let merging = Merging::of(partition, &self.snapshot);
        let mut values = vec![None; keys.len()];
        let mut others = Vec::new();
        for (at, key) in keys.iter().map(AsRef::as_ref).enumerate() {
            match own.and_then(|own| own.get(key)) {
                // Before the read, as in a get.
                own @ (None | Some(OwnWrite::Merge(_))) => match self.noted(partition, key) {
                    Some(_) => others.push((at, key, own)),
                    None => values[at] = self.get(partition, key)?,
                },
                Some(own) => {
                    let value = merging.value(key, own)?;
                    values[at] = value.and_then(|value| merging.shown(key, value));
                }
            }
        }
        let keys: Vec<&[u8]> = others.iter().map(|(_, key, _)| *key).collect();
        let found = self.snapshot.multi_get(partition, &keys)?;
        for ((at, key, own), value) in others.into_iter().zip(found) {
            values[at] = seen((partition, &self.snapshot), key, own, || Ok(value))?;
        }
        Ok(values)
    }

    /// Returns the keys and values in `range` of `partition`, with the own writes that were made
    /// before this call.
    pub fn range(&self, partition: &Partition, range: impl KeyRange) -> TransactionRange {
        self.scan(partition, range.bounds(), true)
    }

    /// Returns the keys that begin with `prefix`, and their values, in `partition`.
    pub fn prefix(&self, partition: &Partition, prefix: impl AsRef<[u8]>) -> TransactionRange {
        self.scan(partition, prefix_bounds(prefix.as_ref()), true)
    }

    /// Returns a cursor over the keys in `range` of `partition`, own writes included.
    pub fn cursor_in<'a>(
        &'a self,
        partition: &'a Partition,
        range: impl KeyRange,
    ) -> TransactionCursor<'a> {
        TransactionCursor::new(self, partition, range.bounds())
    }

    fn scan(&self, partition: &Partition, bounds: Bounds, reads_ahead: bool) -> TransactionRange {
        let point = partition.read_point_at(Some(&self.snapshot));
        let stored = LazyRange::new(bounds.clone(), point, reads_ahead);
        let own = self.own(partition).cloned().unwrap_or_default();
        let is_own = Arc::ptr_eq(self.db.inner(), partition.db());
        // A partition of another database may have the number of one that is read here. The range returns an
        // error, and is not noted: the reads of the other partition would be validated in its place.
        let reads = if is_own { self.reads.clone() } else { Arc::default() };
        let scan = Reads::begin_scan(&reads, partition.state(), &bounds);
        let merging = Merging::of(partition, &self.snapshot);
        TransactionRange::new(stored, OwnRange::new(own, bounds), scan, merging)
    }

    fn own(&self, partition: &Partition) -> Option<&Arc<OwnWrites>> {
        self.writes.get(&partition.state().id).map(|(_, own)| own)
    }

    /// Sets `key` to `value` in `partition`.
    pub fn put(&mut self, partition: &Partition, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let value = Slice::copy_from(value.as_ref());
        self.write(partition, key.as_ref(), OwnWrite::Put(value));
    }

    /// Merges `operand` into the value of `key` in `partition`. That is no read of the key.
    pub fn merge(
        &mut self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) {
        if !self.is_own(partition) {
            return;
        }
        match self.merged(partition, key.as_ref(), operand.as_ref()) {
            Ok(own) => self.write(partition, key.as_ref(), own),
            // The commit returns it, as it does for the other operations.
            Err(error) => self.refused = Some(error),
        }
    }

    /// The own state of a key after a merge.
    fn merged(&mut self, partition: &Partition, key: &[u8], operand: &[u8]) -> Result<OwnWrite> {
        check_operand(partition.state(), key, operand)?;
        let merging = Merging::of(partition, &self.snapshot);
        Ok(match own_of(&mut self.writes, partition).get(key) {
            None => OwnWrite::Merge(Slice::copy_from(operand)),
            Some(OwnWrite::Merge(older)) => {
                OwnWrite::Merge(merging.fold(key, Some(older.clone()), operand)?)
            }
            Some(own) => {
                // As for every reader, an expired value is no base. Without a value the operand is the value.
                let base = merging.value(key, own)?;
                let base = base.and_then(|value| merging.shown(key, value));
                OwnWrite::Put(merging.fold(key, base, operand)?)
            }
        })
    }

    /// Sets `key` to a value that was given to the value store of `partition` already; see
    /// [`Batch::add_pending`](super::Batch::add_pending). The value is discarded if it is not committed.
    pub fn put_pending(&mut self, partition: &Partition, key: &[u8], handle: PendingHandle) {
        self.write(partition, key, OwnWrite::Apart(Arc::new(OwnPending::new(handle))));
    }

    /// Deletes `key` in `partition`.
    pub fn delete(&mut self, partition: &Partition, key: impl AsRef<[u8]>) {
        self.write(partition, key.as_ref(), OwnWrite::Delete);
    }

    /// Deletes every key of `range` in `partition`.
    pub fn delete_range(&mut self, partition: &Partition, range: impl KeyRange) {
        self.erase(partition, &range.bounds());
    }

    /// Deletes every key of `partition` that begins with `prefix`.
    pub fn delete_prefix(&mut self, partition: &Partition, prefix: impl AsRef<[u8]>) {
        self.erase(partition, &prefix_bounds(prefix.as_ref()));
    }

    /// Deletes every key of `partition`.
    pub fn clear(&mut self, partition: &Partition) {
        // The commit makes a clear of a range that holds every key.
        self.delete_range(partition, ..);
    }

    /// Requires that no one has written to `key` in `partition` after `at_most`, when it is committed.
    pub fn require(&mut self, partition: &Partition, key: impl AsRef<[u8]>, at_most: SeqNo) {
        if self.is_own(partition) {
            self.required.push((partition.clone(), key.as_ref().to_vec(), at_most));
        }
    }

    fn erase(&mut self, partition: &Partition, bounds: &Bounds) {
        if !self.is_own(partition) {
            return;
        }
        // As a scan of the same bounds finds nothing, their deletion deletes nothing.
        if let Some(span) = OwnWrites::span_of(bounds) {
            let own = own_of(&mut self.writes, partition);
            self.savepoints.note_all(partition.state().id, own);
            Arc::make_mut(own).erase(span);
        }
    }

    fn write(&mut self, partition: &Partition, key: &[u8], value: OwnWrite) {
        if self.is_own(partition) {
            let own = own_of(&mut self.writes, partition);
            self.savepoints.note_entry(partition.state().id, own, key);
            // Existing ranges keep the writes as they were when they began: the map is copied if a
            // range shares it.
            Arc::make_mut(own).entries.insert(key.to_vec(), value);
        }
    }

    /// Returns `true` if `partition` is of this database; the commit returns the error if it is not.
    fn is_own(&mut self, partition: &Partition) -> bool {
        let is_own = Arc::ptr_eq(self.db.inner(), partition.db());
        if !is_own {
            let message = "the partition belongs to another database";
            self.refused = Some(Error::new(ErrorKind::InvalidArgument, message));
        }
        is_own
    }

    /// Marks the present state of the own writes and requirements; the newest mark counts first.
    pub fn set_savepoint(&mut self) {
        self.savepoints.set(self.required.len(), self.refused.clone());
    }

    /// Takes back the own writes and requirements since the newest savepoint, and removes it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is none.
    pub fn rollback_to_savepoint(&mut self) -> Result<()> {
        let savepoint = self.savepoints.roll_back(&mut self.writes)?;
        self.required.truncate(savepoint.required_len);
        self.refused = savepoint.refused;
        Ok(())
    }

    /// Removes the newest savepoint, and keeps what was done since.
    ///
    /// # Errors
    /// As [`Transaction::rollback_to_savepoint`].
    pub fn pop_savepoint(&mut self) -> Result<()> {
        self.savepoints.pop()
    }

    /// Sets the time for which later calls of [`Transaction::get_for_update`] wait.
    pub fn set_lock_timeout(&mut self, timeout: Duration) {
        self.lock_timeout = timeout;
    }

    /// Returns `true` if a request of it was refused because of a deadlock.
    pub fn is_deadlocked(&self) -> bool {
        self.is_deadlocked
    }

    /// Locks `key` in `partition` until the transaction ends, and returns its newest value, own writes
    /// included.
    ///
    /// # Errors
    /// [`ErrorKind::Deadlock`]; [`ErrorKind::LockTimeout`]; those of a get.
    pub fn get_for_update(
        &mut self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Slice>> {
        let key = key.as_ref();
        partition.check_snapshot(&self.snapshot)?;
        check_key(key)?;
        let inner = self.db.inner();
        // Two keys of users are two stored keys, in every form.
        let stored = partition.state().key_form.stored(key.to_vec());
        let locks = self.locks.get_or_insert_with(|| inner.locks.owner());
        let locked = locks.lock(partition.state(), &stored, self.lock_timeout);
        self.is_deadlocked |= locked.as_ref().is_err_and(|e| e.kind() == ErrorKind::Deadlock);
        locked?;
        let own = self.own(partition).and_then(|own| own.get(key));
        seen((partition, &self.snapshot), key, own, || {
            // The number first: the later read sees every operation through it.
            let seq = inner.commit.visible_seq();
            self.reads.note_locked(partition.state(), stored, seq);
            // The newest value: the owner of the lock before has written one that the snapshot lacks.
            partition.get(key)
        })
    }

    /// Returns `true` if it writes `key`, or deletes it, also with a range.
    pub fn has_write(&self, partition: &Partition, key: &[u8]) -> bool {
        let own = self.writes.get(&partition.state().id);
        own.is_some_and(|(_, own)| own.get(key).is_some())
    }

    /// Returns `true` if it has no writes.
    pub fn is_empty(&self) -> bool {
        self.refused.is_none() && self.writes.values().all(|(_, own)| own.is_empty())
    }

    /// Commits the writes if all reads are still valid.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it is not; otherwise as [`Batch::commit`](super::Batch::commit).
    ///
    /// # Durability
    /// That of `options`. Locks are free when the commit is visible, before its sync.
    pub fn commit(self, options: impl Into<WriteOptions>) -> Result<Commit> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let inner = self.db.inner();
        // A partition may have lost all of them in a rollback.
        if self.is_empty() && self.required.is_empty() && !self.reads.has_locked() {
            inner.check_not_closed()?;
            // A transaction without writes counts as if it had run at its snapshot.
            return Ok(Commit { seq: self.snapshot.seq(), epoch: inner.context.epoch });
        }
        let mut batch = self.db.batch();
        for (partition, own) in self.writes.values() {
            // First: an own write to a key of a range came after its deletion.
            own.erased().for_each(|bounds| batch.erase(partition, bounds));
            for (key, value) in &own.entries {
                match value {
                    OwnWrite::Put(value) => batch.add_put(partition, key, value),
                    OwnWrite::Delete => batch.add_delete(partition, key),
                    OwnWrite::Merge(operand) => batch.add_folded(partition, key, operand),
                    OwnWrite::Apart(value) => {
                        let value = value.take().expect("only a commit takes it");
                        batch.add_pending(partition, key, value);
                    }
                }
            }
        }
        for (partition, key, at_most) in &self.required {
            batch.add_require(partition, key, *at_most);
        }
        // Only its reads: two transactions that write one key without reading it follow each other.
        batch.require_all(self.reads.requirements(self.snapshot.seq()));
        // The snapshot lives until the batch is answered, see invariant 3 of `require.rs`.
        let options = options.into();
        let frees_early = self.locks.is_some()
            && options.durability == Durability::Sync
            && self.writes.values().all(|(partition, _)| partition.state().logged);
        if !frees_early {
            return batch.commit(options);
        }
        // The next owner may change the keys as soon as this commit is visible. Its frame comes later in the log, so it
        // is not durable before this one; with locks that are held during the sync, each sync had one commit. An owner
        // without writes syncs what it read.
        let commit = batch.commit(options.durability(Durability::Os))?;
        drop(self.locks);
        inner.log.sync_through_seq(commit.seq)?;
        Ok(commit)
    }
}

/// The own writes to `partition`, to be changed.
fn own_of<'a>(writes: &'a mut OwnPartitions, partition: &Partition) -> &'a mut Arc<OwnWrites> {
    let id = partition.state().id;
    let (_, own) = writes.entry(id).or_insert_with(|| (partition.clone(), Arc::default()));
    own
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}
