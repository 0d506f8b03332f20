//! LevelDB as `convert` uses it: the engine of the benchmarks with its settings, but every checksum
//! is verified.
//!
//! LevelDB cannot open a database without writing to it: an open replays its log.

use std::path::Path;

use testkit::bench::{Engine, Ack};

use super::{Foreign, Visit};
use crate::engines::{Fault, LevelDb};
use crate::settings::Settings;

/// A database.
pub struct Database(LevelDb);

impl Database {
    pub fn open(folder: &Path) -> Result<Database, Fault> {
        Ok(Database(LevelDb::verifying(folder, &Settings::new(0))?))
    }
}

impl Foreign for Database {
    fn each(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Fault> {
        self.0.each(from, visit)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.0.value(key)
    }

    /// Durable once it returns. One sync at the end would not suffice: it syncs the current log of
    /// LevelDB, and not the log before it, whose entries may not be in a table yet.
    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Fault> {
        self.0.put_all(entries, Ack::Sync)
    }

    /// Has nothing to do, see `put_all`.
    fn sync(&self) -> Result<(), Fault> {
        Ok(())
    }
}
