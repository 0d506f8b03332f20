//! The one pass that checks all entries of a block, so that later code can trust them. Called by
//! [`Block::parse`] alone.
//!
//! [`Block::parse`]: super::block::Block::parse

use std::cmp::Ordering;

use crate::codec::{Malformed, Reader};
use crate::limits::{FORMAT_VALUE_BYTES_MAX, INTERNAL_KEY_BYTES_MAX};
use crate::types::{Trailer, prefix8};

use super::block_entry::{
    CheckedEntry, PrefixedKey, RESTART_ENTRIES, bad, checked_seq, compare_prefixed, prefixed_word,
};
use super::hidden::{HIDDEN_BIT, HiddenHead, KeyPieces, Owner, hidden_trailer};

/// The one pass over a block's entries that makes them trusted.
pub(super) struct BlockPass<'a> {
    pub payload: &'a [u8],
    /// End of the entries.
    pub end: usize,
    pub common: usize,
    pub base_seq: u64,
    pub restarts: Reader<'a>,
    pub words: Vec<u64>,
    pub offsets: Vec<u32>,
    /// The table's, if it may have hidden entries.
    pub hidden_suffix: Option<&'a [u8]>,
    /// Each visible entry has a hidden one right after it, whose payload lies elsewhere.
    pub has_column: bool,
    pub hidden: Vec<u32>,
    /// The last visible entry.
    pub last: Option<(PrefixedKey<'a>, Trailer)>,
    /// The hidden entry after it, if there is one.
    pub last_hidden: Option<LastHidden<'a>>,
}

/// A hidden entry that nothing visible has come after yet.
#[derive(Clone, Copy)]
pub(super) enum LastHidden<'a> {
    /// The hidden entry of the last visible one, right after it, as nearly always.
    OfLast,
    /// Any other hidden entry.
    Other(KeyPieces<'a>),
}

impl<'a> BlockPass<'a> {
    /// Takes in `count` visible entries and the hidden ones among them.
    ///
    /// # Errors
    /// The defect, and the byte at which it is.
    pub(super) fn entries(&mut self, count: usize) -> Result<(), Malformed> {
        let mut at = 0;
        let mut restart: &[u8] = &[];
        let mut common_prefix: &[u8] = &[];
        for i in 0..count {
            // There are bytes after the entries, so that this one exists.
            if self.payload[at] & HIDDEN_BIT != 0 && !self.has_column {
                at = match self.usual_hidden_entry(at) {
                    // Nearly always the only one, and a visible entry is next.
                    Some(next) if self.is_visible(next) => next,
                    Some(next) => self.hidden_run(next)?,
                    None => self.hidden_run(at)?,
                };
            }
            let entry = CheckedEntry::at(self.payload, at, self.end, self.base_seq)?;
            let CheckedEntry { shared, suffix, trailer, value } = entry;
            if (i as u32).is_multiple_of(RESTART_ENTRIES) {
                // A search rebuilds a key from the restart that its index names, so the stored
                // offsets must be these.
                if self.restarts.u32()? as usize != at || shared != 0 {
                    return Err(bad("restart offset does not name its entry", at));
                }
                restart = suffix;
                if i == 0 {
                    common_prefix = suffix.get(..self.common).unwrap_or(&[]);
                }
                if common_prefix.len() != self.common || !suffix.starts_with(common_prefix) {
                    return Err(bad("key lacks the common prefix", at));
                }
            // Less than the common prefix would make the word of the key begin in the wrong place.
            } else if shared > restart.len() || shared < self.common {
                return Err(bad("shared key length is out of range", at));
            }
            let key = PrefixedKey { shared: &restart[..shared], suffix };
            let word = prefixed_word(key, self.common);
            self.check_order(key, trailer, word).ok_or(bad("keys do not ascend", at))?;
            self.words.push(word);
            self.offsets.push(at as u32);
            self.last = Some((key, trailer));
            if self.has_column {
                let suffix_len = self.hidden_suffix.map_or(0, <[u8]>::len);
                check_len(key.len() + suffix_len, at)?;
                self.last_hidden = Some(LastHidden::OfLast);
            }
            at = value.end;
        }
        if !self.has_column {
            at = self.hidden_run(at)?;
        }
        // Bytes that no entry owns would make two encodings of one block, and could hide a lost
        // entry.
        if at == self.end { Ok(()) } else { Err(bad("bytes are left over", at)) }
    }

    /// Checks that the next visible entry is after the last one, and after the hidden entry of that.
    #[inline]
    fn check_order(&mut self, key: PrefixedKey<'a>, trailer: Trailer, word: u64) -> Option<()> {
        if let (Some(&before), Some((last_key, last_trailer))) = (self.words.last(), self.last) {
            // After a prefix that all have, words ascend with the keys; equal ones decide
            // nothing.
            let order = before.cmp(&word).then_with(|| compare_prefixed(last_key, key));
            if order.then(trailer.cmp(&last_trailer)) != Ordering::Less {
                return None;
            }
            // Of two keys that differ within their words the hidden key of the first sorts
            // after the second only if the second begins with the first.
            let cannot_begin = before != word && key.len() <= last_key.len();
            if matches!(self.last_hidden, Some(LastHidden::OfLast)) && cannot_begin {
                self.last_hidden = None;
            }
        }
        if let Some(hidden) = self.hidden_before() {
            if hidden.order(&pieced(key, trailer, word)) != Ordering::Less {
                return None;
            }
            self.last_hidden = None;
        }
        Some(())
    }
}

/// The hidden entries of a block.
impl<'a> BlockPass<'a> {
    /// Returns `true` if a visible entry begins at `at`, as far as its header says.
    #[inline]
    fn is_visible(&self, at: usize) -> bool {
        at < self.end && self.payload[at] & HIDDEN_BIT == 0
    }

    /// Takes in the hidden entries from `at` on; returns where the next visible one begins.
    fn hidden_run(&mut self, mut at: usize) -> Result<usize, Malformed> {
        while at < self.end && self.payload[at] & HIDDEN_BIT != 0 {
            at = match self.usual_hidden_entry(at) {
                Some(next) => next,
                None => self.hidden_entry(at)?,
            };
        }
        Ok(at)
    }

    /// Takes in the hidden entry at `at` if it is as nearly all are: short, and right after its
    /// owner, where it is in order. What would be wrong is not said here.
    #[inline]
    fn usual_hidden_entry(&mut self, at: usize) -> Option<usize> {
        let next = HiddenHead::usual_end(self.payload, at)?;
        let (owner, _) = self.last.as_ref()?;
        let len = owner.len() + self.hidden_suffix?.len();
        if self.last_hidden.is_some() || next > self.end || len > INTERNAL_KEY_BYTES_MAX {
            return None;
        }
        self.last_hidden = Some(LastHidden::OfLast);
        self.hidden.push(at as u32);
        Some(next)
    }

    /// Takes in the hidden entry at `at`; returns where it ends.
    fn hidden_entry(&mut self, at: usize) -> Result<usize, Malformed> {
        let Some(suffix) = self.hidden_suffix else {
            return Err(bad("hidden entry in a table without hidden entries", at));
        };
        let head = HiddenHead::decode(self.payload, at).ok_or(bad("bad hidden entry", at))?;
        if head.payload.end > self.end {
            return Err(bad("entry exceeds the block", at));
        }
        if head.payload_len() as u64 > FORMAT_VALUE_BYTES_MAX {
            return Err(bad("value length out of range", at));
        }
        let here = match (head.owner, self.last) {
            // Right after its owner it is in order.
            (Owner::Near(1), Some((owner, _))) if self.last_hidden.is_none() => {
                check_len(owner.len() + suffix.len(), at)?;
                self.last_hidden = Some(LastHidden::OfLast);
                self.hidden.push(at as u32);
                return Ok(head.payload.end);
            }
            (Owner::Near(back), _) => self.near(back, suffix, at)?,
            (Owner::Plain(start, len, delta), _) => {
                let key = &self.payload[start..start + len];
                if !key.ends_with(suffix) {
                    return Err(bad("hidden key lacks the suffix", at));
                }
                let trailer = hidden_trailer(checked_seq(self.base_seq, delta, at)?);
                KeyPieces { pieces: [key, &[], &[]], trailer, word: None }
            }
        };
        check_len(here.pieces.iter().map(|piece| piece.len()).sum(), at)?;
        // The last entry of either sort is the neighbour.
        let before =
            self.hidden_before().or_else(|| self.visible(self.offsets.len().checked_sub(1)?));
        if before.is_some_and(|before| before.order(&here) != Ordering::Less) {
            return Err(bad("keys do not ascend", at));
        }
        self.last_hidden = Some(LastHidden::Other(here));
        self.hidden.push(at as u32);
        Ok(head.payload.end)
    }

    /// The key of the hidden entry that nothing visible has come after yet.
    #[inline]
    fn hidden_before(&self) -> Option<KeyPieces<'a>> {
        match self.last_hidden? {
            LastHidden::Other(key) => Some(key),
            LastHidden::OfLast => {
                let (owner, trailer) = self.last?;
                let pieces = [owner.shared, owner.suffix, self.hidden_suffix?];
                Some(KeyPieces { pieces, trailer: hidden_trailer(trailer.seq()), word: None })
            }
        }
    }

    /// The key of a hidden entry whose owner is `back` visible entries before.
    fn near(&self, back: usize, suffix: &'a [u8], at: usize) -> Result<KeyPieces<'a>, Malformed> {
        let owner = self.offsets.len().checked_sub(back).and_then(|i| self.visible(i));
        let mut key = owner.ok_or(bad("hidden entry has no owner", at))?;
        let rest = key.pieces[0].len() + key.pieces[1].len() - self.common;
        if rest < 8 {
            let tail = prefix8(suffix) >> (8 * rest);
            key.word = key.word.map(|word| word | tail);
        }
        key.pieces[2] = suffix;
        key.trailer = hidden_trailer(key.trailer.seq());
        Ok(key)
    }

    /// The visible entry `i`, which was taken in already.
    fn visible(&self, i: usize) -> Option<KeyPieces<'a>> {
        let entry = self.taken_in(*self.offsets.get(i)?)?;
        let group = i - i % RESTART_ENTRIES as usize;
        let shared = &self.taken_in(self.offsets[group])?.suffix[..entry.shared];
        let key = PrefixedKey { shared, suffix: entry.suffix };
        Some(pieced(key, entry.trailer, self.words[i]))
    }

    /// The visible entry at `offset`, which was taken in already.
    fn taken_in(&self, offset: u32) -> Option<CheckedEntry<'a>> {
        CheckedEntry::at(self.payload, offset as usize, self.end, self.base_seq).ok()
    }
}

fn pieced(key: PrefixedKey<'_>, trailer: Trailer, word: u64) -> KeyPieces<'_> {
    KeyPieces { pieces: [key.shared, key.suffix, &[]], trailer, word: Some(word) }
}

#[inline]
fn check_len(len: usize, at: usize) -> Result<(), Malformed> {
    if len > INTERNAL_KEY_BYTES_MAX { Err(bad("key length out of range", at)) } else { Ok(()) }
}
