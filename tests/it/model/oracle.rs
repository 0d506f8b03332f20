//! The expected content of the store: one model of all logged partitions together, and one of each
//! partition without a log, because a power cut cuts each of those separately.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

use siltstone::SeqNo;
use testkit::model::{Contents, Model, Op, State, Step};

use super::fifo::{FifoLog, Operands};

/// Returns `true` if a value of a partition, by its name, has expired.
pub type IsExpired<'a> = dyn Fn(&str, &[u8]) -> bool + 'a;

/// A model, and how much of its log must survive a power cut.
#[derive(Default)]
struct Tracked {
    model: Model,
    durable_steps: usize,
}

impl Tracked {
    fn contents(&self, name: &str) -> Contents {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let entries = self.model.range(name, all, self.model.seq());
        entries.map(|(key, value)| (key.to_vec(), value.clone())).collect()
    }

    fn all_is_durable(&mut self) {
        self.durable_steps = self.model.log().len();
    }

    /// Cuts the model to the recovered state, which must be a long enough prefix, of what has not expired. Of a partition
    /// in `fifos`, the oldest commits of that prefix may be gone.
    fn cut_to(
        &mut self,
        mut observed: State,
        fifos: &mut BTreeMap<String, FifoLog>,
        is_expired: &IsExpired<'_>,
    ) {
        let mut of_fifos = State::new();
        for name in fifos.keys() {
            of_fifos.insert(name.clone(), observed.remove(name).unwrap_or_default());
        }
        let mut seen = Model::new();
        for step in self.model.log() {
            let mut step = step.clone();
            if let Step::Commit(ops) = &mut step {
                ops.retain(|op| !fifos.contains_key(&op.partition));
                for op in ops {
                    let Op { partition, value, .. } = op;
                    value.take_if(|value| is_expired(partition, value));
                }
            }
            seen.step(step);
        }
        let mut prefix = seen.prefix_equal_to(&observed, self.durable_steps);
        while let Some(steps) = prefix {
            let are_cut = fifos.iter_mut().all(|(name, log)| {
                log.cut_to(&of_fifos[name], steps..=steps, &|value| !is_expired(name, value))
            });
            if are_cut {
                break;
            }
            prefix = seen.prefix_equal_to(&observed, steps + 1);
        }
        if prefix.is_none() {
            let any = seen.prefix_equal_to(&observed, 0);
            panic!(
                "what came back is no prefix that holds the first {} of {} steps, {}",
                self.durable_steps,
                self.model.log().len(),
                any.map_or("nor any other".to_owned(), |n| format!("but one that ends at {n}")),
            );
        }
        observed.append(&mut of_fifos);
        let mut model = Model::new();
        for (name, contents) in &observed {
            model.create(name);
            model.commit(
                contents
                    .iter()
                    .map(|(key, value): (&Vec<u8>, _)| {
                        let value: &testkit::model::Value = value;
                        Op { partition: name.clone(), key: key.clone(), value: Some(value.clone()) }
                    })
                    .collect(),
            );
        }
        self.model = model;
        self.all_is_durable();
    }
}

#[derive(Default)]
pub struct Oracle {
    logged: Tracked,
    unlogged: BTreeMap<String, Tracked>,
    /// Partitions that are a FIFO, with a log or without one. They are in the models above, too, with what is gone.
    fifos: BTreeMap<String, FifoLog>,
    /// Sequence numbers of logged commits in the store, and the steps up to them.
    commits: Vec<(SeqNo, usize)>,
    /// The last of them for which a sync was requested.
    synced: SeqNo,
}

impl Oracle {
    pub fn create(&mut self, name: &str, logged: bool, is_fifo: bool) {
        if is_fifo {
            self.fifos.entry(name.to_owned()).or_insert_with(FifoLog::new);
        }
        if logged {
            self.logged.model.create(name);
        } else {
            self.unlogged.entry(name.to_owned()).or_default().model.create(name);
        }
    }

    pub fn drop_partition(&mut self, name: &str) {
        self.fifos.remove(name);
        if self.unlogged.remove(name).is_none() {
            self.logged.model.drop_partition(name);
        }
    }

    /// All of `ops` are in logged partitions, or all in partitions without a log.
    pub fn commit(&mut self, ops: Vec<Op>, seq: SeqNo, operands: &Operands) {
        let is_logged = !self.unlogged.contains_key(&ops[0].partition);
        for (name, log) in &mut self.fifos {
            let model = &self.unlogged.get(name).unwrap_or(&self.logged).model;
            log.commit(name, model.log().len() + 1, &ops, operands);
        }
        if is_logged {
            self.logged.model.commit(ops);
            self.commits.push((seq, self.logged.model.log().len()));
            return;
        }
        // One step for each partition: a flush of one makes no other one durable.
        let mut by_partition: BTreeMap<String, Vec<Op>> = BTreeMap::new();
        for op in ops {
            by_partition.entry(op.partition.clone()).or_default().push(op);
        }
        for (name, ops) in by_partition {
            self.unlogged.get_mut(&name).unwrap().model.commit(ops);
        }
    }

    pub fn contents(&self, name: &str) -> Contents {
        if let Some(log) = self.fifos.get(name) {
            return log.contents();
        }
        self.unlogged.get(name).unwrap_or(&self.logged).contents(name)
    }

    /// Every logged commit was synced.
    pub fn log_is_synced(&mut self) {
        self.logged.all_is_durable();
        self.synced = self.commits.last().map_or(self.synced, |(seq, _)| *seq);
    }

    /// The store reports that every logged commit up to `seq` is on the device.
    pub fn log_is_durable_through(&mut self, seq: SeqNo) {
        let through = self.commits.iter().filter(|(commit, _)| *commit <= seq);
        let steps = through.map(|(_, steps)| *steps).max().unwrap_or(0);
        self.logged.durable_steps = self.logged.durable_steps.max(steps);
    }

    /// The partition was flushed.
    pub fn is_flushed(&mut self, name: &str) {
        if let Some(tracked) = self.unlogged.get_mut(name) {
            tracked.all_is_durable();
        }
    }

    /// Everything is in tables. That is no sync: a partition that was dropped since needs none.
    pub fn everything_is_flushed(&mut self) {
        self.unlogged.values_mut().for_each(Tracked::all_is_durable);
        self.logged.all_is_durable();
    }

    /// The last logged commit since the open or the last power cut.
    pub fn last_commit(&self) -> Option<SeqNo> {
        self.commits.last().map(|(seq, _)| *seq)
    }

    /// The last commit that was synced.
    pub fn synced_seq(&self) -> SeqNo {
        self.synced
    }

    /// The histories of a FIFO.
    pub fn fifo(&self, name: &str) -> Option<&FifoLog> {
        self.fifos.get(name)
    }

    /// As [`FifoLog::see`].
    pub fn see_fifo(
        &mut self,
        name: &str,
        observed: &Contents,
        is_alive: &dyn Fn(&[u8]) -> bool,
    ) -> usize {
        self.fifos.get_mut(name).map_or(0, |log| log.see(observed, is_alive))
    }

    /// Cuts everything to the state after a power cut.
    pub fn cut_to(&mut self, mut observed: State, is_expired: &IsExpired<'_>) {
        let mut fifos = std::mem::take(&mut self.fifos);
        for (name, tracked) in &mut self.unlogged {
            let contents = observed.remove(name).unwrap_or_default();
            if let Some(log) = fifos.get_mut(name) {
                let steps = tracked.durable_steps..=tracked.model.log().len();
                let is_cut = log.cut_to(&contents, steps, &|value| !is_expired(name, value));
                assert!(is_cut, "{name} is no end of a prefix");
                self.fifos.extend(fifos.remove_entry(name));
                tracked.model = Model::new();
                tracked.model.create(name);
                tracked.all_is_durable();
                continue;
            }
            let state = State::from([(name.clone(), contents)]);
            tracked.cut_to(state, &mut BTreeMap::new(), is_expired);
        }
        self.logged.cut_to(observed, &mut fifos, is_expired);
        self.fifos.append(&mut fifos);
        self.commits.clear();
    }
}

/// The entries of `contents` within the bounds.
pub fn within(
    contents: &Rc<Contents>,
    bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let inside = contents.iter().filter(|(key, _)| bounds.contains(*key));
    inside.map(|(key, value)| (key.clone(), value.to_vec())).collect()
}
