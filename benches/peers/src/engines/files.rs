//! A file for each value: a program without an engine.
//!
//! The key in hexadecimal digits is the name of the file, in one of [`FOLDERS`] folders that a hash
//! of the key chooses. A put writes a temporary file and renames it, so that a reader sees the old
//! value or the new one; if it must be on the device, the file is synced before the rename and its
//! folder after it. Nothing of [`Settings`] applies, and there is no checksum.
//!
//! There is no order and no batch: a batch is put one by one; a seek and a scan list and sort all
//! names. `run.sh` leaves out the sequences that seek or scan.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use testkit::bench::{Engine, ScanDirection, Ack};

use super::{Fault, Peer, bytes_of_hex};
use crate::settings::Settings;

/// A million files are 4,000 in each.
const FOLDERS: u64 = 256;

/// The folder of the folders.
#[derive(Clone, Debug)]
pub struct Files {
    folder: Arc<PathBuf>,
    /// Number of the next temporary file.
    temporary: Arc<AtomicU64>,
}

/// The 64 bits of FNV-1a.
fn hash(key: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    key.iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

fn name_of(key: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut name = String::with_capacity(key.len() * 2);
    for byte in key {
        name.push(char::from(DIGITS[usize::from(byte >> 4)]));
        name.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    name
}

/// The result, or `None` if there is no such file.
fn if_there<T>(result: std::io::Result<T>) -> Result<Option<T>, Fault> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Files {
    fn folder_number(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:02x}"))
    }

    fn folder_of(&self, key: &[u8]) -> PathBuf {
        self.folder_number(hash(key) % FOLDERS)
    }

    fn path_of(&self, key: &[u8]) -> PathBuf {
        self.folder_of(key).join(name_of(key))
    }

    /// All keys in order.
    fn keys(&self) -> Result<Vec<Vec<u8>>, Fault> {
        let mut keys = Vec::new();
        for number in 0..FOLDERS {
            for name in fs::read_dir(self.folder_number(number))? {
                // The name of a temporary file is no key.
                keys.extend(bytes_of_hex(&name?.file_name().to_string_lossy()));
            }
        }
        keys.sort();
        Ok(keys)
    }
}

impl Engine for Files {
    type Error = Fault;

    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Fault> {
        let folder = self.folder_of(key);
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!("new-{number}"));
        let mut file = File::create(&temporary)?;
        file.write_all(value)?;
        if when == Ack::Sync {
            file.sync_all()?;
        }
        drop(file);
        fs::rename(&temporary, folder.join(name_of(key)))?;
        if when == Ack::Sync {
            File::open(&folder)?.sync_all()?;
        }
        Ok(())
    }

    fn delete(&self, key: &[u8], when: Ack) -> Result<(), Fault> {
        if_there(fs::remove_file(self.path_of(key)))?;
        if when == Ack::Sync {
            File::open(self.folder_of(key))?.sync_all()?;
        }
        Ok(())
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], when: Ack) -> Result<(), Fault> {
        for (key, value) in entries {
            self.put(key, value, when)?;
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>, Fault> {
        // `Engine` requires the value to be in memory.
        Ok(if_there(fs::read(self.path_of(key)))?.map(|value| value.len()))
    }

    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Fault> {
        let keys = self.keys()?;
        let first = keys.partition_point(|other| other.as_slice() < key);
        for key in keys[first..].iter().take(usize::try_from(entries)?) {
            visit(key, &fs::read(self.path_of(key))?);
        }
        Ok(())
    }

    fn scan(&self, direction: ScanDirection, mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Fault> {
        let mut keys = self.keys()?;
        if direction == ScanDirection::Down {
            keys.reverse();
        }
        for key in keys {
            if !visit(&key, &fs::read(self.path_of(&key))?) {
                break;
            }
        }
        Ok(())
    }

    /// Without the values, which the caller does not need.
    fn count(&self) -> Result<u64, Fault> {
        Ok(self.keys()?.len() as u64)
    }

    /// A program cannot ask a file system to flush or to compact.
    fn settle(&self) -> Result<(), Fault> {
        Ok(())
    }
}

impl Peer for Files {
    fn open(folder: &Path, _settings: &Settings) -> Result<Files, Fault> {
        let temporary = Arc::new(AtomicU64::new(0));
        let files = Files { folder: Arc::new(folder.to_owned()), temporary };
        for number in 0..FOLDERS {
            fs::create_dir_all(files.folder_number(number))?;
        }
        Ok(files)
    }

    fn read_into(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Fault> {
        let Some(mut file) = if_there(File::open(self.path_of(key)))? else { return Ok(None) };
        let len = usize::try_from(file.metadata()?.len())?;
        let buf = buf.get_mut(..len).ok_or("the buffer is too small")?;
        file.read_exact(buf)?;
        Ok(Some(len))
    }

    fn close(self) -> Result<(), Fault> {
        Ok(())
    }

    /// The version of the kernel, whose file systems do the work.
    fn version() -> String {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let number = release.trim().split('-').next().unwrap_or_default();
        if number.is_empty() { "0".to_owned() } else { number.to_owned() }
    }
}
