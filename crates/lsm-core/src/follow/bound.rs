//! [`SyncExtent`] and [`SyncReach`]: the extent of a round, as its caller wants it; [`Bound`]: the end of the
//! round, and the source that shows that everything up to there is committed.
//!
//! Bounds are made by `position.rs` and used by `round.rs`.

use crate::types::{Epoch, PartitionId, SeqNo};
use crate::wal::Lsn;

/// The part of a database that should catch up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncExtent<'a> {
    /// Every partition, all at one commit.
    All,
    /// These partitions, all at one commit; the others do not change.
    Group(&'a [PartitionId]),
    /// One partition; the others do not change.
    Only(PartitionId),
    /// The list of partitions, and none of their contents.
    Layout,
}

impl SyncExtent<'_> {
    /// Returns whether `id` catches up.
    pub(super) fn has(self, id: PartitionId) -> bool {
        match self {
            SyncExtent::All => true,
            SyncExtent::Group(group) => group.contains(&id),
            SyncExtent::Only(only) => only == id,
            SyncExtent::Layout => false,
        }
    }

    /// Returns whether the partitions reach one common commit.
    pub(super) fn is_cut(self) -> bool {
        matches!(self, SyncExtent::All | SyncExtent::Group(_))
    }
}

/// The commits up to which a sync catches up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncReach {
    /// All.
    Committed,
    /// Those that have come to a storage which is far away, by fewer calls of it.
    Arrived,
    /// The durable ones, as far as the log attests them.
    Durable,
}

/// The sequence and the edit that a partition must have to be complete at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncGoal {
    pub(super) seq: u64,
    pub(super) layout: u64,
    pub(super) epoch: Epoch,
}

impl SyncGoal {
    /// Returns whether the goal is of `epoch`.
    pub fn is_of(&self, epoch: Epoch) -> bool {
        self.epoch == epoch
    }
}

/// The end of a round.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    pub(super) source: BoundSource,
    pub(super) reach: Lsn,
    /// Only what is durable was asked for.
    pub(super) is_durable: bool,
}

/// The source of a bound.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BoundSource {
    /// The cursor of a primary: every operation through this one is committed and lies before
    /// `reach`, if it was logged.
    Cursor(SeqNo),
    /// The fence of a primary, and no epoch has begun since: everything that was ever committed
    /// lies before `reach` or in the manifest.
    Fence,
    /// The log, or a manifest that records where it was closed.
    Log,
    /// An earlier look. The primary may be fenced, and this machine cannot see at which place.
    EarlierLook,
}

impl Bound {
    /// The durable part of this bound, if the log attests `part`.
    pub(super) fn durable_through(self, part: Bound) -> Bound {
        // Frames after a fence attest, too.
        let is_fenced = self.source == BoundSource::Fence;
        let reach = if is_fenced { part.reach.min(self.reach) } else { part.reach };
        Bound { reach, is_durable: true, ..part }
    }

    /// Every operation through this one is committed; `None` without a living primary's cursor.
    pub(super) fn visible(&self) -> Option<SeqNo> {
        match self.source {
            BoundSource::Cursor(visible) => Some(visible),
            BoundSource::Fence | BoundSource::Log | BoundSource::EarlierLook => None,
        }
    }
}

/// A place in the log before which a round has noted everything.
#[derive(Clone, Copy, Default)]
pub(super) struct ShownThrough {
    pub(super) reach: Lsn,
    /// Every operation through this one is noted, or in tables.
    pub(super) seq: SeqNo,
}
