//! `Db::checkpoint`: a copy of the database as of one moment, in another folder, while writes
//! continue.
//!
//! All memtables are sealed between two groups of writers; then only these are flushed, until the
//! version with exactly their entries is pinned. Its tables are linked, or copied if that fails, and so
//! are the chunk files with the values of its handles. A manifest that names the tables and no log is
//! published last.
//!
//! A checkpoint has the database's id: its tables carry it. It is the same database with a separate
//! history since; only the folders distinguish the two.
//!
//! Invariants:
//! 1. The manifest is the last thing to appear: a folder without one is refused as a database.
//! 2. The version is pinned until the manifest is written, so no table and no chunk file is deleted before
//!    it was linked or copied.
//! 3. When it fails, its files are removed, the manifest first.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DbInner;
use super::context::DbContext;
use super::flush::is_unflushed;
use super::handle::Db;
use super::log::SegmentRelease;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{Fs, Placed, copy, link_or_copy};
use crate::hooks::NamedChunk;
use crate::partition::{PartitionState, ReadView};
use crate::types::{FileNo, SeqNo};
use crate::version::{DbVersion, HookKind, LogCut, Manifest, RetainedLog};

/// A partition and the view that keeps its tables and values from being removed.
type Pinned = (Arc<PartitionState>, Arc<ReadView>);

impl Db {
    /// Makes a copy of the database in the folder `dir`, which must be empty or not exist, while
    /// writes continue, and returns its last sequence number. Opened as a database it has every commit that was
    /// acknowledged before this call, and is the state after the commit with that number; each concurrent commit is in
    /// it wholly or not at all. Partitions are those that exist at the end of the flush; partitions
    /// without a log are in it as of the same moment.
    ///
    /// It shares bytes with this database if the file system supports links, and is still
    /// independent of it: neither ever changes a table. It has the same database id.
    ///
    /// [`ErrorKind::InvalidArgument`] if there are files in `dir`; [`ErrorKind::Unsupported`] if a
    /// partition has a value store that does not name its files, or whose code is missing; those of
    /// flushing, of the files and of the value stores. Its files are removed then, except the
    /// folder; the remains after a crash are refused as a database.
    ///
    /// # Durability
    /// Durable once this returns.
    ///
    /// # Cost
    /// A flush of all partitions, a link (or a copy) of each table and chunk file, three syncs. Writers wait no
    /// longer than for the sealing of memtables.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<SeqNo> {
        self.inner().checkpoint(dir.as_ref())
    }
}

impl DbInner {
    fn checkpoint(&self, dir: &Path) -> Result<SeqNo> {
        self.check_open()?;
        make_empty_folder(&*self.context.fs, dir)?;
        let (version, last_seq, pinned) = self.version_at_one_commit()?;
        // A number of this database: the copy is the same database, and its next open continues
        // above it.
        let name =
            FileName::new(FileKind::Manifest, self.context.numbers.allocate(), version.epoch);
        let mut made = Vec::new();
        let DbContext { fs, dir: from, .. } = &self.context;
        let written = link_tables(&**fs, from, dir, &version, &mut made)
            .and_then(|()| link_chunks(&**fs, from, dir, &version, &pinned, &mut made))
            // The names before the manifest that needs them.
            .and_then(|()| fs.sync_names(dir, &made))
            .and_then(|()| write_manifest(&**fs, dir, &version, last_seq, name));
        if written.is_err() {
            remove_checkpoint(&**fs, dir, name, &made);
        }
        // Only now may the copied tables and values be deleted.
        drop((version, pinned));
        // Tables that became obsolete meanwhile.
        self.scheduler.background().wake_all();
        written.map(|()| last_seq)
    }

    /// Flushes the entries that were written before the call and nothing else; returns the version
    /// with exactly these, the last sequence number in it, and its partitions with all files that
    /// it refers to.
    fn version_at_one_commit(&self) -> Result<(Arc<DbVersion>, SeqNo, Vec<Pinned>)> {
        // Compactions go on: they change no content.
        let no_other_flush = self.scheduler.jobs().flush_turn();
        let mut between = self.log.lock();
        let partitions = self.catalog.partitions();
        partitions
            .iter()
            .for_each(|partition| self.scheduler.sealer().seal(&mut between, partition));
        let last_seq = self.commit.visible_seq();
        let sealed: Vec<_> = partitions.iter().map(|p| p.view().sealed.first().cloned()).collect();
        drop(between);
        for (partition, newest) in partitions.iter().zip(sealed) {
            let Some(newest) = newest else { continue };
            // A flush whose hooks have changed meanwhile installs nothing, and returns no error.
            while is_unflushed(partition, newest.id) {
                self.scheduler.flusher().flush_partition(
                    &no_other_flush,
                    partition,
                    newest.id,
                    SegmentRelease::Now,
                )?;
            }
        }
        self.scheduler.background().wake_all();
        // The views are pinned first: values are kept for the versions of the views. The version of
        // the database may be replaced by a new generation of the manifest in between, and holds at
        // least as much.
        let pinned = partitions.iter().map(|p| (p.clone(), p.pin())).collect();
        let version = self.catalog.edit()?.current().clone();
        drop(no_other_flush);
        Ok((version, last_seq, pinned))
    }
}

fn link_tables(
    fs: &dyn Fs,
    from: &Path,
    dir: &Path,
    version: &DbVersion,
    made: &mut Vec<PathBuf>,
) -> Result<()> {
    for (_, table) in version.partitions.values().flat_map(|partition| partition.tables()) {
        let file = table.meta.file_name();
        place(made, file.path(dir), |to| link_or_copy(fs, &file.path(from), to, None))?;
    }
    Ok(())
}

/// Makes one file of the checkpoint, and notes it in `made`.
fn place(
    made: &mut Vec<PathBuf>,
    to: PathBuf,
    make: impl FnOnce(&Path) -> Result<Placed>,
) -> Result<()> {
    let placed = make(&to);
    // A failed copy leaves a part of the file. A name that is taken is of another call with the same folder, which may
    // succeed.
    let is_taken = placed.as_ref().is_err_and(|error| {
        error.io_source().is_some_and(|it| it.kind() == io::ErrorKind::AlreadyExists)
    });
    if !is_taken {
        made.push(to);
    }
    placed.map(drop)
}

fn write_manifest(
    fs: &dyn Fs,
    dir: &Path,
    version: &DbVersion,
    last_seq: SeqNo,
    name: FileName,
) -> Result<()> {
    let mut copy = version.clone();
    // It has no log: the entries of the log are flushed. The cut records how far that log reached.
    copy.last_seq = copy.last_seq.max(last_seq);
    // The copy gets no segment: everything before the moment is in tables, and a segment would add
    // later commits.
    copy.log_segments.clear();
    // The copy has no log, so a feed of it begins with its sequence number.
    copy.retained = RetainedLog::default();
    copy.log_cut = Some(LogCut { segment: FileNo(0), offset: 0, last_seq: copy.last_seq });
    copy.log_closed = None;
    copy.replay_from = None;
    copy.flush_beyond_sync = None;
    Manifest::create(fs, dir, name, &copy)?;
    Ok(())
}

/// Removes a failed checkpoint, the manifest first: a manifest without its tables would be worse
/// than orphan files.
fn remove_checkpoint(fs: &dyn Fs, dir: &Path, name: FileName, made: &[PathBuf]) {
    let manifest = name.path(dir);
    if fs.delete(&manifest).and_then(|()| fs.sync_dir(dir)).is_ok() {
        made.iter().for_each(|path| drop(fs.delete(path)));
    }
}

/// Links or copies the chunk files with the values that the tables of `version` name.
fn link_chunks(
    fs: &dyn Fs,
    from: &Path,
    dir: &Path,
    version: &DbVersion,
    pinned: &[Pinned],
    made: &mut Vec<PathBuf>,
) -> Result<()> {
    // A partition that was created after the pins has no tables.
    for (partition, _) in pinned {
        let Some(stored) = version.partitions.get(partition.id) else { continue };
        let hook = stored.hooks.iter().find(|hook| hook.kind == HookKind::ValueStore);
        let Some(hook) = hook.filter(|_| stored.tables().next().is_some()) else { continue };
        let Some(store) = partition.store() else {
            let name = &partition.name;
            let message = format!("the code of the value store of partition {name:?} is missing");
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        // Of the version: values that the store has dropped since, or before, may be reclaimed at
        // any time.
        let sections = &stored.store_sections;
        let named = store.call("named_chunks", |store| store.named_chunks(sections))?;
        let Some(chunks) = named else {
            let message = format!("the value store {:?} supports no checkpoints", hook.name);
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        for NamedChunk { id, end, is_open } in chunks {
            place(made, id.path(dir), |to| match is_open {
                // A link would share the later appends to a file that is still written to.
                true => copy(fs, &id.path(from), to, Some(end)).map(|()| Placed::Copied),
                false => link_or_copy(fs, &id.path(from), to, Some(end)),
            })?;
        }
    }
    Ok(())
}

/// Makes the folder `dir`, which must not exist or have no file.
pub(crate) fn make_empty_folder(fs: &dyn Fs, dir: &Path) -> Result<()> {
    match fs.list(dir, "") {
        Ok(entries) if entries.is_empty() => {}
        Ok(_) => {
            let message = format!("the folder {} is not empty", dir.display());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Err(error) if error.is_missing() => {}
        Err(error) => return Err(error),
    }
    fs.create_dir(dir)
}
