//! One key: memtables newest first, level 0 newest first, then one table a level; stops at the
//! first entry found, because a newer place never holds an older version than a deeper one.
//!
//! Allocates nothing on a miss.

use crate::error::{Error, Result};
use crate::partition::ReadView;
use crate::sstable::bloom_hash;
use crate::types::{EntryKind, SeqNo, Slice, Trailer};
use crate::version::{Table, TableContext};

/// The value of `key` that a reader of `view` at `seq` sees.
///
/// # Errors
/// Corruption that names the table if the key, or the way to it, is damaged.
pub fn get(
    view: &ReadView,
    context: &TableContext,
    key: &[u8],
    seq: SeqNo,
) -> Result<Option<Slice>> {
    for memtable in view.memtables() {
        if let Some((trailer, value)) = memtable.get(key, seq) {
            return resolve(trailer, value, None, context, key);
        }
    }
    let hash = bloom_hash(key);
    for table in view.version.levels[0].tables() {
        if !table.meta.covers(key) {
            continue;
        }
        if let Some((trailer, value)) = look_up(table, context, key, hash, seq)? {
            return resolve(trailer, value, Some(table), context, key);
        }
    }
    for level in &view.version.levels[1..] {
        let Some(table) = level.find(key) else { continue };
        if let Some((trailer, value)) = look_up(table, context, key, hash, seq)? {
            return resolve(trailer, value, Some(table), context, key);
        }
    }
    Ok(None)
}

#[inline]
fn look_up(
    table: &Table,
    context: &TableContext,
    key: &[u8],
    hash: u64,
    seq: SeqNo,
) -> Result<Option<(Trailer, Slice)>> {
    // A table that cannot be opened is damage on the way to the key as well.
    let found = table.reader(context).and_then(|reader| reader.get(key, hash, seq));
    found.map_err(|error| error.at_key(key))
}

fn resolve(
    trailer: Trailer,
    value: Slice,
    table: Option<&Table>,
    context: &TableContext,
    key: &[u8],
) -> Result<Option<Slice>> {
    match trailer.kind() {
        Some(EntryKind::Tombstone) => Ok(None),
        Some(EntryKind::Value) => Ok(Some(value)),
        kind => Err(unreadable(kind, table, context, key)),
    }
}

/// Why an entry of this kind has no value to give.
pub(super) fn unreadable(
    kind: Option<EntryKind>,
    table: Option<&Table>,
    context: &TableContext,
    key: &[u8],
) -> Error {
    let path = table.map_or_else(|| context.dir.clone(), |table| table.path(context));
    let what = match kind {
        Some(EntryKind::Poison) => "the record is known to be damaged",
        _ => "the value lies in a value store that is not there",
    };
    Error::corruption(path, None, what).at_key(key)
}
