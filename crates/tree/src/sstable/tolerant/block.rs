//! [`TolerantBlock`]: the entries of a data block that decode, although the block may not verify.
//!
//! Repairs use it, and the raw walk in its tolerant modes, for scrubs. Nothing here is true just because it
//! decodes. Entries are decoded from the front as far as they make sense, and each is believed only
//! about its own bytes.

use std::ops::Range;

use crate::limits::INTERNAL_KEY_BYTES_MAX;
use crate::types::{InternalKey, Trailer};

use crate::sstable::block_entry::{CheckedEntry, RESTART_ENTRIES, checked_seq};
use crate::sstable::block_tail::BlockTail;
use crate::sstable::hidden::{HIDDEN_BIT, HiddenHead, KeyPieces, Owner, hidden_trailer};
use crate::sstable::stored::StoredPayload;

/// The entries of a block that decode.
#[derive(Default)]
pub(in crate::sstable) struct TolerantBlock {
    payload: Vec<u8>,
    /// The suffix of hidden keys.
    suffix: Vec<u8>,
    base_seq: u64,
    /// The visible ones of `entries`.
    visible: Vec<usize>,
    pub entries: Vec<TolerantEntry>,
    /// `true` if the walk came to the end of the block and nothing was left out.
    pub is_complete: bool,
}

/// An entry of it. Ranges are those of the block's payload.
#[derive(Clone)]
pub(in crate::sstable) struct TolerantEntry {
    /// The index in the block, hidden entries counted.
    pub index: u32,
    pub trailer: Trailer,
    /// Its offset: that of its header.
    pub start: usize,
    /// The bytes that its key has in front, and the rest of its key.
    pub shared: Range<usize>,
    pub rest: Range<usize>,
    has_suffix: bool,
    pub value: Range<usize>,
    /// The payload of the hidden entry of a visible one without its first 8 bytes, if it is in the block.
    pub metadata: Option<Range<usize>>,
    /// The head of a hidden entry; `None` for a visible one.
    hidden: Option<HiddenHead>,
}

impl TolerantEntry {
    pub(in crate::sstable) fn is_hidden(&self) -> bool {
        self.hidden.is_some()
    }
}

impl TolerantBlock {
    /// Decodes what decodes of `payload`.
    pub(in crate::sstable) fn decode(
        payload: &StoredPayload,
        suffix: Option<&[u8]>,
    ) -> TolerantBlock {
        let mut block = TolerantBlock::default();
        block.load(&payload.bytes[..payload.len], suffix);
        block
    }

    /// Decodes what decodes of `payload`, in the place of the block that was here.
    pub(in crate::sstable) fn load(&mut self, payload: &[u8], suffix: Option<&[u8]>) {
        self.payload.clear();
        self.payload.extend_from_slice(payload);
        self.suffix.clear();
        self.suffix.extend_from_slice(suffix.unwrap_or_default());
        self.visible.clear();
        self.entries.clear();
        self.is_complete = false;
        if let Some(tail) = BlockTail::of(payload) {
            self.base_seq = tail.base_seq;
            self.walk(&tail);
        }
    }

    /// The visible entries.
    pub(in crate::sstable) fn visible(&self) -> impl Iterator<Item = &TolerantEntry> {
        self.entries.iter().filter(|entry| !entry.is_hidden())
    }

    fn walk(&mut self, tail: &BlockTail) {
        let mut at = 0;
        let mut restart = 0..0;
        // The start of the restarts follows from the entries alone: the stored count may be
        // damaged.
        while at < tail.start && !self.is_complete {
            let entry = if self.payload[at] & HIDDEN_BIT != 0 && tail.width == 0 {
                self.hidden(at, tail.start)
            } else {
                self.visible_at(at, tail.start, &mut restart)
            };
            // The first entry that makes no sense ends the walk: without its length, the place of
            // the next one would be a guess.
            let Some((entry, next)) = entry else { break };
            if !entry.is_hidden() {
                self.visible.push(self.entries.len());
            }
            self.entries.push(entry);
            at = next;
            self.is_complete = tail.are_all(self.visible.len(), at);
        }
        if tail.width > 0 {
            self.add_column(tail, at);
        }
    }

    /// Adds the hidden entries of a column to the visible ones, which end at `end`.
    fn add_column(&mut self, tail: &BlockTail, end: usize) {
        let column = tail.column_after(end, self.is_complete);
        // Only a table with a suffix holds hidden entries: in any other the width is damage.
        let column = column.filter(|_| !self.suffix.is_empty());
        self.is_complete &= column.is_some();
        let visible = std::mem::take(&mut self.entries);
        for (i, owner) in visible.into_iter().enumerate() {
            let hidden = column.map(|column| column.head(i));
            let hidden = hidden.filter(|head| head.payload.end <= tail.start);
            let metadata = hidden.as_ref().map(|head| head.payload.clone());
            let owner = TolerantEntry { index: 2 * owner.index, metadata, ..owner };
            self.entries.push(owner.clone());
            let Some(head) = hidden else { continue };
            let key_bytes = owner.shared.len() + owner.rest.len() + self.suffix.len();
            if key_bytes > INTERNAL_KEY_BYTES_MAX {
                self.is_complete = false;
                continue;
            }
            self.entries.push(TolerantEntry {
                index: owner.index + 1,
                trailer: hidden_trailer(owner.trailer.seq()),
                has_suffix: true,
                value: head.payload.clone(),
                metadata: None,
                hidden: Some(head),
                ..owner
            });
        }
    }

    fn visible_at(
        &self,
        at: usize,
        tail: usize,
        restart: &mut Range<usize>,
    ) -> Option<(TolerantEntry, usize)> {
        // The same check as in a block that verifies: no writer makes a longer key or value, so that is
        // damage even where the block has room for it.
        let CheckedEntry { shared, suffix, trailer, value } =
            CheckedEntry::at(&self.payload, at, tail, self.base_seq).ok()?;
        let rest = value.start - suffix.len()..value.start;
        let is_restart = self.visible.len().is_multiple_of(RESTART_ENTRIES as usize);
        if (is_restart && shared != 0) || (!is_restart && shared > restart.len()) {
            return None;
        }
        if is_restart {
            *restart = rest.clone();
        }
        // Shared with the restart key and not with the entry before: a damaged entry between them
        // spoils no other key.
        let shared = restart.start..restart.start + shared;
        let end = value.end;
        let index = u32::try_from(self.entries.len()).ok()?;
        let entry = TolerantEntry {
            index,
            trailer,
            start: at,
            shared,
            rest,
            has_suffix: false,
            value,
            metadata: None,
            hidden: None,
        };
        Some((entry, end))
    }

    fn hidden(&mut self, at: usize, tail: usize) -> Option<(TolerantEntry, usize)> {
        let head = HiddenHead::decode(&self.payload, at)?;
        // Only a table with a suffix holds hidden entries: in any other the bit is damage.
        if head.payload.end > tail || self.suffix.is_empty() {
            return None;
        }
        let (shared, rest, seq, has_suffix) = match head.owner {
            Owner::Near(back) => {
                // The distance may be damaged too, and lead before the first entry.
                let owner = *self.visible.get(self.visible.len().checked_sub(back)?)?;
                let after = head.after_seq(&self.payload);
                let metadata = after.map(|it| head.payload.end - it.len()..head.payload.end);
                let owner = self.entries.get_mut(owner)?;
                owner.metadata = metadata;
                (owner.shared.clone(), owner.rest.clone(), owner.trailer.seq(), true)
            }
            Owner::Plain(start, len, delta) => {
                let seq = checked_seq(self.base_seq, delta, at).ok()?;
                (0..0, start..start.checked_add(len)?, seq, false)
            }
        };
        let suffix_len = if has_suffix { self.suffix.len() } else { 0 };
        if shared.len() + rest.len() + suffix_len > INTERNAL_KEY_BYTES_MAX {
            return None;
        }
        let end = head.payload.end;
        let entry = TolerantEntry {
            index: u32::try_from(self.entries.len()).ok()?,
            trailer: hidden_trailer(seq),
            start: at,
            shared,
            rest,
            has_suffix,
            value: head.payload.clone(),
            metadata: None,
            hidden: Some(head),
        };
        Some((entry, end))
    }

    /// Leaves out entries that are not in order, or not between the separators around the block,
    /// because a merge relies on both. Of two neighbours in the wrong order, the one that does not
    /// fit its other neighbour is left out.
    pub(in crate::sstable) fn keep_ordered(
        &mut self,
        before: Option<&InternalKey>,
        end: &InternalKey,
    ) {
        let all = std::mem::take(&mut self.entries);
        let mut kept: Vec<TolerantEntry> = Vec::with_capacity(all.len());
        let end = whole(end);
        for (i, entry) in all.iter().enumerate() {
            // The last that was kept: what was left out bounds nothing.
            let last = kept.last().map(|last| self.pieced(last)).or_else(|| before.map(whole));
            let here = self.pieced(entry);
            // A key that grew by a flipped bit would make every sound entry after it seem out of
            // order, and all of these would be left out in its place.
            let is_outlier = all
                .get(i + 1)
                .map(|next| self.pieced(next))
                .is_some_and(|next| here.order(&next).is_ge() && next.is_after(last.as_ref()));
            if here.is_after(last.as_ref()) && here.order(&end).is_le() && !is_outlier {
                kept.push(entry.clone());
            }
        }
        self.is_complete &= kept.len() == all.len();
        self.entries = kept;
    }

    fn pieced(&self, entry: &TolerantEntry) -> KeyPieces<'_> {
        let suffix: &[u8] = if entry.has_suffix { &self.suffix } else { &[] };
        let shared = &self.payload[entry.shared.clone()];
        let rest = &self.payload[entry.rest.clone()];
        let pieces = [shared, rest, suffix];
        KeyPieces { pieces, trailer: entry.trailer, word: None }
    }

    /// Puts key and value of an entry into buffers.
    pub(in crate::sstable) fn expand(
        &self,
        entry: &TolerantEntry,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) {
        self.put_key(entry, key);
        match &entry.hidden {
            Some(head) => head.expand(&self.payload, entry.trailer.seq(), value),
            None => {
                value.clear();
                value.extend_from_slice(&self.payload[entry.value.clone()]);
            }
        }
    }

    /// Puts the key of an entry into a buffer.
    pub(in crate::sstable) fn put_key(&self, entry: &TolerantEntry, key: &mut Vec<u8>) {
        key.clear();
        self.pieced(entry).pieces.iter().for_each(|piece| key.extend_from_slice(piece));
    }

    /// Number of entries before the first that is not before `target`.
    pub(in crate::sstable) fn lower_bound(&self, target: crate::types::KeyRef<'_>) -> usize {
        let target =
            KeyPieces { pieces: [target.user, &[], &[]], trailer: target.trailer, word: None };
        self.entries.partition_point(|entry| self.pieced(entry).order(&target).is_lt())
    }
}

fn whole(key: &InternalKey) -> KeyPieces<'_> {
    KeyPieces { pieces: [&key.user, &[], &[]], trailer: key.trailer, word: None }
}
