//! The blocks that are got, when, and those that stay.

use super::*;
use crate::Remote;
use crate::disk_cache::CacheFolder;
use lsm_core::fs::{Fs, MemFs};

const NAME: &str = "part/a";

/// A bucket for a cache that gets nothing ahead.
fn stepped_bucket(remote: &Remote) -> Bucket {
    let mut bucket = remote.0.bucket();
    bucket.is_stepped = true;
    bucket
}

fn stepped(remote: &Remote, bytes_max: u64) -> Arc<ObjectCache> {
    Arc::new(ObjectCache::new(stepped_bucket(remote), bytes_max))
}

fn file_of(object: &str, blocks: u64) -> RwLock<FileBytes> {
    let len = blocks * BLOCK_BYTES;
    let pieces = vec![ObjectPiece { offset: 0, len, object: object.into(), at: 0 }];
    RwLock::new(FileBytes { len, pieces, ..Default::default() })
}

fn read(cache: &Arc<ObjectCache>, number: u64) {
    let mut byte = [0];
    // It ends with the block: nothing is read ahead.
    let len = (number + 1) * BLOCK_BYTES;
    let piece = ObjectPiece { offset: 0, len, object: NAME.into(), at: 0 };
    cache.read_blocks(&piece, number * BLOCK_BYTES, &mut byte).unwrap();
    assert_eq!(byte[0], number as u8);
}

/// Reads the begins of blocks of an object of `blocks` blocks; returns those that were not here.
fn missed(cache: &Arc<ObjectCache>, object: &str, blocks: u64, read: &[u64]) -> Vec<u64> {
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
    let cache = stepped(&remote, 1 << 30);
    let gets = [0, 1, 3, 7, 15, 31, 63, 127, 191];
    assert_eq!(missed(&cache, NAME, BLOCKS, &walk), gets);
    // A walk ends with its object, and two at once do not disturb each other.
    let cache = stepped(&remote, 1 << 30);
    for number in 0..12 {
        let begins_get = [0, 1, 3, 7].contains(&number);
        for name in [NAME, "part/b"] {
            assert_eq!(missed(&cache, name, 12, &[number]).len(), usize::from(begins_get));
        }
    }
    assert_eq!(cache.figures().got_bytes, 2 * 12 * BLOCK_BYTES);
    // A small memory keeps what comes ahead until it is read.
    let cache = stepped(&remote, 64 * BLOCK_BYTES);
    assert_eq!(missed(&cache, NAME, 20, &walk[..20]), [0, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19]);
    let cache = stepped(&remote, 1 << 30);
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
    let bucket = stepped_bucket(&remote);
    let cache = Arc::new(ObjectCache::with_disk(bucket, 8 * BLOCK_BYTES, disk));
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

/// Waits until nothing is on its way.
fn settle(cache: &ObjectCache, object: &str, blocks: u64) {
    for number in 0..blocks {
        cache.ahead.wait_for(&(object.into(), number));
    }
}

#[test]
fn a_walk_asks_for_what_follows_before_it_comes_there() {
    let remote = Remote::memory().unwrap();
    const BLOCKS: u64 = 255;
    let object: Vec<u8> = (0..BLOCKS).flat_map(|n| vec![n as u8; BLOCK_BYTES as usize]).collect();
    remote.store().put(NAME, &object).unwrap();
    let piece = ObjectPiece { offset: 0, len: object.len() as u64, object: NAME.into(), at: 0 };
    let cache = Arc::new(ObjectCache::new(remote.0.bucket(), 1 << 30));
    let mut waited = Vec::new();
    for number in 0..BLOCKS {
        settle(&cache, NAME, BLOCKS);
        if !cache.has(&(NAME.into(), number)) {
            waited.push(number);
        }
        let mut byte = [0];
        cache.read_blocks(&piece, number * BLOCK_BYTES, &mut byte).unwrap();
        assert_eq!(byte[0], number as u8);
    }
    // Only the second GET shows that it is a walk.
    assert_eq!(waited, [0, 1]);
    assert_eq!(cache.figures().got_bytes, object.len() as u64);
}

#[test]
fn a_hint_gets_a_range_once_and_the_end_of_a_table_with_its_index() {
    let remote = Remote::memory().unwrap();
    let name = "table/a";
    const BLOCKS: u64 = 64;
    remote.store().put(name, &vec![7; (BLOCKS * BLOCK_BYTES) as usize]).unwrap();
    let len = BLOCKS * BLOCK_BYTES;
    let file = file_of(name, BLOCKS);
    let cache = Arc::new(ObjectCache::new(remote.0.bucket(), 1 << 30));
    cache.prefetch(&file, len - 1..len);
    cache.prefetch(&file, 0..2 * BLOCK_BYTES);
    cache.prefetch(&file, 0..BLOCK_BYTES);
    settle(&cache, name, BLOCKS);
    assert_eq!(cache.figures().gets, 2);
    let mut bytes = vec![0; 2 * BLOCK_BYTES as usize];
    for at in [0, len - bytes.len() as u64] {
        assert_eq!(cache.read_at(&file, at, &mut bytes, true).unwrap(), bytes.len());
        assert_eq!(bytes, vec![7; bytes.len()]);
    }
    settle(&cache, name, BLOCKS);
    // At the second block of a walk the cache asks for what follows.
    assert_eq!(cache.figures().gets, 3);
}

#[test]
fn a_hint_that_fails_is_no_error_of_a_read() {
    let remote = Remote::memory().unwrap();
    let len = 4 * BLOCK_BYTES;
    let file = file_of(NAME, 4);
    let cache = Arc::new(ObjectCache::new(remote.0.bucket(), 1 << 30));
    cache.prefetch(&file, 0..len);
    settle(&cache, NAME, 4);
    remote.store().put(NAME, &vec![7; len as usize]).unwrap();
    let mut bytes = vec![0; len as usize];
    assert_eq!(cache.read_at(&file, 0, &mut bytes, true).unwrap(), bytes.len());
    assert_eq!(bytes, vec![7; bytes.len()]);
}
