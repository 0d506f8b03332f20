//! The files through which a primary and its secondaries inform each other without waiting: the
//! commit cursor and the leases.
//!
//! Neither holds anything that a database needs. A commit cursor shows other processes on the same machine
//! what is committed at this moment. A lease names the files that a secondary still reads.

mod commit_cursor;
mod describe;
mod fence;
mod lease;

pub use commit_cursor::MAGIC as COMMIT_CURSOR_MAGIC;
pub use commit_cursor::{CommitCursorReader, CommitCursorState, CommitCursorWriter};
pub use describe::{describe_commit_cursor, describe_lease};
pub use fence::{OldCommitCursor, Settled};
pub use lease::MAGIC as LEASE_MAGIC;
pub use lease::{HeldLease, Lease, TIME_TO_LIVE, held_leases, take_away};
