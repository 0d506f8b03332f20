//! [`BackgroundIo`]: the rate at which the flushes and compactions of a database write.
//!
//! `job.rs` asks it between entries, without a lock but that of the turn to flush; `close.rs` ends its waits.
//!
//! Invariants:
//! 1. A stepped database never waits here: its steps are done by a caller whose clock may stand still.
//! 2. After [`BackgroundIo::lift`] nothing waits here: a close would take as long as the rate wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::background::BackgroundMode;
use crate::clock::{IoPriority, RateLimiter};
use crate::stats::Counters;

/// The rate at which the jobs of a database write.
pub(super) struct BackgroundIo {
    limiter: Arc<RateLimiter>,
    mode: BackgroundMode,
    counters: Arc<Counters>,
    /// Relaxed: a job that sees it late waits a little longer.
    is_lifted: AtomicBool,
}

impl BackgroundIo {
    pub(super) fn new(
        limiter: Arc<RateLimiter>,
        mode: BackgroundMode,
        counters: Arc<Counters>,
    ) -> BackgroundIo {
        BackgroundIo { limiter, mode, counters, is_lifted: AtomicBool::new(false) }
    }

    /// The rate of this database.
    pub(super) fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// The counters of the database.
    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Waits until `bytes` that a job has written are within the rate. Returns `true` if `should_stop` says so
    /// meanwhile.
    pub(super) fn pay(
        &self,
        priority: IoPriority,
        bytes: u64,
        should_stop: &dyn Fn() -> bool,
    ) -> bool {
        if self.mode == BackgroundMode::Stepped || self.is_lifted() {
            return false;
        }
        let mut is_unwanted = false;
        let waited = self.limiter.request(priority, bytes, &mut || {
            is_unwanted = should_stop();
            !is_unwanted && !self.is_lifted()
        });
        self.counters.background_wait_nanos.add(waited.as_nanos() as u64);
        is_unwanted
    }

    fn is_lifted(&self) -> bool {
        self.is_lifted.load(Ordering::Relaxed)
    }

    /// Ends all waits of this database, for good.
    pub(super) fn lift(&self) {
        self.is_lifted.store(true, Ordering::Relaxed);
        self.limiter.wake();
    }
}
