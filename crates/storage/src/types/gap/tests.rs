//! Gaps in every form, compared with the keys that they contain.

use super::*;

fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

fn gap(from: &str, below: u64, to: &str, to_included: bool, through: u64) -> Gap {
    Gap {
        from: from.as_bytes().into(),
        from_below: seq(below),
        to: to.as_bytes().into(),
        to_included,
        through: seq(through),
        closed_at: None,
    }
}

#[track_caller]
fn check(gap: &Gap, key: &str, at: u64, found: Option<u64>, expected: InGap) {
    assert_eq!(gap.effect_on(key.as_bytes(), seq(at), found.map(seq)), expected, "{key} at {at}");
}

#[test]
fn keys_between_are_answered_by_newer_entries_alone() {
    let gap = gap("b", 0, "d", false, 10);
    for key in ["a", "b", "d", "e"] {
        check(&gap, key, 20, None, InGap::Unaffected);
    }
    check(&gap, "c", 20, None, InGap::Unknown);
    check(&gap, "c", 20, Some(3), InGap::Unknown);
    check(&gap, "c", 20, Some(11), InGap::Unaffected);
    // The snapshot sees the sound one alone: a lost one that it would see is not newer.
    check(&gap, "c", 5, Some(5), InGap::Unaffected);
    check(&gap, "c", 5, Some(4), InGap::Unknown);
}

#[test]
fn of_the_first_key_older_versions_may_be_lost_and_of_the_last_all() {
    let gap = gap("b", 8, "d", true, 10);
    check(&gap, "b", 20, Some(8), InGap::Unaffected);
    check(&gap, "b", 7, Some(3), InGap::Unknown);
    check(&gap, "d", 20, Some(7), InGap::Unknown);
    check(&gap, "d", 20, Some(10), InGap::Unaffected);
}

#[test]
fn a_closed_gap_hides_what_is_older_and_stays_open_for_snapshots_before() {
    let gap = Gap { closed_at: Some(seq(15)), ..gap("b", 0, "d", false, 10) };
    check(&gap, "c", 20, Some(3), InGap::Hidden);
    check(&gap, "c", 15, None, InGap::Hidden);
    check(&gap, "c", 14, None, InGap::Unknown);
    check(&gap, "c", 20, Some(12), InGap::Unaffected);
}

#[test]
fn a_part_that_is_taken_out_leaves_both_sides() {
    let gap = gap("b", 4, "f", true, 10);
    let bounds = (Bound::Included(&b"c"[..]), Bound::Excluded(&b"e"[..]));
    let (within, rest) = gap.split(bounds).unwrap();
    let all = [&rest[0], &within, &rest[1]];
    for key in ["a", "b", "c", "d", "e", "f", "g"] {
        for at in [3, 20] {
            let effect_on_read = |gap: &Gap| gap.effect_on(key.as_bytes(), seq(at), None);
            let parts = all.iter().filter(|part| effect_on_read(part) == InGap::Unknown).count();
            assert_eq!(parts, usize::from(effect_on_read(&gap) == InGap::Unknown), "{key} at {at}");
        }
    }
    assert_eq!(within.effect_on(b"c", seq(20), None), InGap::Unknown);
    assert_eq!(within.effect_on(b"e", seq(20), None), InGap::Unaffected);
    assert!(gap.split((Bound::Excluded(b"f"), Bound::Unbounded)).is_none());
}

#[test]
fn walks_are_refused_where_they_pass_a_gap() {
    fn bound(text: &str) -> Bound<&[u8]> {
        match text.split_at(1) {
            ("[", key) => Bound::Included(key.as_bytes()),
            ("(", key) => Bound::Excluded(key.as_bytes()),
            _ => Bound::Unbounded,
        }
    }
    let check = |gap: &Gap, lower, upper, at, expected| {
        let passed = gap.is_passed(bound(lower), bound(upper), seq(at));
        assert_eq!(passed, expected, "{lower} {upper} at {at}");
    };
    let it = gap("b", 0, "d", false, 10);
    check(&it, "-", "-", 20, true);
    check(&it, "[a", "[b", 20, false);
    check(&it, "[a", "[bb", 20, true);
    check(&it, "[d", "-", 20, false);
    check(&it, "(c", "(d", 20, true);
    let it = gap("b", 8, "d", true, 10);
    check(&it, "[a", "[b", 8, false);
    check(&it, "[a", "[b", 7, true);
    check(&it, "[a", "(b", 7, false);
    check(&it, "[d", "-", 20, true);
    check(&it, "(d", "-", 20, false);
    assert!(!gap("b", 0, "b", false, 10).is_passed(Bound::Unbounded, Bound::Unbounded, seq(9)));
    // Nothing but older versions of one key, which a reader may see or not.
    let it = gap("b", 5, "b", false, 10);
    check(&it, "-", "-", 4, true);
    check(&it, "-", "-", 5, false);
}

/// One key for each place at which a gap or a bound may begin or end, and one after each.
const KEYS: [&str; 9] = ["a", "b", "b5", "c", "c5", "d", "d5", "e", "f"];

/// Every form of a gap between "b", "c" and "d".
fn every_gap() -> Vec<Gap> {
    let mut all = Vec::new();
    for (from, to) in [("b", "b"), ("b", "c"), ("b", "d"), ("c", "d"), ("d", "d")] {
        for below in [SeqNo::ZERO, seq(8), SeqNo::MAX] {
            for to_included in [false, true] {
                all.push(Gap { from_below: below, ..gap(from, 0, to, to_included, 10) });
            }
        }
    }
    all
}

type KeyBounds = (Bound<&'static [u8]>, Bound<&'static [u8]>);

/// Bounds at every place, including those that cross.
fn every_bounds() -> Vec<KeyBounds> {
    let keys = ["a", "b", "c", "d", "e"].map(str::as_bytes);
    let included = keys.map(Bound::Included);
    let excluded = keys.map(Bound::Excluded);
    let ends = [&included[..], &excluded, &[Bound::Unbounded]].concat();
    ends.iter().flat_map(|lower| ends.iter().map(|upper| (*lower, *upper))).collect()
}

fn has(bounds: (Bound<&[u8]>, Bound<&[u8]>), key: &[u8]) -> bool {
    RangeBounds::<[u8]>::contains(&bounds, key)
}

/// The answer for a key from which nothing else is known but the sound version in front of the gap.
fn is_refused(gap: &Gap, key: &str, at: SeqNo) -> bool {
    let is_sound_seen = *gap.from == *key.as_bytes() && gap.from_below <= at;
    let found = Some(gap.from_below).filter(|below| is_sound_seen && *below > SeqNo::ZERO);
    gap.effect_on(key.as_bytes(), at, found) == InGap::Unknown
}

#[test]
fn a_walk_passes_a_gap_if_a_get_of_one_of_its_keys_is_refused() {
    for gap in every_gap() {
        for bounds in every_bounds() {
            for at in [7, 8, 20].map(seq) {
                let mut keys = KEYS.iter().filter(|key| has(bounds, key.as_bytes()));
                let expected = keys.any(|key| is_refused(&gap, key, at));
                let passed = gap.is_passed(bounds.0, bounds.1, at);
                assert_eq!(passed, expected, "{gap:?} {bounds:?} at {at}");
            }
        }
    }
}

/// The loss of a key at an excluded bound used to be accepted with the others, and both parts used to
/// have the key between bounds that cross.
#[test]
fn each_lost_key_is_in_one_part_and_in_the_part_within_if_it_is_in_the_bounds() {
    for gap in every_gap() {
        for bounds in every_bounds() {
            let parts = gap.split(bounds);
            let within = parts.as_ref().map(|(within, _)| within);
            let rest = parts.as_ref().map_or(std::slice::from_ref(&gap), |(_, rest)| &rest[..]);
            for key in KEYS.map(str::as_bytes) {
                let lost = gap.newest_lost(key);
                let lost_within = within.and_then(|within| within.newest_lost(key));
                let lost_outside: Vec<_> =
                    rest.iter().filter_map(|part| part.newest_lost(key)).collect();
                let is_within = has(bounds, key);
                let what = format!("{key:?} of {gap:?} by {bounds:?}: {parts:?}");
                assert_eq!(lost_within, lost.filter(|_| is_within), "{what}");
                let outside: Vec<_> = lost.filter(|_| !is_within).into_iter().collect();
                assert_eq!(lost_outside, outside, "{what}");
            }
        }
    }
}
