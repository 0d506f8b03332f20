//! The lengths of segments, and the space that the log takes.

use super::super::lengths::{FIRST_SEGMENT_BYTES, SEGMENT_BYTES_MIN};
use super::*;

/// The lengths of the segment files, in the order of their names.
fn lengths(test: &TestLog) -> Vec<u64> {
    let entries = test.mem.list(Path::new("/db"), "").unwrap();
    entries.into_iter().map(|entry| entry.len).collect()
}

/// Writes that the log thread keeps up with.
fn write_many(test: &TestLog, count: usize, bytes: usize) {
    for _ in 0..count {
        write(&test.log, bytes).unwrap();
        test.log.ensure_reserve().unwrap();
    }
}

#[test]
fn segments_grow_with_what_is_written_and_shrink_at_rest() {
    let test = TestLog::new(64 << 20);
    let env = &test.env;
    write(&test.log, 10).unwrap();
    assert_eq!(lengths(&test), [FIRST_SEGMENT_BYTES], "a store that was hardly written to");
    write_many(&test, 100, 1 << 20);
    let grown = lengths(&test);
    assert_eq!(grown.iter().max(), Some(&(64 << 20)), "{grown:?}");
    assert!(grown.len() <= 8, "making one takes three syncs: {grown:?}");
    for _ in 0..3 {
        test.log.tend_now().unwrap();
    }
    assert_eq!(test.log.task(), LogTask::Idle);
    assert_eq!(env.listed().len(), test.log.lock().begun().len(), "no reserve is kept");
    for _ in 0..20 {
        test.log.release_reserve().unwrap();
    }
    let recent = test.log.lock().state.recent;
    assert_eq!(test.log.segment_bytes(recent), SEGMENT_BYTES_MIN);
}

/// Each segment takes three syncs, and a place in the manifest as long as it is live.
#[test]
fn segments_of_a_writer_who_writes_little_do_not_stay_short() {
    let test = TestLog::new(64 << 20);
    let mut made = Vec::new();
    for _ in 0..20_000 {
        write(&test.log, 100).unwrap();
        // At rest between any two, which forgets what was written of late.
        test.log.sync_all().unwrap();
        test.log.release_reserve().unwrap();
        made = lengths(&test);
    }
    let doubled: Vec<u64> = (0..7).map(|n| FIRST_SEGMENT_BYTES << n).collect();
    assert_eq!(made[..7], doubled);
    assert!(made.len() > 8 && made[7..].iter().all(|len| *len == SEGMENT_BYTES_MIN), "{made:?}");
}

#[test]
fn segments_for_small_appends_are_shorter() {
    let test = TestLog::new(64 << 20);
    write_many(&test, 700_000, 100);
    let longest = lengths(&test).into_iter().max().unwrap();
    assert!((12 << 20..24 << 20).contains(&longest), "{longest}");
    // Large ones follow, and get long ones.
    write_many(&test, 300, 1 << 20);
    assert_eq!(lengths(&test).into_iter().max(), Some(64 << 20));
}

#[test]
fn a_log_at_rest_takes_no_more_space_than_its_frames() {
    let test = TestLog::new(64 << 20);
    let env = &test.env;
    for _ in 0..4000 {
        write(&test.log, 10_000).unwrap();
    }
    let capacity = 1 << 30;
    test.mem.set_capacity(Some(capacity));
    test.log.sync_all().unwrap();
    test.log.release_reserve().unwrap();
    let taken = capacity - test.mem.free_bytes(Path::new("/db")).unwrap();
    assert!(taken < 41_000_000, "{taken} bytes for 40 MB of frames");
    // It goes on where it was.
    let seq = write(&test.log, 100).unwrap();
    test.log.sync_all().unwrap();
    let after = test.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert_eq!(batches_in(&after, &env.listed()).unwrap().last(), Some(&seq));
}

#[test]
fn a_log_of_which_all_is_in_tables_goes_on_in_an_empty_segment() {
    let test = TestLog::new(64 << 20);
    let env = &test.env;
    test.log.lock().state.recent.bytes = 1 << 20;
    for _ in 0..60 {
        write(&test.log, 10_000).unwrap();
    }
    let flushed = test.log.lock().lsn();
    let active = write(&test.log, 100).unwrap();
    assert_eq!(test.log.obsolete_segments(flushed).unwrap(), [], "a memtable needs it");
    let end = test.log.lock().lsn();
    for _ in 0..3 {
        test.log.tend_now().unwrap();
    }
    assert!(test.log.lock().lsn() > end, "a mark follows the last batch");
    let before = env.listed();
    test.faults.add_rule(fail(OpKind::Append, FaultAction::Enospc));
    test.log.obsolete_segments(end).unwrap_err();
    assert_eq!(test.log.obsolete_segments(end).unwrap(), before);
    let removed = before.iter().map(|file| Change::SegmentRemoved { file: *file });
    env.install_edit(removed.collect()).unwrap();
    test.log.segments_removed(&before);
    assert_eq!(test.log.obsolete_segments(end).unwrap(), [], "one that is short may stay");
    let seq = write(&test.log, 100).unwrap();
    assert_eq!(seq, active + 1);
    let end = test.log.lock().lsn();
    assert_eq!(test.log.obsolete_segments(end).unwrap(), []);
    test.log.sync_all().unwrap();
    let after = test.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert_eq!(batches_in(&after, &env.listed()).unwrap(), [seq]);
}

#[test]
fn a_segment_that_the_disk_has_no_room_for_is_made_as_long_as_it_can_be() {
    let test = TestLog::new(64 << 20);
    test.log.lock().state.recent.bytes = 64 << 20;
    test.mem.set_capacity(Some(10 << 20));
    write(&test.log, 100).unwrap();
    assert_eq!(lengths(&test), [8 << 20]);
    test.mem.set_capacity(Some(100));
    let test = TestLog::new(64 << 20);
    test.mem.set_capacity(Some(100));
    assert_eq!(write(&test.log, 100).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(test.segment_files().is_empty());
}
