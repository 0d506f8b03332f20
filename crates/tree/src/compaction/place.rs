//! [`ingest_level`]: chooses the level of a finished table that comes from outside.
//!
//! Called by ingests, under the lock of the claims. A pure function.
//!
//! Invariants:
//! 1. No table above the chosen level overlaps the new one. The new table is newer than all others,
//!    so deeper entries stay older.
//! 2. No table on the chosen level overlaps it, and no running job may write there.
//! 3. Level 0 is always a valid choice.

use super::fifo::FifoLimits;
use super::{Busy, Shape};
use crate::limits::LEVEL_COUNT;
use crate::version::{PartitionVersion, UserRange};

/// The deepest level to which a table that is newer than everything else and holds user keys of
/// `range` can be added.
pub fn ingest_level(version: &PartitionVersion, busy: &Busy, range: UserRange<'_>) -> usize {
    // A FIFO has its tables in the order of their age, on level 0.
    if FifoLimits::of(version).is_some() {
        return 0;
    }
    if version.levels[0].tables().iter().any(|table| table.meta.overlaps(range)) {
        // Level 0 orders overlapping tables by age; below it the newer table would be hidden by the
        // older one.
        return 0;
    }
    // Levels between 0 and the base level have no tables and stay so.
    let base = Shape::of(version).base;
    let free = (base..LEVEL_COUNT)
        .take_while(|level| version.levels[*level].overlapping(range).is_empty());
    // A level where a job may write is skipped, but not those below it: none of the job's inputs
    // has a key of the range, or the range would not be free above.
    free.filter(|level| !busy.writes(*level, range)).last().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::drawing::{draw, table};
    use super::*;

    /// The level of `arriving` over the drawing, with `taken` reserved on level 6.
    #[track_caller]
    fn check(drawing: &str, taken: &str, arriving: &str, expected: usize) {
        let mut busy = Busy::default();
        if !taken.is_empty() {
            busy.reserve(6, &table(taken));
        }
        let meta = table(arriving);
        assert_eq!(ingest_level(&draw(drawing), &busy, meta.range()), expected, "{drawing}");
        if !taken.is_empty() {
            busy.unreserve(table(taken).file);
            assert_eq!(busy.claims(), 0);
        }
    }

    #[test]
    fn a_table_sinks_to_the_last_level_that_is_free_above_and_there() {
        check("", "", "9:a-c", 6);
        check("L6: 1:d-e", "", "9:a-c", 6);
        check("L6: 1:a-e", "", "9:b-c", 0);
        check("L0: 2:c-d\nL6: 1:x-z", "", "9:a-c", 0);
        check("L0: 2:d-e\nL6: 1:x-z", "", "9:a-c", 6);
        check("L5: 2:x-z\nL6: 1:a-e", "", "9:b-c", 5);
        check("L5: 2:c-d\nL6: 1:x-z", "", "9:b-c", 0);
        check("L4: 3:x-z\nL5: 2:c-d", "", "9:b-c", 4);
    }

    #[test]
    fn where_a_job_may_write_nothing_is_placed() {
        check("", "3:a-z", "9:b-c", 0);
        check("L5: 2:x-z", "3:a-d", "9:b-c", 5);
        check("L5: 2:x-z", "3:d-e", "9:b-c", 6);
    }
}
