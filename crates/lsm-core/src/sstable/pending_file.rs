//! [`PendingFile`]: the file of a table that is being written, and the bytes that wait to be appended.
//! Used by `writer.rs` alone.

use std::sync::Arc;

use super::stored::{Extent, LARGE_PAYLOAD_BYTES, Sealer};
use crate::error::Result;
use crate::fs::File;
use crate::options::Compression;

/// Bytes that are gathered before they go to the file.
const APPEND_BYTES: usize = 256 << 10;

/// See the module.
pub(super) struct PendingFile {
    pub file: Arc<dyn File>,
    sealer: Sealer,
    pub pending: Vec<u8>,
    /// Bytes in the file.
    written: u64,
    /// The checksums of all blocks so far, as they are stored.
    pub checksums: Vec<u8>,
}

impl PendingFile {
    /// The empty `file` of the table with this id.
    pub fn new(file: Arc<dyn File>, unique_id: u128) -> PendingFile {
        PendingFile {
            file,
            sealer: Sealer::new(unique_id),
            // Room for the block that passes the limit, so that the buffer does not grow.
            pending: Vec::with_capacity(APPEND_BYTES + (64 << 10)),
            written: 0,
            checksums: Vec::new(),
        }
    }

    /// The offset of the next block.
    pub fn offset(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    /// Appends a block.
    pub fn block(&mut self, payload: &[u8], compression: Compression) -> Result<Extent> {
        if payload.len() >= LARGE_PAYLOAD_BYTES {
            return self.large_block(&[payload], compression);
        }
        let offset = self.offset();
        let (extent, checksum) = self.sealer.seal(&mut self.pending, offset, payload, compression);
        // The file hash is made of these: hashing the file itself would read it again.
        self.checksums.extend_from_slice(&checksum.to_le_bytes());
        if self.pending.len() >= APPEND_BYTES {
            self.append()?;
        }
        Ok(extent)
    }

    /// A block that is written as it comes, without a copy of its large pieces.
    pub fn large_block(&mut self, pieces: &[&[u8]], compression: Compression) -> Result<Extent> {
        let offset = self.offset();
        let PendingFile { file, sealer, pending, written, checksums } = self;
        let (extent, checksum) = sealer.seal_pieces(offset, pieces, compression, &mut |bytes| {
            // Small pieces are gathered, large ones go to the file from where they lie. What is
            // pending goes first, because the file takes bytes in order.
            if bytes.len() < APPEND_BYTES {
                pending.extend_from_slice(bytes);
            }
            if pending.len() >= APPEND_BYTES || bytes.len() >= APPEND_BYTES {
                append(&**file, pending, written)?;
            }
            if bytes.len() >= APPEND_BYTES {
                file.append(bytes)?;
                *written += bytes.len() as u64;
            }
            Ok(())
        })?;
        checksums.extend_from_slice(&checksum.to_le_bytes());
        Ok(extent)
    }

    /// Gives the file what is pending.
    pub fn append(&mut self) -> Result<()> {
        append(&*self.file, &mut self.pending, &mut self.written)
    }
}

/// Appends what is pending to the file.
fn append(file: &dyn File, pending: &mut Vec<u8>, written: &mut u64) -> Result<()> {
    file.append(pending)?;
    *written += pending.len() as u64;
    pending.clear();
    Ok(())
}
