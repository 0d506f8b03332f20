//! [`MergeInput`]: a sorted input of a merge: a memtable, a table, or the tables of a level.
//!
//! Opened by `run.rs`. If a filter of the partition seals, the merge also reads the hidden entries
//! and the place of each entry, because an error names the place. All other partitions use the
//! plain readers. Damage of an input fails the merge, but for that of a repair, which reads on.
//!
//! Invariant: inputs never change. They bypass the block cache: a merge reads each block once, and
//! would drive out the blocks that readers use.

use std::sync::Arc;

use super::JobIter;
use super::job_iter::{JobEntry, asked_one_by_one};
use super::rules::is_plausible;
use crate::error::{Error, Result};
use crate::hooks::{Fault, InputTable, JobFindings, Origin, PartitionHooks, Vouched};
use crate::iter::{InternalIter, forward_to_variants};
use crate::memtable::MemtableIter;
use crate::sstable::{JudgedIter, RawIter, RawMode, ReadMode};
use crate::types::{EntryKind, Gap, InternalKey, KeyRef, SeqNo, Trailer};
use crate::version::{Judges, Level, LevelIter, Readers, Table, TableContext};

/// A sorted input of a merge.
pub(super) enum MergeInput {
    /// A memtable.
    Memtable(MemtableIter),
    /// A table of level 0, or those of a deeper level.
    Level(LevelIter),
    /// A table of level 0, or those of a deeper level, with hidden entries and places, for a
    /// filter that seals.
    Raw(LevelIter<RawIter>, usize),
    /// The same, block by block as the filter's judges find them.
    Judged(LevelIter<JudgedIter>, usize),
}

impl InternalIter for MergeInput {
    forward_to_variants!(MergeInput: Memtable, Level, Raw, Judged);

    fn key(&self) -> KeyRef<'_> {
        match self {
            MergeInput::Memtable(cursor) => cursor.key(),
            MergeInput::Level(cursor) => cursor.key(),
            MergeInput::Raw(cursor, _) => {
                let key = cursor.key();
                // A raw cursor shows the stored number; in an ingested table another one counts.
                match cursor.current_table().meta.global_seq {
                    Some(seq) => KeyRef::new(key.user, key.trailer.with_seq(seq)),
                    None => key,
                }
            }
            MergeInput::Judged(cursor, _) => cursor.key(),
        }
    }
}

impl JobIter for MergeInput {
    #[inline]
    fn present(&self, wants_place: bool) -> JobEntry<'_> {
        match self {
            MergeInput::Judged(iter, level) => {
                let (entry, vouched, at) = iter.on_table().present(*level);
                JobEntry { entry, at, vouched: Some(vouched), value_sum: None }
            }
            MergeInput::Memtable(iter) => {
                let (entry, value_sum) = iter.entry();
                JobEntry { entry, at: Origin::MEMTABLE, vouched: None, value_sum }
            }
            _ => asked_one_by_one(self, wants_place),
        }
    }

    fn is_hidden(&self) -> bool {
        match self {
            MergeInput::Raw(iter, _) => iter.on_table().hidden(),
            _ => false,
        }
    }

    #[inline]
    fn vouched(&self) -> Option<Vouched<'_>> {
        match self {
            MergeInput::Judged(iter, level) => Some(iter.on_table().present(*level).1),
            _ => None,
        }
    }

    fn read_again(&mut self) -> Result<bool> {
        match self {
            MergeInput::Judged(iter, _) => iter.on_table_mut().read_again(),
            _ => Ok(false),
        }
    }

    fn must_walk_all(&self) -> bool {
        match self {
            MergeInput::Judged(iter, _) => iter.on_table().must_walk_all(),
            _ => false,
        }
    }

    fn stored_seq(&self) -> SeqNo {
        match self {
            MergeInput::Level(iter) => iter.on_table().stored_seq(),
            MergeInput::Memtable(iter) => iter.key().trailer.seq(),
            MergeInput::Raw(iter, _) => iter.on_table().key().trailer.seq(),
            MergeInput::Judged(iter, level) => iter.on_table().present(*level).0.stored_seq,
        }
    }

    fn origin(&self) -> Origin {
        match self {
            MergeInput::Raw(iter, level) => {
                let (block_offset, entry, block_verified) = iter.on_table().origin();
                let file = Some(iter.current_table().meta.file);
                let level = *level;
                Origin { file, level, block_offset, entry, block_verified }
            }
            MergeInput::Judged(iter, level) => iter.on_table().present(*level).2,
            // Of tables only a filter that seals asks.
            _ => Origin::MEMTABLE,
        }
    }
}

/// Opens the tables: one input for each level, and one for each table of level 0.
pub(super) fn open_inputs(
    levels: &[(usize, Vec<Arc<Table>>)],
    context: &Arc<TableContext>,
    hooks: &PartitionHooks,
    judges: Option<&Arc<Judges>>,
) -> Result<Vec<MergeInput>> {
    // A plain reader is faster and leaves hidden entries out, so it is used unless a filter seals.
    let raw = hooks.seals() && judges.is_none();
    let suffix = &hooks.rules.reserved_suffix;
    let mode = RawMode::Streaming;
    let mut inputs = Vec::new();
    for (level, tables) in levels.iter().filter(|(_, tables)| !tables.is_empty()) {
        // Tables of level 0 overlap: each is a level of its own.
        for part in tables.chunk_by(|left: &Arc<Table>, right: &Arc<Table>| {
            // A judged walk hands no hidden entries out, so only raw tables can reach into each
            // other.
            *level > 0 && !(raw && may_reach(left, right, suffix))
        }) {
            // Checked again although the manifest was checked: overlapping tables in one cursor
            // would come out of order, and versions would be lost without an error.
            let part = Level::sorted(part.to_vec()).map_err(|(left, right)| {
                let left = left.meta.file;
                let right = right.meta.file;
                let what = format!("tables {left} and {right} of level {level} overlap");
                Error::corruption(&context.dir, None, what)
            })?;
            let context = context.clone();
            inputs.push(match judges {
                Some(judges) => {
                    let walk = LevelIter::with_check(part, context, (), Some(judges.clone()));
                    MergeInput::Judged(walk, *level)
                }
                None if raw => MergeInput::Raw(LevelIter::new(part, context, mode), *level),
                None => MergeInput::Level(LevelIter::new(part, context, ReadMode::Streaming)),
            });
        }
    }
    Ok(inputs)
}

/// Returns `true` if hidden entries at the end of a table may sort behind the first entry of the
/// next one: those of an owner that the next one's first key continues.
fn may_reach(left: &Table, right: &Table, suffix: &[u8]) -> bool {
    let first = &right.meta.smallest.user;
    (1..first.len()).any(|len| first[len..] <= *suffix && left.meta.covers(&first[..len]))
}

/// For a repair: opens the tables, rebuilding those that do not open. A table that cannot be rebuilt is
/// left out, and all of its entries are lost.
///
/// # Errors
/// `Io`: the table may be there at the next try.
pub(super) fn open_or_leave_out(
    tables: &mut [(usize, Vec<Arc<Table>>)],
    context: &TableContext,
    suffix: &[u8],
    findings: &JobFindings,
) -> Result<Readers> {
    let mut readers = Readers::default();
    for (level, tables) in tables {
        let mut kept = Vec::with_capacity(tables.len());
        for table in tables.drain(..) {
            match table.reader(context) {
                Ok(_) => kept.push(table),
                // Other errors may pass. To give up a table for one of those would lose sound data.
                Err(error) if error.is_corruption() => {
                    let Some(salvaged) = table.salvage(context, suffix)? else {
                        tell_lost(&table, *level, &error, findings);
                        continue;
                    };
                    tell_salvaged(&table, *level, &salvaged.repaired, findings);
                    readers.add(table.meta.file, salvaged.reader);
                    kept.push(table);
                }
                Err(error) => return Err(error),
            }
        }
        *tables = kept;
    }
    Ok(readers)
}

/// The fault of a table as a whole.
fn fault_of(table: &Table, level: usize, what: String) -> Fault {
    Fault {
        key: table.meta.smallest.user.to_vec(),
        seq: SeqNo::ZERO,
        kind: EntryKind::Poison,
        value: Vec::new(),
        at: Origin { file: Some(table.meta.file), level, ..Origin::MEMTABLE },
        what,
    }
}

#[cold]
fn tell_salvaged(table: &Table, level: usize, repaired: &[(&str, &str)], findings: &JobFindings) {
    findings.add(|found| {
        for (what, source) in repaired {
            let fault = fault_of(table, level, (*what).to_owned());
            found.repaired.push((fault, (*source).to_owned()));
        }
    });
}

#[cold]
fn tell_lost(table: &Table, level: usize, error: &Error, findings: &JobFindings) {
    let meta = &table.meta;
    let gap = Gap {
        from: meta.smallest.user.clone(),
        // All versions of both bounds: of the table nothing is known but its description.
        from_below: SeqNo::MAX,
        to: meta.largest.user.clone(),
        to_included: true,
        through: meta.newest(),
        closed_at: None,
    };
    let fault = fault_of(table, level, format!("the table is lost: {error}"));
    findings.add(|found| {
        found.add_gap(gap);
        found.lost.push(fault);
    });
}

/// The description of the tables for the filters.
pub(super) fn input_tables<'t>(
    tables: impl Iterator<Item = (usize, &'t Arc<Table>)>,
    context: &TableContext,
    readers: &Readers,
) -> Result<Vec<InputTable>> {
    tables
        .map(|(_, table): (usize, &Arc<Table>)| {
            let properties = readers.of(table, context)?.properties().user.clone();
            Ok(InputTable { file: table.meta.file, path: table.path(context), properties })
        })
        .collect()
}

/// The same corruption with the input at fault, if one alone shows it: a merge sees that entries
/// are out of order, but not where they came from.
#[cold]
pub(super) fn blame<'t>(
    error: Error,
    mut tables: impl Iterator<Item = (usize, &'t Arc<Table>)>,
    context: &Arc<TableContext>,
) -> Error {
    // An error that names a file has found its input already.
    if error.damage().is_none_or(|damage| damage.file != context.dir) {
        return error;
    }
    let key = error.damage().and_then(|damage| damage.key.clone());
    // One table after the other, alone: only on the way to an error, so a second read of the inputs
    // is worth a file name.
    match tables.find_map(|(_, table)| check_table(table, context).err()) {
        None => error,
        Some(found) => key.into_iter().fold(found, |found, key| found.at_key(&key)),
    }
}

/// Reads a table and checks that its entries are in order and within what the manifest says.
fn check_table(table: &Table, context: &TableContext) -> Result<()> {
    let mut entries = table.reader(context)?.iter(ReadMode::Streaming);
    let mut last: Option<InternalKey> = None;
    entries.seek(None)?;
    while entries.valid() {
        let key = entries.key();
        let ascends = last.as_ref().is_none_or(|last| last.as_ref() < key);
        if !ascends || !is_plausible(key, table.meta.oldest()) || !table.meta.covers(key.user) {
            let (offset, _) = entries.place();
            let what = format!("an entry with sequence {} is out of order", key.trailer.seq());
            let error = Error::corruption(table.path(context), offset, what);
            return Err(error.at_key(key.user));
        }
        last = Some(key.to_owned());
        entries.next()?;
    }
    Ok(())
}
