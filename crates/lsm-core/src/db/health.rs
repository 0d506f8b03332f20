//! [`Health`]: whether the store accepts writes, what delays it, and how far it is from its limits.
//!
//! `Db::health` returns it as plain data, for a person (`Display`) or a program. It reads the state of
//! other files and changes nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::DbInner;
use super::errors::BackgroundFailure;
use super::stall::StallHealth;
use super::stall::{DEBT_HARD, DEBT_SOFT, LEVEL0_HARD, LEVEL0_SOFT, SEALED_HARD, SEALED_SOFT};
use crate::clock::ClockJump;
use crate::compaction::compaction_debt;
use crate::machine::open_files_limit;
use crate::options::CompactionStyle;
use crate::partition::PartitionState;
use crate::stats::ValueStoreStats;
use crate::types::Gap;

/// A value with limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Gauge {
    /// The current value.
    pub value: u64,
    /// Soft limit: above it, writers are slowed down, or background work starts.
    pub soft: u64,
    /// Hard limit: writers stop, or cannot exceed it.
    pub hard: u64,
}

impl Gauge {
    /// The distance to the hard limit.
    pub fn left(&self) -> u64 {
        self.hard.saturating_sub(self.value)
    }
}

impl fmt::Display for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ({} left)", self.value, self.hard, self.left())
    }
}

/// The distance of a partition from its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PartitionHealth {
    /// Its name.
    pub name: String,
    /// Bytes that compactions have to move before every level is within its target.
    pub compaction_debt_bytes: Gauge,
    /// Tables in level 0. Without a limit (`u64::MAX`) if the partition is a FIFO.
    pub level0_tables: Gauge,
    /// Gaps: ranges of keys that are damaged beyond repair, and whose loss is not accepted.
    pub gaps: Vec<Gap>,
    /// Compaction filters of the partition whose code this open did not find: flushes and
    /// compactions run without them. The hook provider of the open, or `partition_with`, supplies
    /// them.
    pub absent_filters: Vec<String>,
    /// The chunk files of its large values, if it has a value store.
    pub value_store: Option<ValueStoreStats>,
}

impl PartitionHealth {
    /// Returns `true` if nothing of it is lost or in doubt, no filter of it is absent, and its values can be
    /// moved.
    fn is_healthy(&self) -> bool {
        let store = self.value_store.as_ref();
        self.gaps.is_empty() && self.absent_filters.is_empty() && store.is_none_or(is_well)
    }

    pub(super) fn of(partition: &PartitionState) -> PartitionHealth {
        let view = partition.view();
        let options = &view.version.options;
        let debt = compaction_debt(&view.version);
        let level0 = view.version.levels[0].tables().len() as u64;
        // Where no compaction merges them, their number delays no writer.
        let is_merged = options.compaction_style == CompactionStyle::Leveled;
        let trigger = if is_merged { u64::from(options.level0_tables) } else { u64::MAX };
        PartitionHealth {
            name: partition.name.to_string(),
            compaction_debt_bytes: gauge(debt, options.level_base_bytes, DEBT_SOFT, DEBT_HARD),
            level0_tables: gauge(level0, trigger, LEVEL0_SOFT, LEVEL0_HARD),
            gaps: view.version.gaps.open().cloned().collect(),
            absent_filters: partition.load_hooks().absent.clone(),
            value_store: partition.store().map(|store| store.stats().unwrap_or_default()),
        }
    }
}

/// Returns `true` if no value of the store is in doubt, none is refused, and those that should be moved are.
fn is_well(store: &ValueStoreStats) -> bool {
    store.failure.is_none() && store.unmoved.is_none() && store.refused.is_none()
}

/// The health of a database, from `Db::health`.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Health {
    /// The reason why the store refuses writes, if it does. The store resumes without help, unless it
    /// was opened read-only.
    pub read_only: Option<String>,
    /// The error of the manifest, if it is missing: the folder of the database, or its files, were deleted. All
    /// later writes are lost.
    pub deleted: Option<String>,
    /// The error of the last batch, if the log had no space for it, until there is room for small batches.
    pub refused: Option<String>,
    /// The error for which there is no commit cursor at present: secondaries have no strong reads, and none can take
    /// the database over. The cursor is tried again every second, later every 8 seconds.
    pub cursor_failure: Option<String>,
    /// The failure of a storage that works in the background, such as one that ships the database to a bucket which
    /// does not answer.
    pub storage_failure: Option<String>,
    /// Partitions whose writers are delayed, by name.
    pub stalls: Vec<StallHealth>,
    /// Failures of background work without a later success.
    pub background_errors: Vec<BackgroundFailure>,
    /// Damage that a compaction found: compactions skip these tables until the next open, or until no reader sees them.
    pub damage: Option<String>,
    /// The last panic of an event listener since the open. The listener still gets later events, and
    /// the panic failed no work.
    pub listener_panic: Option<String>,
    /// The partitions, by name.
    pub partitions: Vec<PartitionHealth>,
    /// Memory of sealed memtables, over all partitions, in bytes.
    pub sealed_memtable_bytes: Gauge,
    /// Bytes of the log that memtables pin; beyond the limit the memtables are flushed.
    pub wal_bytes: Gauge,
    /// The age of the oldest snapshot.
    pub oldest_snapshot: Option<Duration>,
    /// Bytes of obsolete tables that readers hold.
    pub pinned_obsolete_bytes: u64,
    /// Tables and chunk files that are open for reading. Beyond the soft limit, each open closes another of
    /// them. The hard limit is that of the process, which log, jobs and application share.
    pub open_files: Gauge,
    /// The unconfirmed jump of the calendar, if a partition has entries that expire, or tables that are removed by
    /// their age. That follows the monotonic clock until the jump has lasted for an hour, or `Db::confirm_clock` is called.
    pub clock_jump: Option<ClockJump>,
}

impl Health {
    /// Returns `true` if writes run at full speed, no background work fails, no data is lost, no filter is absent, no
    /// large value is in a chunk file whose sync failed, the last large value was not refused, the space of deleted
    /// values is reclaimed, the files of the database are in their folder, secondaries have a commit cursor, the storage
    /// does not fail in the background, and no entry waits for a calendar that jumped.
    pub fn is_healthy(&self) -> bool {
        self.read_only.is_none()
            && self.deleted.is_none()
            && self.refused.is_none()
            && self.cursor_failure.is_none()
            && self.storage_failure.is_none()
            && self.stalls.is_empty()
            && self.background_errors.is_empty()
            && self.damage.is_none()
            && self.clock_jump.is_none()
            && self.partitions.iter().all(PartitionHealth::is_healthy)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", if self.is_healthy() { "healthy" } else { "not healthy" })?;
        if let Some(why) = &self.read_only {
            writeln!(f, "read-only: {why}")?;
        }
        if let Some(why) = &self.deleted {
            writeln!(f, "the folder of the database, or its files, were deleted: {why}")?;
        }
        if let Some(why) = &self.refused {
            writeln!(f, "writes are refused: {why}")?;
        }
        write_failures(f, self)?;
        for stall in &self.stalls {
            let StallHealth { partition, reason, pressure_permille, since } = stall;
            writeln!(
                f,
                "partition {partition:?}: writes are delayed by {reason}, \
                 {pressure_permille} of 1000, for {since:?}"
            )?;
        }
        for failure in &self.background_errors {
            writeln!(f, "{failure}")?;
        }
        if let Some(damage) = &self.damage {
            writeln!(f, "compactions skip a table: {damage}")?;
        }
        if let Some(jump) = &self.clock_jump {
            writeln!(f, "expiry waits: {jump}")?;
        }
        if let Some(panic) = &self.listener_panic {
            writeln!(f, "{panic}")?;
        }
        for partition in &self.partitions {
            let PartitionHealth {
                name,
                compaction_debt_bytes,
                level0_tables,
                gaps,
                absent_filters,
                value_store,
            } = partition;
            writeln!(
                f,
                "partition {name:?}: compaction debt {compaction_debt_bytes}, \
                 level-0 tables {level0_tables}"
            )?;
            for filter in absent_filters {
                writeln!(f, "partition {name:?}: without its compaction filter {filter:?}")?;
            }
            if let Some(store) = value_store {
                write_store(f, name, store)?;
            }
            for gap in gaps {
                writeln!(f, "partition {name:?}: damaged beyond repair: {gap}")?;
            }
        }
        writeln!(f, "sealed memtable bytes: {}", self.sealed_memtable_bytes)?;
        writeln!(f, "log bytes: {}", self.wal_bytes)?;
        if let Some(age) = self.oldest_snapshot {
            writeln!(f, "oldest snapshot: taken {age:?} ago")?;
        }
        writeln!(f, "open files: {}", self.open_files)?;
        write!(f, "obsolete bytes that readers hold: {}", self.pinned_obsolete_bytes)
    }
}

/// Writes the failures that no read and no write shows.
fn write_failures(f: &mut fmt::Formatter<'_>, health: &Health) -> fmt::Result {
    if let Some(why) = &health.cursor_failure {
        writeln!(
            f,
            "no commit cursor, which is tried again; until it is made, secondaries have no strong reads: {why}"
        )?;
    }
    if let Some(why) = &health.storage_failure {
        writeln!(f, "the storage fails in the background: {why}")?;
    }
    Ok(())
}

fn write_store(f: &mut fmt::Formatter<'_>, name: &str, store: &ValueStoreStats) -> fmt::Result {
    writeln!(
        f,
        "partition {name:?}: {} bytes in {} chunk files, {} of them dead, and readers hold {} of these",
        store.bytes, store.chunk_count, store.dead_bytes, store.pinned_bytes
    )?;
    if let Some(why) = &store.refused {
        writeln!(f, "partition {name:?}: large values are refused: {why}")?;
    }
    if let Some(why) = &store.unmoved {
        writeln!(f, "partition {name:?}: garbage stays: {why}")?;
    }
    if let Some(failure) = &store.failure {
        writeln!(f, "partition {name:?}: large values in doubt: {failure}")?;
    }
    Ok(())
}

impl DbInner {
    /// The part of the health of the database that background work and stalls determine.
    fn background_health(&self, partitions: &[Arc<PartitionState>]) -> Health {
        let sealed = self.scheduler.stall().sealed_bytes();
        let half_buffer = self.setup.options.write_buffer_bytes / 2;
        Health {
            stalls: self.scheduler.stall().health(partitions, self.scheduler.background().now()),
            background_errors: self.scheduler.background().failures(),
            damage: self.scheduler.jobs().damage().map(|error| error.to_string()),
            listener_panic: self.events.panic().map(|error| error.to_string()),
            sealed_memtable_bytes: gauge(sealed, half_buffer, SEALED_SOFT, SEALED_HARD),
            ..Health::default()
        }
    }

    /// The jump of the calendar, if entries expire or tables go by it.
    fn clock_jump(&self) -> Option<ClockJump> {
        let jump = self.runner.calendar.jump()?;
        let partitions = self.catalog.partitions();
        let is_awaited = partitions.iter().any(|it| {
            let style = it.view().version.options.compaction_style;
            it.load_hooks().ageing().is_some() || style.has_age()
        });
        is_awaited.then_some(jump)
    }

    /// Believes the clock as it is.
    pub(super) fn confirm_clock(&self) {
        self.runner.calendar.confirm();
        // More may be due by it.
        self.scheduler.background().wake_all();
    }

    /// Returns the health of the database.
    pub(super) fn health(&self) -> Health {
        if let Err(error) = self.ownership.check_process() {
            return Health { read_only: Some(error.to_string()), ..Health::default() };
        }
        let mut live = self.catalog.partitions();
        live.sort_by(|a, b| a.name.cmp(&b.name));
        let applied = self.commit.applied_lsn();
        // The part of the log that memtables need, not the length of the files: segments are
        // removed as a whole and later.
        let pinned = applied.0.saturating_sub(self.catalog.log_low_water(applied, None).0);
        Health {
            read_only: self.why_read_only().map(|error| error.to_string()),
            deleted: self.deleted_files().map(|error| error.to_string()),
            refused: self.log.refusal().map(|error| error.to_string()),
            partitions: live.iter().map(|partition| PartitionHealth::of(partition)).collect(),
            wal_bytes: gauge(pinned, self.setup.options.wal_bytes_max, 1, 1),
            oldest_snapshot: self.oldest_snapshot_age(),
            pinned_obsolete_bytes: self.catalog.obsolete().pinned_bytes(),
            open_files: Gauge {
                value: self.context.files.open_count() as u64,
                soft: self.context.files.limit() as u64,
                hard: open_files_limit(),
            },
            cursor_failure: self.ownership.cursor().failure().map(|error| error.to_string()),
            storage_failure: self.context.fs.failure(),
            clock_jump: self.clock_jump(),
            ..self.background_health(&live)
        }
    }
}

pub(super) fn gauge(value: u64, unit: u64, soft: u64, hard: u64) -> Gauge {
    Gauge { value, soft: unit.saturating_mul(soft), hard: unit.saturating_mul(hard) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::drawing::draw;
    use crate::hooks::PartitionHooks;

    #[test]
    fn a_partition_reports_how_far_it_is_from_its_limits() {
        let version = draw("L0: 3:a-b 2:a-b 1:a-b\nL5: 5:p-q*2000");
        let partition = PartitionState::alone(version, PartitionHooks::default());
        let health = PartitionHealth::of(&partition);
        assert_eq!(health.name, "default");
        let Gauge { value, soft, hard } = health.level0_tables;
        assert_eq!((value, soft, hard), (3, 2 * LEVEL0_SOFT, 2 * LEVEL0_HARD));
        let debt = health.compaction_debt_bytes;
        assert!(debt.value >= 300 && debt.hard == 1000 * DEBT_HARD, "{debt}");
        assert_eq!(debt.left(), debt.hard - debt.value);
    }

    #[test]
    fn a_store_is_healthy_unless_something_fails_or_is_lost() {
        let healthy = Health::default();
        assert!(healthy.is_healthy() && healthy.to_string().starts_with("healthy"));
        let read_only = Health { read_only: Some("no".to_owned()), ..Health::default() };
        assert!(!read_only.is_healthy() && read_only.to_string().contains("read-only: no"));
        let damaged = Health { damage: Some("a table".to_owned()), ..Health::default() };
        assert!(!damaged.is_healthy() && damaged.to_string().contains("a table"));
    }
}
