//! [`load_header`]: the header of the frame at a place of a segment.
//!
//! The reader of the log calls it for frame after frame, and the index of sections for the frames
//! of one partition. It decides whether the bytes are a frame of this segment at this place. The
//! caller decides whether the frame continues the one before.

use std::ops::Range;

use super::{NO_FRAME, Stop};
use crate::error::Result;
use crate::fs::File;
use crate::wal::SegmentHeader;
use crate::wal::frame::{
    DirectoryEntry, Fields, PREFIX_BYTES_MAX, Prefix, decode_fields, seed_of, verifies,
};
use crate::wal::window::Window;

/// Loads and verifies the header of the frame that begins where `range` does, and does not end
/// after it. Reads ahead to `ahead`, and never past `range`. The sections of the frame replace the
/// contents of `directory`.
///
/// # Errors
/// Those of reading. The inner error says why there is no frame.
pub(in crate::wal) fn load_header(
    window: &mut Window,
    file: &dyn File,
    segment: &SegmentHeader,
    range: Range<u64>,
    ahead: u64,
    directory: &mut Vec<DirectoryEntry>,
) -> Result<Result<(Prefix, Fields), Stop>> {
    let at = range.start;
    let front_end = ahead.max(at.saturating_add(PREFIX_BYTES_MAX as u64)).min(range.end);
    let front = window.load(file, at, PREFIX_BYTES_MAX, front_end)?;
    let prefix = match Prefix::decode(&front) {
        Ok(prefix) => prefix,
        // Preallocated space is zeros, so this is the usual end of the log.
        Err(_) if front.iter().all(|byte| *byte == 0) => return Ok(Err(NO_FRAME)),
        Err(bad) => return Ok(Err(bad.what)),
    };
    if prefix.frame_len() > range.end.saturating_sub(at) {
        return Ok(Err("frame exceeds the segment"));
    }
    // The frame lies within the range, and its header in it.
    let header_end = front_end.max(at + prefix.header_len as u64);
    let header = window.load(file, at, prefix.header_len, header_end)?;
    let seed = seed_of(segment.salt, segment.epoch, at);
    if header.len() < prefix.header_len
        || prefix.fails_short_check(&header, seed)
        || !verifies(&header, seed)
    {
        return Ok(Err("frame header checksum does not match"));
    }
    let fields = match decode_fields(&header, &prefix, directory) {
        Ok(fields) => fields,
        Err(bad) => return Ok(Err(bad.what)),
    };
    // The lag is subtracted from the place later. It must not make that negative.
    if prefix.lag > segment.lsn_at(at).0 {
        return Ok(Err("frame attests bytes that were not written"));
    }
    Ok(Ok((prefix, fields)))
}
