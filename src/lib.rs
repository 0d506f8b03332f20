//! Embeddable key-value storage: partitions over one write-ahead log, snapshots, atomic batches,
//! and every stored byte under a checksum.
//!
//! ```
//! use siltstone::{Db, Durability};
//!
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! # let path = dir.path();
//! let db = Db::open(path)?;
//! let users = db.partition("users")?;
//! users.put("alice", "admin")?;
//! db.batch().put(&users, "bob", "ops").delete(&users, "alice").commit(Durability::Sync)?;
//! assert_eq!(users.get("bob")?.as_deref(), Some(&b"ops"[..]));
//! for entry in users.range("a".."n").rev() {
//!     let (key, value) = entry?;
//!     println!("{key:?} = {value:?}");
//! }
//! db.close()
//! # }
//! ```
//!
//! Keys and values are byte strings; keys sort bytewise. Handles ([`Db`], [`Partition`],
//! [`Snapshot`]) are `Clone + Send + Sync + 'static`, and so are the iterators that they give. All
//! calls block; a read that finds its block in the cache takes about a microsecond.

pub use lsm_core::db::{
    BackgroundMode, Batch, Builder, Commit, Db, ExportSummary, IngestSummary, Partition, Snapshot,
};
pub use lsm_core::error::{Damage, Error, ErrorKind, Result};
pub use lsm_core::limits;
pub use lsm_core::options::{Compression, Durability, Options, PartitionOptions};
pub use lsm_core::read::{Cursor, KeyRange, Keys, Range};
pub use lsm_core::stats::{LevelStats, PartitionStats, Stats};
pub use lsm_core::types::{Epoch, SeqNo, Slice};
