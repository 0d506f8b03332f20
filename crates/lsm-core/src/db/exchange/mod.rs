//! Exchange of a partition's content between databases: `export.rs` writes finished tables and a
//! description of them into a folder, `ingest.rs` reads such a folder. `bulk.rs` builds tables of
//! sorted entries and installs them as an ingest does.
//!
//! Invariants:
//! 1. An export is a range of one partition as of one snapshot: one version of each user key, no tombstones, and the
//!    hidden entries of these. Its description is published last, so a folder with one is whole.
//! 2. An ingest is one edit: all of the export becomes visible at one sequence number, or nothing.

mod arrival;
mod bulk;
mod description;
mod export;
mod ingest;
mod stored_key;

pub use bulk::BulkLoad;
#[cfg(feature = "internals")]
pub use description::check_export_description;
pub use export::{ExportOptions, ExportSummary};
pub use ingest::IngestSummary;

pub(super) use stored_key::check_stored_key;
