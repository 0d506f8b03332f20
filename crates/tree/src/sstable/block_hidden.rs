//! The hidden entries of a [`Block`] in memory. `hidden.rs` describes their bytes.

use std::ops::Range;

use crate::types::{InternalKey, KeyRef, SeqNo, Trailer};

use super::block::Block;
use super::hidden::{HiddenEntries, HiddenHead, Owner, hidden_trailer};

impl Block {
    /// Number of hidden entries.
    #[inline]
    pub(super) fn hidden_len(&self) -> usize {
        match &self.hidden {
            HiddenEntries::None => 0,
            HiddenEntries::Mixed(offsets) => offsets.len(),
            HiddenEntries::Column(_) => self.len(),
        }
    }

    /// Returns `true` if no hidden entry lies between two visible ones: each of those begins where the one
    /// before it ends.
    #[inline]
    pub(super) fn is_dense(&self) -> bool {
        !matches!(self.hidden, HiddenEntries::Mixed(_))
    }

    /// Returns `true` if hidden entry `h` sorts after visible entry `i`.
    #[inline]
    pub(super) fn is_hidden_after(&self, h: usize, i: usize) -> bool {
        match &self.hidden {
            HiddenEntries::None => false,
            // Entries lie in their sort order.
            HiddenEntries::Mixed(offsets) => offsets[h] > self.offset(i),
            HiddenEntries::Column(_) => h >= i,
        }
    }

    /// Returns `true` if the entry that has `visible` and `hidden` entries before it is a hidden one.
    #[inline]
    pub(super) fn is_hidden_next(&self, visible: usize, hidden: usize) -> bool {
        let is_there = hidden < self.hidden_len();
        is_there && (visible == self.len() || !self.is_hidden_after(hidden, visible))
    }

    /// Returns the range of the payload in which hidden entry `h` is stored.
    pub(super) fn hidden_range(&self, h: usize) -> Range<usize> {
        let payload = self.hidden_head(h).payload;
        match &self.hidden {
            HiddenEntries::Mixed(offsets) => offsets[h] as usize..payload.end,
            HiddenEntries::None | HiddenEntries::Column(_) => payload,
        }
    }

    /// The hidden entry `h`.
    #[inline]
    pub(super) fn hidden_head(&self, h: usize) -> HiddenHead {
        match &self.hidden {
            HiddenEntries::Mixed(offsets) => {
                let head = HiddenHead::decode(self.bytes(), offsets[h] as usize);
                head.expect("entries were decoded when the block was parsed")
            }
            HiddenEntries::Column(column) => column.head(h),
            HiddenEntries::None => unreachable!("the block has no hidden entry"),
        }
    }

    /// Puts the key of hidden entry `h` into `out`; returns its trailer.
    pub(super) fn hidden_key(&self, h: usize, suffix: &[u8], out: &mut Vec<u8>) -> Trailer {
        out.clear();
        match self.hidden_head(h).owner {
            Owner::Plain(start, len, delta) => {
                out.extend_from_slice(&self.bytes()[start..start + len]);
                hidden_trailer(self.seq(delta))
            }
            Owner::Near(back) => {
                let before = match &self.hidden {
                    HiddenEntries::Mixed(offsets) => self.visible_before(offsets[h]),
                    HiddenEntries::None | HiddenEntries::Column(_) => h + 1,
                };
                let owner = self.key(before - back);
                out.extend_from_slice(owner.key.shared);
                out.extend_from_slice(owner.key.suffix);
                out.extend_from_slice(suffix);
                hidden_trailer(owner.trailer.seq())
            }
        }
    }

    /// Number of entries before the first that is not before `target`: visible and hidden ones.
    pub(super) fn lower_bound_all(&self, target: KeyRef<'_>, suffix: &[u8]) -> (usize, usize) {
        (self.lower_bound(target), self.lower_bound_hidden(target, suffix))
    }

    /// Number of hidden entries before the first that is not before `target`.
    fn lower_bound_hidden(&self, target: KeyRef<'_>, suffix: &[u8]) -> usize {
        let mut low = 0;
        let mut high = self.hidden_len();
        let mut key = Vec::new();
        while low < high {
            let middle = low + (high - low) / 2;
            // Hidden entries have no words, so each step rebuilds a key.
            let trailer = self.hidden_key(middle, suffix, &mut key);
            if KeyRef::new(&key, trailer) < target {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The hidden entry that belongs to visible entry `i`, which ends at `end`, if it comes
    /// next: if no other version and no other key sorts between the two. Looks at little
    /// but the bytes after the entry, which a search has just been near.
    #[inline]
    pub(super) fn next_hidden(&self, i: usize, end: usize) -> Option<HiddenHead> {
        let offsets = match &self.hidden {
            HiddenEntries::None => return None,
            HiddenEntries::Column(column) => return Some(column.head(i)),
            HiddenEntries::Mixed(offsets) => offsets,
        };
        // After the last entry lie the restarts; after another one a header, hidden or not.
        let is_end =
            i + 1 == self.len() && offsets.last().is_none_or(|last| (*last as usize) < end);
        let head = if is_end { None } else { HiddenHead::decode(self.bytes(), end) };
        head.filter(|head| head.owner == Owner::Near(1))
    }

    /// The hidden entry with this whole key and sequence number.
    pub(super) fn find_hidden(&self, key: &[u8], seq: SeqNo, suffix: &[u8]) -> Option<HiddenHead> {
        let target = KeyRef::new(key, hidden_trailer(seq));
        let at = self.lower_bound_hidden(target, suffix);
        if at == self.hidden_len() {
            return None;
        }
        let mut found = Vec::new();
        let trailer = self.hidden_key(at, suffix, &mut found);
        (KeyRef::new(&found, trailer) == target).then(|| self.hidden_head(at))
    }

    /// Returns the number of entries before visible entry `i`, hidden ones counted.
    pub(super) fn entries_before(&self, i: usize) -> usize {
        match &self.hidden {
            HiddenEntries::None => i,
            HiddenEntries::Mixed(offsets) => {
                let offset = self.offset(i);
                i + offsets.partition_point(|hidden| *hidden < offset)
            }
            HiddenEntries::Column(_) => 2 * i,
        }
    }

    /// The first and the last key of all entries.
    pub(super) fn edges(&self, suffix: &[u8]) -> (InternalKey, InternalKey) {
        let first = match self.is_hidden_next(0, 0) {
            true => self.whole_hidden_key(0, suffix),
            false => self.whole_key(0),
        };
        let last = match self.ends_hidden() {
            true => self.whole_hidden_key(self.hidden_len() - 1, suffix),
            false => self.whole_key(self.len() - 1),
        };
        (first, last)
    }

    /// Returns `true` if the last entry is a hidden one.
    fn ends_hidden(&self) -> bool {
        match (self.len().checked_sub(1), self.hidden_len().checked_sub(1)) {
            (Some(visible), Some(hidden)) => self.is_hidden_after(hidden, visible),
            (visible, _) => visible.is_none(),
        }
    }

    fn whole_hidden_key(&self, h: usize, suffix: &[u8]) -> InternalKey {
        let mut user = Vec::new();
        let trailer = self.hidden_key(h, suffix, &mut user);
        InternalKey { user: user.into(), trailer }
    }

    /// Returns `true` if the last entry is a hidden one with this user key: then the next block may
    /// hold visible entries of it.
    pub(super) fn ends_hidden_with(&self, user_key: &[u8], hidden_suffix: &[u8]) -> bool {
        if self.hidden_len() == 0 || !self.ends_hidden() {
            return false;
        }
        match self.hidden_head(self.hidden_len() - 1).owner {
            Owner::Plain(start, len, _) => self.bytes()[start..start + len] == *user_key,
            Owner::Near(back) => user_key
                .strip_suffix(hidden_suffix)
                .is_some_and(|owner| self.key(self.len() - back).key.is(owner)),
        }
    }
}
