//! Every limit as a constant, with the check that enforces it.
//!
//! Called at the boundary (`db/write.rs`, `db/open.rs`) and by decoders. After that the types are trusted. A
//! limit lives here once and nowhere in prose.

use crate::error::{Error, ErrorKind, Result};

/// Longest user key in bytes. The internal key adds the suffix that a compaction filter reserves.
pub const USER_KEY_BYTES_MAX: usize = 65_534;
/// Longest internal key without its trailer, in bytes.
pub const INTERNAL_KEY_BYTES_MAX: usize = 65_536;
/// Largest value that the formats can hold inline, in bytes (1 GiB).
pub const FORMAT_VALUE_BYTES_MAX: u64 = 1 << 30;
/// Longest operand of a merge, in bytes (1 MiB). Operands are never stored apart.
pub const OPERAND_BYTES_MAX: u64 = 1 << 20;
/// Longest large value into which a compaction folds operands, in bytes (16 MiB). Above a longer one they stay operands,
/// so that no merge writes it again.
pub const FOLDED_LARGE_VALUE_BYTES_MAX: u64 = 16 << 20;
/// Largest batch that the formats can hold, in bytes (2 GiB less one frame of overhead).
pub const FORMAT_BATCH_BYTES_MAX: u64 = (2 << 30) - (1 << 20);
/// Longest partition name in bytes.
pub const PARTITION_NAME_BYTES_MAX: usize = 255;
/// Most partitions that may exist at once.
pub const PARTITIONS_MAX: usize = 65_536;
/// Number of levels of each partition's tree.
pub const LEVEL_COUNT: usize = 7;
/// Largest decoded block that a reader accepts, in bytes: one entry of the largest value, and room.
pub const BLOCK_BYTES_MAX: u64 = FORMAT_VALUE_BYTES_MAX + (1 << 20);
/// The largest number of bytes, or of entries, that a manifest may claim for one table: 16 TiB.
pub const TABLE_FIGURE_MAX: u64 = 1 << 44;
/// Largest sequence number (56 bits).
pub const SEQNO_MAX: u64 = (1 << 56) - 1;
/// A lower rate of background writes would stop the database rather than slow it down.
pub const BACKGROUND_BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// Checks the length of a user key.
pub fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > USER_KEY_BYTES_MAX {
        return Err(Error::limit("key length", key.len() as u64, USER_KEY_BYTES_MAX as u64));
    }
    Ok(())
}

/// Checks the name of a partition.
pub fn check_partition_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > PARTITION_NAME_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!(
                "partition name has {} bytes, the limits are 1 to {PARTITION_NAME_BYTES_MAX}",
                name.len()
            ),
        ));
    }
    Ok(())
}
