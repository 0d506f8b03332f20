//! The results as text and as JSON.

use serde_json::{Value, json};

use super::experiment::{Outcome, Settings};
use super::trace::Split;

/// The settings, before the first table.
pub(super) fn head(settings: &Settings) -> String {
    let Settings { shape, trees, seed } = settings;
    format!(
        "{} operations on {} keys, zipfian, {} % updates, {trees} trees, seed {seed}",
        shape.ops, shape.records, shape.updates
    )
}

pub(super) fn settings(settings: &Settings) -> Value {
    let Settings { shape, trees, seed } = settings;
    json!({
        "records": shape.records,
        "ops": shape.ops,
        "updates_percent": shape.updates,
        "trees": trees,
        "seed": seed,
    })
}

/// The gain of throughput over random guesses, in percent, if all requests cost the same.
fn gain(outcome: &Outcome, random: &Outcome) -> f64 {
    100.0 * (random.requests() / outcome.requests() - 1.0)
}

/// A table in Markdown.
pub(super) fn text(split: Split, outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "\n| split {} | right | too weak | requests a read | against random | ns a prediction |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |",
        split.name()
    );
    for outcome in outcomes {
        text += &format!(
            "\n| {} | {:.3} | {:.3} | {:.2} | {:+.0} % | {:.0} |",
            outcome.model,
            outcome.right,
            outcome.too_weak,
            outcome.requests(),
            gain(outcome, &outcomes[0]),
            outcome.nanos,
        );
    }
    text
}

pub(super) fn json(split: Split, outcomes: &[Outcome]) -> Value {
    let all = outcomes.iter().map(|outcome| {
        json!({
            "model": outcome.model,
            "right": outcome.right,
            "too_weak": outcome.too_weak,
            "requests_per_read": outcome.requests(),
            "gain_over_random_percent": gain(outcome, &outcomes[0]),
            "ns_per_prediction": outcome.nanos,
        })
    });
    json!({ "split": split.name(), "models": all.collect::<Vec<_>>() })
}
