//! [`SegmentWriter`]: appends encoded frames to one segment, and records the end of the good ones.
//!
//! Called by the commit path, which encodes frames for [`SegmentWriter::offset`], decides when to
//! sync [`SegmentWriter::file`], and registers segments in the manifest. This file never syncs, and
//! never appends after a failure.
//!
//! Invariants:
//! 1. `offset` is the end of the last append that succeeded in full. The header of the next segment
//!    names it, so the bytes of a failed append after it are never replayed.
//! 2. After a failed append, nothing more is appended to the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::segment::HEADER_LEN;
use super::{LogPlace, Lsn, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::File;

/// A preallocated segment whose header is not written yet: all zeros.
pub struct Reserved {
    file: Arc<dyn File>,
    path: PathBuf,
    capacity: u64,
}

impl Reserved {
    /// Returns how many bytes it takes, header included.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Writes the header; the caller syncs the file.
    ///
    /// # Errors
    /// Those of the append. The file is then useless and the next segment needs another one.
    pub fn begin(self, header: SegmentHeader) -> Result<SegmentWriter> {
        // The header overwrites durable zeros. So a torn header is recognised: it is zeros,
        // complete, or damage.
        self.file.append(&header.encode())?;
        let Reserved { file, path, capacity } = self;
        let offset = SEGMENT_HEADER_BYTES;
        Ok(SegmentWriter { file, path, header, capacity, offset, failed: false })
    }

    /// The file.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }
}

/// Appends frames to a segment.
pub struct SegmentWriter {
    // Fixed after construction.
    file: Arc<dyn File>,
    path: PathBuf,
    header: SegmentHeader,
    capacity: u64,
    // Changed by append alone.
    offset: u64,
    failed: bool,
}

impl SegmentWriter {
    /// Begins a segment in an empty file: reserves `preallocate_to` bytes (0 = none) and writes
    /// the header. The caller syncs file and folder.
    ///
    /// # Errors
    /// Those of the file, which is then useless.
    #[cfg(test)]
    pub fn create(
        file: Arc<dyn File>,
        path: &Path,
        header: SegmentHeader,
        preallocate_to: u64,
    ) -> Result<SegmentWriter> {
        Self::create_reserved(file, path, preallocate_to)?.begin(header)
    }

    /// Prepares an empty file for a segment to be begun later, with `preallocate_to` bytes of
    /// zeros. The caller syncs file and folder.
    pub fn create_reserved(
        file: Arc<dyn File>,
        path: &Path,
        preallocate_to: u64,
    ) -> Result<Reserved> {
        // Before the header, so that a full disk refuses the segment and not a write into it.
        if preallocate_to > 0 {
            file.preallocate(preallocate_to)?;
        }
        let capacity = if preallocate_to > 0 { preallocate_to } else { u64::MAX };
        Ok(Reserved { file, path: path.to_owned(), capacity })
    }

    /// Appends whole frames, encoded for [`SegmentWriter::offset`] and this segment's salt.
    ///
    /// # Errors
    /// Those of the append. After one the segment takes no further frames, and its end does not
    /// move.
    ///
    /// # Durability
    /// In the kernel only.
    pub fn append(&mut self, encoded: &[u8]) -> Result<()> {
        self.append_with(encoded.len(), |file| file.append(encoded))
    }

    /// As [`SegmentWriter::append`], for whole frames in several pieces of memory. They count once
    /// all are appended.
    pub fn append_pieces(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        self.append_with(len, |file| file.append_pieces(pieces))
    }

    #[inline]
    fn append_with(
        &mut self,
        len: usize,
        append: impl FnOnce(&dyn File) -> Result<()>,
    ) -> Result<()> {
        // The look-ahead of recovery searches at multiples of 8 only.
        assert!(len.is_multiple_of(8), "frames are padded to 8 bytes");
        if self.failed {
            let message = format!("an earlier append to {} failed", self.path.display());
            return Err(Error::new(ErrorKind::Io, message));
        }
        // The file may have a part of the frames then. A frame after it would be unreachable,
        // because a reader stops at the first bad frame.
        append(&*self.file).inspect_err(|_| self.failed = true)?;
        // Only after the last piece: an append in several pieces counts as one.
        self.offset += len as u64;
        Ok(())
    }

    /// Returns `true` if `len` more bytes stay within the preallocated length. An empty segment
    /// takes any frame: a frame that is larger than a segment gets one of its own.
    pub fn fits(&self, len: usize) -> bool {
        // Saturating: appends may continue after one large frame has passed the capacity.
        self.is_empty() || self.capacity.saturating_sub(self.offset) >= len as u64
    }

    /// Frees the space that is reserved after the last frame. Appends work as before, and take
    /// space again.
    ///
    /// # Errors
    /// Those of [`File::punch`]. Nothing that was appended is touched.
    pub fn give_back(&self) -> Result<()> {
        match self.unused() {
            0 => Ok(()),
            unused => self.file.punch(self.offset, unused),
        }
    }

    /// Returns how many reserved bytes after the last frame may be freed.
    pub fn unused(&self) -> u64 {
        // After a failed append the content of the file is unknown, so it is not touched.
        let is_reserved = self.capacity != u64::MAX && !self.failed;
        if is_reserved { self.capacity.saturating_sub(self.offset) } else { 0 }
    }

    /// Returns `true` if it holds no frame yet.
    pub fn is_empty(&self) -> bool {
        self.offset == HEADER_LEN as u64
    }

    /// Returns `true` if an append failed.
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// The file, to be synced while appends go on.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Its header.
    pub fn header(&self) -> &SegmentHeader {
        &self.header
    }

    /// The offset of the next frame in the file, in bytes: the end of the last good append.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The end of this segment, for the header of the next one.
    pub fn end(&self) -> LogPlace {
        LogPlace { segment: self.header.number, offset: self.offset }
    }

    /// The place of the next frame in the log; the `base` of the next segment.
    pub fn lsn(&self) -> Lsn {
        self.header.lsn_at(self.offset)
    }
}
