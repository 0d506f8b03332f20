//! [`BlobRef`]: a whole value that is lent, mapped where that is possible.

use std::fmt;
use std::ops::Deref;

use lsm_core::error::{Error, Result};
use lsm_core::limits::FORMAT_VALUE_BYTES_MAX;
use lsm_core::read::ReadPoint;
use lsm_core::types::Slice;

use crate::block::{Block, Parallelism};
use crate::mapped::{MappedChunk, MappedValue};

/// The value of a key as of a call of `get_ref`. It derefs to its bytes, which were verified then or at an
/// earlier call. Later writes and deletes do not affect it. Cheap to clone.
///
/// # Cost
/// The space of values that were deleted since is reclaimed after the last clone is dropped. Mapped
/// bytes are pages of the system's cache, and no memory of the process is allocated for them.
#[derive(Clone)]
pub struct BlobRef(Lent);

#[derive(Clone)]
enum Lent {
    Owned(Slice),
    /// The point keeps the value where it is.
    Mapped {
        value: MappedValue,
        _point: ReadPoint,
    },
}

impl BlobRef {
    pub(crate) fn small(value: Slice) -> BlobRef {
        BlobRef(Lent::Owned(value))
    }

    /// The value of a block: in the mapping of its file, or read into memory if it cannot be
    /// mapped.
    ///
    /// # Errors
    /// Corruption; a limit for a value that is not mapped and too long to be held in memory.
    pub(crate) fn large(block: &Block, mapped: &MappedChunk, point: ReadPoint) -> Result<BlobRef> {
        if let Some(value) = mapped.lend(block)? {
            return Ok(BlobRef(Lent::Mapped { value, _point: point }));
        }
        let len = block.handle.len;
        // Beyond this a caller that expects a mapping would get a buffer of that length on the
        // heap.
        if len > FORMAT_VALUE_BYTES_MAX {
            let what = "length of a value for get_ref that is not mapped (use open_blob)";
            return Err(Error::limit(what, len, FORMAT_VALUE_BYTES_MAX));
        }
        let mut value = vec![0; len as usize];
        block.read_whole(&mut value, Parallelism::Auto)?;
        Ok(BlobRef::small(value.into()))
    }

    /// Returns whether the bytes are mapped, and not a copy.
    pub fn is_mapped(&self) -> bool {
        matches!(self.0, Lent::Mapped { .. })
    }
}

impl Deref for BlobRef {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Lent::Owned(value) => value,
            Lent::Mapped { value, .. } => value.as_ref(),
        }
    }
}

impl AsRef<[u8]> for BlobRef {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for BlobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = f.debug_struct("BlobRef");
        value.field("len", &self.len()).field("is_mapped", &self.is_mapped()).finish()
    }
}
