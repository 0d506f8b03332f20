//! The drawing of `levels`: a row for each level, a box for each table over the keys that it
//! covers.
//!
//! The width follows the size of the data: a key range with much data is wide. So boxes of one
//! level are about as wide as their tables are large, and overlapping tables are in one column.
//! Level 0 has as many lanes as tables overlap.
//!
//! Invariants:
//! 1. One file that needs no other, with its own colours for dark and light surroundings.
//! 2. Whatever the keys are, the text is well-formed XML.

use std::fmt::Write;

use super::{PartitionShape, PlacedTable, Sum, short_key};
use crate::stats::bytes;
use crate::svg::page;

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 24.0;
/// The left edge of the boxes; the totals of a level are left of it.
const LEFT: f64 = 210.0;
const LANE: f64 = 26.0;
const BOX: f64 = 21.0;
const LEVEL_GAP: f64 = 12.0;
/// A box that is narrower than this has no text.
const TEXT_MIN: f64 = 74.0;

const STYLE: &str = "\
.name{font-size:15px}.soft{fill:#5b6773}\
.table{fill:#c9dcf0;stroke:#3a6ea5;stroke-width:1}.dead{fill:#c2571a;fill-opacity:.75}\
.in{font-size:11px}\
@media(prefers-color-scheme:dark){.soft{fill:#9aa5b1}.table{fill:#27435f;stroke:#7fb0e0}\
.dead{fill:#e8894a}}";

/// The drawing of these partitions.
pub(super) fn draw(shapes: &[PartitionShape]) -> String {
    let mut body = String::new();
    let mut y = MARGIN;
    for shape in shapes {
        y = partition(&mut body, shape, y);
    }
    let _ = writeln!(
        body,
        "<text class=\"soft\" x=\"{MARGIN}\" y=\"{:.1}\">Width: how much lies at the keys. \
         Orange: the share of tombstones.</text>",
        y + 4.0
    );
    page("Levels", STYLE, WIDTH, y + MARGIN, &body)
}

/// Draws one partition from `y` downwards; returns where the next one begins.
fn partition(body: &mut String, shape: &PartitionShape, mut y: f64) -> f64 {
    let sum = Sum::of(&shape.tables);
    let name = escape(&shape.partition.escape_debug().to_string());
    let _ = write!(
        body,
        "<text class=\"name\" x=\"{MARGIN}\" y=\"{:.1}\">{name}</text>\n\
         <text class=\"soft\" x=\"{LEFT}\" y=\"{:.1}\">{}: {}, {} entries, {} tombstones</text>\n",
        y + 14.0,
        y + 14.0,
        tables_text(sum.tables),
        bytes(sum.bytes),
        sum.entries,
        sum.tombstones
    );
    y += 30.0;
    let scale = Scale::of(&shape.tables);
    for (level, tables) in shape.levels() {
        let sum = Sum::of(tables);
        let _ = write!(
            body,
            "<line class=\"rule\" x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n\
             <text x=\"{MARGIN}\" y=\"{:.1}\">Level {level}</text>\n\
             <text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\">{}, {}</text>\n",
            WIDTH - MARGIN,
            y + 21.0,
            MARGIN + 58.0,
            y + 21.0,
            tables_text(sum.tables),
            bytes(sum.bytes)
        );
        // The last box in each lane ends here.
        let mut lanes: Vec<f64> = Vec::new();
        let mut placed: Vec<_> = tables.iter().map(|table| (scale.span(table), table)).collect();
        placed.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
        for ((from, to), table) in placed {
            let free = lanes.iter().position(|end| *end <= from + 0.01);
            let lane = free.unwrap_or_else(|| {
                lanes.push(0.0);
                lanes.len() - 1
            });
            lanes[lane] = to;
            table_box(body, table, from, to, y + 6.0 + LANE * lane as f64);
        }
        y += 6.0 + LANE * lanes.len() as f64 + LEVEL_GAP;
    }
    if let Some((first, last)) = super::range(&shape.tables) {
        let _ = write!(
            body,
            "<text class=\"soft in\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>\n\
             <text class=\"soft in\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            y + 2.0,
            escape(&short_key(first)),
            WIDTH - MARGIN,
            y + 2.0,
            escape(&short_key(last))
        );
    }
    y + 34.0
}

fn tables_text(count: u64) -> String {
    if count == 1 { "1 table".to_owned() } else { format!("{count} tables") }
}

fn table_box(body: &mut String, table: &PlacedTable, from: f64, to: f64, y: f64) {
    let meta = &table.meta;
    // A gap between neighbours, as far as there is room for one.
    let width = (to - from - 1.5).max(1.0);
    let dead = if meta.entries == 0 { 0.0 } else { meta.tombstones as f64 / meta.entries as f64 };
    let _ = write!(
        body,
        "<g><title>file {}: {} to {}, {}, {} entries, {} tombstones</title>\
         <rect class=\"table\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BOX}\" \
         rx=\"2\"/>",
        meta.file,
        escape(&short_key(&meta.smallest.user)),
        escape(&short_key(&meta.largest.user)),
        bytes(meta.bytes),
        meta.entries,
        meta.tombstones
    );
    if dead > 0.0 {
        let _ = write!(
            body,
            "<rect class=\"dead\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"3\"/>",
            y + BOX - 3.0,
            width * dead
        );
    }
    if width >= TEXT_MIN {
        let _ = write!(
            body,
            "<text class=\"in\" x=\"{:.1}\" y=\"{:.1}\">{} <tspan class=\"soft\">{}</tspan></text>",
            from + 6.0,
            y + 14.5,
            meta.file,
            bytes(meta.bytes)
        );
    }
    body.push_str("</g>\n");
}

/// From user keys to places in the drawing.
struct Scale<'a> {
    /// Keys at which a table begins or ends, in order, each with how much lies before it.
    stops: Vec<(&'a [u8], f64)>,
}

impl<'a> Scale<'a> {
    /// Spreads the size of each table evenly over the stops inside of it.
    fn of(tables: &'a [PlacedTable]) -> Scale<'a> {
        let ends = |table: &'a PlacedTable| [&*table.meta.smallest.user, &*table.meta.largest.user];
        let mut keys: Vec<&[u8]> = tables.iter().flat_map(ends).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut change = vec![0.0; keys.len() + 1];
        for table in tables {
            let [first, last] =
                ends(table).map(|key: &[u8]| keys.partition_point(|stop| *stop < key));
            if first < last {
                let share = table.meta.bytes as f64 / (last - first) as f64;
                change[first] += share;
                change[last] -= share;
            }
        }
        let mut density = 0.0;
        let mut sum = 0.0;
        let stops = keys.into_iter().zip(change).map(|(key, change)| {
            let stop = (key, sum);
            density += change;
            sum += f64::max(density, 0.0);
            stop
        });
        Scale { stops: stops.collect() }
    }

    fn place(&self, key: &[u8]) -> f64 {
        let whole = self.stops.last().map_or(1.0, |(_, sum)| sum.max(1.0));
        let at = self.stops.partition_point(|(stop, _)| *stop < key);
        let before = self.stops.get(at).map_or(whole, |(_, sum)| *sum);
        LEFT + before / whole * (WIDTH - MARGIN - LEFT)
    }

    /// The left and right edge of the box of a table.
    fn span(&self, table: &PlacedTable) -> (f64, f64) {
        let from = self.place(&table.meta.smallest.user);
        let to = self.place(&table.meta.largest.user);
        (from.min(WIDTH - MARGIN - 4.0), to.max(from + 4.0))
    }
}

/// Text for XML: keys are escaped already, and so hold no control characters.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            // What XML does not allow at all.
            '\u{fffe}' | '\u{ffff}' => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_in_xml_is_escaped() {
        assert_eq!(escape("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
        let svg = draw(&[PartitionShape { partition: "<\u{1}>".to_owned(), tables: Vec::new() }]);
        assert!(svg.contains("&lt;\\u{1}&gt;"), "{svg}");
    }
}
