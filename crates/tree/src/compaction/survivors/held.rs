//! Operands of merges in a job. They are held until it is known what lies below them: then they are folded, into the
//! value of their key or into one operand.
//!
//! ```text
//! below the operands, in the stripe of snapshots that they lie in   what is written
//! a value, a tombstone                                              the value that they make with it
//! a large value, in a compaction                                    the same
//! nothing: no older version is kept, and none may lie deeper        the value that they make by themselves
//! an older version that a snapshot keeps; or one deeper in the tree one operand
//! a large value, in a flush or unreadable; a damaged record         one operand, and the entry below it
//! ```
//!
//! Operands that cannot be folded, because the operator returns an error or its code is missing, are written as they
//! are.
//!
//! Invariants:
//! 1. What is written has the sequence number of the newest operand in it. No snapshot lies between that one and the
//!    oldest entry in it, so each reader sees all of them or none.
//! 2. Held operands are written before the entry of another key is shown to a hook: so the hooks see the entries of a
//!    key together, as without operands.
//! 3. They have the user key that was read last.

use super::Writing;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{AttachedStore, Entry, JobKind};
use crate::limits::FOLDED_LARGE_VALUE_BYTES_MAX;
use crate::types::{EntryKind, SeqNo};

/// The facts about an entry that the loop knows in addition to its bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct UnderWay {
    /// The newest registered snapshot that sees the entry.
    pub(super) seen_by: Option<SeqNo>,
    /// See [`DropRules::kept_for`](super::DropRules::kept_for).
    pub(super) kept_for: Option<SeqNo>,
    /// See [`JobEntry::value_sum`](super::JobEntry::value_sum).
    pub(super) value_sum: Option<u64>,
    /// The checksum of the entry, if its block was verified.
    pub(super) verified_sum: Option<u64>,
    /// The entry was made of several.
    pub(super) is_folded: bool,
    /// The entry is not the one that was read last.
    pub(super) is_held: bool,
}

/// Operands of one key, the newest first, between which no snapshot lies.
pub(super) struct HeldOperands {
    key: Vec<u8>,
    bytes: Vec<u8>,
    operands: Vec<HeldOperand>,
    /// The number of the version before the newest.
    newer: SeqNo,
}

struct HeldOperand {
    seq: SeqNo,
    stored_seq: SeqNo,
    /// The end of its bytes in the list.
    end: usize,
    known: UnderWay,
}

/// The version below held operands.
#[derive(Clone, Copy)]
enum Base<'b> {
    /// This value.
    Value(&'b [u8]),
    /// Nothing that counts.
    Absent,
    /// Something that they cannot be folded into here.
    Unknown,
}

impl HeldOperands {
    /// The operands, the oldest first.
    fn oldest_first(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.operands.len()).rev().map(|at| self.bytes_of(at))
    }

    fn bytes_of(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.operands[at - 1].end };
        &self.bytes[start..self.operands[at].end]
    }

    fn entry<'e>(&'e self, at: usize, kind: EntryKind, value: &'e [u8]) -> Entry<'e> {
        let HeldOperand { seq, stored_seq, .. } = self.operands[at];
        Entry { key: &self.key, seq, stored_seq, kind, value, hidden: false }
    }
}

impl Writing<'_, '_> {
    /// Before the entry of `key` is shown to anyone: held operands of another key have nothing below them here.
    #[inline]
    pub(super) fn end_other_key(&mut self, key: &[u8]) -> Result<()> {
        match &self.held {
            Some(held) if held.key != key => self.end_held_key(),
            _ => Ok(()),
        }
    }

    /// The last version of the key was read.
    #[cold]
    pub(super) fn end_held_key(&mut self) -> Result<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let is_lowest = !self.below.may_lie_below(&held.key);
        self.write_held(&held, if is_lowest { Base::Absent } else { Base::Unknown }).map(|_| ())
    }

    /// Takes in a survivor that no held operand is folded with.
    #[inline]
    pub(super) fn take_survivor(&mut self, entry: Entry<'_>) -> Result<()> {
        if self.held.is_some() {
            self.write_above()?;
        }
        if entry.kind == EntryKind::Operand && self.job_hooks.hooks.operator.is_some() {
            self.hold(entry);
            return Ok(());
        }
        self.keep(entry, self.keys.newer())
    }

    /// Writes held operands above an entry that they are not folded with.
    #[cold]
    fn write_above(&mut self) -> Result<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        self.write_held(&held, Base::Unknown).map(|_| ())
    }

    #[cold]
    fn hold(&mut self, entry: Entry<'_>) {
        let newer = self.keys.newer();
        let held = self.held.get_or_insert_with(|| HeldOperands {
            key: entry.key.to_vec(),
            bytes: Vec::new(),
            operands: Vec::new(),
            newer,
        });
        held.bytes.extend_from_slice(entry.value);
        let end = held.bytes.len();
        let Entry { seq, stored_seq, .. } = entry;
        held.operands.push(HeldOperand { seq, stored_seq, end, known: self.under_way });
    }

    /// Takes in an entry that lies below operands, in one stripe of snapshots.
    #[cold]
    pub(super) fn fold_into(&mut self, entry: Entry<'_>) -> Result<()> {
        if self.held.is_none() {
            // Without the operator nothing is held, and all is kept.
            return self.take_survivor(entry);
        }
        let newer = self.held.as_ref().map_or(self.keys.newer(), |held| held.newer);
        let read;
        let mut is_expired_base = false;
        let base = match entry.kind {
            EntryKind::Operand => {
                self.hold(entry);
                return Ok(());
            }
            // A reader of now folds an expired value into nothing, and a snapshot folds it by its own time.
            EntryKind::Value if self.job_hooks.hides_expired(entry)? => {
                is_expired_base = self.job_hooks.seen_by(entry.seq, newer).is_none();
                if is_expired_base { Base::Absent } else { Base::Unknown }
            }
            EntryKind::Value => Base::Value(entry.value),
            EntryKind::Tombstone => Base::Absent,
            EntryKind::Handle => {
                read = self.large_base(entry)?;
                read.as_deref().map_or(Base::Unknown, Base::Value)
            }
            _ => Base::Unknown,
        };
        let Some(held) = self.held.take() else { return Ok(()) };
        if self.write_held(&held, base)? {
            self.expired += u64::from(is_expired_base);
            self.drop_handle(entry);
            return Ok(());
        }
        // Who sees the operands sees it as well.
        self.keep(entry, newer)
    }

    /// The large value below operands, if they are folded into it. A flush leaves it where it is: writers wait for
    /// flushes.
    fn large_base(&self, entry: Entry<'_>) -> Result<Option<Vec<u8>>> {
        let hooks = self.job_hooks.hooks;
        let store = hooks.store.as_ref().or(hooks.base_values.as_ref());
        let Some(store) = store.filter(|_| self.job_hooks.kind == JobKind::Compaction) else {
            return Ok(None);
        };
        let is_extract = self.outputs.is_values_only();
        let bytes_max = if is_extract { u64::MAX } else { FOLDED_LARGE_VALUE_BYTES_MAX };
        match read_up_to(store, entry.value, bytes_max) {
            Err(error) if is_extract => Err(error.at_key(entry.key)),
            // Reads of the key return the error. A failed job would keep the tables around it from being merged.
            Err(_) => Ok(None),
            read => read,
        }
    }

    /// Writes held operands above `base`; returns `true` if that is folded into them.
    fn write_held(&mut self, held: &HeldOperands, base: Base<'_>) -> Result<bool> {
        let under_way = self.under_way;
        let written = self.fold_held(held, base);
        self.under_way = under_way;
        written
    }

    fn fold_held(&mut self, held: &HeldOperands, base: Base<'_>) -> Result<bool> {
        let is_alone = held.operands.len() == 1 && matches!(base, Base::Unknown);
        let operator = self.job_hooks.hooks.operator.as_ref().filter(|_| !is_alone);
        let value = match base {
            Base::Value(value) => Some(value.to_vec()),
            _ => None,
        };
        let folded = operator.map(|operator| operator.fold(&held.key, value, held.oldest_first()));
        match folded {
            Some(Ok(folded)) => {
                let known = held.operands[0].known;
                let kept_for = known.kept_for;
                self.under_way =
                    UnderWay { kept_for, is_folded: true, is_held: true, ..UnderWay::default() };
                if matches!(base, Base::Unknown) {
                    self.write(held.entry(0, EntryKind::Operand, &folded), None)?;
                } else {
                    self.keep(held.entry(0, EntryKind::Value, &folded), held.newer)?;
                }
                self.keys.note_held_written();
                return Ok(!matches!(base, Base::Unknown));
            }
            Some(Err(error)) if self.outputs.is_values_only() => return Err(error),
            _ => {}
        }
        for at in 0..held.operands.len() {
            self.under_way = UnderWay { is_held: true, ..held.operands[at].known };
            let entry = held.entry(at, EntryKind::Operand, held.bytes_of(at));
            self.write(entry, Some(entry.stored_seq))?;
            self.keys.note_held_written();
        }
        Ok(false)
    }

    /// The error of an entry of another kind among values.
    #[cold]
    pub(super) fn no_value(&self, entry: Entry<'_>) -> Error {
        let missing = self.job_hooks.hooks.missing.as_ref();
        match missing.filter(|_| entry.kind == EntryKind::Operand) {
            Some(name) => {
                let what = format!("the code of merge operator {name:?} is missing");
                Error::new(ErrorKind::Unsupported, what).at_key(entry.key)
            }
            None => {
                Error::corruption(self.outputs.dir(), None, EntryKind::POISONED).at_key(entry.key)
            }
        }
    }
}

/// The value of a handle, if it is not longer than `bytes_max`.
fn read_up_to(store: &AttachedStore, handle: &[u8], bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let len = store.call("value", |store| Ok(store.value(handle)?.len()))?;
    if len > bytes_max { Ok(None) } else { store.read(handle).map(Some) }
}
