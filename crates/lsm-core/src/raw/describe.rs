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
use crate::fs::names::{FileKind, FileName};
use crate::fs::{File, Fs, OsFs};
use crate::types::EntryKind;
use crate::{sstable, version, wal};

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its kind.
    pub kind: FileKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// Ranges of the file in bytes, with a text for people, in the order of the file. What lies
    /// inside of another range comes behind it.
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
/// and changes. Damaged parts are described as that, and the description goes on behind them.
///
/// # Errors
/// `Corruption` for a file of no kind that is known, and where header or footer are damaged, from
/// which all else is found; `Unsupported` for newer formats; `Io`.
///
/// # Cost
/// Reads the whole file; the text takes a multiple of what it describes.
pub fn describe(file: Arc<dyn File>, path: &Path, inside: bool) -> Result<Description> {
    let bytes = file.len()?;
    let kind = kind_of(&*file, path, bytes)?;
    let lines = match kind {
        FileKind::Sst => sstable::describe(file, path.to_owned(), inside)?,
        FileKind::Manifest => version::describe(&*file, path, inside)?,
        FileKind::Wal if inside => wal::describe(&*file, path, &operations)?,
        FileKind::Wal => wal::describe(&*file, path, &|_| Vec::new())?,
        FileKind::Chunk => {
            let message = format!("{} is a chunk file, which has no description", path.display());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    };
    Ok(Description { kind, bytes, lines })
}

/// The kind of the file by its magic; where that is damaged, by its name.
fn kind_of(file: &dyn File, path: &Path, bytes: u64) -> Result<FileKind> {
    let front = magic_at(file, 0)?;
    if front == wal::MAGIC {
        return Ok(FileKind::Wal);
    }
    if front == version::MAGIC {
        return Ok(FileKind::Manifest);
    }
    if bytes >= 16 && magic_at(file, bytes - 16)? == sstable::MAGIC.to_le_bytes() {
        return Ok(FileKind::Sst);
    }
    // A damaged magic: the name still says which description finds the damage.
    let name = path.file_name().and_then(|name| FileName::parse(name.to_str()?));
    let what = "by magic and name, the file is not a table, a log segment or a manifest";
    name.map(|name| name.kind).ok_or_else(|| Error::corruption(path, None, what))
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
            EntryKind::Tombstone => format!("delete \"{key}\""),
            EntryKind::Clear => "clear the partition".to_owned(),
            kind => format!("{kind:?} \"{key}\", {} bytes", operation.value.len()),
        };
        let end = operation.value.end as u64;
        lines.push((at..end, text));
        at = end;
    }
}
