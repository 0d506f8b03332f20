//! The one checksum of the formats: XXH3, in 64 bits (optionally seeded) and in 128 bits.
//!
//! Its id is stored where a format may one day carry another: 1 = XXH3-64. It guards against
//! faults, not against an attacker.

use xxhash_rust::{const_xxh3, xxh3};

/// XXH3-64 of `bytes`.
#[inline]
pub fn checksum64(bytes: &[u8]) -> u64 {
    xxh3::xxh3_64(bytes)
}

/// XXH3-64 of `bytes` under `seed`. The same bytes under another seed have another checksum.
#[inline]
pub fn checksum64_seeded(bytes: &[u8], seed: u64) -> u64 {
    xxh3::xxh3_64_with_seed(bytes, seed)
}

/// XXH3 hashes longer inputs with a table that it derives from the seed.
const TABLE_FREE_BYTES_MAX: usize = 240;

/// A seed with the table that XXH3 derives from it: [`checksum64_seeded`] derives it at each call.
pub struct ChecksumSeed {
    seed: u64,
    table: [u8; 192],
}

impl ChecksumSeed {
    /// A seed that is known when the program is compiled.
    pub const fn new(seed: u64) -> ChecksumSeed {
        ChecksumSeed { seed, table: const_xxh3::const_custom_default_secret(seed) }
    }

    /// The same as [`checksum64_seeded`].
    #[inline]
    pub fn checksum64(&self, bytes: &[u8]) -> u64 {
        if bytes.len() <= TABLE_FREE_BYTES_MAX {
            checksum64_seeded(bytes, self.seed)
        } else {
            xxh3::xxh3_64_with_secret(bytes, &self.table)
        }
    }
}

/// [`checksum64_seeded`] of bytes that come in pieces.
pub struct Checksum64(xxh3::Xxh3);

impl Checksum64 {
    /// The checksum of nothing yet, under `seed`.
    pub fn seeded(seed: u64) -> Checksum64 {
        Checksum64(xxh3::Xxh3::with_seed(seed))
    }

    /// Takes in further bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all pieces.
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// XXH3-128 of `bytes`.
pub fn checksum128(bytes: &[u8]) -> u128 {
    xxh3::xxh3_128(bytes)
}
