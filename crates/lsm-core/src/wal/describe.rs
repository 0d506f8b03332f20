//! [`describe`]: the meaning of each byte of a log segment, for `dump`.
//!
//! It needs no manifest: salt, epoch and place come from the segment's own header. It reports bytes
//! that do not verify as damaged, and continues after them. Frames after the end that the next
//! segment names were refused; one file alone does not show that.

use std::ops::Range;
use std::path::Path;

use super::frame::Control;
use super::section_index::{FRONT_FIELDS, FRONT_LEN};
use super::segment::{HEADER_LEN, HeaderState};
use super::{
    BatchRef, Record, SEGMENT_HEADER_BYTES, SectionIndex, SegmentHeader, SegmentPiece, survey,
};
use crate::codec::describe_fields;
use crate::error::{Error, Result};
use crate::fs::File;

/// Ranges in bytes with a text for people.
type Lines = Vec<(Range<u64>, String)>;

/// Returns the meaning of each byte of the segment in `file`: ranges in the file with a text for
/// people, in the order of the file. A range inside of another follows it. `operations` describes
/// the bytes of a section, by ranges in it.
///
/// # Errors
/// `Corruption` if the header is damaged: then frames cannot be recognised;
/// `Unsupported` for newer formats; `Io`.
pub fn describe(
    file: &dyn File,
    path: &Path,
    operations: &dyn Fn(&[u8]) -> Lines,
) -> Result<Lines> {
    let mut front = [0; HEADER_LEN];
    let got = file.read_at(0, &mut front)?;
    let len = file.len()?;
    let header = match SegmentHeader::decode(&front[..got], path)? {
        HeaderState::Valid(header) => header,
        HeaderState::Zero if len == 0 => return Ok(Vec::new()),
        HeaderState::Zero => return Ok(vec![(0..len, "zeros: not begun yet".to_owned())]),
        // Without the header the salt is unknown, and frames cannot be recognised.
        HeaderState::Garbage(what) => return Err(Error::corruption(path, 0, what)),
    };
    let mut lines = describe_header(&front, &header);
    survey(file, &header, SEGMENT_HEADER_BYTES..len, &mut |piece| {
        match piece {
            SegmentPiece::Zeros(range) => lines.push((range, "zeros".to_owned())),
            SegmentPiece::Damaged { range, what } => {
                lines.push((range, format!("damaged: {what}")));
            }
            SegmentPiece::Index { range, index } => {
                describe_index(file, &mut lines, range, &index)?;
            }
            SegmentPiece::Frame { range, header_len, record } => {
                let body_at = range.start + header_len;
                match record {
                    Record::Control(control) => lines.push((range, describe_control(control))),
                    Record::Batch(batch) => {
                        describe_batch(&mut lines, range, body_at, &batch, operations);
                    }
                }
            }
        }
        Ok(())
    })?;
    Ok(lines)
}

fn describe_header(bytes: &[u8; HEADER_LEN], header: &SegmentHeader) -> Lines {
    let whole = format!("segment header: segment {}, epoch {}", header.number, header.epoch);
    let mut lines = vec![(0..SEGMENT_HEADER_BYTES, whole)];
    let fields = header.fields().map(|(name, bytes)| (bytes.len(), name));
    let fields = fields.into_iter().chain([(8, "checksum")]);
    lines.extend(describe_fields(bytes, 0, "header", fields));
    lines
}

fn describe_index(
    file: &dyn File,
    lines: &mut Lines,
    range: Range<u64>,
    index: &SectionIndex,
) -> Result<()> {
    let mut front = [0; FRONT_LEN];
    let got = file.read_at(range.start, &mut front)?;
    let start = range.start;
    lines.push((range, format!("index of sections: {} partitions", index.groups.len())));
    lines.extend(describe_fields(&front[..got], start, "index", FRONT_FIELDS));
    let end = start + FRONT_LEN as u64;
    // The numbers of a group have no fixed places, so all groups are listed at the end of the
    // front.
    lines.extend(index.groups.iter().map(|group| {
        let text = format!(
            "index: partition {}, {} operations through sequence {}, {} bytes, {} memtable \
             switches, {} runs",
            group.partition,
            group.operations,
            group.last_seq.get(),
            group.bytes,
            group.switches,
            group.run_count()
        );
        (end..end, text)
    }));
    Ok(())
}

fn describe_control(control: Control) -> String {
    match control {
        Control::MemtableSwitch { partition, memtable } => {
            format!("memtable switch: partition {partition} continues in memtable {memtable}")
        }
        Control::IdleMarker { manifest_edit } => {
            format!("idle marker: manifest edit {manifest_edit} is durable")
        }
        Control::CleanClose { manifest_edit } => {
            format!("clean close: manifest edit {manifest_edit} is durable")
        }
        Control::EpochStart => "epoch start".to_owned(),
    }
}

fn describe_batch(
    lines: &mut Lines,
    range: Range<u64>,
    body_at: u64,
    batch: &BatchRef<'_>,
    operations: &dyn Fn(&[u8]) -> Lines,
) {
    let sections = batch.sections().count();
    let text = format!(
        "batch: sequences {} to {}, sections: {sections}",
        batch.first_seq.get(),
        batch.last_seq.get()
    );
    let end = range.end;
    lines.push((range.clone(), text));
    lines.push((range.start..body_at, "frame header".to_owned()));
    let mut at = body_at;
    for section in batch.sections() {
        let section_end = at + section.bytes.len() as u64;
        let text = format!(
            "section: partition {}, {} operations from sequence {} on",
            section.partition,
            section.operations,
            section.first_seq.get()
        );
        lines.push((at..section_end, text));
        // A parameter, because this folder knows sections only as bytes.
        let inside = operations(&section.bytes).into_iter();
        lines.extend(inside.map(|(range, text)| (at + range.start..at + range.end, text)));
        at = section_end;
    }
    if at < end {
        lines.push((at..end, "padding".to_owned()));
    }
}
