//! [`Operation`]: where one operation lies in the section that it came in.
//!
//! Made by `batch`, which checks the bytes, and taken by the memtable, which keeps the section and
//! refers to it. It stands here because both are formats, and none imports another.
//!
//! Invariant: the ranges are within the section that the operation was read from.

use std::ops::Range;

use super::EntryKind;

/// One operation: where its key and value lie in the section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it does.
    pub kind: EntryKind,
    /// Place of the key.
    pub key: Range<usize>,
    /// Place of the value.
    pub value: Range<usize>,
}
