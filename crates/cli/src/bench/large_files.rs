//! [`FilePerValue`]: the workload of large values on a file for each value, without an engine: the
//! basic store of the paper.
//!
//! A put writes a new file and renames it, so that a reader sees the old value or the new one. A
//! durable one syncs the file before the rename and the folder after it. Nothing is verified.

#![expect(clippy::disallowed_methods, reason = "these files belong to no database")]

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use testkit::bench::Ack;
use testkit::bench::large::LargeEngine;

/// A folder with a file for each value; it is removed with this value.
pub(super) struct FilePerValue {
    folder: TempDir,
}

impl FilePerValue {
    /// In a new folder within `folder`.
    pub(super) fn new(folder: &Path) -> io::Result<FilePerValue> {
        Ok(FilePerValue { folder: tempfile::tempdir_in(folder)? })
    }

    /// Keys of the workload are names that files can have.
    fn path_of(&self, key: &[u8]) -> PathBuf {
        self.folder.path().join(String::from_utf8_lossy(key).as_ref())
    }
}

impl LargeEngine for FilePerValue {
    type Error = io::Error;

    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> io::Result<()> {
        let new = self.folder.path().join("new");
        let mut file = File::create(&new)?;
        file.write_all(value)?;
        if when == Ack::Sync {
            file.sync_data()?;
        }
        fs::rename(&new, self.path_of(key))?;
        if when == Ack::Sync {
            File::open(self.folder.path())?.sync_all()?;
        }
        Ok(())
    }

    fn get(&self, key: &[u8], buf: &mut [u8]) -> io::Result<Option<usize>> {
        let mut file = match File::open(self.path_of(key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let buf = buf.get_mut(..len).ok_or(ErrorKind::InvalidInput)?;
        file.read_exact(buf)?;
        Ok(Some(len))
    }

    fn delete(&self, key: &[u8]) -> io::Result<()> {
        fs::remove_file(self.path_of(key))
    }

    fn reclaim(&self) -> io::Result<()> {
        Ok(())
    }
}
