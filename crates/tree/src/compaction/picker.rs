//! [`Picker`]: chooses the next compaction of a partition.
//!
//! The database calls it when a compaction thread is free and something has changed. The choice is
//! a pure function of the fields.
//!
//! A partition that is a FIFO loses its oldest tables (`fifo.rs`), and no table is merged. Otherwise the order of the
//! choice:
//! 1. tables below a clear sequence, which no reader sees;
//! 2. the level with the highest score, if that is at least 1;
//! 3. a table whose entries are tombstones by half;
//! 4. an elision;
//! 5. a table from which much can go, because snapshots were released or entries expired;
//! 6. many neighbours that are much smaller than a table (`small.rs`).
//!
//! Within a level, tables with many tombstones come first. The others have their turn by key, so
//! that all parts of a level are rewritten equally often.
//!
//! Invariants:
//! 1. On level 0, a job has every table that overlaps one of its tables, directly or through other
//!    tables. The tables that stay on level 0 share no key with the job's level-0 tables.
//! 2. On the output level, a job has every table that overlaps the hull of its inputs, so outputs
//!    may span the hull.
//! 3. No input is busy, and no running job writes into the hull on the output level.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::fifo::FifoLimits;
use super::leveled::{LAST, Shape, level_compression};
use super::{Busy, CompactPointers, Compaction, Method, Trigger, hull, overlapping_group};
use crate::types::{FileNo, SeqNo};
use crate::version::{HookKind, PartitionVersion, SstMeta, Table, UserRange};

/// A job grows by neighbours that cost nothing up to this many tables' worth of bytes. Without a
/// bound one job could take a whole level, hold its inputs on the device until it is done, and keep
/// every other job of the level waiting.
pub(super) const GROWN_TABLES_MAX: u64 = 25;
/// A table is moved only if it overlaps less than this many tables' worth of grandparents: more
/// would make its next compaction too large.
pub(super) const GRANDPARENT_TABLES_MAX: u64 = 10;

/// A table of level 0 is merged for its tombstones if it has so many: a scan that passes them takes some
/// milliseconds. With no bound every small flush of deletions would cost a merge.
const LEVEL0_TOMBSTONES_MIN: u64 = 16 << 10;

/// All that a choice depends on.
#[derive(Clone, Copy)]
pub struct Picker<'a> {
    /// The partition.
    pub version: &'a PartitionVersion,
    /// The tables and ranges that running jobs have taken.
    pub busy: &'a Busy,
    /// The key at which each level continues, and the tables that no elision improves.
    pub pointers: &'a CompactPointers,
    /// The oldest sequence that a reader may still ask for.
    pub oldest_snapshot: SeqNo,
    /// `true` if two neighbouring tables belong in one job: by the left one's largest and the right
    /// one's smallest user key.
    pub joined: &'a dyn Fn(&[u8], &[u8]) -> bool,
    /// Every table with a smaller number is to be rewritten, for filters to see it: none is
    /// moved, and those of the last level have their turn too.
    pub rewrite_before: Option<FileNo>,
    /// The snapshots that somebody holds, ascending.
    pub held: &'a [SeqNo],
    /// The tables that are rewritten because enough of them can go: kept for snapshots that were
    /// released, or expired.
    pub outdated: &'a BTreeSet<FileNo>,
    /// The time in seconds since 1970.
    pub unix_seconds: u64,
}

/// Returns `true` if a quarter of the table's entries are tombstones: such a table comes first within
/// its level, because what they delete takes space below.
fn is_tombstone_heavy(meta: &SstMeta) -> bool {
    meta.tombstones > 0 && meta.tombstones.saturating_mul(4) >= meta.entries
}

/// Returns `true` if half of the table's entries are tombstones: such a table moves on although its
/// level has room, see [`Picker::laden`]. At a quarter, deletions spread over all tables would push
/// every one of them down a level before its time.
fn is_tombstone_laden(meta: &SstMeta) -> bool {
    meta.tombstones > 0 && meta.tombstones.saturating_mul(2) >= meta.entries
}

impl Picker<'_> {
    /// The most urgent job that can run now.
    pub fn pick(&self) -> Option<Compaction> {
        if let Some(job) = self.cleared() {
            return Some(job);
        }
        if let Some(limits) = FifoLimits::of(self.version) {
            return self.fifo(limits);
        }
        let shape = Shape::of(self.version);
        // The last level is never due by size: it has no level to give to.
        let mut due: Vec<_> = (0..LAST)
            .map(|level| (shape.score(self.version, level, self.busy), level))
            .filter(|(score, _)| *score >= 1.0)
            .collect();
        // Of two equally urgent levels the upper one goes first: its output is then part of the
        // next job of the lower one, and is not rewritten once more.
        due.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        // A level whose tables are all taken does not keep the next one from its turn.
        for (score, level) in due {
            let job = if level == 0 {
                self.level0(shape.base, UserRange::ALL, Trigger::Level0)
            } else {
                self.in_turn(level).find_map(|table| self.one(level, table, Trigger::Size))
            };
            if let Some(job) = job {
                return Some(Compaction { score, ..job });
            }
        }
        // First what frees most: such tables delete entries below, an elision takes only its own
        // tombstones away.
        self.laden(shape.base)
            .or_else(|| self.elision(UserRange::ALL, is_tombstone_heavy))
            .or_else(|| self.outdated(shape.base))
            .or_else(|| self.small())
    }

    /// The merge of level 0, if it is due and no running job is in the way.
    pub fn pick_level0(&self) -> Option<Compaction> {
        if FifoLimits::of(self.version).is_some() {
            return None;
        }
        let shape = Shape::of(self.version);
        let score = shape.score(self.version, 0, self.busy);
        let job = self.level0(shape.base, UserRange::ALL, Trigger::Level0);
        job.filter(|_| score >= 1.0).map(|job| Compaction { score, ..job })
    }

    /// The tables that no one sees anything of since the partition was cleared, or ranges deleted: all at once, without
    /// reading them. Where values are stored apart they are read, and rewritten to nothing, for the
    /// store to hear which values go.
    pub(super) fn cleared(&self) -> Option<Compaction> {
        if self.version.clear_seqs.is_empty() && self.version.spans.is_empty() {
            return None;
        }
        if self.version.hooks.iter().any(|hook| hook.kind == HookKind::ValueStore) {
            return self.rewritten_to_nothing();
        }
        let mut inputs = Vec::new();
        for (level, tables) in self.version.levels.iter().enumerate() {
            let tables = tables.tables().iter();
            let tables: Vec<_> = tables.filter(|table| self.is_cleared(table)).cloned().collect();
            if !tables.is_empty() {
                inputs.push((level, tables));
            }
        }
        let level = inputs.first()?.0;
        Some(Compaction {
            level_from: level,
            level_to: level,
            inputs,
            method: Method::Drop,
            bottom: false,
            grandparents: Vec::new(),
            trigger: Trigger::Cleared,
            score: 0.0,
        })
    }

    /// A table alone, in its own level: on level 0, too, where a merge with those that it overlaps would take them out of
    /// the order of their age, which a FIFO needs.
    fn rewritten_to_nothing(&self) -> Option<Compaction> {
        let mut tables = self.version.tables().filter(|(_, table)| self.is_cleared(table));
        tables.find_map(|(level, table)| {
            let table = std::slice::from_ref(table);
            let run = if level == 0 { table.to_vec() } else { self.extend(level, table) };
            self.job((level, run), (level, &[]), Trigger::Cleared)
        })
    }

    /// Returns `true` if no job has the table, and no reader sees an entry of it.
    fn is_cleared(&self, table: &Table) -> bool {
        !self.busy.has(table.meta.file) && self.version.is_unseen(&table.meta, self.held)
    }

    /// The idle tables of a level in the order in which they should be compacted. Taking the table
    /// that overlaps least of the next level would write less at first, and could leave the
    /// others for long, with all that is overwritten in them.
    fn in_turn(&self, level: usize) -> impl Iterator<Item = &Arc<Table>> {
        let tables = self.version.levels[level].tables();
        // `after` is the last key of the previous turn, so a table that begins at it was part of
        // that turn.
        let turn = self.pointers.after.get(&level).map_or(0, |after| {
            tables.partition_point(|table| *table.meta.smallest.user <= **after)
        });
        // Most levels have none: then a pick does not look at each of their tables.
        let laden = if self.version.levels[level].has_tombstones() { tables } else { &[] };
        let heavy = laden.iter().filter(|table| is_tombstone_heavy(&table.meta));
        let (before, after) = tables.split_at(turn);
        let light = after.iter().chain(before).filter(|table| !is_tombstone_heavy(&table.meta));
        heavy.chain(light).filter(|table| !self.busy.has(table.meta.file))
    }

    fn one(&self, level: usize, table: &Arc<Table>, trigger: Trigger) -> Option<Compaction> {
        self.step(level, std::slice::from_ref(table), trigger)
    }

    /// A table that is half tombstones moves on even where its level has room: what it deletes
    /// takes space below, and a scan passes all of it.
    fn laden(&self, base: usize) -> Option<Compaction> {
        let mut due = self.version.levels[0].tables().iter().filter(|table| {
            table.meta.tombstones >= LEVEL0_TOMBSTONES_MIN && is_tombstone_laden(&table.meta)
        });
        // Each older table that overlaps this one is part of the same job.
        let level0 =
            due.find_map(|table| self.level0(base, table.meta.range(), Trigger::Tombstones));
        level0.or_else(|| self.laden_below())
    }

    fn laden_below(&self) -> Option<Compaction> {
        let mut levels = (1..LAST).filter(|level| self.version.levels[*level].has_tombstones());
        levels.find_map(|level| {
            let laden = self.in_turn(level).filter(|table| is_tombstone_laden(&table.meta));
            // A table with nothing below it frees nothing by moving down: `elision` rewrites it on
            // its level.
            let mut above = laden.filter(|table| !self.nothing_below(level, table.meta.range()));
            above.find_map(|table| self.one(level, table, Trigger::Tombstones))
        })
    }

    /// A table whose tombstones all go when it is rewritten where it is: nothing lies below, and
    /// no snapshot is older than any of its entries.
    pub(super) fn elision(
        &self,
        range: UserRange<'_>,
        wanted: impl Fn(&SstMeta) -> bool,
    ) -> Option<Compaction> {
        // Not level 0: an older table may overlap this one on the same level.
        for level in 1..=LAST {
            // Nothing to elide; a pick would look at each table of the last level.
            if !self.version.levels[level].has_tombstones() {
                continue;
            }
            for table in self.version.levels[level].overlapping(range) {
                let meta = &table.meta;
                if wanted(meta)
                    // An entry newer than the oldest snapshot may be a tombstone that has to stay:
                    // then a rewrite frees nothing.
                    && meta.newest() <= self.oldest_snapshot
                    // Rewritten once already: what is left stays for reasons that a rewrite does
                    // not change.
                    && !self.pointers.elided.contains(&meta.file)
                    && self.nothing_below(level, meta.range())
                {
                    let run = self.extend(level, std::slice::from_ref(table));
                    let job = self.job((level, run), (level, &[]), Trigger::Elision);
                    if job.is_some() {
                        return job;
                    }
                }
            }
        }
        None
    }

    /// Returns `true` if tombstones of a table could go when snapshots are released.
    pub fn waits_for_snapshots(&self) -> bool {
        self.version.tables().any(|(_, table): (usize, &Arc<Table>)| {
            is_tombstone_heavy(&table.meta) && table.meta.newest() > self.oldest_snapshot
        })
    }

    /// A table that much can be dropped from. All versions of a key lie in one
    /// table, so it is rewritten where it is; on level 0 older tables may overlap it, and it goes the
    /// way of its level.
    fn outdated(&self, base: usize) -> Option<Compaction> {
        if self.outdated.is_empty() {
            return None;
        }
        self.version
            .tables()
            .filter(|(_, table): &(usize, &Arc<Table>)| {
                self.outdated.contains(&table.meta.file) && !self.busy.has(table.meta.file)
            })
            .find_map(|(level, table)| {
                if level == 0 {
                    return self.level0(base, table.meta.range(), Trigger::Outdated);
                }
                let run = self.extend(level, std::slice::from_ref(table));
                self.job((level, run), (level, &[]), Trigger::Outdated)
            })
    }

    /// Returns `true` if a table may become one of `level` without being rewritten: it is
    /// compressed as the tables of that level are. A table of older code does not
    /// record that; above level 2 nothing was compressed.
    fn is_compressed_for(&self, level: usize, level_from: usize, meta: &SstMeta) -> bool {
        let options = &self.version.options;
        let assumed = level_compression(options, level_from);
        // A compressed table may move to level 1 as it is: a rewrite would only make it larger.
        level < 2 || meta.compression.unwrap_or(assumed) == options.compression
    }

    /// Returns `true` if no level under `level` has tables in the range.
    fn nothing_below(&self, level: usize, range: UserRange<'_>) -> bool {
        self.version.levels[level + 1..].iter().all(|level| level.overlapping(range).is_empty())
    }

    /// Level 0 into the base level: from the oldest table in the range, with all that overlap. The
    /// oldest alone would keep versions in order as well; with what overlaps it, each table of the
    /// base level is rewritten once, and not once a flush.
    pub(super) fn level0(
        &self,
        base: usize,
        range: UserRange<'_>,
        trigger: Trigger,
    ) -> Option<Compaction> {
        let all = self.version.levels[0].tables();
        let target = &self.version.levels[base];
        // The level lists its newest table first. The oldest is taken first, because no table may
        // go below an older one that it overlaps.
        let seeds = all.iter().rev().filter(|table| table.meta.overlaps(range));
        seeds.filter(|seed| !self.busy.has(seed.meta.file)).find_map(|seed| {
            let run = overlapping_group(all, seed.meta.range());
            let below = self.extend(base, target.overlapping(hull(run.iter())));
            if !below.is_empty() {
                // Take the other tables of level 0 that overlap these, so that the tables below are
                // rewritten once. This step is not repeated: repeated until nothing is added, it
                // could take all of both levels.
                let grown = overlapping_group(all, hull(run.iter().chain(&below)));
                let grown_below = self.extend(base, target.overlapping(hull(grown.iter())));
                if let Some(job) = self.job((0, grown), (base, &grown_below), trigger) {
                    return Some(job);
                }
            }
            self.job((0, run), (base, &below), trigger)
        })
    }

    /// A run of a level into the next one.
    pub(super) fn step(
        &self,
        level: usize,
        run: &[Arc<Table>],
        trigger: Trigger,
    ) -> Option<Compaction> {
        let here = &self.version.levels[level];
        let next = &self.version.levels[level + 1];
        let run = self.extend(level, run);
        let below = self.extend(level + 1, next.overlapping(hull(run.iter())));
        // Tables of this level that overlap no more of the next one come along for nothing.
        let grown = self.extend(level, here.overlapping(hull(run.iter().chain(&below))));
        let grown_below = self.extend(level + 1, next.overlapping(hull(grown.iter())));
        let bytes: u64 = grown.iter().chain(&below).map(|table| table.meta.bytes).sum();
        let most = self.version.options.table_bytes.saturating_mul(GROWN_TABLES_MAX);
        // `grown` holds `run`, so `grown_below` holds `below`: the same number is the same tables.
        if grown.len() > run.len() && grown_below.len() == below.len() && bytes <= most {
            let job = self.job((level, grown), (level + 1, &below), trigger);
            if job.is_some() {
                return job;
            }
        }
        self.job((level, run), (level + 1, &below), trigger)
    }

    /// The run and the neighbours that a filter wants in the same job.
    pub(super) fn extend(&self, level: usize, run: &[Arc<Table>]) -> Vec<Arc<Table>> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Vec::new();
        };
        let tables = self.version.levels[level].tables();
        let mut start = position(tables, first);
        let mut end = position(tables, last);
        let joined = |left: usize, right: usize| {
            let left = &tables[left].meta;
            let right = &tables[right].meta;
            (self.joined)(&left.largest.user, &right.smallest.user)
        };
        // Pairs are asked one by one, since a filter joins neighbours and not ranges: a chain of
        // joined pairs is one run.
        while start > 0 && joined(start - 1, start) {
            start -= 1;
        }
        while end + 1 < tables.len() && joined(end, end + 1) {
            end += 1;
        }
        tables[start..=end].to_vec()
    }

    /// The job of these inputs, unless a running one is in the way.
    pub(super) fn job(
        &self,
        (level_from, run): (usize, Vec<Arc<Table>>),
        (level_to, below): (usize, &[Arc<Table>]),
        trigger: Trigger,
    ) -> Option<Compaction> {
        // The hull of all inputs and not of the run: an output may begin or end with an entry of
        // the output level.
        let inputs = || run.iter().chain(below);
        let range = hull(inputs());
        if inputs().any(|table| self.busy.has(table.meta.file)) || self.busy.writes(level_to, range)
        {
            return None;
        }
        let under = self.version.levels.get(level_to + 1);
        let grandparents = under.map_or(&[][..], |level| level.overlapping(range));
        let overlap: u64 = grandparents.iter().map(|table| table.meta.bytes).sum();
        let overlap_max = self.version.options.table_bytes.saturating_mul(GRANDPARENT_TABLES_MAX);
        let bottom = self.nothing_below(level_to, range);
        // No table is moved under another compression than its level's: where data is written in
        // order no merge would ever even that out. Tombstones are not moved to where they could
        // vanish, nor what snapshots have released.
        let moves = self.rewrite_before.is_none()
            && !matches!(trigger, Trigger::Outdated | Trigger::Cleared)
            && run.iter().all(|table| self.is_compressed_for(level_to, level_from, &table.meta))
            && below.is_empty()
            && level_from != level_to
            // Tables of level 0 overlap each other, and those of the output level may not.
            && (level_from > 0 || run.len() == 1)
            && overlap <= overlap_max
            && !(bottom && run.iter().any(|table| is_tombstone_heavy(&table.meta)));
        let method = if moves { Method::Move } else { Method::Merge };
        let grandparents = grandparents.to_vec();
        let mut inputs = vec![(level_from, run)];
        if !below.is_empty() {
            inputs.push((level_to, below.to_vec()));
        }
        Some(Compaction {
            level_from,
            level_to,
            inputs,
            method,
            bottom,
            grandparents,
            trigger,
            score: 0.0,
        })
    }
}

/// The place of `table`, which is one of them, among the `tables` of its level.
fn position(tables: &[Arc<Table>], table: &Arc<Table>) -> usize {
    let found = tables.iter().position(|other| other.meta.file == table.meta.file);
    found.expect("a run is a piece of its level")
}
