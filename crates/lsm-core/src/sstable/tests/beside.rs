//! Hidden entries that are added beside their owners, against the same ones added by their keys.

use std::sync::Arc;

use proptest::prelude::*;

use super::hidden::{Table, choices};
use super::model::entries;
use super::{Entries, IDENTITY, entry, options};
use crate::hooks::BesidePayload;
use crate::options::Compression;
use crate::sstable::stored::LARGE_PAYLOAD_BYTES;
use crate::sstable::test_file::TestFile;
use crate::sstable::{SstOptions, SstWriter};
use crate::types::{EntryKind, SeqNo};

const SUFFIX: &[u8] = &[1];

/// Writes a table; hidden entries that follow their owners come beside them if `is_beside`. Returns its
/// bytes, and how many came so.
fn write(table: &Table, options: SstOptions, is_beside: bool) -> (Vec<u8>, usize) {
    let file = Arc::new(TestFile::default());
    let base = table.all.iter().map(|(key, _)| key.trailer.seq()).min().unwrap();
    let mut writer = SstWriter::new(file.clone(), IDENTITY, base, options);
    writer.set_hidden_suffix(SUFFIX);
    let mut beside = 0;
    for (i, ((key, value), hidden)) in table.all.iter().zip(&table.hidden).enumerate() {
        writer.allow_cut(!*hidden);
        if !*hidden {
            writer.add(key.as_ref(), value).unwrap();
            continue;
        }
        let before = i.checked_sub(1).filter(|before| !table.hidden[*before]);
        let is_owner = before.is_some_and(|before| {
            let owner = &table.all[before].0;
            [&*owner.user, SUFFIX].concat() == *key.user && owner.trailer.seq() == key.trailer.seq()
        });
        // A visible entry of the same key could be in front of it: such a hidden entry comes by its key.
        let is_alone = table.all.get(i + 1).is_none_or(|next| next.0.user != key.user);
        let short = short(key.trailer.seq(), value).filter(|_| is_beside && is_owner && is_alone);
        if let Some(payload) = short {
            beside += 1;
            writer.add_hidden_beside(payload).unwrap();
        } else {
            writer.add_hidden(key.as_ref(), value).unwrap();
        }
    }
    writer.finish().unwrap();
    let bytes = file.0.lock().clone();
    (bytes, beside)
}

/// A payload as it lies beside its owner, if it has the form of one.
fn short(seq: SeqNo, payload: &[u8]) -> Option<BesidePayload> {
    let payload = payload.strip_prefix(&seq.get().to_le_bytes())?;
    let long = <[u8; 11]>::try_from(payload).map(BesidePayload::new);
    let longest = <[u8; BesidePayload::BYTES_MAX]>::try_from(payload).map(BesidePayload::new);
    let shortest = <[u8; 1]>::try_from(payload).map(BesidePayload::new);
    shortest.or(long).or(longest).ok()
}

/// The payload of the hidden entry `i`: as MetaHive makes it, of other lengths, and of other forms.
fn payload(choice: u8, seq: SeqNo) -> Option<Vec<u8>> {
    let head = seq.get().to_le_bytes();
    match choice % 12 {
        0 => None,
        1 => Some(Vec::new()),
        2 => Some(vec![choice; 24]),
        3 => Some([&head[..], &[choice; 40]].concat()),
        4 => Some([&head[..], &vec![choice; 5000]].concat()),
        5 => Some([&head[..], &[choice; 16]].concat()),
        6 => Some([&head[..], &[choice; 15]].concat()),
        7 => Some([&head[..], &[choice]].concat()),
        _ => Some([&head[..], &[choice; 11]].concat()),
    }
}

fn check(visible: Entries, choices: &[u8], options: SstOptions) -> usize {
    let table = Table::new(visible, SUFFIX, |i, seq| payload(choices[i % choices.len()], seq));
    let (beside, count) = write(&table, options, true);
    assert!(beside == write(&table, options, false).0, "the tables differ");
    count
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_table_is_the_same_whichever_way_its_hidden_entries_come(
        visible in entries(),
        choices in choices(),
        block_bytes in prop_oneof![Just(64_u32), Just(300), Just(4096)],
        lz4: bool,
    ) {
        let compression = if lz4 { Compression::Lz4 } else { Compression::None };
        check(visible, &choices, options(block_bytes, compression));
    }
}

#[test]
fn behind_a_large_value_a_hidden_entry_begins_a_block() {
    let large = vec![5; LARGE_PAYLOAD_BYTES];
    let values = [&large[..], b"small", &large[..], b"last"];
    let visible = values.iter().zip(b'a'..);
    let visible = visible.map(|(value, key)| entry(&[key], 7, EntryKind::Value, value)).collect();
    assert_eq!(check(visible, &[8], options(4096, Compression::None)), 4);
}

/// Blocks of a table of 1,000 entries of 100 bytes, each with a hidden payload of so many bytes.
fn blocks_with_hidden(payload_bytes: Option<usize>) -> u64 {
    let file = Arc::new(TestFile::default());
    let mut writer = SstWriter::new(file, IDENTITY, SeqNo::ZERO, options(4096, Compression::None));
    writer.set_hidden_suffix(SUFFIX);
    for i in 0..1000 {
        let user = format!("{i:04}");
        let (key, value) = entry(user.as_bytes(), 7, EntryKind::Value, &[5; 100]);
        writer.add(key.as_ref(), &value).unwrap();
        if let Some(bytes) = payload_bytes {
            let (hidden, _) =
                entry(&[user.as_bytes(), SUFFIX].concat(), 7, EntryKind::Tombstone, b"");
            writer.add_hidden(hidden.as_ref(), &vec![9; bytes]).unwrap();
        }
    }
    writer.blocks()
}

#[test]
fn hidden_entries_come_on_top_of_a_block_up_to_its_size() {
    let plain = blocks_with_hidden(None);
    assert!((20..30).contains(&plain), "{plain} blocks of 4 KiB for 1,000 entries of 100 bytes");
    assert_eq!(blocks_with_hidden(Some(20)), plain);
    // 8 KiB hold 15 entries with 400 bytes each.
    let long = blocks_with_hidden(Some(400));
    assert!((60..70).contains(&long), "{long} blocks of twice the size");
}

#[test]
#[should_panic(expected = "keys of a table ascend")]
fn a_key_before_the_hidden_entry_beside_another_is_refused() {
    let file = Arc::new(TestFile::default());
    let mut writer = SstWriter::new(file, IDENTITY, SeqNo::ZERO, options(4096, Compression::None));
    writer.set_hidden_suffix(SUFFIX);
    writer.add(entry(b"k", 7, EntryKind::Value, b"").0.as_ref(), b"v").unwrap();
    writer.add_hidden_beside(BesidePayload::new(*b"sum")).unwrap();
    let _ = writer.add(entry(b"k\0a", 7, EntryKind::Value, b"").0.as_ref(), b"v");
}
