//! A database that is copied while another process may write it: [`SourceFolder`], its files, and their pieces:
//! [`SourceFile`].
//!
//! ```text
//! table      the manifest has its length and the hash of its blocks, which name its pieces: nothing is read
//! segment    the log before the commit. These bytes never change, and a name is never used again in one history, so
//!            name, place and the two ends of a piece identify it
//! chunk      the values that tables name: the same. What follows them may have values of the log, or be half
//!            written: its content identifies it, so it is read for each backup
//! ```
//!
//! Invariant: a piece that is shared by its name has bytes that the writer never changes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::BackupSource;
use super::format::{PIECE_BYTES_MAX, database_mark, piece_name};
use crate::codec::checksum128;
use crate::error::{Error, ErrorKind, Result};
use crate::follow::{FollowOptions, Follower, PinnedFiles};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{File, FolderFs, Fs};
use crate::hooks::ChunkId;
use crate::types::{FileNo, SeqNo};
use crate::version::{DbVersion, HookKind, LogCut, RetainedLog};
use crate::wal::{LogPlace, SEGMENT_HEADER_BYTES, SegmentHeader};

/// Bytes at either end of a piece that identify it, with its name and place.
const END_BYTES: u64 = 4 << 10;

/// The length of the shortest piece of a file that may grow, but for its last one.
const PIECE_BYTES_MIN: u64 = 64 << 10;

/// Attempts, if the writer deletes files that are read.
const ATTEMPTS: usize = 3;

/// A database that is followed while its files are read: its lease holds them.
pub(super) struct SourceFolder {
    /// It holds the folder, which may be renamed meanwhile.
    pub(super) fs: Arc<dyn Fs>,
    pub(super) dir: PathBuf,
    pub(super) follower: Follower,
    pub(super) pinned: PinnedFiles,
}

impl SourceFolder {
    /// Follows `source`, and finds what it has committed by now.
    ///
    /// # Errors
    /// Those of a follower.
    pub(super) fn open(source: &BackupSource) -> Result<SourceFolder> {
        let (fs, dir) = FolderFs::hold(source.fs.clone(), &source.dir)?;
        let options = FollowOptions {
            fs: fs.clone(),
            clock: source.clock.clone(),
            hooks: source.hooks.clone(),
            ..FollowOptions::new(&dir)
        };
        let follower = options.open()?;
        let pinned = follower.pin_files()?;
        Ok(SourceFolder { fs, dir, follower, pinned })
    }

    /// Calls `make` again if the writer has deleted files that it reads: it does so only if the lease was taken away.
    ///
    /// # Errors
    /// The last one of `make`.
    pub(super) fn until_held<T>(mut make: impl FnMut() -> Result<T>) -> Result<T> {
        let mut attempts = 1;
        loop {
            match make() {
                Err(error)
                    if attempts < ATTEMPTS
                        && matches!(error.kind(), ErrorKind::LeaseLost | ErrorKind::FileGone) =>
                {
                    attempts += 1;
                }
                made => return made,
            }
        }
    }

    /// Opens a file of it; `None` if the file is not needed any more.
    ///
    /// # Errors
    /// [`ErrorKind::FileGone`]; those of the file system.
    pub(super) fn open_file(&self, file: &SourceFile) -> Result<Option<OpenSource>> {
        let path = file.name.path(&self.dir);
        match self.fs.open_read(&path) {
            Ok(file) => Ok(Some(OpenSource { path, file })),
            // A chunk file without a value that tables name, which was listed and had no committed value either.
            Err(error) if error.is_missing() && file.fixed == 0 => Ok(None),
            Err(error) if error.is_missing() => {
                let message = format!("{} is gone", path.display());
                Err(Error::because(ErrorKind::FileGone, message, error))
            }
            Err(error) => Err(error),
        }
    }
}

/// A file of the database that is open.
pub(super) struct OpenSource {
    path: PathBuf,
    file: Arc<dyn File>,
}

impl OpenSource {
    pub(super) fn file(&self) -> &dyn File {
        &*self.file
    }

    /// Fills `content` with the bytes from `offset` on.
    ///
    /// # Errors
    /// Those of reading; corruption if the file ends before.
    pub(super) fn read(&self, offset: u64, content: &mut [u8]) -> Result<()> {
        let got = self.file.read_at(offset, content)?;
        if got != content.len() {
            let end = offset + got as u64;
            return Err(Error::corruption(&self.path, end, "a file ends too early"));
        }
        Ok(())
    }
}

/// A file of the database, as far as a copy of it needs it.
pub(super) struct SourceFile {
    pub(super) name: FileName,
    /// Its bytes that never change.
    pub(super) fixed: u64,
    /// The hash of its content, if the manifest has one.
    pub(super) hash: Option<u128>,
    /// The bytes after them that are in the backup as well.
    pub(super) rest: u64,
}

/// A part of a file.
pub(super) struct SourcePiece {
    /// The name of the shared file; `None`: its content names it.
    pub(super) name: Option<String>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// The state that a backup restores, and its files.
pub(super) struct SourceState {
    pub(super) version: DbVersion,
    pub(super) seq: SeqNo,
    pub(super) files: Vec<SourceFile>,
}

impl SourceState {
    /// Finds the files of the state that `source` has pinned.
    ///
    /// # Errors
    /// Those of the files; corruption of the log.
    pub(super) fn find(source: &SourceFolder) -> Result<SourceState> {
        let SourceFolder { fs, dir, follower, pinned } = source;
        let PinnedFiles { version, seq, log_end } = pinned;
        let mut files: Vec<SourceFile> = tables(version).collect();
        let segments = segments(&**fs, dir, version, *log_end)?;
        files.extend(segments.iter().map(Segment::file));
        files.extend(chunks(&**fs, dir, follower, version)?);
        let version = closed_at(version, *seq, &segments);
        Ok(SourceState { version, seq: *seq, files })
    }
}

impl SourceFile {
    /// Returns `true` if all of its bytes are in the state, durable, and never changed: a table, or a chunk file whose
    /// values are all named by tables. Later values may follow the latter; no handle of the state names them.
    pub(super) fn can_be_linked(&self) -> bool {
        match self.name.kind {
            FileKind::Sst => true,
            FileKind::Chunk => self.fixed > 0 && self.rest == 0,
            // A segment has the frames of later commits, and an open of the copy reads all of it.
            _ => false,
        }
    }

    /// The file, cut into pieces.
    ///
    /// # Errors
    /// Those of reading the ends of pieces without a hash.
    pub(super) fn pieces(
        &self,
        source: &dyn File,
        version: &DbVersion,
    ) -> Result<Vec<SourcePiece>> {
        let db = database_mark(version.db_id);
        let mut pieces = Vec::new();
        let cuts: Vec<(u64, u64)> = match self.hash {
            Some(_) => cut(0, self.fixed).collect(),
            None => cut_growing(self.fixed),
        };
        for (index, (offset, len)) in cuts.into_iter().enumerate() {
            let mark = match self.hash {
                Some(hash) => hash,
                None => mark_of_ends(source, offset, len)?,
            };
            let name = Some(piece_name(db, self.name, mark, index as u64, len));
            pieces.push(SourcePiece { name, offset, len });
        }
        let rest = cut(self.fixed, self.rest);
        pieces.extend(rest.map(|(offset, len)| SourcePiece { name: None, offset, len }));
        Ok(pieces)
    }
}

/// The offsets and lengths of the pieces of `len` bytes from `from` on.
fn cut(from: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..len).step_by(PIECE_BYTES_MAX as usize);
    starts.map(move |at| (from + at, (len - at).min(PIECE_BYTES_MAX)))
}

/// The offsets and lengths of the pieces of a file that may grow: powers of two, each at a multiple of its length, so
/// that the file has most of them still when it is longer. The last one has the rest.
fn cut_growing(len: u64) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < len {
        let mut piece = PIECE_BYTES_MAX;
        while piece > PIECE_BYTES_MIN && (at % piece != 0 || at + piece > len) {
            piece /= 2;
        }
        let piece = piece.min(len - at);
        pieces.push((at, piece));
        at += piece;
    }
    pieces
}

/// A hash of the ends of a piece. Copies of a database that were written separately have files of the same name.
fn mark_of_ends(source: &dyn File, offset: u64, len: u64) -> Result<u128> {
    let mut bytes = vec![0; len.min(2 * END_BYTES) as usize];
    let half = bytes.len() / 2;
    let (front, back) = bytes.split_at_mut(half);
    source.read_at(offset, front)?;
    let back_at = offset + len - back.len() as u64;
    source.read_at(back_at, back)?;
    Ok(checksum128(&bytes))
}

fn tables(version: &DbVersion) -> impl Iterator<Item = SourceFile> {
    let tables = version.partitions.values().flat_map(|partition| partition.tables());
    tables.map(|(_, table)| SourceFile {
        name: table.meta.file_name(),
        fixed: table.meta.bytes,
        hash: Some(table.meta.hash),
        rest: 0,
    })
}

/// A segment of the log, up to its last frame that counts.
struct Segment {
    name: FileName,
    end: u64,
}

impl Segment {
    fn file(&self) -> SourceFile {
        SourceFile { name: self.name, fixed: self.end, hash: None, rest: 0 }
    }

    fn path(&self, dir: &Path) -> PathBuf {
        self.name.path(dir)
    }
}

/// The segments of the log through `end`, the last one first. Each header names the end of the segment before.
fn segments(
    fs: &dyn Fs,
    dir: &Path,
    version: &DbVersion,
    end: Option<LogPlace>,
) -> Result<Vec<Segment>> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut next = end;
    while let Some(LogPlace { segment, offset }) = next {
        // Earlier ones were removed: their entries are in tables.
        let Some(epoch) = version.log_segments.get(&segment) else { break };
        let found = Segment { name: FileName::new(FileKind::Wal, segment, *epoch), end: offset };
        let path = found.path(dir);
        let header = SegmentHeader::read(&*fs.open_read(&path)?, &path)?;
        let header = header.filter(|_| offset >= SEGMENT_HEADER_BYTES);
        let Some(header) = header.filter(|header| header.number == segment) else {
            return Err(Error::corruption(path, 0, "the header of a segment of the log is lost"));
        };
        next = header.previous.filter(|previous| previous.segment < segment);
        segments.push(found);
    }
    Ok(segments)
}

/// The state, as if the database had been closed after the commit `seq`.
fn closed_at(version: &DbVersion, seq: SeqNo, segments: &[Segment]) -> DbVersion {
    let mut state = version.clone();
    state.last_seq = state.last_seq.max(seq);
    state.log_segments = segments.iter().map(|it| (it.name.number, it.name.epoch)).collect();
    // Segments that are kept for followers are no part of a backup: a feed of the restored database begins with its
    // sequence number.
    state.retained = RetainedLog::default();
    // All bytes of a restored log are durable.
    state.flush_beyond_sync = None;
    match segments.first() {
        Some(last) => {
            let segment = last.name.number;
            state.log_closed = Some(LogCut { segment, offset: last.end, last_seq: seq });
        }
        None => {
            state.log_closed = None;
            state.replay_from = None;
            state.log_cut = Some(LogCut { segment: FileNo(0), offset: 0, last_seq: seq });
        }
    }
    state
}

/// The chunk files of value stores.
fn chunks(
    fs: &dyn Fs,
    dir: &Path,
    follower: &Follower,
    version: &DbVersion,
) -> Result<Vec<SourceFile>> {
    let mut named: HashMap<ChunkId, u64> = HashMap::new();
    let mut has_stores = false;
    for partition in version.partitions.values() {
        if !partition.hooks.iter().any(|hook| hook.kind == HookKind::ValueStore) {
            continue;
        }
        has_stores = true;
        // Without the code of a store all of its files are read: nothing says which bytes never change.
        let chunks = follower.named_chunks(partition)?.into_iter().flatten();
        named.extend(chunks.map(|chunk| (chunk.id, chunk.end)));
    }
    if !has_stores {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    // Listed after the end of the log is known: its values were written before.
    for entry in fs.list(dir, "")? {
        let Some(id) = ChunkId::of_name(&entry.name) else { continue };
        let name = FileName::new(FileKind::Chunk, id.number, id.epoch);
        let fixed = named.remove(&id).unwrap_or(0);
        let path = dir.join(entry.name);
        // Not the length of the listing: that of an encrypted file may be larger than what is read of it.
        let len = fs.open_read(&path)?.len()?;
        if len < fixed {
            let what = "a chunk file is shorter than the values that tables name";
            return Err(Error::corruption(path, len, what));
        }
        files.push(SourceFile { name, fixed, hash: None, rest: len - fixed });
    }
    match named.keys().next() {
        None => Ok(files),
        Some(id) => {
            let what = "a chunk file that tables name is missing";
            Err(Error::corruption(id.path(dir), None, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_has_grown_shares_all_but_the_end_of_its_pieces() {
        let mut reread = 0;
        let mut before: Vec<(u64, u64)> = Vec::new();
        for len in (1..400).map(|n| n * 100_003) {
            let pieces = cut_growing(len);
            let end = pieces.iter().fold(0, |at, (offset, bytes)| {
                assert!(*offset == at && (1..=PIECE_BYTES_MAX).contains(bytes), "{pieces:?}");
                at + bytes
            });
            assert_eq!(end, len);
            let new = pieces.iter().filter(|piece| !before.contains(piece));
            reread += new.map(|(_, bytes)| bytes).sum::<u64>();
            before = pieces;
        }
        // Each byte is in a piece of each length at most once.
        assert!(reread < 8 * 40_000_000, "{reread}");
        assert_eq!(cut_growing(0), []);
    }
}
