//! [`Meter`]: the counters and the clock of one thread of a workload; [`Tally`]: the counters of
//! one or of all.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::measure::latencies;

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// The work of one thread. The progress is read by the main thread while it works.
#[derive(Debug)]
pub(super) struct Meter<'a> {
    progress: &'a AtomicU64,
    stop: &'a AtomicBool,
    begin: Instant,
    last: Instant,
    tally: Tally,
}

/// The counters of one thread or of all.
#[derive(Debug)]
pub struct Tally {
    /// Operations that ended.
    pub ops: u64,
    /// Nanoseconds of each operation.
    pub latencies: Histogram<u64>,
    /// Point reads that found a value.
    pub found: u64,
    /// Point reads that found none.
    pub missed: u64,
    /// Bytes of keys and values that were written.
    pub written_bytes: u64,
    /// Bytes of keys and values that scans read.
    pub read_bytes: u64,
}

impl Tally {
    pub(super) fn new() -> Tally {
        Tally {
            ops: 0,
            latencies: latencies(),
            found: 0,
            missed: 0,
            written_bytes: 0,
            read_bytes: 0,
        }
    }

    pub(super) fn add(&mut self, other: &Tally) {
        self.ops += other.ops;
        self.latencies.add(&other.latencies).expect("all histograms have the same bounds");
        self.found += other.found;
        self.missed += other.missed;
        self.written_bytes += other.written_bytes;
        self.read_bytes += other.read_bytes;
    }
}

impl<'a> Meter<'a> {
    /// The meter of a thread that begins to work at `begin`.
    pub(super) fn new(progress: &'a AtomicU64, stop: &'a AtomicBool, begin: Instant) -> Meter<'a> {
        Meter { progress, stop, begin, last: begin, tally: Tally::new() }
    }

    /// The counters, at the end of the work.
    pub(super) fn into_tally(self) -> Tally {
        self.tally
    }

    /// Waits if the operations so far are more than `per_second` allows. The wait belongs to no
    /// operation.
    pub(super) fn pace(&mut self, per_second: NonZeroU64) {
        let due = Duration::from_secs_f64(self.tally.ops as f64 / per_second.get() as f64);
        let ahead = (self.begin + due).saturating_duration_since(self.last);
        if !ahead.is_zero() {
            thread::park_timeout(ahead);
            self.last = now();
        }
    }

    /// An operation ended now.
    #[inline]
    pub(super) fn tick(&mut self) {
        self.tick_many(1);
    }

    /// Counts `ops` operations that ended now as one; they have one latency.
    #[inline]
    pub(super) fn tick_many(&mut self, ops: u64) {
        let at = now();
        let nanos = u64::try_from((at - self.last).as_nanos()).unwrap_or(u64::MAX);
        self.tally.latencies.saturating_record(nanos);
        self.last = at;
        self.tally.ops += ops;
        // A count for display; nothing depends on it.
        self.progress.store(self.tally.ops, Ordering::Relaxed);
    }

    /// Counts a point read, which found a value or none.
    #[inline]
    pub(super) fn found(&mut self, found: bool) {
        if found {
            self.tally.found += 1;
        } else {
            self.tally.missed += 1;
        }
    }

    /// Counts keys and values of `len` bytes as written.
    #[inline]
    pub(super) fn wrote(&mut self, len: usize) {
        self.tally.written_bytes += len as u64;
    }

    /// Counts keys and values of `len` bytes as read.
    #[inline]
    pub(super) fn read_bytes(&mut self, len: usize) {
        self.tally.read_bytes += len as u64;
    }

    /// Returns whether the workers that count are done, or the time is over.
    pub(super) fn must_stop(&self) -> bool {
        // A late answer costs one more operation.
        self.stop.load(Ordering::Relaxed)
    }

    /// The operations in `ops`, until the time is over.
    pub(super) fn until_stopped(&self, ops: Range<u64>) -> impl Iterator<Item = u64> + use<'a> {
        let stop = self.stop;
        ops.take_while(|_| !stop.load(Ordering::Relaxed))
    }
}
