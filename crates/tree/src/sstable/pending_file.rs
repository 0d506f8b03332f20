//! [`PendingFile`]: the file of a table that is being written, and the bytes that wait to be appended.
//! Used by `writer.rs` alone.

use std::sync::Arc;

use super::stored::{BlockFramer, Extent, LARGE_PAYLOAD_BYTES};
use crate::error::Result;
use crate::fs::File;
use crate::options::Compression;

/// Bytes that are gathered before they go to the file. With 256 KiB, seeks in tables that are in the system's
/// cache alone have 0.84 times the speed.
const APPEND_BYTES: usize = 1 << 20;
/// A piece of a block from this size on goes to the file from where it lies: to gather it costs more than
/// a call of the file.
const LONG_PIECE_BYTES: usize = 256 << 10;
/// Bytes of the file after which the system is asked to write them to the device.
const BEGIN_SYNC_BYTES: u64 = 4 << 20;
/// The same for a table whose writer waits for the device. With 4 MiB, readers with little memory do 0.74 of the
/// reads.
const PACED_SYNC_BYTES: u64 = 1 << 20;

/// The file of a table that is being written: its blocks go to the device in pieces.
pub(super) struct PendingFile {
    pub file: Arc<dyn File>,
    framer: BlockFramer,
    pub pending: Vec<u8>,
    /// Bytes in the file.
    written: u64,
    /// Those of them that the system was asked to write to the device.
    begun: u64,
    /// See [`PendingFile::keep_pace`].
    is_paced: bool,
    /// The checksums of all blocks so far, as they are stored.
    pub checksums: Vec<u8>,
}

impl PendingFile {
    /// The empty `file` of the table with this id.
    pub fn new(file: Arc<dyn File>, unique_id: u128) -> PendingFile {
        PendingFile {
            file,
            framer: BlockFramer::new(unique_id),
            // Room for the block that passes the limit, so that the buffer does not grow.
            pending: Vec::with_capacity(APPEND_BYTES + (64 << 10)),
            written: 0,
            begun: 0,
            is_paced: false,
            checksums: Vec::new(),
        }
    }

    /// Waits for the device from now on, so that no more than [`PACED_SYNC_BYTES`] are on their way to it. Otherwise
    /// whoever reads from the device waits for all that the system has gathered of a table.
    pub fn keep_pace(&mut self) {
        self.is_paced = true;
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
        let (extent, checksum) = self.framer.frame(&mut self.pending, offset, payload, compression);
        self.note(checksum)?;
        Ok(extent)
    }

    /// Appends a block whose payload lies in pieces, without gathering it first. Such a block is compressed
    /// only if it is large.
    pub fn block_of_pieces(
        &mut self,
        pieces: &[&[u8]],
        compression: Compression,
    ) -> Result<Extent> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        if len >= LONG_PIECE_BYTES {
            return self.large_block(pieces, compression);
        }
        assert!(compression == Compression::None, "a short payload is gathered to be compressed");
        let offset = self.offset();
        let (extent, checksum) = self.framer.frame_plain(&mut self.pending, offset, pieces);
        self.note(checksum)?;
        Ok(extent)
    }

    /// Appends the dictionary, if blocks were compressed with one. Returns its place and its checksum.
    pub fn dictionary(&mut self) -> Result<Option<(Extent, u64)>> {
        // It lies after the blocks that need it, because the table is written in one go.
        let offset = self.offset();
        let PendingFile { framer, pending, .. } = self;
        let Some(dictionary) = framer.dictionary() else { return Ok(None) };
        let (extent, checksum) = framer.frame_plain(pending, offset, &[dictionary]);
        self.note(checksum)?;
        Ok(Some((extent, checksum)))
    }

    /// Notes the checksum of a block that is pending, and gives the file what is pending if that is much.
    fn note(&mut self, checksum: u64) -> Result<()> {
        // The file hash is made of these: hashing the file itself would read it again.
        self.checksums.extend_from_slice(&checksum.to_le_bytes());
        if self.pending.len() >= APPEND_BYTES {
            append_whole(&*self.file, &mut self.pending, &mut self.written)?;
            self.begin_sync()?;
        }
        Ok(())
    }

    /// Lets the device write while the table is made. Otherwise it rests until the end, and the sync then
    /// waits for all of the table; writers wait for a flush that waits.
    fn begin_sync(&mut self) -> Result<()> {
        let new = self.written - self.begun;
        if self.is_paced && new >= PACED_SYNC_BYTES {
            // Its error is that of the table: the sync at the end need not report it again.
            self.file.begin_next_sync()?;
            self.begun = self.written;
        } else if new >= BEGIN_SYNC_BYTES {
            self.file.begin_sync();
            self.begun = self.written;
        }
        Ok(())
    }

    /// A block that is written as it comes, without a copy of its long pieces.
    pub fn large_block(&mut self, pieces: &[&[u8]], compression: Compression) -> Result<Extent> {
        let offset = self.offset();
        let PendingFile { file, framer, pending, written, checksums, .. } = self;
        let (extent, checksum) =
            framer.frame_pieces(offset, pieces, compression, &mut |bytes| {
                // Short pieces are gathered, long ones go to the file from where they lie, after what is
                // pending, because the file takes bytes in order.
                if bytes.len() >= LONG_PIECE_BYTES {
                    file.append_pieces(&[pending, bytes])?;
                    *written += (pending.len() + bytes.len()) as u64;
                    pending.clear();
                    return Ok(());
                }
                pending.extend_from_slice(bytes);
                if pending.len() >= APPEND_BYTES {
                    append_whole(&**file, pending, written)?;
                }
                Ok(())
            })?;
        checksums.extend_from_slice(&checksum.to_le_bytes());
        self.begin_sync()?;
        Ok(extent)
    }

    /// Gives the file what is pending.
    pub fn append(&mut self) -> Result<()> {
        append(&*self.file, &mut self.pending, &mut self.written)
    }
}

/// Appends what is pending up to the last multiple of [`APPEND_BYTES`] in the file. The system keeps what one
/// call writes in as few pieces of its cache as the place in the file allows, and finds a block in large
/// pieces sooner.
fn append_whole(file: &dyn File, pending: &mut Vec<u8>, written: &mut u64) -> Result<()> {
    let after = (*written + pending.len() as u64) % APPEND_BYTES as u64;
    let len = pending.len().saturating_sub(after as usize);
    file.append(&pending[..len])?;
    *written += len as u64;
    pending.drain(..len);
    Ok(())
}

/// Appends what is pending to the file.
fn append(file: &dyn File, pending: &mut Vec<u8>, written: &mut u64) -> Result<()> {
    file.append(pending)?;
    *written += pending.len() as u64;
    pending.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::fs::{AppendMode, FaultAction, FaultAt, FaultFs, FaultRule, Fs, MemFs, OpKind};

    /// The number of times that the system is asked to write during the making of a table.
    fn begun_with(block_bytes: usize, blocks: usize, is_paced: bool) -> usize {
        let fs = FaultFs::over_mem(MemFs::new());
        fs.create_dir(Path::new("/t")).unwrap();
        let begun = Arc::new(AtomicUsize::new(0));
        let count = begun.clone();
        fs.set_observer(Arc::new(move |op| {
            let is_begun = matches!(op.kind, OpKind::BeginSync | OpKind::BeginNextSync);
            count.fetch_add(usize::from(is_begun), Ordering::Relaxed);
        }));
        let file = fs.open_append(Path::new("/t/1"), AppendMode::IfAbsent).unwrap();
        let mut pending = PendingFile::new(file, 7);
        if is_paced {
            pending.keep_pace();
        }
        let payload = vec![1; block_bytes];
        for _ in 0..blocks {
            pending.block_of_pieces(&[&payload], Compression::None).unwrap();
        }
        begun.load(Ordering::Relaxed)
    }

    #[test]
    fn the_device_is_given_short_and_long_blocks_while_a_table_is_made() {
        assert_eq!(begun_with(4 << 10, 1000, false), 0, "a table below 4 MiB");
        assert_eq!(begun_with(4 << 10, 2560, false), 2, "10 MiB");
        assert_eq!(begun_with(1 << 20, 10, false), 2, "10 MiB");
        assert_eq!(begun_with(4 << 10, 1000, true), 3, "almost 4 MiB");
        assert_eq!(begun_with(1 << 20, 10, true), 10, "10 MiB");
    }

    /// The system reports a page that it could not write only once. The next sync returns no error.
    #[test]
    fn an_error_of_the_device_on_the_way_is_one_of_the_table() {
        let fs = FaultFs::over_mem(MemFs::new());
        fs.create_dir(Path::new("/t")).unwrap();
        let first = FaultAt::Nth { kind: OpKind::BeginNextSync, suffix: "1".into(), nth: 0 };
        fs.add_rule(FaultRule::once(first, FaultAction::Eio));
        let file = fs.open_append(Path::new("/t/1"), AppendMode::IfAbsent).unwrap();
        let mut pending = PendingFile::new(file, 7);
        pending.keep_pace();
        let payload = vec![1; 1 << 20];
        let refused = pending.block_of_pieces(&[&payload], Compression::None).unwrap_err();
        assert!(refused.to_string().contains("/t/1"), "{refused}");
    }
}
