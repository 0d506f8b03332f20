//! Streams of entries: a database, or parts of it, as one sequence of bytes for a pipe or a file.
//!
//! The calls are [`Db::export_stream`] and [`Db::import_stream`]. `streams/format.rs` describes the
//! bytes, `streams/text.rs` the text of Berkeley DB. `streams/export.rs` and `streams/import.rs` write
//! and read; `streams/arriving.rs` puts what was read into partitions. `streams/entries.rs` is for converters,
//! which have no database.
//!
//! Invariants:
//! 1. No value is held in memory as a whole, unless its partition holds it in a table anyway.
//! 2. An entry of a damaged stream is never imported: all bytes of an entry are verified first.

mod arriving;
mod entries;
mod export;
mod format;
mod import;
mod text;

use std::io::{Read, Write};
use std::ops::Bound;
use std::path::PathBuf;

use lsm_core::error::Result;
use lsm_core::read::KeyRange;

use crate::db::Db;

pub use self::entries::{EntryReader, EntryWriter, StreamEntry, StreamPartition};

/// The form of a stream of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamFormat {
    /// The stream of siltstone: checksums in it cover every byte.
    #[default]
    Checked,
    /// The text that `db_dump` of Berkeley DB writes and `db_load` reads, with bytes in hex; LMDB's
    /// `mdb_dump` and `mdb_load` use it too. It has no checksums.
    BerkeleyText,
}

/// Options of [`Db::export_stream`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct StreamExport {
    format: StreamFormat,
    partitions: Option<Vec<String>>,
    range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl Default for StreamExport {
    fn default() -> StreamExport {
        let range = (Bound::Unbounded, Bound::Unbounded);
        StreamExport { format: StreamFormat::default(), partitions: None, range }
    }
}

impl StreamExport {
    /// Returns the defaults: all keys of all partitions, in [`StreamFormat::Checked`].
    pub fn new() -> StreamExport {
        StreamExport::default()
    }

    /// Sets the form of the stream.
    ///
    /// # Examples
    /// ```
    /// use siltstone::stream::{StreamExport, StreamFormat};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # db.partition("users")?.put("alice", "admin")?;
    /// # db.partition("posts")?.put("alice/1", "hello")?;
    /// let mut stream = Vec::new();
    /// db.export_stream(&mut stream, &StreamExport::new().format(StreamFormat::BerkeleyText))?;
    /// assert!(stream.starts_with(b"VERSION=3"));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn format(mut self, format: StreamFormat) -> StreamExport {
        self.format = format;
        self
    }

    /// Exports only the partitions `names`, in this order.
    ///
    /// # Examples
    /// ```
    /// use siltstone::stream::StreamExport;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # db.partition("users")?.put("alice", "admin")?;
    /// # db.partition("posts")?.put("alice/1", "hello")?;
    /// let mut stream = Vec::new();
    /// let summary = db.export_stream(&mut stream, &StreamExport::new().partitions(["users"]))?;
    /// assert_eq!(summary.entries, 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn partitions<N: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = N>,
    ) -> StreamExport {
        self.partitions = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Exports only the keys in `range`, of each partition.
    ///
    /// # Examples
    /// ```
    /// use siltstone::stream::StreamExport;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # db.partition("users")?.put("alice", "admin")?;
    /// # db.partition("posts")?.put("alice/1", "hello")?;
    /// let mut stream = Vec::new();
    /// let summary = db.export_stream(&mut stream, &StreamExport::new().range("alice/".."b"))?;
    /// assert_eq!(summary.entries, 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn range(mut self, range: impl KeyRange) -> StreamExport {
        // Copied: the export runs later, and a range of the caller may borrow its keys.
        self.range = range.bounds();
        self
    }
}

/// Options of [`Db::import_stream`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct StreamImport {
    partition: Option<String>,
    is_resuming: bool,
    has_large_values: bool,
    source: PathBuf,
}

impl Default for StreamImport {
    fn default() -> StreamImport {
        // A path, because errors of damage name the file that they are about, and a stream mostly
        // is one.
        let source = "stream".into();
        StreamImport { partition: None, is_resuming: false, has_large_values: false, source }
    }
}

impl StreamImport {
    /// Returns the defaults: each entry goes to the partition that the stream names.
    pub fn new() -> StreamImport {
        StreamImport::default()
    }

    /// Imports into the partition `name`, whatever name the stream has. The stream must have one
    /// partition.
    ///
    /// # Examples
    /// ```
    /// use siltstone::stream::{StreamExport, StreamImport};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # db.partition("users")?.put("alice", "admin")?;
    /// # let mut stream = Vec::new();
    /// # db.export_stream(&mut stream, &StreamExport::new().partitions(["users"]))?;
    /// db.import_stream(&stream[..], &StreamImport::new().partition("copy"))?;
    /// assert!(db.partition("copy")?.contains("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn partition(mut self, name: impl Into<String>) -> StreamImport {
        self.partition = Some(name.into());
        self
    }

    /// Sets whether an entry is skipped if the partition has it already, with the same value. With
    /// that, an import that was interrupted continues where it stopped: the stored value is read and
    /// compared, and nothing is written. Default `false`.
    ///
    /// # Examples
    /// ```
    /// use siltstone::stream::{StreamExport, StreamImport};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # db.partition("users")?.put("alice", "admin")?;
    /// # let mut stream = Vec::new();
    /// # db.export_stream(&mut stream, &StreamExport::new().partitions(["users"]))?;
    /// let imported = db.import_stream(&stream[..], &StreamImport::new().resume(true))?;
    /// assert_eq!((imported.entries, imported.skipped), (1, 1));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn resume(mut self, is_resuming: bool) -> StreamImport {
        self.is_resuming = is_resuming;
        self
    }

    /// Sets whether partitions get [large values](crate::large_values) if they have no entry yet, with
    /// default options. Partitions whose exported partition had large values always do. Default `false`.
    pub fn large_values(mut self, has_large_values: bool) -> StreamImport {
        self.has_large_values = has_large_values;
        self
    }

    /// Sets the name of the source in errors, for example the path of a file. Default `stream`.
    ///
    /// # Examples
    /// ```
    /// use siltstone::stream::{StreamExport, StreamImport};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # db.partition("users")?.put("alice", "admin")?;
    /// # let mut stream = Vec::new();
    /// # db.export_stream(&mut stream, &StreamExport::new().partitions(["users"]))?;
    /// stream.truncate(stream.len() - 1);
    /// let options = StreamImport::new().source("users.stream");
    /// let cut = db.import_stream(&stream[..], &options).expect_err("the end is missing");
    /// assert!(cut.to_string().contains("users.stream"));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn source(mut self, name: impl Into<PathBuf>) -> StreamImport {
        self.source = name.into();
        self
    }
}

/// The content of a stream that was exported or imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamSummary {
    /// Number of entries in the stream.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Number of entries that an import skipped, because the partition had them.
    pub skipped: u64,
}

impl StreamSummary {
    fn count(&mut self, key: &[u8], value_len: u64) {
        self.entries += 1;
        // Of skipped entries as well. The figures of an import that was resumed are then those of
        // the whole stream.
        self.bytes += key.len() as u64 + value_len;
    }
}

/// Streams of entries.
impl Db {
    /// Writes the keys and values of partitions to `out`, as they are at the call: one moment for all
    /// partitions. [`Db::import_stream`] of any database reads the stream. It contains neither options
    /// of partitions nor metadata of MetaHive.
    ///
    /// To continue an export that was interrupted, export again from the last key on that arrived:
    /// [`StreamExport::range`].
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`](crate::ErrorKind::PartitionNotFound);
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a partition name that the
    /// text cannot express, before anything is written; the errors of reads and of `out`. A reader
    /// recognizes a stream that an error has cut off, but not text that ends between two databases.
    ///
    /// # Cost
    /// Reads and verifies the range. `out` gets pieces of less than 768 KiB; give it a buffer if it is
    /// expensive to call. Holds a snapshot until it returns.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    /// use siltstone::stream::{StreamExport, StreamImport};
    ///
    /// # fn main() -> siltstone::Result<()> {
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = Db::builder("/db").fs(fs.clone()).open()?;
    /// # let other = Db::builder("/other").fs(fs).open()?;
    /// db.partition("users")?.put("alice", "admin")?;
    /// let mut stream = Vec::new();
    /// db.export_stream(&mut stream, &StreamExport::new())?;
    /// let imported = other.import_stream(&stream[..], &StreamImport::new())?;
    /// assert_eq!(imported.entries, 1);
    /// assert_eq!(other.partition("users")?.get("alice")?.as_deref(), Some(&b"admin"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn export_stream(
        &self,
        mut out: impl Write,
        options: &StreamExport,
    ) -> Result<StreamSummary> {
        export::export(self, &mut out, options)
    }

    /// Reads a stream of entries in either [`StreamFormat`] and puts the entries. Creates partitions
    /// that do not exist. A partition without entries gets large values if the exported partition had
    /// them. Existing keys get the value of the stream, other keys do not change.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) that names the offset in the stream if
    /// it is damaged or cut off; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if a newer
    /// version wrote it; the errors of puts and of `from`. The entries before the error are imported.
    /// [`StreamImport::resume`] continues.
    ///
    /// The text of Berkeley DB has no checksums: damage that leaves hex digits is not found. A key
    /// with several values is refused.
    ///
    /// # Durability
    /// The entries are durable once this returns without an error.
    ///
    /// # Cost
    /// Reads from `from` in pieces of at most 256 KiB, also very small ones; give it a buffer if it is
    /// expensive to call. Stops behind the end of a stream in [`StreamFormat::Checked`], and reads text to
    /// its end. Batches of one partition, of up to 1 MiB or one entry, are committed; values above 1 MiB are
    /// streamed into a partition with large values. Ends with a flush.
    pub fn import_stream(
        &self,
        mut from: impl Read,
        options: &StreamImport,
    ) -> Result<StreamSummary> {
        import::import(self, &mut from, options)
    }
}
