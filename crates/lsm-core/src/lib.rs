//! The engine underneath siltstone: a log-structured merge tree of partitions over one WAL.

pub mod clock;
pub mod codec;
pub mod compaction;
pub mod error;
pub mod fs;
pub mod iter;
pub mod limits;
pub mod options;
pub mod types;
pub mod version;

pub use error::{Damage, Error, ErrorKind, Result};
