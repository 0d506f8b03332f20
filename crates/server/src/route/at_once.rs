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
use super::elements::first_reply;
use super::item::Item;
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
    /// The next reply; `None` if there is none, because the shard has refused its request or one before it.
    async fn reply(&mut self) -> Option<Bytes> {
        loop {
            if let Some((first, _)) = first_reply(&self.waiting) {
                return Some(self.waiting.split_to(first.len()).freeze());
            }
            let more = self.receiver.recv().await?;
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
            let Some(reply) = next(&mut parts, *place).await else { break };
            sink.push(&reply).await;
            if sink.is_broken {
                return;
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
            match next(&mut parts, *place).await {
                Some(reply) => sink.push(&reply).await,
                None => {
                    if let Some(item) = left.get_mut(place).and_then(VecDeque::pop_front) {
                        self.again(item, sink).await;
                    }
                }
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
            match next(parts, *place).await {
                Some(reply) => sink.push(&reply).await,
                None => self.write(&Failure::fixed(text).reply(), sink),
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

async fn next(parts: &mut BTreeMap<usize, Part>, place: usize) -> Option<Bytes> {
    parts.get_mut(&place)?.reply().await
}
