//! [`SubBlockPacker`]: compresses the sub-blocks of a value with LZ4 or Zstandard; [`unpack`] is its reverse.
//!
//! Called by the writer of a block, and by its readers for sub-blocks that were verified.
//!
//! Invariant: no result is longer than its input, and `unpack` writes nothing outside of its
//! target, whatever the bytes are.

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

use lsm_core::zstandard::{self, Compressor};

/// The compression of the sub-blocks of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubBlockCodec {
    /// LZ4 blocks.
    Lz4,
    /// Frames of Zstandard, without a dictionary.
    Zstd,
}

impl SubBlockCodec {
    /// A byte of its output expands to at most so many bytes.
    pub fn ratio_max(self) -> u64 {
        match self {
            SubBlockCodec::Lz4 => 255,
            SubBlockCodec::Zstd => zstandard::RATIO_MAX,
        }
    }

    /// Returns `true` if this build has it.
    pub fn is_built_in(self) -> bool {
        self == SubBlockCodec::Lz4 || zstandard::IS_BUILT_IN
    }
}

/// A sub-block is compressed if that saves at least this share of it: reading it costs a
/// decompression.
const SAVED_SHARE_MIN: usize = 8;

/// Compresses the sub-blocks of one value.
pub struct SubBlockPacker {
    packer: Packer,
    /// The result of a sub-block. The compressor needs room for the worst case; it is made for the
    /// longest sub-block so far, because most values are shorter than the maximum length of a
    /// sub-block.
    room: Vec<u8>,
    /// Stored bytes, if they differ from the input.
    stored: Vec<u8>,
}

enum Packer {
    Lz4(CompressTable),
    Zstd(Compressor),
}

impl Packer {
    /// Makes the compressed form of a sub-block the begin of `room`; returns its length.
    fn pack(&mut self, sub_block: &[u8], room: &mut Vec<u8>) -> Option<usize> {
        match self {
            Packer::Lz4(table) => {
                let most = get_maximum_output_size(sub_block.len());
                if room.len() < most {
                    room.resize(most, 0);
                }
                compress_into_with_table(sub_block, room, table).ok()
            }
            Packer::Zstd(compressor) => {
                room.clear();
                compressor.compress(sub_block, room).then_some(room.len())
            }
        }
    }
}

impl SubBlockPacker {
    /// Without room: the length of the sub-blocks is not known yet.
    pub fn new(codec: SubBlockCodec) -> SubBlockPacker {
        let packer = match codec {
            SubBlockCodec::Lz4 => Packer::Lz4(CompressTable::large()),
            SubBlockCodec::Zstd => Packer::Zstd(Compressor::new()),
        };
        SubBlockPacker { packer, room: Vec::new(), stored: Vec::new() }
    }

    /// Returns the stored form of sub-blocks of `size` bytes; the last one may be shorter.
    /// Passes the stored bytes of each to `each`.
    pub fn pack<'p>(
        &'p mut self,
        bytes: &'p [u8],
        size: usize,
        mut each: impl FnMut(&[u8]),
    ) -> &'p [u8] {
        self.stored.clear();
        let mut is_as_given = true;
        let mut done = 0;
        for sub_block in bytes.chunks(size) {
            // The room is enough for the worst case. If the compressor fails all the same, the
            // sub-block is stored uncompressed.
            let packed = self.packer.pack(sub_block, &mut self.room);
            match packed.filter(|packed| is_worth_it(*packed, sub_block.len())) {
                Some(packed) => {
                    // A value without compressed sub-blocks is never copied.
                    if is_as_given {
                        self.stored.extend_from_slice(&bytes[..done]);
                        is_as_given = false;
                    }
                    self.stored.extend_from_slice(&self.room[..packed]);
                    each(&self.room[..packed]);
                }
                None => {
                    if !is_as_given {
                        self.stored.extend_from_slice(sub_block);
                    }
                    each(sub_block);
                }
            }
            done += sub_block.len();
        }
        if is_as_given { bytes } else { &self.stored }
    }
}

/// Returns `true` if the compressed form saves enough.
fn is_worth_it(packed_len: usize, len: usize) -> bool {
    packed_len <= len - len.div_ceil(SAVED_SHARE_MIN)
}

/// Decompresses a sub-block into `target`, which has its original length; `false` if the bytes are
/// no such sub-block.
pub fn unpack(codec: SubBlockCodec, packed: &[u8], target: &mut [u8]) -> bool {
    match codec {
        SubBlockCodec::Lz4 => decompress_into(packed, target).is_ok_and(|len| len == target.len()),
        SubBlockCodec::Zstd => zstandard::decompress(packed, target, None),
    }
}

#[cfg(test)]
mod tests {
    use testkit::Rng;

    use super::*;

    /// The stored form of sub-blocks of 1000 bytes, and the length of each.
    fn pack(packer: &mut SubBlockPacker, bytes: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let mut lens = Vec::new();
        let stored = packer.pack(bytes, 1000, |stored| lens.push(stored.len())).to_vec();
        assert_eq!(stored.len(), lens.iter().sum::<usize>());
        (stored, lens)
    }

    #[test]
    fn each_sub_block_is_compressed_where_that_saves_an_eighth() {
        let mut random = vec![0; 1000];
        Rng::new(3).fill(&mut random);
        let zeros = vec![0; 1000];
        // The compressor saves less than an eighth of these, and more.
        let mut mostly_random = random.clone();
        mostly_random[900..].fill(0);
        let mut partly_random = random.clone();
        partly_random[800..].fill(0);
        let mut packer = SubBlockPacker::new(SubBlockCodec::Lz4);
        for (sub_block, is_compressed) in
            [(&random, false), (&zeros, true), (&mostly_random, false), (&partly_random, true)]
        {
            for neighbours in 0..4 {
                let mut bytes = [&random[..], &zeros].concat().repeat(neighbours);
                let before = 2 * neighbours;
                bytes.extend_from_slice(sub_block);
                bytes.extend_from_slice(&zeros[..300]);
                let (stored, lens) = pack(&mut packer, &bytes);
                assert_eq!(lens[before] < 1000, is_compressed, "after {before} others");
                let mut at = 0;
                for (len, plain) in lens.iter().zip(bytes.chunks(1000)) {
                    let mut target = vec![1; plain.len()];
                    match *len < plain.len() {
                        true => {
                            assert!(unpack(SubBlockCodec::Lz4, &stored[at..at + len], &mut target));
                        }
                        false => target.copy_from_slice(&stored[at..at + len]),
                    }
                    assert_eq!(target, plain);
                    at += len;
                }
            }
        }
        assert_eq!(pack(&mut packer, &[]), (vec![], vec![]));
    }

    #[test]
    fn a_short_value_takes_no_room_for_a_long_sub_block() {
        let mut packer = SubBlockPacker::new(SubBlockCodec::Lz4);
        for len in [100, 1000, 300] {
            let mut stored = 0;
            packer.pack(&vec![b'v'; len], 1 << 24, |sub_block| stored = sub_block.len());
            assert!(stored < len);
        }
        assert_eq!(packer.room.len(), get_maximum_output_size(1000));
    }

    /// No length in the bytes makes room: only the target is written.
    #[test]
    fn a_sub_block_that_grows_beyond_its_length_or_ends_before_is_refused() {
        let mut packer = SubBlockPacker::new(SubBlockCodec::Lz4);
        let (packed, _) = pack(&mut packer, &[7; 1000]);
        assert!(unpack(SubBlockCodec::Lz4, &packed, &mut [0; 1000]));
        for len in [0, 1, 999, 1001, 70_000] {
            assert!(!unpack(SubBlockCodec::Lz4, &packed, &mut vec![0; len]), "{len} bytes");
        }
        let bomb = [&[0x1f, 7, 1, 0][..], &[255; 4000], &[0]].concat();
        assert!(!unpack(SubBlockCodec::Lz4, &bomb, &mut [0; 1000]));
        let mut rng = Rng::new(9);
        for _ in 0..10_000 {
            let mut bytes = packed.clone();
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.next_u64() as u8;
            unpack(SubBlockCodec::Lz4, &bytes, &mut [0; 1000]);
        }
    }
}
