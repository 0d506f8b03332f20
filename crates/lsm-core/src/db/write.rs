//! From the public call to the commit path: limits, encoding, hashing; all of it without a lock.

use std::cell::RefCell;
use std::sync::Arc;

use super::DbInner;
use super::apart::{HANDLE_BYTES, check_value, inline_bytes};
use super::commit::{Commit, Committed, Refusal};
use super::handle::{Db, Partition};
use super::inject::InMemory;
use super::prepared::{OperationSums, Prepared, PreparedSection, Sections};
use super::require::{Requirement, Requirements, Subject};
use crate::batch::{SectionBuilder, damaged_key};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::PendingHandle;
use crate::limits::{FORMAT_BATCH_BYTES_MAX, check_key};
use crate::options::{Durability, Options};
use crate::partition::PartitionState;
use crate::types::{EntryKind, SeqNo};
use crate::wal::section_checksum;

/// A buffer for single operations is kept by its thread up to this size.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<SectionBuilder> = RefCell::default();
}

fn check_batch(options: &Options, bytes: u64) -> Result<()> {
    if bytes > options.batch_bytes_max {
        return Err(Error::limit("batch size", bytes, options.batch_bytes_max));
    }
    Ok(())
}

fn check_durability(partition: &PartitionState, durability: Durability) -> Result<()> {
    if durability == Durability::Sync && !partition.logged {
        let message = format!(
            "partition {:?} has no log to sync; flush it to make writes durable",
            partition.name
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(())
}

/// Sums a section for the log.
///
/// # Errors
/// Corruption of the key of an operation that is not what the caller gave any more. Only what is
/// found before the section has its checksum would pass as valid in the log.
fn prepare(
    db: &DbInner,
    partition: &Arc<PartitionState>,
    rules_epoch: u32,
    section: &SectionBuilder,
) -> Result<PreparedSection> {
    let injected = db.inject.in_memory(InMemory::Section, section.bytes());
    let bytes = injected.unwrap_or_else(|| section.bytes().into());
    let checksum = section_checksum(&bytes);
    let damaged = damaged_key(&bytes, section.sums());
    if let Some(key) = damaged.unwrap_or(Some(&[])) {
        let what = "an operation changed in memory before it reached the log";
        let error = Error::corruption("memory", None, what).in_partition(&partition.name);
        return Err(error.at_key(key));
    }
    let sums = match section.sums() {
        [one] => OperationSums::One(*one),
        many => OperationSums::Many(many.into()),
    };
    let operations = section.operation_count();
    let partition = partition.clone();
    let injected = db.inject.in_memory(InMemory::Memtable, &bytes);
    Ok(PreparedSection { partition, operations, checksum, bytes, injected, sums, rules_epoch })
}

/// Appends an operation to a section in the partition's stored form: that of its key, and a handle
/// for a value that its store wants.
fn push_operation(
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
        let handle = store.put(key, value)?;
        section.push(EntryKind::Handle, key, handle.bytes());
        pending.push(handle);
    } else {
        section.push(kind, key, value);
    }
    Ok(())
}

/// A key in the partition's stored form.
fn stored_key(partition: &PartitionState, key: &[u8]) -> Result<Vec<u8>> {
    partition.check_key(key)?;
    Ok(partition.key_form.stored(key.to_vec()))
}

/// Commits; the handles are kept if their operations are visible, also where the sync failed that
/// was asked for; else their values are let go.
fn commit(db: &DbInner, batch: Prepared, pending: Vec<PendingHandle>) -> Result<Commit> {
    let committed = match &batch.requirements {
        None => db.commit.commit(&db.log, db, batch).map_err(Refusal::known),
        Some(_) => commit_if(db, batch),
    }?;
    pending.into_iter().for_each(PendingHandle::keep);
    committed.synced.map(|()| committed.commit)
}

/// Commits a batch with requirements. Where memory does not tell whether they hold, tables do, and
/// the batch comes again.
fn commit_if(db: &DbInner, mut batch: Prepared) -> Result<Committed> {
    loop {
        match db.commit.commit(&db.log, db, batch.clone()) {
            Err(Refusal::Unproven) => {}
            answer => return answer.map_err(Refusal::known),
        }
        let requirements = batch.requirements.as_mut().expect("only requirements are unproven");
        db.prove(requirements)?;
    }
}

/// The admission of a write: it may be held back, or is refused instead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Admission {
    /// It waits as long as it must.
    Wait,
    /// It is refused if it had to wait.
    Try,
}

/// Writes one operation: what `put` and `delete` are made of.
fn write_one(
    partition: &Partition,
    kind: EntryKind,
    key: &[u8],
    value: &[u8],
    durability: Durability,
    admission: Admission,
) -> Result<Commit> {
    let db = partition.db();
    let state = partition.state();
    check_key(key)?;
    check_value(&db.options, state, value)?;
    let bytes = key.len() as u64 + inline_bytes(state, kind, value.len() as u64);
    check_batch(&db.options, bytes)?;
    check_durability(state, durability)?;
    match admission {
        Admission::Wait => db.stall.admit(&**db, std::iter::once(&**state), bytes)?,
        Admission::Try => db.stall.try_admit(&**db, std::iter::once(&**state), bytes)?,
    }
    let rules_epoch = state.rules_epoch();
    let mut pending = Vec::new();
    let section = SCRATCH.with_borrow_mut(|section| {
        section.clear(SCRATCH_BYTES_KEPT);
        push_operation(state, section, kind, key, value, &mut pending)?;
        prepare(db, state, rules_epoch, section)
    })?;
    let sections = Sections::One(section);
    commit(db, Prepared { sections, durability, requirements: None }, pending)
}

impl Partition {
    /// The form in which `key` is stored.
    ///
    /// # Errors
    /// A limit that it passes, or an ending that the partition reserves.
    pub fn stored_key(&self, key: &[u8]) -> Result<Vec<u8>> {
        check_key(key)?;
        stored_key(self.state(), key)
    }

    /// Sets `key` to `value`.
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Commit> {
        self.put_with(key, value, Durability::Os)
    }

    /// Sets `key` to `value`, as durable as `durability` says.
    #[inline]
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<Commit> {
        let value = value.as_ref();
        write_one(self, EntryKind::Value, key.as_ref(), value, durability, Admission::Wait)
    }

    /// Sets `key` to `value`; an error where that would wait for compactions.
    pub fn try_put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Commit> {
        let value = value.as_ref();
        write_one(self, EntryKind::Value, key.as_ref(), value, Durability::Os, Admission::Try)
    }

    /// Deletes `key`; no error if it does not exist.
    #[inline]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<Commit> {
        self.delete_with(key, Durability::Os)
    }

    /// Deletes `key`, as durable as `durability` says.
    #[inline]
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<Commit> {
        write_one(self, EntryKind::Tombstone, key.as_ref(), &[], durability, Admission::Wait)
    }

    /// Deletes `key`; an error where that would wait for compactions.
    pub fn try_delete(&self, key: impl AsRef<[u8]>) -> Result<Commit> {
        write_one(self, EntryKind::Tombstone, key.as_ref(), &[], Durability::Os, Admission::Try)
    }
}

/// Operations on any partitions that become visible, and durable, together or not at all.
///
/// Operations on one key count in their order. A limit that an operation passes is reported by
/// [`Batch::commit`], which then writes nothing.
#[must_use = "a batch does nothing until it is committed"]
pub struct Batch {
    db: Db,
    sections: Vec<(Arc<PartitionState>, u32, SectionBuilder)>,
    /// Handles of values that went to a value store; dropped uncommitted, they are let go.
    pending: Vec<PendingHandle>,
    bytes: u64,
    requirements: Vec<Requirement>,
    refused: Option<Error>,
}

impl Batch {
    pub(super) fn new(db: Db) -> Batch {
        Batch {
            db,
            sections: Vec::new(),
            pending: Vec::new(),
            bytes: 0,
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

    /// Deletes `key` in `partition`; fine if it does not exist.
    pub fn delete(mut self, partition: &Partition, key: impl AsRef<[u8]>) -> Batch {
        self.add_delete(partition, key.as_ref());
        self
    }

    /// Sets `key` to `value` in `partition`, in place.
    pub fn add_put(&mut self, partition: &Partition, key: &[u8], value: &[u8]) {
        self.push(partition, EntryKind::Value, key, value);
    }

    /// Deletes `key` in `partition`, in place.
    pub fn add_delete(&mut self, partition: &Partition, key: &[u8]) {
        self.push(partition, EntryKind::Tombstone, key, &[]);
    }

    /// Requires that nobody has written to `key` in `partition` behind `at_most`, when the batch is
    /// committed; else it is refused with [`ErrorKind::Conflict`].
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

    /// Returns `true` if there is no operation.
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }

    fn push(&mut self, partition: &Partition, kind: EntryKind, key: &[u8], value: &[u8]) {
        if self.refused.is_some() {
            return;
        }
        let pushed = self
            .check(partition, kind, key, value)
            .and_then(|()| self.append(partition, kind, key, value));
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
        let stored = stored_key(state, key)?;
        let at = self.section_of(state);
        self.sections[at].2.push(EntryKind::Handle, &stored, handle.bytes());
        self.bytes += key.len() as u64 + HANDLE_BYTES;
        self.pending.push(handle);
        Ok(())
    }

    /// The place of the partition's section, made if there is none.
    fn section_of(&mut self, state: &Arc<PartitionState>) -> usize {
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
        self.check_own(partition)?;
        check_key(key)?;
        let state = partition.state();
        check_value(&db.options, state, value)?;
        let inline = inline_bytes(state, kind, value.len() as u64);
        let bytes = self.bytes + key.len() as u64 + inline;
        if bytes > db.options.batch_bytes_max {
            return Err(Error::limit("batch size", bytes, db.options.batch_bytes_max));
        }
        let encoded: u64 = self.sections.iter().map(|(_, _, s)| s.bytes().len() as u64).sum();
        if encoded + key.len() as u64 + inline + 32 > FORMAT_BATCH_BYTES_MAX {
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
    /// A limit, a dropped partition, a closed or read-only store: nothing is written then. After
    /// an I/O error the batch is not visible and never comes back, unless the error came from
    /// the sync that [`Durability::Sync`] asks for: then it is visible, and whether it is durable
    /// is unknown.
    ///
    /// # Durability
    /// As `durability` says.
    ///
    /// # Cost
    /// One `write` for the group of batches that commit together, and with [`Durability::Sync`]
    /// one sync for all that wait.
    pub fn commit(self, durability: Durability) -> Result<Commit> {
        self.commit_as(durability, Admission::Wait)
    }

    /// As [`Batch::commit`], but refused instead of held back. The wait for the sync that
    /// [`Durability::Sync`] asks for stays.
    ///
    /// # Errors
    /// [`ErrorKind::WouldStall`] with the reason: nothing was written. Others as
    /// [`Batch::commit`].
    pub fn try_commit(self, durability: Durability) -> Result<Commit> {
        self.commit_as(durability, Admission::Try)
    }

    fn commit_as(self, durability: Durability, admission: Admission) -> Result<Commit> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let db = self.db.inner();
        let states = || self.sections.iter().map(|(state, _, _)| &**state);
        states().try_for_each(|state| check_durability(state, durability))?;
        match admission {
            Admission::Wait => db.stall.admit(&**db, states(), self.bytes)?,
            Admission::Try => db.stall.try_admit(&**db, states(), self.bytes)?,
        }
        let requirements =
            (!self.requirements.is_empty()).then(|| Box::new(Requirements::new(self.requirements)));
        let mut sections = self.sections.iter();
        let sections = match (sections.next(), sections.len()) {
            (None, _) => {
                db.check_open()?;
                // What it requires holds at the moment of the number at least.
                let seq = db.commit.visible_seq();
                requirements.map_or(Ok(()), |mut required| db.prove(&mut required))?;
                return Ok(Commit { seq, epoch: db.world.epoch });
            }
            (Some((state, rules, section)), 0) => {
                Sections::One(prepare(db, state, *rules, section)?)
            }
            _ => Sections::Many(
                self.sections
                    .iter()
                    .map(|(state, rules, section)| prepare(db, state, *rules, section))
                    .collect::<Result<_>>()?,
            ),
        };
        commit(db, Prepared { sections, durability, requirements }, self.pending)
    }
}
