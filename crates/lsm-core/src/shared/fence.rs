//! [`OldCommitCursor`]: the cursor of a primary from which another process takes the database over.
//!
//! Used by a promotion (`db/ownership.rs`), under the lock of its claim. The old primary may be stopped
//! at any place, also between two instructions, and continue later. It settles each frame and each
//! edit in a word of its cursor after it has written them, by compare and exchange
//! (`shared/commit_cursor.rs`, invariant 6). A fence sets a bit in these words, so that each later
//! exchange fails, and takes their values with the same instruction. That is more than the usual
//! fence between a store and a load: with that one, a frame could be refused by the old primary and
//! found by the new one. Here both always agree.
//!
//! Invariants:
//! 1. The log is fenced before the edits: an edit that is settled in between concerns operations
//!    that were settled before.
//! 2. A fence is never removed, and a second one finds the same end as the first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::commit_cursor::{
    CommitCursorState, FENCED, LIVE, LOCKED_AT, SETTLED_EDIT_AT, SETTLED_END_AT, STATE_AT,
    SUPERSEDED, VERSION, WORDS, fixed_words, is_cursor_of, state_of,
};
use crate::error::Result;
use crate::fs::{Fs, MapMode, SharedWords, names};
use crate::types::{DbId, Epoch};

/// The end of the frames and edits that a primary has settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// LSN after the last frame that counts.
    pub end: u64,
    /// The last manifest edit that counts.
    pub edit: u64,
}

/// The cursor of a primary that is being taken over.
pub struct OldCommitCursor {
    words: Arc<dyn SharedWords>,
    path: PathBuf,
}

impl OldCommitCursor {
    /// Opens the cursor of an epoch; `None` if there is none that may be believed here, or if its writer
    /// is of a version that cannot be fenced.
    ///
    /// # Errors
    /// Those of the file system, but for a missing or strange file.
    pub fn open(
        fs: &dyn Fs,
        dir: &Path,
        db: DbId,
        epoch: Epoch,
    ) -> Result<Option<OldCommitCursor>> {
        let Some(machine_run) = fs.machine_run() else { return Ok(None) };
        let path = dir.join(names::cursor(epoch));
        let words = match fs.map_words(&path, MapMode::Write) {
            Ok(Some(words)) if words.words().len() >= WORDS => words,
            Ok(_) => return Ok(None),
            Err(error) if super::commit_cursor::is_no_cursor(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_believed = is_cursor_of(words.words(), fixed_words(VERSION, db, epoch, machine_run));
        Ok(is_believed.then_some(OldCommitCursor { words, path }))
    }

    /// The state of the epoch.
    pub fn state(&self) -> CommitCursorState {
        state_of(self.words.words()[STATE_AT].load(Ordering::Acquire))
    }

    /// Returns `true` if the process of the writer lives. `false` if that cannot be decided.
    pub fn is_writer_alive(&self, fs: &dyn Fs) -> bool {
        let is_locked = self.words.words()[LOCKED_AT].load(Ordering::Acquire) == 1;
        is_locked && matches!(fs.try_lock_shared(&self.path), Ok(None))
    }

    /// Returns `true` if the writer lives, and has neither closed the database nor been fenced.
    pub fn is_live(&self, fs: &dyn Fs) -> bool {
        self.state() == CommitCursorState::Live && self.is_writer_alive(fs)
    }

    /// The end of all that the writer has settled by now; `None` if its epoch has not begun.
    pub fn settled(&self) -> Option<Settled> {
        let words = self.words.words();
        // In the order of a fence.
        let end = words[SETTLED_END_AT].load(Ordering::Acquire) & !FENCED;
        let edit = words[SETTLED_EDIT_AT].load(Ordering::Acquire) & !FENCED;
        (edit != 0).then_some(Settled { end, edit })
    }

    /// Fences the writer: from now on it settles nothing. Returns what it had settled; `None` if its
    /// epoch had not begun.
    pub fn fence(&self) -> Option<Settled> {
        let words = self.words.words();
        let end = words[SETTLED_END_AT].fetch_or(FENCED, Ordering::AcqRel) & !FENCED;
        let edit = words[SETTLED_EDIT_AT].fetch_or(FENCED, Ordering::AcqRel) & !FENCED;
        // For secondaries. It does not replace the mark of a close: then the writer has released
        // its lock.
        let _ =
            words[STATE_AT].compare_exchange(LIVE, SUPERSEDED, Ordering::AcqRel, Ordering::Acquire);
        (edit != 0).then_some(Settled { end, edit })
    }

    /// Returns `true` if a fence has begun: the writer refuses frames from its first word on, even
    /// if the claimant died before the second.
    pub fn is_fenced(&self) -> bool {
        self.words.words()[SETTLED_END_AT].load(Ordering::Acquire) & FENCED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::fs::MemFs;
    use crate::shared::CommitCursorWriter;
    use crate::types::SeqNo;

    const DIR: &str = "/db";

    fn writer(fs: &MemFs) -> CommitCursorWriter {
        fs.create_dir(DIR.as_ref()).unwrap();
        let writer = CommitCursorWriter::create(fs, DIR.as_ref(), DbId(9), Epoch(3));
        writer.begin(4, SeqNo::ZERO).unwrap();
        writer
    }

    fn old(fs: &MemFs) -> OldCommitCursor {
        OldCommitCursor::open(fs, DIR.as_ref(), DbId(9), Epoch(3)).unwrap().unwrap()
    }

    #[test]
    fn what_is_settled_before_the_fence_counts_and_nothing_after_it() {
        let fs = MemFs::new();
        let writer = writer(&fs);
        writer.settle_end(80).unwrap();
        writer.settle_edit(5).unwrap();
        let old = old(&fs);
        assert!(!old.is_fenced() && old.is_live(&fs));
        let settled = Settled { end: 80, edit: 5 };
        assert_eq!(old.fence(), Some(settled));
        assert_eq!(writer.settle_end(96).unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(writer.settle_edit(6).unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(writer.check().unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(old.fence(), Some(settled), "a second fence finds the same");
        assert_eq!(old.settled(), Some(settled), "without the marks of the fence");
        assert_eq!(old.state(), CommitCursorState::Superseded);
        assert!(old.is_writer_alive(&fs) && !old.is_live(&fs));
    }

    #[test]
    fn a_fenced_writer_does_not_close_and_leaves_its_cursor() {
        let fs = MemFs::new();
        let writer = writer(&fs);
        let fenced = old(&fs);
        fenced.fence();
        let refused = writer.close(&fs, DIR.as_ref(), Epoch(3)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced);
        assert_eq!(old(&fs).state(), CommitCursorState::Superseded);
        drop(writer);
        assert!(!old(&fs).is_writer_alive(&fs), "its lock is free");
    }

    /// Its lock is free then, and a claimant looks for that.
    #[test]
    fn a_fence_after_a_close_leaves_the_mark_of_the_close() {
        let fs = MemFs::new();
        let writer = writer(&fs);
        let closed = old(&fs);
        writer.close(&fs, DIR.as_ref(), Epoch(3)).unwrap();
        assert!(closed.fence().is_some());
        assert_eq!(closed.state(), CommitCursorState::Closed);
    }

    /// A file system may have no lock for the cursor: then it does not show who lives.
    #[test]
    fn a_writer_whose_cursor_has_no_lock_is_not_known_to_live() {
        let fs = MemFs::new();
        let _writer = writer(&fs);
        let old = old(&fs);
        assert!(old.is_writer_alive(&fs));
        old.words.words()[LOCKED_AT].store(0, Ordering::Release);
        assert!(!old.is_writer_alive(&fs) && !old.is_live(&fs));
    }

    /// A claimant died between the two words.
    #[test]
    fn half_a_fence_is_one() {
        let fs = MemFs::new();
        let writer = writer(&fs);
        writer.settle_end(80).unwrap();
        writer.settle_edit(5).unwrap();
        let old = old(&fs);
        old.words.words()[SETTLED_END_AT].fetch_or(FENCED, Ordering::AcqRel);
        assert_eq!(writer.settle_end(96).unwrap_err().kind(), ErrorKind::Fenced);
        assert!(old.is_fenced(), "the frame was refused");
        let refused = writer.close(&fs, DIR.as_ref(), Epoch(3)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced);
        assert_eq!(old.fence(), Some(Settled { end: 80, edit: 5 }));
    }

    #[test]
    fn a_writer_that_is_opening_does_not_begin_after_a_fence() {
        let fs = MemFs::new();
        fs.create_dir(DIR.as_ref()).unwrap();
        let writer = CommitCursorWriter::create(&fs, DIR.as_ref(), DbId(9), Epoch(3));
        assert_eq!(old(&fs).fence(), None, "nothing is settled");
        assert_eq!(writer.begin(4, SeqNo::ZERO).unwrap_err().kind(), ErrorKind::Fenced);
    }

    #[test]
    fn a_cursor_without_a_fence_is_followed_and_not_fenced() {
        let fs = MemFs::new();
        let _writer = writer(&fs);
        let path = Path::new(DIR).join(names::cursor(Epoch(3)));
        let words = fs.map_words(&path, MapMode::Write).unwrap().unwrap();
        words.words()[1].store(1, Ordering::Release);
        let fixed = fixed_words(1, DbId(9), Epoch(3), fs.machine_run().unwrap());
        let sum = super::super::commit_cursor::checksum_of(&fixed);
        words.words()[6].store(sum, Ordering::Release);
        assert!(OldCommitCursor::open(&fs, DIR.as_ref(), DbId(9), Epoch(3)).unwrap().is_none());
        let reader = super::super::CommitCursorReader::open(&fs, DIR.as_ref(), DbId(9), Epoch(3));
        assert!(reader.unwrap().is_some());
    }
}
