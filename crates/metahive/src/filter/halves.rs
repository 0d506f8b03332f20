//! Halves of pairs that came apart: entries without their metadata, and metadata without its entry.
//!
//! The input side of the filter collects them and reports them at the end of a job, two that belong
//! together in one another's words.

use lsm_core::hooks::{Fault, Faults};

use crate::counts::Counts;
use crate::detail::{Detail, EntryPlace};
use crate::payload::{Payload, entry_key};

/// Half of a pair, and what is wrong with it.
pub(super) struct Half {
    pub(super) fault: Fault,
    pub(super) detail: Detail,
}

/// Tells entries and metadata that came apart which of them belong together.
pub(super) fn join(unpaired: &mut [Half], orphans: &mut [Half]) {
    // The surest sign first, for all of them: the entries of an ingested table may all have one sequence
    // number, and the metadata of one entry must not go to another that has only that in common.
    for agrees in [is_its_own, has_key, has_seq] {
        // An entry with a payload has met its own metadata. No orphan belongs to it.
        for half in unpaired.iter_mut().filter(|half| half.detail.payload.is_none()) {
            let mut free = orphans.iter_mut().filter(|orphan| is_free(orphan, &half.fault));
            if let Some(orphan) = free.find(|orphan| agrees(orphan, &half.fault)) {
                half.detail.payload = Some(orphan.fault.value.clone());
                half.detail.partner =
                    Some((orphan.fault.key.clone(), EntryPlace::from(&orphan.fault.at)));
                orphan.detail.partner =
                    Some((half.fault.key.clone(), EntryPlace::from(&half.fault.at)));
            }
        }
    }
}

/// Returns `true` if the orphan lies in the file of `fault` and has no partner yet.
fn is_free(orphan: &Half, fault: &Fault) -> bool {
    orphan.fault.at.file == fault.at.file && orphan.detail.partner.is_none()
}

fn is_its_own(orphan: &Half, fault: &Fault) -> bool {
    has_key(orphan, fault) && has_seq(orphan, fault)
}

/// Returns `true` if the key of the orphan, or its payload, has the sequence number of the entry.
fn has_seq(orphan: &Half, fault: &Fault) -> bool {
    let payload = Payload::decode(&orphan.fault.value);
    orphan.fault.seq == fault.seq || payload.is_ok_and(|payload| payload.seq == fault.seq)
}

fn has_key(orphan: &Half, fault: &Fault) -> bool {
    entry_key(&orphan.fault.key) == Some(&fault.key[..])
}

/// Reports a half.
pub(super) fn push(faults: &mut Faults, half: Half, counts: &mut Counts) {
    counts.faults += 1;
    faults.push(Fault { detail: half.detail.encode(), ..half.fault });
}
