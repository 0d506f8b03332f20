//! Read-only instances that follow a live primary, one partition at a time.
//!
//! A [`Secondary`] opens the folder of a database that another process writes, at any time and without
//! that process's help. It reads the same files, and the end of the log into memtables of its own. It
//! never writes to the files of the database; one small file of its own, its lease, tells the primary
//! which tables it still reads.
//!
//! A write of the primary waits for no secondary. The work moves to the read: a partition is brought
//! as far as the read asks, see [`Level`], and at the cost of its own bytes.
//!
//! ```
//! use secondary::{Level, Secondary, Target};
//!
//! # fn main() -> lsm_core::Result<()> {
//! # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
//! # let db = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
//! // The primary, in this process or another one.
//! let commit = db.partition("users")?.put("alice", "admin")?;
//!
//! # let open = || Secondary::builder("/db").fs(fs.clone()).open();
//! # /*
//! let secondary = Secondary::open("/db")?;
//! # */
//! # let secondary = open()?;
//! let users = secondary.partition("users")?;
//! assert_eq!(users.at(Level::Strong)?.get("alice")?.as_deref(), Some(&b"admin"[..]));
//!
//! // Read your own writes: the token says how far.
//! users.at(Level::Session(commit))?;
//! // All partitions, at one commit.
//! secondary.sync(Target::Latest)?;
//! assert!(secondary.cut().partition(&users).is_some());
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - What a secondary shows was committed on the primary: a write that the primary refused is never
//!   seen, also if its bytes reached the log.
//! - Within an epoch (one open of the primary) a partition never goes back.
//! - Views, snapshots and iterators never change, whatever is synced meanwhile, and the files that
//!   they read are not deleted.
//! - A file that is gone all the same (no lease could be taken) is [`FileGone`](ErrorKind::FileGone) or
//!   a read from a newer state, and never a missing key.

mod level;
mod partition;
mod secondary;

pub use level::{Level, OnUnmet, ReadOptions, Target};
pub use lsm_core::db::Commit;
pub use lsm_core::error::ErrorKind;
pub use partition::{Reading, SecondaryPartition};
pub use secondary::{Builder, Lag, Secondary, SecondaryCut};
