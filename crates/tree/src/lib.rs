//! The log-structured merge-tree of siltstone: memtable, tables, versions, compactions and reads.
//!
//! It holds the layers 0 to 6 of the engine that need no log and no database: see `lsm_core`, which draws
//! all layers. It starts no thread, and knows the log only by the places that the manifest names. Its caller
//! decides when a job runs, and when an edit may be written.
//!
//! The interface is for the crates of this repository, and may change with each version: applications use the
//! crate `siltstone`.

pub mod batch;
pub mod cache;
pub mod compaction;
pub mod filters;
pub mod hooks;
pub mod iter;
pub mod memory;
pub mod memtable;
pub mod operators;
pub mod options;
pub mod partition;
pub mod read;
pub mod simulate;
pub mod snapshot;
pub mod sstable;
pub mod version;
pub mod zstandard;

use storage::{Error, clock, codec, error, fs, limits, machine, types};
