//! [`Suspect`]: the entries of a data block that still decode although the block does not verify.
//!
//! The raw walk makes it in its tolerant modes, for repairs. Nothing here is true just because it
//! decodes. Entries are decoded from the front as far as they make sense, and each is believed only
//! about its own bytes.

use std::ops::Range;

use crate::limits::INTERNAL_KEY_BYTES_MAX;
use crate::types::{EntryKind, InternalKey, SeqNo, Trailer};

use super::block_entry::{Head, RESTART_ENTRIES};
use super::block_tail::BlockTail;
use super::hidden::{HIDDEN_BIT, HiddenHead, Owner, PiecedKey, hidden_trailer};
use super::stored::StoredPayload;

/// The entries of a damaged block that decode.
#[derive(Default)]
pub(super) struct Suspect {
    payload: Vec<u8>,
    /// The suffix of hidden keys.
    suffix: Vec<u8>,
    base_seq: u64,
    pub entries: Vec<SuspectEntry>,
    /// `true` if the walk came to the end of the block and nothing was left out.
    pub is_complete: bool,
}

/// An entry of a damaged block.
#[derive(Clone)]
pub(super) struct SuspectEntry {
    /// The index in the block, hidden entries counted.
    pub index: u32,
    pub trailer: Trailer,
    shared: Range<usize>,
    rest: Range<usize>,
    has_suffix: bool,
    value: Range<usize>,
    /// The head of a hidden entry; `None` for a visible one.
    hidden: Option<HiddenHead>,
}

impl SuspectEntry {
    pub(super) fn is_hidden(&self) -> bool {
        self.hidden.is_some()
    }
}

impl Suspect {
    /// Decodes what decodes of `payload`.
    pub(super) fn decode(payload: &StoredPayload, suffix: Option<&[u8]>) -> Suspect {
        let payload = payload.bytes[..payload.len].to_vec();
        let mut suspect =
            Suspect { suffix: suffix.unwrap_or_default().to_vec(), payload, ..Suspect::default() };
        let Some(tail) = BlockTail::of(&suspect.payload) else { return suspect };
        suspect.base_seq = tail.base_seq;
        suspect.walk(&tail);
        suspect
    }

    fn walk(&mut self, tail: &BlockTail) {
        let mut at = 0;
        let mut restart = 0..0;
        let mut visible: Vec<usize> = Vec::new();
        // The start of the restarts follows from the entries alone: the stored count may be
        // damaged.
        while at < tail.start && !self.is_complete {
            let entry = if self.payload[at] & HIDDEN_BIT != 0 && tail.width == 0 {
                self.hidden(at, tail.start, &visible)
            } else {
                self.visible(at, tail.start, visible.len(), &mut restart)
            };
            // The first entry that makes no sense ends the walk: without its length, the place of
            // the next one would be a guess.
            let Some((entry, next)) = entry else { break };
            if !entry.is_hidden() {
                visible.push(self.entries.len());
            }
            self.entries.push(entry);
            at = next;
            self.is_complete = tail.are_all(visible.len(), at);
        }
        if tail.width > 0 {
            self.add_column(tail, at);
        }
    }

    /// Adds the hidden entries of a column to the visible ones, which end at `end`.
    fn add_column(&mut self, tail: &BlockTail, end: usize) {
        let column = tail.column_behind(end, self.is_complete);
        // Only a table with a suffix holds hidden entries: in any other the width is damage.
        let column = column.filter(|_| !self.suffix.is_empty());
        self.is_complete &= column.is_some();
        let visible = std::mem::take(&mut self.entries);
        for (i, owner) in visible.into_iter().enumerate() {
            let hidden = column.map(|column| column.head(i));
            let owner = SuspectEntry { index: 2 * owner.index, ..owner };
            self.entries.push(owner.clone());
            let Some(head) = hidden.filter(|head| head.payload.end <= tail.start) else { continue };
            let key_bytes = owner.shared.len() + owner.rest.len() + self.suffix.len();
            if key_bytes > INTERNAL_KEY_BYTES_MAX {
                self.is_complete = false;
                continue;
            }
            self.entries.push(SuspectEntry {
                index: owner.index + 1,
                trailer: hidden_trailer(owner.trailer.seq()),
                has_suffix: true,
                value: head.payload.clone(),
                hidden: Some(head),
                ..owner
            });
        }
    }

    fn visible(
        &self,
        at: usize,
        tail: usize,
        before: usize,
        restart: &mut Range<usize>,
    ) -> Option<(SuspectEntry, usize)> {
        let head = Head::decode(&self.payload, at)?;
        let rest = head.suffix..head.suffix.checked_add(head.suffix_len)?;
        let value = rest.end..rest.end.checked_add(head.value_len)?;
        let is_restart = before.is_multiple_of(RESTART_ENTRIES as usize);
        let key_len = head.shared.checked_add(head.suffix_len)?;
        if value.end > tail
            || !(1..=INTERNAL_KEY_BYTES_MAX).contains(&key_len)
            || (is_restart && head.shared != 0)
            || (!is_restart && head.shared > restart.len())
        {
            return None;
        }
        if is_restart {
            *restart = rest.clone();
        }
        // Shared with the restart key and not with the entry before: a damaged entry between them
        // spoils no other key.
        let shared = restart.start..restart.start + head.shared;
        let trailer = Trailer::new(self.seq(head.delta)?, EntryKind::from_u8(self.payload[at])?);
        let end = value.end;
        let index = u32::try_from(self.entries.len()).ok()?;
        let entry =
            SuspectEntry { index, trailer, shared, rest, has_suffix: false, value, hidden: None };
        Some((entry, end))
    }

    fn hidden(&self, at: usize, tail: usize, visible: &[usize]) -> Option<(SuspectEntry, usize)> {
        let head = HiddenHead::decode(&self.payload, at)?;
        // Only a table with a suffix holds hidden entries: in any other the bit is damage.
        if head.payload.end > tail || self.suffix.is_empty() {
            return None;
        }
        let (shared, rest, seq, has_suffix) = match head.owner {
            Owner::Near(back) => {
                // The distance may be damaged too, and lead before the first entry.
                let owner = *visible.get(visible.len().checked_sub(back)?)?;
                let owner = self.entries.get(owner)?;
                (owner.shared.clone(), owner.rest.clone(), owner.trailer.seq(), true)
            }
            Owner::Plain(start, len, delta) => {
                (0..0, start..start.checked_add(len)?, self.seq(delta)?, false)
            }
        };
        let suffix_len = if has_suffix { self.suffix.len() } else { 0 };
        if !(1..=INTERNAL_KEY_BYTES_MAX).contains(&(shared.len() + rest.len() + suffix_len)) {
            return None;
        }
        let end = head.payload.end;
        let entry = SuspectEntry {
            index: u32::try_from(self.entries.len()).ok()?,
            trailer: hidden_trailer(seq),
            shared,
            rest,
            has_suffix,
            value: head.payload.clone(),
            hidden: Some(head),
        };
        Some((entry, end))
    }

    fn seq(&self, delta: u64) -> Option<SeqNo> {
        self.base_seq.checked_add(delta).and_then(SeqNo::new)
    }

    /// Leaves out entries that are not in order, or not between the separators around the block,
    /// because a merge relies on both. Of two neighbours in the wrong order, the one that does not
    /// fit its other neighbour is left out.
    pub(super) fn keep_ordered(&mut self, before: Option<&InternalKey>, end: &InternalKey) {
        let all = std::mem::take(&mut self.entries);
        let mut kept: Vec<SuspectEntry> = Vec::with_capacity(all.len());
        let end = whole(end);
        for (i, entry) in all.iter().enumerate() {
            // The last that was kept: what was left out bounds nothing.
            let last = kept.last().map(|last| self.pieced(last)).or_else(|| before.map(whole));
            let here = self.pieced(entry);
            // A key that grew by a flipped bit would make every sound entry behind it seem out of
            // order, and all of these would be left out in its place.
            let is_outlier = all
                .get(i + 1)
                .map(|next| self.pieced(next))
                .is_some_and(|next| here.order(&next).is_ge() && next.is_behind(last.as_ref()));
            if here.is_behind(last.as_ref()) && here.order(&end).is_le() && !is_outlier {
                kept.push(entry.clone());
            }
        }
        self.is_complete &= kept.len() == all.len();
        self.entries = kept;
    }

    fn pieced(&self, entry: &SuspectEntry) -> PiecedKey<'_> {
        let suffix: &[u8] = if entry.has_suffix { &self.suffix } else { &[] };
        let shared = &self.payload[entry.shared.clone()];
        let rest = &self.payload[entry.rest.clone()];
        let pieces = [shared, rest, suffix];
        PiecedKey { pieces, trailer: entry.trailer, word: None }
    }

    /// Puts key and value of an entry into buffers.
    pub(super) fn expand(&self, entry: &SuspectEntry, key: &mut Vec<u8>, value: &mut Vec<u8>) {
        key.clear();
        self.pieced(entry).pieces.iter().for_each(|piece| key.extend_from_slice(piece));
        match &entry.hidden {
            Some(head) => head.expand(&self.payload, entry.trailer.seq(), value),
            None => {
                value.clear();
                value.extend_from_slice(&self.payload[entry.value.clone()]);
            }
        }
    }

    /// Number of entries before the first that is not before `target`.
    pub(super) fn lower_bound(&self, target: crate::types::KeyRef<'_>) -> usize {
        let target =
            PiecedKey { pieces: [target.user, &[], &[]], trailer: target.trailer, word: None };
        self.entries.partition_point(|entry| self.pieced(entry).order(&target).is_lt())
    }
}

fn whole(key: &InternalKey) -> PiecedKey<'_> {
    PiecedKey { pieces: [&key.user, &[], &[]], trailer: key.trailer, word: None }
}
