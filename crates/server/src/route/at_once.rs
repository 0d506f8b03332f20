//! Pipelines over several shards: all shards work at once, and their replies are collected in the order of the requests.
//!
//! Invariants:
//! 1. One map divides a pipeline, so all requests for a key go to one shard, in their order.
//! 2. A shard that is ahead of its turn waits with its replies: what it has said and no one has taken is bounded.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;

use super::client::Client;
use super::item::Item;
use super::link::Scan;
use super::sharded::ShardClient;
use super::sink::Sink;
use crate::failure::Failure;

/// The least number of bytes that a shard may be ahead.
const AHEAD_BYTES: usize = 64 << 10;

/// The replies of a shard that no one has taken.
struct Part {
    receiver: Receiver<Bytes>,
    waiting: BytesMut,
}

impl Part {
    /// Passes on the next reply, a long one as it comes. `false` if there is none, because the shard has refused its request
    /// or one before it.
    async fn pass(&mut self, sink: &mut Sink<'_>) -> bool {
        let mut scan = Scan::default();
        loop {
            match scan.find(&self.waiting) {
                Ok(Some(end)) => {
                    sink.push(&self.waiting.split_to(end)).await;
                    return true;
                }
                Ok(None) => {}
                // The client of the shard has read it by the same rules.
                Err(()) => sink.is_broken = true,
            }
            if let Some(left) = scan.left_of_long(self.waiting.len()) {
                sink.push(&self.waiting.split()).await;
                self.pass_rest(left, sink).await;
                return true;
            }
            match self.receiver.recv().await {
                Some(more) => self.waiting.extend_from_slice(&more),
                None => {
                    // After a part of a reply nothing of use can follow.
                    sink.is_broken |= !self.waiting.is_empty();
                    return false;
                }
            }
        }
    }

    async fn pass_rest(&mut self, mut left: usize, sink: &mut Sink<'_>) {
        while left > 0 && !sink.is_broken {
            let Some(mut more) = self.receiver.recv().await else {
                sink.is_broken = true;
                return;
            };
            let piece = more.split_to(left.min(more.len()));
            left -= piece.len();
            sink.push(&piece).await;
            self.waiting.extend_from_slice(&more);
        }
    }

    /// Takes all that is left of the shard, up to `most` bytes. Returns whether this is all.
    async fn hold(&mut self, most: usize) -> bool {
        while self.waiting.len() <= most {
            match self.receiver.recv().await {
                Some(more) => self.waiting.extend_from_slice(&more),
                None => return true,
            }
        }
        false
    }
}

/// The work of one shard. Returns the requests from the first one on that the shard has refused.
async fn work(
    place: usize,
    mut client: Client,
    items: VecDeque<Item>,
    replies: Sender<Bytes>,
    most: usize,
) -> (usize, Client, VecDeque<Item>) {
    let mut sink = Sink::of_channel(replies, most);
    let left = client.answer_items(items, &mut sink).await;
    sink.flush().await;
    (place, client, left)
}

type Works = JoinSet<(usize, Client, VecDeque<Item>)>;

impl ShardClient {
    /// Answers requests of several shards, which are given with the places of these.
    pub(super) async fn at_once(&mut self, run: Vec<(usize, Item)>, sink: &mut Sink<'_>) {
        let places: Vec<usize> = run.iter().map(|(place, _)| *place).collect();
        let mut groups: BTreeMap<usize, VecDeque<Item>> = BTreeMap::new();
        for (place, item) in run {
            groups.entry(place).or_default().push_back(item);
        }
        let most = (sink.most() / groups.len()).max(AHEAD_BYTES);
        let mut works = Works::new();
        let mut parts = BTreeMap::new();
        for (place, items) in groups {
            let client = self.take_client(place);
            let (sender, receiver) = mpsc::channel(1);
            works.spawn(work(place, client, items, sender, most));
            parts.insert(place, Part { receiver, waiting: BytesMut::new() });
        }
        let mut answered = 0;
        for place in &places {
            let is_answered = pass(&mut parts, *place, sink).await;
            if sink.is_broken {
                return;
            }
            if !is_answered {
                break;
            }
            answered += 1;
        }
        let rest = &places[answered..];
        let mut is_whole = true;
        for part in parts.values_mut().filter(|_| !rest.is_empty()) {
            is_whole = is_whole && part.hold(most).await;
        }
        if !is_whole {
            // Some of the replies would have to wait in memory for those of the requests before them.
            self.refuse_rest(rest, &mut parts, sink).await;
            // So that its client finds the new owner the next time.
            self.shards.refresh().await;
        }
        let mut left = self.take_back(works).await;
        for place in rest.iter().filter(|_| is_whole) {
            if !pass(&mut parts, *place, sink).await
                && let Some(item) = left.get_mut(place).and_then(VecDeque::pop_front)
            {
                self.again(item, sink).await;
            }
            if sink.is_broken {
                return;
            }
        }
        self.last = places.last().copied().unwrap_or(self.last);
    }

    /// Passes on the replies to the rest of a pipeline, and refuses requests that a shard has refused.
    async fn refuse_rest(
        &self,
        rest: &[usize],
        parts: &mut BTreeMap<usize, Part>,
        sink: &mut Sink<'_>,
    ) {
        let text = "TRYAGAIN slots of this pipeline have moved, and its replies are too large to wait for them";
        for place in rest {
            if !pass(parts, *place, sink).await {
                self.write(&Failure::fixed(text).reply(), sink);
            }
            if sink.is_broken {
                return;
            }
        }
    }

    /// The clients of shards after their work, and what they have not answered.
    async fn take_back(&mut self, mut works: Works) -> BTreeMap<usize, VecDeque<Item>> {
        let mut left = BTreeMap::new();
        let mut has_moved = false;
        while let Some(done) = works.join_next().await {
            match done {
                Ok((place, mut client, items)) => {
                    has_moved |= std::mem::take(&mut client.has_passed_moved);
                    self.clients.insert(place, client);
                    left.insert(place, items);
                }
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The runtime ends, and with it the connection.
                Err(_) => self.session.ends = true,
            }
        }
        if has_moved {
            // So that its client finds the new owner the next time.
            self.shards.refresh().await;
        }
        left
    }

    /// Answers a request that a shard has refused, or that came after such a one at its shard.
    async fn again(&mut self, mut item: Item, sink: &mut Sink<'_>) {
        if item.moved.take().is_some() {
            let until = item.until.unwrap_or_else(|| self.until());
            item.until = Some(until);
            self.wait_for_map(until).await;
        }
        item.avoid.clear();
        // One request is of one shard, so this is no recursion but for the compiler.
        Box::pin(self.answer_queue(VecDeque::from([item]), sink)).await;
    }
}

async fn pass(parts: &mut BTreeMap<usize, Part>, place: usize, sink: &mut Sink<'_>) -> bool {
    match parts.get_mut(&place) {
        Some(part) => part.pass(sink).await,
        None => false,
    }
}
