//! Indexes of sections for sealed segments: written by the log thread, after the last frame.
//!
//! No writer waits for one, and none is synced: `wal/section_index.rs` explains why that is enough.

use super::state::{SealedSegment, WriterState};
use super::{Log, LogWriter};
use crate::error::Result;
use crate::types::FileNo;

impl Log {
    /// Writes the indexes of the segments that were sealed since the last call and are still live.
    ///
    /// # Errors
    /// Those of the appends, for a report only: a segment without a whole index is walked. The write is not
    /// tried again, because the content after the frames is unknown then.
    pub(in crate::db) fn index_sealed(&self) -> Result<()> {
        let mut writer = self.lock();
        let sealed = std::mem::take(&mut writer.state.sealed);
        // The rest is done without the lock: writers do not wait for an index.
        drop(writer);
        // A segment may be removed meanwhile: an index in a deleted file is harmless.
        self.append_indexes(sealed, |number, len| self.lock().state.note_index(number, len))
    }

    /// Drops the segments that wait for their indexes.
    pub(in crate::db) fn forget_sealed(&self) {
        self.lock().state.sealed.clear();
    }

    /// Appends the indexes of all that get one, and calls `note` with the number of each segment and the length
    /// of its index. Returns the first error.
    fn append_indexes(
        &self,
        sealed: Vec<SealedSegment>,
        mut note: impl FnMut(FileNo, u64),
    ) -> Result<()> {
        let mut result = Ok(());
        for segment in sealed {
            let appended = self.append_index(segment);
            result = result.and(appended.map(|index| {
                if let Some((number, len)) = index {
                    note(number, len);
                }
            }));
        }
        result
    }

    /// The segment with its index, and the length of that; `None` for a segment that gets none.
    fn append_index(&self, sealed: SealedSegment) -> Result<Option<(FileNo, u64)>> {
        let SealedSegment { segment, last_seq, sections } = sealed;
        // After a failed append no index is written: the index would list a frame that may not be in the
        // segment.
        let index = sections.finish(segment.header(), segment.offset(), last_seq);
        let Some(index) = index else { return Ok(None) };
        segment.file().append(&index)?;
        let number = segment.header().number;
        let len = index.len() as u64;
        self.files.note_grown(number, segment.offset() + len);
        Ok(Some((number, len)))
    }
}

impl LogWriter<'_> {
    /// Writes the indexes of the sealed segments, and closes these. The log thread usually does that, without the
    /// lock of the writer.
    ///
    /// # Errors
    /// As [`Log::index_sealed`].
    pub(super) fn index_sealed(&mut self) -> Result<()> {
        let sealed = std::mem::take(&mut self.state.sealed);
        self.log.append_indexes(sealed, |number, len| self.state.note_index(number, len))
    }
}

impl WriterState {
    /// Notes the index of a segment, for verification, which reads it from here on.
    fn note_index(&mut self, number: FileNo, len: u64) {
        let mut closed = self.closed.iter_mut();
        if let Some(closed) = closed.find(|closed| closed.header.number == number) {
            closed.index_bytes = len;
        }
    }
}

#[cfg(test)]
mod tests;
