//! Syncs that wait for further writers.

use std::sync::Arc;
use std::time::Duration;

use super::{SEGMENT, write};
use crate::db::testing::TestLog;
use crate::error::Result;
use crate::fs::File;
use crate::types::SeqNo;

/// A file of a medium whose syncs take long.
struct SlowFile(Arc<dyn File>);

impl File for SlowFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.0.append(bytes)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read_at(offset, buf)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn gather_time(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn len(&self) -> Result<u64> {
        self.0.len()
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.0.preallocate(len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.0.punch(offset, len)
    }
}

/// A log whose last sync has released two writers, on a slow medium from now on.
fn released_two() -> TestLog {
    let test = TestLog::new(SEGMENT);
    write(&test.log, 100).unwrap();
    write(&test.log, 100).unwrap();
    test.log.sync_all().unwrap();
    for segment in &mut test.log.sync.lock().unsynced {
        segment.file = Arc::new(SlowFile(segment.file.clone()));
    }
    test
}

#[test]
fn a_slow_sync_covers_the_writers_that_the_sync_before_has_released() {
    let test = released_two();
    let third = SeqNo::new(write(&test.log, 100).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| test.log.sync_through_seq(third));
        while !test.log.sync.lock().is_gathering {
            assert!(!syncing.is_finished(), "it has not waited for the second writer");
            std::thread::yield_now();
        }
        write(&test.log, 100).unwrap();
        syncing.join().unwrap().unwrap();
    });
    assert_eq!(test.log.durable_seq().get(), 4);
}

#[test]
fn a_slow_sync_waits_for_no_more_than_was_released() {
    let test = released_two();
    write(&test.log, 100).unwrap();
    write(&test.log, 100).unwrap();
    // An hour otherwise.
    test.log.sync_all().unwrap();
    assert_eq!(test.log.durable_seq().get(), 4);
}
