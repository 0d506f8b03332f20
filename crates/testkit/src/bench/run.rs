//! Runs one workload: threads, their meters, progress, costs.
//!
//! Invariants:
//! 1. All workers begin at once, and the clock starts when the first of them does.
//! 2. A worker's latencies are those between its own ticks; no worker waits for another.
//! 3. A time limit ends no fill: later workloads need all records.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::measure::{Memory, Usage, disk_bytes};
use super::meter::{Meter, Tally, now};
use super::worker::{Kind, Worker};
use super::{Ack, Engine};
use crate::workload::{KeySpace, Values};

const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// The work and the cost of a workload.
#[derive(Debug)]
pub struct Outcome {
    /// The printed name.
    pub name: &'static str,
    /// Threads that were counted.
    pub threads: u16,
    /// From the begin of the first operation to the end of the last one.
    pub elapsed: Duration,
    /// Of the counted threads.
    pub tally: Tally,
    /// The tally of the thread that overwrites during the reads.
    pub beside: Option<Tally>,
    /// The longest pause of the idle loop during the workload.
    pub idle_pause: Option<Duration>,
    /// Of the whole process.
    pub usage: Usage,
    /// At the end.
    pub memory: Memory,
    /// Of the database, at the end.
    pub disk_bytes: Option<u64>,
}

/// Nanoseconds as microseconds.
pub fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// The quotient of `bytes` by `base`.
pub fn per(bytes: Option<u64>, base: u64) -> Option<f64> {
    bytes.filter(|_| base > 0).map(|bytes| bytes as f64 / base as f64)
}

impl Outcome {
    /// Bytes of keys and values written by all threads.
    pub fn user_bytes_written(&self) -> u64 {
        self.tally.written_bytes + self.beside.as_ref().map_or(0, |beside| beside.written_bytes)
    }

    /// Operations of the counted threads in a second.
    pub fn ops_per_second(&self) -> f64 {
        self.per_second(&self.tally)
    }

    /// Operations of `tally` in a second.
    pub fn per_second(&self, tally: &Tally) -> f64 {
        tally.ops as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// All figures as JSON.
    pub fn json(&self) -> Value {
        let tally = &self.tally;
        let quantile = |q| micros(tally.latencies.value_at_quantile(q));
        let beside = self.beside.as_ref().map(|beside| {
            json!({
                "ops": beside.ops,
                "ops_per_second": self.per_second(beside),
                "p99_us": micros(beside.latencies.value_at_quantile(0.99)),
                "max_us": micros(beside.latencies.max()),
            })
        });
        json!({
            "workload": self.name,
            "threads": self.threads,
            "ops": tally.ops,
            "seconds": self.elapsed.as_secs_f64(),
            "ops_per_second": self.ops_per_second(),
            "p50_us": quantile(0.5),
            "p99_us": quantile(0.99),
            "p999_us": quantile(0.999),
            "max_us": micros(tally.latencies.max()),
            "idle_max_us": self.idle_pause.map(|pause| pause.as_secs_f64() * 1e6),
            "cpu_seconds": self.usage.cpu.as_secs_f64(),
            "resident_bytes": self.memory.resident_bytes,
            "peak_memory_bytes": self.memory.peak_bytes,
            "user_bytes_written": self.user_bytes_written(),
            "bytes_written": self.usage.written_bytes,
            "write_amplification": per(self.usage.written_bytes, self.user_bytes_written()),
            "user_bytes_scanned": tally.read_bytes,
            "disk_bytes": self.disk_bytes,
            "found": tally.found,
            "missed": tally.missed,
            "writes_beside": beside,
        })
    }
}

/// The amount of work, and its parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Records of the data set, at least 1.
    pub records: u64,
    /// Operations of each workload that is no fill, over all threads; `None` for the records.
    pub ops: Option<u64>,
    /// Time after which a workload other than a fill ends, even if operations are left.
    pub limit: Option<Duration>,
    /// Run a thread next to each workload that only looks at the clock: its longest pause is due to
    /// the machine, and shows how much of the longest operation may be, too.
    pub idle_loop: bool,
    /// Bytes of a key, at least [`KeySpace::KEY_BYTES_MIN`].
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Threads that work at once, at least 1.
    pub threads: u16,
    /// Writes per second of the thread that writes during the reads of `readwhilewriting`; `None`
    /// for as many as possible. With the same number, all engines do the same work while they read.
    pub write_rate: Option<NonZeroU64>,
    /// The point at which a write counts as done, except in `fillsync`.
    pub when: Ack,
    /// Seed of every random choice.
    pub seed: u64,
}

/// The state that one workload leaves for the next.
#[derive(Debug)]
pub struct Bench<E> {
    plan: Plan,
    engine: E,
    keys: KeySpace,
    values: Values,
    inserted: Arc<AtomicU64>,
    is_loaded: bool,
    user_bytes_written: u64,
    /// Number of workloads begun; it gives each its own random choices.
    runs: u64,
}

impl<E: Engine> Bench<E> {
    /// Returns the state before the first run.
    pub fn new(plan: Plan, engine: E) -> Bench<E> {
        Bench {
            keys: KeySpace::new(plan.records, plan.key_bytes),
            values: Values::new(plan.seed, plan.value_bytes),
            inserted: Arc::new(AtomicU64::new(plan.records)),
            is_loaded: false,
            user_bytes_written: 0,
            runs: 0,
            plan,
            engine,
        }
    }

    /// Returns whether all records are there, from this run or from an earlier one.
    pub fn is_loaded(&mut self) -> Result<bool, E::Error> {
        if !self.is_loaded {
            self.is_loaded = self.engine.count()? >= self.plan.records;
        }
        Ok(self.is_loaded)
    }

    /// Bytes of one key and its value.
    pub fn record_bytes(&self) -> u64 {
        (self.plan.key_bytes + self.plan.value_bytes) as u64
    }

    /// Bytes of keys and values written up to now.
    pub fn user_bytes_written(&self) -> u64 {
        self.user_bytes_written
    }

    /// Operations of `kind` over all threads.
    pub fn ops(&self, kind: Kind) -> u64 {
        let records = self.plan.records;
        match kind {
            _ if kind.fills() => records,
            Kind::FillSync => self.plan.ops.unwrap_or((records / 1000).max(1)).min(records),
            _ => self.plan.ops.unwrap_or(records),
        }
    }

    /// The worker number `number` of those that share `ops` operations. The last number, one more
    /// than there are threads, is the thread that runs during their work.
    fn worker(&self, number: u64, ops: u64) -> Worker<E> {
        let threads = u64::from(self.plan.threads);
        let share = |n: u64| u64::try_from(u128::from(ops) * u128::from(n) / u128::from(threads));
        let bound = |n: u64| share(n.min(threads)).expect("a share is at most the whole");
        let seed = self.plan.seed ^ (self.runs << 32 | number << 1);
        Worker {
            engine: self.engine.clone(),
            keys: self.keys,
            values: self.values.fork(seed),
            value_bytes: self.plan.value_bytes,
            when: self.plan.when,
            write_rate: self.plan.write_rate,
            seed,
            ops: bound(number)..bound(number + 1),
            inserted: self.inserted.clone(),
        }
    }

    /// Runs `kind` under the name `name` on the database in `folder`, and passes the number of
    /// finished operations to `progress` from time to time.
    pub fn run(
        &mut self,
        kind: Kind,
        name: &'static str,
        folder: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Outcome, E::Error> {
        self.runs += 1;
        let ops = self.ops(kind);
        let threads = self.plan.threads;
        let workers = (0..u64::from(threads)).map(|number| self.worker(number, ops)).collect();
        let beside = (kind == Kind::ReadWhileWriting).then(|| self.worker(u64::from(threads), ops));

        let before = Usage::now(self.engine.written_bytes());
        let limit = self.plan.limit.filter(|_| kind.needs_data());
        let (done, idle_pause) = with_idle_loop(self.plan.idle_loop, || {
            run_threads(kind, workers, beside, limit, progress)
        });
        let done = done?;
        let outcome = Outcome {
            name,
            threads,
            elapsed: done.elapsed,
            tally: done.tally,
            beside: done.beside,
            idle_pause,
            usage: Usage::now(self.engine.written_bytes()).since(&before),
            memory: Memory::now(),
            disk_bytes: disk_bytes(folder),
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
struct Count(AtomicU64);

/// Runs `work`, together with a thread that reads the clock all the time if `is_wanted`, and
/// returns the longest time between two reads.
fn with_idle_loop<T>(is_wanted: bool, work: impl FnOnce() -> T) -> (T, Option<Duration>) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let idle = is_wanted.then(|| scope.spawn(|| longest_pause(&stop)));
        // Also set if `work` panics: the scope waits for the thread.
        let guard = SetOnDrop(&stop);
        let done = work();
        drop(guard);
        (done, idle.and_then(|idle| idle.join().ok()))
    })
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn longest_pause(stop: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    let mut last = now();
    loop {
        let at = now();
        longest = longest.max(at - last);
        last = at;
        if stop.load(Ordering::Relaxed) {
            return longest;
        }
    }
}

fn run_threads<E: Engine>(
    kind: Kind,
    workers: Vec<Worker<E>>,
    beside: Option<Worker<E>>,
    limit: Option<Duration>,
    progress: &mut dyn FnMut(u64),
) -> Result<Done, E::Error> {
    let stop = AtomicBool::new(false);
    let counted = workers.len();
    let all: Vec<Worker<E>> = workers.into_iter().chain(beside).collect();
    let counts: Vec<Count> = all.iter().map(|_| Count::default()).collect();
    let barrier = Barrier::new(all.len() + 1);
    let (ended, ends) = mpsc::channel();

    let (elapsed, mut tallies) = thread::scope(|scope| -> Result<_, E::Error> {
        let mut handles = Vec::new();
        for (number, (mut worker, count)) in all.into_iter().zip(&counts).enumerate() {
            let ended = ended.clone();
            let barrier = &barrier;
            let stop = &stop;
            let work = move || -> Result<(Instant, Tally), E::Error> {
                barrier.wait();
                let begin = now();
                let mut meter = Meter::new(&count.0, stop, begin);
                let result = if number < counted {
                    worker.work(kind, &mut meter)
                } else {
                    worker.overwrite_while_reading(&mut meter)
                };
                // The main thread listens until every worker has ended.
                let _ = ended.send(number);
                result.map(|()| (begin, meter.into_tally()))
            };
            let thread = thread::Builder::new().name(format!("bench-{number}"));
            let handle = thread.spawn_scoped(scope, work).expect("a thread can be started");
            handles.push(handle);
        }
        drop(ended);
        barrier.wait();
        let begun = now();
        wait(&ends, counted, &counts[..counted], &mut |ops| {
            if limit.is_some_and(|limit| now() - begun > limit) {
                stop.store(true, Ordering::Relaxed);
            }
            progress(ops);
        });
        let end = now();
        stop.store(true, Ordering::Relaxed);
        // This thread may get a processor long after the workers began; the workers know when that
        // was.
        let mut start = end;
        let mut tallies = Vec::new();
        for (number, handle) in handles.into_iter().enumerate() {
            let worked = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (begin, tally) = worked?;
            if number < counted {
                start = start.min(begin);
            }
            tallies.push(tally);
        }
        Ok((end - start, tallies))
    })?;

    let beside = (tallies.len() > counted).then(|| tallies.remove(counted));
    let mut tally = Tally::new();
    tallies.iter().for_each(|part| tally.add(part));
    Ok(Done { elapsed, tally, beside })
}

/// Waits until the `counted` first workers have ended; reports their progress.
fn wait(
    ends: &mpsc::Receiver<usize>,
    counted: usize,
    counts: &[Count],
    progress: &mut dyn FnMut(u64),
) {
    let mut running = counted;
    while running > 0 {
        match ends.recv_timeout(PROGRESS_EVERY) {
            Ok(number) => running -= usize::from(number < counted),
            Err(RecvTimeoutError::Timeout) => {
                progress(counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum());
            }
            // Every worker has ended; a panic of one is reported when it is joined.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}
