//! A store, its oracle, and everything that is held open. Runs each operation on both and compares.

mod backups;
mod erasures;
mod expiry;
mod feed;
mod fifos;
mod merges;
mod reads;
mod surroundings;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write;
use std::ops::Bound;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, Fs, MemFs};
use siltstone::clock::Clock;
use siltstone::{
    BackgroundMode, Batch, Commit, CompactionStyle, Cursor, Db, Durability, ErrorKind, Options,
    Partition, PartitionOptions, Range, SeqNo, Slice, Snapshot,
};
use testkit::model::{Contents, Op, State};
use testkit::rng::Rng;

use crate::clock::ManualClock;
use crate::sim::oracle::check_sound;
use crate::store;

use super::fifo::Operands;
use super::operation::{Key, Move, NAMES, Operation, Through, ValueLen};
use super::oracle::{Oracle, within};
use backups::HeldBackup;
use feed::Feed;
use reads::{check_range, pair};
pub use surroundings::Surroundings;

const DIR: &str = "/db";
/// The most cursors, ranges and snapshots that are held at once, of each kind.
const HELD_MAX: usize = 6;

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

struct Part {
    name: &'static str,
    handle: Partition,
    options: PartitionOptions,
    /// Differs for each partition that was ever created.
    incarnation: u32,
}

struct HeldSnapshot {
    snapshot: Snapshot,
    /// Every partition as it was, by incarnation; dropped ones are still read through these.
    parts: Vec<(u32, Partition, Rc<Contents>)>,
    /// The partitions that were dropped before the snapshot was taken.
    drops: u32,
    /// Its time; `None` if no partition had a rule of expiry.
    time: Option<u64>,
}

struct HeldCursor {
    cursor: Cursor,
    contents: Rc<Contents>,
    at: Option<Vec<u8>>,
}

struct HeldRange {
    range: Range,
    expected: VecDeque<(Vec<u8>, Vec<u8>)>,
}

pub struct Harness {
    fs: MemFs,
    around: Surroundings,
    clock: ManualClock,
    db: Option<Db>,
    random: Rng,
    oracle: Oracle,
    feed: Feed,
    backups: Vec<HeldBackup>,
    parts: Vec<Part>,
    dropped: Option<Partition>,
    snapshots: Vec<HeldSnapshot>,
    cursors: Vec<HeldCursor>,
    ranges: Vec<HeldRange>,
    seq: SeqNo,
    values: u32,
    operands: Operands,
    incarnations: u32,
    /// The partitions that were dropped.
    drops: u32,
    /// Those with a rule of expiry, which they keep, by incarnation.
    expiring: BTreeSet<u32>,
    /// A partition had a rule since the open.
    has_rule: bool,
    /// There was a power cut: the oracle does not know what had expired at that time.
    is_cut: bool,
}

fn stream(partition: &Partition, key: &[u8], value: &[u8]) -> siltstone::Result<Commit> {
    let known = value.len().is_multiple_of(3).then_some(value.len() as u64);
    let mut writer = partition.put_stream(key, known)?;
    for piece in value.chunks(300) {
        writer.write_all(piece).unwrap();
    }
    writer.commit(Durability::Os)
}

fn chosen<T>(items: &[T], n: u8) -> Option<usize> {
    usize::from(n).checked_rem(items.len())
}

fn bounds(from: Bound<Key>, to: Bound<Key>) -> Bounds {
    (from.map(Key::bytes), to.map(Key::bytes))
}

impl Harness {
    pub fn new(options: &Options, around: Surroundings) -> Harness {
        let fs = MemFs::new();
        let clock = ManualClock::default();
        let mut random = Rng::new(1);
        let db = around.open(&fs, &clock, options, &mut random);
        let mut harness = Harness {
            fs,
            around,
            clock,
            db: Some(db),
            random,
            oracle: Oracle::default(),
            feed: Feed::new(options),
            backups: Vec::new(),
            parts: Vec::new(),
            dropped: None,
            snapshots: Vec::new(),
            cursors: Vec::new(),
            ranges: Vec::new(),
            seq: SeqNo::ZERO,
            values: 0,
            operands: BTreeMap::new(),
            incarnations: 0,
            drops: 0,
            expiring: BTreeSet::new(),
            has_rule: false,
            is_cut: false,
        };
        harness.add_part(NAMES[0], PartitionOptions::new());
        harness
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("it is open between operations")
    }

    fn part(&self, n: u8) -> &Part {
        &self.parts[usize::from(n) % self.parts.len()]
    }

    /// The contents that a reader sees now.
    fn contents(&self, part: &Part) -> Rc<Contents> {
        self.seen(part.incarnation, &self.written(part), Some(self.now()))
    }

    /// The contents, with what has expired.
    fn written(&self, part: &Part) -> Rc<Contents> {
        Rc::new(self.oracle.contents(part.name))
    }

    fn add_part(&mut self, name: &'static str, options: PartitionOptions) {
        let is_fifo = options.get_compaction_style() != CompactionStyle::Leveled;
        self.oracle.create(name, options.get_logged(), is_fifo);
        self.incarnations += 1;
        let handle = self.db().partition(name).unwrap();
        assert_eq!(handle.options().stored(), options.stored());
        self.parts.push(Part { name, handle, options, incarnation: self.incarnations });
    }

    pub fn apply(&mut self, operation: &Operation) {
        self.around.act();
        match operation {
            Operation::Put(p, key, len) => self.write(&[(*p, *key, Some(*len))], None),
            Operation::Delete(p, key) => self.write(&[(*p, *key, None)], None),
            Operation::Batch { operations, sync } => self.write(operations, Some(*sync)),
            Operation::Clear(..) | Operation::DeleteRange(..) | Operation::DeletePrefix(..) => {
                self.erase_many(operation);
            }
            Operation::Get(p, key, through) => self.get(*p, *key, *through),
            Operation::Scan(p, from, to, ends, through) => {
                let bounds = bounds(*from, *to);
                let (range, contents) = self.reader(*p, *through, &bounds);
                check_range(range, *ends, &within(&contents, &bounds));
            }
            Operation::Prefix(p, key, len, ends, through) => {
                self.prefix(*p, *key, *len, *ends, *through);
            }
            Operation::OpenCursor(..) | Operation::MoveCursor(..) | Operation::DropCursor(_) => {
                self.use_cursor(operation);
            }
            Operation::OpenRange(..) | Operation::TakeFromRange(..) | Operation::DropRange(_) => {
                self.use_range(operation);
            }
            Operation::TakeSnapshot => self.take_snapshot(),
            Operation::DropSnapshot(n) => {
                chosen(&self.snapshots, *n).map(|n| self.snapshots.swap_remove(n));
            }
            Operation::Flush => {
                self.db().flush().unwrap();
                self.oracle.everything_is_flushed();
            }
            Operation::Compact(p, from, to) => {
                let name = self.part(*p).name;
                let bounds = bounds(*from, *to);
                self.part(*p).handle.compact(bounds).unwrap();
                self.oracle.is_flushed(name);
            }
            Operation::Step(times) => {
                for _ in 0..*times {
                    self.db().step().unwrap();
                }
            }
            Operation::WaitIdle => self.wait_idle(),
            Operation::WaitDurable => {
                self.db().wait_durable(self.db().visible_seq()).unwrap();
                self.oracle.log_is_synced();
            }
            Operation::Configure(p, options, expires) => self.configure(*p, options, *expires),
            Operation::Pass(seconds) => self.pass(*seconds),
            Operation::DropPartition(p) => self.drop_partition(*p),
            Operation::BackUp(follows) => self.back_up(*follows),
            Operation::Restore(n) => self.restore(*n),
            Operation::CheckAll => self.check_all(),
            Operation::Reopen(options) => self.reopen(options),
            Operation::Crash(outcome, options) => self.crash(*outcome, options),
        }
        self.see_fifos();
        self.note_durable();
        self.note_commit();
        // Not after each, so that it also catches up over segments.
        if self.seq.get().is_multiple_of(5) {
            self.follow_changes();
        }
    }

    fn note_durable(&mut self) {
        let durable = self.db().durable_seq();
        assert!(durable >= self.oracle.synced_seq(), "the store knows what it synced");
        self.oracle.log_is_durable_through(durable);
    }

    /// A value that no other write has, as far as its length permits.
    fn value(&mut self, len: ValueLen) -> Vec<u8> {
        self.values += 1;
        let mut value = self.values.to_be_bytes().to_vec();
        // Every other one can be compressed.
        let fill = if self.values.is_multiple_of(2) { 0 } else { 0x9d };
        value.extend((4..u32::from(len)).map(|n| (n.wrapping_mul(n) as u8) & fill));
        value.truncate(len.into());
        value
    }

    /// Returns `true` if `op` goes to a partition with a log.
    fn is_logged(&self, op: &Op) -> bool {
        self.parts.iter().any(|part| part.name == op.partition && part.options.get_logged())
    }

    /// Puts and deletes: single ones, or a batch that is synced or not.
    fn write(&mut self, operations: &[(u8, Key, Option<ValueLen>)], sync: Option<bool>) {
        let mut ops = self.ops(operations);
        let logged = ops.first().is_some_and(|op| self.is_logged(op));
        if ops.iter().any(|op| self.is_logged(op) != logged) {
            let refused = self.commit(&ops, Durability::Os).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
            ops.retain(|op| self.is_logged(op) == logged);
        }
        let durability = match sync {
            Some(true) if logged => Durability::Sync,
            _ => Durability::Os,
        };
        let commit = match (sync, &ops[..]) {
            (None, [op]) => {
                let part = self.parts.iter().find(|part| part.name == op.partition).unwrap();
                match &op.value {
                    Some(_) if self.operand_of(op).is_some() => {
                        let operand = self.operand_of(op).expect("it is a merge");
                        part.handle.merge(&op.key, operand)
                    }
                    // Every other value of a partition with large values is streamed.
                    Some(value) if part.handle.space().is_some() && value.len() % 2 == 1 => {
                        stream(&part.handle, &op.key, value)
                    }
                    Some(value) => part.handle.put(&op.key, value),
                    None => part.handle.delete(&op.key),
                }
            }
            _ => self.commit(&ops, durability),
        };
        let commit = commit.unwrap();
        assert_eq!(commit.seq, self.seq.plus(ops.len() as u64), "numbers are dense");
        assert_eq!(commit.seq, self.db().visible_seq());
        self.seq = commit.seq;
        if !ops.is_empty() {
            self.oracle.commit(ops, commit.seq, &self.operands);
        }
        if durability == Durability::Sync {
            self.oracle.log_is_synced();
        }
    }

    fn commit(&self, ops: &[Op], durability: Durability) -> siltstone::Result<Commit> {
        self.fill(self.db().batch(), ops).commit(durability)
    }

    fn fill(&self, mut batch: Batch, ops: &[Op]) -> Batch {
        for op in ops {
            let part = self.parts.iter().find(|part| part.name == op.partition).unwrap();
            batch = match &op.value {
                Some(_) if self.operand_of(op).is_some() => {
                    let operand = self.operand_of(op).expect("it is a merge");
                    batch.merge(&part.handle, &op.key, operand)
                }
                Some(value) => batch.put(&part.handle, &op.key, value),
                None => batch.delete(&part.handle, &op.key),
            };
        }
        batch
    }

    fn configure(&mut self, n: u8, options: &PartitionOptions, expires: bool) {
        let name = NAMES[usize::from(n) % NAMES.len()];
        let Some(options) = self.expiring_options(name, options, expires) else { return };
        self.set_options(name, &options);
        if expires {
            self.note_rule(name);
        }
    }

    fn set_options(&mut self, name: &'static str, options: &PartitionOptions) {
        let Some(part) = self.parts.iter_mut().find(|part| part.name == name) else {
            let handle = self.db().partition_with(name, options.clone()).unwrap();
            self.add_part(name, options.clone());
            assert_eq!(handle.name(), name);
            return;
        };
        let db = self.db.as_ref().unwrap();
        if part.options.get_logged() != options.get_logged() {
            let refused = db.partition_with(name, options.clone()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
        let options = options.clone().logged(part.options.get_logged());
        part.options = fifos::with_kept_style(options, &part.options);
        let same = db.partition_with(name, part.options.clone()).unwrap();
        assert_eq!(same.options().stored(), part.options.stored());
        assert_eq!(part.handle.options().stored(), part.options.stored());
    }

    fn wait_idle(&mut self) {
        self.db().wait_idle().unwrap();
        self.oracle.log_is_synced();
        assert!(!self.db().step().unwrap(), "idle means that no step is left");
        let stats = self.db().stats();
        for (part, options) in stats.partitions.iter().map(|stats| {
            (stats, &self.parts.iter().find(|part| part.name == stats.name).unwrap().options)
        }) {
            assert_eq!(part.sealed_memtable_count, 0);
            let is_fifo = options.get_compaction_style() != CompactionStyle::Leveled;
            assert!(
                is_fifo || part.levels[0].table_count < options.get_level0_tables().into(),
                "{part:?}"
            );
            assert_eq!(part.compaction_debt_bytes, 0, "{part:?}");
            assert_eq!(part.pressure_permille, 0, "{part:?}");
        }
        assert_eq!(stats.background_error, None);
        self.dropped = None;
        self.db().wait_idle().unwrap();
        self.see_fifos();
        self.check_fifo_limits();
        // A snapshot keeps the files of each partition that was dropped after it, also of one that
        // was created after it.
        let reads_dropped = self.snapshots.iter().any(|held| held.drops < self.drops);
        if self.cursors.is_empty() && self.ranges.is_empty() && !reads_dropped {
            self.check_files();
        }
    }

    /// Checks that the folder holds the live files and no others. There is no reader and no pending
    /// work.
    fn check_files(&self) {
        let stats = self.db().stats();
        let mut files = self.fs.list(DIR.as_ref(), "").unwrap();
        for file in files.iter_mut().filter(|_| self.around.keys.is_some()) {
            let path = Path::new(DIR).join(&file.name);
            file.len = self.files().open_read(&path).map_or(0, |file| file.len().unwrap());
        }
        let of_kind = |kind: &str| {
            let found = files.iter().filter(|file| file.name.ends_with(kind));
            found.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.len))
        };
        let levels = || stats.partitions.iter().flat_map(|partition| &partition.levels);
        let tables: u64 = levels().map(|level| level.table_count).sum();
        let bytes: u64 = levels().map(|level| level.bytes).sum();
        assert_eq!((of_kind(".sst"), stats.table_bytes), ((tables, bytes), bytes), "{files:?}");
        let segments = stats.wal_segment_count + stats.log_retained_segment_count;
        assert_eq!(of_kind(".wal").0, segments, "{files:?}");
        assert_eq!(of_kind(".manifest").0, 1, "{files:?}");
        let stores = stats.partitions.iter().filter_map(|partition| partition.value_store.as_ref());
        let chunks = stores.fold((0, 0), |(count, bytes), store| {
            // Garbage is freed with its whole file, when values move and when no value in it is
            // live.
            assert_eq!(store.pinned_bytes, 0, "there is no reader: {stats:?}");
            (count + store.chunk_count, bytes + store.bytes)
        });
        // A snapshot keeps the content of a partition that was dropped since, though it may be
        // older.
        let is_exact = self.snapshots.is_empty();
        let on_disk = of_kind(".chunk");
        assert!(on_disk == chunks || (!is_exact && on_disk > chunks), "{files:?}, {chunks:?}");
        let others = tables + segments + 1 + on_disk.0;
        assert_eq!(files.len() as u64, others + 2, "and the lock and the cursor: {files:?}");
    }

    fn let_go(&mut self) {
        self.cursors.clear();
        self.ranges.clear();
        self.snapshots.clear();
        self.dropped = None;
    }

    fn reopen(&mut self, options: &Options) {
        self.follow_changes();
        self.let_go();
        self.db.take().unwrap().close().unwrap();
        let old = self.parts[0].handle.clone();
        assert_eq!(old.get("k").unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(old.put("k", "v").unwrap_err().kind(), ErrorKind::Closed);
        self.oracle.everything_is_flushed();
        let db = self.around.open(&self.fs, &self.clock, options, &mut self.random);
        // Numbers that only a dropped partition without a log had may be used again.
        let floor = self.oracle.synced_seq();
        assert!(db.visible_seq() <= self.seq && db.visible_seq() >= floor);
        self.enter(db);
        self.see_fifos();
        self.restart_feed(options, false);
        self.check_all();
    }

    fn crash(&mut self, outcome: CrashOutcome, options: &Options) {
        let random = &mut self.random;
        let fs = self.fs.crash_clone(outcome, &mut || random.next_u64());
        self.let_go();
        self.fs = fs;
        self.is_cut = true;
        // The lease of a backup from before the cut may be there again. It holds files until it expires, and the other
        // checks need to know which files are live.
        for lease in self.fs.list(DIR.as_ref(), "reader-").unwrap() {
            self.fs.delete(&Path::new(DIR).join(lease.name)).unwrap();
        }
        let db = self.around.open(&self.fs, &self.clock, options, &mut self.random);
        assert!(db.visible_seq() >= self.oracle.synced_seq());
        self.enter(db);
        let observed = self.parts.iter().map(|it| (it.name.to_owned(), Harness::observed(it)));
        let observed: State = observed.collect();
        let expiring = self.parts.iter().filter(|it| self.expiring.contains(&it.incarnation));
        let expiring: Vec<_> = expiring.map(|part| part.name).collect();
        let now = self.now();
        self.oracle.cut_to(observed, &|name, value| {
            expiring.contains(&name) && !expiry::is_alive(value, now)
        });
        self.restart_feed(options, true);
        self.check_feed();
        self.check_all();
    }

    /// Continues with a store that was opened on the same files, or on their image after a cut.
    fn enter(&mut self, db: Db) {
        self.seq = db.visible_seq();
        self.has_rule = self.parts.iter().any(|it| self.expiring.contains(&it.incarnation));
        for part in &mut self.parts {
            assert!(db.partition_names().iter().any(|name| name == part.name));
            part.handle = db.partition(part.name).unwrap();
        }
        self.db = Some(db);
    }

    /// Checks the store at the end of every case.
    pub fn finish(mut self, options: &Options) {
        self.check_all();
        self.let_go();
        self.wait_idle();
        self.check_all();
        self.reopen(options);
        self.wait_idle();
        check_sound(self.db.as_ref().unwrap()).unwrap();
    }
}
