//! The refusal of a writer: by the fence of another process, or by the storage. The part of
//! [`CommitCursorWriter`] that every write asks.

use std::sync::atomic::Ordering;

use super::{CommitCursorWriter, FENCED, SETTLED_END_AT};
use crate::error::{Error, ErrorKind, Result};

impl CommitCursorWriter {
    /// Notes the failure of a write of this epoch. If the storage says that another writer has the database,
    /// this writer is fenced for good, as by the words of the cursor.
    pub fn note_failure(&self, error: &Error) {
        if error.kind() == ErrorKind::Fenced {
            self.words.refuse();
        }
    }

    /// Returns an error if another process has fenced this writer.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`].
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_fenced() { Err(self.fenced()) } else { Ok(()) }
    }

    /// Returns `true` if another process has fenced this writer.
    #[inline]
    pub fn is_fenced(&self) -> bool {
        self.words.is_refused()
            || self
                .words
                .of_others()
                .is_some_and(|words| words[SETTLED_END_AT].load(Ordering::Relaxed) & FENCED != 0)
    }

    #[cold]
    pub(super) fn fenced(&self) -> Error {
        let epoch = self.epoch;
        let message = format!(
            "another process has taken the database over from this handle, which is of epoch {epoch}"
        );
        Error::new(ErrorKind::Fenced, message)
    }
}
