//! A simulated store: a script runs on it, and the acknowledged writes are recorded.
//!
//! The crash and the fault tests use it. Variant and seed determine everything: the file system is
//! in memory, background work runs in steps, random numbers come from a generator.
//!
//! Invariant: the record is updated before the store is called (the operation in flight) and after
//! it has returned (the acknowledged operation), so that at every operation of the file system in
//! between it describes what a power cut may leave.

mod commits;
mod documents;
pub mod features;
pub mod oracle;
mod passed;
pub mod script;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use lsm_core::fs::{FaultFs, Fs, MemFs};
use siltstone::secondary::Secondary;
use siltstone::{Builder, Db, Error, Partition, Result, Snapshot};
use testkit::Rng;
use testkit::model::{Contents, Model, Op, State, Step, Value};

use documents::Words;
use oracle::Seen;
pub use passed::Passed;
use script::{ScriptStep, UNLOGGED, Variant};

use crate::clock::ManualClock;
use crate::neighbour::Neighbour;
use crate::store::{self, stepped};

/// The folder of the store.
pub const DIR: &str = "/db";

/// Opens the store of a variant.
pub fn open(variant: &Variant, fs: Arc<dyn Fs>, salt: u64) -> Result<Db> {
    builder(variant, fs, salt).options(variant.options.clone()).open()
}

fn builder(variant: &Variant, fs: Arc<dyn Fs>, salt: u64) -> Builder {
    let mut builder = stepped(over(variant, fs), DIR, salt);
    if let Some(clock) = &variant.clock {
        builder = builder.clock(Arc::new(clock.clone()));
    }
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
    /// An ingest that failed, and the length of the log of the model then. A crash may bring it back as long as no later
    /// edit of the manifest has replaced it.
    pub in_doubt: Option<(usize, Step)>,
    /// That of the store, if entries expire.
    pub clock: Option<ManualClock>,
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
    pub fn of(seen: &Seen, clock: Option<ManualClock>) -> WriteRecord {
        let mut record = WriteRecord { clock, ..WriteRecord::default() };
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

    /// Returns `true` if an open may find something that a call has refused.
    pub fn is_doubtful(&self) -> bool {
        !self.doubtful.is_empty() || self.in_doubt.is_some()
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

    /// The contents of the logged partitions as a reader sees them now that has seen `seen`: see [`features`].
    pub fn visible(&self, seen: &State) -> State {
        let model = features::as_seen(&self.model, seen, self.clock.as_ref());
        model.state(model.seq())
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
    /// It follows the store through closes and opens.
    pub secondary: Option<Secondary>,
    /// Another database that shares the resources of the variant.
    neighbour: Option<Neighbour>,
    rng: Rng,
    values: u64,
    words: Option<Words>,
}

impl Simulation {
    /// A simulation before its first step.
    pub fn new(variant: &Variant, mem: MemFs, mut record: WriteRecord, mut rng: Rng) -> Simulation {
        record.clock.clone_from(&variant.clock);
        let words = (variant.documents > 0).then(|| Words::draw(&mut rng));
        Simulation {
            fs: FaultFs::over_mem(mem.clone()),
            mem,
            record: Arc::new(Mutex::new(record)),
            passed: Passed::default(),
            variant: variant.clone(),
            db: None,
            held: None,
            secondary: None,
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
        if self.variant.clock.is_some() {
            features::PARTITIONS.iter().try_for_each(|name| self.create(name))?;
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
            ScriptStep::Transact { ops, undone, is_late, sync } => {
                self.transact(ops, *undone, *is_late, *sync)
            }
            ScriptStep::Expire { seconds, keys, sync } => self.expire(*seconds, keys, *sync),
            ScriptStep::FillFifo { sync } => self.fill_fifo(*sync),
            ScriptStep::Ingest { from, to } => self.ingest(from, to),
            ScriptStep::Stream { key, bytes, sync } => self.stream(*key, *bytes, *sync),
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
        self.passed.fifo_removed += stats.fifo_removed_table_count;
    }

    fn find(&self, name: &str) -> Result<Option<Partition>> {
        if !self.db().partition_names().iter().any(|other| other == name) {
            return Ok(None);
        }
        self.db().partition(name).map(Some)
    }

    fn create(&mut self, name: &str) -> Result<()> {
        let options = self.variant.partition_options.clone().logged(name != UNLOGGED);
        let options = features::options_of(name, options);
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

/// An error as the tests report it.
pub fn context(what: &str) -> impl Fn(Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}

/// Returns `true` if `path` names a table.
pub fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sst")
}
