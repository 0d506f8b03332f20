//! Between two user keys: hidden entries come out, and a block and a table may end. Also what the filter
//! that seals is shown of an entry that is written, on which the hidden entries depend.
//!
//! Nearly every key has one version, and its hidden entry follows it. The filter returns the payload of
//! such a hidden entry, and the loop writes it when the next key has come ([`Writing::settle`]). All other
//! hidden entries come from the filter, at a boundary.
//!
//! Invariants:
//! 1. The payload in `beside` belongs to the entry that was written last.
//! 2. The filter has no hidden entry to come while there is one in `beside`.

use super::Writing;
use crate::error::Result;
use crate::hooks::{Cut, Emitter, Entry, Input, Origin};
use crate::types::{SeqNo, hidden_precedes};

impl Writing<'_, '_> {
    /// Between two user keys: hidden entries come out, and a block and a table may end.
    pub(super) fn boundary(&mut self, next: Option<&[u8]>) -> Result<()> {
        let mut cut = Cut::Allowed;
        if self.stages.sealing.is_some() {
            cut = self.let_hidden_out(next)?;
        }
        let ends = match (next, &mut self.split) {
            (None, _) => true,
            (Some(user), Some(split)) => {
                cut == Cut::Allowed && split.ends_before(user, self.outputs.bytes())
            }
            (Some(_), None) => false,
        };
        if ends && self.outputs.last_user_key().is_some() {
            self.tell_end(next)?;
            let properties = self.stages.finish_table()?;
            self.outputs.end_table(properties)?;
            if let Some(split) = &mut self.split {
                split.begin();
            }
        }
        Ok(())
    }

    /// Shows the filter an entry that is about to be written, the first of its user key if `is_first`.
    #[inline]
    pub(super) fn seal(
        &mut self,
        entry: &Entry<'_>,
        untouched_from: Option<SeqNo>,
        is_first: bool,
    ) -> Result<()> {
        let Some(sealing) = &mut self.stages.sealing else { return Ok(()) };
        let value_sum = self.value_sum.filter(|_| untouched_from.is_some());
        if is_first && let Some(blocks) = self.blocks {
            self.beside = sealing.output_beside(entry, untouched_from, value_sum, blocks)?;
            if self.beside.is_some() {
                return Ok(());
            }
            debug_assert!(!self.is_untold, "the filter has nothing open and takes no payload back");
        }
        sealing.output(entry, untouched_from, value_sum)
    }

    /// Between two user keys: hidden entries come out. Returns whether a block and a table may end here.
    #[inline]
    pub(super) fn let_hidden_out(&mut self, next: Option<&[u8]>) -> Result<Cut> {
        // Before anything is written: a block that is finished by now ends in front of `next`.
        let blocks = self.outputs.blocks();
        let forced = self.outputs.forced_cuts();
        // In a table with forced cuts the filter hears of each boundary: it tells which pairs they part.
        let may_be_beside = self.stages.writes_beside && forced == 0;
        self.is_untold = self.settle(next, may_be_beside)? && next.is_some();
        self.blocks = may_be_beside.then_some(blocks);
        let cut = if self.is_untold { Cut::Allowed } else { self.ask(next, blocks, forced)? };
        self.outputs.allow_cut(cut == Cut::Allowed);
        Ok(cut)
    }

    /// Writes the hidden entry of the entry that was written last, or returns it to the filter. Returns
    /// `true` if it was written.
    #[inline]
    fn settle(&mut self, next: Option<&[u8]>, may_be_beside: bool) -> Result<bool> {
        let Some(payload) = self.beside else { return Ok(false) };
        let user = self.keys.written_user().expect("its entry was written");
        let suffix = &self.stages.hooks.rules.reserved_suffix[..];
        let is_due = next.is_none_or(|next| hidden_precedes(user, suffix, next));
        if !is_due || !may_be_beside {
            self.take_back()?;
            return Ok(false);
        }
        self.beside = None;
        self.outputs.add_beside(payload)?;
        Ok(true)
    }

    /// Before a version that is not the first of its user key.
    pub(super) fn behind_first(&mut self) -> Result<()> {
        if self.stages.sealing.is_some() {
            // The answer at a boundary is for the first version behind it alone.
            self.outputs.allow_cut(false);
        }
        self.take_back()
    }

    /// Returns the hidden entry of the entry that was written last to the filter, if it has one: another
    /// entry comes in front of it.
    #[inline]
    pub(super) fn take_back(&mut self) -> Result<()> {
        if self.beside.is_none() { Ok(()) } else { self.take_back_beside() }
    }

    #[cold]
    fn take_back_beside(&mut self) -> Result<()> {
        self.beside = None;
        let user = self.keys.written_user().expect("its entry was written");
        match &mut self.stages.sealing {
            Some(sealing) => sealing.take_back(user),
            None => Ok(()),
        }
    }

    /// Shows the filter an input without a judge's note, which it may keep until its metadata comes. The
    /// hidden entry of the entry written last sorts before that, or belongs to the same key.
    pub(super) fn take_input(&mut self, entry: &Entry<'_>, at: Origin) -> Result<Input> {
        self.take_back()?;
        match &mut self.stages.sealing {
            Some(sealing) => sealing.input(*entry, at, &mut self.faults),
            None => Ok(Input::Pass),
        }
    }

    /// Tells the filter of a boundary.
    fn ask(&mut self, next: Option<&[u8]>, blocks: u64, forced: u64) -> Result<Cut> {
        let Some(sealing) = &mut self.stages.sealing else { return Ok(Cut::Allowed) };
        let mut out = Emitter::new(&mut self.outputs, forced).behind_blocks(blocks);
        sealing.boundary(next, &mut out, &mut self.faults)
    }

    /// Tells the filter of the boundary at which the table ends, if it has not heard of it.
    pub(super) fn tell_end(&mut self, next: Option<&[u8]>) -> Result<()> {
        if std::mem::take(&mut self.is_untold)
            && let Some(blocks) = self.blocks
        {
            self.ask(next, blocks, 0)?;
        }
        // Of the next table none is finished.
        self.blocks = self.stages.writes_beside.then_some(0);
        Ok(())
    }
}
