//! A Bloom filter over the keys of a memtable, so that a lookup of a missing key costs a few cached
//! words instead of a search through the skiplist.
//!
//! It grows with the memtable: tier after tier, each eight times the one before, so that a memtable
//! of three entries takes 4 KiB and one of 200,000 a bit over ten bits a key. A key's bits are in
//! the tier that was the last one when the key was inserted.
//!
//! Invariants:
//! 1. One thread inserts, in commit order; any thread looks up.
//! 2. The bits of a key are set before its sequence number is published. A reader that sees that
//!    number sees the bits: the number is published with release and loaded with acquire, so
//!    relaxed is enough here. Until then no reader may see the entry, so a `no` is correct.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::prefetch;

const LINE_WORDS: usize = 8;
/// Lines of the first tier (4 KiB).
const FIRST_LINES: usize = 64;
/// Each tier has this many times the lines of the one before.
const GROWTH: usize = 8;
/// Keys per line before the next tier begins: 10.7 bits a key.
const KEYS_PER_LINE: u64 = 48;
/// Bits set for a key.
const PROBES: u32 = 6;
const TIERS: usize = 7;

/// A cache line: all bits of one key are in one.
#[repr(align(64))]
struct BloomLine([AtomicU64; LINE_WORDS]);

/// A Bloom filter that grows in tiers.
#[derive(Default)]
pub(super) struct MemtableBloom {
    tiers: [OnceLock<Box<[BloomLine]>>; TIERS],
}

const fn lines(tier: usize) -> usize {
    FIRST_LINES * GROWTH.pow(tier as u32)
}

/// The tier of the bits of key number `count`.
fn tier_of(count: u64) -> usize {
    let mut held = 0;
    for tier in 0..TIERS - 1 {
        held += lines(tier) as u64 * KEYS_PER_LINE;
        if count < held {
            return tier;
        }
    }
    // The last tier takes all further keys: its false positive rate grows, and its answers stay
    // correct.
    TIERS - 1
}

/// The words of the key's line and its bits in each: word index in the line, mask.
fn probes(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    // The high bits choose the line; nine of the low ones each a bit in it.
    (0..PROBES).map(move |probe| {
        let bit = (hash >> (9 * probe)) & 511;
        ((bit >> 6) as usize, 1 << (bit & 63))
    })
}

#[inline]
fn line_of(lines: &[BloomLine], hash: u64) -> &BloomLine {
    // Mixed again, because the low bits of the hash choose the bits in the line.
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &lines[((u128::from(mixed) * lines.len() as u128) >> 64) as usize]
}

fn may_be_in(lines: &[BloomLine], hash: u64) -> bool {
    let BloomLine(words) = line_of(lines, hash);
    // No branch for each probe: the line is in the cache or it is not.
    probes(hash)
        .fold(true, |all, (word, mask)| all & (words[word].load(Ordering::Relaxed) & mask != 0))
}

impl MemtableBloom {
    /// Adds the key with this hash, the `count`-th from 0.
    pub(super) fn insert(&self, hash: u64, count: u64) {
        let tier = tier_of(count);
        let lines = self.tiers[tier].get_or_init(|| {
            (0..lines(tier))
                .map(|_| BloomLine(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect()
        });
        let BloomLine(words) = line_of(lines, hash);
        for (word, mask) in probes(hash) {
            // One thread inserts, so a load and a store lose nothing.
            words[word].store(words[word].load(Ordering::Relaxed) | mask, Ordering::Relaxed);
        }
    }

    /// Prefetches the memory that [`MemtableBloom::insert`] needs for about the `count`-th key.
    #[inline]
    pub(super) fn fetch(&self, hash: u64, count: u64) {
        if let Some(lines) = self.tiers[tier_of(count)].get() {
            prefetch(std::ptr::from_ref(line_of(lines, hash)).cast());
        }
    }

    /// Has the processor fetch the lines that [`MemtableBloom::may_contain`] looks at.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        for lines in self.tiers.iter().map_while(OnceLock::get) {
            prefetch(std::ptr::from_ref(line_of(lines, hash)).cast());
        }
    }

    /// Returns `true` if a key with this hash may have been added.
    #[inline]
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        for tier in &self.tiers {
            // Tiers are made in order, so the first missing one ends the search.
            let Some(lines) = tier.get() else { return false };
            if may_be_in(lines, hash) {
                return true;
            }
        }
        false
    }

    /// Memory taken, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.tiers.iter().map_while(OnceLock::get).map(|lines| size_of_val(&**lines) as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::checksum64;

    #[test]
    fn what_was_added_is_found_and_little_else() {
        let hash = |n: u64| checksum64(&n.to_le_bytes());
        let bloom = MemtableBloom::default();
        assert!(!bloom.may_contain(hash(0)));
        let count = 100_000;
        for n in 0..count {
            bloom.insert(hash(n), n);
        }
        assert!((0..count).all(|n| bloom.may_contain(hash(n))));
        let wrong = (count..2 * count).filter(|n| bloom.may_contain(hash(*n))).count();
        assert!(wrong < 5000, "{wrong} of {count}");
        assert!(bloom.bytes() < 300 << 10, "{}", bloom.bytes());
    }
}
