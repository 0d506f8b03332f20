//! [`AdmissionFilter`]: the blocks that were requested recently and are not kept.
//!
//! S3-FIFO has a queue of them. This is a table of fingerprints: a hash has one place, and a new
//! one replaces the old one there. So a request costs one line of memory and no lock, and a block
//! is forgotten after about as many requests as there are places. Where the data are larger than the
//! cache, point reads take 1.5 times as long without it, and seeks 1.3 times (design note 34).
//!
//! All accesses are relaxed: a fingerprint that is lost makes a block enter the cache one request later.

use std::sync::atomic::{AtomicU32, Ordering};

/// One place per so many bytes of the cache: half as many places as it keeps blocks of the default length.
/// With more, a larger share of random reads of data beyond the cache replaces a block by one that is worth
/// no more; with fewer, a cache takes longer to follow readers that turn to other data.
const BYTES_PER_PLACE: u64 = 8 << 10;
const PLACES_MIN: u64 = 64;
/// 16 MiB of memory. The capacity may be any number, for a cache that never evicts a block.
const PLACES_MAX: u64 = 1 << 22;

/// Fingerprints of blocks that were requested recently and are not kept.
pub(super) struct AdmissionFilter(Box<[AtomicU32]>);

impl AdmissionFilter {
    /// An empty table for a cache of `capacity` bytes; for one of 0 bytes it remembers nothing.
    pub(super) fn new(capacity: u64) -> AdmissionFilter {
        let count = match capacity {
            0 => 0,
            _ => (capacity / BYTES_PER_PLACE).clamp(PLACES_MIN, PLACES_MAX).next_power_of_two(),
        };
        AdmissionFilter((0..count).map(|_| AtomicU32::new(0)).collect())
    }

    /// The place and the fingerprint of a hash. The place is its low bits; a table never needs more
    /// than 32 of them.
    #[inline]
    fn place(&self, hash: u64) -> Option<(&AtomicU32, u32)> {
        let place = self.0.get(hash as u32 as usize & self.0.len().wrapping_sub(1))?;
        // 0 is an empty place.
        Some((place, (hash >> 32) as u32 | 1))
    }

    /// Returns `true` if the block with this hash was noted, and no other one has replaced it
    /// since.
    #[inline]
    pub(super) fn has(&self, hash: u64) -> bool {
        self.place(hash).is_some_and(|(place, mark)| place.load(Ordering::Relaxed) == mark)
    }

    /// Notes the block with this hash.
    #[inline]
    pub(super) fn note(&self, hash: u64) {
        if let Some((place, mark)) = self.place(hash) {
            place.store(mark, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        n.wrapping_mul(0x9fb2_1c65_1e98_df25)
    }

    #[test]
    fn a_table_remembers_about_as_many_as_it_has_places() {
        let admission = AdmissionFilter::new(256 * BYTES_PER_PLACE);
        (0..2560).for_each(|n| admission.note(hash(n)));
        let remembered = (0..2560).filter(|n| admission.has(hash(*n))).count();
        assert!((200..=256).contains(&remembered), "{remembered}");
        let of_late = (2560 - 64..2560).filter(|n| admission.has(hash(*n))).count();
        assert!(of_late > 40, "{of_late}");
        assert!(!admission.has(hash(5000)));
    }

    #[test]
    fn a_cache_of_any_capacity_has_a_table_of_16_mib_at_most() {
        for capacity in [1, 1 << 40, u64::MAX] {
            let admission = AdmissionFilter::new(capacity);
            admission.note(hash(7));
            assert!(admission.has(hash(7)) && admission.0.len() as u64 <= PLACES_MAX);
        }
    }

    #[test]
    fn an_empty_cache_remembers_nothing() {
        let admission = AdmissionFilter::new(0);
        admission.note(7);
        assert!(!admission.has(7));
    }
}
