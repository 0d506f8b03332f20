//! Gets of blocks that a reader is about to ask for, each on a thread of its own.
//!
//! Invariants:
//! 1. A reader that misses a block which is on its way waits for it, and gets it itself if it does not arrive.
//! 2. A get ahead is a hint: its failure is no one's error.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{BLOCK_BYTES, ObjectCache};
use crate::bucket::Bucket;
use crate::disk_cache::BlockKey;
use crate::folder::ObjectPiece;

/// Gets on their way at the same time. What would be one more is left to the reader.
const GETS_MAX: usize = 32;
/// The part of the cache that may be on its way.
const CACHE_PART: u64 = 4;

/// The blocks that are on their way.
#[derive(Default)]
pub(super) struct BlocksAhead {
    /// A leaf; not held during a GET.
    on_way: Mutex<BlocksOnWay>,
    arrived: Condvar,
}

#[derive(Default)]
struct BlocksOnWay {
    blocks: HashSet<BlockKey>,
    gets: usize,
}

impl BlocksAhead {
    /// Waits until the block is not on its way. Returns `false` if it was not.
    pub(super) fn wait_for(&self, key: &BlockKey) -> bool {
        let mut on_way = self.on_way.lock();
        if !on_way.blocks.contains(key) {
            return false;
        }
        self.arrived.wait_while(&mut on_way, |on_way| on_way.blocks.contains(key));
        true
    }

    /// Returns `true` if the block is on its way.
    fn has(&self, key: &BlockKey) -> bool {
        self.on_way.lock().blocks.contains(key)
    }

    /// Notes a get of blocks, if they and those on their way are at most `blocks_max`.
    fn begin(&self, object: &Arc<str>, numbers: &Range<u64>, blocks_max: u64) -> bool {
        let mut on_way = self.on_way.lock();
        let count = on_way.blocks.len() as u64 + (numbers.end - numbers.start);
        if numbers.is_empty() || on_way.gets == GETS_MAX || count > blocks_max {
            return false;
        }
        on_way.gets += 1;
        on_way.blocks.extend(numbers.clone().map(|number| (object.clone(), number)));
        true
    }
}

/// A get that is on its way until the value is dropped.
struct GetAhead {
    /// Not held during the get: the folder of a cache is free once its reader is dropped.
    cache: Weak<ObjectCache>,
    bucket: Bucket,
    object: Arc<str>,
    numbers: Range<u64>,
}

impl GetAhead {
    fn make(self) {
        let range = self.numbers.start * BLOCK_BYTES..self.numbers.end * BLOCK_BYTES;
        let got = self.bucket.get_range(&self.object, range);
        if let (Ok(Some(got)), Some(cache)) = (got, self.cache.upgrade()) {
            cache.count_get(got.len());
            let blocks = got.chunks(BLOCK_BYTES as usize);
            for (number, block) in self.numbers.clone().zip(blocks) {
                cache.take_in((self.object.clone(), number), block.into());
            }
        }
    }
}

impl Drop for GetAhead {
    fn drop(&mut self) {
        let Some(cache) = self.cache.upgrade() else { return };
        let mut on_way = cache.ahead.on_way.lock();
        on_way.gets -= 1;
        for number in self.numbers.clone() {
            on_way.blocks.remove(&(self.object.clone(), number));
        }
        drop(on_way);
        cache.ahead.arrived.notify_all();
    }
}

impl ObjectCache {
    /// Begins to get the first of the blocks `numbers` that are missing, up to one that is not, and returns at once;
    /// `false` if there is nothing to get, or too much on its way.
    pub(super) fn get_ahead(self: &Arc<Self>, piece: &ObjectPiece, numbers: Range<u64>) -> bool {
        if self.bucket.is_stepped {
            return false;
        }
        let object = &piece.object;
        let end = numbers.end.min((piece.at + piece.len).div_ceil(BLOCK_BYTES));
        let here = (numbers.start..end).take_while(|n| self.is_here_or_asked(object, *n));
        let start = numbers.start + here.count() as u64;
        let missing = (start..end).take_while(|n| !self.is_here_or_asked(object, *n));
        let numbers = start..start + missing.count() as u64;
        // Two that ask at the same moment get the same blocks twice, which is waste and no harm.
        if !self.ahead.begin(object, &numbers, self.bytes_max / CACHE_PART / BLOCK_BYTES) {
            return false;
        }
        // One attempt: the reader is patient, if it asks for the block at all.
        let bucket = self.bucket.sibling().with_patience(Duration::ZERO);
        let get = GetAhead { cache: Arc::downgrade(self), bucket, object: object.clone(), numbers };
        let thread = std::thread::Builder::new().name("siltstone-get".to_owned());
        // Without a thread the get ends here.
        thread.spawn(move || get.make()).is_ok()
    }

    pub(super) fn is_here_or_asked(&self, object: &Arc<str>, number: u64) -> bool {
        let key = (object.clone(), number);
        self.has(&key) || self.ahead.has(&key)
    }
}
