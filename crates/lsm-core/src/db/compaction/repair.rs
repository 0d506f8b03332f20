//! Repairs: one job over one damaged table, in the table's own level.
//!
//! A compaction or an export stops at damage, with an error that names the table. Then the table is
//! repaired here, and the work is tried again. If the filter of the partition verifies blocks, it says what
//! takes the place of a damaged one. Of what no source has, the edit keeps a gap.
//!
//! ```text
//! compaction -> corruption that names one of its tables
//!   -> its claim becomes one of that table alone -> read on in spite of damage, write a table
//!   -> one edit: the damaged table leaves, the repaired one comes, gaps are kept
//!   -> the compaction is picked again
//! ```
//!
//! Invariants:
//! 1. Until the edit, readers see the damaged table, and get errors from it. A crash leaves it as it was.
//! 2. A repair needs room for one table.
//! 3. Repairs of one table end: after `REPAIRS_MAX` (`jobs/repairs.rs`) of them in a row, which each led to other damage in
//!    what they made, the damage is final.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use super::Compactor;
use crate::compaction::Merge;
use crate::db::job::{JobRunner, JobTables};
use crate::db::jobs::{Claimed, RepairStep};
use crate::db::log_search::LogSearch;
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::hooks::{Event, Fault, OwnedEntry, RepairSources, catch_engine};
use crate::iter::InternalIter;
use crate::partition::{PartitionState, ReadView};
use crate::read::{Source, lost as lost_in};
use crate::types::{Gap, KeyRef, SeqNo};
use crate::version::{PartitionVersion, Table, TableContext};

/// The sources of a repair. It holds on to nothing of the database, because a walk over
/// tables lives longer than the call that made it.
struct SourcesOf {
    log: LogSearch,
    view: Arc<ReadView>,
    tables: Arc<TableContext>,
}

impl RepairSources for SourcesOf {
    fn in_log(&self, seqs: &BTreeSet<SeqNo>) -> HashMap<SeqNo, OwnedEntry> {
        // Entries that are not flushed are in the log, and many that were flushed a short time ago.
        // An error counts as "not found", because the repair has other sources.
        self.log.find_all(seqs)
    }

    fn keys_between(&self, from: &[u8], to: &[u8], count: usize) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        for mut source in Source::all(&self.view, &self.tables).unwrap_or_default() {
            // A source that cannot be read offers no candidates. They are only guesses, which a
            // checksum confirms.
            if source.seek(Some(KeyRef::seek(from, SeqNo::MAX))).is_err() {
                continue;
            }
            while source.valid() && source.key().user <= to && keys.len() < count {
                keys.push(source.key().user.to_vec());
                if source.next().is_err() {
                    break;
                }
            }
        }
        keys.sort();
        keys.dedup();
        keys
    }
}

impl Compactor {
    /// The table of a partition that a corruption names, with its level, if a repair may help.
    fn repairable<'t>(
        &self,
        partition: &PartitionState,
        error: &Error,
        mut tables: impl Iterator<Item = (usize, &'t Arc<Table>)>,
    ) -> Option<(usize, Arc<Table>)> {
        let damage = error.damage()?;
        partition.hooks().verifying()?;
        let found = tables.find(|(_, table)| table.path(&self.runner.tables) == damage.file);
        found.map(|(level, table)| (level, table.clone()))
    }

    /// Repairs the input that made a compaction fail with `error`, in the place of the compaction.
    /// `None` if that cannot help: the claim is then as it was.
    ///
    /// # Errors
    /// Those of writing and installing the table.
    pub(super) fn repair_input(&self, claimed: &Claimed, error: &Error) -> Option<Result<()>> {
        let tables = claimed.compaction.tables();
        let (level, table) = self.repairable(&claimed.partition, error, tables)?;
        let repair = self.jobs.begin_repair(claimed, level, table)?;
        Some(self.run_repair(&repair, error))
    }

    /// Repairs the table of `version` that made an export fail with `error`. Returns `false` if that cannot
    /// help.
    ///
    /// # Errors
    /// Those of writing and installing the table.
    pub(in crate::db) fn repair_table(
        &self,
        partition: &Arc<PartitionState>,
        version: &PartitionVersion,
        error: &Error,
    ) -> Result<bool> {
        // A file of the value store is no table.
        if self.ownership.is_read_only()
            || self.repairable(partition, error, version.tables()).is_none()
        {
            return Ok(false);
        }
        loop {
            self.log.check_open()?;
            // A dropped partition has no tables, and would seem to be repaired.
            partition.check_live()?;
            let view = partition.view();
            let found = self.repairable(partition, error, view.version.tables());
            // Otherwise another job has replaced it.
            let Some((level, table)) = found else { return Ok(true) };
            match self.jobs.pick_repair(partition, level, table) {
                RepairStep::Run(repair) => {
                    self.run_repair(&repair, error)?;
                    return Ok(true);
                }
                RepairStep::Wait => self.background.wait_for_news(),
                RepairStep::Final => return Ok(false),
            }
        }
    }

    /// Runs a claimed repair, installs its result and gives the claim back. Corruption of the repair itself
    /// is no error: the work that found the damage is tried again.
    fn run_repair(&self, repair: &Claimed, error: &Error) -> Result<()> {
        let partition = &repair.partition;
        let result = catch_engine("a repair", || self.rewrite(repair, error));
        let tables = result.as_ref().map(|made| made.as_ref().map_or(&[][..], |made| &made.tables));
        self.jobs.finish_repair(repair, tables);
        match result {
            Ok(Some(made)) if !made.gaps.is_empty() => self.restorer.retry_gaps(partition),
            Err(error) if !error.is_corruption() => {
                partition.check_live()?;
                let mut what =
                    format!("the repair of a table of {} bytes", repair.compaction.bytes());
                if error.kind() == ErrorKind::NoSpace {
                    what.push_str(", which needs room for another");
                }
                return Err(Error::because(error.kind(), what, error).in_partition(&partition.name));
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes and installs what takes the place of a damaged table. `None` if its partition was dropped, or its
    /// hooks changed.
    fn rewrite(&self, repair: &Claimed, error: &Error) -> Result<Option<JobTables>> {
        let Claimed { partition, compaction, version } = repair;
        // Either a close finds the claim, or this check finds the close.
        self.ownership.check_not_closed()?;
        self.runner.catalog.edit()?.ensure_writable()?;
        let job = self.runner.start(partition);
        let merge = Merge::compaction(compaction, version);
        let mut made = self
            .runner
            .run(&job, &merge, &|| self.background.is_stopping() || partition.is_dropped())?;
        if !made.is_repaired && made.gaps.is_empty() && made.miscounted.is_empty() {
            // The damage was in memory: what the repair has read is sound.
            self.report_read_again(partition, error);
        }
        Ok(self.install_merge(repair, &job, &mut made)?.then_some(made))
    }

    fn report_read_again(&self, partition: &PartitionState, error: &Error) {
        let Some(damage) = error.damage() else { return };
        self.runner.events.tell(&Event::Corruption(damage.clone()));
        self.runner.events.tell(&Event::Repaired {
            partition: partition.name.to_string(),
            key: damage.key.clone().unwrap_or_default(),
            source: "re-read".to_owned(),
        });
    }
}

impl JobRunner {
    /// The sources of a repair over `view`.
    pub(in crate::db) fn repair_sources(&self, view: Arc<ReadView>) -> Arc<dyn RepairSources> {
        let log = self.log_search(view.version.id, []);
        Arc::new(SourcesOf { log, view, tables: self.tables.clone() })
    }

    /// Reports entries that are damaged beyond repair, and the gaps that they leave, to listeners.
    pub(in crate::db) fn report_lost(
        &self,
        version: &PartitionVersion,
        lost: Vec<Fault>,
        gaps: &[Gap],
    ) {
        for fault in lost {
            let damage = self.damage_of(version, &fault);
            self.events.tell(&Event::Corruption(damage.clone()));
            self.events.tell(&Event::Quarantined { damage, value: fault.value });
        }
        for gap in gaps {
            let error = lost_in(gap, &self.tables).in_partition(&version.name);
            if let Some(damage) = error.damage() {
                self.events.tell(&Event::Corruption(damage.clone()));
            }
        }
    }

    /// The report of a fault in an input that `version` has, or in a memtable.
    pub(in crate::db) fn damage_of(&self, version: &PartitionVersion, fault: &Fault) -> Damage {
        let file = match fault.at.file {
            None => PathBuf::from("memtable"),
            Some(file) => {
                let epoch = version
                    .tables()
                    .find(|(_, table)| table.meta.file == file)
                    .map_or(self.factory.epoch, |(_, table)| table.meta.epoch);
                FileName::new(FileKind::Sst, file, epoch).path(&self.factory.dir)
            }
        };
        let offset = fault.at.file.map(|_| fault.at.block_offset);
        let mut damage = Damage::new(file, offset, fault.what.clone());
        damage.partition = Some(version.name.to_string());
        damage.key = Some(fault.key.clone());
        damage.level = fault.at.file.map(|_| fault.at.level);
        damage
    }
}
