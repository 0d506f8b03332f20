//! [`describe_claim`] and [`describe_fork`]: the content of the files of a promotion, for `dump`.

use std::ops::Range;
use std::path::Path;

use super::{CLAIM_BYTES, CLAIM_MAGIC, FORK_MAGIC, ForkFields, HEADER_BYTES, read_front};
use crate::codec::{checksum64, describe_fields};
use crate::error::Result;
use crate::fs::File;
use crate::version::describe::describe_edit;
use crate::version::recover::read_all;

/// Returns the meaning of each byte of a claim, as [`describe`](crate::version::describe()) does.
///
/// # Errors
/// `Corruption` where the header is damaged; `Unsupported` for newer formats; `Io`.
pub fn describe_claim(file: &dyn File, path: &Path) -> Result<Vec<(Range<u64>, String)>> {
    let bytes = read_all(file)?;
    let front = read_front(&bytes, CLAIM_MAGIC, CLAIM_BYTES, path)?;
    let mut lines = vec![(0..CLAIM_BYTES as u64, format!("claim of epoch {}", front.epoch))];
    let fields =
        [(8, "magic"), (4, "format version"), (4, "epoch"), (16, "database id"), (8, "checksum")];
    lines.extend(describe_fields(&bytes, 0, "claim", fields));
    lines.extend(rest(&bytes, CLAIM_BYTES));
    Ok(lines)
}

/// Returns the meaning of each byte of a fork; `changes` includes those of its state.
///
/// # Errors
/// As [`describe_claim`].
pub fn describe_fork(
    file: &dyn File,
    path: &Path,
    changes: bool,
) -> Result<Vec<(Range<u64>, String)>> {
    let bytes = read_all(file)?;
    let claim = read_front(&bytes, FORK_MAGIC, HEADER_BYTES, path)?.epoch;
    let (_, fields) = ForkFields::read(&bytes, claim, path)?;
    let text = format!("fork of the claim of epoch {claim}: epoch {} begins", fields.begins);
    let mut lines = vec![(0..HEADER_BYTES as u64, text)];
    let names = [
        (8, "magic"),
        (4, "format version"),
        (4, "claim"),
        (16, "database id"),
        (4, "begins"),
        (4, "flags"),
        (8, "segment"),
        (8, "offset"),
        (8, "generation"),
        (4, "epoch"),
        (4, "length"),
        (8, "edit number"),
        (8, "payload checksum"),
        (8, "header checksum"),
    ];
    lines.extend(describe_fields(&bytes, 0, "fork", names));
    let end = HEADER_BYTES.saturating_add(fields.length as usize);
    match bytes.get(HEADER_BYTES..end) {
        Some(payload) if checksum64(payload) == fields.payload_checksum => {
            let range = HEADER_BYTES as u64..end as u64;
            let number = fields.edit_number;
            lines.extend(describe_edit("state at edit", number, payload, range, changes));
            lines.extend(rest(&bytes, end));
        }
        _ => {
            let range = HEADER_BYTES as u64..bytes.len() as u64;
            lines.push((range, "damaged: the state does not match its checksum".to_owned()));
        }
    }
    Ok(lines)
}

/// Bytes after the end of the expected content.
fn rest(bytes: &[u8], end: usize) -> Option<(Range<u64>, String)> {
    let is_longer = bytes.len() > end;
    is_longer.then(|| (end as u64..bytes.len() as u64, "damaged: after the end".to_owned()))
}
