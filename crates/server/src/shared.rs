//! [`Shared`]: the parts of a server that all connections use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{Notify, Semaphore};

use crate::keys::Cursors;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::options::Options;

/// The parts of a server that all connections use.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) node: Node,
    pub(crate) cursors: Cursors,
    pub(crate) metrics: Metrics,
    /// One permit for each connection.
    pub(crate) clients: Arc<Semaphore>,
    pub(crate) address: std::net::SocketAddr,
    ids: AtomicU64,
    /// Bytes of incomplete requests, of all connections.
    incomplete: AtomicUsize,
    is_draining: AtomicBool,
    drain: Notify,
}

/// Bytes of an incomplete request that are not counted.
const UNCOUNTED_BYTES: usize = 64 << 10;

/// The bytes of an incomplete request, as they are counted.
pub(crate) struct Incomplete {
    shared: Arc<Shared>,
    counted: usize,
}

impl Incomplete {
    pub(crate) fn new(shared: Arc<Shared>) -> Incomplete {
        Incomplete { shared, counted: 0 }
    }

    /// Counts `bytes` in the place of those before; `false` if there are too many of all connections.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let bytes = bytes.saturating_sub(UNCOUNTED_BYTES);
        if bytes == self.counted {
            return true;
        }
        let all = &self.shared.incomplete;
        let before = all.fetch_add(bytes, Ordering::Relaxed) - self.counted;
        all.fetch_sub(self.counted, Ordering::Relaxed);
        self.counted = bytes;
        before + bytes <= self.shared.options.limits.incomplete_bytes
    }
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        self.shared.incomplete.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl Shared {
    pub(crate) fn new(options: Options, node: Node, address: std::net::SocketAddr) -> Shared {
        let clients = Arc::new(Semaphore::new(options.limits.clients));
        Shared {
            options,
            node,
            cursors: Cursors::default(),
            metrics: Metrics::default(),
            clients,
            address,
            ids: AtomicU64::new(1),
            incomplete: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            drain: Notify::new(),
        }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Connections that are open.
    pub(crate) fn client_count(&self) -> usize {
        self.options.limits.clients.saturating_sub(self.clients.available_permits())
    }

    /// The time by which entries of `partition` expire, if they do.
    pub(crate) fn expiry_of(&self, partition: &str) -> Option<u64> {
        let expires = self.node.expires(partition);
        expires.then(|| self.options.clock.unix_time().as_millis() as u64)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Ends all connections after the requests that run.
    pub(crate) fn begin_drain(&self) {
        // Before the notice: who waits later looks here first.
        self.is_draining.store(true, Ordering::Release);
        self.drain.notify_waiters();
    }

    pub(crate) fn drain(&self) -> &Notify {
        &self.drain
    }
}
