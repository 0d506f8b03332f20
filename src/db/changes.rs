//! The part of [`Db`] that follows its changes.

use lsm_core::changes::Changes;
use lsm_core::db::Commit;
use lsm_core::error::Result;
use lsm_core::types::SeqNo;

#[cfg(doc)]
use crate::ErrorKind;
use crate::db::Db;

impl Db {
    /// Returns the commits after the sequence number `from`, whole and in their order: first those that are in the log,
    /// then those that are made from now on. The number is that of a snapshot whose commits are durable;
    /// [`SeqNo::ZERO`] begins with the first commit of the database. Store [`Changes::position`], also at the beginning,
    /// and go on with [`Db::changes_from`]: the number of a snapshot may be that of a write to a partition without a log,
    /// which a power cut takes.
    ///
    /// A commit appears when it is durable, so a power cut takes back nothing that was seen. Each appears once. What
    /// the log lacks (ingested tables, partitions without a log) appears as
    /// [`FeedItem::Unlogged`](crate::changes::FeedItem::Unlogged). The log reaches back as far as recovery needs it, and
    /// by [`Options::log_retained_bytes`](crate::Options::log_retained_bytes) further. No write waits for a feed. The
    /// result keeps the database open.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a number beyond the last commit; [`ErrorKind::Unsupported`] if the database
    /// was opened read-only. If the log does not reach back to it, [`Changes::try_next`] returns
    /// [`ErrorKind::TooOld`].
    ///
    /// # Cost
    /// None for writes, and none for a feed that has everything. One that catches up reads each byte of the log once.
    ///
    /// # Examples
    /// ```
    /// use siltstone::changes::{FeedItem, KeyChange};
    /// use siltstone::{Durability, SeqNo};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let mut changes = db.changes(SeqNo::ZERO)?.in_partition("users");
    /// db.partition("users")?.put_with("alice", "admin", Durability::Sync)?;
    /// while let Some(changed) = changes.try_next()? {
    ///     let FeedItem::Commit(batch) = changed else { continue };
    ///     for (partition, change) in &batch.changes {
    ///         if let KeyChange::Put { key, value } = change {
    ///             println!("{}: {key:?} = {value:?}", partition.name);
    ///         }
    ///     }
    ///     // Stored together with what was made of the batch.
    ///     println!("go on after {:?}", changes.position());
    /// }
    /// # assert_eq!(changes.position().seq, db.visible_seq());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn changes(&self, from: SeqNo) -> Result<Changes> {
        self.0.changes(from)
    }

    /// Returns the commits after a stored position ([`Changes::position`]), as [`Db::changes`] does.
    ///
    /// # Errors
    /// Those of [`Db::changes`]; [`ErrorKind::SessionLost`] if the commit is not in the history of the database, as after
    /// a restore of an older backup, which gives the same numbers to other commits. Begin again with a snapshot then.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Durability, SeqNo};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let commit = users.put_with("alice", "admin", Durability::Sync)?;
    /// let mut changes = db.changes(SeqNo::ZERO)?;
    /// changes.try_next()?;
    /// assert_eq!(changes.position(), commit);
    /// assert!(db.changes_from(commit)?.try_next()?.is_none());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn changes_from(&self, position: Commit) -> Result<Changes> {
        self.0.changes_from(position)
    }
}
