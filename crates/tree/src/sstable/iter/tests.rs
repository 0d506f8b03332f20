//! Entries of a block that no writer of this program makes.

use super::*;
use crate::sstable::stored::StoredPayload;
use crate::types::EntryKind;

/// Writers share as much as they can. The format does not ask for it.
#[test]
fn an_entry_may_name_more_shared_bytes_than_the_one_before() {
    let mut bytes = Vec::new();
    for (shared, suffix) in [(0, &b"abcd"[..]), (1, b"bcdf"), (3, b"e"), (0, b"abcf")] {
        bytes.extend_from_slice(&[EntryKind::Value as u8, shared, suffix.len() as u8, 0, 0]);
        bytes.extend_from_slice(suffix);
    }
    // The restart, the base of sequences, the length of the common prefix, and the number of entries.
    bytes.extend_from_slice(&[0; 4 + 8 + 4]);
    bytes.extend_from_slice(&4_u32.to_le_bytes());
    let payload = StoredPayload { len: bytes.len(), bytes: bytes.into() };
    let block = Block::parse(payload, None).unwrap();
    let mut entries = VisibleEntries::new(ReadMode::Cached, None, None);
    entries.enter_block(&block);
    entries.enter(&block, 0);
    let mut keys = vec![entries.key.clone()];
    for _ in 1..4 {
        entries.enter_next(&block);
        keys.push(entries.key.clone());
    }
    assert_eq!(keys, [&b"abcd"[..], b"abcdf", b"abce", b"abcf"]);
}
