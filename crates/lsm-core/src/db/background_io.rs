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
use super::resources::Resources;
use crate::clock::{Clock, IoPriority, RateLimiter};
use crate::options::Options;
use crate::stats::Counters;

/// The rate at which the jobs of a database write.
pub(super) struct BackgroundIo {
    /// Of this database alone.
    own: RateLimiter,
    /// Of many databases, if there is one.
    shared: Option<Arc<RateLimiter>>,
    mode: BackgroundMode,
    counters: Arc<Counters>,
    /// Relaxed: a job that sees it late waits a little longer.
    is_lifted: AtomicBool,
}

impl BackgroundIo {
    /// The rate of a database with these options by its clock, within that of `resources`.
    pub(super) fn new(
        options: &Options,
        clock: &Arc<dyn Clock>,
        resources: Option<&Resources>,
        mode: BackgroundMode,
        counters: Arc<Counters>,
    ) -> BackgroundIo {
        BackgroundIo {
            own: RateLimiter::new(options.background_bytes_per_second, clock.clone()),
            shared: resources.map(|resources| resources.limiter().clone()),
            mode,
            counters,
            is_lifted: AtomicBool::new(false),
        }
    }

    /// The rate of this database.
    pub(super) fn limiter(&self) -> &RateLimiter {
        &self.own
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
        for limiter in [Some(&self.own), self.shared.as_deref()].into_iter().flatten() {
            let waited = limiter.request(priority, bytes, &mut || {
                is_unwanted = is_unwanted || should_stop();
                !is_unwanted && !self.is_lifted()
            });
            self.counters.background_wait_nanos.add(waited.as_nanos() as u64);
        }
        is_unwanted
    }

    fn is_lifted(&self) -> bool {
        self.is_lifted.load(Ordering::Relaxed)
    }

    /// Ends all waits of this database, for good.
    pub(super) fn lift(&self) {
        self.is_lifted.store(true, Ordering::Relaxed);
        self.own.wake();
        if let Some(shared) = &self.shared {
            shared.wake();
        }
    }
}
