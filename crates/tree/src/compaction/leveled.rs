//! [`Shape`]: the size that each level should have, the urgency of each level, and the remaining
//! work.
//!
//! Called by the picker, and by the stall rules for the debt.
//!
//! Level sizes are dynamic. The last level has the size of its data. Each level above has the size
//! of the next one divided by `level_multiplier`, up to the first level that is no larger than
//! `level_base_bytes`. This is the **base level**. Level 0 is compacted into it, and the levels
//! between stay empty. So with a multiplier of 10, at least nine tenths of the data are in the last
//! level, and overwritten data takes little space in a database of any size.
//!
//! Invariants:
//! 1. No level between level 0 and the base level has tables, so entries that leave level 0 never
//!    pass older entries.

use super::Busy;
use super::fifo::FifoLimits;
use crate::limits::LEVEL_COUNT;
use crate::options::{Compression, PartitionOptions};
use crate::version::PartitionVersion;

/// The last level.
pub(super) const LAST: usize = LEVEL_COUNT - 1;

/// The compression that the tables of a level are written with.
pub fn level_compression(options: &PartitionOptions, level: usize) -> Compression {
    if level < 2 { Compression::None } else { options.compression }
}

/// Targets of a partition's levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The level that level 0 is compacted into.
    pub base: usize,
    /// The most bytes that each level should have; 0 for level 0, which counts tables, and no bound
    /// for the last level.
    pub targets: [u64; LEVEL_COUNT],
}

impl Shape {
    /// The shape that the partition should have.
    pub fn of(version: &PartitionVersion) -> Shape {
        let options = &version.options;
        let multiplier = u64::from(options.level_multiplier.max(2));
        let mut targets = [0; LEVEL_COUNT];
        targets[LAST] = u64::MAX;
        let mut size = version.levels[LAST].bytes();
        let mut base = LAST;
        while base > 1 && size > options.level_base_bytes {
            size /= multiplier;
            base -= 1;
            // 0 would mean that the level is not in use, see `score`.
            targets[base] = size.max(1);
        }
        // Tables above (the data shrank, or options changed): the levels stay in use while they
        // are small and drain when they are not.
        let first = (1..base).find(|level| !version.levels[*level].is_empty()).unwrap_or(base);
        for target in &mut targets[first..base] {
            *target = (options.level_base_bytes / multiplier).max(1);
        }
        Shape { base: first, targets }
    }

    /// The urgency of the compaction of a level: from 1 on it should run. What running jobs take
    /// away already is not counted.
    pub fn score(&self, version: &PartitionVersion, level: usize, busy: &Busy) -> f64 {
        let tables = version.levels[level].tables();
        let idle = tables.iter().filter(|table| !busy.has(table.meta.file));
        if level == 0 {
            // By count and not by bytes: each table of level 0 costs every read a look, however
            // small it is.
            return idle.count() as f64 / f64::from(version.options.level0_tables.max(1));
        }
        // The last level has none to give to, and an unused one has nothing.
        if level == LAST || self.targets[level] == 0 {
            return 0.0;
        }
        let bytes = match busy.is_idle() {
            // The sum is known.
            true => version.levels[level].bytes(),
            false => idle.map(|table| table.meta.bytes).sum(),
        };
        bytes as f64 / self.targets[level] as f64
    }
}

/// About how many bytes compactions have to rewrite before every level has its size.
pub fn compaction_debt(version: &PartitionVersion) -> u64 {
    if FifoLimits::of(version).is_some() {
        return 0;
    }
    let shape = Shape::of(version);
    let level0 = &version.levels[0];
    let mut carried = 0;
    let mut debt = 0;
    // Below the trigger no job starts on level 0, so its bytes are not due yet.
    if level0.tables().len() >= version.options.level0_tables as usize {
        carried = level0.bytes();
        // The tables of the base level are rewritten with them, as far as they overlap.
        debt += carried + version.levels[shape.base].bytes().min(carried.saturating_mul(2));
    }
    // From above: what a level is expected to give down counts as bytes of the next one.
    for level in shape.base..LAST {
        let bytes = version.levels[level].bytes() + carried;
        carried = bytes.saturating_sub(shape.targets[level]);
        if carried > 0 {
            // Assumes that keys are spread evenly: then each byte that goes down rewrites as many
            // bytes of the next level as that has for each byte here.
            let below = version.levels[level + 1].bytes() as f64 / bytes.max(1) as f64;
            debt += carried + (carried as f64 * below) as u64;
        }
    }
    debt
}
