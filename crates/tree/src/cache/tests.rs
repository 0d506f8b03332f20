//! The cache by itself, with blocks of real tables.

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::iter::InternalIter;
use crate::options::Compression;
use crate::sstable::test_file::TestFile;
use crate::sstable::{
    CachePrepopulation, ReadMode, SstIdentity, SstOptions, SstReader, SstWriter, bloom_hash,
};
use crate::types::{DbId, EntryKind, Epoch, KeyRef, SeqNo, Trailer};

/// A table of 100 blocks of one entry each, read through `cache`.
fn table(file: FileNo, cache: &Arc<Blocks>) -> SstReader {
    table_of(file, cache, 900)
}

/// The same with values of this length.
fn table_of(file: FileNo, cache: &Arc<Blocks>, value_bytes: usize) -> SstReader {
    let identity = SstIdentity { db_id: DbId(1), file, epoch: Epoch(1) };
    let stored = Arc::new(TestFile::default());
    let options = SstOptions {
        block_bytes: 64,
        compression: Compression::None,
        bloom_bits_per_key: 0,
        prefix_extractor: None,
    };
    let path = PathBuf::from("t.sst");
    let mut writer = SstWriter::new(stored.clone(), identity, SeqNo::ZERO, options);
    for n in 0..100_u8 {
        let trailer = Trailer::new(SeqNo::ZERO, EntryKind::Value);
        writer.add(KeyRef::new(&[n], trailer), &vec![file.0 as u8; value_bytes]).unwrap();
    }
    writer.finish().unwrap();
    SstReader::open(stored, path, identity, None, Some(cache.clone())).unwrap()
}

fn read(reader: &SstReader, n: u8) {
    let (_, value) = reader.get(&[n], bloom_hash(&[n]), SeqNo::MAX).unwrap().unwrap();
    assert_eq!(value, [reader.identity().file.0 as u8; 900]);
}

#[test]
fn blocks_are_read_once_and_distinguished_by_file() {
    let cache = Arc::new(Blocks::new(1 << 20));
    let tables = [table(FileNo(1), &cache), table(FileNo(2), &cache)];
    for _ in 0..3 {
        tables.iter().for_each(|reader| (0..100).for_each(|n| read(reader, n)));
    }
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.blocks), (400, 200, 200));
    assert!(stats.bytes > 200 * 900 && stats.bytes <= stats.capacity);
}

#[test]
fn capacity_bounds_the_bytes_and_zero_keeps_nothing() {
    let small = Arc::new(Blocks::new(20_000));
    let reader = table(FileNo(1), &small);
    (0..5).for_each(|_| (0..100).for_each(|n| read(&reader, n)));
    let stats = small.stats();
    assert!(stats.bytes <= 20_000 && stats.blocks > 5, "{stats:?}");
    // So do blocks that are all in use.
    (0..5).for_each(|_| (0..100).for_each(|n| (0..3).for_each(|_| read(&reader, n))));
    let stats = small.stats();
    assert!(stats.bytes <= 20_000 && stats.blocks > 5, "{stats:?}");
    let off = Arc::new(Blocks::new(0));
    let reader = table(FileNo(1), &off);
    (0..2).for_each(|_| (0..100).for_each(|n| read(&reader, n)));
    let stats = off.stats();
    assert_eq!((stats.hits, stats.misses, stats.blocks, stats.bytes), (0, 200, 0, 0));
}

/// Blocks of a table that are in the cache.
fn kept_of(reader: &SstReader, cache: &Blocks) -> usize {
    let offsets = reader.blocks().map(|block| block.unwrap().0);
    offsets.filter(|offset| cache.look(reader.identity().file, *offset, &mut |_| ())).count()
}

#[test]
fn a_scan_leaves_blocks_in_use_and_a_second_use_brings_a_block_back() {
    // Room for about 70 of the blocks.
    let cache = Arc::new(Blocks::new(84_000));
    let [hot, scanned] = [table(FileNo(1), &cache), table(FileNo(2), &cache)];
    (0..3).for_each(|_| (0..30).for_each(|n| read(&hot, n)));
    (0..100).for_each(|n| read(&scanned, n));
    assert_eq!(kept_of(&hot, &cache), 30);
    // What a scan has pushed out comes back by one more read, and is then as good as those in use.
    (0..10).for_each(|n| read(&scanned, n));
    (30..100).for_each(|n| read(&hot, n));
    let offsets: Vec<u64> = scanned.blocks().map(|block| block.unwrap().0).collect();
    assert!(offsets[..10].iter().all(|at| cache.look(FileNo(2), *at, &mut |_| ())));
}

#[test]
fn a_full_cache_takes_a_block_at_its_second_request() {
    let cache = Arc::new(Blocks::new(84_000));
    let [first, other] = [table(FileNo(1), &cache), table(FileNo(2), &cache)];
    (0..100).for_each(|n| read(&first, n));
    let before = cache.stats();
    read(&other, 5);
    assert_eq!((kept_of(&other, &cache), cache.stats().blocks), (0, before.blocks));
    // A walk is a request as well as a point read, and gets the block either way.
    let mut iter = Arc::new(other).iter(ReadMode::Cached);
    for is_kept in [false, true] {
        iter.seek(Some(KeyRef::seek(&[6], SeqNo::MAX))).unwrap();
        assert_eq!((iter.key().user, iter.value()), (&[6][..], &[2; 900][..]));
        assert_eq!(kept_of(iter.table(), &cache), usize::from(is_kept));
        iter.seek(None).unwrap();
    }
    // So is a read of a block that is too long for the buffer of a thread.
    let long = table_of(FileNo(3), &cache, 17 << 10);
    for is_kept in [false, true] {
        assert!(long.get(&[6], bloom_hash(&[6]), SeqNo::MAX).unwrap().is_some());
        assert_eq!(kept_of(&long, &cache), usize::from(is_kept));
    }
}

#[test]
fn a_second_request_replaces_no_block_in_use() {
    let cache = Arc::new(Blocks::new(84_000));
    let [hot, other] = [table(FileNo(1), &cache), table(FileNo(2), &cache)];
    (0..100).for_each(|n| read(&hot, n));
    let kept = kept_of(&hot, &cache);
    assert!((60..80).contains(&kept), "{kept}");
    // The first ones that were read. All of them stay in use.
    for _ in 0..100 {
        (0..kept as u8).for_each(|n| read(&hot, n));
        read(&other, 5);
    }
    assert_eq!((kept_of(&other, &cache), kept_of(&hot, &cache)), (0, kept));
    // Some of them are not used any more. A turn of all blocks takes half as many requests, and after three
    // turns they have no uses left.
    for _ in 0..200 {
        (0..60).for_each(|n| read(&hot, n));
        read(&other, 5);
    }
    assert_eq!((kept_of(&other, &cache), kept_of(&hot, &cache)), (1, kept - 1));
}

#[test]
fn a_block_that_is_put_again_replaces_the_old_one() {
    let cache = Arc::new(Blocks::new(1 << 20));
    let reader = table(FileNo(1), &cache);
    read(&reader, 7);
    let before = cache.stats();
    let offset = reader.blocks().nth(7).unwrap().unwrap().0;
    let block = cache.get(FileNo(1), offset).unwrap();
    cache.insert(FileNo(1), offset, block.clone());
    assert_eq!((cache.stats().bytes, cache.stats().blocks), (before.bytes, before.blocks));
    assert_eq!(Arc::strong_count(&block), 2);
    // From now on the other block is searched.
    let other = table(FileNo(2), &cache);
    read(&other, 8);
    let offset_of_other = other.blocks().nth(8).unwrap().unwrap().0;
    cache.insert(FileNo(1), offset, cache.get(FileNo(2), offset_of_other).unwrap());
    assert!(reader.get(&[7], bloom_hash(&[7]), SeqNo::MAX).unwrap().is_none());
}

struct Placed {
    file: FileNo,
    offset: u64,
    block: Arc<Block>,
}

/// Block `n` of a table, with its place.
fn block_of(reader: &SstReader, cache: &Blocks, n: usize) -> Placed {
    let offset = reader.blocks().nth(n).unwrap().unwrap().0;
    read(reader, n as u8);
    let file = reader.identity().file;
    Placed { file, offset, block: cache.get(file, offset).unwrap() }
}

#[test]
fn a_written_block_takes_free_room_and_no_other() {
    let source = Arc::new(Blocks::new(1 << 20));
    let written = table(FileNo(2), &source);
    // Room for about 70 blocks.
    let cache = Arc::new(Blocks::new(80_000));
    let hot = table(FileNo(1), &cache);
    (0..40).for_each(|n| read(&hot, n));
    for n in 0..100 {
        let Placed { file, offset, block } = block_of(&written, &source, n);
        let has_room = cache.has_room(file, offset, block.memory_bytes());
        let before = cache.stats().blocks;
        cache.insert_where_free(file, offset, block);
        assert_eq!(cache.stats().blocks - before, u64::from(has_room), "block {n}");
    }
    let stats = cache.stats();
    assert!(stats.bytes <= 80_000 && (60..80).contains(&stats.blocks), "{stats:?}");
    assert_eq!(kept_of(&hot, &cache), 40);
    // No one has used them, so they are evicted first.
    let read_later = table(FileNo(3), &cache);
    (0..40).for_each(|n| read(&hot, n));
    (0..25).for_each(|n| read(&read_later, n));
    assert_eq!(kept_of(&hot, &cache), 40);
    let off = Blocks::new(0);
    let Placed { file, offset, block } = block_of(&written, &source, 0);
    assert!(!off.has_room(file, offset, 1));
    off.insert_where_free(file, offset, block);
    assert!(off.get(file, offset).is_none());
}

#[test]
fn a_table_that_is_gone_leaves_room_and_no_trace() {
    let cache = Arc::new(Blocks::new(80_000));
    let empty = cache.stats().bytes;
    // More tables than there is room for, one after the other.
    for file in 1..=200 {
        let reader = table(FileNo(file), &cache);
        // Some of them are used again.
        (0..60).for_each(|n| read(&reader, n));
        (0..n_used(file)).for_each(|n| read(&reader, n));
        assert_eq!(kept_of(&reader, &cache), 60);
        reader.forget_blocks();
        assert_eq!((cache.stats().bytes, cache.stats().blocks), (empty, 0));
    }
    let queued = cache.shards[0].read().queued();
    assert!(queued <= 130, "{queued} keys are queued for no block");
    // The queues still know which blocks are there.
    let reader = table(FileNo(1), &cache);
    (0..5).for_each(|_| (0..100).for_each(|n| read(&reader, n)));
    let stats = cache.stats();
    assert!(stats.bytes <= 80_000 && stats.blocks > 50, "{stats:?}");
}

fn n_used(file: u64) -> u8 {
    (file % 60) as u8
}

/// Writes a table of small entries, whose blocks go to the cache by way of `prepopulation`.
fn written(
    file: FileNo,
    prepopulation: Arc<CachePrepopulation>,
    compression: Compression,
) -> Arc<TestFile> {
    let identity = SstIdentity { db_id: DbId(1), file, epoch: Epoch(1) };
    let stored = Arc::new(TestFile::default());
    let options = SstOptions {
        block_bytes: 1024,
        compression,
        bloom_bits_per_key: 0,
        prefix_extractor: None,
    };
    let mut writer = SstWriter::new(stored.clone(), identity, SeqNo::ZERO, options);
    writer.set_prepopulation(prepopulation);
    for n in 0..200_u8 {
        let trailer = Trailer::new(SeqNo::ZERO, EntryKind::Value);
        writer.add(KeyRef::new(&[n], trailer), &[n; 50]).unwrap();
    }
    writer.finish().unwrap();
    stored
}

#[test]
fn written_blocks_are_those_that_a_reader_finds_and_go_with_a_job_that_fails() {
    for compression in [Compression::None, Compression::Lz4] {
        let cache = Arc::new(Blocks::new(1 << 20));
        let file = FileNo(3);
        let prepopulation = Arc::new(CachePrepopulation::new(cache.clone()));
        let stored = written(file, prepopulation.clone(), compression);
        let blocks = cache.stats().blocks;
        assert!(blocks > 8, "{blocks} blocks");
        let identity = SstIdentity { db_id: DbId(1), file, epoch: Epoch(1) };
        let reader =
            SstReader::open(stored, "t.sst".into(), identity, None, Some(cache.clone())).unwrap();
        for n in 0..200_u8 {
            let found = reader.get(&[n], bloom_hash(&[n]), SeqNo::MAX).unwrap().unwrap();
            assert_eq!(found.1, [n; 50]);
        }
        assert_eq!(cache.stats().misses, 0);
        // As heavy as the blocks that are read.
        let bytes = cache.stats().bytes;
        drop(prepopulation);
        assert_eq!((cache.stats().blocks, cache.stats().bytes), (0, 0));
        for n in 0..200_u8 {
            reader.get(&[n], bloom_hash(&[n]), SeqNo::MAX).unwrap().unwrap();
        }
        let trailers = if compression == Compression::None { 9 * blocks } else { 0 };
        assert_eq!((cache.stats().blocks, cache.stats().bytes), (blocks, bytes + trailers));
        // Those of a job that has its tables stay.
        let prepopulation = Arc::new(CachePrepopulation::new(cache.clone()));
        written(FileNo(4), prepopulation.clone(), compression);
        prepopulation.keep();
        drop(prepopulation);
        assert_eq!(cache.stats().blocks, 2 * blocks);
    }
}

#[test]
fn a_cache_is_in_use_from_a_lookup_on_until_several_tables_began_without_one() {
    let cache = Blocks::new(1 << 20);
    assert!(!cache.is_in_use());
    assert!(cache.get(FileNo(1), 0).is_none());
    for _ in 0..8 {
        assert!(cache.is_in_use());
    }
    assert!(!cache.is_in_use());
    assert!(!cache.is_in_use());
    assert!(!cache.look(FileNo(1), 0, &mut |_| ()));
    assert!(cache.is_in_use());
}

/// A block of about `bytes` bytes on the heap, with values of this length.
fn block_of_about(bytes: u32, value_bytes: usize) -> Arc<Block> {
    let small = Arc::new(Blocks::new(1 << 20));
    let identity = SstIdentity { db_id: DbId(1), file: FileNo(1), epoch: Epoch(1) };
    let stored = Arc::new(TestFile::default());
    let options = SstOptions {
        block_bytes: bytes,
        compression: Compression::None,
        bloom_bits_per_key: 0,
        prefix_extractor: None,
    };
    let mut writer = SstWriter::new(stored.clone(), identity, SeqNo::ZERO, options);
    for n in 0..bytes / 110 + 100 {
        let trailer = Trailer::new(SeqNo::ZERO, EntryKind::Value);
        writer.add(KeyRef::new(&n.to_be_bytes(), trailer), &vec![n as u8; value_bytes]).unwrap();
    }
    writer.finish().unwrap();
    let reader =
        SstReader::open(stored, "t.sst".into(), identity, None, Some(small.clone())).unwrap();
    let key = 1_u32.to_be_bytes();
    reader.get(&key, bloom_hash(&key), SeqNo::MAX).unwrap().unwrap();
    small.get(FileNo(1), reader.blocks().next().unwrap().unwrap().0).unwrap()
}

#[test]
fn memory_stays_in_its_bounds_where_the_lengths_of_blocks_change() {
    let capacity = 24 << 20;
    let cache = Blocks::new(capacity);
    let mut pinned = Vec::new();
    let mut offset = 0;
    let mut slab_bytes_most = 0;
    for (round, bytes) in [1500, 4096, 2000, 9000, 3000, 4096, 20_000].into_iter().enumerate() {
        let lengths = [block_of_about(bytes, 100), block_of_about(bytes * 9 / 8, 100)];
        for n in 0..2 * capacity / u64::from(bytes) {
            offset += 1;
            let block = cache.insert(FileNo(1), offset, lengths[n as usize % 2].clone());
            if round == 6 && n % 500 == 0 {
                pinned.push(block);
            }
            // Blocks of every age stay in use.
            for back in [offset / 2, offset - offset / 100, offset * 9 / 10] {
                cache.look(FileNo(1), back, &mut |_| ());
            }
            let stats = cache.stats();
            let bytes_max = memory_bytes_max(capacity);
            assert!(stats.bytes <= capacity && stats.memory_bytes() <= bytes_max);
            let closed_max = ((pinned.len() + 1) * SLAB_BYTES) as u64;
            let slab_bytes = cache.slots.slab_bytes();
            assert!(slab_bytes <= bytes_max + closed_max, "round {round}: {slab_bytes}");
            slab_bytes_most = slab_bytes.max(slab_bytes_most);
        }
    }
    assert!(slab_bytes_most > capacity / 2, "{slab_bytes_most}");
    (1..=offset).for_each(|offset| drop(cache.remove(FileNo(1), offset)));
    assert_eq!((cache.stats().bytes, cache.bytes.load(Ordering::Relaxed)), (0, 0));
    drop(pinned);
    assert!(cache.slots.slab_bytes() <= capacity / IDLE_PART);
}

#[test]
fn a_small_cache_takes_no_slab_and_a_large_one_only_what_it_needs() {
    let block = block_of_about(4096, 100);
    for capacity in [1, 4, 15] {
        let cache = Blocks::new(capacity << 20);
        (0..5000).for_each(|offset| drop(cache.insert(FileNo(1), offset, block.clone())));
        assert_eq!((cache.slots.slab_bytes(), cache.stats().free_bytes), (0, 0));
    }
    let cache = Blocks::new(256 << 20);
    for offset in 0..20_000 {
        cache.insert(FileNo(1), offset, block.clone());
        let stats = cache.stats();
        assert!(stats.free_bytes <= stats.bytes / FREE_PART);
    }
    assert!(cache.slots.slab_bytes() > 60 << 20);
    let kept = cache.get(FileNo(1), 19_999).unwrap();
    assert!(Arc::ptr_eq(&cache.insert(FileNo(2), 0, kept.clone()), &kept));
    // Readers share the long values of a block, so that stays where it is.
    let long = block_of_about(16 << 10, 2000);
    assert!(Arc::ptr_eq(&cache.insert(FileNo(2), 1, long.clone()), &long));
}

/// The bound holds because blocks leave with their slab: nothing else takes them out here.
#[test]
fn the_blocks_of_a_slab_that_is_given_up_leave_with_it() {
    let block = block_of_about(4096, 100);
    let cache = Blocks::new(256 << 20);
    (0..8000).for_each(|offset| drop(cache.insert(FileNo(1), offset, block.clone())));
    let before = cache.stats();
    // The first 16 MiB are on the heap.
    for part in [4, 3] {
        let bytes_max = before.memory_bytes() * part / 5;
        cache.give_up_sparse_slabs(bytes_max);
        let stats = cache.stats();
        assert!(stats.memory_bytes() <= bytes_max, "{stats:?}");
        assert!(stats.memory_bytes() + 2 * SLAB_BYTES as u64 > bytes_max, "no more than needed");
        let found = (0..8000).filter(|offset| cache.get(FileNo(1), *offset).is_some()).count();
        assert_eq!(found as u64, stats.blocks);
    }
}

/// The bytes and the number of the blocks of each part, by a look at each block; checks that the bytes of all parts are
/// those of the cache.
fn parts_of(cache: &Blocks, count: u64) -> Vec<[u64; 2]> {
    let counted: Vec<[u64; 2]> = (0..count).map(|part| cache.part(part)).collect();
    assert_eq!(counted.iter().map(|part| part[0]).sum::<u64>(), cache.stats().bytes);
    for (part, [_, blocks]) in (0..count).zip(&counted) {
        let shards = cache.shards.iter().map(|shard| {
            let shard = shard.read();
            shard.places().iter().filter(|(key, _)| part_of(*key) == part).count() as u64
        });
        assert_eq!(shards.sum::<u64>(), *blocks, "part {part}");
    }
    counted
}

/// A number below `limit` that looks random.
fn below(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % limit
}

#[test]
fn the_figures_of_each_part_are_those_of_its_blocks() {
    const PARTS: u64 = 4;
    let mut random = 3;
    let cache = Arc::new(Blocks::new(256 << 10));
    let mut parts: Vec<CachePart> =
        (0..PARTS).map(|number| CachePart::new(cache.clone(), number)).collect();
    let blocks = [500, 1500, 4000].map(|bytes| block_of_about(bytes, 10));
    for round in 0..3000 {
        let part = &parts[below(&mut random, PARTS) as usize];
        let file = FileNo(below(&mut random, 5));
        let offset = below(&mut random, 40);
        let block = &blocks[below(&mut random, 3) as usize];
        match below(&mut random, 8) {
            0 => drop(part.remove(file, offset)),
            1 => drop(part.get(file, offset)),
            2 => part.insert_where_free(file, offset, block.clone()),
            _ => drop(part.insert(file, offset, block.clone())),
        }
        if round % 50 == 0 {
            parts_of(&cache, PARTS);
        }
    }
    let before = parts_of(&cache, PARTS);
    assert!(before.iter().all(|part| part[1] > 0), "{before:?}");
    drop(parts.swap_remove(0));
    let after = parts_of(&cache, PARTS);
    assert_eq!(after[0], [0, 0]);
    assert_eq!(after[1..], before[1..]);
}
