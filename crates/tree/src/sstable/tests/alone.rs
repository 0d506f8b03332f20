//! Values so large that each has a block of its own.

use std::sync::Arc;

use super::{Entries, IDENTITY, entry, open, options, write};
use crate::options::Compression;
use crate::sstable::stored::LARGE_PAYLOAD_BYTES;
use crate::sstable::test_file::TestFile;
use crate::sstable::{SstWriter, bloom_hash};
use crate::types::{EntryKind, SeqNo};

#[test]
fn the_block_of_a_large_value_is_forced_to_end_after_it() {
    let file = Arc::new(TestFile::default());
    let mut writer =
        SstWriter::new(file.clone(), IDENTITY, SeqNo::ZERO, options(4096, Compression::None));
    writer.set_hidden_suffix(&[1]);
    let large = vec![5; LARGE_PAYLOAD_BYTES];
    let values = [(b"a", &large[..9]), (b"b", &large), (b"c", &large), (b"d", b"last")];
    let mut counts = Vec::new();
    for (key, value) in values {
        writer.allow_cut(true);
        writer.add(entry(key, 7, EntryKind::Value, b"").0.as_ref(), value).unwrap();
        counts.push(ended(&mut writer));
        writer.allow_cut(false);
        let hidden = [&key[..], &[1]].concat();
        writer.add_hidden(entry(&hidden, 7, EntryKind::Tombstone, b"").0.as_ref(), b"sum").unwrap();
        counts.push(ended(&mut writer));
    }
    // After the entry: the block before it, which was not forced, and its own.
    assert_eq!(counts, [(0, 0), (0, 0), (2, 1), (2, 1), (4, 2), (4, 2), (4, 2), (4, 2)]);
    writer.finish().unwrap();
    let bytes = file.0.lock().clone();
    let reader = open(&bytes, None).unwrap();
    assert_eq!(reader.blocks().count(), 5);
    for (key, value) in values {
        let seq = SeqNo::new(9).unwrap();
        let found = reader.get(key, bloom_hash(key), seq).unwrap().unwrap();
        assert!(*found.1 == *value);
    }
}

/// The number of blocks that have ended, and how many of them were forced.
fn ended(writer: &mut SstWriter) -> (usize, usize) {
    let ended = writer.ended_blocks();
    (ended.len(), ended.iter().filter(|block| block.is_forced).count())
}

/// Bytes that cannot be compressed.
fn noise(mut state: u64, len: usize) -> Vec<u8> {
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    });
    bytes.take(len).collect()
}

/// The data blocks of a table of values that cannot be compressed.
fn data_of(entries: &Entries, compression: Compression) -> Vec<u8> {
    let (mut bytes, summary) = write(entries, options(4096, compression), 1 << 20);
    let reader = open(&bytes, Some((summary.file_bytes, summary.file_hash))).unwrap();
    bytes.truncate(usize::try_from(reader.properties().data_bytes).unwrap());
    bytes
}

#[test]
fn a_value_that_is_not_gathered_is_stored_as_one_that_is() {
    let lengths = [3, 2000, 4070, 4090, 4096, 4097, 100, 65_500, 65_536, 0, 300_000, 9, 5000, 5000];
    let all: Entries = lengths
        .iter()
        .enumerate()
        .map(|(n, len)| {
            entry(&[b'a' + n as u8 / 2], 99 - n as u64, EntryKind::Value, &noise(n as u64, *len))
        })
        .collect();
    for count in 1..=all.len() {
        let entries = all[..count].to_vec();
        // Such values are gathered to be compressed, and stored plainly because that saves nothing.
        let gathered = data_of(&entries, Compression::Lz4);
        assert!(data_of(&entries, Compression::None) == gathered, "{count} entries");
    }
}
