//! Values that reads return, and the commits that writes return.

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr;

use engine::Slice;
use engine::large_values::BlobRef;

use crate::raw::{free, set};

/// A value that a read returned. Its bytes are lent, without a copy where the engine can.
pub struct Value(Lent);

enum Lent {
    Blob(BlobRef),
    Slice(Slice),
}

impl From<BlobRef> for Value {
    fn from(blob: BlobRef) -> Value {
        Value(Lent::Blob(blob))
    }
}

impl From<Slice> for Value {
    fn from(slice: Slice) -> Value {
        Value(Lent::Slice(slice))
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Lent::Blob(blob) => blob,
            Lent::Slice(slice) => slice,
        }
    }
}

/// Returns the bytes of a value, and sets `len` to their number. They live as long as the value, also after the close of
/// the database.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_value_data(
    value: *const Value,
    len: *mut usize,
) -> *const c_void {
    // SAFETY: contract 1 of `raw`. A box does not move, so neither do bytes inside of it.
    let Some(value) = (unsafe { value.as_ref() }) else { return ptr::null() };
    // SAFETY: contract 1 of `raw`.
    unsafe { set(len, value.len()) };
    value.as_ptr().cast()
}

/// Frees a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_value_free(value: *mut Value) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(value) };
}

/// A commit: its place in the history of the database.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The sequence number of its last operation.
    pub seq: u64,
    /// The epoch of its writer.
    pub epoch: u32,
}

impl From<engine::Commit> for Commit {
    fn from(commit: engine::Commit) -> Commit {
        Commit { seq: commit.seq.get(), epoch: commit.epoch.0 }
    }
}
