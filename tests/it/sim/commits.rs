//! Commits of a simulated store, and their record.

use std::ops::Bound;

use siltstone::{Commit, Durability, Partition, Result, SeqNo};
use testkit::model::{Op, Step, Value};

use super::Simulation;
use super::script::UNLOGGED;

/// The key of a number. In a script with all features the first one is empty.
pub(super) fn key_of(number: u32, has_features: bool) -> Vec<u8> {
    if number == 0 && has_features {
        return Vec::new();
    }
    format!("k{number:05}").into_bytes()
}

impl Simulation {
    pub(super) fn commit(
        &mut self,
        erased: Option<(&str, Option<(u32, u32)>)>,
        ops: &[(&'static str, u32, Option<usize>)],
        sync: bool,
    ) -> Result<()> {
        let mut batch = self.db().batch();
        let mut written = Vec::new();
        let has_features = self.variant.clock.is_some();
        if let Some((name, keys)) = erased
            && let Some(partition) = self.find(name)?
        {
            let all = (Bound::Unbounded, Bound::Unbounded);
            let ends = keys.map(|(first, last)| [first, last].map(|key| key_of(key, has_features)));
            let bounds = ends.as_ref().map_or(all, |[first, last]| {
                (Bound::Included(&first[..]), Bound::Excluded(&last[..]))
            });
            batch = match &ends {
                Some([first, last]) => batch.delete_range(&partition, &first[..]..&last[..]),
                None => batch.clear(&partition),
            };
            let record = self.record();
            let keys = record.model.range(name, bounds, record.model.seq());
            written.extend(keys.map(|(key, _)| Op::delete(name, key)));
        }
        for (name, key, bytes) in ops {
            let Some(partition) = self.find(name)? else { continue };
            let key = key_of(*key, has_features);
            let mut value: Option<Value> = bytes.map(|bytes| self.value(bytes));
            // A fault may have kept the operator from the partition.
            let has_operator = partition.merge_operator().is_some();
            let merges = has_operator && *name != UNLOGGED && self.values.is_multiple_of(2);
            batch = match &value {
                Some(operand) if merges => {
                    let batch = batch.merge(&partition, &key, operand);
                    let before = self.before(&written, name, &key);
                    value = Some([before.as_deref().unwrap_or_default(), operand].concat().into());
                    batch
                }
                Some(value) => batch.put(&partition, &key, value),
                None => batch.delete(&partition, &key),
            };
            written.push(Op { partition: (*name).to_owned(), key, value });
        }
        self.note_commit(written, sync, |durability| batch.commit(durability))
    }

    /// Commits by `call`, and notes the outcome.
    pub(super) fn note_commit(
        &mut self,
        written: Vec<Op>,
        sync: bool,
        call: impl FnOnce(Durability) -> Result<Commit>,
    ) -> Result<()> {
        if written.is_empty() {
            return Ok(());
        }
        let is_logged = written[0].partition != UNLOGGED;
        if is_logged {
            self.record().in_flight = Some(Step::Commit(written.clone()));
        } else {
            let ops = written.iter().map(|op| (op.key.clone(), op.value.clone()));
            self.record().unlogged.extend(ops);
        }
        let witness = witness(&written);
        let sync = sync && witness.is_some();
        let durability = if sync { Durability::Sync } else { Durability::Os };
        let before = self.db().visible_seq();
        let result = call(durability);
        let is_visible = result.is_ok() || witness.is_some_and(|op| self.is_visible(op, before));
        let mut record = self.record();
        if !is_logged {
            if !is_visible {
                let tried = record.unlogged.len() - written.len();
                record.unlogged.truncate(tried);
            }
        } else if is_visible {
            record.done();
            let steps = record.model.log().len();
            record
                .seqs
                .push((result.as_ref().map_or(self.db().visible_seq(), |c| c.seq).get(), steps));
            written.iter().for_each(|op| _ = record.doubtful.remove(&op.partition));
            if sync && result.is_ok() {
                record.durable = steps;
            }
            record.refused = None;
        } else {
            let refused = record.in_flight.take();
            record.refused = record.refused.take().or(refused);
        }
        result.map(|_| ())
    }

    /// The value of a key after these operations.
    pub(super) fn before(&self, written: &[Op], partition: &str, key: &[u8]) -> Option<Value> {
        let mut own = written.iter().rev();
        match own.find(|op| op.partition == partition && op.key == key) {
            Some(op) => op.value.clone(),
            None => {
                let record = self.record();
                record.model.get(partition, key, record.model.seq()).cloned()
            }
        }
    }

    /// Returns `true` if a failed commit is visible: one whose sync failed is.
    fn is_visible(&self, witness: &Op, before: SeqNo) -> bool {
        let partition = self.find(&witness.partition).ok().flatten();
        match partition.map(|p| p.get(&witness.key).map_err(|_| p)) {
            Some(Ok(got)) => got.as_deref() == witness.value.as_deref(),
            // The read of an operand reads tables as well, which the fault may refuse.
            Some(Err(p)) => has_newer(&p, &witness.key, before),
            None => false,
        }
    }
}

/// Returns `true` if a memtable has a version of the key that is newer than `seq`.
fn has_newer(partition: &Partition, key: &[u8], seq: SeqNo) -> bool {
    let Ok(walk) = partition.walk() else { return false };
    walk.memtables().any(|mut entries| {
        while let Ok(Some(entry)) = entries.next() {
            if entry.key == key && entry.seq > seq {
                return true;
            }
        }
        false
    })
}

/// An operation that a reader can see if its batch is visible.
fn witness(ops: &[Op]) -> Option<&Op> {
    let mut visible = ops.iter().enumerate().filter(|(at, op): &(usize, &Op)| {
        !ops[at + 1..]
            .iter()
            .any(|later| (&later.partition, &later.key) == (&op.partition, &op.key))
    });
    visible.find(|(_, op)| op.value.is_some()).map(|(_, op)| op)
}
