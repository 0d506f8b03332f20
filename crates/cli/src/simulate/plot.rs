//! The drawing of `simulate`: costs over the number of records, which is drawn on a logarithmic scale.

use std::fmt::Write;

use super::Row;
use crate::svg::page;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 60.0;
/// The names of the lines are right of it.
const RIGHT: f64 = 520.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 330.0;

const STYLE: &str = "\
.name{font-size:14px}polyline{fill:none;stroke-width:2}\
.l0{stroke:#3a6ea5}.l1{stroke:#c2571a}.l2{stroke:#3d8b4f}.l3{stroke:#8b5aa8}\
@media(prefers-color-scheme:dark){.l0{stroke:#7fb0e0}.l1{stroke:#e8894a}.l2{stroke:#7fc98f}.l3{stroke:#c39bdb}}";

/// The drawing of these sizes, the smallest first.
pub(super) fn draw(rows: &[Row]) -> String {
    let lines = [
        ("writes: fill", points(rows, |row| Some(row.filled.write_amplification()))),
        ("writes: overwrites", points(rows, Row::write_amplification_of_overwrites)),
        ("tables for a get", points(rows, |row| Some(row.last().tables_per_get_average))),
        ("space", points(rows, |row| Some(row.last().space_amplification()))),
    ];
    let values = lines.iter().flat_map(|(_, points)| points).map(|(_, value)| *value);
    let most = values.fold(1.0, f64::max).ceil();
    let ends = (decades(rows.first()), decades(rows.last()));
    let mut body = String::new();
    for line in 0..=4 {
        let value = most * f64::from(line) / 4.0;
        let y = y_of(value, most);
        let _ = writeln!(
            body,
            "<line class=\"rule\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.1}</text>",
            LEFT - 8.0,
            y + 4.0
        );
    }
    for power in ends.0.ceil() as i32..=ends.1.floor() as i32 {
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x_of(f64::from(power), ends),
            BOTTOM + 20.0,
            power_text(power)
        );
    }
    for (class, (name, points)) in lines.iter().enumerate() {
        body.push_str(&line(class, name, points, most, ends));
    }
    let _ = write!(
        body,
        "<text class=\"name\" x=\"{LEFT}\" y=\"22\">Simulated costs over the number of records</text>\n\
         <text x=\"{LEFT}\" y=\"40\">bytes written for each byte put; bytes of tables for each byte of data; tables</text>\n"
    );
    page("Simulated costs over the number of records", STYLE, WIDTH, HEIGHT, &body)
}

fn points(rows: &[Row], value: impl Fn(&Row) -> Option<f64>) -> Vec<(f64, f64)> {
    rows.iter().filter_map(|row| Some((decades(Some(row)), value(row)?))).collect()
}

fn line(class: usize, name: &str, points: &[(f64, f64)], most: f64, ends: (f64, f64)) -> String {
    let mut text = String::new();
    for (at, value) in points {
        let _ = write!(text, "{:.1},{:.1} ", x_of(*at, ends), y_of(*value, most));
    }
    let y = TOP + 14.0 + 24.0 * class as f64;
    let from = RIGHT + 16.0;
    format!(
        "<polyline class=\"l{class}\" points=\"{}\"/>\
         <polyline class=\"l{class}\" points=\"{from:.1},{:.1} {:.1},{:.1}\"/>\
         <text x=\"{:.1}\" y=\"{y:.1}\">{name}</text>\n",
        text.trim_end(),
        y - 4.0,
        from + 24.0,
        y - 4.0,
        from + 30.0
    )
}

/// The logarithm of the number of records.
fn decades(row: Option<&Row>) -> f64 {
    row.map_or(0.0, |row| (row.last().records.max(1) as f64).log10())
}

fn power_text(power: i32) -> String {
    let unit = ["", " thousand", " million", " billion", " trillion", " quadrillion"];
    let unit = unit.get(power as usize / 3).copied().unwrap_or("");
    format!("{}{unit}", 10_u32.pow(power as u32 % 3))
}

fn x_of(at: f64, (first, last): (f64, f64)) -> f64 {
    LEFT + (RIGHT - LEFT) * (at - first) / (last - first).max(1e-9)
}

fn y_of(value: f64, most: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * value / most
}
