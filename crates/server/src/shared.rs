//! [`Shared`]: the parts of a server that all connections use.

use std::sync::Arc;

use crate::front::Front;
use crate::keys::Cursors;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::options::Options;
use crate::predict::Predictor;

/// The parts of a server that all connections use.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) node: Node,
    pub(crate) cursors: Cursors,
    pub(crate) metrics: Metrics,
    pub(crate) predictor: Option<Predictor>,
    pub(crate) front: Arc<Front>,
    pub(crate) address: std::net::SocketAddr,
}

impl Shared {
    pub(crate) fn new(options: Options, node: Node, address: std::net::SocketAddr) -> Shared {
        let front = Arc::new(Front::new(options.limits));
        let cursors = Cursors::default();
        let predictor = options.predict.then(Predictor::new);
        let metrics = Metrics::default();
        Shared { options, node, cursors, metrics, predictor, front, address }
    }

    /// The time by which entries of `partition` expire, if they do.
    pub(crate) fn expiry_of(&self, partition: &str) -> Option<u64> {
        let expires = self.node.expires(partition);
        expires.then(|| self.options.clock.unix_time().as_millis() as u64)
    }
}
