//! [`Builder::repair_into`]: a new database of what can be read of a damaged one.
//!
//! The database is made in a folder next to the new one, and the new one is a checkpoint of it. A checkpoint publishes
//! its manifest last, so a folder that a crash left is refused as a database.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Salvage;
use super::report::SalvageReport;
use crate::db::catalog::DEFAULT;
use crate::db::checkpoint::make_empty_folder;
use crate::db::handle::Db;
use crate::db::open::{Builder, random_from_hasher_keys};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names::{self, FileKind, FileName};
use crate::types::{ClearSeqs, DbId, DeletedRanges, Epoch, FileNo, Gaps, SeqNo};
use crate::version::{DbVersion, Manifest, PartitionVersion};

/// The ending of the name of the folder in which a repair works.
const UNFINISHED: &str = ".unfinished";

impl Builder {
    /// Makes a new database in `into`, which must be empty or not exist, of everything that can be read of this one,
    /// whatever is damaged or missing. Partitions keep their names, numbers, options and hooks. This database is not
    /// changed, and may lie on a read-only medium.
    ///
    /// The report names every damaged place, and all keys that may not be what they were: a key outside of
    /// [`SalvageReport::doubtful`] has the value that it had.
    ///
    /// # Errors
    /// As [`Builder::salvage`]; [`ErrorKind::InvalidArgument`] if there are files in `into`; those of writing, such as
    /// [`ErrorKind::NoSpace`]. No database is left in `into` then.
    ///
    /// # Durability
    /// The new database is durable once this returns. After a crash, `into` is no database, and files may lie in a
    /// folder next to it, whose name ends in `.unfinished`. The next repair into `into` removes them.
    ///
    /// # Cost
    /// Reads the database once, and writes what it holds. The log must fit into memory, and so must each value.
    pub fn repair_into(self, into: impl AsRef<Path>) -> Result<SalvageReport> {
        let mut salvage = self.salvage()?;
        let into = into.as_ref();
        let fs = salvage.builder.fs.clone();
        let scratch = unfinished(into)?;
        make_empty_folder(&*fs, into)?;
        fs.create_dir(&scratch)?;
        remove_files(&*fs, &scratch)?;
        let made = salvage.make(&scratch).and_then(|db| {
            let copied = db.checkpoint(into);
            copied.and_then(|_| db.close())
        });
        let removed = remove_files(&*fs, &scratch);
        made.and(removed)?;
        Ok(salvage.report)
    }
}

/// The folder in which the repair works.
fn unfinished(into: &Path) -> Result<PathBuf> {
    let Some(name) = into.file_name() else {
        let what = format!("{} is not the name of a folder", into.display());
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    };
    let mut name = name.to_owned();
    name.push(UNFINISHED);
    Ok(into.with_file_name(name))
}

/// Removes the files of a database that was not finished, the manifests first.
fn remove_files(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let entries = fs.list(dir, "")?;
    let (first, rest): (Vec<_>, Vec<_>) =
        entries.iter().map(|entry| &entry.name).partition(|name| is_manifest(name));
    for name in first {
        fs.delete(&dir.join(name))?;
    }
    fs.sync_dir(dir)?;
    for name in rest {
        let is_ours = FileName::parse(name).is_some()
            || names::is_temporary(name)
            || names::is_cursor(name)
            || name == names::LOCK;
        if is_ours {
            fs.delete(&dir.join(name))?;
        }
    }
    Ok(())
}

fn is_manifest(name: &str) -> bool {
    FileName::parse(name).is_some_and(|name| name.kind == FileKind::Manifest)
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
        let id =
            u128::from(random_from_hasher_keys()) << 64 | u128::from(random_from_hasher_keys());
        let found = &self.state.version;
        let mut version = DbVersion::empty(DbId(id));
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
