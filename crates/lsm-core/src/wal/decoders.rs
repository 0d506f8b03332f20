//! A segment of the log with right checksums, for the fuzz targets of this repository.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::frame::{FRAME_ALIGNMENT, PREFIX_BYTES_MAX, Prefix, seed_of};
use super::segment::{HEADER_LEN, HeaderState};
use super::{
    LogReader, LogReaderOptions, MAGIC, Record, SegmentHeader, SegmentSource, describe, survey,
};
use crate::codec::{checksum64, checksum64_seeded};
use crate::error::{Error, Result};
use crate::fs::{File, Fs, MemFs};

const CHECKSUM_LEN: usize = 8;

/// Reads a segment as recovery, followers and descriptions do. The magic, the checksum of the header, and those of the
/// headers of its frames and of their single sections are made right first.
pub fn segment(bytes: &[u8]) {
    if bytes.len() < HEADER_LEN {
        return;
    }
    let mut bytes = bytes.to_vec();
    seal(&mut bytes);
    // Every result is allowed.
    let _ = read(&bytes);
}

fn put_sum(bytes: &mut [u8], at: usize, sum: u64) {
    bytes[at..at + CHECKSUM_LEN].copy_from_slice(&sum.to_le_bytes());
}

fn seal(bytes: &mut [u8]) {
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    let sum = checksum64(&bytes[..HEADER_LEN - CHECKSUM_LEN]);
    put_sum(bytes, HEADER_LEN - CHECKSUM_LEN, sum);
    let Ok(header) = header_of(bytes) else { return };
    let mut at = HEADER_LEN;
    while let Some(range) = frame_at(bytes, at) {
        let seed = seed_of(header.salt, header.epoch, at as u64);
        let frame = &mut bytes[range.clone()];
        if let Ok(prefix) = Prefix::decode(frame) {
            let (front, body) = frame.split_at_mut(prefix.header_len.min(frame.len()));
            // Where the header of a batch of one section ends, its checksum is.
            let body_len = (prefix.body_len as usize).min(body.len());
            if front[CHECKSUM_LEN] == 1 && front.len() > 2 * CHECKSUM_LEN {
                let end = front.len() - CHECKSUM_LEN;
                put_sum(front, end, checksum64(&body[..body_len]));
            }
            let sum = checksum64_seeded(&front[CHECKSUM_LEN..], seed);
            put_sum(front, 0, sum);
        }
        at = range.end.next_multiple_of(FRAME_ALIGNMENT);
    }
}

fn header_of(bytes: &[u8]) -> Result<SegmentHeader> {
    match SegmentHeader::decode(&bytes[..HEADER_LEN], Path::new("segment"))? {
        HeaderState::Valid(header) => Ok(header),
        HeaderState::Zero | HeaderState::Garbage(_) => {
            Err(Error::corruption("segment", 0, "no header"))
        }
    }
}

/// The frame at `at`, if it lies in `bytes`.
fn frame_at(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let rest = bytes.get(at..)?;
    let prefix = Prefix::decode(&rest[..rest.len().min(PREFIX_BYTES_MAX)]).ok()?;
    let len = prefix.header_len + usize::try_from(prefix.body_len).ok()?;
    (len <= rest.len()).then_some(at..at + len)
}

fn read(bytes: &[u8]) -> Result<()> {
    let fs = MemFs::new();
    let path = PathBuf::from("/segment");
    fs.write_raw(&path, bytes)?;
    let file = fs.open_read(&path)?;
    let _ = describe(&*file, &path, &|_| Vec::new());
    let header = header_of(bytes)?;
    let mut pieces = 0;
    let range = HEADER_LEN as u64..bytes.len() as u64;
    let _ = survey(&*file, &header, range, &mut |_| {
        pieces += 1;
        Ok(())
    });
    assert!(pieces <= bytes.len() + 1, "{pieces} pieces of {} bytes", bytes.len());
    for headers_only in [false, true] {
        let _ = read_frames(&header, &file, &path, headers_only, bytes.len());
    }
    Ok(())
}

fn read_frames(
    header: &SegmentHeader,
    file: &Arc<dyn File>,
    path: &Path,
    headers_only: bool,
    steps: usize,
) -> Result<()> {
    let source = SegmentSource {
        number: header.number,
        epoch: header.epoch,
        path: path.to_owned(),
        file: file.clone(),
    };
    let options = LogReaderOptions { headers_only, ..LogReaderOptions::new(header.db) };
    let mut reader = LogReader::new(vec![source], options)?;
    for _ in 0..=steps {
        match reader.next_frame()? {
            None => break,
            Some(frame) => {
                let Record::Batch(batch) = frame.record else { continue };
                let _ = batch.places().count();
                if !headers_only {
                    let _ = batch.sections().count();
                }
            }
        }
    }
    reader.end().map(drop)
}
