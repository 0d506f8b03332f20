//! [`Walks`]: the places of walks (`SCAN`) over all shards.
//!
//! A walk goes through the shards of the map at its begin, one after the other, and through the keys of each in their
//! order. What it lacks of a shard is asked of the shards that own its slots now. So a slot that moves is neither shown twice
//! nor left out.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::shards::ShardMap;

const WALKS_MAX: usize = 10_000;
const WALK_BYTES_MAX: usize = 16 << 20;

/// The place at which a walk goes on.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub(crate) partition: Arc<str>,
    /// That of its begin.
    pub(crate) map: Arc<ShardMap>,
    /// The place of the shard.
    pub(crate) shard: usize,
    /// The last key that was looked at.
    pub(crate) after: Option<Bytes>,
}

impl Walk {
    fn bytes(&self) -> usize {
        self.partition.len() + self.after.as_ref().map_or(0, Bytes::len)
    }
}

/// The walks of all clients of a router. The oldest make room.
#[derive(Debug)]
pub(crate) struct Walks(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    newest: u64,
    walks: HashMap<u64, Walk>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl Default for Walks {
    /// Begins at a random number: a cursor of a router that was here before must be unknown.
    fn default() -> Walks {
        let newest = RandomState::new().hash_one(()) >> 32;
        Walks(Mutex::new(Kept { newest, ..Kept::default() }))
    }
}

impl Walks {
    /// Keeps a walk, and returns its cursor.
    pub(crate) fn keep(&self, mut walk: Walk) -> u64 {
        // A part of a reply would keep all of it.
        walk.after = walk.after.map(|after| Bytes::copy_from_slice(&after));
        let mut kept = self.0.lock();
        kept.newest += 1;
        kept.bytes += walk.bytes();
        let number = kept.newest;
        kept.walks.insert(number, walk);
        kept.order.push_back(number);
        while kept.order.len() > WALKS_MAX || kept.bytes > WALK_BYTES_MAX {
            let Some(oldest) = kept.order.pop_front() else { break };
            if let Some(gone) = kept.walks.remove(&oldest) {
                kept.bytes -= gone.bytes();
            }
        }
        number
    }

    pub(crate) fn get(&self, cursor: u64, partition: &str) -> Option<Walk> {
        self.0.lock().walks.get(&cursor).filter(|walk| &*walk.partition == partition).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::Shard;

    #[test]
    fn a_place_does_not_keep_the_reply_that_named_it() {
        let nodes = vec!["10.0.0.1:6379".to_owned()];
        let shard = Shard { name: "a".to_owned(), nodes };
        let map = Arc::new(ShardMap::first(vec![shard]).unwrap());
        let reply = Bytes::from(vec![b'k'; 1000]);
        let after = Some(reply.slice(10..15));
        let walks = Walks::default();
        let number = walks.keep(Walk { partition: Arc::from("p"), map, shard: 0, after });
        assert!(reply.is_unique());
        assert_eq!(walks.get(number, "p").unwrap().after.unwrap(), b"kkkkk"[..]);
    }
}
