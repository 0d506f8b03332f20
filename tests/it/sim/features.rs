//! Transactions, expiry, a FIFO, ingests, streams and a secondary of a simulated store.
//!
//! Invariant: the record has everything that was written. What has expired since, and the oldest entries of the FIFO, are
//! taken out of a copy of it, by what was seen: nothing else may lack.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lsm_core::fs::MemFs;
use siltstone::clock::Clock;
use siltstone::secondary::{Level, Secondary};
use siltstone::{
    CompactionStyle, Db, ErrorKind, LargeValueOptions, PartitionOptions, Result, TimeWidth,
    TtlFilter, TtlRule,
};
use testkit::model::{Contents, Model, Op, State, Step};

use super::commits::key_of;
use super::script::UNLOGGED;
use super::{DIR, Simulation, context, over};
use crate::clock::ManualClock;

/// The partition whose entries expire, the one that is a FIFO, and the one of large values.
const EXPIRING: &str = "t";
const FIFO: &str = "f";
const LARGE: &str = "v";
pub const PARTITIONS: [&str; 3] = [EXPIRING, FIFO, LARGE];

const LIVES_FOR: u64 = 30;
/// The bytes of the tables of the FIFO: more than one table may have, or the newest entries could go. A flush after a
/// fault makes one table of all that has waited. Tables of half as many bytes of values never have so many.
const FIFO_BYTES: u64 = 64 << 10;

/// The options of a partition, from those of the others.
pub fn options_of(name: &str, options: PartitionOptions) -> PartitionOptions {
    match name {
        EXPIRING => {
            let rule = TtlRule::in_value(0).width(TimeWidth::U32);
            let rule = rule.time_to_live(Duration::from_secs(LIVES_FOR));
            options.filter(Arc::new(TtlFilter::stored(&rule)))
        }
        FIFO => {
            let style = CompactionStyle::Fifo { bytes_max: FIFO_BYTES, seconds_max: u64::MAX };
            options.compaction_style(style)
        }
        LARGE => {
            let large = LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
            options.large_values(large.chunk_bytes(4 << 10).garbage_permille(100))
        }
        _ => options,
    }
}

/// The entries that readers do not see any more although nothing was written over them.
struct Gone<'a> {
    /// The first key of the FIFO that is left, if others may be gone.
    first: Option<&'a [u8]>,
    /// The time, if entries expire.
    now: Option<u64>,
}

impl Gone<'_> {
    /// By what was seen, of a FIFO with so many bytes.
    fn of<'a>(seen: &'a State, bytes: usize, clock: Option<&ManualClock>) -> Gone<'a> {
        let first = seen.get(FIFO).and_then(|seen| seen.keys().next());
        let first = first.filter(|_| bytes as u64 > FIFO_BYTES / 2).map(|key| &key[..]);
        Gone { first, now: clock.map(|clock| clock.now().as_secs()) }
    }

    fn has(&self, partition: &str, key: &[u8], value: &[u8]) -> bool {
        match partition {
            FIFO => self.first.is_some_and(|first| key < first),
            EXPIRING => self.now.is_some_and(|now| {
                let at = value.first_chunk().map(|at| u64::from(u32::from_be_bytes(*at)));
                at.is_some_and(|at| at + LIVES_FOR <= now)
            }),
            _ => false,
        }
    }
}

/// The model as a reader sees it now that has seen `seen`: what is gone is as deleted.
pub fn as_seen(model: &Model, seen: &State, clock: Option<&ManualClock>) -> Model {
    if clock.is_none() {
        return model.clone();
    }
    let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    let bytes = model.range(FIFO, all, model.seq()).map(|(_, value)| value.len()).sum();
    let gone = Gone::of(seen, bytes, clock);
    let mut left = Model::new();
    for step in model.log() {
        let mut step = step.clone();
        if let Step::Commit(ops) = &mut step {
            for Op { partition, key, value } in ops {
                value.take_if(|value| gone.has(partition, key, value));
            }
        }
        left.step(step);
    }
    left
}

/// The part of `expected` that is left for a reader that has seen `seen`, if no time has passed.
pub fn left(expected: &State, seen: &State) -> State {
    let bytes = expected.get(FIFO).map_or(0, |it| it.values().map(|value| value.len()).sum());
    let gone = Gone::of(seen, bytes, None);
    let mut left = expected.clone();
    for (name, contents) in &mut left {
        contents.retain(|key, value| !gone.has(name, key, value));
    }
    left
}

impl Simulation {
    /// Commits operations in a transaction.
    pub(super) fn transact(
        &mut self,
        ops: &[(&'static str, u32, Option<usize>)],
        undone: usize,
        is_late: bool,
        sync: bool,
    ) -> Result<()> {
        let mut transaction = self.db().transaction();
        let (name, read, _) = ops[0];
        let Some(of_read) = self.find(name)? else { return Ok(()) };
        let read = key_of(read, true);
        let got = transaction.get(&of_read, &read)?;
        let known = self.before(&[], name, &read);
        assert_eq!(got.as_deref(), known.as_deref(), "a transaction reads something else");
        if is_late {
            let value = self.value(20);
            let ops = vec![Op::put(name, &read, &value)];
            self.note_commit(ops, false, |durability| of_read.put_with(&read, &value, durability))?;
        }
        let mut written = Vec::new();
        let mut kept = 0;
        for (at, (name, key, bytes)) in ops.iter().enumerate() {
            if at == ops.len() - undone {
                transaction.set_savepoint();
                kept = written.len();
            }
            let Some(partition) = self.find(name)? else { continue };
            let key = key_of(*key, true);
            let value = bytes.map(|bytes| self.value(bytes));
            match &value {
                Some(value) => transaction.put(&partition, &key, value),
                None => transaction.delete(&partition, &key),
            }
            let seen = transaction.get(&partition, &key)?;
            assert_eq!(seen.as_deref(), value.as_deref(), "a transaction reads not what it wrote");
            written.push(Op { partition: (*name).to_owned(), key, value });
        }
        if undone > 0 {
            transaction.rollback_to_savepoint()?;
            written.truncate(kept);
        }
        if !is_late {
            return self.note_commit(written, sync, |durability| transaction.commit(durability));
        }
        match transaction.commit(siltstone::Durability::Os) {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                self.passed.conflicts += 1;
                Ok(())
            }
            Err(error) => Err(error),
            Ok(_) => panic!("a commit whose reads have changed"),
        }
    }

    /// Time passes, and entries that expire are put.
    pub(super) fn expire(&mut self, seconds: u64, keys: &[u32], sync: bool) -> Result<()> {
        let Some(clock) = self.variant.clock.clone() else { return Ok(()) };
        clock.pass(seconds);
        let Some(partition) = self.find(EXPIRING)? else { return Ok(()) };
        let mut batch = self.db().batch();
        let mut written = Vec::new();
        for key in keys {
            let key = key_of(*key, true);
            let now = clock.now().as_secs() as u32;
            let value = [&now.to_be_bytes()[..], &self.value(30)].concat();
            batch = batch.put(&partition, &key, &value);
            written.push(Op::put(EXPIRING, &key, &value));
        }
        self.note_commit(written, sync, |durability| batch.commit(durability))
    }

    /// Puts new keys into the FIFO.
    pub(super) fn fill_fifo(&mut self, sync: bool) -> Result<()> {
        let Some(partition) = self.find(FIFO)? else { return Ok(()) };
        let mut batch = self.db().batch();
        let mut written = Vec::new();
        for _ in 0..12 {
            let value = self.value(1000);
            let key = format!("{:06}", self.values).into_bytes();
            batch = batch.put(&partition, &key, &value);
            written.push(Op::put(FIFO, &key, &value));
        }
        self.note_commit(written, sync, |durability| batch.commit(durability))
    }

    /// Streams a large value.
    pub(super) fn stream(&mut self, key: u32, bytes: usize, sync: bool) -> Result<()> {
        let Some(partition) = self.find(LARGE)? else { return Ok(()) };
        let key = key_of(key, true);
        let value = self.value(bytes);
        let mut stream = partition.put_stream_unkeyed(None)?;
        for piece in value.chunks(500) {
            stream.write_all(piece)?;
        }
        let written = vec![Op::put(LARGE, &key, &value)];
        self.note_commit(written, sync, |durability| stream.commit(&key, durability))
    }

    /// Exports a partition, and ingests it.
    pub(super) fn ingest(&mut self, from: &str, to: &str) -> Result<()> {
        let Some(exported) = self.find(from)? else { return Ok(()) };
        let Some(partition) = self.find(to)? else { return Ok(()) };
        self.values += 1;
        let folder = PathBuf::from(format!("/exported{}", self.values));
        exported.export(.., &folder)?;
        let written: Vec<_> = {
            let record = self.record();
            let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
            let entries = record.model.range(from, all, record.model.seq());
            entries.map(|(key, value)| Op::put(to, key, value)).collect()
        };
        let step = Step::Commit(written.clone());
        self.record().in_flight = Some(step.clone()).filter(|_| !written.is_empty());
        let ingested = partition.ingest(&folder).map(drop);
        let is_visible = ingested.is_ok()
            || written.iter().all(|op| {
                partition.get(&op.key).is_ok_and(|got| got.as_deref() == op.value.as_deref())
            });
        let mut record = self.record();
        if is_visible {
            record.done();
            record.in_doubt = None;
            record.refused = None;
        } else {
            record.in_flight = None;
            let at = record.model.log().len();
            record.in_doubt.get_or_insert((at, step));
        }
        if ingested.is_ok() {
            record.durable = record.model.log().len();
        }
        drop(record);
        self.passed.ingests += u64::from(ingested.is_ok());
        for path in self.mem.paths().iter().filter(|path| path.starts_with(&folder)) {
            self.mem.remove_raw(path)?;
        }
        ingested
    }

    /// Compares a secondary with the record, and leaves it open.
    pub fn check_secondary(&mut self) -> Result<(), String> {
        let Some(clock) = &self.variant.clock else { return Ok(()) };
        let secondary = match self.secondary.take() {
            Some(secondary) => secondary,
            None => {
                let fs = over(&self.variant, Arc::new(self.mem.clone()));
                let builder = Db::secondary_builder(DIR).fs(fs).clock(Arc::new(clock.clone()));
                builder.open().map_err(context("open a secondary"))?
            }
        };
        let mut seen = State::new();
        for name in self.db().partition_names().into_iter().filter(|name| name != UNLOGGED) {
            seen.insert(name.clone(), read(&secondary, &name).map_err(context("a secondary"))?);
        }
        let mut expected = self.record().visible(&seen);
        expected.remove(UNLOGGED);
        self.secondary = Some(secondary);
        match difference(&seen, &expected) {
            Some(what) => Err(format!("a secondary sees something else: {what}")),
            None => Ok(()),
        }
    }
}

/// Removes the leases of secondaries, whose processes do not live in an image.
pub fn remove_leases(mem: &MemFs) {
    for path in mem.paths() {
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"reader-")) {
            mem.remove_raw(&path).expect("it was listed");
        }
    }
}

/// The first difference of two states, in words.
pub fn difference(seen: &State, expected: &State) -> Option<String> {
    if !seen.keys().eq(expected.keys()) {
        return Some(format!("partitions {:?} for {:?}", seen.keys(), expected.keys()));
    }
    seen.iter().find_map(|(name, seen)| {
        let expected = &expected[name];
        let key =
            seen.keys().chain(expected.keys()).find(|it| seen.get(*it) != expected.get(*it))?;
        let values = [seen, expected].map(|it| {
            it.get(key).map(|value| value[..value.len().min(12)].escape_ascii().to_string())
        });
        Some(format!("{name}/{}: {:?} for {:?}", key.escape_ascii(), values[0], values[1]))
    })
}

fn read(secondary: &Secondary, name: &str) -> Result<Contents> {
    let view = secondary.partition(name)?.at(Level::Strong)?;
    let mut contents = Contents::new();
    for entry in view.range(..) {
        let (key, value) = entry?;
        contents.insert(key.to_vec(), (*value).into());
    }
    Ok(contents)
}
