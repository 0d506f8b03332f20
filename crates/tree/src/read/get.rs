//! The read of one key. It searches memtables newest first, level 0 newest first, then one table of
//! each deeper level. It stops at the first entry that it finds, because no deeper place has a
//! newer version.
//!
//! It allocates nothing on a miss.

use std::sync::Arc;

use super::expired::Alive;
use super::fold::fold;
use crate::error::{Error, Result};
use crate::hooks::{AttachedOperator, AttachedStore};
use crate::memtable::Memtable;
use crate::partition::ReadView;
use crate::sstable::bloom_hash;
use crate::types::{EntryKind, Gap, InGap, SeqNo, Slice, Trailer};
use crate::version::{Table, TableContext};

/// The arguments of a point read, except the key.
pub struct GetContext<'a> {
    /// Memtables and tables.
    pub view: &'a ReadView,
    /// The means to open tables.
    pub tables: &'a TableContext,
    /// The store of large values.
    pub store: Option<&'a Arc<AttachedStore>>,
    /// The merge operator.
    pub operator: Option<&'a Arc<AttachedOperator>>,
    /// Operations up to this one are seen.
    pub seq: SeqNo,
    /// The entries that have not expired; `None` if all are seen.
    pub alive: Option<Alive<'a>>,
}

impl GetContext<'_> {
    /// Returns `false` if the entry of `key` has expired. `value` is that of the entry, if it is known.
    #[inline]
    pub(super) fn is_alive(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        self.alive.as_ref().is_none_or(|alive| alive.has(key, value))
    }
}

/// A search for one key, applied to each place that may hold the key.
pub trait Search<'a> {
    /// The finding that ends the search.
    type Found;

    /// Looks into a memtable.
    fn in_memtable(&mut self, memtable: &'a Memtable) -> Result<Option<Self::Found>>;

    /// Looks into a table of this level.
    fn in_table(&mut self, level: usize, table: &'a Table) -> Result<Option<Self::Found>>;
}

/// Applies `search` to the places of `view` that may hold `key`, until it finds something.
#[inline(always)]
pub fn search<'a, S: Search<'a>>(
    view: &'a ReadView,
    key: &[u8],
    search: &mut S,
) -> Result<Option<S::Found>> {
    // Newest place first, and the first entry found ends the search. This is correct because newer
    // entries of a key are never in a deeper place.
    for memtable in view.memtables() {
        if let Some(found) = search.in_memtable(memtable)? {
            return Ok(Some(found));
        }
    }
    for table in view.version.levels[0].tables() {
        // Key range first: it costs two comparisons, and no table has to be opened for it.
        if !table.meta.covers(key) {
            continue;
        }
        if let Some(found) = search.in_table(0, table)? {
            return Ok(Some(found));
        }
    }
    for (above, level) in view.version.levels[1..].iter().enumerate() {
        // One table at most: a deeper level is disjoint by user key.
        let Some(table) = level.find(key) else { continue };
        if let Some(found) = search.in_table(above + 1, table)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The place of a value.
#[derive(Clone, Debug)]
pub enum Located {
    /// Its bytes.
    Here(Slice),
    /// Its handle: it lies in the value store.
    Apart(Slice),
}

/// The place of the value of `key`, a stored key. The value store is not read.
///
/// # Errors
/// Those of [`get`].
pub fn locate(context: &GetContext<'_>, key: &[u8]) -> Result<Option<Located>> {
    let mut values = ValueSearch { context, key, hash: bloom_hash(key) };
    let found = search(context.view, key, &mut values)?;
    let Some((trailer, value, table)) = seen(context, key, found)? else { return Ok(None) };
    match (trailer.kind(), context.store) {
        (Some(EntryKind::Handle), Some(_)) => {
            Ok(context.is_alive(key, None).then_some(Located::Apart(value)))
        }
        (kind, _) => Ok(resolve(context, kind, value, table, key)?.map(Located::Here)),
    }
}

/// The value of `key`, a stored key.
///
/// # Errors
/// Corruption that names the table if the key, or the way to it, is damaged.
pub fn get(context: &GetContext<'_>, key: &[u8]) -> Result<Option<Slice>> {
    get_hashed(context, key, bloom_hash(key))
}

/// As [`get`], with the `bloom_hash` of the key.
#[inline(always)]
pub(super) fn get_hashed(context: &GetContext<'_>, key: &[u8], hash: u64) -> Result<Option<Slice>> {
    let found = search(context.view, key, &mut ValueSearch { context, key, hash })?;
    value_of(context, key, found)
}

/// The newest entry of a key, and the table that it lies in.
pub(super) type Found<'a> = (Trailer, Slice, Option<&'a Table>);

/// The value of `key`, for which a search found this entry or none.
///
/// # Errors
/// Those of [`get`].
#[inline(always)]
pub(super) fn value_of(
    context: &GetContext<'_>,
    key: &[u8],
    found: Option<Found<'_>>,
) -> Result<Option<Slice>> {
    match seen(context, key, found)? {
        Some((trailer, value, table)) => resolve(context, trailer.kind(), value, table, key),
        None => Ok(None),
    }
}

/// The entry that a search found for `key`, if it is the answer.
#[inline(always)]
fn seen<'a>(
    context: &GetContext<'_>,
    key: &[u8],
    found: Option<Found<'a>>,
) -> Result<Option<Found<'a>>> {
    let seq = found.as_ref().map(|(trailer, ..)| trailer.seq());
    Ok(if is_answer(context, key, seq)? { found } else { None })
}

/// Returns `true` if the entry that a read found for `key`, with this sequence or none, is its
/// answer. If it is not, the key has no value.
///
/// Checked after the search: an entry that is newer than the clear sequence, or than the loss in a gap, is
/// an answer all the same.
///
/// # Errors
/// Corruption if a newer entry may be lost: see [`Gap`].
#[inline(always)]
pub fn is_answer(context: &GetContext<'_>, key: &[u8], found: Option<SeqNo>) -> Result<bool> {
    let view = context.view;
    if view.version.gaps.is_empty() {
        // A missing key has no entry that a clear sequence could hide, so the clear sequence is not loaded.
        return Ok(!found.is_some_and(|found| view.hides(key, found, context.seq)));
    }
    is_answer_in_gaps(context, key, found)
}

#[cold]
fn is_answer_in_gaps(context: &GetContext<'_>, key: &[u8], found: Option<SeqNo>) -> Result<bool> {
    let gaps = &context.view.version.gaps;
    let deleted = context.view.deleted_at(key, context.seq);
    // A clear or a deleted range means the same for the key as its deletion.
    let newest = found.max((deleted > SeqNo::ZERO).then_some(deleted));
    match gaps.effect_on(key, context.seq, newest) {
        (InGap::Unknown, Some(gap)) => Err(lost(gap, context.tables).at_key(key)),
        (effect, _) => Ok(effect == InGap::Unaffected && newest == found),
    }
}

/// The error of a read that an open gap refuses.
pub fn lost(gap: &Gap, context: &TableContext) -> Error {
    let what = format!("entries are damaged beyond repair, {gap}");
    Error::corruption(&context.dir, None, what).between_keys(&gap.from, &gap.to)
}

/// The search of [`get`].
struct ValueSearch<'a> {
    context: &'a GetContext<'a>,
    key: &'a [u8],
    /// One for the Blooms of all memtables and tables.
    hash: u64,
}

impl<'a> Search<'a> for ValueSearch<'_> {
    type Found = Found<'a>;

    #[inline(always)]
    fn in_memtable(&mut self, memtable: &Memtable) -> Result<Option<Self::Found>> {
        let found = memtable.get(self.key, self.hash, self.context.seq);
        Ok(found.map(|(trailer, value)| (trailer, value, None)))
    }

    #[inline(always)]
    fn in_table(&mut self, _level: usize, table: &'a Table) -> Result<Option<Self::Found>> {
        let ValueSearch { context, key, hash } = *self;
        // The file is opened by the first read, not by the open of the database: with many tables
        // that would take long.
        let reader = table.reader(context.tables);
        let found = reader.and_then(|reader| reader.get(key, hash, context.seq));
        // A table that cannot be opened is damage on the way to the key as well.
        let found = found.map_err(|error| error.at_key(key))?;
        Ok(found.map(|(trailer, value)| (trailer, value, Some(table))))
    }
}

/// Returns the meaning of an entry of this kind, which lies in `table`, for `key`: its value, or
/// that there is none.
///
/// # Errors
/// Corruption of a record that is known to be damaged; those of the value store.
#[inline(always)]
pub fn resolve(
    context: &GetContext<'_>,
    kind: Option<EntryKind>,
    value: Slice,
    table: Option<&Table>,
    key: &[u8],
) -> Result<Option<Slice>> {
    match (kind, context.store) {
        (Some(EntryKind::Tombstone), _) => Ok(None),
        (Some(EntryKind::Value), _) => {
            Ok(if context.is_alive(key, Some(&value)) { Some(value) } else { None })
        }
        (Some(EntryKind::Handle), Some(_)) if !context.is_alive(key, None) => Ok(None),
        (Some(EntryKind::Handle), Some(store)) => {
            let value = store.read(&value).map_err(|error| error.at_key(key))?;
            Ok(Some(value.into()))
        }
        (Some(EntryKind::Operand), _) => Ok(fold(context, key)?.map(Into::into)),
        (kind, _) => Err(unreadable(kind, table, context.tables, key)),
    }
}

/// Returns the error of an entry whose value cannot be read.
pub(super) fn unreadable(
    kind: Option<EntryKind>,
    table: Option<&Table>,
    context: &TableContext,
    key: &[u8],
) -> Error {
    let path = table.map_or_else(|| context.dir.clone(), |table| table.path(context));
    let what = match kind {
        Some(EntryKind::Poison) => EntryKind::POISONED,
        _ => "the value is in a value store whose code is missing",
    };
    Error::corruption(path, None, what).at_key(key)
}
