//! Compaction: the choice of the tables to merge, the survival of their entries, the ends of
//! outputs.
//!
//! Each file has one step:
//!
//! ```text
//! leveled.rs    the size that each level should have, and its score
//! picker.rs     the next job: a `Compaction`
//! asked.rs      the same for a range that the user asked for
//! small.rs      the same for neighbours that are much smaller than a table
//! fifo.rs       the oldest tables of a partition that is a FIFO
//! place.rs      the level of a table that comes from outside
//! run.rs        one run of a job: flush, compaction, repair or export, each a `Merge`
//! inputs.rs     the cursors over memtables and tables
//! damaged.rs    the cursor over the table of a repair
//! survivors.rs  the loop: reads entries, calls rules and hooks, writes what survives;
//!               survivors/boundary.rs has hidden entries and the ends of tables, between two keys;
//!               last_keys.rs and last_value.rs have the entry before, for order and for twins
//! rules.rs      the rules by which entries survive
//! export_range.rs  the range of an export
//! job_hooks.rs  the hooks of the job
//! split.rs      the end of an output table
//! outputs.rs    the output tables
//! fill.rs       tables of entries from the caller, for a bulk load
//! ```
//!
//! The database picks a job under the lock of its claims, runs it without a lock, and installs the
//! result as one edit. Only `inputs.rs`, `damaged.rs` and `outputs.rs` use files; the other files do no I/O, read
//! no clock and can be tested as functions.
//!
//! Invariants:
//! 1. A job has all versions, on its input levels, of every user key that it rewrites, except newer
//!    versions on level 0.
//! 2. Two jobs that run at the same time share no table and no key range of an output level:
//!    [`Busy`].
//! 3. Deeper entries are older: no job moves an entry below an older entry of its key. No job drops
//!    a tombstone above an older entry of its key.

mod asked;
mod damaged;
#[cfg(any(test, feature = "internals"))]
pub mod drawing;
mod export_range;
mod fifo;
mod fill;
mod inputs;
mod job_hooks;
mod last_keys;
mod last_value;
mod leveled;
mod outcome;
mod outputs;
mod picker;
mod place;
mod rules;
mod run;
mod small;
mod split;
mod survivors;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub use asked::{Finish, RangePick};
pub use damaged::DamagedInput;
pub use export_range::ExportRange;
pub use fill::Fill;
pub use job_hooks::JobHooks;
pub use leveled::{Shape, compaction_debt, level_compression};
pub use outcome::JobOutcome;
pub use outputs::{Outputs, SyncLater, TableFactory};
pub use picker::Picker;
pub use place::ingest_level;
pub use rules::{DropDecision, DropRules, KeyBelow};
pub use run::{Erased, Merge, RunContext};
pub use split::Split;

use crate::types::{FileNo, SeqNo};
use crate::version::{SstMeta, Table, UserRange};

/// The way in which a compaction treats its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads them and writes new tables.
    Merge,
    /// Names them on the output level; no byte is read.
    Move,
    /// Lets go of them; no byte is read.
    Drop,
}

/// Why a compaction was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Level 0 has too many tables.
    Level0,
    /// A deeper level has too many bytes.
    Size,
    /// Half of a table are tombstones that have something to delete below.
    Tombstones,
    /// A table has many tombstones and nothing lies below: rewritten in place, they vanish.
    Elision,
    /// A tenth of a table could go: snapshots were released, or entries have expired.
    Outdated,
    /// No one sees anything of a table since the partition was cleared.
    Cleared,
    /// Many neighbours are much smaller than a table.
    Small,
    /// The user asked for a range.
    Range,
    /// The oldest tables of a partition that is a FIFO.
    Fifo,
    /// A job found it damaged: rewritten in place.
    Repair,
}

/// A compaction of one partition.
#[derive(Clone, Debug)]
pub struct Compaction {
    /// The uppermost input level.
    pub level_from: usize,
    /// The output level; the same for an elision.
    pub level_to: usize,
    /// The inputs by level, in the level's order: level 0 newest first, deeper ones by key.
    pub inputs: Vec<(usize, Vec<Arc<Table>>)>,
    /// The way to the output level: by rewriting bytes, or not.
    pub method: Method,
    /// `true` if nothing older is below or on the same level, in the whole key range of the inputs.
    pub bottom: bool,
    /// Tables of the level under the output level that overlap the inputs.
    pub grandparents: Vec<Arc<Table>>,
    /// Why it was picked.
    pub trigger: Trigger,
    /// Its urgency; from 1 on it should run.
    pub score: f64,
}

impl Compaction {
    /// Returns `true` if a reader at one of the snapshots, ascending, sees entries of the inputs.
    pub fn is_seen_by(&self, snapshots: &[SeqNo]) -> bool {
        let newest = snapshots.last();
        newest.is_some_and(|seq| self.tables().any(|(_, table)| table.meta.oldest() <= *seq))
    }

    /// The repair of a damaged table of `level`, in place.
    pub fn repair(level: usize, table: Arc<Table>) -> Compaction {
        Compaction {
            level_from: level,
            level_to: level,
            inputs: vec![(level, vec![table])],
            method: Method::Merge,
            bottom: false,
            grandparents: Vec::new(),
            trigger: Trigger::Repair,
            score: 1.0,
        }
    }

    /// All inputs with their levels.
    pub fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        self.inputs.iter().flat_map(|(level, tables)| tables.iter().map(|table| (*level, table)))
    }

    /// Length of all inputs together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.tables().map(|(_, table)| table.meta.bytes).sum()
    }

    /// The smallest range that holds all user keys of the inputs. Outputs may span it.
    pub fn range(&self) -> UserRange<'_> {
        hull(self.tables().map(|(_, table)| table))
    }
}

/// The smallest range that holds the tables; the range of everything if there is none.
fn hull<'a>(tables: impl Iterator<Item = &'a Arc<Table>>) -> UserRange<'a> {
    tables
        .map(|table| table.meta.range())
        // A table's range has both ends. An open end would be lost here: `None` sorts before every
        // key, also as an end.
        .reduce(|a, b| UserRange { start: a.start.min(b.start), end: a.end.max(b.end) })
        .unwrap_or(UserRange::ALL)
}

/// The tables of level 0 that overlap the range, directly or through others, in the level's order.
fn overlapping_group<'a>(tables: &'a [Arc<Table>], mut range: UserRange<'a>) -> Vec<Arc<Table>> {
    let group =
        |range: UserRange<'a>| tables.iter().filter(move |table| table.meta.overlaps(range));
    let mut count = 0;
    loop {
        let grown = group(range).count();
        // The group only grows, so the same number is the same group.
        if grown == count {
            return group(range).cloned().collect();
        }
        count = grown;
        let reach = hull(group(range));
        range = UserRange { start: range.start.min(reach.start), end: range.end.max(reach.end) };
    }
}

/// The tables and ranges that the running jobs of a partition have taken.
#[derive(Debug, Default)]
pub struct Busy {
    files: HashSet<FileNo>,
    /// The claims, by the smallest input file of the job.
    outputs: BTreeMap<FileNo, Claim>,
}

/// The place into which a running job may write.
#[derive(Debug)]
struct Claim {
    level: usize,
    start: Box<[u8]>,
    end: Box<[u8]>,
}

impl Busy {
    /// Takes the inputs and the output range of a picked job.
    pub fn claim(&mut self, job: &Compaction) {
        let range = job.range();
        // A job without inputs reads and writes nothing: it has no range to keep free.
        let (Some(start), Some(end), Some(id)) = (range.start, range.end, Busy::id(job)) else {
            return;
        };
        for (_, table) in job.tables() {
            let fresh = self.files.insert(table.meta.file);
            assert!(fresh, "table {} is an input of two jobs", table.meta.file);
        }
        let claim = Claim { level: job.level_to, start: start.into(), end: end.into() };
        // Disjoint inputs alone do not keep two jobs apart: the hulls of both may hold one gap of
        // the output level, and each could fill it with a table.
        self.outputs.insert(id, claim);
    }

    /// Gives back what a job had taken, when it is installed or has failed.
    pub fn release(&mut self, job: &Compaction) {
        for (_, table) in job.tables() {
            self.files.remove(&table.meta.file);
        }
        if let Some(id) = Busy::id(job) {
            self.outputs.remove(&id);
        }
    }

    /// Takes the range of a finished table that is about to be added to `level`.
    pub fn reserve(&mut self, level: usize, table: &SstMeta) {
        let start = table.smallest.user.clone();
        let end = table.largest.user.clone();
        // The number is new, so no running job has it as its smallest input.
        self.outputs.insert(table.file, Claim { level, start, end });
    }

    /// Gives back what [`Busy::reserve`] took.
    pub fn unreserve(&mut self, file: FileNo) {
        self.outputs.remove(&file);
    }

    /// Returns `true` if no running job has an input.
    fn is_idle(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns `true` if a running job has the table as an input.
    pub fn has(&self, file: FileNo) -> bool {
        self.files.contains(&file)
    }

    /// The number of jobs and of reserved ranges.
    pub fn claims(&self) -> usize {
        self.outputs.len()
    }

    /// Returns `true` if a running job may write into the range of the level.
    fn writes(&self, level: usize, range: UserRange<'_>) -> bool {
        self.outputs.values().any(|claim| {
            claim.level == level && UserRange::new(&claim.start, &claim.end).overlaps(range)
        })
    }

    /// No two running jobs share an input, so the smallest one names a job.
    fn id(job: &Compaction) -> Option<FileNo> {
        job.tables().map(|(_, table)| table.meta.file).min()
    }
}

/// The key at which each level goes on, and the tables that an elision cannot help. Kept in memory
/// by the database for each partition; losing it costs nothing but evenness.
#[derive(Debug, Default)]
pub struct CompactPointers {
    after: BTreeMap<usize, Box<[u8]>>,
    elided: HashSet<FileNo>,
}

impl CompactPointers {
    /// Moves the turn of the job's level after its inputs. Call it when a job is picked.
    pub fn advance(&mut self, job: &Compaction) {
        // The first inputs are those of `level_from`. Those of the output level have their own
        // turn.
        if let Some((level, tables)) = job.inputs.first()
            && let Some(end) = hull(tables.iter()).end
        {
            self.after.insert(*level, end.into());
        }
    }

    /// Notes the outputs of a job. What an elision leaves over cannot be elided again, or it would
    /// run for ever.
    pub fn finished(&mut self, job: &Compaction, outputs: impl IntoIterator<Item = FileNo>) {
        for (_, table) in job.tables() {
            // Inputs are gone after the job; without this line the set would grow for ever.
            self.elided.remove(&table.meta.file);
        }
        if job.trigger == Trigger::Elision {
            self.elided.extend(outputs);
        }
    }
}
