//! The manifest of a folder that somebody else writes, as it is found at first and after each change.
//!
//! Called by `builder.rs` and `tail.rs`. It must never return a state whose end may still be refused.

use std::path::Path;
use std::time::Duration;

use crate::db::retries::Retries;
use crate::db::term::pending_claim;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names;
use crate::shared::{CursorReader, CursorState};
use crate::version::{DbVersion, ManifestTail};

/// Rounds that are begun anew because something vanished or did not fit.
pub(super) const ATTEMPTS: usize = 16;
/// Listings without a manifest before there is none.
const EMPTY_ATTEMPTS: usize = 3;
/// Looks at a promotion that is under way, and the time between two of them.
const PROMOTION_LOOKS: usize = 500;
const PROMOTION_PAUSE: Duration = Duration::from_millis(2);

/// The manifest of the folder as it is now. While a promotion is under way, that of the next primary.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if there is none; [`ErrorKind::NeedsManifest`] if a promotion does not
/// end within a second; corruption that does not pass.
///
/// # Cost
/// Reads the manifest. While a promotion is under way, lists the claims and reads the front of the fork
/// some hundred times a second; the manifest is read once more when it has ended.
pub(super) fn open_manifest(
    fs: &dyn Fs,
    dir: &Path,
    known: Option<&DbVersion>,
) -> Result<ManifestTail> {
    let mut looks = 0;
    loop {
        let manifest = read_manifest(fs, dir, known)?;
        if is_settled(fs, dir, manifest.version())? {
            return Ok(manifest);
        }
        // Claim and fork tell whether there is another manifest to be read. To read this one again would
        // cost its whole length at each look.
        loop {
            if looks == PROMOTION_LOOKS {
                let message = "a promotion of another secondary has begun and not ended";
                return Err(Error::new(ErrorKind::NeedsManifest, message));
            }
            looks += 1;
            // Nobody unparks this thread.
            std::thread::park_timeout(PROMOTION_PAUSE);
            if is_settled(fs, dir, manifest.version())? {
                break;
            }
        }
    }
}

/// Returns `true` if the end of the manifest that `version` was read from counts. While a promotion is
/// under way it may be an edit that the old primary has written and never settled.
fn is_settled(fs: &dyn Fs, dir: &Path, version: &DbVersion) -> Result<bool> {
    if pending_claim(fs, dir)?.is_none() {
        return Ok(true);
    }
    // A claim alone fences nobody.
    let cursor = CursorReader::open(fs, dir, version.db_id, version.epoch)?;
    Ok(cursor.is_some_and(|cursor| cursor.state() == CursorState::Live))
}

fn read_manifest(fs: &dyn Fs, dir: &Path, known: Option<&DbVersion>) -> Result<ManifestTail> {
    let mut retries = Retries::new(ATTEMPTS);
    let mut empty = 0;
    loop {
        let opened =
            names::in_dir(fs, dir).and_then(|names| ManifestTail::open(fs, dir, &names, known));
        match opened {
            Ok(Some(manifest)) => return Ok(manifest),
            // A listing is no snapshot of the folder: while it runs, one generation may be deleted,
            // and the next one be made behind its place.
            Ok(None) if empty + 1 < EMPTY_ATTEMPTS => empty += 1,
            Ok(None) => {
                let message = format!("there is no database in {}", dir.display());
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            // A listing may be older than what is read.
            Err(error) => retries.again(error)?,
        }
    }
}
