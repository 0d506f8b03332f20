//! The repair of a damaged block: first as a whole, then entry by entry.
//!
//! The repair of the table calls it for each block in which an entry disagrees.
//!
//! ```text
//! re-read          storage, past every cache: the damage was in memory
//! one-bit search   one bit of the block turned, such that its checksum or all metadata agree
//! then, for each entry that still disagrees with its metadata:
//! one-bit search   the entry's own bytes with one bit turned
//! log              the write-ahead log, if the entry is still in one
//! replica          a copy elsewhere, through the application
//! ```
//!
//! Damage of a whole file must not keep a job busy for hours. After [`SEARCHES_IN_VAIN_MAX`] searches that
//! found nothing, the other blocks of the table are not searched. The limit counts searches and not time,
//! so that the same damage always has the same result.
//!
//! The order of neighbours is checked after all of them were repaired: while a prefix that they
//! share is damaged, each of them is out of order.
//!
//! Invariants:
//! 1. The job gets an entry only if the entry agrees with its metadata.
//! 2. The job gets all entries that the block had, by the digest of the seal, or the places of the
//!    missing ones are known. Otherwise all entries of the block are lost, because an entry that
//!    agrees with its metadata may be an older one in the place of a newer one.

mod entry;

use std::collections::{BTreeSet, HashMap};

use lsm_core::hooks::{
    BlockVerdict, DamagedBlock, DecodedBlock, DecodedEntry, Entry, Fault, OwnedEntry, Piece,
    RepairedBlock, RepairedEntry,
};
use lsm_core::types::{KeyRef, SeqNo, Trailer};

use crate::bits::{self, Bit};
use crate::payload::Payload;
use crate::table_repair::HiveRepair;
use crate::verdict::Verdict;
use crate::verifier::fault_of_metadata;

use entry::repaired;

/// Most keys of other tables under which a replica is asked for an entry.
const KEYS_ASKED: usize = 256;
/// Most damaged entries of a block that lead a search for the bit that damaged them all.
const LEADS_MAX: usize = 4;
/// Damaged blocks of a table that are read a second time although that has helped none so far.
const READ_AGAIN_MAX: u64 = 16;
/// Searches in a table that find nothing, until no other one begins.
pub(crate) const SEARCHES_IN_VAIN_MAX: u64 = 64;
/// Longest block in which every bit is tried; in a longer one, those of the lengths and the key of the first damaged
/// entry, if they are no longer.
const EVERY_BIT_BYTES_MAX: usize = 8 << 10;
/// Bytes after the last entry that could be decoded: a hidden entry, and the lengths of the next one.
const NEAR_BYTES: usize = 64;

/// A sound entry, with its checksum.
struct Intact {
    decoded: DecodedEntry,
    note: u64,
    /// The source that repaired it, if it was damaged.
    source: Option<&'static str>,
}

/// An entry of a damaged block.
enum Candidate {
    Intact(Intact),
    /// With the checksum that it should have, where its metadata is sound.
    Unknown(DecodedEntry, Option<u64>),
}

impl Candidate {
    fn is_sound(&self) -> bool {
        matches!(self, Candidate::Intact(_))
    }

    /// The key, if the entry is sound.
    fn sound_key(&self) -> Option<Vec<u8>> {
        match self {
            Candidate::Intact(sound) => Some(sound.decoded.entry.key.clone()),
            Candidate::Unknown(..) => None,
        }
    }
}

/// Returns the pieces that take the place of a damaged block: the block as it was, or entry by entry, with gaps.
pub(crate) fn mend(repair: &mut HiveRepair, block: &mut dyn DamagedBlock) -> RepairedBlock {
    let mut stored = Vec::new();
    // Each reading bypasses the caches. On a medium that is damaged for good, all of them return
    // the same bytes.
    let has_hope = repair.read_in_vain < READ_AGAIN_MAX;
    // Once in any case: without bytes there is nothing to search in.
    let readings = if has_hope { repair.options.retries_max.max(1) } else { 1 };
    for reading in 0..readings {
        // The engine fails the job.
        let Ok(again) = block.read(true) else { return RepairedBlock::default() };
        // Two equal readings: the bytes are on the medium, and a third would be the same.
        if reading > 0 && again == stored {
            repair.read_in_vain += 1;
            break;
        }
        stored = again;
        let Some(payload) = block.unpack(&stored) else { continue };
        let is_verified = block.is_verified(&stored);
        // Without a seal the block's checksum is all that can confirm it.
        if repair.seal.is_none() && !is_verified {
            continue;
        }
        if let Some(all) = whole(repair, block, &payload) {
            // A block without its checksum counts as whole because each entry agrees and the digest
            // has all of them.
            let source = if is_verified { "re-read" } else { "entry by entry" };
            return accept(repair, block, all, source);
        }
    }
    let mut payload = block.unpack(&stored);
    // The cheap search first: a lead names the bit, so only a few candidates are decoded.
    if let Some(all) = payload.as_ref().and_then(|payload| by_leads(repair, block, payload)) {
        return accept(repair, block, all, "one-bit search");
    }
    if !block.is_verified(&stored) && repair.may_search() {
        let turned = block.with_one_bit_turned(&stored);
        repair.searched(turned.is_some());
        if let Some(turned) = turned {
            payload = block.unpack(&turned);
            if let Some(all) = payload.as_ref().and_then(|payload| whole(repair, block, payload)) {
                return accept(repair, block, all, "one-bit search");
            }
        }
    }
    // Entry by entry needs the metadata of a sealed table.
    let Some(payload) = payload.filter(|_| repair.seal.is_some()) else {
        return all_lost(repair, block, DecodedBlock::default());
    };
    if let Some(all) = by_every_bit(repair, block, &payload) {
        return accept(repair, block, all, "one-bit search");
    }
    entry_by_entry(repair, block, &payload)
}

fn stored_entry<'a>(owned: &'a OwnedEntry, repair: &HiveRepair) -> Entry<'a> {
    Entry {
        key: &owned.key,
        seq: repair.table.global_seq.unwrap_or(owned.seq),
        stored_seq: owned.seq,
        kind: owned.kind,
        value: &owned.value,
        hidden: false,
    }
}

/// The checksum of an entry if it agrees with its metadata.
fn agreed(repair: &HiveRepair, entry: &OwnedEntry, hidden: Option<&[u8]>) -> Option<u64> {
    let (sum, verdict) = repair.compare(&stored_entry(entry, repair), hidden);
    verdict.entry_is_good().then_some(sum)
}

/// Returns `true` if the entries ascend, from the last sound one on, within the bounds of the table.
fn is_in_place<'e>(
    repair: &HiveRepair,
    block: &dyn DamagedBlock,
    entries: impl Iterator<Item = &'e OwnedEntry>,
) -> bool {
    let table = &repair.table;
    let before = block.before().map(|(key, seq)| (key.to_vec(), seq));
    let mut last = before.as_ref().map(|(key, seq)| after(key, *seq));
    for entry in entries {
        // Metadata vouches for an entry, and the digest for their sum. Neither says that an entry
        // stands in this table at this place: a reader searches by order, and would not find it.
        let is_known_seq =
            table.global_seq.is_some() || (table.seqs.0..=table.seqs.1).contains(&entry.seq);
        let is_within = *table.keys.0 <= entry.key[..] && entry.key[..] <= *table.keys.1;
        let key = KeyRef::new(&entry.key, Trailer::new(entry.seq, entry.kind));
        if !is_known_seq || !is_within || last.is_some_and(|last| last >= key) {
            return false;
        }
        last = Some(after(&entry.key, entry.seq));
    }
    true
}

/// Sorts after every entry of this key and sequence number; a table has one.
fn after(key: &[u8], seq: SeqNo) -> KeyRef<'_> {
    KeyRef::new(key, Trailer::new(seq, lsm_core::types::EntryKind::Tombstone))
}

/// The entries of `payload`, if all of them are there and as they were written.
fn whole(repair: &HiveRepair, block: &mut dyn DamagedBlock, payload: &[u8]) -> Option<Vec<Intact>> {
    // Before anything is copied: nearly all candidates of a search end here.
    let is_good = block.accepts(payload, &mut |entry, hidden| {
        let (_, verdict) = repair.compare(entry, hidden);
        verdict.entry_is_good()
    });
    let decoded = is_good.then(|| block.decode(payload)).filter(|decoded| decoded.is_whole)?;
    let mut all = Vec::with_capacity(decoded.entries.len());
    let mut notes = 0u32;
    for decoded in decoded.entries {
        let note = agreed(repair, &decoded.entry, decoded.hidden.as_deref())?;
        notes = notes.wrapping_add(note as u32);
        all.push(Intact { decoded, note, source: None });
    }
    // Entries that agree with their metadata may still be older ones in the place of newer ones.
    // Only the digest of the block shows that.
    let has_all = repair.digest().is_none_or(|digest| digest == notes);
    let is_whole = has_all && is_in_place(repair, block, all.iter().map(|it| &it.decoded.entry));
    is_whole.then_some(all)
}

/// The block is whole again.
fn accept(
    repair: &mut HiveRepair,
    block: &dyn DamagedBlock,
    all: Vec<Intact>,
    source: &str,
) -> RepairedBlock {
    let what = "a block did not agree with its checksum or its metadata";
    let fault = repair.fault(block, all.first().map(|first| &first.decoded), what);
    repair.counts.faults += 1;
    repair.counts.suspects_accepted += all.len() as u64;
    let all = all.into_iter().map(Candidate::Intact).collect();
    pass(repair, block, all, vec![(fault, source.to_owned())])
}

/// A block that is as it was written, but for metadata alone. `None` for any other.
pub(crate) fn sound(
    repair: &mut HiveRepair,
    block: &mut dyn DamagedBlock,
    stored: &[u8],
) -> Option<RepairedBlock> {
    let payload = block.unpack(stored).filter(|_| block.is_verified(stored))?;
    let all = whole(repair, block, &payload)?;
    let mut repaired = Vec::new();
    for Intact { decoded: of, .. } in &all {
        let entry = stored_entry(&of.entry, repair);
        let (_, verdict) = repair.compare(&entry, of.hidden.as_deref());
        if verdict != Verdict::Valid {
            let at = repair.origin(block.offset(), of.index);
            let fault = Fault { at, ..fault_of_metadata(&entry, verdict) };
            repaired.push((fault, "made again from its entry".to_owned()));
        }
    }
    repair.counts.metadata_rebuilt += repaired.len() as u64;
    let all = all.into_iter().map(Candidate::Intact).collect();
    let mut passed = pass(repair, block, all, repaired);
    if passed.verdict == BlockVerdict::AllDamaged {
        // Metadata of blocks that are lost is no finding of its own.
        passed.repaired.clear();
    }
    Some(passed)
}

/// Nothing of the block goes on.
fn all_lost(
    repair: &mut HiveRepair,
    block: &dyn DamagedBlock,
    decoded: DecodedBlock,
) -> RepairedBlock {
    let verdict = repair.pass(false, 0, 0);
    repair.counts.faults += 1;
    let what = "a block is damaged beyond repair";
    let fault = repair.fault(block, decoded.entries.first(), what);
    if let Some(handler) = &repair.options.error_handler {
        handler.on_unrepaired(&fault, decoded.entries.first().map(|first| &first.entry));
    }
    RepairedBlock { pieces: vec![Piece::Lost], repaired: Vec::new(), lost: vec![fault], verdict }
}

/// The integrity metadata of an entry.
fn payload_of(repair: &HiveRepair, of: &DecodedEntry) -> Option<Payload> {
    if !repair.shared.is_integrity {
        return None;
    }
    Payload::after_seq(of.entry.seq, of.hidden.as_deref()?)
}

/// Turns the bit that a damaged entry of the block leads to: in a prefix that keys share it has
/// damaged others with it.
fn by_leads(
    repair: &mut HiveRepair,
    block: &mut dyn DamagedBlock,
    payload: &[u8],
) -> Option<Vec<Intact>> {
    let decoded = block.decode(payload);
    let mut leads = 0;
    for of in &decoded.entries {
        // One bit has one place: if the first leads are wrong, the damage is more than one bit.
        if leads == LEADS_MAX {
            break;
        }
        if agreed(repair, &of.entry, of.hidden.as_deref()).is_some() {
            continue;
        }
        let Some(metadata) = payload_of(repair, of) else { continue };
        // Too long an entry says nothing of the others.
        if !takes_one_bit(repair, of) {
            continue;
        }
        leads += 1;
        // Of a prefix that entries share, the bit lies in the restart key: turned there, it is
        // turned for all of them.
        let found = bits::one_bit(&of.entry, &metadata);
        repair.searched(found.is_some());
        let Some((bit, _)) = found else { continue };
        let Some(at) = place_of(of, bit) else { continue };
        let mut turned = payload.to_vec();
        turned[at / 8] ^= 1 << (at % 8);
        if let Some(all) = whole(repair, block, &turned) {
            return Some(all);
        }
    }
    None
}

fn takes_one_bit(repair: &HiveRepair, of: &DecodedEntry) -> bool {
    let len = of.entry.key.len() + of.entry.value.len();
    len <= repair.options.one_bit_bytes_max && repair.may_search()
}

/// Returns the bit of the block that a bit of the entry is; a sequence number is not stored bit by bit.
fn place_of(of: &DecodedEntry, bit: Bit) -> Option<usize> {
    match bit {
        Bit::Key(bit) => {
            let byte = match (bit / 8).checked_sub(of.shared.len()) {
                None => of.shared.start + bit / 8,
                Some(after) => of.suffix.start + after,
            };
            Some(8 * byte + bit % 8)
        }
        Bit::Value(bit) => Some(8 * of.value.start + bit),
        Bit::Kind(bit) => Some(8 * of.start + bit),
        Bit::Seq(_) => None,
    }
}

/// Turns one bit after the other, first in the lengths and the key of the first damaged entry: they decide how
/// all that follows is read.
fn by_every_bit(
    repair: &mut HiveRepair,
    block: &mut dyn DamagedBlock,
    payload: &[u8],
) -> Option<Vec<Intact>> {
    let decoded = block.decode(payload);
    let mut entries = decoded.entries.iter();
    let near = match entries.find(|of| agreed(repair, &of.entry, of.hidden.as_deref()).is_none()) {
        Some(of) => of.start..of.value.start,
        // The entry that follows these could not be decoded.
        None => {
            let end = decoded.entries.last().map_or(0, |of| of.value.end);
            end..end + NEAR_BYTES
        }
    };
    // Offsets of damaged entries may lead out of the payload, and each bit costs as much as the whole block.
    let start = near.start.min(payload.len());
    let near = start..near.end.clamp(start, payload.len()).min(start + EVERY_BIT_BYTES_MAX);
    // The base of all sequence numbers: one bit of it damages every entry of the block.
    let tail = payload.len().saturating_sub(16)..payload.len().saturating_sub(8);
    // Every candidate is decoded and verified up to its first damage, so that the cost of all of them grows
    // with the square of the length.
    let all = 0..if payload.len() <= EVERY_BIT_BYTES_MAX { payload.len() } else { 0 };
    if !repair.may_search() {
        return None;
    }
    for range in [near, tail, all] {
        let mut turned = payload.to_vec();
        for byte in range {
            for bit in 0..8 {
                turned[byte] ^= 1 << bit;
                if let Some(all) = whole(repair, block, &turned) {
                    return Some(all);
                }
                turned[byte] ^= 1 << bit;
            }
        }
    }
    repair.searched(false);
    None
}

/// Repairs the entries that can be repaired, and returns the places of the others.
fn entry_by_entry(
    repair: &mut HiveRepair,
    block: &mut dyn DamagedBlock,
    payload: &[u8],
) -> RepairedBlock {
    let decoded = block.decode(payload);
    let mut all = Vec::with_capacity(decoded.entries.len());
    for of in &decoded.entries {
        all.push(match agreed(repair, &of.entry, of.hidden.as_deref()) {
            Some(note) => Candidate::Intact(Intact { decoded: of.clone(), note, source: None }),
            None => {
                let metadata = payload_of(repair, of);
                // Only a sound checksum says what the entry should be.
                let metadata = metadata.filter(Payload::is_sound);
                Candidate::Unknown(of.clone(), metadata.map(|metadata| metadata.sum))
            }
        });
    }
    let digest = repair.digest();
    let log = logged(repair, &all);
    for at in 0..all.len() {
        let logged = log.get(&decoded.entries[at].entry.seq);
        // Computed for each entry again: every repaired entry leaves one unknown less.
        let missing = digest.and_then(|digest| missing_at(&all, at, digest));
        if let Some(sound) = repaired(repair, block, &all, at, missing, logged) {
            all[at] = Candidate::Intact(sound);
        }
    }
    let sound = all.iter().filter_map(|found| match found {
        Candidate::Intact(sound) => Some(&sound.decoded.entry),
        Candidate::Unknown(..) => None,
    });
    // Invariant 2: sound entries and known checksums must add up to what was written.
    // A block whose digest is not known alone is given up here. Nothing would show an older entry
    // in the place of a newer one.
    let is_reported = digest.is_some_and(|digest| sum_of(&all) == Some(digest));
    if !is_reported || !is_in_place(repair, block, sound) {
        return all_lost(repair, block, decoded);
    }
    repair.counts.suspects_accepted += all.iter().filter(|it| it.is_sound()).count() as u64;
    pass(repair, block, all, Vec::new())
}

/// The operations of the log with the sequence numbers of the damaged entries: read once for all of them.
fn logged(repair: &HiveRepair, all: &[Candidate]) -> HashMap<SeqNo, OwnedEntry> {
    let unknown = all.iter().filter_map(|found| match found {
        Candidate::Intact(_) => None,
        Candidate::Unknown(of, _) => Some(of.entry.seq),
    });
    let unknown: BTreeSet<SeqNo> = unknown.collect();
    if unknown.is_empty() || !repair.options.log {
        return HashMap::new();
    }
    repair.sources.in_log(&unknown)
}

/// The sum of what all entries should be, if it is known of each.
fn sum_of(all: &[Candidate]) -> Option<u32> {
    all.iter().try_fold(0u32, |sum, found| match found {
        Candidate::Intact(sound) => Some(sum.wrapping_add(sound.note as u32)),
        Candidate::Unknown(_, known) => Some(sum.wrapping_add((*known)? as u32)),
    })
}

/// Returns what the digest leaves for the checksum of one entry, if it is known of all others.
fn missing_at(all: &[Candidate], at: usize, digest: u32) -> Option<u32> {
    let Candidate::Unknown(_, None) = all[at] else { return None };
    let before = sum_of(&all[..at])?;
    let after = sum_of(&all[at + 1..])?;
    Some(digest.wrapping_sub(before).wrapping_sub(after))
}

/// The block goes on with the entries that are sound; it reports `repaired`, what else was repaired, and the losses.
fn pass(
    repair: &mut HiveRepair,
    block: &dyn DamagedBlock,
    all: Vec<Candidate>,
    repaired: Vec<(Fault, String)>,
) -> RepairedBlock {
    let mut passed = RepairedBlock { repaired, ..RepairedBlock::default() };
    let mut notes = 0u64;
    let entries = all.len() as u64;
    for found in all {
        match found {
            Candidate::Intact(Intact { decoded, note, source }) => {
                notes = notes.wrapping_add(note);
                if let Some(source) = source {
                    let what = "the entry disagrees with its metadata";
                    let fault = repair.fault(block, Some(&decoded), what);
                    passed.repaired.push((fault, source.to_owned()));
                    repair.counts.faults += 1;
                }
                repair.counts.verified += u64::from(repair.seal.is_some());
                let DecodedEntry { entry, hidden, index, .. } = decoded;
                // Integrity makes it again. Here it may be damaged, and the filter would find that again.
                let hidden = hidden.filter(|_| !repair.shared.is_integrity);
                passed.pieces.push(Piece::Sound(RepairedEntry { entry, note, hidden, index }));
            }
            Candidate::Unknown(decoded, _) => {
                repair.counts.faults += 1;
                let what = "the entry disagrees with its metadata, and its key is not known";
                let fault = repair.fault(block, Some(&decoded), what);
                if let Some(handler) = &repair.options.error_handler {
                    handler.on_unrepaired(&fault, Some(&decoded.entry));
                }
                passed.lost.push(fault);
                passed.pieces.push(Piece::Lost);
            }
        }
    }
    passed.verdict = repair.pass(passed.lost.is_empty(), notes, entries);
    passed
}

#[cfg(test)]
mod tests;
