//! [`ValueReadahead`]: reads the next large values of a scan from the device in advance.
//!
//! A second cursor runs some keys before the end of the scan, over keys and handles alone, and
//! passes each handle to the value store. So the device reads the next values while the caller uses
//! the present one. It starts at the second large value, and stops if no large value is near.
//!
//! Lengths are those of the values. A store that compresses reads fewer bytes for them.

use std::collections::VecDeque;

use super::{Bounds, Cursor, ReadPoint};
use crate::error::Result;

/// The next value is prefetched while fewer bytes than this are prefetched, and at most this many
/// bytes of one value. So the sum is less than twice as much, and values of fewer bytes are
/// prefetched whole.
const BYTES_MAX: u64 = 8 << 20;
/// The number of keys before a scan that are looked at.
const KEYS_MAX: usize = 64;

/// The step of an end of a scan: [`Cursor::next`] or [`Cursor::prev`].
pub(super) type MoveCursor = fn(&mut Cursor) -> Result<()>;

/// The prefetch of large values for one end of a scan.
pub(super) struct ValueReadahead {
    step: MoveCursor,
    /// The end came to a large value.
    has_met_large: bool,
    /// While large values are near.
    prefetch: Option<Box<PrefetchCursor>>,
}

impl ValueReadahead {
    /// The read-ahead of an end that moves by `step`.
    pub(super) fn new(step: MoveCursor) -> ValueReadahead {
        ValueReadahead { step, has_met_large: false, prefetch: None }
    }

    /// Looks further ahead of the end, which has moved to the next key, the one of `cursor`.
    pub(super) fn follow(&mut self, cursor: &Cursor, bounds: &Bounds, point: &Result<ReadPoint>) {
        let is_apart = cursor.is_value_apart();
        if self.prefetch.is_none() {
            // A scan of one value, as `take(1)` does, would read megabytes in vain.
            if !is_apart || !std::mem::replace(&mut self.has_met_large, true) {
                return;
            }
        }
        let prefetch = self.prefetch.get_or_insert_with(|| {
            Box::new(PrefetchCursor::new(Cursor::open(bounds, point.clone()), cursor.key()))
        });
        prefetch.follow(self.step);
        if !is_apart && prefetch.bytes == 0 {
            self.prefetch = None;
        }
    }
}

/// A cursor that runs before an end of a scan. It may pass the other end: few scans move both.
struct PrefetchCursor {
    /// On the last key that was looked at.
    cursor: Cursor,
    /// The bytes that were prefetched of the value of each key between the scan and the cursor; 0
    /// for a value in a table, and for one whose store does not know its length.
    lens: VecDeque<u64>,
    /// Their sum.
    bytes: u64,
    /// No key is left, or none can be read. The scan itself will return the error.
    is_at_end: bool,
}

impl PrefetchCursor {
    /// For an end that is at `key`.
    fn new(mut cursor: Cursor, key: &[u8]) -> PrefetchCursor {
        let is_at_end = cursor.seek(key).is_err();
        PrefetchCursor { cursor, lens: VecDeque::new(), bytes: 0, is_at_end }
    }

    /// Called at the key that it was made for and at each later key.
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
