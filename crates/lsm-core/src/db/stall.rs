//! When writers wait, and for how long.
//!
//! Each partition has a pressure, in thousandths: the worst of its level-0 depth, its compaction
//! debt and the sealed memtables of all partitions. Below the soft limit of each it is 0; at the
//! hard limit 1000 and writes stop until it falls. In between a write waits in proportion to its
//! bytes and to the square of the pressure, so the rate falls smoothly and never to nothing at
//! once. Short waits are saved up, because a parked thread sleeps no shorter than this.
//!
//! A call that must not wait is told the reason instead, at a rate that falls in the same way.
//!
//! Invariants:
//! 1. Nobody waits while the reason is gone: every change of a pressure wakes who is parked.
//! 2. Background work never waits here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::events::in_listener;
use super::{BackgroundMode, DbInner};
use crate::compaction::compaction_debt;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::Event;
use crate::partition::PartitionState;
use crate::types::PartitionId;

/// Pressure at which writes stop.
pub(super) const STOP: u32 = 1000;
/// Level-0 tables, as a multiple of what triggers a compaction: slowed from, stopped at.
pub(super) const LEVEL0_SOFT: u64 = 5;
pub(super) const LEVEL0_HARD: u64 = 12;
/// Compaction debt, as a multiple of the first level's size: slowed from, stopped at.
pub(super) const DEBT_SOFT: u64 = 16;
pub(super) const DEBT_HARD: u64 = 128;
/// Sealed memtables, in halves of the write buffer: slowed from, stopped at.
pub(super) const SEALED_SOFT: u64 = 4;
pub(super) const SEALED_HARD: u64 = 6;
/// What a write of one KiB waits at full pressure.
const NANOS_PER_KIB: u64 = 2_000_000;
/// Waits shorter than this are saved up.
const PARK_MIN: Duration = Duration::from_millis(1);

/// A partition whose writers are held back.
#[derive(Clone, Copy)]
pub(super) struct HeldBack {
    pub(super) pressure: u32,
    pub(super) reason: &'static str,
    /// Since this time of the clock.
    pub(super) since: Duration,
}

/// Where writers park.
#[derive(Default)]
pub(super) struct Stall {
    lock: Mutex<BTreeMap<PartitionId, HeldBack>>,
    eased: Condvar,
    /// Waiting time that is saved up, in nanoseconds.
    owed: AtomicU64,
    /// When the next write that must not wait may pass under pressure: nanoseconds of the clock.
    free_at: AtomicU64,
}

impl Stall {
    /// The partitions whose writers are held back.
    pub(super) fn held_back(&self) -> BTreeMap<PartitionId, HeldBack> {
        self.lock.lock().clone()
    }
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
        let mut held = self.stall.lock.lock();
        let sealed = self.sealed_bytes();
        let mut store = |partition: &PartitionState| {
            let (pressure, reason) = self.pressure(partition, sealed);
            partition.pressure.store(pressure, Ordering::Relaxed);
            self.note_pressure(&mut held, partition, pressure, reason);
        };
        store(changed);
        self.live_partitions().iter().for_each(|partition| store(partition));
        self.stall.eased.notify_all();
    }

    /// Notes what holds a partition's writers back; tells if that begins, stops writes, is for
    /// another reason, or ends.
    fn note_pressure(
        &self,
        held: &mut BTreeMap<PartitionId, HeldBack>,
        partition: &PartitionState,
        pressure: u32,
        reason: &'static str,
    ) {
        let pressure = if partition.is_dropped() { 0 } else { pressure };
        let before = held.get(&partition.id).copied();
        let shown = |pressure: u32, reason| (pressure > 0).then_some((pressure >= STOP, reason));
        let is_news =
            before.and_then(|held| shown(held.pressure, held.reason)) != shown(pressure, reason);
        if pressure > 0 {
            let since = before.map_or_else(|| self.background.now(), |held| held.since);
            held.insert(partition.id, HeldBack { pressure, reason, since });
        } else {
            held.remove(&partition.id);
        }
        if is_news {
            let partition = partition.name.to_string();
            self.tell(&Event::StallChanged { partition, pressure_permille: pressure, reason });
        }
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

    /// As [`DbInner::admit`], for a write that must not wait.
    ///
    /// # Errors
    /// [`ErrorKind::WouldStall`] with the reason.
    pub(super) fn try_admit<'a>(
        &self,
        partitions: impl Iterator<Item = &'a PartitionState> + Clone,
        bytes: u64,
    ) -> Result<()> {
        let pressure = worst(partitions.clone());
        if pressure == 0 {
            return Ok(());
        }
        self.check_open()?;
        let now = u64::try_from(self.background.now().as_nanos()).unwrap_or(u64::MAX);
        let cost = wait_nanos(bytes, pressure);
        let pass = |free_at: u64| (free_at <= now).then(|| now.saturating_add(cost));
        let free_at = &self.stall.free_at;
        if pressure < STOP
            && free_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pass).is_ok()
        {
            return Ok(());
        }
        let how = if pressure < STOP { "slowed down" } else { "stopped" };
        let message = format!("writes are {how}: {}", self.why(partitions));
        Err(Error::new(ErrorKind::WouldStall, message))
    }

    /// What holds writes to these partitions back most.
    fn why<'a>(&self, partitions: impl Iterator<Item = &'a PartitionState>) -> String {
        let sealed = self.sealed_bytes();
        let worst = partitions.map(|p| (self.pressure(p, sealed), p)).max_by_key(|(p, _)| p.0);
        worst.map_or_else(String::new, |((_, reason), partition)| {
            format!("too many {reason}, partition {:?}", partition.name)
        })
    }

    #[cold]
    fn hold_back<'a>(
        &self,
        partitions: impl Iterator<Item = &'a PartitionState> + Clone,
        bytes: u64,
    ) -> Result<()> {
        if in_listener() {
            // On a thread that may be the one that is waited for.
            return if worst(partitions.clone()) < STOP {
                Ok(())
            } else {
                self.try_admit(partitions, bytes)
            };
        }
        if self.background.mode() == BackgroundMode::Stepped {
            return self.step_until_admitted(partitions);
        }
        self.deliver();
        let started = self.background.now();
        let mut lock = self.stall.lock.lock();
        while worst(partitions.clone()) >= STOP {
            self.check_open()?;
            if let Some(error) = self.background.error().or_else(|| self.compaction_damage()) {
                drop(lock);
                return Err(stopped_by(&self.why(partitions), error));
            }
            self.stall.eased.wait(&mut lock);
        }
        let nanos = wait_nanos(bytes, worst(partitions.clone()));
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
            if !self
                .background
                .step(self)
                .map_err(|error| stopped_by(&self.why(partitions.clone()), error))?
            {
                let why = self.why(partitions);
                let message =
                    format!("writes are stopped, and no background work is left to do: {why}");
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

/// How long a write of `bytes` bytes waits, in nanoseconds.
fn wait_nanos(bytes: u64, pressure: u32) -> u64 {
    let (pressure, full) = (u64::from(pressure), u64::from(STOP) * u64::from(STOP));
    (bytes.saturating_mul(NANOS_PER_KIB) / 1024).saturating_mul(pressure * pressure) / full
}

fn stopped_by(why: &str, error: Error) -> Error {
    let message = format!("writes are stopped ({why}), and background work fails");
    Error::because(error.kind(), message, error)
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
