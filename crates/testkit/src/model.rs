//! The oracle: the answers of a correct store, kept in the plainest way.
//!
//! An ordered map per partition that keeps every version, and the log of all steps. Tests do each
//! step to the model and to the store and compare; after a crash they ask
//! [`Model::prefix_equal_to`] whether the recovered state is that after a prefix of the log. A
//! snapshot is a sequence number. The model is slow and simple.
//!
//! Invariants:
//! 1. Sequence numbers are dense, one per operation, beginning with 1.
//! 2. Versions of a key are in the order of their sequence numbers.
//! 3. A partition that is dropped and made again under its name begins empty, also in the past.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// A stored value.
pub type Value = Arc<[u8]>;
/// The contents of one partition at one time.
pub type Contents = BTreeMap<Vec<u8>, Value>;
/// The contents of every partition at one time, by name.
pub type State = BTreeMap<String, Contents>;

/// One operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Name of the partition.
    pub partition: String,
    /// The key.
    pub key: Vec<u8>,
    /// The new value; `None` deletes.
    pub value: Option<Value>,
}

impl Op {
    /// Sets `key` to `value`.
    pub fn put(partition: &str, key: &[u8], value: &[u8]) -> Op {
        Op { partition: partition.to_owned(), key: key.to_vec(), value: Some(value.into()) }
    }

    /// Deletes `key`.
    pub fn delete(partition: &str, key: &[u8]) -> Op {
        Op { partition: partition.to_owned(), key: key.to_vec(), value: None }
    }
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A batch, all or nothing.
    Commit(Vec<Op>),
    /// A partition was made.
    Create(String),
    /// A partition was dropped.
    Drop(String),
}

type Versions = Vec<(u64, Option<Value>)>;

/// The model of a store. It begins empty, without any partition.
#[derive(Clone, Debug, Default)]
pub struct Model {
    partitions: BTreeMap<String, BTreeMap<Vec<u8>, Versions>>,
    seq: u64,
    log: Vec<Step>,
}

impl Model {
    /// An empty model.
    pub fn new() -> Model {
        Model::default()
    }

    /// Creates a partition; has no effect if it exists.
    pub fn create(&mut self, partition: &str) {
        if !self.partitions.contains_key(partition) {
            self.step(Step::Create(partition.to_owned()));
        }
    }

    /// Drops a partition with all of its history; has no effect if it does not exist.
    pub fn drop_partition(&mut self, partition: &str) {
        if self.partitions.contains_key(partition) {
            self.step(Step::Drop(partition.to_owned()));
        }
    }

    /// Sets `key` to `value` and returns the sequence number.
    pub fn put(&mut self, partition: &str, key: &[u8], value: &[u8]) -> u64 {
        self.commit(vec![Op::put(partition, key, value)])
    }

    /// Deletes `key` and returns the sequence number.
    pub fn delete(&mut self, partition: &str, key: &[u8]) -> u64 {
        self.commit(vec![Op::delete(partition, key)])
    }

    /// Does all of `ops`, in their order, and returns the sequence number of the last one.
    ///
    /// # Panics
    /// If a partition does not exist: the test is wrong.
    pub fn commit(&mut self, ops: Vec<Op>) -> u64 {
        self.step(Step::Commit(ops));
        self.seq
    }

    /// Does one step and logs it.
    pub fn step(&mut self, step: Step) {
        match &step {
            Step::Create(name) => {
                self.partitions.entry(name.clone()).or_default();
            }
            Step::Drop(name) => {
                self.partitions.remove(name);
            }
            Step::Commit(ops) => {
                for op in ops {
                    self.seq += 1;
                    let keys = self.partitions.get_mut(&op.partition);
                    let keys = keys.expect("tests write to partitions that exist");
                    let versions = keys.entry(op.key.clone()).or_default();
                    versions.push((self.seq, op.value.clone()));
                }
            }
        }
        self.log.push(step);
    }

    /// The last sequence number: a snapshot of now.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Everything that was done, in order.
    pub fn log(&self) -> &[Step] {
        &self.log
    }

    /// Names of the partitions.
    pub fn partition_names(&self) -> impl Iterator<Item = &str> {
        self.partitions.keys().map(String::as_str)
    }

    /// The value of `key` as a reader at `seq` sees it.
    pub fn get(&self, partition: &str, key: &[u8], seq: u64) -> Option<&Value> {
        visible(self.partitions.get(partition)?.get(key)?, seq)
    }

    /// The entries between the bounds as a reader at `seq` sees them; from either end. Bounds
    /// that contradict each other enclose nothing.
    pub fn range<'a>(
        &'a self,
        partition: &str,
        bounds: (Bound<&'a [u8]>, Bound<&'a [u8]>),
        seq: u64,
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a Value)> + 'a {
        let keys = self.partitions.get(partition).filter(|_| can_hold_keys(bounds));
        keys.into_iter()
            .flat_map(move |keys| keys.range::<[u8], _>(bounds))
            .filter_map(move |(key, versions)| Some((&key[..], visible(versions, seq)?)))
    }

    /// Every partition as a reader at `seq` sees it.
    pub fn state(&self, seq: u64) -> State {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let contents = |name: &str| -> Contents {
            self.range(name, all, seq).map(|(key, value)| (key.to_vec(), value.clone())).collect()
        };
        self.partition_names().map(|name| (name.to_owned(), contents(name))).collect()
    }

    /// The model as it was after the first `steps` lines of the log.
    #[must_use]
    pub fn after(&self, steps: usize) -> Model {
        let mut model = Model::new();
        self.log[..steps].iter().for_each(|step| model.step(step.clone()));
        model
    }

    /// The smallest number of steps, at least `steps_min`, after which a store holds `observed`.
    ///
    /// For crash tests: commits survive as a prefix of the log, while making and dropping a
    /// partition is durable when it returns and waits for no commit. So each commit counts only
    /// in partitions that still exist at the end of the log, and an empty partition equals a
    /// missing one.
    pub fn prefix_equal_to(&self, observed: &State, steps_min: usize) -> Option<usize> {
        let empty = Contents::new();
        let mut first_live: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, step) in self.log.iter().enumerate() {
            match step {
                // An existing partition does not change.
                Step::Create(name) => _ = first_live.entry(name).or_insert(at),
                Step::Drop(name) => _ = first_live.remove(name.as_str()),
                Step::Commit(_) => {}
            }
        }
        let mut state = State::new();
        // The number of keys that differ between `state` and `observed`; updated key by key.
        let mut differing: usize = observed.values().map(Contents::len).sum();
        for steps in 0..=self.log.len() {
            if steps >= steps_min && differing == 0 {
                return Some(steps);
            }
            let Some(Step::Commit(ops)) = self.log.get(steps) else { continue };
            for op in ops {
                if first_live.get(op.partition.as_str()).is_none_or(|&made| made > steps) {
                    continue;
                }
                let wanted = observed.get(&op.partition).unwrap_or(&empty).get(&op.key);
                let now = state.entry(op.partition.clone()).or_default();
                differing -= usize::from(now.get(&op.key) != wanted);
                match &op.value {
                    Some(value) => _ = now.insert(op.key.clone(), value.clone()),
                    None => _ = now.remove(&op.key),
                }
                differing += usize::from(now.get(&op.key) != wanted);
            }
        }
        None
    }
}

fn visible(versions: &Versions, seq: u64) -> Option<&Value> {
    let older = versions.partition_point(|(written, _)| *written <= seq);
    versions[..older].last()?.1.as_ref()
}

/// `BTreeMap::range` panics on bounds that contradict each other; a store must not.
fn can_hold_keys(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Included(start), Bound::Included(end)) => start <= end,
        (
            Bound::Included(start) | Bound::Excluded(start),
            Bound::Included(end) | Bound::Excluded(end),
        ) => start < end,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Bound::{Excluded, Included, Unbounded};

    fn sample() -> Model {
        let mut model = Model::new();
        model.create("p");
        model.create("q");
        model.put("p", b"a", b"1");
        model.commit(vec![
            Op::put("p", b"b", b"2"),
            Op::put("q", b"a", b"3"),
            Op::delete("p", b"a"),
        ]);
        model.put("p", b"a", b"5");
        model
    }

    fn keys(
        model: &Model,
        bounds: (Bound<&'static [u8]>, Bound<&'static [u8]>),
        seq: u64,
    ) -> String {
        let entries = model.range("p", bounds, seq);
        entries.map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect()
    }

    #[test]
    fn a_reader_sees_what_was_written_up_to_its_sequence() {
        let model = sample();
        assert_eq!(model.seq(), 5);
        assert_eq!(
            [0, 1, 3, 4, 5].map(|seq| model.get("p", b"a", seq).map(|value| value.to_vec())),
            [None, Some(b"1".to_vec()), Some(b"1".to_vec()), None, Some(b"5".to_vec())]
        );
        assert_eq!(keys(&model, (Unbounded, Unbounded), 4), "b");
        assert_eq!(keys(&model, (Unbounded, Unbounded), 5), "ab");
        assert_eq!(keys(&model, (Excluded(b"a"), Included(b"b")), 5), "b");
        assert_eq!(keys(&model, (Included(b"b"), Included(b"a")), 5), "");
        assert_eq!(keys(&model, (Excluded(b"a"), Excluded(b"a")), 5), "");
        let reversed: Vec<&[u8]> =
            model.range("p", (Unbounded, Unbounded), 5).rev().map(|(key, _)| key).collect();
        assert_eq!(reversed, [b"b", b"a"]);
    }

    #[test]
    fn every_prefix_of_the_log_is_found_again_and_nothing_else() {
        let model = sample();
        for steps in 0..=model.log().len() {
            let past = model.after(steps);
            let found = model.prefix_equal_to(&past.state(past.seq()), 0);
            let found = found.expect("a prefix is a prefix");
            let same = model.after(found);
            assert_eq!(
                same.state(same.seq()).get("p").cloned().unwrap_or_default(),
                past.state(past.seq()).get("p").cloned().unwrap_or_default()
            );
        }
        let mut torn = model.state(5);
        torn.get_mut("q").expect("q exists").clear();
        assert_eq!(model.prefix_equal_to(&torn, 0), None, "half of a batch is no prefix");
        assert_eq!(model.prefix_equal_to(&model.after(4).state(4), 5), None, "too old");
    }

    #[test]
    fn a_recreated_partition_is_empty_and_does_not_spoil_the_prefix() {
        let mut model = sample();
        model.drop_partition("q");
        model.create("q");
        assert_eq!(model.get("q", b"a", 5), None);
        let mut observed = model.after(3).state(1);
        observed.insert("q".to_owned(), Contents::new());
        assert_eq!(model.prefix_equal_to(&observed, 3), Some(3));
        model.put("q", b"z", b"6");
        assert_eq!(model.prefix_equal_to(&model.state(6), 0), Some(model.log().len()));
    }

    #[test]
    fn a_partition_that_is_made_while_it_exists_keeps_what_it_has() {
        let mut model = sample();
        model.step(Step::Create("q".to_owned()));
        let steps = model.log().len();
        assert_eq!(model.prefix_equal_to(&model.state(model.seq()), steps), Some(steps));
    }
}
