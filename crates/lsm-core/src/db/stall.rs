//! When writers wait, and for how long.
//!
//! Each partition has a pressure, in thousandths: the worst of its level-0 depth, its compaction
//! debt, and the sealed memtables of all partitions together, which delay all writers. Below the
//! soft limit of each it is 0; at the hard limit 1000 and writes stop until it falls. In between a
//! write waits in proportion to its bytes and to the square of the pressure, so the rate falls
//! smoothly and never to nothing at once. Short waits are saved up, because a parked thread cannot
//! sleep for a shorter time.
//!
//! A call that must not wait gets an error with the reason instead, at a rate that falls in the same
//! way.
//!
//! Invariants:
//! 1. No writer waits without a reason: every change of a pressure wakes the parked ones.
//! 2. Background work never waits here.
//! 3. A change of one partition costs the same with one partition and with a thousand. So the
//!    shared part is kept apart from the part of each, and sums are updated incrementally.

mod env;
mod pressure;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::background::is_pool_thread;
use super::events::in_listener;
use super::jobs::holds_flush_turn;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::Event;
use crate::partition::PartitionState;
use crate::types::PartitionId;

/// A partition whose writers are delayed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StallHealth {
    /// Its name.
    pub partition: String,
    /// The strongest reason.
    pub reason: &'static str,
    /// The strength of the delay in thousandths: at 1000, writers are stopped.
    pub pressure_permille: u32,
    /// The duration of the delay so far.
    pub since: Duration,
}

pub(super) use env::{DbStallEnv, StallEnv};
pub(super) use pressure::{
    DEBT_HARD, DEBT_SOFT, LEVEL0_HARD, LEVEL0_SOFT, Pressure, SEALED_HARD, SEALED_SOFT, StallCause,
};

use pressure::{STOP, own_pressure};

/// The wait of a write of one KiB at full pressure.
const NANOS_PER_KIB: u64 = 2_000_000;
/// Waits shorter than this are saved up.
const PARK_MIN: Duration = Duration::from_millis(1);

/// Does one piece of background work; `false` if there is none. Writers do it themselves where there are no
/// threads.
pub(super) type Step<'a> = Option<&'a dyn Fn() -> Result<bool>>;

/// The last report on a partition's writers.
#[derive(Clone, Copy)]
struct Reported {
    shown: (bool, StallCause),
    /// They are delayed since this time of the clock.
    since: Duration,
}

/// The state under the lock.
struct StallState {
    reported: BTreeMap<PartitionId, Reported>,
    /// Sealed bytes by partition, as they went into the sum; those with none are not listed.
    sealed: BTreeMap<PartitionId, u64>,
    sealed_sum: u64,
    /// The pressure of the sum.
    shared: Pressure,
    /// Grows whenever waiting writers must look again.
    news: u64,
}

impl StallState {
    /// Updates the sum of sealed bytes after a change of `partition`.
    fn count_sealed(&mut self, partition: &PartitionState) {
        let bytes = match partition.is_dropped() {
            true => 0,
            false => partition.view().sealed.iter().map(|memtable| memtable.bytes()).sum(),
        };
        let before = match bytes {
            0 => self.sealed.remove(&partition.id),
            _ => self.sealed.insert(partition.id, bytes),
        };
        self.sealed_sum = self.sealed_sum + bytes - before.unwrap_or(0);
    }

    /// Notes the delay of a partition's writers; reports if it begins, stops writes, changes its
    /// cause, or ends.
    fn note(&mut self, env: &dyn StallEnv, partition: &PartitionState, pressure: Pressure) {
        let shown = if partition.is_dropped() { None } else { pressure.shown() };
        let before = self.reported.get(&partition.id).copied();
        if before.map(|reported| reported.shown) == shown {
            return;
        }
        match shown {
            None => self.reported.remove(&partition.id),
            Some(shown) => {
                let since = before.map_or_else(|| env.now(), |reported| reported.since);
                self.reported.insert(partition.id, Reported { shown, since })
            }
        };
        env.tell(&Event::StallChanged {
            partition: partition.name.to_string(),
            pressure_permille: if shown.is_some() { pressure.permille } else { 0 },
            reason: pressure.cause.text(),
        });
    }
}

/// The place where writers park.
pub(super) struct Stall {
    // Fixed after construction.
    /// Half of the write buffer, in bytes.
    half_buffer: u64,
    env: Arc<dyn StallEnv>,
    held: Mutex<StallState>,
    eased: Condvar,
    /// The pressure on writes to every partition: stored under the lock, read relaxed by writers.
    shared: AtomicU32,
    /// Waiting time that is saved up, in nanoseconds.
    delay_due: AtomicU64,
    /// When the next write that must not wait may pass under pressure: nanoseconds of the clock.
    free_at: AtomicU64,
}

impl Stall {
    /// A stall without waiters, with a write buffer of so many bytes.
    pub(super) fn new(write_buffer_bytes: u64, env: Arc<dyn StallEnv>) -> Stall {
        Stall {
            half_buffer: write_buffer_bytes / 2,
            env,
            held: Mutex::new(StallState {
                reported: BTreeMap::new(),
                sealed: BTreeMap::new(),
                sealed_sum: 0,
                shared: Pressure::NONE,
                news: 0,
            }),
            eased: Condvar::new(),
            shared: AtomicU32::new(0),
            delay_due: AtomicU64::new(0),
            free_at: AtomicU64::new(0),
        }
    }

    /// Memory of all sealed memtables, in bytes.
    pub(super) fn sealed_bytes(&self) -> u64 {
        self.held.lock().sealed_sum
    }

    /// Returns `true` if writers of a partition are delayed until compactions have run.
    pub(super) fn waits_for_compactions(&self) -> bool {
        let held = self.held.lock();
        held.reported.values().any(|reported| reported.shown.1 != StallCause::Sealed)
    }

    /// The pressure on writes to a partition.
    pub(super) fn pressure(&self, partition: &PartitionState) -> Pressure {
        let shared = self.held.lock().shared;
        own_pressure(partition).or_worse(shared)
    }

    /// Those of `partitions` whose writers are delayed, and for how long at `now`.
    pub(super) fn health(
        &self,
        partitions: &[Arc<PartitionState>],
        now: Duration,
    ) -> Vec<StallHealth> {
        let mut held = Vec::new();
        for partition in partitions {
            let pressure = self.pressure(partition);
            if pressure.permille == 0 {
                continue;
            }
            let reported = self.held.lock().reported.get(&partition.id).copied();
            // A pressure that was not reported yet has begun just now.
            let since = reported.map_or(now, |reported| reported.since);
            held.push(StallHealth {
                partition: partition.name.to_string(),
                reason: pressure.cause.text(),
                pressure_permille: pressure.permille,
                since: now.saturating_sub(since),
            });
        }
        held
    }

    /// Computes the pressures again after `changed` got new tables or memtables, or were dropped,
    /// and wakes the waiting writers.
    ///
    /// # Cost
    /// That of the changed ones; if the shared part begins or ceases to delay writers, or stops
    /// them, it is reported for each partition.
    pub(super) fn update<'a>(&self, changed: impl Iterator<Item = &'a PartitionState>) {
        let env = &*self.env;
        // One update at a time: otherwise the pressure of an older view could be stored over that
        // of a newer one.
        let mut held = self.held.lock();
        let before = held.shared;
        let mut own: Vec<(&PartitionState, Pressure)> = Vec::new();
        for partition in changed {
            held.count_sealed(partition);
            let pressure = own_pressure(partition);
            partition.pressure.store(pressure.permille, Ordering::Relaxed);
            own.push((partition, pressure));
        }
        held.shared = Pressure::of(
            StallCause::Sealed,
            held.sealed_sum,
            self.half_buffer * SEALED_SOFT,
            self.half_buffer * SEALED_HARD,
        );
        held.shared = held.shared.or_worse(env.pressure_of_all(held.sealed_sum));
        let shared = held.shared;
        self.shared.store(shared.permille, Ordering::Relaxed);
        for (partition, pressure) in own {
            held.note(env, partition, pressure.or_worse(shared));
        }
        // Reported for all partitions only when this changes, because there may be thousands.
        if shared.shown() != before.shown() {
            for partition in env.partitions() {
                held.note(env, &partition, own_pressure(&partition).or_worse(shared));
            }
        }
        // Even if no pressure changed: a waiter looks for obstacles as well, and these have no
        // number.
        held.news += 1;
        drop(held);
        self.eased.notify_all();
    }

    /// Wakes parked writers, to look again.
    pub(super) fn ease(&self) {
        // Under the lock: a writer that has looked and is about to sleep holds it, so the wake-up
        // cannot fall between the two.
        self.held.lock().news += 1;
        self.eased.notify_all();
    }

    /// The worst of the partitions, in thousandths.
    #[inline]
    fn worst<'a>(&self, partitions: impl Iterator<Item = &'a PartitionState>) -> u32 {
        let shared = self.shared.load(Ordering::Relaxed);
        let mut worst = 0;
        for partition in partitions {
            let pressure = partition.pressure.load(Ordering::Relaxed).max(shared);
            // A dropped partition has no pressure: its writers must get the error of the drop, and
            // nothing would ever wake them.
            if pressure > worst && !partition.is_dropped() {
                worst = pressure;
            }
        }
        worst
    }

    /// Delays a write of `bytes` bytes according to its partitions' pressure. One of no bytes only deletes, and may
    /// be what ends the pressure.
    ///
    /// # Errors
    /// If writes are stopped for a reason that background work cannot remove at present, and `bytes` is not 0.
    #[inline]
    pub(super) fn admit<'a>(
        &self,
        step: Step<'_>,
        partitions: impl Iterator<Item = &'a PartitionState> + Clone,
        bytes: u64,
    ) -> Result<()> {
        // The usual case: a few relaxed loads. A value that is slightly out of date delays one
        // write more or less.
        if self.worst(partitions.clone()) == 0 {
            return Ok(());
        }
        let partitions: Vec<&PartitionState> = partitions.collect();
        self.hold_back(step, &partitions, bytes)
    }

    /// As [`Stall::admit`], for a write that must not wait.
    ///
    /// # Errors
    /// [`ErrorKind::WouldStall`] with the reason.
    pub(super) fn try_admit<'a>(
        &self,
        partitions: impl Iterator<Item = &'a PartitionState> + Clone,
        bytes: u64,
    ) -> Result<()> {
        let pressure = self.worst(partitions.clone());
        if pressure == 0 {
            return Ok(());
        }
        self.env.check_open()?;
        if pressure < STOP && self.passes_at(self.env.now(), wait_nanos(bytes, pressure)) {
            return Ok(());
        }
        let how = if pressure < STOP { "slowed down" } else { "stopped" };
        let partitions: Vec<&PartitionState> = partitions.collect();
        let message = format!("writes are {how}: {}", self.why(&partitions));
        Err(Error::new(ErrorKind::WouldStall, message))
    }

    /// Returns `true` if a write that costs so many nanoseconds may pass at `now` without waiting.
    fn passes_at(&self, now: Duration, cost: u64) -> bool {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.free_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free_at: u64| {
                // A bucket of one write: a caller that does not wait passes at the rate at which
                // the others are slowed down.
                (free_at <= now).then(|| now.saturating_add(cost))
            })
            .is_ok()
    }

    /// The partition with the greatest delay, and its pressure.
    fn hardest<'a>(
        &self,
        partitions: &[&'a PartitionState],
    ) -> Option<(&'a PartitionState, Pressure)> {
        let shared = self.held.lock().shared;
        let pressures = partitions.iter().map(|p| (*p, own_pressure(p).or_worse(shared)));
        pressures.max_by_key(|(_, pressure)| pressure.permille)
    }

    fn why(&self, partitions: &[&PartitionState]) -> String {
        let Some((partition, pressure)) = self.hardest(partitions) else { return String::new() };
        format!("too many {}, partition {:?}", pressure.cause.text(), partition.name)
    }

    #[cold]
    fn hold_back(&self, step: Step<'_>, partitions: &[&PartitionState], bytes: u64) -> Result<()> {
        let each = || partitions.iter().copied();
        let is_needed = is_pool_thread() || self.env.shares_threads() && holds_flush_turn();
        if in_listener() || is_needed {
            // This thread may be the one that would end the stall, so it must not sleep: a hook may write to another
            // database, which needs this thread of a pool, or one that waits for the turn to flush.
            let stopped = self.worst(each()) >= STOP;
            return if stopped { self.try_admit(each(), bytes) } else { Ok(()) };
        }
        if let Some(step) = step {
            return self.step_until_admitted(step, partitions, bytes);
        }
        let env = &*self.env;
        // Listeners get the stall before this thread sleeps.
        env.deliver();
        let started = env.now();
        // First until writes continue at all, then for the price of this one.
        let admitted = self.wait_while_stopped(partitions, bytes);
        let paid = admitted.and_then(|()| self.pay(partitions, bytes));
        let waited = env.now().saturating_sub(started);
        env.counters().stall_nanos.add(waited.as_nanos() as u64);
        paid
    }

    fn wait_while_stopped(&self, partitions: &[&PartitionState], bytes: u64) -> Result<()> {
        let env = &*self.env;
        loop {
            // Taken before the look: news during it ends the wait below at once. The lock is not
            // held during the look, because its calls take other locks.
            let seen = self.held.lock().news;
            if self.worst(partitions.iter().copied()) < STOP {
                return Ok(());
            }
            env.check_open()?;
            if let Some((partition, pressure)) = self.hardest(partitions)
                && let Some(error) = env.obstacle(partition, pressure.cause)
            {
                return may_pass(bytes, stopped_by(&self.why(partitions), error));
            }
            let mut held = self.held.lock();
            while held.news == seen {
                self.eased.wait(&mut held);
            }
        }
    }

    /// Waits for the cost of a write of `bytes` bytes under the present pressure, or saves it up.
    /// It is paid in full: relief makes the rest cheaper, and only the end of the pressure makes it
    /// free.
    fn pay(&self, partitions: &[&PartitionState], bytes: u64) -> Result<()> {
        let env = &*self.env;
        let pressure = self.worst(partitions.iter().copied());
        let nanos = wait_nanos(bytes, pressure);
        let delay_due = self.delay_due.fetch_add(nanos, Ordering::Relaxed).saturating_add(nanos);
        // A sleep of some microseconds lasts much longer than requested, so short waits are
        // collected.
        if u128::from(delay_due) < PARK_MIN.as_nanos() {
            return Ok(());
        }
        // This thread pays for everything that was saved up. The counter is emptied at once, so no
        // other thread pays it again.
        let left = Duration::from_nanos(self.delay_due.swap(0, Ordering::Relaxed));
        let mut debt = Debt { left, pressure };
        while !debt.left.is_zero() {
            let from = env.now();
            let mut held = self.held.lock();
            if self.eased.wait_for(&mut held, debt.left).timed_out() {
                return Ok(());
            }
            drop(held);
            env.check_open()?;
            let waited = env.now().saturating_sub(from);
            debt.pay(waited, self.worst(partitions.iter().copied()));
        }
        Ok(())
    }

    /// Without threads the writer does the background work.
    fn step_until_admitted(
        &self,
        step: &dyn Fn() -> Result<bool>,
        partitions: &[&PartitionState],
        bytes: u64,
    ) -> Result<()> {
        while self.worst(partitions.iter().copied()) >= STOP {
            self.env.check_open()?;
            match step() {
                Ok(true) => {}
                Ok(false) => {
                    let why = self.why(partitions);
                    let message =
                        format!("writes are stopped, and no background work is left to do: {why}");
                    return may_pass(bytes, Error::new(ErrorKind::Io, message));
                }
                Err(error) => return may_pass(bytes, stopped_by(&self.why(partitions), error)),
            }
        }
        Ok(())
    }
}

/// The remaining wait of a write, and the pressure that it was computed at.
struct Debt {
    left: Duration,
    pressure: u32,
}

impl Debt {
    /// Subtracts `waited`. Under a lower pressure than before the rest costs less; a higher one is
    /// for later writes.
    fn pay(&mut self, waited: Duration, pressure: u32) {
        self.left = self.left.saturating_sub(waited);
        if pressure < self.pressure {
            // The price is a square of the pressure, so the rest shrinks by the square, too.
            self.left = self.left.mul_f64((f64::from(pressure) / f64::from(self.pressure)).powi(2));
            self.pressure = pressure;
        }
    }
}

/// The wait of a write of `bytes` bytes, in nanoseconds.
fn wait_nanos(bytes: u64, pressure: u32) -> u64 {
    let pressure = u64::from(pressure);
    let full = u64::from(STOP) * u64::from(STOP);
    (bytes.saturating_mul(NANOS_PER_KIB) / 1024).saturating_mul(pressure * pressure) / full
}

/// The answer to a write of `bytes` bytes that waits in vain.
fn may_pass(bytes: u64, error: Error) -> Result<()> {
    if bytes == 0 { Ok(()) } else { Err(error) }
}

fn stopped_by(why: &str, error: Error) -> Error {
    let message = format!("writes are stopped ({why}), and background work fails");
    Error::because(error.kind(), message, error)
}

#[cfg(test)]
mod tests;
