//! [`StoredRecord`]: a file in the folder of a primary that names journal objects which were stored.
//!
//! The folder of a killed process is an extension of the journal, also of a journal whose last objects are lost: then
//! the next open ships them again. It is none once a local file was deleted after such an object. So the number is
//! noted before that, and at the end of the primary: an open that finds a shorter journal names the object that is lost.
//!
//! ```text
//! remote-stored-{claimant, 32 hex digits}
//! records of 16 bytes, the last one that is whole counts
//! offset size name
//!      0    8 number of a journal object that is stored, with all before
//!      8    8 checksum: XXH3-64 of the number
//! ```
//!
//! Invariant: a record that is missing or damaged is an older one. It never makes an open fail.

use std::path::{Path, PathBuf};

use lsm_core::codec::checksum64;
use lsm_core::fs::{AppendMode, Fs};
use siltstone::{Error, Result};

use crate::format::journal_name;

/// The front of the name; the claimant follows.
pub(crate) const RECORD_PREFIX: &str = "remote-stored-";
const RECORD_BYTES: usize = 16;

/// The record of a claimant.
pub(crate) struct StoredRecord(PathBuf);

impl StoredRecord {
    pub(crate) fn new(dir: &Path, claimant: u128) -> StoredRecord {
        StoredRecord(dir.join(format!("{RECORD_PREFIX}{claimant:032x}")))
    }

    /// Notes that the journal object `number` is stored.
    pub(crate) fn note(&self, fs: &dyn Fs, number: u64) -> Result<()> {
        let mut record = number.to_le_bytes().to_vec();
        record.extend(checksum64(&record).to_le_bytes());
        let file = match fs.open_append(&self.0, AppendMode::Existing) {
            Err(error) if error.is_missing() => {
                let file = fs.open_append(&self.0, AppendMode::IfAbsent)?;
                self.0.parent().map_or(Ok(()), |dir| fs.sync_dir(dir))?;
                file
            }
            opened => opened?,
        };
        file.append(&record)?;
        file.sync()
    }

    /// The highest number that was noted; 0 for none.
    pub(crate) fn read(&self, fs: &dyn Fs) -> Result<u64> {
        let file = match fs.open_read(&self.0) {
            Err(error) if error.is_missing() => return Ok(0),
            opened => opened?,
        };
        let mut bytes = vec![0; file.len()? as usize];
        let count = match file.read_at(0, &mut bytes) {
            // An append that was cut damages an encrypted page.
            Err(error) if error.is_corruption() => return Ok(0),
            count => count?,
        };
        let records = bytes[..count].chunks_exact(RECORD_BYTES);
        Ok(records.filter_map(number_of).max().unwrap_or(0))
    }
}

fn number_of(record: &[u8]) -> Option<u64> {
    let (number, sum) = record.split_at(8);
    let sum: [u8; 8] = sum.try_into().ok()?;
    let is_whole = u64::from_le_bytes(sum) == checksum64(number);
    is_whole.then(|| number.try_into().ok().map(u64::from_le_bytes))?
}

/// The error about a journal that ends before an object which was stored.
pub(crate) fn lost_end(number: u64, stored: u64) -> Error {
    let what = format!(
        "the object is missing, and this folder had stored the journal up to object {stored}\n  \
         bring the objects back, or call take_over to continue from the bucket without them"
    );
    Error::corruption(PathBuf::from(journal_name(number)), None, what)
}
