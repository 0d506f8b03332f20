//! [`Window`]: the buffer through which segments are read.
//!
//! Called by `reader.rs`, `lookahead.rs`, `survey.rs` and `sections.rs`. It must never show bytes
//! of another file, or bytes from before a wait: a caller that turns to another file, or waits for
//! more, calls [`Window::clear`].
//!
//! Invariants:
//! 1. It holds at most the bytes that it was asked for, or [`CHUNK_BYTES`], and never more than the
//!    caller's `end` allows, which is within the file. So no length from disk decides how much it
//!    allocates.

use crate::error::Result;
use crate::fs::File;

/// The number of bytes read at a time where no more is asked for.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// A buffer that grew beyond this for one frame is given back at the next small read.
const KEPT_BYTES: usize = 8 << 20;

/// A range of a file in memory.
#[derive(Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    start: u64,
    filled: usize,
}

impl Window {
    /// Forgets what was read.
    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    fn range(&self, at: u64, len: usize) -> Option<&[u8]> {
        let skip = usize::try_from(at.checked_sub(self.start)?).ok()?;
        self.bytes[..self.filled].get(skip..skip.checked_add(len)?)
    }

    /// The `len` bytes at `at` as they were last loaded; empty if they are not here.
    pub(super) fn loaded(&self, at: u64, len: usize) -> &[u8] {
        self.range(at, len).unwrap_or(&[])
    }

    /// The `len` bytes at `at`, fewer if `end` or the file's end come first. Reads ahead, up to
    /// `end`.
    pub(super) fn load(&mut self, file: &dyn File, at: u64, len: usize, end: u64) -> Result<&[u8]> {
        let left = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
        let len = len.min(left);
        if self.range(at, len).is_none() {
            // Read ahead: frames follow one another, and most are far shorter than a chunk.
            let wanted = len.max(CHUNK_BYTES).min(left);
            // A buffer of the right size is used again without being cleared.
            if self.bytes.len() < wanted || (self.bytes.len() > KEPT_BYTES && wanted <= CHUNK_BYTES)
            {
                self.bytes = vec![0; wanted];
            }
            // Before the read: after a failed one the old bytes must not be returned for the new
            // place.
            self.filled = 0;
            self.filled = file.read_at(at, &mut self.bytes[..wanted])?;
            self.start = at;
        }
        let got = len.min(self.filled.saturating_sub(self.skip(at)));
        Ok(self.loaded(at, got))
    }

    fn skip(&self, at: u64) -> usize {
        usize::try_from(at.saturating_sub(self.start)).unwrap_or(usize::MAX)
    }
}
