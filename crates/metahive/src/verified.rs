//! Verified reads: a value is returned after its metadata agreed, or with the remark that it has no
//! metadata yet.
//!
//! [`verified_get`] reads like a get and compares the found entry with its metadata. [`verified_range`]
//! is a scan that compares each block of a table before it returns an entry of the block. If a
//! comparison fails, the block is read again from the device before the error is reported, because the
//! damage may be in memory. A correct block then replaces the block in the cache.
//!
//! A flipped bit can also make a key look absent: in a kind, which turns a value into a deletion; in a
//! key, which leaves its place empty; in a sequence number, which hides an entry from a snapshot. So a
//! tombstone is verified before its key counts as absent, and a block that should contain the key but
//! does not is verified as a whole. Older versions of a key are returned only after the newer ones in
//! the block were verified.
//!
//! Invariants:
//! 1. In a sealed table, an entry that disagrees with its metadata, or has none, never decides whether
//!    a value is returned or absent.
//! 2. The answers of an undamaged partition are those of plain reads.
//!
//! If an entry is missing with its metadata, or replaced by an older pair, the digest of the block in
//! the seal of the table disagrees; it is compared each time when a block enters memory. A bloom or an
//! index that would hide a key is detected when the table is opened, by the checksums of both in the
//! properties.

mod check;

use std::sync::Arc;

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::{PartitionHooks, VerifiedBlock, as_any};
use lsm_core::raw::{self, BlockCheck, Found, PinnedView, ReadAt, TableBlock, Witness};
use lsm_core::read::{Cursor, KeyRange, ReadPoint};
use lsm_core::types::{EntryKind, SeqNo, Slice};
use lsm_core::{Partition, Snapshot};

use crate::metahive::MetaHive;

use check::{CheckError, EntryCheck};

/// A value, and the check that it passed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The value.
    pub value: Slice,
    /// The check that it passed.
    pub by: VerifiedBy,
}

/// The check that a value passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VerifiedBy {
    /// The comparison with its metadata, in this call.
    Metadata,
    /// Only the checksum of its block, when the block entered memory: a node without MetaHive wrote the
    /// table, and no compaction has sealed the entry yet.
    Block,
    /// No check: the value is in a memtable.
    Memory,
}

/// Returns the value of `key` in `partition` if it agrees with its metadata; see [`Verified::by`].
///
/// # Errors
/// The errors of [`Partition::get`], and:
/// - `Corruption`, which names partition, file, block and key, if an entry disagrees with its metadata,
///   or has none in a sealed table, after
///   [`RepairOptions::retries_max`](crate::RepairOptions::retries_max) reads of the device. This also
///   holds if such an entry would make the key absent. Damage of the metadata alone is not an error.
/// - `InvalidArgument` if the partition has no MetaHive; `Unsupported` if another provider or a
///   newer version sealed the table.
///
/// # Cost
/// That of a get, and a checksum of key and value; no additional allocation. A miss costs as much as in
/// a get, except for about one in a hundred, which verifies a block. In a table without a bloom, each
/// miss verifies a block.
#[inline]
pub fn verified_get(partition: &impl ReadAt, key: impl AsRef<[u8]>) -> Result<Option<Verified>> {
    get(partition, key.as_ref())
}

/// Returns the value of `key` as the snapshot sees it, like [`verified_get`].
///
/// # Errors
/// The errors of [`verified_get`] and of [`Snapshot::get`].
pub fn verified_get_at(
    snapshot: &Snapshot,
    partition: &Partition,
    key: impl AsRef<[u8]>,
) -> Result<Option<Verified>> {
    get(&(snapshot, partition), key.as_ref())
}

/// Returns the keys and values of `range` in `partition`, ascending, as they are at the call. A block of
/// a sealed table is verified as a whole before an entry of it is returned, including entries that are
/// overwritten in other tables and entries outside of the range.
///
/// # Errors
/// Errors are items, and the iterator ends after one: the errors of [`Partition::range`], and those of
/// [`verified_get`] for the first failed entry of a block. The iterator returns no other key of such a
/// block.
///
/// # Cost
/// That of a scan, and a checksum of each entry of each block.
pub fn verified_range(partition: &impl ReadAt, range: impl KeyRange) -> VerifiedRange {
    VerifiedRange::new(partition, range)
}

/// Returns the keys and values of `range` as the snapshot sees them, like [`verified_range`].
pub fn verified_range_at(
    snapshot: &Snapshot,
    partition: &Partition,
    range: impl KeyRange,
) -> VerifiedRange {
    VerifiedRange::new(&(snapshot, partition), range)
}

/// The MetaHive among the hooks of a partition.
#[inline]
fn hive_of<'a>(hooks: &'a PartitionHooks, partition: &str) -> Result<&'a MetaHive> {
    let mut filters = hooks.filters.iter().map(|filter| as_any(&**filter));
    filters.find_map(|filter| filter.downcast_ref()).ok_or_else(|| {
        let what = format!("partition {partition:?} has no MetaHive to verify by");
        Error::new(ErrorKind::InvalidArgument, what)
    })
}

#[inline]
fn get(of: &impl ReadAt, key: &[u8]) -> Result<Option<Verified>> {
    of.with_view(key, |pinned, key| {
        let check = EntryCheck::of(hive_of(pinned.hooks, pinned.partition)?);
        match answer(check, pinned, key, false) {
            Ok(answer) => Ok(answer),
            Err(CheckError::Failed(error)) => Err(error),
            Err(CheckError::Damage(error)) => answer_again(check, pinned, key, error),
        }
    })
}

/// One reading of a key. `is_fresh`: past every cache.
#[inline]
fn answer(
    check: EntryCheck<'_>,
    pinned: &PinnedView<'_>,
    key: &[u8],
    is_fresh: bool,
) -> Result<Option<Verified>, CheckError> {
    let seq = pinned.seq();
    let by = VerifiedBy::Memory;
    // The error passes through the engine, which knows no `CheckError`. So the judge remembers whether
    // it was its own.
    let mut judge = GetCheck { check, key, seq, by, is_damage: false };
    match raw::read(pinned, key, is_fresh, &mut judge) {
        Ok(value) => Ok(value.map(|value| Verified { value, by: judge.by })),
        Err(error) if judge.is_damage => Err(CheckError::Damage(error)),
        Err(error) => Err(CheckError::Failed(error)),
    }
}

/// Reads on, past every cache, as often as a repair would.
#[cold]
fn answer_again(
    check: EntryCheck<'_>,
    pinned: &PinnedView<'_>,
    key: &[u8],
    mut error: Error,
) -> Result<Option<Verified>> {
    for _ in 0..check.retries_max {
        match answer(check, pinned, key, true) {
            Ok(answer) => {
                check.mended();
                return Ok(answer);
            }
            // Not what another reading undoes: the key is in a gap, or the device fails.
            Err(CheckError::Failed(error)) => return Err(error),
            Err(CheckError::Damage(again)) => error = again,
        }
    }
    Err(error)
}

/// Judges what a point read comes to.
struct GetCheck<'a> {
    check: EntryCheck<'a>,
    key: &'a [u8],
    /// The sequence number up to which the reader sees.
    seq: SeqNo,
    /// The witness for the entry that was found.
    by: VerifiedBy,
    /// `true` if the error that was returned is its own.
    is_damage: bool,
}

impl GetCheck<'_> {
    #[cold]
    fn reported(&mut self, error: CheckError) -> Error {
        match error {
            CheckError::Failed(error) => error,
            CheckError::Damage(error) => {
                self.is_damage = true;
                error
            }
        }
    }
}

impl Witness for GetCheck<'_> {
    #[cold]
    fn passed(&mut self, block: &TableBlock<'_>) -> Result<()> {
        self.check.absence(block, self.key, self.seq).map_err(|error| self.reported(error))
    }

    #[inline]
    fn found(&mut self, found: &Found<'_>) -> Result<()> {
        if found.kind == EntryKind::Operand {
            // From here on older versions are wanted.
            self.seq = found.seq.previous();
        }
        // In a memtable: there is no metadata yet to compare with.
        let Some(place) = found.place else { return Ok(()) };
        self.by = match self.check.entry(&place, found, self.key) {
            Ok(by) => by,
            Err(error) => return Err(self.reported(error)),
        };
        Ok(())
    }
}

/// Verifies the blocks of a scan.
struct ScanCheck {
    /// With the MetaHive.
    hooks: Arc<PartitionHooks>,
    partition: Arc<str>,
}

impl BlockCheck for ScanCheck {
    fn check(&self, block: &mut TableBlock<'_>, _: &mut VerifiedBlock) -> Result<()> {
        let check = EntryCheck::of(hive_of(&self.hooks, &self.partition)?);
        let mut tried = 0;
        loop {
            match check.block(block) {
                Ok(()) if tried == 0 => return Ok(()),
                Ok(()) => {
                    check.mended();
                    return Ok(());
                }
                // The same loop as for a get, but of the block: the scan has returned entries of
                // other blocks, and cannot begin again.
                Err(CheckError::Damage(_)) if tried < check.retries_max => block.reread()?,
                Err(CheckError::Damage(error) | CheckError::Failed(error)) => return Err(error),
            }
            tried += 1;
        }
    }
}

/// An iterator over the keys and verified values of a range: see [`verified_range`]. It ends after an
/// error; a new iterator can start after the damage.
pub struct VerifiedRange {
    cursor: Cursor,
    hooks: Arc<PartitionHooks>,
    partition: Arc<str>,
    state: RangeState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RangeState {
    Before,
    Inside,
    Finished,
}

impl VerifiedRange {
    fn new(of: &impl ReadAt, range: impl KeyRange) -> VerifiedRange {
        VerifiedRange::at(of.read_point(), range)
    }

    /// The entries of `range` at a point of a partition with these hooks.
    pub(crate) fn at(
        point: Result<(ReadPoint, Arc<PartitionHooks>)>,
        range: impl KeyRange,
    ) -> VerifiedRange {
        let point = point.and_then(|(point, hooks)| {
            // Asked for now and not at the first block: memtables have no blocks, so the keys of a
            // partition without MetaHive would come out as if they were verified.
            hive_of(&hooks, point.partition())?;
            Ok((point, hooks))
        });
        let (point, hooks, partition) = match point {
            Ok((point, hooks)) => {
                let partition = point.partition().clone();
                let blocks = ScanCheck { hooks: hooks.clone(), partition: partition.clone() };
                let point = point.checked_by(Arc::new(blocks));
                (Ok(point), hooks, partition)
            }
            // The error waits in the cursor and is the first item.
            Err(error) => (Err(error), Arc::default(), "".into()),
        };
        let cursor = Cursor::open(&range.bounds(), point);
        VerifiedRange { cursor, hooks, partition, state: RangeState::Before }
    }

    fn step(&mut self) -> Result<Option<(Slice, Verified)>> {
        match self.state {
            RangeState::Before => self.cursor.seek_to_first()?,
            RangeState::Inside => self.cursor.next()?,
            RangeState::Finished => return Ok(None),
        }
        if !self.cursor.valid() {
            return Ok(None);
        }
        self.state = RangeState::Inside;
        let by = match self.cursor.table() {
            None => VerifiedBy::Memory,
            Some(table) => EntryCheck::of(hive_of(&self.hooks, &self.partition)?).by(table)?,
        };
        let value = self.cursor.value_slice()?;
        Ok(Some((self.cursor.key_slice(), Verified { value, by })))
    }
}

impl Iterator for VerifiedRange {
    type Item = Result<(Slice, Verified)>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if !matches!(step, Ok(Some(_))) {
            // Also after the last entry. A further call would otherwise move a cursor that has
            // ended.
            self.state = RangeState::Finished;
        }
        step.transpose()
    }
}

impl std::iter::FusedIterator for VerifiedRange {}
