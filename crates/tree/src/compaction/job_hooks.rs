//! [`JobHooks`]: the hooks that take part in one job.
//!
//! The code that runs the job makes them, `run.rs` starts them, and the loop of `survivors.rs`
//! calls them. `crate::hooks` describes the order of the hooks.

use std::sync::Arc;
use std::time::Duration;

use super::DropRules;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{
    Ageing, Decision, EndedBlock, Entry, Inject, Job, JobFilter, JobKind, NOTED_BYTES_MAX,
    NoteForm, PartitionHooks, Properties, catch,
};
use crate::types::{EntryKind, KeyForm, SeqNo};

/// The hooks of one job.
#[expect(clippy::struct_excessive_bools, reason = "each says a thing of its own")]
pub struct JobHooks<'a> {
    pub(super) hooks: &'a PartitionHooks,
    /// The job's, once they are started.
    pub(super) kind: JobKind,
    /// No frame of the log names the job's values: the store may give them other places.
    pub(super) may_relocate: bool,
    /// No frame of the log will name the job's values, and a sync of some may have failed: the store
    /// gives those other places that are in doubt.
    pub rescues: bool,
    /// The snapshots that the survival rules respect.
    pub(super) snapshots: &'a [SeqNo],
    /// The snapshots that deciding filters respect: the registered ones alone.
    registered: &'a [SeqNo],
    /// The rules by which the job drops entries.
    pub(super) rules: DropRules<'a>,
    pub(super) inject: Option<&'a Arc<Inject>>,
    pub(super) deciding: Vec<JobFilter>,
    pub(super) sealing: Option<JobFilter>,
    /// `true` if the filter that seals is asked for each input.
    pub(super) takes_inputs: bool,
    /// `true` if all of the inputs is read, whatever an export reads of them: see
    /// [`Verifier::walks_all`](crate::hooks::Verifier::walks_all).
    pub(super) walks_all: bool,
    /// The form of the hidden entries that the loop makes of notes, if the filter that seals has one.
    pub(super) note_form: Option<Arc<dyn NoteForm>>,
    /// When entries expire, and the moment at which the job began.
    ageing: Option<(Ageing, u64)>,
    key_form: KeyForm,
    unix_time: Duration,
}

/// When an entry that is written expires.
pub(super) enum Expires {
    /// The entry expires at this moment.
    At(u64),
    /// The entry has expired, and a snapshot keeps it at this moment.
    Left(u64),
}

impl<'a> JobHooks<'a> {
    /// The hooks of a job over a partition with `hooks`. `snapshots` holds the registered ones and the sequence
    /// visible at the job's start.
    pub fn new(
        hooks: &'a PartitionHooks,
        snapshots: &'a [SeqNo],
        registered: &'a [SeqNo],
        inject: Option<&'a Arc<Inject>>,
    ) -> JobHooks<'a> {
        JobHooks {
            hooks,
            kind: JobKind::Flush,
            may_relocate: false,
            rescues: false,
            snapshots,
            registered,
            rules: DropRules::new(snapshots),
            inject,
            deciding: Vec::new(),
            sealing: None,
            takes_inputs: false,
            walks_all: false,
            note_form: None,
            ageing: None,
            key_form: KeyForm::AsGiven,
            unix_time: Duration::ZERO,
        }
    }

    /// For an open: no one reads while the job runs.
    #[must_use]
    pub fn without_readers(mut self) -> JobHooks<'a> {
        self.rules.is_without_readers = true;
        self
    }

    /// With what a job asks about the age of entries: the rule, also where its filter takes no part,
    /// the time since 1970, and the form of the partition's keys.
    ///
    /// # Errors
    /// A panic of the rule.
    pub fn ageing(
        self,
        ageing: Option<Ageing>,
        unix_time: Duration,
        key_form: KeyForm,
    ) -> Result<JobHooks<'a>> {
        let ageing = match ageing {
            None => None,
            Some(ageing) => {
                // Once a job: with a clock that goes on, two tables of one job would disagree about
                // an entry.
                let now = catch("a compaction filter", || ageing.expiry.now(unix_time))?;
                Some((ageing, now))
            }
        };
        Ok(JobHooks { ageing, key_form, unix_time, ..self })
    }

    /// The mark of the rule by which entries expire.
    pub(super) fn expiry_rule(&self) -> Option<u64> {
        self.ageing.as_ref().map(|(ageing, _)| ageing.rule)
    }

    /// When an entry expires that is about to be written; `is_seen` by a snapshot, so that no filter
    /// was asked.
    pub(super) fn expires(&self, entry: Entry<'_>, is_seen: bool) -> Result<Option<Expires>> {
        let Some((ageing, now)) = &self.ageing else { return Ok(None) };
        let value = match entry.kind {
            EntryKind::Value => Some(entry.value),
            // The value lies in the store; fetching it for each entry would read all large values.
            EntryKind::Handle => None,
            // It has no value of its own. What it is folded into expires.
            EntryKind::Operand
            | EntryKind::Tombstone
            | EntryKind::Poison
            | EntryKind::Clear
            | EntryKind::DeleteRange => return Ok(None),
        };
        let key = self.key_form.user(entry.key);
        let at = catch("a compaction filter", || ageing.expiry.expires_at(key, value))?;
        // Noted as left over, because it would make the table due again at once, while the snapshot
        // still keeps the entry.
        Ok(at.map(|at| if is_seen && at <= *now { Expires::Left(*now) } else { Expires::At(at) }))
    }

    /// Returns `true` if an entry has expired that no snapshot sees, and readers do not see expired entries.
    pub(super) fn hides_expired(&self, entry: Entry<'_>) -> Result<bool> {
        let Some((ageing, _)) = &self.ageing else { return Ok(false) };
        Ok(self.is_expired(entry)? && catch("a compaction filter", || ageing.expiry.hides())?)
    }

    /// Returns `true` if an entry that no snapshot sees has expired.
    pub(super) fn is_expired(&self, entry: Entry<'_>) -> Result<bool> {
        let Some((_, now)) = &self.ageing else { return Ok(false) };
        let expires = self.expires(entry, false)?;
        Ok(matches!(expires, Some(Expires::At(at)) if at <= *now))
    }

    /// The partition's hooks.
    pub fn hooks(&self) -> &'a PartitionHooks {
        self.hooks
    }

    /// The registered snapshots, ascending.
    pub fn registered(&self) -> &'a [SeqNo] {
        self.registered
    }

    /// Starts the filters.
    pub fn start(&mut self, job: &Job<'_>) -> Result<()> {
        let job = &Job { unix_time: self.unix_time, key_form: self.key_form, ..*job };
        self.kind = job.kind;
        // The log may still name a handle that a flush writes: a replay must find the value at its
        // place.
        self.may_relocate = job.kind == JobKind::Compaction;
        for factory in &self.hooks.filters {
            let filter = JobFilter::start(&**factory, job)?;
            // At most one seals, which registration checks.
            if let Some(sealer) = factory.sealer() {
                // Entries of memtables have no hidden entries to compare with yet.
                self.takes_inputs = job.kind == JobKind::Compaction;
                self.note_form = sealer.note_form();
                check_note_form(self.note_form.as_ref().map(|form| form.payload_bytes()))?;
                self.sealing = Some(filter);
            } else {
                self.deciding.push(filter);
            }
        }
        Ok(())
    }

    /// The properties of a table that ends; `blocks` have ended since the last boundary.
    pub(super) fn finish_table(&mut self, blocks: &[EndedBlock]) -> Result<Properties> {
        let mut properties = Properties::default();
        // In the order in which they see entries.
        for filter in self.deciding.iter_mut().chain(self.sealing.as_mut()) {
            filter.call("finish_table", |filter| filter.finish_table(blocks, &mut properties))?;
        }
        Ok(properties)
    }

    /// The newest registered snapshot that sees the version of a key that lies in [seq, newer).
    /// `None` also where no filter wants to know.
    pub(super) fn seen_by(&self, seq: SeqNo, newer: SeqNo) -> Option<SeqNo> {
        if self.deciding.is_empty() && self.ageing.is_none() {
            return None;
        }
        // A snapshot at `newer` sees the newer version, hence `<`. If the newest one below it is
        // older than the entry, all are.
        let at = self.registered.partition_point(|snapshot| *snapshot < newer);
        let newest = *self.registered[..at].last()?;
        (newest >= seq).then_some(newest)
    }

    /// The decision of the filters on an entry; `None` if it stays.
    pub(super) fn decide(&mut self, entry: Entry<'_>) -> Result<Option<Decision>> {
        let mut replaced: Option<Vec<u8>> = None;
        for filter in &mut self.deciding {
            let value = replaced.as_deref().unwrap_or(entry.value);
            let entry = Entry { value, ..entry };
            match filter.decide(entry)? {
                Decision::Keep => {}
                // Later filters would decide on an entry that is gone.
                Decision::Remove => return Ok(Some(Decision::Remove)),
                Decision::Replace(value) => replaced = Some(value),
            }
        }
        Ok(replaced.map(Decision::Replace))
    }
}

/// Refuses payloads of notes, of so many bytes each, that have no place next to their owners.
fn check_note_form(payload_bytes: Option<usize>) -> Result<()> {
    let refused = payload_bytes.filter(|bytes| !(1..=NOTED_BYTES_MAX).contains(bytes));
    let Some(bytes) = refused else { return Ok(()) };
    let what = format!(
        "a filter makes payloads of {bytes} bytes of notes; 1 to {NOTED_BYTES_MAX} bytes are possible"
    );
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_of_notes_have_1_to_15_bytes() {
        for bytes in [None, Some(1), Some(NOTED_BYTES_MAX)] {
            check_note_form(bytes).unwrap();
        }
        for bytes in [0, NOTED_BYTES_MAX + 1] {
            let error = check_note_form(Some(bytes)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(&format!("{bytes} bytes of notes")), "{error}");
        }
    }
}
