//! [`BackgroundThread`]: a thread that works every interval, or after pauses of its choice, and ends with its owner.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use siltstone::Result;

#[derive(Default)]
struct StopSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

/// A thread. The drop waits for its end.
pub(crate) struct BackgroundThread {
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    /// Starts a thread that calls `work` every `interval`, and once more at the end if `works_at_end`.
    pub(crate) fn start(
        name: &str,
        interval: Duration,
        works_at_end: bool,
        mut work: impl FnMut() + Send + 'static,
    ) -> Result<BackgroundThread> {
        BackgroundThread::spawn(name, move |stop| {
            while !stop.waits(interval) {
                work();
            }
            if works_at_end {
                work();
            }
        })
    }

    /// Starts a thread that calls `work` after each pause that it returns, until it returns none.
    pub(crate) fn start_paced(
        name: &str,
        mut work: impl FnMut() -> Option<Duration> + Send + 'static,
    ) -> Result<BackgroundThread> {
        BackgroundThread::spawn(name, move |stop| {
            let mut pause = Duration::ZERO;
            while !stop.waits(pause)
                && let Some(next) = work()
            {
                pause = next;
            }
        })
    }

    fn spawn(
        name: &str,
        work: impl FnOnce(&StopSignal) + Send + 'static,
    ) -> Result<BackgroundThread> {
        let stop = Arc::<StopSignal>::default();
        let signal = stop.clone();
        let named = std::thread::Builder::new().name(name.to_owned());
        let thread = named.spawn(move || work(&signal))?;
        Ok(BackgroundThread { stop, thread: Some(thread) })
    }
}

impl StopSignal {
    /// Waits. Returns `true` at the end of the owner.
    fn waits(&self, interval: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        if !*is_set {
            self.changed.wait_for(&mut is_set, interval);
        }
        *is_set
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        *self.stop.is_set.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of it was reported by the thread.
            let _ = thread.join();
        }
    }
}
