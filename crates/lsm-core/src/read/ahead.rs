//! [`ValuesAhead`]: has the large values read from the device that one end of a scan comes to next.
//!
//! A second cursor goes some keys in front of the end, over keys and handles alone, and tells the value
//! store of each handle. So the device works on the next values while the caller uses the present one. It begins at
//! the second large value of the end, and stops where no large value is near.
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

/// The step of an end of a scan: [`Cursor::next`] or [`Cursor::prev`].
pub(super) type MoveCursor = fn(&mut Cursor) -> Result<()>;

/// See the module.
pub(super) struct ValuesAhead {
    step: MoveCursor,
    /// The end came to a large value.
    has_met_large: bool,
    /// While large values are near.
    lookout: Option<Box<Lookout>>,
}

impl ValuesAhead {
    /// In front of an end that moves by `step`.
    pub(super) fn new(step: MoveCursor) -> ValuesAhead {
        ValuesAhead { step, has_met_large: false, lookout: None }
    }

    /// Looks further ahead of the end, which has moved to the next key, where `cursor` is.
    pub(super) fn follow(&mut self, cursor: &Cursor, bounds: &Bounds, point: &Result<ReadPoint>) {
        let is_apart = cursor.is_value_apart();
        if self.lookout.is_none() {
            // A scan that wants one value, as `take(1)` does, would read megabytes for nobody.
            if !is_apart || !std::mem::replace(&mut self.has_met_large, true) {
                return;
            }
        }
        let lookout = self.lookout.get_or_insert_with(|| {
            Box::new(Lookout::new(Cursor::open(bounds, point.clone()), cursor.key()))
        });
        lookout.follow(self.step);
        if !is_apart && lookout.bytes == 0 {
            self.lookout = None;
        }
    }
}

/// A cursor in front of an end of a scan. It may pass the other end: few scans move both.
struct Lookout {
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

impl Lookout {
    /// In front of an end that is at `key`.
    fn new(mut cursor: Cursor, key: &[u8]) -> Lookout {
        let is_at_end = cursor.seek(key).is_err();
        Lookout { cursor, lens: VecDeque::new(), bytes: 0, is_at_end }
    }

    /// Called at the key that it was made for and at each behind that.
    fn follow(&mut self, step: MoveCursor) {
        self.bytes -= self.lens.pop_front().unwrap_or(0);
        while !self.is_at_end && self.bytes < BYTES_MAX && self.lens.len() < KEYS_MAX {
            if step(&mut self.cursor).is_err() || !self.cursor.valid() {
                self.is_at_end = true;
                return;
            }
            let len = self.cursor.prefetch(BYTES_MAX);
            self.lens.push_back(len);
            self.bytes += len;
        }
    }
}
