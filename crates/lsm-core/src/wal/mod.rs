//! The write-ahead log as bytes: segments, the frames in them, and the chain that they form.
//!
//! The commit path writes it; recovery and followers read it. This folder knows partitions only by
//! their ids, and sections only as bytes. Code above it knows operations, and decides which
//! segments are live and when to sync. The bytes are described in the file that makes them: the
//! header of a segment in `segment.rs`, frames in `frame.rs`.
//!
//! ```text
//! segment = header, frame*, an index of sections in most sealed ones, zeros up to the preallocated
//!           length
//! log     = segments in the order of their numbers, each naming the end of the one before
//! ```
//!
//! ```text
//! segment.rs, frame.rs    the bytes
//! writer.rs               appends
//! reader.rs, window.rs    the replay; lookahead.rs judges a bad place
//! sections.rs             one section, read by its place
//! section_index.rs        where the sections of each partition lie in a sealed segment
//! survey.rs, describe.rs  everything in one segment, damage included
//! ```
//!
//! Invariants:
//! 1. Every frame verifies only in its own segment and at its own offset.
//! 2. A frame attests how far the log was known durable when the frame was built. Damage below an
//!    attested place is `Corruption`. Anything else that is not a frame ends the log there, and
//!    nothing after it is replayed, in any segment.
//! 3. Bytes after the end that the next segment's header names belong to refused writes, or are an
//!    index of sections, and are never replayed.
//! 4. A failed read is an error; it never ends the log.
//!
//! These hold only if the caller keeps four rules:
//!
//! - After a failed append, the next segment's header is durable before the refused writers learn
//!   of the failure, and before anything later is acknowledged.
//! - A place is called durable only when every byte of the log before it is durable, in each
//!   segment.
//! - Before the header of a segment is written, the manifest lists the segment and its preallocated
//!   zeros are durable.
//! - Segments are begun in the order of their numbers.

#[cfg(feature = "internals")]
pub mod decoders;
mod describe;
pub mod frame;
mod lookahead;
mod reader;
mod section_index;
mod sections;
mod segment;
mod survey;
#[cfg(test)]
mod testing;
mod window;
mod writer;

use std::fmt;
use std::path::PathBuf;

pub use describe::describe;
pub use frame::{Control, FramePlace, Section, section_checksum};
pub use reader::{
    Attested, BatchRef, FrameRef, LogEnd, LogReader, LogReaderOptions, MustReach, PassedSegment,
    Position, Record, SectionPlace, SectionRef, SegmentSource,
};
pub use section_index::{IndexedItem, IndexedSections, SectionIndex, SectionIndexBuilder};
pub use sections::SectionLoader;
pub use segment::{MAGIC, SEGMENT_HEADER_BYTES, SegmentHeader, salt_of};
pub use survey::{SegmentPiece, survey, survey_after};
pub use writer::{Reserved, SegmentWriter};

use crate::error::Error;
use crate::types::FileNo;

/// A place in the log: the byte offset over all segments of the database, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The place `bytes` further on, or `None` beyond 64 bits.
    pub fn checked_plus(self, bytes: u64) -> Option<Lsn> {
        self.0.checked_add(bytes).map(Lsn)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A place in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPlace {
    /// Number of the segment.
    pub segment: FileNo,
    /// Byte offset in it.
    pub offset: u64,
}

impl LogPlace {
    /// Returns the error of a log that ends here, in the file `path`, although its writer has committed
    /// up to `reach`.
    pub fn too_short_for(self, path: impl Into<PathBuf>, reach: Lsn) -> Error {
        let what = format!("the log ends here, but its writer has committed up to {reach}");
        Error::corruption(path, self.offset, what)
    }
}
