//! [`PartitionMap`]: the living partitions of a version, by id and by name.
//!
//! A version never changes, so each edit makes a new map. The new map shares everything with the
//! old one except the two short pieces that lead to the changed partition. A plain map, which each
//! edit copied, made a flush of one of 8,192 partitions cost a copy of 8,192 entries.
//!
//! Invariant: `by_name` holds exactly the names of the partitions in `by_id`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use super::PartitionVersion;
use crate::codec::checksum64;
use crate::types::PartitionId;

/// Partitions with neighbouring ids; at most [`PIECE`].
type Piece = BTreeMap<PartitionId, Arc<PartitionVersion>>;
/// Names with one hash, and their partitions.
type Names = BTreeMap<Arc<str>, PartitionId>;

/// Ids in one piece, and pieces of the names. With 65,536 partitions a change copies a list of 256
/// pieces and one of 256 partitions; a deeper tree would copy less and cost every walk more.
const PIECE: u32 = 256;

/// The living partitions of a version, by id and by name.
#[derive(Clone, Default)]
pub struct PartitionMap {
    by_id: Arc<BTreeMap<u32, Arc<Piece>>>,
    by_name: Arc<BTreeMap<u32, Arc<Names>>>,
    len: usize,
}

/// The piece that a name is in.
fn piece_of(name: &str) -> u32 {
    (checksum64(name.as_bytes()) % u64::from(PIECE)) as u32
}

impl PartitionMap {
    /// The number of partitions.
    pub fn count(&self) -> usize {
        self.len
    }

    /// The partition with that id.
    pub fn get(&self, id: PartitionId) -> Option<&Arc<PartitionVersion>> {
        self.by_id.get(&(id.0 / PIECE))?.get(&id)
    }

    /// Returns `true` if a partition has that id.
    pub fn contains_key(&self, id: PartitionId) -> bool {
        self.get(id).is_some()
    }

    /// The partition of that name.
    pub fn named(&self, name: &str) -> Option<&Arc<PartitionVersion>> {
        self.get(*self.by_name.get(&piece_of(name))?.get(name)?)
    }

    /// All partitions, ascending by id.
    pub fn values(&self) -> impl Iterator<Item = &Arc<PartitionVersion>> + Clone {
        self.by_id.values().flat_map(|piece| piece.values())
    }

    /// Adds a partition, or replaces the one with its id and name.
    pub fn insert(&mut self, partition: Arc<PartitionVersion>) {
        let id = partition.id;
        let name = partition.name.clone();
        let pieces = Arc::make_mut(&mut self.by_id);
        let piece = Arc::make_mut(pieces.entry(id.0 / PIECE).or_default());
        // The names are touched only for a new partition: most edits copy no piece of them.
        if piece.insert(id, partition).is_none() {
            self.len += 1;
            let names = Arc::make_mut(&mut self.by_name);
            // By hash, not by order: names often share their front, and would all fall into one
            // piece.
            Arc::make_mut(names.entry(piece_of(&name)).or_default()).insert(name, id);
        }
    }

    /// Removes the partition with that id and returns it.
    pub fn remove(&mut self, id: PartitionId) -> Option<Arc<PartitionVersion>> {
        let removed = self.get(id)?.clone();
        let pieces = Arc::make_mut(&mut self.by_id);
        remove_from(pieces, id.0 / PIECE, &id);
        let names = Arc::make_mut(&mut self.by_name);
        remove_from(names, piece_of(&removed.name), &removed.name);
        self.len -= 1;
        Some(removed)
    }
}

/// Removes `key` from its piece, and the piece with its last key.
fn remove_from<K: Ord + Clone, V: Clone>(
    pieces: &mut BTreeMap<u32, Arc<BTreeMap<K, V>>>,
    number: u32,
    key: &K,
) {
    let Some(piece) = pieces.get_mut(&number) else { return };
    Arc::make_mut(piece).remove(key);
    // Ids only grow, so an empty piece would never be used again.
    if piece.is_empty() {
        pieces.remove(&number);
    }
}

impl Index<&PartitionId> for PartitionMap {
    type Output = Arc<PartitionVersion>;

    fn index(&self, id: &PartitionId) -> &Arc<PartitionVersion> {
        self.get(*id).expect("the partition is in this version")
    }
}

impl PartialEq for PartitionMap {
    fn eq(&self, other: &PartitionMap) -> bool {
        self.len == other.len && self.values().eq(other.values())
    }
}

impl Eq for PartitionMap {}

impl fmt::Debug for PartitionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compaction::drawing::draw;

    fn partition(id: u32) -> Arc<PartitionVersion> {
        let name = format!("partition {id}").into();
        Arc::new(PartitionVersion { id: PartitionId(id), name, ..draw("") })
    }

    fn ids(map: &PartitionMap) -> Vec<u32> {
        map.values().map(|partition| partition.id.0).collect()
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_map_with_names(
            steps in prop::collection::vec((0u32..2000, any::<bool>()), 1..300),
        ) {
            let mut map = PartitionMap::default();
            let mut expected = std::collections::BTreeSet::new();
            for (id, is_added) in steps {
                if is_added {
                    map.insert(partition(id));
                    expected.insert(id);
                } else {
                    prop_assert_eq!(map.remove(PartitionId(id)).is_some(), expected.remove(&id));
                }
                let name = format!("partition {id}");
                prop_assert_eq!(map.named(&name).is_some(), expected.contains(&id));
            }
            prop_assert_eq!(map.count(), expected.len());
            prop_assert_eq!(ids(&map), expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_change_shares_everything_but_two_pieces() {
        let mut map = PartitionMap::default();
        (0..2000).for_each(|id| map.insert(partition(id)));
        let before = map.clone();
        map.insert(partition(1000));
        let copied = map
            .by_id
            .iter()
            .filter(|(number, piece)| !Arc::ptr_eq(piece, &before.by_id[number]))
            .count();
        assert_eq!((map.by_id.len(), copied), (8, 1));
        assert!(Arc::ptr_eq(&map.by_name, &before.by_name), "no name has changed");
        map.remove(PartitionId(7));
        assert!(before.contains_key(PartitionId(7)) && !map.contains_key(PartitionId(7)));
    }
}
