//! Reads of the store and of the oracle: gets, ranges, prefixes, cursors and snapshots.

use std::io::Read;

use super::*;

impl Harness {
    /// The n-th current partition, or of a snapshot: then dropped ones are included.
    fn view(&self, p: u8, through: Through) -> (Partition, Option<&Snapshot>, Rc<Contents>) {
        let part = self.part(p);
        let Some(held) = through.and_then(|n| chosen(&self.snapshots, n)) else {
            return (part.handle.clone(), None, self.contents(part));
        };
        let held = &self.snapshots[held];
        let newer = held.parts.iter().all(|(incarnation, ..)| *incarnation != part.incarnation);
        if newer && p.is_multiple_of(2) {
            // Created after the snapshot, which must see nothing in it.
            return (part.handle.clone(), Some(&held.snapshot), Rc::default());
        }
        let (incarnation, handle, contents) = &held.parts[usize::from(p) % held.parts.len()];
        let contents = self.seen(*incarnation, contents, held.time);
        (handle.clone(), Some(&held.snapshot), contents)
    }

    pub(super) fn reader(&self, p: u8, through: Through, bounds: &Bounds) -> (Range, Rc<Contents>) {
        let (handle, snapshot, contents) = self.view(p, through);
        let range = match snapshot {
            Some(snapshot) => snapshot.range(&handle, bounds.clone()),
            None => handle.range(bounds.clone()),
        };
        (range, contents)
    }

    pub(super) fn get(&self, p: u8, key: Key, through: Through) {
        let (handle, snapshot, contents) = self.view(p, through);
        self.check_get(&handle, snapshot, &contents, &key.bytes());
    }

    #[expect(clippy::unused_self, reason = "it is next to the checks that need more")]
    pub(super) fn check_get(
        &self,
        handle: &Partition,
        snapshot: Option<&Snapshot>,
        contents: &Contents,
        key: &[u8],
    ) {
        let expected = contents.get(key).map(|value| &value[..]);
        check_multi_get(handle, snapshot, contents, key);
        let alone = match snapshot {
            Some(snapshot) => {
                assert_eq!(snapshot.get(handle, key).unwrap().as_deref(), expected);
                snapshot.range(handle, key..=key)
            }
            None => {
                assert_eq!(handle.get(key).unwrap().as_deref(), expected);
                assert_eq!(handle.contains(key).unwrap(), expected.is_some());
                check_pieces(handle, key, expected);
                handle.range(key..=key)
            }
        };
        let alone: Vec<_> = alone.map(pair).collect();
        let expected: Vec<_> =
            expected.map(|value| (key.to_vec(), value.to_vec())).into_iter().collect();
        assert_same(&alone, &expected);
    }

    pub(super) fn prefix(&self, p: u8, key: Key, len: u8, ends: u32, through: Through) {
        let (handle, snapshot, contents) = self.view(p, through);
        let mut prefix = key.bytes();
        prefix.truncate(len.into());
        let entries = contents.iter().filter(|(key, _)| key.starts_with(&prefix));
        let expected: Vec<_> = entries.map(|(k, v)| (k.clone(), v.to_vec())).collect();
        let range = match snapshot {
            Some(snapshot) => snapshot.prefix(&handle, &prefix),
            None => handle.prefix(&prefix),
        };
        check_range(range, ends, &expected);
    }

    pub(super) fn use_cursor(&mut self, operation: &Operation) {
        match operation {
            Operation::OpenCursor(p, through) if self.cursors.len() < HELD_MAX => {
                let (handle, snapshot, contents) = self.view(*p, *through);
                let cursor = match snapshot {
                    Some(snapshot) => snapshot.cursor(&handle),
                    None => handle.cursor(),
                };
                self.cursors.push(HeldCursor { cursor, contents, at: None });
            }
            Operation::MoveCursor(n, moves) => {
                let Some(n) = chosen(&self.cursors, *n) else { return };
                moves.iter().for_each(|step| self.cursors[n].go(*step));
            }
            Operation::DropCursor(n) => {
                chosen(&self.cursors, *n).map(|n| self.cursors.swap_remove(n));
            }
            _ => {}
        }
    }

    pub(super) fn use_range(&mut self, operation: &Operation) {
        match operation {
            Operation::OpenRange(p, from, to, through) if self.ranges.len() < HELD_MAX => {
                let bounds = bounds(*from, *to);
                let (range, contents) = self.reader(*p, *through, &bounds);
                self.ranges.push(HeldRange { range, expected: within(&contents, &bounds).into() });
            }
            Operation::TakeFromRange(n, count, ends) => {
                let Some(n) = chosen(&self.ranges, *n) else { return };
                let held = &mut self.ranges[n];
                let mut ends = *ends;
                for _ in 0..*count {
                    let (front, entry) = take(&mut held.range, &mut ends);
                    let expected =
                        if front { held.expected.pop_front() } else { held.expected.pop_back() };
                    let got: Vec<_> = entry.map(pair).into_iter().collect();
                    assert_same(&got, expected.as_slice());
                }
            }
            Operation::DropRange(n) => {
                chosen(&self.ranges, *n).map(|n| self.ranges.swap_remove(n));
            }
            _ => {}
        }
    }

    /// Reads every partition completely, and key by key.
    pub(super) fn check_all(&self) {
        let mut names: Vec<_> = self.parts.iter().map(|part| part.name).collect();
        names.sort_unstable();
        assert_eq!(self.db().partition_names(), names);
        for part in &self.parts {
            let contents = self.contents(part);
            let all = within(&contents, &(Bound::Unbounded, Bound::Unbounded));
            check_range(part.handle.iter(), 0, &all);
            check_range(part.handle.iter(), u32::MAX, &all);
            let keys: Vec<_> = part.handle.keys().map(|key| key.unwrap().to_vec()).collect();
            assert!(keys.iter().eq(contents.keys()), "keys alone are the same");
            for key in Key::all() {
                self.check_get(&part.handle, None, &contents, &key.bytes());
                self.check_expiry(part, &key.bytes());
            }
            assert_eq!(part.handle.options().stored(), part.options.stored());
        }
        for held in &self.snapshots {
            for (incarnation, handle, contents) in &held.parts {
                let contents = self.seen(*incarnation, contents, held.time);
                let all = within(&contents, &(Bound::Unbounded, Bound::Unbounded));
                check_range(held.snapshot.iter(handle), 0, &all);
            }
        }
    }

    pub(super) fn take_snapshot(&mut self) {
        if self.snapshots.len() == HELD_MAX {
            return;
        }
        let snapshot = self.db().snapshot();
        assert_eq!(snapshot.seq(), self.seq);
        let parts = self.parts.iter();
        let parts = parts.map(|p| (p.incarnation, p.handle.clone(), self.written(p))).collect();
        let time = self.has_rule.then(|| self.now());
        self.snapshots.push(HeldSnapshot { snapshot, parts, drops: self.drops, time });
    }
}

impl HeldCursor {
    fn go(&mut self, step: Move) {
        let first = |from, to| {
            self.contents.range::<Vec<u8>, _>((from, to)).next().map(|(key, _)| key.clone())
        };
        let last = |to| {
            let before = self.contents.range::<Vec<u8>, _>((Bound::Unbounded, to));
            before.last().map(|(key, _)| key.clone())
        };
        use Bound::{Excluded, Included, Unbounded};
        let at = match (step, &self.at) {
            (Move::First, _) => first(Unbounded, Unbounded),
            (Move::Last, _) => last(Unbounded),
            (Move::Seek(key), _) => first(Included(&key.bytes()), Unbounded),
            (Move::SeekBefore(key), _) => last(Excluded(&key.bytes())),
            (Move::Next, Some(at)) => first(Excluded(at), Unbounded),
            (Move::Prev, Some(at)) => last(Excluded(at)),
            (Move::Next | Move::Prev, None) => None,
        };
        let moved = match step {
            Move::First => self.cursor.seek_to_first(),
            Move::Last => self.cursor.seek_to_last(),
            Move::Seek(key) => self.cursor.seek(key.bytes()),
            Move::SeekBefore(key) => self.cursor.seek_before(key.bytes()),
            Move::Next => self.cursor.next(),
            Move::Prev => self.cursor.prev(),
        };
        moved.unwrap();
        let got = self.cursor.valid().then(|| {
            let value = self.cursor.value_slice().unwrap();
            assert_eq!(value, self.cursor.value().unwrap());
            (self.cursor.key().to_vec(), value.to_vec())
        });
        let expected = at.as_ref().map(|key| (key.clone(), self.contents[key].to_vec()));
        assert_same(got.as_slice(), expected.as_slice());
        self.at = at;
    }
}

/// Takes one entry from the end that the lowest bit chooses.
fn take<T>(items: &mut impl DoubleEndedIterator<Item = T>, ends: &mut u32) -> (bool, Option<T>) {
    let front = *ends & 1 == 0;
    *ends = ends.rotate_right(1);
    (front, if front { items.next() } else { items.next_back() })
}

pub(super) fn pair(entry: siltstone::Result<(Slice, Slice)>) -> (Vec<u8>, Vec<u8>) {
    let (key, value) = entry.unwrap();
    (key.to_vec(), value.to_vec())
}

/// Reads `range` to its end from both ends and compares.
pub(super) fn check_range(mut range: Range, mut ends: u32, expected: &[(Vec<u8>, Vec<u8>)]) {
    let mut front = Vec::new();
    let mut back = Vec::new();
    while let (is_front, Some(entry)) = take(&mut range, &mut ends) {
        if is_front { front.push(pair(entry)) } else { back.push(pair(entry)) }
    }
    assert!(range.next().is_none() && range.next_back().is_none(), "an end is an end for both");
    back.reverse();
    front.append(&mut back);
    assert_same(&front, expected);
}

/// Reads `key` twice, a key that is missing, and up to two groups of its neighbours in one call.
fn check_multi_get(
    handle: &Partition,
    snapshot: Option<&Snapshot>,
    contents: &Contents,
    key: &[u8],
) {
    let mut keys = vec![key.to_vec(), [key, b"\xff"].concat(), key.to_vec()];
    keys.extend(
        contents.range(key.to_vec()..).take(key.len() * 7 % 130).map(|(key, _)| key.clone()),
    );
    let values = match snapshot {
        Some(snapshot) => snapshot.multi_get(handle, &keys),
        None => handle.multi_get(&keys),
    };
    let values = values.unwrap();
    assert_eq!(values.len(), keys.len());
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(value.as_deref(), contents.get(key).map(|value| &value[..]), "{key:?}");
    }
}

/// Compares without printing kilobytes.
fn assert_same(got: &[(Vec<u8>, Vec<u8>)], expected: &[(Vec<u8>, Vec<u8>)]) {
    assert!(got == expected, "got {:#?}, expected {:#?}", shown(got), shown(expected));
}

/// Entries as text, each shortened.
fn shown(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<String> {
    entries.iter().map(|(key, value)| format!("{} = {}", cut(key), cut(value))).collect()
}

fn cut(bytes: &[u8]) -> String {
    format!("{}({})", bytes[..bytes.len().min(12)].escape_ascii(), bytes.len())
}

/// The value in pieces, which may be in a chunk file or in a table.
fn check_pieces(handle: &Partition, key: &[u8], expected: Option<&[u8]>) {
    let reader = handle.open_blob(key).unwrap();
    let read = reader.map(|mut reader| {
        let mut value = Vec::new();
        reader.read_to_end(&mut value).unwrap();
        value
    });
    assert_eq!(read.as_deref(), expected);
    let part = handle.get_range(key, 250..770).unwrap();
    let inside = expected.map(|value| &value[250.min(value.len())..770.min(value.len())]);
    assert_eq!(part.as_deref(), inside);
    assert_eq!(
        handle.stat_blob(key).unwrap().map(|stat| stat.len),
        expected.map(|value| value.len() as u64)
    );
}
