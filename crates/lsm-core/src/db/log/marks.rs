//! [`Marks`]: places between two frames; a flush records one in the manifest as the place where a replay
//! begins.
//!
//! The writer of the log notes them as it appends, because only it knows the ends of frames: finding one
//! at the time of a flush would mean reading the log again. A flush takes the last one before which
//! everything is in tables.
//!
//! Invariants:
//! 1. A mark is the end of an append that succeeded, so a frame ends there and the next one begins.
//! 2. A place that is returned is durable: a log that ends before it has lost something.
//! 3. A segment has at most [`MARKS_A_SEGMENT`] marks, unless it holds one frame that is longer than a segment.

use std::collections::VecDeque;

use crate::types::{FileNo, SeqNo};
use crate::version::LogCut;
use crate::wal::{LogPlace, Lsn};

/// A replay walks at most this part of the longest segment in vain, over frames that the last flush covered.
/// 1,024 marks of 32 bytes are 64 KiB apart in segments of the default length.
const MARKS_A_SEGMENT: u64 = 1024;

struct Mark {
    lsn: Lsn,
    place: LogCut,
}

/// Possible begins of a replay, in the order of the log.
pub(super) struct Marks {
    /// Bytes between two marks, at least.
    distance: u64,
    /// The place after which the next mark is due.
    last: Lsn,
    /// In order.
    all: VecDeque<Mark>,
}

impl Marks {
    pub(super) fn new(segment_bytes_max: u64) -> Marks {
        let distance = segment_bytes_max / MARKS_A_SEGMENT;
        Marks { distance, last: Lsn::default(), all: VecDeque::new() }
    }

    /// Notes that the log ends at `lsn` and `place`, after the frame of `last_seq`.
    pub(super) fn note(&mut self, lsn: Lsn, place: LogPlace, last_seq: SeqNo) {
        if lsn.0 - self.last.0 < self.distance {
            return;
        }
        self.last = lsn;
        let LogPlace { segment, offset } = place;
        self.all.push_back(Mark { lsn, place: LogCut { segment, offset, last_seq } });
    }

    /// Takes out the marks through `end` and returns the last one.
    pub(super) fn take_through(&mut self, end: Lsn) -> Option<LogCut> {
        let count = self.all.partition_point(|mark| mark.lsn <= end);
        self.all.drain(..count).next_back().map(|mark| mark.place)
    }

    /// Drops those in segments before `first`, which are removed: a flush that does not wait for the log
    /// takes out none after its durable end.
    pub(super) fn forget_before(&mut self, first: FileNo) {
        let count = self.all.partition_point(|mark| mark.place.segment < first);
        self.all.drain(..count);
    }

    /// Drops all marks of a log that does not count any more.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fail, write};
    use super::*;
    use crate::db::testing::TestLog;
    use crate::fs::{FaultAction, OpKind};

    const SEGMENT: u64 = 4096;

    /// A log of so many batches of 100 bytes in one segment, and the places after them.
    fn filled(test: &TestLog, count: u64) -> Vec<(Lsn, LogCut)> {
        let ends = (0..count).map(|_| {
            let last_seq = SeqNo::new(write(&test.log, 100).unwrap()).unwrap();
            let writer = test.log.lock();
            let LogPlace { segment, offset } = writer.state.segment.as_ref().unwrap().end();
            (writer.lsn(), LogCut { segment, offset, last_seq })
        });
        ends.collect()
    }

    #[test]
    fn the_last_durable_mark_below_the_low_water_is_handed_out_once() {
        let test = TestLog::new(SEGMENT);
        let ends = filled(&test, 9);
        let low = ends[4].0;
        assert_eq!(test.log.replay_place(low, &[]), None, "nothing is durable");
        test.log.sync_all().unwrap();
        filled(&test, 1);
        assert_eq!(test.log.replay_place(low, &[]), Some(ends[4].1));
        assert_eq!(test.log.replay_place(low, &[]), None, "it was handed out");
        let between = Lsn(ends[6].0.0 + 8);
        assert_eq!(test.log.replay_place(between, &[]), Some(ends[6].1));
        let durable = Some(ends[8].1);
        assert_eq!(test.log.replay_place(Lsn(u64::MAX), &[]), durable, "not the batch after it");
    }

    #[test]
    fn a_mark_in_a_removed_segment_is_of_no_use() {
        let test = TestLog::new(SEGMENT);
        let ends = filled(&test, 3);
        test.log.sync_all().unwrap();
        let (low, LogCut { segment, .. }) = ends[2];
        assert_eq!(test.log.replay_place(low, &[segment]), None);
        assert!(test.log.writer.lock().marks.all.is_empty());
    }

    /// A flush that did not wait for the log has removed the segments, and their marks were not returned.
    #[test]
    fn marks_of_segments_that_are_gone_are_forgotten() {
        let test = TestLog::new(SEGMENT);
        filled(&test, 60);
        let end = test.log.lock().lsn();
        let obsolete = test.log.obsolete_segments(end).unwrap();
        assert!(!obsolete.is_empty());
        test.log.segments_removed(&obsolete);
        assert_eq!(test.log.replay_place(end, &[]), None, "nothing after the header is durable");
        test.log.sync_all().unwrap();
        let place = test.log.replay_place(end, &[]).unwrap();
        assert!(!obsolete.contains(&place.segment));
    }

    #[test]
    fn marks_keep_their_distance_over_the_ends_of_segments() {
        let mut marks = Marks::new(100 * MARKS_A_SEGMENT);
        for lsn in (1000..2000).step_by(8) {
            let segment = FileNo(lsn / 300);
            let offset = lsn % 300;
            marks.note(Lsn(lsn), LogPlace { segment, offset }, SeqNo::ZERO);
        }
        let lsns: Vec<_> = marks.all.iter().map(|mark| mark.lsn.0).collect();
        let expected: Vec<_> = (1000..2000).step_by(104).collect();
        assert_eq!(lsns, expected);
    }

    #[test]
    fn there_is_no_mark_after_an_append_that_failed_and_none_of_a_log_that_was_begun_again() {
        let test = TestLog::new(SEGMENT);
        let ends = filled(&test, 2);
        test.faults.add_rule(fail(OpKind::Append, FaultAction::ShortWrite(u64::MAX)));
        write(&test.log, 100).unwrap_err();
        assert_eq!(test.log.writer.lock().marks.all.len(), 2);
        test.log.sync_all().unwrap();
        test.faults.add_rule(fail(OpKind::Sync, FaultAction::SyncLost));
        filled(&test, 1);
        test.log.sync_all().unwrap_err();
        assert_eq!(test.log.replay_place(ends[1].0, &[]), None, "the log has failed");
        let mut writer = test.log.lock();
        let fresh = writer.fresh_segment().unwrap();
        writer.restart(fresh);
        assert!(writer.state.marks.all.is_empty());
    }
}
