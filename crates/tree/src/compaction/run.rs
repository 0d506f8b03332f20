//! [`Merge`]: one run of a flush, a compaction or an export, from its inputs to finished tables.
//!
//! `db/job.rs` and its callers make and run it; recovery runs it for the entries of the log. The
//! three kinds differ only in their inputs and in the place of their outputs, so there is one
//! `run`: it opens the inputs, starts the filters, and lets the loop of `survivors.rs` write.
//!
//! Invariants:
//! 1. When [`Merge::run`] returns tables, their bytes and names are durable, unless the factory
//!    leaves the syncs to its maker. `run` installs nothing.
//! 2. When it fails, the inputs are unchanged. It removes the files that it wrote; files that
//!    cannot be removed are orphan files for the next open.
//! 3. Damage of an input fails it. Only a repair ([`Trigger::Repair`]) reads on, and says what was lost.

use std::sync::Arc;

use super::damaged::DamagedInput;
use super::inputs::{JobCheck, MergeInput, blame, input_tables, open_inputs};
use super::leveled::level_compression;
use super::survivors::write_survivors;
use super::{
    Compaction, ExportRange, JobHooks, JobOutcome, KeyBelow, Outputs, Split, TableFactory, Trigger,
};
use crate::clock::IoPriority;
use crate::error::Result;
use crate::hooks::{InputTable, Job, JobFindings, JobKind, RepairSources};
use crate::iter::MergeIter;
use crate::limits::LEVEL_COUNT;
use crate::memtable::{Memtable, clear_seqs_of, spans_of};
use crate::types::{ClearSeqs, DeletedRanges, Gaps, KeyForm, SeqNo};
use crate::version::{PartitionVersion, SstMeta, Table, TableContext};

/// One run of a flush, a compaction, a repair or an export: its inputs, and the level of its outputs.
pub struct Merge<'a> {
    kind: JobKind,
    version: &'a PartitionVersion,
    memtables: Vec<Arc<Memtable>>,
    /// Input tables by level, in the level's order.
    tables: Vec<(usize, Vec<Arc<Table>>)>,
    level_from: usize,
    level_to: usize,
    /// `true` if nothing older lies below the whole key range of the inputs.
    bottom: bool,
    /// Sequence numbers are stored relative to this; no entry of the inputs is older.
    base_seq: SeqNo,
    /// The entries that are read, if not all are.
    range: Option<&'a ExportRange>,
    /// The sequence numbers at which the partition was cleared.
    clear_seqs: ClearSeqs,
    /// The deleted ranges.
    spans: DeletedRanges,
    /// The compaction whose neighbours say where an output ends.
    compaction: Option<&'a Compaction>,
    /// The form of the keys, if outputs have them as given, and no hidden entries.
    bare: Option<KeyForm>,
}

/// The deleted ranges that hide nothing in the tables of a job.
#[derive(Clone, Debug, Default)]
pub struct Erased {
    /// The job knew every range through this number.
    known_through: SeqNo,
    /// The snapshots that it kept entries for, ascending.
    snapshots: Vec<SeqNo>,
}

impl Erased {
    /// Ranges through this number hide nothing in the table, which the job made.
    pub fn through(&self, meta: &SstMeta) -> SeqNo {
        // An earlier snapshot sees no entry of the table, so that none was kept for it.
        let first = self.snapshots.partition_point(|snapshot| *snapshot < meta.oldest());
        self.snapshots.get(first).map_or(self.known_through, |first| self.known_through.min(*first))
    }
}

/// All that a run needs in addition to its merge.
pub struct RunContext<'a> {
    /// The maker of the outputs.
    pub factory: &'a TableFactory,
    /// The way in which inputs are opened.
    pub tables: &'a Arc<TableContext>,
    /// The partition's filters, its store, and what they have to know.
    pub job_hooks: JobHooks<'a>,
    /// `true` if to give up. Asked between entries, with the bytes that were written so far, and without a lock: it
    /// may wait, or do other work first.
    pub should_stop: &'a dyn Fn(u64) -> bool,
    /// The sources of a repair.
    pub sources: Option<Arc<dyn RepairSources>>,
    /// The time at which the job began, in seconds since 1970.
    pub unix_seconds: u64,
}

impl<'a> Merge<'a> {
    /// Memtables of a partition into at most one table of level 0. `version` holds the partition's
    /// older tables.
    pub fn flush(memtables: &[Arc<Memtable>], version: &'a PartitionVersion) -> Merge<'a> {
        Merge {
            kind: JobKind::Flush,
            version,
            memtables: memtables.to_vec(),
            tables: Vec::new(),
            level_from: 0,
            level_to: 0,
            // A hint for filters alone; the rules ask `KeyBelow` for each key.
            bottom: version.tables().next().is_none(),
            // Everything flushed so far lies below it.
            base_seq: version.flushed_through,
            range: None,
            // Not those of newer memtables: they may be lost in a crash that keeps the tables.
            clear_seqs: version.clear_seqs.and(&clear_seqs_of(memtables)),
            spans: version.spans.and(&spans_of(memtables)),
            compaction: None,
            bare: None,
        }
    }

    /// The inputs of a compaction that was picked from `version`, into its output level.
    pub fn compaction(compaction: &'a Compaction, version: &'a PartitionVersion) -> Merge<'a> {
        let oldest = compaction.tables().map(|(_, table)| table.meta.oldest()).min();
        Merge {
            kind: JobKind::Compaction,
            version,
            memtables: Vec::new(),
            tables: compaction.inputs.clone(),
            level_from: compaction.level_from,
            level_to: compaction.level_to,
            bottom: compaction.bottom,
            // The effective numbers: an ingested table stores others, and its outputs store the
            // effective ones.
            base_seq: oldest.expect("a compaction has inputs"),
            range: None,
            clear_seqs: version.clear_seqs.clone(),
            spans: version.spans.clone(),
            compaction: Some(compaction),
            bare: None,
        }
    }

    /// The entries that a reader sees of `memtables` and `version`, above clears and deleted ranges, within `range`,
    /// one version of each key, as values: an export. Filters and outputs are the caller's choice: the filter
    /// that seals takes part, those that would decide need not.
    ///
    /// It is a [`JobKind::Compaction`] for the filters, but a partial one.
    pub fn export(
        memtables: &[Arc<Memtable>],
        version: &'a PartitionVersion,
        (clear_seqs, spans): (ClearSeqs, DeletedRanges),
        range: &'a ExportRange,
    ) -> Merge<'a> {
        let mut tables = Vec::new();
        for (level, all) in version.levels.iter().enumerate() {
            let in_range = all.tables().iter().filter(|table| table.meta.overlaps(range.range()));
            // Empty levels are left out when the inputs are opened.
            tables.push((level, in_range.cloned().collect()));
        }
        Merge {
            kind: JobKind::Compaction,
            version,
            memtables: memtables.to_vec(),
            tables,
            level_from: 0,
            level_to: LEVEL_COUNT - 1,
            bottom: true,
            base_seq: SeqNo::ZERO,
            range: Some(range),
            clear_seqs,
            spans,
            compaction: None,
            bare: None,
        }
    }

    /// With outputs that have keys as they were given, and neither hidden entries nor notes of
    /// filters.
    #[must_use]
    pub fn bare(self, form: Option<KeyForm>) -> Merge<'a> {
        Merge { bare: form, ..self }
    }

    /// Merges the inputs into tables.
    ///
    /// # Errors
    /// Those of the files and of the filters; corruption that names file and offset if an input is
    /// damaged, and the key of a record that is known to be damaged if this is an export;
    /// [`ErrorKind::Closed`](crate::error::ErrorKind::Closed) if `should_stop` says so.
    ///
    /// # Cost
    /// Reads every input once, past the block cache, and writes what survives.
    pub fn run(&self, context: RunContext<'_>) -> Result<JobOutcome> {
        let RunContext { factory, tables, mut job_hooks, should_stop, sources, unix_seconds } =
            context;
        let rules = &mut job_hooks.rules;
        rules.clear_seqs = self.clear_seqs.clone();
        rules.spans = self.spans.clone();
        rules.drops_all = self.compaction.is_some_and(|it| it.trigger == Trigger::Fifo);
        let findings = JobFindings::default();
        // Checked, because what is written from here on is all that is left of the entries.
        let memtables = self.memtables.iter().map(|memtable| memtable.checked_iter());
        let mut inputs: Vec<MergeInput> = memtables.map(MergeInput::Memtable).collect();
        let described = match &sources {
            Some(sources) if self.is_repair() => {
                let hooks = job_hooks.hooks();
                let findings = &findings;
                let reads_plainly = false;
                let opening =
                    DamagedInput { context: tables, hooks, sources, findings, reads_plainly };
                self.open_damaged(&opening, &mut inputs)?
            }
            _ => self.open(tables, &mut job_hooks, &findings, &mut inputs)?,
        };
        self.start(&mut job_hooks, described)?;
        let mut outputs = self.outputs(factory, &job_hooks);
        if self.version.options.compaction_style.has_age() {
            // Entries do not get younger by a repair.
            let before = self.input_tables().filter_map(|(_, table)| table.meta.written_at).max();
            outputs.set_written_at(before.unwrap_or(unix_seconds));
        }
        if self.range.is_some() {
            outputs.values_only(&tables.dir);
        }
        let mut entries = MergeIter::new(inputs);
        // A loss that a repair finds counts at once: it reaches the version only with the job's edit.
        let mut below = self.below().and_lost(self.is_repair().then(|| findings.clone()));
        if self.range.is_some() {
            below = below.of_export();
        }
        let split = self.split();
        let outcome = write_survivors(
            &mut entries,
            self.range,
            job_hooks,
            below,
            split,
            outputs,
            should_stop,
        )
        // The loop sees only that entries do not ascend. The tables are read again to name
        // the one at fault.
        .map_err(|error| blame(error, self.input_tables(), tables))?;
        // Only after the loop: walks add to their findings until their ends.
        Ok(outcome.and_found(findings.take()))
    }

    /// Opens the tables; returns their descriptions for the filters.
    fn open(
        &self,
        tables: &Arc<TableContext>,
        job_hooks: &mut JobHooks<'_>,
        findings: &JobFindings,
        inputs: &mut Vec<MergeInput>,
    ) -> Result<Vec<InputTable>> {
        let described = input_tables(self.input_tables(), tables)?;
        // The filter that seals sees a part of the tables in an export. Otherwise it sees all that the verifier
        // sees, and compares it.
        let compares = self.range.is_some();
        let verifier = match job_hooks.hooks().verifying().filter(|_| !described.is_empty()) {
            Some(sealer) => sealer.verifier(&described, compares)?,
            None => None,
        };
        job_hooks.walks_all = verifier.as_ref().is_some_and(|verifier| verifier.walks_all);
        let check = verifier.map(|verifier| JobCheck {
            verifier: verifier.blocks,
            findings: findings.clone(),
            level: 0,
            inject: job_hooks.inject.cloned(),
        });
        inputs.extend(open_inputs(&self.tables, tables, job_hooks.hooks(), check.as_ref())?);
        Ok(described)
    }

    /// Opens the table of a repair, unless it is lost.
    fn open_damaged(
        &self,
        opening: &DamagedInput<'_>,
        inputs: &mut Vec<MergeInput>,
    ) -> Result<Vec<InputTable>> {
        let mut described = Vec::new();
        for (level, table) in self.input_tables() {
            let Some((iter, input)) = opening.open(level, table)? else { continue };
            inputs.push(MergeInput::Damaged(Box::new(iter)));
            described.push(input);
        }
        Ok(described)
    }

    /// The urgency of its writes, by which they are limited; `None` for an export, which a caller waits for.
    pub fn io_priority(&self) -> Option<IoPriority> {
        match self.kind {
            _ if self.range.is_some() => None,
            JobKind::Flush => Some(IoPriority::Flush),
            JobKind::Compaction if self.level_from == 0 => Some(IoPriority::Level0),
            JobKind::Compaction => Some(IoPriority::Deep),
        }
    }

    /// Returns `true` if it repairs a table.
    pub fn is_repair(&self) -> bool {
        self.compaction.is_some_and(|compaction| compaction.trigger == Trigger::Repair)
    }

    /// The deleted ranges that hide nothing in the tables that the merge makes if it respects `snapshots`.
    pub fn erased(&self, snapshots: &[SeqNo]) -> Erased {
        // Later ones may be in memtables alone, so that the merge does not know them.
        let flushed = self.memtables.iter().map(|memtable| memtable.last_seq()).max();
        let known_through = flushed.unwrap_or(self.version.flushed_through);
        Erased { known_through, snapshots: snapshots.to_vec() }
    }

    /// The closed gaps that the merge knows: what they hide is left out of its tables.
    pub fn closed_gaps(&self) -> Gaps {
        self.version.gaps.closed()
    }

    fn input_tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        self.tables
            .iter()
            .flat_map(|(level, tables)| tables.iter().map(move |table| (*level, table)))
    }

    /// Starts the filters.
    fn start(&self, job_hooks: &mut JobHooks<'_>, inputs: Vec<InputTable>) -> Result<()> {
        job_hooks.start(&Job {
            level_from: self.level_from,
            level_to: self.level_to,
            bottom: self.bottom,
            snapshots: job_hooks.registered(),
            inputs: &inputs,
            partial: self.range.is_some(),
            ..Job::new(&self.version.name, self.kind)
        })
    }

    fn outputs<'f>(&self, factory: &'f TableFactory, job_hooks: &JobHooks<'_>) -> Outputs<'f> {
        let suffix = &job_hooks.hooks().rules.reserved_suffix;
        let options = &self.version.options;
        // Levels 0 and 1 are read and rewritten soon: compressing them costs more than it saves.
        let compression = level_compression(options, self.level_to);
        let suffix = if self.bare.is_some() { &[][..] } else { suffix };
        let outputs = Outputs::new(factory, options, compression, self.base_seq, suffix);
        // Writers wait for flushes.
        outputs.of_partition(self.version).bare(self.bare).paced(self.kind == JobKind::Compaction)
    }

    /// The tables in which something older may lie than what this merge reads.
    fn below(&self) -> KeyBelow {
        match self.kind {
            JobKind::Flush => KeyBelow::for_flush(self.version),
            // Tables of level 0 may lie below one another.
            JobKind::Compaction if self.is_repair() && self.level_to == 0 => {
                KeyBelow::for_flush(self.version)
            }
            JobKind::Compaction => KeyBelow::new(self.version, self.level_to),
        }
    }

    /// The rule by which outputs end. A flush makes one table whatever its size: level 0 receives
    /// tables in the order of their sequences, and each of them costs every reader a look.
    fn split(&self) -> Option<Split> {
        let table_bytes = self.version.options.table_bytes;
        match (self.kind, self.compaction) {
            // So does a repair: a table of level 0 must not become two.
            (JobKind::Flush, _) => None,
            (_, Some(_)) if self.is_repair() => None,
            (JobKind::Compaction, Some(compaction)) => Some(Split::new(compaction, table_bytes)),
            (JobKind::Compaction, None) => Some(Split::by_size(table_bytes)),
        }
    }
}
