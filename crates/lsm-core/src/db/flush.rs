//! [`Flusher`]: from sealed memtables to tables of level 0.
//!
//! Called by the flush thread, which flushes the partition with the most sealed memory until none has
//! any, and by the calls that wait for a flush: `Db::flush`, compactions of a range, checkpoints,
//! ingests, closing. A flush is a job like a compaction: `job.rs` runs it until it has tables and
//! installs them. After a failed sync of the log `flush/resume.rs` flushes all partitions in one edit.
//!
//! Invariants:
//! 1. One flush runs at a time, so level 0 receives tables in the order of their sequences. A
//!    caller that flushes, or must prevent flushes, holds the [`FlushTurn`].
//! 2. No flush enters the manifest before the log admits it (`log/flush_admission.rs`).

mod resume;

use std::sync::Arc;
use std::time::Duration;

use super::background::Background;
use super::clear_seqs::clear_seqs_added;
use super::gaps::gaps_added;
use super::install::{Installation, Installer};
use super::job::{JobRunner, JobTables, StartedJob};
use super::job_parts::JobParts;
use super::jobs::{FlushTurn, Jobs};
use super::log::{Log, ReleasedLog, RetentionDecision, SegmentRelease, WrittenFlush};
use super::ownership::Ownership;
use super::sealing::MemtableSealer;
use super::spans::spans_added;
use crate::compaction::Merge;
use crate::error::{ErrorKind, Result};
use crate::hooks::{Event, catch_engine};
use crate::memtable::{Memtable, clear_seqs_of, spans_of};
use crate::partition::{PartitionState, ReadView};
use crate::snapshot::DecidingJob;
use crate::types::{ClearSeqs, DeletedRanges, MemtableId, PartitionId, SeqNo};
use crate::version::{Change, HookRecord};

/// Sealed memtables whose tables are not installed yet.
pub(super) struct FlushedTables {
    pub(super) made: JobTables,
    /// The memtables through this one,
    pub(super) through: MemtableId,
    /// and the operations through this one.
    pub(super) last_seq: SeqNo,
    /// The clear sequences of the memtables that distinguish some reader from another.
    pub(super) clear_seqs: ClearSeqs,
    /// The same for their deleted ranges.
    pub(super) spans: DeletedRanges,
    pub(super) took: Duration,
    /// The records of the hooks that the flush ran with.
    pub(super) hooks: Arc<[HookRecord]>,
    /// Until it is installed new snapshots keep the partition's view.
    pub(super) _deciding: Option<DecidingJob>,
}

impl FlushedTables {
    /// The changes that install them.
    pub(super) fn changes(&self, partition: PartitionId) -> Vec<Change> {
        let tables = self.made.tables.iter().cloned();
        let added = tables.map(|meta| Change::TableAdded { partition, level: 0, meta });
        let flushed = Change::FlushedThrough {
            partition,
            seq: self.last_seq,
            memtables_through: self.through,
        };
        added
            .chain([flushed])
            .chain(gaps_added(partition, &self.made.gaps))
            .chain(clear_seqs_added(partition, &self.clear_seqs))
            .chain(spans_added(partition, &self.spans))
            .collect()
    }
}

/// The sealed memtables of a view through `through`, newest first.
///
/// # Errors
/// If there are none because the partition was dropped: only a drop and the holder of the turn
/// remove them.
fn sealed_through<'v>(
    partition: &PartitionState,
    view: &'v ReadView,
    through: MemtableId,
) -> Result<&'v [Arc<Memtable>]> {
    let newer = view.sealed.iter().take_while(|memtable| memtable.id > through).count();
    let sealed = &view.sealed[newer..];
    if sealed.is_empty() {
        return Err(partition.dropped_error());
    }
    Ok(sealed)
}

/// The id of the memtable that was sealed last and is not flushed.
pub(super) fn newest_sealed(partition: &PartitionState) -> Option<MemtableId> {
    partition.view().sealed.first().map(|memtable| memtable.id)
}

/// Writes sealed memtables to tables.
pub(super) struct Flusher {
    log: Arc<Log>,
    runner: Arc<JobRunner>,
    background: Arc<Background>,
    sealer: Arc<MemtableSealer>,
    installer: Arc<Installer>,
    /// Says whether the database is closed, and notes that the storage has refused it.
    ownership: Arc<Ownership>,
    jobs: Arc<Jobs>,
}

impl Flusher {
    pub(super) fn new(
        parts: &JobParts,
        sealer: Arc<MemtableSealer>,
        installer: Arc<Installer>,
    ) -> Flusher {
        let JobParts { log, runner, jobs, background, ownership } = parts.clone();
        Flusher { log, runner, background, sealer, installer, ownership, jobs }
    }

    /// The sealing of memtables, and the check of batches.
    #[inline]
    pub(super) fn sealer(&self) -> &MemtableSealer {
        &self.sealer
    }

    /// The installation of changes.
    pub(super) fn installer(&self) -> &Installer {
        &self.installer
    }

    /// Flushes the partition with the most sealed memory; `false` if there is none.
    pub(super) fn flush_one(&self) -> Result<bool> {
        self.flush_next(None)
    }

    /// Flushes `only`, or the partition with the most sealed memory; `false` if there is none.
    /// After a failed sync of the log it resumes instead.
    fn flush_next(&self, only: Option<&Arc<PartitionState>>) -> Result<bool> {
        let flushed = self.flush_or_resume(only);
        // A storage that another writer has taken over may refuse the sync of a table, or that of a new log:
        // after a failed sync, the old log is not synced again.
        flushed.inspect_err(|error| self.ownership.cursor().note_failure(error))
    }

    fn flush_or_resume(&self, only: Option<&Arc<PartitionState>>) -> Result<bool> {
        let mut turn = self.jobs.flush_turn();
        let mut logged_too = true;
        if self.log.has_failed() {
            let resumed = self.resume(&turn);
            // Partitions without a log do not depend on the failed one.
            logged_too = false;
            if resumed.is_ok() || self.next_to_flush(&turn, only, logged_too).is_none() {
                return resumed.map(|()| true);
            }
        }
        let Some((partition, newest)) = self.next_to_flush(&turn, only, logged_too) else {
            return Ok(false);
        };
        let flushed = catch_engine("a flush", || {
            self.flush_partition(&turn, &partition, newest, SegmentRelease::Now)
        });
        // Also a success: a partition whose flush works again is chosen by size.
        turn.note(&partition, flushed.is_ok());
        flushed?;
        // On any thread: the failure that delayed stalled writers is over.
        self.background.flush_worked();
        self.background.wake_all();
        Ok(true)
    }

    /// The partition to be flushed next, and the newest memtable that it has sealed.
    fn next_to_flush(
        &self,
        turn: &FlushTurn<'_>,
        only: Option<&Arc<PartitionState>>,
        logged_too: bool,
    ) -> Option<(Arc<PartitionState>, MemtableId)> {
        let partition = match only {
            Some(partition) => Some(partition.clone()).filter(|it| logged_too || !it.logged)?,
            None => self
                .runner
                .catalog
                .with_id(turn.largest(self.runner.catalog.work(), logged_too)?)?,
        };
        let newest = newest_sealed(&partition)?;
        Some((partition, newest))
    }

    /// Flushes the sealed memtables of a partition through `through`, which is one of them; nothing
    /// if the partition is dropped or gets other hooks meanwhile.
    pub(super) fn flush_partition(
        &self,
        turn: &FlushTurn<'_>,
        partition: &Arc<PartitionState>,
        through: MemtableId,
        release: SegmentRelease,
    ) -> Result<()> {
        // Before the work, because without a manifest its result could not be installed.
        self.runner.catalog.edit()?.ensure_writable()?;
        let view = partition.pin();
        let Ok(sealed) = sealed_through(partition, &view, through) else { return Ok(()) };
        let last_seq = sealed[0].last_seq();
        // If it were held until the end, it would count as a reader of the values that this flush
        // drops.
        drop(view);
        // The log names no values of a partition without a log, so this flush may move those in
        // doubt.
        let rescues = !partition.logged;
        let mut written = match self.write_sealed(turn, partition, through, rescues) {
            // A concurrent drop removes memtables. The result is not needed then.
            Err(_) if partition.is_dropped() => return Ok(()),
            written => written?,
        };
        let flush = WrittenFlush::of(partition, last_seq);
        let released = self.log.admit_flush(&flush, release, || {
            // The memtables of this flush need no segment any more, because the edit that removes the segments
            // adds their tables.
            let flushed = Some((partition.id, through));
            self.runner.catalog.log_low_water(self.runner.commit.applied_lsn(), flushed)
        });
        let released =
            released.inspect_err(|_| self.installer.removal().forget(&written.made.tables))?;
        let mut changes = written.changes(partition.id);
        changes.extend(released.changes());
        let decision = self.retention_of(&released);
        changes.extend(decision.changes.iter().cloned());
        // The removed segments no longer show which sequence numbers were used, and partitions
        // without a log never had frames. Without this change a number could be reused.
        changes.push(Change::LastSeq(self.runner.commit.visible_seq()));
        let installed = self.installer.install(
            partition,
            Installation {
                flushed: Some(through),
                holds: &|current| current.hooks == written.hooks,
                ..Installation::of_job(changes, &mut written.made)
            },
        )?;
        // The partition was dropped, or its hooks changed and the next flush repeats the work: the segments
        // stay listed, and the next flush decides again which may be removed.
        if !installed {
            return Ok(());
        }
        self.count_flush(partition, &written);
        // After the edit. A crash in between leaves files that no manifest lists; the next open removes them.
        self.log.delete_released(&released, decision);
        // Files that cannot be removed now are removed later, and the failure is noted there.
        let _ = self.installer.removal().remove();
        // An error is returned although the flush is installed.
        self.log.sync_spent(&released)
    }

    /// The treatment of the segments that a flush releases: some stay for those who follow the changes.
    fn retention_of(&self, released: &ReleasedLog) -> RetentionDecision {
        if !self.log.keeps() {
            return RetentionDecision::default();
        }
        let now = self.runner.calendar.unix_time();
        self.log.keep(released, &self.runner.catalog.current().retained, now)
    }

    /// Writes the sealed memtables of a partition through `through`, which is one of them, to
    /// tables, and installs nothing; `rescues` is that of the [`StartedJob`].
    pub(super) fn write_sealed(
        &self,
        _turn: &FlushTurn<'_>,
        partition: &Arc<PartitionState>,
        through: MemtableId,
        rescues: bool,
    ) -> Result<FlushedTables> {
        let started = self.background.now();
        let _span = tracing::debug_span!("flush", partition = &*partition.name).entered();
        let job = StartedJob { rescues, ..self.runner.start(partition) };
        let sealed = sealed_through(partition, &partition.view(), through)?.to_vec();
        let made = match self.run_flush(&job, &sealed) {
            // Bits of a memtable may have changed. A repaired copy is tried before the flush fails.
            Err(error) if error.kind() == ErrorKind::Corruption => {
                match self.runner.mended(&job.version, &sealed)? {
                    Some(mended) => {
                        let made = self.run_flush(&job, &mended)?;
                        JobTables { is_repaired: true, ..made }
                    }
                    None => return Err(error),
                }
            }
            made => made?,
        };
        Ok(FlushedTables {
            made,
            through,
            last_seq: sealed[0].last_seq(),
            clear_seqs: clear_seqs_of(&sealed).distinguished_by(&job.snapshots.respected),
            spans: spans_of(&sealed).distinguished_by(&job.snapshots.respected),
            took: self.background.now().saturating_sub(started),
            hooks: job.version.hooks.clone(),
            _deciding: job.deciding,
        })
    }

    fn run_flush(&self, job: &StartedJob, memtables: &[Arc<Memtable>]) -> Result<JobTables> {
        let merge = Merge::flush(memtables, &job.version);
        // A flush never gives up: a close waits for it, because the work would have to be repeated.
        self.runner.run(job, &merge, &|| false)
    }

    /// Counts and reports an installed flush.
    pub(super) fn count_flush(&self, partition: &PartitionState, written: &FlushedTables) {
        let bytes = written.made.bytes();
        self.runner.counters.flush_bytes.add(bytes);
        self.runner.counters.flushes.add(1);
        partition.expired_removed.add(written.made.expired);
        self.runner.events.tell(&Event::Flushed {
            partition: partition.name.to_string(),
            bytes,
            took: written.took,
        });
    }

    /// Flushes everything that was written before the call.
    pub(super) fn flush_all(&self) -> Result<()> {
        self.log.check_writable()?;
        self.seal_and_flush(&self.runner.catalog.partitions())
    }

    /// Seals the active memtable of a partition. The flush thread writes it.
    pub(super) fn seal(&self, partition: &PartitionState) {
        self.sealer.seal_now(partition);
    }

    /// Seals and flushes one partition.
    pub(super) fn flush_now(&self, partition: &Arc<PartitionState>) -> Result<()> {
        self.log.check_writable()?;
        partition.check_live()?;
        self.seal_and_flush(std::slice::from_ref(partition))
    }

    /// Seals and flushes these partitions.
    pub(super) fn seal_and_flush(&self, partitions: &[Arc<PartitionState>]) -> Result<()> {
        let mut between = self.log.lock();
        partitions.iter().for_each(|partition| self.sealer.seal(&mut between, partition));
        drop(between);
        self.finish_flushes(partitions)
    }

    /// Flushes the sealed memtables of these partitions, on the calling thread, unless the database
    /// is closed or fenced meanwhile.
    pub(super) fn finish_flushes(&self, partitions: &[Arc<PartitionState>]) -> Result<()> {
        self.flush_sealed(partitions, || self.log.check_writable())
    }

    /// Flushes the sealed memtables of these partitions, on the calling thread, as long as `go_on`
    /// allows it.
    pub(super) fn flush_sealed(
        &self,
        partitions: &[Arc<PartitionState>],
        go_on: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut goals: Vec<(&Arc<PartitionState>, MemtableId)> = partitions
            .iter()
            .filter_map(|partition| Some((partition, newest_sealed(partition)?)))
            .collect();
        // Partitions that failed come last, and those without a log come first, so that a failure
        // delays nothing else.
        let turn = self.jobs.flush_turn();
        goals.sort_by_key(|(partition, _)| (turn.has_failed(partition.id), partition.logged));
        drop(turn);
        for (partition, goal) in goals {
            // Checked before each flush: another thread may have flushed the memtable meanwhile.
            while is_unflushed(partition, goal) {
                go_on()?;
                self.flush_next(Some(partition))?;
            }
        }
        Ok(())
    }
}

/// Returns `true` if a living partition has an unflushed memtable, `through` or an older one.
pub(super) fn is_unflushed(partition: &PartitionState, through: MemtableId) -> bool {
    !partition.is_dropped() && partition.view().sealed.iter().any(|memtable| memtable.id <= through)
}
