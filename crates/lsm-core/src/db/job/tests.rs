//! Jobs over a file system in memory: the tables that they make, and the handling of faults.

use std::path::Path;

use parking_lot::Mutex;

use super::*;
use crate::clock::SystemClock;
use crate::compaction::drawing::{draw, seq};
use crate::compaction::{Compaction, Method, Trigger};
use crate::db::testing::{catalog, unlimited_io};
use crate::fs::{CrashOutcome, Fs, MemFs};
use crate::hooks::{
    CompactionFilter, CompactionFilterFactory, Entry, EventListener, Fault, Faults, Input, Job,
    Origin, Rules, Sealer, VerifiedEntry,
};
use crate::iter::InternalIter;
use crate::memtable::{Memtable, SlabPool, TrueEntry};
use crate::shared::CommitCursorWriter;
use crate::sstable::ReadMode;
use crate::types::{DbId, EntryKind, Epoch, FileNo, FileNumbers, KeyForm, MemtableId, Trailer};
use crate::version::{Level, PartitionVersion, Table};

const DIR: &str = "/db";

/// A filter that seals nothing and finds a fault in every entry whose value is `bad`.
struct Suspecting;

impl CompactionFilterFactory for Suspecting {
    fn name(&self) -> &'static str {
        "suspecting"
    }

    fn rules(&self, _: Option<KeyForm>) -> Rules {
        Rules { reserved_suffix: vec![0], ..Rules::default() }
    }

    fn sealer(&self) -> Option<&dyn Sealer> {
        Some(self)
    }

    fn start(&self, _: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(Suspecting))
    }
}

impl Sealer for Suspecting {}

impl CompactionFilter for Suspecting {
    fn input(
        &mut self,
        entry: &Entry<'_>,
        at: &Origin,
        _: Option<&VerifiedEntry<'_>>,
        faults: &mut Faults,
    ) -> Result<Input> {
        if entry.value == b"bad" {
            faults.push(Fault {
                key: entry.key.to_vec(),
                seq: entry.seq,
                kind: entry.kind,
                value: entry.value.to_vec(),
                at: *at,
                what: "suspected".to_owned(),
            });
        }
        Ok(Input::Pass)
    }
}

/// Collects the names of events, with their keys.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl EventListener for Heard {
    fn on_event(&self, event: &Event) {
        self.0.lock().push(match event {
            Event::Corruption(damage) => format!("damage at {}", shown(damage.key.as_deref())),
            Event::Repaired { key, source, .. } => format!("{} by {source}", shown(Some(key))),
            Event::Quarantined { damage, .. } => format!("lost {}", shown(damage.key.as_deref())),
            other => panic!("no job reports {other:?}"),
        });
    }
}

fn shown(key: Option<&[u8]>) -> String {
    key.unwrap_or(b"no key").escape_ascii().to_string()
}

/// A runner over a folder in memory, and a listener for its events.
struct Bench {
    fs: Arc<MemFs>,
    runner: JobRunner,
    heard: Arc<Heard>,
}

fn partition(version: PartitionVersion, hooks: PartitionHooks) -> Arc<PartitionState> {
    let slabs = Arc::new(SlabPool::new(0));
    Arc::new(PartitionState::new(Arc::new(version), hooks, &slabs, &Arc::default()))
}

impl Bench {
    fn new() -> Bench {
        let fs = Arc::new(MemFs::new());
        fs.create_dir(Path::new(DIR)).unwrap();
        let factory = TableFactory {
            fs: fs.clone(),
            files: None,
            dir: DIR.into(),
            db_id: DbId(7),
            epoch: Epoch(1),
            numbers: Arc::new(FileNumbers::new(FileNo(1))),
            later: None,
            cache: None,
            are_mapped: false,
            under_way: None,
        };
        let heard = Arc::new(Heard::default());
        let events = Arc::new(Events::new(vec![heard.clone()]));
        let cursor = Arc::new(CommitCursorWriter::none());
        let runner = JobRunner {
            commit: Arc::new(CommitPath::new(seq(100), cursor, Arc::default())),
            catalog: Arc::new(catalog()),
            tables: Arc::new(factory.context()),
            factory,
            snapshots: Arc::default(),
            calendar: Arc::new(Calendar::new(Arc::new(SystemClock::new()), events.clone())),
            events,
            counters: Arc::default(),
            io: Arc::new(unlimited_io()),
            inject: None,
        };
        Bench { fs, runner, heard }
    }

    /// A job over `version`, with the filter if it `is_suspecting`.
    fn job(&self, version: PartitionVersion, is_suspecting: bool) -> StartedJob {
        let mut hooks = PartitionHooks::default();
        if is_suspecting {
            hooks.rules = Suspecting.rules(None);
            hooks.filters.push(Arc::new(Suspecting));
        }
        self.runner.start(&partition(version, hooks))
    }

    /// A version with these keys and values in one table of level 0.
    fn version(&self, entries: &[(&str, &str)]) -> PartitionVersion {
        let version = PartitionVersion { options: Arc::default(), ..draw("") };
        let job = self.job(version.clone(), false);
        let memtables = [memtable(entries)];
        let merge = Merge::flush(&memtables, &version);
        let made = self.runner.run(&job, &merge, &|| false).unwrap();
        let mut levels = version.levels.clone();
        let tables = made.tables.into_iter().map(|meta| Arc::new(Table::new(meta)));
        levels[0] = Level::newest_first(tables.collect());
        PartitionVersion { levels, ..version }
    }

    /// Rewrites the tables of level 0 under a filter; keys and values that result.
    fn rewrite(&self, version: PartitionVersion) -> Result<Vec<String>> {
        let compaction = Compaction {
            level_from: 0,
            level_to: 6,
            inputs: vec![(0, version.levels[0].tables().to_vec())],
            method: Method::Merge,
            bottom: true,
            grandparents: Vec::new(),
            trigger: Trigger::Level0,
            score: 1.0,
        };
        let job = self.job(version.clone(), true);
        let merge = Merge::compaction(&compaction, &version);
        let made = self.runner.run(&job, &merge, &|| false);
        self.runner.events.deliver();
        Ok(self.entries_of(&made?.tables))
    }

    fn entries_of(&self, tables: &[SstMeta]) -> Vec<String> {
        let mut found = Vec::new();
        for meta in tables {
            let table = Table::new(meta.clone());
            let reader = table.reader(&self.runner.tables).unwrap();
            let mut entries = reader.iter(ReadMode::Cached);
            entries.seek(None).unwrap();
            while entries.valid() {
                let key = entries.key();
                let value = String::from_utf8_lossy(entries.value()).into_owned();
                let is_poison = key.trailer.kind() == Some(EntryKind::Poison);
                let value = if is_poison { "damaged".to_owned() } else { value };
                found.push(format!("{}={value}", key.user.escape_ascii()));
                entries.next().unwrap();
            }
        }
        found
    }

    fn heard(&self) -> Vec<String> {
        self.heard.0.lock().clone()
    }
}

fn memtable(entries: &[(&str, &str)]) -> Arc<Memtable> {
    let mut all = Vec::new();
    for (number, (key, value)) in entries.iter().enumerate() {
        all.push(TrueEntry {
            key: key.as_bytes().to_vec(),
            trailer: Trailer::new(seq(1 + number as u64), EntryKind::Value),
            value: value.as_bytes().to_vec(),
        });
    }
    let empty = Memtable::new(MemtableId(1), &Arc::new(SlabPool::new(0)));
    empty.mended(&all).expect("each key came once")
}

#[test]
fn a_flush_makes_a_table_that_is_durable_and_notifies_no_one() {
    let bench = Bench::new();
    let version = bench.version(&[("a", "1"), ("b", "2")]);
    let table = version.levels[0].tables()[0].clone();
    assert_eq!(bench.entries_of(std::slice::from_ref(&table.meta)), ["a=1", "b=2"]);
    let crashed = bench.fs.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert!(crashed.open_read(&table.path(&bench.runner.tables)).is_ok());
    bench.runner.events.deliver();
    assert_eq!(bench.heard(), [""; 0]);
}

#[test]
fn a_fault_fails_the_job_with_its_table_and_leaves_none() {
    let bench = Bench::new();
    let version = bench.version(&[("a", "1"), ("b", "bad"), ("c", "3")]);
    let table = version.levels[0].tables()[0].clone();
    let files = bench.fs.list(Path::new(DIR), "").unwrap().len();
    let error = bench.rewrite(version).unwrap_err();
    let damage = error.damage().unwrap();
    assert_eq!(damage.partition.as_deref(), Some("default"));
    assert_eq!(damage.file, table.path(&bench.runner.tables));
    assert_eq!((damage.offset, damage.key.as_deref()), (Some(0), Some(&b"b"[..])));
    assert_eq!(bench.heard(), [""; 0]);
    assert_eq!(bench.fs.list(Path::new(DIR), "").unwrap().len(), files);
    let version = bench.version(&[("a", "1"), ("b", "2")]);
    assert_eq!(bench.rewrite(version).unwrap(), ["a=1", "b=2"]);
}

#[test]
fn new_snapshots_keep_the_view_while_a_job_decides() {
    /// Keeps every entry, but might not.
    struct Deciding;

    impl CompactionFilterFactory for Deciding {
        fn name(&self) -> &'static str {
            "deciding"
        }

        fn start(&self, _: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
            unreachable!("nothing is run")
        }
    }

    let bench = Bench::new();
    let mut hooks = PartitionHooks::default();
    let slabs = Arc::new(SlabPool::new(0));
    let partition = PartitionState::new(Arc::new(draw("")), hooks.clone(), &slabs, &Arc::default());
    assert!(bench.runner.start(&Arc::new(partition)).deciding.is_none());
    hooks.filters.push(Arc::new(Deciding));
    let partition =
        Arc::new(PartitionState::new(Arc::new(draw("")), hooks, &slabs, &Arc::default()));
    let job = bench.runner.start(&partition);
    assert!(job.deciding.is_some());
    assert_eq!(job.snapshots.respected, [seq(100)]);
}

/// A long compaction kept the memtables of its begin, a write buffer and more, until it ended.
#[test]
fn a_job_keeps_no_memtable() {
    let bench = Bench::new();
    let version = PartitionVersion { options: Arc::default(), ..draw("") };
    let partition = partition(version, PartitionHooks::default());
    let memtable = Arc::downgrade(&partition.view().active);
    let job = bench.runner.start(&partition);
    drop(partition);
    assert!(memtable.upgrade().is_none());
    drop(job);
}
