//! The parts of spans against a list of spans that is searched one by one.

use proptest::prelude::*;

use super::*;

fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

fn key(n: u8) -> Vec<u8> {
    // Some begin with others, and some end in 0xff.
    match n % 8 {
        0 => Vec::new(),
        1 => vec![0],
        2 => b"a".to_vec(),
        3 => b"a\0".to_vec(),
        4 => b"ab".to_vec(),
        5 => vec![b'b', 0xff],
        6 => vec![b'b', 0xff, 0xff],
        _ => vec![0xff, 0xff],
    }
}

fn span(start: u8, end: Option<u8>, n: u64) -> Option<DeletedRange> {
    let start = key(start);
    let end = end.map(key);
    let is_empty = end.as_ref().is_some_and(|end| *end <= start);
    (!is_empty).then(|| DeletedRange { start: start.into(), end: end.map(Into::into), seq: seq(n) })
}

fn any_spans() -> impl Strategy<Value = Vec<DeletedRange>> {
    let one = (0u8..8, prop::option::of(0u8..8), 1u64..9);
    prop::collection::vec(one.prop_filter_map("it is empty", |(a, b, n)| span(a, b, n)), 0..12)
}

fn bound(kind: u8, n: u8) -> Bound<Vec<u8>> {
    match kind {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(n)),
        _ => Bound::Excluded(key(n)),
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// The numbers of the spans over a key, ascending.
fn over(all: &[DeletedRange], key: &[u8]) -> Vec<SeqNo> {
    let mut seqs: Vec<_> =
        all.iter().filter(|span| span.contains(key)).map(|span| span.seq).collect();
    seqs.sort_unstable();
    seqs.dedup();
    seqs
}

/// Every key at which something may change, and one between any two of them.
fn keys() -> impl Iterator<Item = Vec<u8>> {
    (0..8).flat_map(|n| [key(n), [&key(n)[..], &[0, 7]].concat()]).filter(|key| !key.is_empty())
}

/// These, and the empty key: a span may hold no other one.
fn all_keys() -> impl Iterator<Item = Vec<u8>> {
    keys().chain([Vec::new()])
}

proptest! {
    #[test]
    fn parts_say_what_the_list_says(all in any_spans(), more in any_spans(), at in 0u64..10) {
        let spans = DeletedRanges::of(&all);
        let at = seq(at);
        for key in keys() {
            let seqs = over(&all, &key);
            prop_assert_eq!(spans.at(&key, at), newest_at(&seqs, at));
            prop_assert_eq!(spans.above(&key, at), oldest_above(&seqs, at));
            let part = SpanLayers::of([spans.clone(), DeletedRanges::of(&more)].into_iter()).part_at(&key, at);
            prop_assert!(part.contains(&key));
            let both = [&all[..], &more].concat();
            for other in keys().filter(|other| part.contains(other)) {
                prop_assert_eq!(part.seq, newest_at(&over(&both, &other), at));
            }
        }
        let newest = all.iter().map(|span| span.seq).max();
        prop_assert_eq!(spans.newest(), newest.unwrap_or_default());
        prop_assert_eq!(spans.is_empty(), all.is_empty());
        // Equal sets of spans are equal, however they came about.
        prop_assert_eq!(&DeletedRanges::of(&spans.list()), &spans);
        let joined = spans.and(&DeletedRanges::of(&more));
        prop_assert_eq!(&joined, &DeletedRanges::of(&[&all[..], &more].concat()));
        prop_assert_eq!(joined.without(&joined), Some(DeletedRanges::default()));
    }

    #[test]
    fn what_is_removed_was_there(all in any_spans(), gone in any_spans()) {
        let spans = DeletedRanges::of(&all);
        let is_there = all_keys().all(|key| {
            let seqs = over(&all, &key);
            over(&gone, &key).iter().all(|seq| seqs.contains(seq))
        });
        let rest = spans.without(&DeletedRanges::of(&gone));
        prop_assert_eq!(rest.is_some(), is_there);
        for (rest, key) in rest.iter().flat_map(|rest| all_keys().map(move |key| (rest, key))) {
            let left = over(&all, &key).iter().filter(|seq| !over(&gone, &key).contains(seq)).count();
            prop_assert_eq!(over(&rest.list(), &key).len(), left);
        }
    }

    #[test]
    fn ranges_of_keys_are_answered_key_by_key(
        all in any_spans(),
        (first, last) in (1u8..8, 1u8..8),
        (lower, upper) in (0u8..3, 0u8..3),
        at in 0u64..10,
    ) {
        let spans = DeletedRanges::of(&all);
        let at = seq(at);
        let bounds = (bound(lower, first), bound(upper, last));
        let newest = spans.newest_within(borrowed(&bounds.0), borrowed(&bounds.1));
        for key in keys().filter(|key| std::ops::RangeBounds::contains(&bounds, key)) {
            prop_assert!(over(&all, &key).last().is_none_or(|seq| *seq <= newest));
        }
        let first = key(first.min(last));
        let last = key(last.max(1));
        prop_assume!(first <= last);
        let inside: Vec<_> = keys().filter(|key| *key >= first && *key <= last).collect();
        let inside: Vec<_> = inside.iter().map(|key| over(&all, key)).collect();
        let mut worst = Some(SeqNo::ZERO);
        for seqs in &inside {
            worst = worst.and_then(|worst| Some(worst.max(oldest_above(seqs, at)?)));
        }
        prop_assert_eq!(spans.above_all(&first, &last, at), worst);
        let hidden = inside.iter().all(|seqs| newest_at(seqs, seq(6)) > at);
        prop_assert_eq!(spans.hide_all(&first, &last, seq(6), at), hidden);
    }

    #[test]
    fn bounds_become_the_span_of_their_keys(
        (lower, upper) in (0u8..3, 0u8..3),
        (first, last) in (0u8..8, 0u8..8),
        other in (0u8..3, 0u8..8),
    ) {
        let bounds = (bound(lower, first), bound(upper, last));
        let span = DeletedRange::within(&bounds, seq(1));
        for key in keys() {
            let is_inside = std::ops::RangeBounds::contains(&bounds, &key);
            prop_assert_eq!(span.as_ref().is_some_and(|span| span.contains(&key)), is_inside);
        }
        let start = bound(other.0, other.1);
        let end = Bound::Unbounded;
        let in_both = keys().any(|key| {
            std::ops::RangeBounds::contains(&bounds, &key)
                && std::ops::RangeBounds::contains(&(start.clone(), end.clone()), &key)
        });
        if in_both {
            prop_assert!(span.unwrap().meets(borrowed(&start), borrowed(&end)));
        }
    }
}

#[test]
fn spans_that_no_reader_distinguishes_are_one() {
    fn check(snapshots: &[u64], expected: &[Option<DeletedRange>]) {
        let all = [span(2, Some(6), 10), span(2, Some(4), 20), span(4, None, 30)];
        let all: Vec<_> = all.into_iter().flatten().collect();
        let snapshots: Vec<_> = snapshots.iter().map(|n| seq(*n)).collect();
        let kept = DeletedRanges::of(&all).distinguished_by(&snapshots).list();
        assert!(kept.iter().eq(expected.iter().flatten()), "{snapshots:?}: {kept:?}");
    }
    let newest = [span(2, Some(4), 20), span(4, None, 30)];
    check(&[], &newest);
    check(&[9, 30], &newest);
    check(&[19], &[span(2, Some(6), 10), span(2, Some(4), 20), span(4, None, 30)]);
    check(&[25], &[span(4, Some(6), 10), span(2, Some(4), 20), span(4, None, 30)]);
}

/// Each of many spans that overlap is noted at each part that it reaches.
#[test]
fn truncations_of_a_growing_key_keep_the_newest_in_each_part() {
    let spans: Vec<_> = (1..=200u64)
        .map(|n| DeletedRange {
            start: Arc::default(),
            end: Some(format!("{n:04}").into_bytes().into()),
            seq: seq(n),
        })
        .collect();
    let all = DeletedRanges::of(&spans);
    assert_eq!((all.part_count(), all.seq_count()), (201, 200 * 201 / 2));
    assert_eq!(all.distinguished_by(&[]).seq_count(), 1);
    assert_eq!(all.distinguished_by(&[]).list(), spans[199..]);
    assert_eq!(all.at(b"0100x", seq(150)), seq(150));
}

fn longer(beginning: &str, key: &[u8]) -> Vec<u8> {
    [beginning.as_bytes(), key].concat()
}

proptest! {
    /// Words are those after the bytes that all starts share, and keys without these bytes lie before or after all.
    #[test]
    fn a_beginning_that_all_starts_share_changes_no_answer(
        spans in any_spans(),
        beginning in prop::sample::select(vec!["a", "longer than a word", "a\0\0\0\0\0\0\0\0"]),
    ) {
        let spans: Vec<DeletedRange> = spans
            .iter()
            .map(|DeletedRange { start, end, seq }| {
                let end = end.as_ref().map(|end| longer(beginning, end).into());
                DeletedRange { start: longer(beginning, start).into(), end, seq: *seq }
            })
            .collect();
        let ranges = DeletedRanges::of(&spans);
        let within = keys().map(|key| longer(beginning, &key));
        let around = all_keys().chain((1..=beginning.len()).map(|len| beginning.as_bytes()[..len].to_vec()));
        for key in within.chain(around) {
            for at in 0..10 {
                let seen = over(&spans, &key).into_iter().rfind(|number| *number <= seq(at));
                prop_assert_eq!(ranges.at(&key, seq(at)), seen.unwrap_or_default(), "{:?} at {}", &key, at);
            }
        }
    }
}
