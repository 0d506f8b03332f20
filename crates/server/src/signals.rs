//! [`Signals`]: the signals that end a process, for programs that are no server themselves.

use siltstone::Result;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::front::failed;

/// SIGTERM and SIGINT, which do not end the process from [`Signals::new`] on.
pub struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Begins to receive the signals.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](siltstone::ErrorKind::Io) if they cannot be received.
    pub fn new() -> Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed("start threads", &error))?;
        let terminate = received(&runtime, SignalKind::terminate())?;
        let interrupt = received(&runtime, SignalKind::interrupt())?;
        Ok(Signals { runtime, terminate, interrupt })
    }

    /// Waits for the next signal.
    pub fn wait(&mut self) {
        let Signals { runtime, terminate, interrupt } = self;
        runtime.block_on(std::future::poll_fn(|context| {
            let is_terminated = terminate.poll_recv(context).is_ready();
            let is_interrupted = interrupt.poll_recv(context).is_ready();
            if is_terminated || is_interrupted {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        }));
    }
}

fn received(runtime: &Runtime, kind: SignalKind) -> Result<Signal> {
    let _context = runtime.enter();
    signal(kind).map_err(|error| failed("wait for signals", &error))
}
