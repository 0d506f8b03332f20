//! Tables that are read through a mapping, or past a cache: cursors go through their blocks unparsed. Damage before
//! and after the verification of a block.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::damage::{read_whole, small_table};
use super::model::{at, entries, user_key};
use super::{Entries, IDENTITY, entry, open, open_mapped, open_uncached, options, write};
use crate::error::Result;
use crate::iter::InternalIter;
use crate::options::Compression;
use crate::sstable::stored::{BlockFramer, TRAILER_BYTES};
use crate::sstable::{ReadMode, SstReader, bloom_hash};
use crate::types::{EntryKind, InternalKey, KeyRef, SeqNo};

type Open = fn(&[u8]) -> Result<Arc<SstReader>>;

/// The ways to read a table unparsed.
const UNPARSED: [Open; 2] = [open_mapped, open_uncached];

#[test]
fn plain_tables_with_one_block_of_index_are_mapped() {
    let all = small_table();
    for (compression, index_bytes_max, is_mapped) in [
        (Compression::None, 1 << 20, true),
        (Compression::Lz4, 1 << 20, false),
        (Compression::None, 100, false),
    ] {
        let (bytes, _) = write(&all, options(256, compression), index_bytes_max);
        let plain = open(&bytes, None).unwrap();
        let mapped = open_mapped(&bytes).unwrap();
        assert_eq!(plain.mapped_bytes(), 0);
        let expected = if is_mapped { plain.properties().data_bytes } else { 0 };
        assert_eq!(mapped.mapped_bytes(), expected);
        read_whole(&mapped, &all).unwrap();
        read_whole(&mapped, &all).unwrap();
        read_whole(&open_uncached(&bytes).unwrap(), &all).unwrap();
    }
}

#[test]
fn every_flipped_bit_of_a_mapped_table_is_an_error() {
    let all = small_table();
    let (bytes, _) = write(&all, options(256, Compression::None), 1 << 20);
    let data_bytes = open(&bytes, None).unwrap().properties().data_bytes as usize;
    let mut bad = bytes.clone();
    for bit in 0..8 * data_bytes {
        bad[bit / 8] ^= 1 << (bit % 8);
        let reader = open_mapped(&bad).unwrap();
        // By cursors first and by gets first: either verifies.
        let by_gets = gets(&reader, &all);
        let by_cursors = UNPARSED.map(|open| read_whole(&open(&bad).unwrap(), &all));
        for error in std::iter::once(by_gets).chain(by_cursors) {
            let error = error.expect_err("no byte is without a checksum");
            assert!(error.is_corruption(), "bit {bit}: {error}");
            assert!(error.damage().unwrap().offset.is_some());
        }
        bad[bit / 8] = bytes[bit / 8];
    }
}

fn gets(reader: &SstReader, all: &Entries) -> Result<()> {
    for (key, value) in all {
        let found = reader.get(&key.user, bloom_hash(&key.user), key.trailer.seq())?;
        assert_eq!(found.map(|(_, slice)| slice.to_vec()).as_ref(), Some(value));
    }
    Ok(())
}

/// The whole table by steps from one end, as far as it is readable.
fn walked(reader: &Arc<SstReader>, forward: bool) -> Result<Vec<(InternalKey, Vec<u8>)>> {
    let mut iter = reader.iter(ReadMode::Cached);
    let mut all = Vec::new();
    if forward {
        iter.seek(None)?;
    } else {
        iter.seek_before(None)?;
    }
    while let Some(entry) = at(&iter) {
        all.push(entry);
        if forward {
            iter.next()?;
        } else {
            iter.prev()?;
        }
    }
    if !forward {
        all.reverse();
    }
    Ok(all)
}

/// Makes the checksum of the first block, whose payload has `len` bytes, that of what is there now.
fn seal_again(bytes: &mut [u8], len: usize) {
    let mut sealed = Vec::new();
    BlockFramer::new(IDENTITY.unique_id()).frame(&mut sealed, 0, &bytes[..len], Compression::None);
    bytes[..sealed.len()].copy_from_slice(&sealed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Neither a checksum that was made over false bytes, nor bytes that change after their
    /// verification, make a panic, an entry out of order or an entry that no one wrote there.
    #[test]
    fn an_unparsed_block_with_false_content_is_refused_or_in_order(
        all in entries(),
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        targets in vec(user_key(), 1..4),
        restart in any::<bool>(),
    ) {
        let (mut bytes, _) = write(&all, options(1 << 20, Compression::None), 1 << 20);
        let len = open(&bytes, None).unwrap().properties().data_bytes as usize - TRAILER_BYTES;
        for (place, byte) in edits {
            // The tail and the restarts are few of many bytes.
            let at = if restart { len - 1 - place.index(len.min(24)) } else { place.index(len) };
            bytes[at] = byte;
        }
        seal_again(&mut bytes, len);
        let parsed = walked(&open(&bytes, None).unwrap(), true);
        for reader in UNPARSED.map(|open| open(&bytes).unwrap()) {
            for forward in [true, false] {
                let found = walked(&reader, forward);
                if let Ok(parsed) = &parsed {
                    prop_assert_eq!(found.as_ref().ok(), Some(parsed));
                }
                match found {
                    Ok(found) => prop_assert!(found.is_sorted_by(|a, b| a.0 < b.0)),
                    Err(error) => prop_assert!(error.is_corruption()),
                }
            }
            let mut iter = reader.iter(ReadMode::Cached);
            let keys = all.iter().map(|(key, _)| &*key.user);
            for user in targets.iter().map(|target| &**target).chain(keys) {
                let _ = reader.get(user, bloom_hash(user), SeqNo::MAX);
                let _ = iter.seek(Some(KeyRef::seek(user, SeqNo::MAX)));
                let _ = iter.seek_before(Some(KeyRef::seek(user, SeqNo::MAX)));
            }
        }
    }
}

#[test]
fn a_cursor_stops_at_an_entry_out_of_order_and_goes_on_after_it_after_a_seek() {
    let value = EntryKind::Value;
    let all: Entries = (0..40_u8).map(|n| entry(&[b'k', n], 5, value, &[n; 9])).collect();
    let (mut bytes, _) = write(&all, options(1 << 20, Compression::None), 1 << 20);
    let len = open(&bytes, None).unwrap().properties().data_bytes as usize - TRAILER_BYTES;
    let place = bytes.windows(9).position(|window| window == [20; 9]).unwrap();
    // The last byte of the key lies in front of the value. Entry 20 has the key of entry 3 from now on.
    bytes[place] = 3;
    seal_again(&mut bytes, len);
    for reader in UNPARSED.map(|open| open(&bytes).unwrap()) {
        let mut iter = reader.iter(ReadMode::Cached);
        iter.seek(None).unwrap();
        for expected in &all[..19] {
            assert_eq!(at(&iter).as_ref(), Some(expected));
            iter.next().unwrap();
        }
        let error = iter.next().unwrap_err();
        assert!(error.is_corruption() && !iter.valid(), "{error}");
        assert_eq!(error.damage().unwrap().offset, Some(0));
        iter.seek(Some(all[30].0.as_ref())).unwrap();
        for expected in &all[30..] {
            assert_eq!(at(&iter).as_ref(), Some(expected));
            iter.next().unwrap();
        }
        assert!(!iter.valid());
        iter.seek_before(None).unwrap();
        let error = (0..40).find_map(|_| iter.prev().err()).unwrap();
        assert!(error.is_corruption() && !iter.valid(), "{error}");
    }
}

#[test]
fn an_entry_that_is_left_out_ends_a_walk_where_it_is_missing() {
    let value = EntryKind::Value;
    let all: Entries = (1..41_u8).map(|n| entry(&[n], 5, value, &[n; 9])).collect();
    let (sound, _) = write(&all, options(1 << 20, Compression::None), 1 << 20);
    let len = open(&sound, None).unwrap().properties().data_bytes as usize - TRAILER_BYTES;
    // The number of entries is one less: the last one is left out.
    let mut bytes = sound.clone();
    bytes[len - 4] = 39;
    seal_again(&mut bytes, len);
    for reader in UNPARSED.map(|open| open(&bytes).unwrap()) {
        let mut iter = reader.iter(ReadMode::Cached);
        assert!(iter.seek_before(None).unwrap_err().is_corruption());
        iter.seek(Some(all[37].0.as_ref())).unwrap();
        assert!(iter.next().unwrap_err().is_corruption() && !iter.valid());
    }
    // The second group begins with its second entry. Five bytes lie in front of a key.
    let mut bytes = sound;
    let place = bytes.windows(9).position(|window| window == [18; 9]).unwrap() - 5;
    let restart = len - 16 - 2 * 4;
    bytes[restart..restart + 4].copy_from_slice(&(place as u32).to_le_bytes());
    seal_again(&mut bytes, len);
    for reader in UNPARSED.map(|open| open(&bytes).unwrap()) {
        let mut iter = reader.iter(ReadMode::Cached);
        iter.seek(None).unwrap();
        (1..15).for_each(|_| iter.next().unwrap());
        assert_eq!(at(&iter).as_ref(), Some(&all[14]));
        assert!(iter.next().unwrap_err().is_corruption() && !iter.valid());
        // Backwards, too.
        iter.seek(Some(all[20].0.as_ref())).unwrap();
        let error = (0..5).find_map(|_| iter.prev().err());
        assert!(error.unwrap().is_corruption() && !iter.valid());
    }
}
