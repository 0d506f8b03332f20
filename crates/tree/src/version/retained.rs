//! [`RetainedLog`]: the segments that are kept for those who follow the changes, after the database needs them no more.
//!
//! Part of a version. `apply/log.rs` changes it, `changes/` reads the segments, and `db/log/retained.rs` decides which
//! of them stay. A reader that does not know it loses nothing: these segments are in tables.
//!
//! Invariants:
//! 1. A segment here is durable, begun, and not in the list of the live ones.
//! 2. Of each epoch before the present one that has a segment here, the end is known.

use std::collections::BTreeMap;

use super::LogCut;
use crate::types::{Epoch, FileNo};

/// A segment of the log that is kept although everything in it is in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedSegment {
    /// The epoch in its name.
    pub epoch: Epoch,
    /// Its length in bytes.
    pub bytes: u64,
    /// The time at which it left the log, in seconds since 1970.
    pub since: u64,
}

/// The part of the log that is kept for those who follow the changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetainedLog {
    /// The segments.
    pub segments: BTreeMap<FileNo, RetainedSegment>,
    /// The ends of the log of epochs before the present one.
    pub ends: BTreeMap<Epoch, LogCut>,
}

impl RetainedLog {
    /// The bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    /// Forgets a segment, and the ends of epochs that no segment is left of. Returns `false` if it was not kept.
    pub(super) fn forget(&mut self, file: FileNo) -> bool {
        let is_known = self.segments.remove(&file).is_some();
        match self.segments.values().next() {
            Some(oldest) => self.ends.retain(|epoch, _| *epoch >= oldest.epoch),
            None => self.ends.clear(),
        }
        is_known
    }
}
