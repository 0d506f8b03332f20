//! The loop of every flush and compaction: it reads entries, calls the rules and the hooks, and
//! writes what survives.
//!
//! `run.rs` calls it with open cursors and outputs; this file opens no file. `crate::hooks`
//! describes the order of the hooks.
//!
//! Invariants:
//! 1. Written entries ascend strictly, whatever the inputs claim. An entry out of order is damage
//!    and never reaches a table.
//! 2. A run with a fault installs nothing: the loop ends there, and returns the fault instead of tables.
//! 3. All versions of a user key are in one table.

mod boundary;
mod held;

use super::export_range::RangeSide;
use super::inputs::{JobEntry, MergeInput};
use super::job_hooks::Expires;
use super::last_keys::LastKeys;
use super::last_value::LastValue;
use super::rules::is_plausible;
use super::{DropDecision, ExportRange, JobHooks, JobOutcome, KeyBelow, Outputs, Split};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{
    AddedValue, AttachedStore, Decision, Entry, Fault, Faults, Inject, Input, JobKind, JobValues,
    OwnedEntry, Relocation, RelocationJob, catch_blamed,
};
use crate::iter::{InternalIter, MergeIter};
use crate::types::{EntryKind, Gaps, InGap, KeyRef, SeqNo, Trailer};

use boundary::NoteState;
use held::{HeldOperands, UnderWay};

/// The entries between two looks of a running job at whether it should stop.
const ENTRIES_BETWEEN_LOOKS: u32 = 1024;
/// The bytes that it writes between two such looks: a wait for the rate of background writes is so long.
const BYTES_BETWEEN_LOOKS: u64 = 256 << 10;

/// The state of the loop, and the hooks of the job.
pub(super) struct Writing<'a, 'o> {
    job_hooks: JobHooks<'a>,
    below: KeyBelow,
    split: Option<Split>,
    outputs: Outputs<'o>,
    /// Found by the filter that seals.
    faults: Faults,
    /// Entries that had changed in memory, and were read again.
    mended: Vec<(Fault, String)>,
    values: JobValues,
    /// The keys read last and written last.
    keys: LastKeys,
    /// The value read last, for comparison with a twin.
    last_value: LastValue,
    /// The closed gaps of the partition: its accepted losses.
    closed_gaps: Gaps,
    /// The facts about the entry under way.
    under_way: UnderWay,
    /// Operands of the key read last.
    held: Option<HeldOperands>,
    /// A value was moved since the last look at whether to stop.
    has_moved: bool,
    /// Entries that were removed because they have expired.
    expired: u64,
    note_state: NoteState,
}

/// Writes what survives of `entries`, all of them or those inside `range`, in tables that `split`
/// ends. The hooks are started.
pub(super) fn write_survivors(
    entries: &mut MergeIter<MergeInput>,
    range: Option<&ExportRange>,
    job_hooks: JobHooks<'_>,
    below: KeyBelow,
    split: Option<Split>,
    outputs: Outputs<'_>,
    should_stop: &dyn Fn(u64) -> bool,
) -> Result<JobOutcome> {
    let mut writing = Writing::new(job_hooks, below, split, outputs);
    // Around the loop, and outside of what it holds: that is dropped as after any other error.
    catch_blamed(|| writing.walk(entries, range, should_stop))?;
    writing.finish()
}

impl Writing<'_, '_> {
    fn walk(
        &mut self,
        entries: &mut MergeIter<MergeInput>,
        range: Option<&ExportRange>,
        should_stop: &dyn Fn(u64) -> bool,
    ) -> Result<()> {
        let mut until_look = ENTRIES_BETWEEN_LOOKS;
        let mut look_at = BYTES_BETWEEN_LOOKS;
        let walks_all = self.job_hooks.walks_all;
        match range.and_then(|range| range.range().start).filter(|_| !walks_all) {
            None => entries.seek(None)?,
            // At the newest version: the loop passes over the versions that are too new.
            Some(start) => entries.seek(Some(KeyRef::seek(start, SeqNo::MAX)))?,
        }
        while entries.valid() {
            until_look -= 1;
            let written = self.outputs.written_bytes();
            if until_look == 0 || written >= look_at {
                until_look = ENTRIES_BETWEEN_LOOKS;
                look_at = written + BYTES_BETWEEN_LOOKS;
                if should_stop(written) {
                    return Err(Error::new(ErrorKind::Closed, "the job was cancelled"));
                }
            }
            let place = range.map_or(RangeSide::Inside, |range| {
                range.place(entries.key(), entries.current().is_hidden())
            });
            match place {
                RangeSide::Inside => {
                    self.read(entries)?;
                    if self.is_over() {
                        break;
                    }
                    // A value that moved may have been gigabytes.
                    if std::mem::take(&mut self.has_moved) {
                        until_look = 1;
                    }
                }
                RangeSide::Outside => {}
                // Leaving early would miss damage that only the end of an input shows.
                RangeSide::After if walks_all => {}
                RangeSide::After => break,
            }
            entries.next()?;
        }
        Ok(())
    }
}

impl<'a, 'o> Writing<'a, 'o> {
    /// Returns the loop before its first entry. The hooks are started.
    pub(super) fn new(
        job_hooks: JobHooks<'a>,
        below: KeyBelow,
        split: Option<Split>,
        mut outputs: Outputs<'o>,
    ) -> Writing<'a, 'o> {
        if let Some(rule) = job_hooks.expiry_rule() {
            outputs.remember_expiries(rule);
        }
        if let Some(form) = &job_hooks.note_form {
            outputs.take_notes(form);
        }
        let closed_gaps = below.gaps().closed();
        let store = job_hooks.hooks.store.as_ref();
        // A store that panics gets a number that no later look finds: then the job is run again.
        let sync_failure_count =
            store.map_or(0, |store| store.sync_failure_count().unwrap_or(u64::MAX));
        Writing {
            job_hooks,
            below,
            split,
            outputs,
            faults: Faults::default(),
            mended: Vec::new(),
            values: JobValues { sync_failure_count, ..JobValues::default() },
            keys: LastKeys::new(),
            last_value: LastValue::default(),
            closed_gaps,
            under_way: UnderWay::default(),
            held: None,
            has_moved: false,
            expired: 0,
            note_state: NoteState::Off,
        }
    }

    /// Returns the same loop without gaps, for entries that are newer than every loss.
    pub(super) fn without_gaps(self) -> Self {
        Writing { closed_gaps: Gaps::default(), ..self }
    }

    /// Takes in the entry under the cursor.
    fn read(&mut self, entries: &mut MergeIter<MergeInput>) -> Result<()> {
        let present = entries.current().present();
        match self.job_hooks.inject {
            None => self.take(&present)?,
            Some(inject) => self.take_injected(&present, &**inject)?,
        }
        // Faults of an earlier entry, found between two keys, are not faults of this one.
        let is_damaged = self.job_hooks.takes_inputs
            && self.faults.first().is_some_and(|fault| fault.at == present.at);
        if is_damaged { self.read_again(entries) } else { Ok(()) }
    }

    /// Takes in the entry under the cursor once more: it may have changed in memory after its block was
    /// verified. If it is damaged again the fault stays.
    #[cold]
    fn read_again(&mut self, entries: &mut MergeIter<MergeInput>) -> Result<()> {
        if !entries.current_mut().read_again()? {
            return Ok(());
        }
        let fault = self.faults.take_first();
        self.take(&entries.current().present())?;
        if !self.is_over() {
            self.mended.extend(fault.map(|fault| (fault, "re-read".to_owned())));
        }
        Ok(())
    }

    /// Takes in an entry as a fault of memory leaves it, for tests.
    #[cold]
    fn take_injected(&mut self, present: &JobEntry<'_>, inject: &Inject) -> Result<()> {
        let JobEntry { entry, at, verified, value_sum } = *present;
        let Entry { key, value, seq, stored_seq, kind, hidden } = entry;
        let key = key.to_vec();
        let value = value.to_vec();
        let mut owned = OwnedEntry { key, seq: stored_seq, kind, value, verified: true };
        inject(at, &mut owned);
        let OwnedEntry { key, seq: injected_seq, kind, value, .. } = &owned;
        // An ingested file's entries all count under the file's sequence number.
        let seq = if seq == stored_seq { *injected_seq } else { seq };
        let stored_seq = *injected_seq;
        let kind = *kind;
        let entry = Entry { key, seq, stored_seq, kind, value, hidden };
        // The checksums of the undamaged entry are passed on: a real fault comes after the block was
        // verified.
        self.take(&JobEntry { entry, at, verified, value_sum })
    }

    /// Takes in an entry.
    pub(super) fn take(&mut self, present: &JobEntry<'_>) -> Result<()> {
        let JobEntry { entry, at, verified, value_sum } = present;
        if self.held.is_some() {
            self.end_other_key(entry.key)?;
            if self.is_over() {
                return Ok(());
            }
        }
        self.under_way = UnderWay { value_sum: *value_sum, ..UnderWay::default() };
        // The filter that seals checks all entries of the inputs: it is asked before any of them is
        // dropped.
        if let Some(sealing) =
            self.job_hooks.sealing.as_mut().filter(|_| self.job_hooks.takes_inputs)
        {
            self.under_way.verified_sum = verified.as_ref().map(|verified| verified.note);
            let taken = match verified {
                Some(verified) => sealing
                    .call("input", |it| it.input(entry, at, Some(verified), &mut self.faults))?,
                None => self.take_input(entry, at)?,
            };
            if taken == Input::Take || self.is_over() {
                return Ok(());
            }
        } else if entry.hidden {
            return Ok(());
        }
        let entry = *entry;
        if !self.closed_gaps.is_empty() && self.is_given_up(entry) {
            self.drop_handle(entry);
            return Ok(());
        }
        let key = KeyRef::new(entry.key, Trailer::new(entry.seq, entry.kind));
        // With the kinds, which the rules do not compare.
        let order = self.keys.meet(key);
        if order.is_lt() {
            return self.damaged(entry, "an entry is out of order");
        }
        if !is_plausible(key, self.outputs.base_seq()) {
            return self.damaged(entry, "a key length or sequence number is out of range");
        }
        let is_version = self.keys.is_version();
        let below = &mut self.below;
        let decision = self.job_hooks.rules.keep(key, is_version, || below.may_lie_below(key.user));
        self.under_way.kept_for = self.job_hooks.rules.kept_for();
        match decision {
            DropDecision::Keep => {
                self.note_first_flush(entry);
                self.take_survivor(entry)?;
            }
            DropDecision::Fold => {
                self.note_first_flush(entry);
                self.fold_into(entry)?;
            }
            DropDecision::Drop => {
                self.note_first_flush(entry);
                self.drop_handle(entry);
            }
            DropDecision::Disordered => return self.damaged(entry, "an entry is out of order"),
            DropDecision::Twin => {
                // Of equal twins one is enough; of unequal ones no one can tell which is true.
                if order.is_ne() || !self.last_value.is(entry.value) {
                    let what = "two entries with one key and sequence number differ";
                    return self.damaged(entry, what);
                }
            }
        }
        self.remember(key, entry.value);
        Ok(())
    }

    /// Returns `true` if there is a fault. A damaged entry, or one after it, reaches neither a hook nor a
    /// table: it may sort in front of what has been written.
    #[inline]
    fn is_over(&self) -> bool {
        self.faults.first().is_some()
    }

    /// Returns `true` if the entry is older than a loss that was accepted: it is never seen again.
    #[cold]
    fn is_given_up(&self, entry: Entry<'_>) -> bool {
        self.closed_gaps.effect_on(entry.key, SeqNo::MAX, Some(entry.seq)).0 == InGap::Hidden
    }

    /// The error of an entry that does not fit here.
    fn damaged(&self, entry: Entry<'_>, what: &str) -> Result<()> {
        Err(Error::corruption(self.outputs.dir(), None, what).at_key(entry.key))
    }

    /// Has the filters decide on a survivor and writes what is left of it.
    fn keep(&mut self, entry: Entry<'_>, newer: SeqNo) -> Result<()> {
        // A poison stays whatever a filter decides: without it the damage would be hidden.
        let decidable = matches!(entry.kind, EntryKind::Value | EntryKind::Handle);
        self.under_way.seen_by = self.job_hooks.seen_by(entry.seq, newer);
        let decision =
            if self.job_hooks.deciding.is_empty() || !decidable || self.under_way.seen_by.is_some()
            {
                None
            } else {
                self.job_hooks.decide(entry)?
            };
        match decision {
            None | Some(Decision::Keep) => self.relocate(entry),
            Some(Decision::Replace(value)) => {
                self.drop_handle(entry);
                self.write(Entry { kind: EntryKind::Value, value: &value, ..entry }, None)
            }
            Some(Decision::Remove) => {
                self.expired += u64::from(self.job_hooks.is_expired(entry)?);
                self.drop_handle(entry);
                // Without a tombstone an older version would come back to light: one below, or
                // one that a snapshot keeps alive.
                let kept = self.job_hooks.snapshots.first().is_some_and(|first| *first < entry.seq);
                if kept || self.below.may_lie_below(entry.key) {
                    let kind = EntryKind::Tombstone;
                    return self.write(Entry { kind, value: &[], ..entry }, None);
                }
                Ok(())
            }
        }
    }

    /// Writes an entry as it is, or with the handle of a value that moved.
    fn relocate(&mut self, entry: Entry<'_>) -> Result<()> {
        let relocated = match self.relocation_store(entry) {
            Some((store, job)) => store.call("relocate", |store| store.relocate(entry, job)),
            None => Ok(Relocation::Stay),
        };
        match relocated.map_err(|error| error.at_key(entry.key))? {
            Relocation::Stay => {
                let is_untouched = entry.kind != EntryKind::Poison && !self.under_way.is_folded;
                self.write(entry, is_untouched.then_some(entry.stored_seq))
            }
            Relocation::Moved(pending) => {
                self.has_moved = true;
                self.drop_handle(entry);
                let handle = pending.bytes().to_vec();
                self.values.relocated.push(pending);
                self.values
                    .added
                    .push(AddedValue { key: entry.key.into(), handle: handle.clone() });
                self.write(Entry { kind: EntryKind::Handle, value: &handle, ..entry }, None)
            }
            Relocation::Inline(value) => {
                self.has_moved = true;
                self.drop_handle(entry);
                self.write(Entry { kind: EntryKind::Value, value: &value, ..entry }, None)
            }
        }
    }

    /// The store that may have another place for the value of a survivor. Flushes have none: the
    /// log may name the handle yet. A flush that begins the log again has one for values in doubt.
    fn relocation_store(&self, entry: Entry<'_>) -> Option<(&AttachedStore, RelocationJob)> {
        let store = self.job_hooks.hooks.store.as_deref()?;
        let may_relocate = self.job_hooks.may_relocate;
        let job = if may_relocate { RelocationJob::Compaction } else { RelocationJob::Rescue };
        let movable = match entry.kind {
            EntryKind::Handle => {
                may_relocate || self.job_hooks.rescues && store.is_in_doubt(entry.value)
            }
            EntryKind::Value => {
                may_relocate && !entry.hidden && store.wants(entry.value.len() as u64)
            }
            _ => false,
        };
        movable.then_some((store, job))
    }

    /// Notes a handle that no table has named yet, whether it survives or not.
    fn note_first_flush(&mut self, entry: Entry<'_>) {
        if entry.kind == EntryKind::Handle
            && self.job_hooks.hooks.store.is_some()
            && self.job_hooks.kind == JobKind::Flush
        {
            let key = entry.key.to_vec();
            let handle = entry.value.to_vec();
            self.values.added.push(AddedValue { key, handle });
        }
    }

    fn drop_handle(&mut self, entry: Entry<'_>) {
        if entry.kind == EntryKind::Handle && self.job_hooks.hooks.store.is_some() {
            self.values.dropped.push(entry.value.to_vec());
        }
    }

    fn write(&mut self, entry: Entry<'_>, untouched_from: Option<SeqNo>) -> Result<()> {
        let key = KeyRef::new(entry.key, Trailer::new(entry.seq, entry.kind));
        let (user_order, order) = self.keys.order_of_written(key);
        // Asked before a user key's first version only, so a table never ends between versions.
        let is_first = user_order.is_ne();
        if is_first { self.boundary(Some(entry.key)) } else { self.after_first() }?;
        if order.is_le() {
            // Only a faulty run gets here, and nothing of it is installed.
            return self.damaged(entry, "an entry is out of order");
        }
        if self.outputs.is_values_only() && entry.kind != EntryKind::Value {
            return Err(self.no_value(entry));
        }
        let note = self.seal(&entry, untouched_from, is_first)?;
        self.outputs.add(key, entry.value)?;
        if let Some(note) = note {
            self.take_note(&entry, note)?;
        }
        // For registered snapshots alone. The rules respect the visible sequence as well, and an
        // entry whose damaged sequence lies above it is kept for it by every rewrite: noted, it
        // would make the table due again and again.
        let UnderWay { kept_for, seen_by, .. } = self.under_way;
        let kept_for =
            kept_for.filter(|kept| self.job_hooks.registered().binary_search(kept).is_ok());
        let expires = self.job_hooks.expires(entry, seen_by.is_some())?;
        match expires {
            None => {}
            Some(Expires::At(at)) => self.outputs.expiries().note(at),
            Some(Expires::Left(now)) => self.outputs.expiries().note_left(now),
        }
        let left_for = seen_by.filter(|_| matches!(expires, Some(Expires::Left(_))));
        if let Some(snapshot) = kept_for.or(left_for) {
            self.outputs.note_kept(snapshot);
        }
        self.keys.note_written(key.trailer);
        Ok(())
    }

    fn remember(&mut self, key: KeyRef<'_>, value: &[u8]) {
        self.keys.note_read(key);
        // Memtables have no two entries with one key and number, and a value may be long.
        if self.job_hooks.kind != JobKind::Flush {
            self.last_value.set(value);
        }
    }

    pub(super) fn finish(mut self) -> Result<JobOutcome> {
        if !self.is_over() {
            catch_blamed(|| {
                self.end_held_key()?;
                self.boundary(None)
            })?;
        }
        if let Some(fault) = self.faults.first() {
            return Ok(JobOutcome::Faulty(fault.clone()));
        }
        let tables = self.outputs.finish()?;
        Ok(JobOutcome::Done {
            tables,
            values: self.values,
            mended: self.mended,
            lost: Vec::new(),
            gaps: Vec::new(),
            miscounted: Vec::new(),
            expired: self.expired,
        })
    }
}
