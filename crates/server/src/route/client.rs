//! [`Client`]: a client of a cluster, which sends each request to a node that can serve it.
//!
//! The router has one for each of its connections, and a program uses it without a router. It has one link to each node
//! that it needs.
//!
//! Invariants:
//! 1. A write is sent once, unless the node says that nothing was written. If the link ends before its reply, the reply
//!    is `UNKNOWN`.
//! 2. Requests take effect in their order: one is sent again only with all that came after it, and only if none of these
//!    has written.
//! 3. The session's token covers all that its client has written or seen before a read at level 3 is sent.

mod attempts;
mod exchange;
mod parallel;
mod upload;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use siltstone::Commit;

pub(super) use self::upload::Upload;
use super::choice::{Need, choose};
use super::cluster::Cluster;
use super::item::Item;
use super::link::Link;
use super::session::{Session, Way};
use super::sink::Sink;
use crate::commands::Verb;
use crate::failure::Failure;

/// A client of a cluster.
pub struct Client {
    cluster: Arc<Cluster>,
    pub(crate) session: Session,
    links: HashMap<usize, Link>,
    random: u64,
    /// The commit from which on the shard has all of its slots; `None` without shards.
    pub(super) floor: Option<Commit>,
    /// A refusal of a shard was passed on, because what came after it has taken effect.
    pub(super) has_passed_moved: bool,
}

impl Client {
    /// A client without links. `seed` chooses among nodes that are equal.
    pub fn new(cluster: Arc<Cluster>, seed: u64) -> Client {
        let session = Session::new(cluster.options.policy);
        let links = HashMap::new();
        Client { cluster, session, links, random: seed, floor: None, has_passed_moved: false }
    }

    pub(super) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Takes over what a session of several shards has in common.
    pub(super) fn adopt(&mut self, session: &Session) {
        if self.session.login != session.login {
            // Another user: each link begins again.
            let nodes: Vec<usize> = self.links.drain().map(|(node, _)| node).collect();
            nodes.into_iter().for_each(|node| self.session.lose(node));
            self.session.login.clone_from(&session.login);
        }
        self.session.partition.clone_from(&session.partition);
        self.session.level = session.level;
        self.session.policy = session.policy;
        self.session.is_resp3 = session.is_resp3;
    }

    /// Sends a request, and returns the bytes of its reply in the protocol of Redis.
    pub async fn call<A: AsRef<[u8]>>(&mut self, request: &[A]) -> Bytes {
        let request = request.iter().map(|it| Bytes::copy_from_slice(it.as_ref())).collect();
        let mut sink = Sink::new(None);
        self.answer(vec![request], &mut sink).await;
        sink.out.freeze()
    }

    /// Answers requests in their order.
    pub(crate) async fn answer(&mut self, requests: Vec<Vec<Bytes>>, sink: &mut Sink<'_>) {
        let requests = requests.into_iter().filter(|request| !request.is_empty());
        self.answer_items(requests.map(Item::new).collect(), sink).await;
    }

    /// Answers requests in their order. Returns those from the first one on that a shard refused because of its slots.
    pub(super) async fn answer_items(
        &mut self,
        mut queue: VecDeque<Item>,
        sink: &mut Sink<'_>,
    ) -> VecDeque<Item> {
        self.leave(queue.front());
        while let Some(mut item) = queue.pop_front() {
            if item.moved.is_some() {
                queue.push_front(item);
                break;
            }
            if self.floor.is_some() {
                self.raise_token(&self.cluster.views());
            }
            self.session.predict(self.cluster.predictor.as_ref(), &mut item);
            match self.session.way(&item) {
                None => {
                    let reply = self.session.answer(&self.cluster, &item);
                    reply.write(&mut sink.out, self.session.is_resp3);
                }
                Some(Way::Login) => self.log_in(item, &mut queue, sink).await,
                Some(way) => self.forward(item, way, &mut queue, sink).await,
            }
            if self.session.ends || sink.is_broken {
                break;
            }
        }
        queue
    }

    /// Makes the `EXEC` of an open transaction fail: a request of it was not taken.
    pub(crate) async fn refuse_transaction(&mut self) {
        if self.session.is_open() {
            // A node refuses the transaction after a command that it does not know.
            self.call(&["SCID.REFUSE"]).await;
        }
    }

    fn random(&mut self) -> usize {
        // A step of SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 33) as usize
    }

    /// The node for a need.
    fn node_for(&mut self, item: &Item, mut need: Need) -> Option<usize> {
        let mut views = self.cluster.views();
        // A node may have reported its epoch since the need was read, and may be chosen because of that.
        if self.raise_token(&views) && matches!(need, Need::Session(_)) {
            need = item.need(self.session.level, self.session.token).unwrap_or(need);
        }
        for at in &item.avoid {
            // The nodes of a shard may be others by now.
            if let Some(view) = views.get_mut(*at) {
                view.role = None;
            }
        }
        let random = [self.random(), self.random()];
        let policy = item.policy.unwrap_or(self.session.policy);
        choose(policy, need, &views, self.session.last_prefix, random)
    }

    /// As [`Client::link`], out of the map.
    async fn take_link(&mut self, node: usize) -> io::Result<Link> {
        self.link(node).await?;
        self.links.remove(&node).ok_or(io::ErrorKind::NotFound.into())
    }

    /// The link to `node`, which connects if there is none.
    async fn link(&mut self, node: usize) -> io::Result<&mut Link> {
        self.forget_replaced(node);
        if !self.links.contains_key(&node) {
            let known = self.cluster.node(node).ok_or(io::ErrorKind::NotFound)?;
            let link =
                Link::connect(&self.cluster.dialer, &known.address, self.cluster.options.reply)
                    .await;
            if link.is_err() {
                known.doubt();
            }
            self.links.insert(node, link?);
        }
        self.links.get_mut(&node).ok_or(io::ErrorKind::NotFound.into())
    }

    /// Drops the link to a node whose place another one has taken.
    fn forget_replaced(&mut self, node: usize) {
        let known = self.cluster.node(node);
        let is_replaced = self
            .links
            .get(&node)
            .zip(known)
            .is_some_and(|(link, known)| link.address != known.address);
        if is_replaced {
            self.links.remove(&node);
            self.session.lose(node);
        }
    }

    /// Drops the links to nodes that leave, but for that of a transaction and that which the next request needs: a walk
    /// connects again.
    fn leave(&mut self, next: Option<&Item>) {
        let asked = self.session.last.filter(|_| next.and_then(Item::verb) == Some(Verb::ScidLast));
        let walked = next.and_then(|item| item.walk);
        let transaction = self.session.transaction.as_ref().map(|it| it.node);
        let needed = [asked, walked, transaction];
        let cluster = &self.cluster;
        self.links.retain(|node, _| {
            needed.contains(&Some(*node)) || !cluster.node(*node).is_some_and(|it| it.is_leaving())
        });
    }

    fn lose(&mut self, node: usize) {
        self.links.remove(&node);
        self.session.lose(node);
        if let Some(node) = self.cluster.node(node) {
            node.doubt();
        }
    }

    /// Sends `item`, and those after it that go to the same node.
    async fn forward(
        &mut self,
        item: Item,
        way: Way,
        queue: &mut VecDeque<Item>,
        sink: &mut Sink<'_>,
    ) {
        let level = self.session.level;
        // Not after MULTI: the node would refuse the sync, and the reads are of the primary.
        let lacks_token = self.session.is_token_lost && !self.session.is_open();
        if lacks_token && item.is_of_session(level) && !self.recover().await && item.is_third(level)
        {
            return self.postpone(item, queue, sink).await;
        }
        let node = match way {
            Way::Need(need) => match self.node_for(&item, need) {
                Some(node) => node,
                None => return self.postpone(item, queue, sink).await,
            },
            Way::Link(node) | Way::Walk(node) => node,
            Way::Login => return,
        };
        self.forget_replaced(node);
        let has_link = self.links.contains_key(&node);
        if !has_link && matches!(way, Way::Link(_)) {
            // With the link, the node has dropped the state that the request needs.
            self.session.lose(node);
            self.session.last = None;
            queue.push_front(item);
            return;
        }
        if self.link(node).await.is_err() {
            if let Way::Walk(_) = way {
                let text = format!(
                    "the node of this cursor, {}, is down; begin again with 0",
                    self.address(node)
                );
                Failure::error(text).reply().write(&mut sink.out, false);
                return;
            }
            return self.postpone(item, queue, sink).await;
        }
        let batch = self.gather(item, way, node, queue);
        self.exchange(batch, queue, sink).await;
    }

    fn address(&self, node: usize) -> String {
        self.cluster.node(node).map_or_else(|| format!("number {node}"), |it| it.address.clone())
    }
}
