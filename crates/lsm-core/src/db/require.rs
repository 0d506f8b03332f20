//! Requirements of a batch: keys and ranges that no one may have written to since it read them.
//!
//! The leader of a group checks them in commit order, under the log writer's lock, against the
//! earlier members of its group and against the memtables. It reads no file there. If a table may
//! have the answer, the batch returns to its caller, which proves its requirements through the
//! newest sequence without the lock and submits it again: then only later writes must be checked,
//! and those are in memory, unless they were flushed in between.
//!
//! Invariants:
//! 1. A batch passes only if no operation after the sequence of a requirement has written to its
//!    subject. Refusing one that could pass is allowed: its caller reads again.
//! 2. A proof takes its sequence first and the view second, so the view has every operation through
//!    that sequence.
//! 3. A subject without any entry proves that no one has written to it only if a snapshot is held
//!    since the read: otherwise a merge may have dropped a deletion with the entries that it
//!    deleted.

mod group;
mod seek;

use std::ops::Bound;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::memtable::Memtable;
use crate::partition::{PartitionState, ReadView};
use crate::read::{Bounds, Search, search};
use crate::sstable::{ReadMode, bloom_hash};
use crate::types::SeqNo;
use crate::version::{Table, TableContext, UserRange};

pub(super) use group::GroupWrites;
use seek::{Look, Steps, find_newer};

/// Keys that may be looked up for a batch while writers wait. One that needs more is proven outside
/// first.
const STEPS_MAX: usize = 1 << 12;
/// After so many proofs the leader checks all of it in memory. Otherwise a batch that read much
/// could starve with steady writers.
const PROOFS_MAX: u32 = 3;

/// The part of a partition that a requirement is about; keys in their stored form.
#[derive(Clone)]
pub(super) enum Subject {
    Key { key: Box<[u8]>, hash: u64 },
    Range(Bounds),
}

impl Subject {
    /// The subject that is one key, in its stored form.
    pub(super) fn key(stored: Vec<u8>) -> Subject {
        Subject::Key { hash: bloom_hash(&stored), key: stored.into() }
    }
}

/// A requirement: no one has written to `subject` after `at_most`.
#[derive(Clone)]
pub(super) struct Requirement {
    pub(super) partition: Arc<PartitionState>,
    pub(super) subject: Subject,
    pub(super) at_most: SeqNo,
    /// `true` if a snapshot at `at_most` lives until the batch is answered.
    pub(super) is_held: bool,
}

/// The requirements of a batch, and the sequence through which they are proven.
#[derive(Clone)]
pub(super) struct Requirements {
    list: Arc<[Requirement]>,
    /// No one has written to any subject between its `at_most` and here.
    proven_through: SeqNo,
    proofs: u32,
}

/// The answer that memory alone gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryCheck {
    Holds,
    /// A table may have the answer, or the check takes too long for a lock.
    Unproven,
}

/// The reason why a batch is not visible, and never will be.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    Failed(Error),
    /// The memtables alone cannot decide whether its requirements hold.
    Unproven,
}

impl Refusal {
    /// The error of a batch without requirements, or whose requirements were checked.
    pub(super) fn known(self) -> Error {
        match self {
            Refusal::Failed(error) => error,
            Refusal::Unproven => unreachable!("only a batch with requirements can be unproven"),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Failed(error)
    }
}

impl Requirements {
    pub(super) fn new(list: Vec<Requirement>) -> Requirements {
        Requirements { list: list.into(), proven_through: SeqNo::ZERO, proofs: 0 }
    }

    /// Checks in memory whether the requirements hold, in a group whose `earlier` members come
    /// first; `taken` is the last sequence that was given out. Under the log writer's lock.
    ///
    /// # Errors
    /// A conflict; a dropped partition.
    pub(super) fn check(&self, taken: SeqNo, earlier: &GroupWrites<'_>) -> Result<MemoryCheck> {
        let patient = self.proofs < PROOFS_MAX;
        // All writers wait for this, so it gives up early and returns the batch. One that returned
        // often is checked to the end; otherwise a range in steady use would starve it.
        let mut steps = Steps::new(if patient { STEPS_MAX } else { usize::MAX });
        for requirement in &*self.list {
            // A dropped partition has no entries that could break the requirement, and must not
            // pass for an unchanged one.
            requirement.partition.check_live()?;
            let after = self.after(requirement);
            // No number was given out since, so nothing needs to be checked.
            if taken <= after {
                continue;
            }
            // A clear wrote to every key of the partition.
            if requirement.partition.view().newest_clear() > after
                || earlier.clears(requirement.partition.id)
            {
                return Err(cleared(requirement));
            }
            // A deleted range wrote to each of its keys, whether they existed or not.
            if requirement.is_erased(&requirement.partition.view(), after)
                || earlier.erases(requirement.partition.id, &requirement.subject)
            {
                return Err(erased(requirement));
            }
            if let Some(key) = earlier.writes_to(requirement.partition.id, &requirement.subject) {
                return Err(conflict(requirement, key, None));
            }
            if requirement.check_memtables(after, &mut steps)? == MemoryCheck::Unproven {
                return Ok(MemoryCheck::Unproven);
            }
        }
        Ok(MemoryCheck::Holds)
    }

    /// Operations through this sequence are known not to have broken the requirement.
    fn after(&self, requirement: &Requirement) -> SeqNo {
        requirement.at_most.max(self.proven_through)
    }

    /// Proves all of them through `through`, which was visible before the call, in memory and in tables.
    /// Without a lock.
    ///
    /// # Errors
    /// A conflict; a dropped partition; those of reading.
    pub(super) fn prove(&mut self, tables: &Arc<TableContext>, through: SeqNo) -> Result<()> {
        for requirement in &*self.list {
            requirement.prove(tables, self.after(requirement))?;
        }
        // Only after all of them hold: a part of a proof proves nothing about the batch.
        self.proven_through = self.proven_through.max(through);
        self.proofs += 1;
        Ok(())
    }
}

impl Requirement {
    /// Returns `true` if a range with a key of the subject was deleted after `after`.
    fn is_erased(&self, view: &ReadView, after: SeqNo) -> bool {
        // The usual case costs one comparison.
        if view.newest_span() <= after {
            return false;
        }
        match &self.subject {
            Subject::Key { key, .. } => view.deleted_at(key, SeqNo::MAX) > after,
            Subject::Range((lower, upper)) => {
                let lower = lower.as_ref().map(Vec::as_slice);
                view.newest_span_within(lower, upper.as_ref().map(Vec::as_slice)) > after
            }
        }
    }

    fn check_memtables(&self, after: SeqNo, steps: &mut Steps) -> Result<MemoryCheck> {
        let view = self.partition.view();
        // A memtable without newer operations cannot break the requirement.
        let newer = view.memtables().filter(|memtable| memtable.last_seq() > after);
        match &self.subject {
            Subject::Key { key, hash } => {
                for memtable in newer {
                    if !steps.take() {
                        return Ok(MemoryCheck::Unproven);
                    }
                    match memtable.newest_seq(key, *hash) {
                        Some(seq) if seq > after => return Err(conflict(self, key, Some(seq))),
                        // Tables have nothing newer of the key than memtables do.
                        Some(_) => return Ok(MemoryCheck::Holds),
                        None => {}
                    }
                }
            }
            Subject::Range(range) => {
                for memtable in newer {
                    match find_newer(&mut memtable.iter(), range, after, steps)? {
                        Look::Nothing => {}
                        Look::Found(key, seq) => return Err(conflict(self, &key, Some(seq))),
                        Look::GaveUp => return Ok(MemoryCheck::Unproven),
                    }
                }
            }
        }
        // The memtables have everything since `after` only if no table is newer. If one is, the
        // batch is proven outside of the lock: reading a file here would stop all writers.
        let reaches_back = view.version.tables_through() <= after;
        Ok(if reaches_back { MemoryCheck::Holds } else { MemoryCheck::Unproven })
    }

    /// Checks in memory and in tables, without a lock, whether anyone has written to the subject
    /// after `after`.
    fn prove(&self, tables: &Arc<TableContext>, after: SeqNo) -> Result<()> {
        let view = self.partition.pin();
        // After the view, which a drop removes after it has marked the partition.
        self.partition.check_live()?;
        if view.newest_clear() > after {
            return Err(cleared(self).in_partition(&self.partition.name));
        }
        if self.is_erased(&view, after) {
            return Err(erased(self).in_partition(&self.partition.name));
        }
        let proven = match &self.subject {
            Subject::Key { key, hash } => {
                let passes_over = self.is_held.then_some(after);
                let mut newest = Newest { key, hash: *hash, passes_over, tables };
                match search(&view, key, &mut newest)? {
                    Some(seq) if seq > after => Err(conflict(self, key, Some(seq))),
                    Some(_) => Ok(()),
                    None if self.is_held || view.version.tables_through() <= after => Ok(()),
                    // See invariant 3.
                    None => Err(conflict(self, key, None)),
                }
            }
            Subject::Range(range) => self.prove_range(&view, tables, range, after),
        };
        proven.map_err(|error| error.in_partition(&self.partition.name))
    }

    fn prove_range(
        &self,
        view: &ReadView,
        context: &Arc<TableContext>,
        range: &Bounds,
        after: SeqNo,
    ) -> Result<()> {
        assert!(self.is_held, "ranges are read at a snapshot");
        let mut steps = Steps::new(usize::MAX);
        for memtable in view.memtables().filter(|memtable| memtable.last_seq() > after) {
            self.nothing_found(find_newer(&mut memtable.iter(), range, after, &mut steps)?)?;
        }
        let keys = UserRange { start: end_of(&range.0), end: end_of(&range.1) };
        let newer = view.version.tables().map(|(_, table)| table);
        for table in newer.filter(|table| table.meta.newest() > after && table.meta.overlaps(keys))
        {
            // Cached: the caller has just read this range, so that its blocks are likely there.
            let mut entries = table.reader(context)?.iter(ReadMode::Cached);
            self.nothing_found(find_newer(&mut entries, range, after, &mut steps)?)?;
        }
        Ok(())
    }

    fn nothing_found(&self, look: Look) -> Result<()> {
        match look {
            Look::Nothing => Ok(()),
            Look::Found(key, seq) => Err(conflict(self, &key, Some(seq))),
            Look::GaveUp => unreachable!("there is no limit without the lock"),
        }
    }
}

fn end_of(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// The search for the newest sequence of a key.
struct Newest<'a> {
    key: &'a [u8],
    hash: u64,
    /// Tables with nothing after this sequence need not be searched.
    passes_over: Option<SeqNo>,
    tables: &'a TableContext,
}

impl<'a> Search<'a> for Newest<'_> {
    type Found = SeqNo;

    fn in_memtable(&mut self, memtable: &'a Memtable) -> Result<Option<SeqNo>> {
        Ok(memtable.newest_seq(self.key, self.hash))
    }

    fn in_table(&mut self, _level: usize, table: &'a Table) -> Result<Option<SeqNo>> {
        if self.passes_over.is_some_and(|through| table.meta.newest() <= through) {
            return Ok(None);
        }
        let reader = table.reader(self.tables);
        let found = reader.and_then(|reader| reader.get(self.key, self.hash, SeqNo::MAX));
        Ok(found.map_err(|error| error.at_key(self.key))?.map(|(trailer, _)| trailer.seq()))
    }
}

/// The error of a requirement whose `key`, in its stored form, was written.
#[cold]
fn conflict(requirement: &Requirement, key: &[u8], seq: Option<SeqNo>) -> Error {
    let Requirement { partition, at_most, .. } = requirement;
    let key = partition.key_form.user(key);
    let at = seq.map_or(String::new(), |seq| format!(" at {seq}"));
    let message = format!(
        "partition {:?}: key \"{}\" was written{at}, after sequence {at_most}",
        partition.name,
        key.escape_ascii()
    );
    Error::new(ErrorKind::Conflict, message)
}

/// The error of a requirement whose key, or a key of its range, lies in a range that was deleted.
#[cold]
fn erased(requirement: &Requirement) -> Error {
    let Requirement { partition, at_most, .. } = requirement;
    let name = &partition.name;
    let message = format!("partition {name:?}: a range was deleted after sequence {at_most}");
    Error::new(ErrorKind::Conflict, message)
}

/// The error of a requirement in a partition that was cleared.
#[cold]
fn cleared(requirement: &Requirement) -> Error {
    let Requirement { partition, at_most, .. } = requirement;
    let message = format!("partition {:?} was cleared after sequence {at_most}", partition.name);
    Error::new(ErrorKind::Conflict, message)
}
