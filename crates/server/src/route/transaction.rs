//! Transactions of a [`ShardClient`]: all keys of one are of one shard.
//!
//! `MULTI` names no key. So it is sent with the first request that does, and what came before is kept until then.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::item::Item;
use super::outcome::is_moved;
use super::sharded::{ShardClient, after, cross_slot, is_keyless, words};
use super::sink::Sink;
use crate::commands::Verb;
use crate::execute::not_in_transaction;
use crate::failure::Failure;
use crate::reply::Reply;
use crate::session::{kept, kept_bytes};
use crate::shards::keys::keys_of;
use crate::shards::{ShardMap, slot_of};

/// The transaction of a client of shards.
pub(super) enum Transaction {
    None,
    /// After `MULTI`, before the first key.
    Held(Held),
    /// At the shard of this place, from `WATCH` or the first key on, and the map that said so.
    At(usize, Arc<ShardMap>),
}

/// Bytes of the requests of a transaction that are kept before its first key. A router of many connections counts none of
/// them, so they are few.
const HELD_BYTES_MAX: usize = 32 << 10;

/// Requests without a key that are queued.
#[derive(Default)]
pub(super) struct Held {
    items: Vec<Item>,
    bytes: usize,
}

impl Held {
    /// Keeps a request. Returns `false` if it has a key, or there are too many bytes.
    fn keep(&mut self, item: &Item) -> bool {
        let bytes = self.bytes + size_of::<Item>() + kept_bytes(&item.request);
        if !is_keyless(item) || bytes > HELD_BYTES_MAX {
            return false;
        }
        self.bytes = bytes;
        self.items.push(Item::whole(kept(&item.request).collect()));
        true
    }
}

impl ShardClient {
    /// Returns whether requests are queued for `EXEC`.
    pub(super) fn is_open(&self) -> bool {
        match &self.transaction {
            Transaction::None => false,
            Transaction::Held(_) => true,
            Transaction::At(place, _) => {
                self.clients.get(place).is_some_and(|client| client.session.is_open())
            }
        }
    }

    /// A request of a transaction.
    pub(super) async fn transact(&mut self, item: Item, sink: &mut Sink<'_>) {
        let verb = item.verb();
        if self.is_apart(&item) {
            // The map may be older than a move that brought its keys together.
            self.shards.refresh().await;
        }
        let Ok(place) = ShardClient::place_of(&item, &self.shards.map()) else {
            return self.refuse(&self.apart(&item), sink).await;
        };
        match std::mem::replace(&mut self.transaction, Transaction::None) {
            Transaction::None => match verb {
                Some(Verb::Multi) => {
                    self.transaction = Transaction::Held(Held::default());
                    self.write(&Reply::OK, sink);
                }
                Some(Verb::Watch) => self.watch(item, sink).await,
                Some(Verb::Unwatch) => self.write(&Reply::OK, sink),
                Some(Verb::Exec) => {
                    self.write(&Failure::fixed("ERR EXEC without MULTI").reply(), sink);
                }
                _ => self.write(&Failure::fixed("ERR DISCARD without MULTI").reply(), sink),
            },
            Transaction::Held(held) => self.begin(held, item, place, sink).await,
            Transaction::At(at, map) => {
                self.transaction = Transaction::At(at, map);
                if place.is_some_and(|place| place != at) {
                    return self.refuse(&self.apart(&item), sink).await;
                }
                self.send(at, vec![item], 0, sink).await;
            }
        }
    }

    /// Returns whether a request has keys of several shards, or of another one than the transaction.
    fn is_apart(&self, item: &Item) -> bool {
        match (ShardClient::place_of(item, &self.shards.map()), &self.transaction) {
            (Err(_), _) => true,
            (Ok(Some(place)), Transaction::At(at, _)) => place != *at,
            _ => false,
        }
    }

    /// The refusal of a request that [is apart](ShardClient::is_apart): its keys were of the shard of the transaction and have
    /// moved since, or they never were.
    fn apart(&self, item: &Item) -> Failure {
        let (Transaction::At(at, begun), Some(spec)) = (&self.transaction, item.spec) else {
            return cross_slot();
        };
        let map = self.shards.map();
        let slots: Vec<u16> = keys_of(spec, &item.request[1..]).map(|key| slot_of(key)).collect();
        let gone = slots.iter().find(|slot| map.owner(**slot) != *at);
        match gone {
            Some(slot) if slots.iter().all(|slot| begun.owner(*slot) == *at) => {
                let owner = &map.shards()[map.owner(*slot)].name;
                Failure::Refused(format!("MOVED {slot} {owner}").into())
            }
            _ => cross_slot(),
        }
    }

    /// The first request after `MULTI` that decides the shard, or is kept.
    async fn begin(
        &mut self,
        mut held: Held,
        item: Item,
        place: Option<usize>,
        sink: &mut Sink<'_>,
    ) {
        if held.keep(&item) {
            self.transaction = Transaction::Held(held);
            return self.write(&Reply::Simple("QUEUED"), sink);
        }
        match item.verb().filter(|_| item.has_right_count()) {
            Some(Verb::Discard) => return self.write(&Reply::OK, sink),
            Some(Verb::Multi) => {
                self.transaction = Transaction::Held(held);
                let nested = Failure::fixed("ERR MULTI calls can not be nested");
                return self.write(&nested.reply(), sink);
            }
            _ => {}
        }
        if let Some(spec) = item.spec.filter(|_| item.is_about_session()) {
            // A node that refuses the MULTI would take it, and others would not.
            self.transaction = Transaction::Held(held);
            return self.refuse(&not_in_transaction(spec), sink).await;
        }
        let place = place.unwrap_or(self.last);
        self.transaction = Transaction::At(place, self.shards.map());
        let mut items = vec![Item::whole(words(&[b"MULTI"]))];
        items.append(&mut held.items);
        let before = items.len();
        items.push(item);
        self.send(place, items, before, sink).await;
    }

    /// Sends requests of the transaction, and passes on the replies after the first `before` ones.
    async fn send(&mut self, place: usize, items: Vec<Item>, before: usize, sink: &mut Sink<'_>) {
        let mut private = Sink::new(None);
        let mut items = VecDeque::from(items);
        loop {
            // A transaction is for its client to repeat: a shard's refusal is passed on.
            items = self.client(place).answer_items(items, &mut private).await;
            let Some(first) = items.front_mut() else { break };
            private.out.extend_from_slice(&first.moved.take().unwrap_or_default());
            items.pop_front();
        }
        let replies = after(private.out.freeze(), before);
        let has_passed = std::mem::take(&mut self.client(place).has_passed_moved);
        if has_passed || is_moved(&replies) {
            // So that its client finds the new owner the next time.
            self.shards.refresh().await;
        }
        sink.out.extend_from_slice(&replies);
        self.note_end(place);
    }

    fn note_end(&mut self, place: usize) {
        let session = self.clients.get(&place).map(|client| &client.session);
        if session.is_none_or(|session| session.transaction.is_none()) {
            self.transaction = Transaction::None;
        }
    }

    /// `WATCH` without a transaction.
    async fn watch(&mut self, item: Item, sink: &mut Sink<'_>) {
        let until = self.until();
        loop {
            let place = match ShardClient::place_of(&item, &self.shards.map()) {
                Ok(place) => place.unwrap_or(self.last),
                Err(failure) => return self.write(&failure.reply(), sink),
            };
            let mut private = Sink::new(None);
            let request = Item::whole(item.request.clone());
            self.client(place).answer_items(VecDeque::from([request]), &mut private).await;
            let reply: Bytes = private.out.freeze();
            if is_moved(&reply) {
                if self.wait_for_map(until).await || self.shards.now() < until {
                    continue;
                }
            } else {
                self.transaction = Transaction::At(place, self.shards.map());
                self.note_end(place);
            }
            sink.out.extend_from_slice(&reply);
            return;
        }
    }

    /// Refuses a request of the transaction, and with it its `EXEC`.
    async fn refuse(&mut self, failure: &Failure, sink: &mut Sink<'_>) {
        self.break_transaction().await;
        self.write(&failure.reply(), sink);
    }

    /// Makes the `EXEC` of an open transaction fail.
    pub(super) async fn break_transaction(&mut self) {
        if !self.is_open() {
            return;
        }
        let place = match self.transaction {
            Transaction::At(place, _) => place,
            _ => {
                let place = self.last;
                self.transaction = Transaction::At(place, self.shards.map());
                let mut private = Sink::new(None);
                self.send(place, vec![Item::whole(words(&[b"MULTI"]))], 0, &mut private).await;
                place
            }
        };
        self.client(place).refuse_transaction().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo(text: Bytes) -> Item {
        Item::whole(vec![Bytes::from_static(b"ECHO"), text])
    }

    #[test]
    fn what_is_held_before_the_first_key_is_little() {
        let mut held = Held::default();
        let buffer = Bytes::from(vec![b'p'; 1 << 20]);
        let count = (0..2000).take_while(|_| held.keep(&echo(buffer.slice(..5)))).count();
        assert!((20..200).contains(&count), "{count}");
        assert!(!Held::default().keep(&echo(buffer.clone())));
        // It keeps no buffer of the connection.
        assert_eq!(held.items[0].request[1], b"ppppp"[..]);
        assert!(buffer.is_unique());
    }
}
