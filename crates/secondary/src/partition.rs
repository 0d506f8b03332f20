//! [`SecondaryPartition`]: a handle to a partition that catches up to the requested level.

use std::time::Duration;

use lsm_core::db::Commit;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::follow::FollowedPartition;
use lsm_core::types::{SeqNo, Slice};

use crate::background::Follow;
use crate::lag::Lag;
use crate::level::{Level, OnUnmet, ReadOptions, Target};
use crate::reading::Reading;
use crate::secondary::Secondary;

/// Maximum number of retries of a read whose files were deleted.
const ATTEMPTS: usize = 4;

/// A handle to a partition of a secondary. Cheap to clone.
#[derive(Clone)]
pub struct SecondaryPartition {
    pub(crate) secondary: Secondary,
    pub(crate) followed: FollowedPartition,
}

impl SecondaryPartition {
    /// Returns the name.
    ///
    /// # Examples
    /// ```
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// assert_eq!(users.name(), "users");
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        self.followed.name()
    }

    /// Catches up with the primary, for this partition only.
    ///
    /// # Errors
    /// The errors of the file system; corruption, which leaves the partition unchanged;
    /// [`ErrorKind::Behind`] if the commit of a token does not exist yet; [`ErrorKind::SessionLost`] if it
    /// never will.
    ///
    /// # Cost
    /// The new edits of the manifest, the headers of the new frames of the log, and the partition's own
    /// sections. Nothing is read twice.
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
    /// users.sync(Target::Latest)?;
    /// assert!(users.at(Level::Eventual)?.get("alice")?.is_some());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn sync(&self, to: Target) -> Result<Commit> {
        self.secondary.sync_partition(&self.followed, to)
    }

    /// Returns a view of the partition at `level`. Waits for up to a second.
    ///
    /// # Errors
    /// The errors of [`SecondaryPartition::read`].
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
    /// let now = users.at(Level::Strong)?; // every acknowledged commit
    /// let mine = users.at(Level::Session(commit))?; // at least this commit
    /// assert!(now.get("alice")?.is_some() && mine.get("alice")?.is_some());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn at(&self, level: Level) -> Result<Reading> {
        self.read(&ReadOptions::new(level))
    }

    /// Returns a view of the partition with the given options.
    ///
    /// # Errors
    /// The errors of the [`Level`]; [`ErrorKind::Behind`] after the maximum wait, unless the options
    /// accept a weaker level; a dropped partition; the errors of the file system; corruption.
    ///
    /// # Cost
    /// See [`Level`].
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use secondary::{Level, OnUnmet, ReadOptions};
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let options = ReadOptions::new(Level::Strong).wait(Duration::from_millis(10)).on_unmet(OnUnmet::Weaker);
    /// let reading = users.read(&options)?;
    /// println!("served at {:?}", reading.served());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn read(&self, options: &ReadOptions) -> Result<Reading> {
        // The state is taken after this call. It may be newer than requested, because another
        // thread may sync in between, and never older.
        let unmet = match self.secondary.catch_up(&self.followed, options) {
            Ok(()) if options.level == Level::Prefix => match self.secondary.view_in_cut(self)? {
                Some(view) => return Ok(Reading::new(view, options.level)),
                None => {
                    let message = "the partition was created after the last sync of all partitions; call \
                               sync()";
                    Error::new(ErrorKind::PartitionNotFound, message)
                }
            },
            Ok(()) => return Ok(Reading::new(self.followed.view()?, options.level)),
            Err(unmet) => unmet,
        };
        // Only if the state is older than requested. A weaker level would hide damage, or a dropped
        // partition.
        let is_unmet = matches!(
            unmet.kind(),
            ErrorKind::Behind
                | ErrorKind::Unsupported
                | ErrorKind::NotLogged
                | ErrorKind::LimitExceeded
        );
        if is_unmet && options.on_unmet == OnUnmet::Weaker {
            // Not from the cut, not even for a prefix: the partition by itself is at least as new.
            return Ok(Reading::new(self.followed.view()?, Level::Eventual));
        }
        Err(unmet)
    }

    /// Returns the value of `key` as of the last sync ([`Level::Eventual`]).
    ///
    /// # Errors
    /// Corruption; a dropped partition; [`ErrorKind::LeaseLost`] if its files are deleted repeatedly.
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
    /// users.sync(Target::Latest)?;
    /// assert_eq!(users.get("alice")?.as_deref(), Some(&b"admin"[..]));
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.get_with(key, &ReadOptions::new(Level::Eventual))
    }

    /// Returns the value of `key` at the level of `options`.
    ///
    /// # Errors
    /// As [`SecondaryPartition::read`] and [`SecondaryPartition::get`].
    ///
    /// # Examples
    /// ```
    /// use secondary::{Level, ReadOptions};
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let options = ReadOptions::new(Level::Strong);
    /// assert_eq!(users.get_with("alice", &options)?.as_deref(), Some(&b"admin"[..]));
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<Slice>> {
        let key = key.as_ref();
        self.read_again(options, |reading| reading.get(key))
    }

    /// Returns the values of `keys` at the level of `options`, all at one moment, in their order.
    ///
    /// # Errors
    /// As [`SecondaryPartition::read`] and [`SecondaryPartition::get`].
    ///
    /// # Examples
    /// ```
    /// use secondary::{Level, ReadOptions};
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let options = ReadOptions::new(Level::Strong);
    /// let roles = users.multi_get(&["bob", "alice"], &options)?;
    /// assert!(roles[0].is_none() && roles[1].as_deref() == Some(&b"admin"[..]));
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        options: &ReadOptions,
    ) -> Result<Vec<Option<Slice>>> {
        self.read_again(options, |reading| reading.multi_get(keys))
    }

    /// Calls `read` with a view of the partition with the given options, and again with a newer one if
    /// it fails because the files of the view were deleted: for reads that need no particular state.
    ///
    /// # Errors
    /// As [`SecondaryPartition::read`]; those of `read`; [`ErrorKind::LeaseLost`] if the files are deleted
    /// repeatedly.
    ///
    /// # Examples
    /// ```
    /// use secondary::{Level, ReadOptions};
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let options = ReadOptions::new(Level::Strong);
    /// let count = users.read_again(&options, |reading| Ok(reading.iter().count()))?;
    /// assert_eq!(count, 1);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn read_again<T>(
        &self,
        options: &ReadOptions,
        mut read: impl FnMut(&Reading) -> Result<T>,
    ) -> Result<T> {
        // Bounded, because each attempt reads the manifest. With a primary that compacts without a
        // pause, the call would hang and load the device.
        for _ in 0..ATTEMPTS {
            match read(&self.read(options)?) {
                // Without a lease files may be deleted. A newer state does not need them.
                Err(error) if is_gone(&error) => {
                    self.secondary.look_again(&self.followed, options.level)?;
                }
                found => return found,
            }
        }
        let message =
            "the primary repeatedly deleted the files of the partition while they were read";
        Err(Error::new(ErrorKind::LeaseLost, message))
    }

    /// Makes the partition catch up by itself in this way from now on, until the last handle of the
    /// secondary is dropped or another way is chosen. Reads at [`Level::Eventual`] then see new
    /// commits.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if a thread cannot be started.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use secondary::Follow;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// users.follow(Follow::Every(Duration::from_millis(100)))?;
    /// assert_eq!(users.followed(), Follow::Every(Duration::from_millis(100)));
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn follow(&self, follow: Follow) -> Result<()> {
        self.secondary.follow(&self.followed, follow)
    }

    /// Returns the way in which the partition catches up.
    pub fn followed(&self) -> Follow {
        self.secondary.thread().follow_of(self.followed.id())
    }

    /// Returns the error of the last attempt of [`follow`](Self::follow), if it failed. It is
    /// repeated.
    ///
    /// # Examples
    /// ```
    /// use secondary::Follow;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// users.follow(Follow::Eager)?;
    /// if let Some(error) = users.follow_failure() {
    ///     println!("tried again: {error}");
    /// }
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn follow_failure(&self) -> Option<Error> {
        self.secondary.thread().failure_of(self.followed.id())
    }

    /// Waits until something is committed to the partition after `seen`, catches up with it, and
    /// returns the place that was reached; `None` when `time` is over. Begin with
    /// [`Reading::as_of`], and continue with the returned value.
    ///
    /// # Errors
    /// As [`SecondaryPartition::sync`].
    ///
    /// # Cost
    /// Looks at the commit cursor some ten thousand times a second; without one, reads the end of
    /// the log two hundred times a second. A flush may look like news once.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use secondary::Level;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let seen = users.at(Level::Strong)?.as_of();
    /// # primary.partition("users")?.put("bob", "author")?;
    /// if let Some(reached) = users.wait_for_news(seen, Duration::from_secs(1))? {
    ///     assert!(reached.seq > seen.seq);
    /// }
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn wait_for_news(&self, seen: Commit, time: Duration) -> Result<Option<Commit>> {
        self.secondary.wait_for_news(&self.followed, seen, time)
    }

    /// The number of the commit up to which every operation of the partition is visible.
    pub(crate) fn complete_seq(&self) -> SeqNo {
        self.followed.complete().seq
    }

    /// Returns whether a read at [`Level::Session`] with this token needs no catch-up.
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
    /// users.sync(Target::Token(commit))?;
    /// assert!(users.has(commit));
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    #[must_use]
    pub fn has(&self, token: Commit) -> bool {
        let complete = self.followed.complete();
        // Numbers of two epochs cannot be compared: a later epoch may reuse those of lost commits.
        complete.epoch == token.epoch && complete.seq >= token.seq
    }

    /// Returns the distance of the partition from its primary.
    ///
    /// # Examples
    /// ```
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// let lag = users.lag();
    /// println!("{:?} operations behind", lag.operations);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn lag(&self) -> Lag {
        self.secondary.lag(&self.followed)
    }
}

fn is_gone(error: &Error) -> bool {
    // Deleted files of the engine and of large values have their own kinds of error. A value store
    // of the application may return the error of the file system.
    matches!(error.kind(), ErrorKind::FileGone | ErrorKind::LeaseLost) || error.is_missing()
}
