//! An engine in a few lines: tables are vectors, a job merges them and calls the filter in the
//! order that `lsm_core::hooks` promises.

use std::collections::HashMap;

use lsm_core::Result;
use lsm_core::hooks::{
    CompactionFilter, CompactionFilterFactory, Cut, Decision, Emitter, EndedBlock, Entry, Fault,
    Faults, HiddenSink, Input, InputTable, Job, JobKind, Origin, Output, Properties,
};
use lsm_core::internals::compaction::{DropDecision, DropRules};
use lsm_core::types::{EntryKind, FileNo, KeyRef, SeqNo, Trailer};
use metahive::payload::{Payload, entry_key};
use metahive::table_seal::TableSeal;
use metahive::{MetaHive, Verdict, judge};

pub fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub key: Vec<u8>,
    pub seq: SeqNo,
    pub kind: EntryKind,
    pub value: Vec<u8>,
    pub hidden: bool,
    pub block: u64,
}

impl Stored {
    pub fn value(key: &[u8], n: u64, value: &[u8]) -> Stored {
        let key = key.to_vec();
        let value = value.to_vec();
        Stored { key, seq: seq(n), kind: EntryKind::Value, value, hidden: false, block: 0 }
    }

    pub fn deletion(key: &[u8], n: u64) -> Stored {
        Stored { kind: EntryKind::Tombstone, ..Stored::value(key, n, b"") }
    }

    pub fn internal(&self) -> KeyRef<'_> {
        KeyRef::new(&self.key, Trailer::new(self.seq, self.kind))
    }

    pub fn entry(&self) -> Entry<'_> {
        Entry {
            key: &self.key,
            seq: self.seq,
            stored_seq: self.seq,
            kind: self.kind,
            value: &self.value,
            hidden: self.hidden,
        }
    }

    pub fn is_metadata(&self) -> bool {
        entry_key(&self.key).is_some()
            && self.kind == EntryKind::Tombstone
            && self.value.starts_with(&self.seq.get().to_le_bytes())
    }
}

#[derive(Clone, Debug, Default)]
pub struct Table {
    pub file: u64,
    /// Of an ingested table: the sequence number that counts for all of it.
    pub ingested_at: Option<u64>,
    pub is_damaged: bool,
    pub properties: Properties,
    pub entries: Vec<Stored>,
}

impl Table {
    pub fn new(file: u64, mut entries: Vec<Stored>) -> Table {
        entries.sort_by(|a, b| a.internal().cmp(&b.internal()));
        Table { file, entries, ..Table::default() }
    }

    pub fn data(&self) -> Vec<Stored> {
        let visible = self.entries.iter().filter(|e| !e.is_metadata());
        visible.map(|e| Stored { block: 0, ..e.clone() }).collect()
    }

    pub fn origin(&self, at: usize) -> Origin {
        let block_offset = self.entries[at].block;
        let before = self.entries[..at].iter().filter(|e| e.block == block_offset).count();
        Origin {
            file: Some(FileNo(self.file)),
            level: 1,
            block_offset,
            entry: before as u32,
            block_verified: !self.is_damaged,
        }
    }

    pub fn seal(&self) -> Option<TableSeal> {
        TableSeal::of(&self.properties, "integrity").unwrap()
    }
}

pub struct Engine {
    pub block_bytes: usize,
    pub table_bytes: usize,
    pub snapshots: Vec<SeqNo>,
    pub decision: fn(&Entry<'_>) -> Decision,
    /// The first boundary after a block that was cut by force.
    pub forced_at: Option<usize>,
    pub next_file: u64,
}

impl Default for Engine {
    fn default() -> Engine {
        Engine {
            block_bytes: 100,
            table_bytes: usize::MAX,
            snapshots: vec![SeqNo::MAX],
            decision: |_| Decision::Keep,
            forced_at: None,
            next_file: 1000,
        }
    }
}

struct Outputs {
    tables: Vec<Table>,
    ended: Vec<EndedBlock>,
    block: u64,
    block_bytes: usize,
    table_bytes: usize,
}

impl Outputs {
    fn add(&mut self, key: &[u8], seq: SeqNo, kind: EntryKind, value: &[u8], hidden: bool) {
        let key = key.to_vec();
        let value = value.to_vec();
        self.block_bytes += key.len() + value.len();
        self.table_bytes += key.len() + value.len();
        let entry = Stored { key, seq, kind, value, hidden, block: self.block };
        self.tables.last_mut().unwrap().entries.push(entry);
    }

    fn end_block(&mut self, is_forced: bool) {
        self.ended.push(EndedBlock { is_forced, ..EndedBlock::default() });
    }

    fn finish_table(&mut self, filter: &mut dyn CompactionFilter) {
        let last = self.tables.last_mut().unwrap();
        filter.finish_table(&self.ended, &mut last.properties).unwrap();
        self.ended.clear();
    }
}

impl HiddenSink for Outputs {
    fn add(&mut self, key: &[u8], seq: SeqNo, payload: &[u8]) -> Result<()> {
        Outputs::add(self, key, seq, EntryKind::Tombstone, payload, true);
        Ok(())
    }

    fn ended_blocks(&mut self) -> Option<&mut Vec<EndedBlock>> {
        Some(&mut self.ended)
    }
}

impl Engine {
    pub fn flush(&mut self, hive: &MetaHive, entries: Vec<Stored>) -> Table {
        let memtable = Table { file: u64::MAX, ..Table::new(0, entries) };
        let (mut tables, faults) = self.run(hive, JobKind::Flush, &[memtable]);
        assert!(faults.is_empty());
        tables.pop().unwrap()
    }

    pub fn compact(&mut self, hive: &MetaHive, inputs: &[Table]) -> Vec<Table> {
        let (tables, faults) = self.run(hive, JobKind::Compaction, inputs);
        assert!(faults.is_empty(), "{faults:?}");
        tables
    }

    pub fn faults(&mut self, hive: &MetaHive, inputs: &[Table]) -> Vec<Fault> {
        self.run(hive, JobKind::Compaction, inputs).1
    }

    fn merged(kind: JobKind, inputs: &[Table]) -> Vec<(Stored, SeqNo, Origin)> {
        let mut merged = Vec::new();
        for table in inputs {
            for (at, entry) in table.entries.iter().enumerate() {
                let flush = kind == JobKind::Flush;
                let at = if flush { Origin::MEMTABLE } else { table.origin(at) };
                let mut entry = entry.clone();
                let stored_seq = entry.seq;
                entry.seq = table.ingested_at.map_or(stored_seq, seq);
                merged.push((entry, stored_seq, at));
            }
        }
        merged.sort_by(|(a, ..), (b, ..)| a.internal().cmp(&b.internal()));
        merged
    }

    pub fn run(
        &mut self,
        hive: &MetaHive,
        kind: JobKind,
        inputs: &[Table],
    ) -> (Vec<Table>, Vec<Fault>) {
        let named: Vec<InputTable> = inputs
            .iter()
            .filter(|_| kind == JobKind::Compaction)
            .map(|t| InputTable {
                file: FileNo(t.file),
                path: format!("{}.sst", t.file).into(),
                properties: t.properties.clone(),
            })
            .collect();
        let level_from = 0;
        let level_to = usize::from(kind == JobKind::Compaction);
        let job = Job {
            level_from,
            level_to,
            snapshots: &self.snapshots,
            inputs: &named,
            ..Job::new("p", kind)
        };
        let mut filter = hive.start(&job).unwrap();
        let mut faults = Faults::default();
        let mut out =
            Outputs { tables: vec![], ended: vec![], block: 0, block_bytes: 0, table_bytes: 0 };
        out.tables.push(Table { file: self.next_file, ..Table::default() });
        let mut survival = DropRules::new(&self.snapshots);
        let mut last_read: Option<Vec<u8>> = None;
        let mut last_key: Option<Vec<u8>> = None;
        let mut boundaries = 0;
        for (stored, stored_seq, at) in Engine::merged(kind, inputs) {
            let entry = Entry {
                key: &stored.key,
                seq: stored.seq,
                stored_seq,
                kind: stored.kind,
                value: &stored.value,
                hidden: stored.hidden,
            };
            // A flush shows the filter no inputs.
            let is_input = kind == JobKind::Compaction;
            if is_input && filter.input(&entry, &at, None, &mut faults).unwrap() == Input::Take {
                continue;
            }
            let is_version = last_read.as_ref() == Some(&stored.key);
            last_read = Some(stored.key.clone());
            if survival.keep(stored.internal(), is_version, || true) != DropDecision::Keep {
                continue;
            }
            if last_key.as_ref() != Some(&stored.key) {
                if self.forced_at == Some(boundaries) {
                    out.end_block(true);
                }
                boundaries += 1;
                let cut = emit(&mut *filter, Some(&stored.key), &mut out, &mut faults);
                if cut != Cut::Forbidden {
                    self.cut(&mut *filter, &mut out);
                }
                last_key = Some(stored.key.clone());
            }
            let decided = (self.decision)(&entry);
            let (written, untouched) = match &decided {
                Decision::Keep => (entry, Some(stored_seq)),
                Decision::Replace(value) => (Entry { value, ..entry }, None),
                Decision::Remove => {
                    (Entry { value: b"", kind: EntryKind::Tombstone, ..entry }, None)
                }
            };
            let written = Entry { stored_seq: written.seq, ..written };
            let output = Output {
                entry: written,
                untouched_from: untouched,
                value_sum: None,
                is_held: false,
                note: None,
                is_noted: false,
            };
            filter.output(&output).unwrap();
            out.add(written.key, written.seq, written.kind, written.value, false);
        }
        if self.forced_at == Some(boundaries) {
            out.end_block(true);
        }
        emit(&mut *filter, None, &mut out, &mut faults);
        out.end_block(false);
        out.finish_table(&mut *filter);
        self.next_file = out.tables.last().unwrap().file + 1;
        (out.tables, std::iter::from_fn(|| faults.take_first()).collect())
    }

    fn cut(&self, filter: &mut dyn CompactionFilter, out: &mut Outputs) {
        let ends_table = out.table_bytes >= self.table_bytes;
        if out.block_bytes >= self.block_bytes || ends_table {
            out.end_block(false);
            out.block += 1;
            out.block_bytes = 0;
        }
        if ends_table {
            out.finish_table(filter);
            let file = out.tables.last().unwrap().file + 1;
            out.tables.push(Table { file, ..Table::default() });
            (out.block, out.block_bytes, out.table_bytes) = (0, 0, 0);
        }
    }
}

fn emit(
    filter: &mut dyn CompactionFilter,
    next: Option<&[u8]>,
    out: &mut Outputs,
    faults: &mut Faults,
) -> Cut {
    filter.boundary(next, &mut Emitter::new(out), faults).unwrap()
}

/// Checks what every finished table must be: in order, each entry with its own sound metadata,
/// in the same block unless its pair was counted as split, and nothing else. Returns how many
/// pairs lie in two blocks or in properties.
pub fn check_sealed(tables: &[Table]) -> usize {
    let mut apart = 0;
    for pair in tables.windows(2) {
        assert!(pair[0].entries.last().unwrap().internal() < pair[1].entries[0].internal());
    }
    for table in tables {
        for pair in table.entries.windows(2) {
            assert!(pair[0].internal() < pair[1].internal(), "{pair:?}");
        }
        let seal = table.seal().expect("sealed");
        let metadata: HashMap<_, _> = table
            .entries
            .iter()
            .filter(|e| e.is_metadata())
            .map(|e| ((entry_key(&e.key).unwrap(), e.seq), e))
            .collect();
        let data: Vec<&Stored> = table.entries.iter().filter(|e| !e.is_metadata()).collect();
        let mut apart_here = 0;
        for entry in &data {
            let payload = match metadata.get(&(&entry.key[..], entry.seq)) {
                Some(metadata) => {
                    apart_here += usize::from(metadata.block != entry.block);
                    &metadata.value[..]
                }
                None => {
                    apart_here += 1;
                    seal.open_payload(&entry.key, entry.seq.get()).expect("every entry is sealed")
                }
            };
            assert_eq!(verdict(entry, payload), Verdict::Valid);
        }
        assert_eq!(seal.sealed, data.len() as u64);
        assert_eq!(metadata.len() + seal.open.len(), data.len(), "nothing else is left");
        assert!(apart_here as u64 <= seal.split_pairs, "every split is counted");
        apart += apart_here;
    }
    apart
}

pub fn verdict(entry: &Stored, payload: &[u8]) -> Verdict {
    let sum = metahive::checksum::of_entry(&entry.key, &entry.value, entry.seq, entry.kind);
    judge(sum, &Payload::decode(payload).unwrap())
}
