//! [`Gaps`]: the gaps of one partition.
//!
//! Every get and every move of a cursor checks them, in a partition that has some. A failing disk
//! may leave thousands, so no check looks at all of them: the gaps are sorted by their first keys,
//! and an interval tree in an array says how far each part of the list reaches.
//!
//! An earlier form searched the list from its start: with 10,000 gaps, a get compared 10,000 keys.
//!
//! Invariants:
//! 1. A partition without gaps pays one look at a pointer.
//! 2. An answer looks at the gaps that reach the key, and at a logarithmic number of others.

use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, OnceLock};

use super::{Gap, InGap, SeqNo};

/// The gaps of a partition, sorted by their first keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps(Option<Arc<Sorted>>);

#[derive(Clone, Debug, Default)]
struct Sorted {
    gaps: Vec<Arc<Gap>>,
    /// The interval tree, made by the first search. The root of a part of the list is the gap in
    /// its middle; its value is the index of the gap of the part that reaches furthest.
    furthest: OnceLock<Vec<u32>>,
}

impl PartialEq for Sorted {
    fn eq(&self, other: &Sorted) -> bool {
        self.gaps == other.gaps
    }
}

impl Eq for Sorted {}

impl Gaps {
    /// Returns `true` if there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns all of them, by their first keys.
    pub fn iter(&self) -> impl Iterator<Item = &Gap> {
        self.0.iter().flat_map(|sorted| &sorted.gaps).map(|gap| &**gap)
    }

    /// Returns the gaps whose loss is not accepted.
    pub fn open(&self) -> impl Iterator<Item = &Gap> {
        self.iter().filter(|gap| gap.closed_at.is_none())
    }

    /// Returns the gaps whose loss is accepted.
    #[must_use]
    pub fn closed(&self) -> Gaps {
        let all = self.0.iter().flat_map(|sorted| &sorted.gaps);
        Gaps::of_sorted(all.filter(|gap| gap.closed_at.is_some()).cloned().collect())
    }

    fn of_sorted(gaps: Vec<Arc<Gap>>) -> Gaps {
        let sorted = Sorted { gaps, furthest: OnceLock::new() };
        Gaps((!sorted.gaps.is_empty()).then(|| Arc::new(sorted)))
    }

    /// Returns `true` if this very gap is among them.
    pub fn contains(&self, gap: &Gap) -> bool {
        self.place_of(gap).is_ok()
    }

    /// The place of a gap, or that at which it would be.
    fn place_of(&self, gap: &Gap) -> Result<usize, usize> {
        match &self.0 {
            Some(sorted) => sorted.gaps.binary_search_by(|it| (**it).cmp(gap)),
            None => Err(0),
        }
    }

    /// Adds a gap. An equal gap is not added again: two runs of a job find the same damage.
    ///
    /// # Cost
    /// The first change copies the list, if others have it; each further one compares a logarithmic
    /// number of gaps.
    pub fn add(&mut self, gap: Gap) {
        let Err(at) = self.place_of(&gap) else { return };
        let sorted = Arc::make_mut(self.0.get_or_insert_default());
        sorted.gaps.insert(at, Arc::new(gap));
        // The next search makes the tree again: an edit may add thousands of gaps, and no search
        // comes in between.
        sorted.furthest = OnceLock::new();
    }

    /// Takes a gap out; `false` if it was not there.
    ///
    /// # Cost
    /// As for [`Gaps::add`].
    pub fn remove(&mut self, gap: &Gap) -> bool {
        let Ok(at) = self.place_of(gap) else { return false };
        let sorted = Arc::make_mut(self.0.get_or_insert_default());
        sorted.gaps.remove(at);
        sorted.furthest = OnceLock::new();
        // Invariant 1: without gaps there is no list.
        if sorted.gaps.is_empty() {
            self.0 = None;
        }
        true
    }

    /// Passes the gaps that overlap a range of keys to `see`, by their first keys, until it returns
    /// [`ControlFlow::Break`]. Returns the number of gaps that were looked at.
    fn reaching(
        &self,
        keys: KeysWithin<'_>,
        see: &mut dyn FnMut(usize, &Gap) -> ControlFlow<()>,
    ) -> usize {
        let mut looks = 0;
        if let Some(sorted) = &self.0 {
            // A break ends the walk, and needs no further reaction.
            let _ = sorted.reaching(0, sorted.gaps.len(), keys, &mut looks, see);
        }
        looks
    }

    /// Returns `true` if a gap reaches a key within the bounds. A bound itself counts as such a key.
    pub fn meet(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
        let mut is_met = false;
        self.reaching(KeysWithin::between(lower, upper), &mut |_, _| {
            is_met = true;
            ControlFlow::Break(())
        });
        is_met
    }

    /// The effect on a read of `key` at `seq`, by what it found, and the gap that says so.
    pub fn effect_on(&self, key: &[u8], seq: SeqNo, found: Option<SeqNo>) -> (InGap, Option<&Gap>) {
        let mut effect = InGap::Unaffected;
        let mut by = None;
        self.reaching(
            KeysWithin::of_key(key),
            &mut |at, gap| match gap.effect_on(key, seq, found) {
                InGap::Unaffected => ControlFlow::Continue(()),
                // An open gap decides at once: the read is refused, whatever other gaps say.
                InGap::Unknown => {
                    effect = InGap::Unknown;
                    by = Some(at);
                    ControlFlow::Break(())
                }
                InGap::Hidden => {
                    // Goes on: a gap that is open refuses the read, and counts more than one that
                    // hides.
                    effect = InGap::Hidden;
                    by = Some(at);
                    ControlFlow::Continue(())
                }
            },
        );
        (effect, by.and_then(|at| self.at(at)))
    }

    fn at(&self, at: usize) -> Option<&Gap> {
        Some(self.0.as_ref()?.gaps.get(at)?)
    }

    /// The first gap that a walk at `seq` over the keys between `lower` and `upper` may not pass. The
    /// walk does not see what was lost below `clear_seq`, nor a gap for which `is_deleted` returns `true`.
    pub fn refusing(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        seq: SeqNo,
        clear_seq: SeqNo,
        is_deleted: impl Fn(&Gap) -> bool,
    ) -> Option<&Gap> {
        let mut found = None;
        self.reaching(KeysWithin::between(lower, upper), &mut |at, gap| {
            let is_seen = gap.through >= clear_seq && gap.is_open_at(seq);
            if is_seen && gap.is_passed(lower, upper, seq) && !is_deleted(gap) {
                found = Some(at);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        found.and_then(|at| self.at(at))
    }

    /// Returns `true` if a version of `key` may be lost: then no entry that answers for it may be
    /// dropped.
    pub fn reach(&self, key: &[u8]) -> bool {
        let mut is_reached = false;
        self.reaching(KeysWithin::of_key(key), &mut |_, gap| {
            // A closed gap needs no guard: what it lost is accepted as gone.
            if gap.closed_at.is_none() && gap.newest_lost(key).is_some() {
                is_reached = true;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        is_reached
    }
}

/// Keys from the first to the last, both included; `None` is no bound.
#[derive(Clone, Copy)]
struct KeysWithin<'k> {
    first: Option<&'k [u8]>,
    last: Option<&'k [u8]>,
}

impl<'k> KeysWithin<'k> {
    fn of_key(key: &'k [u8]) -> KeysWithin<'k> {
        KeysWithin { first: Some(key), last: Some(key) }
    }

    fn between(lower: Bound<&'k [u8]>, upper: Bound<&'k [u8]>) -> KeysWithin<'k> {
        KeysWithin { first: key_of(lower), last: key_of(upper) }
    }
}

fn key_of(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

impl Sorted {
    fn tree(&self) -> &[u32] {
        self.furthest.get_or_init(|| {
            let mut tree = vec![0; self.gaps.len()];
            self.plant(0, self.gaps.len(), &mut tree);
            tree
        })
    }

    /// Fills in the tree from `start` to `end`; returns which gap there reaches furthest.
    fn plant(&self, start: usize, end: usize, tree: &mut [u32]) -> Option<usize> {
        if start == end {
            return None;
        }
        let middle = usize::midpoint(start, end);
        let left = self.plant(start, middle, tree);
        let right = self.plant(middle + 1, end, tree);
        // Three candidates, because the children have answered for their halves.
        let all = [left, Some(middle), right].into_iter().flatten();
        let furthest = all.max_by_key(|at| &self.gaps[*at].to)?;
        tree[middle] = u32::try_from(furthest).expect("gaps are far fewer than 2^32");
        Some(furthest)
    }

    /// See [`Gaps::reaching`], for the gaps from `start` to `end`.
    fn reaching(
        &self,
        start: usize,
        end: usize,
        keys: KeysWithin<'_>,
        looks: &mut usize,
        see: &mut dyn FnMut(usize, &Gap) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if start == end {
            return ControlFlow::Continue(());
        }
        *looks += 1;
        let middle = usize::midpoint(start, end);
        let furthest = &self.gaps[self.tree()[middle] as usize];
        if keys.first.is_some_and(|first| *furthest.to < *first) {
            return ControlFlow::Continue(());
        }
        // Left, middle, right: `see` gets the gaps in their order.
        self.reaching(start, middle, keys, looks, see)?;
        let gap = &self.gaps[middle];
        if keys.last.is_some_and(|last| *gap.from > *last) {
            // All gaps after it begin later.
            return ControlFlow::Continue(());
        }
        // Ends count as reached here; the gap itself knows which of them it includes.
        let is_reaching = keys.first.is_none_or(|first| *gap.to >= *first);
        if is_reaching {
            see(middle, gap)?;
        }
        self.reaching(middle + 1, end, keys, looks, see)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seq(n: u64) -> SeqNo {
        SeqNo::new(n).unwrap()
    }

    fn key(n: u64) -> Vec<u8> {
        format!("{n:08}").into_bytes()
    }

    fn gap(from: u64, to: u64) -> Gap {
        Gap {
            from: key(from).into(),
            from_below: SeqNo::ZERO,
            to: key(to).into(),
            to_included: false,
            through: seq(10),
            closed_at: None,
        }
    }

    fn looks(gaps: &Gaps, at: u64) -> usize {
        gaps.reaching(KeysWithin::of_key(&key(at)), &mut |_, _| ControlFlow::Continue(()))
    }

    #[test]
    fn of_many_gaps_an_answer_looks_at_few() {
        let count = 1 << 14;
        let mut gaps = Gaps::default();
        for n in (0..count).rev() {
            gaps.add(gap(10 * n, 10 * n + 5));
        }
        // One that reaches over all of them must not make the others be looked at.
        gaps.add(Gap { closed_at: Some(seq(50)), ..gap(0, 10 * count) });
        for at in [0, 3, 7, 5 * count, 5 * count + 3, 10 * count - 7, 20 * count] {
            assert!(looks(&gaps, at) <= 4 * 15, "{} gaps of {count} for {at}", looks(&gaps, at));
        }
        let at = 10 * 777;
        assert_eq!(gaps.effect_on(&key(at + 1), seq(60), None).0, InGap::Unknown);
        assert_eq!(gaps.effect_on(&key(at + 6), seq(60), None).0, InGap::Hidden);
        assert!(gaps.reach(&key(at + 1)) && !gaps.reach(&key(at + 6)));
    }

    /// From, length, and all else of it.
    fn any_gap() -> impl Strategy<Value = Gap> {
        let closed_at = prop::option::of(16u64..20);
        (0u64..60, 0u64..20, any::<bool>(), 0u64..3, 5u64..15, closed_at).prop_map(
            |(from, len, to_included, below, through, closed_at)| Gap {
                to_included,
                from_below: seq(below * 4),
                through: seq(through),
                closed_at: closed_at.map(seq),
                ..gap(from, from + len)
            },
        )
    }

    /// The effect by a search of the whole list.
    fn effect_one_by_one(all: &[Gap], key: &[u8], at: SeqNo, found: Option<SeqNo>) -> InGap {
        let effects: Vec<InGap> = all.iter().map(|gap| gap.effect_on(key, at, found)).collect();
        let worst = [InGap::Unknown, InGap::Hidden].into_iter().find(|it| effects.contains(it));
        worst.unwrap_or(InGap::Unaffected)
    }

    proptest! {
        #[test]
        fn the_tree_says_what_the_list_says(
            ops in prop::collection::vec((any_gap(), 0u8..4, any::<prop::sample::Index>()), 0..40),
            probes in prop::collection::vec(
                (0u64..84, 0u64..84, 0u64..24, 0u64..24, prop::option::of(0u64..20)),
                60,
            ),
        ) {
            let mut gaps = Gaps::default();
            let mut all = Vec::new();
            for (gap, what, which) in ops {
                gaps.add(gap.clone());
                gaps.add(gap.clone());
                if !all.contains(&gap) {
                    all.push(gap);
                }
                if what == 0 {
                    let gone = all.swap_remove(which.index(all.len()));
                    prop_assert!(gaps.remove(&gone) && !gaps.remove(&gone));
                }
            }
            all.sort();
            prop_assert!(gaps.iter().eq(&all) && gaps.is_empty() == all.is_empty());
            for (first, last, at, clear_seq, found) in probes {
                let first = key(first);
                let last = key(last);
                let at = seq(at);
                let clear_seq = seq(clear_seq);
                let found = found.map(seq);
                let expected = effect_one_by_one(&all, &first, at, found);
                prop_assert_eq!(gaps.effect_on(&first, at, found).0, expected);
                let lower = Bound::Included(&first[..]);
                let upper = Bound::Excluded(&last[..]);
                let mut refusing = all.iter().filter(|gap| gap.is_open_at(at) && gap.through >= clear_seq);
                let expected = refusing.find(|gap| gap.is_passed(lower, upper, at));
                prop_assert_eq!(gaps.refusing(lower, upper, at, clear_seq, |_| false), expected);
                let mut open = all.iter().filter(|gap| gap.closed_at.is_none());
                let is_lost = open.any(|gap| gap.newest_lost(&first).is_some());
                prop_assert_eq!(gaps.reach(&first), is_lost);
            }
        }
    }
}
