//! [`HashTable`]: the hash table of a shard, from the file and offset of a block to the things that
//! the cache keeps of it.
//!
//! Open addressing: a block lies at the place that the hash of its key names, or after it, before
//! the first free place. The map of std would do, but it does not reveal addresses for prefetching:
//! the place of a block is usually in no processor cache, and a cursor knows early which block it
//! comes to next. With the map of std, seeks take 1.09 times as long, and short scans 1.10 times
//! (design note 34).
//!
//! Invariants:
//! 1. The number of places is 0 or a power of two, and at least a quarter of them are free.
//! 2. No free place lies between the place that the hash of a key names and that of its block.

use std::hash::BuildHasher;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::{Key, Mix};
use crate::memory::{LINE_BYTES, prefetch};

const PLACES_MIN: usize = 16;

/// A block under its key, in a line of memory of its own.
#[repr(align(64))]
struct CachePlace<T> {
    key: Key,
    kept: T,
}

/// A hash table from the key of a block to `T`, with open addressing.
pub(super) struct HashTable<T> {
    places: Box<[Option<CachePlace<T>>]>,
    len: usize,
}

impl<T> HashTable<T> {
    /// Memory of a place, in bytes.
    pub(super) const PLACE_BYTES: usize = size_of::<Option<CachePlace<T>>>();

    pub(super) fn new() -> HashTable<T> {
        HashTable { places: Box::default(), len: 0 }
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bits of a hash that name a place.
    #[inline]
    fn mask(&self) -> usize {
        self.places.len().wrapping_sub(1)
    }

    /// The place of the block of `key`, which has this hash.
    #[inline]
    fn find(&self, key: Key, hash: u64) -> Option<usize> {
        let mut at = hash as usize & self.mask();
        // Without places, none is the first.
        while let Some(place) = self.places.get(at)? {
            if place.key == key {
                return Some(at);
            }
            at = (at + 1) & self.mask();
        }
        None
    }

    /// The block of `key`, which has this hash.
    #[inline]
    pub(super) fn get(&self, key: Key, hash: u64) -> Option<&T> {
        self.places[self.find(key, hash)?].as_ref().map(|place| &place.kept)
    }

    /// As [`HashTable::get`], to change.
    pub(super) fn get_mut(&mut self, key: Key, hash: u64) -> Option<&mut T> {
        let at = self.find(key, hash)?;
        self.places[at].as_mut().map(|place| &mut place.kept)
    }

    /// Puts in a block whose key, of this hash, has none.
    pub(super) fn insert(&mut self, key: Key, hash: u64, kept: T) {
        if self.len >= self.places.len() / 4 * 3 {
            self.grow();
        }
        self.put(CachePlace { key, kept }, hash);
        self.len += 1;
    }

    /// Puts `place` at the first free place from that of its hash on.
    fn put(&mut self, place: CachePlace<T>, hash: u64) {
        let mut at = hash as usize & self.mask();
        while self.places[at].is_some() {
            at = (at + 1) & self.mask();
        }
        self.places[at] = Some(place);
    }

    fn grow(&mut self) {
        let count = (2 * self.places.len()).max(PLACES_MIN);
        let places = (0..count).map(|_| None).collect();
        let former = std::mem::replace(&mut self.places, places);
        for place in former.into_iter().flatten() {
            let hash = Mix.hash_one(place.key);
            self.put(place, hash);
        }
    }

    /// Takes out the block of `key`, which has this hash.
    pub(super) fn remove(&mut self, key: Key, hash: u64) -> Option<T> {
        let mut free = self.find(key, hash)?;
        let removed = self.places[free].take()?;
        self.len -= 1;
        let mask = self.mask();
        let mut at = (free + 1) & mask;
        // Later ones move forward, so that a search stops at the first free place.
        while let Some(place) = &self.places[at] {
            let home = Mix.hash_one(place.key) as usize & mask;
            let is_home_later = at.wrapping_sub(home) & mask < at.wrapping_sub(free) & mask;
            if !is_home_later {
                self.places[free] = self.places[at].take();
                free = at;
            }
            at = (at + 1) & mask;
        }
        Some(removed.kept)
    }

    /// All blocks with their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().flatten().map(|place| (place.key, &place.kept))
    }
}

/// Address and length of the table of a shard, for prefetching without the lock. Loads are relaxed
/// and may be inconsistent; a prefetch of a wrong address is harmless.
#[derive(Default)]
pub(super) struct TableAddress {
    start: AtomicUsize,
    mask: AtomicUsize,
}

impl TableAddress {
    /// Notes where the places lie now.
    pub(super) fn note<T>(&self, places: &HashTable<T>) {
        self.start.store(places.places.as_ptr().addr(), Relaxed);
        self.mask.store(places.mask(), Relaxed);
    }

    /// The address of the line in which a block whose key has this hash most likely lies.
    #[inline]
    fn address(&self, hash: u64) -> usize {
        let at = hash as usize & self.mask.load(Relaxed);
        self.start.load(Relaxed).wrapping_add(at.wrapping_mul(LINE_BYTES))
    }

    /// Asks for that line.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(std::ptr::without_provenance(self.address(hash)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::num::NonZeroU64;

    use proptest::prelude::*;

    use super::*;
    use crate::types::FileNo;

    #[test]
    fn an_address_names_the_place_of_a_hash_without_the_lock() {
        let table = TableAddress::default();
        let mut places = HashTable::new();
        for number in 0..100 {
            let key = (FileNo(1), number);
            let hash = Mix.hash_one(key);
            // A type that leaves a place as long as a cache line, as blocks do.
            places.insert(key, hash, NonZeroU64::MIN);
            table.note(&places);
            let place = &places.places[hash as usize & places.mask()];
            assert_eq!(table.address(hash), std::ptr::from_ref(place).addr());
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map(moves in prop::collection::vec((any::<bool>(), 0u64..90), 1..400)) {
            let mut places = HashTable::new();
            let mut model = HashMap::new();
            for (n, (is_put, number)) in moves.into_iter().enumerate() {
                let key = (FileNo(number % 3), number);
                let hash = Mix.hash_one(key);
                if !is_put {
                    prop_assert_eq!(places.remove(key, hash), model.remove(&key));
                } else if let Some(kept) = places.get_mut(key, hash) {
                    *kept = n;
                    model.insert(key, n);
                } else {
                    places.insert(key, hash, n);
                    model.insert(key, n);
                }
                prop_assert_eq!(places.len(), model.len());
                let found: HashMap<_, _> = places.iter().map(|(key, n)| (key, *n)).collect();
                prop_assert_eq!(&found, &model);
                for (key, n) in &model {
                    prop_assert_eq!(places.get(*key, Mix.hash_one(key)), Some(n));
                }
            }
        }
    }
}
