//! Words, bytes and states of the commit cursor.

use super::*;
use crate::fs::{AppendMode, FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind, OsFs};
use crate::shared::{OldCommitCursor, Settled};

const DIR: &str = "/db";

fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

fn open(fs: &MemFs, epoch: u32) -> Option<CommitCursorReader> {
    CommitCursorReader::open(fs, DIR.as_ref(), DbId(9), Epoch(epoch)).unwrap()
}

fn create(fs: &MemFs, epoch: u32) -> CommitCursorWriter {
    let dir = DIR.as_ref();
    let made = CommitCursorWriter::create(fs, dir, DbId(9), Epoch(epoch));
    assert_eq!(open(fs, epoch).unwrap().state(), CommitCursorState::Opening);
    made.begin(1, seq(40)).unwrap();
    CommitCursorWriter::supersede_others(fs, dir, Epoch(epoch)).unwrap();
    made
}

fn folder() -> MemFs {
    let fs = MemFs::new();
    fs.create_dir(DIR.as_ref()).unwrap();
    fs
}

#[test]
fn a_reader_finds_what_the_writer_says() {
    let fs = folder();
    let writer = create(&fs, 3);
    let reader = open(&fs, 3).unwrap();
    assert_eq!((reader.visible().unwrap(), reader.last_seq_of(PartitionId(1))), (seq(40), 40));
    writer.touch(PartitionId(7), seq(41));
    writer.publish(128, seq(41));
    writer.note_edit(5, FileNo(2));
    writer.note_layout(4);
    assert_eq!((reader.end(), reader.visible().unwrap()), (128, seq(41)));
    assert_eq!((reader.edit(), reader.generation(), reader.layout_edit()), (5, FileNo(2), 4));
    assert_eq!(reader.last_seq_of(PartitionId(7)), 41);
    assert_eq!(reader.last_seq_of(PartitionId(7 + 960)), 41, "who shares a slot looks newer");
    assert_eq!(reader.last_seq_of(PartitionId(8)), 40);
}

#[test]
fn the_next_epoch_supersedes_and_a_close_is_reported() {
    let fs = folder();
    let _first = create(&fs, 3);
    let reader = open(&fs, 3).unwrap();
    assert_eq!(reader.state(), CommitCursorState::Live);
    let second = create(&fs, 4);
    assert_eq!(reader.state(), CommitCursorState::Superseded);
    assert!(open(&fs, 3).is_none(), "its file is gone");
    let reader = open(&fs, 4).unwrap();
    second.close(&fs, DIR.as_ref(), Epoch(4)).unwrap();
    assert_eq!(reader.state(), CommitCursorState::Closed);
    assert!(open(&fs, 4).is_none());
}

#[test]
fn a_cursor_of_another_database_epoch_or_run_is_not_believed() {
    let fs = folder();
    let _writer = create(&fs, 3);
    let other = CommitCursorReader::open(&fs, DIR.as_ref(), DbId(8), Epoch(3)).unwrap();
    assert!(other.is_none() && open(&fs, 2).is_none());
    let path = std::path::Path::new(DIR).join(names::cursor(Epoch(3)));
    let words = fs.map_words(&path, MapMode::Write).unwrap().unwrap();
    for at in [0, 1, 2, 4, 5, CHECKSUM_AT] {
        let before = words.words()[at].swap(77, Ordering::AcqRel);
        assert!(open(&fs, 3).is_none(), "word {at}");
        words.words()[at].store(before, Ordering::Release);
    }
    assert!(open(&fs, 3).is_some());
}

/// A writer that was stopped does not see that the next epoch begins.
#[test]
fn a_writer_whose_cursor_is_superseded_settles_nothing() {
    let fs = folder();
    let old = create(&fs, 3);
    old.settle_end(128).unwrap();
    old.settle_edit(5).unwrap();
    let new = create(&fs, 4);
    assert_eq!(old.settle_end(256).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(old.settle_edit(6).unwrap_err().kind(), ErrorKind::Fenced);
    new.settle_end(256).unwrap();
}

/// It may lead to a file of another program.
#[cfg(unix)]
#[test]
fn a_link_under_the_name_of_a_cursor_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(names::cursor(Epoch(3)));
    std::os::unix::fs::symlink(&path, &path).unwrap();
    CommitCursorWriter::supersede_others(&OsFs, dir.path(), Epoch(4)).unwrap();
    assert!(path.is_symlink());
}

/// No secondary believes a file of this length.
#[test]
fn a_file_of_another_length_than_a_cursor_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(names::cursor(Epoch(3)));
    OsFs.open_append(&path, AppendMode::IfAbsent).unwrap().append(&[7; 100]).unwrap();
    CommitCursorWriter::supersede_others(&OsFs, dir.path(), Epoch(4)).unwrap();
    assert!(!path.exists());
}

#[test]
fn what_a_failed_open_left_is_replaced() {
    let fs = folder();
    let old = open_after(&fs, create(&fs, 3));
    let new = open_after(&fs, create(&fs, 3));
    assert!(!Arc::ptr_eq(&old.words, &new.words));
}

fn open_after(fs: &MemFs, _written: CommitCursorWriter) -> CommitCursorReader {
    open(fs, 3).unwrap()
}

#[test]
fn golden_cursor() {
    let fs = folder();
    let writer = create(&fs, 3);
    writer.touch(PartitionId(962), seq(41));
    writer.publish(128, seq(42));
    writer.note_unlogged(seq(43));
    writer.note_edit(5, FileNo(2));
    writer.note_layout(4);
    writer.settle_end(144).unwrap();
    writer.settle_edit(6).unwrap();
    let path = Path::new(DIR).join("cursor-00000003");
    let found = fs.map_words(&path, MapMode::Read).unwrap().unwrap();
    let found: Vec<u64> = found.words().iter().map(|word| word.load(Ordering::Relaxed)).collect();
    let run = fs.machine_run().unwrap();
    let mut expected = vec![0; 1024];
    expected[..6].copy_from_slice(&[u64::from_le_bytes(*b"SILTCURS"), 2, 9, 0, 3, run]);
    expected[6] = found[6];
    // State, edit, generation, layout edit, unlogged, end, visible, locked, settled end and edit.
    expected[8..18].copy_from_slice(&[1, 5, 2, 4, 43, 128, 42, 1, 144, 6]);
    expected[64 + 2] = 41;
    assert_eq!(found, expected);
    assert_eq!(checksum_of(&[0x0102, 2, 3, 4, 5, 6]), 9_778_025_456_949_412_962);
}

#[test]
fn a_writer_is_dead_when_its_lock_is_free_and_it_has_not_closed() {
    let fs = folder();
    let dir = Path::new(DIR);
    let writer = create(&fs, 3);
    let reader = open(&fs, 3).unwrap();
    assert!(!reader.is_writer_dead(&fs, dir, Epoch(3)));
    writer.touch(PartitionId(7), seq(44));
    drop(writer);
    assert!(reader.is_writer_dead(&fs, dir, Epoch(3)));
    assert_eq!((reader.visible().unwrap(), reader.last_taken().unwrap()), (seq(40), seq(44)));
    let next = create(&fs, 4);
    assert!(!reader.is_writer_dead(&fs, dir, Epoch(3)), "the next epoch has its own cursor");
    let reader = open(&fs, 4).unwrap();
    next.note_unlogged(seq(50));
    assert_eq!(reader.last_taken().unwrap(), seq(50));
    // The file is still there, as if its deletion had failed.
    let path = dir.join(names::cursor(Epoch(4)));
    let words = fs.map_words(&path, MapMode::Write).unwrap().unwrap();
    words.words()[STATE_AT].store(CLOSED, Ordering::Release);
    drop(next);
    assert!(!reader.is_writer_dead(&fs, dir, Epoch(4)), "it has closed the database");
}

fn claimant(fs: &MemFs) -> Option<OldCommitCursor> {
    OldCommitCursor::open(fs, DIR.as_ref(), DbId(9), Epoch(3)).unwrap()
}

/// It is believed with all words, or not at all, and a fence takes what was settled before there was a file.
#[test]
fn a_file_that_is_made_later_says_all_that_was_settled() {
    let mem = folder();
    let fault = FaultFs::over_mem(mem.clone());
    let at = FaultAt::Nth { kind: OpKind::MapWords, suffix: String::new(), nth: 0 };
    fault.add_rule(FaultRule::sticky(at, FaultAction::Enospc));
    let dir: &Path = DIR.as_ref();
    let writer = CommitCursorWriter::create(&fault, dir, DbId(9), Epoch(3));
    assert_eq!(writer.failure().unwrap().kind(), ErrorKind::NoSpace);
    writer.note_edit(4, FileNo(2));
    writer.begin(4, seq(40)).unwrap();
    writer.settle_end(80).unwrap();
    writer.touch(PartitionId(7), seq(41));
    writer.publish(80, seq(41));
    writer.settle_edit(5).unwrap();
    writer.note_edit(5, FileNo(2));
    assert!(!writer.is_fenced() && open(&mem, 3).is_none());
    assert!(writer.later().make_file(&fault).is_none());
    fault.heal();
    let file = writer.later().make_file(&fault).unwrap();
    assert!(open(&mem, 3).is_none() && claimant(&mem).is_none(), "it says nothing yet");
    writer.appear(file);
    assert!(writer.failure().is_none());
    let reader = open(&mem, 3).unwrap();
    assert_eq!(
        (reader.state(), reader.end(), reader.visible().unwrap()),
        (CommitCursorState::Live, 80, seq(41))
    );
    assert_eq!((reader.edit(), reader.generation(), reader.layout_edit()), (5, FileNo(2), 5));
    assert_eq!([7, 8].map(|id| reader.last_seq_of(PartitionId(id))), [41, 40]);
    assert!(claimant(&mem).unwrap().is_live(&mem), "the lock of its process is held");
    assert_eq!(claimant(&mem).unwrap().fence(), Some(Settled { end: 80, edit: 5 }));
    assert!(writer.is_fenced());
    assert_eq!(writer.settle_end(96).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(writer.settle_edit(6).unwrap_err().kind(), ErrorKind::Fenced);
}

/// A close has no file to delete, and a file that comes too late is none of its epoch.
#[test]
fn an_epoch_ends_without_a_file() {
    let mem = folder();
    let fault = FaultFs::over_mem(mem.clone());
    let at = FaultAt::Nth { kind: OpKind::MapWords, suffix: String::new(), nth: 0 };
    fault.add_rule(FaultRule::sticky(at, FaultAction::Eio));
    let writer = CommitCursorWriter::create(&fault, DIR.as_ref(), DbId(9), Epoch(3));
    writer.begin(1, seq(40)).unwrap();
    writer.close(&fault, DIR.as_ref(), Epoch(3)).unwrap();
}
