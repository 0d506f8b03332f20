//! [`Changes`]: the commits of a database in their order, read from its log.
//!
//! The primary (`db/changes.rs`) and followers (`follow/changes.rs`) say how far the log may be shown, as a
//! `ChangeSource`; everything else is here, once for all of them. Nothing here writes, and no writer knows of it
//! (design note 41).
//!
//! ```text
//! mod.rs         the feed: what it yields, and its filter
//!   log.rs         the log from a token on, over segments and epochs
//!   beginning.rs   the segment that a token lies in, or that it is too old
//!   operations.rs  sections to changes of keys
//! ```
//!
//! Invariants:
//! 1. Only durable commits are yielded, so no crash takes back what was yielded.
//! 2. Each commit is yielded once, whole and in order. A number that the log lacks is yielded as
//!    [`FeedItem::Unlogged`], and a missing segment is [`ErrorKind::TooOld`]: no gap is silent.
//! 3. The token moves with what was yielded or passed over, never before it.

mod beginning;
mod log;
mod operations;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Commit, Epoch, PartitionId, SeqNo, Slice};
use crate::version::DbVersion;
use crate::wal::Lsn;

pub(crate) use beginning::listed_segments;
pub(crate) use log::ChangeLog;
pub(crate) use operations::LoggedStore;
pub use operations::LoggedValue;

/// Looks at a log whose segments are removed meanwhile.
const LOOKS: usize = 16;

/// A partition, as a change names it. A partition that was dropped and made again has another id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedPartition {
    /// Its number, which no other partition ever gets.
    pub id: PartitionId,
    /// Its name.
    pub name: Arc<str>,
}

/// One operation of a commit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum KeyChange {
    /// The key has this value.
    Put {
        /// The key.
        key: Slice,
        /// The value.
        value: Slice,
    },
    /// The key has a value that lies in a chunk file.
    PutLarge {
        /// The key.
        key: Slice,
        /// The value, which is read on demand.
        value: LoggedValue,
    },
    /// An operand is merged into the value of the key, by the merge operator of the partition.
    Merge {
        /// The key.
        key: Slice,
        /// The operand.
        operand: Slice,
    },
    /// The key is deleted.
    Delete {
        /// The key.
        key: Slice,
    },
    /// All keys from `start` on and before `end` are deleted.
    DeleteRange {
        /// The first key.
        start: Slice,
        /// The first key after the range; `None`: it has no end.
        end: Option<Slice>,
    },
    /// All keys of the partition are deleted.
    Clear,
    /// The value of the key is known to be damaged: reads of it are errors.
    Damaged {
        /// The key.
        key: Slice,
    },
}

impl KeyChange {
    /// Returns `true` if the change may be of a key that begins with `prefix`.
    fn touches(&self, prefix: &[u8]) -> bool {
        match self {
            KeyChange::Put { key, .. }
            | KeyChange::PutLarge { key, .. }
            | KeyChange::Merge { key, .. }
            | KeyChange::Delete { key }
            | KeyChange::Damaged { key } => key.starts_with(prefix),
            KeyChange::DeleteRange { start, end } => {
                let begins_before = **start <= *prefix || start.starts_with(prefix);
                begins_before && end.as_ref().is_none_or(|end| **end > *prefix)
            }
            KeyChange::Clear => true,
        }
    }
}

/// The operations of one commit, a whole batch or transaction.
#[derive(Clone, Debug)]
pub struct CommittedBatch {
    /// The sequence number of its first operation.
    pub first_seq: SeqNo,
    /// That of its last operation.
    pub seq: SeqNo,
    /// Its operations, those of one partition after the other and in order, as far as the feed is not filtered. Those
    /// of partitions that are dropped by now are left out.
    pub changes: Vec<(ChangedPartition, KeyChange)>,
}

/// The next thing that a feed has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FeedItem {
    /// A commit.
    Commit(CommittedBatch),
    /// These sequence numbers were used and are not in the log: of an ingest or a bulk load, of writes to a partition
    /// without a log, of a restored entry, of writes that failed or that a power cut took. Read a snapshot to see what
    /// they changed, if the database is used in such a way.
    Unlogged {
        /// The first of them.
        first_seq: SeqNo,
        /// The last of them.
        seq: SeqNo,
    },
    /// A partition that this feed knew is dropped. This is no commit and has no place among them: it comes when
    /// the feed finds it.
    Dropped(ChangedPartition),
}

/// The part of the changes that a feed yields.
#[derive(Default)]
pub(crate) struct ChangeFilter {
    partition: Option<Arc<str>>,
    prefix: Vec<u8>,
}

impl ChangeFilter {
    fn takes_partition(&self, name: &str) -> bool {
        self.partition.as_ref().is_none_or(|only| **only == *name)
    }
}

/// The part of a database that may be shown.
#[derive(Clone)]
pub(crate) struct Shown {
    /// Loaded after `reach`: it lists every segment that has a frame before that.
    pub(crate) version: Arc<DbVersion>,
    /// Every frame before this place is durable and visible.
    pub(crate) reach: Lsn,
    /// The state that a wait compares with: see [`ChangeSource::wait`].
    pub(crate) mark: u64,
}

/// The side that knows how far a log may be shown.
pub(crate) trait ChangeSource: Send {
    /// Looks how far commits may be shown now. `log` is the place where the feed is.
    ///
    /// # Errors
    /// A closed or fenced database; those of reading.
    fn look(&mut self, log: &mut ChangeLog) -> Result<Shown>;

    /// Waits until a look may find more than `mark`, for at most `time`. May return early.
    ///
    /// # Errors
    /// A closed database.
    fn wait(&self, mark: u64, time: Duration) -> Result<()>;

    /// The value store of a partition.
    fn store(&self, id: PartitionId) -> LoggedStore;

    /// The clock of waits.
    fn clock(&self) -> &Arc<dyn Clock>;

    /// Has `notice` called when a look may find more than `mark`; `false`: it looks from time to time instead.
    fn notify(&self, mark: u64, notice: Box<dyn FnOnce() + Send>) -> bool;
}

/// The commits of a database after a position, in their order.
///
/// A commit appears when it is durable: one of [`Durability::Os`](crate::options::Durability::Os) after the next sync
/// of the log.
pub struct Changes {
    source: Box<dyn ChangeSource>,
    log: ChangeLog,
    /// Of the last look.
    epoch: Epoch,
    shown: Option<Shown>,
    /// The partitions of the last look.
    known: BTreeMap<PartitionId, Arc<str>>,
    dropped: VecDeque<ChangedPartition>,
    filter: ChangeFilter,
    /// The last step found nothing: another one needs a look.
    is_at_end: bool,
}

impl Changes {
    /// A feed of `log`, whose database has this epoch.
    pub(crate) fn new(source: Box<dyn ChangeSource>, log: ChangeLog, epoch: Epoch) -> Changes {
        Changes {
            source,
            log,
            epoch,
            shown: None,
            known: BTreeMap::new(),
            dropped: VecDeque::new(),
            filter: ChangeFilter::default(),
            is_at_end: false,
        }
    }

    /// Yields only the changes of the partition `name`, also if it is dropped and made again.
    #[must_use]
    pub fn in_partition(mut self, name: &str) -> Changes {
        self.filter.partition = Some(name.into());
        self
    }

    /// Yields only changes that concern keys which begin with `prefix`: a deleted range comes whole if it has
    /// such keys, and a clear always.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl AsRef<[u8]>) -> Changes {
        self.filter.prefix = prefix.as_ref().to_vec();
        self
    }

    /// Returns the position after what was yielded or passed over so far, as a commit: a feed from it goes on here. A
    /// power cut takes nothing through it, so at first it may be smaller than the one that this feed began with.
    pub fn position(&self) -> Commit {
        Commit { seq: self.log.token(), epoch: self.epoch }
    }

    /// Returns the partitions as of the last look, by their ids.
    pub fn partitions(&self) -> impl Iterator<Item = ChangedPartition> {
        self.known.iter().map(|(id, name)| ChangedPartition { id: *id, name: name.clone() })
    }

    /// Returns what comes next, if it is there; does not wait. After an error, another call tries again from the
    /// same place.
    ///
    /// # Errors
    /// [`ErrorKind::TooOld`] if the log does not reach back to the position any more; [`ErrorKind::Closed`];
    /// [`ErrorKind::Fenced`] on a primary that was taken over; corruption of the log; those of reading.
    pub fn try_next(&mut self) -> Result<Option<FeedItem>> {
        let mut looks = 0;
        loop {
            if let Some(partition) = self.dropped.pop_front() {
                return Ok(Some(FeedItem::Dropped(partition)));
            }
            let looks_first = self.shown.is_none() || self.is_at_end;
            let looked = if looks_first { self.look() } else { Ok(()) };
            if looked.is_ok() && !self.dropped.is_empty() {
                continue;
            }
            match looked.and_then(|()| self.step()) {
                Ok(Some(changed)) if !is_empty(&changed) => return Ok(Some(changed)),
                Ok(Some(_)) => looks = 0,
                Ok(None) => {
                    self.is_at_end = true;
                    // The look may be older than the log of an epoch that this call has entered.
                    if looks_first {
                        return Ok(None);
                    }
                }
                // A segment was removed after the look: another look lists what is there now.
                Err(error) if looks < LOOKS && is_outdated(&error) => {
                    looks += 1;
                    self.shown = None;
                }
                Err(error) => {
                    self.shown = None;
                    return Err(error);
                }
            }
        }
    }

    /// As [`Changes::try_next`], and waits for at most `time`.
    ///
    /// # Errors
    /// As [`Changes::try_next`].
    pub fn wait_next(&mut self, time: Duration) -> Result<Option<FeedItem>> {
        let clock = self.source.clock().clone();
        let until = clock.now().saturating_add(time);
        loop {
            if let Some(changed) = self.try_next()? {
                return Ok(Some(changed));
            }
            let left = until.saturating_sub(clock.now());
            if left.is_zero() {
                return Ok(None);
            }
            let mark = self.shown.as_ref().map_or(0, |shown| shown.mark);
            self.source.wait(mark, left)?;
        }
    }

    /// Has `notice` called, once, when there may be something after the last [`Changes::try_next`], or when the
    /// database is closed. Returns `false` if nothing can call it: then look from time to time.
    pub fn notify(&self, notice: impl FnOnce() + Send + 'static) -> bool {
        let mark = self.shown.as_ref().map_or(0, |shown| shown.mark);
        self.source.notify(mark, Box::new(notice))
    }

    fn step(&mut self) -> Result<Option<FeedItem>> {
        let Changes { source, log, filter, shown, .. } = self;
        let shown = shown.as_ref().expect("looked at before");
        log.next(shown, &|batch| {
            operations::decode(batch, &shown.version, filter, &|id| source.store(id))
        })
    }

    fn look(&mut self) -> Result<()> {
        let mut shown = self.source.look(&mut self.log)?;
        shown.version = match &self.shown {
            Some(before) if before.version.edit_number == shown.version.edit_number => {
                before.version.clone()
            }
            // A feed that rests holds no table that a compaction has replaced.
            _ => Arc::new(shown.version.without_tables()),
        };
        let partitions = &shown.version.partitions;
        self.known.retain(|id, name| {
            let stays = partitions.contains_key(*id);
            let is_followed = self.filter.takes_partition(name);
            if !stays && is_followed {
                self.dropped.push_back(ChangedPartition { id: *id, name: name.clone() });
            }
            stays
        });
        for partition in partitions.values() {
            self.known.entry(partition.id).or_insert_with(|| partition.name.clone());
        }
        self.epoch = shown.version.epoch;
        self.shown = Some(shown);
        self.is_at_end = false;
        Ok(())
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("position", &self.position()).finish_non_exhaustive()
    }
}

/// Checks that `commit` is in the history of `version`, as far as that is known.
///
/// # Errors
/// [`ErrorKind::SessionLost`]: a later epoch may have given its number to another commit.
pub(crate) fn check_history(version: &DbVersion, commit: Commit) -> Result<()> {
    let Commit { seq, epoch } = commit;
    let cut = version.log_cut.filter(|_| epoch.0.checked_add(1) == Some(version.epoch.0));
    let end = version.retained.ends.get(&epoch).or(cut.as_ref()).map(|end| end.last_seq);
    if epoch == version.epoch || end.is_some_and(|end| seq <= end) {
        return Ok(());
    }
    let message = format!(
        "commit {seq} of epoch {epoch} is not in the history of this database, or older than what is known of it; read \
         a snapshot, and begin again with its sequence number"
    );
    Err(Error::new(ErrorKind::SessionLost, message))
}

/// Returns `true` if nothing of a commit is left: it was of other partitions or keys.
fn is_empty(changed: &FeedItem) -> bool {
    matches!(changed, FeedItem::Commit(batch) if batch.changes.is_empty())
}

/// Returns `true` if `error` may come from a list of segments that is older than the folder. Damage is the same at
/// each look.
fn is_outdated(error: &Error) -> bool {
    let may_change = [ErrorKind::FileGone, ErrorKind::NeedsManifest, ErrorKind::Corruption];
    error.is_missing() || may_change.contains(&error.kind())
}
