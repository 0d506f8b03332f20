//! [`Log::admit_flush`]: the one question that a flush asks: may the manifest record it?
//!
//! Called by `flush.rs` once the tables of the flush are written, and before the edit that adds them.
//!
//! Invariant: no flush that covers a sequence number is admitted before everything through that number is
//! durable, in the log or in the tables of the flush. Otherwise a crash could keep half of a batch over two
//! partitions (design note 17).

use super::{Log, RetentionDecision};
use crate::error::Result;
use crate::partition::PartitionState;
use crate::types::{FileNo, PartitionId, SeqNo};
use crate::version::{Change, FlushBeyondSync, LogCut};
use crate::wal::Lsn;

/// The treatment of log segments that are not needed any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::db) enum SegmentRelease {
    /// Releases them. Takes the lock of the log's writer.
    Now,
    /// Leaves them to the next flush, for a caller that holds that lock. Waits for the log.
    Later,
}

/// A flush whose tables are written.
pub(in crate::db) struct WrittenFlush {
    partition: PartitionId,
    /// The tables have the operations of the partition through this one.
    last_seq: SeqNo,
    /// The partition has a log.
    is_logged: bool,
    /// Frames name values of the partition. A sync of the log makes those durable, too.
    has_values: bool,
}

impl WrittenFlush {
    /// A flush of `partition` through `last_seq`.
    pub(in crate::db) fn of(partition: &PartitionState, last_seq: SeqNo) -> WrittenFlush {
        let has_values = partition.store().is_some();
        let is_logged = partition.logged;
        WrittenFlush { partition: partition.id, last_seq, is_logged, has_values }
    }
}

/// The part of the log that a flush makes unnecessary.
#[derive(Default)]
pub(in crate::db) struct ReleasedLog {
    pub(super) segments: Vec<FileNo>,
    /// The place where a replay begins from now on.
    replay_from: Option<LogCut>,
    /// The flush did not wait for the log.
    ahead: Option<FlushBeyondSync>,
    /// No batch in the log is needed any more.
    is_obsolete: bool,
}

impl ReleasedLog {
    /// The changes that the edit of the flush makes to the log. If it fails, a later flush records a later
    /// place.
    pub(in crate::db) fn changes(&self) -> impl Iterator<Item = Change> {
        let removed = self.segments.iter().map(|file| Change::SegmentRemoved { file: *file });
        let replay_from = self.replay_from.map(Change::ReplayFrom);
        removed.chain(replay_from).chain(self.ahead.map(Change::FlushBeyondSync))
    }
}

impl Log {
    /// Makes the part of the log durable that the edit of a flush needs, and returns the part that is not
    /// needed any more. `low` is called after the sync; every frame below its result is in tables, those of
    /// the flush included. The caller writes the tables first: otherwise a flush of large values would wait
    /// twice for the device, and writers for the flush.
    ///
    /// # Errors
    /// Those of a sync: the manifest must not record the flush.
    pub(in crate::db) fn admit_flush(
        &self,
        flush: &WrittenFlush,
        release: SegmentRelease,
        low: impl FnOnce() -> Lsn,
    ) -> Result<ReleasedLog> {
        let WrittenFlush { partition, last_seq, is_logged, has_values } = *flush;
        let releases = release == SegmentRelease::Now;
        // Not if handles of values are in the log: a sync of it makes the values durable. Nor if the log is kept
        // for those who follow it: after a crash it would lack commits that are in tables.
        let may_lag = releases && is_logged && !has_values && !self.settings.kept.is_on();
        let durable = may_lag.then(|| self.durable_before_run(partition, last_seq)).flatten();
        if is_logged && durable.is_none() {
            self.sync_through_seq(last_seq)?;
        }
        if !releases {
            return Ok(ReleasedLog::default());
        }
        let low = low();
        let segments = self.obsolete_segments(low)?;
        let mut ahead = durable.map(|durable| FlushBeyondSync { flushed: last_seq, durable });
        if !segments.is_empty() {
            ahead = ahead.and_then(|ahead| {
                // The next open finds this header, or sees that the log has lost it.
                let before_next_header = self.last_seq_before_first_after(&segments);
                ahead.durable_through(before_next_header.unwrap_or_default())
            });
        }
        let replay_from = self.replay_place(low, &segments);
        let is_obsolete = ahead.is_some() && self.lock().ends_below(low);
        Ok(ReleasedLog { segments, replay_from, ahead, is_obsolete })
    }

    /// Deletes the segments that a flush made unnecessary, whose edit is durable, but those that are kept.
    pub(in crate::db) fn delete_released(
        &self,
        released: &ReleasedLog,
        decision: RetentionDecision,
    ) {
        self.segments_removed(&released.segments);
        if !decision.released.is_empty() {
            self.env.make_obsolete(decision.released);
        }
    }

    /// Syncs a log that has nothing that is needed, and little else: once that is durable, the log is idle.
    ///
    /// # Errors
    /// Those of the sync. They are latched: the next flush begins a new log.
    pub(in crate::db) fn sync_spent(&self, released: &ReleasedLog) -> Result<()> {
        if released.is_obsolete { self.sync_all() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::log::tests::write;
    use crate::db::testing::TestLog;

    /// Admits a flush of all that a log has, of a single batch, and returns the syncs and the changes.
    fn check(has_values: bool, release: SegmentRelease) -> (u64, Vec<Change>) {
        let test = TestLog::new(1 << 20);
        let last_seq = SeqNo::new(write(&test.log, 100).unwrap()).unwrap();
        let partition = PartitionId(0);
        let flush = WrittenFlush { partition, last_seq, is_logged: true, has_values };
        let end = test.log.lock().lsn();
        let released = test.log.admit_flush(&flush, release, || end).unwrap();
        (test.env.syncs(), released.changes().collect())
    }

    #[test]
    fn a_flush_of_the_only_partition_is_admitted_without_a_sync() {
        let (syncs, changes) = check(false, SegmentRelease::Now);
        assert_eq!(syncs, 0);
        assert!(matches!(changes[..], [Change::FlushBeyondSync(_)]), "{changes:?}");
    }

    #[test]
    fn a_flush_whose_frames_name_values_waits_for_the_log() {
        let (syncs, changes) = check(true, SegmentRelease::Now);
        assert_eq!(syncs, 1);
        assert!(!changes.iter().any(|it| matches!(it, Change::FlushBeyondSync(_))), "{changes:?}");
    }

    /// The next open finds the header after the removed segments, or sees that the log has lost it.
    #[test]
    fn a_flush_that_removes_segments_says_how_far_the_next_header_is_durable() {
        let test = TestLog::new(4096);
        for _ in 0..8 {
            write(&test.log, 1000).unwrap();
        }
        let low = test.log.lock().lsn();
        let last_seq = SeqNo::new(write(&test.log, 1000).unwrap()).unwrap();
        let partition = PartitionId(0);
        let flush = WrittenFlush { partition, last_seq, is_logged: true, has_values: false };
        let released = test.log.admit_flush(&flush, SegmentRelease::Now, || low).unwrap();
        assert!(!released.segments.is_empty() && !released.is_obsolete);
        let before_next_header = test.log.last_seq_before_first_after(&released.segments).unwrap();
        assert!(
            before_next_header > SeqNo::ZERO && before_next_header < last_seq,
            "{before_next_header} of {last_seq}"
        );
        let ahead = FlushBeyondSync { flushed: last_seq, durable: before_next_header };
        assert!(released.changes().any(|it| it == Change::FlushBeyondSync(ahead)));
    }

    #[test]
    fn a_flush_of_a_partition_without_a_log_waits_for_nothing() {
        let test = TestLog::new(1 << 20);
        let last_seq = SeqNo::new(write(&test.log, 100).unwrap()).unwrap().plus(1);
        let partition = PartitionId(1);
        let flush = WrittenFlush { partition, last_seq, is_logged: false, has_values: true };
        let released = test.log.admit_flush(&flush, SegmentRelease::Now, || Lsn(0)).unwrap();
        assert_eq!((test.env.syncs(), released.changes().count()), (0, 0));
    }

    #[test]
    fn a_flush_under_the_lock_of_the_log_waits_and_changes_nothing() {
        assert_eq!(check(false, SegmentRelease::Later), (1, Vec::new()));
    }
}
