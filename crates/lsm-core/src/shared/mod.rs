//! The files through which a primary and its secondaries inform each other without waiting: the
//! commit cursor and the leases.
//!
//! Neither holds anything that a database needs. A cursor tells other processes on the same machine
//! what is committed at this moment. A lease names the files that a secondary still reads.

mod cursor;
mod describe;
mod fence;
mod lease;

pub use cursor::MAGIC as CURSOR_MAGIC;
pub use cursor::{CursorReader, CursorState, CursorWriter};
pub use describe::{describe_cursor, describe_lease};
pub use fence::{OldCursor, Settled};
pub use lease::MAGIC as LEASE_MAGIC;
pub use lease::{HeldLease, Lease, TIME_TO_LIVE, held_leases, take_away};
