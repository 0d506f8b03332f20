//! Merges against one sorted list, and their number of comparisons. The cursors over lists are for the tests of
//! the neighbours, too.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::types::{EntryKind, InternalKey, SeqNo, Trailer};
use proptest::prelude::*;

/// A cursor over a sorted list.
pub(crate) struct ListIter {
    list: Vec<(InternalKey, Vec<u8>)>,
    at: Option<usize>,
}

impl ListIter {
    pub(crate) fn new(mut list: Vec<(InternalKey, Vec<u8>)>) -> ListIter {
        list.sort();
        ListIter { list, at: None }
    }

    fn count_before(&self, target: KeyRef<'_>) -> usize {
        self.list.partition_point(|(key, _)| key.as_ref() < target)
    }

    #[expect(clippy::unnecessary_wraps, reason = "the answer of every move")]
    fn place(&mut self, at: Option<usize>) -> Result<()> {
        self.at = at.filter(|at| *at < self.list.len());
        Ok(())
    }
}

impl MergeSource for ListIter {}

impl SkipOlder for ListIter {}

impl InternalIter for ListIter {
    fn valid(&self) -> bool {
        self.at.is_some()
    }

    fn key(&self) -> KeyRef<'_> {
        self.list[self.at.unwrap()].0.as_ref()
    }

    fn value(&self) -> &[u8] {
        &self.list[self.at.unwrap()].1
    }

    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        self.place(Some(target.map_or(0, |target| self.count_before(target))))
    }

    fn seek_before(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        let before = target.map_or(self.list.len(), |target| self.count_before(target));
        self.place(before.checked_sub(1))
    }

    fn next(&mut self) -> Result<()> {
        self.place(self.at.map(|at| at + 1))
    }

    fn prev(&mut self) -> Result<()> {
        self.place(self.at.and_then(|at| at.checked_sub(1)))
    }

    fn run_before(&self, until: Option<KeyRef<'_>>) -> usize {
        let here = &self.list[self.at.unwrap()..];
        let pairs = here.windows(2).map(|pair| (pair[0].0.as_ref(), pair[1].0.as_ref()));
        let run = pairs.take_while(|(key, next)| {
            key.user != next.user && until.is_none_or(|until| *next < until)
        });
        run.count()
    }
}

pub(crate) fn key(user: &[u8], seq: u64, kind: EntryKind) -> InternalKey {
    KeyRef::new(user, Trailer::new(SeqNo::new(seq).unwrap(), kind)).to_owned()
}

/// The number of calls of [`Counted`] cursors.
#[derive(Default)]
pub struct Calls {
    /// Looks at a key.
    pub looks: Cell<usize>,
    /// Steps in either direction.
    pub steps: Cell<usize>,
}

/// A cursor that counts calls.
pub struct Counted {
    pub list: ListIter,
    pub calls: Rc<Calls>,
}

impl MergeSource for Counted {}

impl SkipOlder for Counted {}

impl InternalIter for Counted {
    fn valid(&self) -> bool {
        self.list.valid()
    }

    fn key(&self) -> KeyRef<'_> {
        self.calls.looks.update(|looks| looks + 1);
        self.list.key()
    }

    fn value(&self) -> &[u8] {
        self.list.value()
    }

    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        self.list.seek(target)
    }

    fn seek_before(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        self.list.seek_before(target)
    }

    fn next(&mut self) -> Result<()> {
        self.calls.steps.update(|steps| steps + 1);
        self.list.next()
    }

    fn prev(&mut self) -> Result<()> {
        self.calls.steps.update(|steps| steps + 1);
        self.list.prev()
    }
}

#[test]
fn keys_are_looked_at_only_while_two_sources_are_left() {
    let calls = Rc::new(Calls::default());
    let sources = [&[&b"a"[..]][..], &[b"b", b"c", b"d"]].map(|users| {
        let entries = users.iter().map(|user| (key(user, 1, EntryKind::Value), vec![]));
        Counted { list: ListIter::new(entries.collect()), calls: Rc::clone(&calls) }
    });
    let mut merged = MergeIter::new(Vec::from(sources));
    merged.seek(None).unwrap();
    merged.next().unwrap();
    calls.looks.set(0);
    merged.next().unwrap();
    merged.next().unwrap();
    assert_eq!(calls.looks.get(), 0);
    assert_eq!(merged.key().user, b"d");
    merged.next().unwrap();
    assert!(!merged.valid());
}

proptest! {
    // Many cases: a run after a turn is rare.
    #![proptest_config(ProptestConfig::with_cases(8000))]

    #[test]
    fn any_walk_agrees_with_one_sorted_list(
        lists in prop::collection::vec(
            prop::collection::btree_set((0u8..18, 1u64..12), 0..20), 1..5),
        moves in prop::collection::vec((0u8..13, 0u8..18, 0u64..12), 1..60),
    ) {
        let mut all = Vec::new();
        let mut sources = Vec::new();
        for (index, list) in lists.iter().enumerate() {
            let list: Vec<_> = list.iter()
                .map(|(k, seq)| (key(&[*k], *seq, EntryKind::Value), vec![index as u8]))
                .collect();
            all.extend(list.clone());
            sources.push(ListIter::new(list));
        }
        let mut merged = MergeIter::new(sources);
        let mut model = ListIter::new(all);
        for (what, k, seq) in moves {
            let target = [k];
            let target = KeyRef::seek(&target, SeqNo::new(seq).unwrap());
            match what {
                0 => { merged.seek(None).unwrap(); model.seek(None).unwrap() }
                1 => { merged.seek_before(None).unwrap(); model.seek_before(None).unwrap() }
                2 => { merged.seek(Some(target)).unwrap(); model.seek(Some(target)).unwrap() }
                3 => {
                    merged.seek_before(Some(target)).unwrap();
                    model.seek_before(Some(target)).unwrap();
                }
                _ if !model.valid() => {}
                4 => { merged.prev().unwrap(); model.prev().unwrap() }
                9 | 10 => {
                    let until = (what == 9).then_some(target);
                    for _ in 0..merged.run_before(until) {
                        let user = model.key().user.to_vec();
                        model.next().unwrap();
                        prop_assert_eq!(merged.next_in_run().unwrap(), model.key().trailer);
                        prop_assert_eq!(merged.key(), model.key());
                        prop_assert!(model.key().user != &user[..]);
                        prop_assert!(until.is_none_or(|until| model.key() < until));
                    }
                }
                7 | 8 => {
                    merged.next_key(&mut Vec::new()).unwrap();
                    model.next_key(&mut Vec::new()).unwrap();
                }
                _ => { merged.next().unwrap(); model.next().unwrap() }
            }
            prop_assert_eq!(merged.valid(), model.valid());
            if model.valid() {
                prop_assert_eq!(merged.key(), model.key());
                prop_assert_eq!(merged.value(), model.value());
            }
        }
    }
}
