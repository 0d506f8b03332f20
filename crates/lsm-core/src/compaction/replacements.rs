//! [`Replacements`]: the entries with which repairs replace faulty ones, as one more input of the
//! job's next run.
//!
//! If the key or the sequence number of an entry was damaged, the true entry may sort elsewhere. So
//! replacements are merged like any other input, and the loop passes over the entries that they
//! replace.
//!
//! Invariant: entries come in internal order, each with the place that it replaces.

use super::JobIter;
use super::Patches;
use crate::error::Result;
use crate::hooks::{Origin, Patch};
use crate::iter::InternalIter;
use crate::types::{EntryKind, FileNo, InternalKey, KeyRef, SeqNo, Trailer};

struct Replacement {
    /// The key with the effective sequence number.
    key: InternalKey,
    stored_seq: SeqNo,
    value: Vec<u8>,
    hidden: bool,
    at: Origin,
}

/// See the module.
pub(super) struct Replacements {
    entries: Vec<Replacement>,
    /// The entry under the cursor; none behind the last or before the first.
    index: Option<usize>,
}

impl Replacements {
    /// Those of `patches`. Keys of hidden entries end in `suffix`, and `global_seq` knows the
    /// sequence number that all entries of a file have.
    pub(super) fn new(
        patches: &Patches,
        suffix: &[u8],
        global_seq: impl Fn(FileNo) -> Option<SeqNo>,
    ) -> Replacements {
        let entry = |(at, patch): (&Origin, &Patch)| {
            let Patch::Replace { key, seq, kind, value, .. } = patch else { return None };
            let is_hidden_key = !suffix.is_empty() && key.ends_with(suffix);
            // In an ingested file all entries count under one number, also a replaced one.
            let counting = at.file.and_then(&global_seq).unwrap_or(*seq);
            Some(Replacement {
                key: KeyRef::new(key, Trailer::new(counting, *kind)).to_owned(),
                stored_seq: *seq,
                value: value.clone(),
                // A hidden entry is a tombstone with the suffix; a user's entry never ends in it,
                // but a damaged key may.
                hidden: is_hidden_key && *kind == EntryKind::Tombstone,
                at: *at,
            })
        };
        let mut entries: Vec<_> = patches.iter().filter_map(entry).collect();
        // By place as well, so that equal keys come out in one order in each run: the patches are a
        // hash map.
        entries.sort_by(|a, b| (a.key.as_ref(), a.at).cmp(&(b.key.as_ref(), b.at)));
        Replacements { entries, index: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn present(&self) -> &Replacement {
        &self.entries[self.index.expect("a valid cursor is on an entry")]
    }

    fn lower_bound(&self, target: KeyRef<'_>) -> usize {
        self.entries.partition_point(|entry| entry.key.as_ref() < target)
    }

    #[expect(clippy::unnecessary_wraps, reason = "the answer of every move")]
    fn enter(&mut self, index: Option<usize>) -> Result<()> {
        self.index = index.filter(|index| *index < self.entries.len());
        Ok(())
    }
}

impl InternalIter for Replacements {
    fn valid(&self) -> bool {
        self.index.is_some()
    }

    fn key(&self) -> KeyRef<'_> {
        self.present().key.as_ref()
    }

    fn value(&self) -> &[u8] {
        &self.present().value
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.enter(Some(0))
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.enter(self.entries.len().checked_sub(1))
    }

    fn seek(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.enter(Some(self.lower_bound(target)))
    }

    fn seek_before(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.enter(self.lower_bound(target).checked_sub(1))
    }

    fn next(&mut self) -> Result<()> {
        self.enter(self.index.map(|index| index + 1))
    }

    fn prev(&mut self) -> Result<()> {
        self.enter(self.index.and_then(|index| index.checked_sub(1)))
    }
}

impl JobIter for Replacements {
    fn is_hidden(&self) -> bool {
        self.present().hidden
    }

    fn origin(&self) -> Origin {
        self.present().at
    }

    fn stored_seq(&self) -> SeqNo {
        self.present().stored_seq
    }

    fn is_replacement(&self) -> bool {
        true
    }
}
