//! Operations that delete many keys at once.

use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};

use siltstone::{Batch, Durability, Partition};
use testkit::model::Op;

use super::*;
use crate::model::operation::{Operation, Writes};

/// The keys that begin with `prefix`.
fn prefix_bounds(prefix: &[u8]) -> Bounds {
    let mut end = prefix.to_vec();
    while end.last() == Some(&0xff) {
        end.pop();
    }
    let upper = end.last_mut().map(|last| *last += 1);
    let upper = upper.map_or(Bound::Unbounded, |()| Bound::Excluded(end));
    (Bound::Included(prefix.to_vec()), upper)
}

impl Harness {
    pub(super) fn erase_many(&mut self, operation: &Operation) {
        match operation {
            Operation::Clear(p, before, after) => {
                let all = (Bound::Unbounded, Bound::Unbounded);
                self.erase(*p, &all, before, after, Batch::clear);
            }
            Operation::DeleteRange(p, from, to, before, after) => {
                let bounds = bounds(*from, *to);
                let erased = bounds.clone();
                self.erase(*p, &bounds, before, after, |batch, handle| {
                    batch.delete_range(handle, erased)
                });
            }
            Operation::DeletePrefix(p, key, len) => {
                let mut prefix = key.bytes();
                prefix.truncate((*len).into());
                let bounds = prefix_bounds(&prefix);
                let none = Writes::new();
                self.erase(*p, &bounds, &none, &none, |batch, handle| {
                    batch.delete_prefix(handle, prefix)
                });
            }
            _ => unreachable!("it deletes nothing"),
        }
    }

    /// A batch that deletes a range of a partition: for the oracle, a deletion of each key that it has
    /// there at that time.
    fn erase(
        &mut self,
        n: u8,
        bounds: &Bounds,
        before: &Writes,
        after: &Writes,
        erase: impl FnOnce(Batch, &Partition) -> Batch,
    ) {
        let part = self.part(n);
        let name = part.name;
        let logged = part.options.get_logged();
        let handle = part.handle.clone();
        let mut ops = self.ops(before);
        ops.retain(|op| self.is_logged(op) == logged);
        let batch = erase(self.fill(self.db().batch(), &ops), &handle);
        let own_count = ops.len();
        let written = ops.iter().filter(|op| op.partition == name).map(|op| op.key.clone());
        let keys: BTreeSet<Vec<u8>> =
            written.chain(self.oracle.contents(name).into_keys()).collect();
        let keys = keys.iter().filter(|key| bounds.contains(*key));
        ops.extend(keys.map(|key| Op::delete(name, key)));
        let erased_count = ops.len();
        self.add_ops(&mut ops, after);
        let mut ops_after = ops.split_off(erased_count);
        ops_after.retain(|op| self.is_logged(op) == logged);
        // One operation, if a key can lie in the range.
        let first = match &bounds.0 {
            Bound::Unbounded => Vec::new(),
            Bound::Included(first) => first.clone(),
            Bound::Excluded(before) => [&before[..], &[0]].concat(),
        };
        let erasures = usize::from(bounds.contains(&first));
        let count = (own_count + erasures + ops_after.len()) as u64;
        let commit = self.fill(batch, &ops_after).commit(Durability::Os).unwrap();
        assert_eq!(commit.seq, self.seq.plus(count), "numbers are dense");
        self.seq = commit.seq;
        ops.extend(ops_after);
        if !ops.is_empty() {
            self.oracle.commit(ops, commit.seq, &self.operands);
        }
    }

    pub(super) fn drop_partition(&mut self, n: u8) {
        let n = usize::from(n) % self.parts.len();
        if self.parts[n].name == NAMES[0] {
            let refused = self.db().drop_partition(NAMES[0]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
            return;
        }
        let part = self.parts.swap_remove(n);
        self.db().drop_partition(part.name).unwrap();
        self.drops += 1;
        self.oracle.drop_partition(part.name);
        let refused = self.db().drop_partition(part.name).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PartitionNotFound);
        assert_eq!(part.handle.put("k", "v").unwrap_err().kind(), ErrorKind::PartitionNotFound);
        assert_eq!(part.handle.get("k").unwrap_err().kind(), ErrorKind::PartitionNotFound);
        let refused = part.handle.compact(..).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PartitionNotFound);
        self.dropped = Some(part.handle);
    }
}
