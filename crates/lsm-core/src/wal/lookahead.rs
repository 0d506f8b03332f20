//! The look-ahead: it decides if bytes after a bad place prove that the place was durable. If one
//! frame does, the bad place is rot; if none does, it is a torn tail.
//!
//! `reader.rs` calls it when the log stops, for the rest of that segment and for each later
//! segment. It walks in 8-byte steps, because no boundary of a frame is known after a hole. Most
//! steps end at the byte of the kind. It must never yield data.
//!
//! An attacker may have chosen the bytes: a torn frame may hold values of a user. So a constant
//! bounds the work of each step: a seeded checksum of at most 128 bytes distinguishes a frame from
//! other bytes. An earlier form bounded the whole work instead, and treated the hole as unattested
//! when the bound was reached. Crafted values could then hide rot.
//!
//! Invariants:
//! 1. Only a frame that verifies under the segment's salt attests, if the salt is known: from the
//!    header, or, if the header is lost, because the salt is a function of the segment's identity.
//! 2. A log of the first format version has random salts, and long headers without a short check.
//!    If the header of such a segment is lost, a control frame attests if it verifies under the
//!    salt that it names, and a batch attests if all its sections have their checksums. This needs
//!    more than a constant at each step, so it is bounded by a few times the length of the file.
//!    If the bound is reached, the result is "undecided", and the caller must not take that for
//!    the end of the log.

use std::ops::Range;

use super::frame::{
    DirectoryEntry, FRAME_ALIGNMENT, Fields, HEADER_BYTES_MAX, PREFIX_BYTES_MAX, Prefix,
    decode_fields, is_kind, section_checksum, seed_of, verifies,
};
use super::window::Window;
use super::{Lsn, SegmentHeader};
use crate::error::Result;
use crate::fs::File;
use crate::types::Epoch;

/// The number of bytes looked at between reads; each read also loads the longest header after them.
const STRIDE_BYTES: usize = 4 << 20;
/// Space that is reserved and not written is passed in pieces of so many bytes.
const ZEROS: usize = 4 << 10;
/// In a log of the first format version, bytes are decoded and hashed up to this many times the
/// length looked at.
const HASHED_TIMES_MAX: u64 = 16;

/// The part of a segment to look at.
pub(super) struct SearchRange<'a> {
    pub(super) file: &'a dyn File,
    pub(super) epoch: Epoch,
    /// The segment's header, if it verifies, and the bad place in the log.
    pub(super) known: Option<(&'a SegmentHeader, Lsn)>,
    /// The salt of the segment if its header is lost; `None` if that salt is random.
    pub(super) lost_salt: Option<u64>,
    /// The bytes of the file to search; begins at a multiple of 8.
    pub(super) range: Range<u64>,
}

/// The findings in a [`SearchRange`].
#[derive(Default)]
pub(super) struct LookaheadFindings {
    /// Offset of a frame that proves durability beyond the bad place.
    pub(super) proved_at: Option<u64>,
    /// Offset of the first bytes that may or may not be such a frame.
    pub(super) undecided_at: Option<u64>,
    /// `true` if any byte is not zero, up to the frame at `proved_at` if there is one.
    pub(super) any_bytes: bool,
}

/// Looks for a frame that proves the bad place durable; if the header is lost, for one that proves the
/// segment's own header durable. The caller clears a window that holds bytes of another segment.
pub(super) fn look_ahead(
    window: &mut Window,
    search: &SearchRange<'_>,
) -> Result<LookaheadFindings> {
    let mut findings = LookaheadFindings::default();
    let mut reader = EvidenceReader {
        directory: Vec::new(),
        body: Window::default(),
        budget: (search.range.end - search.range.start.min(search.range.end))
            .saturating_mul(HASHED_TIMES_MAX),
    };
    let mut at = search.range.start;
    while at < search.range.end {
        let want = STRIDE_BYTES + HEADER_BYTES_MAX;
        let bytes = window.load(search.file, at, want, search.range.end)?;
        if bytes.is_empty() {
            break;
        }
        let whole = bytes.len() < want;
        // Less than the whole load: a frame that begins near its end would be cut off.
        let stride = if whole { bytes.len() } else { STRIDE_BYTES };
        let mut next = 0;
        while next < stride {
            let step = next;
            // Most bytes after the end of a log are zeros. Compared once a piece: a comparison at
            // each step would be long where a few bytes follow many zeros.
            if step.is_multiple_of(ZEROS) && are_zeros(&bytes[step..]) {
                next += ZEROS;
                continue;
            }
            next += FRAME_ALIGNMENT;
            let rest = &bytes[step..];
            let Some(front) = rest.first_chunk::<16>() else {
                findings.any_bytes |= rest.iter().any(|byte| *byte != 0);
                break;
            };
            // The cheap filter: zeros, and bytes that cannot be a kind.
            if *front == [0; 16] {
                continue;
            }
            findings.any_bytes = true;
            if !is_kind(front[8]) {
                continue;
            }
            let offset = at + step as u64;
            match reader.sync_evidence(search, offset, rest)? {
                SyncEvidence::Nothing => {}
                SyncEvidence::Proves => {
                    findings.proved_at = Some(offset);
                    return Ok(findings);
                }
                // Another frame may decide it yet.
                SyncEvidence::Undecided => {
                    findings.undecided_at.get_or_insert(offset);
                }
            }
        }
        at += stride as u64;
    }
    Ok(findings)
}

/// Returns `true` if no frame begins in the first piece of `bytes`, because it is zeros, and so are
/// the bytes of a step after it.
fn are_zeros(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0; ZEROS + FRAME_ALIGNMENT])
}

/// The evidence of the bytes at one place about the bad place.
enum SyncEvidence {
    /// They are no frame that proves the bad place durable.
    Nothing,
    /// They are such a frame.
    Proves,
    /// A decision would take more work than is allowed.
    Undecided,
}

impl SyncEvidence {
    fn of(attests: bool) -> SyncEvidence {
        if attests { SyncEvidence::Proves } else { SyncEvidence::Nothing }
    }
}

/// Reads frames for what they prove about the bad place.
struct EvidenceReader {
    directory: Vec<DirectoryEntry>,
    body: Window,
    /// Bytes that may still be decoded or hashed because a frame of the first version claims them.
    budget: u64,
}

impl EvidenceReader {
    /// The evidence at `offset`, where `bytes` begin, about the bad place.
    fn sync_evidence(
        &mut self,
        search: &SearchRange<'_>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<SyncEvidence> {
        let front = &bytes[..bytes.len().min(PREFIX_BYTES_MAX)];
        let Ok(prefix) = Prefix::decode(front) else {
            return Ok(SyncEvidence::Nothing);
        };
        // The load is longer than the longest header, so only the end of the file can cut one off.
        let Some(header) = bytes.get(..prefix.header_len) else {
            return Ok(SyncEvidence::Nothing);
        };
        // First the claim, which costs nothing. With the header lost the bad place is the first
        // byte of the segment, which lies before `offset` by that much.
        let claims = match search.known {
            Some((segment, bad)) => {
                let durable = segment.lsn_at(offset).0.checked_sub(prefix.lag);
                // A frame that is durable up to the bad place itself proves nothing about the bytes
                // that begin there.
                durable.is_some_and(|durable| durable > bad.0)
            }
            None => prefix.lag < offset,
        };
        if !claims {
            return Ok(SyncEvidence::Nothing);
        }
        let derived_salt = match search.known {
            Some((segment, _)) => segment.has_derived_salt().then_some(segment.salt),
            None => search.lost_salt,
        };
        if let Some(salt) = derived_salt {
            let seed = seed_of(salt, search.epoch, offset);
            // The short check first: for a long header it bounds the work to 128 bytes at each
            // step.
            let is_frame = !prefix.lacks_short_check()
                && !prefix.fails_short_check(header, seed)
                && verifies(header, seed);
            return Ok(SyncEvidence::of(is_frame));
        }
        self.evidence_without_salt(search, offset, header, &prefix)
    }

    /// The evidence in a segment of the first format version, whose salt is random and may be lost.
    fn evidence_without_salt(
        &mut self,
        search: &SearchRange<'_>,
        offset: u64,
        header: &[u8],
        prefix: &Prefix,
    ) -> Result<SyncEvidence> {
        if prefix.lacks_short_check() && !self.spend(header.len()) {
            return Ok(SyncEvidence::Undecided);
        }
        if let Some((segment, _)) = search.known {
            let seed = seed_of(segment.salt, search.epoch, offset);
            return Ok(SyncEvidence::of(verifies(header, seed)));
        }
        match decode_fields(header, prefix, &mut self.directory) {
            Err(_) => Ok(SyncEvidence::Nothing),
            Ok(Fields::Control { salt, .. }) => {
                Ok(SyncEvidence::of(verifies(header, seed_of(salt, search.epoch, offset))))
            }
            Ok(Fields::Batch { .. }) => self.evidence_of_sections(search, offset, prefix),
        }
    }

    /// The evidence of a batch whose sections all have their checksums.
    fn evidence_of_sections(
        &mut self,
        search: &SearchRange<'_>,
        offset: u64,
        prefix: &Prefix,
    ) -> Result<SyncEvidence> {
        let end = search.range.end;
        let body_at = offset + prefix.header_len as u64;
        if end.saturating_sub(body_at) < prefix.body_len {
            return Ok(SyncEvidence::Nothing);
        }
        // All sections, because the header has no checksum that can be verified without the salt.
        let directory = std::mem::take(&mut self.directory);
        for entry in &directory {
            if !self.spend(entry.len) {
                return Ok(SyncEvidence::Undecided);
            }
            let bytes = self.body.load(search.file, body_at + entry.start, entry.len, end)?;
            if bytes.len() != entry.len || section_checksum(&bytes) != entry.checksum {
                return Ok(SyncEvidence::Nothing);
            }
        }
        Ok(SyncEvidence::Proves)
    }

    fn spend(&mut self, bytes: usize) -> bool {
        // A claim that is too large does not change the budget: smaller ones can still be decided.
        let left = self.budget.checked_sub(bytes as u64);
        self.budget = left.unwrap_or(self.budget);
        left.is_some()
    }
}
