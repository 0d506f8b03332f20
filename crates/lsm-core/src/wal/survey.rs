//! [`survey`]: lists everything in one segment, damage included.
//!
//! Called by verification and `describe.rs`. Unlike the reader, it continues after a bad place. So
//! the frames that it finds there must never be replayed: they may have been refused.
//!
//! Invariants:
//! 1. The pieces cover the range from its front to its end, in order, without a gap.
//! 2. A frame is passed on only if its header and all its sections verify and it continues the
//!    sequence. After a damaged piece any sequence is accepted.

use std::ops::Range;

use super::frame::{
    DirectoryEntry, FRAME_ALIGNMENT, Fields, PREFIX_BYTES_MAX, Prefix, decode_fields, is_kind,
    section_checksum, seed_of, verifies,
};
use super::reader::section_of;
use super::window::Window;
use super::{BatchRef, Record, SectionIndex, SegmentHeader};
use crate::error::Result;
use crate::fs::File;
use crate::types::SeqNo;

/// A piece of a segment after its header.
#[derive(Clone, Debug)]
pub enum SegmentPiece<'a> {
    /// A frame.
    Frame {
        /// Its bytes, padding included.
        range: Range<u64>,
        /// Length of its header in bytes; its sections follow.
        header_len: u64,
        /// Its content.
        record: Record<'a>,
    },
    /// Bytes that are no frame, or a frame that does not verify.
    Damaged {
        /// The damaged bytes.
        range: Range<u64>,
        /// The defect, in one phrase.
        what: &'static str,
    },
    /// An index of sections, after the last frame of a sealed segment.
    Index {
        /// Its bytes.
        range: Range<u64>,
        /// Its content.
        index: SectionIndex,
    },
    /// Zeros, up to the end of the range or to the next frame.
    Zeros(Range<u64>),
}

/// Passes each piece in `range` of the segment with this header to `visit`. The range begins at a
/// possible start of a frame, and an error of `visit` ends the walk.
///
/// # Errors
/// Those of reading and of `visit`; damage is none.
pub fn survey(
    file: &dyn File,
    header: &SegmentHeader,
    range: Range<u64>,
    visit: &mut dyn FnMut(SegmentPiece<'_>) -> Result<()>,
) -> Result<()> {
    // The range of a caller begins after the header, which names the last sequence before it.
    survey_after(file, header, Some(header.previous_seq), range, visit)
}

/// As [`survey`], for a range before which `last_seq` was the last sequence, if that is known.
///
/// # Errors
/// As [`survey`].
pub fn survey_after(
    file: &dyn File,
    header: &SegmentHeader,
    last_seq: Option<SeqNo>,
    range: Range<u64>,
    visit: &mut dyn FnMut(SegmentPiece<'_>) -> Result<()>,
) -> Result<()> {
    let mut survey = Survey {
        file,
        header,
        end: range.end,
        window: Window::default(),
        directory: Vec::new(),
        last_seq,
    };
    let mut at = range.start;
    while at < range.end {
        let (prefix, fields) = match survey.frame(at)? {
            Ok(found) => found,
            Err(bad) => {
                let index = SectionIndex::read(file, header, at);
                if let Some(index) = index.filter(|index| index.len() <= range.end - at) {
                    let end = at + index.len();
                    visit(SegmentPiece::Index { range: at..end, index })?;
                    at = end;
                    continue;
                }
                // The walk continues at the next frame that verifies. The length in a bad header is
                // not believed.
                let end = survey.bad_end(at, &bad)?;
                // Frames may be missing here, so the next frame may have any number.
                survey.last_seq = None;
                match bad.is_zero {
                    true => visit(SegmentPiece::Zeros(at..end))?,
                    false => visit(SegmentPiece::Damaged { range: at..end, what: bad.what })?,
                }
                at = end;
                continue;
            }
        };
        let end = at + prefix.frame_len();
        let record = match fields {
            Fields::Control { control, .. } => Record::Control(control),
            Fields::Batch { first_seq, last_seq, .. } => {
                // Only a batch moves the sequence. Control frames repeat the last number.
                survey.last_seq = Some(last_seq);
                let body_at = at + prefix.header_len as u64;
                let len = usize::try_from(end - body_at).expect("its body was just loaded");
                let body = survey.window.loaded(body_at, len);
                let directory = &survey.directory;
                let body_start = 0;
                Record::Batch(BatchRef {
                    first_seq,
                    last_seq,
                    directory,
                    body,
                    body_start,
                    body_at,
                })
            }
        };
        visit(SegmentPiece::Frame {
            range: at..end,
            header_len: prefix.header_len as u64,
            record,
        })?;
        at = end;
    }
    Ok(())
}

/// The reason why there is no frame at a place.
struct Bad {
    what: &'static str,
    is_zero: bool,
    /// Length of the frame, if its header verifies.
    len: Option<u64>,
}

impl Bad {
    fn new(what: &'static str) -> Bad {
        Bad { what, is_zero: false, len: None }
    }

    /// A frame whose header verifies, so that its length is known.
    fn frame(prefix: &Prefix, what: &'static str) -> Bad {
        Bad { what, is_zero: false, len: Some(prefix.frame_len()) }
    }
}

struct Survey<'a> {
    file: &'a dyn File,
    header: &'a SegmentHeader,
    end: u64,
    window: Window,
    directory: Vec<DirectoryEntry>,
    /// The last sequence before the next frame, if it is known.
    last_seq: Option<SeqNo>,
}

impl Survey<'_> {
    /// The header of the frame at `at`, if that verifies.
    fn frame_header(&mut self, at: u64) -> Result<Result<(Prefix, Fields), Bad>> {
        let front = self.window.load(self.file, at, PREFIX_BYTES_MAX, self.end)?;
        if front.is_empty() {
            return Ok(Err(Bad::new("the file ends inside a frame")));
        }
        if front.iter().all(|byte| *byte == 0) {
            return Ok(Err(Bad { is_zero: true, ..Bad::new("no frame") }));
        }
        let prefix = match Prefix::decode(&front) {
            Ok(prefix) => prefix,
            Err(bad) => return Ok(Err(Bad::new(bad.what))),
        };
        // The length is not verified yet and may be anything, so it is bounded before that much is
        // loaded.
        if prefix.frame_len() > self.end - at {
            return Ok(Err(Bad::new("frame exceeds the segment")));
        }
        let seed = seed_of(self.header.salt, self.header.epoch, at);
        // Before more of the header is loaded: after damage, this runs at every eighth byte.
        let is_none = prefix.fails_short_check(&front, seed)
            || (prefix.lacks_short_check() && self.header.has_derived_salt());
        let header = match is_none {
            true => &[],
            false => self.window.load(self.file, at, prefix.header_len, self.end)?.as_slice(),
        };
        if header.len() < prefix.header_len || !verifies(header, seed) {
            return Ok(Err(Bad::new("frame header checksum does not match")));
        }
        Ok(match decode_fields(header, &prefix, &mut self.directory) {
            Ok(_) if prefix.lag > self.header.lsn_at(at).0 => {
                Err(Bad::frame(&prefix, "frame attests bytes that were not written"))
            }
            Ok(fields) => Ok((prefix, fields)),
            Err(malformed) => Err(Bad::frame(&prefix, malformed.what)),
        })
    }

    /// The frame at `at`, if all of it verifies. Its body is loaded then.
    fn frame(&mut self, at: u64) -> Result<Result<(Prefix, Fields), Bad>> {
        let (prefix, fields) = match self.frame_header(at)? {
            Ok(found) => found,
            Err(bad) => return Ok(Err(bad)),
        };
        let (Fields::Batch { previous_seq: before, .. } | Fields::Control { last_seq: before, .. }) =
            fields;
        if self.last_seq.is_some_and(|last| last != before) {
            return Ok(Err(Bad::frame(&prefix, "frame does not continue the sequence")));
        }
        let body_at = at + prefix.header_len as u64;
        let Ok(len) = usize::try_from(at + prefix.frame_len() - body_at) else {
            return Ok(Err(Bad::frame(&prefix, "frame is too long")));
        };
        let body = self.window.load(self.file, body_at, len, self.end)?;
        for entry in &self.directory {
            let section = section_of(body, 0, entry);
            if section.is_none_or(|bytes| section_checksum(&bytes) != entry.checksum) {
                return Ok(Err(Bad::frame(&prefix, "section checksum does not match")));
            }
        }
        let padding = usize::try_from(prefix.body_len).ok().and_then(|from| body.get(from..));
        if body.len() != len || padding.is_none_or(|bytes| bytes.iter().any(|byte| *byte != 0)) {
            return Ok(Err(Bad::frame(&prefix, "padding is not zero")));
        }
        Ok(Ok((prefix, fields)))
    }

    /// Returns the end of the bad bytes at `at`: the end of the frame, if its length is known, or
    /// the front of the next one whose header verifies.
    fn bad_end(&mut self, at: u64, bad: &Bad) -> Result<u64> {
        if let Some(len) = bad.len {
            return Ok(at + len);
        }
        let mut next = at + FRAME_ALIGNMENT as u64;
        while next < self.end {
            let front = self.window.load(self.file, next, 2 * FRAME_ALIGNMENT, self.end)?;
            let word = &front[..front.len().min(FRAME_ALIGNMENT)];
            // Most steps end here, at the kind byte.
            let may_begin = front.get(FRAME_ALIGNMENT).is_some_and(|kind| is_kind(*kind));
            if word.is_empty() {
                break;
            }
            // A run of zeros ends at the first word that is not zero, so that it is not listed as
            // damage.
            let is_end = bad.is_zero && word.iter().any(|byte| *byte != 0);
            if is_end || (may_begin && self.frame_header(next)?.is_ok()) {
                return Ok(next);
            }
            next += FRAME_ALIGNMENT as u64;
        }
        Ok(self.end)
    }
}
