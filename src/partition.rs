//! [`Partition`]: the engine's partition, with the options of this crate.
//!
//! As [`Db`](crate::Db) it shadows what has a type of this crate, and is the engine's otherwise.

use std::fmt;
use std::ops::Deref;

use lsm_core::error::Result;
use lsm_core::raw::{Pin, Walkable};

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
