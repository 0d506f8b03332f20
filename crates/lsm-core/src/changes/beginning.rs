//! [`find_beginning`]: the segment in which the commits after a token begin.
//!
//! Called by `log.rs` when it opens a log; the list of segments is for the verification, too. Reads headers from the newest segment back to the one that it looks
//! for, and nothing else.
//!
//! Invariant: every segment between the result and the newest one is there, each continuing the one before it.
//! So a token whose next segment is missing is too old, and nothing is passed over.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{OpenFiles, TableFile};
use crate::types::{Epoch, FileNo, SeqNo};
use crate::version::DbVersion;
use crate::wal::{SegmentHeader, SegmentSource};

/// The place where the commits after a token begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// In this segment.
    Segment(FileNo, Epoch),
    /// Nothing is after the token.
    End,
}

/// All segments that `version` lists or retains, in their order.
pub(crate) fn listed_segments(version: &DbVersion) -> BTreeMap<FileNo, Epoch> {
    let mut listed = version.log_segments.clone();
    listed.extend(version.retained.segments.iter().map(|(file, kept)| (*file, kept.epoch)));
    listed
}

/// Opens a segment.
///
/// # Errors
/// A missing file, if the list is older than the folder; those of the file system.
pub(super) fn open_segment(
    files: &Arc<OpenFiles>,
    dir: &Path,
    number: FileNo,
    epoch: Epoch,
) -> Result<SegmentSource> {
    let path = FileName::new(FileKind::Wal, number, epoch).path(dir);
    let file = Arc::new(TableFile::open(files, &path)?);
    Ok(SegmentSource { number, epoch, path, file })
}

/// The segment in which the commits after `token` begin.
///
/// # Errors
/// [`ErrorKind::TooOld`]; those of reading the headers.
pub(super) fn find_beginning(
    files: &Arc<OpenFiles>,
    dir: &Path,
    version: &DbVersion,
    token: SeqNo,
) -> Result<Beginning> {
    // Where the present epoch began.
    let begin = version.log_cut.map_or(SeqNo::ZERO, |cut| cut.last_seq);
    let mut later: Option<SegmentHeader> = None;
    for (number, epoch) in listed_segments(version).into_iter().rev() {
        // One that was not begun yet, or could not be.
        let named = later.filter(|later| later.epoch == epoch).and_then(|later| later.previous);
        if named.is_some_and(|named| number > named.segment) {
            continue;
        }
        if epoch != version.epoch && later.is_none() && token >= begin {
            return Ok(Beginning::End);
        }
        let source = open_segment(files, dir, number, epoch)?;
        let ends = version.retained.ends.get(&epoch).map(|end| end.segment);
        let is_begun = ends == Some(number) || named.is_some_and(|named| named.segment == number);
        let header = match SegmentHeader::read(&*source.file, &source.path)? {
            Some(header) => header,
            None if is_begun => {
                return Err(Error::corruption(&source.path, 0, "segment header is damaged"));
            }
            None => continue,
        };
        if header.db != version.db_id || header.number != number || header.epoch != epoch {
            let what = "a segment of another log is in the place of this one";
            return Err(Error::corruption(&source.path, 0, what));
        }
        if !continues(version, &header, later.as_ref(), begin) {
            break;
        }
        if header.previous_seq <= token {
            return Ok(Beginning::Segment(number, epoch));
        }
        later = Some(header);
    }
    let oldest = later.map_or(begin, |later| later.previous_seq);
    if token >= oldest {
        return Ok(Beginning::End);
    }
    let message = format!(
        "the log begins after sequence number {oldest}, and commits after {token} were asked for; read a snapshot, \
         and begin again with its sequence number"
    );
    Err(Error::new(ErrorKind::TooOld, message))
}

/// Returns `true` if nothing is missing between the segment of `header` and the one of `later`, or the beginning
/// of the present epoch, which follows commit `begin`.
fn continues(
    version: &DbVersion,
    header: &SegmentHeader,
    later: Option<&SegmentHeader>,
    begin: SeqNo,
) -> bool {
    let next_seq = match later {
        Some(later) if later.epoch == header.epoch => {
            return later.previous.is_some_and(|previous| previous.segment == header.number);
        }
        // It continues a segment of its own epoch, which is not there.
        Some(later) if later.previous.is_some() => return false,
        Some(later) => later.previous_seq,
        None if header.epoch == version.epoch => return true,
        None => begin,
    };
    // Epochs in between logged nothing, or their segments are gone.
    let end = version.retained.ends.get(&header.epoch);
    end.is_some_and(|end| end.last_seq == next_seq && end.segment == header.number)
}
