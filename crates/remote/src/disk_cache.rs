//! [`DiskCache`]: blocks of objects in a folder of the local disk, up to a number of bytes.
//!
//! Blocks are gathered in memory and written together, each lot as a file of its own that is never changed
//! ([`BlockFile`]). The oldest file makes room, and its blocks that were used since go into the next file (CLOCK). While
//! there is room each block is admitted; after that one at its second request, so that a scan displaces nothing.
//!
//! Nothing is synced. A block is served only if its checksum fits, so a file that a crash has torn is found out when it is
//! opened or read, and the caller gets the block from the store again. Failures of the disk are counted, and never
//! passed on.
//!
//! Invariants:
//! 1. The files have at most the given number of bytes together, also while one is written.
//! 2. One process has the folder, by its lock. Another one, and another cache in this one, gets none.
//! 3. Objects never change, so a block with the name of its object is right for ever.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use lsm_core::codec::checksum64;
use lsm_core::fs::{AppendMode, Fs, LockGuard};
use parking_lot::Mutex;
use siltstone::Result;

use block_file::{
    BlockFile, FRAME_BYTES_MAX, KeptBlock, bytes_in_file, encode, file_name, number_of_file,
};

pub(crate) mod block_file;

pub(crate) use block_file::{Block, BlockKey};

/// The lock of the folder.
const LOCK: &str = "cache-lock";
/// A file is written once its blocks have so many bytes, with their places in the header.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// So many files share the room, if it is small.
const FILES_MIN: u64 = 8;
/// Fewer requests are never remembered.
const REMEMBERED_MIN: usize = 1 << 10;

/// A block in a file.
struct CachedPlace {
    file: u64,
    place: KeptBlock,
    is_used: bool,
}

/// Blocks that were requested and not admitted: the last ones, between one and two times so many.
#[derive(Default)]
struct Remembered {
    new: HashSet<u64>,
    old: HashSet<u64>,
}

impl Remembered {
    /// Returns `true` if the key was there.
    fn note(&mut self, key: u64, keys_max: usize) -> bool {
        if self.new.contains(&key) || self.old.contains(&key) {
            return true;
        }
        if self.new.len() >= keys_max {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(key);
        false
    }
}

#[derive(Default)]
struct DiskBlocks {
    by_key: HashMap<BlockKey, CachedPlace>,
    /// By their numbers, oldest first, with their lengths and blocks.
    files: BTreeMap<u64, (u64, Vec<BlockKey>)>,
    /// The lengths of all files.
    bytes: u64,
    /// The number of the next file. None comes again: a reader may be about to open the file that had it.
    next_number: u64,
    /// Blocks for the next file.
    gathered: BTreeMap<BlockKey, Arc<[u8]>>,
    /// The bytes that they take there, at most.
    gathered_bytes: u64,
    remembered: Remembered,
    hits: u64,
    damaged: u64,
    failures: u64,
}

/// Figures of a cache on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskFigures {
    pub(crate) bytes: u64,
    pub(crate) hits: u64,
    pub(crate) damaged: u64,
    pub(crate) failures: u64,
}

/// Blocks of objects on the local disk.
pub(crate) struct DiskCache {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    bytes_max: u64,
    /// A full cache takes each block, too: to measure the rule against that.
    admits_all: bool,
    /// Held over the write of a file.
    writing: Mutex<()>,
    /// A leaf; not held during a call of the file system.
    blocks: Mutex<DiskBlocks>,
    _lock: Box<dyn LockGuard>,
}

/// A folder for blocks, and the cache in it while a reader of the remote has it open.
pub(crate) struct CacheFolder {
    dir: PathBuf,
    bytes_max: u64,
    admits_all: bool,
    /// Held over an open, and over a close: an open in the middle of it would find the folder locked.
    opened: Mutex<Weak<DiskCache>>,
}

/// The cache, for one of those that have it open. The last one closes it.
pub(crate) struct SharedCache {
    /// `None` only within the drop.
    cache: Option<Arc<DiskCache>>,
    folder: Arc<CacheFolder>,
}

impl Deref for SharedCache {
    type Target = DiskCache;

    fn deref(&self) -> &DiskCache {
        self.cache.as_ref().expect("only the drop takes it")
    }
}

impl Drop for SharedCache {
    fn drop(&mut self) {
        let _turn = self.folder.opened.lock();
        drop(self.cache.take());
    }
}

impl CacheFolder {
    pub(crate) fn new(dir: PathBuf, bytes_max: u64) -> CacheFolder {
        CacheFolder { dir, bytes_max, admits_all: false, opened: Mutex::default() }
    }

    /// The same folder, for a cache that takes each block.
    #[cfg(feature = "internals")]
    pub(crate) fn admitting_all(&self) -> CacheFolder {
        CacheFolder { admits_all: true, ..CacheFolder::new(self.dir.clone(), self.bytes_max) }
    }

    /// The cache, which all that have it open share. `None` if another process has the folder.
    ///
    /// # Errors
    /// As [`DiskCache::open`].
    pub(crate) fn open(self: &Arc<Self>, fs: &Arc<dyn Fs>) -> Result<Option<SharedCache>> {
        let mut opened = self.opened.lock();
        let mut cache = opened.upgrade();
        if cache.is_none() {
            let found = DiskCache::open(fs.clone(), &self.dir, self.bytes_max, self.admits_all)?;
            cache = found.map(Arc::new);
            *opened = cache.as_ref().map(Arc::downgrade).unwrap_or_default();
        }
        Ok(cache.map(|cache| SharedCache { cache: Some(cache), folder: self.clone() }))
    }
}

impl DiskCache {
    /// Opens the cache in `dir`, with what is there already. `None` if another one has the folder.
    ///
    /// # Errors
    /// The folder cannot be made, listed or locked, or a file in it that is of no use cannot be deleted.
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        dir: &Path,
        bytes_max: u64,
        admits_all: bool,
    ) -> Result<Option<DiskCache>> {
        fs.create_dir(dir)?;
        let Some(lock) = fs.try_lock(&dir.join(LOCK))? else { return Ok(None) };
        let mut blocks = DiskBlocks::default();
        for entry in fs.list(dir, "")? {
            let Some(number) = number_of_file(&entry.name) else { continue };
            let path = dir.join(&entry.name);
            blocks.next_number = blocks.next_number.max(number.saturating_add(1));
            match BlockFile::read(&*fs, &path) {
                Ok(Some(file)) if file.len() == entry.len => blocks.add_file(number, file),
                // A file that a crash has torn, or of another version, has nothing to lose.
                Ok(_) => fs.delete(&path)?,
                // It may be sound, and the process without a file handle. It waits for its turn to make room.
                Err(_) => {
                    blocks.failures += 1;
                    blocks.add_file(number, BlockFile::unread(entry.len));
                }
            }
        }
        let blocks = Mutex::new(blocks);
        let dir = dir.to_owned();
        let writing = Mutex::new(());
        let cache = DiskCache { fs, dir, bytes_max, admits_all, writing, blocks, _lock: lock };
        // The bound may be lower than at the last time.
        cache.make_room(0);
        Ok(Some(cache))
    }

    fn file_bytes(&self) -> u64 {
        (self.bytes_max / FILES_MIN).min(FILE_BYTES_MAX)
    }

    pub(crate) fn figures(&self) -> DiskFigures {
        let blocks = self.blocks.lock();
        let DiskBlocks { bytes, hits, damaged, failures, .. } = *blocks;
        DiskFigures { bytes, hits, damaged, failures }
    }

    pub(crate) fn has(&self, key: &BlockKey) -> bool {
        self.blocks.lock().has(key)
    }

    /// Notes that a block was served by a cache before this one.
    pub(crate) fn note_use(&self, key: &BlockKey) {
        if let Some(cached) = self.blocks.lock().by_key.get_mut(key) {
            cached.is_used = true;
        }
    }

    /// Returns a block whose checksum fits.
    pub(crate) fn find(&self, key: &BlockKey) -> Option<Arc<[u8]>> {
        let mut blocks = self.blocks.lock();
        if let Some(block) = blocks.gathered.get(key).cloned() {
            blocks.hits += 1;
            return Some(block);
        }
        let cached = blocks.by_key.get_mut(key)?;
        cached.is_used = true;
        let number = cached.file;
        let place = cached.place;
        drop(blocks);
        let block = self.read(number, place);
        let mut blocks = self.blocks.lock();
        match &block {
            Some(_) => blocks.hits += 1,
            // Unless the file has made room meanwhile.
            None if blocks.by_key.get(key).is_some_and(|now| now.file == number) => {
                blocks.by_key.remove(key);
                blocks.damaged += 1;
                // So that the next request is a second one.
                blocks.remembered.note(hash(key), usize::MAX);
            }
            None => {}
        }
        block
    }

    fn read(&self, number: u64, place: KeptBlock) -> Option<Arc<[u8]>> {
        let file = self.fs.open_read(&self.dir.join(file_name(number))).ok()?;
        let mut block = vec![0; place.len as usize];
        let count = file.read_at(place.offset, &mut block).ok()?;
        (count == block.len() && checksum64(&block) == place.sum).then(|| block.into())
    }

    /// Keeps a block that was just got, if it is admitted.
    pub(crate) fn keep(&self, key: &BlockKey, block: &Arc<[u8]>) {
        let mut blocks = self.blocks.lock();
        if block.is_empty() || blocks.has(key) {
            return;
        }
        let with_it = blocks.bytes + blocks.gathered_bytes + bytes_in_file(key, block.len());
        let keys_max = REMEMBERED_MIN.max((self.bytes_max / (64 << 10)) as usize);
        let is_full = with_it + FRAME_BYTES_MAX > self.bytes_max;
        if is_full && !self.admits_all && !blocks.remembered.note(hash(key), keys_max) {
            return;
        }
        blocks.gather(key.clone(), block.clone());
        if blocks.gathered_bytes < self.file_bytes() {
            return;
        }
        let taken = blocks.take_gathered();
        drop(blocks);
        self.write(taken);
    }

    /// Writes blocks as a file, after older files have made room.
    fn write(&self, taken: Vec<Block>) {
        let _turn = self.writing.lock();
        let (bytes, file) = encode(&taken);
        if taken.is_empty() || file.len() > self.bytes_max {
            return;
        }
        self.make_room(file.len());
        let mut blocks = self.blocks.lock();
        if blocks.bytes + file.len() > self.bytes_max {
            return;
        }
        let number = blocks.next_number;
        blocks.next_number = number.saturating_add(1);
        drop(blocks);
        let path = self.dir.join(file_name(number));
        let written = self
            .fs
            .open_append(&path, AppendMode::IfAbsent)
            .and_then(|file| file.append_pieces(&bytes.pieces(&taken)));
        if written.is_ok() {
            self.blocks.lock().add_file(number, file);
            return;
        }
        let is_deleted = self.fs.delete(&path).is_ok();
        let mut blocks = self.blocks.lock();
        blocks.failures += 1;
        if !is_deleted {
            // It keeps its room, until the next open.
            blocks.bytes += file.len();
        }
    }

    /// Deletes the oldest files until `len` more bytes fit. Their blocks that were used are gathered again, at most half
    /// a file at a time, so that each round makes room.
    fn make_room(&self, len: u64) {
        loop {
            let mut blocks = self.blocks.lock();
            if blocks.bytes + len <= self.bytes_max {
                return;
            }
            let Some((number, (bytes, keys))) = blocks.files.pop_first() else { return };
            let mut used = Vec::new();
            for key in keys {
                if let Some(cached) = blocks.by_key.get(&key)
                    && cached.file == number
                {
                    if cached.is_used {
                        used.push((key.clone(), cached.place));
                    }
                    blocks.by_key.remove(&key);
                }
            }
            drop(blocks);
            for (key, place) in used {
                let with_it = bytes_in_file(&key, place.len as usize);
                if self.blocks.lock().gathered_bytes + with_it > self.file_bytes() / 2 {
                    break;
                }
                if let Some(block) = self.read(number, place) {
                    self.blocks.lock().gather(key, block);
                }
            }
            let deleted = self.fs.delete(&self.dir.join(file_name(number)));
            let mut blocks = self.blocks.lock();
            match deleted {
                Ok(()) => blocks.bytes -= bytes,
                // It keeps its room.
                Err(_) => blocks.failures += 1,
            }
        }
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        let taken = self.blocks.lock().take_gathered();
        self.write(taken);
    }
}

impl DiskBlocks {
    fn add_file(&mut self, number: u64, file: BlockFile) {
        self.bytes += file.len();
        let mut keys = Vec::new();
        let len = file.len();
        for (key, place) in file.blocks {
            let cached = CachedPlace { file: number, place, is_used: false };
            self.by_key.insert(key.clone(), cached);
            keys.push(key);
        }
        self.files.insert(number, (len, keys));
    }

    fn has(&self, key: &BlockKey) -> bool {
        self.by_key.contains_key(key) || self.gathered.contains_key(key)
    }

    fn gather(&mut self, key: BlockKey, block: Arc<[u8]>) {
        let bytes = bytes_in_file(&key, block.len());
        if self.gathered.insert(key, block).is_none() {
            self.gathered_bytes += bytes;
        }
    }

    fn take_gathered(&mut self) -> Vec<Block> {
        self.gathered_bytes = 0;
        std::mem::take(&mut self.gathered).into_iter().collect()
    }
}

/// A short form of a key, for requests that are remembered. Two that are alike cost one admission.
fn hash(key: &BlockKey) -> u64 {
    checksum64(key.0.as_bytes()) ^ key.1.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests;
