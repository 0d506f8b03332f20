//! Secondaries with the hooks of this crate, and the traits by which they are read like partitions.
//!
//! The constructors are methods of [`Db`]. The types are those of the crate `secondary`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use ::secondary::{Builder, Reading, Secondary};
use lsm_core::error::Result;
use lsm_core::hooks::OwnedEntry;
use lsm_core::read::{Cursor, KeyRange, Keys, Range};
use lsm_core::types::{SeqNo, Slice};
use metahive::{Verified, VerifiedRange};

use crate::db::Db;
use crate::partition::Partition;
use crate::provided::ProvidedHooks;
use crate::readable::Readable;

impl Db {
    /// Opens a read-only [`Secondary`] of the database in the folder `path`, which another process may
    /// have open for writing. Each read chooses its consistency level.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) with [`NotFound`](std::io::ErrorKind::NotFound) if there is no database;
    /// corruption of the manifest; the errors of the file system.
    ///
    /// # Cost
    /// Reads the manifest. Writes only a lease of some bytes, see
    /// [`Builder::lease`](crate::secondary::Builder::lease).
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    /// use siltstone::secondary::Level;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let primary = Db::open(path)?; // in another process, as a rule
    /// primary.partition("users")?.put("alice", "admin")?;
    ///
    /// let secondary = Db::secondary(path)?;
    /// let users = secondary.partition("users")?;
    /// assert!(users.at(Level::Strong)?.get("alice")?.is_some());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn secondary(path: impl AsRef<Path>) -> Result<Secondary> {
        Db::secondary_builder(path).open()
    }

    /// Returns options for [`Db::secondary`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let primary = siltstone::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// let secondary = Db::secondary_builder("/db").fs(fs).tables_only(true).open()?;
    /// assert_eq!(secondary.memtable_bytes(), 0);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn secondary_builder(path: impl AsRef<Path>) -> Builder {
        // Asked after those that the application adds to the builder. A secondary writes no
        // metadata, so there are no options of MetaHive.
        let hooks = ProvidedHooks { metahive: HashMap::new(), operators: Vec::new() };
        Secondary::builder(path).hooks(Arc::new(hooks))
    }

    /// Opens the database of a secondary for writing, in the place of its primary. If the primary lives, it is
    /// fenced: each later write of it returns [`ErrorKind::Fenced`](crate::ErrorKind::Fenced).
    ///
    /// Every commit that the primary acknowledged is kept, except those to partitions without a
    /// log, which are lost as in a crash. No write that the primary refuses is in this database.
    /// The secondary continues to follow; its lease holds files until it is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another process opens the database or takes it
    /// over; call it again. [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the primary
    /// lives and has no commit cursor on this machine, or if the folder is shipped to a bucket
    /// (`docs/remote.md`); then nothing was changed. Otherwise as [`Db::open`].
    ///
    /// # Durability
    /// Everything that the primary had committed is durable once this returns, at each
    /// [`Durability`](crate::Durability).
    ///
    /// # Cost
    /// As [`Db::open`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let primary = siltstone::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = Db::secondary_builder("/db").fs(fs).open()?;
    /// let db = Db::promote(&secondary)?;
    /// assert!(db.partition("users")?.contains("alice")?);
    /// assert!(primary.is_fenced());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn promote(secondary: &Secondary) -> Result<Db> {
        Db::promotion(secondary).open()
    }

    /// Returns options for [`Db::promote`]. The builder has the file system and the clock of the
    /// secondary; the hooks of the application must be given again.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let primary = siltstone::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = Db::secondary_builder("/db").fs(fs).open()?;
    /// let db = Db::promotion(&secondary).cache_bytes(256 << 20).open()?;
    /// assert!(db.partition("users")?.contains("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn promotion(secondary: &Secondary) -> crate::Builder {
        // An associated function of `Db`, because the crate `secondary` knows the engine alone: its
        // own `promote` returns a database of the engine.
        crate::Builder::of_engine(secondary.promotion())
    }
}

impl Readable for Reading {
    type Range = Range;
    type Keys = Keys;
    type Cursor = Cursor;

    #[inline]
    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        Reading::get(self, key)
    }

    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        Reading::multi_get(self, keys)
    }

    fn range(&self, range: impl KeyRange) -> Range {
        Reading::range(self, range)
    }

    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Reading::prefix(self, prefix)
    }

    fn keys(&self) -> Keys {
        Reading::keys(self)
    }

    fn cursor_in(&self, range: impl KeyRange) -> Cursor {
        Reading::cursor_in(self, range)
    }

    fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        // The place of a large value is enough. Its bytes are not read.
        Ok(self.read_point().locate(key.as_ref())?.is_some())
    }
}

/// Reads that are compared with the metadata of MetaHive before they are returned: of a
/// [`Partition`], or of a partition as a [`Secondary`] sees it. For code that works with both; the
/// reads are documented at [`Partition`]. The answers are for a [`Replica`](crate::metahive::Replica) of another node of
/// the same history.
pub trait ReadVerified {
    /// As [`Partition::verified_get`].
    ///
    /// # Errors
    /// As there.
    fn verified_get(&self, key: impl AsRef<[u8]>) -> Result<Option<Verified>>;

    /// As [`Partition::verified_range`].
    fn verified_range(&self, range: impl KeyRange) -> VerifiedRange;

    /// Returns the version of the stored key `key` that is stored with the sequence number `seq`, if a block whose checksum
    /// agrees, or a memtable, has it: the answer of [`Replica::fetch`](crate::metahive::Replica::fetch). A large value
    /// comes as its handle, which is right in a copy of the same folder only.
    ///
    /// # Errors
    /// Damage that may hide the version; those of the files.
    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>>;

    /// Returns the values of the stored keys from `from` to `to`, both included, as they were at the operation `through`:
    /// the answer of [`Replica::fetch_range`](crate::metahive::Replica::fetch_range). All entries have that number. Large values come
    /// as they are. `None` if this state has not come to that operation. It is no state of the tables only.
    ///
    /// # Errors
    /// Those of [`ReadVerified::verified_range`] for any of the keys;
    /// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) if keys and values have more than `bytes_max` bytes.
    fn fetch_range(
        &self,
        from: &[u8],
        to: &[u8],
        through: SeqNo,
        bytes_max: u64,
    ) -> Result<Option<Vec<OwnedEntry>>>;
}

impl ReadVerified for Partition {
    fn verified_get(&self, key: impl AsRef<[u8]>) -> Result<Option<Verified>> {
        metahive::verified_get(&self.0, key)
    }

    fn verified_range(&self, range: impl KeyRange) -> VerifiedRange {
        metahive::verified_range(&self.0, range)
    }

    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        metahive::fetch_from(&self.0, key, seq)
    }

    fn fetch_range(
        &self,
        from: &[u8],
        to: &[u8],
        through: SeqNo,
        bytes_max: u64,
    ) -> Result<Option<Vec<OwnedEntry>>> {
        metahive::fetch_range_from(&self.0, from, to, through, bytes_max)
    }
}

impl ReadVerified for Reading {
    fn verified_get(&self, key: impl AsRef<[u8]>) -> Result<Option<Verified>> {
        metahive::verified_get(self, key)
    }

    fn verified_range(&self, range: impl KeyRange) -> VerifiedRange {
        metahive::verified_range(self, range)
    }

    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        metahive::fetch_from(self, key, seq)
    }

    fn fetch_range(
        &self,
        from: &[u8],
        to: &[u8],
        through: SeqNo,
        bytes_max: u64,
    ) -> Result<Option<Vec<OwnedEntry>>> {
        metahive::fetch_range_from(self, from, to, through, bytes_max)
    }
}
