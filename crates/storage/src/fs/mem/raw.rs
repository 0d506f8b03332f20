//! Direct changes of [`MemFs`] for corruption tests: the effects of a bad disk or of another
//! program on files.
//!
//! Nothing here goes through [`Fs`](crate::fs::Fs), and nothing is pending: each change is durable
//! at once. For idle stores; pending changes of a file are ignored.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::MemFs;
use super::content::Content;
use super::inode::{Cell, Inode};
use super::state::NameFate;
use crate::error::{Error, Result};

impl MemFs {
    /// Paths of all files, in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        let state = self.shared.state.read();
        let files = state
            .dirs
            .iter()
            .flat_map(|(path, dir)| dir.names.keys().map(move |name| path.join(&**name)));
        files.collect()
    }

    /// The whole file as reads see it.
    ///
    /// # Errors
    /// `Io` if there is no such file.
    pub fn read_raw(&self, path: &Path) -> Result<Vec<u8>> {
        let cell = self.cell(path)?;
        let inode = cell.inode.read();
        let len = usize::try_from(inode.cache.len())
            .map_err(|_| Error::io("read", path, io::ErrorKind::OutOfMemory.into()))?;
        let mut bytes = vec![0; len];
        inode.cache.read(0, &mut bytes);
        Ok(bytes)
    }

    /// Replaces the file's bytes, or makes the file.
    ///
    /// # Errors
    /// `Io` if there is no such folder.
    pub fn write_raw(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let inode = Inode::durable(Content::from_bytes(bytes));
        if let Ok(cell) = self.cell(path) {
            cell.edit(|old| *old = inode);
            return Ok(());
        }
        let mut state = self.shared.state.write();
        state.next_id += 1;
        let cell = Cell::new(state.next_id, Arc::new(inode));
        let written = state.set(path, Some(cell), NameFate::Durable);
        written.map_err(|e| Error::io("create", path, e))
    }

    /// Flips the bits of `mask` in the byte at `offset`; after the end nothing happens.
    ///
    /// # Errors
    /// `Io` if there is no such file.
    pub fn corrupt(&self, path: &Path, offset: u64, mask: u8) -> Result<()> {
        self.cell(path)?.edit(|inode| inode.tamper(|content| content.xor(offset, mask)));
        Ok(())
    }

    /// Cuts the file to `len` bytes, or extends it with zeros.
    ///
    /// # Errors
    /// `Io` if there is no such file.
    pub fn truncate_raw(&self, path: &Path, len: u64) -> Result<()> {
        self.cell(path)?.edit(|inode| inode.tamper(|content| content.set_len(len)));
        Ok(())
    }

    /// Removes the name.
    ///
    /// # Errors
    /// `Io` if there is no such file.
    pub fn remove_raw(&self, path: &Path) -> Result<()> {
        self.cell(path)?;
        let removed = self.shared.state.write().set(path, None, NameFate::Durable);
        removed.map_err(|e| Error::io("delete", path, e))
    }

    fn cell(&self, path: &Path) -> Result<Arc<Cell>> {
        let state = self.shared.state.read();
        state.find(path).cloned().map_err(|e| Error::io("open", path, e))
    }
}
