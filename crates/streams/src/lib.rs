//! Streams of entries: a database, or parts of it, as one sequence of bytes for a pipe or a file.
//!
//! [`export`] and [`import`] write and read; `arriving.rs` puts what was read into partitions. `format.rs`
//! describes the bytes, `text.rs` the text of Berkeley DB. [`EntryReader`] and [`EntryWriter`] are for
//! converters, which have no database. Applications use this crate by way of siltstone, where the calls are
//! `Db::export_stream` and `Db::import_stream`.
//!
//! Invariants:
//! 1. No value is held in memory as a whole, unless its partition holds it in a table anyway.
//! 2. An entry of a damaged stream is never imported: all bytes of an entry are verified first.

mod arriving;
mod entries;
mod export;
mod format;
mod import;
mod options;
mod text;

pub use self::entries::{EntryReader, EntryWriter, StreamEntry};
pub use self::export::{export, export_salvaged};
pub use self::import::import;
pub use self::options::{StreamExport, StreamFormat, StreamImport, StreamPartition, StreamSummary};
