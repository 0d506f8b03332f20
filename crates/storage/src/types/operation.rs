//! [`Operation`]: the place of one operation in the section that it came in.
//!
//! `batch` makes it and checks the bytes; the memtable takes it, keeps the section and refers to
//! it. It is in this layer because both are formats, and no format imports another.
//!
//! Invariant: the ranges are within the section that the operation was read from.

use std::ops::Range;

use super::EntryKind;

/// One operation: the ranges of its key and value in the section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its kind: a put, a deletion, ...
    pub kind: EntryKind,
    /// Range of the key.
    pub key: Range<usize>,
    /// Range of the value.
    pub value: Range<usize>,
}

impl Operation {
    /// The same operation of a section that begins at `start` of a longer buffer.
    #[must_use]
    pub fn moved_by(self, start: usize) -> Operation {
        let key = self.key.start + start..self.key.end + start;
        let value = self.value.start + start..self.value.end + start;
        Operation { kind: self.kind, key, value }
    }
}
