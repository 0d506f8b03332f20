//! [`SectionLoader`]: loads sections of the log, one after another, from places that a reader of
//! headers found.
//!
//! Used by secondaries, which skip the sections that no reader asks for and load them later. It
//! never yields bytes that do not match their checksum.

use super::window::{LoadedBytes, Window};
use super::{SectionPlace, SegmentSource, section_checksum};
use crate::error::{Error, Result};
use crate::types::FileNo;

/// Loads sections, with a piece of their segment in memory. Valid for one pass over places that are
/// known to be written: its read-ahead becomes stale.
#[derive(Default)]
pub struct SectionLoader {
    window: Window,
    segment: Option<FileNo>,
}

impl SectionLoader {
    /// The bytes of a section in `source`, in which everything before `end` is written.
    ///
    /// # Errors
    /// Those of reading; corruption if the bytes are not what the frame says.
    pub fn load(
        &mut self,
        source: &SegmentSource,
        place: &SectionPlace,
        end: u64,
    ) -> Result<LoadedBytes<'_>> {
        // Places are offsets of one file: bytes of another file would be noticed only by the
        // checksum.
        if self.segment != Some(source.number) {
            self.window.clear();
            self.segment = Some(source.number);
        }
        // The section itself is known to be written, even if the caller's end is older.
        let end = end.max(place.offset + place.len as u64);
        let bytes = self.window.load(&*source.file, place.offset, place.len, end)?;
        if bytes.len() < place.len || section_checksum(&bytes) != place.checksum {
            let what = "section checksum does not match";
            return Err(Error::corruption(&source.path, place.offset, what));
        }
        Ok(bytes)
    }
}
