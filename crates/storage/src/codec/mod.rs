//! Bytes and integers: the only way to read a format ([`Reader`]) and the only way to write one
//! (`put_*`).
//!
//! All integers are little-endian. Bytes from disk are hostile: a [`Reader`] returns a value or
//! [`Malformed`]. It never panics, and no allocation depends on an unchecked length.

mod checksum;
mod fields;
mod reader;
mod sealed;
mod writer;

pub use checksum::{Checksum64, ChecksumSeed, checksum64, checksum64_seeded, checksum128};
pub use reader::{Malformed, Reader};
pub use writer::{put_bytes, put_u32, put_u64, put_u128, put_varint, zeroed};

pub use fields::describe_fields;
pub use reader::varint_at;
pub use sealed::{SUM_BYTES, decode_checked, put_sum};
pub use writer::{VARINT_BYTES_MAX, varint_len};
