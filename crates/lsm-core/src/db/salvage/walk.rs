//! The entries of a partition: all tables and memtables, merged, and of each key the newest version that counts.
//!
//! Tables are read block by block from the front to the end ([`TolerantIter`]), so that one that cannot be searched
//! is read as well. Tables that do not overlap are one source, so that few of them are open at once.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use super::report::SalvageReport;
use super::state::SalvageState;
use crate::compaction::DamagedInput;
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::fs::is_unreadable;
use crate::fs::names::{FileKind, FileName};
use crate::hooks::{Fault, JobFindings, OwnedEntry, PartitionHooks, RepairSources};
use crate::iter::{Floors, InternalIter, MergeIter, MergeSource, forward_to_variants};
use crate::memtable::{MemtableIter, clear_seqs_of, spans_of};
use crate::read::AliveAt;
use crate::sstable::TolerantIter;
use crate::types::{EntryKind, FileNo, InGap, KeyForm, KeyRef, SeqNo, SpanLayers, Trailer};
use crate::version::{PartitionVersion, Table, TableContext};

/// Takes a key and its value.
pub type EachEntry<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// A filter that repairs entries has the table alone: the log that it would ask is damaged, or in the merge.
struct NoSources;

impl RepairSources for NoSources {
    fn in_log(&self, _seqs: &BTreeSet<SeqNo>) -> HashMap<SeqNo, OwnedEntry> {
        HashMap::new()
    }

    fn keys_between(&self, _from: &[u8], _to: &[u8], _count: usize) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

/// Tables that do not overlap, in the order of their keys.
struct TableRun {
    context: Arc<TableContext>,
    hooks: PartitionHooks,
    findings: JobFindings,
    tables: VecDeque<(usize, Arc<Table>)>,
    open: Option<TolerantIter>,
}

impl TableRun {
    /// Goes on to the next table that has an entry.
    fn open_next(&mut self) -> Result<()> {
        let sources: Arc<dyn RepairSources> = Arc::new(NoSources);
        self.open = None;
        while let Some((level, table)) = self.tables.pop_front() {
            let opening = DamagedInput {
                context: &self.context,
                hooks: &self.hooks,
                sources: &sources,
                findings: &self.findings,
                reads_plainly: true,
            };
            let Some((mut iter, _)) = opening.open(level, &table)? else { continue };
            iter.seek(None)?;
            if iter.valid() {
                self.open = Some(iter);
                return Ok(());
            }
        }
        Ok(())
    }

    fn on(&self) -> &TolerantIter {
        self.open.as_ref().expect("the caller has checked that the cursor is on an entry")
    }
}

impl InternalIter for TableRun {
    fn valid(&self) -> bool {
        self.open.as_ref().is_some_and(TolerantIter::valid)
    }

    fn key(&self) -> KeyRef<'_> {
        self.on().key()
    }

    fn value(&self) -> &[u8] {
        self.on().value()
    }

    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        if target.is_some() {
            return Err(forwards_only());
        }
        self.open_next()
    }

    fn next(&mut self) -> Result<()> {
        if let Some(open) = &mut self.open {
            open.next()?;
            if open.valid() {
                return Ok(());
            }
        }
        self.open_next()
    }

    fn seek_before(&mut self, _: Option<KeyRef<'_>>) -> Result<()> {
        Err(forwards_only())
    }

    fn prev(&mut self) -> Result<()> {
        Err(forwards_only())
    }
}

fn forwards_only() -> Error {
    Error::new(ErrorKind::InvalidArgument, "a salvage goes from the first entry to the last")
}

/// A source of the merge.
enum SalvageSource {
    Tables(Box<TableRun>),
    Log(MemtableIter),
}

impl InternalIter for SalvageSource {
    forward_to_variants!(SalvageSource: Tables, Log);

    fn key(&self) -> KeyRef<'_> {
        match self {
            SalvageSource::Tables(cursor) => cursor.key(),
            SalvageSource::Log(cursor) => cursor.key(),
        }
    }
}

impl MergeSource for SalvageSource {}

/// Divides tables into runs, each without an overlap.
fn runs(partition: &PartitionVersion) -> Vec<VecDeque<(usize, Arc<Table>)>> {
    let mut tables: Vec<_> =
        partition.tables().map(|(level, table)| (level, table.clone())).collect();
    tables.sort_by(|(_, a), (_, b)| a.meta.smallest.user.cmp(&b.meta.smallest.user));
    let mut runs: Vec<VecDeque<(usize, Arc<Table>)>> = Vec::new();
    for table in tables {
        let free = runs.iter_mut().find(|run| {
            let (_, last) = run.back().expect("a run has a table");
            last.meta.largest.user < table.1.meta.smallest.user
        });
        match free {
            Some(run) => run.push_back(table),
            None => runs.push(VecDeque::from([table])),
        }
    }
    runs
}

/// The outcome of the versions of a key.
enum KeyOutcome {
    Absent,
    Value(Vec<u8>),
    Lost(Error),
}

/// The walk over a partition.
struct PartitionWalk<'a> {
    state: &'a SalvageState,
    partition: &'a PartitionVersion,
    hooks: &'a PartitionHooks,
    floors: Floors,
    form: KeyForm,
    /// The values that have not expired: no other one is a base of operands. `None` if all are one.
    alive: Option<AliveAt>,
}

/// Calls `each` with the keys and values of `partition`; returns their number.
pub(super) fn each_entry(
    state: &SalvageState,
    partition: &PartitionVersion,
    report: &mut SalvageReport,
    each: &mut EachEntry<'_>,
) -> Result<u64> {
    let hooks = &state.hooks[&partition.id];
    let memtables = state.memtables.get(&partition.id).map_or(&[][..], Vec::as_slice);
    let clear_seqs = partition.clear_seqs.and(&clear_seqs_of(memtables));
    let clear_seq = clear_seqs.at(SeqNo::MAX).unwrap_or(SeqNo::ZERO);
    let spans = [partition.spans.clone(), spans_of(memtables)];
    let form = hooks.rules.key_form;
    let floors = Floors::new(SeqNo::MAX, clear_seq, SpanLayers::of(spans.into_iter()));
    let findings = JobFindings::default();
    let mut sources: Vec<_> = memtables.iter().map(|it| SalvageSource::Log(it.iter())).collect();
    sources.extend(runs(partition).into_iter().map(|tables| {
        let context = state.tables.clone();
        let findings = findings.clone();
        SalvageSource::Tables(Box::new(TableRun {
            context,
            hooks: hooks.clone(),
            findings,
            tables,
            open: None,
        }))
    }));
    let mut merge = MergeIter::new(sources);
    let alive = hooks.hiding().map(|rule| AliveAt::new(rule, state.unix_time));
    let mut walk = PartitionWalk { state, partition, hooks, floors, form, alive };
    let mut entries = 0;
    merge.seek(None)?;
    while merge.valid() {
        let stored = merge.key().user.to_vec();
        let outcome = walk.newest(&mut merge, &stored)?;
        let key = form.user(&stored);
        match outcome {
            KeyOutcome::Absent => {}
            KeyOutcome::Value(value) => {
                entries += 1;
                each(key, &value)?;
            }
            KeyOutcome::Lost(error) => {
                let error = error.at_key(key).in_partition(&partition.name);
                report.add(&error, &state.tables.dir);
                report.doubt(&partition.name, form, (&stored, &stored), "its value is lost");
            }
        }
    }
    walk.take_findings(&findings, report);
    Ok(entries)
}

impl PartitionWalk<'_> {
    /// The outcome of the versions of `key`, which `merge` is on; passes over them.
    fn newest(&mut self, merge: &mut MergeIter<SalvageSource>, key: &[u8]) -> Result<KeyOutcome> {
        let floor = self.floors.at(key);
        let mut operands: Vec<Vec<u8>> = Vec::new();
        let mut base = None;
        let mut lost = None;
        let mut is_decided = false;
        while merge.valid() && merge.key().user == key {
            let trailer = merge.key().trailer;
            if !is_decided {
                is_decided = trailer.seq() < floor || self.is_given_up(key, trailer);
            }
            if !is_decided {
                match trailer.kind() {
                    Some(EntryKind::Operand) => operands.push(merge.value().to_vec()),
                    Some(EntryKind::Value) => base = Some(merge.value().to_vec()),
                    Some(EntryKind::Handle) => match self.read_handle(merge.value())? {
                        Ok(value) => base = Some(value),
                        Err(error) => lost = Some(error),
                    },
                    Some(EntryKind::Tombstone) => {}
                    _ => lost = Some(self.lost("the entry is known to be damaged")),
                }
                is_decided = trailer.kind() != Some(EntryKind::Operand);
            }
            merge.next()?;
        }
        if let Some(error) = lost {
            return Ok(KeyOutcome::Lost(error));
        }
        if operands.is_empty() {
            return Ok(base.map_or(KeyOutcome::Absent, KeyOutcome::Value));
        }
        let Some(operator) = &self.hooks.operator else {
            return Ok(KeyOutcome::Lost(self.lost("its merge operator is not known")));
        };
        let alive = self.alive.as_ref().map(|alive| alive.of(self.form));
        let base = base.filter(|base| alive.is_none_or(|alive| alive.has(key, Some(base))));
        let operands = operands.iter().rev().map(Vec::as_slice);
        Ok(match operator.fold(key, base, operands) {
            Ok(value) => KeyOutcome::Value(value),
            Err(error) => KeyOutcome::Lost(self.lost(&error.to_string())),
        })
    }

    /// Returns `true` for an entry that is older than a loss which the application has accepted.
    fn is_given_up(&self, key: &[u8], trailer: Trailer) -> bool {
        let gaps = &self.partition.gaps;
        !gaps.is_empty() && gaps.effect_on(key, SeqNo::MAX, Some(trailer.seq())).0 == InGap::Hidden
    }

    /// The value of a handle, or the damage for which it is lost.
    fn read_handle(&self, handle: &[u8]) -> Result<Result<Vec<u8>>> {
        let Some(store) = &self.hooks.store else {
            return Ok(Err(self.lost("its value store is not known")));
        };
        match store.read(handle) {
            Err(error) if error.is_corruption() || error.is_missing() || is_unreadable(&error) => {
                Ok(Err(error))
            }
            read => read.map(Ok),
        }
    }

    fn lost(&self, what: &str) -> Error {
        Error::corruption(&self.state.tables.dir, None, what)
    }

    /// Reports what the tables lacked, and the gaps that the partition had before.
    fn take_findings(&self, findings: &JobFindings, report: &mut SalvageReport) {
        let mut found = findings.take();
        let name = &self.partition.name;
        let faults = found.lost.iter().chain(&found.miscounted);
        report.damage.extend(faults.map(|fault| self.damage_of(fault)));
        for (fault, source) in &found.repaired {
            report.repaired.push((self.damage_of(fault), source.clone()));
        }
        for gap in found.take_gaps() {
            report.doubt(name, self.form, (&gap.from, &gap.to), "a part of a table is lost");
        }
        for gap in self.partition.gaps.open() {
            report.doubt(name, self.form, (&gap.from, &gap.to), "a gap of the partition");
        }
    }

    fn damage_of(&self, fault: &Fault) -> Damage {
        let file = fault.at.file.map_or(self.state.tables.dir.clone(), |file| self.path_of(file));
        let offset = Some(fault.at.block_offset).filter(|_| fault.at.file.is_some());
        let error = Error::corruption(file, offset, fault.what.clone());
        Damage::of(&error.in_partition(&self.partition.name), Path::new(""))
    }

    fn path_of(&self, file: FileNo) -> std::path::PathBuf {
        let mut tables = self.partition.tables();
        let epoch = tables.find(|(_, table)| table.meta.file == file);
        let epoch = epoch.map_or(self.state.version.epoch, |(_, table)| table.meta.epoch);
        FileName::new(FileKind::Sst, file, epoch).path(&self.state.tables.dir)
    }
}
