//! A new key for files that exist: their data keys are wrapped again, their data stays.
//!
//! The places of a header are written one after the other, the one that opens the file last, with a sync between them.
//! So each moment has a place that is whole, and a process that opens the file meanwhile reads either. Processes that
//! have the file open have its data key already.
//!
//! Invariant: a place is written over only while the other one is known to open the file, durably.

use std::path::Path;

use storage::fs::{AppendMode, File};
use storage::{Error, ErrorKind, Result};

use crate::EncryptedFs;
use crate::header::{self, HEADER_BYTES, PLACE_BYTES, ReadHeader, SealedPlace};
use crate::keys::{EncryptionKey, KeyId};

/// The keys of a file, see [`EncryptedFs::keys_of`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKeys {
    /// Nothing was written yet.
    Empty,
    /// The file is not encrypted, or its header is damaged.
    None,
    /// Its data key is wrapped by this key.
    One(KeyId),
    /// A change of the key was interrupted: either key opens the file.
    Two(KeyId, KeyId),
}

/// The result of [`EncryptedFs::rewrap_dir`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RewrapSummary {
    /// Files that belong to the current key now, and did not before.
    pub rewrapped: usize,
    /// Files that belonged to it before.
    pub unchanged: usize,
    /// Files that are not encrypted, or that have no content.
    pub others: usize,
}

impl EncryptedFs {
    /// Returns the identifiers of the keys that open the file `path`. No key is needed.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn keys_of(&self, path: &Path) -> Result<FileKeys> {
        let front = front_of(&*self.inner().open_read(path)?)?;
        if front.iter().all(|byte| *byte == 0) {
            return Ok(FileKeys::Empty);
        }
        let mut ids = front.chunks(PLACE_BYTES).filter_map(SealedPlace::read).map(|place| place.id);
        Ok(match (ids.next(), ids.next()) {
            (Some(one), Some(other)) if one != other => FileKeys::Two(one, other),
            (Some(one), _) => FileKeys::One(one),
            (None, _) => FileKeys::None,
        })
    }

    /// Wraps the data key of the file `path` by the current key. Returns `false`, and changes nothing, if it belongs to
    /// that key alone already, or if nothing was written yet. Other names of the same file, such as those of a
    /// checkpoint, change with it. The database may be open, here and in other processes.
    ///
    /// # Errors
    /// Those of the keys, as for an open of the file; those of the file system. Afterwards at least one of the keys opens
    /// the file; call it again.
    ///
    /// # Durability
    /// The file needs the new key alone once this returns.
    ///
    /// # Cost
    /// Two writes of 128 bytes, and two syncs.
    pub fn rewrap(&self, path: &Path) -> Result<bool> {
        let file = self.inner().open_append(path, AppendMode::Existing)?;
        let front = front_of(&*file)?;
        let data_key = match header::open(&front, &**self.keys(), path)? {
            ReadHeader::DataKey(data_key) => data_key,
            ReadHeader::Nothing => return Ok(false),
            ReadHeader::Damaged => {
                return Err(Error::corruption(
                    path,
                    0,
                    "the header of an encrypted file is damaged",
                ));
            }
        };
        let (id, key) = header::current_key(&**self.keys())?;
        // A crash may have cut the second place off.
        let places =
            [&front[..PLACE_BYTES.min(front.len())], front.get(PLACE_BYTES..).unwrap_or_default()];
        let opens = places.map(|place| opens(place, &id, &key));
        if opens == [true, true] {
            return Ok(false);
        }
        let place = header::seal(&id, &key, &data_key)?;
        // The place that is overwritten first is the second one, unless that is the only one that opens the file.
        let first_is_whole = self.is_whole(places[0], path)?;
        let order = if first_is_whole { [1, 0] } else { [0, 1] };
        for number in order {
            if !opens[number] {
                file.overwrite((number * PLACE_BYTES) as u64, &place)?;
                // Durability: before the other place, which may be the only one with the old key.
                file.sync()?;
            }
        }
        Ok(true)
    }

    /// Returns `true` if a place opens the file by a key that is known.
    fn is_whole(&self, place: &[u8], path: &Path) -> Result<bool> {
        match header::open(place, &**self.keys(), path) {
            Ok(ReadHeader::DataKey(_)) => Ok(true),
            Ok(_) => Ok(false),
            Err(error) if error.kind() == ErrorKind::InvalidArgument => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Calls [`EncryptedFs::rewrap`] for each file in the folder `dir`, but not in folders below it. Files that are
    /// deleted meanwhile are left out. Before the old key is given up, every process that writes into the folder must
    /// have the new one as its current key.
    ///
    /// # Errors
    /// The first one of a file; the others are rewrapped all the same.
    pub fn rewrap_dir(&self, dir: &Path) -> Result<RewrapSummary> {
        let mut summary = RewrapSummary::default();
        let mut failed = None;
        for entry in self.inner().list(dir, "")? {
            let path = dir.join(entry.name);
            match self.rewrap_encrypted(&path) {
                Ok(Some(true)) => summary.rewrapped += 1,
                Ok(Some(false)) => summary.unchanged += 1,
                Ok(None) => summary.others += 1,
                Err(error) if error.is_missing() => {}
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(summary), Err)
    }

    /// As [`EncryptedFs::rewrap`]; `None` for a file that is not encrypted or not begun.
    fn rewrap_encrypted(&self, path: &Path) -> Result<Option<bool>> {
        match self.keys_of(path)? {
            FileKeys::Empty | FileKeys::None => Ok(None),
            FileKeys::One(_) | FileKeys::Two(..) => self.rewrap(path).map(Some),
        }
    }
}

/// Returns `true` if this place belongs to the key.
fn opens(place: &[u8], id: &KeyId, key: &EncryptionKey) -> bool {
    SealedPlace::read(place).is_some_and(|place| place.id == *id && place.open(key).is_some())
}

fn front_of(file: &dyn File) -> Result<Vec<u8>> {
    let mut front = vec![0; HEADER_BYTES];
    let got = file.read_at(0, &mut front)?;
    front.truncate(got);
    Ok(front)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use storage::fs::{CrashOutcome, FaultFs, Fs, FsOp, MemFs};

    use super::*;
    use crate::KeyRing;

    const FILE: &str = "/db/0000000000000001-00000001.sst";

    fn id(text: &str) -> KeyId {
        KeyId::new(text).unwrap()
    }

    fn ring() -> KeyRing {
        KeyRing::new(id("old"), EncryptionKey::new([1; 32]))
    }

    /// A file by the old key, and a ring in which a new one is current.
    fn file_and_ring() -> (MemFs, KeyRing) {
        let mem = MemFs::new();
        mem.create_dir(Path::new("/db")).unwrap();
        let keys = ring();
        let fs = EncryptedFs::new(Arc::new(mem.clone()), Arc::new(keys.clone()));
        fs.put_if_absent(Path::new(FILE), b"content").unwrap();
        keys.rotate_to(id("new"), EncryptionKey::new([2; 32]));
        (mem, keys)
    }

    fn reads(mem: &MemFs, keys: &KeyRing) -> bool {
        let fs = EncryptedFs::new(Arc::new(mem.clone()), Arc::new(keys.clone()));
        let mut buf = [0; 20];
        let read = fs.open_read(Path::new(FILE)).and_then(|file| file.read_at(0, &mut buf));
        read.is_ok_and(|got| buf[..got] == *b"content")
    }

    #[test]
    fn a_rewrapped_file_needs_the_new_key_alone() {
        let (mem, keys) = file_and_ring();
        let fs = EncryptedFs::new(Arc::new(mem.clone()), Arc::new(keys.clone()));
        assert_eq!(fs.keys_of(Path::new(FILE)).unwrap(), FileKeys::One(id("old")));
        let open = fs.open_append(Path::new(FILE), AppendMode::Existing).unwrap();
        drop(mem.try_lock(Path::new("/db/LOCK")).unwrap());
        let plain = Path::new("/db/notes");
        mem.put_if_absent(plain, b"of the user").unwrap();
        let summary = fs.rewrap_dir(Path::new("/db")).unwrap();
        assert_eq!((summary.rewrapped, summary.unchanged, summary.others), (1, 0, 2));
        assert_eq!(fs.keys_of(Path::new(FILE)).unwrap(), FileKeys::One(id("new")));
        assert_eq!(fs.keys_of(plain).unwrap(), FileKeys::None);
        assert!(keys.remove(&id("old")) && reads(&mem, &keys) && !reads(&mem, &ring()));
        assert_eq!(fs.rewrap_dir(Path::new("/db")).unwrap().unchanged, 1);
        assert_eq!(mem.read_raw(plain).unwrap(), b"of the user");
        // Who has the file open goes on with its data key.
        assert_eq!(open.len().unwrap(), 7);
        open.append(b" and more").unwrap();
        assert!(!reads(&mem, &keys), "it is longer now");
    }

    #[test]
    fn a_crash_at_any_operation_of_a_rewrap_leaves_a_file_that_opens() {
        let (mem, keys) = file_and_ring();
        let faults = FaultFs::over_mem(mem.clone());
        let images = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let taken = images.clone();
        let cut = mem.clone();
        faults.set_observer(Arc::new(move |op: &FsOp| {
            if op.mutates() {
                for (number, outcome) in CrashOutcome::ALL.into_iter().enumerate() {
                    let mut next = number as u64 + op.index;
                    let image = cut.crash_clone(outcome, &mut || {
                        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        next >> 7
                    });
                    taken.lock().push(image);
                }
            }
        }));
        let fs = EncryptedFs::new(Arc::new(faults.clone()), Arc::new(keys.clone()));
        assert!(fs.rewrap(Path::new(FILE)).unwrap());
        faults.clear_observer();
        let images = std::mem::take(&mut *images.lock());
        assert!(images.len() >= 4 * CrashOutcome::ALL.len(), "{}", images.len());
        for image in images {
            assert!(reads(&image, &keys));
            let fs = EncryptedFs::new(Arc::new(image.clone()), Arc::new(keys.clone()));
            fs.rewrap(Path::new(FILE)).unwrap();
            assert_eq!(fs.keys_of(Path::new(FILE)).unwrap(), FileKeys::One(id("new")));
            let new = KeyRing::new(id("new"), EncryptionKey::new([2; 32]));
            assert!(reads(&image, &new));
        }
    }

    /// The place that opens the file is written last, wherever it is.
    #[test]
    fn a_damaged_place_is_made_whole_before_the_other_is_written() {
        for damaged in [10, PLACE_BYTES as u64 + 10] {
            let (mem, keys) = file_and_ring();
            mem.corrupt(Path::new(FILE), damaged, 1).unwrap();
            let faults = FaultFs::over_mem(mem.clone());
            let first = Arc::new(parking_lot::Mutex::new(None));
            let seen = first.clone();
            let at = mem.clone();
            faults.set_observer(Arc::new(move |op: &FsOp| {
                if op.kind == storage::fs::OpKind::Sync {
                    seen.lock().get_or_insert(reads(&at, &ring()));
                }
            }));
            let fs = EncryptedFs::new(Arc::new(faults.clone()), Arc::new(keys.clone()));
            assert!(fs.rewrap(Path::new(FILE)).unwrap());
            faults.clear_observer();
            assert_eq!(*first.lock(), Some(true), "{damaged}");
            assert_eq!(fs.keys_of(Path::new(FILE)).unwrap(), FileKeys::One(id("new")));
        }
    }

    #[test]
    fn without_the_old_key_nothing_is_changed() {
        let (mem, _) = file_and_ring();
        let before = mem.read_raw(Path::new(FILE)).unwrap();
        let new = KeyRing::new(id("new"), EncryptionKey::new([2; 32]));
        let fs = EncryptedFs::new(Arc::new(mem.clone()), Arc::new(new));
        let said = fs.rewrap_dir(Path::new("/db")).unwrap_err().to_string();
        assert!(said.contains("with the key old, which is not given"), "{said}");
        assert_eq!(mem.read_raw(Path::new(FILE)).unwrap(), before);
    }
}
