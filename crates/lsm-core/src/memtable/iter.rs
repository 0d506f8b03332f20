//! A cursor over a memtable that owns it.
//!
//! The skiplist lends its entries, and a cursor that lives as long as it likes cannot hold a
//! loan. So it takes entries in runs: each refill searches once and copies the references of the
//! next few entries, from 4 up to 128 as the walk goes on, which costs a short seek little and a
//! long scan almost nothing per entry.

use std::ops::Bound;
use std::sync::Arc;

use super::{Entry, Memtable, Sought, Target};
use crate::error::Result;
use crate::iter::InternalIter;
use crate::types::{KeyRef, Slice, prefix8};

const RUN_MIN: usize = 4;
const RUN_MAX: usize = 128;

/// See the module.
pub struct MemtableIter {
    table: Arc<Memtable>,
    /// Consecutive entries in ascending order.
    run: Vec<Entry>,
    at: usize,
    run_length: usize,
}

impl MemtableIter {
    pub(super) fn new(table: Arc<Memtable>) -> MemtableIter {
        let run = Vec::with_capacity(4 * RUN_MIN);
        MemtableIter { table, run, at: 0, run_length: RUN_MIN }
    }

    /// The value, shared where that is worth it.
    pub fn value_slice(&self) -> Slice {
        self.run[self.at].value_slice()
    }

    fn fill_forward(&mut self, from: Bound<&dyn Sought>) {
        self.run.clear();
        let entries = self.table.entries.range::<dyn Sought, _>((from, Bound::Unbounded));
        self.run.extend(entries.take(self.run_length).map(|e| e.key().clone()));
        self.at = 0;
    }

    fn fill_backward(&mut self, to: Bound<&dyn Sought>) {
        self.run.clear();
        let entries = self.table.entries.range::<dyn Sought, _>((Bound::Unbounded, to));
        self.run.extend(entries.rev().take(self.run_length).map(|e| e.key().clone()));
        self.run.reverse();
        self.at = self.run.len().saturating_sub(1);
    }
}

impl InternalIter for MemtableIter {
    fn valid(&self) -> bool {
        self.at < self.run.len()
    }

    fn key(&self) -> KeyRef<'_> {
        self.run[self.at].key()
    }

    fn value(&self) -> &[u8] {
        self.run[self.at].value()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.run_length = RUN_MIN;
        self.fill_forward(Bound::Unbounded);
        Ok(())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.run_length = RUN_MIN;
        self.fill_backward(Bound::Unbounded);
        Ok(())
    }

    fn seek(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.run_length = RUN_MIN;
        let target = Target { prefix: prefix8(target.user), key: target };
        self.fill_forward(Bound::Included(&target));
        Ok(())
    }

    fn seek_before(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.run_length = RUN_MIN;
        let target = Target { prefix: prefix8(target.user), key: target };
        self.fill_backward(Bound::Excluded(&target));
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.at += 1;
        if self.at == self.run.len() {
            self.run_length = (self.run_length * 2).min(RUN_MAX);
            let last = self.run[self.at - 1].clone();
            self.fill_forward(Bound::Excluded(&last));
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        if self.at > 0 {
            self.at -= 1;
            return Ok(());
        }
        self.run_length = (self.run_length * 2).min(RUN_MAX);
        let first = self.run[0].clone();
        self.fill_backward(Bound::Excluded(&first));
        Ok(())
    }
}
