//! Streams of entries out of a database and into one.

use std::io::{Read, Write};

use ::streams::{StreamExport, StreamImport, StreamSummary};
use largeval::LargeValueOptions;
use lsm_core::error::Result;

use crate::db::Db;
use crate::partition::Partition;

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
        ::streams::export(&self.0, &mut out, options)
    }

    /// Reads a stream of entries in either [format](crate::stream::StreamFormat) and puts the entries. Creates partitions
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
    /// expensive to call. Stops after the end of a stream in [`StreamFormat::Checked`](crate::stream::StreamFormat::Checked), and reads text to
    /// its end. Batches of one partition, of up to 1 MiB or one entry, are committed; values above 1 MiB are
    /// streamed into a partition with large values. Ends with a flush.
    pub fn import_stream(
        &self,
        mut from: impl Read,
        options: &StreamImport,
    ) -> Result<StreamSummary> {
        ::streams::import(&self.0, &mut from, options, &|name, has_large_values| {
            self.partition_of_stream(name, has_large_values).map(|partition| partition.0)
        })
    }

    /// Opens or creates a partition, with large values if they are asked for and it has no entry.
    fn partition_of_stream(&self, name: &str, has_large_values: bool) -> Result<Partition> {
        let partition = self.partition(name)?;
        // A partition with entries already has its setting.
        let keeps = !has_large_values || partition.space().is_some();
        if keeps || partition.first()?.is_some() {
            return Ok(partition);
        }
        let options = partition.options().large_values(LargeValueOptions::default());
        self.partition_with(name, options)
    }
}
