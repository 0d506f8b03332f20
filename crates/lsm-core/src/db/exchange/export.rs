//! `Partition::export`: a range of a partition as finished tables with a description.
//!
//! Reads through a registered snapshot and the cursor that users have, so an export holds what a
//! user would read. Sequence numbers stay as they are, for those who want to know when a value was
//! written; whoever ingests gives all entries one number of its own.
//!
//! Invariants:
//! 1. Tables are durable before the description is published.
//! 2. When it fails, what it made is removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::description::Description;
use crate::db::checkpoint::make_empty_folder;
use crate::db::{DbInner, Partition};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::AppendMode;
use crate::fs::names::{EXPORT, FileKind, FileName};
use crate::options::PartitionOptions;
use crate::read::{Cursor, KeyRange};
use crate::sstable::{SstIdentity, SstOptions, SstWriter};
use crate::types::{EntryKind, KeyRef, SeqNo, Trailer};
use crate::version::SstMeta;

/// What an export wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportSummary {
    /// Number of tables.
    pub tables: usize,
    /// Number of keys.
    pub entries: u64,
    /// Length of all tables together, in bytes.
    pub bytes: u64,
    /// The sequence number up to which the export sees.
    pub seq: SeqNo,
}

impl Partition {
    /// Writes the keys and values in `range`, as they are now, to finished tables in the folder
    /// `dir`, which must be empty or not exist. [`Partition::ingest`] of any database takes them
    /// in. Writing goes on; later writes are not in it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there are files in `dir`; corruption that names the key
    /// if a value cannot be read; those of the files. What was made is removed then, except the
    /// folder; what a crash leaves has no description and is no export.
    ///
    /// # Durability
    /// Durable once this returns.
    ///
    /// # Cost
    /// Reads the range and writes it, compressed as the partition's deeper levels are.
    pub fn export(&self, range: impl KeyRange, dir: impl AsRef<Path>) -> Result<ExportSummary> {
        let (db, dir) = (self.db(), dir.as_ref());
        let snapshot = self.db.snapshot();
        self.state().check_live()?;
        let point = self.reader(Some(&snapshot))?;
        let version = point.view.version.clone();
        make_empty_folder(&*db.fs, dir)?;
        let mut tables = ExportedTables::new(db, dir, &version.options);
        let mut cursor = Cursor::open(&range.bounds(), Ok(point));
        cursor.seek_to_first()?;
        while cursor.valid() {
            let trailer = Trailer::new(cursor.seq(), EntryKind::Value);
            tables.add(KeyRef::new(cursor.stored_key(), trailer), cursor.value()?)?;
            cursor.next()?;
        }
        let description = Description {
            db_id: db.db_id,
            partition: self.name().to_owned(),
            seq: snapshot.seq(),
            options: (*version.options).clone(),
            hooks: version.hooks.to_vec(),
            tables: tables.finish()?,
        };
        tables.publish(&description)?;
        let metas = &description.tables;
        Ok(ExportSummary {
            tables: metas.len(),
            entries: metas.iter().map(|meta| meta.entries).sum(),
            bytes: metas.iter().map(|meta| meta.bytes).sum(),
            seq: description.seq,
        })
    }
}

/// The files of an export that is being written.
struct ExportedTables<'a> {
    // Fixed after construction.
    db: &'a Arc<DbInner>,
    dir: &'a Path,
    options: SstOptions,
    table_bytes: u64,
    // The table under way and those before it.
    writer: Option<SstWriter>,
    finished: Vec<SstMeta>,
    /// Removed unless the export is published.
    made: Vec<PathBuf>,
}

impl<'a> ExportedTables<'a> {
    fn new(db: &'a Arc<DbInner>, dir: &'a Path, options: &PartitionOptions) -> ExportedTables<'a> {
        ExportedTables {
            db,
            dir,
            options: SstOptions::of(options, options.compression),
            table_bytes: options.table_bytes,
            writer: None,
            finished: Vec::new(),
            made: Vec::new(),
        }
    }

    fn add(&mut self, key: KeyRef<'_>, value: &[u8]) -> Result<()> {
        if self.writer.as_ref().is_some_and(|w| w.estimated_bytes() >= self.table_bytes) {
            self.end_table()?;
        }
        if self.writer.is_none() {
            self.writer = Some(self.begin_table()?);
        }
        self.writer.as_mut().expect("it was just made").add(key, value)
    }

    fn begin_table(&mut self) -> Result<SstWriter> {
        let db = self.db;
        // The number is one of ours, so that no other table anywhere has this identity.
        let identity =
            SstIdentity { db_id: db.db_id, file: db.numbers.allocate(), epoch: db.epoch };
        let path = FileName::new(FileKind::Sst, identity.file, identity.epoch).path(self.dir);
        let file = db.fs.open_append(&path, AppendMode::IfAbsent)?;
        self.made.push(path.clone());
        // Values of any age may be in the range.
        Ok(SstWriter::new(file, path, identity, SeqNo::ZERO, self.options))
    }

    fn end_table(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            self.finished.push(SstMeta::of(writer.finish()?));
        }
        Ok(())
    }

    /// Ends the last table and makes all names durable.
    fn finish(&mut self) -> Result<Vec<SstMeta>> {
        self.end_table()?;
        self.db.fs.sync_dir(self.dir)?;
        Ok(std::mem::take(&mut self.finished))
    }

    fn publish(&mut self, description: &Description) -> Result<()> {
        let path = self.dir.join(EXPORT);
        // If this fails the name may be there: it goes first.
        self.made.insert(0, path.clone());
        if !self.db.fs.put_if_absent(&path, &description.encode())? {
            self.made.clear();
            let message = format!("{} appeared meanwhile", path.display());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.made.clear();
        Ok(())
    }
}

impl Drop for ExportedTables<'_> {
    fn drop(&mut self) {
        // What cannot be removed is garbage without a description; with one it is an export that
        // must not lose its tables.
        let removed = |path: &PathBuf| {
            let gone = self.db.fs.delete(path).is_ok();
            let is_description = path.file_name().is_some_and(|name| name == EXPORT);
            gone && (!is_description || self.db.fs.sync_dir(self.dir).is_ok())
        };
        let _ = self.made.iter().all(removed);
    }
}
