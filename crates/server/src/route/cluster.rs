//! [`Cluster`]: the nodes that requests go to, and what is known about them.
//!
//! Nodes are asked for their role and position in turns, and what requests experience counts at once. Nothing that is
//! known here is a guarantee: see [`choose`](super::choice::choose).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use siltstone::clock::{Clock, SystemClock};
use siltstone::{Commit, Error, ErrorKind, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::choice::{NodeRole, NodeView, Policy, primary_of};
use super::counts::{Counts, NodeCounts};
use super::dialer::Dialer;
use super::link::Link;
use super::nodes::Nodes;
use crate::level::Token;
use crate::predict::Predictor;
use crate::reply::Reply;
use crate::tls::Connector;

/// Time between two questions to all nodes.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);
/// The longest time for an answer to one.
pub(super) const ANSWER: Duration = Duration::from_secs(1);
/// The usual time of a request counts each one by this part.
const SMOOTHING: u64 = 8;

/// The options of a [`Cluster`].
#[derive(Clone)]
pub struct ClusterOptions {
    /// The addresses of the nodes: the primary and its readers, in any order.
    pub nodes: Nodes,
    /// The nodes of reads that name no policy. Default: [`Policy::Cost`].
    pub policy: Policy,
    /// Predicts the level of each `GET` and `SCID.GET` that names none, for all clients together; see
    /// [`Options::predict`](crate::Options::predict). A node does not take the predicted level if it has one for the partition.
    /// Default: off.
    pub predict: bool,
    /// Name and password with which nodes are asked for their role; no rights are needed. Default: none.
    pub login: Option<(String, String)>,
    /// The longest that a request waits for a node that can serve it. Default: 5 s.
    pub wait: Duration,
    /// The longest that a node takes for a reply; from then on it counts as lost. Default: 10 s.
    pub reply: Duration,
    /// The most nodes that send one long value at the same time: the one that is asked for it, and readers. 1 for no other.
    /// Default: 4.
    pub parallel: usize,
    /// Bytes from which on a value is read so; at least 1 MiB. The value is in a chunk file. Default: 8 MiB.
    pub parallel_bytes: u64,
    /// TLS to the nodes. Default: none.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::tls::NodeTls>,
    /// The clock for these times, and for the times of requests.
    pub clock: Arc<dyn Clock>,
}

impl ClusterOptions {
    /// The defaults, for these nodes.
    pub fn new(nodes: Nodes) -> ClusterOptions {
        ClusterOptions {
            nodes,
            policy: Policy::default(),
            predict: false,
            login: None,
            wait: Duration::from_secs(5),
            reply: Duration::from_secs(10),
            parallel: 4,
            parallel_bytes: 8 << 20,
            #[cfg(feature = "tls")]
            tls: None,
            clock: Arc::new(SystemClock::new()),
        }
    }
}

/// The answer of a node to the last question.
#[derive(Clone, Debug, Default)]
struct Known {
    role: Option<NodeRole>,
    position: Option<Commit>,
    /// The health of its database.
    health: Option<String>,
}

/// A node.
pub(crate) struct Node {
    pub(crate) address: String,
    // All relaxed: hints for a choice.
    load: AtomicU64,
    micros: AtomicU64,
    /// The list does not have it any more.
    is_leaving: AtomicBool,
    /// It did not catch up for a read, and its position has not changed since.
    is_stuck: AtomicBool,
    known: Mutex<Known>,
    pub(crate) counts: NodeCounts,
    /// The connection of the questions.
    link: tokio::sync::Mutex<Option<Link>>,
}

impl Node {
    fn new(address: String) -> Node {
        Node {
            address,
            load: AtomicU64::new(0),
            micros: AtomicU64::new(0),
            is_leaving: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            known: Mutex::default(),
            counts: NodeCounts::default(),
            link: tokio::sync::Mutex::new(None),
        }
    }

    fn view(&self) -> NodeView {
        let known = self.known.lock();
        NodeView {
            role: known.role.filter(|_| !self.is_leaving()),
            load: self.load.load(Ordering::Relaxed),
            micros: self.micros.load(Ordering::Relaxed),
            position: known.position,
            is_stuck: self.is_stuck.load(Ordering::Relaxed),
        }
    }

    /// Returns whether the list does not have it any more. Walks and transactions at it go on, as long as it is up.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        self.load.load(Ordering::Relaxed) == 0
    }

    /// Notes that it does not answer, or is not what it was. It gets requests again after the next question.
    pub(crate) fn doubt(&self) {
        self.known.lock().role = None;
    }

    /// Notes that it has refused a read. If it did not catch up, each further one would wait as long.
    pub(crate) fn refused(&self, reply: &[u8]) {
        if reply.starts_with(b"-NOTYET ") {
            self.is_stuck.store(true, Ordering::Relaxed);
        }
    }

    /// Counts `requests` until the end of what is returned.
    pub(crate) fn begin(self: &Arc<Node>, requests: u64, now: Duration) -> Running {
        self.load.fetch_add(requests, Ordering::Relaxed);
        Running { node: self.clone(), requests, begun: now }
    }

    async fn ask(&self, dialer: &Dialer, login: Option<&(String, String)>) {
        let mut kept = self.link.lock().await;
        let deadline = Instant::now() + ANSWER;
        if kept.is_none() {
            // The dialer notes why there is none. Its limit is the only one here, so that it can note that too.
            *kept = Link::connect(dialer, &self.address, ANSWER).await.ok();
        }
        let known = match kept.as_mut() {
            None => Known::default(),
            Some(link) => match timeout_at(deadline, info(link, login)).await {
                Ok(Ok(info)) => known(&info),
                Ok(Err(error)) => {
                    dialer.failed(&self.address, &error);
                    Known::default()
                }
                Err(_) => Known::default(),
            },
        };
        if known.role.is_none() {
            *kept = None;
        }
        let mut last = self.known.lock();
        if known.position != last.position {
            self.is_stuck.store(false, Ordering::Relaxed);
        }
        *last = known;
    }
}

/// Asks for the role and position, after the login if there is one.
async fn info(link: &mut Link, login: Option<&(String, String)>) -> io::Result<Bytes> {
    if let Some((name, password)) = login.filter(|_| !link.greeted.has_login) {
        link.call(&["AUTH", name, password]).await?;
        link.greeted.has_login = true;
    }
    link.call(&["INFO"]).await
}

fn line_of<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines().filter_map(|line| line.split_once(':'));
    lines.find_map(|(key, value)| (key == name).then_some(value))
}

/// The newest commit of a node, by its reply to `INFO`, if it is a primary.
pub(super) fn primary_position(info: &[u8]) -> Option<Commit> {
    let known = known(info);
    let is_primary = matches!(known.role, Some(NodeRole::Primary | NodeRole::BucketPrimary));
    known.position.filter(|_| is_primary)
}

/// Reads the reply to `INFO`.
fn known(info: &[u8]) -> Known {
    let text = String::from_utf8_lossy(info);
    let role = match (line_of(&text, "role"), line_of(&text, "scid_bucket")) {
        (Some("master"), Some("1")) => Some(NodeRole::BucketPrimary),
        (Some("master"), _) => Some(NodeRole::Primary),
        (Some("slave"), Some("1")) => Some(NodeRole::BucketReader),
        (Some("slave"), _) => Some(NodeRole::Reader),
        _ => None,
    };
    let position = line_of(&text, "scid_token").and_then(|it| Token::parse(it.as_bytes()).ok());
    let health = line_of(&text, "scid_health").map(str::to_owned);
    Known { role, position: position.map(|token| token.0), health }
}

/// Requests that a node has not answered.
pub(crate) struct Running {
    node: Arc<Node>,
    requests: u64,
    begun: Duration,
}

impl Running {
    /// Notes that all were answered.
    pub(crate) fn answered(self, now: Duration) {
        let took = now.saturating_sub(self.begun).as_micros() as u64 / self.requests.max(1);
        let usual = self.node.micros.load(Ordering::Relaxed);
        // A lost update of another thread is one sample less.
        let next = if usual == 0 { took } else { (usual * (SMOOTHING - 1) + took) / SMOOTHING };
        self.node.micros.store(next.max(1), Ordering::Relaxed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.node.load.fetch_sub(self.requests, Ordering::Relaxed);
    }
}

/// With so many places, new nodes take those of nodes that have left: a cursor of a walk has few bits for the place.
const PLACES_KEPT: usize = 512;
/// The role of a node that is gone from the list.
const LEAVING: &str = "leaving";

/// The nodes that requests go to.
pub struct Cluster {
    pub(crate) options: ClusterOptions,
    pub(crate) predictor: Option<Predictor>,
    pub(crate) counts: Counts,
    pub(crate) dialer: Arc<Dialer>,
    /// At their places, which do not change while they are in the list: the cursors of walks have them.
    nodes: ArcSwap<Vec<Arc<Node>>>,
    /// Rounds of questions, and the turn of one.
    rounds: AtomicU64,
    turn: tokio::sync::Mutex<()>,
}

impl Cluster {
    /// Reads the list of nodes.
    ///
    /// # Errors
    /// Those of the read of the file; [`ErrorKind::InvalidArgument`] if it names no node. With TLS those of its files.
    pub fn new(options: ClusterOptions) -> Result<Cluster> {
        let dialer = Arc::new(Dialer::new(connector(&options)?));
        Cluster::with_dialer(options, dialer)
    }

    /// As [`Cluster::new`], with a dialer that several clusters share.
    pub(super) fn with_dialer(options: ClusterOptions, dialer: Arc<Dialer>) -> Result<Cluster> {
        let cluster = Cluster::unlisted(options, dialer);
        cluster.reload()?;
        if cluster.nodes.load().is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a router needs a node"));
        }
        Ok(cluster)
    }

    /// A cluster whose list of nodes is not read yet: [`Cluster::look`] does it.
    pub(super) fn unlisted(options: ClusterOptions, dialer: Arc<Dialer>) -> Cluster {
        Cluster {
            predictor: options.predict.then(Predictor::new),
            dialer,
            options,
            counts: Counts::default(),
            nodes: ArcSwap::default(),
            rounds: AtomicU64::new(0),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    /// Adds the nodes that are new in the file. Those that are gone get no new request, and keep their places up to
    /// [`PLACES_KEPT`].
    fn reload(&self) -> Result<()> {
        let addresses = self.options.nodes.addresses()?;
        let old = self.nodes.load();
        let mut nodes = Vec::clone(&old);
        if addresses.is_empty() {
            // The file is being written, or lost: better the nodes of before than none.
            return Ok(());
        }
        for node in &nodes {
            let is_leaving = !addresses.contains(&node.address);
            node.is_leaving.store(is_leaving, Ordering::Relaxed);
            // It is asked nothing more. A question that runs keeps the connection until the next look at the list.
            if let Ok(mut link) = node.link.try_lock()
                && is_leaving
            {
                *link = None;
            }
        }
        let mut has_changed = false;
        for address in addresses {
            if nodes.iter().any(|node| node.address == address) {
                continue;
            }
            has_changed = true;
            let node = Arc::new(Node::new(address));
            let free = nodes.iter().position(|it| it.is_leaving() && it.is_idle());
            match free.filter(|_| nodes.len() >= PLACES_KEPT) {
                Some(place) => nodes[place] = node,
                None => nodes.push(node),
            }
        }
        if has_changed {
            self.nodes.store(Arc::new(nodes));
        }
        Ok(())
    }

    /// Asks the nodes in turns, until the task is aborted.
    pub async fn watch(self: Arc<Cluster>) {
        loop {
            self.look().await;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Reads the list of nodes again, and asks them.
    pub(super) async fn look(&self) {
        // A file that cannot be read for a moment changes nothing.
        let _ = self.reload();
        self.dialer.look();
        self.ask().await;
    }

    /// Asks all nodes for their roles and positions.
    pub(crate) async fn ask(&self) {
        let seen = self.rounds.load(Ordering::Acquire);
        let _turn = self.turn.lock().await;
        // Another one has asked meanwhile.
        if self.rounds.load(Ordering::Acquire) != seen {
            return;
        }
        let mut asked = JoinSet::new();
        for node in self.nodes().into_iter().filter(|node| !node.is_leaving()) {
            let login = self.options.login.clone();
            let dialer = self.dialer.clone();
            asked.spawn(async move { node.ask(&dialer, login.as_ref()).await });
        }
        asked.join_all().await;
        self.rounds.fetch_add(1, Ordering::Release);
    }

    /// Asks one node for its role and position.
    pub(crate) async fn ask_one(&self, at: usize) {
        if let Some(node) = self.node(at) {
            node.ask(&self.dialer, self.options.login.as_ref()).await;
        }
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        Vec::clone(&self.nodes.load())
    }

    pub(crate) fn node(&self, at: usize) -> Option<Arc<Node>> {
        self.nodes.load().get(at).cloned()
    }

    pub(crate) fn views(&self) -> Vec<NodeView> {
        self.nodes.load().iter().map(|node| node.view()).collect()
    }

    /// The time by the clock of the cluster.
    pub(crate) fn now(&self) -> Duration {
        self.options.clock.now()
    }

    /// The nodes with what is known about them. Those that leave are the last ones.
    pub(crate) fn described(&self) -> Vec<Described> {
        let nodes = self.nodes();
        let views: Vec<NodeView> = nodes.iter().map(|node| node.view()).collect();
        let primary = primary_of(&views);
        let newest = primary.and_then(|at| views[at].position);
        let described = nodes.into_iter().zip(views).enumerate();
        let mut described: Vec<Described> = described
            .map(|(at, (node, view))| {
                let role = match view.role {
                    None if node.is_leaving() => LEAVING,
                    None => "down",
                    Some(role) if role.is_reader() => "reader",
                    Some(_) if primary == Some(at) => "primary",
                    Some(_) => "taken over",
                };
                Described { node, view, role, lag: lag(view.position, newest) }
            })
            .collect();
        // There may be more of them than rows of a page.
        described.sort_by_key(Described::is_leaving);
        described
    }

    /// `SCID.NODES`: the nodes with their roles, loads and positions.
    pub(crate) fn reply(&self) -> Reply {
        let described = self.described().into_iter().map(|it| {
            let view = it.view;
            let position =
                view.position.map_or(Reply::Nil, |it| Reply::text(Token(it).to_string()));
            Reply::Map(vec![
                (Reply::text("address"), Reply::text(it.node.address.clone())),
                (Reply::text("role"), Reply::text(it.role)),
                (Reply::text("requests"), Reply::count(view.load)),
                (Reply::text("microseconds"), Reply::count(view.micros)),
                (Reply::text("token"), position),
            ])
        });
        Reply::Array(described.collect())
    }
}

#[cfg(feature = "tls")]
pub(crate) fn connector(options: &ClusterOptions) -> Result<Option<Connector>> {
    options.tls.clone().map(|tls| Connector::open(tls, options.clock.clone())).transpose()
}

#[cfg(not(feature = "tls"))]
#[expect(clippy::unnecessary_wraps, reason = "it is as that of the feature")]
pub(crate) fn connector(_: &ClusterOptions) -> Result<Option<Connector>> {
    Ok(None)
}

/// The operations that a node at `own` lacks; `None` in another epoch.
fn lag(own: Option<Commit>, newest: Option<Commit>) -> Option<u64> {
    let (own, newest) = own.zip(newest)?;
    (own.epoch == newest.epoch).then(|| newest.seq.get().saturating_sub(own.seq.get()))
}

/// A node with what is known about it.
pub(crate) struct Described {
    pub(crate) node: Arc<Node>,
    pub(crate) view: NodeView,
    pub(crate) role: &'static str,
    /// Operations of the primary that it lacks.
    pub(crate) lag: Option<u64>,
}

impl Described {
    pub(crate) fn address(&self) -> &str {
        &self.node.address
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.role == LEAVING
    }

    pub(crate) fn token(&self) -> Option<String> {
        self.view.position.map(|position| Token(position).to_string())
    }

    /// The health of its database, as it said last.
    pub(crate) fn health(&self) -> String {
        if self.view.role.is_none() {
            return self.role.to_owned();
        }
        self.node.known.lock().health.clone().unwrap_or_else(|| "unknown".to_owned())
    }
}

#[cfg(test)]
mod tests;
