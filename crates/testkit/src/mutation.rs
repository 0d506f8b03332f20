//! [`mutate`]: random changes of bytes, for decoders that must take any.

use crate::rng::Rng;

/// Inputs that grow stay below this length, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// Changes a few places of `bytes`, as errors and malice do: other numbers, parts that are gone, twice there, repeated
/// very often, or of `other`.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..rng.range(1..5) {
        let at = rng.index(bytes.len() + 1);
        let rest = bytes.len() - at;
        let len = rng.index(rest.min(16) + 1);
        match rng.below(10) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..at + len)),
            2 => {
                let part = bytes[at..at + len].to_vec();
                bytes.splice(at..at, part);
            }
            // Many times: what takes memory for each part takes much.
            3 if rng.chance(1, 8) && len > 0 => {
                let part = bytes[at..at + len].repeat(1 + rng.index(BYTES_MAX / len));
                bytes.splice(at..at, part);
                bytes.truncate(2 * BYTES_MAX);
            }
            4 if !other.is_empty() => {
                let start = rng.index(other.len());
                let end = (start + 1 + rng.index(32)).min(other.len());
                bytes.splice(at..at, other[start..end].iter().copied());
            }
            5 => bytes[at..].iter_mut().take(9).for_each(|byte| *byte = 0xff),
            6 => bytes[at..at + len].iter_mut().for_each(|byte| *byte = 0),
            7 => bytes[at..at + len].iter_mut().for_each(|byte| *byte |= 0x80),
            8 if rest > 0 => bytes[at] = bytes[at].wrapping_add(1),
            _ if rest > 0 => bytes[at] ^= 1 << rng.below(8),
            _ => bytes.push(rng.next_u64() as u8),
        }
    }
}
