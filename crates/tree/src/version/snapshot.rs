//! A whole state as bytes, for the files that have one in addition to a manifest: a fork, and the record of a backup.

use std::path::Path;

use super::DbVersion;
use super::apply::{VersionBuilder, snapshot_edit};
use super::edit::VersionEdit;
use super::record::EditFault;
use crate::error::{Error, ErrorKind, Result};
use crate::types::DbId;

/// The bytes of a state, without the id of its database and its edit number.
pub fn encode_snapshot(version: &DbVersion) -> Vec<u8> {
    let mut out = Vec::new();
    snapshot_edit(version).encode(&mut out);
    out
}

/// Decodes a state, which lies at `offset` of the file `path`.
///
/// # Errors
/// `Corruption`; `Unsupported` if newer code made it.
pub fn decode_snapshot(
    db: DbId,
    edit_number: u64,
    bytes: &[u8],
    path: &Path,
    offset: u64,
) -> Result<DbVersion> {
    let edit = VersionEdit::decode(edit_number, bytes).map_err(|fault| match fault {
        EditFault::Malformed(fault) => {
            Error::corruption(path, offset + fault.at as u64, fault.what)
        }
        EditFault::Unsupported(what) => {
            let message = format!("{} needs newer code: {what}", path.display());
            Error::new(ErrorKind::Unsupported, message)
        }
    })?;
    let version = VersionBuilder::from_snapshot(db, &edit).and_then(VersionBuilder::finish);
    version.map_err(|fault| Error::corruption(path, offset, fault.0))
}
