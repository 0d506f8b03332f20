//! Flushes and compactions: picking, running, installing. Called by `background.rs`, and by the
//! calls that wait for their result.
//!
//! Invariants:
//! 1. One flush runs at a time, so level 0 receives tables in the order of their sequences.
//! 2. Two compactions share no input and no output range: `Busy`, claimed and given back under
//!    `Jobs::claims`. A version is looked at under that lock and a claim given back after the
//!    view took the result in, so no job sees inputs that are gone.
//! 3. A table that turned out damaged stays claimed: it is not compacted again until the next
//!    open, and the rest of the partition goes on.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::DbInner;
use super::partitions::Installation;
use crate::compaction::{
    self, Busy, Cursors, Job, JobContext, JobKind, Picker, RangePick, TableFactory,
};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{Event, PartitionHooks, catch};
use crate::partition::PartitionState;
use crate::read::Bounds;
use crate::snapshot::{DecidingJob, JobSnapshots};
use crate::types::{FileNo, MemtableId, PartitionId, SeqNo};
use crate::version::{Change, PartitionVersion, SstMeta, Table, UserRange};

/// What the compactions of one partition have taken.
#[derive(Default)]
pub(super) struct Claims {
    pub(super) busy: Busy,
    cursors: Cursors,
    pub(super) running: usize,
    /// Whether the last one failed: other partitions come first.
    is_failing: bool,
    /// Why some tables stay claimed.
    damage: Option<Error>,
}

/// What a flush does with log segments that nothing needs any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OldLog {
    /// Lets them go. Takes the commit path's lock.
    Release,
    /// Leaves them to the next flush.
    Keep,
}

/// What background work has under way.
#[derive(Default)]
pub(super) struct Jobs {
    /// Held while a flush runs, and while something must stay unflushed. Taken before the commit
    /// path's lock. Partitions whose last flush failed: the others come first.
    pub(super) flushing: Mutex<BTreeSet<PartitionId>>,
    pub(super) claims: Mutex<HashMap<PartitionId, Claims>>,
}

impl DbInner {
    pub(super) fn factory(&self) -> TableFactory {
        TableFactory {
            fs: self.fs.clone(),
            dir: self.dir.clone(),
            db_id: self.db_id,
            epoch: self.epoch,
            numbers: self.numbers.clone(),
        }
    }

    pub(super) fn oldest_snapshot(&self) -> SeqNo {
        self.snapshots.for_job(|| self.visible_seq()).respected[0]
    }

    /// What a job over `partition` starting now respects. While the second part lives, snapshots
    /// keep the partition's view, if its filters decide.
    pub(super) fn snapshots_for(
        &self,
        partition: &Arc<PartitionState>,
        hooks: &PartitionHooks,
    ) -> (JobSnapshots, Option<DecidingJob>) {
        if !hooks.decides() {
            return (self.snapshots.for_job(|| self.visible_seq()), None);
        }
        let visible = || self.visible_seq();
        let (snapshots, job) = self.snapshots.for_deciding_job(partition, visible);
        (snapshots, Some(job))
    }

    /// Flushes the partition with the most sealed memory; `false` if there is none.
    pub(super) fn flush_one(&self) -> Result<bool> {
        self.flush_largest(self.live_partitions())
    }

    fn flush_largest(&self, mut candidates: Vec<Arc<PartitionState>>) -> Result<bool> {
        let mut failing = self.jobs.flushing.lock();
        candidates.retain(|partition| !partition.view().sealed.is_empty());
        if self.is_log_failed() {
            let resumed = self.resume();
            // No log keeps the others from being flushed.
            candidates.retain(|partition| !partition.logged);
            if resumed.is_ok() || candidates.is_empty() {
                return resumed.map(|()| true);
            }
        }
        let rank = |partition: &Arc<PartitionState>| {
            let bytes: u64 = partition.view().sealed.iter().map(|memtable| memtable.bytes()).sum();
            (!failing.contains(&partition.id), bytes)
        };
        let Some(partition) = candidates.into_iter().max_by_key(rank) else {
            return Ok(false);
        };
        let newest = partition.view().sealed.first().map(|memtable| memtable.id);
        let newest = newest.expect("it was picked for its sealed memtables, and only flushes take");
        let flushed = self.flush_partition(&partition, newest, OldLog::Release);
        match &flushed {
            Ok(()) => failing.remove(&partition.id),
            Err(_) => failing.insert(partition.id),
        };
        flushed?;
        self.background.flush_worked();
        self.background.wake_all();
        Ok(true)
    }

    /// Flushes the sealed memtables of a partition through `through`, which is one of them. The
    /// caller holds `Jobs::flushing`.
    pub(super) fn flush_partition(
        &self,
        partition: &Arc<PartitionState>,
        through: MemtableId,
        old_log: OldLog,
    ) -> Result<()> {
        self.catalog.edit()?.ensure_writable()?;
        let view = partition.pin();
        let newer = view.sealed.iter().take_while(|memtable| memtable.id > through).count();
        let sealed = &view.sealed[newer..];
        let last_seq = sealed.first().expect("`through` is sealed").last_seq();
        // Durability: no flush that covers a sequence enters the manifest before the log is
        // durable through it; else a crash could keep half of a batch over two partitions.
        if partition.logged {
            self.sync_through_seq(last_seq)?;
        }
        let written = self.write_sealed(partition, through)?;
        let id = partition.id;
        let mut changes = written.changes(id);
        let segments = match old_log {
            OldLog::Release => self.obsolete_segments(self.log_low_water(Some((id, through))))?,
            OldLog::Keep => Vec::new(),
        };
        changes.extend(segments.iter().map(|file| Change::SegmentRemoved { file: *file }));
        changes.push(Change::LastSeq(self.visible_seq()));
        let (flushed, removed) = (Some(through), Vec::new());
        let (made, dropped) = (&written.tables[..], &written.dropped[..]);
        let job = Installation { changes, flushed, removed, made, dropped };
        if !self.install_job(partition, job)? {
            return Ok(());
        }
        self.count_flush(partition, &written);
        self.segments_removed(&segments)
    }

    /// Flushes everything that was written before the call.
    pub(super) fn flush_all(&self) -> Result<()> {
        self.check_not_closed()?;
        let mut between = self.between_groups();
        let partitions = self.live_partitions();
        partitions.iter().for_each(|partition| self.seal(&mut between, partition));
        drop(between);
        self.finish_flushes(&partitions)
    }

    /// Flushes what is sealed in these partitions, on the calling thread, unless the database is
    /// closed meanwhile.
    pub(super) fn finish_flushes(&self, partitions: &[Arc<PartitionState>]) -> Result<()> {
        self.flush_sealed(partitions, || self.check_not_closed())
    }

    /// Flushes what is sealed in these partitions, on the calling thread, as long as `go_on` lets
    /// it.
    pub(super) fn flush_sealed(
        &self,
        partitions: &[Arc<PartitionState>],
        go_on: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let newest_sealed = |partition: &PartitionState| {
            partition.view().sealed.first().map(|memtable| memtable.id)
        };
        let goals: Vec<_> =
            partitions.iter().filter_map(|p| Some((p, newest_sealed(p)?))).collect();
        let is_waiting = |partition: &PartitionState, goal| {
            !partition.is_dropped() && partition.view().sealed.iter().any(|m| m.id <= goal)
        };
        loop {
            let waiting = goals.iter().filter(|(partition, goal)| is_waiting(partition, *goal));
            let waiting: Vec<_> = waiting.map(|(partition, _)| Arc::clone(partition)).collect();
            if waiting.is_empty() {
                return Ok(());
            }
            go_on()?;
            self.flush_largest(waiting)?;
        }
    }

    /// Picks, for any partition, and runs one compaction; `false` if none is due.
    pub(super) fn compact_one(&self) -> Result<bool> {
        let mut best: Option<(Arc<PartitionState>, Job, Arc<PartitionVersion>)> = None;
        // Why a partition's hooks keep a job from being picked, if they do.
        let mut refused = Ok(());
        {
            let mut claims = self.jobs.claims.lock();
            let mut best_rank = (false, f64::NEG_INFINITY);
            for partition in self.live_partitions() {
                let claim = claims.entry(partition.id).or_default();
                let picked = self.pick(&partition, claim);
                refused = refused.and(picked.as_ref().map(|_| ()).map_err(Error::clone));
                let Ok(Some((job, version))) = picked else { continue };
                let rank = (!claim.is_failing, job.score);
                if rank > best_rank {
                    (best_rank, best) = (rank, Some((partition, job, version)));
                }
            }
            if let Some((partition, job, _)) = &best {
                claims.entry(partition.id).or_default().claim(job);
            }
        }
        let Some((partition, job, version)) = best else { return refused.map(|()| false) };
        let result = self.run_claimed(&partition, &job, &version);
        if result.is_ok() {
            self.background.wake_all();
        }
        match result {
            // The damaged inputs stay claimed; other work goes on.
            Err(error) if error.is_corruption() => Ok(true),
            // It gave up because nobody wants its result.
            Err(_) if partition.is_dropped() => Ok(true),
            result => result.map(|()| true),
        }
    }

    fn pick(
        &self,
        partition: &PartitionState,
        claim: &Claims,
    ) -> Result<Option<(Job, Arc<PartitionVersion>)>> {
        let version = partition.view().version.clone();
        // A partition whose store is missing is left as it is.
        if partition.hooks().missing.is_some() {
            return Ok(None);
        }
        let job = self.with_picker(partition, &version, claim, None, |picker| picker.pick())?;
        Ok(job.map(|job| (job, version)))
    }

    fn with_picker<T>(
        &self,
        partition: &PartitionState,
        version: &PartitionVersion,
        claim: &Claims,
        rewrite_before: Option<FileNo>,
        use_it: impl FnOnce(&Picker<'_>) -> T,
    ) -> Result<T> {
        let oldest_snapshot = self.oldest_snapshot();
        let (busy, cursors) = (&claim.busy, &claim.cursors);
        let hooks = partition.hooks();
        let joined =
            &|left: &[u8], right: &[u8]| hooks.filters.iter().any(|f| f.joined(left, right));
        let picker = Picker { version, busy, cursors, oldest_snapshot, joined, rewrite_before };
        // It changes nothing, so nothing is half done if a hook panics.
        catch("a hook", || use_it(&picker))
    }

    /// Runs a job whose inputs are claimed and installs its result; gives the claim back unless an
    /// input is damaged. If the partition was dropped meanwhile, that is the error.
    fn run_claimed(
        &self,
        partition: &Arc<PartitionState>,
        job: &Job,
        version: &PartitionVersion,
    ) -> Result<()> {
        let result = self.run_job(partition, job, version);
        let result = result.map_err(|error| {
            partition.check_live().err().unwrap_or(error.in_partition(&partition.name))
        });
        let mut claims = self.jobs.claims.lock();
        let claim = claims.entry(partition.id).or_default();
        claim.running -= 1;
        claim.is_failing = result.is_err();
        let gone = partition.is_dropped() && claim.running == 0;
        match &result {
            Ok(outputs) => {
                claim.busy.release(job);
                claim.cursors.finished(job, outputs.iter().map(|meta| meta.file));
            }
            Err(error) if error.is_corruption() => {
                claim.damage.get_or_insert_with(|| error.clone());
                error.damage().iter().for_each(|damage| {
                    self.tell(&Event::Corruption((*damage).clone()));
                });
            }
            Err(_) => claim.busy.release(job),
        }
        if gone {
            claims.remove(&partition.id);
        }
        result.map(|_| ())
    }

    fn run_job(
        &self,
        partition: &Arc<PartitionState>,
        job: &Job,
        version: &PartitionVersion,
    ) -> Result<Vec<SstMeta>> {
        self.catalog.edit()?.ensure_writable()?;
        let (id, to) = (partition.id, job.level_to as u8);
        let removed = job.tables().map(|(level, table)| Change::TableRemoved {
            partition: id,
            level: level as u8,
            file: table.meta.file,
        });
        let mut changes: Vec<Change> = removed.collect();
        let started = self.background.now();
        let (name, from) = (&*partition.name, job.level_from);
        let _span = tracing::debug_span!("compaction", partition = name, from, to).entered();
        let hooks = partition.hooks();
        let (snapshots, _deciding) = self.snapshots_for(partition, &hooks);
        let (outputs, dropped): (Vec<SstMeta>, _) = match job.kind {
            JobKind::Move => {
                (job.tables().map(|(_, table)| table.meta.clone()).collect(), Vec::new())
            }
            JobKind::Merge => {
                let should_stop = || self.background.is_stopping() || partition.is_dropped();
                let (factory, tables) = (&self.factory(), &self.tables);
                self.run_to_tables(&partition.pin(), &hooks, &snapshots, |stages| {
                    let should_stop = &should_stop;
                    let context = JobContext { factory, tables, stages, should_stop };
                    compaction::run(job, version, context)
                })?
            }
        };
        let written: u64 = outputs.iter().map(|meta| meta.bytes).sum();
        changes.extend(outputs.iter().map(|meta| Change::TableAdded {
            partition: id,
            level: to,
            meta: meta.clone(),
        }));
        let obsolete: Vec<Arc<Table>> = match job.kind {
            JobKind::Move => Vec::new(),
            JobKind::Merge => job.tables().map(|(_, table)| table.clone()).collect(),
        };
        let made = if job.kind == JobKind::Merge { &outputs[..] } else { &[] };
        let (flushed, dropped) = (None, &dropped[..]);
        let installation = Installation { changes, flushed, removed: obsolete, made, dropped };
        if self.install_job(partition, installation)? {
            self.counters.compactions.add(1);
            self.tell(&Event::Compacted {
                partition: partition.name.to_string(),
                level_from: job.level_from,
                level_to: job.level_to,
                read_bytes: job.bytes(),
                written_bytes: if job.kind == JobKind::Merge { written } else { 0 },
                took: self.background.now().saturating_sub(started),
            });
            match job.kind {
                JobKind::Move => self.counters.trivial_moves.add(1),
                JobKind::Merge => {
                    self.counters.compaction_read_bytes.add(job.bytes());
                    self.counters.compaction_written_bytes.add(written);
                }
            }
        }
        Ok(outputs)
    }

    /// Compacts a range of a partition to the bottom, on the calling thread.
    pub(super) fn compact(&self, partition: &Arc<PartitionState>, bounds: &Bounds) -> Result<()> {
        self.check_not_closed()?;
        partition.check_live()?;
        let mut between = self.between_groups();
        self.seal(&mut between, partition);
        drop(between);
        self.finish_flushes(std::slice::from_ref(partition))?;
        let end = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => Some(key.clone()),
            Bound::Unbounded => None,
        };
        let (start, end) = (end(&bounds.0), end(&bounds.1));
        if matches!((&start, &end), (Some(start), Some(end)) if start > end) {
            return Ok(());
        }
        let range = UserRange { start: start.as_deref(), end: end.as_deref() };
        // What is flushed from here on is not waited for.
        let through = self.visible_seq();
        // A filter is to see every table that there is now.
        let has_filters = !partition.hooks().filters.is_empty();
        let rewrite_before = has_filters.then(|| self.numbers.allocate());
        loop {
            self.check_open()?;
            partition.check_live()?;
            let mut claims = self.jobs.claims.lock();
            let claim = claims.entry(partition.id).or_default();
            let version = partition.view().version.clone();
            match self.with_picker(partition, &version, claim, rewrite_before, |picker| {
                picker.pick_range(range, through)
            })? {
                RangePick::Done => return Ok(()),
                RangePick::Job(job) => {
                    claim.claim(&job);
                    drop(claims);
                    self.run_claimed(partition, &job, &version)?;
                    self.background.wake_all();
                }
                RangePick::Blocked if claim.running > 0 => {
                    drop(claims);
                    self.wait_for_background();
                }
                RangePick::Blocked => {
                    let damage = claim.damage.clone();
                    return Err(damage.unwrap_or_else(|| {
                        Error::new(ErrorKind::Io, "the range cannot be compacted")
                    }));
                }
            }
        }
    }

    /// Whether there is something to flush, to compact or to remove.
    pub(super) fn has_work(&self) -> bool {
        if self.is_log_failed() {
            return true;
        }
        let mut claims = self.jobs.claims.lock();
        self.live_partitions().iter().any(|partition| {
            let claim = claims.entry(partition.id).or_default();
            !partition.view().sealed.is_empty()
                || claim.running > 0
                // What hooks keep from being picked fails the work, and is told there.
                || !matches!(self.pick(partition, claim), Ok(None))
        })
    }

    /// Waits until no compaction runs; no flush runs either while the result lives.
    pub(super) fn wait_for_jobs(&self) -> MutexGuard<'_, BTreeSet<PartitionId>> {
        while self.jobs.claims.lock().values().any(|claim| claim.running > 0) {
            self.wait_for_background();
        }
        self.jobs.flushing.lock()
    }

    /// The first damage that a compaction met since the open.
    pub(super) fn compaction_damage(&self) -> Option<Error> {
        self.jobs.claims.lock().values().find_map(|claim| claim.damage.clone())
    }
}

impl Claims {
    fn claim(&mut self, job: &Job) {
        self.busy.claim(job);
        self.cursors.advance(job);
        self.running += 1;
    }
}
