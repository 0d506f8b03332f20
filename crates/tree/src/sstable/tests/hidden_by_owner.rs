//! Hidden entries that are added next to their owners, against the same ones added by their keys.

use std::sync::Arc;

use proptest::prelude::*;

use super::hidden::{Table, choices};
use super::model::entries;
use super::{Entries, IDENTITY, entry, open, options};
use crate::error::Result;
use crate::hooks::{EndedBlock, NOTED_BYTES_MAX, NoteForm};
use crate::options::Compression;
use crate::sstable::stored::LARGE_PAYLOAD_BYTES;
use crate::sstable::test_file::TestFile;
use crate::sstable::{SstOptions, SstWriter};
use crate::types::{EntryKind, SeqNo};

const SUFFIX: &[u8] = &[1];

/// Payloads of so many times the low byte of a note.
struct Repeated(usize);

impl NoteForm for Repeated {
    fn payload_bytes(&self) -> usize {
        self.0
    }

    fn put_payloads(&self, notes: &[u64], out: &mut Vec<u8>) -> Result<()> {
        notes.iter().for_each(|note| out.extend(vec![*note as u8; self.0]));
        Ok(())
    }
}

/// A note of this payload on the entry `seq`, if it has the form and the length of one.
fn note_of(seq: SeqNo, payload: &[u8], width: usize) -> Option<u64> {
    let payload = payload.strip_prefix(&seq.get().to_le_bytes())?;
    // With bits that make sums wrap around.
    (payload.len() == width).then(|| u64::MAX << 8 | u64::from(payload[0]))
}

/// Returns `true` if a payload fits a column.
fn is_short(seq: SeqNo, payload: &[u8]) -> bool {
    let rest = payload.strip_prefix(&seq.get().to_le_bytes());
    rest.is_some_and(|rest| (1..=NOTED_BYTES_MAX).contains(&rest.len()))
}

/// A written table, with the notes that stayed, and the blocks that ended.
struct Written {
    bytes: Vec<u8>,
    noted: Vec<u64>,
    ended: Vec<EndedBlock>,
}

/// Writes a table; hidden entries that follow their owners are made of notes where these have `width`. Before
/// others, a note is given and taken back.
fn write(table: &Table, options: SstOptions, width: Option<usize>) -> Written {
    let file = Arc::new(TestFile::default());
    let base = table.all.iter().map(|(key, _)| key.trailer.seq()).min().unwrap();
    let mut writer = SstWriter::new(file.clone(), IDENTITY, base, options);
    writer.set_hidden_suffix(SUFFIX);
    if let Some(width) = width {
        writer.set_note_form(Arc::new(Repeated(width)));
    }
    let mut noted = Vec::new();
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
        let may_note = width.is_some() && is_owner;
        let note = width.and_then(|width| note_of(key.trailer.seq(), value, width));
        let is_noted = match note {
            Some(note) => may_note && writer.note(note).unwrap(),
            // A payload of another length that fits a column must not end it.
            None => may_note && !is_short(key.trailer.seq(), value) && writer.note(7).unwrap(),
        };
        match note {
            Some(note) if is_noted && is_alone => noted.push(note),
            _ => {
                if is_noted {
                    writer.take_back_note(note.unwrap_or(7));
                }
                writer.add_hidden(key.as_ref(), value).unwrap();
            }
        }
    }
    writer.end_last_block().unwrap();
    let ended = std::mem::take(writer.ended_blocks());
    writer.finish().unwrap();
    let bytes = file.0.lock().clone();
    Written { bytes, noted, ended }
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

fn check(visible: Entries, choices: &[u8], options: SstOptions, width: usize) -> usize {
    let table = Table::new(visible, SUFFIX, |i, seq| payload(choices[i % choices.len()], seq));
    let Written { bytes, noted, ended } = write(&table, options, Some(width));
    assert!(bytes == write(&table, options, None).bytes, "the tables differ");
    assert_eq!(ended.len(), open(&bytes, None).unwrap().blocks().count());
    assert_eq!(ended.iter().map(|block| block.notes).sum::<u64>(), noted.len() as u64);
    let sums = ended.iter().map(|block| block.sum_of_notes).fold(0, u64::wrapping_add);
    assert_eq!(sums, noted.iter().copied().fold(0, u64::wrapping_add));
    noted.len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_table_is_the_same_whichever_way_its_hidden_entries_come(
        visible in entries(),
        choices in choices(),
        block_bytes in prop_oneof![Just(64_u32), Just(300), Just(4096)],
        lz4: bool,
        width in prop_oneof![4 => Just(11_usize), 1 => Just(1), 1 => Just(15), 1 => Just(9)],
    ) {
        let compression = if lz4 { Compression::Lz4 } else { Compression::None };
        check(visible, &choices, options(block_bytes, compression), width);
    }
}

#[test]
fn after_a_large_value_a_hidden_entry_begins_a_block() {
    let large = vec![5; LARGE_PAYLOAD_BYTES];
    let values = [&large[..], b"small", &large[..], b"last"];
    let visible = values.iter().zip(b'a'..);
    let visible = visible.map(|(value, key)| entry(&[key], 7, EntryKind::Value, value)).collect();
    // After "small" and "last" alone: the others are in no block that is open.
    assert_eq!(check(visible, &[8], options(4096, Compression::None), 11), 2);
}

/// Blocks of a table of 1,000 entries of 100 bytes, each with a hidden payload of so many bytes.
fn blocks_with_hidden(payload_bytes: Option<usize>) -> usize {
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
    writer.end_last_block().unwrap();
    writer.ended_blocks().len()
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
fn a_key_before_the_hidden_entry_next_to_another_is_refused() {
    let file = Arc::new(TestFile::default());
    let mut writer = SstWriter::new(file, IDENTITY, SeqNo::ZERO, options(4096, Compression::None));
    writer.set_hidden_suffix(SUFFIX);
    writer.set_note_form(Arc::new(Repeated(3)));
    writer.add(entry(b"k", 7, EntryKind::Value, b"").0.as_ref(), b"v").unwrap();
    assert!(writer.note(5).unwrap());
    let _ = writer.add(entry(b"k\0a", 7, EntryKind::Value, b"").0.as_ref(), b"v");
}
