//! Bytes and integers: the only way in ([`Reader`]) and the only way out (`put_*`) of a format.
//!
//! Little-endian only. Bytes from disk are hostile: a [`Reader`] ends in a value or in a
//! [`Malformed`], never in a panic, and allocates nothing on the word of a file.

mod checksum;
mod fields;
mod reader;
mod writer;

pub use checksum::{checksum64, checksum64_seeded, checksum128};
pub use reader::{Malformed, Reader};
pub use writer::{put_bytes, put_u32, put_u64, put_u128, put_varint};

pub(crate) use fields::describe_fields;
pub(crate) use reader::varint_at;
pub(crate) use writer::{VARINT_BYTES_MAX, varint_len};
