//! The fold of the operands of a key, for readers and for the insertion of operands. `folds.rs` says when.

use std::sync::Arc;

use super::folds::{Fold, Folded, SharedOperator, VERSIONS_BETWEEN_FOLDS, chain};
use super::skiplist::NewEntry;
use super::{Memtable, add};
use crate::error::Result;
use crate::hooks::AttachedOperator;
use crate::types::{EntryKind, SeqNo, Trailer};

impl Memtable {
    /// The place of the merge operator.
    pub fn operator(&self) -> &SharedOperator {
        &self.operator
    }

    /// Folds the operands of `key` that a reader at `seq` sees, from the newest version down; `None` if that is no
    /// operand, or lies below `floor`: the newest clear or deleted range over the key that the reader sees.
    ///
    /// # Errors
    /// Those of the operator.
    pub fn fold(
        &self,
        key: &[u8],
        seq: SeqNo,
        floor: SeqNo,
        operator: &AttachedOperator,
    ) -> Result<Option<Folded>> {
        Ok(self.fold_chain(key, seq, floor, operator, false)?.map(|(folded, _)| folded))
    }

    /// As [`Memtable::fold`]; says whether the fold was remembered. With `only_to_remember`, a fold that is not worth it
    /// by the length of the older bytes is not made.
    fn fold_chain(
        &self,
        key: &[u8],
        seq: SeqNo,
        floor: SeqNo,
        operator: &AttachedOperator,
        only_to_remember: bool,
    ) -> Result<Option<(Folded, bool)>> {
        let node = self.list().find(key);
        let Some(newest) = node.and_then(|node| node.newest().at_most(Trailer::seek(seq))) else {
            return Ok(None);
        };
        let is_operand = newest.trailer().kind() == Some(EntryKind::Operand);
        if !is_operand || newest.trailer().seq() < floor {
            return Ok(None);
        }
        let known = self.folds.find(key, seq, floor);
        let (operands, below) = chain(newest, floor, known.as_ref());
        let bytes = operands.iter().map(|operand| operand.value().len()).sum::<usize>();
        let is_long = operands.len() >= VERSIONS_BETWEEN_FOLDS as usize / 2;
        let base_len = below.base.map_or(0, <[u8]>::len);
        if only_to_remember && !(is_long && bytes >= base_len / 4) {
            return Ok(None);
        }
        let oldest_first = operands.iter().rev().map(|operand| operand.value());
        let oldest = operands.last().map_or(SeqNo::ZERO, |operand| operand.trailer().seq());
        let folded: Arc<[u8]> =
            operator.fold(key, below.base.map(<[u8]>::to_vec), oldest_first)?.into();
        let from = below.from.unwrap_or(oldest);
        let folded = Folded { bytes: folded, from, is_whole: below.is_whole };
        let is_remembered = is_long && bytes >= folded.bytes.len() / 4;
        if is_remembered {
            self.folds
                .remember(key, Fold { through: newest.trailer().seq(), folded: folded.clone() });
        }
        Ok(Some((folded, is_remembered)))
    }

    /// Folds the operands of a key on which `entry` was just put, on top of so many versions. Under the lock of the log's
    /// writer.
    #[inline]
    pub(super) fn fold_if_due(&self, entry: &NewEntry<'_>, depth: u32) {
        let is_operand = entry.trailer.kind() == Some(EntryKind::Operand);
        if is_operand && depth.is_multiple_of(VERSIONS_BETWEEN_FOLDS) {
            self.fold_newest(entry.key, entry.trailer.seq());
        }
    }

    #[cold]
    fn fold_newest(&self, key: &[u8], seq: SeqNo) {
        let Some(operator) = self.operator.get() else { return };
        let cleared = self.clear_at(seq).unwrap_or(SeqNo::ZERO);
        let floor = cleared.max(self.span_at(key, seq));
        // What the operator cannot fold stays as it is. The reads of the key return the error.
        if let Ok(Some((folded, true))) = self.fold_chain(key, seq, floor, operator, true) {
            add(&self.bytes, (key.len() + folded.bytes.len()) as u64);
        }
    }
}
