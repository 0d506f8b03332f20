//! The verdict on the place where the log stopped: a torn tail, or damage.
//!
//! Recovery calls it through [`LogReader::end`] when there is no further frame. It never yields a
//! frame, and never calls a place durable without an attestation.
//!
//! Invariants:
//! 1. It looks at everything from the stop to the end of the last listed segment, up to the cut.
//! 2. A verified header or frame there that attests durability beyond the stop makes the stop
//!    `Corruption`. So does a damaged header, which is not zeros, of a segment that a later one
//!    continues.

use super::{LogReader, NO_FRAME, NO_HEADER, Stop};
use crate::error::{Error, Result};
use crate::types::{FileNo, SeqNo};
use crate::wal::lookahead::{SearchRange, look_ahead};
use crate::wal::segment::HeaderState;
use crate::wal::{LogPlace, Lsn, SEGMENT_HEADER_BYTES, SegmentHeader, salt_of};

/// The end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// The end of the last frame. Segment 0 if the list was empty.
    pub place: LogPlace,
    /// The same place in the log; 0 if no segment had a header.
    pub lsn: Lsn,
    /// The last logged sequence; 0 if no segment had a header and no start was given.
    pub last_seq: SeqNo,
    /// `true` if the last frame is a clean close.
    pub clean_close: bool,
    /// `true` if bytes other than zeros follow the end: a torn tail that is left out.
    pub torn_bytes: bool,
    /// The largest manifest edit that a header or frame calls durable.
    pub manifest_edit: u64,
    /// The furthest place that a header or frame calls durable.
    pub durable: Lsn,
}

impl LogReader {
    /// Decides whether the place where reading stopped is the end of the log, or damage.
    ///
    /// # Errors
    /// `Corruption` if something after the end attests that the log was durable beyond it, or the
    /// log does not reach what it is known to reach; errors of reading.
    ///
    /// # Panics
    /// Unless [`LogReader::next_frame`] returned `None` last.
    ///
    /// # Cost
    /// Reads everything after the end, zeros included.
    pub fn end(mut self) -> Result<LogEnd> {
        let stop = self.stopped.expect("asked for the end before it was reached");
        let place = self.position().place;
        // Always, also for a stop at zeros: a lost page in the middle of the log reads as zeros as
        // well. What was read ahead is read again: the verdict is final.
        self.window.clear();
        let torn_bytes = self.judge(stop, u64::MAX)?;
        self.check_reaches(&self.options.must_reach)?;
        Ok(LogEnd {
            place,
            lsn: self.current.map_or(Lsn(0), |current| current.header.lsn_at(self.offset)),
            last_seq: self.last_seq,
            clean_close: self.clean_close,
            torn_bytes,
            manifest_edit: self.manifest_edit,
            durable: self.durable,
        })
    }

    /// Looks for anything after the end that attests it. Returns `true` if there are bytes other
    /// than zeros. If the log seems to end before nothing but zeros (one read at the front of each
    /// segment), it reads only `blank_bytes` of them: a follower comes often, and must not read all
    /// reserved space.
    pub(super) fn judge(&mut self, stop: Stop, blank_bytes: u64) -> Result<bool> {
        let bytes = if self.is_blank_after(stop)? { blank_bytes } else { u64::MAX };
        let mut suspect = self.bad_place(stop);
        let mut torn = false;
        // All later segments are read, although an honest log has nothing after its end. Stopping
        // at the first segment without a header would be faster, and would take a lost header for
        // the end of a log whose later segments were acknowledged.
        for idx in self.idx..self.sources.len() {
            let header = match self.header_state(idx)? {
                HeaderState::Valid(header) => Some(header),
                HeaderState::Zero => None,
                HeaderState::Garbage(what) => {
                    suspect.garbage = Some((idx, what));
                    None
                }
            };
            let is_here = idx == self.idx;
            // The header of the segment under way was judged when it was opened.
            if let Some(header) = header.filter(|_| !is_here || self.current.is_none()) {
                self.check_header_after(&header, &mut suspect)?;
                torn = true;
            }
            torn |= suspect.garbage.is_some();
            // A file without a header may hold another file's old bytes from its front on.
            let first = if header.is_some() { SEGMENT_HEADER_BYTES } else { 0 };
            let from = if is_here { self.offset.max(first) } else { first };
            let source = &self.sources[idx];
            let lost_salt = self
                .options
                .has_derived_salts
                .then(|| salt_of(self.options.db, source.epoch, source.number));
            let search = SearchRange {
                file: &*source.file,
                epoch: source.epoch,
                known: header.as_ref().zip(suspect.bad),
                lost_salt,
                range: from..self.readable(idx)?.min(from.saturating_add(bytes)),
            };
            // The reader has read ahead in the segment where it stopped, mostly to its end.
            if !is_here {
                self.window.clear();
            }
            let findings = look_ahead(&mut self.window, &search)?;
            // Not an error: an append that was cut off leaves bytes, and no caller was promised
            // that they are durable.
            torn |= findings.any_bytes;
            if let Some(at) = findings.proved_at {
                // A frame was attested in a segment that has no header: the header is the damage,
                // wherever the log stopped before.
                if header.is_none() {
                    suspect.turn_to_header(idx);
                }
                let by = format!("offset {at} of {}", source.path.display());
                return Err(self.damage(&suspect, &by));
            }
            // Refused, although it may be a torn tail: the other choice could silently lose
            // acknowledged commits.
            if let Some(at) = findings.undecided_at {
                let what = format!(
                    "{}, and bytes after it (first at offset {at} of {}) are too many to tell \
                     whether they attest that the log was durable beyond",
                    suspect.what,
                    source.path.display()
                );
                return Err(Error::corruption(&source.path, suspect.offset, what));
            }
        }
        Ok(torn)
    }

    /// The place where the log stopped.
    fn bad_place(&self, stop: Stop) -> BadPlace {
        BadPlace {
            idx: self.idx,
            offset: self.offset,
            what: stop,
            bad: self.current.as_ref().map(|current| current.header.lsn_at(self.offset)),
            garbage: None,
        }
    }

    /// Returns `true` if the log stopped at zeros, and no later segment has been begun.
    fn is_blank_after(&mut self, stop: Stop) -> Result<bool> {
        if stop != NO_FRAME && stop != NO_HEADER {
            return Ok(false);
        }
        for idx in self.idx + 1..self.sources.len() {
            if self.header_state(idx)? != HeaderState::Zero {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A verified header after the end: does it attest the bad place?
    fn check_header_after(&self, header: &SegmentHeader, suspect: &mut BadPlace) -> Result<()> {
        let named = self.named_by(header);
        if let Some((idx, what)) = suspect.garbage
            && named.is_some_and(|(named, _)| named == idx)
        {
            // It was begun, filled and followed by another: no torn write looks like that.
            suspect.turn_to_header(idx);
            suspect.what = what;
            return Err(self.damage(suspect, &format!("segment {}", header.number)));
        }
        let bad = match (suspect.bad, named) {
            (Some(bad), _) => bad,
            // No header before this one: the log is bad from the first listed segment on, or from a
            // later one that was lost as well.
            (None, Some((_, base))) => base,
            (None, None) => {
                let idx = self.idx_of(header.number).unwrap_or(self.idx);
                let path = &self.sources[idx].path;
                let what = "segment does not continue any that is listed";
                return Err(Error::corruption(path, 0, what));
            }
        };
        // The first header decides: those after it lie further on in the log.
        suspect.bad = Some(bad);
        if let Some((idx, base)) = named
            && idx > self.idx
            && base == bad
        {
            // A segment begins where the log stops, and its header is missing.
            suspect.turn_to_header(idx);
        }
        // The header alone proves nothing: it is written before the end of the segment before it
        // is synced. Only its own claim of durability does.
        if header.durable > bad {
            return Err(self.damage(suspect, &format!("the header of segment {}", header.number)));
        }
        Ok(())
    }

    /// The listed segment that `header` continues, and the place in the log where that begins.
    fn named_by(&self, header: &SegmentHeader) -> Option<(usize, Lsn)> {
        let previous = header.previous?;
        let base = Lsn(header.base.0.saturating_sub(previous.offset));
        Some((self.idx_of(previous.segment)?, base))
    }

    fn idx_of(&self, number: FileNo) -> Option<usize> {
        self.sources.iter().position(|source| source.number == number)
    }

    fn damage(&self, suspect: &BadPlace, by: &str) -> Error {
        let what = format!("{}, and {by} attests that the log was durable beyond", suspect.what);
        Error::corruption(&self.sources[suspect.idx].path, suspect.offset, what)
    }
}

/// The bad place while it is judged.
struct BadPlace {
    /// Segment and offset to name in an error, and the defect there.
    idx: usize,
    offset: u64,
    what: Stop,
    /// The bad place in the log, once a header says it.
    bad: Option<Lsn>,
    /// The last segment met whose header is neither valid nor zeros.
    garbage: Option<(usize, Stop)>,
}

impl BadPlace {
    fn turn_to_header(&mut self, idx: usize) {
        self.idx = idx;
        self.offset = 0;
        self.what = "segment header is lost";
    }
}
