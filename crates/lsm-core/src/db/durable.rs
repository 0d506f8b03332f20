//! [`Durable`]: a future for a commit to become durable. It needs no runtime, and no thread waits
//! for it: the log thread wakes the task.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::error::Result;
use crate::types::Process;

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
        let told = state.clone();
        let registered = register(Box::new(move |outcome| tell(&told, outcome)));
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
