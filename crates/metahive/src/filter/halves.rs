//! Halves of pairs that came apart: entries without their metadata, and metadata without its entry.
//!
//! The input side of the filter collects them and reports them at the end of a job, two that belong
//! together in one another's words.

use lsm_core::hooks::{Fault, Faults};
use lsm_core::types::SeqNo;

use crate::counts::Counts;
use crate::detail::Detail;
use crate::payload::{Payload, entry_key};

/// Half of a pair, and what is wrong with it.
pub(super) struct Half {
    pub(super) fault: Fault,
    pub(super) detail: Detail,
}

/// The metadata that came apart from an entry: by the sequence number, which no other entry of the
/// file has, if the key of either was damaged; else by the key.
pub(super) fn other_half<'a>(fault: &Fault, orphans: &'a mut [Half]) -> Option<&'a mut Half> {
    let by_seq =
        orphans.iter().position(|orphan| is_free(orphan, fault) && has_seq(orphan, fault.seq));
    let at = by_seq.or_else(|| {
        orphans.iter().position(|orphan| {
            is_free(orphan, fault) && entry_key(&orphan.fault.key) == Some(&fault.key[..])
        })
    })?;
    Some(&mut orphans[at])
}

/// Returns `true` if the orphan lies in the file of `fault` and has no partner yet.
fn is_free(orphan: &Half, fault: &Fault) -> bool {
    orphan.fault.at.file == fault.at.file && orphan.detail.partner.is_none()
}

/// Returns `true` if the key of the orphan, or its payload, has the sequence number.
fn has_seq(orphan: &Half, seq: SeqNo) -> bool {
    let payload = Payload::decode(&orphan.fault.value);
    orphan.fault.seq == seq || payload.is_ok_and(|payload| payload.seq == seq)
}

/// Reports a half.
pub(super) fn push(faults: &mut Faults, half: Half, counts: &mut Counts) {
    counts.faults += 1;
    faults.push(Fault { detail: half.detail.encode(), ..half.fault });
}
