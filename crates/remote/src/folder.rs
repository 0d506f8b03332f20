//! [`Folder`]: a database's folder as the journal describes it. Made by replaying a base and the objects after
//! it; the primary keeps the state that is stored, without the bytes that its own disk has.
//!
//! Invariants:
//! 1. The pieces of a file are in order and do not overlap; bytes in no piece and not in the tail are zeros.
//! 2. A change that does not fit is damage, and changes nothing.
//! 3. Each object that a file has named is named by a file, or is among the dropped ones until it is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lsm_core::error::{Error, ErrorKind, Result};
use parking_lot::RwLock;

use crate::format::{JournalObject, journal_name};
use crate::settings::Ack;

/// The treatment of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileClass {
    /// Appended bytes are in journal objects: segments, manifests, claims and forks.
    Log,
    /// A whole object, put when the file is synced.
    Table,
    /// An object for each range that was appended between two journal objects.
    Chunk,
}

/// The class of a file by its name; `None` for files that stay on their machine, and for other names.
pub(crate) fn class_of(name: &str) -> Option<FileClass> {
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
    if !is_plain || name.starts_with('.') {
        return None;
    }
    match name.rsplit_once('.') {
        Some((_, "wal" | "manifest")) => Some(FileClass::Log),
        Some((_, "sst")) => Some(FileClass::Table),
        Some((_, "chunk")) => Some(FileClass::Chunk),
        Some(_) => None,
        None => {
            let is_log = name.starts_with("epoch-") || name.starts_with("fork-");
            is_log.then_some(FileClass::Log)
        }
    }
}

/// No file is longer.
const FILE_BYTES_MAX: u64 = 1 << 44;

/// A range of a file that is in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectPiece {
    /// The place in the file.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) object: Arc<str>,
    /// The place in the object.
    pub(crate) at: u64,
}

impl ObjectPiece {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// A change of a folder, as a journal object has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredChange {
    Create { name: String },
    Append { name: String, offset: u64, bytes: Vec<u8> },
    Piece { name: String, piece: ObjectPiece },
    Extend { name: String, len: u64 },
    Delete { name: String },
}

impl StoredChange {
    pub(crate) fn name(&self) -> &str {
        match self {
            StoredChange::Create { name }
            | StoredChange::Append { name, .. }
            | StoredChange::Piece { name, .. }
            | StoredChange::Extend { name, .. }
            | StoredChange::Delete { name } => name,
        }
    }
}

/// A file: pieces in objects, then a tail of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileBytes {
    /// With the zeros at the end.
    pub(crate) len: u64,
    pub(crate) pieces: Vec<ObjectPiece>,
    /// The place of the tail: the end of the pieces, or later.
    pub(crate) tail_at: u64,
    /// Empty where the local disk has these bytes.
    pub(crate) tail: Vec<u8>,
    /// The end of the appended bytes: of the tail, where it is kept.
    pub(crate) written: u64,
    /// The journal object that has created it, or one before; 0 if it comes from a base.
    pub(crate) created: u64,
}

impl FileBytes {
    fn pieces_end(&self) -> u64 {
        self.pieces.last().map_or(0, ObjectPiece::end)
    }

    /// Returns whether invariant 1 holds, for bytes from a bucket.
    pub(crate) fn is_sound(&self) -> bool {
        let mut end = 0;
        for piece in &self.pieces {
            if piece.offset < end {
                return false;
            }
            end = piece.end();
        }
        let tail_end = self.tail_at.checked_add(self.tail.len() as u64);
        end <= self.len
            && self.len <= FILE_BYTES_MAX
            && self.tail_at >= end
            && tail_end.is_some_and(|end| end <= self.len)
    }

    /// Applies a change of the bytes that was checked.
    fn apply(&mut self, change: &StoredChange, drops_tail: bool) {
        match change {
            StoredChange::Append { bytes, .. } => {
                if !drops_tail {
                    self.tail.extend_from_slice(bytes);
                }
                self.written += bytes.len() as u64;
                self.len = self.len.max(self.written);
            }
            StoredChange::Piece { piece, .. } => {
                self.len = self.len.max(piece.end());
                self.tail_at = piece.end();
                self.written = piece.end();
                self.pieces.push(piece.clone());
            }
            StoredChange::Extend { len, .. } => self.len = self.len.max(*len),
            StoredChange::Create { .. } | StoredChange::Delete { .. } => {}
        }
    }

    /// Moves the tail into pieces: `piece` has its bytes from `tail_at` to the piece's end.
    pub(crate) fn settle_tail(&mut self, piece: ObjectPiece) {
        if piece.offset != self.tail_at || self.pieces_end() > piece.offset {
            return;
        }
        let taken = usize::try_from(piece.len).unwrap_or(usize::MAX).min(self.tail.len());
        self.tail.drain(..taken);
        self.tail_at = piece.end();
        self.pieces.push(piece);
    }
}

/// The part of a file's state that decides which changes fit.
#[derive(Clone, Copy)]
struct FileEnds {
    written: u64,
    has_tail: bool,
}

impl FileEnds {
    fn of(file: &FileBytes) -> FileEnds {
        FileEnds { written: file.written, has_tail: file.written > file.tail_at }
    }
}

/// Returns the ends of a file after `change`, `None` for no file; or the reason why the change does not fit.
fn ends_after(
    ends: Option<FileEnds>,
    change: &StoredChange,
) -> Result<Option<FileEnds>, &'static str> {
    match (ends, change) {
        (None, StoredChange::Create { .. }) => Ok(Some(FileEnds { written: 0, has_tail: false })),
        (Some(_), StoredChange::Create { .. }) => Err("the creation of a file that exists"),
        (None, _) => Err("a change of a file that does not exist"),
        (Some(ends), StoredChange::Append { offset, bytes, .. }) => {
            let written = offset.saturating_add(bytes.len() as u64);
            if *offset != ends.written {
                return Err("an append at another place than the end");
            }
            if written > FILE_BYTES_MAX {
                return Err("an append beyond all files");
            }
            Ok(Some(FileEnds { written, has_tail: ends.has_tail || !bytes.is_empty() }))
        }
        (Some(ends), StoredChange::Piece { piece, .. }) => {
            if piece.offset < ends.written || piece.end() > FILE_BYTES_MAX {
                return Err("a piece at another place than the end");
            }
            if ends.has_tail {
                return Err("a piece after bytes of the journal");
            }
            Ok(Some(FileEnds { written: piece.end(), has_tail: false }))
        }
        (Some(_), StoredChange::Extend { len, .. }) if *len > FILE_BYTES_MAX => {
            Err("a length beyond all files")
        }
        (Some(ends), StoredChange::Extend { .. }) => Ok(Some(ends)),
        (Some(_), StoredChange::Delete { .. }) => Ok(None),
    }
}

/// An object that no file names any more, and that may still be in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DroppedObject {
    /// The journal object that dropped it: only states before that one need it.
    pub(crate) number: u64,
    pub(crate) object: Arc<str>,
}

/// A writer that was fenced, as long as objects that it has put in vain may be needed by a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FencedWriter {
    pub(crate) claimant: u128,
    /// The claim that fenced it.
    pub(crate) number: u64,
}

/// A file that was deleted.
#[derive(Clone)]
pub(crate) struct RemovedFile {
    pub(crate) name: String,
    /// The journal object that has deleted it, or the base that lacks it.
    pub(crate) number: u64,
    pub(crate) file: Arc<RwLock<FileBytes>>,
}

/// The files of a database as of a journal object.
#[derive(Clone, Default)]
pub(crate) struct Folder {
    /// The last object that is in it; 0 for none.
    pub(crate) number: u64,
    /// The claimant of that object.
    pub(crate) writer: u128,
    pub(crate) ack: Ack,
    /// The read lease of the writer.
    pub(crate) lease: Duration,
    /// The longest read lease that a claim after this waits for: also those of writers that were fenced, as long as
    /// the writer has not shown by a change that it has waited for them.
    pub(crate) wait: Duration,
    /// A file keeps its bytes for those that have it open, also after its name is gone.
    pub(crate) files: BTreeMap<String, Arc<RwLock<FileBytes>>>,
    /// The ends of the written bytes of files whose tails are not kept.
    pub(crate) drops_tails: bool,
    /// In the order in which they were dropped.
    pub(crate) dropped: Vec<DroppedObject>,
    /// In the order of their claims.
    pub(crate) fenced: Vec<FencedWriter>,
    /// Files that were deleted, for a reader which asks for them: some may be open, or held.
    pub(crate) removed: Option<Vec<RemovedFile>>,
}

impl Folder {
    /// Becomes `newer`, a later state of the same journal that was read from its base.
    pub(crate) fn go_on_as(&mut self, newer: Folder) {
        let old = std::mem::take(&mut self.files);
        for (name, file) in newer.files {
            let known = old.get(&name).filter(|known| {
                let known = known.read();
                let file = file.read();
                known.written <= file.written && known.len <= file.len
            });
            // Those that have the file open see it grow.
            let kept = match known {
                Some(known) => {
                    let created = known.read().created;
                    known.write().clone_from(&FileBytes { created, ..file.read().clone() });
                    known.clone()
                }
                None => {
                    file.write().created = self.number + 1;
                    file
                }
            };
            self.files.insert(name, kept);
        }
        if let Some(removed) = &mut self.removed {
            let gone = old.into_iter().filter(|(name, file)| {
                !self.files.get(name).is_some_and(|kept| Arc::ptr_eq(kept, file))
            });
            let number = newer.number;
            removed.extend(gone.map(|(name, file)| RemovedFile { name, number, file }));
        }
        (self.number, self.writer, self.ack) = (newer.number, newer.writer, newer.ack);
        (self.lease, self.wait) = (newer.lease, newer.wait);
    }

    pub(crate) fn insert(&mut self, name: String, file: FileBytes) {
        self.files.insert(name, Arc::new(RwLock::new(file)));
    }

    pub(crate) fn file(&self, name: &str) -> Option<&Arc<RwLock<FileBytes>>> {
        self.files.get(name)
    }

    /// Returns `true` if no file of `earlier` was deleted, or replaced by another one of its name.
    pub(crate) fn has_all_of(&self, earlier: &Folder) -> bool {
        let mut files = earlier.files.iter();
        files.all(|(name, file)| self.file(name).is_some_and(|now| Arc::ptr_eq(now, file)))
    }

    /// Returns an error if this is the journal of a database whose folder was claimed, and not opened since: its log and
    /// its manifest come with the recovery. A journal of claims alone does not show whether the folder has commits.
    pub(crate) fn check_opened(&self) -> Result<()> {
        if self.number == 0 || self.files.keys().any(|name| name.ends_with(".manifest")) {
            return Ok(());
        }
        let message = "the folder of this database was claimed, and has not been opened since: the bucket lacks its log\n  \
                       open it there by Remote::primary; or delete the objects, and lose it if the folder is lost";
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// The names of all objects that the files name.
    pub(crate) fn objects(&self) -> BTreeSet<Arc<str>> {
        let mut objects = BTreeSet::new();
        for file in self.files.values() {
            objects.extend(file.read().pieces.iter().map(|piece| piece.object.clone()));
        }
        objects
    }

    /// Forgets the bytes of tails: the local disk has them.
    pub(crate) fn drop_tails(&mut self) {
        self.drops_tails = true;
        self.files.values().for_each(|file| file.write().tail = Vec::new());
    }

    /// A copy whose files do not change with this folder.
    pub(crate) fn copied(&self) -> Folder {
        let files = self.files.iter();
        let files =
            files.map(|(name, file)| (name.clone(), Arc::new(RwLock::new(file.read().clone()))));
        Folder { files: files.collect(), ..self.clone() }
    }

    /// Checks that `object` is the next one of the journal, and that all its changes fit.
    ///
    /// # Errors
    /// Corruption that names the object.
    pub(crate) fn check(&self, object: &JournalObject) -> Result<()> {
        let number = self.number + 1;
        if object.number != number {
            let what = format!("journal object {} where {number} follows", object.number);
            return Err(Error::corruption(journal_name(number), 0, what));
        }
        // A writer has the journal until a claim, and a claim is of another one.
        if !object.is_claim && object.claimant != self.writer {
            return Err(Error::corruption(
                journal_name(number),
                24,
                "changes of a writer without a claim",
            ));
        }
        let mut changed: BTreeMap<&str, Option<FileEnds>> = BTreeMap::new();
        for change in &object.changes {
            let name = change.name();
            let before = changed
                .entry(name)
                .or_insert_with(|| self.file(name).map(|file| FileEnds::of(&file.read())));
            *before = ends_after(*before, change).map_err(|what| {
                Error::corruption(journal_name(number), 60, format!("{what}: {name}"))
            })?;
        }
        Ok(())
    }

    /// Takes in the next object of the journal, as a whole or not at all.
    ///
    /// # Errors
    /// As [`Folder::check`].
    pub(crate) fn take_in(&mut self, object: &JournalObject) -> Result<()> {
        self.check(object)?;
        object.changes.iter().for_each(|change| self.apply(change, object.number));
        if object.is_claim && self.number > 0 {
            self.fenced.push(FencedWriter { claimant: self.writer, number: object.number });
        }
        if object.is_claim {
            self.lease = object.lease;
            self.wait = self.wait.max(object.lease);
        } else {
            self.wait = self.lease;
        }
        (self.number, self.writer, self.ack) = (object.number, object.claimant, object.ack);
        Ok(())
    }

    /// Applies a change that was checked.
    fn apply(&mut self, change: &StoredChange, number: u64) {
        let name = change.name();
        match change {
            StoredChange::Create { .. } => {
                let file = FileBytes { created: number, ..FileBytes::default() };
                self.insert(name.to_owned(), file);
            }
            StoredChange::Delete { .. } => {
                let file = self.files.remove(name).expect("the check has found the file");
                let pieces = file.read().pieces.clone();
                let dropped =
                    pieces.into_iter().map(|it| DroppedObject { number, object: it.object });
                self.dropped.extend(dropped);
                if let Some(removed) = &mut self.removed {
                    removed.push(RemovedFile { name: name.to_owned(), number, file });
                }
            }
            StoredChange::Append { .. }
            | StoredChange::Piece { .. }
            | StoredChange::Extend { .. } => {
                let file = self.files.get(name).expect("the check has found the file");
                file.write().apply(change, self.drops_tails);
            }
        }
    }
}
