//! The decoders of large values, for the fuzz targets of this repository.

use crate::chunks::Chunks;
use crate::format::Handle;
use crate::options::LargeValueOptions;
use crate::sub_blocks::SubBlocks;

/// Decodes a handle, and the table of the sub-blocks that follows it. A handle that decodes reads back.
pub fn handle(bytes: &[u8]) {
    for len in [64, 72] {
        let Some((front, table)) = bytes.split_at_checked(len) else { return };
        let Ok(handle) = Handle::decode(front) else { continue };
        assert_eq!(handle.encode(), front, "a handle reads back");
        let _ = (handle.end(), handle.block_bytes(), Handle::is_newer(front));
        let Ok(table) = SubBlocks::decode(&handle, table) else { continue };
        for index in 0..handle.sub_block_count() {
            let _ = table.place(&handle, index);
        }
    }
}

/// Applies the sections of two edits with the live values of each chunk file.
pub fn chunks(bytes: &[u8]) {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let mut chunks = Chunks::default();
    for (number, section) in [(1, bytes), (2, first), (3, second)] {
        let _ = chunks.apply(number, section);
    }
    let _ = chunks.held_bytes();
}

/// Decodes the options of a partition.
pub fn options(bytes: &[u8]) {
    let _ = LargeValueOptions::decode(bytes);
}
