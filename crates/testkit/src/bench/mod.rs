//! Benchmarks of any engine: the workloads by name, their runs, their costs.
//!
//! `siltstone bench` runs these on siltstone, `benches/peers` on siltstone and on other engines. An
//! [`Engine`] is a few calls; everything that is timed or counted is here, so that figures of two
//! engines differ only by the engines.
//!
//! - [`run`]: one workload on some threads, from its first operation to its [`Outcome`].
//! - [`Kind`]: the workloads; `worker.rs` has the work of one thread in each.
//! - [`large`]: the workload of large values, with an engine of its own.
//! - [`measure`]: the resources of the process; [`Tally`]: the counts and times of a thread.

pub mod large;
pub mod measure;
mod meter;
pub mod run;
mod worker;

pub use meter::Tally;
pub use run::{Bench, Outcome, Plan};
pub use worker::Kind;

/// The point at which a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// In the kernel: survives a killed process.
    Os,
    /// On the device: survives a power cut.
    Sync,
}

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanDirection {
    /// From the first key on.
    Up,
    /// From the last key on.
    Down,
}

/// The calls that the workloads make on an engine. It is a handle: clones work on the same database.
///
/// An implementation uses the fastest way that the engine's documentation offers for each call, and
/// makes no copy that the engine does not require.
pub trait Engine: Clone + Send + 'static {
    /// The error of a failed call.
    type Error: Send;

    /// Writes one entry.
    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Self::Error>;

    /// Deletes one entry.
    fn delete(&self, key: &[u8], when: Ack) -> Result<(), Self::Error>;

    /// Writes several entries, all or nothing.
    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], when: Ack) -> Result<(), Self::Error>;

    /// The length in bytes of the value of `key`, which must be ready to read; `None` without one.
    fn get(&self, key: &[u8]) -> Result<Option<usize>, Self::Error>;

    /// The number of `keys` that have a value; their values must be ready to read. A get for each, unless the engine has a
    /// call for many keys.
    fn multi_get(&self, keys: &[Vec<u8>]) -> Result<usize, Self::Error> {
        let mut found = 0;
        for key in keys {
            found += usize::from(self.get(key)?.is_some());
        }
        Ok(found)
    }

    /// Passes up to `entries` entries to `visit`, from `key` on.
    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Self::Error>;

    /// Passes the entries to `visit` from one end on, until it returns false.
    fn scan(
        &self,
        direction: ScanDirection,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Self::Error>;

    /// The number of entries.
    fn count(&self) -> Result<u64, Self::Error> {
        let mut count = 0;
        self.scan(ScanDirection::Up, |_, _| {
            count += 1;
            true
        })?;
        Ok(count)
    }

    /// Bytes that were written to files up to now. Compared engines count alike: the bytes that the
    /// process passed to `write`.
    fn written_bytes(&self) -> Option<u64> {
        measure::process_written_bytes()
    }

    /// Flushes and merges everything, and waits until no background work is left.
    fn settle(&self) -> Result<(), Self::Error>;
}

#[cfg(test)]
mod tests;
