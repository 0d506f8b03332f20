//! [`Builder::repair_into`]: a new database of what can be read of a damaged one.
//!
//! The database is made in a work folder next to the new one, and the new one is a checkpoint of it. A checkpoint publishes
//! its manifest last, so a folder that a crash left is refused as a database.
//!
//! Files are removed from a work folder only, under its lock. The lock is a file that says that the folder is one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Salvage;
use super::report::SalvageReport;
use crate::db::catalog::DEFAULT;
use crate::db::checkpoint::make_empty_folder;
use crate::db::handle::Db;
use crate::db::open::{Builder, random_from_hasher_keys};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{self, FileKind, FileName};
use crate::fs::{Fs, LockGuard};
use crate::types::{ClearSeqs, DbId, DeletedRanges, Epoch, FileNo, Gaps, SeqNo};
use crate::version::{DbVersion, Manifest, PartitionVersion};

/// The ending of the name of the folder in which a repair works.
const UNFINISHED: &str = ".unfinished";
/// The lock of a work folder.
const WORK_LOCK: &str = "repair-lock";
/// The begin of the name of a file that shows whether two folders are one.
const PROBE: &str = "repair-probe-";

impl Builder {
    /// Makes a new database in `into`, which must be empty or not exist, of everything that can be read of this one,
    /// whatever is damaged or missing. Partitions keep their names, numbers, options and hooks. This database is not
    /// changed, and may lie on a read-only medium.
    ///
    /// The report names every damaged place, and all keys that may not be what they were: a key outside of
    /// [`SalvageReport::doubtful`] has the value that it had.
    ///
    /// # Errors
    /// As [`Builder::salvage`]; [`ErrorKind::InvalidArgument`] if there are files in `into`, or in the work folder, that no
    /// repair has left, or if the work folder is that of this database; [`ErrorKind::Locked`] if another repair is at work
    /// there; those of writing, such as [`ErrorKind::NoSpace`]. No database is left in `into` then.
    ///
    /// # Durability
    /// The new database is durable once this returns. After a crash, `into` is no database, and files may lie in the
    /// work folder next to it, whose name is that of `into` with `.unfinished`. The next repair into `into` removes them.
    ///
    /// # Cost
    /// Reads the database once, and writes what it holds. The log must fit into memory, and so must each value.
    pub fn repair_into(self, into: impl AsRef<Path>) -> Result<SalvageReport> {
        let mut salvage = self.salvage()?;
        let into = into.as_ref();
        let fs = salvage.builder.fs.clone();
        let work = WorkFolder::claim(fs.clone(), work_dir(into)?, &salvage.builder.dir)?;
        make_empty_folder(&*fs, into)?;
        work.empty()?;
        let db = salvage.make(&work.dir)?;
        db.checkpoint(into)?;
        // The new database is whole, whatever becomes of the other one.
        let _ = db.close();
        Ok(salvage.report)
    }
}

/// The folder in which a repair works. Emptied at the end.
struct WorkFolder {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    _lock: Box<dyn LockGuard>,
}

impl WorkFolder {
    /// Takes the folder `dir` for a repair of the database in `source`, and changes nothing in it.
    fn claim(fs: Arc<dyn Fs>, dir: PathBuf, source: &Path) -> Result<WorkFolder> {
        fs.create_dir(&dir)?;
        let names = fs.list_names(&dir, "")?;
        if !names.is_empty() && !names.iter().any(|name| name == WORK_LOCK) {
            let what = format!(
                "a repair works in {}, and there are files that no repair has left\n  \
                 give the new database another name, or move these files",
                dir.display()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let Some(lock) = fs.try_lock(&dir.join(WORK_LOCK))? else {
            let what = format!("another repair is at work in {}", dir.display());
            return Err(Error::new(ErrorKind::Locked, what));
        };
        // Another repair that ended meanwhile has removed the file that is locked here.
        if fs.list_names(&dir, WORK_LOCK)?.is_empty() {
            let what = format!("another repair has just ended in {}; try again", dir.display());
            return Err(Error::new(ErrorKind::Locked, what));
        }
        // What a crash leaves has the lock next to it.
        fs.sync_dir(&dir)?;
        check_apart(&*fs, &dir, source)?;
        // Not before: its drop empties the folder.
        Ok(WorkFolder { fs, dir, _lock: lock })
    }

    /// Removes the files of a database that was not finished, the manifests first.
    fn empty(&self) -> Result<()> {
        let WorkFolder { fs, dir, .. } = self;
        let entries = fs.list_names(dir, "")?;
        let (first, rest): (Vec<_>, Vec<_>) = entries.iter().partition(|name| is_manifest(name));
        for name in first {
            fs.delete(&dir.join(name))?;
        }
        fs.sync_dir(dir)?;
        for name in rest {
            let is_ours = FileName::parse(name).is_some()
                || names::is_temporary(name)
                || names::is_cursor(name)
                || name == names::LOCK
                || name.starts_with(PROBE);
            if is_ours {
                fs.delete(&dir.join(name))?;
            }
        }
        Ok(())
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // What stays is removed by the next repair.
        if self.empty().is_ok() {
            let _ = self.fs.delete(&self.dir.join(WORK_LOCK));
        }
    }
}

/// Refuses to work in the folder of the damaged database, which an earlier repair may have left. A name that is new in
/// the one folder and not in the other one proves that they differ; their paths do not.
fn check_apart(fs: &dyn Fs, work: &Path, source: &Path) -> Result<()> {
    let name = format!("{PROBE}{:032x}", random_id());
    fs.put_if_absent(&work.join(&name), b"")?;
    let seen = fs.list_names(source, &name);
    fs.delete(&work.join(&name))?;
    if seen?.is_empty() {
        return Ok(());
    }
    let what = format!(
        "{} is the damaged database, and the repair would work there\n  \
         give the new database another name",
        work.display()
    );
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

/// The work folder of a repair into `into`.
fn work_dir(into: &Path) -> Result<PathBuf> {
    let Some(name) = into.file_name() else {
        let what = format!("{} is not the name of a folder", into.display());
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    };
    let mut name = name.to_owned();
    name.push(UNFINISHED);
    Ok(into.with_file_name(name))
}

fn is_manifest(name: &str) -> bool {
    FileName::parse(name).is_some_and(|name| name.kind == FileKind::Manifest)
}

fn random_id() -> u128 {
    u128::from(random_from_hasher_keys()) << 64 | u128::from(random_from_hasher_keys())
}

impl Salvage {
    /// Makes the new database in `dir`, and opens it.
    fn make(&mut self, dir: &Path) -> Result<Db> {
        let fs = self.builder.fs.clone();
        let name = FileName::new(FileKind::Manifest, FileNo(1), Epoch(0));
        Manifest::create(&*fs, dir, name, &self.empty_version())?;
        let mut builder = Db::builder(dir)
            .fs(fs)
            .options(self.builder.options.clone())
            .clock(self.builder.clock.clone())
            .background(self.builder.mode);
        builder.hooks.clone_from(&self.builder.hooks);
        let db = builder.open()?;
        for name in self.partition_names() {
            let partition = db.open_partition(&name)?;
            partition.bulk_load_by(|load| {
                self.each_entry(&name, &mut |key, value| load.put(key, value))
            })?;
        }
        Ok(db)
    }

    /// The partitions without an entry, as a database with an id of its own: its history is another one.
    fn empty_version(&self) -> DbVersion {
        let found = &self.state.version;
        let mut version = DbVersion::empty(DbId(random_id()));
        version.next_file = FileNo(2);
        version.edit_number = found.edit_number.max(1);
        // New numbers are above those that an application may have kept.
        version.last_seq = self.state.last_seq;
        version.next_partition = found.next_partition;
        for partition in found.partitions.values() {
            version.partitions.insert(Arc::new(PartitionVersion {
                levels: Default::default(),
                flushed_through: SeqNo::ZERO,
                gaps: Gaps::default(),
                clear_seqs: ClearSeqs::default(),
                spans: DeletedRanges::default(),
                store_sections: Vec::new(),
                ..(**partition).clone()
            }));
        }
        debug_assert!(version.partitions.named(DEFAULT).is_some(), "every database has it");
        version
    }
}
