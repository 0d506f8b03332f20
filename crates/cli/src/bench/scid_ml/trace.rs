//! [`Parts`]: the operations of a trace with their levels, as a part for training and a part for tests.

use testkit::Rng;
use testkit::rng::mix64;
use testkit::workload::Zipfian;

/// A forest takes numbers of 32-bit floating point, which are exact to this one.
pub(super) const RECORDS_MAX: u64 = 1 << 24;
const CLASSES: usize = 5;

/// Numbers of keys and operations, and the percentage of updates among these.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) records: u64,
    pub(super) ops: u64,
    pub(super) updates: u64,
}

/// An operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Its number in the trace.
    pub(super) time: u64,
    pub(super) record: u64,
    /// The begin of the value that it reads or writes.
    pub(super) value: u32,
    pub(super) is_update: bool,
    /// The level of its key.
    pub(super) level: u8,
}

/// A way to part a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Split {
    /// 70 of 100 operations, at random. The levels count the operations of both parts, as in the thesis.
    Random,
    /// 70 of 100 keys: the keys of the tests are not in the training. The levels as before.
    Keys,
    /// The first half. The levels of each part count its own operations.
    Time,
    /// As `Time`, and half of the keys change their rank between the parts.
    Drift,
}

impl Split {
    pub(super) const ALL: [Split; 4] = [Split::Random, Split::Keys, Split::Time, Split::Drift];

    pub(super) fn name(self) -> &'static str {
        match self {
            Split::Random => "random",
            Split::Keys => "by key",
            Split::Time => "by time",
            Split::Drift => "drift",
        }
    }
}

/// The parts of a trace.
pub(super) struct Parts {
    pub(super) training: Vec<Row>,
    /// Reads alone.
    pub(super) tests: Vec<Row>,
}

/// The cuts of counts, so that each class gets a fifth of the operations as far as equal counts allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cuts([u32; CLASSES - 1]);

impl Cuts {
    /// `counts` has the count of the key of each operation.
    pub(super) fn new(mut counts: Vec<u32>) -> Cuts {
        counts.sort_unstable();
        Cuts(std::array::from_fn(|cut| counts[(cut + 1) * counts.len() / CLASSES]))
    }

    /// The level of a key with this count.
    pub(super) fn level(&self, count: u32) -> u8 {
        (CLASSES - self.0.iter().filter(|cut| count >= **cut).count()) as u8
    }
}

/// The accesses of each record.
pub(super) fn counts(records: u64, rows: &[Row]) -> Vec<u32> {
    let mut counts = vec![0; records as usize];
    for row in rows {
        counts[row.record as usize] += 1;
    }
    counts
}

/// Gives each operation the level of its key.
fn label(records: u64, rows: &mut [Row]) {
    let counts = counts(records, rows);
    let cuts = Cuts::new(rows.iter().map(|row| counts[row.record as usize]).collect());
    for row in rows {
        row.level = cuts.level(counts[row.record as usize]);
    }
}

/// The record of a rank. Keys whose rank changes have another one later.
fn record_of(rank: u64, is_changed: bool, records: u64) -> u64 {
    let moves = is_changed && mix64(rank ^ 0x5c1d).is_multiple_of(2);
    mix64(if moves { rank + (1 << 40) } else { rank + 1 }) % records
}

/// The operations of a trace, without levels.
fn rows(shape: &Shape, split: Split, rng: &mut Rng) -> Vec<Row> {
    let zipfian = Zipfian::new(shape.records);
    let mut versions = vec![0; shape.records as usize];
    let mut rows = Vec::with_capacity(shape.ops as usize);
    for time in 0..shape.ops {
        let is_changed = split == Split::Drift && time >= shape.ops / 2;
        let record = record_of(zipfian.next(rng), is_changed, shape.records);
        let is_update = rng.chance(shape.updates, 100);
        let version: &mut u64 = &mut versions[record as usize];
        *version += u64::from(is_update);
        let value = (mix64(record << 24 ^ *version) >> 40) as u32;
        rows.push(Row { time, record, value, is_update, level: 0 });
    }
    rows
}

impl Parts {
    /// Makes a trace, and parts it.
    pub(super) fn new(shape: &Shape, split: Split, seed: u64) -> Parts {
        let mut rng = Rng::new(seed);
        let mut training = rows(shape, split, &mut rng);
        let mut tests = Vec::new();
        match split {
            Split::Random => {
                label(shape.records, &mut training);
                rng.shuffle(&mut training);
                tests = training.split_off(training.len() * 7 / 10);
            }
            Split::Keys => {
                label(shape.records, &mut training);
                let (known, unknown) =
                    training.into_iter().partition(|row| mix64(row.record + seed) % 10 < 7);
                training = known;
                tests = unknown;
            }
            Split::Time | Split::Drift => {
                tests.extend(training.split_off(training.len() / 2));
                label(shape.records, &mut training);
                label(shape.records, &mut tests);
            }
        }
        tests.retain(|row| !row.is_update);
        Parts { training, tests }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const SHAPE: Shape = Shape { records: 2000, ops: 5000, updates: 20 };

    fn records(parts: &Parts) -> Vec<u64> {
        parts.tests.iter().map(|row| row.record).collect()
    }

    #[test]
    fn a_seed_makes_the_same_parts_and_each_class_has_operations() {
        for split in Split::ALL {
            let parts = Parts::new(&SHAPE, split, 7);
            let again = Parts::new(&SHAPE, split, 7);
            let other = Parts::new(&SHAPE, split, 8);
            assert_eq!(records(&parts), records(&again));
            assert_ne!(records(&parts), records(&other));
            assert!(parts.tests.iter().all(|row| !row.is_update));
            let levels: HashSet<u8> = parts.training.iter().map(|row| row.level).collect();
            assert!(levels.len() >= 4 && levels.iter().all(|level| (1..=5).contains(level)));
        }
    }

    #[test]
    fn each_split_hides_what_its_name_says() {
        let keys = Parts::new(&SHAPE, Split::Keys, 1);
        let known: HashSet<u64> = keys.training.iter().map(|row| row.record).collect();
        assert!(keys.tests.iter().all(|row| !known.contains(&row.record)));
        let time = Parts::new(&SHAPE, Split::Time, 1);
        assert!(time.training.iter().all(|row| row.time < 2500));
        assert!(time.tests.iter().all(|row| row.time >= 2500));
        let moved =
            (0..1000).filter(|rank| record_of(*rank, true, 2000) != record_of(*rank, false, 2000));
        assert!((400..600).contains(&moved.count()));
    }

    #[test]
    fn cuts_part_operations_in_fifths() {
        let cuts = Cuts::new((1..=100).collect());
        let levels: Vec<u8> = [1, 20, 21, 41, 61, 81, 500].map(|count| cuts.level(count)).to_vec();
        assert_eq!(levels, [5, 5, 4, 3, 2, 1, 1]);
        // Equal counts are of one class.
        assert_eq!(Cuts::new(vec![1; 10]).level(1), 1);
    }
}
