//! The entries that a reader sees, against a model; the number of moves over dead entries.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::MergeIter;
use super::super::merge::tests::{Calls, Counted, ListIter, key};
use super::*;
use proptest::prelude::*;

type Versions = Vec<(u8, u64, bool)>;

fn visible_at(versions: &Versions, seq: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut newest = BTreeMap::new();
    for (k, s, put) in versions.iter().filter(|(_, s, _)| *s <= seq) {
        let slot = newest.entry(*k).or_insert((0, false));
        if *s > slot.0 {
            *slot = (*s, *put);
        }
    }
    let live = newest.into_iter().filter(|(_, (_, put))| *put);
    live.map(|(k, (s, _))| (vec![k], vec![s as u8])).collect()
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        2 => Just(Bound::Unbounded),
        1 => (0u8..26).prop_map(|k| Bound::Included(vec![k])),
        1 => (0u8..26).prop_map(|k| Bound::Excluded(vec![k])),
    ]
}

/// A range of one key next to thousands of deleted ones took as long as walking all of them.
#[test]
fn a_bounded_walk_passes_over_no_tombstone_after_its_bounds() {
    let mut entries = vec![(key(b"m", 1, EntryKind::Value), vec![])];
    for n in 0..1000u64 {
        let number = n.to_be_bytes();
        for prefix in [b"a", b"z"] {
            let user = [&prefix[..], &number].concat();
            entries.push((key(&user, n + 2, EntryKind::Tombstone), vec![]));
        }
    }
    let calls = Rc::new(Calls::default());
    let inner = Counted { list: ListIter::new(entries), calls: Rc::clone(&calls) };
    let lower = Bound::Included(b"b".to_vec());
    let upper = Bound::Excluded(b"y".to_vec());
    let mut iter = VisibleIter::new(inner, SeqNo::MAX, lower, upper);
    iter.seek_to_first().unwrap();
    assert_eq!(iter.key(), b"m");
    iter.next().unwrap();
    assert!(!iter.valid());
    iter.seek_to_last().unwrap();
    assert_eq!(iter.key(), b"m");
    iter.prev().unwrap();
    assert!(!iter.valid());
    iter.seek(b"n").unwrap();
    assert!(!iter.valid());
    iter.seek_before(b"m").unwrap();
    assert!(!iter.valid());
    let steps = calls.steps.get();
    assert!(steps < 10, "{steps} steps");
}

proptest! {
    // Many cases: few of them come to the end of a run in a rare way.
    #![proptest_config(ProptestConfig::with_cases(8000))]

    #[test]
    fn any_walk_sees_one_version_per_key(
        keys in prop::collection::vec((0u8..24, prop::bool::weighted(0.8)), 1..60),
        seq in 0u64..90,
        list_of in prop::collection::vec(0..12_usize, 120),
        moves in prop::collection::vec((0u8..20, 0u8..26), 1..120),
        (lower, mut upper) in (bound(), bound()),
    ) {
        let versions: Versions =
            keys.iter().enumerate().map(|(n, (k, put))| (*k, n as u64 + 1, *put)).collect();
        let entries = versions.iter().map(|(k, s, put)| {
            let kind = if *put { EntryKind::Value } else { EntryKind::Tombstone };
            (key(&[*k], *s, kind), vec![*s as u8])
        });
        let mut list = visible_at(&versions, seq);
        list.retain(|(key, _)| is_after_lower(&lower, key) && is_before_upper(&upper, key));
        // Most entries of nearby keys are in one source, so that the walk has runs.
        let mut lists = [const { Vec::new() }; 3];
        for (entry, list) in entries.zip(list_of) {
            let list = if list < 3 { list } else { usize::from(entry.0.user[0] / 8) };
            lists[list].push(entry);
        }
        let inner = MergeIter::new(lists.map(ListIter::new).into());
        let seq = SeqNo::new(seq).unwrap();
        let mut iter = VisibleIter::new(inner, seq, lower, upper.clone());
        let mut at: Option<usize> = None;
        for (what, k) in moves {
            let here = at.map(|at| &list[at].0[..]);
            let narrows = (14..18).contains(&what);
            if narrows && is_before_upper(&upper, &[k]) && here.is_some_and(|key| key < &[k][..]) {
                iter.set_upper_excluded(&[k]);
                list.retain(|(key, _)| key[..] < [k][..]);
                upper = Bound::Excluded(vec![k]);
                continue;
            }
            let below = list.partition_point(|(key, _)| key[..] < [k][..]);
            at = match what {
                0 => { iter.seek_to_first().unwrap(); Some(0) }
                1 => { iter.seek_to_last().unwrap(); list.len().checked_sub(1) }
                2 => { iter.seek(&[k]).unwrap(); Some(below) }
                3 => { iter.seek_before(&[k]).unwrap(); below.checked_sub(1) }
                _ if at.is_none() => None,
                4 | 5 => { iter.prev().unwrap(); at.and_then(|at| at.checked_sub(1)) }
                _ => { iter.next().unwrap(); at.map(|at| at + 1) }
            }.filter(|at| *at < list.len());
            prop_assert_eq!(iter.valid(), at.is_some());
            if let Some(at) = at {
                prop_assert_eq!(iter.key(), &list[at].0[..]);
                prop_assert_eq!(iter.value(), &list[at].1[..]);
            }
        }
    }
}
