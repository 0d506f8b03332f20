//! Bytes that end with their checksum, such as objects that are put as a whole.

use super::{Malformed, Reader, checksum64, put_u64};

/// Bytes of the checksum at the end.
pub const SUM_BYTES: usize = 8;

/// Appends the XXH3-64 of all bytes of `out`.
pub fn put_sum(out: &mut Vec<u8>) {
    let sum = checksum64(out);
    put_u64(out, sum);
}

/// Decodes all bytes before a checksum of [`put_sum`].
///
/// # Errors
/// [`Malformed`] for a checksum that does not match, before anything is decoded; for what `decode` refuses, and for bytes
/// that it leaves.
pub fn decode_checked<T>(
    bytes: &[u8],
    decode: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    let short = Malformed { what: "too few bytes", at: 0 };
    let end = bytes.len().checked_sub(SUM_BYTES).ok_or(short)?;
    let (body, sum) = bytes.split_at(end);
    if checksum64(body).to_le_bytes() != *sum {
        return Err(Malformed { what: "a wrong checksum", at: end });
    }
    let mut reader = Reader::new(body);
    let decoded = decode(&mut reader)?;
    reader.finish()?;
    Ok(decoded)
}
