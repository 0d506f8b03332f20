//! The one checksum of the formats: XXH3, in 64 bits (optionally seeded) and in 128 bits.
//!
//! Its id is stored where a format may one day carry another: 1 = XXH3-64. It guards against
//! faults, not against an attacker.

use xxhash_rust::xxh3;

/// XXH3-64 of `bytes`.
#[inline]
pub fn checksum64(bytes: &[u8]) -> u64 {
    xxh3::xxh3_64(bytes)
}

/// XXH3-64 of `bytes` under `seed`: equal bytes in another place do not verify.
#[inline]
pub fn checksum64_seeded(bytes: &[u8], seed: u64) -> u64 {
    xxh3::xxh3_64_with_seed(bytes, seed)
}

/// XXH3-128 of `bytes`.
pub fn checksum128(bytes: &[u8]) -> u128 {
    xxh3::xxh3_128(bytes)
}
