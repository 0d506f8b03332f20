//! [`ChangeStream`]: the commits of a database, each looked for by one call on a thread that may block.

use std::time::Duration;

use lsm_core::changes::{Changes, FeedItem};
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::types::{Commit, Process};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

#[cfg(doc)]
use super::Async;
use super::outcome;

/// The pause between two looks where no notice comes.
const PAUSE: Duration = Duration::from_millis(5);

/// The time for a notice: none comes when a database is taken over or a partition is dropped.
const NOTICE_WAIT: Duration = Duration::from_secs(1);

/// The commits of a database for async code: [`Async::changes`]. Made of [`Changes`] with a filter by
/// [`ChangeStream::from`].
///
/// On the primary a stream that waits is woken by the sync of the log. On a secondary it looks, up to two hundred
/// times a second. A wait occupies no thread. A stream is a handle: the last one of a database or secondary stops threads
/// when it is dropped.
///
/// # Cost
/// Two changes of threads for each item. To catch up with many commits, read [`Changes`] inside one [`Async::call`].
pub struct ChangeStream {
    feed: AsyncFeed,
    position: Commit,
    /// Comes when there may be more.
    notice: Option<oneshot::Receiver<()>>,
    process: Process,
}

/// A feed, and the item that it found.
type Looked = (Box<Changes>, Result<Option<FeedItem>>);

enum AsyncFeed {
    Resting(Box<Changes>),
    /// A thread is looking. Kept here, so that no commit is lost if the future is dropped.
    Looking(JoinHandle<Result<Looked>>),
    /// The runtime was shut down, or a look panicked.
    Over,
}

impl From<Changes> for ChangeStream {
    fn from(changes: Changes) -> ChangeStream {
        let position = changes.position();
        let feed = AsyncFeed::Resting(Box::new(changes));
        ChangeStream { feed, position, notice: None, process: Process::current() }
    }
}

impl ChangeStream {
    /// Returns the position after what was returned or passed over so far: see [`Changes::position`].
    pub fn position(&self) -> Commit {
        self.position
    }

    /// Returns what comes next, and waits for it. A future that is dropped loses nothing.
    ///
    /// # Errors
    /// As [`Changes::try_next`].
    pub async fn next(&mut self) -> Result<FeedItem> {
        loop {
            if let Some(item) = self.look().await? {
                return Ok(item);
            }
            self.rest().await;
        }
    }

    async fn look(&mut self) -> Result<Option<FeedItem>> {
        // In a child the thread that looks does not exist.
        self.process.check()?;
        self.feed = match std::mem::replace(&mut self.feed, AsyncFeed::Over) {
            AsyncFeed::Resting(mut changes) => AsyncFeed::Looking(spawn_blocking(move || {
                let found = changes.try_next();
                Ok((changes, found))
            })),
            feed => feed,
        };
        let AsyncFeed::Looking(looking) = &mut self.feed else {
            return Err(Error::new(ErrorKind::Closed, "the stream of changes has ended"));
        };
        let looked = looking.await;
        self.feed = AsyncFeed::Over;
        let (changes, found) = outcome(looked)?;
        self.position = changes.position();
        self.feed = AsyncFeed::Resting(changes);
        found
    }

    /// Waits until a look may find more.
    async fn rest(&mut self) {
        let AsyncFeed::Resting(changes) = &self.feed else { return };
        if self.notice.is_none() {
            let (sender, notice) = oneshot::channel();
            let notice_is_possible = changes.notify(move || {
                // The stream may be gone.
                let _ = sender.send(());
            });
            if !notice_is_possible {
                return sleep(PAUSE).await;
            }
            self.notice = Some(notice);
        }
        // The same one as long as it has not come, or a feed that rests would leave one a second.
        if let Some(notice) = &mut self.notice
            && timeout(NOTICE_WAIT, notice).await.is_ok()
        {
            self.notice = None;
        }
    }
}
