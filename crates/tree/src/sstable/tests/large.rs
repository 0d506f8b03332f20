//! Tables with values so large that a block is written piece by piece.

use super::super::ReadMode;
use super::super::bloom::bloom_hash;
use super::super::stored::LARGE_PAYLOAD_BYTES;
use super::*;
use crate::iter::InternalIter;

const LEN: usize = LARGE_PAYLOAD_BYTES + (1 << 20) + 321;

/// A value whose first part repeats itself, and whose rest does not.
fn value(repeated: usize) -> Vec<u8> {
    let mut state = repeated as u64;
    let noise = std::iter::repeat_with(move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    });
    let text = b"sand and silt, layer on layer, ".iter().copied().cycle();
    text.take(repeated).chain(noise.take(LEN - repeated)).collect()
}

fn pairs(mut iter: impl InternalIter) -> Entries {
    let mut all = Vec::new();
    iter.seek(None).unwrap();
    while iter.valid() {
        all.push((iter.key().to_owned(), iter.value().to_vec()));
        iter.next().unwrap();
    }
    all
}

#[test]
fn large_values_come_back_from_blocks_of_their_own() {
    for repeated in [0, LEN / 2, LEN] {
        let large = value(repeated);
        let all: Entries = vec![
            entry(b"a", 9, EntryKind::Value, b"small"),
            entry(b"b", 8, EntryKind::Value, &large),
            entry(b"b", 7, EntryKind::Value, &large[1..]),
            entry(b"c", 6, EntryKind::Value, b"small"),
            entry(b"d", 5, EntryKind::Value, b"small"),
            entry(b"e", 4, EntryKind::Value, &large[2..]),
        ];
        for compression in [Compression::None, Compression::Lz4] {
            for count in [2, 3, 6] {
                let all = all[..count].to_vec();
                let (bytes, summary) = write(&all, options(4096, compression), 1 << 20);
                let reader = open(&bytes, Some((summary.file_bytes, summary.file_hash))).unwrap();
                assert!(pairs(reader.iter(ReadMode::Streaming)) == all, "{repeated} {count}");
                assert!(pairs(reader.iter(ReadMode::Cached)) == all, "{repeated} {count}");
                for (key, value) in &all {
                    let seq = key.trailer.seq();
                    let found = reader.get(&key.user, bloom_hash(&key.user), seq).unwrap();
                    assert!(found.unwrap().1 == value[..], "{repeated} {count} {key:?}");
                }
                let large = all.iter().filter(|(_, value)| value.len() > 5).count();
                let blocks = reader.properties().data_blocks as usize;
                assert_eq!(blocks, 1 + large + usize::from(count > 3));
                // As for other blocks: what saves less than an eighth is stored plainly.
                let noise = ((LEN - repeated) * large) as u64;
                let is_compressed = compression == Compression::Lz4 && repeated > LEN / 8;
                let stored = if is_compressed { noise } else { (LEN * large) as u64 };
                let room = summary.file_bytes.abs_diff(stored);
                assert!(room < (LEN / 50 * large) as u64, "{} {stored}", summary.file_bytes);
            }
        }
    }
}

/// The bytes are those of a block that was gathered first, as earlier versions did.
#[test]
fn a_large_block_has_the_bytes_of_a_gathered_one() {
    let large = value(0);
    let key = KeyRef::new(b"key", Trailer::new(SeqNo::new(7).unwrap(), EntryKind::Value));
    let mut gathered = super::super::block_builder::BlockBuilder::new(SeqNo::new(3).unwrap());
    gathered.add(key, &large);
    let payload = gathered.finish(b"key").to_vec();
    let mut expected = Vec::new();
    let mut framer = super::super::stored::BlockFramer::new(IDENTITY.unique_id());
    framer.frame(&mut expected, 0, &payload, Compression::None);
    let file = Arc::new(TestFile::default());
    let base = SeqNo::new(3).unwrap();
    let mut writer = SstWriter::new(file.clone(), IDENTITY, base, options(4096, Compression::Lz4));
    writer.add(key, &large).unwrap();
    writer.finish().unwrap();
    assert!(file.0.lock().starts_with(&expected));
}
