//! The memtable against an ordered list.

use proptest::prelude::*;

use super::*;
use crate::batch::{SectionBuilder, SectionReader};
use crate::codec::checksum64;
use crate::iter::InternalIter;
use crate::types::{EntryKind, InternalKey};

fn fill(keys: &[Vec<u8>]) -> (Arc<Memtable>, Vec<(InternalKey, Vec<u8>)>) {
    let table = Arc::new(Memtable::new(MemtableId(1)));
    let mut list = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let seq = SeqNo::new(n as u64 + 1).unwrap();
        let kind = if n % 4 == 3 { EntryKind::Tombstone } else { EntryKind::Value };
        let value = if n % 4 == 3 { vec![] } else { vec![n as u8; n % 50] };
        let mut section = SectionBuilder::default();
        section.push(kind, key, &value);
        let op = SectionReader::new(section.bytes()).next_operation().unwrap().unwrap();
        table.insert(seq, 100 + n as u64, checksum64(key), &section.bytes().into(), &op);
        list.push((KeyRef::new(key, Trailer::new(seq, kind)).to_owned(), value));
    }
    list.sort();
    (table, list)
}

fn entry(iter: &MemtableIter) -> Option<(InternalKey, Vec<u8>)> {
    iter.valid().then(|| (iter.key().to_owned(), iter.value().to_vec()))
}

proptest! {
    #[test]
    fn walks_and_seeks_agree_with_an_ordered_list(
        keys in prop::collection::vec(prop::collection::vec(0u8..3, 1..5), 1..300),
        probes in prop::collection::vec((prop::collection::vec(0u8..3, 1..5), 0u64..320), 20),
    ) {
        let (table, list) = fill(&keys);
        let mut iter = table.iter();
        iter.seek_to_first().unwrap();
        for item in &list {
            prop_assert_eq!(entry(&iter), Some(item.clone()));
            iter.next().unwrap();
        }
        prop_assert!(!iter.valid());
        iter.seek_to_last().unwrap();
        for item in list.iter().rev() {
            prop_assert_eq!(entry(&iter), Some(item.clone()));
            iter.prev().unwrap();
        }
        prop_assert!(!iter.valid());
        for (key, seq) in &probes {
            let target = KeyRef::seek(key, SeqNo::new(*seq).unwrap());
            let at = list.partition_point(|(k, _)| k.as_ref() < target);
            iter.seek(target).unwrap();
            prop_assert_eq!(entry(&iter), list.get(at).cloned());
            if iter.valid() {
                iter.prev().unwrap();
                prop_assert_eq!(entry(&iter), at.checked_sub(1).map(|i| list[i].clone()));
            }
            iter.seek_before(target).unwrap();
            prop_assert_eq!(entry(&iter), at.checked_sub(1).map(|i| list[i].clone()));
            if iter.valid() {
                iter.next().unwrap();
                prop_assert_eq!(entry(&iter), list.get(at).cloned());
            }
            let expected = list.get(at).filter(|(k, _)| *k.user == key[..]);
            let got = table.get(key, checksum64(key), SeqNo::new(*seq).unwrap());
            prop_assert_eq!(got.map(|(t, v)| (t, v.to_vec())),
                expected.map(|(k, v)| (k.trailer, v.clone())));
        }
    }
}

#[test]
fn an_empty_memtable_has_no_entries_and_no_place_in_the_log() {
    let table = Arc::new(Memtable::new(MemtableId(1)));
    assert!(table.is_empty() && table.first_lsn().is_none());
    assert!(table.get(b"k", 7, SeqNo::MAX).is_none());
    let mut iter = table.iter();
    iter.seek_to_first().unwrap();
    assert!(!iter.valid());
    iter.seek_to_last().unwrap();
    assert!(!iter.valid());
}

#[test]
fn readers_meet_writers() {
    let table = Arc::new(Memtable::new(MemtableId(1)));
    let writer = {
        let table = table.clone();
        move || {
            for n in 0..20_000u64 {
                let mut section = SectionBuilder::default();
                section.push(EntryKind::Value, &(n * 7919 % 20_000).to_be_bytes(), b"v");
                let op = SectionReader::new(section.bytes()).next_operation().unwrap().unwrap();
                let seq = SeqNo::new(n + 1).unwrap();
                table.insert(seq, n, n, &section.bytes().into(), &op);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(writer);
        for _ in 0..2 {
            scope.spawn(|| {
                while table.entry_count() < 20_000 {
                    let mut iter = table.iter();
                    iter.seek_to_first().unwrap();
                    let mut last: Option<InternalKey> = None;
                    while iter.valid() {
                        let key = iter.key().to_owned();
                        assert!(last.is_none_or(|last| last < key));
                        last = Some(key);
                        iter.next().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(table.last_seq().get(), 20_000);
    assert_eq!(table.first_lsn(), Some(0));
}
