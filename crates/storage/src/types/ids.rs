//! Newtypes for every number that names something.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::SeqNo;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A partition; never reused, also not for a partition that is made again under an old name.
    PartitionId(u32)
}
id! {
    /// A file of the database, of any kind; grows with age and is never reused.
    FileNo(u64)
}
id! {
    /// The time of one writer, from its open on. Every open for writing begins the next epoch.
    Epoch(u32)
}
id! {
    /// A memtable of a partition, in the order in which they were made, from 1 in each epoch.
    MemtableId(u64)
}
id! {
    /// Random identity of a database, in the header of each of its files.
    DbId(u128)
}

/// The result of a commit: a token for reading one's own writes elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Commit {
    /// The last sequence number of the batch.
    pub seq: SeqNo,
    /// The epoch of the writer that made it.
    pub epoch: Epoch,
}

/// Gives out file numbers; never the same twice.
#[derive(Debug)]
pub struct FileNumbers(AtomicU64);

impl FileNumbers {
    /// Begins with `next`.
    pub fn new(next: FileNo) -> FileNumbers {
        FileNumbers(AtomicU64::new(next.0))
    }

    /// A number that was never given out.
    pub fn allocate(&self) -> FileNo {
        // Relaxed: only that no two callers get one number counts. A number that is used is made
        // durable by the edit that names the file.
        FileNo(self.0.fetch_add(1, Ordering::Relaxed))
    }
}
