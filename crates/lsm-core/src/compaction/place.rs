//! [`ingest_level`]: where a finished table from elsewhere belongs.
//!
//! Called by ingests, under the lock of the claims. A pure function.
//!
//! Invariants:
//! 1. Above the answer nothing overlaps the table, so deeper stays older: the table is newer than
//!    all that exists.
//! 2. On the answer nothing overlaps it and no running job may write there.
//! 3. Level 0 is always right.

use super::{Busy, Shape};
use crate::limits::LEVEL_COUNT;
use crate::version::{PartitionVersion, UserRange};

/// The deepest level to which a table that is newer than everything else and holds user keys of
/// `range` can be added.
pub fn ingest_level(version: &PartitionVersion, busy: &Busy, range: UserRange<'_>) -> usize {
    if version.levels[0].tables().iter().any(|table| table.meta.overlaps(range)) {
        return 0;
    }
    // Levels between 0 and the base level have no tables and stay so.
    let base = Shape::of(version).base;
    let free =
        (base..LEVEL_COUNT).take_while(|level| version.levels[*level].overlapping(range).is_empty());
    free.filter(|level| !busy.writes(*level, range)).last().unwrap_or(0)
}
