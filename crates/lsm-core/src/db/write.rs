//! From the public call to the commit path: limits, encoding, hashing; all of it without a lock.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use super::DbInner;
use super::batch::Batch;
use super::commit::{Commit, Committed};
use super::handle::Partition;
use super::hook_binding::filters_of;
use super::inject::InMemory;
use super::prepared::{PerOperation, PerSection, Prepared, PreparedSection};
use super::require::{Refusal, Requirements};
use crate::batch::{SectionBuilder, damaged_key};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{AttachedOperator, PendingHandle};
use crate::limits::{OPERAND_BYTES_MAX, check_key};
use crate::options::{Durability, Options, WriteOptions};
use crate::partition::PartitionState;
use crate::read::{KeyRange, missing_operator};
use crate::types::EntryKind;
use crate::version::HookKind;
use crate::wal::section_checksum;

/// A buffer for single operations is kept by its thread up to this size.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;

/// The size that a handle counts for memory and merges, in bytes.
pub(super) const HANDLE_BYTES: u64 = 80;

thread_local! {
    static SCRATCH: RefCell<SectionBuilder> = RefCell::default();
}

fn is_stored_apart(partition: &PartitionState, len: u64) -> bool {
    partition.store().is_some_and(|store| store.wants(len))
}

/// The bytes that an operation with a value of `len` bytes adds to the tree.
pub(super) fn inline_bytes(partition: &PartitionState, kind: EntryKind, len: u64) -> u64 {
    let apart = kind == EntryKind::Value && is_stored_apart(partition, len);
    if apart { HANDLE_BYTES } else { len }
}

/// Values in a value store may have any length.
pub(super) fn check_value(
    options: &Options,
    partition: &PartitionState,
    value: &[u8],
) -> Result<()> {
    let len = value.len() as u64;
    if len > options.value_bytes_max && !is_stored_apart(partition, len) {
        return Err(Error::limit("value length", len, options.value_bytes_max));
    }
    Ok(())
}

/// Checks an operand for `key` against the limit and the merge operator.
pub(super) fn check_operand(partition: &PartitionState, key: &[u8], operand: &[u8]) -> Result<()> {
    let len = operand.len() as u64;
    if len > OPERAND_BYTES_MAX {
        return Err(Error::limit("length of an operand", len, OPERAND_BYTES_MAX));
    }
    operator_of(partition, key)?.check(key, operand)
}

/// The merge operator of `partition`, for an operation on `key`.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if it has none, or its code is missing.
pub(super) fn operator_of<'p>(
    partition: &'p PartitionState,
    key: &[u8],
) -> Result<&'p Arc<AttachedOperator>> {
    partition.operator().ok_or_else(|| missing_operator(&partition.view().version, key))
}

fn check_batch(options: &Options, bytes: u64) -> Result<()> {
    if bytes > options.batch_bytes_max {
        return Err(Error::limit("batch size", bytes, options.batch_bytes_max));
    }
    Ok(())
}

/// Checks whether `partition` supports the options of a write.
pub(super) fn check_write(partition: &PartitionState, options: WriteOptions) -> Result<()> {
    if options.durability == Durability::Sync && !partition.logged {
        let message = format!(
            "partition {:?} has no log to sync; flush it to make writes durable",
            partition.name
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(())
}

/// Computes the checksum of a section for the log.
///
/// # Errors
/// Corruption of the key of an operation that differs from the caller's bytes. Damage before the
/// section has its checksum would pass as valid in the log.
pub(super) fn prepare<'s>(
    db: &DbInner,
    partition: &'s Arc<PartitionState>,
    rules_epoch: u32,
    section: &'s mut SectionBuilder,
) -> Result<PreparedSection<'s>> {
    let injected = db.setup.inject.in_memory(InMemory::Section, section.bytes());
    let (lent, sums, places) = section.lend();
    let bytes = injected.unwrap_or(lent);
    // The checksum is made before the comparison: the checksum then detects a bit that flips
    // between the two, or later.
    let checksum = section_checksum(&bytes);
    let damaged = damaged_key(&bytes, sums, places);
    if let Some(key) = damaged.unwrap_or(Some(&[])) {
        let what = "an operation changed in memory before it reached the log";
        let error = Error::corruption("memory", None, what).in_partition(&partition.name);
        return Err(error.at_key(key));
    }
    let injected = db.setup.inject.in_memory(InMemory::Memtable, &bytes);
    let sums = PerOperation::new(sums);
    let places = PerOperation::new(places);
    let partition = Cow::Borrowed(partition);
    Ok(PreparedSection { partition, checksum, bytes, injected, sums, places, rules_epoch })
}

/// Appends an operation to a section in the partition's stored form: the stored key, and a handle
/// for a value that goes to its store.
pub(super) fn push_operation(
    partition: &PartitionState,
    section: &mut SectionBuilder,
    kind: EntryKind,
    key: &[u8],
    value: &[u8],
    pending: &mut Vec<PendingHandle>,
) -> Result<()> {
    partition.check_key(key)?;
    partition
        .key_form
        .with_stored(key, |key| push_stored(partition, section, kind, key, value, pending))
}

fn push_stored(
    partition: &PartitionState,
    section: &mut SectionBuilder,
    kind: EntryKind,
    key: &[u8],
    value: &[u8],
    pending: &mut Vec<PendingHandle>,
) -> Result<()> {
    if kind == EntryKind::Value
        && let Some(store) = partition.store()
        && store.wants(value.len() as u64)
    {
        // Before the handle is in the section. If the batch is dropped or refused, the pending
        // handle discards the value, so that only space is lost in any case.
        let handle = store.call("put", |store| store.put(key, value))?;
        section.push(EntryKind::Handle, key, handle.bytes());
        pending.push(handle);
    } else {
        section.push(kind, key, value);
    }
    Ok(())
}

/// A key in the partition's stored form.
pub(super) fn stored_key(partition: &PartitionState, key: &[u8]) -> Result<Vec<u8>> {
    partition.check_key(key)?;
    Ok(partition.key_form.stored(key.to_vec()))
}

/// Commits; the handles are kept if their operations are visible, even if the requested sync
/// failed; otherwise their values are discarded.
pub(super) fn commit(
    db: &DbInner,
    batch: Prepared<'_>,
    pending: Vec<PendingHandle>,
) -> Result<Commit> {
    let committed = match &batch.requirements {
        None => db.commit.commit(&db.log, db.scheduler.sealer(), batch).map_err(Refusal::known),
        // Such a batch may have to be submitted again, and is copied for each attempt. The usual
        // one is not.
        Some(_) => commit_if(db, batch),
    }?;
    // Also if the sync failed: the operation is visible, so readers follow its handle.
    pending.into_iter().for_each(PendingHandle::keep);
    committed.synced.map(|()| committed.commit)
}

/// Commits a batch with requirements. If the memtables cannot decide whether they hold, tables do,
/// and the batch is submitted again.
fn commit_if(db: &DbInner, mut batch: Prepared<'_>) -> Result<Committed> {
    loop {
        match db.commit.commit(&db.log, db.scheduler.sealer(), batch.clone()) {
            Err(Refusal::Unproven) => {}
            answer => return answer.map_err(Refusal::known),
        }
        let requirements = batch.requirements.as_mut().expect("only requirements are unproven");
        // Without the lock, so the leader's next check starts at a newer sequence and has less to
        // check. After some rounds it checks everything in memory, so that this loop ends.
        db.prove(requirements)?;
    }
}

/// Writes one operation: the implementation of `put`, `delete` and `merge`.
fn write_one(
    partition: &Partition,
    kind: EntryKind,
    key: &[u8],
    value: &[u8],
    options: WriteOptions,
) -> Result<Commit> {
    let db = partition.db();
    let state = partition.state();
    db.ownership.check_process()?;
    // All limits are checked before the stall: a write that is refused anyway must not wait.
    check_key(key)?;
    match kind {
        EntryKind::Operand => check_operand(state, key, value)?,
        _ => check_value(&db.setup.options, state, value)?,
    }
    // Of no bytes are only deletions that nothing may hold up.
    let bytes = (key.len() as u64 + inline_bytes(state, kind, value.len() as u64)).max(1);
    check_batch(&db.setup.options, bytes)?;
    check_write(state, options)?;
    db.scheduler.admit(std::iter::once(&**state), bytes, options)?;
    let operation = (kind, key, value);
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        // A buffer of the thread, because an allocation for each put would cost more than the
        // encoding. It is lent until the put is answered.
        Ok(mut section) => {
            section.clear(SCRATCH_BYTES_KEPT);
            write_section(partition, operation, options, &mut section)
        }
        // The `put` of a value store, or a listener, writes to a database: this write is inside of
        // another one of the thread, which has the buffer.
        Err(_) => write_section(partition, operation, options, &mut SectionBuilder::default()),
    })
}

/// Encodes one operation into an empty section, sums it, and commits it.
fn write_section(
    partition: &Partition,
    (kind, key, value): (EntryKind, &[u8], &[u8]),
    options: WriteOptions,
    section: &mut SectionBuilder,
) -> Result<Commit> {
    let db = partition.db();
    let state = partition.state();
    let mut pending = Vec::new();
    // Read before the key is checked: if the rules change in between, the number differs and the
    // commit path checks the key again.
    let rules_epoch = state.rules_epoch();
    push_operation(state, section, kind, key, value, &mut pending)?;
    let sections = PerSection::One(prepare(db, state, rules_epoch, section)?);
    commit(db, Prepared { sections, options, requirements: None }, pending)
}

impl Partition {
    /// The form in which `key` is stored.
    ///
    /// # Errors
    /// A limit that it exceeds, or an ending that the partition reserves; [`ErrorKind::Unsupported`] if the partition
    /// takes no writes, since this build lacks its compression.
    pub fn stored_key(&self, key: &[u8]) -> Result<Vec<u8>> {
        self.state().check_codec()?;
        check_key(key)?;
        stored_key(self.state(), key)
    }

    /// Sets `key` to `value`.
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Commit> {
        self.put_with(key, value, WriteOptions::default())
    }

    /// Sets `key` to `value`, with options.
    #[inline]
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        let value = value.as_ref();
        write_one(self, EntryKind::Value, key.as_ref(), value, options.into())
    }

    /// Sets `key` to `value`; an error if that would wait for compactions.
    pub fn try_put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Commit> {
        self.put_with(key, value, WriteOptions::default().waits(false))
    }

    /// Returns the name and the parameters of the merge operator that is stored with the partition.
    pub fn merge_operator(&self) -> Option<(String, Vec<u8>)> {
        let view = self.state().view();
        let mut hooks = view.version.hooks.iter();
        let record = hooks.find(|record| record.kind == HookKind::MergeOperator)?;
        Some((record.name.clone(), record.params.clone()))
    }

    /// Returns the names and parameters of the filters that are stored with the partition.
    pub fn filters(&self) -> Vec<(String, Vec<u8>)> {
        filters_of(&self.state().view().version.hooks)
    }

    /// Merges `operand` into the value of `key`, by the merge operator of the partition.
    #[inline]
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<Commit> {
        self.merge_with(key, operand, WriteOptions::default())
    }

    /// Merges `operand` into the value of `key`, with options.
    #[inline]
    pub fn merge_with(
        &self,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        let operand = operand.as_ref();
        write_one(self, EntryKind::Operand, key.as_ref(), operand, options.into())
    }

    /// Deletes `key`; no error if it does not exist.
    #[inline]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<Commit> {
        self.delete_with(key, WriteOptions::default())
    }

    /// Deletes `key`, with options.
    #[inline]
    pub fn delete_with(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        write_one(self, EntryKind::Tombstone, key.as_ref(), &[], options.into())
    }

    /// Deletes every key, with options.
    pub fn clear_with(&self, options: impl Into<WriteOptions>) -> Result<Commit> {
        Batch::new(self.open_db().clone()).clear(self).commit(options)
    }

    /// Deletes every key of `range`, with options.
    pub fn delete_range_with(
        &self,
        range: impl KeyRange,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        Batch::new(self.open_db().clone()).delete_range(self, range).commit(options)
    }

    /// Deletes every key that begins with `prefix`, with options.
    pub fn delete_prefix_with(
        &self,
        prefix: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        Batch::new(self.open_db().clone()).delete_prefix(self, prefix).commit(options)
    }

    /// Deletes `key`; an error if that would wait for compactions.
    pub fn try_delete(&self, key: impl AsRef<[u8]>) -> Result<Commit> {
        self.delete_with(key, WriteOptions::default().waits(false))
    }
}

impl DbInner {
    /// Proves requirements through the newest sequence, in memory and in tables. Without a lock.
    ///
    /// # Errors
    /// A conflict; a dropped partition; those of reading.
    pub(super) fn prove(&self, requirements: &mut Requirements) -> Result<()> {
        // Before the views: see invariant 2 of `require.rs`.
        let through = self.commit.visible_seq();
        requirements.prove(&self.setup.tables, through)
    }
}
