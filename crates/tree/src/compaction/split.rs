//! [`Split`]: decides where an output table of a merge ends.
//!
//! The loop of `survivors.rs` asks before each new user key and never between versions of one: all
//! versions of a user key are in one table.
//!
//! An output ends
//! - when it has its full size;
//! - when it overlaps so much of the level below that its own compaction would be too large;
//! - from half its size on, at the boundaries of tables of that level, so that later jobs share
//!   fewer tables.
//!
//! Invariant: where a job rewrites, on their level, tables that fit into one, each output but the last has
//! [`PartitionOptions::table_bytes`](crate::options::PartitionOptions::table_bytes) in its file. Otherwise
//! `small.rs` would merge what a rewrite has cut, without end.

use std::sync::Arc;

use super::Compaction;
use super::picker::GRANDPARENT_TABLES_MAX;
use crate::version::Table;

/// The length of an output, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// About the length of the file if it were finished now. The compressed length of the block under way is not
    /// known.
    Estimated,
    /// The bytes of finished blocks: the file is longer.
    Written,
}

/// The rule, with its place among the grandparents.
#[derive(Debug)]
pub struct Split {
    grandparents: Vec<Arc<Table>>,
    table_bytes: u64,
    overlap_bytes_max: u64,
    measure: Measure,
    at: usize,
    /// Bytes of grandparents that the present output has passed.
    overlap_bytes: u64,
}

impl Split {
    /// Returns the rule of a job whose outputs should have `table_bytes`.
    pub fn new(job: &Compaction, table_bytes: u64) -> Split {
        let split = Split::by_size(table_bytes);
        if job.level_from == job.level_to && job.bytes() <= table_bytes {
            return Split { measure: Measure::Written, ..split };
        }
        Split { grandparents: job.grandparents.clone(), ..split }
    }

    /// Returns the rule that ends outputs by length alone.
    pub fn by_size(table_bytes: u64) -> Split {
        Split {
            grandparents: Vec::new(),
            table_bytes,
            overlap_bytes_max: table_bytes.saturating_mul(GRANDPARENT_TABLES_MAX),
            measure: Measure::Estimated,
            at: 0,
            overlap_bytes: 0,
        }
    }

    /// The length that [`Split::ends_before`] is to be asked with.
    #[inline]
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// Returns `true` if the present output, of `bytes` so far, should end before the user key.
    /// Keys ascend. If it may not end there (a filter forbids it), ask again at the next key.
    pub fn ends_before(&mut self, user: &[u8], bytes: u64) -> bool {
        let mut passed = false;
        while let Some(table) = self.grandparents.get(self.at)
            && table.meta.ends_before(user)
        {
            // A grandparent that ended before the first entry of the output does not overlap it.
            self.overlap_bytes += if bytes > 0 { table.meta.bytes } else { 0 };
            self.at += 1;
            passed = true;
        }
        bytes > 0
            && (bytes >= self.table_bytes
                || self.overlap_bytes > self.overlap_bytes_max
                // From half on: at every boundary, outputs over many small grandparents would be as
                // small as those.
                || (passed && bytes >= self.table_bytes / 2))
    }

    /// A new output begins.
    pub fn begin(&mut self) {
        self.overlap_bytes = 0;
    }
}
