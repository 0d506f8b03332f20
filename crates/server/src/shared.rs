//! [`Shared`]: the parts of a server that all connections use.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::front::Front;
use crate::health::reasons;
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
    /// The last look at the health of the database, and its time.
    health: Mutex<Option<(Duration, String)>>,
}

/// The time between two looks at the health: each one looks at all partitions, and routers ask often.
const HEALTH: Duration = Duration::from_secs(1);
/// Characters of the health in a line.
const HEALTH_CHARACTERS_MAX: usize = 500;

impl Shared {
    pub(crate) fn new(
        options: Options,
        front: Front,
        node: Node,
        address: std::net::SocketAddr,
    ) -> Shared {
        let front = Arc::new(front);
        let cursors = Cursors::default();
        let predictor = options.predict.then(Predictor::new);
        let metrics = Metrics::default();
        let health = Mutex::new(None);
        Shared { options, node, cursors, metrics, predictor, front, address, health }
    }

    /// The health of the database in one line: `ok`, or the reasons why it is not.
    pub(crate) fn health(&self) -> String {
        let now = self.options.clock.now();
        let mut last = self.health.lock();
        if let Some((at, line)) = &*last
            && now.saturating_sub(*at) < HEALTH
        {
            return line.clone();
        }
        let reasons = reasons(self).join("; ");
        let line: String = match reasons.is_empty() {
            true => "ok".to_owned(),
            false => reasons
                .chars()
                .take(HEALTH_CHARACTERS_MAX)
                .map(|it| if it.is_control() { ' ' } else { it })
                .collect(),
        };
        *last = Some((now, line.clone()));
        line
    }

    /// The time by which entries of `partition` expire, if they do.
    pub(crate) fn expiry_of(&self, partition: &str) -> Option<u64> {
        let expires = self.node.expires(partition);
        expires.then(|| self.options.clock.unix_time().as_millis() as u64)
    }
}
