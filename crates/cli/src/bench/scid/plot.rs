//! The drawing of a workload: throughput over the share of strong keys, a line for each setup.

use std::fmt::Write;

use super::series::{Series, Setup, Spread};
use crate::svg::page;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 50.0;

const STYLE: &str = "\
.name{font-size:14px}polyline{fill:none;stroke-width:2}.baseline{stroke:#8a949e}\
.offloaded{stroke:#3a6ea5}.optimal{stroke:#c2571a}";

fn class_of(setup: Setup) -> &'static str {
    setup.name()
}

/// The drawing of these lines.
pub(super) fn draw(title: &str, series: &[Series]) -> String {
    let lines: Vec<_> = series.iter().map(|of| (of.setup, medians(of))).collect();
    let points = lines.iter().flat_map(|(_, points)| points);
    let most = points.map(|(_, rate)| *rate).fold(1.0, f64::max) * 1.1;
    let mut body = String::new();
    for line in 0..=4 {
        let rate = most * f64::from(line) / 4.0;
        let y = y_of(rate, most);
        let _ = writeln!(
            body,
            "<line class=\"rule\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.0} k</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            rate / 1000.0
        );
    }
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
}
