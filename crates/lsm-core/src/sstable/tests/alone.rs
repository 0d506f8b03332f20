//! Values so large that each has a block of its own, in a table with hidden entries.

use std::sync::Arc;

use super::{IDENTITY, entry, open, options};
use crate::options::Compression;
use crate::sstable::stored::LARGE_PAYLOAD_BYTES;
use crate::sstable::test_file::TestFile;
use crate::sstable::{SstWriter, bloom_hash};
use crate::types::{EntryKind, SeqNo};

#[test]
fn the_block_of_a_large_value_ends_behind_it_and_counts_when_the_next_begins() {
    let file = Arc::new(TestFile::default());
    let mut writer =
        SstWriter::new(file.clone(), IDENTITY, SeqNo::ZERO, options(4096, Compression::None));
    writer.set_hidden_suffix(&[1]);
    let large = vec![5; LARGE_PAYLOAD_BYTES];
    let values = [(b"a", &large[..9]), (b"b", &large), (b"c", &large), (b"d", b"last")];
    let mut told = Vec::new();
    for (key, value) in values {
        writer.allow_cut(true);
        writer.add(entry(key, 7, EntryKind::Value, b"").0.as_ref(), value).unwrap();
        told.push((writer.blocks(), writer.forced_cuts()));
        writer.allow_cut(false);
        let hidden = [&key[..], &[1]].concat();
        writer.add_hidden(entry(&hidden, 7, EntryKind::Tombstone, b"").0.as_ref(), b"sum").unwrap();
        told.push((writer.blocks(), writer.forced_cuts()));
    }
    // Behind an entry count the blocks that ended before it, behind its hidden one all.
    assert_eq!(told, [(0, 0), (0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (4, 2), (4, 2)]);
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
