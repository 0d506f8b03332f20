//! The files of a folder as entries. A file above [`READ_BYTES_MAX`] is streamed, in and for the
//! comparison, so that memory does not grow with the size of a file.
//!
//! The key is the path below the folder with `/` between its parts. Symbolic links and special
//! files are left out.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use siltstone::large_values::BlobReader;
use siltstone::{Durability, Error, Options, Partition};

use super::{BATCH_BYTES, Sink};
use crate::engine;
use crate::output::Failure;

/// A file up to so many bytes is read whole and put into a batch with others.
const READ_BYTES_MAX: u64 = BATCH_BYTES as u64;

/// The value of an entry of the source.
pub(super) enum Content {
    /// The value itself.
    Bytes(Vec<u8>),
    /// The file that holds it.
    File(LargeFile),
}

/// A file that is not read whole.
pub(super) struct LargeFile {
    path: PathBuf,
    len: u64,
}

impl Content {
    /// Length in bytes; of a file, when it was listed.
    pub(super) fn len(&self) -> u64 {
        match self {
            Content::Bytes(value) => value.len() as u64,
            Content::File(file) => file.len,
        }
    }

    /// The value itself, read whole.
    pub(super) fn read(self) -> Result<Vec<u8>, Failure> {
        match self {
            Content::Bytes(value) => Ok(value),
            Content::File(file) => file.read(),
        }
    }

    /// Returns whether the value is the same as the stored one.
    pub(super) fn is_equal_to(&self, stored: &BlobReader) -> Result<bool, Failure> {
        // The lengths first: most differences need no reading.
        if stored.len() != self.len() {
            return Ok(false);
        }
        let mut stored = stored.clone();
        match self {
            Content::Bytes(value) => {
                is_same(&mut value.as_slice(), Path::new("memory"), &mut stored)
            }
            Content::File(file) => is_same(&mut open(&file.path)?, &file.path, &mut stored),
        }
    }
}

impl LargeFile {
    /// Length in bytes when it was listed.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Puts the file as the value of `key`: streamed into a partition with large values, otherwise
    /// read whole.
    pub(super) fn put(&self, partition: &Partition, key: &[u8]) -> Result<(), Failure> {
        if partition.space().is_some() {
            let mut file = open(&self.path)?;
            let len = Some(self.len);
            return engine::put_stream(partition, key, len, &mut file, &self.path, Durability::Os);
        }
        // Checked before the file is read. A file of a terabyte must not be read into memory to be
        // refused.
        let most = Options::default().value_bytes_max;
        if self.len > most {
            let what = "length of a value in a partition without large values";
            return Err(Error::limit(what, self.len, most).into());
        }
        partition.put(key, self.read()?)?;
        Ok(())
    }

    fn read(&self) -> Result<Vec<u8>, Failure> {
        let mut value = Vec::new();
        let read = open(&self.path)?.read_to_end(&mut value);
        read.map_err(|e| Failure::io("read", &self.path, &e))?;
        Ok(value)
    }
}

#[expect(clippy::disallowed_methods, reason = "the source is no database")]
fn open(path: &Path) -> Result<fs::File, Failure> {
    fs::File::open(path).map_err(|e| Failure::io("open", path, &e))
}

/// Reads both to their ends and compares them.
fn is_same(source: &mut dyn Read, path: &Path, stored: &mut BlobReader) -> Result<bool, Failure> {
    let mut expected = vec![0; engine::PIECE_BYTES];
    let mut got = vec![0; engine::PIECE_BYTES];
    loop {
        let len =
            engine::read_piece(source, &mut expected).map_err(|e| Failure::io("read", path, &e))?;
        let stored_len = engine::read_piece(stored, &mut got).map_err(engine::stored_failure)?;
        if expected[..len] != got[..stored_len] {
            return Ok(false);
        }
        if len == 0 {
            return Ok(true);
        }
    }
}

/// Every regular file below `root`, in the order of their names, folder by folder.
#[expect(clippy::disallowed_methods, reason = "the source is no database")]
pub(super) fn each(root: &Path, sink: &mut Sink<'_>) -> Result<(), Failure> {
    let mut folders = vec![(root.to_owned(), Vec::new())];
    while let Some((folder, key_prefix)) = folders.pop() {
        let list = |e: std::io::Error| Failure::io("list", &folder, &e);
        let names = fs::read_dir(&folder).map_err(list)?;
        let mut names = names.collect::<Result<Vec<_>, _>>().map_err(list)?;
        names.sort_by_key(fs::DirEntry::file_name);
        for name in names {
            let path = name.path();
            let mut key = key_prefix.clone();
            key.extend_from_slice(name.file_name().as_encoded_bytes());
            let kind = name.file_type().map_err(|e| Failure::io("look at", &path, &e))?;
            if kind.is_dir() {
                key.push(b'/');
                folders.push((path, key));
            } else if kind.is_file() {
                let len = name.metadata().map_err(|e| Failure::io("look at", &path, &e))?.len();
                if len > READ_BYTES_MAX {
                    sink(key, Content::File(LargeFile { path, len }))?;
                    continue;
                }
                let value = fs::read(&path).map_err(|e| Failure::io("read", &path, &e))?;
                sink(key, Content::Bytes(value))?;
            }
        }
    }
    Ok(())
}
