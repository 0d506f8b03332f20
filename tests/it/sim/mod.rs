//! A simulated store: a script runs on it, and the acknowledged writes are recorded.
//!
//! The crash and the fault tests use it. Variant and seed determine everything: the file system is
//! in memory, background work runs in steps, random numbers come from a generator.
//!
//! Invariant: the record is updated before the store is called (the operation in flight) and after
//! it has returned (the acknowledged operation), so that at every operation of the file system in
//! between it describes what a power cut may leave.

mod documents;
pub mod oracle;
mod passed;
pub mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use lsm_core::fs::{FaultFs, Fs, MemFs};
use siltstone::{Builder, Db, Durability, Error, Partition, Result, SeqNo, Snapshot};
use testkit::Rng;
use testkit::model::{Contents, Model, Op, Step, Value};

use documents::Words;
use oracle::Seen;
pub use passed::Passed;
use script::{ScriptStep, UNLOGGED, Variant};

use crate::neighbour::Neighbour;
use crate::store::{self, stepped};

/// The folder of the store.
pub const DIR: &str = "/db";

/// Opens the store of a variant.
pub fn open(variant: &Variant, fs: Arc<dyn Fs>, salt: u64) -> Result<Db> {
    builder(variant, fs, salt).options(variant.options.clone()).open()
}

fn builder(variant: &Variant, fs: Arc<dyn Fs>, salt: u64) -> Builder {
    let builder = stepped(over(variant, fs), DIR, salt);
    match &variant.resources {
        Some(resources) => builder.resources(resources),
        None => builder,
    }
}

/// Opens a store of the variant without writing. Its write buffers are a few KiB: one batch, or the
/// log of a flush that a cut undid, needs more memory than they allow.
pub fn open_read_only(variant: &Variant, fs: Arc<dyn Fs>) -> Result<Db> {
    let options = variant.options.clone().write_buffer_bytes(1 << 20);
    builder(variant, fs, 1).options(options).read_only(true).open()
}

/// The file system that the store of a variant uses.
pub fn over(variant: &Variant, fs: Arc<dyn Fs>) -> Arc<dyn Fs> {
    store::over(fs, variant.keys.as_ref())
}

/// The acknowledged writes, and the one in flight.
#[derive(Default)]
pub struct WriteRecord {
    /// The visible commits in order; of the unlogged partition only its name.
    pub model: Model,
    /// The call that the store executes at this time.
    pub in_flight: Option<Step>,
    /// So many entries of the log of the model are known to be durable.
    pub durable: usize,
    /// Sequence number and length of the log at each commit.
    seqs: Vec<(u64, usize)>,
    /// All writes to the unlogged partition, failed ones included.
    pub unlogged: Vec<(Vec<u8>, Option<Value>)>,
    /// So many of those are covered by a flush that returned.
    pub covered: usize,
    /// Partitions whose creation or drop failed: it may take effect after a crash.
    pub doubtful: BTreeSet<String>,
    /// The first commit that was refused since the last one that was accepted. Until the log
    /// continues in another segment a crash may bring it back.
    pub refused: Option<Step>,
}

/// The position in the record at one time: everything else in it only grows.
#[derive(Clone)]
pub struct RecordPosition {
    pub steps: usize,
    pub in_flight: Option<Step>,
    pub durable: usize,
    pub unlogged: usize,
    pub covered: usize,
    pub doubtful: BTreeSet<String>,
}

impl WriteRecord {
    /// The record of a store that was opened with exactly this content.
    pub fn of(seen: &Seen) -> WriteRecord {
        let mut record = WriteRecord::default();
        for (partition, contents) in &seen.logged {
            record.model.create(partition);
            let ops: Vec<Op> = contents
                .iter()
                .map(|(key, value): (&Vec<u8>, &Value)| Op::put(partition, key, value))
                .collect();
            if !ops.is_empty() {
                record.model.commit(ops);
            }
        }
        for (key, value) in &seen.unlogged {
            record.unlogged.push((key.clone(), Some(value.clone())));
        }
        record.durable = record.model.log().len();
        record.covered = record.unlogged.len();
        record
    }

    pub fn position(&self) -> RecordPosition {
        RecordPosition {
            steps: self.model.log().len(),
            in_flight: self.in_flight.clone().or_else(|| self.refused.clone()),
            durable: self.durable,
            unlogged: self.unlogged.len(),
            covered: self.covered,
            doubtful: self.doubtful.clone(),
        }
    }

    /// All that is visible is durable.
    fn all_durable(&mut self) {
        self.durable = self.model.log().len();
        self.covered = self.unlogged.len();
    }

    /// Adds the step in flight.
    fn done(&mut self) {
        if let Some(step) = self.in_flight.take() {
            self.model.step(step);
        }
    }

    /// The visible contents of the logged partitions.
    pub fn visible(&self) -> BTreeMap<String, Contents> {
        self.model.state(self.model.seq())
    }

    /// The visible contents of the unlogged one.
    pub fn visible_unlogged(&self) -> Contents {
        let mut contents = Contents::new();
        for (key, value) in &self.unlogged {
            match value {
                Some(value) => _ = contents.insert(key.clone(), value.clone()),
                None => _ = contents.remove(key),
            }
        }
        contents
    }
}

/// A store, its storage and the record of its writes.
pub struct Simulation {
    pub mem: MemFs,
    pub fs: FaultFs,
    pub record: Arc<Mutex<WriteRecord>>,
    pub passed: Passed,
    variant: Variant,
    db: Option<Db>,
    held: Option<Snapshot>,
    /// Another database that shares the resources of the variant.
    neighbour: Option<Neighbour>,
    rng: Rng,
    values: u64,
    words: Option<Words>,
}

impl Simulation {
    /// A simulation before its first step.
    pub fn new(variant: &Variant, mem: MemFs, record: WriteRecord, mut rng: Rng) -> Simulation {
        let words = (variant.documents > 0).then(|| Words::draw(&mut rng));
        Simulation {
            fs: FaultFs::over_mem(mem.clone()),
            mem,
            record: Arc::new(Mutex::new(record)),
            passed: Passed::default(),
            variant: variant.clone(),
            db: None,
            held: None,
            neighbour: variant.resources.as_ref().map(Neighbour::new),
            rng,
            values: 0,
            words,
        }
    }

    pub fn db(&self) -> &Db {
        self.db.as_ref().expect("it was opened")
    }

    pub fn record(&self) -> MutexGuard<'_, WriteRecord> {
        self.record.lock().expect("no holder of the lock panics")
    }

    pub fn is_open(&self) -> bool {
        self.db.is_some()
    }

    /// Opens the store, and makes what every script begins with.
    pub fn open(&mut self) -> Result<()> {
        let mut record = self.record();
        if record.model.log().is_empty() {
            record.model.create("default");
        }
        drop(record);
        self.db = Some(open(&self.variant, Arc::new(self.fs.clone()), self.rng.next_u64())?);
        Ok(())
    }

    /// Gives the default partition its options and creates the unlogged one.
    pub fn prepare(&mut self) -> Result<()> {
        self.db().partition_with("default", self.variant.partition_options.clone())?;
        if self.variant.has_unlogged {
            self.create(UNLOGGED)?;
        }
        if self.variant.documents > 0 { documents::write(self) } else { Ok(()) }
    }

    /// Closes the store and drops it.
    pub fn close(&mut self) -> Result<()> {
        self.held = None;
        let closed = self.db.take().map_or(Ok(()), Db::close);
        if closed.is_ok() {
            self.record().all_durable();
        }
        closed
    }

    /// Runs one step. An error is an error of the store.
    pub fn act(&mut self, step: &ScriptStep) -> Result<()> {
        self.neighbour.iter_mut().for_each(Neighbour::act);
        let result = self.act_and_note(step);
        if let Some(db) = &self.db {
            let durable = db.durable_seq().get();
            let mut record = self.record();
            let covered = record.seqs.partition_point(|(seq, _)| *seq <= durable);
            if let Some((_, steps)) = covered.checked_sub(1).map(|at| record.seqs[at]) {
                record.durable = record.durable.max(steps);
            }
            drop(record);
            let stats = db.stats();
            self.passed.note(&stats);
        }
        result
    }

    fn act_and_note(&mut self, step: &ScriptStep) -> Result<()> {
        match step {
            ScriptStep::Commit { ops, sync } => self.commit(None, ops, *sync),
            ScriptStep::Clear { partition, ops, sync } => {
                self.commit(Some((partition, None)), ops, *sync)
            }
            ScriptStep::DeleteRange { partition, keys, ops, sync } => {
                self.commit(Some((partition, Some(*keys))), ops, *sync)
            }
            ScriptStep::WaitDurable => self.db().wait_durable(self.db().visible_seq()),
            ScriptStep::Flush => {
                self.db().flush()?;
                self.record().all_durable();
                // No memtable has one now.
                if self.db().stats().partitions.iter().any(|p| p.deleted_range_count > 0) {
                    self.passed.with_ranges += 1;
                    self.passed.with_ranges_and_snapshot += u64::from(self.held.is_some());
                }
                Ok(())
            }
            ScriptStep::Compact(partition) => match self.find(partition)? {
                Some(partition) => partition.compact(..),
                None => Ok(()),
            },
            ScriptStep::Step(count) => (0..*count).try_for_each(|_| self.db().step().map(|_| ())),
            ScriptStep::Settle => self.db().wait_idle(),
            ScriptStep::Hold => {
                self.held = if self.held.is_none() { Some(self.db().snapshot()) } else { None };
                Ok(())
            }
            ScriptStep::Create(name) => self.create(name),
            ScriptStep::Drop(name) => self.drop_partition(name),
            ScriptStep::Reopen => {
                self.count();
                self.close()?;
                self.record().seqs.clear();
                self.open()
            }
        }
    }

    /// Adds the counts of the open store to the events.
    pub fn count(&mut self) {
        let stats = self.db().stats();
        self.passed.flushes += stats.flush_count;
        self.passed.compactions += stats.compaction_count;
        self.passed.moves += stats.trivial_move_count;
    }

    fn find(&self, name: &str) -> Result<Option<Partition>> {
        if !self.db().partition_names().iter().any(|other| other == name) {
            return Ok(None);
        }
        self.db().partition(name).map(Some)
    }

    fn create(&mut self, name: &str) -> Result<()> {
        let options = self.variant.partition_options.clone().logged(name != UNLOGGED);
        self.step(Step::Create(name.to_owned()), |db| db.partition_with(name, options).map(|_| ()))
    }

    fn drop_partition(&mut self, name: &str) -> Result<()> {
        if self.find(name)?.is_none() {
            return Ok(());
        }
        self.step(Step::Drop(name.to_owned()), |db| db.drop_partition(name))
    }

    fn step(&self, step: Step, call: impl FnOnce(&Db) -> Result<()>) -> Result<()> {
        let (Step::Create(name) | Step::Drop(name)) = step.clone() else {
            unreachable!("it is about a partition")
        };
        self.record().in_flight = Some(step);
        let result = call(self.db());
        let mut record = self.record();
        match &result {
            Ok(()) => {
                record.done();
                record.doubtful.remove(&name);
            }
            Err(_) => {
                record.in_flight = None;
                record.doubtful.insert(name);
            }
        }
        result
    }

    fn commit(
        &mut self,
        erased: Option<(&str, Option<(u32, u32)>)>,
        ops: &[(&'static str, u32, Option<usize>)],
        sync: bool,
    ) -> Result<()> {
        let mut batch = self.db().batch();
        let mut written = Vec::new();
        if let Some((name, keys)) = erased
            && let Some(partition) = self.find(name)?
        {
            let all = (Bound::Unbounded, Bound::Unbounded);
            let ends = keys.map(|(first, last)| [first, last].map(|key| format!("k{key:05}")));
            let bounds = ends.as_ref().map_or(all, |[first, last]| {
                (Bound::Included(first.as_bytes()), Bound::Excluded(last.as_bytes()))
            });
            batch = match &ends {
                Some([first, last]) => batch.delete_range(&partition, &first[..]..&last[..]),
                None => batch.clear(&partition),
            };
            let record = self.record();
            let keys = record.model.range(name, bounds, record.model.seq());
            written.extend(keys.map(|(key, _)| Op::delete(name, key)));
        }
        for (name, key, bytes) in ops {
            let Some(partition) = self.find(name)? else { continue };
            let key = format!("k{key:05}").into_bytes();
            let mut value: Option<Value> = bytes.map(|bytes| self.value(bytes));
            // A fault may have kept the operator from the partition.
            let has_operator = partition.merge_operator().is_some();
            let merges = has_operator && *name != UNLOGGED && self.values.is_multiple_of(2);
            batch = match &value {
                Some(operand) if merges => {
                    let batch = batch.merge(&partition, &key, operand);
                    let before = self.before(&written, name, &key);
                    value = Some([before.as_deref().unwrap_or_default(), operand].concat().into());
                    batch
                }
                Some(value) => batch.put(&partition, &key, value),
                None => batch.delete(&partition, &key),
            };
            written.push(Op { partition: (*name).to_owned(), key, value });
        }
        if written.is_empty() {
            return Ok(());
        }
        let is_logged = written[0].partition != UNLOGGED;
        if is_logged {
            self.record().in_flight = Some(Step::Commit(written.clone()));
        } else {
            let ops = written.iter().map(|op| (op.key.clone(), op.value.clone()));
            self.record().unlogged.extend(ops);
        }
        let witness = witness(&written);
        let sync = sync && witness.is_some();
        let durability = if sync { Durability::Sync } else { Durability::Os };
        let before = self.db().visible_seq();
        let result = batch.commit(durability);
        let is_visible = result.is_ok() || witness.is_some_and(|op| self.is_visible(op, before));
        let mut record = self.record();
        if !is_logged {
            if !is_visible {
                let tried = record.unlogged.len() - written.len();
                record.unlogged.truncate(tried);
            }
        } else if is_visible {
            record.done();
            let steps = record.model.log().len();
            record
                .seqs
                .push((result.as_ref().map_or(self.db().visible_seq(), |c| c.seq).get(), steps));
            written.iter().for_each(|op| _ = record.doubtful.remove(&op.partition));
            if sync && result.is_ok() {
                record.durable = steps;
            }
            record.refused = None;
        } else {
            let refused = record.in_flight.take();
            record.refused = record.refused.take().or(refused);
        }
        result.map(|_| ())
    }

    /// The value of a key after these operations.
    fn before(&self, written: &[Op], partition: &str, key: &[u8]) -> Option<Value> {
        let mut own = written.iter().rev();
        match own.find(|op| op.partition == partition && op.key == key) {
            Some(op) => op.value.clone(),
            None => {
                let record = self.record();
                record.model.get(partition, key, record.model.seq()).cloned()
            }
        }
    }

    /// Returns `true` if a failed commit is visible: one whose sync failed is.
    fn is_visible(&self, witness: &Op, before: SeqNo) -> bool {
        let partition = self.find(&witness.partition).ok().flatten();
        match partition.map(|p| p.get(&witness.key).map_err(|_| p)) {
            Some(Ok(got)) => got.as_deref() == witness.value.as_deref(),
            // The read of an operand reads tables as well, which the fault may refuse.
            Some(Err(p)) => has_newer(&p, &witness.key, before),
            None => false,
        }
    }

    /// A value that is written once.
    fn value(&mut self, bytes: usize) -> Value {
        self.values += 1;
        let mut value = format!("{}:", self.values).into_bytes();
        match &self.words {
            Some(words) => words.fill(&mut self.rng, bytes, &mut value),
            None => value.extend_from_slice(&self.rng.bytes(bytes)),
        }
        value.into()
    }
}

/// Returns `true` if a memtable has a version of the key that is newer than `seq`.
fn has_newer(partition: &Partition, key: &[u8], seq: SeqNo) -> bool {
    let Ok(walk) = partition.walk() else { return false };
    walk.memtables().any(|mut entries| {
        while let Ok(Some(entry)) = entries.next() {
            if entry.key == key && entry.seq > seq {
                return true;
            }
        }
        false
    })
}

/// An operation that a reader can see if its batch is visible.
fn witness(ops: &[Op]) -> Option<&Op> {
    let mut visible = ops.iter().enumerate().filter(|(at, op): &(usize, &Op)| {
        !ops[at + 1..]
            .iter()
            .any(|later| (&later.partition, &later.key) == (&op.partition, &op.key))
    });
    visible.find(|(_, op)| op.value.is_some()).map(|(_, op)| op)
}

/// An error as the tests report it.
pub fn context(what: &str) -> impl Fn(Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}

/// Returns `true` if `path` names a table.
pub fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sst")
}
