//! [`BackgroundIo`]: the rate at which the flushes and compactions of a database write.
//!
//! `job.rs` asks it between entries, without a lock but that of the turn to flush; `close.rs` ends its waits.
//!
//! Invariants:
//! 1. A stepped database never waits here: its steps are done by a caller whose clock may stand still.
//! 2. A flush of a database with `Resources`, and a thread of their pool, never wait for the rate of one database: others
//!    need the thread. Their bytes count, and during [`BackgroundIo::rest`] no compaction of the database begins, unless
//!    writers are delayed until one has run.
//! 3. After [`BackgroundIo::lift`] nothing waits here: a close would take as long as the rate wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::background::{BackgroundMode, is_pool_thread};
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
        let may_wait =
            self.shared.is_none() || !(priority == IoPriority::Flush || is_pool_thread());
        if !may_wait {
            self.own.charge(bytes);
        }
        let mut is_unwanted = false;
        for limiter in [may_wait.then_some(&self.own), self.shared.as_deref()].into_iter().flatten()
        {
            let waited = limiter.request(priority, bytes, &mut || {
                is_unwanted = is_unwanted || should_stop();
                !is_unwanted && !self.is_lifted()
            });
            self.counters.background_wait_nanos.add(waited.as_nanos() as u64);
        }
        is_unwanted
    }

    /// So long no compaction of a database with `Resources` begins for which no writer waits: those before have
    /// written more than its rate.
    pub(super) fn rest(&self) -> Duration {
        if self.shared.is_none() || self.is_lifted() { Duration::ZERO } else { self.own.debt() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::db::background::Task;
    use crate::options::ResourceOptions;

    /// A clock that stands still.
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Duration {
            Duration::from_secs(1000)
        }
    }

    #[test]
    fn a_thread_of_a_pool_does_not_wait_for_the_rate_of_one_database() {
        let resources = Resources::with_clock(ResourceOptions::new(), Arc::new(SystemClock::new()));
        let resources = resources.expect("the options are in their range");
        let clock: Arc<dyn Clock> = Arc::new(Still);
        let options = Options::new().background_bytes_per_second(1 << 20);
        let mode = BackgroundMode::Threads;
        let io = BackgroundIo::new(&options, &clock, Some(&resources), mode, Arc::default());
        // On any thread, since the one for flushes waits for the turn to flush.
        assert!(!io.pay(IoPriority::Flush, 8 << 20, &|| panic!("a flush waits")));
        assert_eq!(io.rest(), Duration::from_millis(7950));
        // A caller of `Partition::compact` waits.
        assert!(io.pay(IoPriority::Deep, 1 << 20, &|| true));
        let pool = std::thread::spawn(move || {
            Task::Compaction.mark_pool_thread();
            assert!(!io.pay(IoPriority::Deep, 8 << 20, &|| panic!("it waits")));
            assert_eq!(io.rest(), Duration::from_millis(15950));
            io.limiter().set_bytes_per_second(0);
            assert_eq!(io.rest(), Duration::ZERO);
        });
        pool.join().expect("it does not wait");
    }
}
