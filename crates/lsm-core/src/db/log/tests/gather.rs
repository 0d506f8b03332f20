//! Syncs that wait for further writers.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::{SEGMENT, write};
use crate::db::testing::TestLog;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{File, OpKind};
use crate::types::SeqNo;

/// A file of a medium whose syncs take long.
struct SlowFile {
    file: Arc<dyn File>,
    gather_time: Duration,
    /// Met at the begin and before the end of a sync.
    syncs: Option<Arc<Barrier>>,
}

impl SlowFile {
    fn meet(&self) {
        if let Some(barrier) = &self.syncs {
            barrier.wait();
        }
    }
}

impl File for SlowFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.file.append(bytes)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file.read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        self.meet();
        let synced = self.file.sync();
        self.meet();
        synced
    }

    fn gather_time(&self) -> Duration {
        self.gather_time
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.file.preallocate(len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.file.punch(offset, len)
    }
}

/// Writes a batch whose writer asks for a sync.
fn ask(test: &TestLog) -> SeqNo {
    test.log.lock().note_asker();
    SeqNo::new(write(&test.log, 100).unwrap()).unwrap()
}

/// Lets the log be on a slow medium from now on.
fn slow_down(test: &TestLog, gather_time: Duration, syncs: Option<&Arc<Barrier>>) {
    for segment in &mut test.log.sync.lock().unsynced {
        let file = segment.file.clone();
        segment.file = Arc::new(SlowFile { file, gather_time, syncs: syncs.cloned() });
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// A log whose last sync has released two writers, on a slow medium from now on.
fn released_two() -> TestLog {
    let test = TestLog::new(SEGMENT);
    ask(&test);
    ask(&test);
    test.log.sync_all().unwrap();
    slow_down(&test, HOUR, None);
    test
}

/// Runs `then` while a sync waits for a second writer; the outcome of the sync.
fn while_it_gathers(test: &TestLog, then: impl FnOnce()) -> Result<()> {
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| test.log.sync_all());
        while !test.log.sync.lock().is_gathering {
            assert!(!syncing.is_finished(), "it has not waited for the second writer");
            std::thread::yield_now();
        }
        then();
        syncing.join().unwrap()
    })
}

#[test]
fn a_slow_sync_covers_the_writers_that_the_sync_before_has_released() {
    let test = released_two();
    ask(&test);
    while_it_gathers(&test, || {
        ask(&test);
    })
    .unwrap();
    assert_eq!(test.log.durable_seq().get(), 4);
}

#[test]
fn a_slow_sync_covers_the_notices_that_the_sync_before_has_released() {
    let test = released_two();
    ask(&test);
    while_it_gathers(&test, || {
        let unsynced = SeqNo::new(write(&test.log, 100).unwrap()).unwrap();
        test.log.notify(unsynced, Box::new(|outcome| outcome.unwrap()));
    })
    .unwrap();
    assert_eq!(test.log.durable_seq().get(), 4);
}

#[test]
fn a_slow_sync_waits_for_no_more_than_was_released() {
    let test = released_two();
    ask(&test);
    ask(&test);
    // An hour otherwise.
    test.log.sync_all().unwrap();
    assert_eq!(test.log.durable_seq().get(), 4);
}

#[test]
fn a_lone_writer_waits_for_no_writer_that_asks_for_no_sync() {
    let test = TestLog::new(SEGMENT);
    (0..5).for_each(|_| {
        write(&test.log, 100).unwrap();
    });
    ask(&test);
    test.log.sync_all().unwrap();
    slow_down(&test, HOUR, None);
    for number in 7..10 {
        // An hour otherwise.
        test.log.sync_through_seq(ask(&test)).unwrap();
        assert_eq!(test.log.durable_seq().get(), number);
    }
}

#[test]
fn a_sync_that_gathers_when_the_log_fails_is_not_made() {
    let test = released_two();
    ask(&test);
    test.faults.start_log();
    let failure = Error::new(ErrorKind::Io, "values were not synced");
    let error = while_it_gathers(&test, || drop(test.log.fail(failure.clone()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    assert!(test.faults.take_log().iter().all(|op| op.kind != OpKind::Sync));
    assert_eq!(test.log.durable_seq().get(), 2);
}

/// The values that another sync has lost are not in this one, and are no error of it.
#[test]
fn a_sync_during_which_the_log_fails_makes_nothing_durable() {
    let test = TestLog::new(SEGMENT);
    write(&test.log, 100).unwrap();
    let barrier = Arc::new(Barrier::new(2));
    slow_down(&test, Duration::ZERO, Some(&barrier));
    let failure = Error::new(ErrorKind::Io, "values were not synced");
    let synced = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| test.log.sync_all());
        barrier.wait();
        test.log.fail(failure.clone());
        barrier.wait();
        syncing.join().unwrap()
    });
    assert_eq!(synced.unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(test.log.durable_seq().get(), 0);
}
