//! The options of exports and imports of streams, and what both return.

use std::ops::Bound;
use std::path::PathBuf;

use lsm_core::read::KeyRange;

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

/// Options of `Db::export_stream`.
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct StreamExport {
    pub(crate) format: StreamFormat,
    pub(crate) partitions: Option<Vec<String>>,
    pub(crate) range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
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

/// Options of `Db::import_stream`.
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct StreamImport {
    pub(crate) partition: Option<String>,
    pub(crate) is_resuming: bool,
    pub(crate) has_large_values: bool,
    pub(crate) source: PathBuf,
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

    /// Sets whether partitions get large values if they have no entry yet, with
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
    pub(crate) fn count(&mut self, key: &[u8], value_len: u64) {
        self.entries += 1;
        // Of skipped entries as well. The figures of an import that was resumed are then those of
        // the whole stream.
        self.bytes += key.len() as u64 + value_len;
    }
}

/// A partition that the header of a stream names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPartition {
    /// Its name.
    pub name: String,
    /// An import gives large values to the partition, if it has no entry.
    pub has_large_values: bool,
}
