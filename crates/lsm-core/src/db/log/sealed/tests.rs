//! Indexes of sealed segments, through failures and power cuts.

use std::time::Duration;

use crate::db::log::tests::{after_each_crash, begun_numbers, fail, write};
use crate::db::testing::{TestLog, batches_in};
use crate::fs::{CrashOutcome, FaultAction, FaultRule, Fs, OpKind};
use crate::types::{MemtableId, PartitionId};
use crate::wal::{SectionIndex, SegmentHeader};

const SEGMENT: u64 = 4096;

/// The operations that the indexes of the sealed segments count, from the oldest segment on; `None` if
/// there is no index.
fn indexed(test: &TestLog) -> Vec<Option<u64>> {
    let begun = test.log.lock().begun();
    let sealed = &begun[..begun.len() - 1];
    let counts = sealed.iter().map(|begun| {
        let path = test.log.segment_path(begun.header.number);
        let file = test.mem.open_read(&path).unwrap();
        let header = SegmentHeader::read(&*file, &path).unwrap().unwrap();
        let end = begun.end_lsn().0 - header.base.0;
        let index = SectionIndex::read(&*file, &header, end)?;
        Some(index.groups.iter().map(|group| group.operations).sum())
    });
    counts.collect()
}

#[test]
fn a_sealed_segment_gets_an_index_of_all_its_sections() {
    let test = TestLog::new(SEGMENT);
    for number in 0..11_u64 {
        if number % 4 == 1 {
            test.log.lock().note_switch(PartitionId(0), MemtableId(number));
        }
        write(&test.log, 1000).unwrap();
    }
    assert_eq!(indexed(&test), [None, None, None], "not on the path of writers");
    test.log.tend_now().unwrap();
    assert_eq!(indexed(&test), [Some(3), Some(3), Some(3)]);
    let lens = test.segment_files().into_iter().map(|name| {
        let path = test.log.settings.dir.join(name);
        test.mem.open_read(&path).unwrap().len().unwrap()
    });
    assert_eq!(test.log.disk_bytes(), lens.sum::<u64>());
    assert_eq!(batches_in(&test.mem, &begun_numbers(&test)).unwrap().len(), 11);
}

/// The memory of a deleted segment is freed without a write to its file.
#[test]
fn a_segment_that_is_gone_gets_no_index() {
    let test = TestLog::new(SEGMENT);
    for _ in 0..4 {
        write(&test.log, 1000).unwrap();
    }
    let first = begun_numbers(&test)[0];
    test.log.segments_removed(&[first]);
    test.faults.start_log();
    test.log.index_sealed().unwrap();
    assert!(test.faults.take_log().is_empty());
    assert!(test.log.lock().state.sealed.is_empty());
}

/// A full disk refuses the reserve for long, and each sealed segment holds memory and an open file.
#[test]
fn segments_are_indexed_although_no_reserve_can_be_made() {
    let test = TestLog::new(SEGMENT);
    for _ in 0..7 {
        write(&test.log, 1000).unwrap();
    }
    let refused = fail(OpKind::Preallocate, FaultAction::Enospc);
    test.faults.add_rule(FaultRule { sticky: true, ..refused });
    test.log.tend(Duration::ZERO, Duration::from_secs(1)).unwrap_err();
    assert!(test.log.lock().state.sealed.is_empty());
    assert_eq!(indexed(&test), [Some(3), Some(3)]);
}

#[test]
fn an_index_that_cannot_be_written_fails_no_write() {
    for action in [FaultAction::Enospc, FaultAction::Eio, FaultAction::ShortWrite(9)] {
        let test = TestLog::new(SEGMENT);
        for _ in 0..4 {
            write(&test.log, 1000).unwrap();
        }
        test.faults.add_rule(fail(OpKind::Append, action));
        // The log thread tells of it.
        test.log.index_sealed().unwrap_err();
        test.faults.heal();
        for _ in 0..4 {
            write(&test.log, 1000).unwrap();
        }
        test.log.tend_now().unwrap();
        assert_eq!(indexed(&test), [None, Some(3)], "{action:?}");
        assert_eq!(batches_in(&test.mem, &begun_numbers(&test)).unwrap().len(), 8);
    }
}

/// The content of the file after its end is unknown then.
#[test]
fn a_segment_with_a_failed_append_gets_no_index() {
    let test = TestLog::new(SEGMENT);
    write(&test.log, 1000).unwrap();
    test.faults.add_rule(fail(OpKind::Append, FaultAction::ShortWrite(500)));
    write(&test.log, 1000).unwrap_err();
    for _ in 0..4 {
        write(&test.log, 1000).unwrap();
    }
    test.log.tend_now().unwrap();
    assert_eq!(indexed(&test), [None, Some(3)]);
    assert_eq!(batches_in(&test.mem, &begun_numbers(&test)).unwrap().len(), 5);
}

/// Power fails before the index is written, or after, with any of its sectors on the device.
#[test]
fn a_power_cut_around_an_index_loses_nothing_that_was_synced() {
    for seed in 0..200_u64 {
        let test = TestLog::new(SEGMENT);
        for _ in 0..7 {
            write(&test.log, 1000).unwrap();
        }
        test.log.sync_all().unwrap();
        if seed % 4 > 0 {
            test.log.index_sealed().unwrap();
        }
        if seed % 4 > 1 {
            write(&test.log, 1000).unwrap();
        }
        after_each_crash(&test, seed, |found, context| {
            assert!(found.len() >= 7, "{context}: {found:?}");
        });
    }
}

/// The header of the next segment is lost with a crash, and the index is not: it ends the log as zeros do.
#[test]
fn an_index_at_the_end_of_the_log_is_no_damage() {
    let test = TestLog::new(SEGMENT);
    let env = &test.env;
    for _ in 0..3 {
        write(&test.log, 1000).unwrap();
    }
    test.log.sync_all().unwrap();
    write(&test.log, 1000).unwrap();
    let after = test.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    test.log.index_sealed().unwrap();
    assert_eq!(indexed(&test), [Some(3)]);
    let first = test.log.segment_path(begun_numbers(&test)[0]);
    after.write_raw(&first, &test.mem.read_raw(&first).unwrap()).unwrap();
    assert_eq!(batches_in(&after, &env.listed()).unwrap(), [1, 2, 3]);
}
