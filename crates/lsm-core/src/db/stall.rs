//! When writers wait, and for how long.
//!
//! Each partition has a pressure, in thousandths: the worst of its level-0 depth, its compaction
//! debt and the sealed memtables of all partitions. Below the soft limit of each it is 0; at the
//! hard limit 1000 and writes stop until it falls. In between a write waits in proportion to its
//! bytes and to the square of the pressure, so the rate falls smoothly and never to nothing at
//! once. Short waits are saved up, because a parked thread sleeps no shorter than this.
//!
//! Invariants:
//! 1. Nobody waits while the reason is gone: every change of a pressure wakes who is parked.
//! 2. Background work never waits here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{BackgroundMode, DbInner};
use crate::compaction::compaction_debt;
use crate::error::{Error, ErrorKind, Result};
use crate::partition::PartitionState;

/// Pressure at which writes stop.
const STOP: u32 = 1000;
/// Level-0 tables, as a multiple of what triggers a compaction: slowed from, stopped at.
const LEVEL0_SOFT: u64 = 5;
const LEVEL0_HARD: u64 = 12;
/// Compaction debt, as a multiple of the first level's size: slowed from, stopped at.
const DEBT_SOFT: u64 = 16;
const DEBT_HARD: u64 = 128;
/// Sealed memtables, in halves of the write buffer: slowed from, stopped at.
const SEALED_SOFT: u64 = 4;
const SEALED_HARD: u64 = 6;
/// What a write of one KiB waits at full pressure.
const NANOS_PER_KIB: u64 = 2_000_000;
/// Waits shorter than this are saved up.
const PARK_MIN: Duration = Duration::from_millis(1);

/// Where writers park.
#[derive(Default)]
pub(super) struct Stall {
    lock: Mutex<()>,
    eased: Condvar,
    /// Waiting time that is saved up, in nanoseconds.
    owed: AtomicU64,
}

/// How far `got` is from `soft` to `hard`, in thousandths.
fn share(got: u64, soft: u64, hard: u64) -> u32 {
    let range = hard.saturating_sub(soft).max(1);
    let permille = u128::from(got.saturating_sub(soft)) * u128::from(STOP) / u128::from(range);
    permille.min(u128::from(STOP)) as u32
}

impl DbInner {
    /// What holds writes to a partition back, and how much.
    pub(super) fn pressure(&self, partition: &PartitionState, sealed: u64) -> (u32, &'static str) {
        let view = partition.view();
        let options = &view.version.options;
        let level0 = view.version.levels[0].tables().len() as u64;
        let trigger = u64::from(options.level0_tables);
        let debt = compaction_debt(&view.version);
        let half = self.options.write_buffer_bytes / 2;
        [
            (share(level0, trigger * LEVEL0_SOFT, trigger * LEVEL0_HARD), "level-0 tables"),
            (
                share(
                    debt,
                    options.level_base_bytes.saturating_mul(DEBT_SOFT),
                    options.level_base_bytes.saturating_mul(DEBT_HARD),
                ),
                "compaction debt",
            ),
            (
                share(sealed, half * SEALED_SOFT, half * SEALED_HARD),
                "memtables that wait for a flush",
            ),
        ]
        .into_iter()
        .max_by_key(|(pressure, _)| *pressure)
        .expect("there are three")
    }

    /// Memory of all sealed memtables.
    pub(super) fn sealed_bytes(&self) -> u64 {
        let sealed = |p: &PartitionState| p.view().sealed.iter().map(|m| m.bytes()).sum::<u64>();
        self.live_partitions().iter().map(|partition| sealed(partition)).sum()
    }

    /// Computes the pressures anew after `changed` took new tables or memtables in, and wakes who
    /// waits. Sealed memtables count for every partition, so a change of one may move all.
    pub(super) fn update_pressure(&self, changed: &PartitionState) {
        // One at a time: else an older view's pressure could be stored over a newer one's.
        let _lock = self.stall.lock.lock();
        let sealed = self.sealed_bytes();
        let store = |partition: &PartitionState| {
            let (pressure, _) = self.pressure(partition, sealed);
            partition.pressure.store(pressure, Ordering::Relaxed);
        };
        store(changed);
        self.live_partitions().iter().for_each(|partition| store(partition));
        self.stall.eased.notify_all();
    }

    /// Wakes parked writers, to look again.
    pub(super) fn ease(&self) {
        let _lock = self.stall.lock.lock();
        self.stall.eased.notify_all();
    }

    /// Holds a write of `bytes` bytes back as long as its partitions' pressure asks for.
    ///
    /// # Errors
    /// If writes are stopped for a reason that background work cannot mend at present.
    #[inline]
    pub(super) fn admit<'a>(
        &self,
        partitions: impl Iterator<Item = &'a PartitionState> + Clone,
        bytes: u64,
    ) -> Result<()> {
        let pressure = worst(partitions.clone());
        if pressure == 0 { Ok(()) } else { self.hold_back(partitions, bytes) }
    }

    #[cold]
    fn hold_back<'a>(
        &self,
        partitions: impl Iterator<Item = &'a PartitionState> + Clone,
        bytes: u64,
    ) -> Result<()> {
        if self.background.mode() == BackgroundMode::Stepped {
            return self.step_until_admitted(partitions);
        }
        let started = self.background.now();
        let mut lock = self.stall.lock.lock();
        while worst(partitions.clone()) >= STOP {
            self.check_open()?;
            if let Some(error) = self.background.error().or_else(|| self.compaction_damage()) {
                return Err(stopped_by(error));
            }
            self.stall.eased.wait(&mut lock);
        }
        let pressure = u64::from(worst(partitions.clone()));
        let full = u64::from(STOP) * u64::from(STOP);
        let nanos = bytes.saturating_mul(NANOS_PER_KIB) / 1024 * pressure * pressure / full;
        let owed = self.stall.owed.fetch_add(nanos, Ordering::Relaxed) + nanos;
        if u128::from(owed) >= PARK_MIN.as_nanos() {
            self.stall.owed.store(0, Ordering::Relaxed);
            self.stall.eased.wait_for(&mut lock, Duration::from_nanos(owed).min(PARK_MIN * 100));
        }
        drop(lock);
        let waited = self.background.now().saturating_sub(started);
        self.counters.stall_nanos.add(waited.as_nanos() as u64);
        Ok(())
    }

    /// With stepped background work the writer does it, as there is nobody else.
    fn step_until_admitted<'a>(
        &self,
        partitions: impl Iterator<Item = &'a PartitionState> + Clone,
    ) -> Result<()> {
        while worst(partitions.clone()) >= STOP {
            self.check_open()?;
            if !self.step().map_err(stopped_by)? {
                let message = "writes are stopped, and there is no background work left to do";
                return Err(Error::new(ErrorKind::Io, message));
            }
        }
        Ok(())
    }
}

/// The worst pressure. A dropped partition has none: its writers must hear of the drop, and
/// nothing would ever ease them.
fn worst<'a>(partitions: impl Iterator<Item = &'a PartitionState>) -> u32 {
    let pressures = partitions.map(|p| match p.pressure.load(Ordering::Relaxed) {
        0 => 0,
        _ if p.is_dropped() => 0,
        pressure => pressure,
    });
    pressures.max().unwrap_or(0)
}

fn stopped_by(error: Error) -> Error {
    Error::because(error.kind(), "writes are stopped, and background work fails", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_rises_from_the_soft_limit_to_the_hard_one() {
        let at = |got| share(got, 20, 40);
        assert_eq!((at(0), at(20), at(30), at(40), at(400)), (0, 0, 500, 1000, 1000));
        assert_eq!(share(u64::MAX, 0, u64::MAX), STOP);
    }
}
