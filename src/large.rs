//! Calls of a [`Partition`] and of a snapshot of it that stream large values, and their writers.

use std::fmt;
use std::io;
use std::ops::Range;

use largeval::{BlobReader, BlobStat, ChunkInfo, LargeStats, Parallelism, Space};
use lsm_core::db::Commit;
use lsm_core::error::Result;
use lsm_core::options::Durability;
use lsm_core::types::Slice;

use crate::partition::Partition;
use crate::snapshot::PartitionSnapshot;

/// Writes the value of a key in pieces: [`Partition::put_stream`]. Nobody sees anything of the value
/// before it is committed; a writer that is dropped leaves nothing.
///
/// # Cost
/// Memory for one sub-block, whatever the length of the value; for a value below the threshold that
/// value. A value of unknown length, and one of a quarter of a chunk or more, gets a chunk file of
/// its own.
#[derive(Debug)]
pub struct BlobWriter(largeval::BlobWriter);

impl BlobWriter {
    /// Returns the bytes that were written so far.
    pub fn written(&self) -> u64 {
        self.0.written()
    }

    /// Ends the value, to be committed in a batch: [`Batch::put_blob`](crate::Batch::put_blob).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the value is not as long
    /// as was said; the errors of the file. Nothing is left of the value then.
    pub fn finish(self) -> Result<PendingBlob> {
        self.0.finish().map(PendingBlob)
    }

    /// Ends the value and sets the key to it.
    ///
    /// # Errors
    /// Those of [`BlobWriter::finish`] and of [`Batch::commit`](crate::Batch::commit).
    ///
    /// # Durability
    /// As `durability` says: with [`Durability::Sync`] value and key are on the device once this
    /// returns.
    pub fn commit(self, durability: Durability) -> Result<Commit> {
        self.0.commit(durability)
    }
}

impl io::Write for BlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    /// Does nothing: a value is seen when it is committed.
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A value that was streamed in and that no key has yet: [`BlobWriter::finish`]. Dropped, it leaves
/// nothing.
#[derive(Debug)]
pub struct PendingBlob(pub(crate) largeval::PendingBlob);

impl PendingBlob {
    /// Returns the length of the value, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> u64 {
        self.0.len()
    }
}

impl fmt::Display for PendingBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of {} bytes", self.len())
    }
}

/// Large values.
impl Partition {
    /// Begins to write the value of `key` in pieces; `len` is its length in bytes, if it is known.
    /// An open stream holds up no other write.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the partition has no
    /// [large values](crate::PartitionOptions::large_values); a limit of the key.
    ///
    /// # Examples
    /// ```
    /// use std::io::{Read, Write};
    ///
    /// use siltstone::{Db, Durability, LargeValueOptions, PartitionOptions};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir().expect("a temporary folder");
    /// # let db = Db::open(dir.path())?;
    /// let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    /// let media = db.partition_with("media", options)?;
    /// let mut writer = media.put_stream("film", None)?;
    /// for _ in 0..100 {
    ///     writer.write_all(&[7; 10_000])?;
    /// }
    /// writer.commit(Durability::Sync)?;
    /// let mut end = [0; 10];
    /// let reader = media.open_blob("film")?.expect("it is there");
    /// reader.read_exact_at(reader.len() - 10, &mut end)?;
    /// assert_eq!(end, [7; 10]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn put_stream(&self, key: impl AsRef<[u8]>, len: Option<u64>) -> Result<BlobWriter> {
        largeval::put_stream(&self.0, key.as_ref(), len).map(BlobWriter)
    }

    /// Opens the value of `key` for reading in pieces, each verified before it is returned. The
    /// reader sees the value as it is now, whatever is written or deleted later.
    ///
    /// # Errors
    /// Those of [`Partition::get`].
    pub fn open_blob(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobReader>> {
        largeval::open_blob(&self.0, None, key.as_ref())
    }

    /// Reads the value of `key` into the front of `buf` and returns its length. Large values are
    /// read by as many threads as `parallelism` says, each an even share.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) if `buf` is shorter than the
    /// value; those of [`Partition::get`].
    ///
    /// # Cost
    /// A get allocates a buffer for the value; this call needs none.
    pub fn get_into(
        &self,
        key: impl AsRef<[u8]>,
        buf: &mut [u8],
        parallelism: Parallelism,
    ) -> Result<Option<u64>> {
        largeval::get_into(&self.0, None, key.as_ref(), buf, parallelism)
    }

    /// Returns the bytes `range` of the value of `key`; fewer where the value ends before.
    ///
    /// # Errors
    /// Those of [`Partition::get`].
    ///
    /// # Cost
    /// Of a large value, reads and verifies its checksums and the sub-blocks that the range lies in.
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: Range<u64>) -> Result<Option<Slice>> {
        largeval::get_range(&self.0, None, key.as_ref(), range)
    }

    /// Returns the length of the value of `key`, and when it was stored, without touching it.
    ///
    /// # Errors
    /// Those of [`Partition::get`].
    pub fn stat_blob(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobStat>> {
        largeval::stat_blob(&self.0, None, key.as_ref())
    }

    /// Returns where the bytes of the large values are; `None` if the partition has none.
    pub fn space(&self) -> Option<Space> {
        Some(largeval::store_of(&self.0)?.space())
    }

    /// Returns the chunk files of the large values, oldest first; `None` if the partition has none.
    pub fn chunks(&self) -> Option<Vec<ChunkInfo>> {
        Some(largeval::store_of(&self.0)?.chunk_infos())
    }

    /// Returns what was done for large values since the open; `None` if the partition has none.
    pub fn large_stats(&self) -> Option<LargeStats> {
        Some(largeval::store_of(&self.0)?.stats())
    }

    /// Brings the space of large values back that nobody reads, as far as it goes now. A partition
    /// does the same by itself, some seconds after the last write to it.
    ///
    /// # Errors
    /// Those of the flush and of the compactions; the data stays as it was.
    ///
    /// # Cost
    /// A flush, and a compaction of the tables that overlap; values are moved out of chunk files
    /// with much garbage.
    pub fn reclaim(&self) -> Result<()> {
        self.0.reclaim_values()
    }
}

/// Large values.
impl PartitionSnapshot {
    /// Opens the value that `key` had, as [`Partition::open_blob`] does.
    ///
    /// # Errors
    /// Those of [`Partition::open_blob`].
    pub fn open_blob(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobReader>> {
        largeval::open_blob(&self.partition().0, Some(&self.snapshot().0), key.as_ref())
    }

    /// Returns the bytes `range` of the value that `key` had, as [`Partition::get_range`] does.
    ///
    /// # Errors
    /// Those of [`Partition::get_range`].
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: Range<u64>) -> Result<Option<Slice>> {
        let snapshot = Some(&self.snapshot().0);
        largeval::get_range(&self.partition().0, snapshot, key.as_ref(), range)
    }
}
