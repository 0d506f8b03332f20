//! Durability on request: waits, notices and futures of a [`Db`].

use lsm_core::db::Durable;
use lsm_core::error::Result;
use lsm_core::types::SeqNo;

use super::Db;

/// Durability on request.
impl Db {
    /// Waits until every logged operation up to `seq` is on the device, and syncs the log if
    /// needed. It does not wait for those of partitions without a log, which are durable after a
    /// [`Partition::flush`](crate::Partition::flush).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `seq` was not written
    /// yet; the error of the sync, after which it is unknown whether the operations are durable.
    ///
    /// # Cost
    /// One sync, shared by all who wait; none if a sync has passed `seq` already.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let events = db.partition("events")?;
    /// let mut last = db.visible_seq();
    /// for n in 0..100u32 {
    ///     last = events.put(n.to_be_bytes(), "it happened")?.seq;
    /// }
    /// // One sync for all of them.
    /// db.wait_durable(last)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn wait_durable(&self, seq: SeqNo) -> Result<()> {
        self.0.wait_durable(seq)
    }

    /// Requests a sync of the log and calls `notice` when every logged operation up to `seq` is on the
    /// device, or when the sync has failed. Returns without waiting, so the program needs no waiting
    /// thread.
    ///
    /// `notice` is called exactly once. If the operations are durable already, it is called on this
    /// thread before this method returns; otherwise it is called on a thread of the database. There it
    /// must not block, because it would delay background work and other notices. A write that would
    /// have to wait fails inside `notice`, as in an [`EventListener`](crate::EventListener). Closing the
    /// database syncs the log first, and then calls the remaining notices.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `seq` was not written
    /// yet; [`ErrorKind::Closed`](crate::ErrorKind::Closed). In both cases `notice` is not called.
    /// `notice` receives the error of a failed sync; then it is unknown whether the operations are
    /// durable.
    ///
    /// # Cost
    /// One sync for all notices and waiters that arrived during the previous sync.
    ///
    /// # Examples
    /// ```
    /// use std::sync::mpsc;
    ///
    /// # use siltstone::Db;
    /// # fn main() -> siltstone::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary folder");
    /// # let db = Db::open(dir.path())?;
    /// let events = db.partition("events")?;
    /// let (acknowledge, acknowledged) = mpsc::channel();
    /// for n in 0..3_u32 {
    ///     let commit = events.put(n.to_be_bytes(), "it happened")?;
    ///     let acknowledge = acknowledge.clone();
    ///     db.on_durable(commit.seq, move |outcome| {
    ///         let _ = acknowledge.send((n, outcome));
    ///     })?;
    /// }
    /// drop(acknowledge);
    /// assert_eq!(acknowledged.iter().filter(|(_, outcome)| outcome.is_ok()).count(), 3);
    /// # db.close()
    /// # }
    /// ```
    pub fn on_durable(
        &self,
        seq: SeqNo,
        notice: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        self.0.on_durable(seq, notice)
    }

    /// Requests a sync of the log and returns a future that is ready when every logged operation up to
    /// `seq` is on the device, or when the sync has failed. It is [`Db::on_durable`] for async code and
    /// works with any runtime. Dropping the future does not cancel the sync.
    ///
    /// # Errors
    /// The future returns the errors of [`Db::on_durable`].
    ///
    /// # Examples
    /// ```
    /// # use siltstone::{Db, Result};
    /// # let db = Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// async fn record(db: &Db) -> Result<()> {
    ///     let commit = db.partition("events")?.put("now", "it happened")?;
    ///     db.durable(commit.seq).await
    /// }
    /// # // Without a runtime: once the log is synced, the future is ready at its first poll.
    /// # let mut recorded = std::pin::pin!(record(&db));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # while recorded.as_mut().poll(&mut context).is_pending() {
    /// #     db.wait_durable(db.visible_seq())?;
    /// # }
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn durable(&self, seq: SeqNo) -> Durable {
        self.0.durable(seq)
    }

    /// Returns the sequence number through which every logged operation is on the device. It also passes the numbers of
    /// operations in partitions without a log, which may not be.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let commit = db.partition("events")?.put("now", "it happened")?;
    /// db.wait_durable(commit.seq)?;
    /// assert!(db.durable_seq() >= commit.seq);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn durable_seq(&self) -> SeqNo {
        self.0.durable_seq()
    }

    /// Returns whether another process has taken the database over, by a promotion or an explicit
    /// take-over: then no write of this handle succeeds any more
    /// ([`ErrorKind::Fenced`](crate::ErrorKind::Fenced)). `false` does not promise that the next
    /// write succeeds.
    ///
    /// # Cost
    /// One load from memory.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = Db::builder("/db").fs(fs.clone()).open()?;
    /// # db.partition("users")?;
    /// let other = Db::builder("/db").fs(fs).take_over(true).open()?;
    /// assert!(db.is_fenced() && !other.is_fenced());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn is_fenced(&self) -> bool {
        self.0.is_fenced()
    }
}
