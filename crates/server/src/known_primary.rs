//! [`KnownPrimary`]: the note in which a primary names its address, as a reader of its database finds it.

use siltstone::raw::Walk;
use siltstone::secondary::{Level, SecondaryPartition};

/// The key of the address in the partition of the notes.
pub(crate) const ADDRESS: &str = "primary";

/// The primary, as its database names it.
#[derive(Debug)]
pub(crate) struct KnownPrimary {
    pub(crate) address: String,
    /// Its database: another one may be at the address by now.
    pub(crate) database: String,
}

impl KnownPrimary {
    /// Reads the note, as of the last sync.
    pub(crate) fn noted(notes: &SecondaryPartition) -> Option<KnownPrimary> {
        let reading = notes.at(Level::Eventual).ok()?;
        let address = String::from_utf8(reading.get(ADDRESS).ok()??.to_vec()).ok()?;
        Some(KnownPrimary { address, database: database_of(&Walk::open(&reading).ok()?) })
    }
}

/// The identity of a database.
pub(crate) fn database_of(walk: &Walk) -> String {
    format!("{:032x}", walk.db_id().0)
}
