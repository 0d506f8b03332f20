//! The commit cursor as the fence of the versions: see [`WriteFence`].

use crate::error::{Error, Result};
use crate::shared::CommitCursorWriter;
use crate::version::WriteFence;

impl WriteFence for CommitCursorWriter {
    fn check(&self) -> Result<()> {
        self.check()
    }

    fn is_fenced(&self) -> bool {
        self.is_fenced()
    }

    fn settle_edit(&self, number: u64) -> Result<()> {
        self.settle_edit(number)
    }

    fn note_failure(&self, error: &Error) {
        self.note_failure(error);
    }
}
