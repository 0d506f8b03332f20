//! [`PrefixQuery`]: the tables that a scan within one prefix passes over, since their blooms do not have the prefix.
//!
//! Made by [`Cursor`](super::Cursor), and asked while [`Source`](super::Source) collects the tables of a scan.
//!
//! Invariants:
//! 1. Every user key within the bounds has the prefix. Bounds only narrow after that.
//! 2. A table that may have a key within the bounds is not passed over, whatever the key's newest entry is: a tombstone
//!    hides what older tables have. A table that does not open is not passed over, so that the scan returns the error.

use std::ops::Bound;

use crate::options::{PartitionOptions, PrefixExtractor};
use crate::sstable::{SstReader, bloom_hash};
use crate::version::{Level, TableContext, UserRange};

/// The question of one scan to the blooms of tables.
pub struct PrefixQuery<'a> {
    extractor: PrefixExtractor,
    /// The `bloom_hash` of the prefix.
    hash: u64,
    /// The bounds, as keys are stored.
    range: UserRange<'a>,
    asked: u64,
    spared: u64,
}

fn key(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

impl<'a> PrefixQuery<'a> {
    /// The question for a scan of the user keys within `bounds`, which are `stored` in another form. `None` if they
    /// have no common prefix.
    pub fn new(
        options: &PartitionOptions,
        bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
        stored: &'a (Bound<Vec<u8>>, Bound<Vec<u8>>),
    ) -> Option<PrefixQuery<'a>> {
        let extractor = options.prefix_extractor?;
        // By the keys of the user: every stored key begins with its user key, so it has the same prefix. Stored
        // bounds are longer than these, and the upper one may lie after the first key with the next prefix.
        let lower = bounds.0.as_ref().map(Vec::as_slice);
        let prefix = extractor.of_range(lower, bounds.1.as_ref().map(Vec::as_slice))?;
        let range = UserRange { start: key(&stored.0), end: key(&stored.1) };
        Some(PrefixQuery { extractor, hash: bloom_hash(prefix), range, asked: 0, spared: 0 })
    }

    /// Returns `true` if no key within the bounds is in the table.
    pub fn spares_table(&mut self, reader: &SstReader) -> bool {
        let Some(may_have) = reader.may_have_prefix(self.extractor, self.hash) else {
            return false;
        };
        self.asked += 1;
        self.spared += u64::from(!may_have);
        !may_have
    }

    /// Returns `true` if no key within the bounds is in the level, which is below level 0.
    pub fn spares_level(&mut self, level: &Level, context: &TableContext) -> bool {
        match level.overlapping(self.range) {
            [] => true,
            [table] => table.reader(context).is_ok_and(|reader| self.spares_table(reader)),
            // The last key of the first one lies within the bounds, so it has the prefix.
            [..] => false,
        }
    }

    /// Counts the question.
    pub fn count(self, context: &TableContext) {
        if self.asked > 0 {
            context.prefix_counts.asked.add(self.asked);
            context.prefix_counts.spared.add(self.spared);
        }
    }
}
