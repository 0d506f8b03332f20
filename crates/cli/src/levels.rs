//! `levels`: the tables of each level, as text, as JSON, or as a drawing.
//!
//! Everything comes from the manifest; no table is read. The drawing is made in `levels/svg.rs`.

mod svg;

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::{Value, json};
use siltstone::raw::SstMeta;

use crate::bucket::ReadLength;
use crate::bytes::Bytes;
use crate::engine::{Existing, partition_names};
use crate::output::{Failure, Output, note};
use crate::stats::bytes;

/// Longest key that is printed in a table for people, in characters: two of them fit into a line of 80.
const KEY_CHARS_MAX: usize = 13;
/// The end of a key that is cut.
const CUT: &str = "..";

/// Arguments of `levels`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database, or URL of its bucket
    database: PathBuf,
    /// One line for each table
    #[arg(long)]
    tables: bool,
    /// Draw the levels into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A table and where it lies.
struct PlacedTable {
    level: usize,
    meta: SstMeta,
}

/// A partition and its tables: level 0 newest first, then each deeper level in key order.
struct PartitionShape {
    partition: String,
    tables: Vec<PlacedTable>,
}

impl PartitionShape {
    /// The levels that hold tables, with these.
    fn levels(&self) -> impl Iterator<Item = (usize, &[PlacedTable])> {
        self.tables.chunk_by(|a, b| a.level == b.level).map(|tables| (tables[0].level, tables))
    }
}

/// Shows the levels of every partition.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let existing = Existing::open_to_read(&args.database, ReadLength::Short)?;
    let mut shapes = Vec::new();
    for name in partition_names(&existing.db) {
        let walk = existing.partition(&name)?.walk()?;
        let tables = walk
            .tables()
            .map(|table| PlacedTable { level: table.level(), meta: table.meta().clone() });
        shapes.push(PartitionShape { tables: tables.collect(), partition: name });
    }
    if let Some(path) = &args.svg {
        crate::svg::save(path, &svg::draw(&shapes))?;
    }
    let mut out = Output::new(args.json);
    out.line(text(&shapes, args.tables), &json(&shapes))?;
    out.finish()?;
    if let Some(path) = args.svg.as_ref().filter(|_| !args.json) {
        note(format_args!("drawn into {}", path.display()));
    }
    Ok(existing.close()?)
}

/// The contents of a row about one table or several.
#[derive(Default)]
struct Sum {
    tables: u64,
    bytes: u64,
    entries: u64,
    tombstones: u64,
    hidden: u64,
}

impl Sum {
    fn of(tables: &[PlacedTable]) -> Sum {
        tables.iter().fold(Sum::default(), |sum, PlacedTable { meta, .. }| Sum {
            tables: sum.tables + 1,
            bytes: sum.bytes + meta.bytes,
            entries: sum.entries + meta.entries,
            tombstones: sum.tombstones + meta.tombstones,
            hidden: sum.hidden + meta.hidden,
        })
    }
}

/// First and last user key of some tables.
fn range(tables: &[PlacedTable]) -> Option<(&[u8], &[u8])> {
    let first = tables.iter().map(|table| &*table.meta.smallest.user).min()?;
    let last = tables.iter().map(|table| &*table.meta.largest.user).max()?;
    Some((first, last))
}

/// A key for people: escaped, and cut where it is long.
fn short_key(key: &[u8]) -> String {
    let text = Bytes::Text.text(key);
    if text.chars().count() <= KEY_CHARS_MAX {
        return text;
    }
    let kept: String = text.chars().take(KEY_CHARS_MAX - CUT.len()).collect();
    kept + CUT
}

/// At most 80 columns wide, unless the name of a partition is longer.
fn text(shapes: &[PartitionShape], each_table: bool) -> String {
    let mut text = format!(
        "{:>5} {:>7} {:>11} {:>10} {:>10}  keys",
        "level", "tables", "size", "entries", "tombstones"
    );
    for shape in shapes {
        let _ = write!(text, "\npartition {}", shape.partition.escape_debug());
        if shape.tables.is_empty() {
            text.push_str(&row("-", &[], "0"));
        }
        for (level, tables) in shape.levels() {
            text.push_str(&row(&level.to_string(), tables, &tables.len().to_string()));
            for table in tables.iter().filter(|_| each_table) {
                let number = format!("#{}", table.meta.file);
                text.push_str(&row("", std::slice::from_ref(table), &number));
            }
        }
    }
    text
}

/// A line about some tables.
fn row(level: &str, tables: &[PlacedTable], count: &str) -> String {
    let sum = Sum::of(tables);
    let keys = range(tables).map_or(String::new(), |(first, last)| {
        format!("{} to {}", short_key(first), short_key(last))
    });
    let line = format!(
        "\n{level:>5} {count:>7} {:>11} {:>10} {:>10}  {keys}",
        bytes(sum.bytes),
        sum.entries,
        sum.tombstones,
    );
    line.trim_end().to_owned()
}

fn table_json(PlacedTable { meta, .. }: &PlacedTable) -> Value {
    let object = json!({
        "file": meta.file.0,
        "epoch": meta.epoch.0,
        "bytes": meta.bytes,
        "entries": meta.entries,
        "tombstones": meta.tombstones,
        "hidden": meta.hidden,
        "min_seq": meta.min_seq.get(),
        "max_seq": meta.max_seq.get(),
        "global_seq": meta.global_seq.map(siltstone::SeqNo::get),
    });
    let object = Bytes::Text.with(object, "first_key", &*meta.smallest.user);
    Bytes::Text.with(object, "last_key", &*meta.largest.user)
}

fn level_json((level, tables): (usize, &[PlacedTable])) -> Value {
    let sum = Sum::of(tables);
    json!({
        "level": level,
        "table_count": sum.tables,
        "bytes": sum.bytes,
        "entries": sum.entries,
        "tombstones": sum.tombstones,
        "hidden": sum.hidden,
        "tables": tables.iter().map(table_json).collect::<Vec<_>>(),
    })
}

fn json(shapes: &[PartitionShape]) -> Value {
    json!({ "partitions": shapes.iter().map(|shape: &PartitionShape| {
        json!({
            "partition": shape.partition,
            "levels": shape.levels().map(level_json).collect::<Vec<_>>(),
        })
    }).collect::<Vec<_>>() })
}
