//! Between two user keys: hidden entries come out, and a block and a table may end. Also what the filter
//! that seals is shown of an entry that is written, on which the hidden entries depend.
//!
//! Nearly every key has one version, and its hidden entry follows it. Of such an entry the loop takes a note,
//! of which the hidden entry is made, and the filter hears no more of it. All other hidden entries come from
//! the filter, at a boundary.
//!
//! Invariants:
//! 1. In front of a call that shows the filter an entry by itself, the entry written last has no hidden entry
//!    that another one could sort in front of: the note on it is taken back where that may be.
//! 2. The filter finds the blocks that have ended in what it is given at a boundary, and at the end of a table.

use super::Writing;
use crate::error::Result;
use crate::hooks::{Cut, Emitter, Entry, Input, Origin, Output};
use crate::types::{KeyRef, SeqNo, Trailer, hidden_precedes};

/// The state of a loop that makes hidden entries of notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoteState {
    /// The filter is shown the entries.
    Off,
    /// The filter has nothing open, and nothing was written since its last boundary, or in this table.
    Idle,
    /// Nor has it now. The entry that was written last has a hidden entry by this note, and its key and value
    /// so many bytes.
    Noted { note: u64, bytes: u64 },
}

impl Writing<'_, '_> {
    /// Between two user keys: hidden entries come out, and a block and a table may end.
    pub(super) fn boundary(&mut self, next: Option<&[u8]>) -> Result<()> {
        let mut cut = Cut::Allowed;
        if self.job_hooks.sealing.is_some() && !self.is_quiet(next) {
            cut = self.let_hidden_out(next)?;
        }
        let ends = match (next, &mut self.split) {
            (None, _) => true,
            (Some(user), Some(split)) => {
                cut != Cut::Forbidden
                    && split.ends_before(user, self.outputs.bytes(split.measure()))
            }
            (Some(_), None) => false,
        };
        if ends && self.outputs.last_user_key().is_some() {
            self.end_table()?;
        }
        Ok(())
    }

    fn end_table(&mut self) -> Result<()> {
        self.outputs.end_last_block()?;
        let ended = self.outputs.ended_blocks().map(std::mem::take).unwrap_or_default();
        let properties = self.job_hooks.finish_table(&ended)?;
        self.outputs.end_table(properties)?;
        if let Some(split) = &mut self.split {
            split.begin();
        }
        if self.note_state != NoteState::Off {
            self.note_state = NoteState::Idle;
        }
        Ok(())
    }

    /// Returns `true` if the filter need not hear of the boundary: after noted entries that are complete
    /// before `next`, it has nothing to do.
    #[inline]
    fn is_quiet(&self, next: Option<&[u8]>) -> bool {
        let is_noted = matches!(self.note_state, NoteState::Noted { .. });
        is_noted && next.is_some_and(|next| self.is_complete_before(next))
    }

    /// Returns `true` if the hidden entry of the entry that was written last sorts before `next`.
    #[inline]
    fn is_complete_before(&self, next: &[u8]) -> bool {
        let user = self.keys.written_user().expect("it was written");
        hidden_precedes(user, &self.job_hooks.hooks.rules.reserved_suffix, next)
    }

    /// Shows the filter an entry that is about to be written, the first of its user key if `is_first`, or
    /// returns the note on it.
    #[inline]
    pub(super) fn seal(
        &mut self,
        entry: &Entry<'_>,
        untouched_from: Option<SeqNo>,
        is_first: bool,
    ) -> Result<Option<u64>> {
        let Some(sealing) = &mut self.job_hooks.sealing else { return Ok(None) };
        let takes_note = is_first && self.note_state != NoteState::Off;
        // Written as it came in.
        if takes_note && untouched_from == Some(entry.seq) && self.under_way.verified_sum.is_some()
        {
            return Ok(self.under_way.verified_sum);
        }
        let value_sum = self.under_way.value_sum.filter(|_| untouched_from.is_some());
        let entry = *entry;
        let is_held = self.under_way.is_held;
        let note = self.under_way.verified_sum.filter(|_| untouched_from == Some(entry.seq));
        let output =
            Output { entry, untouched_from, value_sum, is_held, note, is_noted: takes_note };
        let note = sealing.call("output", |sealing| sealing.output(&output))?;
        if takes_note {
            return Ok(Some(note));
        }
        self.note_state = NoteState::Off;
        Ok(None)
    }

    /// Has the hidden entry of the entry that was just written made of a note.
    #[inline]
    pub(super) fn take_note(&mut self, entry: &Entry<'_>, note: u64) -> Result<()> {
        let bytes = (entry.key.len() + entry.value.len()) as u64;
        if self.outputs.note(note)? {
            self.note_state = NoteState::Noted { note, bytes };
            return Ok(());
        }
        self.note_state = NoteState::Off;
        match &mut self.job_hooks.sealing {
            Some(sealing) => {
                let key = KeyRef::new(entry.key, Trailer::new(entry.seq, entry.kind));
                sealing.call("take_back", |sealing| sealing.take_back(key, bytes, note))
            }
            None => Ok(()),
        }
    }

    /// Has the filter let hidden entries out. Returns whether a block and a table may end here.
    fn let_hidden_out(&mut self, next: Option<&[u8]>) -> Result<Cut> {
        if next.is_some() {
            self.take_back()?;
        }
        let Some(sealing) = &mut self.job_hooks.sealing else { return Ok(Cut::Allowed) };
        let mut out = Emitter::new(&mut self.outputs);
        let faults = &mut self.faults;
        let cut = sealing.call("boundary", |it| it.boundary(next, &mut out, faults))?;
        let may_note = cut == Cut::Idle && self.outputs.takes_notes();
        self.note_state = if may_note { NoteState::Idle } else { NoteState::Off };
        self.outputs.allow_cut(cut != Cut::Forbidden);
        Ok(cut)
    }

    /// Before a version that is not the first of its user key.
    pub(super) fn after_first(&mut self) -> Result<()> {
        if self.job_hooks.sealing.is_some() {
            // The answer at a boundary is for the first version after it alone.
            self.outputs.allow_cut(false);
        }
        self.take_back()
    }

    /// Takes the note on the entry that was written last back, if there is one: another entry comes in front
    /// of its hidden entry.
    #[inline]
    fn take_back(&mut self) -> Result<()> {
        match self.note_state {
            NoteState::Noted { note, bytes } => self.take_back_note(note, bytes),
            _ => Ok(()),
        }
    }

    #[cold]
    fn take_back_note(&mut self, note: u64, bytes: u64) -> Result<()> {
        self.note_state = NoteState::Off;
        self.outputs.take_back_note(note);
        let key = self.keys.written().expect("it was written");
        match &mut self.job_hooks.sealing {
            Some(sealing) => {
                sealing.call("take_back", |sealing| sealing.take_back(key, bytes, note))
            }
            None => Ok(()),
        }
    }

    /// Shows the filter an input of a block that nothing has verified, which it may keep until its metadata comes. The
    /// hidden entry of the entry written last sorts before that, or belongs to the same key.
    pub(super) fn take_input(&mut self, entry: &Entry<'_>, at: &Origin) -> Result<Input> {
        self.take_back()?;
        self.note_state = NoteState::Off;
        match &mut self.job_hooks.sealing {
            Some(sealing) => {
                sealing.call("input", |it| it.input(entry, at, None, &mut self.faults))
            }
            None => Ok(Input::Pass),
        }
    }
}
