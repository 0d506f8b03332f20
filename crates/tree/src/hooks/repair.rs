//! [`TableRepair`]: returns the entries that replace each block of a damaged table.
//!
//! Made by a filter that seals, one for each table that `db/compaction/repair.rs` repairs; called by the walk of
//! `sstable/tolerant.rs` as it loads block after block. A block is the unit, because damage may reach over
//! several entries: a bit in a prefix that keys share changes all of them at once.
//!
//! Invariants:
//! 1. No entry of a block is returned before the whole block was verified.
//! 2. If entries are lost, the walk reports the intact entries around them: see [`Gap`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, Range};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Entry, Fault, Origin, OwnedEntry};
use crate::error::Result;
use crate::types::{FileNo, Gap, SeqNo};

/// A table that is repaired, as the manifest has it.
#[derive(Clone, Debug)]
pub struct DamagedTable {
    /// Its number.
    pub file: FileNo,
    /// Its level.
    pub level: usize,
    /// Its length, in bytes.
    pub bytes: u64,
    /// First and last stored user key.
    pub keys: (Box<[u8]>, Box<[u8]>),
    /// The oldest and the newest sequence number that a reader meets in it.
    pub seqs: (SeqNo, SeqNo),
    /// The sequence number that all its entries have, if it was ingested.
    pub global_seq: Option<SeqNo>,
    /// The number of its hidden entries.
    pub hidden: u64,
}

/// Repairs one table. Its blocks come in their order.
pub trait TableRepair: Send {
    /// Returns what takes the place of a block, which may be sound.
    fn block(&mut self, block: &mut dyn DamagedBlock) -> RepairedBlock;

    /// Returns the verdict on the table, after its last block.
    fn end(&mut self) -> TableVerdict;

    /// Returns `true` if the table may hold several versions of one user key. Asked once, before its blocks.
    fn has_versions(&self) -> bool;
}

/// The verdict on the blocks that are verified together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockVerdict {
    /// They are what was written, but for the losses that are reported.
    #[default]
    Sound,
    /// A later block decides about this one and about all since the last verdict.
    Later,
    /// The blocks since the last verdict, this one included, are not what was written.
    AllDamaged,
}

/// The verdict on a table, after its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableVerdict {
    /// It has what was written to it.
    Whole,
    /// Entries are missing, and it is not known which.
    Lost,
    /// Each block has what was written to it, and all are there, and yet their number is another
    /// than the one that was noted, as this text says. A compaction writes the number again.
    Miscounted(String),
}

/// A block of a damaged table, and what can be tried with it.
pub trait DamagedBlock {
    /// Its offset in the file, in bytes.
    fn offset(&self) -> u64;

    /// Reads it as it is stored; past every cache, if it is read again.
    ///
    /// # Errors
    /// `Io`, which fails the job. A block that ends after the file is an empty one.
    fn read(&mut self, is_again: bool) -> Result<Vec<u8>>;

    /// Returns `true` if the checksum of a stored block agrees.
    fn is_verified(&self, stored: &[u8]) -> bool;

    /// The stored block with the one bit turned that makes its checksum agree, if there is one.
    ///
    /// # Cost
    /// A checksum of the block for each of its bits.
    fn with_one_bit_turned(&self, stored: &[u8]) -> Option<Vec<u8>>;

    /// The stored bytes, uncompressed; `None` if it cannot be unpacked.
    fn unpack(&self, stored: &[u8]) -> Option<Vec<u8>>;

    /// Returns `true` if an uncompressed block obeys every rule of its format and `check` accepts each
    /// of its entries, by the entry and the payload of its hidden entry without the 8 bytes in front.
    ///
    /// # Cost
    /// Copies no values, so that a search may ask for thousands of candidates.
    fn accepts(
        &mut self,
        payload: &[u8],
        check: &mut dyn FnMut(&Entry<'_>, Option<&[u8]>) -> bool,
    ) -> bool;

    /// The entries of an uncompressed block as far as they decode.
    fn decode(&mut self, payload: &[u8]) -> DecodedBlock;

    /// The last sound entry of the table before this block: its key and stored sequence number.
    fn before(&self) -> Option<(&[u8], SeqNo)>;
}

/// The entries of a block.
#[derive(Clone, Debug, Default)]
pub struct DecodedBlock {
    /// Visible entries in their order.
    pub entries: Vec<DecodedEntry>,
    /// `true` if the block obeys every rule of its format. If not, there may be more in it.
    pub is_whole: bool,
}

/// A visible entry of a block.
#[derive(Clone, Debug)]
pub struct DecodedEntry {
    /// The entry with its stored sequence number.
    pub entry: OwnedEntry,
    /// The payload of its hidden entry, without the 8 bytes in front, if there is one.
    pub hidden: Option<Vec<u8>>,
    /// Which entry of the block it is, hidden ones counted.
    pub index: u32,
    /// Its offset in the block: that of its header.
    pub start: usize,
    /// The bytes in the block that its key has in front.
    pub shared: Range<usize>,
    /// The rest of its key.
    pub suffix: Range<usize>,
    /// Its value.
    pub value: Range<usize>,
}

/// The pieces that take the place of a block, in the order of the keys.
#[derive(Clone, Debug, Default)]
pub struct RepairedBlock {
    /// Entries, and where some are lost.
    pub pieces: Vec<Piece>,
    /// The repairs that listeners hear of, each with its source.
    pub repaired: Vec<(Fault, String)>,
    /// The losses that listeners hear of.
    pub lost: Vec<Fault>,
    /// The verdict on the blocks that are verified together with this one: [`BlockVerdict::Later`] if more
    /// of them follow, [`BlockVerdict::AllDamaged`] if this is the last and they are not what was
    /// written. Then the pieces are lost, too.
    pub verdict: BlockVerdict,
}

/// A piece of [`RepairedBlock`].
#[derive(Clone, Debug)]
pub enum Piece {
    /// An entry that is as it was written.
    Sound(RepairedEntry),
    /// One entry or more whose keys are not known.
    Lost,
}

/// An entry that is as it was written.
#[derive(Clone, Debug)]
pub struct RepairedEntry {
    /// The entry with its stored sequence number.
    pub entry: OwnedEntry,
    /// The checksum of the entry, which comes with it to the filter.
    pub note: u64,
    /// The payload of its hidden entry, without the 8 bytes in front, if the filter needs it.
    pub hidden: Option<Vec<u8>>,
    /// Which entry of the block it was, hidden ones counted.
    pub index: u32,
}

/// The findings of a repair.
#[derive(Clone, Debug, Default)]
pub struct JobFindings(Arc<Mutex<Findings>>);

/// See [`JobFindings`].
#[derive(Debug, Default)]
pub struct Findings {
    /// The gaps in which entries are lost.
    gaps: Vec<Gap>,
    /// The keys from the first to the last of each gap; stretches that meet are one.
    reached: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// The repairs, each with its source.
    pub repaired: Vec<(Fault, String)>,
    /// The losses.
    pub lost: Vec<Fault>,
    /// Tables whose number of entries is not the one that was noted.
    pub miscounted: Vec<Fault>,
}

impl Findings {
    /// Adds a gap.
    pub fn add_gap(&mut self, gap: Gap) {
        let mut first = gap.from.clone();
        let mut last = gap.to.clone();
        // Ranges that touch become one. So they stay disjoint, and a question looks at one of them.
        while let Some((from, to)) = self.reached.range(..=last.clone()).next_back()
            && *to >= first
        {
            let from = from.clone();
            last = last.max(to.clone());
            self.reached.remove(&from);
            first = first.min(from);
        }
        self.reached.insert(first, last);
        self.gaps.push(gap);
    }

    /// Takes the gaps out.
    pub fn take_gaps(&mut self) -> Vec<Gap> {
        std::mem::take(&mut self.gaps)
    }

    fn reach(&self, key: &[u8]) -> bool {
        let before = (Bound::Unbounded, Bound::Included(key));
        let nearest = self.reached.range::<[u8], _>(before).next_back();
        nearest.is_some_and(|(_, to)| **to >= *key)
    }
}

impl JobFindings {
    /// Adds to them.
    pub fn add(&self, add: impl FnOnce(&mut Findings)) {
        add(&mut self.0.lock());
    }

    /// Takes all of them.
    pub fn take(&self) -> Findings {
        std::mem::take(&mut self.0.lock())
    }

    /// Returns `true` if a version of `key` is lost, as far as the walks have come.
    pub fn reach(&self, key: &[u8]) -> bool {
        self.0.lock().reach(key)
    }
}

/// Changes entries between reading and writing: faults of memory, for the tests of what finds them.
pub type Inject = dyn Fn(Origin, &mut OwnedEntry) + Send + Sync;

/// The sources of a repair apart from the table itself.
pub trait RepairSources: Send + Sync {
    /// The operations with these sequence numbers in the log, as far as it still has them.
    fn in_log(&self, seqs: &BTreeSet<SeqNo>) -> HashMap<SeqNo, OwnedEntry>;

    /// Stored keys of the partition from `from` to `to`, whatever their versions are, at most
    /// `count` of them.
    fn keys_between(&self, from: &[u8], to: &[u8], count: usize) -> Vec<Vec<u8>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gaps that overlap in every way, in such an order that each is new.
    #[test]
    fn what_is_lost_is_reached_whatever_order_it_is_found_in() {
        let spans = [(10, 12), (30, 34), (11, 20), (5, 6), (20, 21), (4, 40), (50, 50)];
        let mut findings = Findings::default();
        for count in 1..=spans.len() {
            let (from, to) = spans[count - 1];
            let gap = Gap {
                from: [from].into(),
                from_below: SeqNo::ZERO,
                to: [to].into(),
                to_included: true,
                through: SeqNo::MAX,
                closed_at: None,
            };
            findings.add_gap(gap);
            for key in 0..60u8 {
                let expected = spans[..count].iter().any(|(from, to)| (*from..=*to).contains(&key));
                assert_eq!(findings.reach(&[key]), expected, "{key} of {count}");
            }
        }
        assert_eq!(findings.reached.len(), 2);
        assert_eq!(findings.take_gaps().len(), spans.len());
    }
}
