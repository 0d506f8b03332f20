//! The bytes of a backup folder: a *record* for each backup, and the shared files that records name.
//!
//! ```text
//! backup-0000000007                record of the backup 7, published last; or of a purge, see `purge_record.rs`
//! shared/                          pieces of the files of the database, of at most 8 MiB, each made once. The names of
//!                                  those that were made after a purge begin with its number, 8 digits, and `-`
//!   DDDDDDDDDDDDDDDD-NNNNNNNNNNNNNNNN-EEEEEEEE-M-II-LL.sst|wal|chunk
//!                                  hash of the database's id, number and epoch of the file, mark of its content,
//!                                  index and length of the piece
//!   DDDDDDDDDDDDDDDD-M-LL.part     a piece whose content alone names it
//! LOCK, READING                    held by those that change the folder, and by those that read it
//!
//! record: numbers are little-endian, lengths varints
//! offset size name
//!      0    8 magic            "SILTBACK"
//!      8    4 format version   1
//!     12    4 number           of the backup
//!     16   16 database id
//!     32    8 time             seconds since 1970
//!     40    8 sequence number  of the last commit
//!     48    8 edit number      of the state
//!     56    8 new bytes        that this backup has read and written
//!     64    - state            length and snapshot, see `version/edit.rs`
//!      -    - files            count; of each its name, and the count of its pieces; of each its name and its length
//!      -    8 checksum         XXH3-64 of all bytes before
//!
//! shared file:
//!      0    8 magic            "SILTPIEC"
//!      8    4 format version   1
//!     12    4 zero
//!     16    8 length           of the content
//!     24   16 checksum         XXH3-128 of the content
//!     40    8 checksum         XXH3-64 of the 40 bytes before, seeded with the XXH3-64 of the file's name
//!     48    - content
//! ```
//!
//! Invariant: a shared file is published whole, and never changed.

use std::path::Path;

use crate::codec::{
    Malformed, Reader, checksum64, checksum64_seeded, checksum128, put_bytes, put_u32, put_u64,
    put_u128, put_varint,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::types::{DbId, SeqNo};
use crate::version::{DbVersion, decode_snapshot, encode_snapshot};

/// The first bytes of a record.
pub const RECORD_MAGIC: [u8; 8] = *b"SILTBACK";
/// The first bytes of a shared file.
pub const PIECE_MAGIC: [u8; 8] = *b"SILTPIEC";
const FORMAT_VERSION: u32 = 1;
/// The place of the state in a record.
const STATE_AT: u64 = 64;
const RECORD_PREFIX: &str = "backup-";
/// The length of a piece, at most.
pub const PIECE_BYTES_MAX: u64 = 8 << 20;
/// Bytes of a shared file before its content.
pub const PIECE_HEADER_BYTES: usize = 48;
/// No name of a shared file is longer.
const PIECE_NAME_BYTES_MAX: usize = 160;
/// The kinds of shared files, as their names end.
const ENDINGS: [&str; 4] = [".sst", ".wal", ".chunk", ".part"];

/// The name of the record of a backup.
pub fn record_name(id: u32) -> String {
    format!("{RECORD_PREFIX}{id:010}")
}

/// The backup whose record has this name.
pub fn id_of_record(name: &str) -> Option<u32> {
    let id = name.strip_prefix(RECORD_PREFIX)?.parse().ok()?;
    (record_name(id) == name).then_some(id)
}

/// A part of a file, and the shared file that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPiece {
    pub name: String,
    pub len: u64,
}

/// A file of the database in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    pub name: FileName,
    pub pieces: Vec<SharedPiece>,
}

/// The record of a backup.
#[derive(Clone, Debug)]
pub struct BackupRecord {
    pub id: u32,
    /// Seconds since 1970.
    pub time: u64,
    pub seq: SeqNo,
    pub new_bytes: u64,
    pub version: DbVersion,
    pub files: Vec<StoredFile>,
}

impl BackupRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = RECORD_MAGIC.to_vec();
        put_u32(&mut out, FORMAT_VERSION);
        put_u32(&mut out, self.id);
        put_u128(&mut out, self.version.db_id.0);
        for number in [self.time, self.seq.get(), self.version.edit_number, self.new_bytes] {
            put_u64(&mut out, number);
        }
        put_bytes(&mut out, &encode_snapshot(&self.version));
        put_varint(&mut out, self.files.len() as u64);
        for file in &self.files {
            put_bytes(&mut out, file.name.to_string().as_bytes());
            put_varint(&mut out, file.pieces.len() as u64);
            for piece in &file.pieces {
                put_bytes(&mut out, piece.name.as_bytes());
                put_varint(&mut out, piece.len);
            }
        }
        let sum = checksum64(&out);
        put_u64(&mut out, sum);
        out
    }

    /// Decodes the bytes of the file `path`, which must be the record of the backup `id`.
    ///
    /// # Errors
    /// `Corruption`; `Unsupported` if newer code made it.
    pub fn decode(bytes: &[u8], id: u32, path: &Path) -> Result<BackupRecord> {
        let mut r = unseal(bytes, RECORD_MAGIC, FORMAT_VERSION, path)?;
        let fields = RecordFields::read(&mut r).map_err(|fault| malformed(path, fault))?;
        if fields.id != id {
            return Err(Error::corruption(path, 12, "the record is of another backup"));
        }
        let state = decode_snapshot(fields.db, fields.edit, fields.state, path, STATE_AT)?;
        let files = read_files(&mut r).and_then(|files| r.finish().map(|()| files));
        let files = files.map_err(|fault| malformed(path, fault))?;
        let RecordFields { time, seq, new_bytes, .. } = fields;
        Ok(BackupRecord { id, time, seq, new_bytes, version: state, files })
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.pieces().map(|piece| piece.len).fold(0, u64::saturating_add)
    }

    /// All pieces of its files.
    pub fn pieces(&self) -> impl Iterator<Item = &SharedPiece> {
        self.files.iter().flat_map(|file| &file.pieces)
    }
}

/// The fields of a record after its format version: checksum, magic and version are right.
///
/// # Errors
/// `Corruption`; `Unsupported` if newer code made it.
pub fn unseal<'a>(
    bytes: &'a [u8],
    magic: [u8; 8],
    supported: u32,
    path: &Path,
) -> Result<Reader<'a>> {
    let whole = bytes.len().checked_sub(8).map(|end| bytes.split_at(end));
    let Some((covered, _)) = whole
        .filter(|(covered, sum)| checksum64(covered).to_le_bytes() == **sum)
        .filter(|(covered, _)| covered.starts_with(&magic))
    else {
        let what = "the record of a backup does not match its checksum";
        return Err(Error::corruption(path, 0, what));
    };
    let mut r = Reader::new(&covered[magic.len()..]);
    let version = r.u32().map_err(|fault| malformed(path, fault))?;
    if version != supported {
        let message = format!("{} needs newer code: format version {version}", path.display());
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(r)
}

/// The error of bytes after the magic of a record.
pub fn malformed(path: &Path, fault: Malformed) -> Error {
    Error::corruption(path, (RECORD_MAGIC.len() + fault.at) as u64, fault.what)
}

/// The fields of a record before its files.
struct RecordFields<'a> {
    id: u32,
    db: DbId,
    time: u64,
    seq: SeqNo,
    edit: u64,
    new_bytes: u64,
    state: &'a [u8],
}

impl<'a> RecordFields<'a> {
    fn read(r: &mut Reader<'a>) -> Result<RecordFields<'a>, Malformed> {
        let id = r.u32()?;
        let db = DbId(r.u128()?);
        let time = r.u64()?;
        let number = r.u64()?;
        let seq = SeqNo::new(number).ok_or(r.malformed("a sequence number that no commit has"))?;
        let edit = r.u64()?;
        let new_bytes = r.u64()?;
        Ok(RecordFields { id, db, time, seq, edit, new_bytes, state: r.bytes()? })
    }
}

fn read_files(r: &mut Reader<'_>) -> Result<Vec<StoredFile>, Malformed> {
    // A length that bytes must back: counts come from a file.
    let count = r.length()?;
    let mut files = Vec::with_capacity(count.min(1 << 16));
    for _ in 0..count {
        let name = std::str::from_utf8(r.bytes()?).ok().and_then(FileName::parse);
        let name = name.filter(|name| name.kind != FileKind::Manifest);
        let name = name.ok_or(r.malformed("the name of no file of a database"))?;
        let count = r.length()?;
        let mut pieces = Vec::with_capacity(count.min(1 << 16));
        for _ in 0..count {
            let name = std::str::from_utf8(r.bytes()?).ok().filter(|name| is_piece(name));
            let name = name.ok_or(r.malformed("the name of no shared file"))?.to_owned();
            let len = r.varint()?;
            if len > PIECE_BYTES_MAX {
                return Err(r.malformed("the length of no piece"));
            }
            pieces.push(SharedPiece { name, len });
        }
        files.push(StoredFile { name, pieces });
    }
    Ok(files)
}

/// The hash of a database's id in the names of its pieces.
pub fn database_mark(db: DbId) -> u64 {
    checksum64(&db.0.to_le_bytes())
}

/// The name of a piece of a file whose content `mark` identifies.
pub fn piece_name(db: u64, file: FileName, mark: u128, index: u64, len: u64) -> String {
    let FileName { kind, number, epoch } = file;
    let ending = match kind {
        FileKind::Sst => "sst",
        FileKind::Wal => "wal",
        FileKind::Chunk | FileKind::Manifest => "chunk",
    };
    format!("{db:016x}-{:016x}-{:08x}-{mark:032x}-{index:x}-{len:x}.{ending}", number.0, epoch.0)
}

/// The name of a piece that nothing but its content identifies.
pub fn part_name(db: u64, content: &[u8]) -> String {
    format!("{db:016x}-{:032x}-{:x}.part", checksum128(content), content.len())
}

/// Returns `true` if `name` is that of a shared file. Strict: a name from a record becomes a path.
pub fn is_piece(name: &str) -> bool {
    let stem = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending));
    stem.is_some_and(|stem| {
        name.len() <= PIECE_NAME_BYTES_MAX
            && stem.len() > 16
            && stem.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-'))
    })
}

/// Room for the header of a shared file, before its content.
pub fn begin_piece() -> Vec<u8> {
    vec![0; PIECE_HEADER_BYTES]
}

/// Fills in the header of the shared file `name`, whose content follows it in `bytes`.
pub fn seal_piece(name: &str, bytes: &mut [u8]) {
    let (header, content) = bytes.split_at_mut(PIECE_HEADER_BYTES);
    let mut out = PIECE_MAGIC.to_vec();
    put_u32(&mut out, FORMAT_VERSION);
    put_u32(&mut out, 0);
    put_u64(&mut out, content.len() as u64);
    put_u128(&mut out, checksum128(content));
    let sum = checksum64_seeded(&out, checksum64(name.as_bytes()));
    put_u64(&mut out, sum);
    header.copy_from_slice(&out);
}

/// Returns the content of a shared file, which `bytes` of `path` must be.
///
/// # Errors
/// `Corruption`; `Unsupported` if newer code made it.
pub fn open_piece<'a>(piece: &SharedPiece, bytes: &'a [u8], path: &Path) -> Result<&'a [u8]> {
    let Some((header, content)) = bytes.split_at_checked(PIECE_HEADER_BYTES) else {
        return Err(Error::corruption(path, 0, "a shared file is shorter than its header"));
    };
    let (covered, sum) = header.split_at(PIECE_HEADER_BYTES - 8);
    let expected = checksum64_seeded(covered, checksum64(piece.name.as_bytes()));
    if !covered.starts_with(&PIECE_MAGIC) || expected.to_le_bytes() != *sum {
        let what = "the header of a shared file does not match its checksum";
        return Err(Error::corruption(path, 0, what));
    }
    let (version, len, hash) = read_piece_header(&covered[PIECE_MAGIC.len()..])
        .map_err(|fault| Error::corruption(path, fault.at as u64, fault.what))?;
    if version != FORMAT_VERSION {
        let message = format!("{} needs newer code: format version {version}", path.display());
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if len != piece.len || content.len() as u64 != len {
        let what = "a shared file has another length than its backup says";
        return Err(Error::corruption(path, 16, what));
    }
    if checksum128(content) != hash {
        let what = "the content of a shared file does not match its checksum";
        return Err(Error::corruption(path, PIECE_HEADER_BYTES as u64, what));
    }
    Ok(content)
}

/// The format version, length and checksum in the header of a shared file, after its magic.
fn read_piece_header(header: &[u8]) -> Result<(u32, u64, u128), Malformed> {
    let mut r = Reader::new(header);
    let version = r.u32()?;
    r.u32()?;
    Ok((version, r.u64()?, r.u128()?))
}
