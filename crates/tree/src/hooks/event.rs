//! Events: the notices that listeners get.

use std::path::PathBuf;
use std::time::Duration;

use crate::clock::ClockJump;
use crate::error::{Damage, Error};

/// An event of background work.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A flush wrote memtables to a table.
    Flushed {
        /// Name of the partition.
        partition: String,
        /// Length of the table in bytes.
        bytes: u64,
        /// Its duration.
        took: Duration,
    },
    /// A compaction replaced tables by new tables.
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
    /// The delay of writers changed.
    StallChanged {
        /// Name of the partition.
        partition: String,
        /// The strength of the delay: from 0 (none) to 1000 (writers are stopped).
        pressure_permille: u32,
        /// The strongest cause.
        reason: &'static str,
    },
    /// Damaged bytes were found.
    Corruption(Damage),
    /// A damaged entry was repaired. This and the next event come when a repair has read the table. If it cannot
    /// install the new table, on a full disk for example, it is tried again, and they come again.
    Repaired {
        /// Name of the partition.
        partition: String,
        /// The key.
        key: Vec<u8>,
        /// The source of the correct bytes.
        source: String,
    },
    /// A damaged entry could not be repaired: reads of it return corruption.
    Quarantined {
        /// The damage.
        damage: Damage,
        /// The bytes that were found.
        value: Vec<u8>,
    },
    /// A chunk file of large values was made, takes no more values, or was removed.
    ChunkChanged {
        /// Name of the partition.
        partition: String,
        /// Path of the file.
        path: PathBuf,
        /// The change.
        change: ChunkChange,
        /// Length of the file in bytes.
        bytes: u64,
    },
    /// Background work failed, or a listener panicked.
    BackgroundError(Error),
    /// The store accepts writes again after a failure.
    Resumed,
    /// The calendar jumped. No entry expires by it until the jump has lasted for
    /// [`CONFIRMED_AFTER`](crate::clock::CONFIRMED_AFTER), or `Db::confirm_clock` is called.
    ClockJumped(ClockJump),
}

/// A change of a chunk file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChunkChange {
    /// It was made.
    Created,
    /// It takes no more values.
    Sealed,
    /// It was removed: no one needs a value in it.
    Reclaimed,
}

/// A listener for events. It is called without locks, on a thread that does or requests background
/// work, so it must return quickly. It may call the database. Calls that would have to wait for
/// background work fail: `wait_idle`, and writes while writers are stopped. Two listeners that close each other's
/// database wait for each other for ever: close other databases on a thread of the application. A panic ends only this
/// call of the listener: later events are delivered, and `Db::health` reports the panic.
pub trait EventListener: Send + Sync + 'static {
    /// Receives an event.
    fn on_event(&self, event: &Event);
}
