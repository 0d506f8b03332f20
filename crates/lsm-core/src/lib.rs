//! The engine underneath siltstone: a log-structured merge tree of partitions over one WAL.

pub mod batch;
pub mod cache;
pub mod clock;
pub mod codec;
pub mod compaction;
pub mod error;
pub mod fs;
pub mod iter;
pub mod limits;
pub mod memtable;
pub mod options;
pub mod sstable;
pub mod types;
pub mod version;
pub mod wal;

pub use error::{Damage, Error, ErrorKind, Result};
