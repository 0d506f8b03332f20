//! The Bloom structure of a table: one hash per lookup for all tables, one cache line per probe.
//!
//! The table writer builds it, and [`SstReader`](super::SstReader) asks it. It may answer "yes" for
//! a missing key. It never answers "no" for a key of the table.
//!
//! ```text
//! offset  size  name       meaning
//! 0       1     extractor  part of a key that is hashed: 1 the whole user key
//! 1       1     probes     bits that a key sets in its line
//! 2       4     prefixes   what of a key is hashed as well: 0 nothing; in the low byte 1 so many bytes
//!                          from its first on (u16, at least 1), 2 all up to the first byte of a value,
//!                          with it (u8). The three high bytes have length or value
//! 6       2     reserved   0
//! 8       64*n  lines      of 8 words of 64 bits each
//! ```
//!
//! The upper half of the hash chooses the line, the lower half the bits. Both are on disk: they
//! never change for an extractor. Code that does not know the field of the prefixes, or not its number,
//! asks for whole keys, which are there in any case.

use crate::codec::{Malformed, Reader, checksum64, put_u32, put_u64};
use crate::memory::prefetch;
use crate::options::PrefixExtractor;

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

/// Hashes in pieces of one length. A vector that grows would copy itself to twice the length, and the allocator
/// keeps the memory that it leaves.
#[derive(Default)]
struct Hashes(Vec<Vec<u64>>);

impl Hashes {
    /// Hashes of a piece. Allocators get much more than this from the system, and give it back.
    const PIECE: usize = 8 << 10;

    #[inline]
    fn push(&mut self, hash: u64) {
        match self.0.last_mut() {
            Some(piece) if piece.len() < Hashes::PIECE => piece.push(hash),
            _ => self.begin_piece(hash),
        }
    }

    #[cold]
    fn begin_piece(&mut self, hash: u64) {
        // The first one grows: many tables have few keys.
        let capacity = if self.0.is_empty() { 0 } else { Hashes::PIECE };
        let mut piece = Vec::with_capacity(capacity);
        piece.push(hash);
        self.0.push(piece);
    }

    fn len(&self) -> u64 {
        let full = self.0.len().saturating_sub(1) * Hashes::PIECE;
        (full + self.0.last().map_or(0, Vec::len)) as u64
    }

    fn iter(&self) -> impl Iterator<Item = &u64> {
        self.0.iter().flatten()
    }
}

/// Collects hashes and makes the payload of the bloom block.
pub(super) struct BloomBuilder {
    bits_per_key: u32,
    extractor: Option<PrefixExtractor>,
    hashes: Hashes,
    /// The hash of the last prefix.
    last_prefix: Option<u64>,
}

impl BloomBuilder {
    /// Returns a builder for `bits_per_key` bits a key and a prefix; 0 makes no bloom.
    pub(super) fn new(bits_per_key: u32, extractor: Option<PrefixExtractor>) -> BloomBuilder {
        BloomBuilder { bits_per_key, extractor, hashes: Hashes::default(), last_prefix: None }
    }

    /// Adds a user key and its prefix. Keys ascend; the caller leaves out further versions of a key.
    pub(super) fn add(&mut self, user_key: &[u8]) {
        if self.bits_per_key == 0 {
            return;
        }
        // Hashes are collected first, because the number of lines depends on the number of
        // keys.
        self.hashes.push(bloom_hash(user_key));
        let prefix = self.extractor.and_then(|extractor| extractor.of(user_key)).map(bloom_hash);
        // Keys with one prefix are neighbours.
        if let Some(hash) = prefix.filter(|hash| Some(*hash) != self.last_prefix) {
            self.hashes.push(hash);
            self.last_prefix = prefix;
        }
    }

    /// Bytes of the payload if it were finished now.
    pub(super) fn payload_bytes(&self) -> u64 {
        let bits = self.hashes.len() * u64::from(self.bits_per_key);
        if bits == 0 { 0 } else { HEAD_BYTES as u64 + bits.div_ceil(LINE_BITS) * LINE_BYTES as u64 }
    }

    /// The payload, or `None` without keys or bits.
    pub(super) fn finish(&self) -> Option<Vec<u8>> {
        let bit_count = self.hashes.len() * u64::from(self.bits_per_key);
        if bit_count == 0 {
            return None;
        }
        // Whole cache lines. A power of two would need no multiplication in a lookup, and could
        // double the memory.
        let count = bit_count.div_ceil(LINE_BITS) as usize;
        let probes = probes(self.bits_per_key);
        let mut lines = vec![Line([0; 8]); count];
        for hash in self.hashes.iter() {
            // All bits of a key in one cache line: a lookup costs one miss. Spread bits would give
            // fewer false positives and up to six misses.
            let line = &mut lines[line_of(*hash, count)];
            for (word, mask) in bits(*hash, probes) {
                line.0[word] |= mask;
            }
        }
        let mut out = Vec::with_capacity(HEAD_BYTES + count * LINE_BYTES);
        out.extend_from_slice(&[WHOLE_KEY, probes]);
        put_u32(&mut out, self.extractor.map_or(0, PrefixExtractor::number));
        out.extend_from_slice(&[0, 0]);
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
    /// The prefixes that it has.
    extractor: Option<PrefixExtractor>,
    lines: Box<[Line]>,
}

impl Bloom {
    /// Decodes a payload; `None` where the keys were hashed in a way that this version does not
    /// know, so that it cannot be asked.
    pub(super) fn parse(payload: &[u8]) -> Result<Option<Bloom>, Malformed> {
        let mut reader = Reader::new(payload);
        let extractor = reader.u8()?;
        let probes = reader.u8()?;
        let prefixes = PrefixExtractor::from_number(reader.u32()?);
        reader.take(2)?;
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
        Ok(Some(Bloom { probes, extractor: prefixes, lines: lines.into() }))
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

    /// The prefixes that it has, and can be asked for.
    pub(super) fn extractor(&self) -> Option<PrefixExtractor> {
        self.extractor
    }

    /// Returns what the bloom lacks of a key that is in the table, if it is not that table's bloom.
    pub(super) fn lacks(&self, user_key: &[u8]) -> Option<&'static str> {
        if !self.may_contain(bloom_hash(user_key)) {
            return Some("bloom does not have a key of the block");
        }
        let prefix = self.extractor.and_then(|extractor| extractor.of(user_key))?;
        let is_there = self.may_contain(bloom_hash(prefix));
        (!is_there).then_some("bloom does not have the prefix of a key of the block")
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
            let mut builder = BloomBuilder::new(bits_per_key, None);
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
        let mut builder = BloomBuilder::new(10, None);
        builder.add(b"alice");
        let payload = builder.finish().unwrap();
        let set: Vec<usize> =
            (0..512).filter(|bit| payload[8 + bit / 8] >> (bit % 8) & 1 == 1).collect();
        assert_eq!(payload[..8], [1, 6, 0, 0, 0, 0, 0, 0]);
        assert_eq!(set, [12, 15, 53, 133, 235, 348]);
    }

    fn with_prefixes(extractor: PrefixExtractor, keys: &[&[u8]]) -> Vec<u8> {
        let mut builder = BloomBuilder::new(10, Some(extractor));
        keys.iter().for_each(|key| builder.add(key));
        builder.finish().unwrap()
    }

    #[test]
    fn prefixes_are_there_once_each_and_named_in_the_head() {
        let keys = [&b"bin/cp"[..], b"bin/ls", b"etc/fstab", b"initrd", b"usr/"];
        let payload = with_prefixes(PrefixExtractor::Through(b'/'), &keys);
        assert_eq!(payload[..8], [1, 6, 2, b'/', 0, 0, 0, 0]);
        // Five keys and three prefixes.
        let mut builder = BloomBuilder::new(64, Some(PrefixExtractor::Through(b'/')));
        keys.iter().for_each(|key| builder.add(key));
        assert_eq!(builder.payload_bytes(), 8 + 64);
        builder.add(b"v");
        assert_eq!(builder.payload_bytes(), 8 + 2 * 64, "nine hashes of 64 bits");
        let bloom = Bloom::parse(&payload).unwrap().unwrap();
        assert_eq!(bloom.extractor(), Some(PrefixExtractor::Through(b'/')));
        let prefixes = [&b"bin/"[..], b"etc/", b"usr/"];
        assert!(keys.iter().all(|key| bloom.lacks(key).is_none()));
        assert!(prefixes.iter().all(|prefix| bloom.may_contain(bloom_hash(prefix))));
        let payload = with_prefixes(PrefixExtractor::Fixed(0x102), &keys);
        assert_eq!(payload[..8], [1, 6, 1, 2, 1, 0, 0, 0]);
    }

    #[test]
    fn a_bloom_names_what_it_lacks_of_a_key() {
        let other = with_prefixes(PrefixExtractor::Fixed(3), &[b"etc/fstab"]);
        let other = Bloom::parse(&other).unwrap().unwrap();
        assert_eq!(other.lacks(b"bin/ls"), Some("bloom does not have a key of the block"));
        // As from a bloom whose head says more than its lines have.
        let mut builder = BloomBuilder::new(10, None);
        builder.add(b"bin/ls");
        let mut lie = builder.finish().unwrap();
        lie[2..4].copy_from_slice(&[1, 3]);
        let lie = Bloom::parse(&lie).unwrap().unwrap();
        let what = "bloom does not have the prefix of a key of the block";
        assert_eq!(lie.lacks(b"bin/ls"), Some(what));
    }

    #[test]
    fn unknown_prefixes_are_not_asked_and_whole_keys_are() {
        let keys = [&b"bin/ls"[..]];
        for head in [[3, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [2, 1, 1, 0], [0xff; 4], [0; 4]] {
            let mut payload = with_prefixes(PrefixExtractor::Through(b'/'), &keys);
            payload[2..6].copy_from_slice(&head);
            let bloom = Bloom::parse(&payload).unwrap().unwrap();
            assert_eq!(bloom.extractor(), None, "{head:?}");
            assert!(bloom.may_contain(bloom_hash(keys[0])));
        }
    }

    #[test]
    fn unknown_extractors_are_not_asked_and_broken_payloads_refused() {
        let mut builder = BloomBuilder::new(10, None);
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
