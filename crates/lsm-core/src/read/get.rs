//! One key: memtables newest first, level 0 newest first, then one table a level; stops at the
//! first entry found, because a newer place never holds an older version than a deeper one.
//!
//! Allocates nothing on a miss.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::hooks::ValueStore;
use crate::limits::FORMAT_VALUE_BYTES_MAX;
use crate::partition::ReadView;
use crate::sstable::bloom_hash;
use crate::types::{EntryKind, SeqNo, Slice, Trailer};
use crate::version::{Table, TableContext};

/// What a point read reads through.
pub struct GetContext<'a> {
    /// Memtables and tables.
    pub view: &'a ReadView,
    /// How tables are opened.
    pub tables: &'a TableContext,
    /// Where large values live.
    pub store: Option<&'a Arc<dyn ValueStore>>,
    /// Operations up to this one are seen.
    pub seq: SeqNo,
}

/// The value of `key`, a stored key.
///
/// # Errors
/// Corruption that names the table if the key, or the way to it, is damaged.
pub fn get(context: &GetContext<'_>, key: &[u8]) -> Result<Option<Slice>> {
    let GetContext { view, tables, seq, .. } = *context;
    let hash = bloom_hash(key);
    for memtable in view.memtables() {
        if let Some((trailer, value)) = memtable.get(key, hash, seq) {
            return resolve(context, trailer, value, None, key);
        }
    }
    for table in view.version.levels[0].tables() {
        if !table.meta.covers(key) {
            continue;
        }
        if let Some((trailer, value)) = look_up(table, tables, key, hash, seq)? {
            return resolve(context, trailer, value, Some(table), key);
        }
    }
    for level in &view.version.levels[1..] {
        let Some(table) = level.find(key) else { continue };
        if let Some((trailer, value)) = look_up(table, tables, key, hash, seq)? {
            return resolve(context, trailer, value, Some(table), key);
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
    context: &GetContext<'_>,
    trailer: Trailer,
    value: Slice,
    table: Option<&Table>,
    key: &[u8],
) -> Result<Option<Slice>> {
    match (trailer.kind(), context.store) {
        (Some(EntryKind::Tombstone), _) => Ok(None),
        (Some(EntryKind::Value), _) => Ok(Some(value)),
        (Some(EntryKind::Handle), Some(store)) => {
            let value = read_handle(&**store, &value).map_err(|error| error.at_key(key))?;
            Ok(Some(value.into()))
        }
        (kind, _) => Err(unreadable(kind, table, context.tables, key)),
    }
}

/// The whole value of a handle.
///
/// # Errors
/// Those of the store; a limit for a value too long to be held in memory.
pub fn read_handle(store: &dyn ValueStore, handle: &[u8]) -> Result<Vec<u8>> {
    let len = store.len(handle)?;
    let len = usize::try_from(len).ok().filter(|len| *len as u64 <= FORMAT_VALUE_BYTES_MAX);
    let Some(len) = len else {
        let (what, limit) = ("a value read at once", FORMAT_VALUE_BYTES_MAX);
        return Err(Error::limit(what, store.len(handle)?, limit));
    };
    store.read(handle, 0, len)
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
