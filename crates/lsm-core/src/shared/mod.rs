//! The files through which a primary and its secondaries tell each other what neither waits for:
//! the commit cursor and the leases.
//!
//! Neither holds anything that a database needs. A cursor says what is committed at this moment to
//! whoever reads on the same machine; a lease says which files a secondary still reads.

mod cursor;
mod lease;

pub use cursor::{CursorReader, CursorState, CursorWriter};
pub use lease::{HeldLease, Lease, TIME_TO_LIVE, held_leases, take_away};
