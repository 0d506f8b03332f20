//! [`Shared`]: the parts of a server that all connections use.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::cursors::Cursors;
use crate::failure::{Failure, Patience};
use crate::front::{Front, WAITING_READS};
use crate::health::{Reason, reasons};
use crate::keys::Reached;
use crate::metrics::Metrics;
use crate::newest::Newest;
use crate::node::{Node, Primary};
use crate::options::Options;
use crate::predict::Predictor;
use crate::route::dialer::Dialer;

/// The parts of a server that all connections use.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) node: Node,
    pub(crate) cursors: Cursors<Reached>,
    pub(crate) metrics: Metrics,
    pub(crate) predictor: Option<Predictor>,
    pub(crate) front: Arc<Front>,
    pub(crate) address: std::net::SocketAddr,
    /// The questions of a reader of a bucket to its primary.
    pub(crate) newest: Newest,
    /// One permit for each read that may wait: at a reader for the primary, at the primary of a bucket for the bucket.
    pub(crate) waiting: Semaphore,
    /// The last look at the health of the database, and its time.
    health: Mutex<Option<(Duration, Arc<[Reason]>)>>,
}

/// The time between two looks at the health: each one looks at all partitions, and routers ask often.
const HEALTH: Duration = Duration::from_secs(1);

const FULL: Failure = Failure::fixed("NOTYET too many commands wait for the bucket");

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
        let waiting = Semaphore::new(WAITING_READS);
        let newest = Newest::new(Dialer::new(None), None);
        Shared {
            options,
            node,
            cursors,
            metrics,
            predictor,
            front,
            address,
            newest,
            waiting,
            health,
        }
    }

    /// The last look at the health of the database, if it is new enough. Does not wait.
    pub(crate) fn known_health(&self) -> Option<Arc<[Reason]>> {
        let now = self.options.clock.now();
        self.health.try_lock().and_then(|last| fresh(last.as_ref(), now))
    }

    /// The reasons why the database is not healthy, at most a second old. Blocks.
    pub(crate) fn health(&self) -> Arc<[Reason]> {
        let mut last = self.health.lock();
        let now = self.options.clock.now();
        if let Some(reasons) = fresh(last.as_ref(), now) {
            return reasons;
        }
        let reasons: Arc<[Reason]> = reasons(self).into();
        *last = Some((now, reasons.clone()));
        reasons
    }

    /// As [`Primary::begin_strong`], for a read. With `may_wait` it may wait for a commit that waits for the bucket, as long as others
    /// do not take all threads for that.
    pub(crate) fn begin_strong(&self, primary: &Primary, may_wait: bool) -> Result<(), Failure> {
        match primary.begin_strong(Patience::MustNotWait) {
            Err(Failure::MayWait) if may_wait => {}
            begun => return begun.map(drop),
        }
        let _place = self.waiting.try_acquire().map_err(|_| FULL)?;
        primary.begin_strong(Patience::MayWait).map(drop)
    }

    /// As [`Primary::confirm`]. With `may_wait` it may wait for the bucket, as long as others do not take all threads for that.
    pub(crate) fn confirm(&self, primary: &Primary, may_wait: bool) -> Result<(), Failure> {
        match primary.confirm(None) {
            Err(Failure::MayWait) if may_wait => {}
            confirmed => return confirmed,
        }
        let _place = self.waiting.try_acquire().map_err(|_| FULL)?;
        primary.confirm(Some(self.options.wait))
    }

    /// The time by which entries expire, if they do.
    pub(crate) fn expiry(&self, expires: bool) -> Option<u64> {
        expires.then(|| self.options.clock.unix_time().as_millis() as u64)
    }
}

fn fresh(last: Option<&(Duration, Arc<[Reason]>)>, now: Duration) -> Option<Arc<[Reason]>> {
    let (_, reasons) = last.filter(|(at, _)| now.saturating_sub(*at) < HEALTH)?;
    Some(reasons.clone())
}
