//! [`ExportDescription`]: the file `EXPORT` that makes tables in a folder an export.
//!
//! Written by `export.rs`, read by `ingest.rs`. It describes the tables; the ingest checks them.
//!
//! ```text
//! offset size name
//!      0    8 magic            "SILTEXPT"
//!      8    4 format version   1
//!     12    4 checksum         1 = XXH3-64
//!     16    8 features         compatible: unknown bits do not matter
//!     24    8 features         read-compatible: the same here, an export is never written to
//!     32    8 features         incompatible: with unknown bits it is refused
//!     40   16 database id      of the database that exported
//!     56    8 length           of the body
//!     64    8 header checksum  XXH3-64 of the 64 bytes before
//!     72    - body, varints unless said:
//!             partition name   length, bytes
//!             sequence         of the snapshot that was exported
//!             options          length, then as in `version/edit.rs`
//!             hooks            length, then as in `version/edit.rs`: the partition's hooks and
//!                              their rules
//!             tables           count, then of each its unique id (u128), length, and the table as
//!                              in `version/edit.rs`; ascending by key
//!      -    8 body checksum    XXH3-64 of the body, seeded with the header checksum
//! ```
//!
//! A table lies next to the description under the name of its file number and epoch. It verifies
//! against the database id above, that number and that epoch.
//!
//! Invariants:
//! 1. The header keeps its form in all versions to come.
//! 2. Decoding ends in a description or an error whatever the bytes are.

use std::path::Path;

use crate::codec::{
    Malformed, Reader, checksum64, checksum64_seeded, put_bytes, put_u32, put_u64, put_u128,
    put_varint,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names::EXPORT;
use crate::options::PartitionOptions;
use crate::sstable::SstIdentity;
use crate::types::{DbId, SeqNo};
use crate::version::{
    EditFault, HookRecord, SstMeta, put_hooks, put_meta, put_options, read_all, read_hooks,
    read_meta, read_options,
};

const MAGIC: &[u8; 8] = b"SILTEXPT";
const FORMAT_VERSION: u32 = 1;
const CHECKSUM_XXH3_64: u32 = 1;
const HEADER_BYTES: usize = 72;

/// The content of an export.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ExportDescription {
    /// The database that exported.
    pub db_id: DbId,
    /// The partition's name there.
    pub partition: String,
    /// The snapshot.
    pub seq: SeqNo,
    /// The partition's options there.
    pub options: PartitionOptions,
    /// The partition's hooks there.
    pub hooks: Vec<HookRecord>,
    /// Ascending and disjoint.
    pub tables: Vec<SstMeta>,
}

impl ExportDescription {
    /// The identity that the table's file gives.
    pub(super) fn identity(&self, table: &SstMeta) -> SstIdentity {
        SstIdentity { db_id: self.db_id, file: table.file, epoch: table.epoch }
    }

    /// The bytes of the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_bytes(&mut body, self.partition.as_bytes());
        put_varint(&mut body, self.seq.get());
        let mut part = Vec::new();
        put_options(&mut part, &self.options);
        // With a length: options have no end of their own, because a later version may add to them.
        put_bytes(&mut body, &part);
        part.clear();
        put_hooks(&mut part, &self.hooks);
        put_bytes(&mut body, &part);
        put_varint(&mut body, self.tables.len() as u64);
        for table in &self.tables {
            put_u128(&mut body, self.identity(table).unique_id());
            part.clear();
            put_meta(&mut part, table);
            put_bytes(&mut body, &part);
        }
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        put_u32(&mut out, FORMAT_VERSION);
        put_u32(&mut out, CHECKSUM_XXH3_64);
        (0..3).for_each(|_| put_u64(&mut out, 0));
        put_u128(&mut out, self.db_id.0);
        put_u64(&mut out, body.len() as u64);
        let header = checksum64(&out);
        put_u64(&mut out, header);
        debug_assert_eq!(out.len(), HEADER_BYTES);
        out.extend_from_slice(&body);
        put_u64(&mut out, checksum64_seeded(&body, header));
        out
    }

    /// Reads the description of the export in `dir`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is none; [`ErrorKind::Unsupported`] if newer code
    /// wrote it; [`ErrorKind::Corruption`].
    pub(super) fn read(fs: &dyn Fs, dir: &Path) -> Result<ExportDescription> {
        let path = dir.join(EXPORT);
        let file = fs.open_read(&path).map_err(|error| {
            if !error.is_missing() {
                return error;
            }
            let message = format!("there is no export in {}", dir.display());
            Error::because(ErrorKind::InvalidArgument, message, error)
        })?;
        ExportDescription::decode(&read_all(&*file)?, &path)
    }

    fn decode(bytes: &[u8], path: &Path) -> Result<ExportDescription> {
        let (db_id, body) = open_envelope(bytes, path)?;
        decode_body(db_id, body).map_err(|fault| match fault {
            EditFault::Malformed(Malformed { what, at }) => {
                Error::corruption(path, (HEADER_BYTES + at) as u64, what)
            }
            EditFault::Unsupported(_) => {
                let message = format!("export {}: {fault}", path.display());
                Error::new(ErrorKind::Unsupported, message)
            }
        })
    }
}

/// Checks header and checksums; the database and the body.
fn open_envelope<'a>(bytes: &'a [u8], path: &Path) -> Result<(DbId, &'a [u8])> {
    let bad = |offset: usize, what: &str| Error::corruption(path, offset as u64, what);
    let short = |fault: Malformed| bad(fault.at, "the description of an export ends too soon");
    let mut r = Reader::new(bytes);
    let head = r.clone().take(HEADER_BYTES - 8).map_err(short)?;
    if r.take(8).map_err(short)? != MAGIC {
        return Err(bad(0, "the file is not the description of an export"));
    }
    let version = r.u32().map_err(short)?;
    let checksum_id = r.u32().map_err(short)?;
    r.take(16).map_err(short)?;
    let incompatible = r.u64().map_err(short)?;
    let db_id = DbId(r.u128().map_err(short)?);
    let length = r.u64().map_err(short)?;
    let header = r.u64().map_err(short)?;
    // The checksum first: damaged bytes must not ask for newer code.
    if header != checksum64(head) {
        return Err(bad(0, "the header of an export does not match its checksum"));
    }
    if version > FORMAT_VERSION || checksum_id != CHECKSUM_XXH3_64 || incompatible != 0 {
        let what = format!(
            "{} needs newer code: format version {version}, checksum {checksum_id}, features \
             {incompatible:#x}",
            path.display()
        );
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let body = r
        .take(
            usize::try_from(length)
                .map_err(|_| bad(56, "the body of an export is longer than memory"))?,
        )
        .map_err(short)?;
    if r.u64().map_err(short)? != checksum64_seeded(body, header) {
        return Err(bad(HEADER_BYTES, "the body of an export does not match its checksum"));
    }
    r.finish().map_err(|fault| bad(fault.at, "bytes follow the end of an export"))?;
    Ok((db_id, body))
}

fn decode_body(db_id: DbId, body: &[u8]) -> Result<ExportDescription, EditFault> {
    let mut r = Reader::new(body);
    let name = std::str::from_utf8(r.bytes()?).map_err(|_| r.malformed("name is not UTF-8"))?;
    let seq = SeqNo::new(r.varint()?).ok_or(r.malformed("sequence too large"))?;
    let options = read_options(&mut Reader::new(r.bytes()?))?;
    let mut part = Reader::new(r.bytes()?);
    let hooks = read_hooks(&mut part)?;
    part.finish()?;
    let mut description = ExportDescription {
        db_id,
        partition: name.to_owned(),
        seq,
        options,
        hooks,
        tables: Vec::new(),
    };
    // The count comes from outside and reserves no memory. A wrong one ends with the bytes.
    for _ in 0..r.varint()? {
        let unique_id = r.u128()?;
        let table = read_meta(&mut Reader::new(r.bytes()?))?;
        // Each block of the table verifies against this identity. A wrong one is reported here, as
        // damage of the description, and not as damage of every block of an intact table.
        if description.identity(&table).unique_id() != unique_id {
            return Err(r.malformed("a table's unique id is not its identity's").into());
        }
        // An export writes new tables. The ingest gives both fields values of its own, and stray
        // ones would be taken for these.
        if table.global_seq.is_some() || table.foreign.is_some() {
            return Err(r.malformed("a table of an export was ingested").into());
        }
        description.tables.push(table);
    }
    r.finish()?;
    Ok(description)
}

/// Decodes the body of a description, for the fuzz targets of this repository.
#[cfg(feature = "internals")]
pub fn check_export_description(body: &[u8]) {
    let _ = decode_body(DbId(7), body);
}

#[cfg(test)]
mod tests;
