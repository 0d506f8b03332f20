//! [`Picker::pick_range`]: the jobs of a compaction that the user asked for.
//!
//! Called until the range is done. The jobs run one after another; background threads may run others at the
//! same time. Like the rest of the picker it is a pure function of its fields.
//!
//! Invariant: tables that are newer than the request are not waited for, so that it ends while somebody
//! writes.

use std::sync::Arc;

use super::fifo::FifoLimits;
use super::leveled::{LAST, Shape};
use super::picker::{GROWN_TABLES_MAX, Picker};
use super::{Compaction, Trigger};
use crate::types::{FileNo, SeqNo};
use crate::version::{SstMeta, Table, UserRange};

/// The end of a compaction that the user asked for.
#[derive(Clone, Copy, Debug)]
pub enum Finish {
    /// The range lies in the last level.
    LastLevel,
    /// And it has nothing that could go.
    Clean,
    /// And among its tables with smaller numbers than this, small neighbours were merged.
    Packed(FileNo),
}

/// The next step of a compaction that the user asked for.
#[derive(Debug)]
pub enum RangePick {
    /// This job.
    Due(Compaction),
    /// Running jobs are in the way; ask again when one is done.
    Blocked,
    /// The end is reached.
    Done,
}

impl Picker<'_> {
    /// The next job that brings the range nearer to `finish`.
    pub fn pick_range(&self, range: UserRange<'_>, through: SeqNo, finish: Finish) -> RangePick {
        match (self.descent(range, through), finish) {
            (RangePick::Done, Finish::Clean) => self.tidying(range),
            // First, because what it rewrites is then done for the other steps as well.
            (RangePick::Done, Finish::Packed(before)) => match self.small_asked(range, before) {
                Some(job) => RangePick::Due(job),
                None => self.tidying(range),
            },
            (picked, _) => picked,
        }
    }

    /// The next job that brings the range nearer to the last level.
    fn descent(&self, range: UserRange<'_>, through: SeqNo) -> RangePick {
        if let Some(job) = self.cleared() {
            return RangePick::Due(job);
        }
        // The range of a FIFO is as compact as it gets, once the oldest tables are gone.
        if let Some(limits) = FifoLimits::of(self.version) {
            return self.fifo(limits).map_or(RangePick::Done, RangePick::Due);
        }
        let base = Shape::of(self.version).base;
        // From above: what a level gives down is then part of the next step. From below the last level
        // would be rewritten once for each level above it.
        let mut waits = false;
        if self.version.levels[0]
            .tables()
            .iter()
            // Tables that are newer than the request are not its business: with them it would not
            // end while somebody writes.
            .any(|table: &Arc<Table>| table.meta.overlaps(range) && table.meta.oldest() <= through)
        {
            match self.level0(base, range, Trigger::Range) {
                Some(job) => return RangePick::Due(job),
                None => waits = true,
            }
        }
        for level in 1..LAST {
            let tables = self.version.levels[level].overlapping(range);
            // Any table above the last level is unfinished work, also if it is busy now.
            waits |= !tables.is_empty();
            for (at, table) in tables.iter().enumerate() {
                // A long run saves merges. It fails as a whole if one table that it overlaps is
                // busy, so the first table alone is tried next.
                let run = &tables[at..at + self.run_length(&tables[at..])];
                let job = self
                    .step(level, run, Trigger::Range)
                    .or_else(|| self.step(level, std::slice::from_ref(table), Trigger::Range));
                if let Some(job) = job {
                    return RangePick::Due(job);
                }
            }
        }
        if waits { RangePick::Blocked } else { RangePick::Done }
    }

    /// The next rewrite of tables of the last level from which something can go, or that filters are to see.
    fn tidying(&self, range: UserRange<'_>) -> RangePick {
        if let Some(job) = self.elision(range, |meta: &SstMeta| meta.tombstones > 0) {
            return RangePick::Due(job);
        }
        for table in self.version.levels[LAST].overlapping(range) {
            let is_asked_for = self.rewrite_before.is_some_and(|before| table.meta.file < before);
            let is_outdated = self.outdated.contains(&table.meta.file);
            if is_asked_for || is_outdated || table.meta.droppable(self.held) > 0 {
                let run = self.extend(LAST, std::slice::from_ref(table));
                return match self.job((LAST, run), (LAST, &[]), Trigger::Elision) {
                    Some(job) => RangePick::Due(job),
                    None => RangePick::Blocked,
                };
            }
        }
        // A running job may write tables here that have something to drop: the range is done only
        // when none is left.
        let last = self.version.levels[LAST].overlapping(range);
        if last.iter().any(|table| self.busy.has(table.meta.file)) {
            return RangePick::Blocked;
        }
        RangePick::Done
    }

    /// The number of tables, from the first on, that make one job.
    fn run_length(&self, tables: &[Arc<Table>]) -> usize {
        let mut room = self.version.options.table_bytes.saturating_mul(GROWN_TABLES_MAX);
        let fitting = tables.iter().take_while(|table| {
            let fits = !self.busy.has(table.meta.file) && table.meta.bytes <= room;
            room = room.saturating_sub(table.meta.bytes);
            fits
        });
        // One table at least, also if it is larger than the room or busy: then `step` decides.
        fitting.count().max(1)
    }
}
