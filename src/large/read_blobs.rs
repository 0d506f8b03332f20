//! [`ReadBlobs`]: the reading calls for large values as a trait, and its implementations.

use std::ops::Range;

use largeval::{BlobReader, BlobRef, BlobStat, Parallelism};
use lsm_core::error::Result;
use lsm_core::read::{Located, ReadPoint};
use lsm_core::types::Slice;

use crate::partition::Partition;
use crate::secondary::{Level, ReadOptions, Reading, SecondaryPartition};
use crate::snapshot::PartitionSnapshot;
use crate::transaction::PartitionTransaction;

/// Large values of one partition: of a [`Partition`], of a partition as a snapshot or a transaction sees it, or as a
/// [`Secondary`](crate::secondary::Secondary) does. For code that works with all of them; each call
/// is documented at [`Partition`].
pub trait ReadBlobs {
    /// Returns the read point of the partition.
    ///
    /// # Errors
    /// A closed database; a dropped partition.
    fn point(&self) -> Result<ReadPoint>;

    /// Returns the place of the value of `key`, with the point that keeps it there.
    ///
    /// # Errors
    /// Those of a get.
    fn locate(&self, key: &[u8]) -> Result<Option<(Located, ReadPoint)>> {
        self.point()?.locate_kept(key)
    }

    /// As [`Partition::open_blob`].
    ///
    /// # Errors
    /// Those of a get.
    fn open_blob(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobReader>> {
        largeval::open_blob(self.locate(key.as_ref())?, key.as_ref())
    }

    /// As [`Partition::get_into`].
    ///
    /// # Errors
    /// Those of a get; [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) if `buf` is
    /// shorter than the value.
    fn get_into(
        &self,
        key: impl AsRef<[u8]>,
        buf: &mut [u8],
        parallelism: Parallelism,
    ) -> Result<Option<u64>> {
        largeval::get_into(self.locate(key.as_ref())?, key.as_ref(), buf, parallelism)
    }

    /// As [`Partition::get_ref`].
    ///
    /// # Errors
    /// Those of a get.
    fn get_ref(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobRef>> {
        largeval::get_ref(self.locate(key.as_ref())?, key.as_ref())
    }

    /// As [`Partition::get_range`].
    ///
    /// # Errors
    /// Those of a get.
    fn get_range(&self, key: impl AsRef<[u8]>, range: Range<u64>) -> Result<Option<Slice>> {
        largeval::get_range(self.locate(key.as_ref())?, key.as_ref(), range)
    }

    /// As [`Partition::stat_blob`].
    ///
    /// # Errors
    /// Those of a get.
    fn stat_blob(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobStat>> {
        largeval::stat_blob(self.locate(key.as_ref())?, key.as_ref())
    }
}

impl ReadBlobs for Partition {
    fn point(&self) -> Result<ReadPoint> {
        self.0.read_point_at(None)
    }
}

impl ReadBlobs for PartitionSnapshot {
    fn point(&self) -> Result<ReadPoint> {
        self.partition().0.read_point_at(Some(&self.snapshot().0))
    }
}

/// With the values that the transaction wrote; each key counts as read.
impl ReadBlobs for PartitionTransaction<'_> {
    /// Returns the read point of the snapshot of the transaction.
    fn point(&self) -> Result<ReadPoint> {
        self.partition.0.read_point_at(Some(self.transaction.0.snapshot()))
    }

    fn locate(&self, key: &[u8]) -> Result<Option<(Located, ReadPoint)>> {
        self.transaction.0.locate(&self.partition.0, key)
    }
}

impl ReadBlobs for Reading {
    fn point(&self) -> Result<ReadPoint> {
        // The reading has its read point already, and cannot fail like a partition that was closed
        // or dropped.
        Ok(self.read_point())
    }
}

fn again<T>(partition: &SecondaryPartition, read: impl FnMut(&Reading) -> Result<T>) -> Result<T> {
    // At the level of a plain get, which neither waits nor asks the primary.
    partition.read_again(&ReadOptions::new(Level::Eventual), read)
}

/// As of the last sync ([`Level::Eventual`]). Without a lease the chunk file of a value may be
/// deleted; then each call starts again with a newer state, as `get` of the partition does. An open
/// reader does not.
impl ReadBlobs for SecondaryPartition {
    fn point(&self) -> Result<ReadPoint> {
        Ok(self.at(Level::Eventual)?.read_point())
    }

    fn open_blob(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobReader>> {
        let key = key.as_ref();
        // Written out for each call, although the trait has these bodies. The trait's read one
        // state, and a chunk file that the primary deleted in between would fail the call.
        again(self, |reading| reading.open_blob(key))
    }

    fn get_into(
        &self,
        key: impl AsRef<[u8]>,
        buf: &mut [u8],
        parallelism: Parallelism,
    ) -> Result<Option<u64>> {
        let key = key.as_ref();
        // A failed attempt may leave a part of an older value in the buffer. The next one fills it
        // from the front.
        again(self, |reading| reading.get_into(key, buf, parallelism))
    }

    fn get_ref(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobRef>> {
        let key = key.as_ref();
        again(self, |reading| reading.get_ref(key))
    }

    fn get_range(&self, key: impl AsRef<[u8]>, range: Range<u64>) -> Result<Option<Slice>> {
        let key = key.as_ref();
        again(self, |reading| reading.get_range(key, range.clone()))
    }

    fn stat_blob(&self, key: impl AsRef<[u8]>) -> Result<Option<BlobStat>> {
        let key = key.as_ref();
        again(self, |reading| reading.stat_blob(key))
    }
}
