//! [`LogReader`]: yields the frames of a chain of segments, and decides how the log ends.
//!
//! Recovery (`replay.rs`) reads to the end and asks for the verdict. Followers of a live log read
//! the frames that are there, and come again. A reader never writes, never ends the log because a
//! read failed, and never yields a frame after a bad one.
//!
//! ```text
//! next_frame -> Some, Some, ... None      None: nothing whole here, now
//!               again later               a follower: reads again from the same place
//!               end -> LogEnd             recovery: torn tail, or Corruption
//! ```
//!
//! The verdict is a separate call, because it walks over everything after the end. A follower that
//! polls must not pay for that.
//!
//! Invariants:
//! 1. `offset` is the end of the last frame that verified whole, or of the segment's header.
//! 2. Lengths in a frame are compared with the bytes left in the file before anything is loaded.
//! 3. The buffer is dropped at each stop, so no old byte is taken for a new one.
//! 4. The chain follows the names in verified headers, not the order of the list alone.

mod header;
mod indexed;
mod must_reach;
mod options;
mod record;
mod tail;
mod verdict;

pub(super) use header::load_header;
pub use indexed::PassedSegment;
pub use options::{LogReaderOptions, SegmentSource};
pub(super) use record::section_of;
pub use record::{BatchRef, FrameRef, Record, SectionPlace, SectionRef};
pub use tail::Attested;
pub use verdict::LogEnd;

use std::path::PathBuf;

use super::frame::{Control, DirectoryEntry, FRAME_ALIGNMENT, Fields, Prefix, section_checksum};
use super::segment::{HEADER_LEN, HeaderState};
use super::window::Window;
use super::{LogPlace, Lsn, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{FileNo, LogPosition, SeqNo};

/// The segment that is being read.
struct Current {
    header: SegmentHeader,
    /// The end of reading: the file's length, the cut, or the end that the next header names.
    limit: u64,
    /// The next segment, if its header names this one's end.
    next: Option<(usize, SegmentHeader)>,
}

/// A frame that verified, without its bytes.
struct VerifiedFrame {
    fields: Fields,
    lag: u64,
    len: u64,
    /// The loaded part of the body: its offset in the file, in the body, and its length.
    body_at: u64,
    body_start: u64,
    body_len: usize,
}

/// Why there is no frame.
type Stop = &'static str;

/// Zeros at the place of the next frame: the usual end of the log.
const NO_FRAME: Stop = "no frame";
/// Zeros in the place of a header.
const NO_HEADER: Stop = "segment has no header";

/// Reads the frames of a chain of segments in order, and decides how the log ends.
pub struct LogReader {
    // Fixed after construction.
    sources: Vec<SegmentSource>,
    options: LogReaderOptions,
    // How far.
    idx: usize,
    offset: u64,
    last_seq: SeqNo,
    current: Option<Current>,
    stopped: Option<Stop>,
    // What was attested.
    clean_close: bool,
    manifest_edit: u64,
    durable: Lsn,
    // Reused from frame to frame.
    window: Window,
    directory: Vec<DirectoryEntry>,
}

impl LogReader {
    /// A reader over `sources`, the live segments in the order of their numbers.
    ///
    /// # Errors
    /// `InvalidArgument` if the segment to start in is not listed; the position was then taken from
    /// another list. `Corruption` for a place where a replay cannot begin.
    pub fn new(mut sources: Vec<SegmentSource>, options: LogReaderOptions) -> Result<LogReader> {
        assert!(sources.is_sorted_by(|a, b| a.number < b.number), "segments in order");
        if let Some((from, cut)) = options.replay_from.zip(options.cut)
            && cut < from.place
        {
            return Err(too_short(&sources, from.place, "the log is cut"));
        }
        if let Some(cut) = options.cut {
            // Segments after the cut do not count, so damage in them must not refuse the open.
            sources.retain(|source| source.number <= cut.segment);
        }
        let mut idx = 0;
        let mut offset = 0;
        let mut last_seq = SeqNo::ZERO;
        if let Some(start) = options.start.or(options.replay_from) {
            // Segments before it stay listed: a follower compares the list to find new ones.
            let first = sources.iter().position(|source| source.number == start.place.segment);
            let is_boundary = start.place.offset.is_multiple_of(FRAME_ALIGNMENT as u64);
            let Some(first) = first.filter(|_| is_boundary) else {
                let message = format!("no place to begin: {:?} of the log", start.place);
                return Err(match options.start {
                    Some(_) => Error::new(ErrorKind::InvalidArgument, message),
                    // The manifest says so.
                    None => Error::corruption(PathBuf::new(), None, message),
                });
            };
            idx = first;
            offset = start.place.offset;
            last_seq = start.last_seq;
        }
        Ok(LogReader {
            sources,
            options,
            idx,
            offset,
            last_seq,
            current: None,
            stopped: None,
            clean_close: false,
            manifest_edit: 0,
            durable: Lsn::default(),
            window: Window::default(),
            directory: Vec::new(),
        })
    }

    /// The place in the log where reading continues; `None` before the first header.
    pub fn lsn(&self) -> Option<Lsn> {
        self.current.as_ref().map(|current| current.header.lsn_at(self.offset))
    }

    /// The largest manifest edit that a header or frame read so far calls durable.
    pub fn manifest_edit(&self) -> u64 {
        self.manifest_edit
    }

    /// The segment with that number, if it is listed.
    pub fn source(&self, number: FileNo) -> Option<&SegmentSource> {
        self.sources.iter().find(|source| source.number == number)
    }

    /// Returns the place where reading continues: the end of the last frame.
    pub fn position(&self) -> LogPosition {
        let segment = self.sources.get(self.idx).map_or(FileNo(0), |source| source.number);
        let place = LogPlace { segment, offset: self.offset };
        LogPosition { place, last_seq: self.last_seq }
    }

    /// The next frame; `None` if there is no whole frame after the last one. Called again, it reads
    /// the same place again.
    ///
    /// # Errors
    /// Those of reading the files, which change nothing; `Corruption` for segments that contradict
    /// the manifest or do not continue each other; `Unsupported` for newer formats.
    pub fn next_frame(&mut self) -> Result<Option<FrameRef<'_>>> {
        let Some(frame) = self.advance()? else {
            return Ok(None);
        };
        let place = LogPlace { segment: self.sources[self.idx].number, offset: self.offset };
        let current = self.current.as_ref().expect("a frame was read from it");
        let lsn = current.header.lsn_at(self.offset);
        // `read_frame` has compared the lag with the place.
        let durable = Lsn(lsn.0 - frame.lag);
        self.offset += frame.len;
        self.durable = self.durable.max(durable);
        self.clean_close = false;
        let record = match frame.fields {
            Fields::Batch { first_seq, last_seq, .. } => {
                self.last_seq = last_seq;
                Record::Batch(BatchRef {
                    first_seq,
                    last_seq,
                    directory: &self.directory,
                    body: self.window.loaded(frame.body_at, frame.body_len),
                    body_start: frame.body_start,
                    body_at: frame.body_at,
                })
            }
            Fields::Control { control, .. } => {
                self.clean_close = matches!(control, Control::CleanClose { .. });
                if let Control::IdleMarker { manifest_edit }
                | Control::CleanClose { manifest_edit } = control
                {
                    self.manifest_edit = self.manifest_edit.max(manifest_edit);
                }
                Record::Control(control)
            }
        };
        Ok(Some(FrameRef { place, lsn, durable, record }))
    }

    /// Finds the next frame and verifies it; moves over the ends of segments.
    fn advance(&mut self) -> Result<Option<VerifiedFrame>> {
        if let Some(stop) = self.find_place()? {
            return Ok(self.stop(stop));
        }
        match self.read_frame()? {
            Ok(frame) => Ok(Some(frame)),
            Err(stop) => Ok(self.stop(stop)),
        }
    }

    /// Moves to the place of the next frame, over the ends of segments; returns why there is none.
    fn find_place(&mut self) -> Result<Option<Stop>> {
        if self.stopped.is_some() {
            // The files may have grown, and the next header may be there now.
            self.current = None;
            self.stopped = None;
            self.window.clear();
        }
        loop {
            if self.current.is_none()
                && let Some(stop) = self.open_segment()?
            {
                return Ok(Some(stop));
            }
            let current = self.current.as_ref().expect("opened above");
            match current.next {
                Some((idx, header)) if self.offset == current.limit => self.cross(idx, &header)?,
                _ => return Ok(None),
            }
        }
    }

    fn stop(&mut self, stop: Stop) -> Option<VerifiedFrame> {
        // The window stays, for the verdict on this place. A further read clears it.
        self.stopped = Some(stop);
        None
    }

    /// Decodes the header of a segment, and refuses one that contradicts the file's name.
    fn header_state(&mut self, idx: usize) -> Result<HeaderState> {
        let source = &self.sources[idx];
        let mut bytes = [0; HEADER_LEN];
        let got = source.file.read_at(0, &mut bytes)?;
        let state = SegmentHeader::decode(&bytes[..got], &source.path)?;
        if let HeaderState::Valid(header) = state {
            let is_own = (header.db, header.epoch, header.number)
                == (self.options.db, source.epoch, source.number);
            if !is_own {
                let what = format!(
                    "segment {} of epoch {} of database {:x} is in the place of segment {} of \
                     epoch {} of database {:x}",
                    header.number,
                    header.epoch,
                    header.db.0,
                    source.number,
                    source.epoch,
                    self.options.db.0
                );
                return Err(Error::corruption(&source.path, 0, what));
            }
            self.manifest_edit = self.manifest_edit.max(header.manifest_edit);
        }
        Ok(state)
    }

    /// The end of the readable part of a segment, by the file's length and the cut.
    fn readable(&self, idx: usize) -> Result<u64> {
        let len = self.sources[idx].file.len()?;
        let cut = self.options.cut.filter(|cut| cut.segment == self.sources[idx].number);
        Ok(cut.map_or(len, |cut| len.min(cut.offset)))
    }

    /// Opens the segment at `idx`, to be read from `offset` on.
    fn open_segment(&mut self) -> Result<Option<Stop>> {
        if self.idx == self.sources.len() {
            return Ok(Some("no segment is listed"));
        }
        let lost = match self.header_state(self.idx)? {
            HeaderState::Valid(header) => Ok(header),
            HeaderState::Zero => Err(NO_HEADER),
            HeaderState::Garbage(what) => Err(what),
        };
        let header = match lost {
            Ok(header) => header,
            // Frames were read from this segment before, so it had a header.
            Err(what) if self.offset >= SEGMENT_HEADER_BYTES => {
                return Err(Error::corruption(&self.sources[self.idx].path, 0, what));
            }
            Err(what) => {
                // Reserved segments before the first one that was used are empty, and are passed
                // over.
                let Some(idx) = self.first_begun()? else { return Ok(Some(what)) };
                self.idx = idx;
                return self.open_segment();
            }
        };
        // From a place in the log to an offset in this segment.
        let reach = self.options.reach.0.saturating_sub(header.base.0);
        // The file's length now: a segment that is being written grows, and its bytes after `reach`
        // are not published yet.
        let readable = self.readable(self.idx)?;
        let mut limit = readable.min(reach);
        if self.offset < SEGMENT_HEADER_BYTES {
            self.offset = SEGMENT_HEADER_BYTES;
            self.last_seq = header.previous_seq;
        }
        let next = self.successor(&header)?;
        if let Some((_, next)) = &next {
            let end = next.previous.map_or(0, |previous| previous.offset);
            if end < self.offset || header.base.checked_plus(end) != Some(next.base) {
                let what = "next segment does not begin where this one ends";
                return Err(Error::corruption(&self.sources[self.idx].path, end, what));
            }
            // The header of the next segment names the end of this one: bytes after it are of a
            // failed append and do not count. If the file is shorter than that end, reading stops
            // there.
            limit = limit.min(end);
        }
        let next = next.filter(|(_, next)| next.base == header.lsn_at(limit));
        // A header attests as a frame does, and so does the manifest.
        self.durable = self.durable.max(header.durable);
        if let Some(LogPosition { place, .. }) = self.options.replay_from
            && place.segment == header.number
        {
            if readable < place.offset {
                return Err(too_short(&self.sources, place, "the segment ends"));
            }
            self.durable = self.durable.max(header.lsn_at(place.offset));
        }
        self.current = Some(Current { header, limit, next });
        Ok(None)
    }

    /// The segment that the log begins with, if those listed before it were never begun: it is the
    /// first with a header, and continues none that is still listed.
    fn first_begun(&mut self) -> Result<Option<usize>> {
        if self.idx > 0 || self.options.start.is_some() {
            return Ok(None);
        }
        for idx in 1..self.sources.len() {
            if let HeaderState::Valid(header) = self.header_state(idx)? {
                let named = header.previous.map(|previous| previous.segment);
                let is_listed = self.sources.iter().any(|source| Some(source.number) == named);
                return Ok((!is_listed).then_some(idx));
            }
        }
        Ok(None)
    }

    /// The segment whose header names the one at `idx` as the one before. Segments without a
    /// header in between were reserved, or could not be begun.
    fn successor(&mut self, header: &SegmentHeader) -> Result<Option<(usize, SegmentHeader)>> {
        for idx in self.idx + 1..self.sources.len() {
            let HeaderState::Valid(next) = self.header_state(idx)? else {
                continue;
            };
            let named = next.previous.map(|previous| previous.segment);
            if named == Some(header.number) {
                return Ok(Some((idx, next)));
            }
            // The named segment was begun, but its header is lost. The log ends here, and `end`
            // finds out whether the segment was durable.
            let between = &self.sources[self.idx + 1..idx];
            if between.iter().any(|source| Some(source.number) == named) {
                return Ok(None);
            }
            let what = match named {
                Some(number) => format!("segment continues segment {number}, which is missing"),
                None => "segment begins an epoch in the middle of the log".to_owned(),
            };
            return Err(Error::corruption(&self.sources[idx].path, 0, what));
        }
        Ok(None)
    }

    /// Moves to the next segment.
    fn cross(&mut self, idx: usize, header: &SegmentHeader) -> Result<()> {
        // A second chain in addition to the offsets: a segment of another time may fit by its
        // place.
        if header.previous_seq != self.last_seq {
            let what = format!(
                "segment continues after sequence {}, the log before it ends with {}",
                header.previous_seq, self.last_seq
            );
            return Err(Error::corruption(&self.sources[idx].path, 0, what));
        }
        self.idx = idx;
        self.offset = 0;
        self.current = None;
        self.clean_close = false;
        self.window.clear();
        Ok(())
    }

    /// Reads and verifies the frame at `offset`.
    fn read_frame(&mut self) -> Result<Result<VerifiedFrame, Stop>> {
        let LogReader { sources, window, directory, current, offset, .. } = self;
        let current = current.as_ref().expect("a segment is open");
        let source = &sources[self.idx];
        let at = *offset;

        // In two steps, header and body. Each is verified before its lengths decide how much is read
        // next.
        let segment = &current.header;
        let range = at..current.limit;
        let found = load_header(window, &*source.file, segment, range, u64::MAX, directory)?;
        let (prefix, fields) = match found {
            Ok(found) => found,
            Err(stop) => return Ok(Err(stop)),
        };
        let (Fields::Batch { previous_seq: before, .. } | Fields::Control { last_seq: before, .. }) =
            fields;
        // Logged sequences have no holes: a whole frame that does not continue is from another
        // time.
        if before != self.last_seq {
            return Ok(Err("frame does not continue the sequence"));
        }
        self.read_body(&prefix, fields)
    }

    /// Loads and verifies the sections that are asked for.
    fn read_body(
        &mut self,
        prefix: &Prefix,
        fields: Fields,
    ) -> Result<Result<VerifiedFrame, Stop>> {
        let LogReader { sources, window, directory, current, offset, options, .. } = self;
        let limit = current.as_ref().expect("a segment is open").limit;
        let file = &*sources[self.idx].file;
        let body = *offset + prefix.header_len as u64;
        let frame_len = prefix.frame_len();
        // The part of the body to be loaded; with the padding if it is the whole body.
        let mut start = 0;
        let mut end = frame_len - prefix.header_len as u64;
        if options.headers_only {
            end = 0;
        } else if let Some(only) = options.only {
            // The other sections are not read from the device. Their checksums are not needed to
            // believe the header.
            directory.retain(|entry| entry.partition == only);
            start = directory.first().map_or(0, |entry| entry.start);
            end = directory.last().map_or(0, |entry| entry.start + entry.len as u64);
        }
        let Ok(len) = usize::try_from(end - start) else {
            return Ok(Err("frame is too long"));
        };
        let bytes = window.load(file, body + start, len, limit)?;
        for entry in directory.iter().filter(|_| !options.headers_only) {
            let section = section_of(bytes, start, entry);
            if section.is_none_or(|bytes| section_checksum(&bytes) != entry.checksum) {
                return Ok(Err("section checksum does not match"));
            }
        }
        if options.only.is_none() && !options.headers_only {
            // The padding is the only part without a checksum, and a frame has one encoding.
            let padding = usize::try_from(prefix.body_len).ok().and_then(|at| bytes.get(at..));
            if bytes.len() != len || padding.is_none_or(|p| p.iter().any(|byte| *byte != 0)) {
                return Ok(Err("padding is not zero"));
            }
        }
        Ok(Ok(VerifiedFrame {
            fields,
            lag: prefix.lag,
            len: frame_len,
            body_at: body + start,
            body_start: start,
            body_len: len,
        }))
    }
}

/// The error of a log that ends before `place`, through which it was durable; `end` says how.
fn too_short(sources: &[SegmentSource], place: LogPlace, end: &str) -> Error {
    let source = sources.iter().find(|source| source.number == place.segment);
    let path = source.map_or_else(PathBuf::new, |source| source.path.clone());
    let what = format!("{end} before this place, through which the log is flushed");
    Error::corruption(path, place.offset, what)
}

#[cfg(test)]
mod tests;
