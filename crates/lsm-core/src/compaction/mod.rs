//! Compaction: which tables to merge, which entries survive, where an output ends.
//!
//! All of it but `executor.rs` is pure: no files, no cache, no clock. The database picks a [`Job`]
//! under its lock, the executor runs it and the database installs the result. An export is a job
//! as well, whose result is installed nowhere.
//!
//! Invariants:
//! 1. A job holds all versions, on its input levels, of every user key that it rewrites, except
//!    newer ones on level 0.
//! 2. Two jobs that run at once share no table and no key range of an output level: [`Busy`].
//! 3. Deeper is older: no job moves an entry below an older entry of its key, or drops a tombstone
//!    above one.

mod clip;
mod executor;
mod leveled;
mod picker;
mod place;
mod replacements;
mod rules;
mod split;
mod stages;
mod survivors;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub use clip::Clip;
pub use executor::{JobContext, Outputs, TableFactory, extract, run};
pub use leveled::{Shape, compaction_debt};
pub use picker::{Picker, RangePick};
pub use place::ingest_level;
pub use rules::{KeyBelow, Survival, Verdict};
pub use split::Split;
pub use stages::{Inject, Patches, Stages, place_of};
pub use survivors::{JobIter, JobOutcome, write_survivors};

use crate::types::{FileNo, PartitionId};
use crate::version::{SstMeta, Table, UserRange};

/// What a job does with its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Reads them and writes new tables.
    Merge,
    /// Names them on the output level; no byte is read.
    Move,
}

/// Why a job was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Level 0 has too many tables.
    Level0,
    /// A deeper level has too many bytes.
    Size,
    /// Half of a table are tombstones that have something to delete below.
    Tombstones,
    /// A table has many tombstones and nothing lies below: rewritten in place, they vanish.
    Elision,
    /// The user asked for a range.
    Range,
}

/// A compaction of one partition.
#[derive(Clone, Debug)]
pub struct Job {
    /// The partition.
    pub partition: PartitionId,
    /// The uppermost input level.
    pub level_from: usize,
    /// The output level; the same for an elision.
    pub level_to: usize,
    /// The inputs by level, in the level's order: level 0 newest first, deeper ones by key.
    pub inputs: Vec<(usize, Vec<Arc<Table>>)>,
    /// Whether bytes are rewritten.
    pub kind: JobKind,
    /// Nothing older lies below or beside for the whole key range of the inputs.
    pub bottom: bool,
    /// Tables of the level under the output level that overlap the inputs.
    pub grandparents: Vec<Arc<Table>>,
    /// Why it was picked.
    pub reason: Reason,
    /// How overdue it is; from 1 on it should run.
    pub score: f64,
}

impl Job {
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
        .reduce(|a, b| UserRange { start: a.start.min(b.start), end: a.end.max(b.end) })
        .unwrap_or(UserRange::ALL)
}

/// What the running jobs of a partition have taken.
#[derive(Debug, Default)]
pub struct Busy {
    files: HashSet<FileNo>,
    /// By the smallest input file.
    outputs: BTreeMap<FileNo, Claim>,
}

/// Where a running job may write.
#[derive(Debug)]
struct Claim {
    level: usize,
    start: Box<[u8]>,
    end: Box<[u8]>,
}

impl Busy {
    /// Takes the inputs and the output range of a picked job.
    pub fn claim(&mut self, job: &Job) {
        let range = job.range();
        let (Some(start), Some(end), Some(id)) = (range.start, range.end, Busy::id(job)) else {
            return;
        };
        for (_, table) in job.tables() {
            let fresh = self.files.insert(table.meta.file);
            assert!(fresh, "table {} is an input of two jobs", table.meta.file);
        }
        let claim = Claim { level: job.level_to, start: start.into(), end: end.into() };
        self.outputs.insert(id, claim);
    }

    /// Gives back what a job had taken, when it is installed or has failed.
    pub fn release(&mut self, job: &Job) {
        for (_, table) in job.tables() {
            self.files.remove(&table.meta.file);
        }
        if let Some(id) = Busy::id(job) {
            self.outputs.remove(&id);
        }
    }

    /// Takes the range of a finished table that is about to be added to `level`.
    pub fn reserve(&mut self, level: usize, table: &SstMeta) {
        let (start, end) = (table.smallest.user.clone(), table.largest.user.clone());
        self.outputs.insert(table.file, Claim { level, start, end });
    }

    /// Gives back what [`Busy::reserve`] took.
    pub fn unreserve(&mut self, file: FileNo) {
        self.outputs.remove(&file);
    }

    /// Whether a running job has the table as an input.
    pub fn has(&self, file: FileNo) -> bool {
        self.files.contains(&file)
    }

    /// Whether no job runs.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Whether a running job may write into the range of the level.
    fn writes(&self, level: usize, range: UserRange<'_>) -> bool {
        self.outputs.values().any(|claim| {
            claim.level == level && UserRange::new(&claim.start, &claim.end).overlaps(range)
        })
    }

    /// No two running jobs share an input, so the smallest one names a job.
    fn id(job: &Job) -> Option<FileNo> {
        job.tables().map(|(_, table)| table.meta.file).min()
    }
}

/// Where each level's turn is, and which tables an elision cannot help. Kept in memory by the
/// database for each partition; losing it costs nothing but evenness.
#[derive(Debug, Default)]
pub struct Cursors {
    after: BTreeMap<usize, Box<[u8]>>,
    settled: HashSet<FileNo>,
}

impl Cursors {
    /// Moves the turn of the job's level behind its inputs. Call it when a job is picked.
    pub fn advance(&mut self, job: &Job) {
        if let Some((level, tables)) = job.inputs.first()
            && let Some(end) = hull(tables.iter()).end
        {
            self.after.insert(*level, end.into());
        }
    }

    /// Notes the outputs of a job. What an elision leaves over cannot be elided again, or it would
    /// run for ever.
    pub fn finished(&mut self, job: &Job, outputs: impl IntoIterator<Item = FileNo>) {
        for (_, table) in job.tables() {
            self.settled.remove(&table.meta.file);
        }
        if job.reason == Reason::Elision {
            self.settled.extend(outputs);
        }
    }
}
