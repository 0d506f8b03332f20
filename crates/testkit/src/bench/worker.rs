//! The workloads by name, and the work of one thread in each.
//!
//! A worker draws its operations from [`crate::workload`] and reports the end of each to a
//! [`Meter`]. It owns a handle of the engine.
//!
//! Invariant: the work of a worker depends on its seed and number alone, except where threads share the count
//! of inserted records.

use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::meter::Meter;
use super::{Ack, Engine, ScanDirection};
use crate::Rng;
use crate::workload::{KeySpace, Mix, Operation, Permutation, Stream, Values};

/// Entries of one batch of `fillbatch`.
const BATCH_ENTRIES: u64 = 100;
/// Keys of one call of `multireadrandom`.
const MULTI_GET_KEYS: u64 = 100;
/// Entries that `seekrandom` reads after each seek.
const SEEK_NEXTS: u64 = 10;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Put every record in key order
    FillSeq,
    /// Put every record in random order
    FillRandom,
    /// Put every record in random order, 100 in a batch; the latency is a batch's
    FillBatch,
    /// Put records in random order, each synced; a thousandth of them unless --ops is given
    FillSync,
    /// Put new values over random records
    Overwrite,
    /// Get random records
    ReadRandom,
    /// Get random records, 100 in a call; the latency is a call's
    MultiReadRandom,
    /// Get keys that do not exist
    ReadMissing,
    /// Seek a random record and read it and the next 10 entries
    SeekRandom,
    /// Walk up through all entries; an operation is an entry
    Scan,
    /// Walk down through all entries
    ScanReverse,
    /// Delete random records
    DeleteRandom,
    /// Get random records while one more thread overwrites
    ReadWhileWriting,
    /// 50 % reads, 50 % updates, zipfian
    YcsbA,
    /// 95 % reads, 5 % updates, zipfian
    YcsbB,
    /// Reads, zipfian
    YcsbC,
    /// 95 % reads of the latest, 5 % inserts
    YcsbD,
    /// 95 % scans of up to 100 entries, 5 % inserts, zipfian
    YcsbE,
    /// 50 % reads, 50 % read-modify-writes, zipfian
    YcsbF,
    /// Updates, zipfian
    YcsbW,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Kind, String> {
        let known = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let names = || Kind::ALL.map(Kind::name).join(", ");
        known.ok_or_else(|| format!("no such workload; there are {}", names()))
    }
}

impl Kind {
    /// Every workload.
    pub const ALL: [Kind; 20] = [
        Kind::FillSeq,
        Kind::FillRandom,
        Kind::FillBatch,
        Kind::FillSync,
        Kind::Overwrite,
        Kind::ReadRandom,
        Kind::MultiReadRandom,
        Kind::ReadMissing,
        Kind::SeekRandom,
        Kind::Scan,
        Kind::ScanReverse,
        Kind::DeleteRandom,
        Kind::ReadWhileWriting,
        Kind::YcsbA,
        Kind::YcsbB,
        Kind::YcsbC,
        Kind::YcsbD,
        Kind::YcsbE,
        Kind::YcsbF,
        Kind::YcsbW,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::FillSeq => "fillseq",
            Kind::FillRandom => "fillrandom",
            Kind::FillBatch => "fillbatch",
            Kind::FillSync => "fillsync",
            Kind::Overwrite => "overwrite",
            Kind::ReadRandom => "readrandom",
            Kind::MultiReadRandom => "multireadrandom",
            Kind::ReadMissing => "readmissing",
            Kind::SeekRandom => "seekrandom",
            Kind::Scan => "scan",
            Kind::ScanReverse => "scan-reverse",
            Kind::DeleteRandom => "deleterandom",
            Kind::ReadWhileWriting => "readwhilewriting",
            Kind::YcsbA => "ycsb-a",
            Kind::YcsbB => "ycsb-b",
            Kind::YcsbC => "ycsb-c",
            Kind::YcsbD => "ycsb-d",
            Kind::YcsbE => "ycsb-e",
            Kind::YcsbF => "ycsb-f",
            Kind::YcsbW => "ycsb-w",
        }
    }

    /// Returns whether it puts every record.
    pub fn fills(self) -> bool {
        matches!(self, Kind::FillSeq | Kind::FillRandom | Kind::FillBatch)
    }

    /// Returns whether the records must be there before.
    pub fn needs_data(self) -> bool {
        !self.fills() && self != Kind::FillSync
    }

    /// Returns whether it reads.
    pub fn reads(self) -> bool {
        let only_writes = matches!(self, Kind::Overwrite | Kind::DeleteRandom | Kind::YcsbW);
        self.needs_data() && !only_writes
    }

    /// Returns whether it writes nothing.
    pub fn only_reads(self) -> bool {
        use Kind::{
            MultiReadRandom, ReadMissing, ReadRandom, Scan, ScanReverse, SeekRandom, YcsbC,
        };
        let one = matches!(self, ReadRandom | MultiReadRandom | ReadMissing | SeekRandom | YcsbC);
        one || matches!(self, Scan | ScanReverse)
    }

    fn mix(self) -> Option<Mix> {
        Mix::ycsb(self.name().strip_prefix("ycsb-")?.chars().next()?)
    }
}

/// The state of one thread.
pub(super) struct Worker<E> {
    pub(super) engine: E,
    pub(super) keys: KeySpace,
    pub(super) values: Values,
    pub(super) value_bytes: usize,
    pub(super) when: Ack,
    /// Writes per second during reads; `None` for as many as possible.
    pub(super) write_rate: Option<NonZeroU64>,
    pub(super) seed: u64,
    /// Operations of this thread; in a fill also its share of the records.
    pub(super) ops: std::ops::Range<u64>,
    pub(super) inserted: Arc<AtomicU64>,
}

impl<E: Engine> Worker<E> {
    /// Does this thread's share of `kind`.
    pub(super) fn work(&mut self, kind: Kind, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        match kind {
            Kind::FillSeq | Kind::FillRandom | Kind::FillSync => self.fill(kind, meter),
            Kind::FillBatch => self.fill_batches(meter),
            Kind::Overwrite => self.overwrite(meter),
            Kind::ReadRandom | Kind::ReadWhileWriting => self.read(meter),
            Kind::MultiReadRandom => self.multi_read(meter),
            Kind::ReadMissing => self.read_missing(meter),
            Kind::SeekRandom => self.seek(meter),
            Kind::Scan => self.scan(ScanDirection::Up, meter),
            Kind::ScanReverse => self.scan(ScanDirection::Down, meter),
            Kind::DeleteRandom => self.delete(meter),
            _ => self.ycsb(kind.mix().expect("all others are of YCSB"), meter),
        }
    }

    fn put(&mut self, key: &[u8], when: Ack, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let value = self.values.next(self.value_bytes);
        meter.wrote(key.len() + value.len());
        self.engine.put(key, value, when)
    }

    fn fill(&mut self, kind: Kind, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let when = if kind == Kind::FillSync { Ack::Sync } else { self.when };
        let mut key = Vec::new();
        for n in self.ops.clone() {
            match kind {
                Kind::FillSeq => self.keys.in_order(n, &mut key),
                _ => self.keys.record(n, &mut key),
            }
            self.put(&key, when, meter)?;
            meter.tick();
        }
        Ok(())
    }

    fn fill_batches(&mut self, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let mut start = self.ops.start;
        while start < self.ops.end {
            let end = self.ops.end.min(start + BATCH_ENTRIES);
            let mut entries = Vec::with_capacity((end - start) as usize);
            for n in start..end {
                let mut key = Vec::new();
                self.keys.record(n, &mut key);
                meter.wrote(key.len() + self.value_bytes);
                entries.push((key, self.values.next(self.value_bytes).to_vec()));
            }
            self.engine.put_all(&entries, self.when)?;
            meter.tick_many(end - start);
            start = end;
        }
        Ok(())
    }

    fn overwrite(&mut self, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let mut rng = Rng::new(self.seed);
        let mut key = Vec::new();
        for _ in meter.until_stopped(self.ops.clone()) {
            self.keys.record(rng.below(self.keys.records()), &mut key);
            self.put(&key, self.when, meter)?;
            meter.tick();
        }
        Ok(())
    }

    /// Overwrites until `meter` reports that the readers are done.
    pub(super) fn overwrite_while_reading(
        &mut self,
        meter: &mut Meter<'_>,
    ) -> Result<(), E::Error> {
        let mut rng = Rng::new(self.seed);
        let mut key = Vec::new();
        while !meter.must_stop() {
            self.keys.record(rng.below(self.keys.records()), &mut key);
            self.put(&key, self.when, meter)?;
            meter.tick();
            if let Some(per_second) = self.write_rate {
                meter.pace(per_second);
            }
        }
        Ok(())
    }

    fn read(&mut self, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let mut rng = Rng::new(self.seed);
        let mut key = Vec::new();
        for _ in meter.until_stopped(self.ops.clone()) {
            self.keys.record(rng.below(self.keys.records()), &mut key);
            meter.found(self.engine.get(&key)?.is_some());
            meter.tick();
        }
        Ok(())
    }

    fn multi_read(&mut self, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let mut rng = Rng::new(self.seed);
        let mut keys = vec![Vec::new(); MULTI_GET_KEYS as usize];
        let calls = (self.ops.end - self.ops.start).div_ceil(MULTI_GET_KEYS);
        for _ in meter.until_stopped(0..calls) {
            for key in &mut keys {
                self.keys.record(rng.below(self.keys.records()), key);
            }
            let found = self.engine.multi_get(&keys)?;
            (0..keys.len()).for_each(|n| meter.found(n < found));
            meter.tick_many(MULTI_GET_KEYS);
        }
        Ok(())
    }

    fn read_missing(&mut self, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let mut rng = Rng::new(self.seed);
        let mut key = Vec::new();
        for _ in meter.until_stopped(self.ops.clone()) {
            self.keys.missing(rng.below(self.keys.records()), &mut key);
            meter.found(self.engine.get(&key)?.is_some());
            meter.tick();
        }
        Ok(())
    }

    /// Reads up to `entries` entries from `key` on.
    fn walk(&self, key: &[u8], entries: u64, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        self.engine.seek(key, entries, |key, value| meter.read_bytes(key.len() + value.len()))
    }

    fn seek(&mut self, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let mut rng = Rng::new(self.seed);
        let mut key = Vec::new();
        for _ in meter.until_stopped(self.ops.clone()) {
            self.keys.record(rng.below(self.keys.records()), &mut key);
            self.walk(&key, 1 + SEEK_NEXTS, meter)?;
            meter.tick();
        }
        Ok(())
    }

    /// Walks through all entries, from the same end again when it is at the other.
    fn scan(&mut self, direction: ScanDirection, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let mut left = self.ops.end - self.ops.start;
        while left > 0 {
            let before = left;
            self.engine.scan(direction, |key, value| {
                meter.read_bytes(key.len() + value.len());
                meter.tick();
                left -= 1;
                left > 0 && !meter.must_stop()
            })?;
            if left == before || meter.must_stop() {
                break;
            }
        }
        Ok(())
    }

    /// Deletes each record at most once, in an order that is independent of the fill.
    fn delete(&mut self, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let records = self.keys.records();
        let order = Permutation::new(records);
        let mut key = Vec::new();
        for n in meter.until_stopped(self.ops.clone()) {
            self.keys.in_order(records - 1 - order.apply(n % records), &mut key);
            meter.wrote(key.len());
            self.engine.delete(&key, self.when)?;
            meter.tick();
        }
        Ok(())
    }

    fn ycsb(&mut self, mix: Mix, meter: &mut Meter<'_>) -> Result<(), E::Error> {
        let inserted = self.inserted.clone();
        let mut stream = Stream::new(mix, self.keys.records(), inserted, self.seed);
        let mut key = Vec::new();
        for _ in meter.until_stopped(self.ops.clone()) {
            match stream.draw() {
                Operation::Read(n) => {
                    self.keys.record(n, &mut key);
                    meter.found(self.engine.get(&key)?.is_some());
                }
                Operation::Update(n) | Operation::Insert(n) => {
                    self.keys.record(n, &mut key);
                    self.put(&key, self.when, meter)?;
                }
                Operation::ReadModifyWrite(n) => {
                    self.keys.record(n, &mut key);
                    meter.found(self.engine.get(&key)?.is_some());
                    self.put(&key, self.when, meter)?;
                }
                Operation::Scan(n, entries) => {
                    self.keys.record(n, &mut key);
                    self.walk(&key, entries, meter)?;
                }
            }
            meter.tick();
        }
        Ok(())
    }
}
