//! [`LastValue`]: the value that a job read last, for comparison with that of a twin.

use crate::codec::checksum128;

/// A longer value is remembered by its checksum: a copy of it would double the memory of the job.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// The value that was read last, or its checksum if it is long.
#[derive(Default)]
pub(super) struct LastValue {
    /// The value, or nothing if it is long.
    bytes: Vec<u8>,
    /// The length and checksum of a long one.
    long: Option<(usize, u128)>,
}

impl LastValue {
    /// Remembers a value in the place of the one before.
    pub(super) fn set(&mut self, value: &[u8]) {
        self.bytes.clear();
        self.long = None;
        if value.len() <= COPIED_BYTES_MAX {
            self.bytes.extend_from_slice(value);
        } else {
            // 128 bits: values that differ through damage do not pass for equal.
            self.long = Some((value.len(), checksum128(value)));
        }
    }

    /// Returns `true` if this is the value.
    pub(super) fn is(&self, value: &[u8]) -> bool {
        match self.long {
            None => self.bytes == value,
            Some((len, sum)) => value.len() == len && checksum128(value) == sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_itself_alone_whatever_its_length() {
        let lengths = [0, 1, COPIED_BYTES_MAX, COPIED_BYTES_MAX + 1, 3 * COPIED_BYTES_MAX];
        let values = lengths.map(|len| vec![7; len]);
        let mut last = LastValue::default();
        for value in &values {
            last.set(value);
            for other in &values {
                assert_eq!(last.is(other), value == other, "{} {}", value.len(), other.len());
            }
            if let Some(end) = value.len().checked_sub(1) {
                let mut other = value.clone();
                other[end] ^= 1;
                assert!(!last.is(&other), "{}", value.len());
            }
        }
    }
}
