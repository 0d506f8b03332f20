//! [`BesidePayload`]: the payload of a hidden entry that the engine writes right behind its owner.
//!
//! [`CompactionFilter::output_beside`](super::CompactionFilter::output_beside) returns it, and
//! `sstable/hidden.rs` writes it. Only these payloads go that way, so that their length needs no check
//! on it.
//!
//! Invariant: the length is at least 1 and at most [`BesidePayload::BYTES_MAX`].

/// The payload of a hidden entry, without the sequence number of its owner in front, which is implied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BesidePayload {
    /// The length, the bytes, and zeros.
    bytes: [u8; 16],
}

impl BesidePayload {
    /// The longest such payload, in bytes.
    pub const BYTES_MAX: usize = 15;

    /// The payload of these bytes. A length that does not fit is refused when the code is compiled.
    #[inline]
    pub fn new<const N: usize>(payload: [u8; N]) -> BesidePayload {
        const { assert!(1 <= N && N <= BesidePayload::BYTES_MAX, "1 to 15 bytes") };
        let mut bytes = [0; 16];
        bytes[0] = N as u8;
        bytes[1..=N].copy_from_slice(&payload);
        BesidePayload { bytes }
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[1..=self.len()]
    }

    /// The number of bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.bytes[0])
    }

    /// The bytes, and zeros.
    #[inline]
    pub(crate) fn padded(&self) -> &[u8; BesidePayload::BYTES_MAX] {
        let [_, padded @ ..] = &self.bytes;
        padded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_length_in_front() {
        let longest = BesidePayload::new([7; BesidePayload::BYTES_MAX]);
        assert_eq!((longest.len(), longest.as_bytes()), (15, &[7; 15][..]));
        let short = BesidePayload::new([1, 2]);
        assert_eq!(short.as_bytes(), [1, 2]);
        assert_eq!(short.padded(), &[1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
