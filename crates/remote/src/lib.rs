//! A database in an object store: its log is shipped, other machines read it and take it over.
//!
//! A primary keeps its log and its tables on the local disk, and reads and writes at its speed. This crate wraps
//! its file system: each change of the folder is put into a *journal* of numbered objects, by put-if-absent. The
//! page `docs/remote.md` of the repository has the guarantees, the costs and what is not built yet; design note
//! 32 has the reasons.
//!
//! ```text
//! store     calls of an object store     bucket     attempts, lost answers, the probe
//! sealed    encryption of objects, between bucket and store      encrypted  its keys and cipher (a feature)
//! format    the bytes of objects         folder     a folder as the journal describes it
//! shipper   the journal of a primary     fs         its file system
//! record    numbers that were stored
//! noted     a change that waits              takeover   a busy writer pauses for a claim
//! opening   the claim, and the folder    reader     the file system of readers
//! read_lease    the time for which a primary serves from its memory
//! cache     blocks in memory             remote_file   a file in the bucket
//! disk_cache    blocks on disk
//! url       the stores that URLs name    noted_url     the URL in the folder of a primary
//! restorer  files of a takeover come to the local disk
//! remote    the calls that open, with their settings    primary    the right of a writer
//! backup_fs    a folder of backups in a bucket          numbered   objects whose numbers decide
//! replica   repairs of the primary's tables
//! ```
//!
//! # Examples
//! ```
//! use remote::Remote;
//! use siltstone::secondary::Level;
//! use siltstone::{Durability, Readable};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! let remote = Remote::memory()?; // or Remote::url("file:///mnt/shared/users")?
//! let primary = remote.primary(path)?;
//! let db = primary.builder().open()?;
//! // Returns when the bucket has it.
//! db.partition("users")?.put_with("alice", "admin", Durability::Sync)?;
//!
//! // On another machine:
//! let secondary = remote.reader()?.secondary().open()?;
//! let users = secondary.partition("users")?;
//! assert!(users.at(Level::Strong)?.contains("alice")?);
//! # Ok::<(), siltstone::Error>(())
//! ```

mod background;
mod backup_fs;
mod bucket;
mod cache;
mod collect;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod decoders;
mod disk_cache;
#[cfg(feature = "encryption")]
mod encrypted;
mod folder;
mod format;
mod fs;
mod history;
mod inventory;
mod journal;
mod lease;
mod noted;
mod noted_url;
mod numbered;
mod opening;
mod primary;
mod read_lease;
mod reader;
mod record;
mod remote;
mod remote_file;
mod replica;
mod restore;
mod restorer;
mod retention;
mod sealed;
mod settings;
mod shipper;
mod store;
mod takeover;
mod url;
mod utc_time;

pub use cache::{CacheFigures, from_memory};
pub use inventory::{Amount, BucketReport, BucketStatus, LeaseStatus, WrongObject};
pub use numbered::NumberedObjects;
pub use primary::Primary;
pub use reader::RemoteReader;
pub use remote::Remote;
pub use restore::{RestoreTarget, RestoredState};
pub use restorer::RestoreStatus;
pub use settings::Ack;
pub use shipper::{Status, StoreFailure};
pub use store::{
    ObjectEntry, ObjectListing, Store, StoreError, StoreErrorKind, StoreResult, Timer,
};
pub use utc_time::UtcTime;
