//! The decoders of what arrives at a server or a router, and the execution of commands, for the fuzz targets of this
//! repository.

mod session;

use bytes::Bytes;
use storage::codec::put_sum;

use crate::keys::{Scan, matches};
use crate::level::Token;
use crate::request::{Incoming, Next, RequestLimits};
use crate::route::Policy;
use crate::shards::record::Record;
use crate::shards::{Shard, ShardMap, SlotSet};
use crate::users::Users;
use crate::{Wanted, http};

pub use session::session;

const LIMITS: RequestLimits =
    RequestLimits { arguments: 64, argument_bytes: 4 << 10, bytes: 16 << 10, long_bytes: 32 };

/// Cuts bytes into requests, whole and in pieces: the requests are the same. Their arguments go through the decoders
/// of arguments.
pub fn request(bytes: &[u8]) {
    let whole = requests(bytes, bytes.len().max(1));
    let pieces = requests(bytes, 3);
    assert_eq!(whole, pieces, "the pieces decide nothing");
    for request in whole {
        if let Next::Request(arguments) = request {
            let _ = Scan::parse(&arguments);
            arguments.windows(2).for_each(|pair| _ = matches(&pair[0], &pair[1]));
            arguments.iter().for_each(|argument| text(argument));
        }
    }
}

fn requests(bytes: &[u8], piece: usize) -> Vec<Next> {
    let mut incoming = Incoming::default();
    let mut found = Vec::new();
    let mut value = Vec::new();
    for piece in bytes.chunks(piece) {
        incoming.room().extend_from_slice(piece);
        loop {
            while let Some(piece) = incoming.piece() {
                value.extend_from_slice(&piece);
            }
            if incoming.is_receiving() {
                match incoming.end_value() {
                    Ok(false) => break,
                    Ok(true) => found.push(Next::Request(vec![std::mem::take(&mut value).into()])),
                    Err(what) => {
                        found.push(Next::Broken(what));
                        return found;
                    }
                }
            }
            match incoming.next(&LIMITS) {
                Next::More => break,
                Next::Broken(what) => {
                    found.push(Next::Broken(what));
                    return found;
                }
                // Copied, as the session does with what it keeps: a part of a buffer holds all of it.
                Next::Request(arguments) => {
                    let copies = arguments.iter().map(|it| Bytes::copy_from_slice(it));
                    found.push(Next::Request(copies.collect()));
                }
                next @ Next::TooLarge(_) => found.push(next),
                next @ Next::Long { .. } => {
                    found.push(next);
                    drop(incoming.take());
                }
            }
        }
        incoming.rest();
    }
    found
}

/// Decodes a text: a token, a level, a policy, users, and a request for figures.
pub fn text(bytes: &[u8]) {
    if let Ok(token) = Token::parse(bytes) {
        let again = Token::parse(token.to_string().as_bytes());
        assert_eq!(
            again.ok().map(|it| it.to_string()),
            Some(token.to_string()),
            "a token reads back"
        );
    }
    let _ = http::path_of(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = (Wanted::parse(text), Policy::parse(text), Users::parse(text).is_ok());
}

/// Decodes a map of shards, the slots of a database, and a text of slots. The checksums are made right.
pub fn shards(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    put_sum(&mut sealed);
    let number = bytes.get(16..24).and_then(|it| it.try_into().ok()).map_or(0, u64::from_le_bytes);
    if let Ok(map) = ShardMap::decode("shards/1", number, &sealed) {
        let again = ShardMap::decode("shards/1", number, &map.encode());
        assert_eq!(again.ok().as_ref(), Some(&map), "a map reads back");
        let slots: usize = (0..map.shards().len()).map(|place| map.slots_of(place).len()).sum();
        assert_eq!(slots, 16_384, "each slot has one owner");
    }
    if let Ok(record) = Record::decode(&sealed) {
        let again = Record::decode(&record.encode());
        assert_eq!(again.ok(), Some(record), "a record reads back");
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(slots) = SlotSet::parse(text) {
        let again = SlotSet::parse(&slots.to_string());
        assert_eq!(again.ok(), Some(slots), "slots read back");
    }
    let _ = Shard::parse(text);
}

/// Decodes the replies of a node, as a router does.
pub fn reply(bytes: &[u8]) {
    // What is not complete is waited for.
    let _ = crate::route::link::check_replies(bytes);
}
