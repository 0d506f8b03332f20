//! Searches in a log of several segments. Some segments are deleted meanwhile.

use super::*;
use crate::batch::SectionBuilder;
use crate::db::testing::{DB, DIR, EPOCH, TestLog};
use crate::fs::{FsOp, OpKind};
use crate::types::{EntryKind, FileNumbers};
use crate::wal::{Section, section_checksum};

const COUNT: u64 = 20;

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// A log of at least six segments, whose operation `n` puts the key `n`.
fn written() -> TestLog {
    let test = TestLog::new(4096);
    for number in 1..=COUNT {
        let mut section = SectionBuilder::default();
        section.push(EntryKind::Value, &key(number), &[b'x'; 1000]);
        let bytes = section.bytes();
        let checksum = section_checksum(bytes);
        let sections = [Section { partition: PartitionId(0), operations: 1, checksum, bytes }];
        let mut writer = test.log.lock();
        if !writer.has_room(&sections) {
            writer.append().unwrap();
        }
        writer.encode_batch(&sections, 1).unwrap();
        assert_eq!(writer.take_seqs(1), seq(number));
        writer.append().unwrap();
        drop(writer);
        test.log.tend_now().unwrap();
    }
    assert!(test.env.listed().len() >= 6, "{:?}", test.env.listed());
    test
}

fn seq(number: u64) -> SeqNo {
    SeqNo::new(number).unwrap()
}

fn path(number: FileNo) -> PathBuf {
    FileName::new(FileKind::Wal, number, EPOCH).path(Path::new(DIR))
}

/// A search that may have one segment open.
fn search(test: &TestLog) -> LogSearch {
    let fs: Arc<dyn Fs> = Arc::new(test.faults.clone());
    let place = TableFactory {
        fs: fs.clone(),
        files: Some(OpenFiles::new(fs, 1)),
        dir: DIR.into(),
        db_id: DB,
        epoch: EPOCH,
        numbers: Arc::new(FileNumbers::new(FileNo(1))),
        later: None,
        cache: None,
        are_mapped: false,
        under_way: None,
    };
    let segments = test.env.listed().into_iter().map(|number| (number, EPOCH)).collect();
    LogSearch::new(&place, segments, PartitionId(0), [])
}

/// Checks that the operations from `first` on are found, and no others.
#[track_caller]
fn check(search: &LogSearch, first: u64) {
    for number in 1..=COUNT {
        let found = search.find(seq(number)).unwrap().map(|entry| entry.key);
        assert_eq!(found, (number >= first).then(|| key(number)), "{number}");
    }
}

#[test]
fn operations_of_every_segment_are_found_with_one_open_at_a_time() {
    let test = written();
    let search = search(&test);
    check(&search, 1);
    assert_eq!(search.files.as_ref().unwrap().open_count(), 0);
    assert!(search.files.as_ref().unwrap().reopened_count() > 0);
}

/// The search failed for all operations, also for those of segments that are there.
#[test]
fn segments_that_a_flush_has_removed_are_passed_over() {
    let test = written();
    let search = search(&test);
    test.mem.delete(&path(test.env.listed()[0])).unwrap();
    let first = (1..=COUNT).find(|number| search.find(seq(*number)).unwrap().is_some());
    let first = first.unwrap();
    assert!((2..10).contains(&first), "{first}");
    check(&search, first);
}

#[test]
fn a_segment_that_goes_between_its_opening_and_its_reading_is_passed_over() {
    let test = written();
    let search = search(&test);
    let numbers = test.env.listed();
    let first = path(numbers[0]);
    let last = path(numbers[numbers.len() - 1]);
    let mem = test.mem.clone();
    // By then the first one is closed again.
    test.faults.set_observer(Arc::new(move |op: &FsOp| {
        if op.kind == OpKind::OpenRead && *op.path == *last {
            let _ = mem.delete(&first);
        }
    }));
    let found = search.find(seq(COUNT)).unwrap();
    assert_eq!(found.map(|entry| entry.key), Some(key(COUNT)));
}
