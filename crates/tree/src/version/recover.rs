//! [`recover()`]: from manifest files to the version in which they end.
//!
//! Called at open, by secondaries and by tools. It writes nothing.
//!
//! Recovery begins at the newest generation that was in use. A generation was in use if it has a
//! frame after its snapshot. If none has, recovery begins at the oldest generation. Then it follows
//! the names in [`Change::Superseded`]. A newer generation without a name in an older one was made
//! by a writer that died before it used it.
//!
//! Generations are ordered by epoch first. A primary that was fenced may still begin generations with
//! numbers above those of the new one; its epoch is older, so they count for nothing once the new one
//! is in use.
//!
//! Invariants:
//! 1. The result is the state after the last edit of the chain, or an error. It is never a state
//!    without an edit in the middle.
//! 2. A bad frame ends the manifest only if no valid frame follows it in the file. A valid
//!    `Superseded` after it counts: the successor begins with a whole snapshot that is at least as
//!    new, so the damage before it has no effect.
//! 3. If a generation has edits, all older ones are history, even if they do not name it: a write to them
//!    failed, their last frame was lost, or they were deleted and a failed sync of the folder restored
//!    them.
//! 4. A failed read is an error, never an end.

use std::path::Path;

use super::DbVersion;
use super::apply::{Refused, VersionBuilder};
use super::change::Change;
use super::edit::VersionEdit;
use super::manifest::{Frame, FrameSeal, FrameSearch, HEADER_BYTES, read_header};
use super::record::EditFault;
use super::table::TableContext;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{self, FileKind, FileName};
use crate::fs::{File, Fs};
use crate::types::{Epoch, FileNo};

/// The state of the manifests of a folder.
#[derive(Debug)]
pub struct Recovered {
    /// The state after the last edit. Its next file number is above every name in the folder.
    pub version: DbVersion,
    /// The generation in which the chain ends.
    pub generation: FileName,
    /// Offset after the last good edit in it, in bytes.
    pub end: u64,
    /// Older generations that are still present, oldest first.
    pub older: Vec<FileName>,
    /// Newer generations that no other one names. Delete them before the others.
    pub garbage: Vec<FileName>,
    /// `true` if bytes after `end` are no edit: the last append was torn, or is unfinished.
    pub torn: bool,
    /// `true` if this code knows every feature that a writer must know.
    pub writable: bool,
    /// `true` if the salts of the log's segments are derived from their identity.
    pub has_derived_salts: bool,
}

impl Recovered {
    /// Returns an error if only newer code may write the database in `dir`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`].
    pub fn check_writable(&self, dir: &Path) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        let message = format!("{} needs newer code to be written", dir.display());
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// Recovers the state from the names in a folder; `None` if there is no manifest among them. If
/// there are other files of a database then, the manifest was lost: the caller refuses.
///
/// Generations along the chain have growing numbers, so no chain is circular. The snapshot of a
/// successor may have the number of the last edit before it: it holds the state after that edit. A
/// feature that forbids writing counts whichever generation names it.
///
/// # Errors
/// [`ErrorKind::Corruption`] if a damaged edit has successors, or a named generation is missing or
/// damaged; [`ErrorKind::Unsupported`] if newer code wrote the files.
pub fn recover(fs: &dyn Fs, dir: &Path, names: &[FileName]) -> Result<Option<Recovered>> {
    recover_through(fs, dir, names, None)
}

/// As [`recover()`], without the edits after `through`: the writer was fenced before it settled them.
///
/// # Errors
/// As [`recover()`].
pub fn recover_through(
    fs: &dyn Fs,
    dir: &Path,
    names: &[FileName],
    through: Option<u64>,
) -> Result<Option<Recovered>> {
    let present = generations_in(names);
    let Some(&oldest) = present.first() else {
        return Ok(None);
    };
    let mut name = newest_used(fs, dir, &present)?.unwrap_or(oldest);
    let older = present.iter().copied().filter(|other| age_of(*other) < age_of(name));
    let mut older: Vec<_> = older.collect();
    let mut last = read_generation(fs, dir, name, through)?;
    let mut writable = last.writable;
    while let Some((next, number)) = last.superseded {
        let path = name.path(dir);
        // Without this check a damaged name could make the chain circular.
        if age_of(next) <= age_of(name) {
            return Err(Error::corruption(path, last.end, "a manifest names an older successor"));
        }
        // Looked up in the folder and not among the names: a listing may be older than the generation
        // that was just read.
        let successor = read_generation(fs, dir, next, through).map_err(|error| {
            let is_lost = error.is_missing() && !present.contains(&next);
            if is_lost { missing_successor(name, next, dir) } else { error }
        })?;
        let path = next.path(dir);
        // An intact file of another database verifies by itself.
        if successor.seal.db_id != last.seal.db_id {
            return Err(Error::corruption(path, 40, "the manifest is of another database"));
        }
        // The snapshot would lack edits that the predecessor has.
        if successor.snapshot_number < number {
            return Err(Error::corruption(
                path,
                None,
                "the manifest begins before its predecessor ends",
            ));
        }
        older.push(name);
        // A feature that an older generation names may still be in use, so it counts.
        writable &= successor.writable;
        name = next;
        last = successor;
    }
    let Some(builder) = last.builder else {
        return Err(bad_snapshot(&name.path(dir)));
    };
    let mut version = builder
        .finish()
        .and_then(|version| check_files(&version).map(|()| version))
        .map_err(|fault| Error::corruption(name.path(dir), last.end, fault.0))?;
    pass_over(&mut version, names);
    let garbage: Vec<_> =
        present.into_iter().filter(|n| *n != name && !older.contains(n)).collect();
    Ok(Some(Recovered {
        version,
        generation: name,
        end: last.end,
        older,
        garbage,
        torn: last.torn,
        writable,
        has_derived_salts: last.seal.has_derived_salts(),
    }))
}

fn missing_successor(name: FileName, next: FileName, dir: &Path) -> Error {
    let what = format!("the manifest generation that {name} names is missing");
    Error::corruption(next.path(dir), None, what)
}

fn bad_snapshot(path: &Path) -> Error {
    Error::corruption(path, HEADER_BYTES as u64, "the manifest's snapshot is damaged")
}

/// Raises the next file number above every name in the folder.
fn pass_over(version: &mut DbVersion, names: &[FileName]) {
    version.next_file = next_free(version.next_file, names);
}

/// Above `next` no edit has named a file. A writer that died has made fewer files than this since its last
/// edit.
const UNNAMED_MAX: u64 = 1 << 40;

/// The first number from `next` on that is above those of `names`. A dead writer may have made files that no
/// edit names. Their numbers must not be reused: an orphan file would be taken for the new file. A file whose
/// number is far above `next` was made by no writer. If it counted, one such name would use up all numbers.
pub fn next_free(next: FileNo, names: &[FileName]) -> FileNo {
    let far = next.0.saturating_add(UNNAMED_MAX);
    let used = names.iter().map(|name| name.number.0).filter(|number| *number < far).max();
    used.map_or(next, |used| next.max(FileNo(used + 1)))
}

/// The generations among `names`, oldest first.
fn generations_in(names: &[FileName]) -> Vec<FileName> {
    let present = names.iter().copied().filter(|name| name.kind == FileKind::Manifest);
    let mut present: Vec<_> = present.collect();
    present.sort_unstable_by_key(|name| age_of(*name));
    present
}

/// The place of a generation in the order of all: those of an older epoch come first, whatever their
/// numbers are.
pub fn age_of(generation: FileName) -> (Epoch, FileNo) {
    (generation.epoch, generation.number)
}

/// Returns `true` if a generation of `epoch`, or of a later one, was in use. If it returns `false`, a
/// promotion begins at its fork, and everything newer does not count.
///
/// # Errors
/// [`ErrorKind::Corruption`] if one of them is damaged, so that this cannot be decided;
/// [`ErrorKind::Unsupported`] if newer code wrote one; those of reading.
pub fn has_begun(fs: &dyn Fs, dir: &Path, names: &[FileName], epoch: Epoch) -> Result<bool> {
    for name in generations_in(names).into_iter().rev().filter(|name| name.epoch >= epoch) {
        if holds_edit(fs, dir, name)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns `true` if a generation has anything after its snapshot: an edit or the name of a successor. Both
/// prove that it was used. Damage is an error: a generation gets its name after header and snapshot are
/// synced, so no crash explains it.
fn holds_edit(fs: &dyn Fs, dir: &Path, name: FileName) -> Result<bool> {
    let path = name.path(dir);
    let bytes = read_all(&*fs.open_read(&path)?)?;
    let seal = read_header(&bytes, Some(name), &path)?.seal;
    let snapshot = seal.frame_at(&bytes, HEADER_BYTES, 0).ok_or_else(|| bad_snapshot(&path))?;
    // A damaged edit is not a torn one if another follows it. Recovery then distinguishes them.
    Ok(!matches!(seal.search(&bytes, snapshot.end), FrameSearch::Nothing))
}

/// The newest of these generations, oldest first, that was in use.
fn newest_used(fs: &dyn Fs, dir: &Path, present: &[FileName]) -> Result<Option<FileName>> {
    // From the newest down: the last generation with an edit of its own replaces all older ones, also
    // those that a failed deletion left or restored.
    for newer in present[1..].iter().rev() {
        if was_used(fs, dir, *newer)? {
            return Ok(Some(*newer));
        }
    }
    Ok(None)
}

/// No file number is live twice: edits of one partition do not see the tables of another.
fn check_files(version: &DbVersion) -> Result<(), Refused> {
    let tables = version.partitions.values().flat_map(|partition| partition.tables());
    let mut files: Vec<_> = tables.map(|(_, table)| table.meta.file).collect();
    files.extend(version.log_segments.keys());
    files.extend(version.retained.segments.keys());
    files.sort_unstable();
    match files.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Refused(format!("file {} is live twice", pair[0]))),
        None => Ok(()),
    }
}

/// As [`holds_edit`], for a generation that an older one names if it counts: the damage is found there, so
/// nothing is hidden if it is skipped here.
fn was_used(fs: &dyn Fs, dir: &Path, name: FileName) -> Result<bool> {
    match holds_edit(fs, dir, name) {
        Err(error) if error.is_corruption() || error.kind() == ErrorKind::Unsupported => Ok(false),
        outcome => outcome,
    }
}

struct Generation {
    seal: FrameSeal,
    writable: bool,
    /// Absent if the snapshot is damaged and a successor is named all the same.
    builder: Option<VersionBuilder>,
    snapshot_number: u64,
    end: u64,
    torn: bool,
    /// The successor and the edit number at which it took over.
    superseded: Option<(FileName, u64)>,
}

fn read_generation(
    fs: &dyn Fs,
    dir: &Path,
    name: FileName,
    through: Option<u64>,
) -> Result<Generation> {
    let path = name.path(dir);
    let bytes = read_all(&*fs.open_read(&path)?)?;
    let header = read_header(&bytes, Some(name), &path)?;
    let seal = header.seal;
    let mut generation = Generation {
        seal,
        writable: header.writable,
        builder: None,
        snapshot_number: 0,
        end: HEADER_BYTES as u64,
        torn: false,
        superseded: None,
    };
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        let Some(frame) = seal.frame_at(&bytes, at, 0) else {
            // Whatever `damaged` finds, nothing after the bad frame is applied: edits build on each
            // other.
            generation.damaged(&bytes, at, &path)?;
            break;
        };
        // The frame verified, so bytes that do not decode are damage or newer code, never a torn
        // tail.
        let edit = decode(&frame, 0, &path)?;
        let Frame { number, end, .. } = frame;
        if let Some(new) = successor(&edit) {
            generation.supersede(new, number, end, &bytes, &path)?;
            break;
        }
        // A snapshot has only settled edits, although it may use up the number of another one.
        if generation.builder.is_some() && through.is_some_and(|through| number > through) {
            break;
        }
        let applied = match &mut generation.builder {
            Some(builder) => builder.apply(&edit),
            empty => VersionBuilder::from_snapshot(seal.db_id, &edit).map(|builder| {
                *empty = Some(builder);
                generation.snapshot_number = number;
            }),
        };
        applied.map_err(|fault| Error::corruption(&path, at as u64, fault.0))?;
        at = end;
        generation.end = end as u64;
    }
    if generation.builder.is_none() && generation.superseded.is_none() {
        return Err(bad_snapshot(&path));
    }
    Ok(generation)
}

impl Generation {
    /// Decides whether a bad frame at `at` is a torn tail, damage that a successor has replaced, or
    /// corruption.
    fn damaged(&mut self, bytes: &[u8], at: usize, path: &Path) -> Result<()> {
        let mut probe = at + 1;
        let mut follows = false;
        // Byte by byte, because the length in the bad frame cannot be believed.
        loop {
            match self.seal.search(bytes, probe) {
                FrameSearch::Nothing => break,
                FrameSearch::Undecided => {
                    let what =
                        "an edit is damaged, and it cannot be decided whether valid ones follow";
                    return Err(Error::corruption(path, at as u64, what));
                }
                FrameSearch::Found(_, frame) => {
                    follows = true;
                    let edit = decode(&frame, 0, path)?;
                    if let Some(new) = successor(&edit) {
                        return self.supersede(new, frame.number, frame.end, bytes, path);
                    }
                    // Continues: a later successor makes the damage harmless.
                    probe = frame.end;
                }
            }
        }
        // A bad snapshot is no torn append: header and snapshot were published whole.
        if follows || self.builder.is_none() {
            let what = "an edit is damaged, and valid ones follow it";
            return Err(Error::corruption(path, at as u64, what));
        }
        self.torn = true;
        Ok(())
    }

    fn supersede(
        &mut self,
        new: FileName,
        number: u64,
        end: usize,
        bytes: &[u8],
        path: &Path,
    ) -> Result<()> {
        let last = self.builder.as_ref().map(VersionBuilder::edit_number);
        // The frame has the number of the last edit before it. A smaller number means that edits
        // were lost, or that the frame is of another time.
        if last.is_some_and(|last| last > number) {
            let what = "the successor frame names an edit before the last one";
            return Err(Error::corruption(path, end as u64, what));
        }
        // Nothing is appended after it, so an edit there was written by a process that did not know
        // the successor.
        if !matches!(self.seal.search(bytes, end), FrameSearch::Nothing) {
            return Err(Error::corruption(path, end as u64, "edits follow the end of a manifest"));
        }
        self.superseded = Some((new, number));
        self.end = end as u64;
        Ok(())
    }
}

/// Decodes the edit in a frame of bytes that begin at `base` of the file.
pub(super) fn decode(frame: &Frame<'_>, base: u64, path: &Path) -> Result<VersionEdit> {
    let Frame { number, payload, payload_at, .. } = *frame;
    VersionEdit::decode(number, payload).map_err(|fault| match fault {
        EditFault::Malformed(fault) => {
            let offset = base + (payload_at + fault.at) as u64;
            Error::corruption(path, offset, format!("edit {number}: {}", fault.what))
        }
        EditFault::Unsupported(_) => {
            let what = format!("{} edit {number}: {fault}", path.display());
            Error::new(ErrorKind::Unsupported, what)
        }
    })
}

pub(super) fn successor(edit: &VersionEdit) -> Option<FileName> {
    match *edit.changes.as_slice() {
        [Change::Superseded { by, epoch }] => Some(FileName::new(FileKind::Manifest, by, epoch)),
        _ => None,
    }
}

/// The whole file, a piece at a time: its length is only believed if the bytes can be read.
pub fn read_all(file: &dyn File) -> Result<Vec<u8>> {
    const PIECE_BYTES: usize = 256 << 10;
    let mut bytes = Vec::new();
    loop {
        let at = bytes.len();
        bytes.resize(at + PIECE_BYTES, 0);
        let got = file.read_at(at as u64, &mut bytes[at..])?;
        bytes.truncate(at + got);
        if got < PIECE_BYTES {
            return Ok(bytes);
        }
    }
}

/// Returns `true` if the manifest names the table at `path` now. The edit that drops a table is durable
/// before the table is deleted, so a missing table that it names was not deleted by the primary.
pub fn is_named(context: &TableContext, path: &Path) -> bool {
    let TableContext { fs, dir, .. } = context;
    let recovered = names::in_dir(&**fs, dir).and_then(|names| recover(&**fs, dir, &names));
    // A manifest that cannot be read at the moment is no evidence.
    let Ok(Some(Recovered { version, .. })) = recovered else { return false };
    let mut tables = version.partitions.values().flat_map(|partition| partition.tables());
    tables.any(|(_, table)| table.path(context) == path)
}
