//! Every flipped bit and every truncation: an error or the right answer, never a wrong one.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Entries, IDENTITY, entry, open, options, write};
use crate::error::{Error, ErrorKind, Result};
use crate::iter::InternalIter;
use crate::options::Compression;
use crate::sstable::block::Block;
use crate::sstable::block_builder::BlockBuilder;
use crate::sstable::bloom::Bloom;
use crate::sstable::footer::FOOTER_BYTES;
use crate::sstable::index::Index;
use crate::sstable::properties::SstProperties;
use crate::sstable::stored::{BlockCodec, BlockFramer, Extent, StoredPayload, TableSource};
use crate::sstable::test_file::TestFile;
use crate::sstable::unparsed_seek::{UnparsedSeek, seek_unparsed};
use crate::sstable::{ReadMode, SstIdentity, SstReader, bloom_hash};
use crate::types::{EntryKind, FileNo, KeyRef, SeqNo, Trailer};

pub(super) fn small_table() -> Entries {
    let mut all = Vec::new();
    for n in 0..24_u64 {
        let user = format!("key{n:04}");
        let kind = if n % 5 == 0 { EntryKind::Tombstone } else { EntryKind::Value };
        all.push(entry(user.as_bytes(), 300 + n, kind, user.repeat(3).as_bytes()));
        all.push(entry(user.as_bytes(), 100 + n, EntryKind::Value, b"old"));
    }
    all
}

/// Reads all of it in every way; what is returned must be right.
fn read_all(bytes: &[u8], all: &Entries) -> Result<()> {
    let reader = open(bytes, None)?;
    read_whole(&reader, all)
}

pub(super) fn read_whole(reader: &Arc<SstReader>, all: &Entries) -> Result<()> {
    for mode in [ReadMode::Cached, ReadMode::Streaming] {
        let mut iter = reader.iter(mode);
        iter.seek(None)?;
        for (key, value) in all {
            assert!(iter.valid(), "a scan ended early without an error");
            assert_eq!((iter.key(), iter.value()), (key.as_ref(), &value[..]));
            iter.next()?;
        }
        assert!(!iter.valid());
    }
    gets(reader, all)
}

fn gets(reader: &Arc<SstReader>, all: &Entries) -> Result<()> {
    for (key, value) in all {
        let found = reader.get(&key.user, bloom_hash(&key.user), key.trailer.seq())?;
        let (trailer, slice) = found.expect("a key is missing without an error");
        assert_eq!((trailer, &*slice), (key.trailer, &value[..]));
    }
    Ok(())
}

#[test]
fn every_flipped_bit_is_an_error() {
    let all = small_table();
    for (compression, index_bytes_max) in
        [(Compression::None, 1 << 20), (Compression::Lz4, 1 << 20), (Compression::None, 100)]
    {
        let (bytes, _) = write(&all, options(256, compression), index_bytes_max);
        read_all(&bytes, &all).unwrap();
        let mut bad = bytes.clone();
        for bit in 0..8 * bytes.len() {
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = read_all(&bad, &all).expect_err("no byte is without a checksum");
            assert!(error.is_corruption(), "bit {bit}: {error}");
            assert!(error.damage().unwrap().offset.is_some());
            bad[bit / 8] = bytes[bit / 8];
        }
    }
}

#[test]
fn every_truncation_and_any_appendix_is_an_error() {
    let all = small_table();
    let (bytes, _) = write(&all, options(256, Compression::None), 1 << 20);
    for len in 0..bytes.len() {
        assert!(open(&bytes[..len], None).is_err_and(|e| e.is_corruption()), "{len}");
    }
    let longer = [&bytes[..], &bytes[..]].concat();
    assert!(open(&longer, None).is_err_and(|e| e.is_corruption()));
}

#[test]
fn a_sound_table_under_another_name_or_hash_is_refused() {
    let all = small_table();
    let (bytes, summary) = write(&all, options(256, Compression::None), 1 << 20);
    let good = (summary.file_bytes, summary.file_hash);
    assert!(open(&bytes, Some(good)).is_ok());
    for expected in [(good.0 + 1, good.1), (good.0, good.1 ^ 1)] {
        assert!(open(&bytes, Some(expected)).is_err_and(|e| e.is_corruption()));
    }
    let other = SstIdentity { file: FileNo(8), ..IDENTITY };
    let opened = SstReader::open(TestFile::holding(&bytes), "t.sst".into(), other, None, None);
    assert!(opened.is_err_and(|e| e.is_corruption()));
}

#[test]
fn blocks_that_change_places_do_not_verify() {
    // Blocks of equal length: one entry each, all of the same shape.
    let all: Entries =
        (0..9_u8).map(|n| entry(&[b'k', n], 5, EntryKind::Value, &[n; 80])).collect();
    let (bytes, _) = write(&all, options(64, Compression::None), 1 << 20);
    let len = open(&bytes, None).unwrap().properties().data_bytes as usize / 9;
    let mut swapped = bytes.clone();
    swapped[..len].copy_from_slice(&bytes[len..2 * len]);
    swapped[len..2 * len].copy_from_slice(&bytes[..len]);
    let reader = open(&swapped, None).unwrap();
    let error = reader.get(&[b'k', 0], bloom_hash(&[b'k', 0]), SeqNo::MAX).unwrap_err();
    let damage = error.damage().unwrap();
    assert_eq!((damage.offset, damage.key.as_deref()), (Some(0), Some(&[b'k', 0][..])));
}

#[test]
fn a_cursor_ends_at_damage_and_goes_on_after_it_after_a_seek() {
    let all = small_table();
    let (mut bytes, _) = write(&all, options(256, Compression::None), 1 << 20);
    let middle = open(&bytes, None).unwrap().approximate_offset(b"key0012");
    bytes[middle as usize + 20] ^= 1;
    let reader = open(&bytes, None).unwrap();
    for mode in [ReadMode::Cached, ReadMode::Streaming] {
        let mut iter = reader.iter(mode);
        iter.seek(None).unwrap();
        let mut count = 0;
        let error = loop {
            assert_eq!((iter.key(), iter.value()), (all[count].0.as_ref(), &all[count].1[..]));
            assert!(iter.place().0 < middle);
            count += 1;
            if let Err(error) = iter.next() {
                break error;
            }
        };
        assert_eq!(error.damage().unwrap().offset, Some(middle));
        assert!(!iter.valid() && count > 2);
        assert!(iter.seek(Some(KeyRef::seek(b"key0012", SeqNo::MAX))).is_err() && !iter.valid());
        iter.seek(Some(KeyRef::seek(b"key0020", SeqNo::MAX))).unwrap();
        assert_eq!(iter.key().user, b"key0020");
        while iter.place().0 > middle {
            if iter.prev().is_err() {
                break;
            }
        }
        assert!(!iter.valid());
        iter.seek_before(None).unwrap();
        assert_eq!(iter.key(), all.last().unwrap().0.as_ref());
        iter.seek_before(Some(all[1].0.as_ref())).unwrap();
        assert_eq!(iter.key(), all[0].0.as_ref());
    }
}

/// Opens the table with another byte in its footer, which begins at `start`; the checksum agrees.
fn open_with(bytes: &[u8], start: usize, at: usize, byte: u8) -> Option<Error> {
    let mut bytes = bytes.to_vec();
    bytes[start + at] = byte;
    let end = bytes.len() - 8;
    let seed = bytes.len() as u64;
    let checksum = crate::codec::checksum64_seeded(&bytes[start..end], seed);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    open(&bytes, None).err()
}

#[test]
fn footers_of_other_versions_and_features_are_unsupported() {
    let all = small_table();
    let (bytes, _) = write(&all, options(256, Compression::None), 1 << 20);
    let start = bytes.len() - 152;
    for at in [0, 8] {
        assert!(open_with(&bytes, start, at, 1).is_none(), "compatible features are ignored");
    }
    let error = open_with(&bytes, start, 17, 2).unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("0x200"), "{error}");
    for (at, byte) in [(24, 2), (25, 5), (132, 2)] {
        assert_eq!(open_with(&bytes, start, at, byte).unwrap().kind(), ErrorKind::Unsupported);
    }
    for (at, byte) in [(26, 0), (26, 3), (48, 1), (87, 9), (128, 151), (136, 0)] {
        assert_eq!(
            open_with(&bytes, start, at, byte).unwrap().kind(),
            ErrorKind::Corruption,
            "{at}"
        );
    }
}

/// Walks and searches a block that parsed: whatever it holds, it must be in order.
fn use_block(block: &Block, targets: &[Vec<u8>]) {
    let mut last: Option<(Vec<u8>, Trailer)> = None;
    for i in 0..block.len() {
        let entry = block.key(i);
        let user = [entry.key.shared, entry.key.suffix].concat();
        let value = block.value(i).len();
        let key = KeyRef::new(&user, entry.trailer);
        assert_eq!(block.lower_bound(key), i);
        assert_eq!(block.find(&user, entry.trailer.seq()).unwrap().value_len, value);
        if let Some((user, trailer)) = &last {
            assert!(KeyRef::new(user, *trailer) < key);
        }
        last = Some((user, entry.trailer));
    }
    for target in targets {
        block.lower_bound(KeyRef::seek(target, SeqNo::MAX));
        block.find(target, SeqNo::MAX);
    }
}

/// Probes the payload for the keys of the small table and for targets: no bytes make that panic, and it
/// says what a search in the parsed block says.
fn probe_as_parsed(payload: &[u8], targets: &[Vec<u8>]) {
    let block = parse(payload);
    let mut keys: Vec<_> = targets.iter().map(|user| (user.clone(), SeqNo::MAX)).collect();
    keys.extend(small_table().iter().map(|(key, _)| (key.user.to_vec(), key.trailer.seq())));
    for (user, seq) in keys {
        let found = seek_unparsed(payload, &user, seq, false);
        let Some(block) = &block else { continue };
        let expected = match block.find(&user, seq) {
            Some(found) => {
                UnparsedSeek::Found(found.trailer, found.value..found.value + found.value_len)
            }
            None => UnparsedSeek::Missing,
        };
        assert_eq!(found, Some(expected));
    }
}

fn parse(payload: &[u8]) -> Option<Block> {
    // Bytes after the payload, as there are in an uncompressed block.
    let bytes = [payload, &[0xee; 9]].concat().into();
    Block::parse(StoredPayload { bytes, len: payload.len() }, None).ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The checksum does not guard against a writer with a fault, or with intent.
    #[test]
    fn a_block_with_false_content_is_refused_or_in_order(
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        targets in vec(vec(any::<u8>(), 0..12), 1..4),
    ) {
        let (bytes, _) = write(&small_table(), options(1 << 20, Compression::None), 1 << 20);
        let reader = open(&bytes, None).unwrap();
        let mut payload = bytes[..reader.properties().data_bytes as usize - 9].to_vec();
        use_block(&parse(&payload).unwrap(), &targets);
        probe_as_parsed(&payload, &targets);
        for (place, byte) in edits {
            let at = place.index(payload.len());
            payload[at] = byte;
        }
        if let Some(block) = parse(&payload) {
            use_block(&block, &targets);
        }
        probe_as_parsed(&payload, &targets);
    }

    #[test]
    fn no_bytes_make_a_block_or_properties_panic(payload in vec(any::<u8>(), 0..80)) {
        if let Some(block) = parse(&payload) {
            use_block(&block, &[]);
        }
        for may_have_hidden in [false, true] {
            seek_unparsed(&payload, b"k", SeqNo::MAX, may_have_hidden);
        }
        let file = TestFile::holding(&[]);
        let source = TableSource { file, path: std::path::Path::new("t").into(), unique_id: 0, file_bytes: 0, codec: BlockCodec::default() };
        let _ = SstProperties::decode(&source, 0, &payload);
    }

    #[test]
    fn no_bytes_make_a_bloom_panic(mut payload in vec(any::<u8>(), 0..300), hash: u64) {
        if let Some(extractor) = payload.first_mut() {
            *extractor &= 1;
        }
        if let Ok(Some(bloom)) = Bloom::parse(&payload) {
            bloom.may_contain(hash);
        }
    }

    /// Each field of a footer that verifies may lie; what it points at then does not. The file's
    /// hash is left out: that one is compared with the manifest.
    #[test]
    fn a_false_footer_is_an_error(
        at in 16..112_usize,
        lie in vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 1..17),
    ) {
        let all = small_table();
        let (mut bytes, _) = write(&all, options(256, Compression::None), 1 << 20);
        let len = bytes.len();
        let footer = len - FOOTER_BYTES;
        let end = (at + lie.len()).min(112);
        let before = bytes.clone();
        bytes[footer + at..footer + end].copy_from_slice(&lie[..end - at]);
        let checksum = crate::codec::checksum64_seeded(&bytes[footer..len - 8], len as u64);
        bytes[len - 8..].copy_from_slice(&checksum.to_le_bytes());
        // Reserved bytes mean nothing, and a file without a bloom reads as well as one with it.
        let is_sound = (footer..len - 8).all(|at| {
            let within = at - footer;
            bytes[at] == before[at] || (27..32).contains(&within) || (64..80).contains(&within)
        });
        let read = read_all(&bytes, &all);
        prop_assert!(read.is_err() || is_sound);
    }
}

/// The defect of a block with these bytes as its entries and this count in its tail.
fn block(entry: &[u8], count: u32) -> Option<&'static str> {
    let mut payload = entry.to_vec();
    payload.resize(entry.len() + 4 * count.div_ceil(16).min(16) as usize + 12, 0);
    payload.extend_from_slice(&count.to_le_bytes());
    let bytes = [&payload[..], &[0xee; 9]].concat().into();
    Block::parse(StoredPayload { bytes, len: payload.len() }, None).err().map(|e| e.what)
}

#[test]
fn numbers_have_one_form_and_counts_are_held_against_the_bytes() {
    assert_eq!(block(&[1, 0, 1, 0, 0, b'k'], 1), None);
    assert_eq!(block(&[1, 0, 1, 0, 0x85, 0x01, b'k'], 1), None);
    // 5 in two bytes, 5 in five, a shared length of 0 in two.
    assert_eq!(block(&[1, 0, 1, 0, 0x85, 0x00, b'k'], 1), Some("bad entry"));
    assert_eq!(block(&[1, 0, 1, 0, 0x85, 0x80, 0x80, 0x80, 0, b'k'], 1), Some("bad entry"));
    assert_eq!(block(&[1, 0x80, 0, 1, 0, 0, b'k'], 1), Some("bad entry"));
    assert_eq!(block(&[0x11, 0, 1, 0, 0, b'k'], 1).map(|what| &what[..6]), Some("hidden"));
    assert_eq!(block(&[0x21, 0, 1, 0, 0, b'k'], 1), Some("unknown header bits"));
    assert_eq!(block(&[7, 0, 1, 0, 0, b'k'], 1), Some("unknown entry kind"));
    assert_eq!(block(&[1, 0, 0, 0, 0], 1), None);
    let too_many = Some("entry count does not fit the block");
    assert_eq!(block(&[1, 0, 1, 0, 0, b'k'], 2), too_many);
    assert_eq!(block(&[1, 0, 1, 0, 0, b'k'], 0), too_many);
    assert!(block(&[1, 0, 1, 0, 0, b'k'], u32::MAX).is_some());
}

fn index(values: [&[u8]; 2]) -> Option<Index> {
    let mut builder = BlockBuilder::new(SeqNo::ZERO);
    builder.add(KeyRef::new(b"a", Trailer::LAST), values[0]);
    builder.add(KeyRef::new(b"b", Trailer::LAST), values[1]);
    Index::new(parse(builder.finish(b"b")).unwrap(), 1)
}

#[test]
fn an_index_whose_blocks_leave_a_gap_is_refused() {
    let index_of_two = index([&[0, 30], &[30, 40]]).unwrap();
    assert_eq!(index_of_two.extent(1), Some(Extent { offset: 30, len: 40 }));
    assert_eq!(index_of_two.extent(2), None);
    let none: [&[u8]; 4] = [&[31, 40], &[29, 40], &[30], &[30, 40, 0]];
    for second in none {
        assert!(index([&[0, 30], second]).is_none());
    }
}

#[test]
fn a_compressed_block_cannot_claim_more_than_it_can_hold() {
    let file = TestFile::holding(&[]);
    let path: Arc<std::path::Path> = std::path::Path::new("t").into();
    let source =
        TableSource { file, path, unique_id: 1, file_bytes: 0, codec: BlockCodec::default() };
    // 1 GiB in six bytes.
    let claim = [0x80, 0x80, 0x80, 0x80, 0x04, 0];
    for (payload, expected) in [
        (&claim[..], "LZ4 block claims too many bytes"),
        (&[3, 0x10, 7], "LZ4 block does not decode"),
        (&[], "LZ4 block does not decode"),
    ] {
        let mut block = Vec::new();
        BlockFramer::new(1).frame(&mut block, 0, payload, Compression::None);
        // Now it says that it is LZ4, and its checksum agrees.
        let end = block.len() - 8;
        block[end - 1] = 1;
        let seed = 1;
        let checksum = crate::codec::checksum64_seeded(&block[..end], seed);
        block[end..].copy_from_slice(&checksum.to_le_bytes());
        let error = source.open(0, &block).err().unwrap();
        assert_eq!(error.damage().unwrap().what, expected);
    }
}

#[test]
fn properties_that_must_be_understood_are_refused_and_others_ignored() {
    let file = TestFile::holding(&[]);
    let path: Arc<std::path::Path> = std::path::Path::new("t").into();
    let source =
        TableSource { file, path, unique_id: 0, file_bytes: 0, codec: BlockCodec::default() };
    let mut payload = SstProperties { values: 5, ..SstProperties::default() };
    payload.smallest = b"a".to_vec();
    payload.largest = b"b".to_vec();
    let known = payload.encode();
    payload.has_own_checksum = true;
    let decoded = SstProperties::decode(&source, 0, &known).unwrap();
    assert_eq!(decoded, payload);
    let [ignored, refused, repeated] = [100, 101, 16]
        .map(|tag| SstProperties::decode(&source, 0, &[&known[..], &[tag, 1, 7]].concat()));
    assert_eq!(ignored.unwrap(), payload);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(repeated.unwrap_err().is_corruption(), "a tag comes once");
}
