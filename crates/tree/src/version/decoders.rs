//! Edits of the manifest, for the fuzz targets of this repository.

use super::VersionEdit;
use super::apply::{VersionBuilder, apply, snapshot_edit};
use crate::types::DbId;

/// Decodes edits, each after its length in 2 bytes: the first is a snapshot as of a manifest or a fork, and the others
/// change its state. The edit of a state that was reached is that state again.
pub fn edits(bytes: &[u8]) {
    let Some((body, mut rest)) = next(bytes) else { return };
    let Ok(edit) = VersionEdit::decode(1, body) else { return };
    let begun = VersionBuilder::from_snapshot(DbId(7), &edit).and_then(VersionBuilder::finish);
    let Ok(mut version) = begun else { return };
    while let Some((body, after)) = next(rest) {
        rest = after;
        let Ok(edit) = VersionEdit::decode(version.edit_number + 1, body) else { continue };
        if let Ok(changed) = apply(&version, &edit) {
            version = changed;
        }
    }
    let whole = snapshot_edit(&version);
    let mut stored = Vec::new();
    whole.encode(&mut stored);
    let again = VersionEdit::decode(whole.number, &stored);
    assert_eq!(again.as_ref(), Ok(&whole), "an edit reads back");
    let read = VersionBuilder::from_snapshot(DbId(7), &whole).and_then(VersionBuilder::finish);
    let read =
        read.unwrap_or_else(|refused| panic!("a state that was reached is refused: {refused:?}"));
    assert_eq!(snapshot_edit(&read), whole, "a state reads back");
}

fn next(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    Some(rest.split_at(rest.len().min(u16::from_le_bytes(*len).into())))
}
