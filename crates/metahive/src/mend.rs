//! The repair of a damaged block: first as a whole, then entry by entry.
//!
//! The judge of the table calls it for each block in which an entry disagrees, on the thread of the
//! job, without a lock.
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
    DamagedBlock, DecodedBlock, DecodedEntry, Entry, Fault, Mended, OwnedEntry, Piece,
};
use lsm_core::types::{KeyRef, SeqNo, Trailer};

use crate::bits::{self, Bit};
use crate::judge::HiveJudge;
use crate::payload::Payload;

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
struct Sound {
    decoded: DecodedEntry,
    note: u64,
    /// The source that repaired it, if it was damaged.
    source: Option<&'static str>,
}

/// An entry of a damaged block.
enum Candidate {
    Sound(Sound),
    /// With the checksum that it should have, where its metadata is sound.
    Unknown(DecodedEntry, Option<u64>),
}

impl Candidate {
    /// The key, if the entry is sound.
    fn sound_key(&self) -> Option<Vec<u8>> {
        match self {
            Candidate::Sound(sound) => Some(sound.decoded.entry.key.clone()),
            Candidate::Unknown(..) => None,
        }
    }
}

/// See the module.
pub(crate) fn mend(judge: &mut HiveJudge, block: &mut dyn DamagedBlock) -> Mended {
    let mut stored = Vec::new();
    // Each reading bypasses the caches. On a medium that is damaged for good, all of them return
    // the same bytes.
    let has_hope = judge.read_in_vain < READ_AGAIN_MAX;
    // Once in any case: without bytes there is nothing to search in.
    let readings = if has_hope { judge.options.retries_max.max(1) } else { 1 };
    for reading in 0..readings {
        // The engine fails the job.
        let Ok(again) = block.read() else { return Mended::default() };
        // Two equal readings: the bytes are on the medium, and a third would be the same.
        if reading > 0 && again == stored {
            judge.read_in_vain += 1;
            break;
        }
        stored = again;
        let Some(payload) = block.unpack(&stored) else { continue };
        let is_verified = block.is_verified(&stored);
        // Without a seal the block's checksum is all that can confirm it.
        if judge.seal.is_none() && !is_verified {
            continue;
        }
        if let Some(all) = whole(judge, block, &payload) {
            // A block without its checksum counts as whole because each entry agrees and the digest
            // has all of them.
            let source = if is_verified { "re-read" } else { "entry by entry" };
            return accept(judge, block, all, source);
        }
    }
    let mut payload = block.unpack(&stored);
    // The cheap search first: a lead names the bit, so only a few candidates are decoded.
    if let Some(all) = payload.as_ref().and_then(|payload| by_leads(judge, block, payload)) {
        return accept(judge, block, all, "one-bit search");
    }
    if !block.is_verified(&stored) && judge.may_search() {
        let turned = block.with_one_bit_turned(&stored);
        judge.searched(turned.is_some());
        if let Some(turned) = turned {
            payload = block.unpack(&turned);
            if let Some(all) = payload.as_ref().and_then(|payload| whole(judge, block, payload)) {
                return accept(judge, block, all, "one-bit search");
            }
        }
    }
    // Entry by entry needs the metadata of a sealed table.
    let Some(payload) = payload.filter(|_| judge.seal.is_some()) else {
        return all_lost(judge, block, DecodedBlock::default());
    };
    if let Some(all) = by_every_bit(judge, block, &payload) {
        return accept(judge, block, all, "one-bit search");
    }
    entry_by_entry(judge, block, &payload)
}

fn stored_entry<'a>(owned: &'a OwnedEntry, judge: &HiveJudge) -> Entry<'a> {
    Entry {
        key: &owned.key,
        seq: judge.table.global_seq.unwrap_or(owned.seq),
        stored_seq: owned.seq,
        kind: owned.kind,
        value: &owned.value,
        hidden: false,
    }
}

/// The checksum of an entry if it agrees with its metadata.
fn agreed(judge: &HiveJudge, entry: &OwnedEntry, hidden: Option<&[u8]>) -> Option<u64> {
    let (sum, verdict) = judge.compare(&stored_entry(entry, judge), hidden);
    verdict.entry_is_good().then_some(sum)
}

/// Returns `true` if the entries ascend, from the last sound one on, within the bounds of the table.
fn is_in_place<'e>(
    judge: &HiveJudge,
    block: &dyn DamagedBlock,
    entries: impl Iterator<Item = &'e OwnedEntry>,
) -> bool {
    let table = &judge.table;
    let before = block.before().map(|(key, seq)| (key.to_vec(), seq));
    let mut last = before.as_ref().map(|(key, seq)| behind(key, *seq));
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
        last = Some(behind(&entry.key, entry.seq));
    }
    true
}

/// Sorts behind every entry of this key and sequence number, of which a table has one.
fn behind(key: &[u8], seq: SeqNo) -> KeyRef<'_> {
    KeyRef::new(key, Trailer::new(seq, lsm_core::types::EntryKind::Tombstone))
}

/// The entries of `payload`, if all of them are there and as they were written.
fn whole(
    judge: &HiveJudge,
    block: &mut dyn DamagedBlock,
    payload: &[u8],
) -> Option<Vec<(DecodedEntry, u64)>> {
    // Before anything is copied: nearly all candidates of a search end here.
    let is_good = block.accepts(payload, &mut |entry, hidden| {
        let (_, verdict) = judge.compare(entry, hidden);
        verdict.entry_is_good()
    });
    let decoded = is_good.then(|| block.decode(payload)).filter(|decoded| decoded.is_whole)?;
    let mut all = Vec::with_capacity(decoded.entries.len());
    let mut notes = 0u32;
    for entry in decoded.entries {
        let note = agreed(judge, &entry.entry, entry.hidden.as_deref())?;
        notes = notes.wrapping_add(note as u32);
        all.push((entry, note));
    }
    // Entries that agree with their metadata may still be older ones in the place of newer ones.
    // Only the digest of the block shows that.
    let has_all = judge.digest_of(block.index()).is_none_or(|digest| digest == notes);
    let is_whole = has_all && is_in_place(judge, block, all.iter().map(|(it, _)| &it.entry));
    is_whole.then_some(all)
}

/// Returns the fault that is told of an entry or of the block.
fn fault(
    judge: &HiveJudge,
    block: &dyn DamagedBlock,
    of: Option<&DecodedEntry>,
    what: &str,
) -> Fault {
    let at = judge.origin(block.offset(), of.map_or(0, |entry| entry.index));
    let (key, seq, kind, value) = match of {
        Some(DecodedEntry { entry, .. }) => {
            (entry.key.clone(), entry.seq, entry.kind, entry.value.clone())
        }
        None => {
            let key =
                block.before().map_or_else(|| judge.table.keys.0.to_vec(), |it| it.0.to_vec());
            (key, SeqNo::ZERO, lsm_core::types::EntryKind::Poison, Vec::new())
        }
    };
    let mut what = what.to_owned();
    if !judge.may_search() {
        // Otherwise this would read like a search that found nothing.
        what += "; no bit was searched for, because too many searches in this table were in vain";
    }
    Fault { key, seq, kind, value, at, what }
}

fn piece(judge: &HiveJudge, decoded: DecodedEntry, note: u64) -> Piece {
    let DecodedEntry { entry, hidden, index, .. } = decoded;
    // Integrity makes it anew. Here it may be damaged, and the filter would find that again.
    let hidden = hidden.filter(|_| !judge.shared.is_integrity);
    Piece::Sound { entry, note, hidden, index }
}

/// The block is whole again.
fn accept(
    judge: &mut HiveJudge,
    block: &dyn DamagedBlock,
    all: Vec<(DecodedEntry, u64)>,
    source: &'static str,
) -> Mended {
    let what = "a block did not agree with its checksum or its metadata";
    let repaired =
        vec![(fault(judge, block, all.first().map(|first| &first.0), what), source.to_owned())];
    let notes = all.iter().fold(0u64, |sum, (_, note)| sum.wrapping_add(*note));
    let entries = all.len() as u64;
    let verdict = judge.pass_mended(true, notes, entries);
    judge.counts.faults += 1;
    judge.counts.verified += entries;
    judge.counts.suspects_accepted += entries;
    let pieces = all.into_iter().map(|(entry, note)| piece(judge, entry, note)).collect();
    Mended { pieces, repaired, lost: Vec::new(), verdict }
}

/// Nothing of the block goes on.
fn all_lost(judge: &mut HiveJudge, block: &dyn DamagedBlock, decoded: DecodedBlock) -> Mended {
    let verdict = judge.pass_mended(false, 0, 0);
    judge.counts.faults += 1;
    let what = "a block is damaged beyond repair";
    let fault = fault(judge, block, decoded.entries.first(), what);
    if let Some(handler) = &judge.options.error_handler {
        handler.on_unrepaired(&fault, decoded.entries.first().map(|first| &first.entry));
    }
    Mended { pieces: vec![Piece::Lost], repaired: Vec::new(), lost: vec![fault], verdict }
}

/// The integrity metadata of an entry.
fn payload_of(judge: &HiveJudge, of: &DecodedEntry) -> Option<Payload> {
    if !judge.shared.is_integrity {
        return None;
    }
    Payload::behind_seq(of.entry.seq, of.hidden.as_deref()?)
}

/// Turns the bit that a damaged entry of the block leads to: in a prefix that keys share it has
/// damaged others with it.
fn by_leads(
    judge: &mut HiveJudge,
    block: &mut dyn DamagedBlock,
    payload: &[u8],
) -> Option<Vec<(DecodedEntry, u64)>> {
    let decoded = block.decode(payload);
    let mut leads = 0;
    for of in &decoded.entries {
        // One bit has one place: if the first leads are wrong, the damage is more than one bit.
        if leads == LEADS_MAX {
            break;
        }
        if agreed(judge, &of.entry, of.hidden.as_deref()).is_some() {
            continue;
        }
        let Some(metadata) = payload_of(judge, of) else { continue };
        // Too long an entry says nothing of the others.
        if !takes_one_bit(judge, of) {
            continue;
        }
        leads += 1;
        // Of a prefix that entries share, the bit lies in the restart key: turned there, it is
        // turned for all of them.
        let found = bits::one_bit(&of.entry, &metadata);
        judge.searched(found.is_some());
        let Some((bit, _)) = found else { continue };
        let Some(at) = place_of(of, bit) else { continue };
        let mut turned = payload.to_vec();
        turned[at / 8] ^= 1 << (at % 8);
        if let Some(all) = whole(judge, block, &turned) {
            return Some(all);
        }
    }
    None
}

fn takes_one_bit(judge: &HiveJudge, of: &DecodedEntry) -> bool {
    let len = of.entry.key.len() + of.entry.value.len();
    len <= judge.options.one_bit_bytes_max && judge.may_search()
}

/// Returns the bit of the block that a bit of the entry is; a sequence number is not stored bit by bit.
fn place_of(of: &DecodedEntry, bit: Bit) -> Option<usize> {
    match bit {
        Bit::Key(bit) => {
            let byte = match (bit / 8).checked_sub(of.shared.len()) {
                None => of.shared.start + bit / 8,
                Some(behind) => of.suffix.start + behind,
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
    judge: &mut HiveJudge,
    block: &mut dyn DamagedBlock,
    payload: &[u8],
) -> Option<Vec<(DecodedEntry, u64)>> {
    let decoded = block.decode(payload);
    let mut entries = decoded.entries.iter();
    let near = match entries.find(|of| agreed(judge, &of.entry, of.hidden.as_deref()).is_none()) {
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
    if !judge.may_search() {
        return None;
    }
    for range in [near, tail, all] {
        let mut turned = payload.to_vec();
        for byte in range {
            for bit in 0..8 {
                turned[byte] ^= 1 << bit;
                if let Some(all) = whole(judge, block, &turned) {
                    return Some(all);
                }
                turned[byte] ^= 1 << bit;
            }
        }
    }
    judge.searched(false);
    None
}

/// Repairs what can be repaired, and tells where the rest stood.
fn entry_by_entry(judge: &mut HiveJudge, block: &mut dyn DamagedBlock, payload: &[u8]) -> Mended {
    let decoded = block.decode(payload);
    let mut all = Vec::with_capacity(decoded.entries.len());
    for of in &decoded.entries {
        all.push(match agreed(judge, &of.entry, of.hidden.as_deref()) {
            Some(note) => Candidate::Sound(Sound { decoded: of.clone(), note, source: None }),
            None => {
                let metadata = payload_of(judge, of);
                // Only a sound checksum says what the entry should be.
                let metadata = metadata.filter(Payload::is_sound);
                Candidate::Unknown(of.clone(), metadata.map(|metadata| metadata.sum))
            }
        });
    }
    let digest = judge.digest_of(block.index());
    let log = logged(judge, &all);
    for at in 0..all.len() {
        let logged = log.get(&decoded.entries[at].entry.seq);
        // Computed for each entry anew: every repaired entry leaves one unknown less.
        let missing = digest.and_then(|digest| missing_at(&all, at, digest));
        if let Some(sound) = repaired(judge, block, &all, at, missing, logged) {
            all[at] = Candidate::Sound(sound);
        }
    }
    let sound = all.iter().filter_map(|found| match found {
        Candidate::Sound(sound) => Some(&sound.decoded.entry),
        Candidate::Unknown(..) => None,
    });
    // Invariant 2: sound entries and known checksums must add up to what was written.
    // A block whose digest is not known alone is given up here. Nothing would show an older entry
    // in the place of a newer one.
    let is_told = digest.is_some_and(|digest| sum_of(&all) == Some(digest));
    if !is_told || !is_in_place(judge, block, sound) {
        return all_lost(judge, block, decoded);
    }
    tell(judge, block, all)
}

/// The operations of the log with the sequence numbers of the damaged entries: read once for all of them.
fn logged(judge: &HiveJudge, all: &[Candidate]) -> HashMap<SeqNo, OwnedEntry> {
    let unknown = all.iter().filter_map(|found| match found {
        Candidate::Sound(_) => None,
        Candidate::Unknown(of, _) => Some(of.entry.seq),
    });
    let unknown: BTreeSet<SeqNo> = unknown.collect();
    if unknown.is_empty() || !judge.options.log {
        return HashMap::new();
    }
    judge.sources.in_log(&unknown)
}

/// The sum of what all entries should be, if it is known of each.
fn sum_of(all: &[Candidate]) -> Option<u32> {
    all.iter().try_fold(0u32, |sum, found| match found {
        Candidate::Sound(sound) => Some(sum.wrapping_add(sound.note as u32)),
        Candidate::Unknown(_, known) => Some(sum.wrapping_add((*known)? as u32)),
    })
}

/// Returns what the digest leaves for the checksum of one entry, if it is known of all others.
fn missing_at(all: &[Candidate], at: usize, digest: u32) -> Option<u32> {
    let Candidate::Unknown(_, None) = all[at] else { return None };
    let before = sum_of(&all[..at])?;
    let behind = sum_of(&all[at + 1..])?;
    Some(digest.wrapping_sub(before).wrapping_sub(behind))
}

fn tell(judge: &mut HiveJudge, block: &mut dyn DamagedBlock, all: Vec<Candidate>) -> Mended {
    let mut mended = Mended::default();
    let mut notes = 0u64;
    let entries = all.len() as u64;
    let mut is_whole = true;
    for found in all {
        match found {
            Candidate::Sound(Sound { decoded, note, source }) => {
                notes = notes.wrapping_add(note);
                if let Some(source) = source {
                    let what = "the entry disagrees with its metadata";
                    let fault = fault(judge, block, Some(&decoded), what);
                    mended.repaired.push((fault, source.to_owned()));
                    judge.counts.faults += 1;
                }
                judge.counts.verified += 1;
                judge.counts.suspects_accepted += 1;
                mended.pieces.push(piece(judge, decoded, note));
            }
            Candidate::Unknown(decoded, _) => {
                is_whole = false;
                judge.counts.faults += 1;
                let what = "the entry disagrees with its metadata, and its key is not known";
                let fault = fault(judge, block, Some(&decoded), what);
                if let Some(handler) = &judge.options.error_handler {
                    handler.on_unrepaired(&fault, Some(&decoded.entry));
                }
                mended.lost.push(fault);
                mended.pieces.push(Piece::Lost);
            }
        }
    }
    mended.verdict = judge.pass_mended(is_whole, notes, entries);
    mended
}

#[cfg(test)]
mod tests;
