//! The search of a range for writes after a sequence.

use std::ops::Bound;

use crate::error::Result;
use crate::iter::InternalIter;
use crate::read::Bounds;
use crate::types::{KeyRef, SeqNo, Trailer};

/// The number of keys that may still be looked at.
pub(super) struct Steps(usize);

impl Steps {
    pub(super) fn new(count: usize) -> Steps {
        Steps(count)
    }

    /// Takes a step; `false` if there is none left.
    pub(super) fn take(&mut self) -> bool {
        let is_left = self.0 > 0;
        self.0 -= usize::from(is_left);
        is_left
    }
}

/// The outcome of a search.
pub(super) enum Look {
    Nothing,
    /// The first key that was written, and when.
    Found(Vec<u8>, SeqNo),
    GaveUp,
}

/// Returns `true` if `key` lies before the end of a range.
pub(super) fn is_before_end(upper: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match upper {
        Bound::Included(last) => key <= &last[..],
        Bound::Excluded(end) => key < &end[..],
        Bound::Unbounded => true,
    }
}

/// Searches `entries` for a key of `range` with an entry after `after`.
pub(super) fn find_newer(
    entries: &mut impl InternalIter,
    (lower, upper): &Bounds,
    after: SeqNo,
    steps: &mut Steps,
) -> Result<Look> {
    match lower {
        Bound::Included(first) => entries.seek(Some(KeyRef::seek(first, SeqNo::MAX)))?,
        Bound::Excluded(before) => entries.seek(Some(KeyRef::new(before, Trailer::LAST)))?,
        Bound::Unbounded => entries.seek(None)?,
    }
    let mut room = Vec::new();
    while entries.valid() {
        // Counted by key and not by entry: a key with many versions is one step, because `next_key`
        // skips them.
        if !steps.take() {
            return Ok(Look::GaveUp);
        }
        let newest = entries.key();
        if !is_before_end(upper, newest.user) {
            break;
        }
        if newest.trailer.seq() > after {
            return Ok(Look::Found(newest.user.to_vec(), newest.trailer.seq()));
        }
        // The newest entry of a key comes first, so its other ones are older.
        entries.next_key(&mut room)?;
    }
    Ok(Look::Nothing)
}
