//! The reads of many keys at one moment.
//!
//! A get waits for memory, or for the device, several times, one after the other: for the Bloom filter, the place of
//! the block in the cache, the block. The gets of a group wait together: each step has the processor or the device
//! fetch what the next step needs, for all keys.
//!
//! Only tables that are open are prepared: the error of an open would be lost here. For a key it is the first one
//! that may have it: with Bloom filters it nearly always has it. A key that is not there is looked for again, by a get.
//!
//! The value of a key is copied when its turn comes, also out of a memtable: a group holds no values.

use std::borrow::Cow;

use crate::error::Result;
use crate::memtable::FoundEntry;
use crate::sstable::{TargetBlock, bloom_hash};
use crate::types::{KeyForm, Slice, prefix8};
use crate::version::Table;

use super::get::{GetContext, get_hashed, value_of};

/// Keys of one group. Their Bloom lines, and what a search of their blocks touches first, fit
/// in the cache of a processor.
const GROUP_KEYS: usize = 64;

/// A key on its way through the steps.
struct Wanted<'a> {
    key: Cow<'a, [u8]>,
    hash: u64,
    /// The place of its answer.
    at: usize,
    /// Its entry, if a memtable has one.
    entry: Option<FoundEntry<'a>>,
    /// The end of the tables that may have it, in the list of the whole group.
    candidates_end: usize,
    /// The first of them whose Bloom filter does not exclude it.
    table: Option<&'a Table>,
    /// Its block that may have the key.
    block: Option<TargetBlock>,
}

/// Gives `visit` the place and the value of each of `keys`, until it returns `false`; `form` makes stored keys of them. They
/// come in groups of 64, the last one shorter, and in the order of their places within a group.
///
/// # Errors
/// Those of [`get`](super::get), of any of the keys.
pub fn multi_get<K: AsRef<[u8]>>(
    context: &GetContext<'_>,
    form: KeyForm,
    keys: &[K],
    visit: &mut dyn FnMut(usize, Option<Slice>) -> bool,
) -> Result<()> {
    let mut order: Vec<(u64, usize)> =
        keys.iter().map(|key| prefix8(key.as_ref())).zip(0..).collect();
    // Keys of one table and of one block come together. By the prefix alone: the order is no more than a help.
    order.sort_unstable();
    let mut group = Vec::with_capacity(GROUP_KEYS.min(keys.len()));
    let mut candidates = Vec::with_capacity(group.capacity() * 3);
    for numbers in order.chunks(GROUP_KEYS) {
        candidates.clear();
        group.extend(numbers.iter().map(|&(_, at)| {
            let key = form.stored_of(keys[at].as_ref());
            let hash = bloom_hash(&key);
            Wanted { key, hash, at, entry: None, candidates_end: 0, table: None, block: None }
        }));
        prepare(context, &mut group, &mut candidates);
        group.sort_unstable_by_key(|wanted| wanted.at);
        for wanted in group.drain(..) {
            if !visit(wanted.at, read(context, wanted)?) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The values that `multi_get` gives the function that it is called with, by their places.
///
/// # Errors
/// Those of `multi_get`.
pub fn all_values(
    count: usize,
    multi_get: impl FnOnce(&mut dyn FnMut(usize, Option<Slice>) -> bool) -> Result<()>,
) -> Result<Vec<Option<Slice>>> {
    let mut values = vec![None; count];
    multi_get(&mut |at, value| {
        values[at] = value;
        true
    })?;
    Ok(values)
}

/// Has memory and device fetch what the reads of the group wait for.
fn prepare<'a>(
    context: &'a GetContext<'_>,
    group: &mut [Wanted<'a>],
    candidates: &mut Vec<&'a Table>,
) {
    for wanted in &*group {
        context.view.memtables().for_each(|memtable| memtable.prefetch_bloom(wanted.hash));
    }
    // As in every search, the newest place first, and the first entry ends it.
    for memtable in context.view.memtables() {
        let rest = group.iter().enumerate().filter(|(_, wanted)| wanted.entry.is_none());
        let rest = rest.map(|(number, wanted)| (number, &*wanted.key, wanted.hash));
        let mut found = Vec::new();
        memtable.find_all(rest, context.seq, |number, entry| found.push((number, entry)));
        found.into_iter().for_each(|(number, entry)| group[number].entry = Some(entry));
    }
    for wanted in group.iter_mut().filter(|wanted| wanted.entry.is_none()) {
        let from = candidates.len();
        let version = &context.view.version;
        let level0 = version.levels[0].tables().iter();
        candidates
            .extend(level0.filter(|table| table.meta.covers(&wanted.key)).map(|table| &**table));
        let deeper = version.levels[1..].iter().filter_map(|level| level.find(&wanted.key));
        candidates.extend(deeper.map(|table| &**table));
        wanted.candidates_end = candidates.len();
        for table in &candidates[from..] {
            if let Some(reader) = table.opened() {
                reader.prefetch_bloom(wanted.hash);
            }
        }
    }
    let mut from = 0;
    for wanted in group.iter_mut().filter(|wanted| wanted.entry.is_none()) {
        for &table in &candidates[from..wanted.candidates_end] {
            // A get opens it, and returns the error.
            let Some(reader) = table.opened() else { break };
            if reader.may_contain(wanted.hash) {
                wanted.table = Some(table);
                wanted.block = reader.prepare_get(&wanted.key, context.seq);
                break;
            }
        }
        from = wanted.candidates_end;
    }
    for wanted in group.iter() {
        if let (Some(table), Some(block)) = (wanted.table, &wanted.block)
            && let Some(reader) = table.opened()
        {
            reader.read_ahead(block);
        }
    }
}

/// Reads a key that is in no memtable, or in the entry that was found there; in no table before the one that is prepared, and
/// there in one block.
fn read(context: &GetContext<'_>, wanted: Wanted<'_>) -> Result<Option<Slice>> {
    let Wanted { key, hash, entry, table, block, .. } = wanted;
    if let Some(entry) = entry {
        let (trailer, value) = entry.read();
        return value_of(context, &key, Some((trailer, value, None)));
    }
    if let (Some(table), Some(block)) = (table, block)
        && let Some(reader) = table.opened()
        && let Some((trailer, value)) = reader.get_in(block, &key, context.seq)?
    {
        return value_of(context, &key, Some((trailer, value, Some(table))));
    }
    get_hashed(context, &key, hash)
}
