//! [`Picker::small`]: runs of neighbours on one level that are much smaller than a table.
//!
//! Called by the picker when nothing else is due, and for a compaction that the user asked for. A pure
//! function of the version and the claims (design note 29).
//!
//! Such tables come from opens and flushes of few entries whose keys ascend: nothing overlaps, so each is
//! moved to its level as it is. No other rule merges them, and each costs a file, an entry of the manifest
//! and a part of every cursor.
//!
//! Invariants:
//! 1. A run is a contiguous piece of its level, has no busy table, and is rewritten where it is. All
//!    versions of a key lie in one table, so no entry passes an older one.
//! 2. **Merges in the background end.** A run has [`RUN_TABLES_MIN`] small tables or more and
//!    [`table_bytes`](crate::options::PartitionOptions::table_bytes) together, at most. By the invariant of
//!    `split.rs` each output but the last has `table_bytes` or more, and is not small. So each merge leaves
//!    fewer small tables than there were. No rewrite of one small table leaves more than one, by the same
//!    invariant. Only new entries make small tables, a finite number for each flush.
//! 3. **A request ends,** also if each output had one entry: its merges take two tables or more, all with
//!    numbers below a limit, and every output has a number above it. So the number of tables below the limit
//!    falls with each merge, and each table is rewritten once at most.
//! 4. **The cost is logarithmic.** In the background the largest table of a run has no more than half of its
//!    bytes. Charge a merge to the others, twice. A table is merged once, so what it has in addition to its entries
//!    is charged once. An entry that is charged is then in a table with twice the bytes of entries, if
//!    nothing was dropped, and never again from [`SMALL_SHARE`] on. So `n` tables of `p` bytes of entries
//!    and `o` bytes of others make merges write less than `2 * n * (8 / 7 * o + p * log2(small / p))` bytes.

use std::sync::Arc;

use super::leveled::LAST;
use super::picker::{GRANDPARENT_TABLES_MAX, Picker};
use super::{Compaction, Trigger, hull};
use crate::types::FileNo;
use crate::version::{Table, UserRange};

/// A table of less than one part in so many of `table_bytes` is small.
const SMALL_SHARE: u64 = 16;
/// The same for a compaction that the user asked for: fewer and larger tables for more bytes rewritten.
const SMALL_SHARE_ASKED: u64 = 4;
/// So many neighbours are many: fewer cost less than the edit and the syncs of a merge.
const RUN_TABLES_MIN: usize = 8;
/// A run ends at so many tables, for a merge to end soon.
const RUN_TABLES_MAX: usize = 256;
/// The same for a compaction that the user asked for. The metadata of so many open tables fits into memory.
const RUN_TABLES_MAX_ASKED: usize = 4096;
/// A request merges a run of so few bytes whatever its tables: the syncs take longer than the bytes.
const RUN_BYTES_FREE: u64 = 1 << 20;

/// The tables that are small, and the runs of them that are worth a merge.
struct SmallRule {
    bytes_max: u64,
    tables_min: usize,
    tables_max: usize,
    /// All tables of a run but the largest have one part in so many of its bytes, at least.
    rest_share: u64,
    /// A run of no more bytes may have tables of any proportion.
    bytes_free: u64,
    /// Tables with this number and larger ones are left out.
    before: FileNo,
}

impl Picker<'_> {
    /// Many small neighbours, none of which has most of their bytes.
    pub(super) fn small(&self) -> Option<Compaction> {
        let rule = SmallRule {
            bytes_max: self.version.options.table_bytes / SMALL_SHARE,
            tables_min: RUN_TABLES_MIN,
            tables_max: RUN_TABLES_MAX,
            rest_share: 2,
            bytes_free: 0,
            before: FileNo(u64::MAX),
        };
        (1..=LAST).find_map(|level| {
            let tables = self.version.levels[level].tables();
            self.small_run(level, tables, &rule, Trigger::Small)
        })
    }

    /// Two small neighbours of the last level or more, in the range. Tables with numbers from `before` on
    /// were written for the request, or since.
    pub(super) fn small_asked(&self, range: UserRange<'_>, before: FileNo) -> Option<Compaction> {
        let rule = SmallRule {
            bytes_max: self.version.options.table_bytes / SMALL_SHARE_ASKED,
            tables_min: 2,
            tables_max: RUN_TABLES_MAX_ASKED,
            rest_share: 16,
            bytes_free: RUN_BYTES_FREE,
            before,
        };
        let tables = self.version.levels[LAST].overlapping(range);
        self.small_run(LAST, tables, &rule, Trigger::Range)
    }

    fn small_run(
        &self,
        level: usize,
        tables: &[Arc<Table>],
        rule: &SmallRule,
        trigger: Trigger,
    ) -> Option<Compaction> {
        // A stretch ends where a table of another kind begins, and where its tables make a full one.
        let mut rest = tables;
        while let Some(first) = rest.iter().position(|table| self.is_small(table, rule)) {
            rest = &rest[first..];
            let mut bytes = 0;
            let length = rest.iter().take(rule.tables_max).take_while(|table| {
                bytes += table.meta.bytes;
                self.is_small(table, rule) && bytes <= self.version.options.table_bytes
            });
            let (stretch, after) = rest.split_at(length.count());
            if let Some(job) = self.small_part(level, stretch, rule, trigger) {
                return Some(job);
            }
            rest = after;
        }
        None
    }

    fn is_small(&self, table: &Table, rule: &SmallRule) -> bool {
        let meta = &table.meta;
        meta.bytes < rule.bytes_max && meta.file < rule.before && !self.busy.has(meta.file)
    }

    /// A piece of small neighbours that is worth a merge: all of them, or what lies on one side of the
    /// largest. Each step down takes a part of the bytes away, so there are few.
    fn small_part(
        &self,
        level: usize,
        tables: &[Arc<Table>],
        rule: &SmallRule,
        trigger: Trigger,
    ) -> Option<Compaction> {
        if tables.len() < rule.tables_min {
            return None;
        }
        let total: u64 = tables.iter().map(|table| table.meta.bytes).sum();
        let largest = (0..tables.len()).max_by_key(|at| tables[*at].meta.bytes)?;
        let others = total - tables[largest].meta.bytes;
        if total > rule.bytes_free && others.saturating_mul(rule.rest_share) < total {
            let left = self.small_part(level, &tables[..largest], rule, trigger);
            return left.or_else(|| self.small_part(level, &tables[largest + 1..], rule, trigger));
        }
        let run = self.extend(level, tables);
        // A filter may want other neighbours in the job. With these, what the invariants say of a run would
        // not hold.
        if run.len() != tables.len() || self.is_split(level, &run) {
            return None;
        }
        self.job((level, run), (level, &[]), trigger)
    }

    /// Returns `true` if the run overlaps so much of the next level that the next compaction of its output
    /// would be too large.
    fn is_split(&self, level: usize, run: &[Arc<Table>]) -> bool {
        let Some(under) = self.version.levels.get(level + 1) else { return false };
        let overlap = under.overlapping(hull(run.iter())).iter().map(|table| table.meta.bytes);
        let table_bytes = self.version.options.table_bytes;
        overlap.sum::<u64>() > table_bytes.saturating_mul(GRANDPARENT_TABLES_MAX)
    }
}

#[cfg(test)]
mod tests;
