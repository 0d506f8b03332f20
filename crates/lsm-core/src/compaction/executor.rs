//! Runs a job: merges its inputs into finished tables. Installs nothing.
//!
//! Called by background work; flush writes its table through the same [`Outputs`] and the same
//! loop. The only file of this folder that knows files.
//!
//! Invariants:
//! 1. When [`run`] returns tables, their bytes and names are durable.
//! 2. When it fails, the inputs are untouched and what it wrote is removed, or left to the next
//!    open if even that fails.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Job, KeyBelow, Split, Survival, Verdict};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{AppendMode, Fs};
use crate::iter::{InternalIter, MergeIter};
use crate::limits::INTERNAL_KEY_BYTES_MAX;
use crate::options::{Compression, PartitionOptions};
use crate::sstable::{ReadMode, SstIdentity, SstOptions, SstWriter};
use crate::types::{DbId, Epoch, InternalKey, KeyRef, SeqNo};
use crate::version::{
    FileNumbers, Level, LevelIter, PartitionVersion, SstMeta, Table, TableContext,
};

/// How often a running job looks whether it should stop, in entries.
const ENTRIES_BETWEEN_LOOKS: u32 = 1024;

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
    writer: Option<SstWriter>,
    finished: Vec<SstMeta>,
    /// Every file made so far, finished or not.
    made: Vec<PathBuf>,
}

impl<'a> Outputs<'a> {
    /// Tables for `level` of a partition, of entries with sequence numbers from `base_seq` on.
    pub fn new(
        factory: &'a TableFactory,
        options: &PartitionOptions,
        level: usize,
        base_seq: SeqNo,
    ) -> Outputs<'a> {
        // Levels 0 and 1 are read and rewritten soon: compressing them costs more than it saves.
        let compression = if level < 2 { Compression::None } else { options.compression };
        Outputs {
            factory,
            options: SstOptions::of(options, compression),
            base_seq,
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
            let writer = SstWriter::new(handle, path, identity, self.base_seq, self.options);
            self.writer = Some(writer);
        }
        Ok(self.writer.as_mut().expect("it was just made"))
    }

    fn add(&mut self, key: KeyRef<'_>, value: &[u8]) -> Result<()> {
        self.writer()?.add(key, value)
    }

    /// Length of the table under way, in bytes.
    fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, SstWriter::estimated_bytes)
    }

    fn end_table(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            self.finished.push(SstMeta::of(writer.finish()?));
        }
        Ok(())
    }

    /// Ends the last table and makes all names durable.
    fn finish(mut self) -> Result<Vec<SstMeta>> {
        self.end_table()?;
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

/// Writes what survives of `entries`, in tables that `split` ends.
pub fn write_survivors(
    entries: &mut impl InternalIter,
    snapshots: &[SeqNo],
    below: &mut KeyBelow,
    mut split: Option<Split>,
    mut outputs: Outputs<'_>,
    should_stop: &dyn Fn() -> bool,
) -> Result<Vec<SstMeta>> {
    let mut survival = Survival::new(snapshots);
    let mut last: Option<InternalKey> = None;
    let mut last_value = Vec::new();
    let mut until_look = ENTRIES_BETWEEN_LOOKS;
    entries.seek_to_first()?;
    while entries.valid() {
        until_look -= 1;
        if until_look == 0 {
            until_look = ENTRIES_BETWEEN_LOOKS;
            if should_stop() {
                return Err(Error::new(ErrorKind::Closed, "the database is being closed"));
            }
        }
        let (key, value) = (entries.key(), entries.value());
        if !is_plausible(key, outputs.base_seq) {
            return Err(impossible(&outputs, key));
        }
        match survival.keep(key, !value.is_empty(), |user| below.may_lie_below(user)) {
            Verdict::Keep => {
                let is_new = outputs
                    .writer
                    .as_ref()
                    .and_then(SstWriter::last_user_key)
                    .is_none_or(|before| before != key.user);
                if is_new
                    && let Some(split) = &mut split
                    && split.ends_before(key.user, outputs.bytes())
                {
                    outputs.end_table()?;
                    split.begin();
                }
                outputs.add(key, value)?;
            }
            Verdict::Drop => {}
            Verdict::Disordered => return Err(impossible(&outputs, key)),
            Verdict::Twin => {
                let same = last.as_ref().is_some_and(|last| last.as_ref() == key);
                if !same || last_value != value {
                    return Err(twins_differ(&outputs, key));
                }
            }
        }
        remember(&mut last, &mut last_value, key, value);
        entries.next()?;
    }
    outputs.finish()
}

/// Keeps the entry for the comparison with a twin, reusing what it was kept in.
fn remember(
    last: &mut Option<InternalKey>,
    last_value: &mut Vec<u8>,
    key: KeyRef<'_>,
    value: &[u8],
) {
    match last {
        Some(last) if last.user.len() == key.user.len() => {
            last.user.copy_from_slice(key.user);
            last.trailer = key.trailer;
        }
        last => *last = Some(key.to_owned()),
    }
    last_value.clear();
    last_value.extend_from_slice(value);
}

/// Whether a merge may come upon the entry. Inputs that verify block by block are not trusted
/// further than that: they may have been written from damaged memory.
#[inline]
fn is_plausible(key: KeyRef<'_>, base_seq: SeqNo) -> bool {
    let len = key.user.len();
    len > 0 && len <= INTERNAL_KEY_BYTES_MAX && key.trailer.seq() >= base_seq
}

#[cold]
fn impossible(outputs: &Outputs<'_>, key: KeyRef<'_>) -> Error {
    let what = format!("an entry with sequence {} is out of order", key.trailer.seq());
    Error::corruption(&outputs.factory.dir, None, what).at_key(key.user)
}

#[cold]
fn twins_differ(outputs: &Outputs<'_>, key: KeyRef<'_>) -> Error {
    let what = format!("two entries with sequence {} differ", key.trailer.seq());
    Error::corruption(&outputs.factory.dir, None, what).at_key(key.user)
}

/// A sorted input of a compaction.
enum Input {
    Table(crate::sstable::SstIter),
    Level(LevelIter),
}

macro_rules! each {
    ($self:ident, $iter:ident => $call:expr) => {
        match $self {
            Input::Table($iter) => $call,
            Input::Level($iter) => $call,
        }
    };
}

impl InternalIter for Input {
    fn valid(&self) -> bool {
        each!(self, iter => iter.valid())
    }

    fn key(&self) -> KeyRef<'_> {
        each!(self, iter => iter.key())
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

/// Merges the inputs of `job`, picked from `version`, into tables for its output level.
///
/// # Errors
/// Those of the files; corruption that names file and offset if an input is damaged;
/// [`ErrorKind::Closed`] if `should_stop` says so.
///
/// # Cost
/// Reads every input once, past the block cache, and writes what survives.
pub fn run(
    job: &Job,
    version: &PartitionVersion,
    snapshots: &[SeqNo],
    factory: &TableFactory,
    context: &Arc<TableContext>,
    should_stop: &dyn Fn() -> bool,
) -> Result<Vec<SstMeta>> {
    let mut inputs = Vec::new();
    for (level, tables) in &job.inputs {
        if *level == 0 {
            for table in tables {
                inputs.push(Input::Table(table.reader(context)?.iter(ReadMode::Streaming)));
            }
        } else {
            let level = Level::sorted(tables.clone()).map_err(|(left, right)| {
                let (left, right) = (left.meta.file, right.meta.file);
                let what = format!("tables {left} and {right} of level {level} overlap");
                Error::corruption(&factory.dir, None, what)
            })?;
            let iter = LevelIter::new(level, context.clone(), ReadMode::Streaming);
            inputs.push(Input::Level(iter));
        }
    }
    let base_seq = job.tables().map(|(_, table)| table.meta.min_seq).min();
    let base_seq = base_seq.expect("a job has inputs");
    let outputs = Outputs::new(factory, &version.options, job.level_to, base_seq);
    let mut below = KeyBelow::new(version, job.level_to);
    let split = Split::new(job, version.options.table_bytes);
    let mut entries = MergeIter::new(inputs);
    write_survivors(&mut entries, snapshots, &mut below, Some(split), outputs, should_stop)
        .map_err(|error| blame(error, job, context))
}

/// The same corruption with the input at fault, if one alone shows it: a merge sees that entries
/// are out of order, but not where they came from.
#[cold]
fn blame(error: Error, job: &Job, context: &Arc<TableContext>) -> Error {
    if error.damage().is_none_or(|damage| damage.file != context.dir) {
        return error;
    }
    let mut tables = job.tables();
    tables.find_map(|(_, table)| check_table(table, context).err()).unwrap_or(error)
}

/// Reads a table and checks that its entries are in order and within what the manifest says.
fn check_table(table: &Table, context: &TableContext) -> Result<()> {
    let mut entries = table.reader(context)?.iter(ReadMode::Streaming);
    let mut last: Option<InternalKey> = None;
    entries.seek_to_first()?;
    while entries.valid() {
        let key = entries.key();
        let ascends = last.as_ref().is_none_or(|last| last.as_ref() < key);
        if !ascends || !is_plausible(key, table.meta.min_seq) || !table.meta.covers(key.user) {
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
