//! [`WriterEpoch`]: the right to write a database, and how a process takes it over from one that lives.
//!
//! Called by `open.rs` before anything is read. Without a promotion the right is the lock of the file
//! `LOCK`. A promotion claims the next epoch, and later writers hold the lock of the newest claim: so
//! it does not matter that a fenced primary still holds an older lock.
//!
//! ```text
//! claim   epoch-N by put_if_absent, and its lock
//! room    for the fork and for the beginning of the next epoch, or the old primary is not fenced
//! fence   the old primary settles no further frame and no further edit (`shared/fence.rs`)
//! fork    fork-N by put_if_absent: the manifest's state and the log's end as they were settled
//! begin   recovery of the fork begins an epoch. Its first durable edit ends the promotion
//! ```
//!
//! A claimant may die anywhere. The next open finds its claim, takes the lock, and continues from the fork
//! if that exists. Otherwise it fences again, and finds the same state as the first fence.
//!
//! Invariants:
//! 1. A claim is never withdrawn, and deleted only by the holder of the lock of a newer one: a process
//!    may hold the lock of any other, or be about to take it.
//! 2. A lock counts only if no newer claim was there after it was taken.
//! 3. Nothing is read for a fork before every older lock is free or its holder is fenced.
//! 4. No file of an older epoch is written.

pub(super) mod claims;
mod counts;
mod held;
mod room;
mod write_fence;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use claims::{
    ATTEMPTS, against_changes, claims, is_absent, is_done, lock_path, locked, newest_claim,
    pending_claim,
};
pub(crate) use counts::{CountedPart, counted_part};
pub(super) use held::{Closing, HeldLock, Ownership};
use room::Room;

use super::recovery::{LogFiles, OpenPlan};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names;
use crate::fs::{Fs, LockGuard, OpenFiles};
use crate::shared::{CommitCursorReader, CommitCursorState, OldCommitCursor, Settled};
use crate::types::Epoch;
use crate::version::{DbVersion, Fork, Recovered, check_claim, claim_bytes, recover_through};
use crate::wal::Lsn;

const TAKEN_OVER: &str = "is being taken over by another process";

/// A process's lock.
type Lock = Box<dyn LockGuard>;

/// The right to write, besides its lock.
pub(super) struct WriterEpoch {
    /// The newest claim; `None` if the lock is that of the file `LOCK`.
    claim: Option<Epoch>,
    /// The live primary is to be fenced.
    takes_over: bool,
}

/// The manifest's state, through the edit `through`, while another process may replace generations.
fn recover_live(fs: &dyn Fs, dir: &Path, through: Option<u64>) -> Result<Option<Recovered>> {
    against_changes(|| recover_through(fs, dir, &names::in_dir(fs, dir)?, through))
}

/// Checks that no other layer ships the folder: what this process writes would not be shipped, and the layer's own
/// fence would not hold.
fn check_not_shipped(fs: &dyn Fs, dir: &Path) -> Result<()> {
    if !fs.list_names(dir, "")?.iter().any(|name| names::is_shipped_mark(name)) {
        return Ok(());
    }
    let message = format!(
        "{} is shipped to a bucket, which would not get the writes of this process: open it by Remote::primary once no \
         other process has it, or continue in another folder by Remote::take_over",
        dir.display()
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

impl WriterEpoch {
    /// Takes the right to write the database in `dir`, and its lock. With `takes_over`, even from a living
    /// process, which is not fenced yet.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if another process has it, or is about to; [`ErrorKind::Unsupported`] if the
    /// process that has it cannot be fenced, or if another layer than `fs` ships the folder; those of the file system.
    pub(super) fn take(fs: &dyn Fs, dir: &Path, takes_over: bool) -> Result<(WriterEpoch, Lock)> {
        check_not_shipped(fs, dir)?;
        let before = newest_claim(fs, dir)?;
        let mut claim = before;
        for _ in 0..ATTEMPTS {
            let Some(lock) = fs.try_lock(&lock_path(dir, claim))? else {
                if !takes_over {
                    return Err(locked(dir, "is already open"));
                }
                // One of two claimants wins. The other does not fence the winner.
                if claim != before {
                    return Err(locked(dir, TAKEN_OVER));
                }
                if let Some(taken) = claim_next(fs, dir, claim)? {
                    return Ok(taken);
                }
                claim = newest_claim(fs, dir)?;
                continue;
            };
            // Invariant 2: a promotion may have come in between, and does not fence a process without
            // a lock.
            let newest = newest_claim(fs, dir)?;
            if newest == claim {
                return Ok((WriterEpoch { claim, takes_over }, lock));
            }
            claim = newest;
        }
        Err(locked(dir, "is opened and closed all the time"))
    }

    /// The claim whose lock the process holds.
    pub(super) fn claim(&self) -> Option<Epoch> {
        self.claim
    }

    /// The fork that recovery must begin with; `None` if there is no promotion to finish.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] and [`ErrorKind::Unsupported`] as [`WriterEpoch::take`]; corruption; those of the file
    /// system.
    pub(super) fn fork(&self, files: &Arc<OpenFiles>, dir: &Path) -> Result<Option<Fork>> {
        match self.claim {
            Some(claim) if !is_done(files.fs(), dir, claim)? => {
                self.make_fork(files, dir, claim).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Fences the process that may still write, and makes the fork, unless it exists.
    fn make_fork(&self, files: &Arc<OpenFiles>, dir: &Path, claim: Epoch) -> Result<Fork> {
        let fs = files.fs();
        // It was made after a fence, by the only holder of this lock.
        if let Some(fork) = Fork::read(fs, dir, claim)? {
            return Ok(fork);
        }
        let older = older_lock(fs, dir, claim, |path| Ok(fs.try_lock(path)?.is_some()))?;
        let Some(before) = recover_live(fs, dir, None)? else {
            return Err(Error::corruption(dir, None, "there is a claim, but no manifest"));
        };
        check_claim(fs, dir, before.version.db_id, claim)?;
        let fence = self.fence(files, dir, &older, &before)?;
        let fork = fork_at(files, dir, claim, before.version.epoch, fence.settled)?;
        drop(fence);
        if fs.put_if_absent(&dir.join(names::fork(claim)), &fork.encode()?)? {
            return Ok(fork);
        }
        Fork::read(fs, dir, claim)?
            .ok_or_else(|| Error::corruption(dir.join(names::fork(claim)), None, "it is not there"))
    }

    /// Makes sure that the holder of the lock `older` writes nothing more that counts.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if there is no room for the steps after the fence: then it is not
    /// fenced.
    fn fence<'a>(
        &self,
        files: &'a Arc<OpenFiles>,
        dir: &Path,
        older: &Path,
        before: &Recovered,
    ) -> Result<Fenced<'a>> {
        let fs = files.fs();
        let version = &before.version;
        let cursor = OldCommitCursor::open(fs, dir, version.db_id, version.epoch)?;
        let mut held = fs.try_lock(older)?;
        // A writer holds the lock as long as its cursor: one that lives while its lock is free has lost
        // it.
        if held.is_some() && cursor.as_ref().is_some_and(|cursor| cursor.is_live(fs)) {
            return Err(locked(dir, "is already open"));
        }
        if held.is_none() {
            let cursor = cursor.as_ref().ok_or_else(|| unsupported(dir))?;
            // One that opens has not promised anything by its cursor yet, and one that closed has no
            // promise left.
            let is_settling =
                matches!(cursor.state(), CommitCursorState::Live | CommitCursorState::Superseded);
            if !is_settling || !(self.takes_over || cursor.is_fenced()) {
                return Err(locked(dir, "is already open"));
            }
            // After the fence it is too late.
            let is_first = !cursor.is_fenced();
            let room = is_first.then(|| self.make_room(files, dir, cursor, version.epoch));
            let room = room.transpose()?;
            let settled = cursor.fence();
            // Its process held the older lock when it was fenced, unless it has died meanwhile. Checked
            // after the fence: a process that opened the database in its place would hold that lock too.
            if settled.is_some() && cursor.is_writer_alive(fs) {
                return Ok(Fenced { settled, _room: room });
            }
            held = fs.try_lock(older)?;
        }
        if held.is_none() {
            return Err(locked(dir, "is being opened by another process"));
        }
        // It is dead. The fence of an earlier claimant still holds: it may have refused later frames.
        let settled = cursor.filter(OldCommitCursor::is_fenced).and_then(|cursor| cursor.fence());
        Ok(Fenced { settled, _room: None })
    }

    /// Reserves the space for the steps after the fence of `cursor`, the primary of `epoch`.
    fn make_room<'a>(
        &self,
        files: &'a Arc<OpenFiles>,
        dir: &Path,
        cursor: &OldCommitCursor,
        epoch: Epoch,
    ) -> Result<Room<'a>> {
        let claim = self.claim.unwrap_or_default();
        // The primary continues meanwhile, so the settled place is read again each time.
        let fork = against_changes(|| fork_at(files, dir, claim, epoch, cursor.settled()))?;
        Room::make(files.fs(), dir, &fork)
    }
}

/// The end of a writer.
struct Fenced<'a> {
    /// The end of everything that it had settled; `None` if it died, and was never fenced.
    settled: Option<Settled>,
    /// Kept until the fork is written.
    _room: Option<Room<'a>>,
}

/// The fork of `claim` from the epoch `before`, whose writer had settled `settled` when it was fenced; `None`
/// if it died unfenced.
fn fork_at(
    files: &Arc<OpenFiles>,
    dir: &Path,
    claim: Epoch,
    before: Epoch,
    settled: Option<Settled>,
) -> Result<Fork> {
    let fs = files.fs();
    let recovered = recover_live(fs, dir, settled.map(|settled| settled.edit))?;
    let Some(recovered) = recovered.filter(|it| it.version.epoch == before) else {
        return Err(locked(dir, "is being opened by another process"));
    };
    recovered.check_writable(dir)?;
    let cut = match settled {
        Some(settled) => {
            let plan = OpenPlan::of_version(fs, dir, recovered.version.clone())?;
            Some(plan.place_in_log(&LogFiles { files, dir }, Lsn(settled.end))?)
        }
        None => None,
    };
    let next = Epoch(before.0.saturating_add(1));
    Ok(Fork {
        claim,
        begins: claim.max(next),
        generation: recovered.generation,
        cut,
        has_derived_salts: recovered.has_derived_salts,
        version: recovered.version,
    })
}

/// The fork that a read-only open begins with, under the lock of the newest claim; `None` if there is no
/// unfinished promotion. If its claimant died before the fork existed, the fork that the next open for
/// writing makes.
///
/// # Errors
/// [`ErrorKind::Locked`] while the old primary lives; corruption; those of the file system.
pub(super) fn fork_for_reading(files: &Arc<OpenFiles>, dir: &Path) -> Result<Option<Fork>> {
    let fs = files.fs();
    let Some(claim) = pending_claim(fs, dir)? else { return Ok(None) };
    if let Some(fork) = Fork::read(fs, dir, claim)? {
        return Ok(Some(fork));
    }
    // No process can open the database meanwhile: it would need the lock of the claim.
    let older = older_lock(fs, dir, claim, |path| is_free(fs, path))?;
    if !is_free(fs, &older)? {
        return Err(locked(dir, TAKEN_OVER));
    }
    let Some(before) = recover_live(fs, dir, None)? else {
        return Err(Error::corruption(dir, None, "there is a claim, but no manifest"));
    };
    let version = &before.version;
    check_claim(fs, dir, version.db_id, claim)?;
    let cursor = CommitCursorReader::open(fs, dir, version.db_id, version.epoch)?;
    let settled = cursor.and_then(|cursor| cursor.fenced_at());
    fork_at(files, dir, claim, version.epoch, settled).map(Some)
}

/// The error of a reader that cannot decide yet which part counts.
fn unsure(dir: &Path) -> Error {
    Error::new(ErrorKind::NeedsManifest, locked(dir, TAKEN_OVER).to_string())
}

/// The fork that an open next to a writer begins with; `None` if that has not been fenced.
///
/// # Errors
/// [`ErrorKind::NeedsManifest`] if this machine cannot decide that, or if it changes; corruption; those of the file system.
pub(super) fn fork_with_live_writer(files: &Arc<OpenFiles>, dir: &Path) -> Result<Option<Fork>> {
    let fs = files.fs();
    let Some(claim) = pending_claim(fs, dir)? else { return Ok(None) };
    let Some(before) = recover_live(fs, dir, None)? else { return Err(unsure(dir)) };
    let DbVersion { db_id, epoch, .. } = before.version;
    let cursor = CommitCursorReader::open(fs, dir, db_id, epoch)?;
    let cursor = cursor.as_ref().map(|cursor| (cursor, cursor.state()));
    let listed = fs.list_names(dir, "")?;
    match counted_part(fs, dir, &listed, epoch, cursor)? {
        CountedPart::AsWritten => Ok(None),
        CountedPart::Replaced | CountedPart::Unknown => Err(unsure(dir)),
        CountedPart::Through(settled) => match fork_at(files, dir, claim, epoch, Some(settled)) {
            Err(error) if error.kind() == ErrorKind::Locked => Err(unsure(dir)),
            fork => fork.map(Some),
        },
    }
}

/// Returns `true` if no process holds the lock `path`.
fn is_free(fs: &dyn Fs, path: &Path) -> Result<bool> {
    match fs.try_lock_shared(path) {
        Err(error) if is_absent(&error) => Ok(true),
        taken => Ok(taken?.is_some()),
    }
}

fn unsupported(dir: &Path) -> Error {
    let message = format!(
        "the process that writes the database in {} cannot be fenced: it has no commit cursor on this \
         machine",
        dir.display()
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// The lock of the last epoch before `claim` that began. Locks of claimants in between must be
/// free.
fn older_lock(
    fs: &dyn Fs,
    dir: &Path,
    claim: Epoch,
    is_free: impl Fn(&Path) -> Result<bool>,
) -> Result<PathBuf> {
    for older in claims(fs, dir)?.into_iter().rev().filter(|older| *older < claim) {
        if is_done(fs, dir, older)? {
            return Ok(lock_path(dir, Some(older)));
        }
        // It fails once it finds the newer claim, and may not have looked yet.
        if !is_free(&lock_path(dir, Some(older)))? {
            return Err(locked(dir, TAKEN_OVER));
        }
    }
    Ok(lock_path(dir, None))
}

/// Claims the next epoch from the process that holds the lock of `held`; `None` if that has just ended.
fn claim_next(fs: &dyn Fs, dir: &Path, held: Option<Epoch>) -> Result<Option<(WriterEpoch, Lock)>> {
    if let Some(held) = held
        && !is_done(fs, dir, held)?
    {
        return Err(locked(dir, TAKEN_OVER));
    }
    let Some(recovered) = recover_live(fs, dir, None)? else {
        return Err(locked(dir, "is being made by another process"));
    };
    recovered.check_writable(dir)?;
    let version = &recovered.version;
    // Checked before the claim, so that a primary which cannot be fenced keeps the right to write.
    let cursor = OldCommitCursor::open(fs, dir, version.db_id, version.epoch)?;
    let Some(cursor) = cursor else {
        let is_same = newest_claim(fs, dir)? == held;
        return Err(if is_same { unsupported(dir) } else { locked(dir, TAKEN_OVER) });
    };
    match cursor.state() {
        CommitCursorState::Live if cursor.is_live(fs) => {}
        CommitCursorState::Opening => {
            return Err(locked(dir, "is being opened by another process"));
        }
        CommitCursorState::Live | CommitCursorState::Closed | CommitCursorState::Superseded => {
            return Ok(None);
        }
    }
    let newest = version.epoch.max(held.unwrap_or_default());
    let Some(claim) = newest.0.checked_add(1).map(Epoch) else {
        return Err(Error::limit("epoch", newest.0.into(), u32::MAX.into()));
    };
    let path = lock_path(dir, Some(claim));
    let is_made = fs.put_if_absent(&path, &claim_bytes(version.db_id, claim))?;
    let lock = if is_made { fs.try_lock(&path)? } else { None };
    let is_newest = newest_claim(fs, dir)? == Some(claim);
    match lock {
        Some(lock) if is_newest => {
            Ok(Some((WriterEpoch { claim: Some(claim), takes_over: true }, lock)))
        }
        _ => Err(locked(dir, TAKEN_OVER)),
    }
}
