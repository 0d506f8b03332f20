//! Blocks that cursors ask the cache for before they come to them.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Entries, IDENTITY, entry, options, write};
use crate::cache::Blocks;
use crate::iter::{InternalIter, MergeIter};
use crate::options::Compression;
use crate::sstable::index::INDEX_BYTES_MAX;
use crate::sstable::test_file::TestFile;
use crate::sstable::{Block, BlockCache, IndexedBlock, ReadMode, SstIter, SstReader, bloom_hash};
use crate::types::{EntryKind, FileNo, KeyRef, SeqNo};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Place,
    Get,
}

/// A cache that notes what it is asked for.
struct Noting {
    blocks: Blocks,
    calls: Mutex<Vec<(Call, FileNo, u64)>>,
}

impl BlockCache for Noting {
    fn is_in_use(&self) -> bool {
        self.blocks.is_in_use()
    }

    fn get(&self, file: FileNo, offset: u64) -> Option<Arc<Block>> {
        self.calls.lock().push((Call::Get, file, offset));
        self.blocks.get(file, offset)
    }

    fn look(&self, file: FileNo, offset: u64, look: &mut dyn FnMut(&IndexedBlock)) -> bool {
        self.blocks.look(file, offset, look)
    }

    fn prefetch_place(&self, file: FileNo, offset: u64) {
        self.calls.lock().push((Call::Place, file, offset));
        self.blocks.prefetch_place(file, offset);
    }

    fn keeps(&self, file: FileNo, offset: u64) -> bool {
        self.blocks.keeps(file, offset)
    }

    fn wants(&self, file: FileNo, offset: u64, memory_bytes: u64) -> bool {
        self.blocks.wants(file, offset, memory_bytes)
    }

    fn insert(&self, file: FileNo, offset: u64, block: Arc<Block>) -> Arc<Block> {
        self.blocks.insert(file, offset, block)
    }

    fn has_room(&self, file: FileNo, offset: u64, memory_bytes: u64) -> bool {
        self.blocks.has_room(file, offset, memory_bytes)
    }

    fn insert_where_free(&self, file: FileNo, offset: u64, block: Arc<Block>) {
        self.blocks.insert_where_free(file, offset, block);
    }

    fn remove(&self, file: FileNo, offset: u64) -> Option<Arc<Block>> {
        self.blocks.remove(file, offset)
    }
}

impl Noting {
    fn new() -> Arc<Noting> {
        Arc::new(Noting { blocks: Blocks::new(4 << 20), calls: Mutex::default() })
    }

    /// A cursor over a table of many blocks, of some groups each, whose file has the number `file`.
    fn cursor(self: &Arc<Self>, file: u64) -> SstIter {
        self.table(file, INDEX_BYTES_MAX).iter(ReadMode::Cached)
    }

    /// Such a table, with an index that is split beyond `index_bytes_max`.
    fn table(self: &Arc<Self>, file: u64, index_bytes_max: usize) -> Arc<SstReader> {
        let all: Entries = (0..2000_u64)
            .map(|n| entry(&n.to_be_bytes(), 9, EntryKind::Value, &[n as u8; 80]))
            .collect();
        let (bytes, _) = write(&all, options(4096, Compression::None), index_bytes_max);
        let cache: Arc<dyn BlockCache> = self.clone();
        let source = TestFile::holding(&bytes);
        let reader = SstReader::open(source, "t.sst".into(), IDENTITY, None, Some(cache)).unwrap();
        Arc::new(reader.placed(FileNo(file), None))
    }

    /// The calls since the last time.
    fn taken(&self) -> Vec<(Call, FileNo, u64)> {
        std::mem::take(&mut *self.calls.lock())
    }
}

#[test]
fn a_walk_asks_for_the_place_of_the_next_block_before_it_gets_it() {
    let cache = Noting::new();
    let mut iter = cache.cursor(1);
    iter.seek(None).unwrap();
    while iter.valid() {
        iter.next().unwrap();
    }
    let calls = cache.taken();
    let gets: Vec<usize> = (0..calls.len()).filter(|at| calls[*at].0 == Call::Get).collect();
    assert!(gets.len() > 20);
    for at in gets.into_iter().skip(1) {
        let (_, file, offset) = calls[at];
        // When the walk entered the block before: nothing else in between.
        assert_eq!(calls[at - 1], (Call::Place, file, offset));
    }
}

#[test]
fn a_seek_of_a_merge_asks_for_the_places_of_all_tables_first() {
    let cache = Noting::new();
    let merged = MergeIter::new(vec![cache.cursor(1), cache.cursor(2)]);
    let mut merged = merged.with_prefetch(|cursors, target| {
        cursors.iter().for_each(|cursor| cursor.prefetch(target.unwrap()));
        Ok(())
    });
    let target = 1234_u64.to_be_bytes();
    merged.seek(Some(KeyRef::seek(&target, SeqNo::MAX))).unwrap();
    assert_eq!(merged.key().user, target);
    let calls = cache.taken();
    let [first, second] = [calls[0], calls[1]];
    assert_eq!([first.0, second.0], [Call::Place; 2]);
    assert_eq!([first.1, second.1], [FileNo(1), FileNo(2)]);
    for (_, file, offset) in [first, second] {
        let got = calls.iter().find(|call| (call.0, call.1) == (Call::Get, file));
        assert_eq!(got, Some(&(Call::Get, file, offset)));
    }
}

/// Reads ask for the marks of a block where they lay last, before the cache finds the block.
#[test]
fn an_index_notes_where_the_cache_keeps_a_block() {
    let cache = Noting::new();
    let reader = cache.table(1, INDEX_BYTES_MAX);
    let index = reader.index();
    let mut iter = reader.iter(ReadMode::Cached);
    let keys = [100_u64, 1500].map(u64::to_be_bytes);
    let numbers = keys.map(|key| index.lower_bound(KeyRef::seek(&key, SeqNo::MAX)));
    for (key, number) in keys.iter().zip(numbers) {
        let extent = index.extent(number).unwrap();
        let mut old = None;
        // The old block is kept, so that the new one lies elsewhere.
        for _ in 0..2 {
            for _ in 0..2 {
                assert!(reader.get(key, bloom_hash(key), SeqNo::MAX).unwrap().is_some());
            }
            let block = cache.blocks.get(FileNo(1), extent.offset).unwrap();
            assert_eq!(index.noted(number), block.data().address());
            assert_ne!(
                old.map(|block: Arc<Block>| block.data().address()),
                Some(index.noted(number))
            );
            old = cache.blocks.remove(FileNo(1), extent.offset);
        }
        // Cursors note it, too.
        for _ in 0..2 {
            iter.seek_before(None).unwrap();
            iter.seek(Some(KeyRef::seek(key, SeqNo::MAX))).unwrap();
        }
        let block = cache.blocks.get(FileNo(1), extent.offset).unwrap();
        assert_eq!(index.noted(number), block.data().address());
    }
    let noted = (0..index.block().len()).filter(|number| index.noted(*number) != 0);
    // And the last one.
    assert_eq!(noted.count(), 3);
}

/// The entries of the upper level are no blocks of data.
#[test]
fn an_index_of_two_levels_notes_nothing() {
    let reader = Noting::new().table(1, 256);
    let index = reader.index();
    assert_eq!(index.levels(), 2);
    let mut iter = reader.iter(ReadMode::Cached);
    for _ in 0..2 {
        for n in (0..2000_u64).step_by(50) {
            let key = n.to_be_bytes();
            assert!(reader.get(&key, bloom_hash(&key), SeqNo::MAX).unwrap().is_some());
            iter.seek(Some(KeyRef::seek(&key, SeqNo::MAX))).unwrap();
            assert!(iter.valid());
        }
    }
    assert!((0..index.block().len()).all(|number| index.noted(number) == 0));
}
