//! Sequence numbers, entry kinds, trailers, and the order of internal keys.
//!
//! An internal key is a user key and an 8-byte trailer: sequence number (56 bits) and kind (8
//! bits). Everything sorted in the engine is sorted by it.
//!
//! Invariants:
//! 1. Order: user key ascending bytewise, then trailer descending, so the newest version of a key
//!    comes first.
//! 2. Numbers of kinds are on disk: never renumbered, never reused.

use std::cmp::Ordering;
use std::fmt;

use crate::limits::SEQNO_MAX;

/// Position in the order of writes: dense, one per operation, global over all partitions.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqNo(u64);

impl SeqNo {
    /// The sequence number before this one; the first has none but itself.
    #[must_use]
    pub const fn previous(self) -> SeqNo {
        SeqNo(self.0.saturating_sub(1))
    }

    /// The number before every write.
    pub const ZERO: SeqNo = SeqNo(0);
    /// After every write; as a read point: the newest version.
    pub const MAX: SeqNo = SeqNo(SEQNO_MAX);

    /// The sequence number `n`, or `None` beyond 56 bits.
    pub fn new(n: u64) -> Option<SeqNo> {
        (n <= SEQNO_MAX).then_some(SeqNo(n))
    }

    /// As an integer.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number `count` operations later.
    ///
    /// # Panics
    /// Beyond 56 bits: at a billion writes a second that is more than two years of writing.
    #[must_use]
    pub fn plus(self, count: u64) -> SeqNo {
        // A panic instead of a wrap: a number that starts again at 0 would sort new entries after
        // old ones.
        let n = self.0.checked_add(count).filter(|n| *n <= SEQNO_MAX);
        SeqNo(n.expect("sequence numbers are exhausted after 2^56 operations"))
    }
}

impl fmt::Debug for SeqNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Display for SeqNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The kind of an entry. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// The key is deleted. May carry a payload.
    Tombstone = 0,
    /// The key has this value.
    Value = 1,
    /// The key's value lies in a value store; the bytes are its handle.
    Handle = 2,
    /// The key's value is what the merge operator of the partition makes of its older value and these bytes.
    Operand = 3,
    /// A range of keys is deleted: of an operation in the log alone. No entry has this kind, see
    /// `types/spans.rs`.
    DeleteRange = 4,
    /// The record is known to be damaged: shadows like a value, reads as corruption.
    Poison = 5,
    /// The partition is cleared: of an operation in the log alone. No entry has this kind, see
    /// `types/clear_seqs.rs`.
    Clear = 6,
}

impl EntryKind {
    /// The message of every read that finds a poison.
    pub const POISONED: &str = "the record is known to be damaged";

    /// The kind of an operation with the on-disk number `n`, if this version knows it.
    pub fn of_operation(n: u8) -> Option<EntryKind> {
        let operations = [EntryKind::Clear, EntryKind::DeleteRange];
        operations.into_iter().find(|kind| *kind as u8 == n).or_else(|| EntryKind::from_u8(n))
    }

    /// Returns `true` if an operation of this kind writes to one key.
    #[inline]
    pub fn is_of_entry(self) -> bool {
        !matches!(self, EntryKind::Clear | EntryKind::DeleteRange)
    }

    /// The kind of an entry with the on-disk number `n`, if this version knows it.
    pub fn from_u8(n: u8) -> Option<EntryKind> {
        match n {
            0 => Some(EntryKind::Tombstone),
            1 => Some(EntryKind::Value),
            2 => Some(EntryKind::Handle),
            3 => Some(EntryKind::Operand),
            5 => Some(EntryKind::Poison),
            _ => None,
        }
    }
}

/// Sequence number and kind in one word: `seq << 8 | kind`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Trailer(u64);

impl Trailer {
    /// The trailer of an entry.
    pub const fn new(seq: SeqNo, kind: EntryKind) -> Trailer {
        Trailer(seq.0 << 8 | kind as u64)
    }

    /// Sorts before every entry of its key that a reader at `seq` may see, after all others.
    pub const fn seek(seq: SeqNo) -> Trailer {
        // Above every kind, so that it sorts before each entry with the same sequence number.
        Trailer(seq.0 << 8 | 0xff)
    }

    /// Sorts after every entry of its key.
    pub const LAST: Trailer = Trailer(0);

    /// The word itself.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The sequence number.
    pub const fn seq(self) -> SeqNo {
        SeqNo(self.0 >> 8)
    }

    /// The same kind with another sequence number.
    #[must_use]
    pub const fn with_seq(self, seq: SeqNo) -> Trailer {
        Trailer(seq.0 << 8 | self.0 & 0xff)
    }

    /// The kind; `None` for a seek target.
    pub fn kind(self) -> Option<EntryKind> {
        EntryKind::from_u8(self.0 as u8)
    }
}

impl fmt::Debug for Trailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}", self.seq(), self.0 as u8)
    }
}

/// A borrowed internal key, ordered by user key ascending, then by trailer descending.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyRef<'a> {
    /// The user key.
    pub user: &'a [u8],
    /// Sequence number and kind.
    pub trailer: Trailer,
}

impl<'a> KeyRef<'a> {
    /// The internal key of `user` and `trailer`.
    pub const fn new(user: &'a [u8], trailer: Trailer) -> Self {
        KeyRef { user, trailer }
    }

    /// Sorts before everything that a reader at `seq` sees of `user`.
    pub const fn seek(user: &'a [u8], seq: SeqNo) -> Self {
        KeyRef { user, trailer: Trailer::seek(seq) }
    }

    /// An owned copy.
    pub fn to_owned(self) -> InternalKey {
        InternalKey { user: self.user.into(), trailer: self.trailer }
    }
}

impl Ord for KeyRef<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        // Newer versions first, so that a search that begins at a sequence number meets the newest
        // visible version at once.
        self.user.cmp(other.user).then_with(|| other.trailer.cmp(&self.trailer))
    }
}

impl PartialOrd for KeyRef<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for KeyRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"{:?}", self.user.escape_ascii(), self.trailer)
    }
}

/// An owned internal key.
#[derive(Clone, PartialEq, Eq)]
pub struct InternalKey {
    /// The user key.
    pub user: Box<[u8]>,
    /// Sequence number and kind.
    pub trailer: Trailer,
}

impl InternalKey {
    /// Borrowed.
    pub fn as_ref(&self) -> KeyRef<'_> {
        KeyRef { user: &self.user, trailer: self.trailer }
    }
}

impl Ord for InternalKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_ref().cmp(&other.as_ref())
    }
}

impl PartialOrd for InternalKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for InternalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

/// The first 8 bytes as a big-endian word, padded with zeros: compares like the bytes, except
/// that equal words decide nothing.
#[inline]
pub fn prefix8(bytes: &[u8]) -> u64 {
    if let Some(head) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*head);
    }
    // Two loads that overlap: copying a few bytes into a word and loading it stalls the CPU.
    let len = bytes.len();
    if let (Some(head), Some(tail)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let head = u32::from_be_bytes(*head);
        let tail = u32::from_be_bytes(*tail);
        return u64::from(head) << 32 | u64::from(tail) << (64 - 8 * len);
    }
    bytes.iter().zip([56, 48, 40]).fold(0, |word, (byte, shift)| word | u64::from(*byte) << shift)
}

/// Words that are looked at together at the end of a search: all of the words of a usual block.
const NEAR_WORDS: usize = 64;
/// Words of a cache line.
const LINE_WORDS: usize = 8;

/// Index of the first of some ascending words that is not below `word`; their number if all are.
#[inline]
pub fn first_not_below(words: &[u64], word: u64) -> usize {
    let mut start = 0;
    let mut len = words.len();
    // Without branches that depend on the data, so that the processor never guesses.
    while len > NEAR_WORDS {
        let half = len / 2;
        start += if words[start + half - 1] < word { half } else { 0 };
        len -= half;
    }
    // One word of each cache line, then all of one line. The loads of a step do not wait for each
    // other, so that lines which no processor has cached are fetched at the same time. To go on
    // halving would wait for one after the other.
    let near = &words[start..start + len];
    let lines = near.chunks_exact(LINE_WORDS);
    let below = lines.map(|line| usize::from(line[LINE_WORDS - 1] < word)).sum::<usize>();
    let rest = &near[LINE_WORDS * below..];
    let line = &rest[..rest.len().min(LINE_WORDS)];
    start + LINE_WORDS * below + line.iter().map(|w| usize::from(*w < word)).sum::<usize>()
}

/// Returns `true` if the hidden entry of `owner` sorts before `next`, which sorts after `owner`.
#[inline]
pub fn hidden_precedes(owner: &[u8], suffix: &[u8], next: &[u8]) -> bool {
    match (next.get(owner.len()), suffix.first()) {
        // It does not begin with the owner. So it differs in an earlier byte, where it is greater.
        (None, _) => true,
        // It differs before, or goes on with more than the suffix.
        (Some(byte), Some(first)) if byte > first => true,
        _ => !next.starts_with(owner) || &next[owner.len()..] > suffix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hidden_entries_sort_as_if_their_keys_were_spelled_out(
            owner in prop::collection::vec(0u8..3, 0..5),
            next in prop::collection::vec(0u8..3, 1..7),
            suffix in prop::collection::vec(0u8..3, 1..3),
        ) {
            prop_assume!(owner < next);
            let hidden = [&owner[..], &suffix].concat();
            prop_assert_eq!(hidden_precedes(&owner, &suffix, &next), hidden < next);
        }

        #[test]
        fn the_first_word_not_below_is_that_of_a_plain_search(
            mut words in prop::collection::vec(0u64..200, 0..300),
            word in 0u64..201,
        ) {
            words.sort_unstable();
            let expected = words.partition_point(|w| *w < word);
            prop_assert_eq!(first_not_below(&words, word), expected);
        }
    }

    fn at(n: u64) -> Trailer {
        Trailer::new(SeqNo(n), EntryKind::Value)
    }

    #[test]
    fn newest_version_comes_first_and_seek_finds_it() {
        let old = KeyRef::new(b"k", at(3));
        let new = KeyRef::new(b"k", at(9));
        assert!(new < old);
        let seek = KeyRef::seek(b"k", SeqNo(5));
        assert!(new < seek && seek < old);
        assert!(old < KeyRef::new(b"k", Trailer::LAST) && old < KeyRef::new(b"k\0", at(99)));
    }

    #[test]
    fn short_prefix_words_are_padded_with_zeros() {
        for len in 0..12_u8 {
            let bytes: Vec<u8> = (0..len).map(|n| 0xf1 + n).collect();
            let mut padded = bytes.clone();
            padded.resize(8, 0);
            assert_eq!(prefix8(&bytes).to_be_bytes(), padded[..8]);
        }
    }

    proptest! {
        #[test]
        fn prefix_words_never_contradict_the_byte_order(a: Vec<u8>, b: Vec<u8>) {
            match prefix8(&a).cmp(&prefix8(&b)) {
                Ordering::Equal => {}
                order => prop_assert_eq!(order, a.cmp(&b)),
            }
        }
    }
}
