//! [`describe`] and [`check_generation`]: the content of one manifest file, damage included.
//!
//! For `dump` and for verification. Unlike recovery, both continue after a bad frame. So the edits
//! that they find there are never applied to anything.

use std::ops::Range;
use std::path::Path;

use super::change::Change;
use super::edit::VersionEdit;
use super::manifest::{Frame, FrameSeal, FrameSearch, HEADER_BYTES, read_header};
use super::record::{EditFault, FlushBeyondSync, LogCut};
use super::recover::read_all;
use crate::codec::describe_fields;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::FileName;
use crate::fs::{File, Fs};

/// Returns the meaning of each byte of the manifest in `file`: ranges in the file with a text for
/// people, in the order of the file. A range inside of another follows it. `changes` includes those
/// of each edit.
///
/// # Errors
/// `Corruption` if the header is damaged: then frames cannot be recognised; `Unsupported` for newer
/// formats; `Io`.
///
/// # Cost
/// Keeps the whole file in memory.
pub fn describe(file: &dyn File, path: &Path, changes: bool) -> Result<Vec<(Range<u64>, String)>> {
    let bytes = read_all(file)?;
    let header = read_header(&bytes, None, path)?;
    let text =
        format!("manifest header: generation {}, epoch {}", header.seal.generation, header.epoch);
    let mut lines = vec![(0..HEADER_BYTES as u64, text)];
    let fields = header.fields().map(|(name, bytes)| (bytes.len(), name));
    let fields = fields.into_iter().chain([(8, "header checksum")]);
    lines.extend(describe_fields(&bytes, 0, "header", fields));
    let mut is_first = true;
    frames(&bytes, header.seal, &mut |range, frame| {
        let Some(&Frame { number, payload, payload_at, .. }) = frame else {
            lines.push((range, "damaged: no edit that verifies".to_owned()));
            return;
        };
        let name = if is_first { "snapshot" } else { "edit" };
        is_first = false;
        let inside = payload_at as u64..payload_at as u64 + payload.len() as u64;
        let mut described = describe_edit(name, number, payload, inside, changes);
        // The whole frame, and not the payload alone.
        described[0].0 = range;
        lines.extend(described);
    });
    Ok(lines)
}

/// Describes the payload of an edit, which lies in `range` of its file: as a whole first, then each of its
/// changes, if requested.
pub(super) fn describe_edit(
    name: &str,
    number: u64,
    payload: &[u8],
    range: Range<u64>,
    changes: bool,
) -> Vec<(Range<u64>, String)> {
    let edit = match VersionEdit::decode(number, payload) {
        Err(fault) => return vec![(range, format!("{name} {number}: {fault}"))],
        Ok(edit) => edit,
    };
    let mut lines =
        vec![(range.clone(), format!("{name} {number}: {} changes", edit.changes.len()))];
    if changes {
        let texts = edit.changes.iter().map(describe_change);
        lines.extend(texts.map(|text| (range.clone(), text)));
    }
    lines
}

fn describe_change(change: &Change) -> String {
    match change {
        Change::TableAdded { partition, level, meta } => format!(
            "table added: partition {partition}, level {level}, file {}, {} bytes, {} entries, \
             {:?} to {:?}",
            meta.file, meta.bytes, meta.entries, meta.smallest, meta.largest
        ),
        Change::TableRemoved { partition, level, file } => {
            format!("table removed: partition {partition}, level {level}, file {file}")
        }
        Change::FlushedThrough { partition, seq, .. } => {
            format!("flushed: partition {partition} through sequence {}", seq.get())
        }
        Change::SegmentAdded { file, epoch } => {
            format!("log segment added: file {file}, epoch {epoch}")
        }
        Change::SegmentRemoved { file } => format!("log segment removed: file {file}"),
        Change::ReplayFrom(LogCut { segment, offset, last_seq }) => {
            format!("replay from: segment {segment}, offset {offset}, after sequence {last_seq}")
        }
        Change::FlushBeyondSync(FlushBeyondSync { flushed, durable }) => {
            format!("flushed through sequence {flushed}, ahead of a log durable through {durable}")
        }
        Change::ClearSeqAdded { partition, seq } => {
            format!("cleared: partition {partition} at sequence {}", seq.get())
        }
        Change::SpanAdded { partition, span } => format!("deleted: partition {partition}, {span}"),
        Change::SpanRemoved { partition, span } => {
            format!("nothing left of: partition {partition}, {span}")
        }
        other => format!("{other:?}"),
    }
}

/// Takes a range of the file, and the frame in it if there is one.
type Visit<'a> = dyn FnMut(Range<u64>, Option<&Frame<'_>>) + 'a;

/// Passes each frame, or each range that is none, to `visit`.
fn frames(bytes: &[u8], seal: FrameSeal, visit: &mut Visit<'_>) {
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        if let Some(frame) = seal.frame_at(bytes, at, 0) {
            visit(at as u64..frame.end as u64, Some(&frame));
            at = frame.end;
            continue;
        }
        let end = match seal.search(bytes, at + 1) {
            FrameSearch::Found(next, _) => next,
            // Bytes without a frame are one damaged range.
            FrameSearch::Nothing | FrameSearch::Undecided => bytes.len(),
        };
        visit(at as u64..end as u64, None);
        at = end;
    }
}

/// All damage of the generation `name`, which should be `expected` bytes long: header, frames and their
/// numbers. Without a length, the end of the file may be a torn append. If another process may append to it
/// (`is_growing`), only that many bytes are read.
///
/// # Errors
/// Those of reading; `Unsupported` for newer formats.
pub fn check_generation(
    fs: &dyn Fs,
    dir: &Path,
    name: FileName,
    expected: Option<u64>,
    is_growing: bool,
) -> Result<Vec<Error>> {
    let path = name.path(dir);
    let mut bytes = read_all(&*fs.open_read(&path)?)?;
    if let Some(expected) = expected.filter(|_| is_growing) {
        bytes.truncate(usize::try_from(expected).unwrap_or(usize::MAX));
    }
    let mut found = Vec::new();
    let len = bytes.len() as u64;
    if let Some(expected) = expected.filter(|expected| *expected != len) {
        let what = format!("the manifest has {len} bytes, {expected} were written");
        found.push(Error::corruption(&path, len.min(expected), what));
    }
    let seal = match read_header(&bytes, Some(name), &path) {
        Ok(header) => header.seal,
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        Err(error) => {
            found.push(error);
            return Ok(found);
        }
    };
    let mut last = None;
    frames(&bytes, seal, &mut |range, frame| {
        let Some(&Frame { number, payload, payload_at, .. }) = frame else {
            // Any number may follow damage, which accounts for the missing edits.
            last = None;
            // Without a known length, bad bytes at the end may be an unfinished append.
            if expected.is_some() || range.end < len {
                found.push(Error::corruption(&path, range.start, "an edit is damaged"));
            }
            return;
        };
        if last.is_some_and(|last: u64| last.checked_add(1) != Some(number)) {
            let what = format!("edit {number} does not follow the one before");
            found.push(Error::corruption(&path, range.start, what));
        }
        last = Some(number);
        // A change of newer code is no damage.
        if let Err(EditFault::Malformed(fault)) = VersionEdit::decode(number, payload) {
            let offset = (payload_at + fault.at) as u64;
            found.push(Error::corruption(&path, offset, format!("edit {number}: {}", fault.what)));
        }
    });
    Ok(found)
}
