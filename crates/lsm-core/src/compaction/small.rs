//! [`Picker::small`]: runs of neighbours on one level that are much smaller than a table.
//!
//! Called by the picker when nothing else is due, and for a compaction that the user asked for. A pure
//! function of the version and the claims.
//!
//! Such tables come from opens and flushes of few entries whose keys ascend: nothing overlaps, so each is
//! moved to its level as it is. No other rule merges them, and each costs a file, an entry of the manifest
//! and a part of every cursor.
//!
//! Invariants:
//! 1. A run is a contiguous piece of its level, without a busy table, and is rewritten where it is. All
//!    versions of a key lie in one table, so no entry passes an older one.
//! 2. Every merge leaves fewer small tables than it takes, so it ends: all outputs but the last have half
//!    the size of a table at least.
//! 3. In the background, the largest table of a run has no more than half of its bytes. So each byte is
//!    rewritten once for each doubling of its table at most, and never again from [`SMALL_SHARE`] on.

use std::sync::Arc;

use super::leveled::LAST;
use super::picker::{GRANDPARENT_TABLES_MAX, Picker};
use super::{Compaction, Trigger, hull};
use crate::types::SeqNo;
use crate::version::{Table, UserRange};

/// A table of less than one part in so many of `table_bytes` is small.
const SMALL_SHARE: u64 = 16;
/// The same for a compaction that the user asked for: fewer and larger tables for more bytes rewritten.
const SMALL_SHARE_ASKED: u64 = 4;
/// So many neighbours are many: fewer cost less than the edit and the syncs of a merge.
const RUN_TABLES_MIN: usize = 8;
/// A run ends at so many tables, for a merge to end soon and to hold few files open.
const RUN_TABLES_MAX: usize = 256;

/// The size from which on a table is left alone, and the shortest run.
struct SmallRule {
    bytes_max: u64,
    tables_min: usize,
    /// The largest table may have one part in so many of the bytes of the run.
    share: u64,
    /// Newer tables are left out.
    through: SeqNo,
}

impl Picker<'_> {
    /// Many small neighbours of which none is most of them.
    pub(super) fn small(&self) -> Option<Compaction> {
        let bytes_max = self.version.options.table_bytes / SMALL_SHARE;
        let rule =
            SmallRule { bytes_max, tables_min: RUN_TABLES_MIN, share: 2, through: SeqNo::MAX };
        (1..=LAST).find_map(|level| {
            let tables = self.version.levels[level].tables();
            self.small_run(level, tables, &rule, Trigger::Small)
        })
    }

    /// Two small neighbours of the last level or more, in the range. Tables that are newer than `through`
    /// were written since the request.
    pub(super) fn small_asked(&self, range: UserRange<'_>, through: SeqNo) -> Option<Compaction> {
        let bytes_max = self.version.options.table_bytes / SMALL_SHARE_ASKED;
        let rule = SmallRule { bytes_max, tables_min: 2, share: 1, through };
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
            let length = rest.iter().take(RUN_TABLES_MAX).take_while(|table| {
                bytes += table.meta.bytes;
                self.is_small(table, rule) && bytes <= self.version.options.table_bytes
            });
            let (stretch, behind) = rest.split_at(length.count());
            if let Some(job) = self.small_part(level, stretch, rule, trigger) {
                return Some(job);
            }
            rest = behind;
        }
        None
    }

    fn is_small(&self, table: &Table, rule: &SmallRule) -> bool {
        let meta = &table.meta;
        let is_idle = !self.busy.has(meta.file);
        is_idle && meta.bytes < rule.bytes_max && meta.oldest() <= rule.through
    }

    /// A piece of small neighbours that is worth a merge: all of them, or what lies on one side of the
    /// largest. Each step down halves the bytes, so there are few.
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
        if tables[largest].meta.bytes.saturating_mul(rule.share) > total {
            let left = self.small_part(level, &tables[..largest], rule, trigger);
            return left.or_else(|| self.small_part(level, &tables[largest + 1..], rule, trigger));
        }
        let run = self.extend(level, tables);
        // A filter may want neighbours in the job that are no small tables: these would be rewritten again
        // and again.
        if run.iter().any(|table| table.meta.bytes >= rule.bytes_max) || self.is_split(level, &run)
        {
            return None;
        }
        self.job((level, run), (level, &[]), trigger)
    }

    /// Returns `true` if the run overlaps so much of the next level that its output would be split again.
    fn is_split(&self, level: usize, run: &[Arc<Table>]) -> bool {
        let Some(under) = self.version.levels.get(level + 1) else { return false };
        let overlap = under.overlapping(hull(run.iter())).iter().map(|table| table.meta.bytes);
        let table_bytes = self.version.options.table_bytes;
        overlap.sum::<u64>() > table_bytes.saturating_mul(GRANDPARENT_TABLES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::drawing::{draw, seq};
    use super::super::{Busy, Cursors, Method, RangePick};
    use super::*;
    use crate::options::PartitionOptions;
    use crate::version::PartitionVersion;

    /// A table has 100 bytes in drawings; here small is what has less than 100.
    fn version(drawing: &str) -> PartitionVersion {
        let mut version = draw(drawing);
        let options = PartitionOptions { table_bytes: 1600, ..(*version.options).clone() };
        version.options = options.into();
        version
    }

    fn with_picker<T>(drawing: &str, use_it: impl FnOnce(&Picker<'_>) -> T) -> T {
        with_joined(drawing, &|_, _| false, use_it)
    }

    fn with_joined<T>(
        drawing: &str,
        joined: &dyn Fn(&[u8], &[u8]) -> bool,
        use_it: impl FnOnce(&Picker<'_>) -> T,
    ) -> T {
        use_it(&Picker {
            version: &version(drawing),
            busy: &Busy::default(),
            cursors: &Cursors::default(),
            oldest_snapshot: SeqNo::MAX,
            joined,
            rewrite_before: None,
            held: &[],
            outdated: &BTreeSet::new(),
        })
    }

    fn small_of(picker: &Picker<'_>) -> Option<Compaction> {
        picker.small()
    }

    /// Tables of one level with these sizes, in the order of their keys.
    fn level(level: usize, sizes: &[u64]) -> String {
        let mut text = format!("L{level}:");
        for (at, bytes) in sizes.iter().enumerate() {
            text += &format!(" {}:k{:03}a-k{:03}z*{bytes}", at + 1, at, at);
        }
        text
    }

    fn files(job: &Compaction) -> Vec<u64> {
        assert_eq!(job.method, Method::Merge);
        assert_eq!(job.level_from, job.level_to, "where they are");
        assert_eq!(job.inputs.len(), 1);
        job.tables().map(|(_, table)| table.meta.file.0).collect()
    }

    /// Checks the tables of the job over tables of these sizes.
    #[track_caller]
    fn check(sizes: &[u64], expected: &[u64]) {
        for at in [LAST, 5] {
            let job = with_picker(&level(at, sizes), small_of);
            let files = job.as_ref().map(files).unwrap_or_default();
            assert_eq!(files, expected, "{sizes:?} on level {at}");
        }
    }

    #[test]
    fn eight_small_neighbours_are_merged_and_seven_are_not() {
        check(&[9; 7], &[]);
        check(&[9; 8], &[1, 2, 3, 4, 5, 6, 7, 8]);
        check(&[99; 8], &[1, 2, 3, 4, 5, 6, 7, 8]);
        check(&[100; 20], &[]);
        // A table that is not small ends the stretch.
        check(&[9, 9, 9, 9, 500, 9, 9, 9, 9], &[]);
        check(&[9, 500, 9, 9, 9, 9, 9, 9, 9, 9], &[3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_table_that_is_most_of_a_run_waits_until_its_neighbours_have_grown() {
        check(&[60, 1, 1, 1, 1, 1, 1, 1], &[]);
        check(&[60, 1, 1, 1, 1, 1, 1, 1, 1], &[2, 3, 4, 5, 6, 7, 8, 9]);
        check(&[1, 1, 1, 1, 60, 1, 1, 1, 1], &[]);
        check(&[60, 20, 20, 10, 6, 2, 1, 1], &[1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_run_is_no_larger_than_a_table() {
        let run: Vec<u64> = (1..=16).collect();
        check(&[99; 40], &run);
        // 256 files at once.
        let job = with_picker(&level(LAST, &[1; 300]), small_of).unwrap();
        assert_eq!(job.tables().count(), RUN_TABLES_MAX);
    }

    /// The tables of the job over eight small ones of level 5 and a table of so many bytes below them.
    fn pick_over(under: u64) -> Vec<u64> {
        let drawing = format!("{}\nL6: 90:k000-k009*{under}", level(5, &[9; 8]));
        with_picker(&drawing, |picker| picker.small().as_ref().map(files)).unwrap_or_default()
    }

    #[test]
    fn what_lies_over_much_of_the_next_level_is_left_as_it_was_cut() {
        assert_eq!(pick_over(16_000), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(pick_over(16_001), [0; 0]);
    }

    #[test]
    fn neighbours_that_a_filter_joins_come_along_if_they_are_small() {
        for (sizes, expected) in
            [(&[9, 9, 9, 9, 9, 9, 9, 9, 500], vec![]), (&[9; 9], (1..=9).collect())]
        {
            let job = with_joined(&level(LAST, sizes), &|_, right| right == b"k008a", |picker| {
                picker.small().as_ref().map(files)
            });
            assert_eq!(job.unwrap_or_default(), expected);
        }
    }

    #[test]
    fn a_running_job_keeps_its_tables() {
        let drawing = level(LAST, &[9; 12]);
        let mut busy = Busy::default();
        busy.claim(&with_picker(&drawing, small_of).unwrap());
        let job = with_picker(&drawing, |picker| Picker { busy: &busy, ..*picker }.small());
        assert!(job.is_none());
    }

    #[track_caller]
    fn check_asked(sizes: &[u64], through: u64, expected: &[u64]) {
        let picked = with_picker(&level(LAST, sizes), |picker| {
            picker.pick_range(UserRange::ALL, seq(through))
        });
        let files = match &picked {
            RangePick::Due(job) => files(job),
            RangePick::Done => Vec::new(),
            RangePick::Blocked => panic!("nothing runs"),
        };
        assert_eq!(files, expected);
    }

    #[test]
    fn a_request_merges_two_that_are_less_than_a_quarter() {
        check_asked(&[399, 1], 100, &[1, 2]);
        check_asked(&[400, 1], 100, &[]);
        check_asked(&[1, 400, 1], 100, &[]);
        // The second one has the sequence number 20.
        check_asked(&[1, 1, 1], 20, &[1, 2]);
        check_asked(&[1, 1, 1], 10, &[]);
    }
}
