//! Ranges of files, put as objects; and those of them that the living primary has put in vain: the put failed, and may have
//! taken effect all the same.
//!
//! The journal names no such object, so it would stay until the next primary looks for what this one has left. A deletion and a put
//! of one name may take effect in any order, so each put has a name of its own, also another attempt with the same bytes:
//! nothing that the journal names later is ever given to the deletion (`collect.rs`).

use std::ops::Range;
use std::path::PathBuf;

use lsm_core::fs::File;
use siltstone::{Error, Result};

use super::Shipper;
use crate::folder::ObjectPiece;

impl Shipper {
    /// The name of an object with a range of a file. Each range has a name of its own: a put that takes effect
    /// late, after its attempt has failed, must not replace an object with more bytes.
    fn data_name(&self, kind: &str, name: &str, range: &Range<u64>) -> String {
        format!("{kind}/{name}/{:016x}-{:016x}-{:032x}", range.start, range.end, self.claimant)
    }

    /// Puts a range of a file as an object. Another attempt has the same name.
    pub(crate) fn put_range(
        &self,
        kind: &str,
        name: &str,
        range: Range<u64>,
        file: &dyn File,
    ) -> Result<ObjectPiece> {
        let object = self.data_name(kind, name, &range);
        self.put_as(&object, name, range, file)
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

    /// Puts a range of a table or of a chunk file, under a name that no other put has.
    ///
    /// # Errors
    /// As [`Shipper::put_range`].
    pub(crate) fn put_once(
        &self,
        kind: &str,
        name: &str,
        range: Range<u64>,
        file: &dyn File,
    ) -> Result<ObjectPiece> {
        let attempt = self.bucket.timer.random();
        let Range { start, end } = range;
        let claimant = self.claimant;
        let object =
            format!("{kind}/{name}/{start:016x}-{end:016x}-{attempt:016x}-{claimant:032x}");
        let put = self.put_as(&object, name, start..end, file);
        if put.is_err() {
            self.note_vain([object]);
        }
        put
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
