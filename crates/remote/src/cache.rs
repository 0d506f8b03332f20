//! [`ObjectCache`]: blocks of objects in memory, up to a number of bytes, and for readers also on disk. For tables and
//! chunk files that are not on the local disk, and for logs of readers. It is no copy of the database: what is evicted
//! is got again.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use siltstone::{Error, ErrorKind, Result};

use self::ahead::BlocksAhead;
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

thread_local! {
    /// Reads of this thread get nothing from the bucket.
    static IS_FROM_MEMORY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, whose reads of a [`RemoteReader`](crate::RemoteReader) get no blocks from the bucket meanwhile: one that would is
/// [`ErrorKind::WouldStall`]. For threads that must not wait for a network; a sync waits for it as before. Blocks may come from the
/// disk of this machine.
///
/// # Examples
/// ```
/// use remote::{Remote, from_memory};
/// use siltstone::ErrorKind;
///
/// # let folder = tempfile::tempdir()?;
/// let remote = Remote::memory()?;
/// let primary = remote.primary(folder.path())?;
/// let db = primary.builder().open()?;
/// db.partition("users")?.put("alice", "admin")?;
/// db.flush()?;
/// primary.ship()?;
/// let users = remote.reader()?.secondary().open()?.partition("users")?;
/// let missing = from_memory(|| users.get("alice")).unwrap_err();
/// assert_eq!(missing.kind(), ErrorKind::WouldStall);
/// assert_eq!(users.get("alice")?.as_deref(), Some(&b"admin"[..]));
/// assert!(from_memory(|| users.get("alice"))?.is_some());
/// # Ok::<(), siltstone::Error>(())
/// ```
pub fn from_memory<T>(work: impl FnOnce() -> T) -> T {
    /// Also after a panic.
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            IS_FROM_MEMORY.set(self.0);
        }
    }
    let _reset = Reset(IS_FROM_MEMORY.replace(true));
    work()
}

/// Refuses a GET of a thread that must not wait.
fn may_get(object: &str) -> Result<()> {
    match IS_FROM_MEMORY.get() {
        true => Err(Error::new(ErrorKind::WouldStall, format!("{object} is not in memory"))),
        false => Ok(()),
    }
}

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
    /// Those of the last GET.
    blocks: u64,
    /// Those from `next` on were asked for already.
    is_ahead: bool,
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
    ahead: BlocksAhead,
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
        let (blocks, runs, ahead) = Default::default();
        let [memory_hits, gets, got_bytes] = [(); 3].map(|()| AtomicU64::new(0));
        ObjectCache { bucket, bytes_max, disk, blocks, runs, ahead, memory_hits, gets, got_bytes }
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
        may_get(object)?;
        let got = self.bucket.get_range(object, range)?;
        let Some(got) = got else {
            let missing = std::io::ErrorKind::NotFound.into();
            return Err(Error::io("get", &PathBuf::from(object), missing));
        };
        self.count_get(got.len());
        Ok(got)
    }

    fn count_get(&self, bytes: usize) {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.got_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Keeps a block that was got.
    fn take_in(&self, key: BlockKey, block: Arc<[u8]>) {
        if let Some(disk) = &self.disk {
            disk.keep(&key, &block);
        }
        self.keep(key, &block);
    }

    /// Reads from `offset` in the piece, as much as `buf` takes and the piece has.
    fn read_piece(
        self: &Arc<Self>,
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

    /// The blocks of the GET before, if the block `number` is the next one of a run, and was asked for if that counts.
    fn take_run(&self, object: &Arc<str>, number: u64, is_ahead: bool) -> Option<u64> {
        let mut runs = self.runs.lock();
        let at = runs.iter().position(|run| {
            run.next == number && run.object == *object && (run.is_ahead || !is_ahead)
        })?;
        runs.remove(at).map(|run| run.blocks)
    }

    /// The blocks of the next GET of a run, also if no one asks for them yet: a scan gets twice as much each time.
    fn next_blocks(&self, blocks: u64) -> u64 {
        // Those of several tables stay in memory until they are read, and those that follow them.
        (blocks * 2).min(BLOCKS_PER_GET_MAX).min(self.bytes_max / 32 / BLOCK_BYTES).max(1)
    }

    fn note_run(&self, object: &Arc<str>, next: u64, blocks: u64, is_ahead: bool) {
        let mut runs = self.runs.lock();
        runs.push_back(ReadRun { object: object.clone(), next, blocks, is_ahead });
        if runs.len() > RUNS_MAX {
            runs.pop_front();
        }
    }

    /// Gets what follows the run that has come to the block `number`, which was got ahead.
    fn continue_run(self: &Arc<Self>, piece: &ObjectPiece, number: u64) {
        let Some(blocks) = self.take_run(&piece.object, number, true) else { return };
        let blocks = self.next_blocks(blocks);
        let next = number + blocks;
        let is_ahead = self.get_ahead(piece, next..next + self.next_blocks(blocks));
        self.note_run(&piece.object, next, blocks, is_ahead);
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
        while first < number && self.is_here_or_asked(&piece.object, first) {
            first += 1;
        }
        first
    }

    /// Reads the object of a piece at `at` until `buf` is full, by whole blocks. Those that are missing and follow each
    /// other come with one GET.
    fn read_blocks(self: &Arc<Self>, piece: &ObjectPiece, at: u64, buf: &mut [u8]) -> Result<()> {
        let object = &piece.object;
        let end = at + buf.len() as u64;
        let mut number = at / BLOCK_BYTES;
        while number * BLOCK_BYTES < end {
            if let Some(block) = self.cached(&(object.clone(), number)) {
                copy_block(object, number, &block, at, buf)?;
                self.continue_run(piece, number);
                number += 1;
                continue;
            }
            may_get(object)?;
            if self.ahead.wait_for(&(object.clone(), number)) {
                continue;
            }
            let run = self.take_run(object, number, false);
            let ahead = run.map_or(1, |blocks| self.next_blocks(blocks));
            let mut stop = number + 1;
            while (stop * BLOCK_BYTES < end || stop - number < ahead)
                && stop * BLOCK_BYTES < piece.at + piece.len
                && stop - number < BLOCKS_PER_GET_MAX
                && !self.is_here_or_asked(object, stop)
            {
                stop += 1;
            }
            let next = stop..stop + self.next_blocks(stop - number);
            let is_ahead = run.is_some() && self.get_ahead(piece, next);
            self.note_run(object, stop, stop - number, is_ahead);
            number = self.first_of_get(piece, number);
            let got = self.get(object, number * BLOCK_BYTES..stop * BLOCK_BYTES)?;
            let mut parts = got.chunks(BLOCK_BYTES as usize);
            while number < stop {
                // The object may end before the block, which is then too short.
                let block: Arc<[u8]> = parts.next().unwrap_or_default().into();
                copy_block(object, number, &block, at, buf)?;
                self.take_in((object.clone(), number), block);
                number += 1;
            }
        }
        Ok(())
    }

    /// Reads a file at `offset` until `buf` is full or the file ends; returns the number of bytes.
    pub(crate) fn read_at(
        self: &Arc<Self>,
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
        let pieces = pieces_in(&state, offset..end);
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

    /// Begins to get what is missing of a range of a file, and returns at once. A range at the end of a table comes with
    /// index and Bloom filter.
    pub(crate) fn prefetch(self: &Arc<Self>, file: &RwLock<FileBytes>, range: Range<u64>) {
        let pieces = pieces_in(&file.read(), range.clone());
        for piece in pieces {
            let begin = piece.at + range.start.max(piece.offset) - piece.offset;
            let end = piece.at + range.end.min(piece.end()) - piece.offset;
            let mut first = begin / BLOCK_BYTES;
            if !self.has(&(piece.object.clone(), first)) {
                first = self.first_of_get(&piece, first);
            }
            let stop = end.div_ceil(BLOCK_BYTES).min(first + BLOCKS_PER_GET_MAX);
            let is_begun = self.get_ahead(&piece, first..stop);
            if is_begun && stop - first > 1 && stop * BLOCK_BYTES < piece.at + piece.len {
                // A scan. What follows is asked for when it comes to the second block.
                self.note_run(&piece.object, first + 1, (stop - first - 1) / 2, true);
            }
        }
    }
}

/// The pieces that have bytes of a range.
fn pieces_in(file: &FileBytes, range: Range<u64>) -> Vec<ObjectPiece> {
    let first = file.pieces.partition_point(|piece| piece.end() <= range.start);
    let wanted = file.pieces[first..].iter().take_while(|piece| piece.offset < range.end);
    wanted.cloned().collect()
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

mod ahead;
#[cfg(test)]
mod tests;
