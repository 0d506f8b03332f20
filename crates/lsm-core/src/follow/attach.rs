//! The manifest of a folder that another process writes, at first and after each change.
//!
//! Called by `options.rs` and `position.rs`. It must never return a state whose end may still be refused.

use std::path::Path;
use std::time::Duration;

use crate::db::ownership::{CountedPart, counted_part};
use crate::db::retries::Retries;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names;
use crate::shared::{CommitCursorReader, CommitCursorState};
use crate::types::Epoch;
use crate::version::{DbVersion, ManifestTail};

/// Rounds that are started again because a file disappeared or did not match.
pub(super) const ATTEMPTS: usize = 16;
/// Listings without a manifest before the result is that there is none.
const EMPTY_ATTEMPTS: usize = 3;
/// Looks at an unfinished promotion, and the time between two of them.
const PROMOTION_LOOKS: usize = 500;
const PROMOTION_PAUSE: Duration = Duration::from_millis(2);

/// The manifest of the folder as it is now, without edits that its writer may still refuse.
///
/// # Errors
/// [`ErrorKind::Io`] with `NotFound` if there is none; [`ErrorKind::NeedsManifest`] if this machine
/// cannot decide which edits count, and a promotion does not end within a second; corruption that a
/// retry does not remove.
/// # Cost
/// Reads the manifest, and once more if its end does not count. While it waits for the end of a
/// promotion, it lists the folder some hundred times a second.
pub(super) fn open_manifest(
    fs: &dyn Fs,
    dir: &Path,
    known: Option<&DbVersion>,
) -> Result<ManifestTail> {
    let mut through: Option<(Epoch, u64)> = None;
    for _ in 0..ATTEMPTS {
        let manifest = read_manifest(fs, dir, known, through.map(|(_, edit)| edit))?;
        let DbVersion { epoch, edit_number, .. } = **manifest.version();
        if let Some((read_epoch, _)) = through.take() {
            // Otherwise a later epoch has begun meanwhile.
            if epoch == read_epoch {
                return Ok(manifest);
            }
            continue;
        }
        match await_last_edit(fs, dir, manifest.version())? {
            LastEdit::Any => return Ok(manifest),
            LastEdit::Only(last) if edit_number <= last => return Ok(manifest),
            LastEdit::Only(last) => through = Some((epoch, last)),
            LastEdit::OfLaterEpoch => {}
            LastEdit::Unknown => {
                let message = "a promotion of another secondary has begun and not ended";
                return Err(Error::new(ErrorKind::NeedsManifest, message));
            }
        }
    }
    let message = "the database was taken over all the time while its manifest was read";
    Err(Error::new(ErrorKind::NeedsManifest, message))
}

/// As [`last_edit`]. Waits a second for the end of a promotion before it returns that this is
/// undecided. Reading the manifest again at each look would cost its whole length.
fn await_last_edit(fs: &dyn Fs, dir: &Path, version: &DbVersion) -> Result<LastEdit> {
    for _ in 0..PROMOTION_LOOKS {
        match last_edit(fs, dir, version)? {
            LastEdit::Unknown => {}
            outcome => return Ok(outcome),
        }
        // No one unparks this thread.
        std::thread::park_timeout(PROMOTION_PAUSE);
    }
    last_edit(fs, dir, version)
}

/// The last edit that counts in a manifest that was read.
enum LastEdit {
    /// Its last one.
    Any,
    /// This one. The writer may still refuse later ones.
    Only(u64),
    /// One of a manifest that was begun since.
    OfLaterEpoch,
    /// This machine cannot decide it.
    Unknown,
}

/// See [`LastEdit`]. A written edit that its writer has not settled yet does not count: the writer
/// may be fenced before.
fn last_edit(fs: &dyn Fs, dir: &Path, version: &DbVersion) -> Result<LastEdit> {
    let cursor = CommitCursorReader::open(fs, dir, version.db_id, version.epoch)?;
    let cursor = cursor.as_ref().map(|cursor| (cursor, cursor.state()));
    let listed = fs.list_names(dir, "")?;
    Ok(match counted_part(fs, dir, &listed, version.epoch, cursor)? {
        CountedPart::AsWritten => match cursor {
            Some((cursor, CommitCursorState::Live)) => LastEdit::Only(cursor.edit()),
            _ => LastEdit::Any,
        },
        CountedPart::Through(settled) => LastEdit::Only(settled.edit),
        CountedPart::Replaced => LastEdit::OfLaterEpoch,
        CountedPart::Unknown => LastEdit::Unknown,
    })
}

fn read_manifest(
    fs: &dyn Fs,
    dir: &Path,
    known: Option<&DbVersion>,
    through: Option<u64>,
) -> Result<ManifestTail> {
    let mut retries = Retries::new(ATTEMPTS);
    let mut empty = 0;
    loop {
        let opened = names::in_dir(fs, dir)
            .and_then(|names| ManifestTail::open(fs, dir, &names, known, through));
        match opened {
            Ok(Some(manifest)) => return Ok(manifest),
            // A listing is no snapshot of the folder: while it runs, one generation may be deleted,
            // and the next one created at a place that was passed already.
            Ok(None) if empty + 1 < EMPTY_ATTEMPTS => empty += 1,
            Ok(None) => {
                let missing = std::io::ErrorKind::NotFound.into();
                return Err(Error::io("find a database in", dir, missing));
            }
            // A listing may be older than the files that are read.
            Err(error) => retries.again(error)?,
        }
    }
}
