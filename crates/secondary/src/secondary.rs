//! [`Secondary`]: the read-only instance.
//!
//! The engine (`lsm_core::follow`) catches up. This file has the public calls; `catch_up.rs` chooses the
//! time, the goal and the wait.
//!
//! Invariants:
//! 1. A goal is determined after the read began, and the partition is read after the goal was reached.
//! 2. No thread waits under a lock. A thread that catches up for a partition does so for all waiting
//!    threads, which then find their goals reached.

mod catch_up;

use std::sync::Arc;
use std::time::Duration;

use lsm_core::Db;
use lsm_core::changes::Changes;
use lsm_core::clock::Clock;
use lsm_core::db::{Commit, VerifyOptions, VerifyReport};
use lsm_core::error::{ErrorKind, Result};
use lsm_core::follow::{FollowedCut, Follower, SyncExtent, SyncReach, SyncResult};
use lsm_core::types::{PartitionId, SeqNo};
use parking_lot::Mutex;

use self::catch_up::after;
use crate::background::FollowThread;
use crate::lag::CompleteAt;
use crate::level::Target;
use crate::partition::SecondaryPartition;
use crate::reading::Reading;

/// A read-only instance of a database that another process writes. Cheap to clone.
///
/// The lease ends when the last clone, partition, reading and iterator is dropped.
#[derive(Clone)]
pub struct Secondary(Arc<SecondaryInner>);

struct SecondaryInner {
    follower: Follower,
    clock: Arc<dyn Clock>,
    complete_at: Mutex<CompleteAt>,
    thread: FollowThread,
}

/// All partitions as of one commit. Cheap to clone.
#[derive(Clone)]
pub struct SecondaryCut(FollowedCut);

impl SecondaryCut {
    /// Returns the commit; `None` before the first complete sync.
    ///
    /// # Examples
    /// ```
    /// use secondary::Target;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// assert!(secondary.cut().as_of().is_none());
    /// let reached = secondary.sync(Target::Latest)?;
    /// assert_eq!(secondary.cut().as_of(), Some(reached));
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn as_of(&self) -> Option<Commit> {
        self.0.reached().map(commit_of)
    }

    /// Returns a partition as it was; `None` if it did not exist.
    ///
    /// # Examples
    /// ```
    /// use secondary::Target;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// secondary.sync(Target::Latest)?;
    /// let then = secondary.cut().partition(&users).expect("it existed then");
    /// assert_eq!(then.iter().count(), 1);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn partition(&self, partition: &SecondaryPartition) -> Option<Reading> {
        self.0.partition(partition.followed.id()).map(Reading::of_cut)
    }
}

fn commit_of(reached: SyncResult) -> Commit {
    Commit { seq: reached.seq, epoch: reached.epoch }
}

impl Secondary {
    pub(crate) fn new(follower: Follower, clock: Arc<dyn Clock>) -> Secondary {
        let complete_at = Mutex::default();
        let thread = FollowThread::default();
        Secondary(Arc::new(SecondaryInner { follower, clock, complete_at, thread }))
    }

    /// Opens the partition `name`. Catches up first if the partition is not known.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`] if it does not exist; [`ErrorKind::Unsupported`] if it needs a
    /// hook that is not there.
    ///
    /// # Examples
    /// ```
    /// use secondary::ErrorKind;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// assert_eq!(secondary.partition("users")?.name(), "users");
    /// let missing = secondary.partition("posts").err().expect("it does not exist");
    /// assert_eq!(missing.kind(), ErrorKind::PartitionNotFound);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn partition(&self, name: &str) -> Result<SecondaryPartition> {
        let followed = self.0.follower.partition(name)?;
        Ok(SecondaryPartition { secondary: self.clone(), followed })
    }

    /// Returns the names of all partitions, in order, as of the last sync of anything.
    ///
    /// # Examples
    /// ```
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// assert_eq!(secondary.partition_names(), ["default", "users"]);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn partition_names(&self) -> Vec<String> {
        self.0.follower.partition_names()
    }

    /// Catches up with the primary for all partitions, which are then at one commit: see
    /// [`Secondary::cut`].
    ///
    /// # Errors
    /// As [`SecondaryPartition::sync`].
    ///
    /// # Examples
    /// ```
    /// use secondary::{Level, Target};
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let reached = secondary.sync(Target::Latest)?;
    /// assert!(reached.seq >= commit.seq && users.at(Level::Prefix)?.get("alice")?.is_some());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn sync(&self, to: Target) -> Result<Commit> {
        let started = self.0.clock.now();
        let reached = self.sync_extent(SyncExtent::All, to)?;
        if let Target::Token(token) = to {
            // First: a sequence number of another history says nothing about this one.
            self.check_history(token)?;
            if reached.seq < token.seq {
                return Err(after(token));
            }
        }
        if reached.is_present {
            let mut complete_at = self.0.complete_at.lock();
            // The start counts: commits of the primary during the sync may be missing.
            complete_at.logged = Some(started);
        }
        Ok(commit_of(reached))
    }

    fn sync_extent(&self, extent: SyncExtent<'_>, to: Target) -> Result<SyncResult> {
        match to {
            Target::Latest | Target::Token(_) => self.0.follower.sync(extent),
            Target::Durable => self.0.follower.sync_durable(extent),
        }
    }

    /// Catches up for some partitions, and returns them at one commit. The others do not change.
    ///
    /// # Errors
    /// As [`SecondaryPartition::sync`]; [`ErrorKind::Unsupported`] with [`Builder::tables_only`](crate::Builder::tables_only).
    ///
    /// # Examples
    /// ```
    /// use secondary::Target;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// # primary.partition("posts")?;
    /// let users = secondary.partition("users")?;
    /// let posts = secondary.partition("posts")?;
    /// // Both at one commit, so a batch over both is there whole or not at all.
    /// let cut = secondary.sync_group(&[&users, &posts], Target::Latest)?;
    /// assert!(cut.partition(&posts).is_some());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn sync_group(&self, group: &[&SecondaryPartition], to: Target) -> Result<SecondaryCut> {
        let ids: Vec<PartitionId> = group.iter().map(|it| it.followed.id()).collect();
        let reach = match to {
            Target::Latest | Target::Token(_) => SyncReach::Committed,
            Target::Durable => SyncReach::Durable,
        };
        let cut = SecondaryCut(self.0.follower.sync_group(&ids, reach)?);
        if let Target::Token(token) = to {
            self.check_history(token)?;
            if cut.as_of().is_none_or(|commit| commit.seq < token.seq) {
                return Err(after(token));
            }
        }
        Ok(cut)
    }

    /// Returns all partitions as of the last complete sync.
    ///
    /// # Examples
    /// ```
    /// use secondary::Target;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// secondary.sync(Target::Latest)?;
    /// let then = secondary.cut().partition(&users).expect("it existed then");
    /// assert!(then.get("alice")?.is_some());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn cut(&self) -> SecondaryCut {
        SecondaryCut(self.0.follower.cut())
    }

    /// Waits until every partition has the commit of `token`, for at most `time`.
    ///
    /// # Errors
    /// [`ErrorKind::Behind`] after `time`; otherwise the errors of [`Secondary::sync`].
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// // `commit` is what the put on the primary returned, sent to this process.
    /// secondary.wait_for(commit, Duration::from_secs(1))?;
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn wait_for(&self, token: Commit, time: Duration) -> Result<()> {
        let until = self.0.clock.now().saturating_add(time);
        loop {
            match self.sync(Target::Token(token)) {
                Err(error) if error.kind() == ErrorKind::Behind => self.pause(until, error)?,
                synced => return synced.map(drop),
            }
        }
    }

    /// Returns the durable commits after the token `from`, whole and in their order: first those that are in the log,
    /// then those that the primary makes. It is the feed of the primary's `Db::changes`, with the same tokens. What
    /// the log does not attest as durable yet is not shown: the last commit of a primary that rests comes after some
    /// milliseconds.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with [`Builder::tables_only`](crate::Builder::tables_only). If the log does not reach
    /// back to the position, `Changes::try_next` returns [`ErrorKind::TooOld`].
    ///
    /// # Cost
    /// Reads each byte of the log once, and the headers of its frames twice. A wait looks at the commit cursor a
    /// thousand times a second; without a cursor at the folder and the end of the log, two hundred times.
    ///
    /// # Examples
    /// ```
    /// use lsm_core::changes::FeedItem;
    /// use lsm_core::types::SeqNo;
    /// use lsm_core::options::Durability;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let users = primary.partition("users")?;
    /// # users.put_with("alice", "admin", Durability::Sync)?;
    /// # users.put_with("bob", "author", Durability::Sync)?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let mut changes = secondary.changes(SeqNo::ZERO)?;
    /// while let Some(changed) = changes.try_next()? {
    ///     let FeedItem::Commit(batch) = changed else { continue };
    ///     println!("{} changes through {}", batch.changes.len(), batch.seq);
    /// }
    /// assert!(changes.position().seq > SeqNo::ZERO);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn changes(&self, from: SeqNo) -> Result<Changes> {
        self.0.follower.changes(from)
    }

    /// Returns the commits after a stored position ([`Changes::position`]), as [`Secondary::changes`] does.
    ///
    /// # Errors
    /// Those of [`Secondary::changes`]; [`ErrorKind::SessionLost`] if the commit is not in the history of the database,
    /// as after a restore of an older backup.
    ///
    /// # Examples
    /// ```
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let stored = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let changes = secondary.changes_from(stored)?;
    /// assert_eq!(changes.position(), stored);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn changes_from(&self, position: Commit) -> Result<Changes> {
        self.0.follower.changes_from(position)
    }

    /// Reads every live file as the primary has it now, from its first byte to its last, and
    /// reports all damage. Only the committed part of the log and the manifest is verified.
    ///
    /// # Errors
    /// Those of the file system, if neither manifest nor tables can be read; a limit if the unflushed data takes
    /// more than 1 GiB. Damage of the log or the manifest is a finding, and no error.
    ///
    /// # Cost
    /// Reads the whole database; [`VerifyOptions::bytes_per_second`] limits the rate.
    ///
    /// # Examples
    /// ```
    /// use lsm_core::db::VerifyOptions;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// assert!(secondary.verify(VerifyOptions::default())?.is_sound());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn verify(&self, options: VerifyOptions<'_>) -> Result<VerifyReport> {
        self.0.follower.verify(options)
    }

    /// Opens the database for writing in the place of its primary, which is fenced if it lives:
    /// each later write of it is [`ErrorKind::Fenced`]. Every commit that it acknowledged is kept,
    /// except those to partitions without a log, and no write that it refuses is there.
    /// `docs/secondary.md` has the details.
    ///
    /// The secondary continues to follow. Its lease holds files of the new primary.
    ///
    /// This call returns a database of the engine. Applications call `Db::promote` of the crate `siltstone`, which
    /// returns one with the methods of that crate.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if another process opens the database or takes it over; call it again.
    /// [`ErrorKind::Unsupported`] if the primary lives and has no commit cursor on this machine, or if the folder is
    /// shipped to a bucket by another file system; then nothing was changed. Otherwise as [`Db::open`].
    ///
    /// # Cost
    /// That of an open: the unflushed data of the primary is read again, and written to tables.
    ///
    /// # Examples
    /// ```
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let db = secondary.promote()?;
    /// assert!(db.partition("users")?.get("alice")?.is_some());
    /// assert!(primary.is_fenced());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn promote(&self) -> Result<Db> {
        self.promotion().open()
    }

    /// Returns a builder for [`Secondary::promote`], for options and listeners. It has the file system, the
    /// clock and the hooks of the secondary.
    ///
    /// # Examples
    /// ```
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let db = secondary.promotion().cache_bytes(256 << 20).open()?;
    /// # drop(db);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn promotion(&self) -> lsm_core::Builder {
        self.0.follower.promotion()
    }

    /// Returns the memory of the memtables, in bytes. The next sync drops the memtables that the primary
    /// has flushed.
    ///
    /// # Examples
    /// ```
    /// use secondary::Target;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// secondary.sync(Target::Latest)?;
    /// println!("{} bytes of memtables", secondary.memtable_bytes());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn memtable_bytes(&self) -> u64 {
        self.0.follower.memtable_bytes()
    }

    /// Returns whether a primary on this machine publishes its commits, so that strong reads are possible
    /// while it writes.
    ///
    /// # Examples
    /// ```
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// assert!(secondary.has_live_primary());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn has_live_primary(&self) -> bool {
        self.0.follower.has_cursor()
    }
}
