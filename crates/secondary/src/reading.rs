//! [`Reading`]: a partition as it was when it had caught up to the requested level.

use std::sync::Arc;

use lsm_core::db::Commit;
use lsm_core::error::Result;
use lsm_core::follow::ReplicaView;
use lsm_core::hooks::PartitionHooks;
use lsm_core::raw::{self, PinnedView, ReadAt, Walkable};
use lsm_core::read::{Cursor, KeyRange, Keys, Range, ReadPoint, RemainingTime};
use lsm_core::types::Slice;

use crate::level::Level;

/// An immutable view of a partition at its level. It is cheap to clone and protects the files that it
/// reads.
#[derive(Clone)]
pub struct Reading {
    view: ReplicaView,
    served: Level,
}

impl Reading {
    pub(crate) fn new(view: ReplicaView, served: Level) -> Reading {
        Reading { view, served }
    }

    pub(crate) fn of_cut(view: ReplicaView) -> Reading {
        Reading { view, served: Level::Prefix }
    }

    /// Returns the level at which it was served: the requested level, or [`Level::Eventual`].
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reading = users.at(Level::Strong)?;
    /// assert_eq!(reading.served(), Level::Strong);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn served(&self) -> Level {
        self.served
    }

    /// Returns the read point of the partition, for reading its large values.
    pub fn read_point(&self) -> ReadPoint {
        self.view.point()
    }

    /// Returns the time after which the entry of `key` expires by the rule of the partition, by the clock of this process;
    /// `None` if there is no such entry.
    ///
    /// # Errors
    /// Those of [`Reading::get`].
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let reading = secondary.partition("users")?.at(Level::Strong)?;
    /// // The partition has no rule.
    /// assert_eq!(reading.remaining_time("alice")?, Some(lsm_core::read::RemainingTime::Unlimited));
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn remaining_time(&self, key: impl AsRef<[u8]>) -> Result<Option<RemainingTime>> {
        self.view.remaining_time(key)
    }

    /// Returns the name and the parameters of each compaction filter that is stored with the partition, in the order in
    /// which they run, as of this state. So a reader knows the rule of expiry by which the values that it sees were written.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let reading = secondary.partition("users")?.at(Level::Strong)?;
    /// assert!(reading.filters().is_empty());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    #[must_use]
    pub fn filters(&self) -> Vec<(String, Vec<u8>)> {
        self.view.filters()
    }

    /// Returns the same state with the expired entries that the primary has not removed.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let reading = secondary.partition("users")?.at(Level::Strong)?;
    /// assert_eq!(reading.with_expired().keys().count(), 1);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_expired(self) -> Reading {
        Reading { view: self.view.with_expired(), ..self }
    }

    /// Returns the last commit that it may see: the token for a later read that must not go back.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reading = users.at(Level::Strong)?;
    /// // A later read that does not go back.
    /// users.at(Level::Session(reading.as_of()))?;
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn as_of(&self) -> Commit {
        self.view.commit()
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// Corruption; [`ErrorKind::FileGone`](crate::ErrorKind::FileGone) if no lease protects the files.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reading = users.at(Level::Strong)?;
    /// assert_eq!(reading.get("alice")?.as_deref(), Some(&b"admin"[..]));
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.view.get(key)
    }

    /// Returns the values of `keys`, in their order. Costs less than a get for each of them.
    ///
    /// # Errors
    /// Those of [`Reading::get`], of any of the keys.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reading = users.at(Level::Strong)?;
    /// let roles = reading.multi_get(&["bob", "alice"])?;
    /// assert!(roles[0].is_none() && roles[1].as_deref() == Some(&b"admin"[..]));
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        self.view.multi_get(keys)
    }

    /// Returns the keys and values in `range`.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reading = users.at(Level::Strong)?;
    /// assert_eq!(reading.range("a".."b").count(), 1);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn range(&self, range: impl KeyRange) -> Range {
        self.view.range(range)
    }

    /// Returns the keys that begin with `prefix`, and their values.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reading = users.at(Level::Strong)?;
    /// assert_eq!(reading.prefix("al").count(), 1);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.view.prefix(prefix)
    }

    /// Returns all keys and values.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reading = users.at(Level::Strong)?;
    /// for entry in reading.iter() {
    ///     let (name, role) = entry?;
    ///     println!("{} = {}", name.escape_ascii(), role.escape_ascii());
    /// }
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn iter(&self) -> Range {
        self.range(..)
    }

    /// Returns all keys.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reading = users.at(Level::Strong)?;
    /// assert_eq!(reading.keys().count(), 1);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn keys(&self) -> Keys {
        self.view.keys()
    }

    /// Returns a cursor over all keys.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reading = users.at(Level::Strong)?;
    /// let mut cursor = reading.cursor();
    /// cursor.seek_to_first()?;
    /// assert_eq!(cursor.key(), b"alice");
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn cursor(&self) -> Cursor {
        self.cursor_in(..)
    }

    /// Returns a cursor over the keys in `range`.
    ///
    /// # Examples
    /// ```
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reading = users.at(Level::Strong)?;
    /// let mut cursor = reading.cursor_in("b"..);
    /// cursor.seek_to_first()?;
    /// assert!(!cursor.valid());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn cursor_in(&self, range: impl KeyRange) -> Cursor {
        self.view.cursor_in(range)
    }
}

impl ReadAt for Reading {
    fn with_view<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(&PinnedView<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        self.view.with_view(key, look)
    }

    fn read_point(&self) -> Result<(ReadPoint, Arc<PartitionHooks>)> {
        self.view.read_point()
    }
}

impl Walkable for Reading {
    fn pin_raw(&self) -> Result<raw::Pin> {
        self.view.pin_raw()
    }
}
