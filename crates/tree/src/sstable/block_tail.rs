//! [`BlockTail`]: the numbers at the end of a block's payload, and the places that follow from them. `block.rs`
//! describes the bytes.

use super::block_entry::RESTART_ENTRIES;
use super::hidden::HiddenColumn;
use crate::limits::INTERNAL_KEY_BYTES_MAX;

/// Bytes after the restart offsets.
pub(super) const TAIL_BYTES: usize = 16;
/// The bits of the common prefix in its number; those above are the width of the column.
const COMMON_BITS: u32 = 24;
const _: () = assert!(INTERNAL_KEY_BYTES_MAX < 1 << COMMON_BITS, "the common prefix fits");

/// The numbers after the entries of a payload.
pub(super) struct BlockTail {
    /// The offset at which they begin: the end of the restarts.
    pub start: usize,
    pub base_seq: u64,
    pub common: u32,
    /// Bytes of each payload in the column; 0 without one.
    pub width: usize,
    /// Number of visible entries.
    pub count: u32,
}

impl BlockTail {
    /// The tail of a payload; `None` if that is too short.
    #[inline]
    pub(super) fn of(payload: &[u8]) -> Option<BlockTail> {
        let start = payload.len().checked_sub(TAIL_BYTES)?;
        let (base_seq, rest) = payload[start..].split_first_chunk::<8>()?;
        let (common, count) = rest.split_first_chunk::<4>()?;
        let common = u32::from_le_bytes(*common);
        Some(BlockTail {
            start,
            base_seq: u64::from_le_bytes(*base_seq),
            common: common & ((1 << COMMON_BITS) - 1),
            width: (common >> COMMON_BITS) as usize,
            count: u32::from_le_bytes(*count.first_chunk()?),
        })
    }

    /// The end of the column, which is that of the entries where there is none. `None` if there is no
    /// room for so many entries.
    #[inline]
    pub(super) fn column_end(&self) -> Option<usize> {
        let restart_bytes = 4 * u64::from(self.count.div_ceil(RESTART_ENTRIES));
        self.start.checked_sub(usize::try_from(restart_bytes).ok()?)
    }

    /// The column, if the block has one and there is room for it.
    #[inline]
    pub(super) fn column(&self) -> Option<HiddenColumn> {
        // After no entry there is no hidden one.
        if self.width == 0 || self.count == 0 {
            return None;
        }
        let bytes = self.width.checked_mul(self.count as usize)?;
        HiddenColumn::at(self.column_end()?.checked_sub(bytes)?, self.width)
    }

    /// Returns `true` if `entries` visible entries that end at `end` are all of the block, whatever number of
    /// them is stored: column and restarts are as long as the entries ask for.
    #[inline]
    pub(super) fn are_all(&self, entries: usize, end: usize) -> bool {
        let restarts = entries.div_ceil(RESTART_ENTRIES as usize);
        end + self.width * entries + 4 * restarts == self.start
    }

    /// The column after entries that decode and end at `end`. If they are all of the block, its place
    /// follows from them, and else from the stored number.
    pub(super) fn column_after(&self, end: usize, are_all: bool) -> Option<HiddenColumn> {
        if are_all {
            return HiddenColumn::at(end, self.width);
        }
        self.column().filter(|column| column.start >= end)
    }

    /// The end of the entries. `None` if there is no room for what comes after them.
    #[inline]
    pub(super) fn entries_end(&self) -> Option<usize> {
        if self.width == 0 { self.column_end() } else { self.column().map(|column| column.start) }
    }
}

/// The number for a common prefix of this length and a column of this width.
pub(super) fn put_common(common: usize, width: usize) -> u32 {
    let common = u32::try_from(common).expect("keys are at most 64 KiB");
    common | (width as u32) << COMMON_BITS
}
