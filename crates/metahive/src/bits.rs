//! The search for a flipped bit: which of an entry's bits, turned back, makes the checksum agree.
//!
//! Repairs call it for bytes that they have just read. The checksum is the XOR of the hashes of the
//! fields. So the search hashes one field for each flip.
//!
//! Cost of 20 + 100 bytes: about 8 us. An accidental match has odds of candidates / 2^64: 5e-17.

use lsm_core::hooks::OwnedEntry;
use lsm_core::types::{EntryKind, SeqNo};

use crate::checksum;
use crate::payload::Payload;

/// A bit of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bit {
    Key(usize),
    Value(usize),
    Seq(usize),
    Kind(usize),
}

fn flip(bytes: &mut [u8], bit: usize) {
    bytes[bit / 8] ^= 1 << (bit % 8);
}

/// The entry with a bit turned, if it is one: a kind that is known.
fn turned(entry: &OwnedEntry, bit: Bit) -> Option<OwnedEntry> {
    let mut entry = entry.clone();
    let mut kind = [entry.kind as u8];
    match bit {
        Bit::Key(at) => flip(&mut entry.key, at),
        Bit::Value(at) => flip(&mut entry.value, at),
        Bit::Seq(at) => entry.seq = SeqNo::new(entry.seq.get() ^ 1 << at)?,
        Bit::Kind(at) => flip(&mut kind, at),
    }
    entry.kind = EntryKind::from_u8(kind[0])?;
    Some(entry)
}

/// Calls `found` with the difference that each flip of `bytes` makes to their hash.
fn flips(bytes: &[u8], hash: impl Fn(&[u8]) -> u64, mut found: impl FnMut(usize, u64)) {
    let mut bytes = bytes.to_vec();
    let before = hash(&bytes);
    for bit in 0..bytes.len() * 8 {
        // Turned in place and back. A copy for each bit would cost more than the hash of a short
        // key.
        flip(&mut bytes, bit);
        found(bit, before ^ hash(&bytes));
        flip(&mut bytes, bit);
    }
}

/// Calls `found` for each bit of the entry with the difference that it makes to the sum.
fn each_bit(entry: &OwnedEntry, mut found: impl FnMut(Bit, u64)) {
    flips(&entry.key, checksum::of_key, |bit, by| found(Bit::Key(bit), by));
    flips(&entry.value, checksum::of_value, |bit, by| found(Bit::Value(bit), by));
    for bit in 0..56 {
        let seq = SeqNo::new(entry.seq.get() ^ 1 << bit).expect("56 bits");
        found(Bit::Seq(bit), checksum::with_seq(0, entry.seq, seq));
    }
    for bit in 0..8 {
        // A kind that does not exist was not written, so it is no candidate.
        if let Some(kind) = EntryKind::from_u8(entry.kind as u8 ^ 1 << bit) {
            found(Bit::Kind(bit), checksum::of_kind(entry.kind) ^ checksum::of_kind(kind));
        }
    }
}

fn sum_of(entry: &OwnedEntry) -> u64 {
    checksum::of_entry(&entry.key, &entry.value, entry.seq, entry.kind)
}

/// The only single bit of the entry that, turned, makes it agree with its metadata, and the entry with
/// this bit turned. One of the metadata's two copies may be damaged too.
pub(crate) fn one_bit(entry: &OwnedEntry, metadata: &Payload) -> Option<(Bit, OwnedEntry)> {
    let sum = sum_of(entry);
    // While the two copies agree the first one is sound, and a match with the second alone would be
    // chance.
    let is_consistent = metadata.is_sound();
    let mut found = Vec::new();
    each_bit(entry, |bit, by| {
        let turned = sum ^ by;
        let agrees = turned == metadata.sum || (!is_consistent && metadata.was(turned));
        if agrees {
            found.push(bit);
        }
    });
    // Two candidates are no repair: nothing shows which of them was written.
    match found[..] {
        [bit] => turned(entry, bit).map(|entry| (bit, entry)),
        _ => None,
    }
}
