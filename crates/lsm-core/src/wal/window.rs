//! [`Window`]: the buffer through which segments are read.
//!
//! Called by `reader.rs`, `lookahead.rs`, `survey.rs` and `sections.rs`. It must never return bytes
//! of another file, or bytes from before a wait: a caller that turns to another file, or waits for
//! more, calls [`Window::clear`].
//!
//! Invariants:
//! 1. It holds at most the bytes that were requested, or [`CHUNK_BYTES`], and never more than the
//!    caller's `end` allows, which is within the file. So no length from disk decides how much it
//!    allocates.
//! 2. A buffer that a caller kept is never written to again.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::codec::zeroed;
use crate::error::Result;
use crate::fs::File;

/// The number of bytes read at a time if no more is requested.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// A buffer that grew beyond this for one frame is freed at the next small read.
const KEPT_BYTES: usize = 8 << 20;

/// Bytes of a file, in the buffer that they were read to.
#[derive(Clone, Copy)]
pub struct LoadedBytes<'a> {
    buffer: &'a Arc<[u8]>,
    start: usize,
    end: usize,
}

impl<'a> LoadedBytes<'a> {
    /// The bytes.
    pub fn as_slice(self) -> &'a [u8] {
        &self.buffer[self.start..self.end]
    }

    /// A part of the bytes; `None` if `range` is not within them.
    pub(super) fn part(self, range: Range<usize>) -> Option<LoadedBytes<'a>> {
        let start = self.start.checked_add(range.start)?;
        let end = self.start.checked_add(range.end)?;
        (start <= end && end <= self.end).then_some(LoadedBytes { start, end, ..self })
    }

    /// A buffer that outlives the next read, and the range of the bytes in it. It is the buffer
    /// itself if the bytes are most of a long frame, so that a large value is in memory once.
    /// Otherwise it is a copy: a few bytes must not keep a whole buffer.
    pub fn keep(self) -> (Arc<[u8]>, Range<usize>) {
        let len = self.end - self.start;
        if self.buffer.len() > CHUNK_BYTES && len > self.buffer.len() / 2 {
            return (self.buffer.clone(), self.start..self.end);
        }
        (self.as_slice().into(), 0..len)
    }
}

impl fmt::Debug for LoadedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl Deref for LoadedBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// A range of a file in memory.
#[derive(Default)]
pub(super) struct Window {
    buffer: Arc<[u8]>,
    start: u64,
    filled: usize,
}

impl Window {
    /// Forgets what was read.
    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    fn range(&self, at: u64, len: usize) -> Option<LoadedBytes<'_>> {
        let start = usize::try_from(at.checked_sub(self.start)?).ok()?;
        // Only the part that was read, not the whole buffer: after a short read it still contains
        // bytes of an earlier one.
        let all = LoadedBytes { buffer: &self.buffer, start: 0, end: self.filled };
        all.part(start..start.checked_add(len)?)
    }

    /// The `len` bytes at `at` as they were last loaded; empty if they are not here.
    pub(super) fn loaded(&self, at: u64, len: usize) -> LoadedBytes<'_> {
        let none = LoadedBytes { buffer: &self.buffer, start: 0, end: 0 };
        self.range(at, len).unwrap_or(none)
    }

    /// The `len` bytes at `at`, fewer if `end` or the file's end come first. Reads ahead, up to
    /// `end`.
    pub(super) fn load(
        &mut self,
        file: &dyn File,
        at: u64,
        len: usize,
        end: u64,
    ) -> Result<LoadedBytes<'_>> {
        let left = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
        let len = len.min(left);
        if self.range(at, len).is_none() {
            // Read ahead: frames follow one another, and most are far shorter than a chunk.
            let wanted = len.max(CHUNK_BYTES).min(left);
            // Before the read: after a failed one the old bytes must not be returned for the new
            // place.
            self.filled = 0;
            let buffer = self.buffer_of(wanted);
            self.filled = file.read_at(at, buffer)?;
            self.start = at;
        }
        let got = len.min(self.filled.saturating_sub(self.skip(at)));
        Ok(self.loaded(at, got))
    }

    /// Room for `wanted` bytes. A buffer of the right size that no caller kept is used again
    /// without being cleared.
    fn buffer_of(&mut self, wanted: usize) -> &mut [u8] {
        let len = self.buffer.len();
        let is_of_use = len >= wanted && (len <= KEPT_BYTES || wanted > CHUNK_BYTES);
        if !is_of_use || Arc::get_mut(&mut self.buffer).is_none() {
            // Freed before the new one is allocated: it may be as large.
            self.buffer = Arc::default();
            self.buffer = zeroed(wanted);
        }
        let buffer = Arc::get_mut(&mut self.buffer).expect("it has no other owner");
        &mut buffer[..wanted]
    }

    fn skip(&self, at: u64) -> usize {
        usize::try_from(at.saturating_sub(self.start)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fs::{AppendMode, Fs, MemFs};

    fn file_of(bytes: &[u8]) -> Arc<dyn File> {
        let file = MemFs::new().open_append(Path::new("/file"), AppendMode::IfAbsent).unwrap();
        file.append(bytes).unwrap();
        file
    }

    #[test]
    fn most_of_a_long_frame_is_kept_without_a_copy_and_never_changes() {
        let mut bytes = vec![1; 2 * CHUNK_BYTES];
        bytes.extend(vec![2; 2 * CHUNK_BYTES]);
        let file = file_of(&bytes);
        let end = bytes.len() as u64;
        let mut window = Window::default();
        let first = window.load(&*file, 0, 2 * CHUNK_BYTES, end).unwrap();
        let (kept, range) = first.part(8..2 * CHUNK_BYTES).unwrap().keep();
        assert!(Arc::ptr_eq(&kept, &window.buffer));
        assert_eq!(range, 8..2 * CHUNK_BYTES);
        let second = window.load(&*file, end / 2, 2 * CHUNK_BYTES, end).unwrap();
        assert!(second.iter().all(|byte| *byte == 2));
        assert!(kept[range].iter().all(|byte| *byte == 1));
    }

    #[test]
    fn a_small_part_of_a_buffer_is_copied() {
        let file = file_of(&vec![3; 3 * CHUNK_BYTES]);
        let end = 3 * CHUNK_BYTES as u64;
        // One after the other: most of a chunk that was read ahead, and a third of a long frame.
        for (len, part) in [(16, CHUNK_BYTES), (3 * CHUNK_BYTES, CHUNK_BYTES)] {
            let mut window = Window::default();
            window.load(&*file, 0, len, end).unwrap();
            let (kept, range) = window.loaded(0, part).keep();
            assert_eq!((kept.len(), range), (part, 0..part));
            let buffer = window.buffer.as_ptr();
            window.load(&*file, 2 * CHUNK_BYTES as u64, 16, end).unwrap();
            assert_eq!(window.buffer.as_ptr(), buffer, "the buffer is used again");
        }
    }
}
