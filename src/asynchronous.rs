//! [`Async`]: a handle whose calls run on threads that may block.

mod changes;
mod partition;
mod rows;
mod secondary;

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lsm_core::db::Commit;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::options::WriteOptions;
use lsm_core::read::KeyRange;
use lsm_core::types::{Process, SeqNo, Slice};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, sleep};

use crate::batch::Batch;
use crate::builder::Builder;
use crate::db::{Db, TransactOptions};
use crate::options::PartitionOptions;
use crate::partition::Partition;
use crate::readable::Readable;
use crate::transaction::Transaction;

pub use changes::ChangeStream;
pub use rows::Rows;

/// The pause between two looks for a commit: the smallest step of tokio's timer.
const PAUSE: Duration = Duration::from_millis(1);

/// A handle for async code: each call runs on a thread of tokio that may block, and its future is
/// ready when the call has returned. Made from a handle with [`Async::from`], or opened.
///
/// The methods are those of the handle and behave as they do there. [`Async::call`] runs any other
/// call, or several at once. Calls that wait for a commit of the primary
/// ([`wait_for`](Async::<Secondary>::wait_for), [`wait_for_news`](Async::<SecondaryPartition>::wait_for_news),
/// [`read`](Async::<SecondaryPartition>::read)) occupy no thread while they wait.
///
/// All methods must be called within a tokio runtime whose timer is enabled; outside they panic.
///
/// Dropping a future does not stop a call that has begun: a write may still happen. A call that only
/// waits ends. The last handle of a database or secondary stops threads when it is dropped, which may
/// take a while: [`Async::release`] does that on another thread.
///
/// # Cost
/// Two changes of threads a call, tens of microseconds on a busy machine. A loop over many keys
/// belongs into one [`Async::call`].
///
/// # Examples
/// ```
/// use siltstone::asynchronous::Async;
/// use siltstone::{Db, Durability, Result};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary folder");
/// let db = Async::<Db>::open(dir.path()).await?;
/// let users = db.partition("users").await?;
/// users.put("alice", "admin").await?;
/// users.put("bob", "author").await?;
///
/// let mut rows = users.rows("b"..);
/// while let Some((name, role)) = rows.next().await? {
///     println!("{name:?} is {role:?}");
/// }
///
/// // Any work, as one unit.
/// let count = users.call(|users| users.keys().try_fold(0, |n, key| key.map(|_| n + 1))).await?;
/// assert_eq!(count, 2);
/// # drop((users, rows));
/// db.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Async<T> {
    handle: T,
    /// The process that has the threads for blocking calls. In its children no call would ever
    /// begin.
    process: Process,
}

impl<T> From<T> for Async<T> {
    fn from(handle: T) -> Async<T> {
        Async { handle, process: Process::current() }
    }
}

/// The outcome of work on another thread.
///
/// # Errors
/// Those of the work; [`ErrorKind::Closed`] if the runtime is shut down before the work begins.
fn outcome<R, E: From<Error>>(joined: Result<Result<R, E>, JoinError>) -> Result<R, E> {
    match joined.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        // A panic of the work continues in the task that waits, as it would without the other
        // thread. Returned as an error, it would look like one of the database.
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(_)) => Err(Error::new(ErrorKind::Closed, "the tokio runtime was shut down").into()),
    }
}

/// Runs `work` on a thread that may block, unless the handle is that of a parent process.
async fn run<R: Send + 'static, E: From<Error> + Send + 'static>(
    process: Process,
    work: impl FnOnce() -> Result<R, E> + Send + 'static,
) -> Result<R, E> {
    process.check()?;
    outcome(spawn_blocking(work).await)
}

/// The end of a wait; `None` if that is too far away for an `Instant`.
fn end_of(time: Duration) -> Option<Instant> {
    Instant::now().checked_add(time)
}

/// Pauses before another attempt; `false` if it is later than `until`.
async fn pause(until: Option<Instant>) -> bool {
    if until.is_some_and(|until| Instant::now() >= until) {
        return false;
    }
    sleep(PAUSE).await;
    true
}

impl<T: Clone + Send + Sync + 'static> Async<T> {
    /// Returns the handle, for calls that neither block nor read files.
    pub fn blocking(&self) -> &T {
        &self.handle
    }

    /// Runs `work` with the handle on a thread that may block. Its error may have any type that an [`Error`]
    /// converts to.
    ///
    /// # Errors
    /// Those of `work`; [`ErrorKind::Closed`] if the runtime is shut down before `work` begins. A
    /// panic of `work` continues in the caller.
    ///
    /// # Examples
    /// ```
    /// use siltstone::asynchronous::Async;
    /// use siltstone::{Db, Partition};
    ///
    /// type Failure = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// async fn age_of(users: &Async<Partition>, name: &'static str) -> Result<u8, Failure> {
    ///     users
    ///         .call(move |users| {
    ///             let age = users.get(name)?.ok_or("there is no such user")?;
    ///             Ok(std::str::from_utf8(&age)?.parse()?)
    ///         })
    ///         .await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Failure> {
    /// # let dir = tempfile::tempdir()?;
    /// let db = Async::<Db>::open(dir.path()).await?;
    /// let users = db.partition("users").await?;
    /// users.put("alice", "37").await?;
    /// assert_eq!(age_of(&users, "alice").await?, 37);
    /// assert!(age_of(&users, "bob").await.is_err());
    /// # drop(users);
    /// # Ok(db.close().await?)
    /// # }
    /// ```
    pub async fn call<R: Send + 'static, E: From<Error> + Send + 'static>(
        &self,
        work: impl FnOnce(&T) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E> {
        // The thread may outlive this future, and with it everything that the caller has only lent.
        let handle = self.handle.clone();
        run(self.process, move || work(&handle)).await
    }

    /// Drops the handle on a thread that may block. Dropping the last one of a secondary stops its
    /// thread and gives its lease back.
    pub async fn release(self) {
        let dropped = run(self.process, move || {
            drop(self);
            Ok::<(), Error>(())
        });
        // A runtime that is shut down drops it all the same.
        let _ = dropped.await;
    }
}

impl Async<Db> {
    /// As [`Db::open`].
    ///
    /// # Errors
    /// As there.
    pub async fn open(path: impl AsRef<Path>) -> Result<Async<Db>> {
        Self::open_with(Db::builder(path)).await
    }

    /// As [`Builder::open`].
    ///
    /// # Errors
    /// As there.
    pub async fn open_with(builder: Builder) -> Result<Async<Db>> {
        run(Process::current(), move || builder.open()).await.map(Async::from)
    }

    /// As [`Db::partition`].
    ///
    /// # Errors
    /// As there.
    pub async fn partition(&self, name: &str) -> Result<Async<Partition>> {
        let name = name.to_owned();
        self.call(move |db| db.partition(&name)).await.map(Async::from)
    }

    /// As [`Db::open_partition`].
    ///
    /// # Errors
    /// As there.
    pub async fn open_partition(&self, name: &str) -> Result<Async<Partition>> {
        let name = name.to_owned();
        self.call(move |db| db.open_partition(&name)).await.map(Async::from)
    }

    /// As [`Db::partition_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn partition_with(
        &self,
        name: &str,
        options: PartitionOptions,
    ) -> Result<Async<Partition>> {
        let name = name.to_owned();
        self.call(move |db| db.partition_with(&name, options)).await.map(Async::from)
    }

    /// As [`Batch::commit`], of a batch of this database.
    ///
    /// # Errors
    /// As there.
    pub async fn commit(&self, batch: Batch, options: impl Into<WriteOptions>) -> Result<Commit> {
        let options = options.into();
        // Not by `call`: a batch already has its database.
        run(self.process, move || batch.commit(options)).await
    }

    /// As [`Db::transact`]. `work` runs on another thread, and again after conflicts.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```
    /// use siltstone::asynchronous::Async;
    /// use siltstone::{Db, Error, Result};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary folder");
    /// let db = Async::<Db>::open(dir.path()).await?;
    /// let users = db.partition("users").await?.blocking().clone();
    /// let is_new = db
    ///     .transact(move |transaction| {
    ///         let is_new = !transaction.contains(&users, "alice")?;
    ///         transaction.put(&users, "alice", "admin");
    ///         Ok::<_, Error>(is_new)
    ///     })
    ///     .await?;
    /// assert!(is_new);
    /// # db.close().await
    /// # }
    /// ```
    pub async fn transact<R: Send + 'static, E: From<Error> + Send + 'static>(
        &self,
        work: impl FnMut(&mut Transaction) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E> {
        self.call(move |db| db.transact(work)).await
    }

    /// As [`Db::transact_with`]. `work` runs on another thread, and again after conflicts.
    ///
    /// # Errors
    /// As there.
    pub async fn transact_with<R: Send + 'static, E: From<Error> + Send + 'static>(
        &self,
        options: impl Into<TransactOptions>,
        work: impl FnMut(&mut Transaction) -> Result<R, E> + Send + 'static,
    ) -> Result<(R, Commit), E> {
        let options = options.into();
        self.call(move |db| db.transact_with(options, work)).await
    }

    /// As [`Db::changes`]. Nothing is read before the first [`ChangeStream::next`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```
    /// use siltstone::asynchronous::{Async, ChangeStream};
    /// use siltstone::changes::FeedItem;
    /// use siltstone::{Db, Durability, Result, SeqNo};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary folder");
    /// let db = Async::<Db>::open(dir.path()).await?;
    /// let batch = db.blocking().batch().put(db.partition("users").await?.blocking(), "alice", "admin");
    /// db.commit(batch, Durability::Sync).await?;
    /// // With a filter: a stream of a feed.
    /// let feed = db.blocking().changes(SeqNo::ZERO)?.in_partition("users");
    /// let mut changes = ChangeStream::from(feed);
    /// let FeedItem::Commit(batch) = changes.next().await? else { unreachable!("all is in the log") };
    /// assert_eq!((batch.changes.len(), changes.position().seq), (1, batch.seq));
    /// # drop(changes);
    /// # db.close().await
    /// # }
    /// ```
    pub fn changes(&self, from: SeqNo) -> Result<ChangeStream> {
        self.handle.changes(from).map(ChangeStream::from)
    }

    /// As [`Db::flush`].
    ///
    /// # Errors
    /// As there.
    pub async fn flush(&self) -> Result<()> {
        self.call(Db::flush).await
    }

    /// As [`Db::checkpoint`].
    ///
    /// # Errors
    /// As there.
    pub async fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<SeqNo> {
        let dir: PathBuf = dir.as_ref().to_owned();
        self.call(move |db| db.checkpoint(dir)).await
    }

    /// As [`Db::close`].
    ///
    /// # Errors
    /// As there.
    pub async fn close(self) -> Result<()> {
        run(self.process, move || self.handle.close()).await
    }
}

impl<T> Async<T>
where
    T: Readable<Range: Send + 'static> + Clone + Send + Sync + 'static,
{
    /// As [`Readable::get`].
    ///
    /// # Errors
    /// As there.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        let key = Slice::from(key.as_ref());
        self.call(move |handle| handle.get(key)).await
    }

    /// As [`Readable::multi_get`].
    ///
    /// # Errors
    /// As there.
    pub async fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        let keys: Vec<_> = keys.iter().map(|key| Slice::from(key.as_ref())).collect();
        self.call(move |handle| handle.multi_get(&keys)).await
    }

    /// As [`Readable::contains`].
    ///
    /// # Errors
    /// As there.
    pub async fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = Slice::from(key.as_ref());
        self.call(move |handle| handle.contains(key)).await
    }

    /// As [`Readable::range`]: the rows at the moment of this call. Nothing is read before the first
    /// [`Rows::next`].
    pub fn rows(&self, range: impl KeyRange) -> Rows<T::Range> {
        Rows::new(self.handle.range(range))
    }
}
