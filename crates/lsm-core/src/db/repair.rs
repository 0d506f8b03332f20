//! Running a job until it has tables: what it finds faulty is repaired outside of it, then it runs
//! again.
//!
//! Called for flushes, compactions and exports. What to try, and in which order, is the filter's; this file gives it the sources that only the
//! engine has, counts the rounds, and tells listeners.

use std::path::PathBuf;
use std::sync::Arc;

use super::DbInner;
use crate::batch::SectionReader;
use crate::compaction::{JobOutcome, Patches, Stages, place_of};
use crate::error::{Damage, Error, Result};
use crate::fs::names::{FileKind, FileName};
use crate::hooks::{
    CompactionFilterFactory, Event, Fault, Origin, OwnedEntry, PartitionHooks, Patch,
    RepairSources, catch,
};
use crate::partition::ReadView;
use crate::snapshot::JobSnapshots;
use crate::types::{EntryKind, PartitionId, SeqNo};
use crate::version::SstMeta;
use crate::wal::{LogReader, LogReaderOptions, Record, SegmentSource};

/// Runs of a job over its repaired entries; one that still finds new faults then is given up.
const REPAIR_ROUNDS: usize = 8;

/// Where a filter's repair may look.
struct Sources<'a> {
    db: &'a DbInner,
    partition: PartitionId,
    view: Arc<ReadView>,
}

impl RepairSources for Sources<'_> {
    fn reread(&mut self, at: &Origin) -> Result<Option<OwnedEntry>> {
        let Some(file) = at.file else { return Ok(None) };
        let mut tables = self.view.version.tables();
        let Some((_, table)) = tables.find(|(_, table)| table.meta.file == file) else {
            return Ok(None);
        };
        table.reader(&self.db.tables)?.entry_at(at.block_offset, at.entry, true)
    }

    fn in_log(&mut self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        self.db.find_in_log(self.partition, key, seq)
    }
}

/// The bytes of a faulty entry. A filter need not keep them.
fn found(fault: &Fault, sources: &mut dyn RepairSources) -> Vec<u8> {
    if !fault.value.is_empty() {
        return fault.value.clone();
    }
    let entry = sources.reread(&fault.at).ok().flatten();
    entry.map_or_else(Vec::new, |entry| entry.value)
}

impl DbInner {
    /// Runs a job over inputs that `view` has until it has tables: faults are repaired between the
    /// runs. Returns the tables and the handles that no entry refers to any more.
    pub(super) fn run_to_tables(
        &self,
        view: &Arc<ReadView>,
        hooks: &PartitionHooks,
        snapshots: &JobSnapshots,
        run: impl Fn(Stages<'_>) -> Result<JobOutcome>,
    ) -> Result<(Vec<SstMeta>, Vec<Vec<u8>>)> {
        let mut patches = Patches::default();
        for round in 1.. {
            let (respected, registered) = (&snapshots.respected, &snapshots.registered);
            let inject = self.inject.as_deref();
            let stages = Stages::new(hooks, respected, registered, &patches, inject);
            match (run(stages)?, hooks.sealing()) {
                (JobOutcome::Done { tables, dropped_handles, mended }, _) => {
                    for (fault, source) in mended {
                        self.tell(&Event::Corruption(self.damage_of(view, &fault)));
                        let partition = view.version.name.to_string();
                        self.tell(&Event::Repaired { partition, key: fault.key, source });
                    }
                    return Ok((tables, dropped_handles));
                }
                (JobOutcome::Faulty(faults), Some(filter)) => {
                    // Outside of the job: what unwinds here has nothing under way.
                    catch("a repair", || self.repair(view, filter, faults, &mut patches))?;
                }
                (JobOutcome::Faulty(_), None) => break,
            }
            if round > REPAIR_ROUNDS {
                break;
            }
        }
        let what = "a compaction finds new faults in every run";
        Err(Error::corruption(&self.dir, None, what).in_partition(&view.version.name))
    }

    /// Finds a patch for each fault of a job over inputs that `view` has.
    fn repair(
        &self,
        view: &Arc<ReadView>,
        filter: &Arc<dyn CompactionFilterFactory>,
        faults: Vec<Fault>,
        patches: &mut Patches,
    ) {
        let mut sources = Sources { db: self, partition: view.version.id, view: view.clone() };
        // What a repair gave once was not good enough.
        let (tried, new): (Vec<_>, Vec<_>) =
            faults.into_iter().partition(|fault| patches.contains_key(&place_of(fault.at)));
        let given = filter.repair(&new, &mut sources);
        let given = given.into_iter().chain(std::iter::repeat(Patch::Poison));
        let poison = tried.into_iter().map(|fault| (fault, Patch::Poison));
        for (fault, patch) in new.into_iter().zip(given).chain(poison) {
            let mut damage = self.damage_of(view, &fault);
            self.tell(&Event::Corruption(damage.clone()));
            match &patch {
                Patch::Replace { kind: EntryKind::Poison, key, .. } => {
                    damage.key = Some(key.clone());
                    self.tell(&Event::Quarantined { damage, value: fault.value });
                }
                Patch::Replace { key, source, .. } => self.tell(&Event::Repaired {
                    partition: view.version.name.to_string(),
                    key: key.clone(),
                    source: source.clone(),
                }),
                Patch::Poison => {
                    let value = found(&fault, &mut sources);
                    self.tell(&Event::Quarantined { damage, value });
                }
                Patch::Leave => {}
            }
            patches.insert(place_of(fault.at), patch);
        }
    }

    /// What is told of a fault in an input that `view` has.
    fn damage_of(&self, view: &ReadView, fault: &Fault) -> Damage {
        let file = match fault.at.file {
            None => PathBuf::from("memtable"),
            Some(file) => {
                let epoch = view
                    .version
                    .tables()
                    .find(|(_, table)| table.meta.file == file)
                    .map_or(self.epoch, |(_, table)| table.meta.epoch);
                FileName::new(FileKind::Sst, file, epoch).path(&self.dir)
            }
        };
        Damage {
            partition: Some(view.version.name.to_string()),
            file,
            offset: fault.at.file.map(|_| fault.at.block_offset),
            key: Some(fault.key.clone()),
            keys: None,
            level: fault.at.file.map(|_| fault.at.level),
            what: fault.what.clone(),
        }
    }

    /// The operation of `key` and `seq` in the log of this epoch, if a live segment still has it.
    fn find_in_log(
        &self,
        partition: PartitionId,
        key: &[u8],
        seq: SeqNo,
    ) -> Result<Option<OwnedEntry>> {
        let segments = self.catalog.current().log_segments.clone();
        let mut sources = Vec::new();
        for (number, epoch) in segments {
            let path = FileName::new(FileKind::Wal, number, epoch).path(&self.dir);
            let file = self.fs.open_read(&path)?;
            sources.push(SegmentSource { number, epoch, path, file });
        }
        let mut options = LogReaderOptions::new(self.db_id);
        options.only = Some(partition);
        let mut reader = LogReader::new(sources, options)?;
        while let Some(frame) = reader.next_frame()? {
            let Record::Batch(batch) = &frame.record else { continue };
            for section in batch.sections() {
                let last = section.first_seq.plus(u64::from(section.operations.max(1)) - 1);
                if !(section.first_seq..=last).contains(&seq) {
                    continue;
                }
                let skip = (seq.get() - section.first_seq.get()) as usize;
                let mut operations = SectionReader::new(section.bytes);
                let malformed = |fault: crate::codec::Malformed| {
                    Error::corruption(&self.dir, None, fault.to_string())
                };
                let mut operation = operations.next_operation().map_err(malformed)?;
                for _ in 0..skip {
                    operation = operations.next_operation().map_err(malformed)?;
                }
                let Some(operation) = operation else { return Ok(None) };
                if section.bytes[operation.key.clone()] != *key {
                    return Ok(None);
                }
                return Ok(Some(OwnedEntry {
                    key: key.to_vec(),
                    seq,
                    kind: operation.kind,
                    value: section.bytes[operation.value].to_vec(),
                    verified: true,
                }));
            }
        }
        Ok(None)
    }
}
