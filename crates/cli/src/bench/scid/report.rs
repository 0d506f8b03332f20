//! The results of a workload as text and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::series::{Load, Series, Spread};

fn spread(of: Spread) -> Value {
    json!({ "median": of.median, "lower_quartile": of.low, "upper_quartile": of.high })
}

/// The greatest distance of a share's median from the mean of all, in percent.
fn furthest(slopes: &[Spread]) -> f64 {
    100.0 * slopes.iter().map(|of| of.median.abs()).fold(0.0, f64::max)
}

/// The results as a table in Markdown: throughputs and ratios to the baseline, which is the first of the
/// series, as medians with their quartiles; processor time as means. Then a line for each setup.
pub(super) fn text(load: Load, series: &[Series]) -> String {
    let base = &series[0];
    let others = &series[1..];
    let mut text = format!("{}, {} rounds\n\n| strong keys |", load.title(), base.rounds());
    let mut rule = "\n| --- |".to_owned();
    for of in series {
        let _ = write!(text, " {}, op/s | us |", of.setup.name());
        rule.push_str(" ---: | ---: |");
    }
    for of in others {
        let _ = write!(text, " {} / {} |", of.setup.name(), base.setup.name());
        rule.push_str(" ---: |");
    }
    text.push_str(&rule);
    for (place, (strong, _)) in base.points.iter().enumerate() {
        let _ = write!(text, "\n| {strong} % |");
        for of in series {
            let Spread { low, median, high } =
                Spread::of(of.points[place].1.iter().map(|run| run.rate));
            let processor_us = of.processor_us(place);
            let _ = write!(text, " {median:.0} ({low:.0} to {high:.0}) | {processor_us:.1} |");
        }
        for of in others {
            let _ = write!(text, " {} |", ratio(of.ratio(base, place)));
        }
    }
    text.push('\n');
    for of in series {
        let name = of.setup.name();
        let _ =
            write!(text, "\n{name}: each share within {:.1} % of the mean", furthest(&of.slopes()));
        if of.setup != base.setup {
            let _ = write!(text, "; over all shares {}", ratio(of.ratio_over_all(base)));
        }
    }
    text.push('\n');
    text
}

fn ratio(Spread { low, median, high }: Spread) -> String {
    format!("{median:.2} ({low:.2} to {high:.2})")
}

/// The results as JSON.
pub(super) fn json(load: Load, series: &[Series]) -> Value {
    let base = &series[0];
    let all: Vec<Value> = series.iter().map(|of| of_one(of, base)).collect();
    json!({ "workload": load.name(), "rounds": base.rounds(), "series": all })
}

fn of_one(of: &Series, base: &Series) -> Value {
    let slopes = of.slopes();
    let points = of.points.iter().enumerate().map(|(place, (strong, runs))| {
        json!({
            "strong_percent": strong,
            "ops_per_second": spread(Spread::of(runs.iter().map(|run| run.rate))),
            "ratio_to_baseline": spread(of.ratio(base, place)),
            "distance_from_mean": spread(slopes[place]),
            "processor_us_per_op": of.processor_us(place),
        })
    });
    json!({
        "way": of.setup.name(),
        "points": points.collect::<Vec<_>>(),
        "ratio_to_baseline": spread(of.ratio_over_all(base)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::scid::series::{Measured, Setup};

    #[test]
    fn the_table_has_a_row_for_each_share_and_a_ratio_for_each_way_but_the_baseline() {
        let series =
            [(Setup::Baseline, 1000.0), (Setup::Offloaded, 1500.0)].map(|(setup, rate)| {
                let runs =
                    [rate, rate * 1.1].map(|rate| vec![Measured { rate, processor_us: 20.0 }; 3]);
                let [none, all] = runs;
                Series { setup, points: vec![(0, none), (100, all)] }
            });
        let text = text(Load::Writes, &series);
        let expected = "W: writes alone, 3 rounds\n\n\
            | strong keys | baseline, op/s | us | offloaded, op/s | us | offloaded / baseline |\n\
            | --- | ---: | ---: | ---: | ---: | ---: |\n\
            | 0 % | 1000 (1000 to 1000) | 20.0 | 1500 (1500 to 1500) | 20.0 | 1.50 (1.50 to 1.50) |\n\
            | 100 % | 1100 (1100 to 1100) | 20.0 | 1650 (1650 to 1650) | 20.0 | 1.50 (1.50 to 1.50) |\n\
            \nbaseline: each share within 4.8 % of the mean\n\
            offloaded: each share within 4.8 % of the mean; over all shares 1.50 (1.50 to 1.50)\n";
        assert_eq!(text, expected);
    }
}
