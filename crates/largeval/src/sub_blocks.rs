//! [`SubBlocks`]: the table of the sub-blocks of a value: the place and the checksum of each.
//!
//! A writer fills it while it appends sub-blocks. A reader decodes it from the end of the block;
//! the root hash covers it. `format.rs` has its bytes.
//!
//! Invariant: a table that was decoded agrees with its handle: no stored length is more than the length
//! of its sub-block, or 0, and together they are the stored length of the value.

use lsm_core::codec::{Malformed, Reader, checksum128, put_u32, put_u64};

use crate::format::{Form, Handle};

/// The place and the checksum of each sub-block of a value.
#[derive(Debug, Default)]
pub struct SubBlocks {
    /// Checksums of the stored bytes, bound to no place.
    sums: Vec<u64>,
    /// Stored lengths, in bytes; empty in the plain form, where they follow from the handle.
    lens: Vec<u32>,
    /// Offsets of the sub-blocks from the begin of the value, in a decoded table; as `lens`.
    starts: Vec<u64>,
}

/// A sub-block in its chunk file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset in the chunk file, in bytes.
    pub offset: u64,
    /// Length as it is stored, in bytes.
    pub stored_len: usize,
    /// Length in bytes.
    pub len: usize,
    /// Checksum of the stored bytes, bound to no place.
    pub sum: u64,
}

impl Place {
    /// Returns `true` if the stored bytes are compressed.
    pub fn is_compressed(&self) -> bool {
        self.stored_len < self.len
    }
}

impl SubBlocks {
    /// Adds a sub-block of a value in `form`, with the checksum and the length of its stored bytes.
    pub fn push(&mut self, form: Form, sum: u64, stored_len: usize) {
        self.sums.push(sum);
        if form != Form::Plain {
            // A sub-block has 2^24 bytes at most.
            self.lens.push(stored_len as u32);
        }
    }

    /// The table of a value that is stored as it was given, by the checksums of its sub-blocks.
    pub fn as_given(handle: &Handle, sums: Vec<u64>) -> SubBlocks {
        let lens = match handle.form {
            Form::Plain => Vec::new(),
            Form::Compressed { .. } => {
                let lens = (0..sums.len() as u64).map(|index| handle.sub_block_len(index));
                lens.map(|len| len as u32).collect()
            }
        };
        SubBlocks { sums, lens, starts: Vec::new() }
    }

    /// Checksums of the stored bytes, bound to no place.
    pub fn sums(&self) -> &[u64] {
        &self.sums
    }

    /// Stored length of all sub-blocks that were pushed, in bytes, for a form that is not plain.
    pub fn stored_len(&self) -> u64 {
        self.lens.iter().map(|len| u64::from(*len)).sum()
    }

    /// The root hash of a value of `len` bytes.
    pub fn root_of(&self, len: u64) -> u128 {
        // Unbound: a value that moves to another place keeps its root hash, and is verified by it
        // on the way.
        let mut bytes = self.entries(|_, sum| sum);
        put_u64(&mut bytes, len);
        checksum128(&bytes)
    }

    /// The bytes of the table in the block of a handle.
    pub fn encode(&self, handle: &Handle) -> Vec<u8> {
        let binding = handle.binding();
        self.entries(|index, sum| binding.apply(sum, index as u64))
    }

    /// The entries one after the other, with these forms of the checksums.
    fn entries(&self, sum_of: impl Fn(usize, u64) -> u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(12 * self.sums.len() + 8);
        for (index, sum) in self.sums.iter().enumerate() {
            put_u64(&mut bytes, sum_of(index, *sum));
            if let Some(len) = self.lens.get(index) {
                put_u32(&mut bytes, *len);
            }
        }
        bytes
    }

    /// The table of a handle by its bytes.
    ///
    /// # Errors
    /// The root hash does not cover these bytes.
    pub fn decode(handle: &Handle, bytes: &[u8]) -> Result<SubBlocks, Malformed> {
        let mut r = Reader::new(bytes);
        let mut table = SubBlocks::default();
        let binding = handle.binding();
        for index in 0..handle.sub_block_count() {
            // The binding is removed before the root hash is compared: the table of another value,
            // or of another place, does not match then.
            table.sums.push(binding.apply(r.u64()?, index));
            if handle.form != Form::Plain {
                table.lens.push(r.u32()?);
            }
        }
        r.finish()?;
        if table.root_of(handle.len) != handle.root {
            let what = "the checksums of a value do not agree with its handle";
            return Err(Malformed { what, at: 0 });
        }
        table.find_starts(handle)?;
        Ok(table)
    }

    /// Computes the offset of each sub-block, and checks the stored lengths: the root hash shows
    /// that they are as they were written, and not that the writer was correct.
    fn find_starts(&mut self, handle: &Handle) -> Result<(), Malformed> {
        let mut start = 0;
        for (index, len) in self.lens.iter().enumerate() {
            if *len == 0 || *len as usize > handle.sub_block_len(index as u64) {
                return Err(Malformed { what: "an impossible length of a sub-block", at: index });
            }
            // Summed once for the table. A read in the middle of a value would otherwise add up all
            // lengths before it.
            self.starts.push(start);
            start += u64::from(*len);
        }
        if !self.lens.is_empty() && start != handle.stored_len() {
            let what = "the lengths of sub-blocks do not agree with their handle";
            return Err(Malformed { what, at: self.lens.len() });
        }
        Ok(())
    }

    /// The place of the sub-block `index` of a handle, by a decoded table.
    pub fn place(&self, handle: &Handle, index: u64) -> Place {
        let at = index as usize;
        let len = handle.sub_block_len(index);
        let start = self.starts.get(at).copied().unwrap_or(index * handle.sub_block_bytes());
        let stored_len = self.lens.get(at).map_or(len, |len| *len as usize);
        Place { offset: handle.value_offset() + start, stored_len, len, sum: self.sums[at] }
    }
}

#[cfg(test)]
mod tests {
    use lsm_core::hooks::ChunkId;
    use lsm_core::types::{Epoch, FileNo};

    use super::*;
    use crate::packing::SubBlockCodec;

    /// A handle of a value of three sub-blocks that are stored in these lengths, and its table.
    fn written(lens: &[u32; 3]) -> (Handle, Vec<u8>) {
        let mut handle = Handle {
            chunk: ChunkId { number: FileNo(5), epoch: Epoch(1) },
            offset: 64,
            key_len: 3,
            sub_block_log2: 8,
            len: 700,
            stored_us: 0,
            root: 0,
            form: Form::Compressed { codec: SubBlockCodec::Lz4, stored_len: 0 },
        };
        let mut table = SubBlocks::default();
        for (index, len) in lens.iter().enumerate() {
            table.push(handle.form, index as u64 + 77, *len as usize);
        }
        handle.form =
            Form::Compressed { codec: SubBlockCodec::Lz4, stored_len: table.stored_len() };
        handle.root = table.root_of(handle.len);
        let bytes = table.encode(&handle);
        (handle, bytes)
    }

    #[test]
    fn a_table_reads_back_and_every_changed_bit_of_it_is_found() {
        let (handle, bytes) = written(&[256, 20, 188]);
        let table = SubBlocks::decode(&handle, &bytes).unwrap();
        let place = table.place(&handle, 1);
        let expected = Place { offset: 64 + 48 + 3 + 256, stored_len: 20, len: 256, sum: 78 };
        assert_eq!(place, expected);
        assert!(place.is_compressed() && !table.place(&handle, 2).is_compressed());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(SubBlocks::decode(&handle, &damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(SubBlocks::decode(&handle, &bytes[..len]).is_err(), "{len} bytes");
        }
    }

    /// With a right root hash, as a writer with a mistake would write them.
    #[test]
    fn lengths_that_no_sub_block_has_are_refused() {
        for lens in [[0, 256, 188], [257, 1, 1], [1, 1, 189], [u32::MAX, u32::MAX, 1]] {
            let (handle, bytes) = written(&lens);
            SubBlocks::decode(&handle, &bytes).unwrap_err();
        }
        let (handle, bytes) = written(&[256, 20, 188]);
        let shorter = Handle {
            form: Form::Compressed { codec: SubBlockCodec::Lz4, stored_len: 463 },
            ..handle
        };
        // Bound to the same place, so that the sum of the lengths alone is wrong.
        SubBlocks::decode(&shorter, &bytes).unwrap_err();
    }
}
