//! Access for this repository's own tests and measurements: the engine under the handles, and
//! parameters that only a simulation sets. The interface is not stable: anything here may change
//! with any release.

use lsm_core::db::{BackgroundMode, InMemory};
use lsm_core::error::Result;
use lsm_core::hooks::{Origin, OwnedEntry};
use lsm_core::options::PartitionOptions as StoredOptions;

use crate::{Builder, Db, Partition, PartitionOptions, Snapshot};

impl Db {
    /// Returns the engine's database.
    #[doc(hidden)]
    pub fn engine(&self) -> &lsm_core::Db {
        &self.0
    }

    /// Does one piece of background work of a database with [`BackgroundMode::Stepped`], and
    /// returns whether there was one.
    #[doc(hidden)]
    pub fn step(&self) -> Result<bool> {
        self.0.step()
    }
}

impl Partition {
    /// Returns the engine's partition.
    #[doc(hidden)]
    pub fn engine(&self) -> &lsm_core::Partition {
        &self.0
    }
}

impl Snapshot {
    /// Returns the engine's snapshot.
    #[doc(hidden)]
    pub fn engine(&self) -> &lsm_core::Snapshot {
        &self.0
    }
}

impl PartitionOptions {
    /// Returns the options that the engine stores.
    #[doc(hidden)]
    pub fn stored(&self) -> &StoredOptions {
        &self.stored
    }
}

impl Builder {
    /// Sets who does background work.
    #[doc(hidden)]
    pub fn background(mut self, mode: BackgroundMode) -> Builder {
        self.engine = self.engine.background(mode);
        self
    }

    /// Sets the source of random numbers, which name databases and salt log segments.
    #[doc(hidden)]
    pub fn random(mut self, random: impl FnMut() -> u64 + Send + 'static) -> Builder {
        self.engine = self.engine.random(random);
        self
    }

    /// Changes entries between the reading and the writing of flushes and compactions, as bad
    /// memory would.
    #[doc(hidden)]
    pub fn inject(
        mut self,
        inject: impl Fn(Origin, &mut OwnedEntry) + Send + Sync + 'static,
    ) -> Builder {
        self.engine = self.engine.inject(inject);
        self
    }

    /// Changes the bytes of writes on their way through memory, as bad memory would.
    #[doc(hidden)]
    pub fn inject_in_memory(
        mut self,
        inject: impl Fn(InMemory, &mut Vec<u8>) + Send + Sync + 'static,
    ) -> Builder {
        self.engine = self.engine.inject_in_memory(inject);
        self
    }
}
