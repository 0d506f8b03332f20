//! [`Outputs`]: the tables that a merge writes.
//!
//! Made by `run.rs`, filled by the loop of `survivors.rs`. Together with `inputs.rs` it is the only
//! code of this folder that uses files.
//!
//! Invariants:
//! 1. When [`Outputs::finish`] returns, the bytes and the names of its tables are durable, unless
//!    the factory leaves the syncs to its maker.
//! 2. Dropped before that, it removes its files. Files that cannot be removed are orphan files for the
//!    next open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::split::Measure;
use crate::error::Result;
use crate::fs::names::{FileKind, FileName};
use crate::fs::{AppendMode, File, FilesUnderWay, Fs, OpenFiles};
use crate::hooks::{EndedBlock, HiddenSink, NoteForm, Properties};
use crate::options::{Compression, PartitionOptions};
use crate::sstable::{BlockCache, CachePrepopulation, SstIdentity, SstOptions, SstWriter};
use crate::types::{DbId, EntryKind, Epoch, FileNumbers, KeyForm, KeyRef, SeqNo, Trailer};
use crate::version::{
    ExpiryNotes, Kept, Missing, PARTITION_PROPERTY, PartitionVersion, PrefixCounts, SstMeta,
    TableContext, partition_record,
};
use crate::zstandard::lacks_zstd;

/// A table says for so many snapshots how many entries it kept for them.
const KEPT_MAX: usize = 16;

/// The place of new tables.
pub struct TableFactory {
    /// The file system that holds the files.
    pub fs: Arc<dyn Fs>,
    /// The open files of the database. Some are closed for a table if the process has no handle left.
    pub files: Option<Arc<OpenFiles>>,
    /// Their folder.
    pub dir: PathBuf,
    /// The database that they name.
    pub db_id: DbId,
    /// The epoch of this writer.
    pub epoch: Epoch,
    /// The source of their numbers.
    pub numbers: Arc<FileNumbers>,
    /// The syncs of tables that are left to the maker; without it each merge syncs its own.
    pub later: Option<SyncLater>,
    /// The cache that takes the blocks of new tables while it has room.
    pub cache: Option<Arc<dyn BlockCache>>,
    /// Tables are read through mappings: blocks that are not compressed go into no cache.
    pub are_mapped: bool,
    /// Counts the tables until they are listed; `None` where they are none of the database.
    pub under_way: Option<Arc<FilesUnderWay>>,
}

/// Files that become durable together: their bytes a number of them at a time, their names at the
/// end. Used by a caller that makes thousands of small tables and names none of them before the
/// last one is finished.
pub struct SyncLater {
    /// Finished tables stay open up to this number.
    unsynced_max: usize,
    unsynced: Mutex<Unsynced>,
}

/// Finished tables: those whose bytes are to be synced, and the names of all.
#[derive(Default)]
struct Unsynced {
    files: Vec<Arc<dyn File>>,
    names: Vec<PathBuf>,
}

/// Finished tables stay open up to this number, or half of the files that the database may have open.
const UNSYNCED_MAX: usize = 64;

impl SyncLater {
    /// For a database that may have so many files open.
    pub fn new(open_files_max: usize) -> SyncLater {
        let unsynced_max = UNSYNCED_MAX.min((open_files_max / 2).max(1));
        SyncLater { unsynced_max, unsynced: Mutex::default() }
    }

    fn add(&self, fs: &dyn Fs, name: &Path, file: Arc<dyn File>) -> Result<()> {
        let mut unsynced = self.unsynced.lock();
        unsynced.names.push(name.to_owned());
        unsynced.files.push(file);
        if unsynced.files.len() < self.unsynced_max {
            return Ok(());
        }
        // Together, so that the disk can order the writes; the list is emptied first, because a
        // file whose sync failed is condemned and must not be synced again.
        fs.sync_files(&std::mem::take(&mut unsynced.files))
    }
}

impl TableFactory {
    /// Makes the bytes and names of all tables durable whose syncs were left.
    pub fn sync_rest(&self) -> Result<()> {
        let Some(later) = &self.later else { return Ok(()) };
        let Unsynced { files, names } = std::mem::take(&mut *later.unsynced.lock());
        // Bytes before names: a name that is durable promises a whole table.
        self.fs.sync_files(&files)?;
        self.fs.sync_names(&self.dir, &names)
    }

    /// The way in which tables in that folder are opened, past every cache.
    pub fn context(&self) -> TableContext {
        TableContext {
            missing: Missing::Damage,
            fs: self.fs.clone(),
            dir: self.dir.clone(),
            db_id: self.db_id,
            cache: None,
            are_mapped: false,
            files: None,
            prefix_counts: PrefixCounts::default(),
        }
    }
}

/// The tables that one merge writes.
pub struct Outputs<'a> {
    factory: &'a TableFactory,
    options: SstOptions,
    compression: Compression,
    /// Entries of the table under way that were kept for a snapshot.
    kept: BTreeMap<SeqNo, u64>,
    /// When entries of the table under way expire, and the mark of the rule that says so.
    expiries: ExpiryNotes,
    written_at: Option<u64>,
    expiry_rule: Option<u64>,
    base_seq: SeqNo,
    hidden_suffix: Vec<u8>,
    /// The record of the partition, for a repair without a manifest.
    record: Option<Vec<u8>>,
    /// The form of hidden entries that are made of notes, if there are such.
    note_form: Option<Arc<dyn NoteForm>>,
    /// The form of the keys, if they are written as given, and no hidden entries.
    bare: Option<KeyForm>,
    values_only: bool,
    /// The name in errors for which no file can be named.
    folder: PathBuf,
    cut_allowed: bool,
    /// Readers come before the tables, for which writers wait only if level 0 is full.
    is_paced: bool,
    prepopulation: Option<Arc<CachePrepopulation>>,
    writer: Option<SstWriter>,
    finished: Vec<SstMeta>,
    finished_bytes: u64,
    /// Every file made so far, finished or not.
    made: Vec<PathBuf>,
}

impl<'a> Outputs<'a> {
    /// Tables of a partition, of entries with sequence numbers from `base_seq` on. Keys of hidden
    /// entries end in `hidden_suffix`.
    pub fn new(
        factory: &'a TableFactory,
        options: &PartitionOptions,
        compression: Compression,
        base_seq: SeqNo,
        hidden_suffix: &[u8],
    ) -> Outputs<'a> {
        let is_cached = compression != Compression::None || !factory.are_mapped;
        let cache = factory.cache.clone().filter(|_| is_cached);
        Outputs {
            factory,
            options: SstOptions::of(options, compression),
            compression,
            kept: BTreeMap::new(),
            expiries: ExpiryNotes::default(),
            written_at: None,
            expiry_rule: None,
            base_seq,
            hidden_suffix: hidden_suffix.to_vec(),
            record: None,
            note_form: None,
            bare: None,
            values_only: false,
            folder: factory.dir.clone(),
            cut_allowed: true,
            is_paced: false,
            prepopulation: cache.map(|cache| Arc::new(CachePrepopulation::new(cache))),
            writer: None,
            finished: Vec::new(),
            finished_bytes: 0,
            made: Vec::new(),
        }
    }

    /// Of this partition, which each table names.
    pub(super) fn of_partition(mut self, version: &PartitionVersion) -> Outputs<'a> {
        self.record = Some(partition_record(version));
        self
    }

    /// With keys as they were given, and neither hidden entries nor notes of filters.
    pub(super) fn bare(mut self, form: Option<KeyForm>) -> Outputs<'a> {
        self.bare = form;
        self
    }

    /// At the pace of the device, see [`SstWriter::keep_pace`].
    pub(super) fn paced(mut self, is_paced: bool) -> Outputs<'a> {
        self.is_paced = is_paced;
        self
    }

    #[inline]
    fn writer(&mut self) -> Result<&mut SstWriter> {
        if self.writer.is_none() {
            self.begin_table()?;
        }
        Ok(self.writer.as_mut().expect("it was just made"))
    }

    #[cold]
    fn begin_table(&mut self) -> Result<()> {
        let TableFactory { fs, files, dir, db_id, epoch, numbers, .. } = self.factory;
        let file = numbers.allocate();
        let db_id = *db_id;
        let epoch = *epoch;
        let path = FileName::new(FileKind::Sst, file, epoch).path(dir);
        // Another build has set the partition to it.
        if !self.compression.is_built_in() {
            return Err(lacks_zstd(path, "a table of this partition is to be compressed"));
        }
        // The number is new; a file that has it all the same belongs to somebody else and is not
        // touched.
        let handle = match files {
            Some(files) => files.fs().open_append(&path, AppendMode::IfAbsent)?,
            None => fs.open_append(&path, AppendMode::IfAbsent)?,
        };
        // After the open: a file that was there before must not be deleted when this is dropped.
        if let Some(under_way) = &self.factory.under_way {
            under_way.add(&path);
        }
        self.made.push(path);
        let identity = SstIdentity { db_id, file, epoch };
        let mut writer = SstWriter::new(handle, identity, self.base_seq, self.options);
        if !self.hidden_suffix.is_empty() {
            writer.set_hidden_suffix(&self.hidden_suffix);
            if let Some(form) = &self.note_form {
                writer.set_note_form(form.clone());
            }
        }
        if let Some(prepopulation) = self.prepopulation.as_ref().filter(|it| it.is_wanted()) {
            writer.set_prepopulation(prepopulation.clone());
        }
        if self.is_paced {
            writer.keep_pace();
        }
        // A writer is made at its first entry, which is after the answer of the boundary.
        writer.allow_cut(self.cut_allowed);
        self.writer = Some(writer);
        Ok(())
    }

    /// Appends an entry; keys ascend.
    pub(super) fn add(&mut self, key: KeyRef<'_>, value: &[u8]) -> Result<()> {
        let user = self.bare.map_or(key.user, |form| form.user(key.user));
        self.writer()?.add(KeyRef { user, ..key }, value)
    }

    /// Returns `true` if hidden entries are made of notes.
    #[inline]
    pub(super) fn takes_notes(&self) -> bool {
        self.note_form.is_some()
    }

    /// Has hidden entries made of notes, in this form, unless there are no hidden entries.
    pub(super) fn take_notes(&mut self, form: &Arc<dyn NoteForm>) {
        if self.bare.is_none() && !self.hidden_suffix.is_empty() {
            self.note_form = Some(form.clone());
        }
    }

    /// Appends the hidden entry of the entry appended last, which its note is made of. Returns `false` if it
    /// cannot lie next to it.
    #[inline]
    pub(super) fn note(&mut self, note: u64) -> Result<bool> {
        self.writer.as_mut().expect("an entry was appended").note(note)
    }

    /// Takes the hidden entry of the entry appended last back, which came by this note.
    pub(super) fn take_back_note(&mut self, note: u64) {
        self.writer.as_mut().expect("an entry was appended").take_back_note(note);
    }

    /// The ended blocks of the table under way, for the caller to take; `None` without a table.
    pub(super) fn ended_blocks(&mut self) -> Option<&mut Vec<EndedBlock>> {
        self.writer.as_mut().map(SstWriter::ended_blocks)
    }

    /// Ends the last block of the table under way.
    pub(super) fn end_last_block(&mut self) -> Result<()> {
        self.writer.as_mut().map_or(Ok(()), SstWriter::end_last_block)
    }

    /// Notes that the entry appended last was kept for the readers at `snapshot` alone.
    pub(super) fn note_kept(&mut self, snapshot: SeqNo) {
        *self.kept.entry(snapshot).or_default() += 1;
    }

    /// Has each table remember when its entries were flushed.
    pub(super) fn set_written_at(&mut self, unix_seconds: u64) {
        self.written_at = Some(unix_seconds);
    }

    /// Has each table remember when its entries expire, by the rule with this mark.
    pub(super) fn remember_expiries(&mut self, rule: u64) {
        self.expiry_rule = Some(rule);
    }

    /// The notes on when entries of the table under way expire.
    pub(super) fn expiries(&mut self) -> &mut ExpiryNotes {
        &mut self.expiries
    }

    /// Refuses everything but values from now on; errors that no file can be named for name
    /// `folder`, since these tables become no part of the database.
    pub(super) fn values_only(&mut self, folder: &Path) {
        self.values_only = true;
        folder.clone_into(&mut self.folder);
    }

    /// Returns `true` if values alone may be added.
    pub(super) fn is_values_only(&self) -> bool {
        self.values_only
    }

    /// Says whether a block may end before the next entry.
    pub(super) fn allow_cut(&mut self, allowed: bool) {
        self.cut_allowed = allowed;
        if let Some(writer) = &mut self.writer {
            writer.allow_cut(allowed);
        }
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
    pub(super) fn bytes(&self, measure: Measure) -> u64 {
        self.writer.as_ref().map_or(0, |writer| match measure {
            Measure::Estimated => writer.estimated_bytes(),
            Measure::Written => writer.written_bytes(),
        })
    }

    /// Length of all tables so far, in bytes.
    #[inline]
    pub(super) fn written_bytes(&self) -> u64 {
        self.finished_bytes + self.writer.as_ref().map_or(0, SstWriter::written_bytes)
    }

    /// Ends the table under way, if there is one, with what filters noted in it.
    pub(super) fn end_table(&mut self, mut properties: Properties) -> Result<()> {
        if let Some(mut writer) = self.writer.take() {
            if self.bare.is_none() {
                if let Some(record) = &self.record {
                    properties.0.insert(PARTITION_PROPERTY.to_owned(), record.clone());
                }
                writer.set_user_properties(properties)?;
            }
            let (summary, file) = writer.finish_unsynced()?;
            self.finished_bytes += summary.file_bytes;
            match &self.factory.later {
                // Recovery makes one table for each partition, and there may be thousands: one sync
                // each would take long.
                Some(later) => {
                    let name = self.made.last().expect("the table has a file");
                    later.add(&*self.factory.fs, name, file)?;
                }
                None => file.sync()?,
            }
            // After the sync, or the note that one is due: what is listed here may be named by an
            // edit.
            self.finished.push(SstMeta {
                compression: Some(self.compression),
                kept: fold_kept(std::mem::take(&mut self.kept)),
                expiries: self.expiry_rule.map(|rule| self.expiries.take(rule)),
                written_at: self.written_at,
                ..SstMeta::of(summary)
            });
        }
        Ok(())
    }

    /// Makes all names durable. No table is under way.
    pub(super) fn finish(mut self) -> Result<Vec<SstMeta>> {
        assert!(self.writer.is_none(), "the last table was ended");
        // One sync of the folder for all names, after the syncs of all bytes.
        if !self.finished.is_empty() && self.factory.later.is_none() {
            self.factory.fs.sync_names(&self.factory.dir, &self.made)?;
        }
        // From here on the tables belong to the caller, so nothing is deleted at the drop.
        self.made.clear();
        if let Some(prepopulation) = &self.prepopulation {
            prepopulation.keep();
        }
        Ok(std::mem::take(&mut self.finished))
    }
}

/// The counts of the newest snapshots. Those of older ones are counted with the oldest of them: they
/// become due later than they could, and the manifest does not grow with the number of snapshots.
fn fold_kept(mut kept: BTreeMap<SeqNo, u64>) -> Arc<[Kept]> {
    while kept.len() > KEPT_MAX {
        let (_, entries) = kept.pop_first().expect("it has more than none");
        let mut oldest = kept.first_entry().expect("it had more than one");
        *oldest.get_mut() += entries;
    }
    kept.into_iter().map(|(snapshot, entries)| Kept { snapshot, entries }).collect()
}

impl HiddenSink for Outputs<'_> {
    fn add(&mut self, key: &[u8], seq: SeqNo, payload: &[u8]) -> Result<()> {
        if self.bare.is_some() {
            return Ok(());
        }
        let key = KeyRef::new(key, Trailer::new(seq, EntryKind::Tombstone));
        self.writer()?.add_hidden(key, payload)
    }

    fn ended_blocks(&mut self) -> Option<&mut Vec<EndedBlock>> {
        Outputs::ended_blocks(self)
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        for path in &self.made {
            // A file that cannot be removed is an orphan until the next open.
            let _ = self.factory.fs.delete(path);
            if let Some(under_way) = &self.factory.under_way {
                under_way.remove(path);
            }
        }
    }
}

#[cfg(test)]
mod tests;
