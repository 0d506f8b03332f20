//! [`Picker::fifo`]: the tables that a partition with [`CompactionStyle::Fifo`] drops.
//!
//! Called by the picker, in the place of all merges. Like the rest of the picker a pure function of its fields.
//!
//! Flushes add tables to level 0, and they stay there. Tables of deeper levels are from a time when the partition was
//! leveled; they are older than level 0.
//!
//! Invariants:
//! 1. A table goes only together with all older ones. So what it deletes or overwrites does not appear again.
//! 2. A table stays while a snapshot that somebody holds may read it.

use std::sync::Arc;

use super::picker::Picker;
use super::{Compaction, Method, Trigger};
use crate::options::CompactionStyle;
use crate::version::{HookKind, PartitionVersion, Table};

/// The limits of a FIFO.
#[derive(Clone, Copy, Debug)]
pub(super) struct FifoLimits {
    bytes_max: u64,
    seconds_max: u64,
}

impl FifoLimits {
    /// Those of the partition; `None` if it is leveled.
    pub(super) fn of(version: &PartitionVersion) -> Option<FifoLimits> {
        match version.options.compaction_style {
            CompactionStyle::Leveled => None,
            CompactionStyle::Fifo { bytes_max, seconds_max } => {
                Some(FifoLimits { bytes_max, seconds_max })
            }
        }
    }
}

/// All tables with their levels, oldest first.
fn oldest_first(version: &PartitionVersion) -> Vec<(usize, &Arc<Table>)> {
    let mut tables: Vec<_> = version.tables().collect();
    // From the last level up. Of level 0 by their newest entries, as it is sorted itself; tables of a deeper level have
    // no key in common, and may go in any order.
    tables.sort_by_key(|(level, table)| (std::cmp::Reverse(*level), table.meta.newest()));
    tables
}

impl Picker<'_> {
    /// The oldest tables that are beyond the limits.
    pub(super) fn fifo(&self, limits: FifoLimits) -> Option<Compaction> {
        let tables = oldest_first(self.version);
        let due = self.count_due(&tables, limits);
        // In order: a table that has to stay keeps all newer ones.
        let free = tables[..due].iter().take_while(|(_, table)| {
            !self.busy.has(table.meta.file)
                && self.held.last().is_none_or(|held| *held < table.meta.oldest())
        });
        let free: Vec<_> = free.collect();
        let (level, _) = **free.first()?;
        let has_values = self.version.hooks.iter().any(|hook| hook.kind == HookKind::ValueStore);
        let mut inputs: Vec<(usize, Vec<Arc<Table>>)> = Vec::new();
        for (level, table) in free {
            match inputs.last_mut() {
                Some((last, of_level)) if last == level => of_level.push((*table).clone()),
                _ => inputs.push((*level, vec![(*table).clone()])),
            }
        }
        if has_values {
            // They are read, for the store to hear which values go.
            inputs.truncate(1);
        }
        // In the order of their level, as every job has them.
        for (level, of_level) in &mut inputs {
            if *level == 0 {
                of_level.reverse();
            } else {
                of_level.sort_by(|a, b| a.meta.smallest.cmp(&b.meta.smallest));
            }
        }
        Some(Compaction {
            level_from: level,
            level_to: level,
            inputs,
            method: if has_values { Method::Merge } else { Method::Drop },
            bottom: false,
            grandparents: Vec::new(),
            trigger: Trigger::Fifo,
            score: 1.0,
        })
    }

    /// The number of tables, from the oldest on, that are beyond a limit.
    fn count_due(&self, tables: &[(usize, &Arc<Table>)], limits: FifoLimits) -> usize {
        let bytes: u64 = tables.iter().map(|(_, table)| table.meta.bytes).sum();
        let mut excess = bytes.saturating_sub(limits.bytes_max);
        let by_size = tables.iter().take_while(|(_, table)| {
            let is_due = excess > 0;
            excess = excess.saturating_sub(table.meta.bytes);
            is_due
        });
        let by_size = by_size.count();
        // A table without a time, from an ingest or from before this limit, is as old as the next newer one that has one.
        let by_age = tables.iter().rposition(|(_, table)| {
            let written_at = table.meta.written_at;
            written_at.is_some_and(|at| self.unix_seconds.saturating_sub(at) > limits.seconds_max)
        });
        let by_age = by_age.map_or(0, |last| last + 1);
        by_size.max(by_age)
    }
}
