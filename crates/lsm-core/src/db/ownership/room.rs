//! [`Room`]: space that a promotion reserves before it fences the old primary.
//!
//! Used by `ownership.rs`. A promotion that finds the disk full after its fence would leave the database without a
//! writer. So it reserves the space before the fence, in a temporary file, and frees it when the fork is
//! written. Another process can take it in between: that is a moment, and the old primary writes nothing more.

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::fs::{AppendMode, Fs, names};
use crate::types::FileNo;
use crate::version::Fork;

/// The commit cursor, names and headers.
const FIXED_BYTES: u64 = 256 << 10;
/// A table of a partition takes this much in addition to its entries, at most.
const TABLE_BYTES: u64 = 4 << 10;

/// Reserved space. Dropping it frees it.
pub(super) struct Room<'a> {
    fs: &'a dyn Fs,
    path: PathBuf,
}

impl Room<'_> {
    /// Reserves the space that `fork` and the beginning of its epoch need, which may become a little
    /// more.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]; otherwise those of the file system.
    pub(super) fn make<'a>(fs: &'a dyn Fs, dir: &Path, fork: &Fork) -> Result<Room<'a>> {
        let bytes = needed(fs, dir, fork)?;
        let free = fs.free_bytes(dir)?;
        if free < bytes {
            let message = format!(
                "a promotion needs {bytes} bytes of space in {}, and {free} are free",
                dir.display()
            );
            return Err(Error::new(ErrorKind::NoSpace, message));
        }
        // The next open removes a file of a dead process, as one of a fork.
        let name = format!("{}.{}-0.tmp", names::fork(fork.claim), std::process::id());
        let room = Room { fs, path: dir.join(name) };
        fs.delete(&room.path)?;
        fs.open_append(&room.path, AppendMode::IfAbsent)?.preallocate(bytes)?;
        Ok(room)
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        // A failure costs the space until the next open.
        let _ = self.fs.delete(&self.path);
    }
}

/// The bytes of a fork, of the manifest that begins with its state, and of the tables of the unflushed data.
fn needed(fs: &dyn Fs, dir: &Path, fork: &Fork) -> Result<u64> {
    let state = fork.encode()?.len() as u64;
    let log = unflushed_bytes(fs, dir, fork)?;
    let tables = fork.version.partitions.values().count() as u64 * TABLE_BYTES;
    // Twice: hooks may add to entries, and the state grows by the tables.
    Ok(2 * state + 2 * log + tables + FIXED_BYTES)
}

/// The bytes of the log that recovery replays, at most.
fn unflushed_bytes(fs: &dyn Fs, dir: &Path, fork: &Fork) -> Result<u64> {
    let Some(cut) = fork.cut else { return Ok(0) };
    let from = fork.version.replay_from.map(|from| from.position().place);
    let (first, skipped) = from.map_or((FileNo(0), 0), |place| (place.segment, place.offset));
    let mut bytes = cut.offset;
    for entry in fs.list(dir, "")? {
        let Some(name) = names::FileName::parse(&entry.name) else { continue };
        let is_listed = name.kind == names::FileKind::Wal
            && fork.version.log_segments.get(&name.number) == Some(&name.epoch);
        if is_listed && name.number >= first && name.number < cut.segment {
            bytes = bytes.saturating_add(entry.len);
        }
    }
    Ok(bytes.saturating_sub(skipped))
}
