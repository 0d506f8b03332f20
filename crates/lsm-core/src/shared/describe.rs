//! [`describe_commit_cursor`] and [`describe_lease`]: the content of the files that a primary shares with its
//! secondaries, for `dump`.

use std::ops::Range;

use super::commit_cursor;
use super::lease;
use crate::codec::describe_fields;
use crate::error::Result;
use crate::fs::File;

/// Bytes of either that are looked at. Both are files that other programs can write.
const BYTES_MAX: usize = 1 << 20;

fn read(file: &dyn File) -> Result<Vec<u8>> {
    let len = usize::try_from(file.len()?).unwrap_or(BYTES_MAX).min(BYTES_MAX);
    let mut bytes = vec![0; len];
    let got = file.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}

/// Returns the meaning of each byte of a commit cursor, as its writer has it at this moment.
///
/// # Errors
/// `Io`.
pub fn describe_commit_cursor(file: &dyn File) -> Result<Vec<(Range<u64>, String)>> {
    let bytes = read(file)?;
    let end = bytes.len() as u64;
    let state = word(&bytes, commit_cursor::STATE_AT).map(commit_cursor::state_of);
    let state = state.map_or("cut off".to_owned(), |state| format!("{state:?}"));
    let mut lines = vec![(0..end, format!("commit cursor: {state}"))];
    let names = [
        "magic",
        "format version",
        "database id, low half",
        "database id, high half",
        "epoch",
        "machine run",
        "checksum",
        "unused",
        "state",
        "edit",
        "generation",
        "layout edit",
        "last unlogged sequence",
        "end",
        "visible",
        "locked",
        "settled end",
        "settled edit",
    ];
    lines.extend(describe_fields(&bytes, 0, "cursor", names.map(|name| (8, name))));
    for at in commit_cursor::SLOTS_AT..commit_cursor::WORDS {
        // Most partitions do not exist.
        let Some(seq) = word(&bytes, at).filter(|seq| *seq != 0) else { continue };
        let from = 8 * at as u64;
        let slot = at - commit_cursor::SLOTS_AT;
        lines.push((from..from + 8, format!("cursor: slot {slot}, last sequence {seq}")));
    }
    Ok(lines)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(8 * at..8 * at + 8)?;
    Some(u64::from_le_bytes(word.try_into().expect("it is 8 bytes long")))
}

/// Returns the meaning of each byte of a lease.
///
/// # Errors
/// `Io`.
pub fn describe_lease(file: &dyn File) -> Result<Vec<(Range<u64>, String)>> {
    let bytes = read(file)?;
    let end = bytes.len() as u64;
    let edit = lease::edit_in(&bytes);
    let text = format!("lease: holds the files that edits after {edit} dropped");
    let mut lines = vec![(0..end, text)];
    let header =
        [(8, "magic"), (4, "format version"), (4, "process"), (8, "machine run"), (8, "checksum")];
    lines.extend(describe_fields(&bytes, 0, "lease", header));
    let mut at = lease::HEADER_BYTES;
    while let Some(record) = bytes.get(at..at + lease::RECORD_BYTES) {
        lines.extend(describe_fields(record, at as u64, "lease", [(8, "edit"), (8, "checksum")]));
        at += lease::RECORD_BYTES;
    }
    if at < bytes.len() {
        lines.push((at as u64..end, "torn: no whole record".to_owned()));
    }
    Ok(lines)
}
