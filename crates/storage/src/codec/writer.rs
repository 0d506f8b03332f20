//! Appending integers and byte strings to a buffer, and buffers to be filled.

use std::sync::Arc;

/// Longest encoding of a varint.
pub const VARINT_BYTES_MAX: usize = 10;

/// Appends 4 bytes, little-endian.
#[inline]
pub fn put_u32(out: &mut Vec<u8>, n: u32) {
    out.extend_from_slice(&n.to_le_bytes());
}

/// Appends 8 bytes, little-endian.
#[inline]
pub fn put_u64(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(&n.to_le_bytes());
}

/// Appends 16 bytes, little-endian.
pub fn put_u128(out: &mut Vec<u8>, n: u128) {
    out.extend_from_slice(&n.to_le_bytes());
}

/// Appends `n` in 7-bit groups, low group first, high bit set on all but the last.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Returns `len` zeros in a buffer that has no other owner yet, so that `Arc::get_mut` succeeds.
pub fn zeroed(len: usize) -> Arc<[u8]> {
    std::iter::repeat_n(0, len).collect()
}

/// Length of `n` as a varint.
#[inline]
pub fn varint_len(n: u64) -> usize {
    (64 - (n | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends a varint length and the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
