//! LevelDB as `convert` uses it: the engine of the benchmarks, with its settings.
//!
//! LevelDB has no way to open a database without writing to it: opening one replays its log.

use std::path::Path;

use testkit::bench::{Engine, When};

use super::{Foreign, Visit};
use crate::engines::{Fault, LevelDb, Peer};
use crate::settings::Settings;

/// A database.
pub struct Database(LevelDb);

impl Database {
    pub fn open(folder: &Path) -> Result<Database, Fault> {
        Ok(Database(LevelDb::open(folder, &Settings::new(0))?))
    }
}

impl Foreign for Database {
    fn each(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Fault> {
        let mut result = Ok(());
        self.0.seek(from, u64::MAX, |key, value| {
            // The walk itself cannot be ended from here, so it passes over the rest.
            if result.is_ok() {
                result = visit(key, value);
            }
        })?;
        result
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.0.value(key)
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Fault> {
        self.0.put_all(entries, When::Os)
    }

    fn sync(&self) -> Result<(), Fault> {
        // A synced batch syncs the log, and everything before it with the log.
        self.0.put_all(&[], When::Sync)
    }
}
