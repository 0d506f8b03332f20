//! [`ZstdCompressor`]: the data blocks of one table as frames of Zstandard, and the dictionary of the table.
//!
//! Zstandard finds little in a block of a few KiB by itself, because it begins each frame with nothing. A dictionary
//! has what the blocks of the table have in common. It is trained with the first blocks of the table, which are
//! written meanwhile, without it: so a writer keeps no blocks back, and every block says which form it has.
//!
//! Invariant: equal blocks make an equal dictionary.

use super::compression::{CompressionKind, begin, front_and_rest, is_worth_it};
use crate::zstandard::{Compressor, train};

/// Longest dictionary, in bytes. One of 64 KiB saves little more, and every open table keeps it in memory.
const DICTIONARY_BYTES_MAX: usize = 16 << 10;
/// Bytes of the blocks that a dictionary is trained with, at least: 100 times its length. A smaller table has none.
const SAMPLES_BYTES: usize = 100 * DICTIONARY_BYTES_MAX;
/// A dictionary is kept if it saves at least this share of blocks that it was not trained with.
const SAVED_SHARE_MIN: usize = 16;

/// Compresses the blocks of one table; its buffers stay.
pub(super) struct ZstdCompressor {
    compressor: Compressor,
    compressed: Vec<u8>,
    /// The first blocks of the table, until there are enough.
    samples: Option<Samples>,
    dictionary: Option<Vec<u8>>,
}

/// Blocks, one after the other.
#[derive(Default)]
struct Samples {
    bytes: Vec<u8>,
    lens: Vec<usize>,
}

impl ZstdCompressor {
    pub(super) fn new() -> ZstdCompressor {
        ZstdCompressor {
            compressor: Compressor::new(),
            compressed: Vec::new(),
            samples: Some(Samples::default()),
            dictionary: None,
        }
    }

    /// The dictionary of the table, once a block was compressed with it.
    pub(super) fn dictionary(&self) -> Option<&[u8]> {
        self.dictionary.as_deref()
    }

    /// As `BlockCompressor::compress`.
    pub(super) fn compress<'p>(&'p mut self, payload: &'p [u8]) -> (CompressionKind, &'p [u8]) {
        let (front, rest) = front_and_rest(payload);
        // Before the block: with its dictionary this one can be compressed already.
        self.take_sample(front);
        begin(&mut self.compressed, payload, rest);
        let is_compressed = self.compressor.compress(front, &mut self.compressed);
        self.compressed.extend_from_slice(rest);
        if !is_compressed || !is_worth_it(self.compressed.len(), payload.len()) {
            return (CompressionKind::None, payload);
        }
        let kind = match (self.dictionary.is_some(), rest.is_empty()) {
            (false, true) => CompressionKind::Zstd,
            (false, false) => CompressionKind::ZstdFront,
            (true, true) => CompressionKind::ZstdDictionary,
            (true, false) => CompressionKind::ZstdDictionaryFront,
        };
        (kind, &self.compressed)
    }

    fn take_sample(&mut self, front: &[u8]) {
        let Some(samples) = &mut self.samples else { return };
        if samples.bytes.len() < SAMPLES_BYTES {
            samples.bytes.extend_from_slice(front);
            samples.lens.push(front.len());
            return;
        }
        let samples = self.samples.take().unwrap_or_default();
        let Some(dictionary) = samples.train(&mut self.compressor) else { return };
        self.compressor = Compressor::with_dictionary(&dictionary);
        self.dictionary = Some(dictionary);
    }
}

impl Samples {
    /// A dictionary, if it saves enough of what `plain` makes of the last eighth of the blocks. It is trained with
    /// the others: it has parts of these, and would save too much of them.
    fn train(&self, plain: &mut Compressor) -> Option<Vec<u8>> {
        let (trained, held) = self.lens.split_at(self.lens.len() - self.lens.len() / 8);
        let (bytes, rest) = self.bytes.split_at(trained.iter().sum());
        let dictionary = train(bytes, trained, DICTIONARY_BYTES_MAX)?;
        let with = compressed_len(&mut Compressor::with_dictionary(&dictionary), rest, held);
        let without = compressed_len(plain, rest, held);
        (with <= without - without / SAVED_SHARE_MIN && !held.is_empty()).then_some(dictionary)
    }
}

/// Bytes of the frames of blocks of these lengths.
fn compressed_len(compressor: &mut Compressor, mut blocks: &[u8], lens: &[usize]) -> usize {
    let mut frame = Vec::new();
    let mut total = 0;
    for len in lens {
        let (block, rest) = blocks.split_at(*len);
        frame.clear();
        compressor.compress(block, &mut frame);
        total += frame.len();
        blocks = rest;
    }
    total
}
