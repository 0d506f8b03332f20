//! [`ValuesAhead`]: has the large values read from the device that a scan comes to next.
//!
//! A second cursor goes some keys in front of the scan, over keys and handles alone, and tells the value
//! store of each handle. So the device works on the next values while the caller uses the present one.
//! [`Range`](super::Range) begins it at its second large value, and ends it where no large value is near.
//!
//! Lengths are those of the values. A store that compresses reads fewer bytes for them.

use std::collections::VecDeque;

use super::{Bounds, Cursor, ReadPoint};
use crate::error::Result;

/// While fewer bytes were asked for in front of a scan, the next value is asked for. Of one value no more
/// bytes are asked for. So it is less than twice as much in all, and values of less than this are asked for as a
/// whole.
const BYTES_MAX: u64 = 8 << 20;
/// So many keys in front of a scan are looked at.
const KEYS_MAX: usize = 64;

/// See the module.
pub(super) struct ValuesAhead {
    /// On the last key that was looked at.
    cursor: Cursor,
    /// The bytes that were asked for of the value of each key behind the scan, up to the cursor; 0 for one
    /// in a table, and for one whose store does not know its length.
    lens: VecDeque<u64>,
    /// Their sum.
    bytes: u64,
    /// No key is left, or none can be read. The scan comes to an error by itself.
    is_at_end: bool,
}

impl ValuesAhead {
    /// In front of a scan that is at `key`.
    pub(super) fn new(bounds: &Bounds, point: Result<ReadPoint>, key: &[u8]) -> ValuesAhead {
        let mut cursor = Cursor::open(bounds, point);
        let is_at_end = cursor.seek(key).is_err();
        ValuesAhead { cursor, lens: VecDeque::new(), bytes: 0, is_at_end }
    }

    /// Looks further ahead. Called at the key that it was made for and at each behind that.
    pub(super) fn follow(&mut self) {
        self.bytes -= self.lens.pop_front().unwrap_or(0);
        while !self.is_at_end && self.bytes < BYTES_MAX && self.lens.len() < KEYS_MAX {
            if self.cursor.next().is_err() || !self.cursor.valid() {
                self.is_at_end = true;
                return;
            }
            let len = self.cursor.prefetch(BYTES_MAX);
            self.lens.push_back(len);
            self.bytes += len;
        }
    }

    /// Returns `true` if no large value is near.
    pub(super) fn is_idle(&self) -> bool {
        self.bytes == 0
    }
}
