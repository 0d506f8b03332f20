//! [`KnownPrimary`]: the notes in which a primary names its address and its run, as a reader of its database finds them.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use siltstone::secondary::{Level, Reading, SecondaryPartition};

/// The keys in the partition of the notes.
pub(crate) const ADDRESS: &str = "primary";
pub(crate) const RUN: &str = "run";

/// The primary, as its database names it.
#[derive(Debug)]
pub(crate) struct KnownPrimary {
    pub(crate) address: String,
    /// That of the process: another one, or the primary of a copy of the database, may be at the address by now. `None` for a primary
    /// that notes none.
    pub(crate) run: Option<String>,
}

impl KnownPrimary {
    /// Reads the notes, as of the last sync.
    pub(crate) fn noted(notes: &SecondaryPartition) -> Option<KnownPrimary> {
        let reading = notes.at(Level::Eventual).ok()?;
        Some(KnownPrimary { address: text(&reading, ADDRESS)?, run: text(&reading, RUN) })
    }

    /// Returns whether the address names a machine.
    pub(crate) fn has_host(&self) -> bool {
        self.address.parse::<SocketAddr>().map_or(true, |it| !it.ip().is_unspecified())
    }
}

fn text(reading: &Reading, key: &str) -> Option<String> {
    String::from_utf8(reading.get(key).ok()??.to_vec()).ok()
}

/// An identity that no other run has.
pub(crate) fn random_run() -> String {
    let [one, other] = [(); 2].map(|()| RandomState::new().hash_one(0));
    format!("{one:016x}{other:016x}")
}
