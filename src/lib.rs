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
//! commits. [`Db::wait_durable`](lsm_core::Db::wait_durable) waits for a commit that did not wait
//! itself:
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
//!
//! # MetaHive
//!
//! A partition that is made with [`PartitionOptions::metahive`], or given it later, keeps a
//! checksum beside every entry, made when the entry goes to its first table. Every compaction
//! verifies what it reads against it, before it writes a new table, and repairs what it can; what
//! no source repairs reads as corruption from then on, never as an older value. It finds faults
//! that the checksums of blocks cannot: those of memory, between reading and writing. What it
//! catches and what it costs is on the page of [`metahive`].
//!
//! ```
//! # use siltstone::{Db, MetaHiveOptions, PartitionOptions};
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::open(dir.path())?;
//! let options = PartitionOptions::new().metahive(MetaHiveOptions::default());
//! db.partition_with("ledger", options)?.put("alice", "12")?;
//! db.close()?;
//!
//! // It is stored with the partition: asking by name is enough.
//! let ledger = Db::open(dir.path())?.partition("ledger")?;
//! assert_eq!(ledger.get("alice")?.as_deref(), Some(&b"12"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Hooks
//!
//! MetaHive is one hook; an application may write others, that decide what compactions keep
//! ([`PartitionOptions::filter`], [`hooks`]). Partitions store the names of their hooks, and every
//! open finds the code of those that come with this crate; [`Builder::hooks`] supplies the rest.

mod builder;
mod db;
mod options;
mod partition;
mod provided;

pub use builder::Builder;
pub use db::Db;
pub use lsm_core::db::{
    BackgroundFailure, BackgroundMode, Batch, Class, Commit, ExportSummary, Gauge, Health,
    IngestSummary, PartitionHealth, Reason, Resume, Severity, Snapshot, StallHealth,
};
pub use lsm_core::db::{VerifyMark, VerifyOptions, VerifyProgress, VerifyReport};
pub use lsm_core::error::{Damage, Error, ErrorKind, Result};
pub use lsm_core::filters::{PrefixDropFilter, TtlFilter};
pub use lsm_core::hooks;
pub use lsm_core::hooks::{Event, EventListener, Hooks};
pub use lsm_core::limits;
pub use lsm_core::options::{Compression, Durability, Options};
pub use lsm_core::raw;
pub use lsm_core::read::{Cursor, KeyRange, Keys, Range};
pub use lsm_core::stats::{LevelStats, PartitionStats, Stats};
pub use lsm_core::types::{Epoch, SeqNo, Slice};
pub use metahive;
pub use metahive::{MetaHive, MetaHiveOptions};
pub use options::PartitionOptions;
pub use partition::Partition;
