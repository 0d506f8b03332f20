//! [`MergeInput`]: a sorted input of a merge: a memtable, a table, or the tables of a level. [`JobEntry`]: an entry
//! of it, for the loop of `survivors.rs`.
//!
//! Opened by `run.rs`. All partitions use the plain readers. If a filter of the partition seals, it verifies
//! each block, and the merge knows the place of each entry, because an error names the place. Damage of an
//! input fails the merge, but for that of a repair (`damaged.rs`), which reads on.
//!
//! Invariant: inputs never change. They bypass the block cache: a merge reads each block once, and
//! would drive out the blocks that readers use.

use std::sync::Arc;

use super::rules::is_plausible;
use crate::error::{Error, Result};
use crate::hooks::{Entry, InputTable, Origin, PartitionHooks, VerifiedEntry};
use crate::iter::{InternalIter, MergeSource, forward_to_variants};
use crate::memtable::MemtableIter;
pub(super) use crate::sstable::JobCheck;
use crate::sstable::{BlockCheck, RawIter, RawMode, ReadMode, TolerantIter};
use crate::types::{InternalKey, KeyRef, SeqNo, Trailer, prefix8};
use crate::version::{Level, LevelIter, Table, TableContext};

/// A sorted input of a merge.
pub(super) enum MergeInput {
    /// A memtable.
    Memtable(MemtableIter),
    /// A table of level 0, or those of a deeper level.
    Level(LevelIter),
    /// The same, of this level, for a filter that seals and verifies each block.
    Verified(LevelIter, usize),
    /// The same, with hidden entries, for a filter that seals and verifies no blocks.
    Raw(LevelIter<RawIter>, usize),
    /// A damaged table.
    Damaged(Box<TolerantIter>),
}

impl MergeSource for MergeInput {
    #[inline]
    fn prefix(&self) -> u64 {
        match self {
            MergeInput::Level(cursor) | MergeInput::Verified(cursor, _) => {
                cursor.on_table().prefix()
            }
            other => prefix8(other.key().user),
        }
    }
}

impl InternalIter for MergeInput {
    forward_to_variants!(MergeInput: Memtable, Level, Verified, Raw, Damaged);

    fn key(&self) -> KeyRef<'_> {
        match self {
            MergeInput::Memtable(cursor) => cursor.key(),
            MergeInput::Level(cursor) | MergeInput::Verified(cursor, _) => cursor.key(),
            MergeInput::Raw(cursor, _) => {
                let key = cursor.key();
                // A raw cursor shows the stored number; in an ingested table another one counts.
                match cursor.current_table().meta.global_seq {
                    Some(seq) => KeyRef::new(key.user, key.trailer.with_seq(seq)),
                    None => key,
                }
            }
            MergeInput::Damaged(cursor) => cursor.key(),
        }
    }
}

impl MergeInput {
    /// The present entry, with all that the cursor knows of it. Only while valid.
    #[inline]
    pub(super) fn present(&self) -> JobEntry<'_> {
        match self {
            MergeInput::Verified(iter, level) => {
                JobEntry::verified(iter.on_table().verified(*level))
            }
            MergeInput::Damaged(iter) => JobEntry::verified(iter.present()),
            MergeInput::Memtable(iter) => {
                let (entry, value_sum) = iter.entry();
                JobEntry { value_sum, ..JobEntry::plain(entry) }
            }
            MergeInput::Level(iter) => {
                let stored_seq = iter.on_table().stored_seq();
                JobEntry::plain(entry_of(iter.key(), stored_seq, iter.value(), false))
            }
            MergeInput::Raw(iter, level) => {
                let table = iter.on_table();
                let stored_seq = table.key().trailer.seq();
                let entry = entry_of(self.key(), stored_seq, iter.value(), table.hidden());
                let (block_offset, index, block_verified) = table.origin();
                let file = Some(iter.current_table().meta.file);
                let level = *level;
                let at = Origin { file, level, block_offset, entry: index, block_verified };
                JobEntry { at, ..JobEntry::plain(entry) }
            }
        }
    }

    /// Returns `true` if the present entry is hidden.
    pub(super) fn is_hidden(&self) -> bool {
        match self {
            MergeInput::Raw(iter, _) => iter.on_table().hidden(),
            _ => false,
        }
    }

    /// Reads the block of the present entry again, from the device. Returns `false` if that is not possible, or
    /// another entry is there: the cursor is then of no use any more.
    pub(super) fn read_again(&mut self) -> Result<bool> {
        match self {
            MergeInput::Verified(iter, _) => iter.on_table_mut().read_again(),
            _ => Ok(false),
        }
    }
}

fn entry_of<'a>(key: KeyRef<'a>, stored_seq: SeqNo, value: &'a [u8], hidden: bool) -> Entry<'a> {
    Entry {
        key: key.user,
        seq: key.trailer.seq(),
        stored_seq,
        // Tables check the kind when they parse an entry.
        kind: key.trailer.kind().expect("a stored entry has a kind"),
        value,
        hidden,
    }
}

/// An entry of a job, with all that its cursor knows of it.
#[derive(Clone, Copy)]
pub(super) struct JobEntry<'a> {
    /// The entry.
    pub entry: Entry<'a>,
    /// Its place, if it is known. Of tables only a filter that seals asks for it.
    pub at: Origin,
    /// The result of the verification of its block for it, if there is one.
    pub verified: Option<VerifiedEntry<'a>>,
    /// The checksum of the value under [`VALUE_SEED`](crate::types::VALUE_SEED), if a check of the entry has
    /// confirmed it.
    pub value_sum: Option<u64>,
}

impl<'a> JobEntry<'a> {
    /// An entry without further knowledge.
    pub(super) fn plain(entry: Entry<'a>) -> JobEntry<'a> {
        JobEntry { entry, at: Origin::MEMTABLE, verified: None, value_sum: None }
    }

    #[inline]
    fn verified((entry, verified, at): (Entry<'a>, VerifiedEntry<'a>, Origin)) -> JobEntry<'a> {
        JobEntry { entry, at, verified: Some(verified), value_sum: None }
    }
}

/// Opens the tables: one input for each level, and one for each table of level 0.
pub(super) fn open_inputs(
    levels: &[(usize, Vec<Arc<Table>>)],
    context: &Arc<TableContext>,
    hooks: &PartitionHooks,
    check: Option<&JobCheck>,
) -> Result<Vec<MergeInput>> {
    // A plain reader leaves hidden entries out.
    let raw = hooks.seals() && check.is_none();
    let suffix = &hooks.rules.reserved_suffix;
    let mode = RawMode::Streaming;
    let mut inputs = Vec::new();
    for (level, tables) in levels.iter().filter(|(_, tables)| !tables.is_empty()) {
        // Tables of level 0 overlap: each is a level of its own.
        for part in tables.chunk_by(|left: &Arc<Table>, right: &Arc<Table>| {
            // Only hidden entries can reach into the next table.
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
            inputs.push(match check {
                Some(check) => {
                    let check = JobCheck { level: *level, ..check.clone() };
                    let check: Arc<dyn BlockCheck> = Arc::new(check);
                    let mode = ReadMode::Streaming;
                    let iter = LevelIter::with_check(part, context, mode, Some(check));
                    MergeInput::Verified(iter, *level)
                }
                None if raw => MergeInput::Raw(LevelIter::new(part, context, mode), *level),
                None => MergeInput::Level(LevelIter::new(part, context, ReadMode::Streaming)),
            });
        }
    }
    Ok(inputs)
}

/// Returns `true` if hidden entries at the end of a table may sort after the first entry of the
/// next one: those of an owner that the next one's first key continues.
fn may_reach(left: &Table, right: &Table, suffix: &[u8]) -> bool {
    let first = &right.meta.smallest.user;
    (0..first.len()).any(|len| first[len..] <= *suffix && left.meta.covers(&first[..len]))
}

/// The description of the tables for the filters.
pub(super) fn input_tables<'t>(
    tables: impl Iterator<Item = (usize, &'t Arc<Table>)>,
    context: &TableContext,
) -> Result<Vec<InputTable>> {
    tables
        .map(|(_, table): (usize, &Arc<Table>)| {
            let properties = table.reader(context)?.properties().user.clone();
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
