//! Leases: which files a secondary still reads.
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
//!     16    8 checksum         XXH3-64 of the 16 bytes before
//!     24    - records, the last whole one counts:
//!      0    8 edit             files that this edit or an earlier one dropped are not needed
//!      8    8 checksum         XXH3-64 of the edit, seeded with the record's offset
//! ```
//!
//! Invariants:
//! 1. A lease is there, and holds everything, before its secondary reads the manifest. A deletion
//!    that was decided without it is of a file that this manifest does not name any more.
//! 2. Edits in a lease only grow, so a reader of it that comes late holds too much, never too little.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{checksum64, checksum64_seeded, put_u64};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{AppendMode, File, Fs, LockGuard, names};

const MAGIC: [u8; 8] = *b"SILTREAD";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 16;
/// A lease of this length is replaced by a new one.
const LEASE_BYTES_MAX: u64 = 64 << 10;
/// Leases that a primary may have swept away while they were made.
const ATTEMPTS: usize = 8;

fn header() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&std::process::id().to_le_bytes());
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

/// The edit that the bytes of a lease name; 0, which holds everything, if they name none.
fn edit_in(bytes: &[u8]) -> u64 {
    let mut edit = 0;
    let mut offset = HEADER_BYTES;
    while let Some(found) = bytes.get(offset..offset + RECORD_BYTES) {
        let (number, sum) = found.split_at(8);
        if checksum64_seeded(number, offset as u64).to_le_bytes() != *sum {
            break;
        }
        edit = u64::from_le_bytes(number.try_into().expect("it is 8 bytes long"));
        offset += RECORD_BYTES;
    }
    edit
}

/// A secondary's lease. Dropped, it is let go.
pub struct Lease {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    random: Box<dyn FnMut() -> u64 + Send>,
    held: Held,
    edit: u64,
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
        Ok(Lease { fs, dir: dir.to_owned(), random, held, edit: 0 })
    }

    /// Lets go of what `edit` and earlier ones dropped.
    ///
    /// # Errors
    /// Those of the file system.
    ///
    /// # Cost
    /// One append if `edit` is news.
    pub fn advance(&mut self, edit: u64) -> Result<()> {
        if edit <= self.edit {
            return Ok(());
        }
        if self.held.bytes >= LEASE_BYTES_MAX {
            // The old one is let go behind the new one, which holds no less.
            let mut held = Held::take(&*self.fs, &self.dir, &mut *self.random)?;
            held.append(self.edit)?;
            let old = std::mem::replace(&mut self.held, held);
            old.let_go(&*self.fs)?;
        }
        self.held.append(edit)?;
        self.edit = edit;
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The lock is let go all the same; the primary then deletes the file.
        let _ = self.fs.delete(&self.held.path);
    }
}

fn is_missing(error: &Error) -> bool {
    error.io_source().is_some_and(|e| e.kind() == std::io::ErrorKind::NotFound)
}

impl Held {
    fn take(fs: &dyn Fs, dir: &Path, random: &mut dyn FnMut() -> u64) -> Result<Held> {
        for _ in 0..ATTEMPTS {
            let path = dir.join(names::lease(random()));
            let Some(lock) = fs.try_lock(&path)? else { continue };
            // Between its making and its locking it looked like a dead secondary's, and may have
            // been deleted. Nobody makes it again: whoever looks at leases opens what is there.
            let file = match fs.open_append(&path, AppendMode::Existing) {
                Err(error) if is_missing(&error) => continue,
                opened => opened?,
            };
            file.append(&header())?;
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

    fn let_go(self, fs: &dyn Fs) -> Result<()> {
        fs.delete(&self.path)
    }
}

/// The edits of the leases whose secondaries live. Leases of dead ones are deleted.
///
/// # Errors
/// Those of the file system: then nothing is known, and everything is held.
pub fn held_leases(fs: &dyn Fs, dir: &Path) -> Result<Vec<u64>> {
    let mut edits = Vec::new();
    for name in fs.list_names(dir, names::LEASE_PREFIX)? {
        if !names::is_lease(&name) {
            continue;
        }
        let path = dir.join(name);
        match fs.try_lock_shared(&path) {
            Ok(None) => {}
            Ok(Some(lock)) => {
                // Under the lock: a secondary that takes it afterwards finds the name gone.
                fs.delete(&path)?;
                drop(lock);
                continue;
            }
            Err(error) if is_missing(&error) => continue,
            Err(error) => return Err(error),
        }
        match fs.open_read(&path) {
            Ok(file) => edits.push(edit_in(&read_lease(&*file)?)),
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(edits)
}

/// The bytes of a lease. One that is longer than any lease holds everything.
fn read_lease(file: &dyn File) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 2 * LEASE_BYTES_MAX as usize];
    let got = file.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::MemFs;

    fn folder() -> Arc<dyn Fs> {
        let fs = MemFs::new();
        fs.create_dir("/db".as_ref()).unwrap();
        Arc::new(fs)
    }

    fn take(fs: &Arc<dyn Fs>, from: u64) -> Lease {
        let mut id = from;
        let random = Box::new(move || {
            id += 1;
            id
        });
        Lease::take(fs.clone(), "/db".as_ref(), random).unwrap()
    }

    fn held(fs: &Arc<dyn Fs>) -> Vec<u64> {
        held_leases(&**fs, "/db".as_ref()).unwrap()
    }

    #[test]
    fn a_lease_holds_everything_until_it_names_an_edit() {
        let fs = folder();
        let mut lease = take(&fs, 0);
        assert_eq!(held(&fs), [0]);
        lease.advance(7).unwrap();
        lease.advance(5).unwrap();
        assert_eq!(held(&fs), [7], "edits only grow");
        let other = take(&fs, 100);
        assert_eq!(held(&fs), [7, 0]);
        drop((lease, other));
        assert!(held(&fs).is_empty() && fs.list("/db".as_ref(), "").unwrap().is_empty());
    }

    #[test]
    fn a_long_lease_goes_on_under_another_name() {
        let fs = folder();
        let mut lease = take(&fs, 0);
        for edit in 1..10_000 {
            lease.advance(edit).unwrap();
        }
        assert_eq!(held(&fs), [9_999]);
        let files = fs.list("/db".as_ref(), "").unwrap();
        assert!(files.len() == 1 && files[0].len <= LEASE_BYTES_MAX + 16, "{files:?}");
    }

    #[test]
    fn a_dead_secondary_holds_nothing_and_its_lease_goes() {
        let fs = folder();
        let mut lease = take(&fs, 0);
        lease.advance(3).unwrap();
        // As a process that is killed: the file stays, the lock does not.
        let path = lease.held.path.clone();
        let bytes = read_lease(&*fs.open_read(&path).unwrap()).unwrap();
        drop(lease);
        fs.open_append(&path, AppendMode::IfAbsent).unwrap().append(&bytes).unwrap();
        assert!(held(&fs).is_empty() && fs.list("/db".as_ref(), "").unwrap().is_empty());
    }

    #[test]
    fn whatever_the_bytes_a_lease_never_holds_less_than_its_last_whole_record() {
        let mut bytes = header();
        for (number, edit) in [4_u64, 9, 30].into_iter().enumerate() {
            bytes.extend(record(edit, (HEADER_BYTES + number * RECORD_BYTES) as u64));
        }
        let mut last = 0;
        for len in 0..=bytes.len() {
            let edit = edit_in(&bytes[..len]);
            assert!(edit >= last && [0, 4, 9, 30].contains(&edit), "{edit} at {len}");
            last = edit;
        }
        assert_eq!(last, 30);
        for at in HEADER_BYTES..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(edit_in(&flipped) < 30, "byte {at}");
        }
    }
}
