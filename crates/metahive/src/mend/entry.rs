//! The repair of one entry of a damaged block, from its own bytes or from elsewhere.
//!
//! `mend.rs` calls it for each entry that disagrees with its metadata, if it could not repair the
//! block as a whole.
//!
//! Invariant: an entry is accepted only if its checksum is that of its metadata, or the one that
//! follows from the digest of the block and the checksums of the other entries.

use lsm_core::hooks::{DamagedBlock, DecodedEntry, OwnedEntry};

use super::{Candidate, Intact, KEYS_ASKED, payload_of, stored_entry, takes_one_bit};
use crate::bits;
use crate::checksum;
use crate::table_repair::HiveRepair;
use crate::verdict::Verdict;

/// An entry that stood at `at` of the block and agrees with the metadata that is there. Where there
/// is none, with what the digest leaves for it. `logged` is the operation with its sequence number.
pub(super) fn repaired(
    repair: &mut HiveRepair,
    block: &dyn DamagedBlock,
    all: &[Candidate],
    at: usize,
    missing: Option<u32>,
    logged: Option<&OwnedEntry>,
) -> Option<Intact> {
    let Candidate::Unknown(of, known) = &all[at] else { return None };
    let (entry, source) = of_its_bytes(repair, of, missing)
        .or_else(|| in_log(repair, of, *known, missing, logged))
        .or_else(|| in_replica(repair, block, all, at, missing))?;
    let note = sum_of_entry(&entry);
    Some(Intact { decoded: DecodedEntry { entry, ..of.clone() }, note, source: Some(source) })
}

/// Its own bytes, as they are or with one bit turned.
fn of_its_bytes(
    repair: &mut HiveRepair,
    of: &DecodedEntry,
    missing: Option<u32>,
) -> Option<(OwnedEntry, &'static str)> {
    // Both copies in the metadata are damaged, and the entry need not be.
    // 32 bits suffice here: the entry is the one that stood there, and was not chosen among many.
    if missing.is_some_and(|missing| sum_of_entry(&of.entry) as u32 == missing) {
        return Some((of.entry.clone(), "digest of its block"));
    }
    let metadata = payload_of(repair, of)?;
    if !takes_one_bit(repair, of) {
        return None;
    }
    let found = bits::one_bit(&of.entry, &metadata);
    repair.searched(found.is_some());
    found.map(|(_, entry)| (entry, "one-bit search"))
}

fn sum_of_entry(entry: &OwnedEntry) -> u64 {
    checksum::of_entry(&entry.key, &entry.value, entry.seq, entry.kind)
}

/// The operation with its sequence number, which names one. The key may be the damage.
fn in_log(
    repair: &HiveRepair,
    of: &DecodedEntry,
    known: Option<u64>,
    missing: Option<u32>,
    logged: Option<&OwnedEntry>,
) -> Option<(OwnedEntry, &'static str)> {
    let entry = logged.filter(|entry| is_it(repair, of, known, missing, entry))?;
    Some((entry.clone(), "log"))
}

/// A replica's entry, under the keys that it may have.
fn in_replica(
    repair: &mut HiveRepair,
    block: &dyn DamagedBlock,
    all: &[Candidate],
    at: usize,
    missing: Option<u32>,
) -> Option<(OwnedEntry, &'static str)> {
    let Candidate::Unknown(of, known) = &all[at] else { return None };
    let replica = repair.options.replica.clone()?;
    let seq = of.entry.seq;
    // Its own key first: the damage may be in the value alone.
    let mut keys = vec![of.entry.key.clone()];
    if repair.may_search() {
        let (from, to) = around(repair, block, all, at);
        keys.extend(repair.sources.keys_between(&from, &to, KEYS_ASKED));
    }
    let is_alone = keys.len() == 1;
    let found = keys.into_iter().find_map(|key| {
        let found = replica.fetch(&key, seq).ok().flatten();
        let found = found.filter(|entry| entry.key == key && entry.seq == seq);
        found.filter(|entry| is_it(repair, of, *known, missing, entry))
    });
    // It was asked for each of the other keys as well.
    repair.searched(found.is_some() || is_alone);
    found.map(|entry| (entry, "replica"))
}

/// The keys of the sound entries before and after.
fn around(
    repair: &HiveRepair,
    block: &dyn DamagedBlock,
    all: &[Candidate],
    at: usize,
) -> (Vec<u8>, Vec<u8>) {
    // Keys ascend within the block, so the entry stood between these two, whatever it says of
    // itself.
    let from = all[..at].iter().rev().find_map(Candidate::sound_key);
    let before = block.before().map_or_else(|| repair.table.keys.0.to_vec(), |it| it.0.to_vec());
    let to = all[at + 1..].iter().find_map(Candidate::sound_key);
    (from.unwrap_or(before), to.unwrap_or_else(|| repair.table.keys.1.to_vec()))
}

/// Returns `true` if an entry from elsewhere is the one that stood there.
fn is_it(
    repair: &HiveRepair,
    of: &DecodedEntry,
    known: Option<u64>,
    missing: Option<u32>,
    entry: &OwnedEntry,
) -> bool {
    let (sum, verdict) = repair.compare(&stored_entry(entry, repair), of.hidden.as_deref());
    match (known, missing) {
        (Some(known), _) => sum == known,
        // 32 bits alone could agree by chance, so the source must vouch for the entry as well.
        (None, Some(missing)) => sum as u32 == missing && entry.verified,
        (None, None) => verdict != Verdict::DataCorrupt,
    }
}
