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

pub use crate::types::{LogPlace, Lsn, MustReach};
pub use describe::describe;
pub use frame::{Control, FramePlace, Section, section_checksum};
pub use reader::{
    Attested, BatchRef, FrameRef, LogEnd, LogReader, LogReaderOptions, PassedSegment, Record,
    SectionPlace, SectionRef, SegmentSource,
};
pub use section_index::{IndexedItem, IndexedSections, SectionIndex, SectionIndexBuilder};
pub use sections::SectionLoader;
pub use segment::{MAGIC, SEGMENT_HEADER_BYTES, SegmentHeader, salt_of};
pub use survey::{SegmentPiece, survey, survey_after};
pub use writer::{Reserved, SegmentWriter};
