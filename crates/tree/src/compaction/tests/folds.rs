//! The rules over operands: every snapshot reads the same, and of each stripe one entry is left.

use proptest::prelude::*;

use super::*;
use crate::types::KeyRef;

/// An entry of a key: its number, its kind, and the numbers of the operations that make up its bytes.
type Entry = (u64, EntryKind, Vec<u64>);

/// The operations that a reader at a number sees, of versions the newest first.
fn read(entries: &[Entry], at: u64) -> Option<Vec<u64>> {
    let mut operands: Vec<&[u64]> = Vec::new();
    for (_, kind, bytes) in entries.iter().filter(|entry| entry.0 <= at) {
        if *kind != EntryKind::Tombstone {
            operands.push(bytes);
        }
        if *kind != EntryKind::Operand {
            break;
        }
    }
    operands.reverse();
    (!operands.is_empty()).then(|| operands.concat())
}

fn entry(n: u64, kind: u8) -> Entry {
    match kind {
        0 => (n, EntryKind::Tombstone, Vec::new()),
        1 => (n, EntryKind::Value, vec![n]),
        _ => (n, EntryKind::Operand, vec![n]),
    }
}

fn survive(entries: &[Entry], list: &[SeqNo], has_readers: bool) -> Vec<Entry> {
    let mut rules = DropRules::new(list);
    rules.is_without_readers = !has_readers;
    let mut kept: Vec<Entry> = Vec::new();
    for (number, (n, kind, bytes)) in entries.iter().enumerate() {
        let key = KeyRef::new(b"k", Trailer::new(seq(*n), *kind));
        match rules.keep(key, number > 0, || true) {
            DropDecision::Keep => kept.push((*n, *kind, bytes.clone())),
            DropDecision::Drop => {}
            DropDecision::Fold => {
                let above = kept.last_mut().expect("an operand is above it");
                assert_eq!(above.1, EntryKind::Operand);
                if *kind != EntryKind::Operand {
                    above.1 = EntryKind::Value;
                }
                if *kind != EntryKind::Tombstone {
                    above.2.splice(0..0, bytes.iter().copied());
                }
            }
            decision => panic!("{decision:?}"),
        }
    }
    kept
}

proptest! {
    #[test]
    fn folds_are_what_snapshots_see_and_one_of_each_stripe(
        versions in proptest::collection::btree_map(1..30u64, 0..5u8, 1..14),
        snapshots in proptest::collection::btree_set(0..30u64, 1..5),
    ) {
        let entries: Vec<Entry> = versions.iter().rev().map(|(n, kind)| entry(*n, *kind)).collect();
        let list: Vec<_> = snapshots.iter().copied().map(seq).collect();
        let kept = survive(&entries, &list, true);
        let visible = *snapshots.last().unwrap();
        for at in snapshots.iter().copied().chain(visible..31) {
            prop_assert_eq!(read(&kept, at), read(&entries, at), "at {}", at);
        }
        let seen = kept.iter().filter(|entry| entry.0 <= visible).count();
        prop_assert!(seen <= snapshots.len());
        // An open, at which no one reads: only the newest state counts, and no operands lie above one another.
        let kept = survive(&entries, &[seq(0)], false);
        prop_assert_eq!(read(&kept, 31), read(&entries, 31));
        prop_assert!(kept.windows(2).all(|pair| pair.iter().any(|it| it.1 != EntryKind::Operand)));
    }
}
