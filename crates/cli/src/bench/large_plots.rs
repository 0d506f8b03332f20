//! The drawings of `bench large --plots`: the paper's figures 6 to 9 for this machine.
//!
//! The sizes are spaced evenly on a logarithmic scale, so each has a column. A rate is drawn on a
//! logarithmic scale, because those of a synced put and of a read in a cache differ by a factor of 50; times
//! and ratios are drawn from zero.

use std::fmt::Write;
use std::path::Path;

use testkit::bench::large::{LargeOutcome, MixTime, SizeRates};

use crate::output::Failure;
use crate::svg::{self, page};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 70.0;
/// The names of the lines are right of it.
const RIGHT: f64 = 620.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 290.0;

/// A class for each line; further lines start again with the first.
const STYLE: &str = "\
polyline{fill:none;stroke-width:2}\
.l0{stroke:#3a6ea5}.l1{stroke:#c2571a}.l2{stroke:#3d8b4f}.l3{stroke:#8b5aa8}.l4{stroke:#8a8f98}\
.bar{fill:#3a6ea5}\
@media(prefers-color-scheme:dark){.l0{stroke:#7fb0e0}.l1{stroke:#e8894a}.l2{stroke:#7fc98f}\
.l3{stroke:#c39bdb}.l4{stroke:#a9afb8}.bar{fill:#7fb0e0}}";
const LINE_CLASSES: usize = 5;

/// A line of a drawing: its name, and its value in each column.
type Line = (String, Vec<f64>);

/// The scale of the upright axis.
#[derive(Clone, Copy)]
enum Scale {
    /// From 0.
    Linear,
    /// Decades.
    Logarithmic,
}

/// Writes the drawings into a folder; that of figure 8 if `files` were measured.
///
/// # Errors
/// Those of the folder.
#[expect(clippy::disallowed_methods, reason = "the folder is outside every database")]
pub(super) fn write(
    folder: &Path,
    outcome: &LargeOutcome,
    files: Option<&[SizeRates]>,
) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|e| Failure::io("create", folder, &e))?;
    svg::save(&folder.join("figure-6.svg"), &operations(&outcome.sizes))?;
    svg::save(&folder.join("figure-7.svg"), &mixes(&outcome.mixes))?;
    if let Some(files) = files {
        svg::save(&folder.join("figure-8.svg"), &over_files(&outcome.sizes, files))?;
    }
    svg::save(&folder.join("figure-9.svg"), &threads(&outcome.sizes))
}

fn line(name: &str, sizes: &[SizeRates], rate: fn(&SizeRates) -> f64) -> Line {
    (name.to_owned(), sizes.iter().map(rate).collect())
}

fn operations(sizes: &[SizeRates]) -> String {
    let lines = [
        line("put", sizes, |rates| rates.put),
        line("put synced", sizes, |rates| rates.put_synced),
        line("get", sizes, |rates| rates.get),
        line("delete", sizes, |rates| rates.delete),
        line("memcpy", sizes, |rates| rates.memcpy),
    ];
    chart("Large values: bytes per millisecond", sizes, &lines, Scale::Logarithmic)
}

/// Gets by each number of threads, over those of a file for each value.
fn over_files(sizes: &[SizeRates], files: &[SizeRates]) -> String {
    let counts = sizes.first().map_or(&[][..], |rates| &rates.get_by);
    let mut lines = Vec::new();
    for (at, (count, _)) in counts.iter().enumerate() {
        let both = sizes.iter().zip(files);
        let ratios = both.map(|(rates, files)| rates.get_by[at].1 / files.get);
        lines.push((format!("threads: {count}"), ratios.collect()));
    }
    let title = "Gets from chunk files, over those of a file for each value";
    chart(title, sizes, &lines, Scale::Linear)
}

fn threads(sizes: &[SizeRates]) -> String {
    let counts = sizes.first().map_or(&[][..], |rates| &rates.get_by);
    let mut lines = Vec::new();
    for (at, (count, _)) in counts.iter().enumerate().skip(1) {
        let ratios = sizes.iter().map(|rates| rates.get_by[at].1 / rates.get_by[0].1);
        lines.push((format!("{count} threads"), ratios.collect()));
    }
    let first = counts.first().map_or(1, |(count, _)| *count);
    let title = format!("Gets by several threads, over {first}");
    chart(&title, sizes, &lines, Scale::Linear)
}

/// The upright axis.
struct Axis {
    scale: Scale,
    /// The greatest value.
    most: f64,
    /// The values that have a rule, the least first.
    rules: Vec<f64>,
}

fn axis(lines: &[Line], scale: Scale) -> Axis {
    let most = lines.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    match scale {
        Scale::Linear => {
            let most = most.max(1.0).ceil();
            let rules = (0..=4).map(|n| most * f64::from(n) / 4.0);
            Axis { scale, most, rules: rules.collect() }
        }
        Scale::Logarithmic => {
            let decades = most.max(10.0).log10().ceil() as i32;
            let rules = ((decades - 5).max(0)..=decades).map(|n| 10_f64.powi(n));
            Axis { scale, most: 10_f64.powi(decades), rules: rules.collect() }
        }
    }
}

impl Axis {
    /// The place of a value.
    fn y_of(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => value / self.most,
            Scale::Logarithmic => {
                let least = self.rules.first().copied().unwrap_or(1.0).log10();
                (value.max(1e-9).log10() - least) / (self.most.log10() - least)
            }
        };
        BOTTOM - share.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }
}

/// Lines over the sizes.
fn chart(title: &str, sizes: &[SizeRates], lines: &[Line], scale: Scale) -> String {
    let mut body = head(title);
    let axis = axis(lines, scale);
    for rule in &axis.rules {
        let y = axis.y_of(*rule);
        let _ = writeln!(
            body,
            "<line class=\"rule\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{rule}</text>",
            LEFT - 8.0,
            y + 4.0
        );
    }
    let step = (RIGHT - LEFT) / (sizes.len().max(2) - 1) as f64;
    for (column, rates) in sizes.iter().enumerate() {
        let x = LEFT + step * column as f64;
        let _ = writeln!(
            body,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            BOTTOM + 20.0,
            size_text(rates.size)
        );
    }
    // Names of lines that end close together are moved apart.
    let mut ends: Vec<(usize, f64)> = Vec::new();
    for (number, (_, values)) in lines.iter().enumerate() {
        let points = values.iter().enumerate().map(|(column, value)| {
            format!("{:.1},{:.1}", LEFT + step * column as f64, axis.y_of(*value))
        });
        let points = points.collect::<Vec<_>>().join(" ");
        let class = number % LINE_CLASSES;
        let _ = writeln!(body, "<polyline class=\"l{class}\" points=\"{points}\"/>");
        ends.push((number, values.last().map_or(BOTTOM, |value| axis.y_of(*value))));
    }
    ends.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut free = TOP;
    for (number, end) in ends {
        let y = end.max(free);
        free = y + 16.0;
        let class = number % LINE_CLASSES;
        let _ = writeln!(
            body,
            "<line class=\"l{class}\" stroke-width=\"2\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" \
             y2=\"{y:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            RIGHT + 10.0,
            RIGHT + 28.0,
            RIGHT + 34.0,
            y + 4.0,
            lines[number].0
        );
    }
    page(title, STYLE, WIDTH, HEIGHT, &body)
}

/// Bytes per millisecond.
fn rate_of(mix: &MixTime) -> f64 {
    mix.bytes as f64 / (mix.took.as_secs_f64() * 1000.0).max(1e-9)
}

/// A bar for each mix: its rate.
fn mixes(mixes: &[MixTime]) -> String {
    let title = "Mixes of operations: bytes per millisecond";
    let mut body = head(title);
    let most = mixes.iter().map(rate_of).fold(1.0, f64::max);
    let mut y = TOP;
    for mix in mixes {
        let rate = rate_of(mix);
        let width = rate / most * (RIGHT - LEFT - 80.0);
        let name: String = mix.name.chars().filter(|c| !matches!(c, '<' | '>' | '&')).collect();
        let _ = writeln!(
            body,
            "<text x=\"24\" y=\"{:.1}\">{name}</text>\
             <rect class=\"bar\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"24\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{rate:.0}</text>",
            y + 17.0,
            LEFT + 60.0,
            LEFT + 68.0 + width,
            y + 17.0
        );
        y += 38.0;
    }
    page(title, STYLE, WIDTH, y + 10.0, &body)
}

fn head(title: &str) -> String {
    format!("<text class=\"name\" x=\"24\" y=\"28\">{title}</text>\n")
}

/// A size with three digits at most: 100 KB, 1.2 MB, 645 MB.
fn size_text(size: u64) -> String {
    let (value, unit) = match size {
        0..1000 => return format!("{size} B"),
        1000..1_000_000 => (size as f64 / 1e3, "KB"),
        _ => (size as f64 / 1e6, "MB"),
    };
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rates(size: u64, factor: f64) -> SizeRates {
        SizeRates {
            size,
            repetitions: 3,
            memcpy: 100_000.0 * factor,
            put: 1000.0 * factor,
            put_synced: 10.0 * factor,
            get: 10_000.0 * factor,
            get_by: vec![(1, 100.0), (2, 150.0 * factor)],
            lent_first: None,
            lent: None,
            delete: 1000.0 * factor,
        }
    }

    #[test]
    fn sizes_have_short_names() {
        let names = [100, 99_999, 100_000, 1_226_000, 645_000_000].map(size_text);
        assert_eq!(names, ["100 B", "100 KB", "100 KB", "1.2 MB", "645 MB"]);
    }

    fn point_count(line: &str) -> usize {
        line.split("points=\"").nth(1).unwrap().split(' ').count()
    }

    fn mix(name: &str, bytes: u64) -> MixTime {
        MixTime { name: name.to_owned(), operations: 1, bytes, took: Duration::from_millis(1) }
    }

    #[test]
    fn each_line_has_a_point_for_each_size_and_a_name_of_its_own_place() {
        let drawing = operations(&[rates(100, 1.0), rates(1000, 1.0), rates(10_000, 0.1)]);
        let lines: Vec<&str> =
            drawing.lines().filter(|line| line.starts_with("<polyline")).collect();
        assert_eq!(lines.len(), 5);
        assert!(lines.iter().all(|line| point_count(line) == 3), "{lines:?}");
        // The scale is logarithmic: the synced put begins four decades below the copy.
        assert!(lines[1].contains("points=\"70.0,242.0 345.0,242.0 620.0,290.0\""), "{}", lines[1]);
        assert!(lines[4].contains("points=\"70.0,50.0 345.0,50.0 620.0,98.0\""), "{}", lines[4]);
        // Puts and deletes end at the same place.
        assert!(drawing.contains("y=\"198.0\">put</text>"), "{drawing}");
        assert!(drawing.contains("y=\"214.0\">delete</text>"), "{drawing}");
    }

    #[test]
    fn threads_are_drawn_over_the_first_number() {
        let drawing = threads(&[rates(100, 1.0), rates(1000, 1.0)]);
        assert!(drawing.contains("Gets by several threads, over 1"));
        assert_eq!(drawing.matches("<polyline").count(), 1);
        // 1.5 of 2.
        assert!(drawing.contains("points=\"70.0,110.0 620.0,110.0\""), "{drawing}");
        assert!(threads(&[]).ends_with("</svg>\n"));
    }

    #[test]
    fn gets_are_drawn_over_those_of_files() {
        let files = [rates(100, 0.01), rates(1000, 0.005)];
        let drawing = over_files(&[rates(100, 1.0), rates(1000, 1.0)], &files);
        assert_eq!(drawing.matches("<polyline").count(), 2);
        // By one thread 1 and 2 of 3.
        assert!(drawing.contains("points=\"70.0,210.0 620.0,130.0\""), "{drawing}");
    }

    #[test]
    fn mixes_are_bars_as_long_as_their_rates() {
        let drawing = mixes(&[mix("a<b", 50), mix("fast", 100)]);
        assert!(drawing.contains(">ab</text>") && !drawing.contains("a<b"));
        assert!(drawing.contains("width=\"235.0\"") && drawing.contains("width=\"470.0\""));
    }
}
