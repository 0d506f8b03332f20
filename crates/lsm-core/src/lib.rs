//! The engine underneath siltstone: a log-structured merge tree of partitions over one WAL.
//!
//! Applications use the crate `siltstone`, which re-exports what they need; this page is for those
//! who read or change the engine.
//!
//! # Floors
//!
//! Modules stand on floors, and imports only go down:
//!
//! ```text
//! 7  db                                     the only folder that knows everything
//! 6  read  replay  raw                      functions of a view, of decoded records
//! 5  partition  snapshot  compaction        what a partition holds; which merge is due, what survives
//! 4  version                                the set of live files: levels, edits, the manifest
//! 3  cache                                  blocks in memory
//! 2  wal  sstable  memtable  batch  filters  formats, buffers, ready-made filters; none imports another
//! 1  fs  iter  hooks  clock  stats          contracts
//! 0  types  codec  error  limits  options   the vocabulary; no I/O
//! ```
//!
//! # A write
//!
//! [`Partition::put`] and [`Batch::commit`] encode their operations ([`batch`]) and join a commit
//! group. Its leader numbers them, appends one frame a batch to the log ([`wal`]), inserts them
//! into the memtables ([`memtable`]), and publishes the sequence number up to which readers see. A
//! full memtable is sealed between two groups; background work writes it to a table ([`sstable`]),
//! merges tables ([`compaction`]) and makes the result part of the database by an
//! edit of the manifest ([`version`]).
//!
//! # A read
//!
//! A reader loads the partition's view ([`partition::ReadView`]: memtables and version), then the
//! visible sequence number, and looks through both with [`read::get`] or a [`read::Cursor`]. Blocks
//! of tables are verified and parsed once, when they enter the [`cache`].
//!
//! # A deterministic store
//!
//! File system, clock, randomness and background work are arguments, so a whole store can run in
//! memory, one step at a time, and lose power:
//!
//! ```
//! use std::sync::Arc;
//!
//! use lsm_core::fs::MemFs;
//! use lsm_core::{BackgroundMode, Db};
//!
//! # fn main() -> lsm_core::Result<()> {
//! let fs = Arc::new(MemFs::new());
//! let open = || {
//!     let mut word = 0;
//!     let random = move || {
//!         word += 1;
//!         word
//!     };
//!     let builder = Db::builder("/db").fs(fs.clone()).random(random);
//!     builder.background(BackgroundMode::Stepped).open()
//! };
//! let db = open()?;
//! db.partition("users")?.put("alice", "admin")?;
//! while db.step()? {}
//! db.close()?;
//! assert!(open()?.partition("users")?.contains("alice")?);
//! # Ok(())
//! # }
//! ```

pub mod batch;
pub mod cache;
pub mod clock;
pub mod codec;
pub mod compaction;
pub mod db;
pub mod error;
pub mod filters;
pub mod fs;
pub mod hooks;
pub mod iter;
pub mod limits;
pub mod memtable;
pub mod options;
pub mod partition;
pub mod raw;
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
