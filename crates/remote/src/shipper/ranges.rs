//! Ranges of files, put as objects; and those of them that the living primary has put in vain: the put failed, and may have
//! taken effect all the same.
//!
//! The journal names no object of a failed put, so the object would stay until the next primary looks for it. The living
//! primary deletes it (`collect.rs`). A deletion and a put of one name may take effect in any order, so another attempt
//! has another name, also with the same bytes: no object that the journal names later is ever deleted so.
//!
//! Names end with the claimant: objects of a fenced writer are found by it.

use std::ops::Range;
use std::path::PathBuf;

use lsm_core::fs::{File, is_out_of_handles};
use siltstone::{Error, Result};

use super::Shipper;
use crate::folder::ObjectPiece;
use crate::noted::SyncedFile;

impl Shipper {
    /// Puts a range of a table or of a chunk file, under a name that no other put has.
    ///
    /// # Errors
    /// Those of the store and of the file. The object is noted as one in vain.
    pub(crate) fn put_range(
        &self,
        kind: &str,
        name: &str,
        range: Range<u64>,
        file: &dyn File,
    ) -> Result<ObjectPiece> {
        let Range { start, end } = range;
        let attempt = self.bucket.timer.random();
        let claimant = self.claimant;
        let object =
            format!("{kind}/{name}/{start:016x}-{end:016x}-{attempt:016x}-{claimant:032x}");
        let put = self.put_as(&object, name, start..end, file);
        if put.is_err() {
            self.note_vain([object]);
        }
        put
    }

    /// Puts a range of a chunk file; `None` if nothing of it may be put.
    ///
    /// After a failed sync this is the part that an earlier one has made durable, which is acknowledged under
    /// [`Ack::Local`](crate::Ack::Local). Nothing that names the rest is: the sync of the owner fails as well. A journal
    /// that waited for the rest would wait for ever, and one that had it would have more than the disk after a power
    /// cut: an open compares a chunk file by its length alone.
    ///
    /// # Errors
    /// As [`Shipper::put_range`].
    pub(super) fn put_part(
        &self,
        name: &str,
        mut range: Range<u64>,
        file: &SyncedFile,
    ) -> Result<Option<ObjectPiece>> {
        match file.sync_by(range.end, File::sync) {
            Err(error) if is_out_of_handles(&error) => return Err(error),
            Err(_) => range.end = range.end.min(file.durable()),
            Ok(()) => {}
        }
        if range.start >= range.end {
            return Ok(None);
        }
        self.put_range("part", name, range, &*file.file).map(Some)
    }

    /// Puts the end of a log for a base. Another attempt has the same name, and the same bytes: a base whose put has
    /// failed may take effect, and names this object.
    ///
    /// # Errors
    /// As [`Shipper::put_range`], but nothing is noted.
    pub(super) fn put_log_end(
        &self,
        name: &str,
        range: Range<u64>,
        file: &dyn File,
    ) -> Result<ObjectPiece> {
        let Range { start, end } = range;
        let object = format!("part/{name}/{start:016x}-{end:016x}-{:032x}", self.claimant);
        self.put_as(&object, name, start..end, file)
    }

    fn put_as(
        &self,
        object: &str,
        name: &str,
        range: Range<u64>,
        file: &dyn File,
    ) -> Result<ObjectPiece> {
        let len = range.end - range.start;
        self.bucket.put_long(object, len, &mut |part| {
            let mut bytes = vec![0; (part.end - part.start) as usize];
            read_range(name, file, range.start + part.start, &mut bytes)?;
            Ok(bytes)
        })?;
        Ok(ObjectPiece { offset: range.start, len, object: object.into(), at: 0 })
    }

    /// Notes objects that the journal will not name.
    pub(super) fn note_vain(&self, objects: impl IntoIterator<Item = String>) {
        self.state.lock().vain.extend(objects);
    }

    /// Takes the objects of failed puts.
    pub(crate) fn take_vain(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().vain)
    }
}

/// Reads until `buf` is full.
pub(super) fn read_range(name: &str, file: &dyn File, offset: u64, buf: &mut [u8]) -> Result<()> {
    if file.read_at(offset, buf)? < buf.len() {
        let what = "the file is shorter than written";
        return Err(Error::corruption(PathBuf::from(name), offset, what));
    }
    Ok(())
}
