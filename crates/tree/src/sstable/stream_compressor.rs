//! [`StreamCompressor`]: the LZ4 block of a payload that is too large to be compressed at once.
//!
//! The encoder needs room for the worst case and the whole input in one piece: for a value of 1 GiB
//! that is twice its size. So each window of the payload is compressed alone, and the results are
//! joined to one block, which every LZ4 decoder reads.
//!
//! An LZ4 block is a list of sequences: literals, then a match that refers back. The last sequence has
//! literals alone. Where two blocks are joined, the last literals of the one and the first of the other
//! become the literals of one sequence. They are bytes of the input, so nothing is kept for them.
//!
//! ```text
//! sequence := token (1 byte: literals in the high half, match in the low half, 15 = more follows)
//!             more of the literals' length: bytes of 255 and a last one below | literals
//!             offset of the match (2 bytes) | more of the match's length
//! ```
//!
//! Invariant: memory does not grow with the payload, except by a slice for each window in a row that
//! has no match.

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

use crate::error::Result;

/// Bytes that are compressed at once: 16 times the reach of a match.
const WINDOW_BYTES: usize = 1 << 20;

/// Takes the bytes of a block in order.
pub(super) type Sink<'s> = dyn FnMut(&[u8]) -> Result<()> + 's;

/// Compresses a block that comes in pieces.
pub(super) struct StreamCompressor {
    table: CompressTable,
    compressed: Vec<u8>,
}

/// The first and the last sequence of a block.
struct Ends {
    /// The low half of the first token.
    first_match: u8,
    first_literals: usize,
    /// The bytes after the first literals and before the last sequence.
    between: std::ops::Range<usize>,
    last_literals: usize,
}

impl StreamCompressor {
    pub(super) fn new() -> StreamCompressor {
        let compressed = vec![0; get_maximum_output_size(WINDOW_BYTES)];
        StreamCompressor { table: CompressTable::large(), compressed }
    }

    /// Gives the LZ4 block of the pieces, one after the other, to `sink`.
    pub(super) fn compress(&mut self, pieces: &[&[u8]], sink: &mut Sink<'_>) -> Result<()> {
        // Literals that wait for the token of their sequence.
        let mut waiting: Vec<&[u8]> = Vec::new();
        for window in pieces.iter().flat_map(|piece| piece.chunks(WINDOW_BYTES)) {
            let compressed =
                compress_into_with_table(window, &mut self.compressed, &mut self.table);
            let ends = compressed.ok().and_then(|len| ends_of(&self.compressed[..len]));
            // Without a match the window has no sequence of its own. Its bytes become literals of
            // the next sequence.
            let Some(ends) = ends else {
                waiting.push(window);
                continue;
            };
            waiting.push(&window[..ends.first_literals]);
            put_literals(&waiting, ends.first_match, sink)?;
            sink(&self.compressed[ends.between])?;
            // After the last match: what is left of the window waits for the first match of the
            // next one.
            waiting.clear();
            waiting.push(&window[window.len() - ends.last_literals..]);
        }
        put_literals(&waiting, 0, sink)
    }
}

/// Gives a sequence up to its literals to `sink`.
fn put_literals(literals: &[&[u8]], low_half: u8, sink: &mut Sink<'_>) -> Result<()> {
    let len: usize = literals.iter().map(|piece| piece.len()).sum();
    let high_half = len.min(15) as u8;
    sink(&[high_half << 4 | low_half])?;
    if let Some(mut more) = len.checked_sub(15) {
        while more >= 255 {
            sink(&[255])?;
            more -= 255;
        }
        sink(&[more as u8])?;
    }
    literals.iter().try_for_each(|piece| sink(piece))
}

/// Finds the ends of a block; `None` if it has no match.
fn ends_of(block: &[u8]) -> Option<Ends> {
    let mut ends: Option<Ends> = None;
    let mut at = 0;
    loop {
        let sequence = at;
        let token = *block.get(at)?;
        at += 1;
        let literals = read_len(block, &mut at, token >> 4)?;
        at += literals;
        if at == block.len() {
            // Without a match before them the last literals are the whole window.
            let mut ends = ends?;
            ends.between.end = sequence;
            ends.last_literals = literals;
            return Some(ends);
        }
        ends.get_or_insert(Ends {
            first_match: token & 15,
            first_literals: literals,
            between: at..at,
            last_literals: 0,
        });
        // Offset of the match. It stays valid, because the bytes before it stay in their places.
        at += 2;
        read_len(block, &mut at, token & 15)?;
    }
}

/// A length that begins in a half of a token.
fn read_len(block: &[u8], at: &mut usize, half: u8) -> Option<usize> {
    let mut len = usize::from(half);
    if half < 15 {
        return Some(len);
    }
    loop {
        let more = *block.get(*at)?;
        *at += 1;
        len += usize::from(more);
        if more < 255 {
            return Some(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use lz4_flex::block::decompress;

    use super::*;

    /// Bytes that do not compress.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let next = std::iter::repeat_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        });
        next.take(len).collect()
    }

    fn check(pieces: &[&[u8]], ratio_max: f64) {
        let plain = pieces.concat();
        let mut compressed = Vec::new();
        let kind = StreamCompressor::new().compress(pieces, &mut |bytes| {
            compressed.extend_from_slice(bytes);
            Ok(())
        });
        kind.unwrap();
        assert!(decompress(&compressed, plain.len()).unwrap() == plain, "{} bytes", plain.len());
        let ratio = compressed.len() as f64 / plain.len().max(1) as f64;
        assert!(ratio <= ratio_max, "{ratio} of {} bytes", plain.len());
    }

    #[test]
    fn joined_windows_are_one_block() {
        let random = noise(3 * WINDOW_BYTES + 77);
        let text = b"sand and silt, layer on layer, ".repeat(WINDOW_BYTES / 8);
        let mut mixed = text[..WINDOW_BYTES + 5].to_vec();
        mixed.extend_from_slice(&random);
        mixed.extend_from_slice(&text[..2 * WINDOW_BYTES]);
        check(&[b"head", &text, b"tail"], 0.02);
        check(&[b"head", &random, b"tail"], 1.01);
        check(&[b"head", &mixed, b"tail"], 0.7);
        check(&[&text[..WINDOW_BYTES]], 0.02);
        check(&[b"", &text[..20], b""], 2.0);
        check(&[], 2.0);
        let ends =
            [0, 1, 12, 13, WINDOW_BYTES - 1, WINDOW_BYTES + 6, 4 * WINDOW_BYTES, mixed.len()];
        for start in ends {
            for end in ends.into_iter().filter(|end| *end >= start) {
                let cut = usize::midpoint(start, end);
                check(&[&mixed[start..cut], &mixed[cut..end]], 2.0);
            }
        }
    }
}
