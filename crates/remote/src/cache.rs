//! [`ObjectCache`]: blocks of objects in memory, up to a number of bytes. For tables and chunk files that are not on
//! the local disk, and for logs of readers. It is no copy of the database: what is evicted is got again.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use siltstone::{Error, Result};

use crate::bucket::Bucket;
use crate::folder::{FileBytes, ObjectPiece};

/// The length of a block: one GET.
const BLOCK_BYTES: u64 = 64 << 10;

type BlockKey = (Arc<str>, u64);

#[derive(Default)]
struct CachedBlocks {
    by_key: HashMap<BlockKey, (Arc<[u8]>, u64)>,
    /// By the time of their last use, oldest first.
    by_use: BTreeMap<u64, BlockKey>,
    bytes: u64,
    uses: u64,
}

/// Blocks of objects.
pub(crate) struct ObjectCache {
    bucket: Bucket,
    bytes_max: u64,
    /// A leaf; not held during a GET.
    blocks: Mutex<CachedBlocks>,
}

impl ObjectCache {
    pub(crate) fn new(bucket: Bucket, bytes_max: u64) -> ObjectCache {
        ObjectCache { bucket, bytes_max, blocks: Mutex::default() }
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

    /// The block `number` of an object, from memory if `is_cached`.
    fn block(&self, object: &Arc<str>, number: u64, is_cached: bool) -> Result<Arc<[u8]>> {
        let key = (object.clone(), number);
        if is_cached && let Some(block) = self.find(&key) {
            return Ok(block);
        }
        let begin = number * BLOCK_BYTES;
        let got = self.bucket.get_range(object, begin..begin + BLOCK_BYTES)?;
        let Some(got) = got else {
            return Err(Error::io(
                "get",
                &PathBuf::from(&**object),
                std::io::ErrorKind::NotFound.into(),
            ));
        };
        let block: Arc<[u8]> = got.into();
        if is_cached {
            self.keep(key, &block);
        }
        Ok(block)
    }

    /// Reads from `offset` in the piece, as much as `buf` takes and the piece has.
    fn read_piece(
        &self,
        piece: &ObjectPiece,
        offset: u64,
        buf: &mut [u8],
        is_cached: bool,
    ) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = piece.at + offset + done as u64;
            let block = self.block(&piece.object, at / BLOCK_BYTES, is_cached)?;
            let from = (at % BLOCK_BYTES) as usize;
            let have = block.get(from..).unwrap_or_default();
            if have.is_empty() {
                let what = "the object ends before the bytes that the journal names";
                return Err(Error::corruption(PathBuf::from(&*piece.object), at, what));
            }
            let count = have.len().min(buf.len() - done);
            buf[done..done + count].copy_from_slice(&have[..count]);
            done += count;
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

/// Copies the part of `bytes`, which lie at `at`, that is in `buf`, which lies at `offset`.
fn copy_overlap(buf: &mut [u8], offset: u64, bytes: &[u8], at: u64) {
    let begin = at.max(offset);
    let end = (at + bytes.len() as u64).min(offset + buf.len() as u64);
    if begin < end {
        let from = &bytes[(begin - at) as usize..(end - at) as usize];
        buf[(begin - offset) as usize..(end - offset) as usize].copy_from_slice(from);
    }
}
