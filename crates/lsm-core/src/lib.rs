//! The engine underneath siltstone: a log-structured merge tree of partitions over one WAL.

pub mod batch;
pub mod cache;
pub mod clock;
pub mod codec;
pub mod compaction;
pub mod db;
pub mod error;
pub mod filters;
pub mod flush;
pub mod fs;
pub mod hooks;
pub mod iter;
pub mod limits;
pub mod memtable;
pub mod options;
pub mod partition;
pub mod read;
pub mod replay;
pub mod snapshot;
pub mod sstable;
pub mod stats;
pub mod types;
pub mod version;
pub mod wal;

pub use db::{BackgroundMode, Batch, Builder, Commit, Db, Partition, Snapshot};
pub use error::{Damage, Error, ErrorKind, Result};
