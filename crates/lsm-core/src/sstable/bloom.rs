//! The Bloom structure of a table: one hash per lookup for all tables, one cache line per probe.
//!
//! The table writer builds it, and [`SstReader`](super::SstReader) asks it. It may answer "yes" for
//! a missing key. It never answers "no" for a key of the table.
//!
//! ```text
//! offset  size  name       meaning
//! 0       1     extractor  part of a key that is hashed: 1 the whole user key
//! 1       1     probes     bits that a key sets in its line
//! 2       6     reserved   0
//! 8       64*n  lines      of 8 words of 64 bits each
//! ```
//!
//! The upper half of the hash chooses the line, the lower half the bits. Both are on disk: they
//! never change for an extractor.

use crate::codec::{Malformed, Reader, checksum64, put_u64};
use crate::memory::prefetch;

/// Extractor: the whole user key.
const WHOLE_KEY: u8 = 1;
const HEAD_BYTES: usize = 8;
const LINE_BYTES: usize = 64;
const LINE_BITS: u64 = 512;
const PROBES_MAX: u8 = 24;

/// The hash of a user key that all tables share.
#[inline]
pub fn bloom_hash(user_key: &[u8]) -> u64 {
    checksum64(user_key)
}

/// 512 bits that lie in one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

/// The line of `hash` among `count`: multiply and shift, no division.
#[inline]
fn line_of(hash: u64, count: usize) -> usize {
    (((hash >> 32) * count as u64) >> 32) as usize
}

/// Walks the bits of `hash` in its line, as word and mask.
#[inline]
fn bits(hash: u64, probes: u8) -> impl Iterator<Item = (usize, u64)> {
    // Odd, because products of zero would set one bit again and again.
    let mut state = u64::from(hash as u32 | 1);
    (0..probes).map(move |_| {
        state = state.wrapping_mul(0xd1b5_4a32_d192_ed03);
        // The top 9 bits: they depend on all bits of the factor below.
        let bit = state >> 55;
        ((bit >> 6) as usize, 1 << (bit & 63))
    })
}

/// Collects hashes and makes the payload of the bloom block.
pub(super) struct BloomBuilder {
    bits_per_key: u32,
    hashes: Vec<u64>,
}

impl BloomBuilder {
    /// Returns a builder for `bits_per_key` bits a key; 0 makes no bloom.
    pub(super) fn new(bits_per_key: u32) -> BloomBuilder {
        BloomBuilder { bits_per_key, hashes: Vec::new() }
    }

    /// Adds a user key; the caller leaves out further versions of it.
    pub(super) fn add(&mut self, user_key: &[u8]) {
        if self.bits_per_key > 0 {
            // Hashes are collected first, because the number of lines depends on the number of
            // keys.
            self.hashes.push(bloom_hash(user_key));
        }
    }

    /// Bytes of the payload if it were finished now.
    pub(super) fn payload_bytes(&self) -> u64 {
        let bits = self.hashes.len() as u64 * u64::from(self.bits_per_key);
        if bits == 0 { 0 } else { HEAD_BYTES as u64 + bits.div_ceil(LINE_BITS) * LINE_BYTES as u64 }
    }

    /// The payload, or `None` without keys or bits.
    pub(super) fn finish(&self) -> Option<Vec<u8>> {
        let bit_count = self.hashes.len() as u64 * u64::from(self.bits_per_key);
        if bit_count == 0 {
            return None;
        }
        // Whole cache lines. A power of two would need no multiplication in a lookup, and could
        // double the memory.
        let count = bit_count.div_ceil(LINE_BITS) as usize;
        let probes = probes(self.bits_per_key);
        let mut lines = vec![Line([0; 8]); count];
        for hash in &self.hashes {
            // All bits of a key in one cache line: a lookup costs one miss. Spread bits would give
            // fewer false positives and up to six misses.
            let line = &mut lines[line_of(*hash, count)];
            for (word, mask) in bits(*hash, probes) {
                line.0[word] |= mask;
            }
        }
        let mut out = Vec::with_capacity(HEAD_BYTES + count * LINE_BYTES);
        out.extend_from_slice(&[WHOLE_KEY, probes, 0, 0, 0, 0, 0, 0]);
        for word in lines.iter().flat_map(|line| line.0) {
            put_u64(&mut out, word);
        }
        Some(out)
    }
}

/// Bits that a key sets: a little under the optimum of 0.69 a bit, because keys crowd in lines.
fn probes(bits_per_key: u32) -> u8 {
    u8::try_from(bits_per_key * 6 / 10).unwrap_or(PROBES_MAX).clamp(1, PROBES_MAX)
}

/// A loaded Bloom structure.
pub(super) struct Bloom {
    probes: u8,
    lines: Box<[Line]>,
}

impl Bloom {
    /// Decodes a payload; `None` where the keys were hashed in a way that this version does not
    /// know, so that it cannot be asked.
    pub(super) fn parse(payload: &[u8]) -> Result<Option<Bloom>, Malformed> {
        let mut reader = Reader::new(payload);
        let extractor = reader.u8()?;
        let probes = reader.u8()?;
        reader.take(HEAD_BYTES - 2)?;
        // Not damage: the table is read without it.
        if extractor != WHOLE_KEY {
            return Ok(None);
        }
        // No probe would answer `yes` for every key; many would make each lookup slow at a file's
        // will.
        if probes == 0 || probes > PROBES_MAX {
            return Err(reader.malformed("bloom probe count out of range"));
        }
        if reader.is_empty() || !reader.remaining().is_multiple_of(LINE_BYTES) {
            return Err(reader.malformed("bloom lines are not whole"));
        }
        let mut lines = Vec::with_capacity(reader.remaining() / LINE_BYTES);
        while !reader.is_empty() {
            let mut line = Line([0; 8]);
            for word in &mut line.0 {
                *word = reader.u64()?;
            }
            lines.push(line);
        }
        Ok(Some(Bloom { probes, lines: lines.into() }))
    }

    /// Returns `true` if the key with this hash may be in the table.
    #[expect(
        clippy::needless_bitwise_bool,
        reason = "an early end is a branch; a mispredicted one costs more than it saves"
    )]
    #[inline]
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        let line = &self.lines[line_of(hash, self.lines.len())];
        bits(hash, self.probes).fold(true, |all, (word, mask)| all & (line.0[word] & mask != 0))
    }

    /// Has the processor fetch the line that [`Bloom::may_contain`] looks at.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch((&raw const self.lines[line_of(hash, self.lines.len())]).cast());
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.lines.len() * LINE_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_contain_number(bloom: &Bloom, n: u64) -> bool {
        bloom.may_contain(bloom_hash(&n.to_le_bytes()))
    }

    #[test]
    fn every_key_is_found_and_false_positives_are_near_theory() {
        for (bits_per_key, most) in [(4, 0.17), (8, 0.032), (10, 0.014), (16, 0.0025), (20, 0.001)]
        {
            let mut builder = BloomBuilder::new(bits_per_key);
            (0..100_000_u64).for_each(|n| builder.add(&n.to_le_bytes()));
            let payload = builder.finish().unwrap();
            assert_eq!(payload.len() as u64, builder.payload_bytes());
            let bloom = Bloom::parse(&payload).unwrap().unwrap();
            assert!((0..100_000).all(|n| may_contain_number(&bloom, n)));
            let wrong = (100_000..300_000).filter(|n| may_contain_number(&bloom, *n)).count();
            let rate = wrong as f64 / 200_000.0;
            assert!(rate < most, "{bits_per_key} bits a key: {rate}");
        }
    }

    #[test]
    fn bits_of_a_key_never_change() {
        let mut builder = BloomBuilder::new(10);
        builder.add(b"alice");
        let payload = builder.finish().unwrap();
        let set: Vec<usize> =
            (0..512).filter(|bit| payload[8 + bit / 8] >> (bit % 8) & 1 == 1).collect();
        assert_eq!(payload[..8], [1, 6, 0, 0, 0, 0, 0, 0]);
        assert_eq!(set, [12, 15, 53, 133, 235, 348]);
    }

    #[test]
    fn unknown_extractors_are_not_asked_and_broken_payloads_refused() {
        let mut builder = BloomBuilder::new(10);
        builder.add(b"k");
        let good = builder.finish().unwrap();
        for cut in 0..good.len() {
            assert!(Bloom::parse(&good[..cut]).is_err());
        }
        for probes in [0, 25] {
            let mut bad = good.clone();
            bad[1] = probes;
            assert!(Bloom::parse(&bad).is_err());
        }
        let mut other = good;
        other[0] = 2;
        assert!(Bloom::parse(&other).unwrap().is_none());
    }
}
