//! [`Source`]: a database to read from, whether another process writes it or not.
//!
//! A database that no process has open is opened as usual. One that another process has open for
//! writing is followed as a secondary: without its lock, and without recovery of its log. One in a bucket is, too.
//!
//! Invariant: a read of a partition shows what was committed when the command began.

use std::path::{Path, PathBuf};

use siltstone::large_values::{BlobReader, ReadBlobs};
use siltstone::secondary::{Level, OnUnmet, ReadOptions, Reading, Secondary};
use siltstone::{
    Cursor, Db, ErrorKind, KeyRange, Keys, Partition, Range, Readable, RemainingTime, Result, Slice,
};

use crate::bucket::{BucketPlace, ReadLength, url_of};
use crate::engine::{Existing, note_writer, partition_names};
use crate::files::files;
use crate::output::{Failure, note};

/// A database to read from: opened by this process, or followed while another one writes it.
pub(crate) enum Source {
    /// Only this process has it open.
    Own(Existing),
    /// Another process writes it, or another machine.
    Followed { secondary: Secondary, path: PathBuf },
}

impl Source {
    /// Opens the database at `path`, a folder or a URL; refuses if there is none.
    pub(crate) fn open(path: &Path, length: ReadLength) -> Result<Source, Failure> {
        if let Some(url) = url_of(path) {
            let secondary = BucketPlace::new(url)?.reader(length)?.secondary().open()?;
            return Ok(Source::Followed { secondary, path: path.to_owned() });
        }
        match Existing::open_alone_to_read(path) {
            // The open is tried first: recovery needs the lock, and shows everything that a dead
            // writer has left.
            Err(Failure::Engine(error)) if error.kind() == ErrorKind::Locked => {
                note_writer();
                let secondary = Db::secondary_builder(path).fs(files()).open()?;
                Ok(Source::Followed { secondary, path: path.to_owned() })
            }
            opened => opened.map(Source::Own),
        }
    }

    /// The partition `name` as it is now; refuses if there is none.
    pub(crate) fn partition(&self, name: &str) -> Result<Readings, Failure> {
        match self {
            Source::Own(existing) => Ok(Readings::Own(existing.partition(name)?)),
            Source::Followed { secondary, path } => match present(secondary, name) {
                Err(error) if error.kind() == ErrorKind::PartitionNotFound => {
                    let place = path.display();
                    Err(Failure::NotFound(format!("no partition {name:?} in {place}")))
                }
                read => Ok(Readings::Followed(read?)),
            },
        }
    }

    /// Names of all partitions, in order.
    pub(crate) fn partition_names(&self) -> Vec<String> {
        match self {
            Source::Own(existing) => partition_names(&existing.db),
            Source::Followed { secondary, .. } => secondary.partition_names(),
        }
    }

    /// Releases the database.
    pub(crate) fn close(self) -> Result<()> {
        match self {
            Source::Own(existing) => existing.db.close(),
            // A secondary has nothing to write back. Its lease ends with it.
            Source::Followed { .. } => Ok(()),
        }
    }
}

/// The current state of the partition. If the writer runs on another machine, it is the state that
/// the log proves durable.
pub(crate) fn present(secondary: &Secondary, name: &str) -> Result<Reading> {
    // Strong, because a command runs once: its user expects writes that other programs have just
    // reported.
    let options = ReadOptions::new(Level::Strong).on_unmet(OnUnmet::Weaker);
    let reading = secondary.partition(name)?.read(&options)?;
    if reading.served() != Level::Strong {
        note(format_args!(
            "siltstone: the newest commits of the writer may be missing from partition {name:?}"
        ));
    }
    Ok(reading)
}

/// A partition to read from.
pub(crate) enum Readings {
    /// The partition of a database that only this process has open.
    Own(Partition),
    /// The partition at the state of the catch-up.
    Followed(Reading),
}

impl Readings {
    /// The time that the entry of `key` has left; `None` if readers see none.
    pub(crate) fn remaining_time(&self, key: &[u8]) -> Result<Option<RemainingTime>> {
        match self {
            Readings::Own(partition) => partition.remaining_time(key),
            Readings::Followed(reading) => reading.remaining_time(key),
        }
    }

    /// The same with the entries that have expired and are still stored.
    pub(crate) fn with_expired(self) -> Readings {
        match self {
            Readings::Own(partition) => Readings::Own(partition.with_expired()),
            Readings::Followed(reading) => Readings::Followed(reading.with_expired()),
        }
    }

    /// Opens the value of `key` for reading in parts.
    pub(crate) fn open_blob(&self, key: &[u8]) -> Result<Option<BlobReader>> {
        match self {
            Readings::Own(partition) => partition.open_blob(key),
            Readings::Followed(reading) => reading.open_blob(key),
        }
    }
}

impl Readable for Readings {
    type Range = Range;
    type Keys = Keys;
    type Cursor = Cursor;

    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        match self {
            Readings::Own(partition) => partition.get(key),
            Readings::Followed(reading) => reading.get(key),
        }
    }

    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        match self {
            Readings::Own(partition) => partition.multi_get(keys),
            Readings::Followed(reading) => reading.multi_get(keys),
        }
    }

    fn range(&self, range: impl KeyRange) -> Range {
        match self {
            Readings::Own(partition) => partition.range(range),
            Readings::Followed(reading) => reading.range(range),
        }
    }

    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        match self {
            Readings::Own(partition) => partition.prefix(prefix),
            Readings::Followed(reading) => reading.prefix(prefix),
        }
    }

    fn keys(&self) -> Keys {
        match self {
            Readings::Own(partition) => partition.keys(),
            Readings::Followed(reading) => reading.keys(),
        }
    }

    fn cursor_in(&self, range: impl KeyRange) -> Cursor {
        match self {
            Readings::Own(partition) => partition.cursor_in(range),
            Readings::Followed(reading) => reading.cursor_in(range),
        }
    }
}
