//! [`TableContents`]: what a simulated table has, as numbers; and the merge of several.
//!
//! Called by `mod.rs`. A merge asks the engine's own [`Split`] where its outputs end, at every place where the answer may
//! change: it depends on the length of an output, and on the ends of the tables below.
//!
//! Keys are places: 64 bits, the first 8 bytes of a key. Records lie evenly on them.

use crate::compaction::Split;
use crate::version::Table;

use super::load::Popularity;

/// Number of places.
const PLACES: f64 = 18_446_744_073_709_551_616.0;

/// The versions that a table has, spread evenly over a range of places.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableContents {
    /// First and last place.
    pub(super) first: u64,
    pub(super) last: u64,
    /// The share of the records of the range whose first version it has.
    pub(super) filled: f64,
    /// Overwrites for each record of the range.
    pub(super) draws: f64,
}

impl TableContents {
    /// Its part of all places.
    pub(super) fn width(&self) -> f64 {
        width(self.first, u128::from(self.last) + 1)
    }
}

fn width(from: u64, to: u128) -> f64 {
    (to - u128::from(from)) as f64 / PLACES
}

/// The means to turn shares into bytes.
pub(super) struct Measures<'a> {
    pub(super) popularity: &'a Popularity,
    pub(super) records: f64,
    /// Bytes of an entry in the tables that are written.
    pub(super) entry_bytes: f64,
}

/// A table that a merge writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedTable {
    pub(super) contents: TableContents,
    pub(super) entries: f64,
}

/// An output under way.
#[derive(Clone, Copy, Default)]
struct UnfinishedTable {
    first: Option<u64>,
    end: u128,
    /// Shares and draws, each times the width that it is over.
    filled: f64,
    draws: f64,
    entries: f64,
}

impl UnfinishedTable {
    fn finish(&mut self) -> Option<SimulatedTable> {
        let UnfinishedTable { first, end, filled, draws, entries } = std::mem::take(self);
        let first = first?;
        let last = (end - 1) as u64;
        let width = width(first, end);
        let contents = TableContents { first, last, filled: filled / width, draws: draws / width };
        Some(SimulatedTable { contents, entries })
    }
}

/// The outputs of a merge of `inputs`, whose tables end where `split` says. `below` are the tables that it knows.
pub(super) fn merge(
    inputs: &[TableContents],
    split: &mut Split,
    below: &[std::sync::Arc<Table>],
    table_bytes: u64,
    measures: &Measures<'_>,
) -> Vec<SimulatedTable> {
    let mut borders: Vec<u128> = Vec::new();
    for input in inputs {
        borders.extend([u128::from(input.first), u128::from(input.last) + 1]);
    }
    borders.extend(below.iter().map(|table| u128::from(place_of(&table.meta.largest.user)) + 1));
    borders.sort_unstable();
    borders.dedup();
    let mut outputs = Vec::new();
    let mut output = UnfinishedTable::default();
    for piece in borders.windows(2) {
        let Ok(from) = u64::try_from(piece[0]) else { break };
        let to = piece[1];
        let over: Vec<_> = inputs.iter().filter(|it| it.first <= from && from <= it.last).collect();
        let filled: f64 = over.iter().map(|it| it.filled).sum();
        let draws: f64 = over.iter().map(|it| it.draws).sum();
        let density = measures.popularity.occupied(filled, draws) * measures.records;
        if density <= 0.0 {
            continue;
        }
        let mut at = from;
        while u128::from(at) < to {
            let bytes = output.entries * measures.entry_bytes;
            if split.ends_before(&at.to_be_bytes(), bytes as u64) {
                outputs.extend(output.finish());
                split.begin();
            }
            // As far as the table is full, or to the end of the piece. At least a record's width, so that it ends.
            let left = (table_bytes as f64 - output.entries * measures.entry_bytes).max(0.0);
            let places = (left / measures.entry_bytes / density).max(1.0 / density) * PLACES;
            let end = to.min(u128::from(at) + places as u128 + 1);
            let width = width(at, end);
            output.first.get_or_insert(at);
            output.end = end;
            output.filled += filled * width;
            output.draws += draws * width;
            output.entries += density * width;
            let Ok(next) = u64::try_from(end) else { break };
            at = next;
        }
    }
    outputs.extend(output.finish());
    outputs
}

/// The place of a key that a simulation made.
pub(super) fn place_of(user: &[u8]) -> u64 {
    user.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
