//! [`FifoLog`]: the histories that a partition which is a FIFO may have, as far as readers can tell.
//!
//! Which tables go is decided by their sizes and ages, which the model does not know. So it takes from the store how much
//! is gone, and checks that this is what `docs/compaction-styles.md` promises: the oldest commits, and no other ones. The
//! contents are those of the end of the history: nothing that a commit of it has overwritten or deleted comes back, and
//! the operands of a merge are folded without those that are gone.
//!
//! Invariant: each history ends with the newest commit, and has the contents that were last seen. The true one is among
//! them, or is the end of one of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use testkit::model::{Contents, Op, Value};

/// The operand of each value that was made by a merge, by key and value.
pub type Operands = BTreeMap<(Vec<u8>, Vec<u8>), Vec<u8>>;

/// The most bytes that an entry takes in a table beyond its key and value, metadata and filters included; and a table
/// beyond its entries.
const ENTRY_BYTES_MAX: usize = 300;
const TABLE_BYTES_MAX: usize = 4 << 10;

/// The times that something was gone, in all cases of this process.
pub static REMOVALS: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Write {
    Put(Value),
    Delete,
    Merge(Vec<u8>),
}

/// The writes of one commit to the partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FifoCommit {
    /// Its place among the steps of the model that it belongs to.
    step: usize,
    writes: Vec<(Vec<u8>, Write)>,
}

impl FifoCommit {
    /// The most bytes that tables with its entries take.
    fn table_bytes_max(&self) -> usize {
        let bytes = self.writes.iter().map(|(key, write)| {
            let value = match write {
                Write::Put(value) => value.len(),
                Write::Merge(operand) => operand.len(),
                Write::Delete => 0,
            };
            2 * (key.len() + value) + ENTRY_BYTES_MAX
        });
        TABLE_BYTES_MAX + bytes.sum::<usize>()
    }
}

type History = Vec<FifoCommit>;

/// The possible histories; none of them is the end of another one that was the same to readers.
#[derive(Clone, Debug)]
pub struct FifoLog {
    histories: Vec<History>,
}

fn replayed(history: &[FifoCommit]) -> Contents {
    let mut contents = Contents::new();
    for (key, write) in history.iter().flat_map(|commit| &commit.writes) {
        match write {
            Write::Put(value) => _ = contents.insert(key.clone(), value.clone()),
            Write::Delete => _ = contents.remove(key),
            Write::Merge(operand) => {
                let before = contents.get(key).map_or(&[][..], |value| &**value);
                let merged = [before, operand].concat();
                contents.insert(key.clone(), merged.into());
            }
        }
    }
    contents
}

/// Returns `true` if readers see `observed` of `history`.
fn is_seen(history: &[FifoCommit], observed: &Contents, is_alive: &dyn Fn(&[u8]) -> bool) -> bool {
    let mut contents = replayed(history);
    contents.retain(|_, value| is_alive(value));
    contents == *observed
}

/// The longest end of `history` that shows `observed` to readers.
fn end_that_is_seen<'h>(
    history: &'h [FifoCommit],
    observed: &Contents,
    is_alive: &dyn Fn(&[u8]) -> bool,
) -> Option<&'h [FifoCommit]> {
    let ends = (0..=history.len()).map(|first| &history[first..]);
    ends.into_iter().find(|end| is_seen(end, observed, is_alive))
}

impl FifoLog {
    pub fn new() -> FifoLog {
        FifoLog { histories: vec![History::new()] }
    }

    /// Adds the operations of a commit that are of the partition `name`.
    pub fn commit(&mut self, name: &str, step: usize, ops: &[Op], operands: &Operands) {
        let own = ops.iter().filter(|op| op.partition == name);
        let writes = own.map(|op| {
            let write = match &op.value {
                None => Write::Delete,
                Some(value) => match operands.get(&(op.key.clone(), value.to_vec())) {
                    Some(operand) => Write::Merge(operand.clone()),
                    None => Write::Put(value.clone()),
                },
            };
            (op.key.clone(), write)
        });
        let writes: Vec<_> = writes.collect();
        if !writes.is_empty() {
            let commit = FifoCommit { step, writes };
            self.histories.iter_mut().for_each(|history| history.push(commit.clone()));
        }
    }

    /// The contents, with what has expired.
    pub fn contents(&self) -> Contents {
        replayed(&self.histories[0])
    }

    /// Takes from the store how much is gone. Returns the most bytes that the tables with it took; 0 if nothing is gone
    /// that a reader could tell.
    ///
    /// # Panics
    /// If `observed` is not what is left after the oldest commits are gone.
    pub fn see(&mut self, observed: &Contents, is_alive: &dyn Fn(&[u8]) -> bool) -> usize {
        let before = &self.histories[0];
        if is_seen(before, observed, is_alive) {
            // The others look the same.
            return 0;
        }
        let ends = self.histories.iter().filter_map(|history| {
            let end = end_that_is_seen(history, observed, is_alive)?;
            Some((end.to_vec(), &history[..history.len() - end.len()]))
        });
        let ends: Vec<_> = ends.collect();
        assert!(
            !ends.is_empty(),
            "what is left is not the end of the history: {} keys of {}",
            observed.len(),
            self.contents().len()
        );
        let gone = ends
            .iter()
            .map(|(_, gone)| gone.iter().map(FifoCommit::table_bytes_max).sum::<usize>());
        let gone = gone.max().unwrap_or_default();
        REMOVALS.fetch_add(1, Ordering::Relaxed);
        self.histories = ends.into_iter().map(|(end, _)| end).collect();
        gone
    }

    /// Cuts the histories to what a power cut has left: the commits whose steps are below `steps`, and perhaps more of the
    /// oldest ones gone. Returns `false`, and changes nothing, if that is not `observed`.
    pub fn cut_to(
        &mut self,
        observed: &Contents,
        steps: std::ops::RangeInclusive<usize>,
        is_alive: &dyn Fn(&[u8]) -> bool,
    ) -> bool {
        let mut left: Vec<History> = Vec::new();
        for history in &self.histories {
            let first = history.partition_point(|commit| commit.step <= *steps.start());
            let last = history.partition_point(|commit| commit.step <= *steps.end());
            for len in first..=last {
                let Some(end) = end_that_is_seen(&history[..len], observed, is_alive) else {
                    continue;
                };
                // From now on all of it is durable.
                let end: History =
                    end.iter().map(|commit| FifoCommit { step: 0, ..commit.clone() }).collect();
                if !left.contains(&end) {
                    left.push(end);
                }
            }
        }
        let is_possible = !left.is_empty();
        if is_possible {
            self.histories = left;
        }
        is_possible
    }
}
