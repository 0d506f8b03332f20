//! [`MappedChunk`]: a chunk file that stays mapped to be read, and which of its values were verified.
//!
//! `get_ref` lends values from it. A store keeps it with the open file, and drops it before it
//! deletes the file: the system keeps the space of a file as long as it is mapped.
//!
//! Mapping and verifying a value at each call took 33 us for 64 KiB; a read into a buffer takes 13
//! us (design note 23).
//!
//! Invariant: a value is noted as verified only after its bytes in memory have agreed with its root hash.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use lsm_core::error::Result;
use lsm_core::fs::MappedBytes;
use parking_lot::RwLock;

use crate::block::{Block, PREFETCH_BYTES_MAX};

/// Number of values of a file that are remembered as verified. It suffices for all of 64 KiB or
/// more in a file of 256 MiB, and verifying a smaller one again takes a few microseconds.
const VERIFIED_MAX: usize = 4096;
/// Values are neighbours if at most so many bytes lie between them: a key and checksums.
const WALK_GAP_BYTES: usize = 64 << 10;

/// A chunk file that stays mapped, and its verified values.
#[derive(Default)]
pub struct MappedChunk {
    state: RwLock<Mapped>,
    /// The end of the value that was populated last. Relaxed: a hint.
    populated_end: AtomicUsize,
}

#[derive(Default)]
struct Mapped {
    /// The file up to the length that it had when it was mapped.
    bytes: Option<MappedBytes>,
    /// Lengths and root hashes of the verified values, by the offset of their bytes. A handle with
    /// other ones is damaged, or of another value.
    verified: HashMap<u64, (u64, u128)>,
    /// The system cannot report whether pages are in memory. Nothing is mapped again.
    is_refused: bool,
}

/// A value in a mapped file, verified.
#[derive(Clone)]
pub struct MappedValue {
    bytes: MappedBytes,
    range: Range<usize>,
}

impl AsRef<[u8]> for MappedValue {
    fn as_ref(&self) -> &[u8] {
        &(*self.bytes).as_ref()[self.range.clone()]
    }
}

impl MappedValue {
    /// Returns `false` if some of its pages would have to be read from the device. A long value
    /// counts as in memory: the system reads it ahead while it is used.
    fn is_resident(&self) -> bool {
        self.range.len() as u64 > PREFETCH_BYTES_MAX || self.bytes.is_resident(self.range.clone())
    }

    /// Makes the system provide its pages. If they are not all in memory, they are prefetched
    /// first: otherwise the system would read megabytes around each touched page, or, after many
    /// such reads, that page alone. In a walk from value to value the next ones are prefetched as
    /// well.
    fn populate(&self, block: &Block, is_resident: bool, is_walk: bool) -> bool {
        if !is_resident {
            let len = if is_walk { PREFETCH_BYTES_MAX } else { self.range.len() as u64 };
            block.file.prefetch(self.range.start as u64, len);
        }
        self.bytes.populate(self.range.clone())
    }
}

impl MappedChunk {
    /// The value of a block of this file, in the mapping; verified at its first use. `None` if the
    /// file cannot be mapped or read, or if a sub-block is compressed.
    ///
    /// # Errors
    /// Corruption; the error of reading the file's length.
    pub fn lend(&self, block: &Block) -> Result<Option<MappedValue>> {
        // A page after the end of the file would end the process.
        let file_bytes = block.file_bytes()?;
        // Whole files would use up 32 bits of addresses.
        if cfg!(target_pointer_width = "32") || !block.handle.is_stored_as_given() {
            return Ok(None);
        }
        let start = block.handle.value_offset();
        let range = start as usize..(start + block.handle.len) as usize;
        let identity = (block.handle.len, block.handle.root);
        let mapped = self.state.read();
        let is_verified = mapped.verified.get(&start) == Some(&identity);
        let known = mapped.bytes.clone();
        drop(mapped);
        let known = known.filter(|bytes| (**bytes).as_ref().len() >= range.end);
        let Some(bytes) = known.or_else(|| self.map(block, file_bytes)) else { return Ok(None) };
        let value = MappedValue { bytes, range };
        let is_resident = value.is_resident();
        if is_verified && is_resident {
            return Ok(Some(value));
        }
        let before = self.populated_end.swap(value.range.end, Ordering::Relaxed);
        let is_walk = (before..before + WALK_GAP_BYTES).contains(&value.range.start);
        // An error of the device is no signal here: the caller reads the value, and that read
        // returns it.
        if !value.populate(block, is_resident, is_walk) {
            self.refuse();
            return Ok(None);
        }
        // Also one that was verified before: it may have come from the device again.
        let verified = block.verify_whole(value.as_ref());
        let mut mapped = self.state.write();
        if let Err(damaged) = verified {
            mapped.verified.remove(&start);
            return Err(damaged);
        }
        if mapped.verified.len() >= VERIFIED_MAX {
            mapped.verified.clear();
        }
        mapped.verified.insert(start, identity);
        Ok(Some(value))
    }

    /// Maps the file to its present length: it grows as long as it has a writer.
    fn map(&self, block: &Block, file_bytes: u64) -> Option<MappedBytes> {
        if self.state.read().is_refused {
            return None;
        }
        let bytes = block.file.map(0, usize::try_from(file_bytes).ok()?)?;
        // Lent values keep the previous mapping, which ends here otherwise: without the lock.
        let _before = self.state.write().bytes.replace(bytes.clone());
        Some(bytes)
    }

    /// Ends a mapping whose pages cannot be read. It is made again only if some could be read
    /// before, and then the pages of each value are prefetched again.
    fn refuse(&self) {
        let mut mapped = self.state.write();
        mapped.is_refused = mapped.verified.is_empty();
        mapped.verified.clear();
        let bytes = mapped.bytes.take();
        drop(mapped);
        drop(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use lsm_core::clock::SystemClock;
    use lsm_core::fs::{File, MappedFile, MemFs};
    use lsm_core::hooks::ValueStore;
    use parking_lot::Mutex;

    use super::*;
    use crate::block::ByteSource;
    use crate::options::LargeValueOptions;
    use crate::shared::Shared;
    use crate::store::LargeStore;
    use crate::tests::context;

    /// The pages of the mappings of a file.
    #[derive(Default)]
    struct Pages {
        are_lost: AtomicBool,
        /// The system has evicted them.
        are_evicted: AtomicBool,
        /// The device returns other bytes.
        are_damaged: AtomicBool,
        /// The number of prefetch calls.
        asked: AtomicUsize,
        /// Offsets and lengths of the requested read-ahead.
        ahead: Mutex<Vec<(u64, u64)>>,
    }

    struct PagedFile(Arc<dyn File>, Arc<Pages>);

    /// Sound bytes and damaged ones.
    struct PagedBytes([Vec<u8>; 2], Arc<Pages>);

    impl AsRef<[u8]> for PagedBytes {
        fn as_ref(&self) -> &[u8] {
            &self.0[usize::from(self.1.are_damaged.load(Ordering::Relaxed))]
        }
    }

    impl MappedFile for PagedBytes {
        fn populate(&self, _: Range<usize>) -> bool {
            self.1.asked.fetch_add(1, Ordering::Relaxed);
            !self.1.are_lost.load(Ordering::Relaxed)
        }

        fn is_resident(&self, _: Range<usize>) -> bool {
            !self.1.are_evicted.load(Ordering::Relaxed)
        }
    }

    impl File for PagedFile {
        fn append(&self, bytes: &[u8]) -> Result<()> {
            self.0.append(bytes)
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
            self.0.read_at(offset, buf)
        }

        fn prefetch(&self, offset: u64, len: u64) {
            self.1.ahead.lock().push((offset, len));
        }

        fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
            self.0.read_at_uncached(offset, buf)
        }

        fn sync(&self) -> Result<()> {
            self.0.sync()
        }

        fn len(&self) -> Result<u64> {
            self.0.len()
        }

        fn preallocate(&self, len: u64) -> Result<()> {
            self.0.preallocate(len)
        }

        fn punch(&self, offset: u64, len: u64) -> Result<()> {
            self.0.punch(offset, len)
        }

        fn map(&self, offset: u64, len: usize) -> Option<MappedBytes> {
            let mut bytes = vec![0; len];
            self.0.read_at(offset, &mut bytes).ok()?;
            let damaged = bytes.iter().map(|byte| byte ^ 1).collect();
            Some(Arc::new(PagedBytes([bytes, damaged], self.1.clone())))
        }
    }

    impl Pages {
        fn asked(&self) -> usize {
            self.asked.load(Ordering::Relaxed)
        }
    }

    /// A value of a file with these pages.
    fn block(store: &LargeStore, key: &[u8], pages: &Arc<Pages>) -> Block {
        let handle = store.put(key, &vec![7; 100_000]).unwrap();
        let mut block = store.0.block(handle.bytes(), ByteSource::Cached).unwrap();
        handle.keep();
        let inner = block.file.clone();
        block.file = Arc::new(PagedFile(inner, pages.clone()));
        block
    }

    fn store() -> LargeStore {
        let context = context(&MemFs::new(), Arc::new(SystemClock::new()));
        LargeStore(Arc::new(Shared::new(context, LargeValueOptions::new()).unwrap()))
    }

    /// Lends a value; returns the requested read-ahead.
    fn ahead_of(chunk: &MappedChunk, block: &Block, pages: &Pages) -> Vec<(u64, u64)> {
        assert_eq!(chunk.lend(block).unwrap().unwrap().as_ref(), vec![7; 100_000]);
        std::mem::take(&mut *pages.ahead.lock())
    }

    #[test]
    fn evicted_values_are_asked_for_again_and_those_after_them_in_a_walk() {
        let store = store();
        let pages = Arc::new(Pages::default());
        let [a, b, c] = &[b"a", b"b", b"c"].map(|key| block(&store, key, &pages));
        let [a_at, b_at, c_at] = [a, b, c].map(|block| block.handle.value_offset());
        let chunk = MappedChunk::default();
        for block in [a, b, c, b, a] {
            assert_eq!(ahead_of(&chunk, block, &pages), [], "they are there");
        }
        assert_eq!(pages.asked(), 3);
        pages.are_evicted.store(true, Ordering::Relaxed);
        assert_eq!(ahead_of(&chunk, c, &pages), [(c_at, 100_000)], "it was populated last");
        assert_eq!(ahead_of(&chunk, a, &pages), [(a_at, 100_000)]);
        assert_eq!(ahead_of(&chunk, b, &pages), [(b_at, PREFETCH_BYTES_MAX)], "it lies after a");
        assert_eq!(ahead_of(&chunk, c, &pages), [(c_at, PREFETCH_BYTES_MAX)]);
        assert_eq!(ahead_of(&chunk, c, &pages), [(c_at, 100_000)]);
        assert_eq!(pages.asked(), 8);
        pages.are_damaged.store(true, Ordering::Relaxed);
        for is_evicted in [true, false] {
            pages.are_evicted.store(is_evicted, Ordering::Relaxed);
            let damaged = chunk.lend(b).err().expect("it comes from the device again");
            assert!(damaged.is_corruption(), "{damaged}");
        }
        pages.are_damaged.store(false, Ordering::Relaxed);
        pages.ahead.lock().clear();
        assert_eq!(ahead_of(&chunk, c, &pages), []);
        assert_eq!(pages.asked(), 10);
    }

    #[test]
    fn a_mapping_whose_pages_are_lost_forgets_what_it_has_verified() {
        let store = store();
        let pages = Arc::new(Pages::default());
        let a = block(&store, b"a", &pages);
        let b = block(&store, b"b", &pages);
        let chunk = MappedChunk::default();
        for _ in 0..2 {
            assert_eq!(chunk.lend(&a).unwrap().unwrap().as_ref(), vec![7; 100_000]);
        }
        assert_eq!(pages.asked(), 1, "it is verified once");
        pages.are_lost.store(true, Ordering::Relaxed);
        assert!(chunk.lend(&b).unwrap().is_none(), "the caller reads it instead");
        pages.are_lost.store(false, Ordering::Relaxed);
        assert!(chunk.lend(&a).unwrap().is_some());
        assert_eq!(pages.asked(), 3, "the pages of a new mapping may not be there");
        pages.are_lost.store(true, Ordering::Relaxed);
        let other = MappedChunk::default();
        assert!(other.lend(&a).unwrap().is_none());
        assert!(other.lend(&a).unwrap().is_none());
        assert_eq!(pages.asked(), 4, "a system that cannot say so is not asked again");
    }
}
