//! Verified reads: a value is handed out after its own metadata agreed, or with the word that it
//! has none yet.
//!
//! [`verified_get`] reads as a get does and compares the entry that it came to with the metadata
//! beside it. [`verified_range`] is a scan that compares each block of a table before it hands out
//! anything of it. What disagrees is read again from the device before it is reported, because the
//! damage may be in memory: then the good block takes the place of the one in the cache.
//!
//! "Absent" is an answer too, and a bit that flips can make one: in a kind, which turns a value
//! into a deletion, in a key, which leaves its place empty, in a sequence number, which puts an
//! entry out of a snapshot's sight. So a tombstone is verified before its key is absent, and a
//! block that should have the key and has not is verified whole. Older versions of a key are
//! not shown before newer ones in the block were verified.
//!
//! Invariants:
//! 1. In a table that is sealed nothing is handed out, or missing, on the word of an entry that
//!    disagrees with its metadata or has none.
//! 2. The answers of a sound partition are those of plain reads.
//!
//! An entry that is missing with its metadata, or an older one in its place, shows in the digest that
//! the table's seal has of each block; it is compared once for each time a block comes into memory. A
//! bloom or an index that would hide a key is found when the table is opened: the properties have
//! the checksums of both.

mod check;

use std::sync::Arc;

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::{PartitionHooks, as_any};
use lsm_core::raw::{self, BlockCheck, Found, Moment, ReadAtMoment, TableBlock, Witness};
use lsm_core::read::{Cursor, KeyRange};
use lsm_core::types::{SeqNo, Slice};
use lsm_core::{Partition, Snapshot};

use crate::metahive::MetaHive;

use check::{Doubt, EntryCheck};

/// A value, and what vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The value.
    pub value: Slice,
    /// The witness for it.
    pub by: By,
}

/// The witness for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum By {
    /// Its own metadata, which was compared with it just now.
    Metadata,
    /// The checksum of its block alone, when that came into memory: the table was written by a
    /// node without MetaHive, and no compaction has sealed it yet.
    Block,
    /// Nothing but the memory that it lies in: it is not in a table yet.
    Memory,
}

/// The value of `key` in `partition`, after its own metadata agreed; see [`Verified::by`].
///
/// # Errors
/// As of [`Partition::get`], and:
/// - `Corruption` naming partition, file, block and key if an entry disagrees with its metadata, or
///   has none in a table that is sealed, also after
///   [`RepairOptions::retries_max`](crate::RepairOptions::retries_max) readings of the device. Also
///   where the key would be absent, if that rests on such an entry. Damage of the metadata alone is
///   no error.
/// - `InvalidArgument` if the partition has no MetaHive; `Unsupported` if another provider or a
///   newer version sealed the table.
///
/// # Cost
/// That of a get and a checksum of key and value; allocates no more than a get. A miss costs as
/// much as in a get, but for one in a hundred, which verifies a block. A table without a bloom
/// verifies one for each miss.
#[inline]
pub fn verified_get(partition: &Partition, key: impl AsRef<[u8]>) -> Result<Option<Verified>> {
    get(partition, key.as_ref())
}

/// As [`verified_get`], as the snapshot sees the partition.
///
/// # Errors
/// As there, and those of [`Snapshot::get`].
pub fn verified_get_at(
    snapshot: &Snapshot,
    partition: &Partition,
    key: impl AsRef<[u8]>,
) -> Result<Option<Verified>> {
    get(&(snapshot, partition), key.as_ref())
}

/// Keys and values of `range` in `partition`, ascending, as they are now. A block of a sealed table
/// is verified whole before anything of it is handed out, entries included that other tables
/// overrule and those outside of the range.
///
/// # Errors
/// As items, after which it ends: those of [`Partition::range`], and of [`verified_get`] for the
/// first entry of the block that fails. Unlike that, the good keys of the block are not handed out
/// either.
///
/// # Cost
/// That of a scan and a checksum of each entry of each block.
pub fn verified_range(partition: &Partition, range: impl KeyRange) -> VerifiedRange {
    VerifiedRange::new(partition, range)
}

/// As [`verified_range`], as the snapshot sees the partition.
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
fn get(of: &impl ReadAtMoment, key: &[u8]) -> Result<Option<Verified>> {
    of.with_moment(key, |moment, key| {
        let check = EntryCheck::of(hive_of(moment.hooks, moment.partition)?);
        match answer(check, moment, key, false) {
            Ok(answer) => Ok(answer),
            Err(Doubt::Failed(error)) => Err(error),
            Err(Doubt::Damage(error)) => answer_again(check, moment, key, error),
        }
    })
}

/// One reading of a key. `is_fresh`: past every cache.
#[inline]
fn answer(
    check: EntryCheck<'_>,
    moment: &Moment<'_>,
    key: &[u8],
    is_fresh: bool,
) -> Result<Option<Verified>, Doubt> {
    let seq = moment.seq();
    let by = By::Memory;
    let mut judge = GetJudge { check, key, seq, by, is_damage: false };
    match raw::read(moment, key, is_fresh, &mut judge) {
        Ok(value) => Ok(value.map(|value| Verified { value, by: judge.by })),
        Err(error) if judge.is_damage => Err(Doubt::Damage(error)),
        Err(error) => Err(Doubt::Failed(error)),
    }
}

/// Reads on, past every cache, as often as a repair would.
#[cold]
fn answer_again(
    check: EntryCheck<'_>,
    moment: &Moment<'_>,
    key: &[u8],
    mut error: Error,
) -> Result<Option<Verified>> {
    for _ in 0..check.retries_max {
        match answer(check, moment, key, true) {
            Ok(answer) => {
                check.mended();
                return Ok(answer);
            }
            Err(Doubt::Failed(error)) => return Err(error),
            Err(Doubt::Damage(again)) => error = again,
        }
    }
    Err(error)
}

/// Judges what a point read comes to.
struct GetJudge<'a> {
    check: EntryCheck<'a>,
    key: &'a [u8],
    /// The sequence number up to which the reader sees.
    seq: SeqNo,
    /// The witness for the entry that was found.
    by: By,
    /// `true` if the error that was returned is its own.
    is_damage: bool,
}

impl GetJudge<'_> {
    #[cold]
    fn told(&mut self, doubt: Doubt) -> Error {
        match doubt {
            Doubt::Failed(error) => error,
            Doubt::Damage(error) => {
                self.is_damage = true;
                error
            }
        }
    }
}

impl Witness for GetJudge<'_> {
    #[cold]
    fn passed(&mut self, block: &TableBlock<'_>) -> Result<()> {
        self.check.absence(block, self.key, self.seq).map_err(|doubt| self.told(doubt))
    }

    #[inline]
    fn found(&mut self, found: &Found<'_>) -> Result<()> {
        let Some(place) = found.place else { return Ok(()) };
        self.by = match self.check.entry(&place, found, self.key) {
            Ok(by) => by,
            Err(doubt) => return Err(self.told(doubt)),
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
    fn check(&self, block: &mut TableBlock<'_>) -> Result<()> {
        let check = EntryCheck::of(hive_of(&self.hooks, &self.partition)?);
        let mut tried = 0;
        loop {
            match check.block(block) {
                Ok(()) if tried == 0 => return Ok(()),
                Ok(()) => {
                    check.mended();
                    return Ok(());
                }
                Err(Doubt::Damage(_)) if tried < check.retries_max => block.reread()?,
                Err(Doubt::Damage(error) | Doubt::Failed(error)) => return Err(error),
            }
            tried += 1;
        }
    }
}

/// Keys and verified values of a range: see [`verified_range`]. Ends after an error; a new one may
/// go on behind the damage.
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
    fn new(of: &impl ReadAtMoment, range: impl KeyRange) -> VerifiedRange {
        let point = of.read_point().and_then(|(point, hooks)| {
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
            None => By::Memory,
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
            self.state = RangeState::Finished;
        }
        step.transpose()
    }
}

impl std::iter::FusedIterator for VerifiedRange {}
