//! The list of snapshots that compactions must respect.
//!
//! A snapshot is a sequence number. It is loaded and registered under the lock under which jobs
//! read the list, so a job can never miss one that a reader already holds.
//!
//! Invariant: the list that a job gets always contains the visible sequence at its start; else it
//! would drop what a snapshot taken a moment later must see.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::types::SeqNo;

/// All registered snapshots of a database.
#[derive(Debug, Default)]
pub struct Snapshots {
    counts: Mutex<BTreeMap<SeqNo, usize>>,
}

impl Snapshots {
    /// Registers the sequence number that `visible` loads, until the result is dropped.
    pub fn register(self: &Arc<Self>, visible: impl FnOnce() -> SeqNo) -> RegisteredSnapshot {
        let mut counts = self.counts.lock();
        let seq = visible();
        *counts.entry(seq).or_insert(0) += 1;
        RegisteredSnapshot { seq, list: self.clone() }
    }

    /// The sequence numbers that a job starting now must respect, ascending.
    pub fn for_job(&self, visible: impl FnOnce() -> SeqNo) -> Vec<SeqNo> {
        let counts = self.counts.lock();
        let visible = visible();
        let mut list: Vec<SeqNo> = counts.keys().copied().collect();
        if let Err(at) = list.binary_search(&visible) {
            list.insert(at, visible);
        }
        list
    }

    /// How many different sequence numbers are registered.
    pub fn count(&self) -> usize {
        self.counts.lock().len()
    }
}

/// A registered sequence number; dropped, it is released.
#[derive(Debug)]
pub struct RegisteredSnapshot {
    seq: SeqNo,
    list: Arc<Snapshots>,
}

impl RegisteredSnapshot {
    /// The sequence number.
    pub fn seq(&self) -> SeqNo {
        self.seq
    }
}

impl Drop for RegisteredSnapshot {
    fn drop(&mut self) {
        let mut counts = self.list.counts.lock();
        let count = counts.get_mut(&self.seq).expect("it was registered");
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_respects_what_is_registered_and_what_is_visible() {
        let seq = |n| SeqNo::new(n).unwrap();
        let list = Arc::new(Snapshots::default());
        let (a, b) = (list.register(|| seq(3)), list.register(|| seq(3)));
        let c = list.register(|| seq(7));
        assert_eq!(list.for_job(|| seq(9)), [seq(3), seq(7), seq(9)]);
        assert_eq!(list.for_job(|| seq(7)), [seq(3), seq(7)]);
        drop((a, c));
        assert_eq!(list.for_job(|| seq(9)), [seq(3), seq(9)]);
        assert_eq!(b.seq(), seq(3));
        drop(b);
        assert_eq!((list.count(), list.for_job(|| seq(9))), (0, vec![seq(9)]));
    }
}
