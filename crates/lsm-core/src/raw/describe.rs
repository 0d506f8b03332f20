//! [`describe`]: the meaning of each byte of a file of a database, whatever kind it is.
//!
//! For `dump`. It needs one file and nothing else: neither a database nor a manifest. Each format
//! describes its own bytes. Only the operations in a section of the log are decoded here, because
//! the log does not know them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::batch::SectionReader;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{self, FileKind, FileName};
use crate::fs::{ENCRYPTED_MAGIC, File, Fs, OsFs};
use crate::types::EntryKind;
use crate::{shared, sstable, version, wal};

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// A sorted table.
    Table,
    /// A segment of the log.
    Segment,
    /// A generation of the manifest.
    Manifest,
    /// The claim of a promotion.
    Claim,
    /// The fork of a promotion.
    Fork,
    /// The commit cursor of an epoch.
    Cursor,
    /// The lease of a secondary.
    Lease,
}

impl FileFormat {
    /// Returns its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            FileFormat::Table => "table",
            FileFormat::Segment => "log segment",
            FileFormat::Manifest => "manifest",
            FileFormat::Claim => "claim",
            FileFormat::Fork => "fork",
            FileFormat::Cursor => "commit cursor",
            FileFormat::Lease => "lease",
        }
    }
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// Its format.
    pub format: FileFormat,
    /// Its length in bytes.
    pub bytes: u64,
    /// Ranges of the file in bytes, with a text for people, in the order of the file. What lies
    /// inside of another range comes after it.
    pub lines: Vec<(Range<u64>, String)>,
}

/// As [`describe`], for a file of the operating system.
///
/// # Errors
/// As there, and those of opening it.
pub fn describe_path(path: &Path, inside: bool) -> Result<Description> {
    describe(OsFs.open_read(path)?, path, inside)
}

/// Returns the meaning of each byte of the file. With `inside` down to single entries, operations
/// and changes. Damaged parts are described as that, and the description goes on after them.
///
/// # Errors
/// `Corruption` for a file of no kind that is known, and where header or footer are damaged, from
/// which all else is found; `Unsupported` for newer formats; `Io`.
///
/// # Cost
/// Reads the whole file; the text takes a multiple of what it describes.
pub fn describe(file: Arc<dyn File>, path: &Path, inside: bool) -> Result<Description> {
    let bytes = file.len()?;
    let format = format_of(&*file, path, bytes)?;
    let lines = match format {
        FileFormat::Table => sstable::describe(file, path.to_owned(), inside)?,
        FileFormat::Manifest => version::describe(&*file, path, inside)?,
        FileFormat::Segment if inside => wal::describe(&*file, path, &operations)?,
        FileFormat::Segment => wal::describe(&*file, path, &|_| Vec::new())?,
        FileFormat::Claim => version::describe_claim(&*file, path)?,
        FileFormat::Fork => version::describe_fork(&*file, path, inside)?,
        FileFormat::Cursor => shared::describe_commit_cursor(&*file)?,
        FileFormat::Lease => shared::describe_lease(&*file)?,
    };
    Ok(Description { format, bytes, lines })
}

/// The format of the file by its magic; where that is damaged, by its name.
fn format_of(file: &dyn File, path: &Path, bytes: u64) -> Result<FileFormat> {
    let by_magic = [
        (wal::MAGIC, FileFormat::Segment),
        (version::MAGIC, FileFormat::Manifest),
        (version::CLAIM_MAGIC, FileFormat::Claim),
        (version::FORK_MAGIC, FileFormat::Fork),
        (shared::COMMIT_CURSOR_MAGIC.to_ne_bytes(), FileFormat::Cursor),
        (shared::LEASE_MAGIC, FileFormat::Lease),
    ];
    let front = magic_at(file, 0)?;
    if front == ENCRYPTED_MAGIC {
        let message = format!("{} is encrypted, and was opened without keys", path.display());
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    if let Some((_, format)) = by_magic.iter().find(|(magic, _)| *magic == front) {
        return Ok(*format);
    }
    if bytes >= 16 && magic_at(file, bytes - 16)? == sstable::MAGIC.to_le_bytes() {
        return Ok(FileFormat::Table);
    }
    // A damaged magic: the name still says which description finds the damage.
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match FileName::parse(name).map(|name| name.kind) {
        Some(FileKind::Sst) => return Ok(FileFormat::Table),
        Some(FileKind::Wal) => return Ok(FileFormat::Segment),
        Some(FileKind::Manifest) => return Ok(FileFormat::Manifest),
        Some(FileKind::Chunk) => {
            let message = format!("{} is a chunk file, which has no description", path.display());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        None => {}
    }
    if names::epoch_of_claim(name).is_some() {
        return Ok(FileFormat::Claim);
    }
    if names::epoch_of_fork(name).is_some() {
        return Ok(FileFormat::Fork);
    }
    if names::is_cursor(name) {
        return Ok(FileFormat::Cursor);
    }
    if names::is_lease(name) {
        return Ok(FileFormat::Lease);
    }
    let what = "by magic and name, the file is none of a database that can be described";
    Err(Error::corruption(path, None, what))
}

fn magic_at(file: &dyn File, offset: u64) -> Result<[u8; 8]> {
    let mut magic = [0; 8];
    file.read_at(offset, &mut magic)?;
    Ok(magic)
}

/// Describes the operations in a section, as far as they decode.
fn operations(section: &[u8]) -> Vec<(Range<u64>, String)> {
    let mut reader = SectionReader::new(section);
    let mut lines = Vec::new();
    let mut at = 0;
    loop {
        let operation = match reader.next_operation() {
            Ok(Some(operation)) => operation,
            Ok(None) => return lines,
            Err(fault) => {
                lines.push((at..section.len() as u64, format!("malformed: {fault}")));
                return lines;
            }
        };
        let key = section[operation.key.clone()].escape_ascii();
        let text = match operation.kind {
            EntryKind::Value => format!("put \"{key}\", value of {} bytes", operation.value.len()),
            EntryKind::Operand => {
                format!("merge \"{key}\", operand of {} bytes", operation.value.len())
            }
            EntryKind::Tombstone => format!("delete \"{key}\""),
            EntryKind::Clear => "clear the partition".to_owned(),
            EntryKind::DeleteRange if operation.value.is_empty() => {
                format!("delete the keys from \"{key}\" on")
            }
            EntryKind::DeleteRange => {
                let end = section[operation.value.clone()].escape_ascii();
                format!("delete the keys from \"{key}\" to before \"{end}\"")
            }
            kind => format!("{kind:?} \"{key}\", {} bytes", operation.value.len()),
        };
        let end = operation.value.end as u64;
        lines.push((at..end, text));
        at = end;
    }
}
