//! The open files of the log: segments that wait for a sync, or for their index.
//!
//! A segment stays open until it is synced, see `fs/appended_file.rs`. So an application that writes without syncs
//! could have any number of them open. Here the log is synced before they are too many, and before a segment is refused
//! because the process has no handle left. Called by `segments.rs` for each new segment.
//!
//! Invariant: nothing here waits for the log thread. The caller holds the writer's lock, which that thread takes.

use super::LogWriter;
use crate::error::Result;
use crate::fs::is_out_of_handles;
use crate::types::FileNo;
use crate::wal::Reserved;

impl LogWriter<'_> {
    /// The reserve, or a new segment, as [`LogWriter::take_reserve`]. Closes segments before that, if too many are
    /// open.
    ///
    /// # Cost
    /// Usually none. A sync of the log if half of `Options::open_files_max` files wait for one.
    pub(super) fn take_segment(&mut self, len: u64) -> Result<(Reserved, FileNo)> {
        let waiting = self.log.unsynced_count().max(self.state.sealed.len());
        if self.log.settings.files.is_crowded_with(waiting) {
            self.close_segments()?;
        }
        match self.take_reserve(len) {
            // The application, or a limit that was lowered since.
            Err(error) if is_out_of_handles(&error) && waiting > 1 => {
                self.close_segments()?;
                self.take_reserve(len)
            }
            taken => taken,
        }
    }

    /// Closes all segments but the present one.
    ///
    /// # Errors
    /// Those of a sync of the log.
    fn close_segments(&mut self) -> Result<()> {
        self.log.sync_all()?;
        // A failed append concerns no writer: a reader walks a segment without an index.
        let _ = self.index_sealed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::tests::{fail, write};
    use super::*;
    use crate::db::testing::{DIR, TestLog};
    use crate::error::Error;
    use crate::fs::{FaultAction, OpKind};
    use crate::machine;
    use crate::types::SeqNo;

    const SEGMENT: u64 = 4096;

    /// The log has a set of 16 files, and 8 of them may wait for a sync.
    #[test]
    fn a_log_that_nothing_syncs_keeps_few_segments_open() {
        let test = TestLog::with_open_files(SEGMENT, 16);
        let env = &test.env;
        for n in 1..=200 {
            assert_eq!(write(&test.log, 1000).unwrap(), n);
            assert!(test.log.unsynced_count() <= 9, "{n}: {}", test.log.unsynced_count());
            assert!(test.log.lock().state.sealed.len() <= 9, "{n}");
        }
        assert!(env.listed().len() > 50, "{:?}", env.listed());
        assert!(env.syncs() <= 80, "{} syncs", env.syncs());
        let begun = test.log.lock().begun();
        let indexed = begun.iter().filter(|segment| segment.index_bytes > 0);
        assert!(indexed.count() > 50, "{} segments", begun.len());
        // Where there is room, nothing is synced.
        let test = TestLog::new(SEGMENT);
        let env = &test.env;
        (0..200).for_each(|_| assert!(write(&test.log, 1000).is_ok()));
        assert_eq!(env.syncs(), 0);
    }

    #[test]
    fn a_segment_for_which_there_is_no_handle_is_made_after_a_sync() {
        let test = TestLog::new(SEGMENT);
        (0..12).for_each(|_| assert!(write(&test.log, 1000).is_ok()));
        assert!(test.log.unsynced_count() > 2);
        test.faults.add_rule(fail(OpKind::Create, FaultAction::Emfile));
        (0..4).for_each(|_| assert!(write(&test.log, 1000).is_ok()));
        assert_eq!(test.faults.fault_count(), 1);
        assert!(test.log.unsynced_count() <= 3 && !test.log.has_failed());
    }

    /// The values could not be synced for want of a handle. Nothing else asks for the next sync.
    #[test]
    fn a_notice_is_not_forgotten_by_a_sync_without_a_handle() {
        let test = TestLog::new(SEGMENT);
        let env = &test.env;
        let seq = write(&test.log, 100).unwrap();
        let (tell, reported) = std::sync::mpsc::channel();
        let notice = Box::new(move |outcome: Result<()>| tell.send(outcome).unwrap());
        test.log.notify(SeqNo::new(seq).unwrap(), notice);
        let error = Error::io("sync", Path::new(DIR), machine::out_of_handles());
        *env.values.lock() = Some(error);
        // Without an interval: the log is synced for those who ask.
        let refused = test.log.tend(Duration::ZERO, Duration::ZERO).unwrap_err();
        assert!(is_out_of_handles(&refused) && reported.try_recv().is_err());
        *env.values.lock() = None;
        test.log.tend(Duration::ZERO, Duration::ZERO).unwrap();
        assert!(reported.try_recv().unwrap().is_ok());
    }
}
