//! The segments of the log that are kept for those who follow the changes.
//!
//! The database needs none of them, so their ends are not in memory: the header of the next segment names one, or the
//! manifest does, for the last one of an epoch.

use super::VerifyRun;
use super::files::SegmentPart;
use crate::changes::listed_segments;
use crate::fs::Fs;
use crate::fs::names::{FileKind, FileName};
use crate::types::{Epoch, FileNo};
use crate::wal::{SEGMENT_HEADER_BYTES, SegmentHeader};

impl VerifyRun<'_> {
    /// The part of a retained segment that is read: only its header, if the one that names its end is damaged or gone.
    pub(super) fn retained_part(&self, number: FileNo, epoch: Epoch) -> SegmentPart {
        let version = self.db.catalog.current();
        let end = version.retained.ends.get(&epoch).filter(|end| end.segment == number);
        if let Some(end) = end {
            return SegmentPart::Before(end.offset);
        }
        let listed = listed_segments(&version);
        let later = listed.range(number..).skip(1).filter(|(_, its_epoch)| **its_epoch == epoch);
        for (number_after, epoch) in later {
            let path =
                FileName::new(FileKind::Wal, *number_after, *epoch).path(&self.db.context.dir);
            // Its own damage is reported with it.
            let Ok(file) = self.fs.open_read(&path) else { break };
            let Ok(header) = SegmentHeader::read(&*file, &path) else { break };
            let previous = header.and_then(|header| header.previous);
            if let Some(previous) = previous.filter(|previous| previous.segment == number) {
                return SegmentPart::Before(previous.offset);
            }
        }
        // A segment that no one names may be one that a crash left without a header.
        let path = FileName::new(FileKind::Wal, number, epoch).path(&self.db.context.dir);
        let header = self.fs.open_read(&path).and_then(|file| SegmentHeader::read(&*file, &path));
        match header {
            Ok(None) => SegmentPart::Nothing,
            _ => SegmentPart::Before(SEGMENT_HEADER_BYTES),
        }
    }
}
