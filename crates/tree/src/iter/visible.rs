//! The entries that a reader at one sequence number sees: the newest visible version of each key,
//! without tombstones, without what lies below a clear or a deleted range, and without what has expired.
//!
//! Forwards, the inner cursor stays on the current entry, so only the user key is copied.
//! Backwards, the versions of a key come oldest first, so the last visible version is copied aside.
//!
//! Invariants:
//! 1. Forward and valid: the inner cursor is on the current entry.
//! 2. Backward and valid: the inner cursor is on the newest entry of an earlier key, or invalid; key and value of the
//!    current entry are in `key` and `value`.
//! 3. After `STEPS_BEFORE_SEEK` versions of one key the cursor seeks past the rest instead of stepping.
//! 4. No walk continues past a bound. If the caller compared the bounds with visible entries alone, it would notice
//!    them too late: any number of tombstones may lie past a bound, and the walk would pass over all of them.

use std::ops::Bound;

use super::dead_walk::{DeadEntries, DeadWalk};
use super::floors::Floors;
use super::{Direction, InternalIter, STEPS_BEFORE_SEEK, SkipOlder};
use crate::error::Result;
use crate::types::{EntryKind, KeyRef, SeqNo, SpanLayers, Trailer};

/// The relation of the inner cursor to the current entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CursorPosition {
    /// There is no current entry.
    Invalid,
    /// The inner cursor is on it.
    Forward,
    /// The inner cursor is before it, and a copy of it is kept aside.
    Backward,
}

/// A cursor over the entries of `I` that its reader sees.
pub struct VisibleIter<I, D = ()> {
    inner: I,
    memory: D,
    seq: SeqNo,
    /// An entry with a smaller number was cleared, or lies in a deleted range.
    floors: Floors,
    position: CursorPosition,
    key: Vec<u8>,
    /// Trailer of the current entry, forwards too: each caller asks for the kind.
    trailer: Trailer,
    value: Vec<u8>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// So many of the next entries of the inner cursor are within the bounds, and each is the newest of its
    /// key.
    run: usize,
}

impl<I: InternalIter> VisibleIter<I> {
    /// The entries of `inner` from `lower` to `upper` as a reader at `seq` sees them.
    pub fn new(
        inner: I,
        seq: SeqNo,
        lower: Bound<Vec<u8>>,
        upper: Bound<Vec<u8>>,
    ) -> VisibleIter<I> {
        VisibleIter {
            inner,
            memory: (),
            seq,
            floors: Floors::new(seq, SeqNo::ZERO, SpanLayers::default()),
            position: CursorPosition::Invalid,
            // Most scans go forwards and copy no key.
            key: Vec::new(),
            trailer: Trailer::LAST,
            value: Vec::new(),
            lower,
            upper,
            run: 0,
        }
    }

    /// Leaves out the entries below `clear_seq`, and those that `spans` hide.
    #[must_use]
    pub fn with_deletions(self, clear_seq: SeqNo, spans: SpanLayers) -> VisibleIter<I> {
        VisibleIter { floors: Floors::new(self.seq, clear_seq, spans), ..self }
    }

    /// Remembers walks over dead entries in `memory`.
    #[must_use]
    pub fn with_memory<D: DeadEntries>(self, memory: D) -> VisibleIter<I, D> {
        let VisibleIter { inner, memory: (), seq, floors, position, key, trailer, value, .. } =
            self;
        let VisibleIter { lower, upper, run, .. } = self;
        VisibleIter { inner, memory, seq, floors, position, key, trailer, value, lower, upper, run }
    }
}

#[expect(clippy::should_implement_trait, reason = "a lending cursor cannot be an `Iterator`")]
impl<I: SkipOlder, D: DeadEntries> VisibleIter<I, D> {
    /// The memory of walks over dead entries.
    #[inline]
    pub fn memory(&self) -> &D {
        &self.memory
    }

    /// Both ends.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let lower = self.lower.as_ref().map(Vec::as_slice);
        let upper = self.upper.as_ref().map(Vec::as_slice);
        (lower, upper)
    }

    /// Narrows the range to the keys after `key`. The present entry stays the present one.
    pub fn set_lower_excluded(&mut self, key: &[u8]) {
        set_excluded(&mut self.lower, key);
    }

    /// Narrows the range to the keys before `key`. The present entry stays the present one.
    pub fn set_upper_excluded(&mut self, key: &[u8]) {
        self.run = 0;
        set_excluded(&mut self.upper, key);
    }

    /// Returns `true` if the cursor is on an entry.
    #[inline]
    pub fn valid(&self) -> bool {
        self.position != CursorPosition::Invalid
    }

    /// The user key. Only while valid.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match self.position {
            CursorPosition::Forward => self.inner.key().user,
            _ => &self.key,
        }
    }

    /// Kind and sequence number of the entry. Only while valid.
    #[inline]
    pub fn trailer(&self) -> Trailer {
        self.trailer
    }

    /// The stored bytes of the entry. Only while valid.
    #[inline]
    pub fn value(&self) -> &[u8] {
        match self.position {
            CursorPosition::Forward => self.inner.value(),
            _ => &self.value,
        }
    }

    /// The inner cursor, if it is on the current entry.
    pub fn on_current(&self) -> Option<&I> {
        (self.position == CursorPosition::Forward).then_some(&self.inner)
    }

    /// No entry is the current one.
    fn leave(&mut self) {
        self.position = CursorPosition::Invalid;
        self.run = 0;
    }

    /// Moves to the first visible entry within the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.leave();
        // Invalid before the move, so that a move that fails leaves no entry to be read.
        match &self.lower {
            Bound::Unbounded => self.inner.seek(None)?,
            Bound::Included(key) => self.inner.seek(Some(KeyRef::seek(key, self.seq)))?,
            Bound::Excluded(key) => seek_after(&mut self.inner, key)?,
        }
        self.find_forward()
    }

    /// Moves to the last visible entry within the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.leave();
        match &self.upper {
            Bound::Unbounded => self.inner.seek_before(None)?,
            Bound::Excluded(key) => self.inner.seek_before(Some(KeyRef::seek(key, SeqNo::MAX)))?,
            // Before the successor of the key: all versions of the bound belong to the range.
            Bound::Included(key) => {
                let after = [key, &[0][..]].concat();
                self.inner.seek_before(Some(KeyRef::seek(&after, SeqNo::MAX)))?;
            }
        }
        self.find_backward()
    }

    /// Moves to the first visible entry within the bounds whose key is at or after `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        if !is_after_lower(&self.lower, key) {
            return self.seek_to_first();
        }
        self.leave();
        self.inner.seek(Some(KeyRef::seek(key, self.seq)))?;
        self.find_forward()
    }

    /// Moves to the last visible entry within the bounds whose key is before `key`.
    pub fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        if !is_before_upper(&self.upper, key) {
            return self.seek_to_last();
        }
        self.leave();
        self.inner.seek_before(Some(KeyRef::seek(key, SeqNo::MAX)))?;
        self.find_backward()
    }

    /// Moves forward. Only while valid.
    #[inline]
    pub fn next(&mut self) -> Result<()> {
        if self.run > 0 {
            return self.next_in_run();
        }
        match std::mem::replace(&mut self.position, CursorPosition::Invalid) {
            // The one entry that could equal the target is a tombstone: passed over below.
            CursorPosition::Backward => {
                self.inner.seek(Some(KeyRef::new(&self.key, Trailer::LAST)))?;
            }
            _ => self.inner.next_key(&mut self.key)?,
        }
        self.find_forward()
    }

    #[inline]
    fn next_in_run(&mut self) -> Result<()> {
        while self.run > 0 {
            self.run -= 1;
            let trailer = match self.inner.next_in_run() {
                Ok(trailer) => trailer,
                Err(error) => {
                    self.leave();
                    return Err(error);
                }
            };
            // A run ends where the deleted ranges over its keys change.
            if self.is_shown(trailer, self.floors.here()) {
                self.trailer = trailer;
                return Ok(());
            }
        }
        self.position = CursorPosition::Invalid;
        self.search_forward()
    }

    /// Moves back. Only while valid.
    #[inline]
    pub fn prev(&mut self) -> Result<()> {
        self.run = 0;
        if std::mem::replace(&mut self.position, CursorPosition::Invalid)
            != CursorPosition::Backward
        {
            self.key.clear();
            self.key.extend_from_slice(self.inner.key().user);
            // Before all versions of the key: after a forward walk the inner cursor is on one of
            // them.
            self.inner.seek_before(Some(KeyRef::seek(&self.key, SeqNo::MAX)))?;
        }
        self.find_backward()
    }

    /// From the newest entry of a key on: to the first entry within the bounds that is visible and
    /// no tombstone.
    #[inline]
    fn find_forward(&mut self) -> Result<()> {
        if !self.inner.valid() {
            return Ok(());
        }
        // Nearly always this very entry: looked at without a call and a loop.
        let KeyRef { user, trailer } = self.inner.key();
        let floor = self.floors.at(user);
        if is_before_upper(&self.upper, user) && self.is_shown(trailer, floor) {
            self.enter(trailer);
            return Ok(());
        }
        self.search_forward()
    }

    /// Returns `true` if the reader sees the entry that the inner cursor is on, the newest of its key.
    #[inline]
    fn is_shown(&self, trailer: Trailer, floor: SeqNo) -> bool {
        let is_seen = trailer.seq() <= self.seq && shows(trailer, floor);
        if !is_seen || !self.memory.may_expire() {
            return is_seen;
        }
        !self.memory.is_expired(self.inner.key().user, trailer, self.inner.value())
    }

    /// Makes the entry that the inner cursor is on the current one.
    #[inline]
    fn enter(&mut self, trailer: Trailer) {
        self.trailer = trailer;
        self.position = CursorPosition::Forward;
        let upper = match &self.upper {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(KeyRef::new(key, Trailer::LAST)),
            Bound::Excluded(key) => Some(KeyRef::seek(key, SeqNo::MAX)),
        };
        let until = match self.floors.end() {
            None => upper,
            Some(end) => {
                let end = KeyRef::seek(end, SeqNo::MAX);
                Some(upper.map_or(end, |upper| upper.min(end)))
            }
        };
        self.run = self.inner.run_before(until);
    }

    /// As [`VisibleIter::find_forward`], entry by entry.
    fn search_forward(&mut self) -> Result<()> {
        let mut steps = 0;
        let mut walk = DeadWalk::new(Direction::Forward);
        while self.inner.valid() {
            let KeyRef { user, trailer } = self.inner.key();
            // Checked for every stored entry, not only for the shown ones: invariant 4.
            if !is_before_upper(&self.upper, user) {
                break;
            }
            if trailer.seq() > self.seq {
                walk.taint(&self.memory, self.seq);
                // Written after the reader's sequence number. A step is cheap, so a few are tried
                // first; a key that is overwritten all the time would make stepping linear in its
                // versions.
                steps += 1;
                if steps < STEPS_BEFORE_SEEK {
                    self.inner.next()?;
                } else {
                    steps = 0;
                    self.key.clear();
                    self.key.extend_from_slice(user);
                    self.inner.seek(Some(KeyRef::seek(&self.key, self.seq)))?;
                }
                continue;
            }
            // The newest visible version decides for the whole key: if it is a tombstone, older
            // versions are dead, whatever they are.
            steps = 0;
            let floor = self.floors.at(user);
            if shows(trailer, floor) {
                walk.end(&self.memory, self.seq);
                if self.is_shown(trailer, floor) {
                    self.enter(trailer);
                    return Ok(());
                }
                self.inner.next_key(&mut self.key)?;
                continue;
            }
            if let Some(known) = walk.pass(&self.memory, user, trailer, (self.seq, floor)) {
                // To all versions: the walk must notice one that is newer than the reader.
                self.inner.seek(Some(KeyRef::seek(&known.end, SeqNo::MAX)))?;
                continue;
            }
            // All that is older in the range is passed over in one seek.
            if let Some(part) = self.floors.hiding(trailer.seq())
                && self.inner.skip_older(Direction::Forward, part.end.as_deref(), part.seq)?
            {
                walk.pass_over(&self.memory, part.seq, self.seq);
                continue;
            }
            self.inner.next_key(&mut self.key)?;
        }
        walk.end(&self.memory, self.seq);
        Ok(())
    }

    /// From the oldest version of a key on, backwards: to a key within the bounds whose newest
    /// visible version is no tombstone.
    fn find_backward(&mut self) -> Result<()> {
        let mut walk = DeadWalk::new(Direction::Backward);
        while self.inner.valid() {
            if !is_after_lower(&self.lower, self.inner.key().user) {
                break;
            }
            self.key.clear();
            self.key.extend_from_slice(self.inner.key().user);
            let mut found = false;
            let mut steps = 0;
            while self.inner.valid() && self.inner.key().user == &self.key[..] {
                let trailer = self.inner.key().trailer;
                if trailer.seq() > self.seq {
                    walk.taint(&self.memory, self.seq);
                    // Only newer versions follow: none of them is visible.
                    self.pass_versions_backward(&mut steps)?;
                    continue;
                }
                steps += 1;
                // Once a key: after this seek no visible version is left.
                if steps == STEPS_BEFORE_SEEK {
                    // The newest visible version lies at the seek point; what is before it is
                    // too new or another key.
                    self.inner.seek(Some(KeyRef::seek(&self.key, self.seq)))?;
                }
                found = true;
                self.trailer = self.inner.key().trailer;
                self.value.clear();
                if shows(self.trailer, self.floors.at(&self.key)) {
                    // Copied at every step: only the next step shows whether this was the newest
                    // visible version.
                    self.value.extend_from_slice(self.inner.value());
                }
                self.inner.prev()?;
            }
            if !found {
                continue;
            }
            let floor = self.floors.at(&self.key);
            if shows(self.trailer, floor) {
                walk.end(&self.memory, self.seq);
                if self.memory.is_expired(&self.key, self.trailer, &self.value) {
                    continue;
                }
                self.position = CursorPosition::Backward;
                return Ok(());
            }
            let at = (self.seq, floor);
            if let Some(known) = walk.pass(&self.memory, &self.key, self.trailer, at) {
                self.inner.seek_before(Some(KeyRef::seek(&known.start, SeqNo::MAX)))?;
                continue;
            }
            self.pass_range_backward(&mut walk)?;
        }
        walk.end(&self.memory, self.seq);
        Ok(())
    }

    /// Passes over what is older in the deleted range that the inner cursor is in: it is on an earlier key than the
    /// last one.
    fn pass_range_backward(&mut self, walk: &mut DeadWalk) -> Result<()> {
        if !self.inner.valid() {
            return Ok(());
        }
        let KeyRef { user, trailer } = self.inner.key();
        self.floors.at(user);
        if let Some(part) = self.floors.hiding(trailer.seq())
            && self.inner.skip_older(Direction::Backward, part.start.as_deref(), part.seq)?
        {
            walk.pass_over(&self.memory, part.seq, self.seq);
        }
        Ok(())
    }

    fn pass_versions_backward(&mut self, steps: &mut usize) -> Result<()> {
        *steps += 1;
        if *steps <= STEPS_BEFORE_SEEK {
            return self.inner.prev();
        }
        self.inner.seek_before(Some(KeyRef::seek(&self.key, SeqNo::MAX)))
    }
}

/// Returns `true` if the newest visible version of a key shows it; older entries than `floor` are deleted.
#[inline]
fn shows(trailer: Trailer, floor: SeqNo) -> bool {
    trailer.kind() != Some(EntryKind::Tombstone) && trailer.seq() >= floor
}

/// Moves to the first entry after all versions of `key`.
fn seek_after(inner: &mut impl InternalIter, key: &[u8]) -> Result<()> {
    // Trailer::LAST sorts after every version that can exist, except one that equals it.
    inner.seek(Some(KeyRef::new(key, Trailer::LAST)))?;
    if inner.valid() && inner.key().user == key {
        inner.next()?;
    }
    Ok(())
}

/// Makes `key` the bound; its buffer is used again, because a range that is walked from both ends
/// narrows at every step.
fn set_excluded(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    if let Bound::Excluded(buffer) = bound {
        buffer.clear();
        buffer.extend_from_slice(key);
    } else {
        *bound = Bound::Excluded(key.to_vec());
    }
}

#[inline]
fn is_before_upper(upper: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match upper {
        Bound::Unbounded => true,
        Bound::Included(bound) => key <= &bound[..],
        Bound::Excluded(bound) => key < &bound[..],
    }
}

#[inline]
fn is_after_lower(lower: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match lower {
        Bound::Unbounded => true,
        Bound::Included(bound) => key >= &bound[..],
        Bound::Excluded(bound) => key > &bound[..],
    }
}

#[cfg(test)]
mod tests;
