//! Chunk files under a second name, for checkpoints.

use std::path::Path;

use lsm_core::error::{Error, Result};
use lsm_core::fs::{AppendMode, Fs};

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Gives the file `from` the name `to`, or copies its first `len` bytes where that does not work.
pub fn link_file(fs: &dyn Fs, from: &Path, to: &Path, len: u64) -> Result<()> {
    if fs.caps().link && fs.link(from, to).is_ok() {
        return Ok(());
    }
    copy_file(fs, from, to, len)
}

/// Copies the first `len` bytes of the file `from` to the free name `to`, and syncs them.
pub fn copy_file(fs: &dyn Fs, from: &Path, to: &Path, len: u64) -> Result<()> {
    let source = fs.open_read(from)?;
    let target = fs.open_append(to, AppendMode::IfAbsent)?;
    let mut buf = vec![0; COPY_BYTES.min(len as usize)];
    let mut at = 0;
    while at < len {
        let piece = (len - at).min(buf.len() as u64) as usize;
        let got = source.read_at(at, &mut buf[..piece])?;
        if got == 0 {
            return Err(Error::corruption(from, at, "a chunk file is shorter than it was"));
        }
        target.append(&buf[..got])?;
        at += got as u64;
    }
    target.sync()
}
