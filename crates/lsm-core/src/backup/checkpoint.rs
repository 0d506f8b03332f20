//! A checkpoint of a database that another process may write: a folder with the files that a backup would copy.
//!
//! `Db::checkpoint` flushes first, so its copy has no log. That is a call of the process that writes. This one leaves the
//! writer alone: the log up to the last commit is copied, as in a backup, and the next open replays it.
//!
//! Invariants:
//! 1. The manifest comes last, after everything was read from files that the lease held.
//! 2. A file is linked only if all its bytes are in the state. Others are copied as far as they are.

use std::path::Path;

use super::source::{SourceFile, SourceFolder, SourceState};
use super::{BackupSource, restore::NewFiles};
use crate::db::make_empty_folder;
use crate::error::Result;
use crate::types::SeqNo;

/// Bytes that are copied at a time. The lease is kept between two.
const COPIED_BYTES: u64 = 1 << 20;

/// A checkpoint of a database that this process does not write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointInfo {
    /// The last commit in it.
    pub seq: SeqNo,
    /// The names of the partitions without a log: of these it has what was flushed.
    pub unlogged: Vec<String>,
}

impl BackupSource {
    /// Makes a copy of the database in the folder `into`, which must be empty or not exist, while another process may
    /// write it. The copy has every commit that returned before the call, and is the state after the last one in it; of
    /// partitions without a log it has what was flushed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::error::ErrorKind::InvalidArgument) if there are files in `into`; corruption
    /// of the manifest and the log; those of the files. Its files are removed then, except the folder; the remains after
    /// a crash are refused as a database.
    ///
    /// # Durability
    /// The copy is durable once this returns.
    ///
    /// # Cost
    /// A link (or a copy) of each table, and of each chunk file whose values are all named by tables; a copy of the other
    /// chunk files and of the log. One sync for each copied file, and three.
    pub fn checkpoint(&self, into: impl AsRef<Path>) -> Result<CheckpointInfo> {
        SourceFolder::until_held(|| self.try_checkpoint(into.as_ref()))
    }

    fn try_checkpoint(&self, into: &Path) -> Result<CheckpointInfo> {
        let from = SourceFolder::open(self)?;
        make_empty_folder(&*from.fs, into)?;
        let made = NewFiles::new(&*from.fs, into);
        let state = SourceState::find(&from)?;
        let mut files = state.files.iter();
        let placed = files.try_for_each(|file| place(&from, file, &made));
        let placed = placed.and_then(|()| from.follower.keep_lease());
        made.publish(placed, &state.version)?;
        let partitions = state.version.partitions.values();
        let unlogged = partitions.filter(|it| !it.options.logged).map(|it| it.name.to_string());
        Ok(CheckpointInfo { seq: state.seq, unlogged: unlogged.collect() })
    }
}

/// Makes one file of the copy.
fn place(from: &SourceFolder, file: &SourceFile, made: &NewFiles<'_>) -> Result<()> {
    from.follower.keep_lease()?;
    if file.can_be_linked() && made.link(&file.name.path(&from.dir), file.name) {
        return Ok(());
    }
    let Some(source) = from.open_file(file)? else { return Ok(()) };
    let target = made.create(file.name)?;
    let len = file.fixed + file.rest;
    let mut bytes = vec![0; len.min(COPIED_BYTES) as usize];
    for offset in (0..len).step_by(COPIED_BYTES as usize) {
        let piece = &mut bytes[..(len - offset).min(COPIED_BYTES) as usize];
        source.read(offset, piece)?;
        target.append(piece)?;
        from.follower.keep_lease()?;
    }
    target.sync()
}
