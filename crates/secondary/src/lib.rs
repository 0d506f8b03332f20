//! Read-only instances that follow a live primary, one partition at a time.
//!
//! A [`Secondary`] opens the folder of a database that another process (the primary) writes, at any
//! time and without the help of the primary. It reads the same files, and reads the end of the log
//! into its own memtables. It never writes to the files of the database. It has one small file, its
//! lease, which shows the primary which tables the secondary still reads.
//!
//! The primary never waits for a secondary. A read makes its partition catch up as far as its [`Level`]
//! requires, and pays only for the bytes of this partition.
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
//! // Read your own writes: the token names the commit.
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
//! - A secondary shows only commits of the primary. It never shows a write that the primary refused,
//!   even if the bytes of the write are in the log.
//! - Within an epoch (one open of the primary), a partition never goes back.
//! - Views, snapshots and iterators never change, even if the secondary catches up, and their files are
//!   not deleted.
//! - If a file is deleted nevertheless, because no lease was possible, the result is
//!   [`FileGone`](ErrorKind::FileGone) or a read from a newer state, and never a missing key.

mod background;
mod builder;
mod lag;
mod level;
mod partition;
mod reading;
mod secondary;
mod stats;

pub use background::Follow;
pub use builder::Builder;
pub use lag::Lag;
pub use level::{Level, OnUnmet, ReadOptions, Target};
pub use lsm_core::db::Commit;
pub use lsm_core::error::ErrorKind;
pub use partition::SecondaryPartition;
pub use reading::Reading;
pub use secondary::{Secondary, SecondaryCut};
pub use stats::{FollowedStats, SecondaryStats};
