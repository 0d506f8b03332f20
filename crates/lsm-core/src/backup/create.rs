//! A new backup: the pieces that are missing, then the record.

use std::collections::{BTreeMap, HashMap, HashSet};

use parking_lot::Mutex;

use super::format::{
    BackupRecord, PIECE_HEADER_BYTES, SharedPiece, StoredFile, begin_piece, database_mark,
    part_name, record_name, seal_piece,
};
use super::purge_record::{name_since, split_name};
use super::source::{OpenSource, SourceFile, SourceFolder, SourcePiece, SourceState};
use super::{BackupFolder, BackupInfo, BackupSource, READING, Records, THREAD, file_bytes};
use crate::clock::Pace;
use crate::db::Db;
use crate::error::{Error, ErrorKind, Result};
use crate::threads::for_each;
use crate::types::DbId;

impl BackupFolder {
    /// Makes a backup of an open database. It has every commit that returned before the call, and is the state after
    /// some commit at or after the call. Partitions without a log are flushed first, so it has their entries, too.
    /// Writers continue.
    ///
    /// # Errors
    /// As [`BackupFolder::create_backup_of`]; those of the flush.
    ///
    /// # Cost
    /// As [`BackupFolder::create_backup_of`].
    pub fn create_backup(&self, db: &Db) -> Result<BackupInfo> {
        self.create_backup_of(&db.backup_source()?)
    }

    /// Makes a backup of the database in a folder, which another process may write meanwhile. It has every commit that
    /// returned before the call; of partitions without a log it has what was flushed.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if another process changes the folder of backups; [`ErrorKind::InvalidArgument`] if that
    /// has backups of another database; [`ErrorKind::FileGone`] if purges have deleted again and again what was copied;
    /// corruption of the manifest and the log; those of the files. No backup is added then, unless the file system fails
    /// after its record is there. The others stay as they are. What was copied stays until a purge, and the next
    /// backup need not copy it again.
    ///
    /// # Durability
    /// The backup is durable once this returns.
    ///
    /// # Cost
    /// Reads the manifest, the headers of the log and what no backup in the folder has; writes the latter. Two syncs for
    /// each 8 MiB. 8 MiB of memory.
    pub fn create_backup_of(&self, source: &BackupSource) -> Result<BackupInfo> {
        self.fs.create_dir(&self.shared_dir())?;
        let _lock = self.lock()?;
        // Made here, because readers write nothing.
        drop(self.fs.try_lock(&self.dir.join(READING))?);
        SourceFolder::until_held(|| self.try_create(source))
    }

    fn try_create(&self, source: &BackupSource) -> Result<BackupInfo> {
        let from = SourceFolder::open(source)?;
        let records = self.records()?;
        self.check_database(&records, from.pinned.version.db_id)?;
        let source = SourceState::find(&from)?;
        let present = self.shared()?;
        let copy = Copy {
            engine: self,
            from: &from,
            source: &source,
            usable: UsableFiles::of(&records, &present),
            pace: Mutex::new(Pace::new(self.bytes_per_second)),
            copied: Mutex::new(CopiedFiles { present, new_bytes: 0 }),
        };
        let mut files: Vec<Option<StoredFile>> = Vec::new();
        files.resize_with(source.files.len(), || None);
        let copies = source.files.iter().zip(&mut files).collect();
        for_each(THREAD, self.threads, copies, |(file, stored)| {
            *stored = copy.file(file)?;
            Ok(())
        })?;
        let files = files.into_iter().flatten().collect();
        let new_bytes = copy.copied.into_inner().new_bytes;
        // Last: everything was read from files that the lease held.
        from.follower.keep_lease()?;
        self.publish(source, files, new_bytes, &records)
    }

    /// Returns an error if the folder has backups of another database than `db`.
    fn check_database(&self, records: &Records, db: DbId) -> Result<()> {
        if records.sound.values().all(|record| record.version.db_id == db) {
            return Ok(());
        }
        let message = format!("{} has backups of another database", self.dir.display());
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Publishes the record of a backup whose pieces are durable, under the next free number. `begun` are the records
    /// at its begin.
    fn publish(
        &self,
        source: SourceState,
        files: Vec<StoredFile>,
        new_bytes: u64,
        begun: &Records,
    ) -> Result<BackupInfo> {
        let time = self.clock.unix_time().as_secs();
        let SourceState { version, seq, .. } = source;
        let id = number_after(begun.last)?;
        let mut record = BackupRecord { id, time, seq, new_bytes, version, files };
        while !self.fs.put_if_absent(&self.dir.join(record_name(record.id)), &record.encode())? {
            let records = self.records()?;
            check_purges(begun, &records, &record)?;
            record.id = number_after(records.last)?;
        }
        // The number was free, perhaps because a purge has deleted its record: then that purge has not kept this one.
        if self.numbers()?.last() != Some(&record.id) {
            let records = self.records()?;
            let purge = records.newest_purge_after(record.id)?;
            if purge.is_some_and(|purge| !purge.kept.contains(&record.id)) {
                return Err(overtaken());
            }
        }
        Ok(BackupInfo::of(&record))
    }
}

/// The number of a record that follows the record `last`.
pub(super) fn number_after(last: u32) -> Result<u32> {
    let number = last.checked_add(1);
    number.ok_or_else(|| Error::limit("the number of a backup", last.into(), u32::MAX.into()))
}

/// Returns an error if a purge after the begin of the backup `record` has deleted a shared file that it needs.
fn check_purges(begun: &Records, now: &Records, record: &BackupRecord) -> Result<()> {
    let Some(purge) = now.newest_purge_after(begun.last)? else { return Ok(()) };
    let deleted: HashSet<&str> = purge.deleted.iter().map(|name| &**name).collect();
    // Of more than one purge, the records of the first ones are gone.
    if purge.previous != begun.purge_number()
        || record.pieces().any(|piece| deleted.contains(&*piece.name))
    {
        return Err(overtaken());
    }
    Ok(())
}

fn overtaken() -> Error {
    let message = "a purge has deleted files of the backup while it was made";
    Error::new(ErrorKind::FileGone, message)
}

/// The names of shared files for a new backup.
struct UsableFiles {
    /// By their own names, the ones that backups need, or that are made since the last purge. Any other one may be
    /// deleted at any time.
    by_own: HashMap<String, String>,
    /// The number of the last purge, or 0.
    purge: u32,
}

impl UsableFiles {
    fn of(records: &Records, present: &BTreeMap<String, u64>) -> UsableFiles {
        let purge = records.purge_number();
        let recent = present.keys().map(|name| (&**name, split_name(name)));
        let recent = recent.filter(|(_, (made, _))| *made == purge);
        let needed = records.sound.values().flat_map(BackupRecord::pieces);
        let needed = needed.map(|piece| (&*piece.name, split_name(&piece.name)));
        // Those that backups need are last, so they win: if one is lost, it is made again for these backups, too.
        let by_own = recent.chain(needed).map(|(name, (_, own))| (own.to_owned(), name.to_owned()));
        UsableFiles { by_own: by_own.collect(), purge }
    }

    /// The name of the file with the own name `own`.
    fn name(&self, own: &str) -> String {
        self.by_own.get(own).cloned().unwrap_or_else(|| name_since(self.purge, own))
    }
}

/// The shared files, while several threads add to them.
struct CopiedFiles {
    /// All of them, with their lengths.
    present: BTreeMap<String, u64>,
    /// The bytes of those that were copied.
    new_bytes: u64,
}

/// The copying of what is missing, by several threads.
struct Copy<'a> {
    engine: &'a BackupFolder,
    from: &'a SourceFolder,
    source: &'a SourceState,
    usable: UsableFiles,
    pace: Mutex<Pace>,
    copied: Mutex<CopiedFiles>,
}

impl Copy<'_> {
    /// Copies what is missing of a file; `None` if the file is not needed any more.
    fn file(&self, file: &SourceFile) -> Result<Option<StoredFile>> {
        let Some(source) = self.from.open_file(file)? else { return Ok(None) };
        let mut pieces = Vec::new();
        for piece in file.pieces(source.file(), &self.source.version)? {
            pieces.push(self.piece(&source, piece)?);
        }
        Ok(Some(StoredFile { name: file.name, pieces }))
    }

    fn has(&self, name: &str, len: u64) -> bool {
        self.copied.lock().present.get(name) == Some(&file_bytes(len))
    }

    fn piece(&self, source: &OpenSource, piece: SourcePiece) -> Result<SharedPiece> {
        let SourcePiece { name, offset, len } = piece;
        let name = name.map(|own| self.usable.name(&own));
        if let Some(name) = name.clone().filter(|name| self.has(name, len)) {
            return Ok(SharedPiece { name, len });
        }
        self.from.follower.keep_lease()?;
        self.engine.keep_pace(&self.pace, len);
        let mut bytes = begin_piece();
        bytes.resize(PIECE_HEADER_BYTES + len as usize, 0);
        let content = &mut bytes[PIECE_HEADER_BYTES..];
        source.read(offset, content)?;
        let db = database_mark(self.source.version.db_id);
        let name = name.unwrap_or_else(|| self.usable.name(&part_name(db, content)));
        if !self.has(&name, len) {
            seal_piece(&name, &mut bytes);
            self.put(&name, &bytes)?;
        }
        Ok(SharedPiece { name, len })
    }

    /// Publishes a shared file, unless another thread does: if that fails, so does the backup.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let fs = &*self.engine.fs;
        let dir = self.engine.shared_dir();
        let path = dir.join(name);
        let len = bytes.len() as u64;
        let before = {
            let mut copied = self.copied.lock();
            let before = copied.present.insert(name.to_owned(), len);
            if before == Some(len) {
                return Ok(());
            }
            copied.new_bytes += len - PIECE_HEADER_BYTES as u64;
            before
        };
        if before.is_some() {
            // Of another length: it is damaged, and of no use to any backup. Without locks another process may have
            // made it again since it was listed.
            if !fs.caps().process_lock {
                let what = "a shared file has another length than its name says; delete it, and back up again";
                return Err(Error::corruption(path, None, what));
            }
            fs.delete(&path)?;
            fs.sync_dir(&dir)?;
        }
        // If another process was faster, it has put the same bytes.
        fs.put_if_absent(&path, bytes)?;
        Ok(())
    }
}
