//! [`RetentionLimits`]: which segments of the log stay for those who follow the changes, after the database needs them
//! no more.
//!
//! Asked by the flush that removes segments, and by an open, which removes the log of the epoch before. Plain
//! data: the caller makes the changes durable and deletes the files.
//!
//! Invariants:
//! 1. The oldest segments go first, so what is left is the end of the log without a hole.
//! 2. No write waits for any of this.

use std::time::Duration;

use super::Log;
use super::flush_admission::ReleasedLog;
use crate::fs::names::{FileKind, FileName};
use crate::options::Options;
use crate::types::FileNo;
use crate::version::{Change, RetainedLog, RetainedSegment};

/// The limits of the log that is kept.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::db) struct RetentionLimits {
    bytes_max: u64,
    seconds_max: u64,
}

/// The segments that are kept, and those that are not any more.
#[derive(Default)]
pub(in crate::db) struct RetentionDecision {
    /// For the edit that removes the segments from the log, after these removals.
    pub(in crate::db) changes: Vec<Change>,
    /// Files, with their lengths in bytes, that the caller releases when the edit is durable.
    pub(in crate::db) released: Vec<(FileName, u64)>,
}

impl RetentionLimits {
    pub(in crate::db) fn of(options: &Options) -> RetentionLimits {
        let Options { log_retained_bytes, log_retained_seconds, .. } = *options;
        RetentionLimits { bytes_max: log_retained_bytes, seconds_max: log_retained_seconds }
    }

    /// Returns `true` if anything is kept.
    pub(in crate::db) fn is_on(self) -> bool {
        self.bytes_max > 0
    }

    /// Keeps the segments `left`, which leave the log at `now`, in addition to `retained`, and releases what is
    /// beyond the limits. Without limits `left` is not the matter of this call: the log releases these.
    pub(in crate::db) fn keep(
        self,
        retained: &RetainedLog,
        left: impl IntoIterator<Item = (FileNo, RetainedSegment)>,
        now: Duration,
    ) -> RetentionDecision {
        let mut decision = RetentionDecision::default();
        let mut segments = retained.segments.clone();
        if self.is_on() {
            for (file, segment) in left {
                decision.changes.push(Change::SegmentRetained { file, segment });
                segments.insert(file, segment);
            }
        }
        let mut bytes: u64 = segments.values().map(|segment| segment.bytes).sum();
        for (file, segment) in segments {
            let age = now.as_secs().saturating_sub(segment.since);
            if bytes <= self.bytes_max && age <= self.seconds_max {
                break;
            }
            bytes -= segment.bytes;
            decision.changes.push(Change::SegmentForgotten { file });
            let name = FileName::new(FileKind::Wal, file, segment.epoch);
            decision.released.push((name, segment.bytes));
        }
        decision
    }
}

impl Log {
    /// Returns `true` if any segment stays when nothing needs it.
    pub(in crate::db) fn keeps(&self) -> bool {
        self.settings.kept.is_on()
    }

    /// As [`RetentionLimits::keep`], of the segments that a flush removes.
    pub(in crate::db) fn keep(
        &self,
        released: &ReleasedLog,
        retained: &RetainedLog,
        now: Duration,
    ) -> RetentionDecision {
        let epoch = self.settings.epoch;
        let since = now.as_secs();
        let left = released.segments.iter().map(|file| {
            let bytes = self.files.bytes_of(*file);
            (*file, RetainedSegment { epoch, bytes, since })
        });
        self.settings.kept.keep(retained, left, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Epoch;

    fn segment(bytes: u64, since: u64) -> RetainedSegment {
        RetainedSegment { epoch: Epoch(1), bytes, since }
    }

    /// The numbers of the segments that are forgotten when number 4 leaves the log at second 100.
    fn check(bytes_max: u64, seconds_max: u64) -> Vec<u64> {
        let mut retained = RetainedLog::default();
        for (number, since) in [(1, 10), (2, 50), (3, 90)] {
            retained.segments.insert(FileNo(number), segment(10, since));
        }
        let left = [(FileNo(4), segment(10, 100))];
        let limits = RetentionLimits { bytes_max, seconds_max };
        let decision = limits.keep(&retained, left, Duration::from_secs(100));
        let forgotten = decision.changes.iter().filter_map(|change| match change {
            Change::SegmentForgotten { file } => Some(file.0),
            _ => None,
        });
        let forgotten: Vec<u64> = forgotten.collect();
        assert_eq!(forgotten.len(), decision.released.len());
        forgotten
    }

    #[test]
    fn the_oldest_segments_go_first_at_the_limits_of_bytes_and_of_time() {
        assert_eq!(check(40, u64::MAX), [0; 0]);
        assert_eq!(check(39, u64::MAX), [1]);
        assert_eq!(check(20, u64::MAX), [1, 2]);
        assert_eq!(check(5, u64::MAX), [1, 2, 3, 4]);
        assert_eq!(check(40, 90), [0; 0]);
        assert_eq!(check(40, 89), [1]);
        assert_eq!(check(40, 49), [1, 2]);
        // Nothing is kept any more; the log itself releases the one that leaves it.
        assert_eq!(check(0, u64::MAX), [1, 2, 3]);
    }
}
