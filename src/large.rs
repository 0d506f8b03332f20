//! Streams of large values: the calls of a [`Partition`] and of its snapshots, and their writers.
//! [`ReadBlobs`] has the reading calls as a trait.

mod read_blobs;
mod unkeyed;

use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Duration;

use largeval::{BlobReader, BlobRef, BlobStat, ChunkInfo, LargeValueOptions, Parallelism, Space};
use lsm_core::db::Commit;
use lsm_core::error::Result;
use lsm_core::options::WriteOptions;
use lsm_core::read::KeyRange;
use lsm_core::types::Slice;

use crate::partition::Partition;

pub use self::read_blobs::ReadBlobs;
pub use self::unkeyed::UnkeyedBlobWriter;

/// A writer that streams the value of a key: [`Partition::put_stream`]. The value is not visible
/// before it is committed. Dropping the writer discards the value.
///
/// # Cost
/// Memory for one sub-block, and two more if the value is compressed, independent of its length; a
/// value below the threshold is held in memory as a whole. A value of unknown length, or of a
/// quarter of a chunk or more, begins a chunk file. A value whose stored length is a quarter of a
/// chunk or more ends its file; after others the file takes further values.
#[derive(Debug)]
// A wrapper of the type of the crate, as `Db` and `Batch` are (design note 8): the other adds its
// value to a batch of the engine.
pub struct BlobWriter(largeval::BlobWriter);

impl BlobWriter {
    /// Returns the number of bytes that were written so far.
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// let mut writer = media.put_stream("song", None)?;
    /// writer.write_all(&[7; 1000])?;
    /// assert_eq!(writer.written(), 1000);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn written(&self) -> u64 {
        self.0.written()
    }

    /// Ends the value, so that a batch can commit it: [`Batch::put_blob`](crate::Batch::put_blob).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the value does not have
    /// the length that was given to [`Partition::put_stream`]; the errors of the file. An error
    /// discards the value.
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// let mut writer = media.put_stream("song", Some(1000))?;
    /// writer.write_all(&[7; 1000])?;
    /// let song = writer.finish()?;
    /// db.batch().put_blob(song).delete(&media, "old song").commit(Durability::Sync)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn finish(self) -> Result<PendingBlob> {
        self.0.finish().map(PendingBlob)
    }

    /// Ends the value and sets the key to it.
    ///
    /// # Errors
    /// Those of [`BlobWriter::finish`] and of [`Batch::commit`](crate::Batch::commit).
    ///
    /// # Durability
    /// That of `options`. With [`Durability::Sync`](crate::Durability::Sync), value and key are on the
    /// device once this returns.
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// let mut writer = media.put_stream("song", None)?;
    /// writer.write_all(&[7; 1000])?;
    /// writer.commit(Durability::Sync)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn commit(self, options: impl Into<WriteOptions>) -> Result<Commit> {
        self.0.commit(options)
    }
}

impl io::Write for BlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    /// Does nothing: a value becomes visible when it is committed.
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A streamed value that is not committed yet: [`BlobWriter::finish`]. Dropping it discards the value.
#[derive(Debug)]
pub struct PendingBlob(pub(crate) largeval::PendingBlob);

impl PendingBlob {
    /// Returns the length of the value, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no caller needs it")]
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
    /// Returns a writer that streams the value of `key`. `len` is the length of the value in bytes, if
    /// it is known. An open stream blocks no other write.
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

    /// Returns whether values may lie in a store apart from the tables. A partition keeps its store, also when large
    /// values are turned off: see [`Partition::large_value_options`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// assert!(db.partition_with("media", options)?.has_large_values());
    /// assert!(!db.partition("users")?.has_large_values());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn has_large_values(&self) -> bool {
        self.0.value_store().is_some()
    }

    /// Returns the present options of large values; `None` if the partition has no chunk files. If they are
    /// [off](LargeValueOptions::is_on), [`Partition::put_stream`] holds a value in memory as a whole.
    ///
    /// # Examples
    /// ```
    /// # use siltstone::{LargeValueOptions, PartitionOptions};
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let media = PartitionOptions::new().large_values(LargeValueOptions::default());
    /// let media = db.partition_with("media", media)?;
    /// assert!(media.large_value_options().is_some_and(|options| options.is_on()));
    /// db.partition_with("media", PartitionOptions::new().large_values(LargeValueOptions::off()))?;
    /// assert!(media.large_value_options().is_some_and(|options| !options.is_on()));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn large_value_options(&self) -> Option<LargeValueOptions> {
        largeval::store_of(&self.0).map(|store| store.options())
    }

    /// Opens the value of `key` for reading in parts. Each part is verified before it is returned. The
    /// reader returns the value as it is at the call, even if the key is overwritten or deleted later.
    ///
    /// # Errors
    /// Those of [`Partition::get`].
    ///
    /// # Examples
    /// ```
    /// use std::io::{Read, Seek, SeekFrom};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// media.put("song", vec![7; 100_000])?;
    /// let mut song = media.open_blob("song")?.expect("it is there");
    /// song.seek(SeekFrom::End(-10))?;
    /// let mut end = Vec::new();
    /// song.read_to_end(&mut end)?;
    /// assert_eq!(end, [7; 10]);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn open_blob(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobReader>> {
        // The point goes into the reader. It keeps the version that names the value, and with it
        // the chunk file.
        largeval::open_blob(self.0.locate(None, key.as_ref())?, key.as_ref())
    }

    /// Reads the value of `key` into the front of `buf` and returns its length. `parallelism` sets the
    /// number of threads that read a large value.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) if `buf` is shorter than the
    /// value; those of [`Partition::get`].
    ///
    /// # Cost
    /// That of a get, without the allocation of a buffer.
    ///
    /// # Examples
    /// ```
    /// use siltstone::large_values::Parallelism;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// media.put("song", vec![7; 100_000])?;
    /// let mut buffer = vec![0; 1 << 20]; // used again for each value
    /// let len = media.get_into("song", &mut buffer, Parallelism::Auto)?.expect("it is there");
    /// assert_eq!(len, 100_000);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn get_into(
        &self,
        key: impl AsRef<[u8]>,
        buf: &mut [u8],
        parallelism: Parallelism,
    ) -> Result<Option<u64>> {
        largeval::get_into(self.0.locate(None, key.as_ref())?, key.as_ref(), buf, parallelism)
    }

    /// Returns the value of `key` without a copy, if it is mapped: with the feature `mmap`, on
    /// Linux 5.14 and later, for a large value on a local file system. Otherwise the value is a
    /// copy in memory; see [`BlobRef::is_mapped`]. A value is verified when it is first lent, and
    /// not again while its chunk file stays mapped. `docs/MEDIA.md` states the dangers of mapped
    /// files: after that, an I/O error or a program that changes the file can end the process with
    /// a signal.
    ///
    /// # Errors
    /// Those of [`Partition::get`]. The limit of a value in memory applies if the value is not mapped.
    ///
    /// # Cost
    /// At the first call for a value, the system reads it into its cache, and its checksums are computed. Later
    /// calls touch no byte of it. The chunk file is mapped at the first call for one of its values. No memory
    /// of the process is allocated for the bytes; pages that were read count as resident memory.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Db, LargeValueOptions, PartitionOptions};
    ///
    /// # fn main() -> siltstone::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary folder");
    /// # let db = Db::open(dir.path())?;
    /// let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    /// let media = db.partition_with("media", options)?;
    /// media.put("song", vec![7; 100_000])?;
    /// let song = media.get_ref("song")?.expect("it is there");
    /// media.delete("song")?;
    /// assert_eq!(song.len(), 100_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_ref(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobRef>> {
        largeval::get_ref(self.0.locate(None, key.as_ref())?, key.as_ref())
    }

    /// Returns the bytes `range` of the value of `key`, or fewer if the value is shorter.
    ///
    /// # Errors
    /// Those of [`Partition::get`]; its limit applies to the part of the value that lies in `range`, and not to
    /// the whole value.
    ///
    /// # Cost
    /// For a large value: reads and verifies its checksums and the sub-blocks that overlap the range.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// media.put("song", vec![7; 100_000])?;
    /// let part = media.get_range("song", 50_000..50_010)?.expect("it is there");
    /// assert_eq!(&part[..], [7; 10]);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: Range<u64>) -> Result<Option<Slice>> {
        largeval::get_range(self.0.locate(None, key.as_ref())?, key.as_ref(), range)
    }

    /// Returns the length of the value of `key` and the time at which it was stored, without reading
    /// the value.
    ///
    /// # Errors
    /// Those of [`Partition::get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// media.put("song", vec![7; 100_000])?;
    /// assert_eq!(media.stat_blob("song")?.expect("it is there").len, 100_000);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn stat_blob(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobStat>> {
        largeval::stat_blob(self.0.locate(None, key.as_ref())?, key.as_ref())
    }

    /// Returns the space that the large values use; `None` if the partition has no large values.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// media.put("song", vec![7; 100_000])?;
    /// let space = media.space().expect("the partition has large values");
    /// println!("{} bytes live, {} dead", space.live_bytes, space.dead_bytes);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn space(&self) -> Option<Space> {
        // `None` also where a value store of the application holds the values: its files are not
        // known here.
        let mut space = largeval::store_of(&self.0)?.space();
        space.oldest_snapshot = self.0.oldest_snapshot();
        Some(space)
    }

    /// Returns the chunk files of the large values, oldest first; `None` if the partition has no large
    /// values.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// media.put("song", vec![7; 100_000])?;
    /// assert_eq!(media.chunks().expect("the partition has large values").len(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn chunks(&self) -> Option<Vec<ChunkInfo>> {
        Some(largeval::store_of(&self.0)?.chunk_infos())
    }

    /// Reclaims the space of large values that no reader needs any more. Background work does the same
    /// some seconds after the last write.
    ///
    /// The errors of the flush and of the compactions.
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace), with the number of bytes that have to be
    /// free, if there is no room to move the values of a chunk file; the error of a file whose
    /// values cannot be read. Everything else is reclaimed then. After an error no data is lost.
    ///
    /// # Cost
    /// A flush, and a compaction of the overlapping tables. Values are moved out of chunk files with
    /// much garbage.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// media.put("song", vec![7; 100_000])?;
    /// media.delete("song")?;
    /// media.reclaim()?;
    /// assert_eq!(media.space().expect("the partition has large values").live_bytes, 0);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn reclaim(&self) -> Result<()> {
        self.0.reclaim_values()
    }

    /// Moves the large values of the chunk files that hold keys of `range` to new files, in
    /// ascending order of their keys, whatever garbage the files have, and reclaims as
    /// [`Partition::reclaim`] does. A scan of the values reads fewer files after that. Writes
    /// continue; files that are written meanwhile are not moved.
    ///
    /// # Errors
    /// Those of [`Partition::reclaim`]. With too little room for all of these values nothing is moved.
    ///
    /// # Cost
    /// That of [`Partition::reclaim`]; all values of these files are read, verified and written, at
    /// [`LargeValueOptions::move_bytes_per_second`](crate::LargeValueOptions::move_bytes_per_second), and
    /// the tables that name them are written, too. Until the old files are removed, the values take
    /// twice their space.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// for n in [3u8, 1, 2] {
    ///     media.put([n], vec![n; 100_000])?;
    /// }
    /// // A scan of them then reads one file from its begin to its end.
    /// media.reallocate(..)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn reallocate(&self, range: impl KeyRange) -> Result<()> {
        self.0.reallocate_values(range)
    }

    /// Reclaims as [`Partition::reclaim`] does until the space of all large values that were deleted or
    /// overwritten before the call is back, or until `timeout` has passed by the clock of the database.
    /// Returns `true` if the space is back, and `false` if readers of older versions, snapshots not
    /// included, still hold some of it.
    ///
    /// # Errors
    /// Those of [`Partition::reclaim`].
    ///
    /// # Cost
    /// That of [`Partition::reclaim`], about once per second while readers hold values.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().large_values(Default::default());
    /// let media = db.partition_with("media", options)?;
    /// media.put("song", vec![7; 100_000])?;
    /// media.delete("song")?;
    /// assert!(media.wait_reclaimed(Duration::from_secs(10))?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn wait_reclaimed(&self, timeout: Duration) -> Result<bool> {
        self.0.wait_values_reclaimed(timeout)
    }
}
