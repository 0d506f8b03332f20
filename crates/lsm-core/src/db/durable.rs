//! [`Durable`]: a future for a commit to become durable. It needs no runtime, and no thread waits
//! for it: the log thread wakes the task.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::handle::Db;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Process, SeqNo};

/// The answer that a future waits for, and the waker of its task.
#[derive(Default)]
struct DurableState {
    outcome: Option<Result<()>>,
    waker: Option<Waker>,
}

/// A future that is ready when the operations are on the device, or when they cannot be made durable.
/// Dropping it does not cancel the sync. It does not keep the database open; it is ready when the
/// database is closed.
#[must_use = "a future does nothing unless it is polled"]
pub struct Durable {
    state: Arc<Mutex<DurableState>>,
    process: Process,
}

impl Durable {
    /// A future that is ready when the notice that `register` gets is called, or if it is refused.
    pub(super) fn new(
        register: impl FnOnce(Box<dyn FnOnce(Result<()>) + Send>) -> Result<()>,
    ) -> Durable {
        let state = Arc::new(Mutex::new(DurableState::default()));
        let reported = state.clone();
        let registered = register(Box::new(move |outcome| tell(&reported, outcome)));
        if let Err(refused) = registered {
            tell(&state, Err(refused));
        }
        Durable { state, process: Process::current() }
    }
}

fn tell(state: &Mutex<DurableState>, outcome: Result<()>) {
    let mut state = state.lock();
    state.outcome = Some(outcome);
    let waker = state.waker.take();
    drop(state);
    // Not under the lock: it may poll at once.
    waker.into_iter().for_each(Waker::wake);
}

impl Future for Durable {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        // In a child process nothing would ever wake the task.
        if let Err(refused) = self.process.check() {
            return Poll::Ready(Err(refused));
        }
        let mut state = self.state.lock();
        match &state.outcome {
            Some(outcome) => Poll::Ready(outcome.clone()),
            None => {
                // Under the lock under which the outcome is stored, so that no answer comes between
                // the check and the waker.
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Durable");
        if self.process.is_current() {
            shown.field("outcome", &self.state.lock().outcome);
        }
        shown.finish()
    }
}

impl Db {
    /// Waits until every logged operation up to `seq` is on the device, syncing if needed.
    pub fn wait_durable(&self, seq: SeqNo) -> Result<()> {
        self.check_written(seq)?;
        let inner = self.inner();
        inner.log.sync_through_seq(seq)
    }

    /// Calls `notice` once every logged operation up to `seq` is on the device, or cannot be made
    /// durable, and requests a sync of the log. Returns at once.
    pub fn on_durable(
        &self,
        seq: SeqNo,
        notice: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        self.check_written(seq)?;
        let inner = self.inner();
        inner.log.notify(seq, Box::new(notice));
        Ok(())
    }

    /// Returns a future that is ready once every logged operation up to `seq` is on the device, or
    /// cannot be made durable.
    pub fn durable(&self, seq: SeqNo) -> Durable {
        Durable::new(|reported| self.on_durable(seq, reported))
    }

    fn check_written(&self, seq: SeqNo) -> Result<()> {
        self.inner().check_not_closed()?;
        if seq > self.visible_seq() {
            let message = format!("sequence number {seq} is not written yet");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(())
    }

    /// Returns the sequence number through which every logged operation is on the device. Numbers of unlogged
    /// operations count once the log is durable up to them.
    pub fn durable_seq(&self) -> SeqNo {
        let inner = self.inner();
        // In this order: operations that become visible after the look at the log may not be in it.
        let visible = self.visible_seq();
        if inner.is_own() { inner.log.durable_through(visible) } else { SeqNo::ZERO }
    }
}
