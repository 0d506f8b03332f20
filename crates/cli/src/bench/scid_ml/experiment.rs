//! [`run`]: all predictors on one split of a trace.

use testkit::Rng;
use testkit::bench::measure::processor_time;

use super::forest::{Columns, Forest};
use super::models::{Counter, Majority, Model, Online, Random, Remembered, Sketch};
use super::trace::{Parts, Row, Shape, Split};

/// The settings of the experiment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) shape: Shape,
    pub(super) trees: usize,
    pub(super) seed: u64,
}

/// The result of one predictor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) model: &'static str,
    /// Shares of all reads: the level is right; it is weaker than needed, and the read may return old data.
    pub(super) right: f64,
    pub(super) too_weak: f64,
    /// Processor time of a prediction, with its correction, in nanoseconds.
    pub(super) nanos: f64,
}

impl Outcome {
    /// Requests for each read: a wrong prediction costs a second one.
    pub(super) fn requests(&self) -> f64 {
        2.0 - self.right
    }
}

fn measure(model: &'static str, guessing: &mut dyn Model, tests: &[Row]) -> Outcome {
    let mut right = 0.0;
    let mut too_weak = 0.0;
    let begun = processor_time();
    for row in tests {
        let level = guessing.predict(row);
        guessing.correct(row, level);
        right += f64::from(u8::from(level == row.level));
        too_weak += f64::from(u8::from(level > row.level));
    }
    let nanos = processor_time().saturating_sub(begun).as_nanos() as f64;
    let all = tests.len().max(1) as f64;
    Outcome { model, right: right / all, too_weak: too_weak / all, nanos: nanos / all }
}

/// Trains all predictors on a split, and tests them. The first one guesses at random.
pub(super) fn run(settings: &Settings, split: Split) -> Vec<Outcome> {
    let Settings { shape, trees, seed } = *settings;
    let Parts { training, tests } = Parts::new(&shape, split, seed);
    let mut models: Vec<(&'static str, Box<dyn Model>)> = vec![
        ("random", Box::new(Random(Rng::new(seed)))),
        ("majority", Box::new(Majority::new(&training))),
        ("remembered level", Box::new(Remembered::new(shape.records, &training))),
        ("counter", Box::new(Counter::new(shape.records, &training))),
        ("count-min sketch", Box::new(Sketch::new(&training))),
        ("server", Box::new(Online::new(shape.records, &training, false))),
        ("server, corrected", Box::new(Online::new(shape.records, &training, true))),
    ];
    if trees > 0 {
        let forests = [
            ("forest", Columns::All),
            ("forest without the value", Columns::WithoutValue),
            ("forest of the key alone", Columns::Key),
        ];
        for (name, columns) in forests {
            models.push((name, Box::new(Forest::new(&training, columns, trees, seed))));
        }
    }
    models.iter_mut().map(|(name, model)| measure(name, &mut **model, &tests)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shares of right predictions on a split.
    fn right(split: Split) -> [f64; 3] {
        let shape = Shape { records: 3000, ops: 6000, updates: 0 };
        let outcomes = run(&Settings { shape, trees: 3, seed: 5 }, split);
        ["random", "remembered level", "forest of the key alone"]
            .map(|model| outcomes.iter().find(|it| it.model == model).map(|it| it.right).unwrap())
    }

    #[test]
    fn a_split_by_key_leaves_nothing_to_remember() {
        let [random, remembered, forest] = right(Split::Random);
        assert!((0.15..0.25).contains(&random), "{random}");
        assert!(remembered > 0.7 && forest > 0.7, "{remembered} {forest}");
        let [_, remembered, forest] = right(Split::Keys);
        assert!(remembered < 0.5 && forest < 0.5, "{remembered} {forest}");
    }
}
