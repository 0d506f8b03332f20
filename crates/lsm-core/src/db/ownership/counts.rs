//! [`CountedPart`]: the part of the files of an epoch that counts for a reader, while another process takes
//! the database over or has begun to.
//!
//! Used by secondaries (`follow/`) and by opens next to a writer. A claim alone does not affect the old
//! primary: its claimant may have died, or lost. A fence does, and the fenced words are the end of the part
//! that counts (`shared/fence.rs`). They stay in the cursor file until a later epoch has begun.
//!
//! Invariant: the cursor is read before the folder is listed. A cursor is fenced for good before a later
//! epoch begins, and deleted only by its own clean close or after that epoch has begun.

use std::path::Path;

use super::claims::newest_claim;
use crate::error::Result;
use crate::fs::Fs;
use crate::fs::names::{self, FileName};
use crate::shared::{CommitCursorReader, CommitCursorState, Settled};
use crate::types::Epoch;
use crate::version::has_begun;

/// The part of the files of an epoch that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedPart {
    /// Everything in its cursor, its log and its manifest. Its writer was not fenced.
    AsWritten,
    /// Exactly the part that its writer had settled when it was fenced. No later epoch has begun, so
    /// nothing was acknowledged since.
    Through(Settled),
    /// A later epoch has begun.
    Replaced,
    /// There is a claim, and a cursor that is not believed on this machine: its writer may be fenced.
    Unknown,
}

/// A cursor as it was before a folder was listed; `None` if none is believed here.
pub(crate) type SeenCursor<'a> = Option<(&'a CommitCursorReader, CommitCursorState)>;

/// The part that counts of the files of `epoch` in `dir`; `listed` are the names in the folder.
///
/// # Errors
/// Those of [`has_begun`].
pub(crate) fn counted_part(
    fs: &dyn Fs,
    dir: &Path,
    listed: &[String],
    epoch: Epoch,
    cursor: SeenCursor<'_>,
) -> Result<CountedPart> {
    let is_superseded = cursor.is_some_and(|(_, state)| state == CommitCursorState::Superseded);
    // Not by their names alone: see `claims`.
    let has_claims = listed.iter().any(|name| names::epoch_of_claim(name).is_some());
    let claim = if has_claims { newest_claim(fs, dir)? } else { None };
    let is_claimed = claim.is_some_and(|claim| claim > epoch);
    if !is_superseded && (!is_claimed || cursor.is_some()) {
        return Ok(CountedPart::AsWritten);
    }
    let ours: Vec<_> = listed.iter().filter_map(|name| FileName::parse(name)).collect();
    let next = Epoch(epoch.0.saturating_add(1));
    if has_begun(fs, dir, &ours, next)? {
        return Ok(CountedPart::Replaced);
    }
    if let Some((cursor, _)) = cursor {
        // Both words are fenced before the state shows it.
        return Ok(cursor.fenced_at().map_or(CountedPart::Replaced, CountedPart::Through));
    }
    let is_elsewhere = listed.contains(&names::cursor(epoch));
    Ok(if is_elsewhere { CountedPart::Unknown } else { CountedPart::AsWritten })
}
