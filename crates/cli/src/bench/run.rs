//! Runs one workload: threads, their meters, the progress bar, what it all cost.
//!
//! Invariants:
//! 1. All workers begin at once, and the clock starts then.
//! 2. A worker's latencies are those between its own ticks; no worker waits for another.

use std::path::Path;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use siltstone::{Db, Partition, Result};
use testkit::workload::{KeySpace, Values};

use super::Args;
use super::measure::{Memory, Usage, disk_bytes, latencies};
use super::workload::{Kind, Worker};
use crate::engine;
use crate::output::Failure;

const PROGRESS_EVERY: Duration = Duration::from_millis(100);

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// What one thread did. The progress is read by the main thread while it works.
pub(crate) struct Meter<'a> {
    progress: &'a AtomicU64,
    stop: &'a AtomicBool,
    last: Instant,
    tally: Tally,
}

/// What was counted, by one thread or by all.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Operations that ended.
    pub(crate) ops: u64,
    /// Nanoseconds of each operation.
    pub(crate) latencies: Histogram<u64>,
    /// Point reads that found a value.
    pub(crate) found: u64,
    /// Point reads that found none.
    pub(crate) missed: u64,
    /// Bytes of keys and values that were written.
    pub(crate) written_bytes: u64,
    /// Bytes of keys and values that scans read.
    pub(crate) read_bytes: u64,
}

impl Tally {
    fn new() -> Tally {
        Tally {
            ops: 0,
            latencies: latencies(),
            found: 0,
            missed: 0,
            written_bytes: 0,
            read_bytes: 0,
        }
    }

    fn add(&mut self, other: &Tally) {
        self.ops += other.ops;
        self.latencies.add(&other.latencies).expect("all histograms have the same bounds");
        self.found += other.found;
        self.missed += other.missed;
        self.written_bytes += other.written_bytes;
        self.read_bytes += other.read_bytes;
    }
}

impl Meter<'_> {
    /// An operation ended now.
    #[inline]
    pub(crate) fn tick(&mut self) {
        self.tick_many(1);
    }

    /// `ops` operations that were done as one ended now; they have one latency.
    #[inline]
    pub(crate) fn tick_many(&mut self, ops: u64) {
        let at = now();
        let nanos = u64::try_from((at - self.last).as_nanos()).unwrap_or(u64::MAX);
        self.tally.latencies.saturating_record(nanos);
        self.last = at;
        self.tally.ops += ops;
        // A count for the eye; nothing is read on its word.
        self.progress.store(self.tally.ops, Ordering::Relaxed);
    }

    /// A point read found a value, or none.
    #[inline]
    pub(crate) fn found(&mut self, found: bool) {
        if found {
            self.tally.found += 1;
        } else {
            self.tally.missed += 1;
        }
    }

    /// Keys and values of `len` bytes go to the engine.
    #[inline]
    pub(crate) fn wrote(&mut self, len: usize) {
        self.tally.written_bytes += len as u64;
    }

    /// Keys and values of `len` bytes were read.
    #[inline]
    pub(crate) fn read_bytes(&mut self, len: usize) {
        self.tally.read_bytes += len as u64;
    }

    /// Whether the workers that count are done.
    pub(crate) fn must_stop(&self) -> bool {
        // A late answer costs one more operation.
        self.stop.load(Ordering::Relaxed)
    }
}

/// What a workload did and cost.
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    pub(crate) threads: u16,
    pub(crate) elapsed: Duration,
    pub(crate) tally: Tally,
    /// Of the thread that overwrites beside the readers.
    pub(crate) beside: Option<Tally>,
    pub(crate) usage: Usage,
    pub(crate) memory: Memory,
    pub(crate) disk_bytes: u64,
}

impl Outcome {
    /// Bytes of keys and values written by all threads.
    pub(crate) fn user_bytes_written(&self) -> u64 {
        self.tally.written_bytes + self.beside.as_ref().map_or(0, |beside| beside.written_bytes)
    }
}

/// The state that goes from one workload to the next.
pub(crate) struct Bench<'a> {
    args: &'a Args,
    db: Db,
    partition: Partition,
    keys: KeySpace,
    values: Values,
    inserted: Arc<AtomicU64>,
    is_loaded: bool,
    user_bytes_written: u64,
    /// Workloads begun; gives each its own random choices.
    runs: u64,
}

impl<'a> Bench<'a> {
    /// Nothing has run yet.
    pub(crate) fn new(args: &'a Args, db: Db, partition: Partition) -> Bench<'a> {
        Bench {
            args,
            db,
            partition,
            keys: KeySpace::new(args.records, usize::from(args.key_size)),
            values: Values::new(args.seed, args.value_size as usize),
            inserted: Arc::new(AtomicU64::new(args.records)),
            is_loaded: false,
            user_bytes_written: 0,
            runs: 0,
        }
    }

    /// Whether all records are there, from this run or from an earlier one.
    pub(crate) fn is_loaded(&mut self) -> Result<bool> {
        if !self.is_loaded {
            self.is_loaded = engine::count(&self.partition)? >= self.args.records;
        }
        Ok(self.is_loaded)
    }

    /// Bytes of one key and its value.
    pub(crate) fn record_bytes(&self) -> u64 {
        u64::from(self.args.key_size) + u64::from(self.args.value_size)
    }

    /// Bytes of keys and values written up to now.
    pub(crate) fn user_bytes_written(&self) -> u64 {
        self.user_bytes_written
    }

    fn ops(&self, kind: Kind) -> u64 {
        let records = self.args.records;
        match kind {
            _ if kind.fills() => records,
            Kind::FillSync => self.args.ops.unwrap_or((records / 1000).max(1)).min(records),
            _ => self.args.ops.unwrap_or(records),
        }
    }

    /// The worker number `number` of those that share `ops` operations; one more than there are
    /// threads is the one beside them.
    fn worker(&self, number: u64, ops: u64) -> Worker {
        let threads = u64::from(self.args.threads);
        let share = |n: u64| u64::try_from(u128::from(ops) * u128::from(n) / u128::from(threads));
        let bound = |n: u64| share(n.min(threads)).expect("a share is at most the whole");
        let seed = self.args.seed ^ (self.runs << 32 | number << 1);
        Worker {
            db: self.db.clone(),
            partition: self.partition.clone(),
            keys: self.keys,
            values: self.values.fork(seed),
            value_bytes: self.args.value_size as usize,
            durability: self.args.durability(),
            seed,
            ops: bound(number)..bound(number + 1),
            inserted: self.inserted.clone(),
        }
    }

    /// Runs `kind` under the name `name`.
    pub(crate) fn run(
        &mut self,
        kind: Kind,
        name: &'static str,
        folder: &Path,
    ) -> Result<Outcome, Failure> {
        self.runs += 1;
        let ops = self.ops(kind);
        let threads = self.args.threads;
        let workers = (0..u64::from(threads)).map(|number| self.worker(number, ops)).collect();
        let beside = (kind == Kind::ReadWhileWriting).then(|| self.worker(u64::from(threads), ops));

        let before = Usage::now(&self.db);
        let done = run_threads(kind, name, workers, beside, ops)?;
        let outcome = Outcome {
            name,
            threads,
            elapsed: done.elapsed,
            tally: done.tally,
            beside: done.beside,
            usage: Usage::now(&self.db).since(&before),
            memory: Memory::now(),
            disk_bytes: disk_bytes(folder)?,
        };
        self.user_bytes_written += outcome.user_bytes_written();
        self.is_loaded |= kind.fills();
        Ok(outcome)
    }
}

struct Done {
    elapsed: Duration,
    tally: Tally,
    beside: Option<Tally>,
}

/// A counter on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Progress(AtomicU64);

fn run_threads(
    kind: Kind,
    name: &'static str,
    workers: Vec<Worker>,
    beside: Option<Worker>,
    ops: u64,
) -> Result<Done, Failure> {
    let stop = AtomicBool::new(false);
    let counted = workers.len();
    let all: Vec<Worker> = workers.into_iter().chain(beside).collect();
    let progress: Vec<Progress> = all.iter().map(|_| Progress::default()).collect();
    let barrier = Barrier::new(all.len() + 1);
    let (ended, ends) = mpsc::channel();

    let (elapsed, mut tallies) = thread::scope(|scope| -> Result<_, Failure> {
        let mut handles = Vec::new();
        for (number, (mut worker, progress)) in all.into_iter().zip(&progress).enumerate() {
            let (ended, barrier, stop) = (ended.clone(), &barrier, &stop);
            let work = move || -> Result<Tally> {
                barrier.wait();
                let mut meter =
                    Meter { progress: &progress.0, stop, last: now(), tally: Tally::new() };
                let result = if number < counted {
                    worker.work(kind, &mut meter)
                } else {
                    worker.overwrite_while_reading(&mut meter)
                };
                // The main thread listens until every worker has ended.
                let _ = ended.send(number);
                result.map(|()| meter.tally)
            };
            let thread = thread::Builder::new().name(format!("bench-{number}"));
            let handle = thread.spawn_scoped(scope, work).expect("a thread can be started");
            handles.push(handle);
        }
        drop(ended);
        barrier.wait();
        let start = now();
        wait(&ends, counted, &progress[..counted], name, ops);
        let elapsed = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        let join = |handle: thread::ScopedJoinHandle<'_, Result<Tally>>| match handle.join() {
            Ok(result) => Ok(result?),
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let tallies: Result<Vec<Tally>, Failure> = handles.into_iter().map(join).collect();
        Ok((elapsed, tallies?))
    })?;

    let beside = (tallies.len() > counted).then(|| tallies.remove(counted));
    let mut tally = Tally::new();
    tallies.iter().for_each(|part| tally.add(part));
    Ok(Done { elapsed, tally, beside })
}

/// Returns when the `counted` first workers have ended; shows how far they are. The bar is drawn
/// on standard error, and only on a terminal.
fn wait(
    ends: &mpsc::Receiver<usize>,
    counted: usize,
    progress: &[Progress],
    name: &'static str,
    ops: u64,
) {
    let style = "{msg:17} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}";
    let style = ProgressStyle::with_template(style).expect("the template is correct");
    let bar = ProgressBar::new(ops).with_style(style).with_message(name);
    let mut running = counted;
    while running > 0 {
        match ends.recv_timeout(PROGRESS_EVERY) {
            Ok(number) => running -= usize::from(number < counted),
            Err(RecvTimeoutError::Timeout) => {
                bar.set_position(progress.iter().map(|p| p.0.load(Ordering::Relaxed)).sum());
            }
            // Every worker is gone; one that panicked says so when it is joined.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    bar.finish_and_clear();
}
