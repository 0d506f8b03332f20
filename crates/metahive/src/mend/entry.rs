//! The repair of one entry of a damaged block, from its own bytes or from elsewhere.
//!
//! `mend.rs` calls it for each entry that disagrees with its metadata, if it could not repair the
//! block as a whole.
//!
//! Invariant: an entry is accepted only if its checksum is that of its metadata, or the one that
//! follows from the digest of the block and the checksums of the other entries.

use lsm_core::hooks::{DamagedBlock, DecodedEntry, OwnedEntry};

use super::{Candidate, KEYS_ASKED, KEYS_NS, LOG_NS, Sound, TWO_BIT_NS};
use super::{len_of, payload_of, stored_entry, takes_one_bit};
use crate::bits;
use crate::checksum;
use crate::judge::HiveJudge;
use crate::verdict::Verdict;

/// An entry that stood at `at` of the block and agrees with the metadata that is there. Where there
/// is none, with what the digest leaves for it.
pub(super) fn repaired(
    judge: &mut HiveJudge,
    block: &mut dyn DamagedBlock,
    all: &[Candidate],
    at: usize,
    missing: Option<u32>,
) -> Option<Sound> {
    let Candidate::Unknown(of, known) = &all[at] else { return None };
    let mut found: Option<(OwnedEntry, &'static str)> = None;
    // Both copies in the metadata are damaged, and the entry need not be.
    // 32 bits suffice here: the entry is the one that stood there, and was not chosen among many.
    if missing.is_some_and(|missing| sum_of_entry(&of.entry) as u32 == missing) {
        found = Some((of.entry.clone(), "digest of its block"));
    }
    if found.is_none()
        && let Some(metadata) = payload_of(judge, of)
    {
        if takes_one_bit(judge, of) {
            found = bits::one_bit(&of.entry, &metadata, |_| true).map(|it| (it, "one-bit search"));
        }
        // Only with a known checksum. A key that is chosen among many must agree in 64 bits.
        if found.is_none() && known.is_some() {
            found = under_another_key(judge, block, all, at).map(|it| (it, "another key"));
        }
    }
    // Before two bits are searched: a copy needs less time, and none of its bits is a guess.
    found = found.or_else(|| elsewhere(judge, block, all, at, missing));
    if found.is_none()
        && known.is_some()
        && let Some(metadata) = payload_of(judge, of)
    {
        let len = len_of(of) as u64;
        if len <= judge.options.two_bit_bytes_max as u64
            && judge.budget.take(TWO_BIT_NS * (16 + len) * (16 + len))
        {
            found = bits::two_bits(&of.entry, &metadata, |_| true).map(|it| (it, "two-bit search"));
        }
    }
    let (entry, source) = found?;
    let note = sum_of_entry(&entry);
    Some(Sound { decoded: DecodedEntry { entry, ..of.clone() }, note, source: Some(source) })
}

fn sum_of_entry(entry: &OwnedEntry) -> u64 {
    checksum::of_entry(&entry.key, &entry.value, entry.seq, entry.kind)
}

/// Its bytes under a key that others suggest: with the prefix that neighbours share, or that of
/// another version in another table.
fn under_another_key(
    judge: &mut HiveJudge,
    block: &dyn DamagedBlock,
    all: &[Candidate],
    at: usize,
) -> Option<OwnedEntry> {
    let Candidate::Unknown(of, Some(sum)) = &all[at] else { return None };
    let OwnedEntry { value, seq, kind, .. } = &of.entry;
    let wanted =
        sum ^ checksum::of_value(value) ^ checksum::of_seq(*seq) ^ checksum::of_kind(*kind);
    let shared = of.shared.len();
    let suffix = &of.entry.key[shared.min(of.entry.key.len())..];
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for found in all {
        let other = match found {
            Candidate::Sound(sound) => &sound.decoded.entry.key,
            Candidate::Unknown(other, _) => &other.entry.key,
        };
        keys.push(other.clone());
        keys.extend(other.get(..shared).map(|prefix| [prefix, suffix].concat()));
    }
    if let Some((before, _)) = block.before() {
        keys.extend(before.get(..shared).map(|prefix| [prefix, suffix].concat()));
    }
    // The sum is an exclusive or of its parts, so the part of the key is known without the key.
    let is_it = |key: &Vec<u8>| checksum::of_key(key) == wanted;
    let key = keys.into_iter().find(is_it).or_else(|| {
        // Other tables are asked last: each question reads blocks.
        if !judge.budget.take(KEYS_NS) {
            return None;
        }
        let (from, to) = around(judge, block, all, at);
        judge.sources.keys_between(&from, &to, KEYS_ASKED).into_iter().find(is_it)
    })?;
    Some(OwnedEntry { key, ..of.entry.clone() })
}

/// The keys of the sound entries before and behind.
fn around(
    judge: &HiveJudge,
    block: &dyn DamagedBlock,
    all: &[Candidate],
    at: usize,
) -> (Vec<u8>, Vec<u8>) {
    // Keys ascend within the block, so the entry stood between these two, whatever it says of
    // itself.
    let from = all[..at].iter().rev().find_map(Candidate::sound_key);
    let before = block.before().map_or_else(|| judge.table.keys.0.to_vec(), |it| it.0.to_vec());
    let to = all[at + 1..].iter().find_map(Candidate::sound_key);
    (from.unwrap_or(before), to.unwrap_or_else(|| judge.table.keys.1.to_vec()))
}

/// The log, then the replica, under the names that the entry may have.
fn elsewhere(
    judge: &mut HiveJudge,
    block: &dyn DamagedBlock,
    all: &[Candidate],
    at: usize,
    missing: Option<u32>,
) -> Option<(OwnedEntry, &'static str)> {
    let Candidate::Unknown(of, known) = &all[at] else { return None };
    let seq = of.entry.seq;
    // By the sequence number, which names one operation. The key may be the damage.
    if judge.options.log && judge.budget.take(LOG_NS) {
        let found = judge.sources.in_log(seq);
        if let Some(entry) = found.filter(|entry| is_it(judge, of, *known, missing, entry)) {
            return Some((entry, "log"));
        }
    }
    let replica = judge.options.replica.clone()?;
    let (from, to) = around(judge, block, all, at);
    // Its own key first: the damage may be in the value alone.
    let mut keys = vec![of.entry.key.clone()];
    if judge.budget.take(KEYS_NS) {
        keys.extend(judge.sources.keys_between(&from, &to, KEYS_ASKED));
    }
    for key in keys {
        let found = replica.fetch(&key, seq).ok().flatten();
        let found = found.filter(|entry| entry.key == key && entry.seq == seq);
        if let Some(entry) = found.filter(|entry| is_it(judge, of, *known, missing, entry)) {
            return Some((entry, "replica"));
        }
    }
    None
}

/// Returns `true` if an entry from elsewhere is the one that stood there.
fn is_it(
    judge: &HiveJudge,
    of: &DecodedEntry,
    known: Option<u64>,
    missing: Option<u32>,
    entry: &OwnedEntry,
) -> bool {
    let (sum, verdict) = judge.compare(&stored_entry(entry, judge), of.hidden.as_deref());
    match (known, missing) {
        (Some(known), _) => sum == known,
        // 32 bits alone could agree by chance, so the source must vouch for the entry as well.
        (None, Some(missing)) => sum as u32 == missing && entry.verified,
        (None, None) => verdict != Verdict::DataCorrupt,
    }
}
