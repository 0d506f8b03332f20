//! [`Signals`]: the signals that end a process, for programs that are no server themselves.

use siltstone::Result;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::front::failed;

/// SIGTERM and SIGINT, which do not end the process from [`Signals::new`] on.
pub struct Signals {
    runtime: Runtime,
    ends: EndSignals,
}

impl Signals {
    /// Begins to receive the signals.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](siltstone::ErrorKind::Io) if they cannot be received.
    pub fn new() -> Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed("start threads", &error))?;
        let ends = runtime.block_on(async { EndSignals::new() })?;
        Ok(Signals { runtime, ends })
    }

    /// Waits for the next signal.
    pub fn wait(&mut self) {
        self.runtime.block_on(self.ends.next());
    }
}

/// The signals, in a runtime.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    fn new() -> Result<EndSignals> {
        Ok(EndSignals {
            terminate: received(SignalKind::terminate())?,
            interrupt: received(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        std::future::poll_fn(|context| {
            let is_terminated = self.terminate.poll_recv(context).is_ready();
            let is_interrupted = self.interrupt.poll_recv(context).is_ready();
            if is_terminated || is_interrupted {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
    }
}

fn received(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|error| failed("wait for signals", &error))
}

/// Waits for the first of the signals in the runtime of a server, which has all handles that it takes: connections may
/// have taken the others.
pub(crate) fn wait_in(runtime: &Runtime) -> Result<()> {
    runtime.block_on(async {
        EndSignals::new()?.next().await;
        Ok(())
    })
}
