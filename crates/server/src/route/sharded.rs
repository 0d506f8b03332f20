//! [`ShardClient`]: a client of a service of shards, which sends each request to the shard that owns its slot.
//!
//! It has a [`Client`] for each shard that it needs, and what these share: level, partition, user, and the map.
//!
//! Invariants:
//! 1. A request that a shard refuses because its slot is elsewhere had no effect. It is sent again by the newest map, with
//!    all that came after it, until the longest wait has passed.
//! 2. A session has a token for each shard, and the number of the newest map that it has used. A router with another map
//!    looks for the newest one before it takes such a token, so it asks no earlier owner. With the same map it asks the shard
//!    that the token is of.
//! 3. The token of a shard is not before its floor in the map, so no state of it is read that is older than its slots.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use super::client::Client;
use super::elements::first_reply;
use super::item::Item;
use super::session::{self, Session};
use super::shards::Shards;
use super::sink::Sink;
use super::transaction::Transaction;
use crate::commands::{Kind, Verb};
use crate::exposition::count;
use crate::failure::Failure;
use crate::level::{Token, newer};
use crate::reply::Reply;
use crate::shards::keys::keys_of;
use crate::shards::{ShardMap, slot_of};

/// Time between two looks for a newer map.
const PAUSE: Duration = Duration::from_millis(5);

/// A client of a service of shards.
pub struct ShardClient {
    pub(super) shards: Arc<Shards>,
    /// The part that all clients know.
    pub(super) session: Session,
    pub(super) clients: BTreeMap<usize, Client>,
    pub(super) transaction: Transaction,
    /// The shard of the last request.
    pub(super) last: usize,
    /// Nodes that have refused a question of [`ShardClient::ask`], by the place of their shard.
    avoided: Vec<(usize, usize)>,
    seed: u64,
}

/// The way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// The router answers it.
    Own,
    /// The shard at this place.
    Shard(usize),
    /// All shards of its keys.
    Split,
    /// No shard: it would be one commit on several.
    Cross,
    Walk,
    Size,
    /// `MULTI` and what belongs to it.
    Transaction,
}

impl ShardClient {
    /// A client without links. `seed` chooses among nodes that are equal.
    pub fn new(shards: Arc<Shards>, seed: u64) -> ShardClient {
        let session = Session::new(shards.options.policy);
        let clients = BTreeMap::new();
        let transaction = Transaction::None;
        let avoided = Vec::new();
        ShardClient { shards, session, clients, transaction, last: 0, avoided, seed }
    }

    /// Sends a request, and returns the bytes of its reply in the protocol of Redis.
    pub async fn call<A: AsRef<[u8]>>(&mut self, request: &[A]) -> Bytes {
        let request = request.iter().map(|it| Bytes::copy_from_slice(it.as_ref())).collect();
        let mut sink = Sink::new(None);
        self.answer(vec![request], &mut sink).await;
        sink.out.freeze()
    }

    /// Returns whether the connection ends after the replies.
    pub(crate) fn ends(&self) -> bool {
        self.session.ends
    }

    /// Answers requests in their order.
    pub(crate) async fn answer(&mut self, requests: Vec<Vec<Bytes>>, sink: &mut Sink<'_>) {
        let requests = requests.into_iter().filter(|request| !request.is_empty());
        self.answer_queue(requests.map(Item::whole).collect(), sink).await;
    }

    pub(super) async fn answer_queue(&mut self, mut queue: VecDeque<Item>, sink: &mut Sink<'_>) {
        while let Some(mut item) = queue.pop_front() {
            if let Some(token) = item.take_token()
                && let Err(failure) = self.note_token(&token).await
            {
                self.write(&failure.reply(), sink);
                continue;
            }
            let mut target = self.target(&item, &self.shards.map());
            if target == Target::Cross {
                // The map may be older than a move that brought its keys together.
                self.shards.refresh().await;
                target = self.target(&item, &self.shards.map());
            }
            match target {
                Target::Own => self.answer_own(item, sink).await,
                Target::Shard(place) => self.forward(item, place, &mut queue, sink).await,
                Target::Split => self.split(item, sink).await,
                Target::Cross => self.write(&cross_slot().reply(), sink),
                Target::Walk => self.walk(&item, sink).await,
                Target::Size => self.size(&item, sink).await,
                Target::Transaction => self.transact(item, sink).await,
            }
            if self.session.ends || sink.is_broken {
                return;
            }
        }
    }

    /// Returns whether a `SET` may stream: one of a transaction goes as all others do.
    pub(crate) fn may_upload(&self) -> bool {
        matches!(self.transaction, Transaction::None)
    }

    /// The client of the shard of `key`.
    pub(crate) fn client_of(&mut self, key: &[u8]) -> &mut Client {
        let place = self.shards.map().owner(slot_of(key));
        self.client(place)
    }

    /// The client of the last request.
    pub(crate) fn last_client(&mut self) -> &mut Client {
        self.client(self.last)
    }

    /// Looks for the next map if a refusal was passed on, so that its client finds the new owner the next time.
    pub(crate) async fn note_passed(&mut self) {
        if std::mem::take(&mut self.last_client().has_passed_moved) {
            self.shards.refresh().await;
        }
    }

    pub(super) fn write(&self, reply: &Reply, sink: &mut Sink<'_>) {
        reply.write(&mut sink.out, self.session.is_resp3);
    }

    /// The place of the shard of all keys of a request; `None` without keys, an error for keys of several shards.
    pub(super) fn place_of(item: &Item, map: &ShardMap) -> Result<Option<usize>, Failure> {
        let Some(spec) = item.spec.filter(|_| item.has_right_count()) else { return Ok(None) };
        let mut places = keys_of(spec, &item.request[1..]).map(|key| map.owner(slot_of(key)));
        let Some(first) = places.next() else { return Ok(None) };
        if places.all(|place| place == first) { Ok(Some(first)) } else { Err(cross_slot()) }
    }

    fn target(&self, item: &Item, map: &ShardMap) -> Target {
        let Some(spec) = item.spec else {
            return match item.is_of_router() {
                true => Target::Own,
                // Its node refuses the transaction with it.
                false if self.is_open() => Target::Transaction,
                false => Target::Shard(self.last),
            };
        };
        let is_right = item.has_right_count();
        let is_of_transaction = item.is_of_transaction() && is_right;
        if spec.verb != Verb::Quit && (is_of_transaction || self.is_open()) {
            return Target::Transaction;
        }
        if !is_right {
            return Target::Shard(self.last);
        }
        match spec.verb {
            Verb::Auth | Verb::Hello => Target::Own,
            Verb::Ping | Verb::Echo | Verb::Quit | Verb::Select => Target::Own,
            Verb::ScidLevel | Verb::ScidToken | Verb::ScidMap => Target::Own,
            Verb::Scan => Target::Walk,
            Verb::DbSize => Target::Size,
            _ => match ShardClient::place_of(item, map) {
                Ok(place) => Target::Shard(place.unwrap_or(self.last)),
                Err(_) if matches!(spec.verb, Verb::MGet | Verb::Del | Verb::Exists) => {
                    Target::Split
                }
                Err(_) => Target::Cross,
            },
        }
    }

    /// The client of a shard, which knows the session.
    pub(super) fn client(&mut self, place: usize) -> &mut Client {
        let client = self.take_client(place);
        self.clients.entry(place).or_insert(client)
    }

    /// As [`ShardClient::client`], out of the map.
    pub(super) fn take_client(&mut self, place: usize) -> Client {
        let known = self.shards.known();
        let cluster = &known.clusters[place.min(known.clusters.len() - 1)];
        let old = self.clients.remove(&place);
        let mut client = match old {
            Some(client) if Arc::ptr_eq(client.cluster(), cluster) => client,
            old => {
                let seed = self.seed.wrapping_add(place as u64);
                let mut client = Client::new(cluster.clone(), seed);
                if let Some(old) = old {
                    client.session.token = old.session.token;
                    let has_unnamed = !old.session.unnamed.is_empty();
                    client.session.is_token_lost = old.session.is_token_lost || has_unnamed;
                    // Its link is gone, and its node has another place, or none.
                    client.session.transaction = old
                        .session
                        .transaction
                        .map(|it| session::Transaction { node: usize::MAX, is_lost: true, ..it });
                }
                client
            }
        };
        self.last = place;
        client.floor = Some(known.map.floor(place));
        client.adopt(&self.session);
        client
    }

    /// Sends `item`, and those after it that go to shards: to each of them at once.
    async fn forward(
        &mut self,
        item: Item,
        place: usize,
        queue: &mut VecDeque<Item>,
        sink: &mut Sink<'_>,
    ) {
        let map = self.shards.map();
        let mut run = vec![(place, item)];
        // A request without a key goes where the one before it goes.
        self.last = place;
        // A token of shards is the session's, and no node reads it.
        while let Some(next) = queue.front().filter(|next| !next.has_token())
            && let Target::Shard(place) = self.target(next, &map)
        {
            self.last = place;
            run.extend(queue.pop_front().map(|item| (place, item)));
        }
        if run.iter().any(|(other, _)| *other != place) {
            return self.at_once(run, sink).await;
        }
        let items = run.into_iter().map(|(_, item)| item).collect();
        self.send_to_one(items, place, queue, sink).await;
    }

    /// Sends requests of one shard.
    async fn send_to_one(
        &mut self,
        items: VecDeque<Item>,
        place: usize,
        queue: &mut VecDeque<Item>,
        sink: &mut Sink<'_>,
    ) {
        let client = self.client(place);
        let mut left = client.answer_items(items, sink).await;
        if std::mem::take(&mut client.has_passed_moved) {
            // So that its client finds the new owner the next time.
            self.shards.refresh().await;
        }
        let Some(first) = left.front_mut() else { return };
        if let Some(refusal) = first.moved.take() {
            let until = first.until.unwrap_or_else(|| self.until());
            first.until = Some(until);
            if self.wait_for_map(until).await {
                left.iter_mut().for_each(|item| item.avoid.clear());
            } else if self.shards.now() >= until {
                sink.out.extend_from_slice(&refusal);
                left.pop_front();
            }
        }
        left.into_iter().rev().for_each(|item| queue.push_front(item));
    }

    /// The end of the attempts of a request that begins now.
    pub(super) fn until(&self) -> Duration {
        self.shards.now().saturating_add(self.shards.options.wait)
    }

    /// Looks for a newer map after a refusal. Returns whether there was one; if not, a part of the time has passed.
    pub(super) async fn wait_for_map(&mut self, until: Duration) -> bool {
        count(&self.shards.moved);
        let before = self.shards.map().number();
        self.shards.refresh().await;
        let is_newer = self.shards.map().number() > before;
        if is_newer {
            self.avoided.clear();
        } else if self.shards.now() < until {
            tokio::time::sleep(PAUSE).await;
        }
        is_newer
    }

    /// Sends a request to a shard, and returns its reply, or the refusal of the shard. The next question goes to another node
    /// then: a reader may not have the slots yet.
    pub(super) async fn ask(&mut self, place: usize, request: Vec<Bytes>) -> Result<Bytes, Bytes> {
        let mut sink = Sink::new(None);
        let mut item = Item::whole(request);
        let avoided = self.avoided.extract_if(.., |(shard, _)| *shard == place);
        item.avoid = avoided.map(|(_, node)| node).collect();
        let items = VecDeque::from([item]);
        let mut left = self.client(place).answer_items(items, &mut sink).await;
        let Some(item) = left.pop_front() else { return Ok(sink.out.freeze()) };
        self.avoided.extend(item.avoid.iter().map(|node| (place, *node)));
        item.moved.map_or_else(|| Ok(sink.out.freeze()), Err)
    }

    async fn answer_own(&mut self, mut item: Item, sink: &mut Sink<'_>) {
        let reply = match item.verb() {
            Some(Verb::Auth | Verb::Hello) => return self.log_in(item, sink).await,
            Some(Verb::ScidMap) => self.shards.described(),
            Some(Verb::ScidToken) => match item.request.get(1).cloned() {
                None => self.token(),
                Some(token) => self.note_token(&token).await.unwrap_or_else(|it| it.reply()),
            },
            None if item.request[0].eq_ignore_ascii_case(b"SCID.NODES") => self.shards.nodes(),
            _ => {
                item.lost_at = None;
                let known = self.shards.known();
                self.session.answer(&known.clusters[0], &item)
            }
        };
        self.write(&reply, sink);
    }

    /// `AUTH` and `HELLO`: a node of one shard checks them.
    async fn log_in(&mut self, item: Item, sink: &mut Sink<'_>) {
        let place = self.last;
        let client = self.client(place);
        client.answer_items(VecDeque::from([item]), sink).await;
        let login = client.session.login.clone();
        let is_resp3 = client.session.is_resp3;
        self.session.login = login;
        self.session.is_resp3 = is_resp3;
    }

    /// The token of the session: `MAP/SHARD=TOKEN/...`.
    fn token(&self) -> Reply {
        let map = self.shards.map();
        let tokens = self.clients.iter().filter_map(|(place, client)| {
            let token = Token(client.session.token?);
            Some(format!("/{}={token}", map.shards().get(*place)?.name))
        });
        let tokens: String = tokens.collect();
        if tokens.is_empty() {
            Reply::Nil
        } else {
            Reply::text(format!("{}{tokens}", map.number()))
        }
    }

    /// Notes a token of another connection.
    pub(super) async fn note_token(&mut self, text: &[u8]) -> Result<Reply, Failure> {
        let text = std::str::from_utf8(text).map_err(|_| wrong_token())?;
        let (number, tokens) = text.split_once('/').ok_or_else(wrong_token)?;
        let number: u64 = number.parse().map_err(|_| wrong_token())?;
        // Also an older one says nothing of the map here: its router may have used a slot that has come back since.
        if self.shards.map().number() != number && !self.shards.looked().await {
            let text = "NOTYET the token is of another map, and the newest one cannot be read";
            return Err(Failure::fixed(text));
        }
        let map = self.shards.map();
        if map.number() < number {
            let text =
                "NOTYET the map of the token is newer than the one that this router can read";
            return Err(Failure::fixed(text));
        }
        let mut parsed = Vec::new();
        for part in tokens.split('/') {
            let (name, token) = part.split_once('=').ok_or_else(wrong_token)?;
            let place = map.place(name).map_err(|error| Failure::error(error.to_string()))?;
            parsed.push((place, Token::parse(token.as_bytes())?.0));
        }
        let last = self.last;
        for (place, commit) in parsed {
            let session = &mut self.client(place).session;
            session.token = newer(session.token, commit);
        }
        self.last = last;
        Ok(Reply::OK)
    }

    /// Makes the `EXEC` of an open transaction fail: a request of it was not taken.
    pub(crate) async fn refuse_transaction(&mut self) {
        self.break_transaction().await;
    }
}

fn wrong_token() -> Failure {
    let text = "ERR a token of shards is MAP/SHARD=EPOCH-SEQUENCE/..., as SCID.TOKEN returns it";
    Failure::fixed(text)
}

/// The refusal of a request that would be one commit on several shards.
pub(super) fn cross_slot() -> Failure {
    Failure::fixed(
        "CROSSSLOT Keys in request don't hash to slots of one shard; give them one {tag}, or send a request for each",
    )
}

/// The replies after the first `count` ones.
pub(super) fn after(mut replies: Bytes, count: usize) -> Bytes {
    for _ in 0..count {
        match first_reply(&replies) {
            Some((first, _)) => replies.advance(first.len()),
            None => break,
        }
    }
    replies
}

/// A request of words.
pub(super) fn words(words: &[&[u8]]) -> Vec<Bytes> {
    words.iter().map(|word| Bytes::copy_from_slice(word)).collect()
}

/// An array of items that are bytes of replies.
pub(super) fn array(items: &[Bytes]) -> BytesMut {
    let mut out = BytesMut::from(format!("*{}\r\n", items.len()).as_bytes());
    items.iter().for_each(|item| out.extend_from_slice(item));
    out
}

/// Returns whether a request is queued in a transaction without a key.
pub(super) fn is_keyless(item: &Item) -> bool {
    item.spec.is_some_and(|spec| spec.kind == Kind::Connection && spec.is_queued())
}
