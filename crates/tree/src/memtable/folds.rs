//! Operands of one key in a memtable: their fold, and folds that are remembered.
//!
//! A counter may get millions of operands in one memtable, and each read of it would fold all of them. So the
//! insertion of every 64th version of a key folds the operands since the last fold, and the memtable remembers the
//! result. A read begins at the newest remembered fold that it sees. A read in a memtable without one, which was
//! replayed from the log, remembers its own.
//!
//! Remembered folds are no entries. A flush folds the operands themselves, which are as they are in the log.
//!
//! Invariants:
//! 1. A fold stands for every version of its key from `from` through `through` in this memtable.
//! 2. A reader uses a fold only if it sees all of that: its number is `through` or greater, and no clear or deleted
//!    range that it sees lies above `from`.
//! 3. All folds of a key together have at most four times the bytes of its operands: a new one is remembered only if
//!    the operands since the last have a quarter of its bytes.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::skiplist::VersionRef;
use crate::hooks::AttachedOperator;
use crate::types::{EntryKind, SeqNo};

/// The versions of a key after which its operands are folded again.
pub(super) const VERSIONS_BETWEEN_FOLDS: u32 = 64;

/// The merge operator of a partition, once its code is present: all memtables of the partition share it.
pub type SharedOperator = Arc<OnceLock<Arc<AttachedOperator>>>;

/// Folded operands of a key.
#[derive(Clone)]
pub struct Folded {
    /// The result: the value if the fold is whole, otherwise an operand.
    pub bytes: Arc<[u8]>,
    /// The oldest operand in it.
    pub from: SeqNo,
    /// Nothing older counts: a value, a deletion or nothing at all lay below.
    pub is_whole: bool,
}

pub(super) struct Fold {
    /// The newest operand in it.
    pub(super) through: SeqNo,
    pub(super) folded: Folded,
}

/// The remembered folds of a memtable, by key, the oldest first.
#[derive(Default)]
pub(super) struct Folds(Mutex<HashMap<Box<[u8]>, Vec<Fold>>>);

impl Folds {
    pub(super) fn find(&self, key: &[u8], seq: SeqNo, floor: SeqNo) -> Option<(SeqNo, Folded)> {
        let folds = self.0.lock();
        let mut seen = folds.get(key)?.iter().rev().filter(|fold| fold.through <= seq);
        // The newest alone: none that is older begins later.
        let fold = seen.next().filter(|fold| fold.folded.from >= floor)?;
        Some((fold.through, fold.folded.clone()))
    }

    pub(super) fn remember(&self, key: &[u8], fold: Fold) {
        let mut folds = self.0.lock();
        let of_key = folds.entry(key.into()).or_default();
        let at = of_key.partition_point(|other| other.through < fold.through);
        // Two readers may make the same one.
        if of_key.get(at).is_none_or(|other| other.through != fold.through) {
            of_key.insert(at, fold);
        }
    }
}

/// The end of a chain of operands.
pub(super) struct Below<'a> {
    /// The older bytes into which the operands are folded.
    pub(super) base: Option<&'a [u8]>,
    /// The oldest version in `base`, if that is a fold.
    pub(super) from: Option<SeqNo>,
    pub(super) is_whole: bool,
}

/// The operands from `newest` down, the newest first, to the newest known fold, or to what is no operand.
pub(super) fn chain<'a>(
    newest: VersionRef<'a>,
    floor: SeqNo,
    known: Option<&'a (SeqNo, Folded)>,
) -> (Vec<VersionRef<'a>>, Below<'a>) {
    let mut operands = Vec::new();
    let mut below = Below { base: None, from: None, is_whole: false };
    let mut at = Some(newest);
    while let Some(version) = at {
        let seq = version.trailer().seq();
        if let Some((_, folded)) = known.filter(|(through, _)| *through == seq) {
            below.base = Some(&folded.bytes);
            below.from = Some(folded.from);
            below.is_whole = folded.is_whole;
            break;
        }
        if seq < floor {
            below.is_whole = true;
            break;
        }
        match version.trailer().kind() {
            Some(EntryKind::Operand) => operands.push(version),
            Some(EntryKind::Value) => {
                below.base = Some(version.value());
                below.is_whole = true;
                break;
            }
            Some(EntryKind::Tombstone) => {
                below.is_whole = true;
                break;
            }
            // A value that lies elsewhere, or a damaged one: it is a matter of the reader.
            _ => break,
        }
        at = version.older();
    }
    (operands, below)
}
