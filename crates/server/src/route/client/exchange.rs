//! Requests that go to one node together, and their replies.

use std::collections::VecDeque;
use std::io;

use bytes::{Bytes, BytesMut};

use super::Client;
use super::parallel::{Announcement, greet_parts, is_of_value};
use crate::commands::Verb;
use crate::route::choice::Need;
use crate::route::item::Item;
use crate::route::link::{Arrived, Link, encode};
use crate::route::outcome::{first_to_repeat, is_moved, is_refusal, named};
use crate::route::session::{Session, Transaction, Way};
use crate::route::sink::Sink;

/// Bytes of requests that are sent before a reply is read. More could fill the buffers of both sides, and neither would
/// read.
const BATCH_BYTES: usize = 32 << 10;

/// Requests that go to one node together, with the transaction before each.
pub(super) struct Batch {
    pub(super) node: usize,
    pub(super) items: Vec<(Item, Option<Transaction>)>,
    /// A transaction is open after it, if its node takes all.
    ends_open: bool,
}

/// The replies to a batch, as far as they have come.
struct Replies<'a> {
    items: &'a [(Item, Option<Transaction>)],
    all: Vec<Bytes>,
    /// Their bytes that the sink does not have.
    waiting: usize,
    /// One of the requests is sent again, and with it all after it.
    is_repeated: bool,
}

impl Replies<'_> {
    fn new(items: &[(Item, Option<Transaction>)]) -> Replies<'_> {
        Replies { items, all: Vec::with_capacity(items.len()), waiting: 0, is_repeated: false }
    }

    fn push(&mut self, reply: Bytes) {
        let is_error = reply.starts_with(b"-");
        self.all.push(match (self.is_repeated, is_error) {
            (false, _) => reply,
            // Its request is sent again. A copy, because a part of a buffer would keep all of it.
            (true, true) => Bytes::copy_from_slice(&reply),
            (true, false) => Bytes::new(),
        });
        self.waiting += self.all.last().map_or(0, Bytes::len);
        // A request that is to be sent again stays so: what comes later is a read, or a write that is refused, too.
        if is_error && !self.is_repeated {
            self.is_repeated = first_to_repeat(self.items, &self.all) < self.all.len();
        }
    }

    /// Gives the replies to the sink. Returns whether a refusal because of slots is among them.
    fn hand_over(&mut self, sink: &mut Sink<'_>) -> bool {
        let has_moved = self.all.iter().any(|reply| is_moved(reply));
        for reply in &mut self.all {
            sink.out.extend_from_slice(reply);
            *reply = Bytes::new();
        }
        self.waiting = 0;
        has_moved
    }
}

impl Client {
    /// Takes the requests that go to `node` with the first one.
    pub(super) fn gather(
        &mut self,
        first: Item,
        way: Way,
        node: usize,
        queue: &mut VecDeque<Item>,
    ) -> Batch {
        let mut ways = vec![way, Way::Link(node)];
        if matches!(way, Way::Need(_)) && first.policy.is_none() && !queue.is_empty() {
            for need in [Need::Write, Need::Strong, Need::Prefix, Need::Weak] {
                let is_here = self.node_for(&first, need) == Some(node);
                ways.extend(is_here.then_some(Way::Need(need)));
            }
        }
        let begun = self.session.transaction;
        let mut begins = false;
        let mut bytes = 0;
        let mut items = Vec::new();
        let mut next = Some(first);
        while let Some(item) = next {
            bytes += item.len();
            let before = self.session.transaction;
            self.session.taken(&item, node);
            begins |= item.verb() == Some(Verb::Multi);
            items.push((item, before));
            let is_next = queue.front_mut().is_some_and(|item| {
                self.session.predict(self.cluster.predictor.as_ref(), item);
                let is_same = self.session.way(item).is_some_and(|way| ways.contains(&way));
                // Refusals are of one request at a time, and so is a search for the token.
                let is_plain = item.avoid.is_empty() && item.policy.is_none();
                let is_known =
                    !self.session.is_token_lost || !item.is_of_session(self.session.level);
                // If the node refuses MULTI, these are outside of a transaction, and not for the node.
                let is_sure = !(begins && item.is_about_session());
                let is_plain = is_plain && is_known && is_sure;
                is_same && is_plain && bytes + item.len() <= BATCH_BYTES
            });
            next = if is_next { queue.pop_front() } else { None };
        }
        let ends_open = self.session.is_open();
        // The replies decide.
        self.session.transaction = begun;
        Batch { node, items, ends_open }
    }

    /// Sends a batch, and writes its replies.
    pub(super) async fn exchange(
        &mut self,
        batch: Batch,
        queue: &mut VecDeque<Item>,
        sink: &mut Sink<'_>,
    ) {
        let Some(node) = self.cluster.node(batch.node) else { return };
        let begun = self.cluster.now();
        let running = node.begin(batch.items.len() as u64, begun);
        let needs: Vec<Option<Need>> =
            batch.items.iter().map(|(item, _)| self.session.need_of(item)).collect();
        let mut replies = Replies::new(&batch.items);
        let parts_from = self.parts_from(&batch);
        let done = self.converse(&batch, &node.address, &mut replies, parts_from, sink).await;
        let Replies { all: mut replies, .. } = replies;
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
        for (at, (mut item, _)) in batch.items.into_iter().enumerate().skip(repeated).rev() {
            node.counts.returned();
            match replies.get(at) {
                None => item.lost_at = Some(node.address.clone()),
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
                        // It would refuse a session without its token, whatever it has.
                        if !self.session.is_token_lost {
                            node.refused(reply);
                        }
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
        replies: &mut Replies<'_>,
        parts_from: u64,
        sink: &mut Sink<'_>,
    ) -> io::Result<()> {
        let node = batch.node;
        let session = &mut self.session;
        let link = self.links.get_mut(&node).ok_or(io::ErrorKind::NotConnected)?;
        let mut bytes = BytesMut::new();
        let greetings = greet(session, link, batch, parts_from, &mut bytes);
        batch.items.iter().for_each(|(item, _)| encode(&item.request, &mut bytes));
        let has_token = !batch.ends_open;
        if has_token {
            encode(&["SCID.TOKEN"], &mut bytes);
        }
        if !session.unnamed.contains(&node) {
            session.unnamed.push(node);
        }
        link.send(&bytes).await?;
        link.take_greetings(greetings).await?;
        for (item, _) in &batch.items {
            let reply = match next(link, item).await? {
                Arrived::Whole(reply) => reply,
                Arrived::Begun(begin, left) => {
                    // What comes before a request that is sent again is final.
                    let is_final = !replies.is_repeated;
                    if is_final {
                        self.has_passed_moved |= replies.hand_over(sink);
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
            let begins = matches!(item.verb(), Some(Verb::Multi | Verb::Watch));
            if !(begins && reply.starts_with(b"-")) {
                session.taken(item, node);
            }
            replies.push(named(address, item.reply(node, reply)));
            // Large ones are not kept for what may come after them.
            if sink.is_full(replies.waiting)
                && !replies.is_repeated
                && Announcement::among(parts_from, &replies.all).is_none()
            {
                self.has_passed_moved |= replies.hand_over(sink);
                sink.flush().await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_will_come_again_are_not_kept() {
        let request = [Bytes::from_static(b"GET"), Bytes::from_static(b"a")];
        let items: Vec<_> = (0..300).map(|_| (Item::new(request.to_vec()), None)).collect();
        let mut replies = Replies::new(&items);
        let large = Bytes::from(vec![b'x'; 1 << 20]);
        replies.push(large.clone());
        assert_eq!(replies.waiting, large.len());
        replies.push(Bytes::from_static(b"-NOTYET wait\r\n"));
        let before = replies.waiting;
        for at in 0..298 {
            replies.push(if at % 2 == 0 { large.clone() } else { large.slice(..10) });
        }
        assert_eq!(replies.waiting, before);
        // The last refusal is in a buffer of its own.
        let buffer = Bytes::from([b"-NOTYET again\r\n", &large[..]].concat());
        replies.push(buffer.slice(..15));
        assert!(buffer.is_unique());
        assert_eq!(first_to_repeat(&items, &replies.all), 1);
    }
}
