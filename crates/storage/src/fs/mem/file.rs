//! An open file of [`MemFs`](super::MemFs).
//!
//! Every change takes the state's lock first, so that it has its place in the order of all changes;
//! reads take the inode's lock alone.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::MemShared;
#[cfg(any(test, feature = "internals"))]
use super::inode::SyncLoss;
use super::inode::{Cell, ContentChange, Inode};
use crate::error::{Error, Result};
use crate::fs::{File, MappedBytes};

/// An open file; still usable after its name is deleted.
pub(in crate::fs) struct MemFile {
    // Fixed after construction.
    shared: Arc<MemShared>,
    path: PathBuf,
    cell: Arc<Cell>,
    is_writable: bool,
    // The place of the next append; changed under the lock of the state, which orders it.
    position: AtomicU64,
    // Up to here appends go through a mapping; 0 is nowhere. Under the state's lock as well.
    mapped_end: AtomicU64,
}

impl MemFile {
    pub(super) fn new(
        shared: Arc<MemShared>,
        path: &Path,
        cell: Arc<Cell>,
        is_writable: bool,
    ) -> MemFile {
        let position = AtomicU64::new(cell.inode.read().cache.len());
        MemFile {
            shared,
            path: path.to_owned(),
            cell,
            is_writable,
            position,
            mapped_end: AtomicU64::new(0),
        }
    }

    /// As `MemFs::lose_unsynced`, for a file that may have lost its name.
    #[cfg(any(test, feature = "internals"))]
    pub(in crate::fs) fn lose_unsynced(&self, loss: SyncLoss) {
        let _state = self.shared.state.write();
        self.cell.edit(|inode| inode.lose_pending(loss));
    }

    fn failed(&self, operation: &str, kind: io::ErrorKind) -> Error {
        Error::io(operation, &self.path, kind.into())
    }

    fn check_writable(&self, operation: &str) -> Result<()> {
        if self.is_writable {
            Ok(())
        } else {
            Err(self.failed(operation, io::ErrorKind::Unsupported))
        }
    }
}

impl File for MemFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.check_writable("append to")?;
        let mut state = self.shared.state.write();
        // Under the lock of all files: two appends must not fill the same space.
        let free = state.free();
        let seq = state.next_seq();
        let offset = self.position.load(Ordering::Relaxed);
        let taken = self.cell.edit(|inode| {
            let room = (inode.cache.len() + free).saturating_sub(offset);
            let taken = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
            if taken > 0 {
                let bytes: Arc<[u8]> = Arc::from(&bytes[..taken]);
                let is_stored = offset + taken as u64 <= self.mapped_end.load(Ordering::Relaxed);
                inode.change(seq, ContentChange::Write { offset, bytes, is_stored });
            }
            taken
        });
        self.position.store(offset + taken as u64, Ordering::Relaxed);
        // The part that fits is written, as the system does: the caller must handle a part of a
        // frame.
        if taken < bytes.len() {
            return Err(self.failed("append to", io::ErrorKind::StorageFull));
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.cell.inode.read().cache.read(offset, buf))
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        let _state = self.shared.state.write();
        if !self.cell.inode.read().pending.is_empty() {
            self.cell.edit(Inode::sync);
        }
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.cell.inode.read().cache.len())
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.check_writable("preallocate")?;
        let mut state = self.shared.state.write();
        let more = len.saturating_sub(self.cell.inode.read().cache.len());
        if more == 0 {
            return Ok(());
        }
        if more > state.free() {
            return Err(self.failed("preallocate", io::ErrorKind::StorageFull));
        }
        let seq = state.next_seq();
        self.cell.edit(|inode| inode.change(seq, ContentChange::Grow { len }));
        Ok(())
    }

    fn map_appends(&self) -> bool {
        let _state = self.shared.state.write();
        self.mapped_end.store(self.cell.inode.read().cache.len(), Ordering::Relaxed);
        true
    }

    /// A copy, which is as good because files do not change.
    fn map(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        let mut bytes = vec![0; len];
        let read = self.cell.inode.read().cache.read(offset, &mut bytes);
        (read == len).then(|| Arc::new(bytes) as MappedBytes)
    }

    fn overwrite(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_writable("write over a part of")?;
        let mut state = self.shared.state.write();
        let seq = state.next_seq();
        let bytes: Arc<[u8]> = Arc::from(bytes);
        let change = ContentChange::Write { offset, bytes, is_stored: false };
        self.cell.edit(|inode| inode.change(seq, change));
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.check_writable("punch a hole in")?;
        let mut state = self.shared.state.write();
        let seq = state.next_seq();
        self.cell.edit(|inode| inode.change(seq, ContentChange::Punch { offset, len }));
        Ok(())
    }
}
