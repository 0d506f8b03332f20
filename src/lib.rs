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
//! calls block.
//!
//! # Durability
//!
//! A write is in the kernel when it returns ([`Durability::Os`]), or on the device
//! ([`Durability::Sync`]). After any crash the database is what it was after some first part of the
//! commits. [`Db::wait_durable`] waits for a commit that did not wait itself:
//!
//! ```
//! # use siltstone::Db;
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::open(dir.path())?;
//! let commit = db.partition("events")?.put("now", "it happened")?;
//! db.wait_durable(commit.seq)?;
//! assert!(db.durable_seq() >= commit.seq);
//! # Ok(())
//! # }
//! ```
//!
//! # Snapshots and cursors
//!
//! A [`Snapshot`] is the whole database at one moment. A [`Cursor`] lends keys and values instead
//! of copying them; [`Range`] wraps two of them as an iterator.
//!
//! ```
//! # use siltstone::Db;
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::open(dir.path())?;
//! let users = db.partition("users")?;
//! users.put("bob", "author")?;
//! let before = db.snapshot();
//! users.delete("bob")?;
//! assert!(users.get("bob")?.is_none());
//!
//! let mut cursor = before.cursor(&users);
//! cursor.seek("a")?;
//! assert_eq!((cursor.key(), cursor.value()?), (&b"bob"[..], &b"author"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! One type, [`Error`], with a [`kind`](Error::kind) to branch on. Damaged bytes are never taken
//! for data and never a panic: they are [`ErrorKind::Corruption`], and [`Error::damage`] says
//! which file, where and, if it is known, which key. A limit ([`limits`], [`Options`]) refuses
//! before anything is written:
//!
//! ```
//! # use siltstone::{Db, ErrorKind};
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::open(dir.path())?;
//! let refused = db.partition("users")?.put("", "an empty key").expect_err("1 byte at least");
//! assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! Those of the database are for one open ([`Db::builder`], [`Options`]); those of a partition are
//! stored with it ([`Db::partition_with`], [`PartitionOptions`]).
//!
//! ```
//! # use siltstone::{Compression, Db, PartitionOptions};
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::builder(dir.path()).cache_bytes(64 << 20).write_buffer_bytes(16 << 20).open()?;
//! let options = PartitionOptions::new().compression(Compression::None);
//! let photos = db.partition_with("photos", options)?;
//! assert_eq!(photos.options().compression, Compression::None);
//! # Ok(())
//! # }
//! ```

mod provided;

pub use lsm_core::db::{
    BackgroundFailure, BackgroundMode, Batch, Builder, Class, Commit, Db, ExportSummary, Gauge,
    Health, IngestSummary, Partition, PartitionHealth, Reason, Resume, Severity, Snapshot,
    StallHealth,
};
pub use lsm_core::db::{VerifyMark, VerifyOptions, VerifyProgress, VerifyReport};
pub use lsm_core::error::{Damage, Error, ErrorKind, Result};
pub use lsm_core::filters::{PrefixDropFilter, TtlFilter};
pub use lsm_core::hooks;
pub use lsm_core::hooks::{Event, EventListener, Hooks};
pub use lsm_core::limits;
pub use lsm_core::options::{Compression, Durability, Options, PartitionOptions};
pub use lsm_core::raw;
pub use lsm_core::read::{Cursor, KeyRange, Keys, Range};
pub use lsm_core::stats::{LevelStats, PartitionStats, Stats};
pub use lsm_core::types::{Epoch, SeqNo, Slice};
pub use metahive;
pub use metahive::MetaHive;
pub use provided::ProvidedHooks;
