//! Torn or rotten: does anything behind a bad place attest that the place was durable?
//!
//! Called by `reader.rs` when the log stops, for the rest of that segment and for each later one.
//! It walks in 8-byte steps, because behind a hole no frame boundary is known; most steps end at
//! the kind byte. It must never yield data.
//!
//! Invariants:
//! 1. With the segment's header at hand only a frame that verifies under its salt attests.
//! 2. With the header lost the salt is unknown. A control frame names it and verifies under it; a
//!    batch is believed when all its sections carry their checksums. That much only ever turns a
//!    quiet end into `Corruption`, and the work is bounded by a few times the file's length.

use std::ops::Range;

use super::frame::{
    Entry, FRAME_ALIGNMENT, Fields, HEADER_BYTES_MAX, PREFIX_BYTES_MAX, Prefix, decode_fields,
    section_checksum, seed_of, verifies,
};
use super::window::Window;
use super::{Lsn, SegmentHeader};
use crate::error::Result;
use crate::fs::File;
use crate::types::Epoch;

/// The number of bytes looked at between reads; each read also loads the longest header behind
/// them.
const STRIDE_BYTES: usize = 4 << 20;
/// Without a header, bytes are decoded and hashed up to this many times the length looked at.
const HASHED_TIMES_MAX: u64 = 4;

/// A stretch of a segment to look at.
pub(super) struct Stretch<'a> {
    pub(super) file: &'a dyn File,
    pub(super) epoch: Epoch,
    /// The segment's header, if it verifies, and the bad place in the log.
    pub(super) known: Option<(&'a SegmentHeader, Lsn)>,
    /// From and to where, in bytes of the file; begins at a multiple of 8.
    pub(super) range: Range<u64>,
}

/// The findings in a [`Stretch`].
#[derive(Default)]
pub(super) struct Findings {
    /// Offset of a frame that attests durability beyond the bad place.
    pub(super) attested_at: Option<u64>,
    /// `true` if any byte is not zero (up to the attesting frame, if there is one).
    pub(super) any_bytes: bool,
}

/// Looks for a frame that attests the bad place; where the header is lost, for one that attests
/// the segment's own header.
pub(super) fn look_ahead(window: &mut Window, stretch: &Stretch<'_>) -> Result<Findings> {
    let mut findings = Findings::default();
    let mut witness = Witness {
        directory: Vec::new(),
        body: Window::default(),
        budget: (stretch.range.end - stretch.range.start.min(stretch.range.end))
            .saturating_mul(HASHED_TIMES_MAX),
    };
    // It may hold another segment's bytes.
    window.clear();
    let mut at = stretch.range.start;
    while at < stretch.range.end {
        let want = STRIDE_BYTES + HEADER_BYTES_MAX;
        let bytes = window.load(stretch.file, at, want, stretch.range.end)?;
        if bytes.is_empty() {
            break;
        }
        let whole = bytes.len() < want;
        let stride = if whole { bytes.len() } else { STRIDE_BYTES };
        for step in (0..stride).step_by(FRAME_ALIGNMENT) {
            let rest = &bytes[step..];
            let Some(front) = rest.first_chunk::<16>() else {
                findings.any_bytes |= rest.iter().any(|byte| *byte != 0);
                break;
            };
            // The cheap filter: zeros, and what cannot be a kind.
            if *front == [0; 16] {
                continue;
            }
            findings.any_bytes = true;
            if !(1..=6).contains(&front[8]) {
                continue;
            }
            let offset = at + step as u64;
            if witness.attests(stretch, offset, rest)? {
                findings.attested_at = Some(offset);
                return Ok(findings);
            }
        }
        at += stride as u64;
    }
    Ok(findings)
}

struct Witness {
    directory: Vec<Entry>,
    body: Window,
    budget: u64,
}

impl Witness {
    /// Returns `true` if a frame stands at `offset`, where `bytes` begin, that attests the bad
    /// place.
    fn attests(&mut self, stretch: &Stretch<'_>, offset: u64, bytes: &[u8]) -> Result<bool> {
        let front = &bytes[..bytes.len().min(PREFIX_BYTES_MAX)];
        let Ok(prefix) = Prefix::decode(front) else {
            return Ok(false);
        };
        let Some(header) = bytes.get(..prefix.header_len) else {
            return Ok(false);
        };
        if let Some((segment, bad)) = stretch.known {
            // First the claim, which costs nothing, then whether it verifies.
            let durable = segment.lsn_at(offset).0.checked_sub(prefix.lag);
            let seed = seed_of(segment.salt, stretch.epoch, offset);
            return Ok(durable.is_some_and(|durable| durable > bad.0) && verifies(header, seed));
        }
        // The bad place is the segment's first byte, at or before `offset` by that much.
        if prefix.lag >= offset {
            return Ok(false);
        }
        let Some(budget) = self.budget.checked_sub(prefix.header_len as u64) else {
            return Ok(false);
        };
        self.budget = budget;
        match decode_fields(header, &prefix, &mut self.directory) {
            Err(_) => Ok(false),
            Ok(Fields::Control { salt, .. }) => {
                Ok(verifies(header, seed_of(salt, stretch.epoch, offset)))
            }
            Ok(Fields::Batch { .. }) => self.sections_match(stretch, offset, &prefix),
        }
    }

    fn sections_match(
        &mut self,
        stretch: &Stretch<'_>,
        offset: u64,
        prefix: &Prefix,
    ) -> Result<bool> {
        let end = stretch.range.end;
        let body_at = offset + prefix.header_len as u64;
        if end.saturating_sub(body_at) < prefix.body_len {
            return Ok(false);
        }
        for entry in &self.directory {
            let Some(budget) = self.budget.checked_sub(entry.len as u64) else {
                return Ok(false);
            };
            self.budget = budget;
            let bytes = self.body.load(stretch.file, body_at + entry.start, entry.len, end)?;
            if bytes.len() != entry.len || section_checksum(bytes) != entry.checksum {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
