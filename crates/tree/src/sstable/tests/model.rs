//! Tables against a sorted list.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Entries, IDENTITY, entry, open, open_mapped, options, write};
use crate::codec::checksum64;
use crate::iter::{InternalIter, MergeIter};
use crate::options::{Compression, PrefixExtractor};
use crate::sstable::index::INDEX_BYTES_MAX;
use crate::sstable::{ReadMode, SstIter, SstOptions, SstReader, bloom_hash};
use crate::types::{EntryKind, InternalKey, KeyRef, SeqNo, Trailer};

fn kind() -> impl Strategy<Value = EntryKind> {
    prop_oneof![
        1 => Just(EntryKind::Tombstone),
        4 => Just(EntryKind::Value),
        1 => Just(EntryKind::Handle),
        1 => Just(EntryKind::Poison),
    ]
}

/// Keys that crowd: shared beginnings, zeros and 0xff at the end, some equal, some long.
pub(super) fn user_key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0), Just(0xff), Just(b'a'), Just(b'b'), any::<u8>()];
    prop_oneof![
        4 => vec(byte.clone(), 0..6),
        2 => vec(byte.clone(), 1..4).prop_map(|tail| [&b"a long common beginning "[..], &tail].concat()),
        2 => vec(any::<u8>(), 1..40),
        1 => vec(byte, 1..3).prop_map(|tail| [&[b'x'; 300][..], &tail].concat()),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => vec(any::<u8>(), 0..20),
        2 => (any::<u8>(), 100..700_usize).prop_map(|(byte, len)| vec![byte; len]),
        1 => (any::<u8>(), 8000..20_000_usize).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

pub(super) fn entries() -> impl Strategy<Value = Entries> {
    let seq = prop_oneof![0..40_u64, (1_u64 << 40)..(1 << 40) + 9, Just((1 << 56) - 1)];
    let versions = vec((seq, kind(), value()), 1..6);
    let busy = vec((0..1000_u64, kind(), vec(any::<u8>(), 0..9)), 50..90);
    let key = (user_key(), prop_oneof![30 => versions, 1 => busy]);
    vec(key, 1..60).prop_map(|keys| {
        let mut all: Entries = Vec::new();
        for (user, versions) in keys {
            all.extend(versions.iter().map(|(seq, kind, value)| entry(&user, *seq, *kind, value)));
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.dedup_by(|a, b| a.0 == b.0);
        all
    })
}

pub(super) fn at(iter: &impl InternalIter) -> Option<(InternalKey, Vec<u8>)> {
    iter.valid().then(|| (iter.key().to_owned(), iter.value().to_vec()))
}

/// Everything that a reader can be asked, against the list.
pub(super) fn check(reader: &Arc<SstReader>, all: &Entries, targets: &[(Vec<u8>, u64)]) {
    // Blocks of the first are parsed and kept. Those of the second are searched unparsed. Those of the third, if it is
    // not compressed, are searched and walked through where they lie.
    let unparsed = Arc::new(opened_again(reader).placed(IDENTITY.file, reader.global_seq()));
    let mapped = Arc::new(opened_again(reader).map().placed(IDENTITY.file, reader.global_seq()));
    let readers = [reader, &unparsed, &mapped];
    walk_all(reader, ReadMode::Streaming, all);
    readers.iter().for_each(|reader| walk_all(reader, ReadMode::Cached, all));
    readers.iter().for_each(|reader| walk_in_runs(reader, all, targets));
    let mut iters = [reader, &mapped].map(|reader| reader.iter(ReadMode::Cached));
    let own = all.iter().map(|(key, _)| (key.user.to_vec(), key.trailer.raw()));
    let mut offset = 0;
    for (user, raw) in own.chain(targets.iter().cloned()) {
        for seq in [raw >> 8, (raw >> 8).saturating_sub(1), (1 << 56) - 1] {
            let seq = SeqNo::new(seq).unwrap();
            for iter in &mut iters {
                seek_around(iter, all, &user, seq);
            }
            let i = all.partition_point(|(key, _)| key.as_ref() < KeyRef::seek(&user, seq));
            let expected = all.get(i).filter(|(key, _)| *key.user == *user);
            let expected = expected.map(|(key, value)| (key.trailer, value.clone()));
            for reader in readers {
                let found = reader.get(&user, bloom_hash(&user), seq).unwrap();
                assert_eq!(found.map(|(trailer, slice)| (trailer, slice.to_vec())), expected);
            }
        }
    }
    for (key, _) in all {
        let here = reader.approximate_offset(&key.user);
        assert!(here >= offset && here <= reader.properties().data_bytes);
        offset = here;
    }
}

/// Another reader of the same file, without a cache.
fn opened_again(reader: &SstReader) -> SstReader {
    let source = reader.source();
    let path = source.path.to_path_buf();
    SstReader::open(source.file.clone(), path, IDENTITY, None, None).unwrap()
}

/// Walks along all entries in both directions.
fn walk_all(reader: &Arc<SstReader>, mode: ReadMode, all: &Entries) {
    let mut iter = reader.iter(mode);
    assert!(!iter.valid());
    iter.seek(None).unwrap();
    for expected in all {
        assert_eq!(at(&iter).as_ref(), Some(expected));
        assert_eq!(iter.value_slice(), expected.1);
        iter.next().unwrap();
    }
    assert!(!iter.valid());
    iter.seek_before(None).unwrap();
    for expected in all.iter().rev() {
        assert_eq!(at(&iter).as_ref(), Some(expected));
        iter.prev().unwrap();
    }
    assert!(!iter.valid());
}

/// Walks along all entries, in runs where there are some. Each run ends before a target or an entry.
fn walk_in_runs(reader: &Arc<SstReader>, all: &Entries, targets: &[(Vec<u8>, u64)]) {
    let users: Vec<&[u8]> = targets.iter().map(|(user, _)| &user[..]).collect();
    let users = [users, all.iter().map(|(key, _)| &key.user[..]).collect()].concat();
    let mut untils =
        users.iter().map(|user| Some(KeyRef::seek(user, SeqNo::MAX))).chain([None]).cycle();
    let mut iter = reader.iter(ReadMode::Cached);
    iter.seek(None).unwrap();
    let mut here = 0;
    while here < all.len() {
        let until = untils.next().flatten();
        for _ in 0..iter.run_before(until) {
            let trailer = iter.next_in_run().unwrap();
            here += 1;
            assert_eq!(at(&iter).as_ref(), Some(&all[here]));
            assert_eq!(trailer, all[here].0.trailer);
            assert_ne!(all[here - 1].0.user, all[here].0.user);
            assert!(until.is_none_or(|until| all[here].0.as_ref() < until), "{until:?}");
        }
        iter.next().unwrap();
        here += 1;
    }
    assert!(!iter.valid());
}

/// Seeks the key in every way, and takes a step from there.
fn seek_around(iter: &mut SstIter, all: &Entries, user: &[u8], seq: SeqNo) {
    for target in [KeyRef::seek(user, seq), KeyRef::new(user, Trailer::LAST)] {
        let i = all.partition_point(|(key, _)| key.as_ref() < target);
        iter.seek(Some(target)).unwrap();
        assert_eq!(at(iter), all.get(i).cloned(), "{target:?}");
        if i < all.len() {
            iter.next().unwrap();
            assert_eq!(at(iter), all.get(i + 1).cloned());
        }
        iter.seek(Some(target)).unwrap();
        if let Some((here, _)) = all.get(i) {
            iter.next_key(&mut Vec::new()).unwrap();
            let later = all.partition_point(|(key, _)| key.user <= here.user);
            assert_eq!(at(iter), all.get(later).cloned());
        }
        iter.seek_before(Some(target)).unwrap();
        let before = i.checked_sub(1);
        assert_eq!(at(iter), before.map(|i| all[i].clone()), "{target:?}");
        if i > 0 {
            iter.prev().unwrap();
            assert_eq!(at(iter), i.checked_sub(2).map(|i| all[i].clone()));
        }
    }
}

/// Only a table with the same extractor answers, and it has every prefix of its keys.
fn check_prefixes(reader: &SstReader, all: &Entries, options: &SstOptions) {
    let Some(extractor) = options.prefix_extractor else {
        assert_eq!(reader.may_have_prefix(PrefixExtractor::Fixed(1), 0), None);
        return;
    };
    assert_eq!(reader.may_have_prefix(PrefixExtractor::Fixed(9), 0), None);
    let answer = (options.bloom_bits_per_key > 0).then_some(true);
    for prefix in all.iter().filter_map(|(key, _)| extractor.of(&key.user)) {
        assert_eq!(reader.may_have_prefix(extractor, bloom_hash(prefix)), answer);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_table_answers_as_a_sorted_list_does(
        all in entries(),
        targets in vec((user_key(), any::<u64>()), 0..20),
        block_bytes in prop_oneof![Just(64_u32), Just(300), Just(4096), Just(1 << 16)],
        lz4: bool,
        index_bytes_max in prop_oneof![Just(0), Just(300), Just(4096), Just(INDEX_BYTES_MAX)],
        bloom_bits_per_key in prop_oneof![Just(0_u32), Just(1), Just(10)],
        prefix in prop_oneof![
            Just(None),
            (1..4_u16).prop_map(|len| Some(PrefixExtractor::Fixed(len))),
            any::<u8>().prop_map(|byte| Some(PrefixExtractor::Through(byte))),
        ],
    ) {
        let compression = if lz4 { Compression::Lz4 } else { Compression::None };
        let options = SstOptions {
            bloom_bits_per_key, prefix_extractor: prefix, ..options(block_bytes, compression)
        };
        let (bytes, summary) = write(&all, options, index_bytes_max);
        let reader = open(&bytes, Some((summary.file_bytes, summary.file_hash))).unwrap();
        check(&reader, &all, &targets);
        check_prefixes(&reader, &all, &options);
        prop_assert_eq!(summary.file_bytes, bytes.len() as u64);
        prop_assert_eq!(&summary.smallest, &all[0].0);
        prop_assert_eq!(&summary.largest, &all.last().unwrap().0);
        let seqs: Vec<SeqNo> = all.iter().map(|(key, _)| key.trailer.seq()).collect();
        prop_assert_eq!(Some(&summary.min_seq), seqs.iter().min());
        prop_assert_eq!(Some(&summary.max_seq), seqs.iter().max());
        prop_assert_eq!(summary.entries, all.len() as u64);
        let tombstones =
            all.iter().filter(|(key, _)| key.trailer.kind() == Some(EntryKind::Tombstone));
        prop_assert_eq!(summary.tombstones, tombstones.count() as u64);
        let raw: usize = all.iter().map(|(key, value)| key.user.len() + value.len()).sum();
        let properties = reader.properties();
        prop_assert_eq!(properties.raw_key_bytes + properties.raw_value_bytes, raw as u64);
    }
}

proptest! {
    #[test]
    fn a_walk_that_turns_stays_on_the_list(
        all in entries(),
        moves in vec((0..8_u8, any::<prop::sample::Index>()), 1..200),
        block_bytes in prop_oneof![Just(300_u32), Just(4096), Just(1 << 16)],
    ) {
        let (bytes, _) = write(&all, options(block_bytes, Compression::None), INDEX_BYTES_MAX);
        for reader in [open(&bytes, None).unwrap(), open_mapped(&bytes).unwrap()] {
            let mut iter = reader.iter(ReadMode::Cached);
            let mut here = None;
            for (what, target) in &moves {
                here = match (what, here) {
                    (0, _) | (_, None) => {
                        let i = target.index(all.len());
                        iter.seek(Some(all[i].0.as_ref())).unwrap();
                        Some(i)
                    }
                    (1..4, Some(i)) => {
                        iter.next().unwrap();
                        Some(i + 1)
                    }
                    (4, Some(i)) => {
                        iter.next_key(&mut Vec::new()).unwrap();
                        Some(all.partition_point(|(key, _)| key.user <= all[i].0.user))
                    }
                    (_, Some(i)) => {
                        iter.prev().unwrap();
                        i.checked_sub(1)
                    }
                };
                here = here.filter(|i| *i < all.len());
                prop_assert_eq!(at(&iter), here.map(|i: usize| all[i].clone()));
            }
        }
    }
}

#[test]
fn versions_of_one_key_may_span_many_blocks_and_index_partitions() {
    let mut all: Entries = vec![entry(b"a", 1, EntryKind::Value, b"first")];
    all.extend((0..2000).rev().map(|seq| entry(b"hot", seq, EntryKind::Value, &seq.to_le_bytes())));
    all.push(entry(b"z", 1, EntryKind::Value, b"last"));
    for index_bytes_max in [200, INDEX_BYTES_MAX] {
        let (bytes, _) = write(&all, options(128, Compression::None), index_bytes_max);
        let reader = open(&bytes, None).unwrap();
        assert!(reader.properties().data_blocks > 100);
        let lines = reader.memory_bytes() - reader.index().memory_bytes();
        assert!(lines < 1024, "three user keys need one line of the bloom structure");
        assert_eq!(reader.index().levels(), if index_bytes_max == 200 { 2 } else { 1 });
        for seq in 0..2000 {
            let found = reader.get(b"hot", bloom_hash(b"hot"), SeqNo::new(seq).unwrap());
            assert_eq!(found.unwrap().unwrap().1, seq.to_le_bytes());
        }
        check(&reader, &all, &[(b"hot\0".to_vec(), 5), (b"ho".to_vec(), 5)]);
    }
}

#[test]
fn a_key_that_differs_in_one_byte_is_another_key() {
    let long = b"a restart key whose neighbours share much of it ";
    let mut keys: Vec<Vec<u8>> = (0..40_u8).map(|n| [&long[..], &[n * 5, 7]].concat()).collect();
    keys.extend((0..40_u8).map(|n| [&b"abc"[..], &[n * 3, 1, 2, 3, 4, 5, 6, 7, n]].concat()));
    keys.extend((0..40_u8).map(|n| [b'a', n * 5, 9]).map(Vec::from));
    keys.sort();
    let all: Entries = keys.iter().map(|key| entry(key, 5, EntryKind::Value, key)).collect();
    // Common prefixes of all, of some and of no keys of a block.
    for block_bytes in [128, 512, 1 << 20] {
        let options =
            SstOptions { bloom_bits_per_key: 0, ..options(block_bytes, Compression::None) };
        let (bytes, _) = write(&all, options, INDEX_BYTES_MAX);
        let reader = open(&bytes, None).unwrap();
        for key in &keys {
            for at in 0..key.len() {
                for change in [1, 0x80, 0xff] {
                    let mut other = key.clone();
                    other[at] ^= change;
                    let found = reader.get(&other, 0, SeqNo::MAX).unwrap();
                    assert_eq!(found.map(|f| f.1.to_vec()), keys.contains(&other).then_some(other));
                }
            }
        }
    }
}

#[test]
fn a_run_ends_with_its_block_at_a_later_version_or_before_a_key() {
    let mut all: Entries = (0..100_u8).map(|n| entry(&[n], 5, EntryKind::Value, b"")).collect();
    all.insert(51, entry(&[50], 4, EntryKind::Value, b""));
    let (bytes, _) = write(&all, options(1 << 16, Compression::None), INDEX_BYTES_MAX);
    let mut iter = open(&bytes, None).unwrap().iter(ReadMode::Cached);
    iter.seek(Some(KeyRef::seek(&[10], SeqNo::MAX))).unwrap();
    assert_eq!(iter.run_before(None), 40, "to the newest version of 50");
    assert_eq!(iter.run_before(Some(KeyRef::seek(&[30], SeqNo::MAX))), 19, "to 29");
    assert_eq!(iter.run_before(Some(KeyRef::seek(&[9], SeqNo::MAX))), 0);
    iter.seek(Some(KeyRef::seek(&[60], SeqNo::MAX))).unwrap();
    assert_eq!(iter.run_before(None), 39, "to the end");
    let mut merged = MergeIter::new(vec![iter]);
    merged.seek(None).unwrap();
    assert_eq!(merged.run_before(None), 0, "after a seek");
    merged.next().unwrap();
    assert_eq!(merged.run_before(None), 49);
}

#[test]
fn huge_values_have_blocks_of_their_own() {
    let huge = vec![9; 5 << 20];
    let all = vec![
        entry(b"a", 1, EntryKind::Value, b"small"),
        entry(b"b", 2, EntryKind::Value, &huge),
        entry(b"c", 3, EntryKind::Value, b"small"),
    ];
    for compression in [Compression::None, Compression::Lz4] {
        let (bytes, _) = write(&all, options(4096, compression), INDEX_BYTES_MAX);
        let reader = open(&bytes, None).unwrap();
        assert_eq!(reader.properties().data_blocks, 3);
        check(&reader, &all, &[]);
    }
}

#[test]
fn equal_input_makes_equal_files_and_compression_is_dropped_where_it_does_not_pay() {
    let plain = [entry(b"k", 1, EntryKind::Value, &[0; 1000])].to_vec();
    let sizes: Vec<_> = [Compression::None, Compression::Lz4]
        .map(|compression| write(&plain, options(4096, compression), INDEX_BYTES_MAX).0.len())
        .into();
    assert!(sizes[1] + 900 < sizes[0], "{sizes:?}");
    let noise: Vec<u8> = (0..1000_u64).map(|n| checksum64(&n.to_le_bytes()) as u8).collect();
    let noise = [entry(b"k", 1, EntryKind::Value, &noise)].to_vec();
    let (plain_noise, _) = write(&noise, options(4096, Compression::None), INDEX_BYTES_MAX);
    let (kept_noise, _) = write(&noise, options(4096, Compression::Lz4), INDEX_BYTES_MAX);
    assert_eq!(plain_noise[..1000], kept_noise[..1000]);
    assert_eq!(plain_noise.len(), kept_noise.len());
    let (a, _) = write(&plain, options(4096, Compression::Lz4), INDEX_BYTES_MAX);
    let (b, _) = write(&plain, options(4096, Compression::Lz4), INDEX_BYTES_MAX);
    assert_eq!(a, b);
}

#[test]
#[should_panic(expected = "keys of a table ascend")]
fn a_key_that_comes_twice_is_our_mistake() {
    let twice = vec![entry(b"k", 1, EntryKind::Value, b""); 2];
    write(&twice, options(4096, Compression::None), INDEX_BYTES_MAX);
}

proptest! {
    #[test]
    fn an_ingested_table_reads_as_if_all_were_written_at_one_sequence(
        keys in prop::collection::btree_map(user_key(), (0..40_u64, value()), 1..60),
        global in 0..60_u64,
        targets in vec((user_key(), 0..60_u64 << 8), 10),
    ) {
        let value = EntryKind::Value;
        let stored: Entries = keys.iter().map(|(k, (seq, v))| entry(k, *seq, value, v)).collect();
        let (bytes, _) = write(&stored, options(128, Compression::None), INDEX_BYTES_MAX);
        let file = crate::sstable::test_file::TestFile::holding(&bytes);
        let reader = SstReader::open(file, "t.sst".into(), super::IDENTITY, None, None).unwrap();
        let global_seq = SeqNo::new(global).unwrap();
        let reader = Arc::new(reader.placed(crate::types::FileNo(77), Some(global_seq)));
        let seen: Entries = keys.iter().map(|(k, (_, v))| entry(k, global, value, v)).collect();
        check(&reader, &seen, &targets);
        let mapped = open_mapped(&bytes).unwrap();
        for reader in [reader, mapped] {
            let mut iter = reader.iter(ReadMode::Cached);
            iter.seek(None).unwrap();
            for (key, _) in &stored {
                prop_assert_eq!(iter.stored_seq(), key.trailer.seq());
                iter.next().unwrap();
            }
        }
    }
}
