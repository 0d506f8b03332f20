//! Checks, tolerant walks and descriptions of damaged tables that have hidden entries.

mod blocks;

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::hidden::Table;
use super::{Entries, IDENTITY, entry, open, options};
use crate::codec::checksum64;
use crate::error::{Error, ErrorKind, Result};
use crate::iter::InternalIter;
use crate::options::Compression;
use crate::sstable::block::Block;
use crate::sstable::footer::Footer;
use crate::sstable::stored::{Access, BlockCodec, BlockFramer, Extent, StoredPayload, TableSource};
use crate::sstable::test_file::TestFile;
use crate::sstable::tolerant::block::TolerantBlock;
use crate::sstable::{
    Expected, RawMode, ReadMode, SstReader, SstSummary, TableDamage, bloom_hash, describe,
};
use crate::types::{EntryKind, InternalKey, KeyRef};

fn table() -> Table {
    let mut visible: Entries = Vec::new();
    for n in 0..12_u64 {
        let user = format!("key{n:04}");
        let kind = if n % 5 == 0 { EntryKind::Tombstone } else { EntryKind::Value };
        visible.push(entry(user.as_bytes(), 300 + n, kind, user.repeat(2).as_bytes()));
        visible.push(entry(user.as_bytes(), 100 + n, EntryKind::Value, b"old"));
    }
    Table::new(visible, &[1], |i, seq| {
        (i % 3 > 0).then(|| [&seq.get().to_le_bytes()[..], &[i as u8; 6]].concat())
    })
}

const SHAPES: [(Compression, usize); 3] =
    [(Compression::None, 1 << 20), (Compression::Lz4, 1 << 20), (Compression::None, 100)];

fn written(compression: Compression, index_bytes_max: usize) -> (Vec<u8>, SstSummary) {
    // A cut before every seventh entry at most, so that some hidden entries are parted.
    let options = options(120, compression);
    let (bytes, summary, _) = table().write(&[1], options, index_bytes_max, |_| true);
    (bytes, summary)
}

fn expected(summary: &SstSummary) -> Expected {
    Expected {
        smallest: summary.smallest.clone(),
        largest: summary.largest.clone(),
        min_seq: summary.min_seq,
        max_seq: summary.max_seq,
        entries: summary.entries,
        tombstones: summary.tombstones,
        hidden: summary.hidden,
    }
}

fn verify(reader: &SstReader, expected: Option<&Expected>) -> Vec<TableDamage> {
    reader.verify(expected, &mut |_| Ok(())).unwrap().damage
}

/// Returns what verify says of a file that opens.
fn found(bytes: &[u8]) -> String {
    let damage = verify(&open(bytes, None).unwrap(), None);
    damage.iter().map(|damage| format!("{}\n", damage.error)).collect()
}

#[test]
fn verify_reads_the_whole_file_and_finds_nothing_wrong_in_a_sound_one() {
    for (compression, index_bytes_max) in SHAPES {
        let (bytes, summary) = written(compression, index_bytes_max);
        let reader = open(&bytes, None).unwrap();
        let mut total = 0;
        let found = reader.verify(Some(&expected(&summary)), &mut |bytes| {
            total += bytes;
            Ok(())
        });
        let found = found.unwrap();
        assert!(found.damage.is_empty());
        assert_eq!((found.entries, found.hidden), (summary.entries, summary.hidden));
        assert_eq!(total, bytes.len() as u64);
        let ended = reader.verify(None, &mut |_| Err(Error::new(ErrorKind::Closed, "stop")));
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
    }
}

#[test]
fn verify_finds_every_flipped_bit_of_an_open_table() {
    for (compression, index_bytes_max) in SHAPES {
        let (bytes, summary) = written(compression, index_bytes_max);
        let file = TestFile::holding(&bytes);
        let reader = SstReader::open(file.clone(), "t.sst".into(), IDENTITY, None, None).unwrap();
        let expected = expected(&summary);
        for bit in 0..8 * bytes.len() {
            file.0.lock()[bit / 8] ^= 1 << (bit % 8);
            let damage = verify(&reader, Some(&expected));
            assert!(!damage.is_empty(), "bit {bit}");
            let data_bytes = reader.properties().data_bytes;
            if ((bit / 8) as u64) < data_bytes {
                assert_eq!(damage.len(), 1, "bit {bit}: {damage:?}");
                assert!(damage[0].offset.is_some() && damage[0].last_key.is_some());
            }
            file.0.lock()[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(verify(&reader, Some(&expected)).is_empty());
    }
}

#[test]
fn verify_goes_on_after_damage() {
    let (bytes, _) = written(Compression::None, 1 << 20);
    let file = TestFile::holding(&bytes);
    let reader = SstReader::open(file.clone(), "t.sst".into(), IDENTITY, None, None).unwrap();
    let starts: Vec<u64> = reader.blocks().map(|block| block.unwrap().0).collect();
    let bloom_at = reader.properties().data_bytes;
    for at in [starts[1], starts[3], bloom_at] {
        file.0.lock()[at as usize + 3] ^= 8;
    }
    let damage = verify(&reader, None);
    let offsets: Vec<_> = damage.iter().map(|damage| damage.offset).collect();
    assert_eq!(offsets, [Some(bloom_at), Some(starts[1]), Some(starts[3])]);
    assert!(damage[1].first_key < damage[1].last_key && damage[1].last_key <= damage[2].first_key);
    // Cut off in the middle: every block after is missing, and each is named.
    file.0.lock().truncate(starts[2] as usize + 5);
    let damage = verify(&reader, None);
    assert!(starts[2..].iter().all(|at| damage.iter().any(|damage| damage.offset == Some(*at))));
    let all_kinds = damage.iter().all(|damage| damage.error.is_corruption());
    assert!(all_kinds && damage.len() > starts.len());
}

#[test]
fn verify_holds_the_manifest_against_the_blocks() {
    let (bytes, summary) = written(Compression::None, 1 << 20);
    let reader = open(&bytes, None).unwrap();
    let good = expected(&summary);
    let other = entry(b"other", 1, EntryKind::Value, b"").0;
    let changes: [fn(&mut Expected); 5] = [
        |e| e.entries += 1,
        |e| e.tombstones += 1,
        |e| e.hidden -= 1,
        |e| e.min_seq = e.max_seq,
        |e| e.max_seq = e.min_seq,
    ];
    for change in changes {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(verify(&reader, Some(&bad)).len(), 1);
    }
    for bad in [
        Expected { smallest: other.clone(), ..good.clone() },
        Expected { largest: other.clone(), ..good.clone() },
    ] {
        assert_eq!(verify(&reader, Some(&bad)).len(), 1);
    }
}

/// The file with the block at `extent` replaced by a sound one of the same length.
fn with_block(bytes: &[u8], extent: Extent, edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let range = extent.offset as usize..extent.end() as usize;
    let mut payload = bytes[range.start..range.end - 9].to_vec();
    edit(&mut payload);
    let mut block = Vec::new();
    let mut framer = BlockFramer::new(IDENTITY.unique_id());
    framer.frame(&mut block, extent.offset, &payload, Compression::None);
    let mut out = bytes.to_vec();
    out.splice(range, block);
    assert_eq!(out.len(), bytes.len());
    out
}

/// The file with properties that have the checksums of its bloom and index, and their own.
fn with_tail(bytes: &[u8], footer: &Footer) -> Vec<u8> {
    let ends = [footer.bloom.end(), footer.index.end()].map(|end| end as usize);
    let tail = ends.map(|end| &bytes[end - 8..end]).concat();
    with_block(bytes, footer.properties, |payload| {
        let own = payload.len() - 10;
        payload[own - tail.len()..own].copy_from_slice(&tail);
        let checksum = checksum64(&payload[..own]);
        payload[own + 2..].copy_from_slice(&checksum.to_le_bytes());
    })
}

fn footer_of(bytes: &[u8]) -> (Footer, u64) {
    let source = TableSource {
        file: TestFile::holding(bytes),
        path: std::path::Path::new("t").into(),
        unique_id: 0,
        file_bytes: bytes.len() as u64,
        codec: BlockCodec::default(),
    };
    Footer::read(&source, Access::Plain).unwrap()
}

#[test]
fn verify_finds_lies_that_verify() {
    let (bytes, _) = written(Compression::None, 1 << 20);
    let (footer, footer_at) = footer_of(&bytes);
    let reader = open(&bytes, None).unwrap();
    let (offset, len) = reader.blocks().nth(1).unwrap().unwrap();
    // The first key of the block becomes the greatest of all, and with it those that share.
    let lie = with_block(&bytes, Extent { offset, len }, |payload| {
        let at = payload.windows(3).position(|three| three == b"key").unwrap();
        payload[at] = b'z';
    });
    let text = found(&lie);
    for what in ["is after the separator", "not after the block before", "bloom", "file hash"] {
        assert!(text.contains(what), "{text}");
    }
    let lie = with_block(&bytes, footer.bloom, |payload| payload[8..].fill(0));
    assert!(open(&lie, None).err().unwrap().to_string().contains("the properties have"));
    assert!(found(&with_tail(&lie, &footer)).contains("bloom does not have a key"));
    let lie = with_block(&bytes, footer.properties, |payload| payload[2] ^= 1);
    assert!(open(&lie, None).err().unwrap().to_string().contains("own checksum"));
    assert!(found(&with_tail(&lie, &footer)).contains("properties say values"));
    // Bytes between the last block and the footer.
    let mut lie = bytes[..footer_at as usize].to_vec();
    lie.extend_from_slice(&[0; 10]);
    let file_bytes = bytes.len() as u64 + 10;
    footer.encode(&mut lie, file_bytes);
    assert!(found(&lie).contains("10 bytes belong to nothing"));
}

/// Walks all of it in every way; what is returned must be right.
fn read_all(bytes: &[u8], table: &Table) -> Result<()> {
    let reader = open(bytes, None)?;
    for mode in [RawMode::Cached, RawMode::Streaming] {
        let mut iter = reader.raw_iter(mode);
        iter.seek(None)?;
        for ((key, value), hidden) in table.all.iter().zip(&table.hidden) {
            assert!(iter.valid(), "a scan ended early without an error");
            assert_eq!((iter.key(), iter.value()), (key.as_ref(), &value[..]));
            assert_eq!(iter.hidden(), *hidden);
            iter.next()?;
        }
        assert!(!iter.valid());
    }
    let mut iter = reader.iter(ReadMode::Cached);
    iter.seek(None)?;
    for (key, value) in table.visible() {
        assert_eq!((iter.key(), iter.value()), (key.as_ref(), &value[..]));
        let found = reader.get(&key.user, bloom_hash(&key.user), key.trailer.seq())?;
        assert_eq!(found.expect("a key is missing without an error").0, key.trailer);
        iter.next()?;
    }
    Ok(())
}

#[test]
fn every_flipped_bit_of_a_table_with_hidden_entries_is_an_error() {
    let table = table();
    for (compression, index_bytes_max) in SHAPES {
        let (bytes, _) = written(compression, index_bytes_max);
        read_all(&bytes, &table).unwrap();
        let mut bad = bytes.clone();
        for bit in 0..8 * bytes.len() {
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = read_all(&bad, &table).expect_err("no byte is without a checksum");
            assert!(error.is_corruption(), "bit {bit}: {error}");
            bad[bit / 8] = bytes[bit / 8];
        }
    }
}

#[test]
fn a_tolerant_walk_names_the_damaged_block_and_hands_over_the_rest() {
    let table = table();
    for compression in [Compression::None, Compression::Lz4] {
        let (bytes, _) = written(compression, 1 << 20);
        let sound = open(&bytes, None).unwrap();
        let blocks: Vec<(u64, u64)> = sound.blocks().map(Result::unwrap).collect();
        let mut walk = sound.raw_iter(RawMode::default());
        walk.seek(None).unwrap();
        let mut origins = Vec::new();
        while walk.valid() {
            origins.push(walk.origin().0);
            walk.next().unwrap();
        }
        let mut suspects = 0;
        for bit in 0..8 * sound.properties().data_bytes as usize {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8) | 1 << ((bit + 3) % 8);
            let at = blocks.iter().rfind(|(offset, _)| *offset <= (bit / 8) as u64).unwrap().0;
            let reader = open(&bad, None).unwrap();
            let mode = if bit % 2 == 0 { RawMode::Scrub } else { RawMode::Suspects };
            let mut iter = reader.raw_iter(mode);
            iter.seek(None).unwrap();
            let mut sound = Vec::new();
            let mut last = None;
            while iter.valid() {
                let key = iter.key().to_owned();
                assert!(last.as_ref().is_none_or(|last| *last < key), "bit {bit}");
                let (offset, _, verified) = iter.origin();
                assert_eq!(verified, offset != at);
                if verified {
                    sound.push((key.clone(), iter.value().to_vec()));
                } else {
                    suspects += 1;
                }
                last = Some(key);
                iter.next().unwrap();
            }
            let [damage] = iter.damage() else { panic!("one block is damaged") };
            assert_eq!(damage.block_offset, at);
            let expected = table.all.iter().zip(&origins).filter(|(_, origin)| **origin != at);
            let expected: Vec<_> = expected.map(|(entry, _)| entry.clone()).collect();
            assert_eq!(sound, expected, "bit {bit}");
            // Seeks and steps back end at the same place.
            iter.seek(Some(KeyRef::seek(b"zzz", crate::types::SeqNo::MAX))).unwrap();
            assert!(!iter.valid());
            iter.seek_before(None).unwrap();
            let mut count = 0;
            while iter.valid() {
                count += 1;
                iter.prev().unwrap();
            }
            assert_eq!(count, sound.len() + iter.damage()[0].suspects as usize);
            assert_eq!(iter.damage().len(), 1);
        }
        let flips = 8 * sound.properties().data_bytes;
        if compression == Compression::None {
            assert!(suspects > 2 * flips, "most entries of a block survive a flip: {suspects}");
        }
    }
}

#[test]
fn what_was_only_damaged_in_memory_is_read_again() {
    /// Hands out two flipped bits unless it is read past the caches.
    struct Flaky(Arc<TestFile>);
    impl crate::fs::File for Flaky {
        fn append(&self, bytes: &[u8]) -> Result<()> {
            self.0.append(bytes)
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
            let len = self.0.read_at(offset, buf)?;
            if offset == 0 {
                buf[5] ^= 3;
            }
            Ok(len)
        }
        fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
            self.0.read_at(offset, buf)
        }
        fn sync(&self) -> Result<()> {
            Ok(())
        }
        fn len(&self) -> Result<u64> {
            self.0.len()
        }
        fn preallocate(&self, _: u64) -> Result<()> {
            Ok(())
        }
        fn punch(&self, _: u64, _: u64) -> Result<()> {
            Ok(())
        }
    }
    // Larger than the read-ahead of the footer, which begins at the front of a small file.
    let visible = (0..400_u64)
        .map(|n| entry(format!("key{n:04}").as_bytes(), n, EntryKind::Value, &[n as u8; 20]));
    let table = Table::new(visible.collect(), &[1], |_, _| Some(vec![]));
    let options = options(4096, Compression::None);
    let (bytes, _, _) = table.write(&[1], options, 1 << 20, |_| true);
    assert!(bytes.len() > 8192);
    let file = Arc::new(Flaky(TestFile::holding(&bytes)));
    let reader = SstReader::open(file, "t.sst".into(), IDENTITY, None, None).unwrap();
    let reader = Arc::new(reader);
    let mut strict = reader.raw_iter(RawMode::default());
    assert!(strict.seek(None).is_err() && !strict.valid());
    let mut iter = reader.raw_iter(RawMode::Suspects);
    iter.seek(None).unwrap();
    assert_eq!(iter.key(), table.all[0].0.as_ref());
    assert!(iter.origin().2 && iter.damage().is_empty());
    assert!(verify(&reader, None).is_empty(), "it reads past the caches");
}

#[test]
fn a_description_covers_every_byte_once() {
    for (compression, index_bytes_max) in SHAPES {
        let (mut bytes, _) = written(compression, index_bytes_max);
        let lines = describe(TestFile::holding(&bytes), "t.sst".into(), false).unwrap();
        let mut at = 0;
        for (range, _) in &lines {
            assert_eq!(range.start, at, "{lines:?}");
            at = range.end;
        }
        assert_eq!(at, bytes.len() as u64);
        let blocks = lines.iter().filter(|(_, text)| text.starts_with("data block")).count();
        let more = describe(TestFile::holding(&bytes), "t.sst".into(), true).unwrap();
        let entries = more.iter().filter(|(_, text)| text.starts_with("entry")).count();
        let hidden = more.iter().filter(|(_, text)| text.starts_with("hidden entry")).count();
        assert_eq!(entries, table().visible().len());
        assert_eq!(entries + hidden, table().all.len());
        bytes[3] ^= 1;
        let lines = describe(TestFile::holding(&bytes), "t.sst".into(), true).unwrap();
        assert!(lines[0].1.starts_with("damaged data block 0"));
        let left = lines.iter().filter(|(_, text)| text.starts_with("data block")).count();
        assert_eq!(left, blocks - 1);
    }
}
