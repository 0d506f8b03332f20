//! [`SectionBytes`]: the encoded operations of a batch on one partition, lent or shared.
//!
//! A writer that leads its group lends its own buffer: the bytes are not used after its call
//! returns, so a put costs no allocation. A holder that keeps them longer shares them.

use std::ops::Deref;
use std::sync::Arc;

/// Longest value that a memtable copies into its own memory; a longer one that is shared stays where it is.
///
/// Memory of a memtable is used again, and fresh memory costs page faults: with 128 KiB the allocator asks
/// the system for each value.
pub const COPIED_VALUE_BYTES_MAX: usize = 256 << 10;

/// The encoded operations of a section, lent or shared.
#[derive(Clone)]
pub enum SectionBytes<'a> {
    /// Only as long as the writer waits.
    Lent(&'a [u8]),
    /// As long as a memtable refers to them.
    Shared(Arc<[u8]>),
}

impl SectionBytes<'_> {
    /// The buffer, if others can hold it.
    pub fn shared(&self) -> Option<&Arc<[u8]>> {
        match self {
            SectionBytes::Lent(_) => None,
            SectionBytes::Shared(buffer) => Some(buffer),
        }
    }

    /// The bytes to keep: a copy of those that are lent.
    pub fn into_shared(self) -> SectionBytes<'static> {
        match self {
            SectionBytes::Lent(bytes) => SectionBytes::Shared(bytes.into()),
            SectionBytes::Shared(buffer) => SectionBytes::Shared(buffer),
        }
    }
}

impl Deref for SectionBytes<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            SectionBytes::Lent(bytes) => bytes,
            SectionBytes::Shared(buffer) => buffer,
        }
    }
}
