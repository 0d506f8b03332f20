//! Events: the notices that listeners get.

use std::time::Duration;

use crate::error::{Damage, Error};

/// Something that happened in the background.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Memtables became a table.
    Flushed {
        /// Name of the partition.
        partition: String,
        /// Length of the table in bytes.
        bytes: u64,
        /// Its duration.
        took: Duration,
    },
    /// Tables became other tables.
    Compacted {
        /// Name of the partition.
        partition: String,
        /// Uppermost input level.
        level_from: usize,
        /// Output level.
        level_to: usize,
        /// Length of the inputs in bytes.
        read_bytes: u64,
        /// Length of the outputs in bytes; 0 for a move.
        written_bytes: u64,
        /// Its duration.
        took: Duration,
    },
    /// Writers are held back, or no longer.
    StallChanged {
        /// Name of the partition.
        partition: String,
        /// From 0, not at all, to 1000, stopped.
        pressure_permille: u32,
        /// The cause that holds them back most.
        reason: &'static str,
    },
    /// Damaged bytes were found.
    Corruption(Damage),
    /// A damaged entry was repaired.
    Repaired {
        /// Name of the partition.
        partition: String,
        /// The key.
        key: Vec<u8>,
        /// The source of the good bytes.
        source: String,
    },
    /// A damaged entry could not be repaired: it reads as corruption from now on.
    Quarantined {
        /// The damage.
        damage: Damage,
        /// The bytes that were found.
        value: Vec<u8>,
    },
    /// Background work failed, or a listener panicked.
    BackgroundError(Error),
    /// The store takes writes again after a failure.
    Resumed,
}

/// Is told what happens. Called outside every lock, on a thread that does background work or that
/// asked for some: be quick. It may call the database, but what would have to wait for background
/// work there is refused: `wait_idle`, and writes while they are stopped. A panic ends nothing
/// but the call: later events are told all the same, and `Db::health` keeps it.
pub trait EventListener: Send + Sync + 'static {
    /// Something happened.
    fn on_event(&self, event: &Event);
}
