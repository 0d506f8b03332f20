//! Runs a job: merges its inputs into finished tables. Installs nothing.
//!
//! Called by background work and by exports; flush writes its table through the same [`Outputs`]
//! and the same loop. The only file of this folder that knows files.
//!
//! Invariants:
//! 1. When [`run`] returns tables, their bytes and names are durable.
//! 2. When it fails, the inputs are untouched and what it wrote is removed, or left to the next
//!    open if even that fails.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::replacements::Replacements;
use super::survivors::is_plausible;
use super::{Clip, Job, JobIter, JobOutcome, KeyBelow, Split, Stages, write_survivors};
use crate::error::{Error, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{AppendMode, Fs};
use crate::hooks::{self, InputTable, Origin, PartitionHooks, Properties};
use crate::iter::{InternalIter, MergeIter};
use crate::limits::LEVEL_COUNT;
use crate::memtable::{Memtable, MemtableIter};
use crate::options::{Compression, PartitionOptions};
use crate::sstable::{RawIter, RawMode, ReadMode, SstIdentity, SstOptions, SstWriter};
use crate::types::{DbId, EntryKind, Epoch, InternalKey, KeyRef, SeqNo, Trailer};
use crate::version::{
    FileNumbers, Level, LevelIter, PartitionVersion, SstMeta, Table, TableContext,
};

/// Where new tables go.
pub struct TableFactory {
    /// Where the files lie.
    pub fs: Arc<dyn Fs>,
    /// Their folder.
    pub dir: PathBuf,
    /// The database that they name.
    pub db_id: DbId,
    /// The term of this writer.
    pub epoch: Epoch,
    /// Where their numbers come from.
    pub numbers: Arc<FileNumbers>,
}

/// The tables that one flush or one compaction writes.
pub struct Outputs<'a> {
    factory: &'a TableFactory,
    options: SstOptions,
    base_seq: SeqNo,
    hidden_suffix: Vec<u8>,
    values_only: bool,
    /// What errors name that no file can be named for.
    folder: PathBuf,
    cut_allowed: bool,
    writer: Option<SstWriter>,
    finished: Vec<SstMeta>,
    /// Every file made so far, finished or not.
    made: Vec<PathBuf>,
}

impl<'a> Outputs<'a> {
    /// Tables for `level` of a partition, of entries with sequence numbers from `base_seq` on.
    /// Keys of hidden entries end in `hidden_suffix`.
    pub fn new(
        factory: &'a TableFactory,
        options: &PartitionOptions,
        level: usize,
        base_seq: SeqNo,
        hidden_suffix: &[u8],
    ) -> Outputs<'a> {
        // Levels 0 and 1 are read and rewritten soon: compressing them costs more than it saves.
        let compression = if level < 2 { Compression::None } else { options.compression };
        Outputs {
            factory,
            options: SstOptions::of(options, compression),
            base_seq,
            hidden_suffix: hidden_suffix.to_vec(),
            values_only: false,
            folder: factory.dir.clone(),
            cut_allowed: true,
            writer: None,
            finished: Vec::new(),
            made: Vec::new(),
        }
    }

    fn writer(&mut self) -> Result<&mut SstWriter> {
        if self.writer.is_none() {
            let TableFactory { fs, dir, db_id, epoch, numbers } = self.factory;
            let (file, db_id, epoch) = (numbers.allocate(), *db_id, *epoch);
            let path = FileName::new(FileKind::Sst, file, epoch).path(dir);
            let handle = fs.open_append(&path, AppendMode::IfAbsent)?;
            self.made.push(path.clone());
            let identity = SstIdentity { db_id, file, epoch };
            let mut writer = SstWriter::new(handle, path, identity, self.base_seq, self.options);
            if !self.hidden_suffix.is_empty() {
                writer.set_hidden_suffix(&self.hidden_suffix);
            }
            writer.allow_cut(self.cut_allowed);
            self.writer = Some(writer);
        }
        Ok(self.writer.as_mut().expect("it was just made"))
    }

    /// Appends an entry; keys ascend.
    pub(super) fn add(&mut self, key: KeyRef<'_>, value: &[u8]) -> Result<()> {
        self.writer()?.add(key, value)
    }

    /// Appends a hidden entry behind the one that it belongs to.
    pub(super) fn add_hidden(&mut self, key: &[u8], seq: SeqNo, payload: &[u8]) -> Result<()> {
        let key = KeyRef::new(key, Trailer::new(seq, EntryKind::Tombstone));
        self.writer()?.add_hidden(key, payload)
    }

    /// Whether values alone may be added.
    pub(super) fn values_only(&self) -> bool {
        self.values_only
    }

    /// Says whether a block may end before the next entry.
    pub(super) fn allow_cut(&mut self, allowed: bool) {
        self.cut_allowed = allowed;
        if let Some(writer) = &mut self.writer {
            writer.allow_cut(allowed);
        }
    }

    /// How many blocks of the table under way were cut although they must not.
    pub(super) fn forced_cuts(&self) -> u64 {
        self.writer.as_ref().map_or(0, SstWriter::forced_cuts)
    }

    /// The user key added last to the table under way.
    pub(super) fn last_user_key(&self) -> Option<&[u8]> {
        self.writer.as_ref().and_then(SstWriter::last_user_key)
    }

    /// No entry is older than this.
    pub(super) fn base_seq(&self) -> SeqNo {
        self.base_seq
    }

    /// The folder, for errors that no file can be named for.
    pub(super) fn dir(&self) -> &Path {
        &self.folder
    }

    /// Length of the table under way, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, SstWriter::estimated_bytes)
    }

    /// Ends the table under way, if there is one, with what filters noted in it.
    pub(super) fn end_table(&mut self, properties: Properties) -> Result<()> {
        if let Some(mut writer) = self.writer.take() {
            writer.set_user_properties(properties)?;
            self.finished.push(SstMeta::of(writer.finish()?));
        }
        Ok(())
    }

    /// Makes all names durable. No table is under way.
    pub(super) fn finish(mut self) -> Result<Vec<SstMeta>> {
        assert!(self.writer.is_none(), "the last table was ended");
        if !self.finished.is_empty() {
            self.factory.fs.sync_dir(&self.factory.dir)?;
        }
        self.made.clear();
        Ok(std::mem::take(&mut self.finished))
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        for path in &self.made {
            // A file that cannot be removed is an orphan until the next open.
            let _ = self.factory.fs.delete(path);
        }
    }
}

/// A sorted input of a job.
enum Input {
    /// A memtable.
    Memtable(MemtableIter),
    /// A table of level 0, or those of a deeper level.
    Level(LevelIter),
    /// A table of level 0, or those of a deeper level, with hidden entries and places, for a
    /// filter that seals.
    Raw(LevelIter<RawIter>, usize),
    /// What repairs put in the place of entries, where it sorts.
    Repaired(Replacements),
}

impl Input {
    fn replacements<'t>(
        stages: &Stages<'_>,
        tables: impl Iterator<Item = (usize, &'t Arc<Table>)>,
    ) -> Option<Input> {
        if stages.patches.is_empty() {
            return None;
        }
        let global: HashMap<_, _> = tables
            .filter_map(|(_, table)| Some((table.meta.file, table.meta.global_seq?)))
            .collect();
        let suffix = &stages.hooks().rules.reserved_suffix;
        let replacements =
            Replacements::new(stages.patches, suffix, |file| global.get(&file).copied());
        (!replacements.is_empty()).then_some(Input::Repaired(replacements))
    }
}

macro_rules! each {
    ($self:ident, $iter:ident => $call:expr) => {
        match $self {
            Input::Memtable($iter) => $call,
            Input::Level($iter) => $call,
            Input::Raw($iter, _) => $call,
            Input::Repaired($iter) => $call,
        }
    };
}

impl InternalIter for Input {
    fn valid(&self) -> bool {
        each!(self, iter => iter.valid())
    }

    fn key(&self) -> KeyRef<'_> {
        let key = each!(self, iter => iter.key());
        match self {
            Input::Raw(iter, _) => match iter.current_table().meta.global_seq {
                Some(seq) => KeyRef::new(key.user, key.trailer.with_seq(seq)),
                None => key,
            },
            _ => key,
        }
    }

    fn value(&self) -> &[u8] {
        each!(self, iter => iter.value())
    }

    fn seek_to_first(&mut self) -> Result<()> {
        each!(self, iter => iter.seek_to_first())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        each!(self, iter => iter.seek_to_last())
    }

    fn seek(&mut self, target: KeyRef<'_>) -> Result<()> {
        each!(self, iter => iter.seek(target))
    }

    fn seek_before(&mut self, target: KeyRef<'_>) -> Result<()> {
        each!(self, iter => iter.seek_before(target))
    }

    fn next(&mut self) -> Result<()> {
        each!(self, iter => iter.next())
    }

    fn prev(&mut self) -> Result<()> {
        each!(self, iter => iter.prev())
    }
}

impl JobIter for Input {
    fn is_hidden(&self) -> bool {
        match self {
            Input::Raw(iter, _) => iter.on_table().hidden(),
            Input::Repaired(iter) => iter.is_hidden(),
            _ => false,
        }
    }

    fn is_replacement(&self) -> bool {
        matches!(self, Input::Repaired(_))
    }

    fn stored_seq(&self) -> SeqNo {
        match self {
            Input::Level(iter) => iter.on_table().stored_seq(),
            Input::Memtable(iter) => iter.key().trailer.seq(),
            Input::Raw(iter, _) => iter.key().trailer.seq(),
            Input::Repaired(iter) => iter.stored_seq(),
        }
    }

    fn origin(&self) -> Origin {
        match self {
            Input::Raw(iter, level) => {
                let (block_offset, entry, block_verified) = iter.on_table().origin();
                let (file, level) = (Some(iter.current_table().meta.file), *level);
                Origin { file, level, block_offset, entry, block_verified }
            }
            Input::Repaired(iter) => iter.origin(),
            // Of tables only a filter that seals asks.
            _ => Origin::MEMTABLE,
        }
    }
}

/// Everything that a job needs beside its inputs.
pub struct JobContext<'a> {
    /// Where outputs go.
    pub factory: &'a TableFactory,
    /// How inputs are opened.
    pub tables: &'a Arc<TableContext>,
    /// The partition's filters, its store, and what they have to know.
    pub stages: Stages<'a>,
    /// Whether to give up.
    pub should_stop: &'a dyn Fn() -> bool,
}

/// Merges the inputs of `job`, picked from `version`, into tables for its output level.
///
/// # Errors
/// Those of the files; corruption that names file and offset if an input is damaged;
/// [`ErrorKind::Closed`](crate::ErrorKind::Closed) if `should_stop` says so.
///
/// # Cost
/// Reads every input once, past the block cache, and writes what survives.
pub fn run(job: &Job, version: &PartitionVersion, context: JobContext<'_>) -> Result<JobOutcome> {
    let JobContext { factory, tables, mut stages, should_stop } = context;
    let mut inputs = open_inputs(&job.inputs, tables, stages.hooks())?;
    let notes = input_tables(job.tables(), tables)?;
    let repaired = stages.repaired();
    stages.start(&hooks::Job {
        partition: &version.name,
        kind: hooks::JobKind::Compaction,
        level_from: job.level_from,
        level_to: job.level_to,
        bottom: job.bottom,
        snapshots: stages.registered(),
        inputs: &notes,
        repaired: &repaired,
        partial: false,
    })?;
    let base_seq = job.tables().map(|(_, table)| table.meta.oldest()).min();
    let base_seq = base_seq.expect("a job has inputs");
    let suffix = &stages.hooks().rules.reserved_suffix;
    let outputs = Outputs::new(factory, &version.options, job.level_to, base_seq, suffix);
    let below = KeyBelow::new(version, job.level_to);
    let split = Some(Split::new(job, version.options.table_bytes));
    inputs.extend(Input::replacements(&stages, job.tables()));
    let mut entries = MergeIter::new(inputs);
    write_survivors(&mut entries, None, stages, below, split, outputs, should_stop)
        .map_err(|error| blame(error, job.tables(), tables))
}

/// Writes what a reader sees of `memtables` and `version` within `clip`, one version of each key,
/// as values. The context's filters and outputs are the caller's choice: the filter that seals
/// takes part, what would decide need not.
///
/// # Errors
/// As [`run`]; corruption that names the key of a record that is known to be damaged.
///
/// # Cost
/// Reads the range once, past the block cache, and writes it.
pub fn extract(
    memtables: &[Arc<Memtable>],
    version: &PartitionVersion,
    clip: &Clip,
    context: JobContext<'_>,
) -> Result<JobOutcome> {
    let JobContext { factory, tables, mut stages, should_stop } = context;
    let levels: Vec<(usize, Vec<Arc<Table>>)> = version
        .levels
        .iter()
        .map(|level| level.tables().iter().filter(|table| table.meta.overlaps(clip.range())))
        .enumerate()
        .map(|(level, tables)| (level, tables.cloned().collect()))
        .collect();
    let in_range =
        || levels.iter().flat_map(|(level, tables)| tables.iter().map(|table| (*level, table)));
    let mut inputs: Vec<_> = memtables.iter().map(|m| Input::Memtable(m.iter())).collect();
    inputs.extend(open_inputs(&levels, tables, stages.hooks())?);
    let notes = input_tables(in_range(), tables)?;
    let repaired = stages.repaired();
    let level_to = LEVEL_COUNT - 1;
    stages.start(&hooks::Job {
        partition: &version.name,
        kind: hooks::JobKind::Compaction,
        level_from: 0,
        level_to,
        bottom: true,
        snapshots: stages.registered(),
        inputs: &notes,
        repaired: &repaired,
        partial: true,
    })?;
    let suffix = &stages.hooks().rules.reserved_suffix;
    let mut outputs = Outputs::new(factory, &version.options, level_to, SeqNo::ZERO, suffix);
    (outputs.values_only, outputs.folder) = (true, tables.dir.clone());
    let below = KeyBelow::new(version, level_to);
    let split = Some(Split::by_size(version.options.table_bytes));
    inputs.extend(Input::replacements(&stages, in_range()));
    let mut entries = MergeIter::new(inputs);
    write_survivors(&mut entries, Some(clip), stages, below, split, outputs, should_stop)
        .map_err(|error| blame(error, in_range(), tables))
}

fn open_inputs(
    levels: &[(usize, Vec<Arc<Table>>)],
    context: &Arc<TableContext>,
    hooks: &PartitionHooks,
) -> Result<Vec<Input>> {
    let (raw, suffix) = (hooks.seals(), &hooks.rules.reserved_suffix);
    let mode = RawMode { read_ahead: true, tolerant: true, complete: true, uncached: false };
    let mut inputs = Vec::new();
    for (level, tables) in levels.iter().filter(|(_, tables)| !tables.is_empty()) {
        // Tables of level 0 overlap: each is a level of its own.
        let is_ordered = |left: &Arc<Table>, right: &Arc<Table>| {
            *level > 0 && !(raw && may_reach(left, right, suffix))
        };
        for part in tables.chunk_by(is_ordered) {
            let part = Level::sorted(part.to_vec()).map_err(|(left, right)| {
                let (left, right) = (left.meta.file, right.meta.file);
                let what = format!("tables {left} and {right} of level {level} overlap");
                Error::corruption(&context.dir, None, what)
            })?;
            let context = context.clone();
            inputs.push(match raw {
                true => Input::Raw(LevelIter::new(part, context, mode), *level),
                false => Input::Level(LevelIter::new(part, context, ReadMode::Streaming)),
            });
        }
    }
    Ok(inputs)
}

/// Whether hidden entries at the end of a table may sort behind the first entry of the next one:
/// those of an owner that the next one's first key continues.
fn may_reach(left: &Table, right: &Table, suffix: &[u8]) -> bool {
    let first = &right.meta.smallest.user;
    (1..first.len()).any(|len| first[len..] <= *suffix && left.meta.covers(&first[..len]))
}

fn input_tables<'t>(
    tables: impl Iterator<Item = (usize, &'t Arc<Table>)>,
    context: &TableContext,
) -> Result<Vec<InputTable>> {
    let note = |(_, table): (usize, &Arc<Table>)| {
        let properties = table.reader(context)?.properties().user.clone();
        Ok(InputTable { file: table.meta.file, path: table.path(context), properties })
    };
    tables.map(note).collect()
}

/// The same corruption with the input at fault, if one alone shows it: a merge sees that entries
/// are out of order, but not where they came from.
#[cold]
fn blame<'t>(
    error: Error,
    mut tables: impl Iterator<Item = (usize, &'t Arc<Table>)>,
    context: &Arc<TableContext>,
) -> Error {
    if error.damage().is_none_or(|damage| damage.file != context.dir) {
        return error;
    }
    let key = error.damage().and_then(|damage| damage.key.clone());
    match tables.find_map(|(_, table)| check_table(table, context).err()) {
        None => error,
        Some(found) => key.into_iter().fold(found, |found, key| found.at_key(&key)),
    }
}

/// Reads a table and checks that its entries are in order and within what the manifest says.
fn check_table(table: &Table, context: &TableContext) -> Result<()> {
    let mut entries = table.reader(context)?.iter(ReadMode::Streaming);
    let mut last: Option<InternalKey> = None;
    entries.seek_to_first()?;
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
