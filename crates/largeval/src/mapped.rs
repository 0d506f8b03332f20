//! [`MappedChunk`]: a chunk file that stays mapped to be read, and which of its values were verified.
//!
//! `get_ref` lends values from it. A store keeps it beside the open file, and drops it before it deletes the file: the
//! system keeps the space of a file as long as it is mapped.
//!
//! To map and verify a value at each call took 33 us for 64 KiB, and 13 us are a read into a buffer (design note 23).
//!
//! Invariant: a value is noted as verified only after its bytes in memory have agreed with its root hash.

use std::collections::HashMap;
use std::ops::Range;

use lsm_core::error::Result;
use lsm_core::fs::MappedBytes;
use parking_lot::RwLock;

use crate::block::Block;

/// Values of a file that are known as verified. All of 64 KiB or more in a file of 256 MiB are, and to verify a smaller
/// one again takes a few microseconds.
const VERIFIED_MAX: usize = 4096;

/// See the module.
#[derive(Default)]
pub struct MappedChunk(RwLock<Mapped>);

#[derive(Default)]
struct Mapped {
    /// The file up to the length that it had when it was mapped.
    bytes: Option<MappedBytes>,
    /// Lengths and root hashes of the values that were verified, by the offset where their bytes begin. A handle
    /// that names others is damaged, or of another value.
    verified: HashMap<u64, (u64, u128)>,
    /// The system cannot say that pages are there. Nothing is mapped again.
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

impl MappedChunk {
    /// The value of a block of this file, where it lies; verified when it is first asked for. `None` if the file cannot
    /// be mapped, or not read, or if a sub-block is compressed.
    ///
    /// # Errors
    /// Corruption; those of a length that cannot be had.
    pub fn lend(&self, block: &Block) -> Result<Option<MappedValue>> {
        // A page behind the end of the file would end the process.
        let file_bytes = block.file_bytes()?;
        // Whole files would use up 32 bits of addresses.
        if cfg!(target_pointer_width = "32") || !block.handle.is_stored_as_given() {
            return Ok(None);
        }
        let start = block.handle.value_offset();
        let range = start as usize..(start + block.handle.len) as usize;
        let identity = (block.handle.len, block.handle.root);
        let mapped = self.0.read();
        let is_verified = mapped.verified.get(&start) == Some(&identity);
        let known = mapped.bytes.clone();
        drop(mapped);
        let known = known.filter(|bytes| (**bytes).as_ref().len() >= range.end);
        let Some(bytes) = known.or_else(|| self.map(block, file_bytes)) else { return Ok(None) };
        let value = MappedValue { bytes, range: range.clone() };
        if is_verified {
            return Ok(Some(value));
        }
        // An error of the device is no signal here: the caller reads the value, and that reports it.
        if !value.bytes.populate(range) {
            self.refuse();
            return Ok(None);
        }
        block.verify_whole(value.as_ref())?;
        let mut mapped = self.0.write();
        if mapped.verified.len() >= VERIFIED_MAX {
            mapped.verified.clear();
        }
        mapped.verified.insert(start, identity);
        Ok(Some(value))
    }

    /// Maps the file to its present length: it grows as long as it has a writer.
    fn map(&self, block: &Block, file_bytes: u64) -> Option<MappedBytes> {
        if self.0.read().is_refused {
            return None;
        }
        let bytes = block.file.map(0, usize::try_from(file_bytes).ok()?)?;
        // What is lent keeps the mapping before, which ends here otherwise: without the lock.
        let _before = self.0.write().bytes.replace(bytes.clone());
        Some(bytes)
    }

    /// Ends a mapping whose pages cannot be had. It is made again only if some could be had before, and then the pages of
    /// each value are asked for again.
    fn refuse(&self) {
        let mut mapped = self.0.write();
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

    use super::*;
    use crate::block::ByteSource;
    use crate::options::LargeValueOptions;
    use crate::shared::Shared;
    use crate::store::LargeStore;
    use crate::testing::context;

    /// The pages of the mappings of a file.
    #[derive(Default)]
    struct Pages {
        are_lost: AtomicBool,
        /// The number of times that they were asked for.
        asked: AtomicUsize,
    }

    struct PagedFile(Arc<dyn File>, Arc<Pages>);

    struct PagedBytes(Vec<u8>, Arc<Pages>);

    impl AsRef<[u8]> for PagedBytes {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl MappedFile for PagedBytes {
        fn populate(&self, _: Range<usize>) -> bool {
            self.1.asked.fetch_add(1, Ordering::Relaxed);
            !self.1.are_lost.load(Ordering::Relaxed)
        }
    }

    impl File for PagedFile {
        fn append(&self, bytes: &[u8]) -> Result<()> {
            self.0.append(bytes)
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
            self.0.read_at(offset, buf)
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
            Some(Arc::new(PagedBytes(bytes, self.1.clone())))
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

    #[test]
    fn a_mapping_whose_pages_are_lost_forgets_what_it_has_verified() {
        let fs = MemFs::new();
        let context = context(&fs, Arc::new(SystemClock::new()));
        let shared = Shared::new(context, LargeValueOptions::new()).unwrap();
        let store = LargeStore(Arc::new(shared));
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
