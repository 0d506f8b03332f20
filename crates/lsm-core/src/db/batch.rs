//! [`Batch`]: operations on any partitions that are committed together.
//!
//! Filled by its owner without a lock; `db/write.rs` encodes single operations, checks limits, and
//! passes prepared batches to the commit path.

use std::sync::Arc;

use super::commit::Commit;
use super::handle::{Db, Partition};
use super::prepared::{PerSection, Prepared};
use super::require::{Requirement, Requirements, Subject};
use super::write::{
    HANDLE_BYTES, check_operand, check_value, check_write, commit, inline_bytes, prepare,
    push_operation, stored_key,
};
use crate::batch::SectionBuilder;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::PendingHandle;
use crate::limits::{FORMAT_BATCH_BYTES_MAX, INTERNAL_KEY_BYTES_MAX, check_key};
use crate::options::WriteOptions;
use crate::partition::PartitionState;
use crate::read::{Bounds, KeyRange, prefix_bounds, stored_bounds};
use crate::types::{DeletedRange, EntryKind, SeqNo};

/// Operations on any partitions that become visible, and durable, together or not at all.
///
/// Operations on one key count in their order. [`Batch::commit`] reports a limit that an operation
/// exceeds, and then writes nothing.
#[must_use = "a batch does nothing until it is committed"]
pub struct Batch {
    db: Db,
    sections: Vec<(Arc<PartitionState>, u32, SectionBuilder)>,
    /// Handles of values that went to a value store; dropped uncommitted, they are discarded.
    pending: Vec<PendingHandle>,
    bytes: u64,
    /// The number of clears and deletions of ranges.
    erasures: usize,
    requirements: Vec<Requirement>,
    refused: Option<Error>,
}

impl Db {
    /// Returns an empty batch.
    pub fn batch(&self) -> Batch {
        Batch::new(self.clone())
    }
}

impl Partition {
    /// Returns an empty batch of the partition's database.
    pub fn batch(&self) -> Batch {
        self.open_db().batch()
    }
}

impl Batch {
    pub(super) fn new(db: Db) -> Batch {
        Batch {
            db,
            sections: Vec::new(),
            pending: Vec::new(),
            bytes: 0,
            erasures: 0,
            requirements: Vec::new(),
            refused: None,
        }
    }

    /// Sets `key` to `value` in `partition`.
    pub fn put(
        mut self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Batch {
        self.add_put(partition, key.as_ref(), value.as_ref());
        self
    }

    /// Merges `operand` into the value of `key` in `partition`.
    pub fn merge(
        mut self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> Batch {
        self.add_merge(partition, key.as_ref(), operand.as_ref());
        self
    }

    /// Deletes `key` in `partition`; no error if it does not exist.
    pub fn delete(mut self, partition: &Partition, key: impl AsRef<[u8]>) -> Batch {
        self.add_delete(partition, key.as_ref());
        self
    }

    /// Deletes every key of `partition` that was written before.
    pub fn clear(mut self, partition: &Partition) -> Batch {
        self.add_clear(partition);
        self
    }

    /// Deletes every key of `range` in `partition` that was written before.
    pub fn delete_range(mut self, partition: &Partition, range: impl KeyRange) -> Batch {
        self.add_delete_range(partition, range);
        self
    }

    /// Deletes every key of `partition` that begins with `prefix` and was written before.
    pub fn delete_prefix(mut self, partition: &Partition, prefix: impl AsRef<[u8]>) -> Batch {
        self.add_delete_prefix(partition, prefix.as_ref());
        self
    }

    /// Sets `key` to `value` in `partition`, in place.
    pub fn add_put(&mut self, partition: &Partition, key: &[u8], value: &[u8]) {
        self.push(partition, EntryKind::Value, key, value);
    }

    /// Merges `operand` into the value of `key` in `partition`, in place.
    pub fn add_merge(&mut self, partition: &Partition, key: &[u8], operand: &[u8]) {
        self.push(partition, EntryKind::Operand, key, operand);
    }

    /// As [`Batch::add_merge`], for an operand that was made of several, which may be longer than each of them.
    pub(super) fn add_folded(&mut self, partition: &Partition, key: &[u8], operand: &[u8]) {
        if self.refused.is_some() {
            return;
        }
        let added = check_key(key)
            .and_then(|()| self.check_room(partition, (key.len() + operand.len()) as u64))
            .and_then(|()| self.append(partition, EntryKind::Operand, key, operand));
        self.refused = added.err();
    }

    /// Deletes `key` in `partition`, in place.
    pub fn add_delete(&mut self, partition: &Partition, key: &[u8]) {
        self.push(partition, EntryKind::Tombstone, key, &[]);
    }

    /// Deletes every key of `partition` that was written before, in place.
    pub fn add_clear(&mut self, partition: &Partition) {
        if self.refused.is_some() {
            return;
        }
        match self.check_room(partition, 0) {
            Ok(()) => {
                let at = self.section_of(partition.state());
                self.sections[at].2.push(EntryKind::Clear, &[], &[]);
                self.erasures += 1;
            }
            Err(refused) => self.refused = Some(refused),
        }
    }

    /// As [`Batch::delete_range`], in place.
    pub fn add_delete_range(&mut self, partition: &Partition, range: impl KeyRange) {
        self.erase(partition, range.bounds());
    }

    /// As [`Batch::delete_prefix`], in place.
    pub fn add_delete_prefix(&mut self, partition: &Partition, prefix: &[u8]) {
        self.erase(partition, prefix_bounds(prefix));
    }

    pub(super) fn erase(&mut self, partition: &Partition, bounds: Bounds) {
        if self.refused.is_some() {
            return;
        }
        let erased = self.append_range(partition, bounds);
        self.refused = erased.err();
    }

    fn append_range(&mut self, partition: &Partition, bounds: Bounds) -> Result<()> {
        // As a scan of the same bounds finds nothing, their deletion deletes nothing.
        if DeletedRange::within(&bounds, SeqNo::ZERO).is_none() {
            return self.check_own(partition);
        }
        let state = partition.state();
        let Some(span) = DeletedRange::within(&stored_bounds(state.key_form, bounds), SeqNo::ZERO)
        else {
            return self.check_own(partition);
        };
        if span.is_all() {
            self.add_clear(partition);
            return Ok(());
        }
        let end = span.end.as_deref().unwrap_or_default();
        let longest = span.start.len().max(end.len());
        if longest > INTERNAL_KEY_BYTES_MAX {
            let limit = INTERNAL_KEY_BYTES_MAX as u64;
            return Err(Error::limit("length of a bound", longest as u64, limit));
        }
        let len = (span.start.len() + end.len()) as u64;
        self.check_room(partition, len)?;
        let at = self.section_of(state);
        self.sections[at].2.push(EntryKind::DeleteRange, &span.start, end);
        self.erasures += 1;
        self.bytes += len;
        Ok(())
    }

    /// Requires that no one has written to `key` in `partition` after `at_most`, when the batch is
    /// committed; otherwise it is refused with [`ErrorKind::Conflict`].
    pub fn require(
        mut self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
        at_most: SeqNo,
    ) -> Batch {
        self.add_require(partition, key.as_ref(), at_most);
        self
    }

    /// As [`Batch::require`], in place.
    pub fn add_require(&mut self, partition: &Partition, key: &[u8], at_most: SeqNo) {
        if self.refused.is_some() {
            return;
        }
        if let Err(error) = self.check_own(partition).and_then(|()| check_key(key)) {
            self.refused = Some(error);
            return;
        }
        let state = partition.state();
        // In the form of memtables and tables, and made here, outside of the lock of the log.
        let stored = state.key_form.stored(key.to_vec());
        self.requirements.push(Requirement {
            partition: state.clone(),
            subject: Subject::key(stored),
            at_most,
            is_held: false,
        });
    }

    /// Adds requirements, of this database.
    pub(super) fn require_all(&mut self, requirements: Vec<Requirement>) {
        self.requirements.extend(requirements);
    }

    /// Sets `key` to a value that was given to the value store of `partition` already, in place.
    /// `handle` must come from that store, for that key in its stored form.
    pub fn add_pending(&mut self, partition: &Partition, key: &[u8], handle: PendingHandle) {
        if self.refused.is_some() {
            return;
        }
        let added = self
            .check(partition, EntryKind::Handle, key, handle.bytes())
            .and_then(|()| self.append_pending(partition, key, handle));
        self.refused = added.err();
    }

    /// The number of operations.
    pub fn len(&self) -> usize {
        self.sections.iter().map(|(_, _, section)| section.operation_count() as usize).sum()
    }

    /// Returns `true` if there is no operation, not even one that was refused.
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty() && self.refused.is_none()
    }

    fn push(&mut self, partition: &Partition, kind: EntryKind, key: &[u8], value: &[u8]) {
        if self.refused.is_some() {
            return;
        }
        let pushed = self
            .check(partition, kind, key, value)
            .and_then(|()| self.append(partition, kind, key, value));
        // The error waits for the commit: a chain of calls has one place that returns errors.
        self.refused = pushed.err();
    }

    fn append(
        &mut self,
        partition: &Partition,
        kind: EntryKind,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let state = partition.state();
        let at = self.section_of(state);
        let section = &mut self.sections[at].2;
        push_operation(state, section, kind, key, value, &mut self.pending)?;
        self.bytes += key.len() as u64 + inline_bytes(state, kind, value.len() as u64);
        Ok(())
    }

    fn check_own(&self, partition: &Partition) -> Result<()> {
        if Arc::ptr_eq(self.db.inner(), partition.db()) {
            return Ok(());
        }
        let message = "the partition belongs to another database";
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    fn append_pending(
        &mut self,
        partition: &Partition,
        key: &[u8],
        handle: PendingHandle,
    ) -> Result<()> {
        let state = partition.state();
        // Before the key is checked: the section notes the present rules, and the commit checks the
        // keys again if the rules change from here on.
        let at = self.section_of(state);
        let stored = stored_key(state, key)?;
        self.sections[at].2.push(EntryKind::Handle, &stored, handle.bytes());
        self.bytes += key.len() as u64 + HANDLE_BYTES;
        self.pending.push(handle);
        Ok(())
    }

    /// The index of the partition's section, which is added if there is none.
    fn section_of(&mut self, state: &Arc<PartitionState>) -> usize {
        // A batch has few partitions: a map would cost more than it saves.
        let at = self.sections.iter().position(|(other, _, _)| Arc::ptr_eq(other, state));
        at.unwrap_or_else(|| {
            let section = SectionBuilder::default();
            self.sections.push((state.clone(), state.rules_epoch(), section));
            self.sections.len() - 1
        })
    }

    fn check(
        &self,
        partition: &Partition,
        kind: EntryKind,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let db = self.db.inner();
        db.ownership.check_process()?;
        check_key(key)?;
        let state = partition.state();
        match kind {
            EntryKind::Operand => check_operand(state, key, value)?,
            _ => check_value(&db.setup.options, state, value)?,
        }
        let inline = inline_bytes(state, kind, value.len() as u64);
        self.check_room(partition, key.len() as u64 + inline)
    }

    /// Checks whether an operation of `len` bytes on `partition` may be added.
    fn check_room(&self, partition: &Partition, len: u64) -> Result<()> {
        self.check_own(partition)?;
        let db = self.db.inner();
        let bytes = self.bytes + len;
        if bytes > db.setup.options.batch_bytes_max {
            return Err(Error::limit("batch size", bytes, db.setup.options.batch_bytes_max));
        }
        // The format has a limit of its own, of encoded bytes: kinds and lengths count.
        let encoded: u64 = self.sections.iter().map(|(_, _, s)| s.bytes().len() as u64).sum();
        // Kind and lengths of an operation take less than 32 bytes.
        if encoded + len + 32 > FORMAT_BATCH_BYTES_MAX {
            return Err(Error::limit("encoded batch size", encoded, FORMAT_BATCH_BYTES_MAX));
        }
        if self
            .sections
            .first()
            .is_some_and(|(other, _, _)| other.logged != partition.state().logged)
        {
            let message = "a batch cannot mix partitions with and without a log";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(())
    }

    /// Commits the operations. An empty batch is a no-op that returns the newest commit.
    ///
    /// # Errors
    /// A limit, a dropped partition, a closed or read-only store: nothing is written then. After an
    /// I/O error the batch is not visible and does not appear later, also if a sync failed of a new
    /// segment of the log that the batch needs: the next commit makes another one. If the sync of
    /// [`Durability::Sync`] fails, the error has the kind [`ErrorKind::ReadOnly`], or
    /// [`ErrorKind::Io`] for want of a file handle; the batch is visible, and it is unknown whether
    /// it is durable.
    ///
    /// # Durability
    /// That of `options`.
    ///
    /// # Cost
    /// One `write` for the group of batches that commit together, and with [`Durability::Sync`]
    /// one sync for all that wait.
    ///
    /// [`Durability::Sync`]: crate::options::Durability::Sync
    pub fn commit(self, options: impl Into<WriteOptions>) -> Result<Commit> {
        self.commit_as(options.into())
    }

    /// As [`Batch::commit`], but refused instead of delayed. The wait for the sync of
    /// [`Durability::Sync`](crate::options::Durability::Sync) remains.
    ///
    /// # Errors
    /// [`ErrorKind::WouldStall`] with the reason: nothing was written. Others as
    /// [`Batch::commit`].
    pub fn try_commit(self, options: impl Into<WriteOptions>) -> Result<Commit> {
        self.commit_as(options.into().waits(false))
    }

    fn commit_as(mut self, options: WriteOptions) -> Result<Commit> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let db = self.db.inner();
        db.ownership.check_process()?;
        let states = || self.sections.iter().map(|(state, _, _)| &**state);
        states().try_for_each(|state| check_write(state, options))?;
        // A batch that only frees space counts as empty: damage must not refuse what removes it.
        let bytes = if self.erasures == self.len() { 0 } else { self.bytes.max(1) };
        // Before the sections are hashed and before any lock: a delayed writer holds nothing
        // that others need.
        db.scheduler.admit(states(), bytes, options)?;
        let requirements =
            (!self.requirements.is_empty()).then(|| Box::new(Requirements::new(self.requirements)));
        let mut sections = self.sections.iter_mut();
        let sections = match (sections.next(), sections.len()) {
            (None, _) => {
                db.check_open()?;
                // The requirements are checked against at least this number, so the answer is true
                // at that number.
                let seq = db.commit.visible_seq();
                requirements.map_or(Ok(()), |mut required| db.prove(&mut required))?;
                return Ok(Commit { seq, epoch: db.context.epoch });
            }
            // The usual batch, without a list of sections.
            (Some((state, rules, section)), 0) => {
                PerSection::One(prepare(db, state, *rules, section)?)
            }
            (first, _) => PerSection::Many(
                first
                    .into_iter()
                    .chain(sections)
                    .map(|(state, rules, section)| prepare(db, state, *rules, section))
                    .collect::<Result<_>>()?,
            ),
        };
        commit(db, Prepared { sections, options, requirements }, self.pending)
    }
}
