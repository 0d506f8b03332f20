//! Streams of large values whose key is known only at their end.

use std::io;

use lsm_core::db::Commit;
use lsm_core::error::Result;
use lsm_core::options::WriteOptions;

use super::{BlobWriter, PendingBlob};
use crate::partition::Partition;

/// A writer that streams a value whose key comes last: [`Partition::put_stream_unkeyed`]. Dropping it discards the value.
///
/// # Cost
/// That of a [`BlobWriter`].
#[derive(Debug)]
pub struct UnkeyedBlobWriter(BlobWriter);

impl UnkeyedBlobWriter {
    /// Returns the number of bytes that were written so far.
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let objects = db.partition_with("objects", options)?;
    /// let mut writer = objects.put_stream_unkeyed(None)?;
    /// writer.write_all(&[7; 1000])?;
    /// assert_eq!(writer.written(), 1000);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn written(&self) -> u64 {
        self.0.written()
    }

    /// Ends the value of `key`, so that a batch or transaction can commit it:
    /// [`Batch::put_blob`](crate::Batch::put_blob), [`Transaction::put_blob`](crate::Transaction::put_blob).
    ///
    /// # Errors
    /// A limit of the key; those of [`BlobWriter::finish`]. An error discards the value.
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let objects = db.partition_with("objects", options)?;
    /// let mut writer = objects.put_stream_unkeyed(None)?;
    /// writer.write_all(&[7; 1000])?;
    /// let object = writer.finish("the hash of these bytes")?;
    /// let names = db.partition("names")?;
    /// db.batch().put_blob(object).put(&names, "film", "the hash of these bytes").commit(Durability::Sync)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn finish(mut self, key: impl AsRef<[u8]>) -> Result<PendingBlob> {
        self.0.0.set_key(key.as_ref())?;
        self.0.finish()
    }

    /// Ends the value and sets `key` to it.
    ///
    /// # Errors
    /// Those of [`UnkeyedBlobWriter::finish`] and of [`Batch::commit`](crate::Batch::commit).
    ///
    /// # Durability
    /// That of `options`, as of [`BlobWriter::commit`].
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let objects = db.partition_with("objects", options)?;
    /// let mut writer = objects.put_stream_unkeyed(None)?;
    /// let mut sum = 0u64;
    /// for piece in [[7; 1000], [8; 1000]] {
    ///     sum = piece.iter().fold(sum, |sum, byte| sum.wrapping_mul(31) + byte);
    ///     writer.write_all(&piece.map(|byte| byte as u8))?;
    /// }
    /// writer.commit(sum.to_be_bytes(), Durability::Sync)?;
    /// assert!(objects.contains(sum.to_be_bytes())?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn commit(
        mut self,
        key: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        self.0.0.set_key(key.as_ref())?;
        self.0.commit(options)
    }
}

impl io::Write for UnkeyedBlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    /// Does nothing: a value becomes visible when it is committed.
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Large values whose key comes last.
impl Partition {
    /// As [`Partition::put_stream`], of a value whose key is known only after its last byte: its hash, as in a
    /// content-addressed store.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the partition has no
    /// [large values](crate::PartitionOptions::large_values).
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let objects = db.partition_with("objects", options)?;
    /// let mut writer = objects.put_stream_unkeyed(Some(1000))?;
    /// writer.write_all(&[7; 1000])?;
    /// assert_eq!(writer.written(), 1000);
    /// writer.commit("the hash of these bytes", Durability::Os)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn put_stream_unkeyed(&self, len: Option<u64>) -> Result<UnkeyedBlobWriter> {
        largeval::put_stream_unkeyed(&self.0, len)
            .map(|writer| UnkeyedBlobWriter(BlobWriter(writer)))
    }
}
