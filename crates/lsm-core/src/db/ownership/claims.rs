//! The claims in a folder, the lock that follows from the newest one, and the end of its promotion.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names;
use crate::types::Epoch;
use crate::version::{CLAIM_BYTES, Fork, has_begun};

/// The error of an open for which the time is wrong.
pub(in crate::db) fn locked(dir: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Locked, format!("the database in {} {why}", dir.display()))
}

/// The lock that writers hold if `claim` is the newest claim.
pub(in crate::db) fn lock_path(dir: &Path, claim: Option<Epoch>) -> PathBuf {
    dir.join(claim.map_or_else(|| names::LOCK.to_owned(), names::claim))
}

/// The epochs that are claimed in `dir`, in order.
///
/// # Errors
/// Those of the file system.
pub(in crate::db) fn claims(fs: &dyn Fs, dir: &Path) -> Result<Vec<Epoch>> {
    // A claim gets its name with its whole content, so a file of another length is none, and no process
    // holds its lock. One of the right length that does not verify may be a damaged claim.
    let files = fs.list(dir, names::CLAIM_PREFIX)?;
    let files = files.iter().filter(|file| file.len == CLAIM_BYTES as u64);
    let mut claims: Vec<_> = files.filter_map(|file| names::epoch_of_claim(&file.name)).collect();
    claims.sort_unstable();
    Ok(claims)
}

/// The newest claim.
///
/// # Errors
/// Those of the file system.
pub(crate) fn newest_claim(fs: &dyn Fs, dir: &Path) -> Result<Option<Epoch>> {
    Ok(claims(fs, dir)?.last().copied())
}

/// Returns `true` if the promotion with this claim has ended: its fork counts, and the epoch after that
/// has begun.
///
/// # Errors
/// Those of the file system; corruption of the fork.
pub(in crate::db) fn is_done(fs: &dyn Fs, dir: &Path, claim: Epoch) -> Result<bool> {
    let Some(begins) = Fork::begins(fs, dir, claim)? else { return Ok(false) };
    against_changes(|| has_begun(fs, dir, &names::in_dir(fs, dir)?, begins))
}

/// The newest claim, if its promotion has not ended.
///
/// # Errors
/// As [`is_done`].
pub(crate) fn pending_claim(fs: &dyn Fs, dir: &Path) -> Result<Option<Epoch>> {
    match newest_claim(fs, dir)? {
        Some(claim) if !is_done(fs, dir, claim)? => Ok(Some(claim)),
        _ => Ok(None),
    }
}

/// Returns `true` if a lock cannot be taken because its file is missing or belongs to another user.
pub(in crate::db) fn is_absent(error: &Error) -> bool {
    let kind = error.io_source().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied))
}

/// Attempts while another process changes the files.
pub(in crate::db) const ATTEMPTS: usize = 16;

/// Repeats the look while the folder changes: a listing may be older than the files that are read.
pub(in crate::db) fn against_changes<T>(look: impl Fn() -> Result<T>) -> Result<T> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match look() {
            Err(error) if attempt < ATTEMPTS && (error.is_missing() || error.is_corruption()) => {}
            seen => return seen,
        }
    }
}
