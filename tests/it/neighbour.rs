//! A database that shares its resources with the one that a test is about. The files of both have the same numbers, and
//! their keys have different values.

use std::collections::BTreeMap;
use std::sync::Arc;

use lsm_core::fs::MemFs;
use siltstone::{Db, Partition, Resources};

use crate::store::stepped;

const KEYS: u32 = 40;

/// A small database that writes, flushes and reads.
pub struct Neighbour {
    db: Db,
    partition: Partition,
    /// The value of each key.
    contents: BTreeMap<u32, u32>,
    count: u32,
}

impl Neighbour {
    /// A new one in memory, with these resources.
    pub fn new(resources: &Resources) -> Neighbour {
        let db = stepped(Arc::new(MemFs::new()), "/db", 2).resources(resources).open().unwrap();
        let partition = db.partition("default").unwrap();
        Neighbour { db, partition, contents: BTreeMap::new(), count: 0 }
    }

    /// Writes a key, reads another one, and does some background work.
    pub fn act(&mut self) {
        self.count += 1;
        let key = self.count * 7 % KEYS;
        self.partition.put(key.to_be_bytes(), self.count.to_be_bytes()).unwrap();
        self.contents.insert(key, self.count);
        if self.count.is_multiple_of(16) {
            self.db.flush().unwrap();
        }
        self.db.step().unwrap();
        let asked = self.count * 13 % KEYS;
        let found = self.partition.get(asked.to_be_bytes()).unwrap();
        let expected = self.contents.get(&asked).map(|value| value.to_be_bytes().to_vec());
        assert_eq!(found.map(|value| value.to_vec()), expected, "key {asked} of the neighbour");
    }
}
