//! The commit cursor: what a primary has committed, for secondaries on the same machine.
//!
//! One file an epoch, mapped by the primary, which stores to it after every group of commits, and
//! by secondaries, which only load. So a secondary learns at the cost of a few loads whether it has
//! everything of a partition. All words are native 64-bit integers:
//!
//! ```text
//! word name
//!    0 magic             "SILTCURS"
//!    1 format version    2; version 1, which has no words 16 and 17, is read
//!    2 database id       low half
//!    3 database id       high half
//!    4 epoch
//!    5 machine run       see `Fs::machine_run`; in another run, the file must not be believed
//!    6 checksum          XXH3-64 of the words before, as bytes
//!    8 state             0 opening: nothing else counts yet, 1 live, 2 closed, 3 superseded
//!    9 edit              the last manifest edit that is durable
//!   10 generation        file number of the manifest generation that has it
//!   11 layout edit       the last edit that made, changed or dropped a partition
//!   12 unlogged          the last sequence that was committed without passing the log
//!   13 end               LSN after the last frame whose batch is visible
//!   14 visible           the last sequence that readers see
//!   15 locked            1 if the writer holds a lock on the file as long as its process lives
//!   16 settled end       LSN after the last frame that the writer may acknowledge
//!   17 settled edit      the last manifest edit that the writer may act on
//!   64 slots             960: the last visible sequence of the partitions with this id modulo 960
//! ```
//!
//! Invariants that `follow/` relies on:
//! 1. A partition's slot, and `unlogged`, are stored before readers of the primary see the operations
//!    that they count. So a reader that knows of a commit finds it here.
//! 2. `end` is stored after that, and `visible` after `end`: everything below `end` is visible on
//!    the primary, and everything through `visible` is below `end` or in the manifest.
//! 3. `edit` is stored after the sync of the edit, `generation` before `edit`.
//! 4. A slot, and `unlogged`, are stored after the append of the frame, or the sync of the edit, that they
//!    count. So operations that a dead writer had stored there and not published are in its files.
//! 5. `state` is superseded before the next epoch acknowledges a write. The cursor of an epoch
//!    exists before its manifest; or it could not be made then, and appears later, live and with all
//!    that was settled: see `commit_cursor/words.rs`.
//! 6. The top bit of words 16 and 17 is the fence: another process sets it, see `shared/fence.rs`, and it is
//!    never cleared. The writer replaces such a word by compare and exchange, after the write of the frame or
//!    edit and before anything follows from it. So for each frame and edit exactly one holds: the writer has
//!    settled it, and the other process has found that here; or it is refused.

mod refusal;
mod words;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use self::words::{CommitCursorFile, CommitCursorWords};
use super::fence::Settled;
use crate::codec::checksum64;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{DirEntry, Fs, MapMode, SharedWords, names};
use crate::types::{DbId, Epoch, FileNo, PartitionId, SeqNo};

/// The first word, in the byte order of the machine.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SILTCURS");
pub(super) const VERSION: u64 = 2;
/// The first version, whose writer cannot be fenced.
const VERSION_WITHOUT_FENCE: u64 = 1;
const FIXED_WORDS: usize = 6;
const CHECKSUM_AT: usize = 6;
pub(super) const STATE_AT: usize = 8;
const EDIT_AT: usize = 9;
const GENERATION_AT: usize = 10;
const LAYOUT_AT: usize = 11;
const UNLOGGED_AT: usize = 12;
const END_AT: usize = 13;
const VISIBLE_AT: usize = 14;
pub(super) const LOCKED_AT: usize = 15;
pub(super) const SETTLED_END_AT: usize = 16;
pub(super) const SETTLED_EDIT_AT: usize = 17;
/// The bit of a settled word with which another process fences its writer.
pub(super) const FENCED: u64 = 1 << 63;
pub(super) const SLOTS_AT: usize = 64;
const SLOTS: usize = 960;
const OPENING: u64 = 0;
pub(super) const LIVE: u64 = 1;
const CLOSED: u64 = 2;
pub(super) const SUPERSEDED: u64 = 3;
/// Length in words.
pub(super) const WORDS: usize = SLOTS_AT + SLOTS;

/// The state of the epoch of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitCursorState {
    /// Its primary is about to write.
    Opening,
    /// Its primary writes, or died without closing.
    Live,
    /// Its primary closed the database.
    Closed,
    /// Another epoch began.
    Superseded,
}

fn slot_at(id: PartitionId) -> usize {
    SLOTS_AT + id.0 as usize % SLOTS
}

pub(super) fn fixed_words(
    version: u64,
    db: DbId,
    epoch: Epoch,
    machine_run: u64,
) -> [u64; FIXED_WORDS] {
    [MAGIC, version, db.0 as u64, (db.0 >> 64) as u64, u64::from(epoch.0), machine_run]
}

pub(super) fn checksum_of(fixed: &[u64; FIXED_WORDS]) -> u64 {
    let bytes: Vec<u8> = fixed.iter().flat_map(|word| word.to_le_bytes()).collect();
    checksum64(&bytes)
}

/// The primary's side of the cursor of its epoch. If the medium maps no files, it stores nothing.
pub struct CommitCursorWriter {
    words: CommitCursorWords,
    /// The first words of the file.
    fixed: [u64; FIXED_WORDS],
    epoch: Epoch,
}

impl CommitCursorWriter {
    /// Makes the cursor of an epoch that is about to begin.
    pub fn create(fs: &dyn Fs, dir: &Path, db: DbId, epoch: Epoch) -> CommitCursorWriter {
        let Some(machine_run) = fs.machine_run() else { return CommitCursorWriter::none() };
        let fixed = fixed_words(VERSION, db, epoch, machine_run);
        let path = dir.join(names::cursor(epoch));
        let words = match CommitCursorFile::make(fs, &path) {
            Ok(None) => return CommitCursorWriter::none(),
            Ok(Some(file)) => {
                file.publish(&fixed);
                CommitCursorWords::of_file(file)
            }
            // No write depends on the file. Until it is made, secondaries read the log instead.
            Err(error) => CommitCursorWords::in_memory(path, error),
        };
        CommitCursorWriter { words, fixed, epoch }
    }

    /// The words, with the time of the next attempt if the file could not be made.
    pub fn later(&self) -> &CommitCursorWords {
        &self.words
    }

    /// Moves the words to `file`, which readers believe from then on. Between two groups of commits and two
    /// edits: a word stored meanwhile would be missing in the file, and a fence could exclude acknowledged
    /// commits.
    pub fn appear(&self, file: CommitCursorFile) {
        self.words.move_to(file, &self.fixed, |words| {
            // A change of partitions is noted after its edit, by a thread that may be stopped in between.
            let edit = words[EDIT_AT].load(Ordering::Relaxed);
            words[LAYOUT_AT].store(edit, Ordering::Relaxed);
        });
    }

    /// Notes that the epoch begins after `visible` with the manifest edit `edit`, once that is noted.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another epoch has begun meanwhile.
    pub fn begin(&self, edit: u64, visible: SeqNo) -> Result<()> {
        self.settle_edit(edit)?;
        // The state last: a secondary that finds it live must not find the zeros of a new file.
        self.store(UNLOGGED_AT, visible.get());
        self.store(VISIBLE_AT, visible.get());
        self.change_state(OPENING, LIVE)
    }

    /// Returns a cursor that stores nothing and cannot be fenced.
    pub fn none() -> CommitCursorWriter {
        let fixed = [0; FIXED_WORDS];
        CommitCursorWriter { words: CommitCursorWords::none(), fixed, epoch: Epoch::default() }
    }

    /// Returns the length of the file; 0 without one.
    pub fn file_bytes(&self) -> u64 {
        self.words.of_others().map_or(0, |words| words.len() as u64 * 8)
    }

    /// Returns the reason why there is no file at present, if it could not be made.
    pub fn failure(&self) -> Option<Error> {
        self.words.failure()
    }

    /// Settles the log through `end`: frames before it are written, and the writer may act on them.
    /// Not before the write, because the process may be stopped between the two.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`]: none of the frames after the last settled place counts, now or later.
    ///
    /// # Cost
    /// A compare and exchange.
    #[inline]
    pub fn settle_end(&self, end: u64) -> Result<()> {
        self.settle(SETTLED_END_AT, end)
    }

    /// Settles the manifest edit `edit`, which is durable: the writer may now act on it.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`]: the edit does not count, now or later.
    pub fn settle_edit(&self, edit: u64) -> Result<()> {
        self.settle(SETTLED_EDIT_AT, edit)
    }

    #[inline]
    fn settle(&self, at: usize, value: u64) -> Result<()> {
        let Some(words) = self.words.get() else { return Ok(()) };
        let word = &words[at];
        let before = word.load(Ordering::Relaxed);
        // Only this writer and a process that fences it store here, so a failed exchange is a
        // fence. Release: the fencing process finds the frame or edit in its file.
        let is_settled = before & FENCED == 0
            && word.compare_exchange(before, value, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if is_settled { Ok(()) } else { Err(self.fenced()) }
    }

    fn change_state(&self, from: u64, to: u64) -> Result<()> {
        let Some(words) = self.words.get() else { return Ok(()) };
        let state = &words[STATE_AT];
        // Never over the mark of another epoch.
        match state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.fenced()),
        }
    }

    /// Marks the cursors of earlier epochs superseded and deletes them. Before the first write of
    /// `epoch` is acknowledged.
    ///
    /// # Errors
    /// Those of the file system. A cursor that cannot be marked is not deleted: a secondary that has mapped
    /// it would always believe it.
    pub fn supersede_others(fs: &dyn Fs, dir: &Path, epoch: Epoch) -> Result<()> {
        // Files alone: no one maps a folder, and a link may lead to a file of another program.
        for DirEntry { name, .. } in fs.list(dir, names::CURSOR_PREFIX)? {
            if names::is_cursor(&name) && name != names::cursor(epoch) {
                let path = dir.join(name);
                match fs.map_words(&path, MapMode::Write) {
                    Ok(Some(words)) if words.words().len() >= WORDS => {
                        // Marked first: a secondary that has it mapped does not notice a deleted name.
                        words.words()[STATE_AT].store(SUPERSEDED, Ordering::Release);
                        // A writer of an earlier epoch that is stopped somewhere finds itself fenced.
                        words.words()[SETTLED_END_AT].fetch_or(FENCED, Ordering::AcqRel);
                        words.words()[SETTLED_EDIT_AT].fetch_or(FENCED, Ordering::AcqRel);
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
        if let Some(words) = self.words.get() {
            words[at].store(value, Ordering::Release);
        }
    }

    /// Notes that `seq` is a partition's last operation, before readers see it.
    #[inline]
    pub fn touch(&self, id: PartitionId, seq: SeqNo) {
        self.store(slot_at(id), seq.get());
    }

    /// Notes that everything through `visible` is seen by readers, and lies before `end` in the log.
    #[inline]
    pub fn publish(&self, end: u64, visible: SeqNo) {
        if let Some(words) = self.words.get() {
            // `end` before `visible`, see invariant 2.
            words[END_AT].store(end, Ordering::Release);
            words[VISIBLE_AT].store(visible.get(), Ordering::Release);
        }
    }

    /// Notes that `seq` is not in the log, before readers see it.
    pub fn note_unlogged(&self, seq: SeqNo) {
        self.store(UNLOGGED_AT, seq.get());
    }

    /// Notes the last durable edit, and the generation that holds it.
    pub fn note_edit(&self, edit: u64, generation: FileNo) {
        // The generation first: a secondary that loads the new edit then finds it in the generation
        // that it loads afterwards.
        self.store(GENERATION_AT, generation.0);
        self.store(EDIT_AT, edit);
    }

    /// Notes that partitions were made, changed or dropped through `edit`.
    pub fn note_layout(&self, edit: u64) {
        self.store(LAYOUT_AT, edit);
    }

    /// Notes that the database is closed, and deletes the file: the manifest has the rest.
    ///
    /// # Errors
    /// Those of the file system; [`ErrorKind::Fenced`], and then the file stays: it shows the next
    /// epoch where this one ended.
    pub fn close(&self, fs: &dyn Fs, dir: &Path, epoch: Epoch) -> Result<()> {
        if self.words.of_others().is_none() {
            return Ok(());
        }
        // The state is fenced last, so it does not say yet that a fence has begun.
        self.check()?;
        // Before the name is deleted: a secondary that has the file mapped sees only its words.
        self.change_state(LIVE, CLOSED)?;
        fs.delete(&dir.join(names::cursor(epoch)))
    }
}

/// Returns `true` if the error means that the file is missing, or does not have the length of a cursor.
pub(super) fn is_no_cursor(error: &Error) -> bool {
    let kind = error.io_source().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::InvalidData))
}

/// Returns `true` if the words are a cursor that begins with the words `expected`.
pub(super) fn is_cursor_of(words: &[AtomicU64], expected: [u64; FIXED_WORDS]) -> bool {
    let mut found = expected.iter().zip(words);
    let is_ours = found.all(|(expected, word)| word.load(Ordering::Acquire) == *expected);
    is_ours && words[CHECKSUM_AT].load(Ordering::Acquire) == checksum_of(&expected)
}

pub(super) fn state_of(word: u64) -> CommitCursorState {
    match word {
        OPENING => CommitCursorState::Opening,
        LIVE => CommitCursorState::Live,
        CLOSED => CommitCursorState::Closed,
        _ => CommitCursorState::Superseded,
    }
}

/// A secondary's side of a cursor.
pub struct CommitCursorReader {
    words: Arc<dyn SharedWords>,
}

impl CommitCursorReader {
    /// Opens the cursor of an epoch; `None` if there is none that may be believed here.
    ///
    /// # Errors
    /// Those of the file system, but for a missing or strange file.
    pub fn open(
        fs: &dyn Fs,
        dir: &Path,
        db: DbId,
        epoch: Epoch,
    ) -> Result<Option<CommitCursorReader>> {
        let Some(machine_run) = fs.machine_run() else { return Ok(None) };
        let path = dir.join(names::cursor(epoch));
        let words = match fs.map_words(&path, MapMode::Read) {
            Ok(Some(words)) if words.words().len() >= WORDS => words,
            // A missing cursor is no error: this medium maps nothing, or the primary has not made
            // the file or not set its length yet. Until then the log shows what is durable.
            Ok(_) => return Ok(None),
            Err(error) if error.io_source().is_some() => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_believed = [VERSION, VERSION_WITHOUT_FENCE].iter().any(|version| {
            is_cursor_of(words.words(), fixed_words(*version, db, epoch, machine_run))
        });
        Ok(is_believed.then_some(CommitCursorReader { words }))
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
    pub fn state(&self) -> CommitCursorState {
        state_of(self.load(STATE_AT))
    }

    /// The last durable edit.
    #[inline]
    pub fn edit(&self) -> u64 {
        self.load(EDIT_AT)
    }

    /// The generation that holds [`CommitCursorReader::edit`], if that was loaded before.
    pub fn generation(&self) -> FileNo {
        FileNo(self.load(GENERATION_AT))
    }

    /// Everything before this place is visible on the primary.
    pub fn end(&self) -> u64 {
        self.load(END_AT)
    }

    /// The end of the settled frames and edits, if a fence of the writer has begun.
    pub fn fenced_at(&self) -> Option<Settled> {
        let end = self.load(SETTLED_END_AT);
        let edit = self.load(SETTLED_EDIT_AT) & !FENCED;
        (end & FENCED != 0 && edit != 0).then_some(Settled { end: end & !FENCED, edit })
    }

    /// Everything through this sequence lies before [`CommitCursorReader::end`], loaded afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if another program has written to the file.
    pub fn visible(&self) -> Result<SeqNo> {
        self.seq(VISIBLE_AT)
    }

    /// The last sequence of a partition that a reader of the primary may know, or a later one.
    #[inline]
    pub fn last_seq_of(&self, id: PartitionId) -> u64 {
        self.load(slot_at(id)).max(self.load(UNLOGGED_AT))
    }

    /// The last sequence that was written to a partition, or to one that shares its slot.
    pub fn slot(&self, id: PartitionId) -> u64 {
        self.load(slot_at(id))
    }

    /// The last sequence that the writer was about to publish: the last one in any slot.
    ///
    /// # Errors
    /// As [`CommitCursorReader::visible`].
    pub fn last_taken(&self) -> Result<SeqNo> {
        // All slots: the sections of a group have each changed their own, in no order of partitions.
        let visible = self.visible()?;
        let mut last = visible.max(self.seq(UNLOGGED_AT)?);
        for slot in SLOTS_AT..WORDS {
            last = last.max(self.seq(slot)?);
        }
        Ok(last)
    }

    /// Returns `true` if the process of the writer has ended without closing the database, perhaps before it
    /// began, and no other epoch has begun. `false` where that cannot be decided.
    ///
    /// # Cost
    /// Opens the file, and takes a lock for a moment.
    pub fn is_writer_dead(&self, fs: &dyn Fs, dir: &Path, epoch: Epoch) -> bool {
        if self.load(LOCKED_AT) != 1 {
            return false;
        }
        let lock = fs.try_lock_shared(&dir.join(names::cursor(epoch)));
        // The state is loaded after the lock: a writer that closes the database stores it before it
        // releases the lock.
        let is_over =
            matches!(self.state(), CommitCursorState::Closed | CommitCursorState::Superseded);
        matches!(lock, Ok(Some(_))) && !is_over
    }

    /// The last edit that made, changed or dropped a partition.
    #[inline]
    pub fn layout_edit(&self) -> u64 {
        self.load(LAYOUT_AT)
    }
}

#[cfg(test)]
mod tests;
