//! The part of a reader that followers of a live log call: more segments, a further reach, and the
//! places that the writer has attested meanwhile.

use super::{LogReader, LogReaderOptions, Record, SegmentSource};
use crate::error::Result;
use crate::types::{FileNo, MustReach, SeqNo};
use crate::wal::{Lsn, SEGMENT_HEADER_BYTES};

/// Zeros that are read after the end of a live log, at each look.
const BLANK_BYTES: u64 = 1 << 20;

/// The parts of the database that a log attests to be durable.
#[derive(Clone, Copy, Debug)]
pub struct Attested {
    /// Everything before this place.
    pub durable: Lsn,
    /// The manifest edit, and every one before it.
    pub manifest_edit: u64,
    /// The end of the written log, which nothing attests.
    pub end: Lsn,
}

impl LogReader {
    /// Lists one more segment, for a follower whose manifest names it now.
    pub fn add_segment(&mut self, source: SegmentSource) {
        assert!(self.sources.last().is_none_or(|last| last.number < source.number));
        if self.options.cut.is_none_or(|cut| source.number <= cut.segment) {
            self.sources.push(source);
        }
    }

    /// Makes reading stop at `reach` from now on: nothing after it may be believed yet. The headers
    /// are read again, since one may end the present segment before bytes that were refused there.
    pub fn look_again(&mut self, reach: Lsn) {
        self.options.reach = reach;
        self.current = None;
        self.stopped = None;
        // Bytes after the old reach may have been read before they were written.
        self.window.clear();
    }

    /// The furthest place that a header or frame from here on calls durable, also by every batch
    /// that begins at `known` or before it. The log must reach the place `committed`, if that is
    /// known.
    ///
    /// # Errors
    /// Those of [`LogReader::next_frame`]; `Corruption` if the log ends before `committed`, or, if
    /// that is unknown, if bytes after its end attest that it was durable beyond.
    ///
    /// # Cost
    /// Reads the headers of all frames after the place. Without `committed` also what follows them: all of
    /// it before the first frame of this reader was read, later [`BLANK_BYTES`] of zeros.
    pub fn attested(&self, known: SeqNo, committed: Option<Lsn>) -> Result<Attested> {
        let mut suspect = None;
        loop {
            let (mut ahead, durable) = self.ahead(known)?;
            let judged = match (committed, ahead.stopped) {
                (Some(committed), _) => {
                    ahead.check_reaches(&MustReach { committed, ..MustReach::default() })
                }
                (None, Some(stop)) => {
                    let blank_bytes = if self.lsn().is_none() { u64::MAX } else { BLANK_BYTES };
                    ahead.judge(stop, blank_bytes).map(drop)
                }
                (None, None) => Ok(()),
            };
            let place = ahead.position().place;
            match judged {
                Ok(()) => {
                    let durable = durable.max(ahead.durable);
                    let end = ahead.lsn().unwrap_or_default();
                    return Ok(Attested { durable, manifest_edit: ahead.manifest_edit, end });
                }
                // The writer continues, and may have written here after the look: then the log ends
                // further on now. An attestation of this place was written after it.
                Err(error) if error.is_corruption() && suspect != Some(place) => {
                    suspect = Some(place);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A reader at the end of the log, starting at the place of this one, and the place through
    /// which batches that begin at `known` or before it make the log durable.
    fn ahead(&self, known: SeqNo) -> Result<(LogReader, Lsn)> {
        let is_begun = self.offset >= SEGMENT_HEADER_BYTES;
        let options = LogReaderOptions {
            start: is_begun.then(|| self.position()),
            headers_only: true,
            reach: Lsn(u64::MAX),
            ..self.options.clone()
        };
        let sources = self.sources[self.idx.min(self.sources.len())..].to_vec();
        // A separate reader: what it reads ahead is not known to count, and this one must not move.
        let mut ahead = LogReader::new(sources, options)?;
        let mut durable = self.durable;
        while let Some(frame) = ahead.next_frame()? {
            if let Record::Batch(batch) = frame.record
                // A sync is of whole frames.
                && batch.first_seq <= known
            {
                durable = durable.max(ahead.lsn().unwrap_or_default());
            }
        }
        Ok((ahead, durable))
    }

    /// The last segment that is listed.
    pub fn last_listed(&self) -> Option<FileNo> {
        self.sources.last().map(|source| source.number)
    }

    /// Closes segments that were passed, unless `is_live` says that they are live.
    pub fn forget_passed(&mut self, is_live: impl Fn(FileNo) -> bool) {
        let mut passed: Vec<_> = self.sources.drain(..self.idx).collect();
        passed.retain(|source| is_live(source.number));
        self.idx = passed.len();
        self.sources.splice(..0, passed);
    }
}
