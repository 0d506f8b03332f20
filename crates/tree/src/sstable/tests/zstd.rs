//! Tables with zstd: the forms of their blocks, the dictionary and its damage, and what a build without zstd says.

use super::{Entries, IDENTITY, entry, open, options, write};
#[cfg(not(feature = "zstd"))]
use crate::error::ErrorKind;
use crate::options::Compression;
use crate::sstable::index::INDEX_BYTES_MAX;
use crate::sstable::test_file::TestFile;
use crate::sstable::{describe, identify, salvage};
use crate::types::EntryKind;

/// Documents of about 200 bytes, with names in common and numbers that differ.
fn documents(count: u64) -> Entries {
    let documents = (0..count).map(|n| {
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let a = mixed >> 40;
        let b = mixed >> 20 & 0xf_ffff;
        let c = mixed & 0xf_ffff;
        let value = format!(
            r#"{{"id":{n},"user":{{"name":"user-{a}","email":"user-{a}@example.org","active":{}}},"#,
            a % 2 == 0
        ) + &format!(
            r#""items":[{{"sku":"{b:07}","price":{}.{:02}}},{{"sku":"{c:07}","price":{}}}],"country":"{}"}}"#,
            b % 900,
            b % 100,
            c % 900,
            ["DE", "FR", "NL", "SE"][(a % 4) as usize]
        );
        entry(format!("document/{n:08}").as_bytes(), n + 1, EntryKind::Value, value.as_bytes())
    });
    documents.collect()
}

/// A table of documents with zstd.
fn written(count: u64) -> Vec<u8> {
    write(&documents(count), options(4096, Compression::Zstd), INDEX_BYTES_MAX).0
}

/// A build without the feature writes such tables only here: their blocks are as they are, and their footer says zstd.
#[cfg(not(feature = "zstd"))]
#[test]
fn a_build_without_zstd_names_the_feature_and_the_file_in_every_way() {
    let bytes = written(100);
    let hash = identify_hash(&bytes);
    let refused = [
        open(&bytes, None).err().unwrap(),
        identify(TestFile::holding(&bytes), "t.sst".into()).err().unwrap(),
        salvage(TestFile::holding(&bytes), "t.sst".into(), IDENTITY, hash, &[]).err().unwrap(),
        describe(TestFile::holding(&bytes), "t.sst".into(), false).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.damage().is_none());
        let error = error.in_partition("documents").to_string();
        let expected = "blocks of a table are compressed with zstd, and this build lacks the feature `zstd` in t.sst, \
                        partition \"documents\"";
        assert_eq!(error, expected);
    }
    // Where the footer is lost, the properties say it.
    let mut cut = bytes.clone();
    let end = cut.len() - 100;
    cut[end..].fill(0);
    let error = salvage(TestFile::holding(&cut), "t.sst".into(), IDENTITY, hash, &[]).err();
    assert_eq!(error.unwrap().kind(), ErrorKind::Unsupported);
}

/// The hash in the footer.
#[cfg(not(feature = "zstd"))]
fn identify_hash(bytes: &[u8]) -> u128 {
    let at = bytes.len() - crate::sstable::footer::FOOTER_BYTES + 112;
    u128::from_le_bytes(bytes[at..at + 16].try_into().unwrap())
}

#[cfg(feature = "zstd")]
mod built_in {
    use std::sync::Arc;

    use super::super::column;
    use super::super::damage::read_whole;
    use super::super::hidden::MODES;
    use super::super::model::at;
    use super::*;
    use crate::codec::checksum64_seeded;
    use crate::error::Result;
    use crate::iter::InternalIter;
    use crate::sstable::compression::CompressionKind;
    use crate::sstable::stored::{BlockCodec, Extent, TRAILER_BYTES, TableSource};
    use crate::sstable::{ReadMode, Salvaged, SstReader};

    /// The kind of each data block.
    fn kinds(bytes: &[u8]) -> Vec<CompressionKind> {
        let reader = open(bytes, None).unwrap();
        let kinds = reader.blocks().map(|extent| {
            let (offset, len) = extent.unwrap();
            CompressionKind::from_u8(bytes[(offset + len) as usize - TRAILER_BYTES]).unwrap()
        });
        kinds.collect()
    }

    fn dictionary_of(bytes: &[u8]) -> Option<Extent> {
        open(bytes, None).unwrap().properties().dictionary.map(|(extent, _)| extent)
    }

    #[test]
    fn later_blocks_of_a_table_have_a_dictionary_of_the_first() {
        use CompressionKind::{Zstd, ZstdDictionary};
        let documents = documents(12_000);
        let (bytes, summary) = write(&documents, options(4096, Compression::Zstd), INDEX_BYTES_MAX);
        let kinds = kinds(&bytes);
        let first = kinds.iter().position(|kind| *kind == ZstdDictionary).unwrap();
        assert!(kinds[..first].iter().all(|kind| *kind == Zstd), "{kinds:?}");
        assert!(kinds[first..].iter().all(|kind| *kind == ZstdDictionary), "{kinds:?}");
        assert!((350..450).contains(&first), "1.6 MiB of blocks of 4 KiB: {first}");
        let reader = open(&bytes, Some((summary.file_bytes, summary.file_hash))).unwrap();
        read_whole(&reader, &documents).unwrap();
        let found = reader.verify(None, &mut |_| Ok(())).unwrap();
        assert!(found.damage.is_empty(), "{:?}", found.damage);
        let codec = &reader.source().codec;
        let dictionary = codec.dictionary.as_ref().unwrap().memory_bytes() as u64;
        assert!(dictionary > 16 << 10 && reader.memory_bytes() > dictionary);
        // A block with it takes at most 15/16 of one without it.
        let lens: Vec<u64> = reader.blocks().map(|extent| extent.unwrap().1).collect();
        let plain = lens[first - 40..first].iter();
        let with = lens[first..first + 40].iter();
        assert!(16 * with.sum::<u64>() < 15 * plain.sum::<u64>());
        // Equal input makes an equal file.
        let again = write(&documents, options(4096, Compression::Zstd), INDEX_BYTES_MAX);
        assert!(again.0 == bytes);
    }

    #[test]
    fn small_tables_and_blocks_without_a_likeness_have_no_dictionary() {
        assert_eq!(dictionary_of(&written(5000)), None, "1 MiB");
        let mut word = 1_u64;
        let noise = (0..3000).map(|n| {
            let value = std::iter::repeat_with(|| {
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (word >> 56) as u8
            });
            let value: Vec<u8> = value.take(1000).collect();
            entry(format!("noise/{n:08}").as_bytes(), n + 1, EntryKind::Value, &value)
        });
        let (bytes, _) = write(&noise.collect(), options(4096, Compression::Zstd), INDEX_BYTES_MAX);
        assert_eq!(dictionary_of(&bytes), None);
        assert!(kinds(&bytes).iter().all(|kind| *kind == CompressionKind::None));
    }

    #[test]
    fn a_value_that_is_compressed_in_pieces_reads_back() {
        let text = b"sand and silt, layer on layer, ".repeat(200_000);
        let all = vec![entry(b"long", 1, EntryKind::Value, &text)];
        let (bytes, _) = write(&all, options(4096, Compression::Zstd), INDEX_BYTES_MAX);
        assert!(bytes.len() < text.len() / 100, "{} bytes", bytes.len());
        assert_eq!(kinds(&bytes), [CompressionKind::Zstd]);
        read_whole(&open(&bytes, None).unwrap(), &all).unwrap();
    }

    #[test]
    fn a_column_of_hidden_entries_is_not_compressed() {
        let bytes = column::written(options(1 << 16, Compression::Zstd));
        assert_eq!(kinds(&bytes), [CompressionKind::ZstdFront]);
        let plain = open(&column::written(options(1 << 16, Compression::None)), None).unwrap();
        let reader = open(&bytes, None).unwrap();
        for mode in MODES {
            let mut iters = [&plain, &reader].map(|reader| reader.raw_iter(mode));
            iters.iter_mut().for_each(|iter| iter.seek(None).unwrap());
            let [expected, found] = &mut iters;
            while expected.valid() {
                assert_eq!((at(found), found.hidden()), (at(expected), expected.hidden()));
                expected.next().unwrap();
                found.next().unwrap();
            }
            assert!(!found.valid());
        }
    }

    #[test]
    fn every_byte_of_a_damaged_dictionary_is_named_and_one_bit_is_mended() {
        let documents = documents(12_000);
        let (bytes, summary) = write(&documents, options(4096, Compression::Zstd), INDEX_BYTES_MAX);
        let extent = dictionary_of(&bytes).unwrap();
        for at in (extent.offset..extent.end()).step_by(97).chain([extent.end() - 1]) {
            let mut damaged = bytes.clone();
            damaged[at as usize] ^= 0x10;
            let error = open(&damaged, None).err().unwrap();
            let damage = error.damage().unwrap();
            assert!(damage.what.starts_with("the dictionary of the table: "), "{error}");
            assert_eq!(damage.offset, Some(extent.offset));
        }
        let mut damaged = bytes.clone();
        damaged[extent.offset as usize + 40] ^= 1;
        let found = salvaged(&damaged, summary.file_hash);
        assert_eq!(found.repaired, [("the dictionary is damaged", "one-bit search")]);
        let mut iter = Arc::new(found.reader).iter(ReadMode::Streaming);
        assert_eq!(read_until_error(&mut iter).0, documents.len());
        // Beyond that the blocks before it are left.
        damaged[extent.offset as usize + 400..][..50].fill(0);
        let found = salvaged(&damaged, summary.file_hash);
        let expected = ("the dictionary is damaged", "none: the blocks that need it are lost");
        assert_eq!(found.repaired, [expected]);
        let (count, error) =
            read_until_error(&mut Arc::new(found.reader).iter(ReadMode::Streaming));
        assert!(count > 5000 && count < documents.len(), "{count}");
        let error = error.unwrap_err();
        let what = &error.damage().unwrap().what;
        assert_eq!(what, "block needs a dictionary, and the table has none");
        // An open table finds it when it is verified, and nothing else.
        let file = TestFile::holding(&bytes);
        let reader = SstReader::open(file.clone(), "t.sst".into(), IDENTITY, None, None).unwrap();
        *file.0.lock() = damaged;
        let found = reader.verify(None, &mut |_| Ok(())).unwrap().damage;
        assert_eq!(found.len(), 1, "{found:?}");
        let damage = found[0].error.damage().unwrap();
        assert!(damage.what.starts_with("the dictionary of the table: "), "{damage}");
    }

    fn salvaged(bytes: &[u8], hash: u128) -> Salvaged {
        let file = TestFile::holding(bytes);
        salvage(file, "t.sst".into(), IDENTITY, hash, &[]).unwrap().unwrap()
    }

    fn read_until_error(iter: &mut impl InternalIter) -> (usize, Result<()>) {
        let mut count = 0;
        let mut moved = iter.seek(None);
        while moved.is_ok() && iter.valid() {
            count += 1;
            moved = iter.next();
        }
        (count, moved)
    }

    /// Footer and properties are lost, and the blocks verify one after the other.
    #[test]
    fn a_table_without_a_footer_is_found_with_its_dictionary() {
        let documents = documents(12_000);
        let (bytes, summary) = write(&documents, options(4096, Compression::Zstd), INDEX_BYTES_MAX);
        let mut damaged = bytes.clone();
        let len = damaged.len();
        damaged[len - 60..].fill(0);
        let file = TestFile::holding(&damaged);
        let found = salvage(file, "t.sst".into(), IDENTITY, summary.file_hash, &[]).unwrap();
        let mut iter = Arc::new(found.unwrap().reader).iter(ReadMode::Streaming);
        assert_eq!(read_until_error(&mut iter).0, documents.len());
        // The properties too, whose place the footer still has.
        let reader = open(&bytes, None).unwrap();
        let mut damaged = bytes.clone();
        damaged[reader.footer().0.properties.offset as usize..][..40].fill(0);
        let file = TestFile::holding(&damaged);
        let found = salvage(file, "t.sst".into(), IDENTITY, summary.file_hash, &[]).unwrap();
        let mut iter = Arc::new(found.unwrap().reader).iter(ReadMode::Streaming);
        assert_eq!(read_until_error(&mut iter).0, documents.len());
    }

    /// The memory for a block is bounded before it is allocated.
    #[test]
    fn a_frame_cannot_claim_more_than_a_block_of_its_table() {
        let path: Arc<std::path::Path> = std::path::Path::new("t").into();
        let codec = BlockCodec { dictionary: None, payload_bytes_max: Some(8192) };
        let file = TestFile::holding(&[]);
        let source = TableSource { file, path, unique_id: 1, file_bytes: 0, codec };
        let zeros = vec![0; 8193];
        let mut frame = vec![0x81, 0x40];
        crate::zstandard::Compressor::new().compress(&zeros, &mut frame);
        for (payload, kind, expected) in [
            (&frame[..], 3, "zstd frame claims more bytes than any block of the table"),
            (&[0x80, 0x80, 0x80, 0x80, 0x04, 0], 3, "zstd frame claims too many bytes"),
            (&[3, 0x10, 7], 3, "zstd frame does not decode"),
            (&[], 4, "zstd frame does not decode"),
            (&[3, 9, 1], 6, "zstd frame does not decode"),
            (&[3, 0x10, 7], 5, "block needs a dictionary, and the table has none"),
        ] {
            let mut block = [payload, &[kind]].concat();
            let checksum = checksum64_seeded(&block, 1);
            block.extend_from_slice(&checksum.to_le_bytes());
            let error = source.open(0, &block).err().unwrap();
            assert_eq!(error.damage().unwrap().what, expected);
        }
    }

    #[test]
    fn a_dump_names_the_dictionary() {
        let bytes = written(12_000);
        let lines = describe(TestFile::holding(&bytes), "t.sst".into(), false).unwrap();
        let texts: Vec<&str> = lines.iter().map(|(_, text)| &**text).collect();
        assert!(texts.iter().any(|text| text.starts_with("dictionary: ")), "{texts:?}");
        assert!(texts.contains(&"compression: zstd with the dictionary"));
        assert!(!texts.iter().any(|text| text.contains("damaged")));
        let found = identify(TestFile::holding(&bytes), "t.sst".into()).unwrap();
        assert_eq!(found.properties.compression, Compression::Zstd as u8);
    }
}
