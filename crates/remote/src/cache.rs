//! [`ObjectCache`]: blocks of objects in memory, up to a number of bytes, and for readers also on disk. For tables and
//! chunk files that are not on the local disk, and for logs of readers. It is no copy of the database: what is evicted
//! is got again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use siltstone::{Error, Result};

use crate::bucket::Bucket;
use crate::disk_cache::{BlockKey, SharedCache};
use crate::folder::{FileBytes, ObjectPiece};

/// The length of a block.
const BLOCK_BYTES: u64 = 64 << 10;
/// Following blocks that are missing come with one GET, up to so many.
const BLOCKS_PER_GET_MAX: u64 = 64;
/// The runs that are remembered: one for each table that a scan reads at the same time.
const RUNS_MAX: usize = 32;
/// The part of a table that comes with its last block: Bloom filter and index, for entries of about 45 bytes or more.
const TAIL_PART: u64 = 32;

/// Figures of a reader's caches, see [`RemoteReader::cache_figures`](crate::RemoteReader::cache_figures).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheFigures {
    /// Bytes of blocks in memory.
    pub memory_bytes: u64,
    /// Bytes of the files in the folder of the cache.
    pub disk_bytes: u64,
    /// Blocks that were read from memory.
    pub memory_hits: u64,
    /// Blocks that were read from the disk.
    pub disk_hits: u64,
    /// GETs of blocks and ranges.
    pub gets: u64,
    /// Bytes of their answers.
    pub got_bytes: u64,
    /// Blocks on disk whose checksum did not fit, or that could not be read. They were got again.
    pub damaged: u64,
    /// Files of the cache that could not be written or deleted, or not be opened at the start of the cache.
    pub disk_failures: u64,
    /// The reader has a cache on disk. Not so if another process has its folder.
    pub has_disk: bool,
}

#[derive(Default)]
struct CachedBlocks {
    by_key: HashMap<BlockKey, (Arc<[u8]>, u64)>,
    /// By the time of their last use, oldest first.
    by_use: BTreeMap<u64, BlockKey>,
    bytes: u64,
    uses: u64,
}

/// Reads of an object that go on where the last GET has ended.
struct ReadRun {
    object: Arc<str>,
    next: u64,
    blocks: u64,
}

/// Blocks of objects.
pub(crate) struct ObjectCache {
    bucket: Bucket,
    bytes_max: u64,
    disk: Option<SharedCache>,
    /// A leaf; not held during a GET.
    blocks: Mutex<CachedBlocks>,
    /// A leaf. The last ones, at most `RUNS_MAX`.
    runs: Mutex<VecDeque<ReadRun>>,
    // Counters; no other value depends on them.
    memory_hits: AtomicU64,
    gets: AtomicU64,
    got_bytes: AtomicU64,
}

impl ObjectCache {
    pub(crate) fn new(bucket: Bucket, bytes_max: u64) -> ObjectCache {
        ObjectCache::with_disk(bucket, bytes_max, None)
    }

    pub(crate) fn with_disk(
        bucket: Bucket,
        bytes_max: u64,
        disk: Option<SharedCache>,
    ) -> ObjectCache {
        let (blocks, runs) = Default::default();
        let [memory_hits, gets, got_bytes] = [(); 3].map(|()| AtomicU64::new(0));
        ObjectCache { bucket, bytes_max, disk, blocks, runs, memory_hits, gets, got_bytes }
    }

    pub(crate) fn figures(&self) -> CacheFigures {
        let disk = self.disk.as_ref().map(|disk| disk.figures()).unwrap_or_default();
        CacheFigures {
            memory_bytes: self.bytes(),
            disk_bytes: disk.bytes,
            memory_hits: self.memory_hits.load(Ordering::Relaxed),
            disk_hits: disk.hits,
            gets: self.gets.load(Ordering::Relaxed),
            got_bytes: self.got_bytes.load(Ordering::Relaxed),
            damaged: disk.damaged,
            disk_failures: disk.failures,
            has_disk: self.disk.is_some(),
        }
    }

    /// The bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.lock().bytes
    }

    fn find(&self, key: &BlockKey) -> Option<Arc<[u8]>> {
        let mut blocks = self.blocks.lock();
        let blocks = &mut *blocks;
        let (block, used) = blocks.by_key.get_mut(key)?;
        blocks.uses += 1;
        blocks.by_use.remove(used);
        blocks.by_use.insert(blocks.uses, key.clone());
        *used = blocks.uses;
        Some(block.clone())
    }

    fn keep(&self, key: BlockKey, block: &Arc<[u8]>) {
        let mut blocks = self.blocks.lock();
        let blocks = &mut *blocks;
        if blocks.by_key.contains_key(&key) {
            return;
        }
        blocks.uses += 1;
        blocks.bytes += block.len() as u64;
        blocks.by_use.insert(blocks.uses, key.clone());
        blocks.by_key.insert(key, (block.clone(), blocks.uses));
        while blocks.bytes > self.bytes_max
            && let Some((_, oldest)) = blocks.by_use.pop_first()
            && let Some((evicted, _)) = blocks.by_key.remove(&oldest)
        {
            blocks.bytes -= evicted.len() as u64;
        }
    }

    fn has(&self, key: &BlockKey) -> bool {
        let is_in_memory = self.blocks.lock().by_key.contains_key(key);
        is_in_memory || self.disk.as_ref().is_some_and(|disk| disk.has(key))
    }

    /// A block, without a GET.
    fn cached(&self, key: &BlockKey) -> Option<Arc<[u8]>> {
        if let Some(block) = self.find(key) {
            self.memory_hits.fetch_add(1, Ordering::Relaxed);
            // Otherwise the blocks that are used most would be the first that the disk drops.
            if let Some(disk) = &self.disk {
                disk.note_use(key);
            }
            return Some(block);
        }
        let block = self.disk.as_ref()?.find(key)?;
        self.keep(key.clone(), &block);
        Some(block)
    }

    fn get(&self, object: &str, range: Range<u64>) -> Result<Vec<u8>> {
        let got = self.bucket.get_range(object, range)?;
        let Some(got) = got else {
            let missing = std::io::ErrorKind::NotFound.into();
            return Err(Error::io("get", &PathBuf::from(object), missing));
        };
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.got_bytes.fetch_add(got.len() as u64, Ordering::Relaxed);
        Ok(got)
    }

    /// Reads from `offset` in the piece, as much as `buf` takes and the piece has.
    fn read_piece(
        &self,
        piece: &ObjectPiece,
        offset: u64,
        buf: &mut [u8],
        is_cached: bool,
    ) -> Result<()> {
        let at = piece.at + offset;
        if is_cached {
            return self.read_blocks(piece, at, buf);
        }
        let got = self.get(&piece.object, at..at + buf.len() as u64)?;
        if got.len() < buf.len() {
            return Err(ends_early(&piece.object, at + got.len() as u64));
        }
        buf.copy_from_slice(&got[..buf.len()]);
        Ok(())
    }

    /// The blocks that a GET from the missing block `number` on takes, also if no one asks for them yet: a scan gets
    /// twice as much each time.
    fn blocks_ahead(&self, object: &Arc<str>, number: u64) -> u64 {
        let mut runs = self.runs.lock();
        let at = runs.iter().position(|run| run.next == number && run.object == *object);
        let Some(run) = at.and_then(|at| runs.remove(at)) else { return 1 };
        // Those of several tables stay in memory until they are read.
        (run.blocks * 2).min(BLOCKS_PER_GET_MAX).min(self.bytes_max / 16 / BLOCK_BYTES).max(1)
    }

    fn note_run(&self, object: &Arc<str>, next: u64, blocks: u64) {
        let mut runs = self.runs.lock();
        runs.push_back(ReadRun { object: object.clone(), next, blocks });
        if runs.len() > RUNS_MAX {
            runs.pop_front();
        }
    }

    /// The first block that comes with the missing block `number`. An open of a table reads the footer at its end
    /// first, and then all that lies after its entries: that comes with one GET.
    fn first_of_get(&self, piece: &ObjectPiece, number: u64) -> u64 {
        let is_last = (number + 1) * BLOCK_BYTES >= piece.at + piece.len;
        if !is_last || !piece.object.starts_with("table/") {
            return number;
        }
        let blocks = (piece.len / TAIL_PART).div_ceil(BLOCK_BYTES);
        // The other blocks in memory stay.
        let most = (BLOCKS_PER_GET_MAX - 1).min(self.bytes_max / 4 / BLOCK_BYTES);
        let mut first = number.saturating_sub(blocks.min(most));
        while first < number && self.has(&(piece.object.clone(), first)) {
            first += 1;
        }
        first
    }

    /// Reads the object of a piece at `at` until `buf` is full, by whole blocks. Those that are missing and follow each
    /// other come with one GET.
    fn read_blocks(&self, piece: &ObjectPiece, at: u64, buf: &mut [u8]) -> Result<()> {
        let object = &piece.object;
        let end = at + buf.len() as u64;
        let mut number = at / BLOCK_BYTES;
        while number * BLOCK_BYTES < end {
            if let Some(block) = self.cached(&(object.clone(), number)) {
                copy_block(object, number, &block, at, buf)?;
                number += 1;
                continue;
            }
            let ahead = self.blocks_ahead(object, number);
            let mut stop = number + 1;
            while (stop * BLOCK_BYTES < end || stop - number < ahead)
                && stop * BLOCK_BYTES < piece.at + piece.len
                && stop - number < BLOCKS_PER_GET_MAX
                && !self.has(&(object.clone(), stop))
            {
                stop += 1;
            }
            self.note_run(object, stop, stop - number);
            number = self.first_of_get(piece, number);
            let got = self.get(object, number * BLOCK_BYTES..stop * BLOCK_BYTES)?;
            let mut parts = got.chunks(BLOCK_BYTES as usize);
            while number < stop {
                // The object may end before the block, which is then too short.
                let block: Arc<[u8]> = parts.next().unwrap_or_default().into();
                copy_block(object, number, &block, at, buf)?;
                let key = (object.clone(), number);
                if let Some(disk) = &self.disk {
                    disk.keep(&key, &block);
                }
                self.keep(key, &block);
                number += 1;
            }
        }
        Ok(())
    }

    /// Reads a file at `offset` until `buf` is full or the file ends; returns the number of bytes.
    pub(crate) fn read_at(
        &self,
        file: &RwLock<FileBytes>,
        offset: u64,
        buf: &mut [u8],
        is_cached: bool,
    ) -> Result<usize> {
        let state = file.read();
        let count = state.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..count];
        buf.fill(0);
        let end = offset + count as u64;
        copy_overlap(buf, offset, &state.tail, state.tail_at);
        let first = state.pieces.partition_point(|piece| piece.end() <= offset);
        let wanted = state.pieces[first..].iter().take_while(|piece| piece.offset < end);
        let pieces: Vec<ObjectPiece> = wanted.cloned().collect();
        // Not held during a GET: the next journal object may be taken in meanwhile.
        drop(state);
        for piece in pieces {
            let begin = piece.offset.max(offset);
            let stop = piece.end().min(end);
            let part = &mut buf[(begin - offset) as usize..(stop - offset) as usize];
            self.read_piece(&piece, begin - piece.offset, part, is_cached)?;
        }
        Ok(count)
    }
}

fn ends_early(object: &str, at: u64) -> Error {
    let what = "the object ends before the bytes that the journal names";
    Error::corruption(PathBuf::from(object), at, what)
}

/// Copies the part of the block `number` that is in `buf`, which lies at `at` in the object.
fn copy_block(object: &str, number: u64, block: &[u8], at: u64, buf: &mut [u8]) -> Result<()> {
    let begin = number * BLOCK_BYTES;
    let wanted_end = (begin + BLOCK_BYTES).min(at + buf.len() as u64);
    if begin + (block.len() as u64) < wanted_end {
        return Err(ends_early(object, begin + block.len() as u64));
    }
    copy_overlap(buf, at, block, begin);
    Ok(())
}

/// Copies the part of `bytes`, which lie at `at`, that is in `buf`, which lies at `offset`.
fn copy_overlap(buf: &mut [u8], offset: u64, bytes: &[u8], at: u64) {
    let begin = at.max(offset);
    let end = (at + bytes.len() as u64).min(offset + buf.len() as u64);
    if begin < end {
        let from = &bytes[(begin - at) as usize..(end - at) as usize];
        buf[(begin - offset) as usize..(end - offset) as usize].copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Remote;
    use crate::disk_cache::CacheFolder;
    use lsm_core::fs::{Fs, MemFs};

    const NAME: &str = "part/a";

    fn read(cache: &ObjectCache, number: u64) {
        let mut byte = [0];
        // It ends with the block: nothing is read ahead.
        let len = (number + 1) * BLOCK_BYTES;
        let piece = ObjectPiece { offset: 0, len, object: NAME.into(), at: 0 };
        cache.read_blocks(&piece, number * BLOCK_BYTES, &mut byte).unwrap();
        assert_eq!(byte[0], number as u8);
    }

    /// Reads the begins of blocks of an object of `blocks` blocks; returns those that were not here.
    fn missed(cache: &ObjectCache, object: &str, blocks: u64, read: &[u64]) -> Vec<u64> {
        let len = blocks * BLOCK_BYTES;
        let piece = ObjectPiece { offset: 0, len, object: object.into(), at: 0 };
        let mut missed = read.to_vec();
        missed.retain(|number| {
            let gets = cache.figures().gets;
            cache.read_blocks(&piece, number * BLOCK_BYTES, &mut [0]).unwrap();
            cache.figures().gets > gets
        });
        missed
    }

    #[test]
    fn a_walk_gets_twice_as_much_each_time_and_other_reads_one_block() {
        let remote = Remote::memory().unwrap();
        const BLOCKS: u64 = 255;
        for name in [NAME, "part/b"] {
            remote.store().put(name, &vec![7; (BLOCKS * BLOCK_BYTES) as usize]).unwrap();
        }
        let walk: Vec<u64> = (0..BLOCKS).collect();
        let cache = ObjectCache::new(remote.0.bucket(), 1 << 30);
        let gets = [0, 1, 3, 7, 15, 31, 63, 127, 191];
        assert_eq!(missed(&cache, NAME, BLOCKS, &walk), gets);
        // A walk ends with its object, and two at once do not disturb each other.
        let cache = ObjectCache::new(remote.0.bucket(), 1 << 30);
        for number in 0..12 {
            let begins_get = [0, 1, 3, 7].contains(&number);
            for name in [NAME, "part/b"] {
                assert_eq!(missed(&cache, name, 12, &[number]).len(), usize::from(begins_get));
            }
        }
        assert_eq!(cache.figures().got_bytes, 2 * 12 * BLOCK_BYTES);
        // A small memory keeps what comes ahead until it is read.
        let cache = ObjectCache::new(remote.0.bucket(), 64 * BLOCK_BYTES);
        assert_eq!(missed(&cache, NAME, 20, &walk[..20]), [0, 1, 3, 7, 11, 15, 19]);
        let cache = ObjectCache::new(remote.0.bucket(), 1 << 30);
        assert_eq!(missed(&cache, NAME, BLOCKS, &[90, 50, 70, 52]).len(), 4);
        assert_eq!(cache.figures().got_bytes, 4 * BLOCK_BYTES);
    }

    #[test]
    fn blocks_that_memory_serves_stay_on_the_disk() {
        let remote = Remote::memory().unwrap();
        let object: Vec<u8> = (0..136).flat_map(|n| vec![n as u8; BLOCK_BYTES as usize]).collect();
        remote.store().put(NAME, &object).unwrap();
        let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
        let folder = Arc::new(CacheFolder::new("/cache".into(), 40 * (BLOCK_BYTES + 200)));
        let disk = folder.open(&fs).unwrap();
        let cache = ObjectCache::with_disk(remote.0.bucket(), 8 * BLOCK_BYTES, disk);
        (0..36).for_each(|number| read(&cache, number));
        let hot = [0, 10, 20, 30];
        for round in 0..12 {
            // Twice each, so that they are admitted, and never from memory.
            for number in (0..16).map(|n| 36 + round * 8 + n % 8) {
                hot.iter().for_each(|number| read(&cache, *number));
                read(&cache, number);
            }
        }
        let disk = cache.disk.as_ref().unwrap();
        let is_kept = hot.map(|number| disk.has(&(NAME.into(), number)));
        assert_eq!(is_kept, [true; 4]);
        let is_kept = (0..36).filter(|number| disk.has(&(NAME.into(), *number))).count();
        assert!(is_kept < 12, "the others made room");
    }
}
