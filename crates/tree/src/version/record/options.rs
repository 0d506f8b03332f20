//! The stored options of a partition, as `edit.rs` describes them.

use super::{EditFault, number, put_field, put_number, read_fields};
use crate::codec::Reader;
use crate::options::{CompactionStyle, Compression, PartitionOptions, PrefixExtractor};

/// Appends options as `edit.rs` describes them.
pub fn put_options(out: &mut Vec<u8>, options: &PartitionOptions) {
    // Destructured, so that a new option does not compile until it is stored.
    let PartitionOptions {
        logged,
        compression,
        block_bytes,
        bloom_bits_per_key,
        table_bytes,
        level0_tables,
        level_base_bytes,
        level_multiplier,
        prefix_extractor,
        compaction_style,
    } = options;
    put_field(out, 1, u64::from(*logged));
    put_field(out, 2, u64::from(*compression as u8));
    put_field(out, 3, u64::from(*block_bytes));
    put_field(out, 4, u64::from(*bloom_bits_per_key));
    put_field(out, 5, *table_bytes);
    put_field(out, 6, u64::from(*level0_tables));
    put_field(out, 7, *level_base_bytes);
    put_field(out, 8, u64::from(*level_multiplier));
    // A reader that skips it asks no bloom for prefixes, and finds the same entries.
    if let Some(extractor) = prefix_extractor {
        put_number(out, 9 << 1 | 1, extractor.number().into());
    }
    // A reader that skips these merges the tables and removes none.
    if let CompactionStyle::Fifo { bytes_max, seconds_max } = compaction_style {
        put_number(out, 10 << 1 | 1, *bytes_max);
        if *seconds_max != u64::MAX {
            put_number(out, 11 << 1 | 1, *seconds_max);
        }
    }
}

/// Reads what [`put_options`] wrote, to the end of `r`.
pub fn read_options(r: &mut Reader<'_>) -> Result<PartitionOptions, EditFault> {
    let mut options = PartitionOptions::default();
    let mut compression = None;
    let mut fifo_bytes_max = None;
    let mut fifo_seconds_max = u64::MAX;
    read_fields(r, "partition", |tag, value| {
        if !(1..=11).contains(&tag) {
            return Some(false);
        }
        let n = number(value)?;
        match tag {
            1 if n <= 1 => options.logged = n == 1,
            1 => return None,
            // Checked after the fields, so that an unknown number is reported as newer code and not
            // as damage.
            2 => compression = Some(n),
            3 => options.block_bytes = u32::try_from(n).ok()?,
            4 => options.bloom_bits_per_key = u32::try_from(n).ok()?,
            5 => options.table_bytes = n,
            6 => options.level0_tables = u32::try_from(n).ok()?,
            7 => options.level_base_bytes = n,
            8 => options.level_multiplier = u32::try_from(n).ok()?,
            // An unknown number counts as absent.
            9 => options.prefix_extractor = PrefixExtractor::from_number(u32::try_from(n).ok()?),
            10 => fifo_bytes_max = Some(n),
            11 => fifo_seconds_max = n,
            _ => return Some(false),
        }
        Some(true)
    })?;
    if let Some(bytes_max) = fifo_bytes_max {
        options.compaction_style =
            CompactionStyle::Fifo { bytes_max, seconds_max: fifo_seconds_max };
    }
    if let Some(n) = compression {
        let known = u8::try_from(n).ok().and_then(Compression::from_u8);
        options.compression =
            known.ok_or_else(|| EditFault::Unsupported(format!("compression {n}")))?;
    }
    // From here on the options are trusted: no division by a number from a file.
    options.check().map_err(|_| r.malformed("options out of range"))?;
    Ok(options)
}
