//! Repairs: a patch for each entry that a run of a job found faulty.
//!
//! Called by `job.rs` between two runs. The filter that found the fault chooses the attempts and
//! their order; this file gives it the sources that only the engine has, the table read again past
//! every cache and the log, and reports the outcome of each entry to listeners.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use super::job::{JobHost, JobRunner};
use super::log_search::LogSearch;
use crate::compaction::{Patches, place_of};
use crate::error::{Damage, Result};
use crate::fs::names::{FileKind, FileName};
use crate::hooks::{
    CompactionFilterFactory, Event, Fault, JudgeSources, Origin, OwnedEntry, Patch, RepairSources,
};
use crate::iter::InternalIter;
use crate::partition::ReadView;
use crate::read::{Source, lost as lost_in};
use crate::types::{EntryKind, Gap, KeyRef, SeqNo};
use crate::version::TableContext;

/// The sources of a filter's repair.
struct Sources<'a> {
    tables: &'a Arc<TableContext>,
    log: LogSearch,
    view: Arc<ReadView>,
}

impl RepairSources for Sources<'_> {
    fn reread(&mut self, at: &Origin) -> Result<Option<OwnedEntry>> {
        let Some(file) = at.file else { return Ok(None) };
        let mut tables = self.view.version.tables();
        let Some((_, table)) = tables.find(|(_, table)| table.meta.file == file) else {
            return Ok(None);
        };
        // Past the caches: the fault may be in the cached block alone.
        table.reader(self.tables)?.entry_at(at.block_offset, at.entry, true)
    }

    fn in_log(&mut self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        // By the number alone, which may be damaged itself and then names another operation. The
        // key distinguishes the two.
        let found = self.log.find(seq)?;
        Ok(found.filter(|entry| entry.key == key))
    }
}

/// The sources of the judges of a job. It keeps no reference to the database, because a walk over
/// tables outlives the call that made it.
struct JudgedFrom {
    log: LogSearch,
    view: Arc<ReadView>,
    tables: Arc<TableContext>,
}

impl JudgeSources for JudgedFrom {
    fn in_log(&self, seqs: &BTreeSet<SeqNo>) -> HashMap<SeqNo, OwnedEntry> {
        // Entries that are not flushed are in the log, and many that were flushed a short time ago.
        // An error counts as "not found", because the judge has other sources.
        self.log.find_all(seqs)
    }

    fn keys_between(&self, from: &[u8], to: &[u8], count: usize) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        for mut source in Source::all(&self.view, &self.tables).unwrap_or_default() {
            // A source that cannot be read offers no candidates. They are only guesses, which a
            // checksum confirms.
            if source.seek(KeyRef::seek(from, SeqNo::MAX)).is_err() {
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

/// The bytes of a faulty entry. A filter need not keep them.
fn found(fault: &Fault, sources: &mut dyn RepairSources) -> Vec<u8> {
    if !fault.value.is_empty() {
        return fault.value.clone();
    }
    // Only for the event, so a failure costs nothing but its bytes.
    let entry = sources.reread(&fault.at).ok().flatten();
    entry.map_or_else(Vec::new, |entry| entry.value)
}

impl JobRunner {
    /// Finds a patch for each fault of a job over inputs of `view`.
    pub(super) fn repair(
        &self,
        host: &dyn JobHost,
        view: &Arc<ReadView>,
        filter: &Arc<dyn CompactionFilterFactory>,
        faults: Vec<Fault>,
        patches: &mut Patches,
    ) {
        let seqs = faults.iter().map(|fault| fault.seq);
        let log = self.log_search(host, view, seqs);
        let mut sources = Sources { tables: &self.tables, log, view: view.clone() };
        // A patch that was tried before and is faulty again is not tried a second time: the entry
        // becomes a poison.
        let (tried, new): (Vec<_>, Vec<_>) =
            faults.into_iter().partition(|fault| patches.contains_key(&place_of(fault.at)));
        let given = filter.repair(&new, &mut sources);
        // Faults for which the filter gives no patch must not pass as intact.
        let given = given.into_iter().chain(std::iter::repeat(Patch::Poison));
        let poison = tried.into_iter().map(|fault| (fault, Patch::Poison));
        for (fault, patch) in new.into_iter().zip(given).chain(poison) {
            let mut damage = self.damage_of(view, &fault);
            self.events.tell(&Event::Corruption(damage.clone()));
            match &patch {
                Patch::Replace { kind: EntryKind::Poison, key, .. } => {
                    damage.key = Some(key.clone());
                    self.events.tell(&Event::Quarantined { damage, value: fault.value });
                }
                Patch::Replace { key, source, .. } => self.events.tell(&Event::Repaired {
                    partition: view.version.name.to_string(),
                    key: key.clone(),
                    source: source.clone(),
                }),
                Patch::Poison => {
                    let value = found(&fault, &mut sources);
                    self.events.tell(&Event::Quarantined { damage, value });
                }
                Patch::Leave => {}
            }
            patches.insert(place_of(fault.at), patch);
        }
    }

    /// The sources of the judges of a job over `view`.
    pub(super) fn judge_sources(
        &self,
        host: &dyn JobHost,
        view: &Arc<ReadView>,
    ) -> Arc<dyn JudgeSources> {
        let log = self.log_search(host, view, []);
        Arc::new(JudgedFrom { log, view: view.clone(), tables: self.tables.clone() })
    }

    /// Reports damage beyond repair, with the keys around it.
    pub(super) fn tell_lost(&self, view: &ReadView, lost: Vec<Fault>, gaps: &[Gap]) {
        for fault in lost {
            let damage = self.damage_of(view, &fault);
            self.events.tell(&Event::Corruption(damage.clone()));
            self.events.tell(&Event::Quarantined { damage, value: fault.value });
        }
        for gap in gaps {
            let error = lost_in(gap, &self.tables).in_partition(&view.version.name);
            if let Some(damage) = error.damage() {
                self.events.tell(&Event::Corruption(damage.clone()));
            }
        }
    }

    /// The report of a fault in an input of `view`.
    pub(super) fn damage_of(&self, view: &ReadView, fault: &Fault) -> Damage {
        let file = match fault.at.file {
            None => PathBuf::from("memtable"),
            Some(file) => {
                let epoch = view
                    .version
                    .tables()
                    .find(|(_, table)| table.meta.file == file)
                    .map_or(self.factory.epoch, |(_, table)| table.meta.epoch);
                FileName::new(FileKind::Sst, file, epoch).path(&self.factory.dir)
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
}
