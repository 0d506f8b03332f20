//! [`BesidePayload`]: the payload of a hidden entry that the engine writes right behind its owner.
//!
//! [`CompactionFilter::output_beside`](super::CompactionFilter::output_beside) returns it, and
//! `sstable/hidden.rs` writes it. Only these payloads go that way, so that their length needs no check
//! on it.
//!
//! Invariant: the length is at least 1 and at most [`BesidePayload::BYTES_MAX`].

/// The payload of a hidden entry, without the sequence number of its owner in front, which is implied.
///
/// Two words, because it goes through several calls for each entry: bytes that are stored one by one and
/// loaded together make the processor wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BesidePayload {
    /// The first 8 bytes, little-endian; zeros behind the last.
    low: u64,
    /// The other bytes, and in the highest byte the length.
    high: u64,
}

impl BesidePayload {
    /// The longest such payload, in bytes.
    pub const BYTES_MAX: usize = 15;

    /// The payload of these bytes. A length that does not fit is refused when the code is compiled.
    #[inline]
    pub fn new<const N: usize>(payload: [u8; N]) -> BesidePayload {
        const { assert!(1 <= N && N <= BesidePayload::BYTES_MAX, "1 to 15 bytes") };
        let mut low = [0; 8];
        let mut high = [0; 8];
        for (i, byte) in payload.into_iter().enumerate() {
            if i < 8 {
                low[i] = byte;
            } else {
                high[i - 8] = byte;
            }
        }
        high[7] = N as u8;
        BesidePayload { low: u64::from_le_bytes(low), high: u64::from_le_bytes(high) }
    }

    /// The payload of a word and `high_len` more bytes, the low ones of `high`.
    ///
    /// # Panics
    /// If those are more than 7.
    #[inline]
    pub fn of_words(low: u64, high: u64, high_len: usize) -> BesidePayload {
        assert!(high_len < 8, "at most 15 bytes");
        let kept = high & ((1 << (8 * high_len)) - 1);
        BesidePayload { low, high: kept | (8 + high_len as u64) << 56 }
    }

    /// The bytes, and zeros.
    #[inline]
    pub(crate) fn padded(&self) -> [[u8; 8]; 2] {
        [self.low.to_le_bytes(), (self.high & (u64::MAX >> 8)).to_le_bytes()]
    }

    /// The number of bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        (self.high >> 56) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_its_bytes() {
        let longest = BesidePayload::new([7; BesidePayload::BYTES_MAX]);
        let mut padded = [7; 16];
        padded[15] = 0;
        assert_eq!((longest.len(), longest.padded().concat()), (15, padded.to_vec()));
        let short = BesidePayload::new([1, 2]);
        let expected = [[1, 2, 0, 0, 0, 0, 0, 0], [0; 8]];
        assert_eq!((short.len(), short.padded()), (2, expected));
        let ten = BesidePayload::new([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(ten, BesidePayload::of_words(0x0807_0605_0403_0201, 0xff_0a09, 2));
    }
}
