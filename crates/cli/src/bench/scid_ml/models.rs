//! [`Model`]: a predictor of levels; those that need no forest.

use server::Predictor;
use testkit::Rng;
use testkit::rng::mix64;
use testkit::workload::KeySpace;

use super::trace::{Cuts, Row, counts};

const KEY_BYTES: usize = 16;

/// A predictor that has learnt.
pub(super) trait Model {
    fn predict(&mut self, row: &Row) -> u8;

    /// The client names the level that the read needed.
    fn correct(&mut self, _row: &Row, _predicted: u8) {}
}

/// Guesses at random.
pub(super) struct Random(pub(super) Rng);

impl Model for Random {
    fn predict(&mut self, _: &Row) -> u8 {
        1 + self.0.below(5) as u8
    }
}

/// The level of most operations.
pub(super) struct Majority(u8);

impl Majority {
    pub(super) fn new(training: &[Row]) -> Majority {
        let mut counts = [0; 6];
        for row in training {
            counts[usize::from(row.level)] += 1;
        }
        let most = (1..=5).max_by_key(|level| counts[usize::from(*level)]);
        Majority(most.unwrap_or(1))
    }
}

impl Model for Majority {
    fn predict(&mut self, _: &Row) -> u8 {
        self.0
    }
}

/// The level that the key had in the training; without one, that of most operations.
pub(super) struct Remembered {
    levels: Vec<u8>,
    other: Majority,
}

impl Remembered {
    pub(super) fn new(records: u64, training: &[Row]) -> Remembered {
        let mut levels = vec![0; records as usize];
        for row in training {
            levels[row.record as usize] = row.level;
        }
        Remembered { levels, other: Majority::new(training) }
    }
}

impl Model for Remembered {
    fn predict(&mut self, row: &Row) -> u8 {
        match self.levels[row.record as usize] {
            0 => self.other.predict(row),
            level => level,
        }
    }
}

/// The accesses of the key in the training, cut as levels are. It has seen no level.
pub(super) struct Counter {
    counts: Vec<u32>,
    cuts: Cuts,
}

impl Counter {
    pub(super) fn new(records: u64, training: &[Row]) -> Counter {
        let counts = counts(records, training);
        let cuts = Cuts::new(training.iter().map(|row| counts[row.record as usize]).collect());
        Counter { counts, cuts }
    }
}

impl Model for Counter {
    fn predict(&mut self, row: &Row) -> u8 {
        self.cuts.level(self.counts[row.record as usize])
    }
}

const ROWS: u64 = 4;
const CELLS: u64 = 1 << 16;

/// The same with a count-min sketch, whose memory does not grow with the keys.
pub(super) struct Sketch {
    cells: Vec<u32>,
    cuts: Cuts,
}

impl Sketch {
    pub(super) fn new(training: &[Row]) -> Sketch {
        let mut cells = vec![0; (ROWS * CELLS) as usize];
        for row in training {
            for at in places(row.record) {
                cells[at] += 1;
            }
        }
        let counts = training.iter().map(|row| least(&cells, row.record)).collect();
        Sketch { cells, cuts: Cuts::new(counts) }
    }
}

fn places(record: u64) -> impl Iterator<Item = usize> {
    (0..ROWS).map(move |row| (row * CELLS + mix64(record ^ (row + 1) << 40) % CELLS) as usize)
}

fn least(cells: &[u32], record: u64) -> u32 {
    places(record).fold(u32::MAX, |least, at| least.min(cells[at]))
}

impl Model for Sketch {
    fn predict(&mut self, row: &Row) -> u8 {
        self.cuts.level(least(&self.cells, row.record))
    }
}

/// The predictor of the server: counts of two windows, which go on in the tests.
pub(super) struct Online {
    predictor: Predictor,
    keys: KeySpace,
    key: Vec<u8>,
    is_corrected: bool,
}

impl Online {
    /// Reads the training. With `is_corrected` clients correct wrong predictions.
    pub(super) fn new(records: u64, training: &[Row], is_corrected: bool) -> Online {
        let keys = KeySpace::new(records, KEY_BYTES);
        let predictor = Predictor::new();
        let mut online = Online { predictor, keys, key: Vec::new(), is_corrected };
        for row in training.iter().filter(|row| !row.is_update) {
            let level = online.predict(row);
            online.correct(row, level);
        }
        online
    }
}

impl Model for Online {
    fn predict(&mut self, row: &Row) -> u8 {
        self.keys.record(row.record, &mut self.key);
        // Without a prediction a read is at AUTO.
        self.predictor.predict("default", &self.key).unwrap_or(1)
    }

    fn correct(&mut self, row: &Row, predicted: u8) {
        if self.is_corrected && predicted != row.level {
            self.keys.record(row.record, &mut self.key);
            self.predictor.correct("default", &self.key, predicted, row.level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(record: u64, level: u8) -> Row {
        Row { time: 0, record, value: 0, is_update: false, level }
    }

    #[test]
    fn models_guess_what_they_have_learnt() {
        // Record 1 three times, record 2 twice, record 3 once.
        let training: Vec<Row> = [(1, 1), (1, 1), (2, 3), (1, 1), (2, 3), (3, 5)]
            .map(|(record, level)| row(record, level))
            .to_vec();
        let unknown = row(4, 5);
        assert_eq!(Majority::new(&training).predict(&unknown), 1);
        let mut remembered = Remembered::new(10, &training);
        assert_eq!([1, 2, 3, 4].map(|record| remembered.predict(&row(record, 0))), [1, 3, 5, 1]);
        let mut counter = Counter::new(10, &training);
        let mut sketch = Sketch::new(&training);
        for record in 1..5 {
            assert_eq!(counter.predict(&row(record, 0)), sketch.predict(&row(record, 0)));
        }
        let levels = [1, 2, 3, 4].map(|record| counter.predict(&row(record, 0)));
        assert!(levels.is_sorted() && levels[3] == 5, "{levels:?}");
        let mut random = Random(Rng::new(1));
        let guesses: Vec<u8> = (0..200).map(|_| random.predict(&unknown)).collect();
        assert!((1..=5).all(|level| guesses.contains(&level)) && !guesses.contains(&6));
    }

    #[test]
    fn the_server_learns_from_corrections_alone_if_it_is_corrected() {
        let training: Vec<Row> =
            (0..5000).map(|n| row(if n % 2 == 0 { 1 } else { n }, 5)).collect();
        let mut counted = Online::new(10_000, &training, false);
        assert_eq!(counted.predict(&row(1, 5)), 1);
        let mut corrected = Online::new(10_000, &training, true);
        assert_eq!(corrected.predict(&row(1, 5)), 5);
        corrected.correct(&row(1, 2), 5);
        assert_eq!(corrected.predict(&row(1, 2)), 2);
    }
}
