//! The drawing of a workload: throughput over the share of strong keys, a line for each setup.

use std::fmt::Write;

use super::series::{Load, Series, Setup, Spread};
use crate::svg::page;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 50.0;

const STYLE: &str = "\
.name{font-size:14px}polyline{fill:none;stroke-width:2}.baseline{stroke:#8a949e}\
.offloaded{stroke:#3a6ea5}.optimal{stroke:#c2571a}\
rect.baseline{fill:#8a949e}rect.offloaded{fill:#3a6ea5}rect.optimal{fill:#c2571a}";

fn class_of(setup: Setup) -> &'static str {
    setup.name()
}

/// The drawing of these lines.
pub(super) fn draw(title: &str, series: &[Series]) -> String {
    let lines: Vec<_> = series.iter().map(|of| (of.setup, medians(of))).collect();
    let points = lines.iter().flat_map(|(_, points)| points);
    let most = points.map(|(_, rate)| *rate).fold(1.0, f64::max) * 1.1;
    let mut body = rules(most);
    for strong in (0..=100).step_by(20) {
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{strong} %</text>",
            x_of(strong),
            HEIGHT - BOTTOM + 18.0
        );
    }
    for (place, (setup, points)) in lines.iter().enumerate() {
        let class = class_of(*setup);
        let mut line = String::new();
        for (strong, rate) in points {
            let _ = write!(line, "{:.1},{:.1} ", x_of(*strong), y_of(*rate, most));
        }
        let x = LEFT + 150.0 * place as f64;
        let y = HEIGHT - 12.0;
        let _ = writeln!(
            body,
            "<polyline class=\"{class}\" points=\"{}\"/>\
             <polyline class=\"{class}\" points=\"{x:.1},{:.1} {:.1},{:.1}\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\">{class}</text>",
            line.trim_end(),
            y - 4.0,
            x + 24.0,
            y - 4.0,
            x + 30.0
        );
    }
    let _ = write!(
        body,
        "<text class=\"name\" x=\"{LEFT}\" y=\"22\">{title}</text>\n\
         <text x=\"{LEFT}\" y=\"40\">operations a second over the share of strong keys</text>\n"
    );
    page(title, STYLE, WIDTH, HEIGHT, &body)
}

/// The drawing of the throughput with all keys strong: a bar for each way of each workload.
pub(super) fn draw_strong(all: &[(Load, Vec<Series>)]) -> String {
    let rates = all.iter().flat_map(|(_, series)| series.iter().map(last_rate));
    let most = rates.fold(1.0, f64::max) * 1.1;
    let mut body = rules(most);
    for (group, (load, series)) in all.iter().enumerate() {
        let first = LEFT + 30.0 + 180.0 * group as f64;
        for (place, of) in series.iter().enumerate() {
            let rate = last_rate(of);
            let x = first + 45.0 * place as f64;
            let y = y_of(rate, most);
            let _ = writeln!(
                body,
                "<rect class=\"{}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"36\" height=\"{:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.1}</text>",
                class_of(of.setup),
                HEIGHT - BOTTOM - y,
                x + 18.0,
                y - 5.0,
                rate / 1000.0
            );
        }
        let _ = writeln!(
            body,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            first + 50.0,
            HEIGHT - BOTTOM + 20.0,
            load.name()
        );
    }
    for (place, setup) in [Setup::Baseline, Setup::Offloaded, Setup::Optimal].iter().enumerate() {
        let x = LEFT + 150.0 * place as f64;
        let y = HEIGHT - 12.0;
        let class = class_of(*setup);
        let _ = writeln!(
            body,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"14\" height=\"10\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\">{class}</text>",
            y - 9.0,
            x + 20.0
        );
    }
    let title = "All keys strong";
    let _ = write!(
        body,
        "<text class=\"name\" x=\"{LEFT}\" y=\"22\">{title}</text>\n\
         <text x=\"{LEFT}\" y=\"40\">thousand operations a second of each workload</text>\n"
    );
    page(title, STYLE, WIDTH, HEIGHT, &body)
}

/// The throughput at the last share.
fn last_rate(of: &Series) -> f64 {
    medians(of).last().map_or(0.0, |(_, rate)| *rate)
}

/// The lines of the scale of rates.
fn rules(most: f64) -> String {
    let mut body = String::new();
    for line in 0..=4 {
        let rate = most * f64::from(line) / 4.0;
        let y = y_of(rate, most);
        let _ = writeln!(
            body,
            "<line class=\"rule\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.*} k</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            usize::from(most < 20_000.0),
            rate / 1000.0
        );
    }
    body
}

/// The medians over the shares.
fn medians(of: &Series) -> Vec<(u64, f64)> {
    let points = of.points.iter();
    points.map(|(at, runs)| (*at, Spread::of(runs.iter().map(|run| run.rate)).median)).collect()
}

fn x_of(strong: u64) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * strong as f64 / 100.0
}

fn y_of(rate: f64, most: f64) -> f64 {
    HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / most
}

#[cfg(test)]
mod tests {
    use super::super::series::Measured;
    use super::*;

    #[test]
    fn every_way_has_a_line_over_all_shares() {
        let points = (0..=10)
            .map(|n| (n * 10, vec![Measured { rate: 1000.0 + n as f64, processor_us: 1.0 }]));
        let points: Vec<_> = points.collect();
        let setups = [Setup::Baseline, Setup::Offloaded, Setup::Optimal];
        let series = setups.map(|setup| Series { setup, points: points.clone() });
        let drawing = draw("C: reads alone", &series);
        for setup in setups {
            assert_eq!(drawing.matches(&format!("class=\"{}\"", setup.name())).count(), 2);
        }
        assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"));
    }
    #[test]
    fn every_workload_has_a_bar_for_each_of_its_ways() {
        let measured = vec![Measured { rate: 1000.0, processor_us: 1.0 }];
        let all = Load::ALL.map(|load| {
            let points = vec![(0, measured.clone()), (100, measured.clone())];
            let of =
                load.setups().iter().map(|setup| Series { setup: *setup, points: points.clone() });
            (load, of.collect::<Vec<_>>())
        });
        let drawing = draw_strong(&all);
        // One more is in the key. No read of W is there that the third way could serve.
        for (name, count) in [("baseline", 4), ("offloaded", 4), ("optimal", 3)] {
            assert_eq!(
                drawing.matches(&format!("<rect class=\"{name}\"")).count(),
                count,
                "{name}"
            );
        }
    }
}
