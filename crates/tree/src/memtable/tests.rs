//! The memtable against an ordered list.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::batch::{SectionBuilder, SectionReader};
use crate::codec::checksum64;
use crate::iter::InternalIter;
use crate::types::{EntryKind, InternalKey, KeyRef};

fn table() -> Arc<Memtable> {
    Arc::new(Memtable::new(MemtableId(1), &Arc::new(SlabPool::new(0))))
}

/// Inserts an operation that lies at `lsn`.
pub(super) fn insert(
    table: &Memtable,
    seq: u64,
    lsn: u64,
    kind: EntryKind,
    key: &[u8],
    value: &[u8],
) {
    let mut section = SectionBuilder::default();
    section.push(kind, key, value);
    let op = SectionReader::new(section.bytes()).next_operation().unwrap().unwrap();
    let seq = SeqNo::new(seq).unwrap();
    let sums = section.sums()[0];
    let before = table.bytes();
    let taken = table.writer().insert(seq, lsn, sums, &section.lend().0, &op).unwrap();
    assert_eq!(table.bytes(), before + taken);
}

fn fill(keys: &[Vec<u8>]) -> (Arc<Memtable>, Vec<(InternalKey, Vec<u8>)>) {
    let table = table();
    let mut list = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let seq = SeqNo::new(n as u64 + 1).unwrap();
        let kind = if n % 4 == 3 { EntryKind::Tombstone } else { EntryKind::Value };
        let value = match n % 40 {
            3 => vec![],
            20 => vec![n as u8; COPIED_VALUE_BYTES_MAX + 1],
            _ => vec![n as u8; n % 50],
        };
        insert(&table, seq.get(), 100 + n as u64, kind, key, &value);
        list.push((KeyRef::new(key, Trailer::new(seq, kind)).to_owned(), value));
    }
    list.sort();
    (table, list)
}

fn entry(iter: &MemtableIter) -> Option<(InternalKey, Vec<u8>)> {
    iter.valid().then(|| (iter.key().to_owned(), iter.value().to_vec()))
}

/// Walks, seeks and gets on a memtable of these keys, inserted one by one.
fn check(keys: &[Vec<u8>], probes: &[(Vec<u8>, u64)]) -> Result<(), TestCaseError> {
    let (table, list) = fill(keys);
    let mut iter = table.iter();
    iter.seek(None).unwrap();
    for item in &list {
        prop_assert_eq!(entry(&iter), Some(item.clone()));
        iter.next().unwrap();
    }
    prop_assert!(!iter.valid());
    iter.seek_before(None).unwrap();
    for item in list.iter().rev() {
        prop_assert_eq!(entry(&iter), Some(item.clone()));
        iter.prev().unwrap();
    }
    prop_assert!(!iter.valid());
    for (key, seq) in probes {
        let target = KeyRef::seek(key, SeqNo::new(*seq).unwrap());
        let at = list.partition_point(|(k, _)| k.as_ref() < target);
        iter.seek(Some(target)).unwrap();
        prop_assert_eq!(entry(&iter), list.get(at).cloned());
        if iter.valid() {
            iter.prev().unwrap();
            prop_assert_eq!(entry(&iter), at.checked_sub(1).map(|i| list[i].clone()));
        }
        iter.seek_before(Some(target)).unwrap();
        prop_assert_eq!(entry(&iter), at.checked_sub(1).map(|i| list[i].clone()));
        if iter.valid() {
            iter.next().unwrap();
            prop_assert_eq!(entry(&iter), list.get(at).cloned());
        }
        let expected = list.get(at).filter(|(k, _)| *k.user == key[..]);
        let got = table.get(key, checksum64(key), SeqNo::new(*seq).unwrap());
        prop_assert_eq!(
            got.map(|(t, v)| (t, v.to_vec())),
            expected.map(|(k, v)| (k.trailer, v.clone()))
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn walks_and_seeks_agree_with_an_ordered_list(
        keys in prop::collection::vec(prop::collection::vec(0u8..3, 0..5), 1..300),
        probes in prop::collection::vec((prop::collection::vec(0u8..3, 0..5), 0u64..320), 20),
    ) {
        check(&keys, &probes)?;
    }

    #[test]
    fn keys_that_share_more_than_a_word_are_distinguished(
        tails in prop::collection::vec(0u16..2000, 1..1200),
        outside in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 0..20),
        probes in prop::collection::vec((0u16..2000, 0u64..1300), 20),
    ) {
        let key = |n: &u16| format!("a/long/prefix/{n:06}").into_bytes();
        let mut keys: Vec<Vec<u8>> = tails.iter().map(key).collect();
        keys.extend(outside);
        let probes: Vec<_> = probes.iter().map(|(n, seq)| (key(n), *seq)).collect();
        check(&keys, &probes)?;
    }
}

#[test]
fn keys_that_share_much_move_after_what_they_share_and_so_begin_the_next_memtable() {
    let table = table();
    for n in 0..2 * KEYS_BEFORE_LOOK {
        let key = format!("order/{:010}", n * 7919 % 100_000);
        insert(&table, n + 1, n, EntryKind::Value, key.as_bytes(), b"v");
        assert_eq!(table.rebuilt.get().is_some(), n + 1 >= KEYS_BEFORE_LOOK);
    }
    assert_eq!(table.iter_count(), 2 * KEYS_BEFORE_LOOK);
    let next = table.successor(MemtableId(2));
    assert_eq!(next.list().shared(), table.list().shared());
    assert!(!next.list().shared().is_empty());
    for n in 0..2 * KEYS_BEFORE_LOOK {
        insert(&next, n + 1, n, EntryKind::Value, format!("order/{n:010}").as_bytes(), b"v");
    }
    assert!(next.rebuilt.get().is_none());
}

impl Memtable {
    fn iter_count(&self) -> u64 {
        let mut iter = self.iter();
        iter.seek(None).unwrap();
        let mut count = 0;
        while iter.valid() {
            count += 1;
            iter.next().unwrap();
        }
        count
    }
}

#[test]
fn an_empty_memtable_has_no_entries_and_no_place_in_the_log() {
    let table = table();
    assert!(table.is_empty() && table.first_lsn().is_none());
    assert!(table.get(b"k", 7, SeqNo::MAX).is_none());
    let mut iter = table.iter();
    iter.seek(None).unwrap();
    assert!(!iter.valid());
    iter.seek_before(None).unwrap();
    assert!(!iter.valid());
}

#[test]
fn an_entry_that_is_not_newer_is_refused() {
    let table = table();
    insert(&table, 7, 0, EntryKind::Value, b"k", b"v");
    let section = SectionBytes::Lent(b"\x01\x01k\x01w");
    let op = SectionReader::new(&section).next_operation().unwrap().unwrap();
    let sums = OperationChecksum::new(EntryKind::Value, b"k", b"w");
    let seq = SeqNo::new(7).unwrap();
    table.writer().insert(seq, 1, sums, &section, &op).unwrap_err();
    assert_eq!(table.entry_count(), 1);
    assert_eq!(&*table.get(b"k", checksum64(b"k"), SeqNo::MAX).unwrap().1, b"v");
}

#[test]
fn values_outlive_the_memtable_and_long_ones_are_not_copied() {
    let table = table();
    let long = vec![9; COPIED_VALUE_BYTES_MAX + 1];
    insert(&table, 1, 0, EntryKind::Value, b"short", &[5; 600]);
    insert(&table, 2, 0, EntryKind::Value, b"long", &long);
    let get = |key: &[u8]| table.get(key, checksum64(key), SeqNo::MAX).unwrap().1;
    let short = get(b"short");
    let first = get(b"long");
    let second = get(b"long");
    assert_eq!(first.as_ptr(), second.as_ptr());
    drop(table);
    assert_eq!((&*short, &*first), (&[5; 600][..], &long[..]));
}

#[test]
fn slabs_go_back_when_the_last_cursor_ends() {
    let pool = Arc::new(SlabPool::new(64 << 20));
    let table = Arc::new(Memtable::new(MemtableId(1), &pool));
    for n in 0..40_000_u64 {
        insert(&table, n + 1, n, EntryKind::Value, &n.to_be_bytes(), &[5; 100]);
    }
    let mut iter = table.iter();
    iter.seek(None).unwrap();
    drop(table);
    assert_eq!(pool.idle_bytes(), 0, "the cursor reads them");
    assert_eq!(iter.entry().0.value, [5; 100]);
    drop(iter);
    assert!(pool.idle_bytes() >= 4 << 20, "{}", pool.idle_bytes());
}

fn fill_and_drop(pool: &Arc<SlabPool>) {
    let table = Memtable::new(MemtableId(1), pool);
    for n in 0..40_000_u64 {
        insert(&table, n + 1, n, EntryKind::Value, &n.to_be_bytes(), &[5; 100]);
    }
}

#[test]
fn slabs_that_no_memtable_takes_for_five_seconds_are_freed() {
    let seconds = Duration::from_secs;
    let pool = Arc::new(SlabPool::new(64 << 20));
    assert_eq!(pool.give_up_unused(seconds(1)), None, "there is none");
    fill_and_drop(&pool);
    let idle = pool.idle_bytes();
    assert_eq!(pool.give_up_unused(seconds(10)), Some(seconds(5)));
    assert_eq!(pool.give_up_unused(seconds(14)), Some(seconds(1)));
    fill_and_drop(&pool);
    assert_eq!(pool.give_up_unused(seconds(15)), Some(seconds(5)), "they were taken meanwhile");
    assert_eq!(pool.idle_bytes(), idle);
    assert_eq!(pool.give_up_unused(seconds(20)), None);
    assert_eq!(pool.idle_bytes(), 0);
}

#[test]
fn a_long_value_of_a_section_that_is_lent_gets_memory_of_its_own() {
    let mut section = SectionBuilder::default();
    section.push(EntryKind::Value, b"short", &[5; 600]);
    let long = vec![9; COPIED_VALUE_BYTES_MAX + 1];
    section.push(EntryKind::Value, b"long", &long);
    let table = table();
    let (bytes, sums, _) = section.lend();
    let mut operations = SectionReader::new(&bytes);
    for (n, sums) in sums.iter().enumerate() {
        let operation = operations.next_operation().unwrap().unwrap();
        let seq = SeqNo::new(n as u64 + 1).unwrap();
        let taken = table.writer().insert(seq, 0, *sums, &bytes, &operation).unwrap();
        assert!(taken >= operation.value.len() as u64);
    }
    drop(section);
    let values = [&b"short"[..], b"long", b"long"]
        .map(|key| table.get(key, checksum64(key), SeqNo::MAX).unwrap().1);
    assert!(*values[0] == [5; 600] && *values[1] == long);
    assert_eq!(values[1].as_ptr(), values[2].as_ptr(), "readers share it");
}

#[test]
fn readers_meet_writers() {
    const KEYS: u64 = 5_000;
    const ENTRIES: u64 = 20_000;
    let table = table();
    let writer = {
        let table = table.clone();
        move || {
            for n in 0..ENTRIES {
                let key = (n * 7919 % KEYS).to_be_bytes();
                insert(&table, n + 1, n, EntryKind::Value, &key, &n.to_be_bytes());
            }
        }
    };
    let in_order = || {
        let mut iter = table.iter();
        iter.seek(None).unwrap();
        let mut last: Option<InternalKey> = None;
        while iter.valid() {
            let key = iter.key().to_owned();
            assert_eq!(iter.value(), (key.trailer.seq().get() - 1).to_be_bytes());
            assert!(last.is_none_or(|last| last < key));
            last = Some(key);
            iter.next().unwrap();
        }
        while last.is_some() {
            iter.seek_before(Some(last.as_ref().unwrap().as_ref())).unwrap();
            let before = iter.valid().then(|| iter.key().to_owned());
            assert!(before.is_none() || before < last);
            last = before.filter(|key| key.trailer.seq().get() % 64 != 0);
        }
    };
    let what_was_applied = || {
        let seq = table.last_seq();
        for n in seq.get().saturating_sub(KEYS)..seq.get() {
            let key = (n * 7919 % KEYS).to_be_bytes();
            let (trailer, value) = table.get(&key, checksum64(&key), seq).unwrap();
            assert_eq!((trailer.seq().get(), &*value), (n + 1, &n.to_be_bytes()[..]));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(writer);
        for _ in 0..2 {
            scope.spawn(|| {
                while table.entry_count() < ENTRIES {
                    in_order();
                    what_was_applied();
                }
            });
        }
    });
    in_order();
    what_was_applied();
    assert_eq!(table.last_seq().get(), ENTRIES);
    assert_eq!(table.first_lsn(), Some(0));
}

/// A memtable that holds `key` of sequence 5 with changed bytes.
fn damaged(key: &[u8], value: &[u8], damage: impl Fn(&mut Vec<u8>)) -> Arc<Memtable> {
    let table = table();
    insert(&table, 1, 0, EntryKind::Value, b"before", b"1");
    let mut section = SectionBuilder::default();
    section.push(EntryKind::Value, key, value);
    let mut bytes = section.bytes().to_vec();
    damage(&mut bytes);
    let op = SectionReader::new(&bytes).next_operation().unwrap().unwrap();
    let seq = SeqNo::new(5).unwrap();
    table.writer().insert(seq, 1, section.sums()[0], &SectionBytes::Lent(&bytes), &op).unwrap();
    insert(&table, 9, 2, EntryKind::Value, b"behind", b"9");
    table
}

#[test]
fn each_bit_of_an_entry_is_seen_and_undone() {
    let key = b"key";
    let value = b"some value";
    let key_at = 2..2 + key.len();
    let value_at = key_at.end + 1..key_at.end + 1 + value.len();
    for bit in key_at.chain(value_at).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
        let table = damaged(key, value, |bytes| bytes[bit.0] ^= 1 << bit.1);
        let mut iter = table.checked_iter();
        iter.seek(None).and_then(|()| walk_on(&mut iter)).unwrap_err();
        let found = table.damaged();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].is_key_sound, bit.0 >= 2 + key.len());
        let whole = found[0].with_one_bit_undone().unwrap();
        assert_eq!((&whole.key[..], &whole.value[..]), (&key[..], &value[..]));
        let mended = table.mended(&[whole]).unwrap();
        assert!(mended.damaged().is_empty());
        assert_eq!((mended.entry_count(), mended.iter_count()), (3, 3));
        assert_eq!(&*mended.get(key, checksum64(key), SeqNo::MAX).unwrap().1, value);
        assert_eq!((mended.last_seq(), mended.first_lsn()), (table.last_seq(), table.first_lsn()));
    }
}

/// Walks to the end.
fn walk_on(iter: &mut MemtableIter) -> crate::error::Result<()> {
    while iter.valid() {
        iter.next()?;
    }
    Ok(())
}

/// This test cannot make a link that skips entries; one entry too many in the count looks the same
/// to a walk.
#[test]
fn a_checked_walk_that_ends_too_soon_is_corruption() {
    let table = damaged(b"key", b"value", |_| {});
    let mut whole = table.checked_iter();
    whole.seek(None).unwrap();
    walk_on(&mut whole).unwrap();
    table.entry_count.store(4, Ordering::Relaxed);
    let mut short = table.checked_iter();
    short.seek(None).unwrap();
    let error = walk_on(&mut short).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("met 3"), "{error}");
    // In the middle, a walk does not know the number of entries.
    short.seek(Some(KeyRef::seek(b"key", SeqNo::MAX))).unwrap();
    walk_on(&mut short).unwrap();
}

#[test]
fn two_bits_are_not_undone_and_poison_has_the_true_key_or_none() {
    let value_at = 2 + 3 + 1;
    let table = damaged(b"key", b"value", |bytes| bytes[value_at] ^= 0b11);
    let found = &table.damaged()[0];
    assert_eq!(found.with_one_bit_undone(), None);
    let poison = found.poison(SeqNo::new(3).unwrap()).unwrap();
    let trailer = Trailer::new(SeqNo::new(4).unwrap(), EntryKind::Poison);
    assert_eq!((&poison.key[..], poison.trailer), (&b"key"[..], trailer));
    let table = damaged(b"key", b"value", |bytes| bytes[2] ^= 0b11);
    assert_eq!(table.damaged()[0].poison(SeqNo::ZERO), None);
}
