//! [`Forest`]: the random forest of the thesis.

use rafor::prelude::{CommonTrainerBuilder, EnsembleTrainerBuilder};
use rafor::rf::Classifier;

use super::models::Model;
use super::trace::Row;

/// The columns that a forest learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    /// Those of the thesis: time, date, key, value, sizes of key and value, operation. The count of accesses is what the
    /// level is made of, and no column.
    All,
    /// The same without the value, which a read does not know before it is done.
    WithoutValue,
    /// The key alone.
    Key,
}

/// Sizes and date do not differ in a trace of one day.
const DATE: f32 = 1.0;
const KEY_BYTES: f32 = 16.0;
const VALUE_BYTES: f32 = 1000.0;

impl Columns {
    fn of(self, row: &Row, out: &mut Vec<f32>) {
        out.push(row.record as f32);
        if self != Columns::Key {
            let operation = f32::from(u8::from(row.is_update));
            out.extend([row.time as f32, DATE, KEY_BYTES, VALUE_BYTES, operation]);
        }
        if self == Columns::All {
            out.push(row.value as f32);
        }
    }
}

/// A random forest over the columns of an operation.
pub(super) struct Forest {
    classifier: Classifier,
    columns: Columns,
    values: Vec<f32>,
}

impl Forest {
    pub(super) fn new(training: &[Row], columns: Columns, trees: usize, seed: u64) -> Forest {
        let mut values = Vec::new();
        training.iter().for_each(|row| columns.of(row, &mut values));
        let levels: Vec<i64> = training.iter().map(|row| i64::from(row.level)).collect();
        let mut trainer = Classifier::trainer();
        trainer.with_trees(trees).with_seed(seed);
        Forest { classifier: trainer.train(&values, &levels), columns, values: Vec::new() }
    }
}

impl Model for Forest {
    fn predict(&mut self, row: &Row) -> u8 {
        self.values.clear();
        self.columns.of(row, &mut self.values);
        self.classifier.predict_one(&self.values) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: u64) -> Row {
        let record = n % 50;
        let level = if record < 25 { 1 } else { 4 };
        Row { time: n * 7 % 100, record, value: 0, is_update: false, level }
    }

    #[test]
    fn a_forest_learns_the_levels_of_keys() {
        let training: Vec<Row> = (0..500).map(row).collect();
        for columns in [Columns::Key, Columns::WithoutValue, Columns::All] {
            let mut forest = Forest::new(&training, columns, 10, 1);
            let right =
                (0..50).filter(|record| forest.predict(&row(*record)) == row(*record).level);
            assert!(right.count() > 45, "{columns:?}");
        }
    }
}
