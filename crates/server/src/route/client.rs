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
mod parallel;
mod upload;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use siltstone::Commit;

use self::parallel::{Announcement, greet_parts, is_of_value};
pub(super) use self::upload::Upload;
use super::choice::{Need, choose};
use super::cluster::Cluster;
use super::item::Item;
use super::link::{Arrived, Link, encode};
use super::outcome::{first_to_repeat, is_moved, is_refusal, named};
use super::session::{Session, Transaction, Way};
use super::sink::Sink;
use crate::commands::Verb;
use crate::failure::Failure;

/// Bytes of requests that are sent before a reply is read. More could fill the buffers of both sides, and neither would
/// read.
const BATCH_BYTES: usize = 32 << 10;

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

/// Requests that go to one node together, with the transaction before each.
struct Batch {
    node: usize,
    items: Vec<(Item, Option<Transaction>)>,
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
            self.raise_token();
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
    fn node_for(&mut self, item: &Item, need: Need) -> Option<usize> {
        let mut views = self.cluster.views();
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

    /// Takes the requests that go to `node` with the first one.
    fn gather(&mut self, first: Item, way: Way, node: usize, queue: &mut VecDeque<Item>) -> Batch {
        let mut ways = vec![way, Way::Link(node)];
        if matches!(way, Way::Need(_)) && first.policy.is_none() && !queue.is_empty() {
            for need in [Need::Write, Need::Strong, Need::Prefix, Need::Weak] {
                let is_here = self.node_for(&first, need) == Some(node);
                ways.extend(is_here.then_some(Way::Need(need)));
            }
        }
        let mut bytes = 0;
        let mut items = Vec::new();
        let mut next = Some(first);
        while let Some(item) = next {
            bytes += item.len();
            let before = self.session.transaction.clone();
            self.session.sent(&item, node);
            items.push((item, before));
            let is_next = queue.front_mut().is_some_and(|item| {
                self.session.predict(self.cluster.predictor.as_ref(), item);
                let is_same = self.session.way(item).is_some_and(|way| ways.contains(&way));
                // Refusals are of one request at a time, and so is a search for the token.
                let is_plain = item.avoid.is_empty() && item.policy.is_none();
                let is_known =
                    !self.session.is_token_lost || !item.is_of_session(self.session.level);
                let is_plain = is_plain && is_known;
                is_same && is_plain && bytes + item.len() <= BATCH_BYTES
            });
            next = if is_next { queue.pop_front() } else { None };
        }
        Batch { node, items }
    }

    /// Sends a batch, and writes its replies.
    async fn exchange(&mut self, batch: Batch, queue: &mut VecDeque<Item>, sink: &mut Sink<'_>) {
        let Some(node) = self.cluster.node(batch.node) else { return };
        let begun = self.cluster.now();
        let running = node.begin(batch.items.len() as u64, begun);
        let needs: Vec<Option<Need>> =
            batch.items.iter().map(|(item, _)| self.session.need_of(item)).collect();
        let mut replies = Vec::with_capacity(batch.items.len());
        let parts_from = self.parts_from(&batch);
        let done = self.converse(&batch, &node.address, &mut replies, parts_from, sink).await;
        let announced = Announcement::among(parts_from, &replies);
        if done.is_err() && announced.is_some() {
            replies.clear();
        }
        let now = self.cluster.now();
        if done.is_ok() {
            running.answered(now);
        }
        node.counts.answered(&needs, &replies, now.saturating_sub(begun));
        let repeated = first_to_repeat(&batch.items, &replies);
        if let Some(announcement) = announced.filter(|_| done.is_ok()) {
            return self.read_announced(batch, &announcement, queue, sink).await;
        }
        for (at, (mut item, before)) in batch.items.into_iter().enumerate().skip(repeated).rev() {
            node.counts.returned();
            match replies.get(at) {
                None => {
                    item.lost_at = Some(node.address.clone());
                    self.session.transaction = before;
                }
                Some(reply) if item.is_of_shard && is_moved(reply) => {
                    item.moved = Some(reply.clone());
                    if item.is_read() {
                        item.avoid.push(batch.node);
                    }
                }
                Some(reply) if is_refusal(&item, reply) => {
                    item.refused = Some(reply.clone());
                    if item.is_change() {
                        node.doubt();
                    } else {
                        item.avoid.push(batch.node);
                    }
                }
                Some(_) => {}
            }
            queue.push_front(item);
        }
        if sink.is_broken {
            // Of its client alone. The rest of a reply is on its way, so that the link is of no use.
            self.links.remove(&batch.node);
            self.session.lose(batch.node);
        } else if done.is_err() {
            node.counts.lost();
            self.lose(batch.node);
        }
        replies.truncate(repeated);
        self.has_passed_moved |= replies.iter().any(|reply| is_moved(reply));
        replies.iter().for_each(|reply| sink.out.extend_from_slice(reply));
        if sink.is_full(0) {
            sink.flush().await;
        }
    }

    /// Sends requests, and reads their replies as far as they come.
    async fn converse(
        &mut self,
        batch: &Batch,
        address: &str,
        replies: &mut Vec<Bytes>,
        parts_from: u64,
        sink: &mut Sink<'_>,
    ) -> io::Result<()> {
        let node = batch.node;
        let session = &mut self.session;
        let link = self.links.get_mut(&node).ok_or(io::ErrorKind::NotConnected)?;
        let mut bytes = BytesMut::new();
        let greetings = greet(session, link, batch, parts_from, &mut bytes);
        batch.items.iter().for_each(|(item, _)| encode(&item.request, &mut bytes));
        let has_token = !session.is_open();
        if has_token {
            encode(&["SCID.TOKEN"], &mut bytes);
        }
        if !session.unnamed.contains(&node) {
            session.unnamed.push(node);
        }
        link.send(&bytes).await?;
        for _ in 0..greetings {
            link.reply().await?;
        }
        let mut waiting = 0;
        for (item, _) in &batch.items {
            let reply = match next(link, item).await? {
                Arrived::Whole(reply) => reply,
                Arrived::Begun(begin, left) => {
                    // What comes before a request that is sent again is final.
                    let is_final = first_to_repeat(&batch.items, replies) == replies.len();
                    if is_final {
                        self.has_passed_moved |= hand_over(replies, sink);
                        waiting = 0;
                    }
                    pass(link, begin, left, is_final.then_some(&mut *sink)).await?;
                    Bytes::new()
                }
            };
            if item.is_read() && !reply.starts_with(b"-") {
                if let Some((predictor, lesson)) = self.cluster.predictor.as_ref().zip(item.lesson)
                {
                    predictor.note(lesson);
                }
                session.last = Some(node);
                if item.need(session.level, session.token).is_ok_and(|it| it == Need::Prefix) {
                    session.last_prefix = Some(node);
                }
            }
            waiting += reply.len();
            replies.push(named(address, item.reply(node, reply)));
            // Large ones are not kept for what may come after them.
            if sink.is_full(waiting)
                && first_to_repeat(&batch.items, replies) == replies.len()
                && Announcement::among(parts_from, replies).is_none()
            {
                self.has_passed_moved |= hand_over(replies, sink);
                sink.flush().await;
                waiting = 0;
            }
        }
        if has_token {
            // The token of the node, and not that of the session, which may be of another node.
            link.greeted.token = session.note_token(&link.reply().await?);
            session.unnamed.retain(|it| *it != node);
        }
        Ok(())
    }
}

/// Appends what the node does not know of the session. Returns how many commands that are.
fn greet(
    session: &Session,
    link: &mut Link,
    batch: &Batch,
    parts_from: u64,
    out: &mut BytesMut,
) -> usize {
    // Between MULTI and EXEC each command is one of the transaction.
    if batch.items[0].1.as_ref().is_some_and(|it| it.is_open) {
        return 0;
    }
    let mut items = batch.items.iter();
    let is_of_session = items.any(|(item, _)| item.is_of_session(session.level));
    let greetings = session.greet(&mut link.greeted, is_of_session, out);
    let has_value = batch.items.iter().any(|(item, _)| is_of_value(item));
    greetings + if has_value { greet_parts(link, parts_from, out) } else { 0 }
}

/// The reply to `item`, or the begin of a long one.
async fn next(link: &mut Link, item: &Item) -> io::Result<Arrived> {
    match item.verb() {
        // Its cursor is another one for the client.
        Some(Verb::Scan) => link.reply().await.map(Arrived::Whole),
        _ => link.next().await,
    }
}

/// Gives replies to the sink. Returns whether a refusal because of slots is among them.
fn hand_over(replies: &mut [Bytes], sink: &mut Sink<'_>) -> bool {
    let has_moved = replies.iter().any(|reply| is_moved(reply));
    for reply in replies {
        sink.out.extend_from_slice(reply);
        *reply = Bytes::new();
    }
    has_moved
}

/// Passes on a long reply as it comes, or drops it without a sink.
async fn pass(
    link: &mut Link,
    begin: Bytes,
    mut left: usize,
    mut sink: Option<&mut Sink<'_>>,
) -> io::Result<()> {
    let mut piece = begin;
    loop {
        if let Some(sink) = &mut sink {
            sink.push(&piece).await;
            if sink.is_broken {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        if left == 0 {
            return Ok(());
        }
        piece = match link.piece(&mut left).await {
            Ok(piece) => piece,
            Err(error) => {
                if let Some(sink) = sink {
                    // Its client has a part of the value, and learns of the failure by the end of the connection.
                    sink.flush().await;
                    sink.is_broken = true;
                }
                return Err(error);
            }
        };
    }
}
