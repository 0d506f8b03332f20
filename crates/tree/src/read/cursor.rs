//! [`Cursor`]: the core of scans. It lends keys and values, and owns what it pins.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Bound;

use super::get::{lost, unreadable};
use super::point::ReadPoint;
use super::prefix::PrefixQuery;
use super::range::Bounds;
use super::source::Source;
use crate::error::{Error, Result};
use crate::iter::{MergeIter, VisibleIter};
use crate::sstable::OpenTable;
use crate::types::{EntryKind, InGap, KeyForm, SeqNo, Slice};

/// A cursor over the keys of one partition as they were at one moment, within bounds.
///
/// A cursor is invalid before the first seek. After a failed move it is invalid until the next seek; a seek past the
/// damage may succeed. It pins the memtables and tables that it reads, and keeps the database open, until it is dropped,
/// also if the snapshot or handle that it came from is dropped first.
///
/// # Cost
/// A seek searches every memtable, every level-0 table and one table of each deeper level; a move
/// costs a few comparisons. Both read blocks that are not in the cache. Within one prefix (see
/// [`PartitionOptions::prefix_extractor`](crate::options::PartitionOptions::prefix_extractor)), tables without it are not
/// searched.
pub struct Cursor {
    /// With the read point, which remembers walks over tombstones.
    entries: VisibleIter<MergeIter<Source>, Option<ReadPoint>>,
    key_form: KeyForm,
    /// The present value, if it lies in the value store and was asked for.
    value: OnceCell<Vec<u8>>,
    /// The view has gaps: see `types/gap.rs`. Kept here, so that a move looks at no other memory.
    has_gaps: bool,
    /// The reason why the cursor cannot read at all: every seek returns it.
    broken: Option<Error>,
    /// The last move came to a gap.
    is_refused: bool,
}

#[expect(clippy::should_implement_trait, reason = "a lending cursor cannot be an `Iterator`")]
impl Cursor {
    /// A cursor over `point` for keys within `bounds`. If there is no point to read, or a table cannot be
    /// opened, every seek returns the reason.
    pub fn open(bounds: &Bounds, point: Result<ReadPoint>) -> Cursor {
        let key_form = point.as_ref().map_or(KeyForm::AsGiven, |point| point.key_form);
        let stored = stored_bounds(key_form, bounds.clone());
        let sources = point.and_then(|point| {
            point.tables().check_process()?;
            let clear_seq = point.view.clear_at(point.seq);
            let check = point.check.as_ref();
            let prefix = PrefixQuery::new(&point.view.version.options, bounds, &stored);
            let tables = point.tables();
            if tables.is_far() {
                Source::ask_tables(&point.view, tables, &stored.0);
            }
            let sources = Source::all_checked(&point.view, tables, clear_seq, check, prefix)
                .map_err(|error| error.in_partition(point.partition()))?;
            Ok((sources, point))
        });
        // Returned by the seeks, so that opening a range has no error of its own and iterators need
        // one check.
        let (sources, point, broken) = match sources {
            Ok((sources, point)) => (sources, Some(point), None),
            Err(error) => (Vec::new(), None, Some(error)),
        };
        let seq = point.as_ref().map_or(SeqNo::ZERO, |point| point.seq);
        // As the reader sees them: a snapshot from before a clear still sees what was cleared.
        let (clear_seq, spans) =
            point.as_ref().map(|point| point.view.deletions(seq)).unwrap_or_default();
        let is_far = point.as_ref().is_some_and(|point| point.tables().is_far());
        let prefetch = if is_far { Source::ask_all } else { Source::prefetch_all };
        let merged = MergeIter::new(sources).with_prefetch(prefetch);
        let (lower, upper) = stored;
        let entries = VisibleIter::new(merged, seq, lower, upper).with_deletions(clear_seq, spans);
        let has_gaps = point.as_ref().is_some_and(|point| !point.view.version.gaps.is_empty());
        let entries = entries.with_memory(point);
        // Large values are fetched only when they are asked for: a scan of keys reads none of them.
        let value = OnceCell::new();
        Cursor { entries, key_form, value, has_gaps, broken, is_refused: false }
    }

    /// Returns `true` if the cursor is on a key.
    #[inline]
    pub fn valid(&self) -> bool {
        self.entries.valid() && !self.is_refused
    }

    /// Returns the key, until the cursor moves.
    ///
    /// # Panics
    /// If the cursor is not valid.
    #[inline]
    pub fn key(&self) -> &[u8] {
        assert!(self.valid(), "the cursor is on no key");
        let stored = self.entries.key();
        self.key_form.user(stored)
    }

    /// Returns the sequence number of the operation that wrote the value.
    ///
    /// # Panics
    /// If the cursor is not valid.
    pub fn seq(&self) -> SeqNo {
        assert!(self.valid(), "the cursor is on no key");
        self.entries.trailer().seq()
    }

    /// The table that the present entry lies in; `None` for a memtable, and after a move
    /// backwards. Only while valid.
    pub fn table(&self) -> Option<OpenTable<'_>> {
        self.entries.on_current()?.current().table().map(OpenTable::new)
    }

    /// The key in the form in which it is stored. Only while valid.
    pub fn stored_key(&self) -> &[u8] {
        self.entries.key()
    }

    /// Returns the value, until the cursor moves.
    ///
    /// # Errors
    /// Corruption if the entry is a poison; the errors of the value store.
    ///
    /// # Panics
    /// If the cursor is not valid.
    #[inline]
    pub fn value(&self) -> Result<&[u8]> {
        assert!(self.valid(), "the cursor is on no key");
        // The usual case. In a function of its own, a call needs few instructions.
        if self.entries.trailer().kind() == Some(EntryKind::Value) {
            return Ok(self.entries.value());
        }
        self.value_apart()
    }

    /// As [`Cursor::value`], for an entry that does not hold its value.
    #[inline(never)]
    fn value_apart(&self) -> Result<&[u8]> {
        match self.entries.trailer().kind() {
            Some(kind @ (EntryKind::Handle | EntryKind::Operand)) => {
                // Kept until the next move: each call would read the large value again.
                if let Some(value) = self.value.get() {
                    return Ok(value);
                }
                let point = self.point();
                let key = self.entries.key();
                let value = match kind {
                    // A cursor is on no entry that has expired.
                    EntryKind::Operand => point.fold(key).map(Option::unwrap_or_default),
                    _ => point.read_handle(key, self.entries.value()),
                };
                let value = value?;
                Ok(self.value.get_or_init(|| value))
            }
            kind => {
                let point = self.point();
                let error = unreadable(kind, None, point.tables(), self.entries.key());
                Err(error.in_partition(point.partition()))
            }
        }
    }

    /// Returns `true` if the value lies in the value store. Only while valid.
    pub(super) fn is_value_apart(&self) -> bool {
        self.entries.trailer().kind() == Some(EntryKind::Handle)
    }

    /// Has the value store read the first `bytes_max` bytes of the value from the device, if it lies
    /// there; returns how many these are, and 0 for all others. Only while valid.
    pub(super) fn prefetch(&self, bytes_max: u64) -> u64 {
        let Some(store) = self.point().store.as_ref().filter(|_| self.is_value_apart()) else {
            return 0;
        };
        let begun = store.call("prefetch", |store| {
            let stored = store.value(self.entries.value())?;
            let len = stored.len().min(bytes_max);
            stored.prefetch(len);
            Ok(len)
        });
        // The read of the value returns the error.
        begun.unwrap_or(0)
    }

    fn point(&self) -> &ReadPoint {
        self.entries.memory().as_ref().expect("a valid cursor reads something")
    }

    /// Returns an owned value, which shares the block if the value is large.
    pub fn value_slice(&self) -> Result<Slice> {
        if self.valid() && self.is_value_apart() && self.value.get().is_none() {
            // Not kept: this call returns it without a copy.
            let value = self.point().read_handle(self.entries.key(), self.entries.value())?;
            return Ok(value.into());
        }
        let value = self.value()?;
        Ok(match self.entries.on_current() {
            // Shares the block only if the value is in it: a fetched large value is not.
            Some(merged) if self.value.get().is_none() => merged.current().value_slice(),
            _ => Slice::copy_from(value),
        })
    }

    /// Returns an owned key.
    pub fn key_slice(&self) -> Slice {
        Slice::copy_from(self.key())
    }

    /// Moves to the first key within the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.check_readable()?;
        let moved = self.entries.seek_to_first();
        self.end_forward(None, moved)
    }

    /// Moves to the last key within the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.check_readable()?;
        let moved = self.entries.seek_to_last();
        self.end_backward(None, moved)
    }

    /// Moves to the first key at or after `key`, within the bounds.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.check_readable()?;
        let key = stored(self.key_form, key.as_ref());
        let moved = self.entries.seek(&key);
        // The start of the move is copied only for gaps. Without gaps a move allocates nothing.
        let left = self.has_gaps.then(|| Bound::Included(key.into_owned()));
        self.end_forward(left, moved)
    }

    /// Moves to the first key after `key`, within the bounds.
    pub fn seek_after(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.seek(successor(key.as_ref()))
    }

    /// Moves to the last key before `key`, within the bounds.
    pub fn seek_before(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.check_readable()?;
        let key = stored(self.key_form, key.as_ref());
        let moved = self.entries.seek_before(&key);
        let left = self.has_gaps.then(|| Bound::Excluded(key.into_owned()));
        self.end_backward(left, moved)
    }

    /// Moves to the next key; does nothing if the cursor is not valid.
    #[inline]
    pub fn next(&mut self) -> Result<()> {
        if !self.valid() {
            return Ok(());
        }
        if self.has_gaps {
            return self.next_in_gaps();
        }
        let moved = self.entries.next();
        self.forget_value();
        self.in_partition(moved)
    }

    #[cold]
    fn next_in_gaps(&mut self) -> Result<()> {
        let left = Bound::Excluded(self.entries.key().to_vec());
        let moved = self.entries.next();
        self.end_forward(Some(left), moved)
    }

    /// Moves to the previous key; does nothing if the cursor is not valid.
    #[inline]
    pub fn prev(&mut self) -> Result<()> {
        if !self.valid() {
            return Ok(());
        }
        let left = self.has_gaps.then(|| Bound::Excluded(self.entries.key().to_vec()));
        let moved = self.entries.prev();
        self.end_backward(left, moved)
    }

    /// Narrows the range to the keys after `key`.
    pub(super) fn set_lower_excluded(&mut self, key: &[u8]) {
        let key = stored(self.key_form, key);
        self.entries.set_lower_excluded(&key);
    }

    /// Narrows the range to the keys before `key`.
    pub(super) fn set_upper_excluded(&mut self, key: &[u8]) {
        let key = stored(self.key_form, key);
        self.entries.set_upper_excluded(&key);
    }

    /// Returns the outcome of a move, with the partition's name in an error.
    #[inline]
    fn in_partition(&self, moved: Result<()>) -> Result<()> {
        moved.map_err(|error| self.named(error))
    }

    #[cold]
    fn named(&self, error: Error) -> Error {
        match self.entries.memory() {
            Some(point) => error.in_partition(point.partition()),
            None => error,
        }
    }

    /// The cached value is that of the key before the move.
    #[inline]
    fn forget_value(&mut self) {
        if self.value.get().is_some() {
            self.value.take();
        }
    }

    fn check_readable(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Called after every move forwards, which began at `left` or at the lower bound.
    #[inline]
    fn end_forward(&mut self, left: Option<Bound<Vec<u8>>>, moved: Result<()>) -> Result<()> {
        self.forget_value();
        if self.has_gaps {
            let moved = moved.and_then(|()| self.pass_gaps_forward(left));
            // `entries` may stand on an entry that a gap refuses, so it cannot tell that the cursor
            // is invalid.
            self.is_refused = moved.is_err();
            return self.in_partition(moved);
        }
        self.in_partition(moved)
    }

    /// Called after every move backwards, which began at `left` or at the upper bound.
    #[inline]
    fn end_backward(&mut self, left: Option<Bound<Vec<u8>>>, moved: Result<()>) -> Result<()> {
        self.forget_value();
        if self.has_gaps {
            let moved = moved.and_then(|()| self.pass_gaps_backward(left));
            self.is_refused = moved.is_err();
            return self.in_partition(moved);
        }
        self.in_partition(moved)
    }
}

/// Gaps: see `types/gap.rs`.
impl Cursor {
    /// Returns an error if some of the keys between the two bounds may be lost.
    fn check_passed(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<()> {
        let point = self.point();
        match point.view.gap_refusing(lower, upper, point.seq) {
            Some(gap) => Err(lost(gap, point.tables())),
            None => Ok(()),
        }
    }

    /// Returns `true` if the present entry is not older than a loss.
    ///
    /// # Errors
    /// Corruption if an open gap refuses it.
    fn is_shown(&self) -> Result<bool> {
        let point = self.point();
        let key = self.entries.key();
        let seq = self.entries.trailer().seq();
        match point.view.version.gaps.effect_on(key, point.seq, Some(seq)) {
            (InGap::Unknown, Some(gap)) => Err(lost(gap, point.tables()).at_key(key)),
            (effect, _) => Ok(effect == InGap::Unaffected),
        }
    }

    /// Moves to an entry that may be shown, unless a gap lies on the way from `left`.
    #[cold]
    fn pass_gaps_forward(&mut self, left: Option<Bound<Vec<u8>>>) -> Result<()> {
        let mut left = left;
        loop {
            let here = self.entries.valid().then(|| self.entries.key().to_vec());
            let (lowest, highest) = self.entries.bounds();
            let lower = left.as_ref().map_or(lowest, |left| left.as_ref().map(Vec::as_slice));
            let upper = here.as_ref().map_or(highest, |key| Bound::Included(&key[..]));
            // The way to the entry comes before the entry: keys on the way may be lost, and leaving
            // them out without an error would be a wrong answer.
            self.check_passed(lower, upper)?;
            let Some(key) = here else { return Ok(()) };
            if self.is_shown()? {
                return Ok(());
            }
            left = Some(Bound::Excluded(key));
            self.entries.next()?;
        }
    }

    /// As [`Cursor::pass_gaps_forward`], the other way.
    #[cold]
    fn pass_gaps_backward(&mut self, left: Option<Bound<Vec<u8>>>) -> Result<()> {
        let mut left = left;
        loop {
            let here = self.entries.valid().then(|| self.entries.key().to_vec());
            let (lowest, highest) = self.entries.bounds();
            let upper = left.as_ref().map_or(highest, |left| left.as_ref().map(Vec::as_slice));
            let lower = here.as_ref().map_or(lowest, |key| Bound::Included(&key[..]));
            self.check_passed(lower, upper)?;
            let Some(key) = here else { return Ok(()) };
            if self.is_shown()? {
                return Ok(());
            }
            left = Some(Bound::Excluded(key));
            self.entries.prev()?;
        }
    }
}

/// The form in which a key is stored, borrowed where that is the key itself for all keys.
fn stored(form: KeyForm, key: &[u8]) -> Cow<'_, [u8]> {
    if form.takes_any_key() { form.stored(key.to_vec()).into() } else { key.into() }
}

/// Bounds in the form in which keys are stored.
pub fn stored_bounds(form: KeyForm, (lower, upper): Bounds) -> Bounds {
    let lower = lower.map(|key| form.stored(key));
    let upper = upper.map(|key| form.stored(key));
    (lower, upper)
}

/// The smallest key after `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}
