//! Reading one long value from several nodes at once.
//!
//! The node that is asked for the value announces it, and keeps it for the connection (`parts.rs`). Readers send parts of the
//! same version meanwhile, and the parts go to the client in their order. A node that has another version is left: the first
//! one has all parts.
//!
//! Invariants:
//! 1. The value is that of the first node as of its read: whatever the others have, no part of another version is passed on.
//! 2. No more than [`PARTS_AHEAD`] parts for each node are in memory.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Client;
use super::exchange::Batch;
use crate::commands::Verb;
use crate::exposition::count;
use crate::level::Token;
use crate::parts::PART_BYTES;
use crate::route::choice::NodeRole;
use crate::route::cluster::{Cluster, ClusterOptions, Running};
use crate::route::elements::{bulk, elements, integer};
use crate::route::item::Item;
use crate::route::link::{Greeted, Link, encode};
use crate::route::sink::Sink;

/// Parts for each node that wait for their turn, or are on their way.
const PARTS_AHEAD: u64 = 2;
/// Time after which another node is asked for a part, too: one that hangs would hold back all that follow.
const SECOND_REQUEST: Duration = Duration::from_millis(250);

/// A value that its node has announced.
pub(super) struct Announcement {
    version: Bytes,
    place: Range<u64>,
}

impl Announcement {
    /// Returns the value that a node has announced instead of its reply, if it was asked to from `parts_from` on.
    pub(super) fn among(parts_from: u64, replies: &[Bytes]) -> Option<Announcement> {
        let [reply] = replies else { return None };
        if parts_from == 0 { None } else { Announcement::of(reply) }
    }

    /// Reads a reply; `None` for one that is no announcement.
    fn of(reply: &Bytes) -> Option<Announcement> {
        let items = elements(reply)?;
        let [version, begin, end] = &items[..] else { return None };
        let version = bulk(version).ok()??;
        let [begin, end] = [begin, end].map(|it| integer(it).and_then(|it| u64::try_from(it).ok()));
        let place = begin?..end?;
        (place.start < place.end).then_some(Announcement { version, place })
    }

    /// The place of the part `at`, in the stored value.
    fn part(&self, at: u64) -> Range<u64> {
        let begin = (self.place.start / PART_BYTES + at) * PART_BYTES;
        begin.max(self.place.start)..(begin + PART_BYTES).min(self.place.end)
    }

    fn count(&self) -> u64 {
        self.place.end.div_ceil(PART_BYTES) - self.place.start / PART_BYTES
    }
}

/// A node that sends parts, one at a time.
struct Lane {
    node: usize,
    address: String,
    link: Option<Link>,
    /// The commands that are sent before its first request, with the number of replies to them.
    greeting: BytesMut,
    greetings: usize,
    greeted: Option<Greeted>,
    _running: Option<Running>,
}

/// A part that has come, or has not.
struct Arrived {
    lane: Lane,
    at: u64,
    outcome: io::Result<Bytes>,
}

impl Lane {
    /// Asks for a part.
    async fn fetch(mut self, cluster: &Cluster, request: &[Bytes], at: u64) -> Arrived {
        let outcome = self.ask(cluster, request).await;
        if outcome.is_err() {
            self.link = None;
        }
        Arrived { lane: self, at, outcome }
    }

    async fn ask(&mut self, cluster: &Cluster, request: &[Bytes]) -> io::Result<Bytes> {
        if self.link.is_none() {
            let limit = cluster.options.reply;
            self.link = Some(Link::connect(&cluster.dialer, &self.address, limit).await?);
        }
        let link = self.link.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let mut bytes = std::mem::take(&mut self.greeting);
        encode(request, &mut bytes);
        link.send(&bytes).await?;
        if let Some(greeted) = self.greeted.take() {
            link.greeted = greeted;
        }
        link.take_greetings(std::mem::take(&mut self.greetings)).await?;
        link.reply().await
    }
}

/// The parts of a value on their way.
struct Parts<'a> {
    cluster: &'a std::sync::Arc<Cluster>,
    announcement: &'a Announcement,
    key: Bytes,
    token: Option<Bytes>,
    idle: VecDeque<Lane>,
    fetching: JoinSet<Arrived>,
    /// Those that have come, and those that a node could not send.
    ready: BTreeMap<u64, Bytes>,
    left: Vec<u64>,
    next: u64,
    sent: u64,
    /// Lanes at the begin.
    width: u64,
}

impl Parts<'_> {
    fn request(&self, at: u64) -> Vec<Bytes> {
        let place = self.announcement.part(at);
        let mut request = vec![
            Bytes::from_static(b"SCID.PART"),
            self.key.clone(),
            self.announcement.version.clone(),
            place.start.to_string().into(),
            place.end.to_string().into(),
        ];
        if let Some(token) = &self.token {
            request.extend([Bytes::from_static(b"TOKEN"), token.clone()]);
        }
        request
    }

    /// The next part that is to be asked for; `None` if enough wait.
    fn take(&mut self) -> Option<u64> {
        if let Some(at) = self.left.pop() {
            return Some(at);
        }
        let end = self.announcement.count().min(self.sent + PARTS_AHEAD * self.width);
        (self.next < end).then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// The part `at` is to be asked for again, unless another node has sent it.
    fn give_back(&mut self, at: u64) {
        if at >= self.sent && !self.ready.contains_key(&at) && !self.left.contains(&at) {
            self.left.push(at);
        }
    }

    /// The next part that comes. If that of the client takes long, a node that waits is asked for it, too.
    async fn arrived(&mut self) -> Option<Arrived> {
        loop {
            self.ask();
            match timeout(SECOND_REQUEST, self.fetching.join_next()).await {
                Ok(arrived) => return arrived?.ok(),
                Err(_) if self.sent < self.next => self.give_back(self.sent),
                Err(_) => {}
            }
        }
    }

    /// Asks all nodes that wait.
    fn ask(&mut self) {
        while let Some(lane) = self.idle.pop_front() {
            let Some(at) = self.take() else { return self.idle.push_front(lane) };
            let request = self.request(at);
            let cluster = self.cluster.clone();
            self.fetching.spawn(async move { lane.fetch(&cluster, &request, at).await });
        }
    }

    /// Returns whether the reply has the part, which waits for its turn then.
    fn is_part(&mut self, at: u64, reply: &Bytes) -> bool {
        let place = self.announcement.part(at);
        let found = bulk(reply).ok().flatten();
        let found = found.filter(|part| part.len() as u64 == place.end - place.start);
        found.is_some_and(|part| {
            // Two nodes may have sent it.
            if at >= self.sent {
                self.ready.insert(at, part);
            }
            true
        })
    }
}

impl Client {
    /// The length from which on the value of a batch is to be announced; 0 for never.
    pub(super) fn parts_from(&self, batch: &Batch) -> u64 {
        let ClusterOptions { parallel, parallel_bytes, .. } = self.cluster.options;
        let [(item, before)] = &batch.items[..] else { return 0 };
        let is_one = is_of_value(item) && !item.is_one_node && !has_attribute(item);
        let has_others = parallel > 1 && self.cluster.node(1).is_some();
        if is_one && before.is_none() && has_others { parallel_bytes } else { 0 }
    }

    /// The readers that help the node that has announced the value of `item`.
    fn helpers(&mut self, node: usize, item: &Item) -> Vec<usize> {
        let views = self.cluster.views();
        let readers = (0..views.len()).filter(|at| {
            let is_reader = views[*at].role.is_some_and(NodeRole::is_reader);
            is_reader && *at != node && !item.avoid.contains(at)
        });
        let mut readers: Vec<usize> = readers.collect();
        let first = self.random() % readers.len().max(1);
        readers.rotate_left(first);
        readers.sort_by_key(|at| views[*at].load);
        readers.truncate(self.cluster.options.parallel.saturating_sub(1));
        readers
    }

    /// The lane of a node, with its link if there is one.
    fn lane(&mut self, node: usize) -> Option<Lane> {
        self.forget_replaced(node);
        let known = self.cluster.node(node)?;
        let mut link = self.links.remove(&node);
        let mut fresh = link.is_none().then(Greeted::default);
        let greeted = link.as_mut().map(|link| &mut link.greeted).or(fresh.as_mut())?;
        let mut greeting = BytesMut::new();
        let greetings = self.session.greet(greeted, false, &mut greeting);
        let running = Some(known.begin(1, self.cluster.now()));
        let address = known.address.clone();
        Some(Lane { node, address, link, greeting, greetings, greeted: fresh, _running: running })
    }

    /// Reads the value that the node of a batch has announced, and passes it on.
    pub(super) async fn read_announced(
        &mut self,
        mut batch: Batch,
        announcement: &Announcement,
        queue: &mut VecDeque<Item>,
        sink: &mut Sink<'_>,
    ) {
        let Some((mut item, _)) = batch.items.pop() else { return };
        if !self.read_parts(batch.node, &item, announcement, sink).await {
            item.is_one_node = true;
            item.avoid.push(batch.node);
            queue.push_front(item);
        }
    }

    /// Returns `false` if nothing was sent to the client, and another node is to be asked.
    async fn read_parts(
        &mut self,
        node: usize,
        item: &Item,
        announcement: &Announcement,
        sink: &mut Sink<'_>,
    ) -> bool {
        count(&self.cluster.counts.parallel_reads);
        let cluster = self.cluster.clone();
        let lanes = [node].into_iter().chain(self.helpers(node, item));
        let idle: VecDeque<Lane> = lanes.filter_map(|node| self.lane(node)).collect();
        let token = self.session.token.filter(|_| !self.session.is_token_lost);
        let mut parts = Parts {
            cluster: &cluster,
            announcement,
            key: item.request[1].clone(),
            token: token.map(|token| Token(token).to_string().into()),
            width: idle.len() as u64,
            idle,
            fetching: JoinSet::new(),
            ready: BTreeMap::new(),
            left: Vec::new(),
            next: 0,
            sent: 0,
        };
        let is_whole = self.pass_parts(&mut parts, sink).await;
        let lanes: Vec<Lane> = parts.idle.drain(..).collect();
        // A reply of theirs is on its way.
        drop(parts.fetching);
        self.release(lanes).await;
        if !is_whole && parts.sent == 0 && !sink.is_broken {
            return false;
        }
        // Its client has a part of the value, and learns of the failure by the end of the connection.
        sink.is_broken |= !is_whole;
        true
    }

    /// Returns whether the client has the whole value.
    async fn pass_parts(&mut self, parts: &mut Parts<'_>, sink: &mut Sink<'_>) -> bool {
        let Range { start, end } = parts.announcement.place;
        while parts.sent < parts.announcement.count() {
            let Some(Arrived { lane, at, outcome }) = parts.arrived().await else {
                sink.flush().await;
                return false;
            };
            match outcome {
                // In front: with a slow client one lane is enough, and the nodes of the others may end them. A silent
                // one would be ended, too.
                Ok(reply) if parts.is_part(at, &reply) => parts.idle.push_front(lane),
                // Another version, or a refusal with a name of its own. The link is sound.
                Ok(reply) if !reply.starts_with(b"-ERR") => {
                    count(&self.cluster.counts.refused_parts);
                    parts.give_back(at);
                    self.links.extend(lane.link.map(|link| (lane.node, link)));
                }
                // Also the last words of a node, which ends the connection.
                Ok(_) | Err(_) => {
                    parts.give_back(at);
                    self.lose(lane.node);
                }
            }
            while let Some(part) = parts.ready.remove(&parts.sent) {
                if parts.sent == 0 {
                    sink.push(format!("${}\r\n", end - start).as_bytes()).await;
                }
                parts.sent += 1;
                // The client may take its time, and the nodes need not wait for it.
                parts.ask();
                sink.push(&part).await;
                if sink.is_broken {
                    return false;
                }
            }
        }
        sink.push(b"\r\n").await;
        true
    }

    /// Takes the links of lanes back. Their nodes give the value up at once, and not when the next request comes.
    async fn release(&mut self, lanes: Vec<Lane>) {
        let mut releasing = JoinSet::new();
        for lane in lanes {
            let Some(mut link) = lane.link else { continue };
            let from = link.greeted.parts_from.to_string();
            let mut greeting = lane.greeting;
            let greetings = lane.greetings;
            releasing.spawn(async move {
                encode(&["SCID.PARTS", &from], &mut greeting);
                let released = async {
                    link.send(&greeting).await?;
                    link.take_greetings(greetings + 1).await?;
                    io::Result::Ok(link)
                };
                (lane.node, released.await)
            });
        }
        while let Some(Ok((node, released))) = releasing.join_next().await {
            match released {
                Ok(link) => {
                    self.links.insert(node, link);
                }
                Err(_) => self.lose(node),
            }
        }
    }
}

/// Returns whether a node may announce the reply to a request.
pub(super) fn is_of_value(item: &Item) -> bool {
    matches!(item.verb(), Some(Verb::Get | Verb::GetRange | Verb::ScidGet))
}

/// Returns whether the reply has more than the value.
fn has_attribute(item: &Item) -> bool {
    item.request.iter().skip(2).any(|it| it.eq_ignore_ascii_case(b"ATTRIBUTE"))
}

/// Appends the length from which on long values are announced, if the node knows another one. Returns how many commands that
/// are.
pub(super) fn greet_parts(link: &mut Link, from: u64, out: &mut BytesMut) -> usize {
    if link.greeted.parts_from == from {
        return 0;
    }
    encode(&["SCID.PARTS", &from.to_string()], out);
    link.greeted.parts_from = from;
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(begin: u64, end: u64) -> Announcement {
        let reply = format!("*3\r\n$2\r\nab\r\n:{begin}\r\n:{end}\r\n");
        Announcement::of(&Bytes::from(reply)).unwrap()
    }

    #[test]
    fn parts_cover_what_was_asked_for_and_share_no_sub_block() {
        const MIB: u64 = PART_BYTES;
        for (begin, end) in [(0, 1), (0, MIB), (0, MIB + 1), (MIB - 1, 3 * MIB), (5, 7 * MIB - 5)] {
            let announcement = announced(begin, end);
            let mut at = begin;
            for part in 0..announcement.count() {
                let place = announcement.part(part);
                assert_eq!(place.start, at, "{begin} {end} {part}");
                assert!(place.end > at && (place.end == end || place.end.is_multiple_of(MIB)));
                at = place.end;
            }
            assert_eq!(at, end);
        }
    }

    #[test]
    fn other_replies_are_no_announcements() {
        for reply in [
            "$2\r\nab\r\n",
            "$-1\r\n",
            "-ERR a\r\n",
            "*0\r\n",
            "*3\r\n$2\r\nab\r\n:5\r\n:5\r\n",
            "*3\r\n$-1\r\n:0\r\n:5\r\n",
            "*3\r\n$2\r\nab\r\n:-1\r\n:5\r\n",
        ] {
            assert!(Announcement::of(&Bytes::from(reply)).is_none(), "{reply:?}");
        }
    }
}
