//! [`ManifestTail`]: the manifest of a database that another process writes, followed edit by edit.
//!
//! Used by secondaries. It begins with [`recover_through`], keeps its place, and reads the edits that
//! were appended since. It must never write, and must never take an unfinished append for damage:
//! recovery decides that when it runs.
//!
//! Invariants:
//! 1. Every version is the one before and one edit, as the primary's was.
//! 2. A table that is in two versions is one [`Table`] object, also over a new generation, so that
//!    its reader stays open.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::{FrameSeal, HEADER_BYTES, read_header};
use super::recover::{decode, successor};
use super::{DbVersion, Level, PartitionVersion, Table, apply, recover_through};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::FileName;
use crate::fs::{File, Fs};
use crate::types::FileNo;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The outcome of a look at the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailNews {
    /// There is no further edit yet, or none that may be taken.
    Nothing,
    /// The version is newer than it was.
    Edits,
    /// The manifest continues in another generation: start again with [`ManifestTail::open`].
    Rotated,
}

/// A place in the manifest, and the version there.
pub struct ManifestTail {
    file: Arc<dyn File>,
    path: PathBuf,
    name: FileName,
    seal: FrameSeal,
    /// Offset after the last edit in the file.
    at: u64,
    version: Arc<DbVersion>,
}

impl ManifestTail {
    /// Reads the manifest from `names`, the names in the folder, without the edits after `through`, and keeps
    /// the open readers of `known`; `None` if there is no manifest.
    ///
    /// # Errors
    /// Those of [`recover_through`]; a generation that was deleted meanwhile is
    /// [`ErrorKind::NeedsManifest`].
    pub fn open(
        fs: &dyn Fs,
        dir: &Path,
        names: &[FileName],
        known: Option<&DbVersion>,
        through: Option<u64>,
    ) -> Result<Option<ManifestTail>> {
        let recovered = recover_through(fs, dir, names, through).map_err(vanished)?;
        let Some(recovered) = recovered else { return Ok(None) };
        let mut version = recovered.version;
        if let Some(known) = known.filter(|known| known.db_id == version.db_id) {
            keep_opened(&mut version, known);
        }
        let name = recovered.generation;
        let path = name.path(dir);
        let file = fs.open_read(&path).map_err(vanished)?;
        let mut front = [0; HEADER_BYTES];
        file.read_at(0, &mut front)?;
        // Of this very file: its frames may be of an older version than this code writes.
        let seal = read_header(&front, Some(name), &path)?.seal;
        let version = Arc::new(version);
        Ok(Some(ManifestTail { file, path, name, seal, at: recovered.end, version }))
    }

    /// The version at the place.
    pub fn version(&self) -> &Arc<DbVersion> {
        &self.version
    }

    /// The name of the generation.
    pub fn name(&self) -> FileName {
        self.name
    }

    /// The number of the generation.
    pub fn generation(&self) -> FileNo {
        self.name.number
    }

    /// Takes the edits that were appended since, but none after `through`.
    ///
    /// # Errors
    /// Those of reading; corruption of an edit that verifies and does not fit.
    ///
    /// # Cost
    /// One read if there is nothing.
    pub fn poll(&mut self, through: Option<u64>) -> Result<TailNews> {
        let bytes = self.read_on()?;
        let base = self.at;
        let mut position = 0;
        let mut news = TailNews::Nothing;
        // A frame that does not verify ends the look: it may be an unfinished append.
        while let Some(frame) = self.seal.frame_at(&bytes, position, base) {
            let edit = decode(&frame, base, &self.path)?;
            if successor(&edit).is_some() {
                // The place stays before this edit, so each later look has the same result until
                // the tail is opened again.
                return Ok(TailNews::Rotated);
            }
            if through.is_some_and(|through| edit.number > through) {
                break;
            }
            let next = apply(&self.version, &edit)
                .map_err(|fault| Error::corruption(&self.path, base + position as u64, fault.0))?;
            self.version = Arc::new(next);
            position = frame.end;
            // After each edit, so that an error of the next one leaves place and version
            // consistent.
            self.at = base + position as u64;
            news = TailNews::Edits;
        }
        Ok(news)
    }

    /// All bytes after the place.
    fn read_on(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let filled = bytes.len();
            bytes.resize(filled + PIECE_BYTES, 0);
            let got = self.file.read_at(self.at + filled as u64, &mut bytes[filled..])?;
            bytes.truncate(filled + got);
            // A short read is the end of the file at this moment. The next look finds later bytes.
            if got < PIECE_BYTES {
                return Ok(bytes);
            }
        }
    }
}

/// A generation of a followed manifest may be deleted between a listing and its read.
fn vanished(error: Error) -> Error {
    if error.is_missing() {
        let message = "a generation of the manifest was replaced while it was read";
        return Error::because(ErrorKind::NeedsManifest, message, error);
    }
    error
}

/// Puts the tables of `known` into `version` if they are the same.
fn keep_opened(version: &mut DbVersion, known: &DbVersion) {
    let partitions: Vec<Arc<PartitionVersion>> = version.partitions.values().cloned().collect();
    for partition in partitions {
        let Some(before) = known.partitions.get(partition.id) else { continue };
        // The whole partition at once if nothing changed: most have not, from one generation to the
        // next.
        if *before == partition {
            version.partitions.insert(before.clone());
            continue;
        }
        let tables: HashMap<FileNo, &Arc<Table>> =
            before.tables().map(|(_, table)| (table.meta.file, table)).collect();
        let mut next = (*partition).clone();
        for (number, level) in next.levels.iter_mut().enumerate() {
            let kept = level.tables().iter().map(|table| match tables.get(&table.meta.file) {
                Some(opened) if **opened == *table => Arc::clone(opened),
                _ => table.clone(),
            });
            if number == 0 {
                *level = Level::newest_first(kept.collect());
            // The tables are described alike, so they are sorted as before.
            } else if let Ok(sorted) = Level::sorted(kept.collect()) {
                *level = sorted;
            }
        }
        version.partitions.insert(Arc::new(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::names::FileKind;
    use crate::fs::{AppendMode, MemFs};
    use crate::options::PartitionOptions;
    use crate::types::{DbId, Epoch, PartitionId};
    use crate::version::{Change, Manifest, VersionEdit};

    const DIR: &str = "/db";

    fn generation(number: u64) -> FileName {
        FileName::new(FileKind::Manifest, FileNo(number), Epoch(1))
    }

    fn made(number: u64) -> VersionEdit {
        let id = PartitionId(number as u32 - 1);
        let created = Change::PartitionCreated {
            id,
            name: format!("partition {id}"),
            options: PartitionOptions::default(),
            hooks: Vec::new(),
            created_at_edit: number,
        };
        VersionEdit { number, changes: vec![created] }
    }

    /// A manifest with one edit.
    fn manifest(fs: &MemFs) -> Manifest {
        fs.create_dir(DIR.as_ref()).unwrap();
        let version = DbVersion::empty(DbId(7));
        let mut manifest = Manifest::create(fs, DIR.as_ref(), generation(1), &version).unwrap();
        manifest.append(&made(1)).unwrap();
        manifest
    }

    fn open(fs: &MemFs, names: &[FileName], known: Option<&DbVersion>) -> ManifestTail {
        ManifestTail::open(fs, DIR.as_ref(), names, known, None).unwrap().unwrap()
    }

    #[test]
    fn it_takes_what_is_appended_and_no_more_than_it_may() {
        let fs = MemFs::new();
        let mut manifest = manifest(&fs);
        let mut tail = open(&fs, &[generation(1)], None);
        assert_eq!(tail.poll(None).unwrap(), TailNews::Nothing);
        manifest.append(&made(2)).unwrap();
        manifest.append(&made(3)).unwrap();
        assert_eq!(tail.poll(Some(1)).unwrap(), TailNews::Nothing);
        assert_eq!(tail.poll(Some(2)).unwrap(), TailNews::Edits);
        assert_eq!((tail.version().edit_number, tail.version().partitions.count()), (2, 2));
        assert_eq!(tail.poll(None).unwrap(), TailNews::Edits);
        assert_eq!(tail.version().edit_number, 3);
    }

    #[test]
    fn an_append_that_is_under_way_is_no_edit_yet_at_any_byte() {
        let fs = MemFs::new();
        let mut manifest = manifest(&fs);
        manifest.append(&made(2)).unwrap();
        let path = generation(1).path(DIR.as_ref());
        let whole = super::super::read_all(&*fs.open_read(&path).unwrap()).unwrap();
        let before = open(&fs, &[generation(1)], None).at as usize;
        // The length of the first frames: as of a manifest with one edit.
        let other = MemFs::new();
        drop(self::manifest(&other));
        let first = open(&other, &[generation(1)], None).at as usize;
        assert!(first < before && before == whole.len());
        for len in first..whole.len() {
            let fs = MemFs::new();
            fs.create_dir(DIR.as_ref()).unwrap();
            let file = fs.open_append(&path, AppendMode::IfAbsent).unwrap();
            file.append(&whole[..first]).unwrap();
            let mut tail = open(&fs, &[generation(1)], None);
            file.append(&whole[first..len]).unwrap();
            assert_eq!(tail.poll(None).unwrap(), TailNews::Nothing, "{len}");
            file.append(&whole[len..]).unwrap();
            assert_eq!(tail.poll(None).unwrap(), TailNews::Edits, "{len}");
        }
    }

    #[test]
    fn a_new_generation_is_reported_and_keeps_what_was_there() {
        let fs = MemFs::new();
        let mut manifest = manifest(&fs);
        let mut tail = open(&fs, &[generation(1)], None);
        let version = tail.version().clone();
        Manifest::create(&fs, DIR.as_ref(), generation(2), &version).unwrap();
        manifest.supersede(generation(2)).unwrap();
        assert_eq!(tail.poll(None).unwrap(), TailNews::Rotated);
        assert_eq!(tail.poll(None).unwrap(), TailNews::Rotated, "until it is opened again");
        let next = open(&fs, &[generation(1), generation(2)], Some(&version));
        assert_eq!(next.generation(), FileNo(2));
        let id = PartitionId(0);
        let old = version.partitions.get(id).unwrap();
        assert!(Arc::ptr_eq(old, next.version().partitions.get(id).unwrap()));
        fs.delete(&generation(2).path(DIR.as_ref())).unwrap();
        let names = [generation(2)];
        let gone = ManifestTail::open(&fs, DIR.as_ref(), &names, None, None).err().unwrap();
        assert_eq!(gone.kind(), ErrorKind::NeedsManifest);
    }
}
