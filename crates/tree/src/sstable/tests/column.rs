//! Blocks whose hidden entries lie in a column: damage, and bytes that no writer makes.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::hidden::{MODES, Table};
use super::model::at;
use super::{entry, open, options};
use crate::iter::InternalIter;
use crate::options::Compression;
use crate::sstable::block::Block;
use crate::sstable::block_builder::BlockBuilder;
use crate::sstable::block_tail::BlockTail;
use crate::sstable::compression::{BlockCompressor, CompressedPayload, CompressionKind};
use crate::sstable::hidden::Owner;
use crate::sstable::index::INDEX_BYTES_MAX;
use crate::sstable::stored::{Extent, StoredPayload};
use crate::sstable::tolerant::block::TolerantBlock;
use crate::sstable::unparsed_seek::{UnparsedSeek, seek_unparsed};
use crate::sstable::{RawMode, SstOptions};
use crate::types::{EntryKind, KeyRef, SeqNo, Trailer};

const ENTRIES: u64 = 20;

/// A table each of whose entries has a hidden one of 11 bytes after its sequence number.
fn table() -> Table {
    let visible = (0..ENTRIES).map(|n| {
        let user = format!("key{n:04}");
        entry(user.as_bytes(), 300 + n, EntryKind::Value, user.repeat(4).as_bytes())
    });
    Table::new(visible.collect(), &[1], |i, seq| {
        Some([&seq.get().to_le_bytes()[..], &[i as u8; 11]].concat())
    })
}

pub(super) fn written(options: SstOptions) -> Vec<u8> {
    table().write(&[1], options, INDEX_BYTES_MAX, |_| true).0
}

/// The payload of the only block of the table.
fn payload() -> Vec<u8> {
    let bytes = written(options(1 << 16, Compression::None));
    let reader = open(&bytes, None).unwrap();
    assert_eq!(reader.blocks().count(), 1);
    bytes[..reader.properties().data_bytes as usize - 9].to_vec()
}

fn stored(payload: &[u8]) -> StoredPayload {
    StoredPayload { bytes: [payload, &[0xee; 9]].concat().into(), len: payload.len() }
}

#[test]
fn a_column_is_stored_as_it_is_after_what_is_compressed() {
    let plain = payload();
    let tail = BlockTail::of(&plain).unwrap();
    let column = tail.column().unwrap();
    assert_eq!((column.width, tail.count), (11, ENTRIES as u32));
    let mut compressor = BlockCompressor::new();
    let (kind, compressed) = compressor.compress(&plain);
    assert_eq!(kind, CompressionKind::Lz4Front);
    assert!(compressed.ends_with(&plain[column.start..]) && compressed.len() < plain.len());
    let parts = CompressedPayload::of(kind, compressed).unwrap();
    let mut out = vec![0xaa; parts.plain_len];
    parts.decompress_into(&mut out, None).unwrap();
    assert_eq!(out, plain);
    // In the file.
    let bytes = written(options(1 << 16, Compression::Lz4));
    let reader = open(&bytes, None).unwrap();
    let data_bytes = reader.properties().data_bytes as usize;
    assert_eq!(bytes[data_bytes - 9], CompressionKind::Lz4Front as u8);
    let table = table();
    for mode in MODES {
        let mut iter = reader.raw_iter(mode);
        iter.seek(None).unwrap();
        for (expected, hidden) in table.all.iter().zip(&table.hidden) {
            assert_eq!((at(&iter).as_ref(), iter.hidden()), (Some(expected), *hidden));
            iter.next().unwrap();
        }
        assert!(!iter.valid());
    }
}

#[test]
fn every_flipped_bit_of_a_column_is_an_error_or_suspect() {
    for compression in [Compression::None, Compression::Lz4] {
        let bytes = written(options(1 << 16, compression));
        let data_bytes = open(&bytes, None).unwrap().properties().data_bytes as usize;
        for bit in 0..8 * data_bytes {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let reader = open(&bad, None).unwrap();
            for mode in [RawMode::Cached, RawMode::Suspects] {
                let mut iter = reader.raw_iter(mode);
                let mut last = iter.seek(None);
                while iter.valid() {
                    assert!(!iter.origin().2, "bit {bit} of {compression:?}, {mode:?}");
                    last = iter.next();
                }
                assert!(last.is_err() || iter.damage().len() == 1, "bit {bit}, {mode:?}");
            }
        }
    }
}

/// The block of a payload, and its walks, which agree with one another.
fn use_payload(payload: &[u8]) {
    let parsed = Block::parse(stored(payload), Some(&[1]));
    let suspect = TolerantBlock::decode(&stored(payload), Some(&[1]));
    let mut key = Vec::new();
    let mut value = Vec::new();
    suspect.entries.iter().for_each(|entry| suspect.expand(entry, &mut key, &mut value));
    for seq in [SeqNo::ZERO, SeqNo::MAX] {
        let found = seek_unparsed(payload, b"key0007", seq, true);
        if let (Ok(block), Some(UnparsedSeek::Found(trailer, range))) = (&parsed, found) {
            let found = block.find(b"key0007", seq).unwrap();
            assert_eq!(
                (found.trailer, found.value..found.value + found.value_len),
                (trailer, range)
            );
        }
    }
    let Ok(block) = parsed else { return };
    assert!(suspect.is_complete);
    assert_eq!(suspect.entries.len(), block.len() + block.hidden_len());
    for h in 0..block.hidden_len() {
        let trailer = block.hidden_key(h, &[1], &mut key);
        let found = block.find_hidden(&key, trailer.seq(), &[1]).unwrap();
        assert_eq!(found.payload, block.hidden_head(h).payload);
        assert_eq!(block.lower_bound_all(KeyRef::new(&key, trailer), &[1]).1, h);
    }
}

/// Adds an entry and, right after it, its hidden one.
fn add_pair(builder: &mut BlockBuilder, user: &[u8], value: &[u8]) {
    let seq = SeqNo::new(5).unwrap();
    builder.add(KeyRef::new(user, Trailer::new(seq, EntryKind::Value)), value);
    let hidden = [user, &[1]].concat();
    let payload = [&seq.get().to_le_bytes()[..], b"sum"].concat();
    builder.add_hidden(
        KeyRef::new(&hidden, Trailer::new(seq, EntryKind::Tombstone)),
        1,
        &payload,
        true,
    );
}

#[test]
fn a_key_in_front_of_a_hidden_entry_of_the_column_is_refused() {
    for stem in [&b""[..], b"long enough for more than a word"] {
        for (next, is_in_order) in
            [(&b"k\0a"[..], false), (b"k\0", false), (b"k\x01a", true), (b"l", true)]
        {
            let mut builder = BlockBuilder::new(SeqNo::ZERO);
            builder.expect_hidden();
            let next = [stem, next].concat();
            add_pair(&mut builder, &[stem, b"k"].concat(), b"v");
            add_pair(&mut builder, &next, b"v");
            let parsed = Block::parse(stored(builder.finish(&next)), Some(&[1]));
            assert_eq!(parsed.is_ok(), is_in_order, "{next:?}");
        }
    }
}

/// Its owner is looked for by the keys of all groups, which lie elsewhere than before.
#[test]
fn after_a_column_that_was_given_up_a_hidden_entry_has_its_owner() {
    let mut builder = BlockBuilder::new(SeqNo::ZERO);
    builder.expect_hidden();
    for n in 0..30 {
        add_pair(&mut builder, format!("key{n:04}").as_bytes(), &[0xff; 40]);
    }
    let [newer, older] = [6, 5].map(|seq| SeqNo::new(seq).unwrap());
    for seq in [newer, older] {
        builder.add(KeyRef::new(b"z", Trailer::new(seq, EntryKind::Value)), b"v");
    }
    for seq in [newer, older] {
        let payload = [&seq.get().to_le_bytes()[..], b"sum"].concat();
        let key = KeyRef::new(b"z\x01", Trailer::new(seq, EntryKind::Tombstone));
        builder.add_hidden(key, 1, &payload, seq == older);
    }
    let block = Block::parse(stored(builder.finish(b"z")), Some(&[1])).unwrap();
    assert_eq!((block.len(), block.hidden_len()), (32, 32));
    let owners: Vec<Owner> = (0..32).map(|h| block.hidden_head(h).owner).collect();
    assert_eq!(owners[..30], [Owner::Near(1); 30]);
    assert_eq!(owners[30..], [Owner::Near(2), Owner::Near(1)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_false_column_is_refused_or_in_order(
        edits in vec((any::<Index>(), any::<u8>()), 0..3),
        in_tail in vec((0..16_usize, any::<u8>()), 0..3),
        cut in prop_oneof![3 => Just(0_usize), 1 => 0..40_usize],
    ) {
        let mut payload = payload();
        prop_assert!(Block::parse(stored(&payload), None).is_err(), "a table without hidden entries");
        use_payload(&payload);
        for (place, byte) in edits {
            let at = place.index(payload.len());
            payload[at] = byte;
        }
        for (after, byte) in in_tail {
            let at = payload.len() - 1 - after;
            payload[at] = byte;
        }
        payload.drain(..cut);
        use_payload(&payload);
    }

    #[test]
    fn no_compressed_bytes_make_a_panic(
        edits in vec((any::<Index>(), any::<u8>()), 0..4),
        front in vec(any::<u8>(), 0..8),
        kind in 1..3_u8,
    ) {
        let plain = payload();
        let mut compressor = BlockCompressor::new();
        let mut compressed = compressor.compress(&plain).1.to_vec();
        for (place, byte) in edits {
            let at = place.index(compressed.len());
            compressed[at] = byte;
        }
        compressed.splice(..front.len(), front);
        if let Ok(parts) = CompressedPayload::of(CompressionKind::from_u8(kind).unwrap(), &compressed) {
            prop_assert!(parts.plain_len <= 255 * compressed.len());
            let _ = parts.decompress_into(&mut vec![0; parts.plain_len], None);
        }
    }
}

#[test]
fn a_payload_of_another_length_ends_a_column() {
    let visible: Vec<_> =
        (0..40_u8).map(|n| entry(&[b'a', n], 9, EntryKind::Value, b"v")).collect();
    for odd in [0, 1, 15, 16, 17, 38, 39] {
        for len in [0, 10, 12, 16] {
            let table = Table::new(visible.clone(), &[1], |i, seq| {
                let len = if i == odd { len } else { 11 };
                Some([&seq.get().to_le_bytes()[..], &vec![7; len]].concat())
            });
            let (bytes, ..) =
                table.write(&[1], options(1 << 16, Compression::None), INDEX_BYTES_MAX, |_| true);
            let reader = open(&bytes, None).unwrap();
            let (offset, len) = reader.blocks().next().unwrap().unwrap();
            let block = reader.block(Extent { offset, len }).unwrap();
            assert!(!block.is_dense());
            assert_eq!(block.hidden_len(), 40);
        }
    }
}
