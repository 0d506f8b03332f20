//! The search for flipped bits: which one or two of an entry's bits, turned back, make the checksum
//! agree.
//!
//! Repairs call it for bytes that they have just read. The checksum is the XOR of the hashes of the
//! fields. So the search hashes one field for each flip, and nothing for a pair of flips in two
//! fields.
//!
//! Cost of 20 + 100 bytes: one bit about 8 us, two bits about 4 ms. An accidental match has odds of
//! candidates / 2^64: 5e-17 and 4e-14.

use std::collections::HashMap;

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

impl Bit {
    fn is_in_field_of(self, other: Bit) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

fn flip(bytes: &mut [u8], bit: usize) {
    bytes[bit / 8] ^= 1 << (bit % 8);
}

/// The entry with bits turned, if it is one: a kind that is known.
fn turned(entry: &OwnedEntry, bits: &[Bit]) -> Option<OwnedEntry> {
    let mut entry = entry.clone();
    let mut kind = [entry.kind as u8];
    for bit in bits {
        match *bit {
            Bit::Key(at) => flip(&mut entry.key, at),
            Bit::Value(at) => flip(&mut entry.value, at),
            Bit::Seq(at) => entry.seq = SeqNo::new(entry.seq.get() ^ 1 << at)?,
            Bit::Kind(at) => flip(&mut kind, at),
        }
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

/// As [`flips`], for each two flips.
fn flip_pairs(bytes: &[u8], hash: impl Fn(&[u8]) -> u64, mut found: impl FnMut(usize, usize, u64)) {
    let mut bytes = bytes.to_vec();
    let before = hash(&bytes);
    for first in 0..bytes.len() * 8 {
        flip(&mut bytes, first);
        for second in first + 1..bytes.len() * 8 {
            flip(&mut bytes, second);
            found(first, second, before ^ hash(&bytes));
            flip(&mut bytes, second);
        }
        flip(&mut bytes, first);
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

/// The entry that differs from this one in a single bit, agrees with its metadata and is
/// `plausible`, if there is exactly one. One of the metadata's two copies may be damaged too.
pub(crate) fn one_bit(
    entry: &OwnedEntry,
    metadata: &Payload,
    plausible: impl FnMut(&OwnedEntry) -> bool,
) -> Option<OwnedEntry> {
    let sum = sum_of(entry);
    // While the two copies agree the first one is sound, and a match with the second alone would be
    // chance.
    let is_consistent = metadata.is_sound();
    let mut found = Vec::new();
    each_bit(entry, |bit, by| {
        let turned = sum ^ by;
        let agrees = turned == metadata.sum || (!is_consistent && metadata.was(turned));
        if agrees {
            found.push([bit]);
        }
    });
    only(found.iter().filter_map(|bits| turned(entry, bits)).filter(plausible))
}

/// The only single bit of the entry that, turned, makes it agree with its metadata.
pub(crate) fn one_bit_at(entry: &OwnedEntry, metadata: &Payload) -> Option<Bit> {
    let sum = sum_of(entry);
    let is_consistent = metadata.is_sound();
    let mut found = Vec::new();
    each_bit(entry, |bit, by| {
        let turned = sum ^ by;
        let agrees = turned == metadata.sum || (!is_consistent && metadata.was(turned));
        if agrees {
            found.push(bit);
        }
    });
    match found[..] {
        [bit] => Some(bit),
        _ => None,
    }
}

/// As [`one_bit`], for two bits. Only for metadata whose checksum is undamaged.
pub(crate) fn two_bits(
    entry: &OwnedEntry,
    metadata: &Payload,
    plausible: impl FnMut(&OwnedEntry) -> bool,
) -> Option<OwnedEntry> {
    // The sum is an exclusive or of parts, so the wanted difference is known before the search. A
    // pair over two fields then takes one look into a map, where hashing it would take the square
    // of the bits.
    let needed = sum_of(entry) ^ metadata.sum;
    let mut found = Vec::new();
    // Two fields: the differences add up.
    let mut by_difference = HashMap::new();
    each_bit(entry, |bit, by| {
        if let Some(other) = by_difference.get(&(needed ^ by))
            && !bit.is_in_field_of(*other)
        {
            found.push([*other, bit]);
        }
        // One bit stays for each difference: two bits with the same one are as unlikely as an
        // accidental match.
        by_difference.insert(by, bit);
    });
    // One field: each pair is hashed.
    flip_pairs(&entry.key, checksum::of_key, |first, second, by| {
        if by == needed {
            found.push([Bit::Key(first), Bit::Key(second)]);
        }
    });
    flip_pairs(&entry.value, checksum::of_value, |first, second, by| {
        if by == needed {
            found.push([Bit::Value(first), Bit::Value(second)]);
        }
    });
    for first in 0..56 {
        for second in first + 1..56 {
            let seq = SeqNo::new(entry.seq.get() ^ 1 << first ^ 1 << second).expect("56 bits");
            if checksum::with_seq(0, entry.seq, seq) == needed {
                found.push([Bit::Seq(first), Bit::Seq(second)]);
            }
        }
    }
    for first in 0..8 {
        for second in first + 1..8 {
            let kind = entry.kind as u8 ^ 1 << first ^ 1 << second;
            let Some(kind) = EntryKind::from_u8(kind) else { continue };
            if checksum::of_kind(entry.kind) ^ checksum::of_kind(kind) == needed {
                found.push([Bit::Kind(first), Bit::Kind(second)]);
            }
        }
    }
    only(found.iter().filter_map(|bits| turned(entry, bits)).filter(plausible))
}

/// The only item, or none.
fn only(mut items: impl Iterator<Item = OwnedEntry>) -> Option<OwnedEntry> {
    // Two candidates are no repair: nothing tells which of them was written.
    let first = items.next()?;
    items.next().is_none().then_some(first)
}
