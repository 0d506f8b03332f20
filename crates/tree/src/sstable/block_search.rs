//! Finding a key in a block without rebuilding or allocating one.
//!
//! A search compares the common prefix once, then bisects the words of the block without a
//! branch; only entries whose word is the target's are compared as bytes.

use std::cmp::Ordering;

use crate::types::{KeyRef, SeqNo, first_not_below, prefix8};

use super::block_entry::{BlockEntry, Head, compare_tails};
use super::indexed_block::IndexedBlock;

/// The place of a target in a block.
#[derive(Clone, Copy)]
pub(super) enum Near {
    /// This entry is the first that is not before it.
    At(usize),
    /// This one or the next, if this one is before it.
    AtOrNext(usize),
}

/// Length of the longest common prefix.
#[inline]
pub(super) fn common_len(a: &[u8], b: &[u8]) -> usize {
    let mut len = 0;
    // Eight bytes at a time, as big-endian words: the first difference is in the leading bits.
    let mut words_a = a.chunks_exact(8);
    let mut words_b = b.chunks_exact(8);
    for (a, b) in words_a.by_ref().zip(words_b.by_ref()) {
        let a = prefix8(a);
        let b = prefix8(b);
        if a != b {
            return len + ((a ^ b).leading_zeros() / 8) as usize;
        }
        len += 8;
    }
    len + a[len..].iter().zip(&b[len..]).take_while(|(a, b)| a == b).count()
}

impl IndexedBlock {
    /// Index of the first entry that is not before `target`; [`Block::len`] if all are.
    #[inline]
    pub(super) fn lower_bound(&self, target: KeyRef<'_>) -> usize {
        self.first_of(self.near(target), target)
    }

    /// Index of the first entry that is not before `target`, near which the search ended.
    #[inline]
    pub(super) fn first_of(&self, near: Near, target: KeyRef<'_>) -> usize {
        match near {
            Near::At(at) => at,
            Near::AtOrNext(at) => at + usize::from(self.is_before(at, target)),
        }
    }

    /// As [`IndexedBlock::lower_bound`], as far as it is known without a look at the only entry that has the
    /// word of the target.
    #[inline]
    pub(super) fn near(&self, target: KeyRef<'_>) -> Near {
        self.touch();
        self.near_by(target, |word| first_not_below(self.words(), word))
    }

    /// As [`IndexedBlock::near`], with `search` as the way to the first word that is not below another one.
    #[inline]
    pub(super) fn near_by(&self, target: KeyRef<'_>, search: impl Fn(u64) -> usize) -> Near {
        match self.prefix_order(target.user) {
            // A target that ends within the common prefix sorts before its extensions.
            Ordering::Less => return Near::At(0),
            Ordering::Greater => return Near::At(self.len()),
            Ordering::Equal => {}
        }
        // Over the words first: 8 bytes an entry, one after the other in memory, so that a search
        // touches a few cache lines. Bisecting the keys themselves would rebuild one at each step.
        let word = prefix8(&target.user[self.common_len()..]);
        let words = self.words();
        let low = search(word);
        if words.get(low) != Some(&word) {
            return Near::At(low);
        }
        // Equal words: most often one entry, and most often the key itself.
        if words.get(low + 1) != Some(&word) {
            return Near::AtOrNext(low);
        }
        let ties = words[low..].partition_point(|w| *w == word);
        // Ties: keys that share 8 bytes after the common prefix, or versions of one key. Their
        // words say nothing more, so whole keys are compared, each rebuilt from two pieces.
        let mut low = low;
        let mut high = low + ties;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.is_before(middle, target) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Near::At(low)
    }

    /// Number of entries after entry `at` that are before `until`, each with another user key than the
    /// one before it, as far as the words show that. Without runs, short scans take 1.37 times as long
    /// (design note 34).
    pub(super) fn run_before(&self, at: usize, until: Option<KeyRef<'_>>) -> usize {
        let end = until.map_or(self.len(), |until| match self.near(until) {
            // The entry with the word of `until` may be at it, so it does not count.
            Near::At(end) | Near::AtOrNext(end) => end,
        });
        let words = self.words().get(at..end).unwrap_or_default();
        words.windows(2).take_while(|pair| pair[0] != pair[1]).count()
    }

    /// The newest entry of `user_key` that is not newer than `seq`.
    #[inline]
    pub(super) fn find(&self, user_key: &[u8], seq: SeqNo) -> Option<BlockEntry> {
        self.touch();
        let word = prefix8(user_key.get(self.common_len()..)?);
        let words = self.words();
        let low = first_not_below(words, word);
        // No entry has the word, so none has the key: most misses end here, without a look at an
        // entry.
        if *words.get(low)? != word {
            return None;
        }
        let target = KeyRef::seek(user_key, seq);
        let is_tie = words.get(low + 1) == Some(&word);
        let at = if is_tie { self.lower_bound(target) } else { low };
        if at == self.len() {
            return None;
        }
        self.touch_entry(at);
        let head = self.head(at);
        let trailer = self.trailer(head);
        // Without a tie no search has passed an entry that is newer than the reader.
        if trailer > target.trailer || !self.is_key(head, user_key) {
            return None;
        }
        let value = head.suffix + head.suffix_len;
        Some(BlockEntry { at, trailer, value, value_len: head.value_len })
    }

    /// Returns `true` if `user_key` is the user key of the entry that [`Block::find`] came to.
    ///
    /// The restart key, which lies elsewhere in the block, need not be read. If it is not the
    /// entry itself, the search has passed it. Either its word is smaller: then what the entry
    /// shares with it lies within the entry's word, and that is the word of `user_key`. Or
    /// `user_key` lies between the two and has what both share. This holds for keys with the
    /// common prefix, because words do not order other keys.
    #[inline]
    fn is_key(&self, head: Head, user_key: &[u8]) -> bool {
        let suffix = &self.bytes()[head.suffix..head.suffix + head.suffix_len];
        user_key.get(head.shared..) == Some(suffix) && self.prefix_order(user_key).is_eq()
    }

    /// Returns `true` if entry `i` is before `target`.
    #[inline]
    fn is_before(&self, i: usize, target: KeyRef<'_>) -> bool {
        let entry = self.key(i);
        let order = compare_tails(entry.key.shared, entry.key.suffix, target.user);
        // Newer first: the greater trailer is the earlier.
        order.then_with(|| target.trailer.cmp(&entry.trailer)) == Ordering::Less
    }
}
