//! [`Walk`]: the place of a walk (`SCAN`) over all shards.
//!
//! A walk goes through the shards of the map at its begin, one after the other, and through the keys of each in their
//! order. What it lacks of a shard is asked of the shards that own its slots now. So a slot that moves is neither shown twice
//! nor left out.

use std::sync::Arc;

use bytes::Bytes;

use crate::cursors::WalkPlace;
use crate::shards::ShardMap;

/// The place at which a walk over all shards goes on.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub(super) partition: Arc<str>,
    /// That of its begin.
    pub(super) map: Arc<ShardMap>,
    /// The place of the shard.
    pub(super) shard: usize,
    /// The last key that was looked at.
    pub(super) after: Option<Bytes>,
    /// A shard is passed after its last key with the begin of the pattern.
    pub(super) pattern: Option<Bytes>,
}

impl WalkPlace for Walk {
    fn partition(&self) -> &str {
        &self.partition
    }

    fn bytes(&self) -> usize {
        let kept = [&self.after, &self.pattern].into_iter().flatten();
        self.partition.len() + kept.map(Bytes::len).sum::<usize>()
    }
}

impl Walk {
    /// Goes on after a page whose last key is this one, or at the next shard. The key is copied: it is a part of a reply, and
    /// would keep all of it.
    pub(super) fn pass(&mut self, last: Option<&Bytes>) {
        self.shard += usize::from(last.is_none());
        self.after = last.map(|last| Bytes::copy_from_slice(last));
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
        let partition = Arc::from("p");
        let mut walk = Walk { partition, map, shard: 0, after: None, pattern: None };
        let reply = Bytes::from(vec![b'k'; 1000]);
        walk.pass(Some(&reply.slice(10..15)));
        assert!(reply.is_unique());
        assert_eq!((walk.shard, walk.after.as_deref()), (0, Some(&b"kkkkk"[..])));
        walk.pass(None);
        assert_eq!((walk.shard, walk.after), (1, None));
    }
}
