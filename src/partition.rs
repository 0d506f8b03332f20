//! [`Partition`]: the engine's partition, with the options of this crate.
//!
//! As [`Db`](crate::Db) it shadows what has a type of this crate, and is the engine's otherwise.

use std::fmt;
use std::ops::Deref;

use lsm_core::error::Result;
use lsm_core::raw::{Pin, Walkable};
use lsm_core::read::KeyRange;
use metahive::{Explanation, ScrubOptions, ScrubReport, Verified, VerifiedRange};

use crate::options::PartitionOptions;

/// A handle to one partition: a key space with its own tables and options. Cheap to clone.
///
/// What is not listed here is in [`lsm_core::Partition`], to which this dereferences: reading and
/// writing. Where the engine takes a `&lsm_core::Partition`, as batches and snapshots do, a
/// reference to this will do.
#[derive(Clone)]
pub struct Partition(pub(crate) lsm_core::Partition);

impl Partition {
    /// Its stored options. They name no hooks: given to
    /// [`Db::partition_with`](crate::Db::partition_with) they leave those as they are.
    pub fn options(&self) -> PartitionOptions {
        self.0.options().into()
    }

    /// The value of `key` after its metadata agreed: [`metahive::verified_get`], with the errors
    /// and the cost that are described there.
    pub fn verified_get(&self, key: impl AsRef<[u8]>) -> Result<Option<Verified>> {
        metahive::verified_get(self, key)
    }

    /// Keys and values of `range`, block by block after their metadata agreed:
    /// [`metahive::verified_range`].
    pub fn verified_range(&self, range: impl KeyRange) -> VerifiedRange {
        metahive::verified_range(self, range)
    }

    /// Verifies every entry that lies in tables by its metadata: [`metahive::scrub()`].
    pub fn scrub(&self, options: ScrubOptions<'_>) -> Result<ScrubReport> {
        metahive::scrub(self, options)
    }

    /// All that is stored of a key, where it lies, and what its metadata says of it:
    /// [`metahive::explain()`].
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        metahive::explain(self, key.as_ref())
    }
}

impl Deref for Partition {
    type Target = lsm_core::Partition;

    #[inline]
    fn deref(&self) -> &lsm_core::Partition {
        &self.0
    }
}

impl Walkable for Partition {
    fn pin_raw(&self) -> Result<Pin> {
        self.0.pin_raw()
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
