//! The log over a test environment, through failures and power cuts.

mod gather;
mod space;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::state::LogTask;
use super::{Log, LogEnv};
use crate::db::testing::{DIR, TestLog, batches_in};
use crate::error::{ErrorKind, Result};
use crate::fs::{CrashOutcome, FaultAction, FaultAt, FaultRule, Fs, FsOp, OpKind};
use crate::types::{FileNo, PartitionId, SeqNo};
use crate::version::Change;
use crate::wal::{Section, section_checksum};

const SEGMENT: u64 = 4096;
const INTERVAL: Duration = Duration::from_millis(100);

impl Log {
    /// The newest sequence number that is durable, with every logged one before it.
    pub(in crate::db) fn durable_seq(&self) -> SeqNo {
        self.sync.lock().durable_seq
    }
}

/// Writes one batch of `bytes` bytes, as the commit path does; its sequence number.
pub(super) fn write(log: &Log, bytes: usize) -> Result<u64> {
    let body = vec![b'x'; bytes];
    let checksum = section_checksum(&body);
    let sections = [Section { partition: PartitionId(0), operations: 1, checksum, bytes: &body }];
    let mut writer = log.lock();
    if !writer.has_room(&sections) {
        writer.append()?;
    }
    writer.encode_batch(&sections, 1)?;
    let seq = writer.take_seqs(1);
    writer.append()?;
    Ok(seq.get())
}

pub(super) fn fail(kind: OpKind, action: FaultAction) -> FaultRule {
    FaultRule::once(FaultAt::Nth { kind, suffix: ".wal".into(), nth: 0 }, action)
}

/// The segments whose headers are written: not the reserve.
pub(super) fn begun_numbers(test: &TestLog) -> Vec<FileNo> {
    test.log.lock().begun().iter().map(|begun| begun.header.number).collect()
}

/// Passes the batches that are read back after a power cut at this moment, of each kind, to `check`. The
/// seed chooses the lost sectors.
pub(super) fn after_each_crash(test: &TestLog, seed: u64, mut check: impl FnMut(&[u64], &str)) {
    for outcome in CrashOutcome::ALL {
        let mut state = seed;
        let after = test.mem.crash_clone(outcome, &mut || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state ^ (state >> 29)
        });
        let context = format!("seed {seed}, {outcome:?}");
        let found = batches_in(&after, &test.env.listed())
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        check(&found, &context);
    }
}

#[test]
fn what_was_appended_reads_back_over_several_segments() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    for _ in 0..20 {
        write(&test.log, 1000).unwrap();
        test.log.tend_now().unwrap();
    }
    let listed = env.listed();
    assert!(listed.len() >= 6, "20 batches of 1,000 bytes in segments of {SEGMENT}: {listed:?}");
    let numbers: Vec<u64> = (1..=20).collect();
    assert_eq!(batches_in(&test.mem, &begun_numbers(&test)).unwrap(), numbers);
}

#[test]
fn a_segment_is_listed_before_a_frame_goes_into_it() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    env.refuses_edits.store(true, Ordering::Relaxed);
    assert!(write(&test.log, 100).is_err());
    env.refuses_edits.store(false, Ordering::Relaxed);
    let seq = write(&test.log, 100).unwrap();
    assert_eq!(batches_in(&test.mem, &env.listed()).unwrap(), [seq]);
}

#[test]
fn one_sync_makes_everything_before_it_durable() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    for _ in 0..9 {
        write(&test.log, 1000).unwrap();
    }
    assert_eq!(test.log.task(), LogTask::Sync);
    assert_eq!(test.log.durable_seq().get(), 0);
    test.log.sync_all().unwrap();
    assert_eq!(test.log.durable_seq().get(), 9);
    let after = test.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert_eq!(batches_in(&after, &env.listed()).unwrap().len(), 9);
    // Nothing is left to sync, so this asks nothing of the files.
    test.faults.add_rule(FaultRule::sticky(FaultAt::Op(0), FaultAction::Eio));
    test.log.sync_through_seq(crate::types::SeqNo::new(9).unwrap()).unwrap();
}

/// The whole frame reaches the file, the append returns an error all the same, and power fails
/// before anything else is synced. The header of the next segment records that the frame does not
/// count; if it were not durable before the writer gets the error, the batch would appear later.
#[test]
fn a_refused_batch_never_comes_back() {
    let mut cuts = 0;
    for seed in 0..200_u64 {
        let test = TestLog::new(SEGMENT);
        let kept = write(&test.log, 100).unwrap();
        test.log.sync_all().unwrap();
        test.faults.add_rule(fail(OpKind::Append, FaultAction::ShortWrite(u64::MAX)));
        let refused = test.log.lock().next_seq().get();
        write(&test.log, 100).unwrap_err();
        if seed % 2 == 0 {
            write(&test.log, 100).unwrap();
        }
        after_each_crash(&test, seed, |found, context| {
            assert!(found.contains(&kept), "{context}: {found:?}");
            assert!(!found.contains(&refused), "{context}: {found:?}");
            cuts += 1;
        });
    }
    assert_eq!(cuts, 1400);
}

#[test]
fn after_a_failed_sync_the_log_takes_no_more_until_it_is_begun_again() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    write(&test.log, 100).unwrap();
    test.faults.add_rule(fail(OpKind::Sync, FaultAction::SyncLost));
    let first = test.log.sync_all().unwrap_err();
    assert_eq!(first.kind(), ErrorKind::ReadOnly);
    // The file would sync now, and report success wrongly: nothing calls it again.
    let syncs = env.counters().wal_syncs.get();
    assert_eq!(test.log.sync_all().unwrap_err().to_string(), first.to_string());
    assert_eq!(env.counters().wal_syncs.get(), syncs);
    assert_eq!(test.log.check().unwrap_err().to_string(), first.to_string());
    assert_eq!(env.failures.lock().len(), 1, "reported once");
    assert_eq!(test.log.task(), LogTask::Idle);
    let noticed = Arc::new(AtomicBool::new(false));
    let notice = noticed.clone();
    let mark = test.log.durable_point().0.0;
    test.log.notify_durable_after(mark, Box::new(move |_| notice.store(true, Ordering::Relaxed)));

    let mut writer = test.log.lock();
    let fresh = writer.fresh_segment().unwrap();
    let number = fresh.header().number;
    let removed = env.listed().into_iter().map(|file| Change::SegmentRemoved { file });
    let added = Change::SegmentAdded { file: number, epoch: crate::db::testing::EPOCH };
    env.install_edit(removed.chain([added]).collect()).unwrap();
    writer.restart(fresh);
    drop(writer);
    test.log.check().unwrap();
    assert!(noticed.load(Ordering::Relaxed), "a feed has to look: its token may be too old");
    assert_eq!(test.log.durable_seq().get(), 1, "it is in tables");
    let seq = write(&test.log, 100).unwrap();
    test.log.sync_all().unwrap();
    let after = test.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert_eq!(batches_in(&after, &[number]).unwrap(), [seq]);
}

#[test]
fn segments_below_the_low_water_go_once_the_header_after_them_is_durable() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    for _ in 0..9 {
        write(&test.log, 1000).unwrap();
    }
    let end = test.log.lock().lsn();
    let before = env.listed();
    let syncs = env.syncs();
    let obsolete = test.log.obsolete_segments(end).unwrap();
    assert_eq!(obsolete, before[..2], "all but the present one");
    assert_eq!(env.syncs(), syncs + 3, "no header is durable before those in front of it");
    let syncs = env.syncs();
    assert_eq!(test.log.durable_seq().get(), 0, "not before they are removed");
    let removed = obsolete.iter().map(|file| Change::SegmentRemoved { file: *file });
    env.install_edit(removed.collect()).unwrap();
    test.log.segments_removed(&obsolete);
    assert_eq!(test.log.durable_seq().get(), 6, "what comes before the header is in tables");
    assert_eq!(test.segment_files().len(), 1);
    assert!(test.log.obsolete_segments(end).unwrap().is_empty());
    assert_eq!(env.syncs(), syncs, "the header is known to be durable");
    write(&test.log, 1000).unwrap();
    test.log.sync_all().unwrap();
    assert_eq!(env.syncs(), syncs + 1 + u64::from(env.listed().len() > 1), "none that is gone");
    assert_eq!(test.log.durable_seq().get(), 10);
}

/// Appends a batch with an operation in each of these partitions; its last number.
fn write_to(test: &TestLog, partitions: &[u32]) -> SeqNo {
    let checksum = section_checksum(b"x");
    let sections = partitions.iter().map(|id| Section {
        partition: PartitionId(*id),
        operations: 1,
        checksum,
        bytes: b"x",
    });
    let sections: Vec<_> = sections.collect();
    let count = sections.len() as u64;
    let mut writer = test.log.lock();
    writer.encode_batch(&sections, count).unwrap();
    let first = writer.take_seqs(count);
    writer.append().unwrap();
    first.plus(count - 1)
}

/// A run of batches of one partition, and its end.
#[test]
fn a_flush_need_not_wait_for_batches_of_its_own_partition() {
    fn before(test: &TestLog, partition: u32, seq: SeqNo) -> Option<u64> {
        let durable = test.log.durable_before_run(PartitionId(partition), seq);
        durable.map(SeqNo::get)
    }
    let test = TestLog::new(64 << 10);
    let one = write_to(&test, &[1]);
    assert_eq!(before(&test, 1, one), Some(0), "the first batch of all");
    assert_eq!(before(&test, 2, one), None, "of another partition");
    let two = write_to(&test, &[2]);
    assert_eq!(before(&test, 2, two), None, "the batch before is not durable");
    assert_eq!(
        before(&test, 1, one),
        None,
        "and of the first partition alone nothing is at the end"
    );
    test.log.sync_all().unwrap();
    assert_eq!(before(&test, 2, two), None, "it is durable");
    let later = write_to(&test, &[2]);
    assert_eq!(before(&test, 2, later), Some(2));
    let both = write_to(&test, &[1, 2]);
    assert_eq!(before(&test, 2, both), None, "half of it is of the other partition");
    let next = write_to(&test, &[2]);
    assert_eq!(before(&test, 2, next), None, "as long as that is not durable");
    test.log.sync_all().unwrap();
    let last = write_to(&test, &[2]);
    assert_eq!(before(&test, 2, last), Some(next.get()));
    test.faults.add_rule(fail(OpKind::Sync, FaultAction::SyncLost));
    test.log.sync_all().unwrap_err();
    assert_eq!(before(&test, 2, last), None, "after a failure a new log begins");
}

/// The thread may sleep for long if nothing is synced by interval, and knows of the appends all the time.
#[test]
fn a_new_segment_wakes_the_log_thread_though_it_knows_of_appends() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    for _ in 0..3 {
        write(&test.log, 1000).unwrap();
    }
    assert_eq!(env.wakes.load(Ordering::Relaxed), 1, "by the first append alone");
    write(&test.log, 1000).unwrap();
    assert_eq!(env.wakes.load(Ordering::Relaxed), 2, "it should make the segment after this one");
}

/// The log thread makes a header durable before there is much after it, without making the segments
/// before it durable.
#[test]
fn a_header_is_synced_alone_and_a_failure_is_one_of_the_log() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    for _ in 0..9 {
        write(&test.log, 1000).unwrap();
        test.log.tend(Duration::ZERO, Duration::ZERO).unwrap();
    }
    assert_eq!(test.log.durable_seq().get(), 0);
    assert_eq!(test.log.task(), LogTask::Sync, "the batches are not durable");
    let syncs = env.syncs();
    let end = test.log.lock().lsn();
    assert_eq!(test.log.obsolete_segments(end).unwrap().len(), 2);
    test.log.tend(Duration::ZERO, Duration::ZERO).unwrap();
    assert_eq!(env.syncs(), syncs, "every header is durable");
    for _ in 0..3 {
        write(&test.log, 1000).unwrap();
    }
    test.faults.add_rule(fail(OpKind::Sync, FaultAction::SyncLost));
    test.log.tend(Duration::ZERO, Duration::ZERO).unwrap_err();
    assert_eq!(test.log.sync_all().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(test.log.task(), LogTask::Idle);
}

#[test]
fn an_idle_log_is_synced_then_marked_then_left_alone() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    let tend = |millis| test.log.tend(Duration::from_millis(millis), INTERVAL).unwrap();
    write(&test.log, 100).unwrap();
    assert_eq!(env.wakes.load(Ordering::Relaxed), 1);
    write(&test.log, 100).unwrap();
    assert_eq!(env.wakes.load(Ordering::Relaxed), 1, "the thread knows");
    assert!(tend(0).is_some());
    assert!(tend(99).is_some());
    assert_eq!(test.log.task(), LogTask::Sync, "not due before the interval");
    assert!(tend(100).is_some());
    assert_eq!(test.log.task(), LogTask::Mark);
    let unmarked = test.log.lock().lsn();
    tend(100);
    tend(110);
    assert_eq!(test.log.task(), LogTask::Idle);
    assert!(test.log.lock().lsn() > unmarked);
    assert_eq!(tend(111), Some(Duration::from_secs(1)), "then it gives its reserve back");
    write(&test.log, 100).unwrap();
    assert_eq!(env.wakes.load(Ordering::Relaxed), 2, "the thread is woken, though it looks again");
    test.log.tend_now().unwrap();
    test.log.tend_now().unwrap();
    assert_eq!(tend(2000), None, "it does not look until it is woken");
}

/// An interval that is counted from a time that never comes again would never end.
#[test]
fn a_clock_that_goes_back_stops_no_sync() {
    let test = TestLog::new(SEGMENT);
    let tend = |millis| test.log.tend(Duration::from_millis(millis), INTERVAL).unwrap();
    write(&test.log, 100).unwrap();
    tend(1_000_000);
    tend(5);
    tend(104);
    assert_eq!(test.log.task(), LogTask::Sync, "not due before the interval");
    tend(105);
    assert_eq!(test.log.task(), LogTask::Mark);
}

/// The manifest refuses every segment: each attempt made another file, which nothing removed.
#[test]
fn refused_segments_leave_one_file_and_none_after_healing() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    env.refuses_edits.store(true, Ordering::Relaxed);
    for _ in 0..100 {
        write(&test.log, 100).unwrap_err();
    }
    assert_eq!(test.segment_files().len(), 1);
    // One that needs a longer segment cannot use it.
    write(&test.log, 10_000).unwrap_err();
    assert_eq!(test.segment_files().len(), 2);
    env.refuses_edits.store(false, Ordering::Relaxed);
    let seq = write(&test.log, 100).unwrap();
    assert_eq!(test.segment_files().len(), 1);
    assert_eq!(batches_in(&test.mem, &env.listed()).unwrap(), [seq]);
}

#[test]
fn a_log_that_ends_cleanly_names_its_end() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    write(&test.log, 100).unwrap();
    test.log.lock().close().unwrap();
    let edits = env.edits.lock();
    let Some([Change::LogClosed(cut)]) = edits.last().map(Vec::as_slice) else {
        panic!("the last edit closes the log: {edits:?}");
    };
    assert_eq!((cut.last_seq.get(), cut.segment), (1, FileNo(1)));
    assert_eq!(test.log.durable_seq().get(), 1);
}

#[test]
fn a_segment_that_could_not_be_begun_leaves_the_manifest_with_the_next_one() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    write(&test.log, 100).unwrap();
    for _ in 0..3 {
        write(&test.log, 1000).unwrap();
    }
    // Full; the header of the next segment is torn.
    test.faults.add_rule(fail(OpKind::Append, FaultAction::ShortWrite(10)));
    write(&test.log, 1000).unwrap_err();
    let listed = env.listed();
    let seq = write(&test.log, 100).unwrap();
    assert_ne!(env.listed(), listed, "the spoiled one is gone");
    assert_eq!(batches_in(&test.mem, &env.listed()).unwrap(), [1, 2, 3, 4, seq]);
}

/// A sequence number, and the outcome that its notice got.
type Answer = (u64, Result<(), ErrorKind>);

/// The answers of notices, in the order of the calls.
#[derive(Clone, Default)]
struct RecordedAnswers(Arc<Mutex<Vec<Answer>>>);

impl RecordedAnswers {
    /// Asks for a notice of `seq`.
    fn ask(&self, test: &TestLog, seq: u64) {
        let answers = self.clone();
        test.log.notify(
            SeqNo::new(seq).unwrap(),
            Box::new(move |outcome| {
                answers.0.lock().push((seq, outcome.map_err(|error| error.kind())));
            }),
        );
    }

    fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[test]
fn a_notice_has_the_log_synced_without_waiting_for_the_interval() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    let answers = RecordedAnswers::default();
    let never = Duration::ZERO;
    for _ in 0..3 {
        write(&test.log, 100).unwrap();
    }
    test.log.tend(Duration::ZERO, never).unwrap();
    assert_eq!(test.log.durable_seq().get(), 0, "nothing is synced by itself");
    let wakes = env.wakes.load(Ordering::Relaxed);
    answers.ask(&test, 3);
    answers.ask(&test, 1);
    assert_eq!(env.wakes.load(Ordering::Relaxed), wakes + 1, "once for both");
    assert_eq!(answers.take(), []);
    write(&test.log, 100).unwrap();
    test.log.tend(Duration::from_millis(1), never).unwrap();
    assert_eq!(answers.take(), [(1, Ok(())), (3, Ok(()))]);
    answers.ask(&test, 2);
    assert_eq!(answers.take(), [(2, Ok(()))], "it was durable already");
    // One sync for all that wait, whoever asks for it.
    write(&test.log, 100).unwrap();
    let syncs = env.syncs();
    answers.ask(&test, 5);
    test.log.sync_all().unwrap();
    assert_eq!(answers.take(), [(5, Ok(()))]);
    test.log.tend(Duration::from_millis(2), never).unwrap();
    assert_eq!(env.syncs(), syncs + 1);
    // A number after the log's end is of an operation without a log.
    answers.ask(&test, 9);
    assert_eq!(answers.take(), [(9, Ok(()))]);
    write(&test.log, 100).unwrap();
    answers.ask(&test, 9);
    assert_eq!(answers.take(), []);
    test.log.tend(Duration::from_millis(3), never).unwrap();
    assert_eq!(answers.take(), [(9, Ok(()))]);
}

#[test]
fn notices_hear_of_a_failed_sync_and_of_the_end() {
    let test = TestLog::new(SEGMENT);
    let answers = RecordedAnswers::default();
    write(&test.log, 100).unwrap();
    answers.ask(&test, 1);
    test.faults.add_rule(fail(OpKind::Sync, FaultAction::SyncLost));
    assert!(test.log.sync_all().is_err());
    assert_eq!(answers.take(), [(1, Err(ErrorKind::ReadOnly))]);
    answers.ask(&test, 1);
    assert_eq!(answers.take(), [(1, Err(ErrorKind::ReadOnly))], "and so does a later one");

    let test = TestLog::new(SEGMENT);
    write(&test.log, 100).unwrap();
    answers.ask(&test, 1);
    test.log.shut_notices();
    answers.ask(&test, 1);
    assert_eq!(answers.take(), [(1, Err(ErrorKind::Closed)), (1, Err(ErrorKind::Closed))]);
}

/// The log asks for the sync of its name later, and the kernel reports success.
#[test]
fn a_segment_that_was_in_a_failed_sync_of_the_folder_is_not_listed() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    let folder = test.folder.clone();
    let faults = test.faults.clone();
    test.faults.set_observer(Arc::new(move |op: &FsOp| {
        if op.kind == OpKind::Preallocate {
            faults.clear_observer();
            let at = FaultAt::Op(faults.op_count());
            faults.add_rule(FaultRule::once(at, FaultAction::SyncLost));
            folder.sync_dir(Path::new(DIR)).unwrap_err();
        }
    }));
    write(&test.log, 100).unwrap_err();
    assert_eq!(test.faults.fault_count(), 1);
    assert_eq!(env.listed(), []);
    let seq = write(&test.log, 100).unwrap();
    test.log.sync_all().unwrap();
    let after = test.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert_eq!(batches_in(&after, &env.listed()).unwrap(), [seq]);
}
