//! [`Shared`]: the parts of a server that all connections use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Notify, Semaphore};

use crate::budget::Budget;
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
    pub(crate) incomplete: Arc<Budget>,
    is_draining: AtomicBool,
    drain: Notify,
}

impl Shared {
    pub(crate) fn new(options: Options, node: Node, address: std::net::SocketAddr) -> Shared {
        let clients = Arc::new(Semaphore::new(options.limits.clients));
        let incomplete = Arc::new(Budget::new(options.limits.incomplete_bytes));
        Shared {
            options,
            node,
            cursors: Cursors::default(),
            metrics: Metrics::default(),
            clients,
            address,
            ids: AtomicU64::new(1),
            incomplete,
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
