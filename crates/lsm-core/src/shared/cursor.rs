//! The commit cursor: what a primary has committed, for secondaries on the same machine.
//!
//! One file an epoch, mapped by the primary, which stores to it behind every group of commits, and
//! by secondaries, which only load. So a secondary learns for the price of a few loads whether it
//! has everything of a partition. All words are native 64-bit integers:
//!
//! ```text
//! word name
//!    0 magic             "SILTCURS"
//!    1 format version    1
//!    2 database id       low half
//!    3 database id       high half
//!    4 epoch
//!    5 machine run       see `Fs::machine_run`: in another run nothing here is to be believed
//!    6 checksum          XXH3-64 of the words before, as bytes
//!    8 state             0 opening: nothing else counts yet, 1 live, 2 closed, 3 superseded by
//!                        another epoch
//!    9 edit              the last manifest edit that is durable
//!   10 generation        file number of the manifest generation that has it
//!   11 layout edit       the last edit that made, changed or dropped a partition
//!   12 floor             the last sequence that was committed without passing the log
//!   13 end               LSN behind the last frame whose batch is visible
//!   14 visible           the last sequence that readers see
//!   64 slots             960: the last visible sequence of the partitions with this id modulo 960
//! ```
//!
//! Invariants, on which `follow/` stands:
//! 1. A partition's slot, and `floor`, are stored before readers of the primary see what they
//!    speak of. So who has heard of a commit finds it here.
//! 2. `end` is stored behind that, and `visible` behind `end`: everything below `end` is visible
//!    on the primary, and everything through `visible` is below `end` or in the manifest.
//! 3. `edit` is stored behind the sync of the edit, `generation` before `edit`.
//! 4. `state` is superseded before the next epoch acknowledges a write. The cursor of an epoch is there
//!    before its manifest is.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::codec::checksum64;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{Fs, MapMode, SharedWords, names};
use crate::types::{DbId, Epoch, FileNo, PartitionId, SeqNo};

const MAGIC: u64 = u64::from_le_bytes(*b"SILTCURS");
const VERSION: u64 = 1;
const FIXED_WORDS: usize = 6;
const CHECKSUM_AT: usize = 6;
const STATE_AT: usize = 8;
const EDIT_AT: usize = 9;
const GENERATION_AT: usize = 10;
const LAYOUT_AT: usize = 11;
const FLOOR_AT: usize = 12;
const END_AT: usize = 13;
const VISIBLE_AT: usize = 14;
const SLOTS_AT: usize = 64;
const SLOTS: usize = 960;
const OPENING: u64 = 0;
const LIVE: u64 = 1;
const CLOSED: u64 = 2;
const SUPERSEDED: u64 = 3;
/// Length in words.
const WORDS: usize = SLOTS_AT + SLOTS;

/// The state of the epoch of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorState {
    /// Its primary is about to write.
    Opening,
    /// Its primary writes, or died without a word.
    Live,
    /// Its primary closed the database.
    Closed,
    /// Another epoch began.
    Superseded,
}

fn slot_at(id: PartitionId) -> usize {
    SLOTS_AT + id.0 as usize % SLOTS
}

fn fixed_words(db: DbId, epoch: Epoch, machine_run: u64) -> [u64; FIXED_WORDS] {
    [MAGIC, VERSION, db.0 as u64, (db.0 >> 64) as u64, u64::from(epoch.0), machine_run]
}

fn checksum_of(fixed: &[u64; FIXED_WORDS]) -> u64 {
    let bytes: Vec<u8> = fixed.iter().flat_map(|word| word.to_le_bytes()).collect();
    checksum64(&bytes)
}

/// The primary's side of the cursor of its epoch. Without a medium that maps files it tells nobody.
pub struct CursorWriter {
    words: Option<Arc<dyn SharedWords>>,
}

impl CursorWriter {
    /// Makes the cursor of an epoch that is about to begin.
    pub fn create(fs: &dyn Fs, dir: &Path, db: DbId, epoch: Epoch) -> CursorWriter {
        let Some(machine_run) = fs.machine_run() else { return CursorWriter::none() };
        let path = dir.join(names::cursor(epoch));
        let mut words = fs.map_words(&path, MapMode::Create(WORDS));
        if words.is_err() && fs.delete(&path).is_ok() {
            // An open of this epoch may have failed before.
            words = fs.map_words(&path, MapMode::Create(WORDS));
        }
        // No write depends on it: a medium that refuses has secondaries that read the log instead.
        let words = words.ok().flatten();
        if let Some(words) = &words {
            let words = words.words();
            let fixed = fixed_words(db, epoch, machine_run);
            words[CHECKSUM_AT].store(checksum_of(&fixed), Ordering::Relaxed);
            // The magic last: who finds it finds the rest.
            for (at, word) in fixed.iter().enumerate().rev() {
                words[at].store(*word, Ordering::Release);
            }
        }
        CursorWriter { words }
    }

    /// Notes that the epoch begins behind `visible`, once its first edit is noted.
    pub fn begin(&self, visible: SeqNo) {
        self.store(FLOOR_AT, visible.get());
        self.store(VISIBLE_AT, visible.get());
        self.store(STATE_AT, LIVE);
    }

    /// Returns one that tells nobody.
    pub fn none() -> CursorWriter {
        CursorWriter { words: None }
    }

    /// Marks the cursors of earlier epochs superseded and deletes them. Before the first write of
    /// `epoch` is acknowledged.
    ///
    /// # Errors
    /// Those of the file system. A cursor that cannot be marked is not deleted: a secondary that has
    /// mapped it would believe it for ever.
    pub fn supersede_others(fs: &dyn Fs, dir: &Path, epoch: Epoch) -> Result<()> {
        for name in fs.list_names(dir, names::CURSOR_PREFIX)? {
            if names::is_cursor(&name) && name != names::cursor(epoch) {
                let path = dir.join(name);
                match fs.map_words(&path, MapMode::Write) {
                    Ok(Some(words)) if words.words().len() >= WORDS => {
                        words.words()[STATE_AT].store(SUPERSEDED, Ordering::Release);
                    }
                    // No secondary believes a file of another length, or maps one of this medium.
                    Ok(_) => {}
                    Err(error) if is_no_cursor(&error) => {}
                    Err(error) => return Err(error),
                }
                fs.delete(&path)?;
            }
        }
        Ok(())
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(words) = &self.words {
            words.words()[at].store(value, Ordering::Release);
        }
    }

    /// Notes that `seq` is a partition's last operation, before anybody sees it.
    #[inline]
    pub fn touch(&self, id: PartitionId, seq: SeqNo) {
        self.store(slot_at(id), seq.get());
    }

    /// Notes that everything through `visible` is seen by readers, and lies before `end` in the log.
    #[inline]
    pub fn publish(&self, end: u64, visible: SeqNo) {
        if let Some(words) = &self.words {
            let words = words.words();
            words[END_AT].store(end, Ordering::Release);
            words[VISIBLE_AT].store(visible.get(), Ordering::Release);
        }
    }

    /// Notes that `seq` passes no log, before anybody sees it.
    pub fn note_floor(&self, seq: SeqNo) {
        self.store(FLOOR_AT, seq.get());
    }

    /// Notes the last durable edit, and the generation that holds it.
    pub fn note_edit(&self, edit: u64, generation: FileNo) {
        self.store(GENERATION_AT, generation.0);
        self.store(EDIT_AT, edit);
    }

    /// Notes that partitions were made, changed or dropped through `edit`.
    pub fn note_layout(&self, edit: u64) {
        self.store(LAYOUT_AT, edit);
    }

    /// Notes that the database is closed, and deletes the file: its manifest says the rest.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn close(&self, fs: &dyn Fs, dir: &Path, epoch: Epoch) -> Result<()> {
        if self.words.is_none() {
            return Ok(());
        }
        self.store(STATE_AT, CLOSED);
        fs.delete(&dir.join(names::cursor(epoch)))
    }
}

/// Returns `true` if the error says that a file is not there, or has no length of a cursor.
fn is_no_cursor(error: &Error) -> bool {
    let kind = error.io_source().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::InvalidData))
}

/// A secondary's side of a cursor.
pub struct CursorReader {
    words: Arc<dyn SharedWords>,
}

impl CursorReader {
    /// Opens the cursor of an epoch; `None` if there is none that may be believed here.
    ///
    /// # Errors
    /// Those of the file system, but for a missing or strange file.
    pub fn open(fs: &dyn Fs, dir: &Path, db: DbId, epoch: Epoch) -> Result<Option<CursorReader>> {
        let Some(machine_run) = fs.machine_run() else { return Ok(None) };
        let path = dir.join(names::cursor(epoch));
        let words = match fs.map_words(&path, MapMode::Read) {
            Ok(Some(words)) if words.words().len() >= WORDS => words,
            Ok(_) => return Ok(None),
            Err(error) if error.io_source().is_some() => return Ok(None),
            Err(error) => return Err(error),
        };
        let expected = fixed_words(db, epoch, machine_run);
        let found = expected.iter().enumerate();
        let mut found = found.map(|(at, word)| words.words()[at].load(Ordering::Acquire) == *word);
        let is_ours = found.all(|is_same| is_same);
        let sum = words.words()[CHECKSUM_AT].load(Ordering::Acquire);
        let is_believed = is_ours && sum == checksum_of(&expected);
        Ok(is_believed.then_some(CursorReader { words }))
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words.words()[at]
    }

    #[inline]
    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    fn seq(&self, at: usize) -> Result<SeqNo> {
        SeqNo::new(self.load(at)).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the commit cursor holds no sequence number")
        })
    }

    /// The state of the epoch.
    #[inline]
    pub fn state(&self) -> CursorState {
        match self.load(STATE_AT) {
            OPENING => CursorState::Opening,
            LIVE => CursorState::Live,
            CLOSED => CursorState::Closed,
            _ => CursorState::Superseded,
        }
    }

    /// The last durable edit.
    #[inline]
    pub fn edit(&self) -> u64 {
        self.load(EDIT_AT)
    }

    /// The generation that holds [`CursorReader::edit`], if that was loaded before.
    pub fn generation(&self) -> FileNo {
        FileNo(self.load(GENERATION_AT))
    }

    /// Everything before this place is visible on the primary.
    pub fn end(&self) -> u64 {
        self.load(END_AT)
    }

    /// Everything through this sequence lies before [`CursorReader::end`], loaded afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if somebody else has written to the file.
    pub fn visible(&self) -> Result<SeqNo> {
        self.seq(VISIBLE_AT)
    }

    /// The last sequence of a partition that somebody may have heard of, or a later one.
    #[inline]
    pub fn last_seq_of(&self, id: PartitionId) -> u64 {
        self.load(slot_at(id)).max(self.load(FLOOR_AT))
    }

    /// The last sequence that was written to a partition, or to one that shares its slot.
    pub fn slot(&self, id: PartitionId) -> u64 {
        self.load(slot_at(id))
    }

    /// The last edit that made, changed or dropped a partition.
    #[inline]
    pub fn layout_edit(&self) -> u64 {
        self.load(LAYOUT_AT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{AppendMode, MemFs, OsFs};

    const DIR: &str = "/db";

    fn seq(n: u64) -> SeqNo {
        SeqNo::new(n).unwrap()
    }

    fn open(fs: &MemFs, epoch: u32) -> Option<CursorReader> {
        CursorReader::open(fs, DIR.as_ref(), DbId(9), Epoch(epoch)).unwrap()
    }

    fn create(fs: &MemFs, epoch: u32) -> CursorWriter {
        let dir = DIR.as_ref();
        let made = CursorWriter::create(fs, dir, DbId(9), Epoch(epoch));
        assert_eq!(open(fs, epoch).unwrap().state(), CursorState::Opening);
        made.begin(seq(40));
        CursorWriter::supersede_others(fs, dir, Epoch(epoch)).unwrap();
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
    fn the_next_epoch_supersedes_and_a_close_is_told() {
        let fs = folder();
        let _first = create(&fs, 3);
        let reader = open(&fs, 3).unwrap();
        assert_eq!(reader.state(), CursorState::Live);
        let second = create(&fs, 4);
        assert_eq!(reader.state(), CursorState::Superseded);
        assert!(open(&fs, 3).is_none(), "its file is gone");
        let reader = open(&fs, 4).unwrap();
        second.close(&fs, DIR.as_ref(), Epoch(4)).unwrap();
        assert_eq!(reader.state(), CursorState::Closed);
        assert!(open(&fs, 4).is_none());
    }

    #[test]
    fn a_cursor_of_another_database_epoch_or_run_is_not_believed() {
        let fs = folder();
        let _writer = create(&fs, 3);
        let other = CursorReader::open(&fs, DIR.as_ref(), DbId(8), Epoch(3)).unwrap();
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

    /// A secondary that has mapped the cursor would read the state "live" for ever.
    #[test]
    fn a_cursor_that_cannot_be_marked_is_not_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(names::cursor(Epoch(3)));
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let refused = CursorWriter::supersede_others(&OsFs, dir.path(), Epoch(4)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
        assert!(path.is_symlink(), "it is there for the next attempt");
    }

    /// No secondary believes a file of this length.
    #[test]
    fn a_file_of_another_length_than_a_cursor_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(names::cursor(Epoch(3)));
        OsFs.open_append(&path, AppendMode::IfAbsent).unwrap().append(&[7; 100]).unwrap();
        CursorWriter::supersede_others(&OsFs, dir.path(), Epoch(4)).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_a_failed_open_left_is_replaced() {
        let fs = folder();
        let old = open_after(&fs, create(&fs, 3));
        let new = open_after(&fs, create(&fs, 3));
        assert!(!Arc::ptr_eq(&old.words, &new.words));
    }

    fn open_after(fs: &MemFs, _written: CursorWriter) -> CursorReader {
        open(fs, 3).unwrap()
    }
}
