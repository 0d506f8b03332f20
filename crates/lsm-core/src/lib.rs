//! The engine underneath siltstone: a log-structured merge tree of partitions over one WAL.
//!
//! Applications use the crate `siltstone`, which exports everything that they need. This page is for
//! people who read or change the engine.
//!
//! # Layers
//!
//! Every module belongs to a layer and imports only from its own layer and from lower ones. The modules `fs`, `clock`,
//! `sweep`, `types`, `codec`, `error`, `limits`, `machine` and `threads` are the crate `storage`; `batch`, `cache`, `compaction`,
//! `filters`, `hooks`, `iter`, `memory`, `memtable`, `operators`, `options`, `partition`, `read`, `simulate`, `snapshot`,
//! `sstable`, `version` and `zstandard` are the crate `tree`. So the compiler checks what they import. This crate exports them again.
//!
//! ```text
//! 7  db  follow  backup                     may import every other module
//! 6  read  replay  raw  changes  simulate   functions of a view, and of decoded records; sizes without data
//! 5  partition  snapshot  compaction        the state of a partition; the choice and the rules of merges
//! 4  version                                the set of live files: levels, edits, the manifest
//! 3  cache                                  blocks in memory
//! 2  wal  sstable  memtable  batch  filters  operators  shared  formats, buffers, ready-made hooks; none imports another
//! 1  fs  iter  hooks  clock  stats  sweep   contracts
//! 0  types  codec  error  limits  options  memory  machine  threads  zstandard  the vocabulary, memory of slabs, figures of the machine
//! ```
//!
//! # A write
//!
//! [`Partition::put`] and [`Batch::commit`] encode their operations (`batch`) and join a commit
//! group. The leader of the group gives out sequence numbers, appends one frame per batch to the log
//! (`wal`), inserts the operations into the memtables (`memtable`), and publishes the sequence
//! number up to which readers see. A full memtable is sealed between two groups. Background work writes
//! it to a table (`sstable`) and merges tables (`compaction`). An edit of the manifest
//! (`version`) installs each result.
//!
//! # A read
//!
//! A reader loads the view of the partition (`ReadView`: memtables and version), then the
//! visible sequence number. It searches the view at that number with `read::get` or a
//! [`read::Cursor`]. A block of a table is verified and parsed once, when it enters the `cache`.
//!
//! # A deterministic store
//!
//! The file system, the clock, random numbers and background work are arguments. So a whole store can
//! run in memory, one step at a time, and lose power:
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

pub mod backup;
pub mod changes;
pub mod db;
pub mod follow;
pub mod raw;
mod replay;
mod shared;
pub mod stats;
mod wal;

pub use db::{
    BackgroundMode, Batch, Builder, Commit, Db, Partition, ResourceUsage, Resources, Snapshot,
};
use storage::machine;
pub use storage::{
    Damage, Error, ErrorKind, Result, clock, codec, error, fs, limits, sweep, threads, types,
};
use tree::{batch, cache, compaction, iter, memtable, partition, snapshot, sstable, version};
pub use tree::{filters, hooks, operators, options, read, simulate, zstandard};

/// The door for this repository's own tests and measurements. No stable interface: anything here
/// may change with any release.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub use crate::db::errors::{Rule, rule};

    pub mod batch {
        pub use crate::batch::*;
    }
    pub mod cache {
        pub use crate::cache::*;
    }
    pub mod compaction {
        pub use crate::compaction::*;
    }
    pub mod decoders {
        pub use crate::db::check_export_description as export_description;
        pub use crate::sstable::decoders::table;
        pub use crate::version::decoders::edits;
        pub use crate::wal::decoders::segment;
    }
    pub mod iter {
        pub use crate::iter::*;
    }
    pub mod memtable {
        pub use crate::memtable::*;
    }
    pub mod names {
        pub use crate::fs::names::*;
    }
    pub mod partition {
        pub use crate::partition::*;
    }
    pub mod replay {
        pub use crate::replay::*;
    }
    pub mod snapshot {
        pub use crate::snapshot::*;
    }
    pub mod sstable {
        pub use crate::sstable::*;
    }
    pub mod version {
        pub use crate::version::*;
    }
    pub mod wal {
        pub use crate::wal::*;
    }
}
