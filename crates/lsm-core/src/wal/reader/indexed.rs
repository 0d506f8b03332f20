//! The part of a reader that followers call to pass a sealed segment by its index of sections.

use std::sync::Arc;

use super::LogReader;
use crate::error::Result;
use crate::wal::{IndexedSections, SEGMENT_HEADER_BYTES, SectionIndex, SegmentHeader};

/// A sealed segment that was passed by its index.
pub struct PassedSegment {
    /// Its header.
    pub header: Arc<SegmentHeader>,
    /// The sections that it has, by partition.
    pub groups: Vec<IndexedSections>,
}

impl LogReader {
    /// Passes the next segment without reading its frames, if nothing of it was read, the next
    /// one's header names its end, and its index of sections is whole. Otherwise nothing changes,
    /// and [`LogReader::next_frame`] reads frame by frame.
    ///
    /// Attestations of the passed frames are not noted: the header of the next segment attests no less.
    ///
    /// # Errors
    /// Those of [`LogReader::next_frame`].
    ///
    /// # Cost
    /// One comparison, except at the front of a segment.
    pub fn pass_indexed(&mut self) -> Result<Option<PassedSegment>> {
        let is_inside = self.current.as_ref().is_some_and(|current| {
            self.offset > SEGMENT_HEADER_BYTES && self.offset < current.limit
        });
        if is_inside {
            return Ok(None);
        }
        if let Some(stop) = self.find_place()? {
            self.stop(stop);
            return Ok(None);
        }
        let current = self.current.as_ref().expect("found above");
        let Some((_, next)) = current.next else { return Ok(None) };
        // Not at the place where a replay begins either: the index counts the sections before it as
        // well, and a reader that catches up would read those again.
        if self.offset != SEGMENT_HEADER_BYTES {
            return Ok(None);
        }
        let end = current.limit;
        let file = &*self.sources[self.idx].file;
        // The header of the next segment has the same numbers for this one, as `cross` compares. An
        // index with other numbers is of another time.
        let index = SectionIndex::read(file, &current.header, end)
            .filter(|index| index.last_seq == next.previous_seq);
        let Some(index) = index else { return Ok(None) };
        let header = Arc::new(current.header);
        self.offset = end;
        self.last_seq = index.last_seq;
        self.clean_close = false;
        Ok(Some(PassedSegment { header, groups: index.groups }))
    }
}
