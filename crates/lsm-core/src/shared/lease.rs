//! Leases: the files that a secondary still reads.
//!
//! A secondary holds a lock on its lease as long as it lives, and appends to it the number of the
//! oldest manifest edit whose version it reads. The primary deletes a file that an edit dropped only
//! when every lease names that edit or a later one. The system releases the lock of a process that
//! dies, so its lease holds nothing back from then on. The bytes:
//!
//! ```text
//! offset size name
//!      0    8 magic            "SILTREAD"
//!      8    4 format version   1
//!     12    4 process          its id, for people
//!     16    8 machine run      see `Fs::machine_run`; 0 if unknown. In the same run, the lock
//!                              shows whether the secondary lives
//!     24    8 checksum         XXH3-64 of the 24 bytes before
//!     32    - records, the last whole one counts:
//!      0    8 edit             files that this edit or an earlier one dropped are not needed
//!      8    8 checksum         XXH3-64 of the edit, seeded with the record's offset
//! ```
//!
//! Invariants:
//! 1. A lease exists, and holds everything, before its secondary reads the manifest. A deletion
//!    that was decided without it is of a file that this manifest does not name any more.
//! 2. Edits in a lease only grow, so a late reader of it holds too much, never too little.
//! 3. A lease is revoked by deleting its file; then its secondary's files may be deleted. The
//!    secondary finds that out at its next read, and takes another one before it reads the manifest
//!    again.
//!
//! A secondary on another machine appends its edit again every [`BEAT`]: a lease of another machine
//! that does not grow for [`TIME_TO_LIVE`] by the primary's own clock is revoked.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::codec::{Reader, checksum64, checksum64_seeded, put_u64};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{AppendMode, DirEntry, File, Fs, LockGuard, names};
use crate::machine;

/// The first bytes of a lease.
pub const MAGIC: [u8; 8] = *b"SILTREAD";
const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 32;
pub(super) const RECORD_BYTES: usize = 16;
/// A lease of this length is replaced by a new one.
const LEASE_BYTES_MAX: u64 = 64 << 10;
/// Attempts, if the primary deletes the lease while it is made.
const ATTEMPTS: usize = 8;
/// A lease is appended to at least this often, while its secondary catches up.
const BEAT: Duration = Duration::from_secs(15);
/// The time after which a lease of another machine that does not grow is revoked.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(60);

fn header(process: u32, machine_run: Option<u64>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&process.to_le_bytes());
    put_u64(&mut bytes, machine_run.unwrap_or_default());
    let sum = checksum64(&bytes);
    put_u64(&mut bytes, sum);
    bytes
}

fn record(edit: u64, offset: u64) -> Vec<u8> {
    let mut bytes = edit.to_le_bytes().to_vec();
    let sum = checksum64_seeded(&bytes, offset);
    put_u64(&mut bytes, sum);
    bytes
}

/// The maker of a lease.
#[derive(Clone, Copy)]
struct LeaseMaker {
    process: u32,
    machine_run: u64,
}

/// The maker of the lease with these bytes; `None` if they do not name it.
fn owner_in(bytes: &[u8]) -> Option<LeaseMaker> {
    let mut reader = Reader::new(bytes.get(..HEADER_BYTES)?);
    let magic = reader.take(MAGIC.len()).ok()?;
    let version = reader.u32().ok()?;
    let process = reader.u32().ok()?;
    let machine_run = reader.u64().ok()?;
    // A lease of a newer version names no maker here: it counts as local, and its lock shows
    // whether its secondary lives.
    let is_ours = magic == MAGIC && version == VERSION;
    let is_whole = reader.u64().ok()? == checksum64(&bytes[..HEADER_BYTES - 8]);
    (is_ours && is_whole).then_some(LeaseMaker { process, machine_run })
}

/// The edit that the bytes of a lease name; 0, which holds everything, if they name none.
pub(super) fn edit_in(bytes: &[u8]) -> u64 {
    let mut edit = 0;
    let mut offset = HEADER_BYTES;
    while let Some(found) = bytes.get(offset..offset + RECORD_BYTES) {
        let (number, sum) = found.split_at(8);
        // A torn record counts as not written: the lease then holds more than it must.
        if checksum64_seeded(number, offset as u64).to_le_bytes() != *sum {
            break;
        }
        edit = u64::from_le_bytes(number.try_into().expect("it is 8 bytes long"));
        offset += RECORD_BYTES;
    }
    edit
}

/// A secondary's lease. Dropping it releases it.
pub struct Lease {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    random: Box<dyn FnMut() -> u64 + Send>,
    held: Held,
    edit: u64,
    appended_at: Duration,
}

struct Held {
    path: PathBuf,
    file: Arc<dyn File>,
    bytes: u64,
    _lock: Box<dyn LockGuard>,
}

impl Lease {
    /// Takes a lease that holds every file, under a name of `random` numbers.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn take(
        fs: Arc<dyn Fs>,
        dir: &Path,
        mut random: Box<dyn FnMut() -> u64 + Send>,
    ) -> Result<Lease> {
        let held = Held::take(&*fs, dir, &mut *random)?;
        Ok(Lease { fs, dir: dir.to_owned(), random, held, edit: 0, appended_at: Duration::ZERO })
    }

    /// As [`Lease::take`]; `None` if the medium cannot be written or is full. Then files that are
    /// read may be deleted, as for a caller that takes no lease.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn take_if_writable(
        fs: &Arc<dyn Fs>,
        dir: &Path,
        random: Box<dyn FnMut() -> u64 + Send>,
    ) -> Result<Option<Lease>> {
        match Lease::take(fs.clone(), dir, random) {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if is_unwritable(&error) || error.kind() == ErrorKind::NoSpace => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The path of its file.
    pub fn path(&self) -> &Path {
        &self.held.path
    }

    /// Releases the files that `edit` and earlier ones dropped. `now` is of any clock that does not
    /// go back.
    ///
    /// # Errors
    /// Those of the file system.
    ///
    /// # Cost
    /// One append if `edit` is new; otherwise one every [`BEAT`].
    pub fn advance(&mut self, edit: u64, now: Duration) -> Result<()> {
        // A primary on another machine cannot test the lock, and sees only whether the file grows.
        let is_beat_due = now.saturating_sub(self.appended_at) >= BEAT;
        if edit <= self.edit && !is_beat_due {
            return Ok(());
        }
        let edit = edit.max(self.edit);
        if self.held.bytes >= LEASE_BYTES_MAX {
            // The old one is released after the new one is taken, which holds no less.
            let mut held = Held::take(&*self.fs, &self.dir, &mut *self.random)?;
            held.append(self.edit)?;
            let old = std::mem::replace(&mut self.held, held);
            old.release(&*self.fs)?;
        }
        self.held.append(edit)?;
        self.edit = edit;
        self.appended_at = now;
        Ok(())
    }

    /// Shows that its holder lives, and releases nothing. `now` is as in [`Lease::advance`].
    ///
    /// # Errors
    /// Those of the file system.
    pub fn beat(&mut self, now: Duration) -> Result<()> {
        self.advance(self.edit, now)
    }

    /// Returns an error if the lease was revoked.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if it was: files that it held may be deleted. Those of the file
    /// system.
    pub fn check(&self) -> Result<()> {
        if self.is_there()? {
            return Ok(());
        }
        let message = "the primary has taken the lease of this secondary away";
        Err(Error::new(ErrorKind::LeaseLost, message))
    }

    /// Returns `true` if the lease was not revoked.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn is_there(&self) -> Result<bool> {
        match self.fs.open_read(&self.held.path) {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes another lease in the place of a revoked one. It holds everything.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn renew(&mut self) -> Result<()> {
        self.held = Held::take(&*self.fs, &self.dir, &mut *self.random)?;
        // It holds everything again, because files of the versions that are read may have been
        // deleted meanwhile.
        self.edit = 0;
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The lock is released all the same; the primary then deletes the file.
        let _ = self.fs.delete(&self.held.path);
    }
}

fn is_unwritable(error: &Error) -> bool {
    let kind = error.io_source().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied))
}

impl Held {
    fn take(fs: &dyn Fs, dir: &Path, random: &mut dyn FnMut() -> u64) -> Result<Held> {
        for _ in 0..ATTEMPTS {
            let path = dir.join(names::lease(random()));
            // The lock before the first byte: an unlocked lease is that of a dead secondary and
            // gets deleted.
            let Some(lock) = fs.try_lock(&path)? else { continue };
            // Between its creation and its lock, the file looked like that of a dead secondary, and
            // may have been deleted. It is not created again here: a reader of leases must find the
            // file that is locked.
            let file = match fs.open_append(&path, AppendMode::Existing) {
                Err(error) if error.is_missing() => continue,
                opened => opened?,
            };
            if let Err(error) = file.append(&header(machine::process_id(), fs.machine_run())) {
                // It takes a name, and the primary checks it once a second.
                let _ = fs.delete(&path);
                return Err(error);
            }
            return Ok(Held { path, file, bytes: HEADER_BYTES as u64, _lock: lock });
        }
        let message = "a lease was taken away again and again while it was made";
        Err(Error::new(ErrorKind::LeaseLost, message))
    }

    fn append(&mut self, edit: u64) -> Result<()> {
        self.file.append(&record(edit, self.bytes))?;
        self.bytes += RECORD_BYTES as u64;
        Ok(())
    }

    fn release(self, fs: &dyn Fs) -> Result<()> {
        fs.delete(&self.path)
    }
}

/// A lease whose secondary lives, as far as is known.
#[derive(Clone, Debug)]
pub struct HeldLease {
    /// The name of its file.
    pub name: String,
    /// The process of its secondary; 0 if it is not known yet.
    pub process: u32,
    /// The secondary runs on this machine, so that its lock shows whether it lives.
    pub is_local: bool,
    /// Files that this edit or an earlier one dropped are not needed.
    pub edit: u64,
    /// The length of its file, which grows while the secondary lives.
    pub bytes: u64,
}

/// The leases whose secondaries live. Those of dead ones are deleted; a lease of another machine is
/// known only by its growth.
///
/// # Errors
/// Those of the file system: then nothing is known, and everything is held.
pub fn held_leases(fs: &dyn Fs, dir: &Path) -> Result<Vec<HeldLease>> {
    let mut leases = Vec::new();
    // Files alone: a folder or a link of such a name is no lease, and would hold everything for ever.
    for DirEntry { name, .. } in fs.list(dir, names::LEASE_PREFIX)? {
        if !names::is_lease(&name) {
            continue;
        }
        match held_lease(fs, &dir.join(&name), name) {
            Ok(lease) => leases.extend(lease),
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(leases)
}

fn held_lease(fs: &dyn Fs, path: &Path, name: String) -> Result<Option<HeldLease>> {
    let lock = fs.try_lock_shared(path)?;
    let bytes = read_lease(&*fs.open_read(path)?)?;
    let owner = owner_in(&bytes);
    let is_local = owner.is_none_or(|owner| Some(owner.machine_run) == fs.machine_run());
    if let Some(lock) = lock
        && is_local
    {
        // Under the lock: a secondary that takes it afterwards finds the name gone.
        fs.delete(path)?;
        drop(lock);
        return Ok(None);
    }
    let process = owner.map_or(0, |owner| owner.process);
    let edit = edit_in(&bytes);
    Ok(Some(HeldLease { name, process, is_local, edit, bytes: bytes.len() as u64 }))
}

/// Revokes a lease: its secondary will find that out.
///
/// # Errors
/// Those of the file system.
pub fn take_away(fs: &dyn Fs, dir: &Path, lease: &HeldLease) -> Result<()> {
    fs.delete(&dir.join(&lease.name))
}

/// The bytes of a lease. One that is longer than any lease holds everything.
fn read_lease(file: &dyn File) -> Result<Vec<u8>> {
    // A fixed amount, whatever the length of the file: other programs can write to it.
    let mut bytes = vec![0; 2 * LEASE_BYTES_MAX as usize];
    let got = file.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}

#[cfg(test)]
mod tests;
