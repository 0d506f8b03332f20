//! [`LeaseTable`]: the files that secondaries hold, and the limit of the time.
//!
//! Called by `obsolete.rs`, in its turn, before files are deleted; never by a write. The bytes of a
//! lease are described in `shared/lease.rs`.
//!
//! Invariants:
//! 1. Files are deleted only after the leases that held them are gone.
//! 2. Leases hold no more than `bytes_max`: beyond that the one that holds most is revoked, which
//!    its secondary finds out.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::error::Result;
use crate::fs::Fs;
use crate::shared::{HeldLease, TIME_TO_LIVE, held_leases, take_away};

/// A secondary that holds files of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseHolder {
    /// Id of the process of the secondary; 0 if the secondary has not written it yet.
    pub process: u32,
    /// `true` if the secondary runs on this machine, since its last boot.
    pub is_local: bool,
    /// Number of edits of the manifest between the oldest state that the secondary reads and the present one.
    pub edits_behind: u64,
}

/// The holds of secondaries, as they were read for one removal.
#[derive(Clone, Copy)]
pub(super) struct Holds {
    /// No secondary reads files that this edit or an earlier one dropped.
    released: u64,
}

impl Holds {
    /// No secondary holds anything.
    pub(super) const NONE: Holds = Holds { released: u64::MAX };
    /// Everything that an edit dropped is held: nothing is known about leases.
    pub(super) const ALL: Holds = Holds { released: 0 };

    fn of(leases: &[HeldLease]) -> Holds {
        let oldest = leases.iter().map(|lease| lease.edit).min();
        oldest.map_or(Holds::NONE, |released| Holds { released })
    }

    /// The same, and everything that an edit after `edit` dropped is held, too.
    pub(super) fn through(self, edit: u64) -> Holds {
        Holds { released: self.released.min(edit) }
    }

    /// Returns `true` if no secondary reads the files that `edit` dropped.
    pub(super) fn release(self, edit: u64) -> bool {
        edit <= self.released
    }
}

/// The length of a lease, and the time at which it was first seen.
struct LastGrowth {
    bytes: u64,
    at: Duration,
}

/// The leases of other machines, and the limit of what leases hold.
pub(super) struct LeaseTable {
    clock: Arc<dyn Clock>,
    bytes_max: u64,
    /// Leases of other machines, by name.
    remote: Mutex<HashMap<String, LastGrowth>>,
}

impl LeaseTable {
    pub(super) fn new(clock: Arc<dyn Clock>, bytes_max: u64) -> LeaseTable {
        LeaseTable { clock, bytes_max, remote: Mutex::default() }
    }

    /// Reads the leases of secondaries. `held_bytes` returns the bytes that they hold if they need
    /// the files that edits after the given one dropped.
    ///
    /// # Errors
    /// Those of the file system: then nothing is known.
    pub(super) fn holds(
        &self,
        fs: &dyn Fs,
        dir: &Path,
        held_bytes: impl Fn(u64) -> u64,
    ) -> Result<Holds> {
        let mut leases = held_leases(fs, dir)?;
        for expired in self.take_expired(&mut leases) {
            // An error ends the look, and everything counts as held: an existing lease still
            // counts.
            take_away(fs, dir, &expired)?;
        }
        loop {
            let holds = Holds::of(&leases);
            if leases.is_empty() || held_bytes(holds.released) <= self.bytes_max {
                return Ok(holds);
            }
            // The lease with the oldest edit holds most.
            let oldest = leases.iter().enumerate().min_by_key(|(_, lease)| lease.edit);
            let Some(oldest) = oldest.map(|(place, _)| place) else { return Ok(holds) };
            // A slow secondary loses its lease instead of filling the disk of the primary: the
            // primary must keep accepting writes.
            take_away(fs, dir, &leases[oldest])?;
            leases.swap_remove(oldest);
        }
    }

    /// Takes out the leases of other machines that did not grow for too long.
    fn take_expired(&self, leases: &mut Vec<HeldLease>) -> Vec<HeldLease> {
        let now = self.clock.now();
        let mut remote = self.remote.lock();
        // Names are random, so without this the map would grow with every secondary.
        remote.retain(|name, _| leases.iter().any(|lease| lease.name == *name));
        let expired = leases.extract_if(.., |lease| {
            // A local lease is locked by its process, so a dead holder is recognised without a
            // timeout.
            if lease.is_local {
                return false;
            }
            let seen = LastGrowth { bytes: lease.bytes, at: now };
            let growth = remote.entry(lease.name.clone()).or_insert(seen);
            if growth.bytes != lease.bytes {
                *growth = LastGrowth { bytes: lease.bytes, at: now };
            }
            now.saturating_sub(growth.at) >= TIME_TO_LIVE
        });
        expired.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::fs::{AppendMode, MemFs};
    use crate::shared::Lease;

    const DIR: &str = "/db";

    /// A clock that tests set, in seconds.
    #[derive(Default)]
    struct ManualClock(AtomicU64);

    impl Clock for ManualClock {
        fn now(&self) -> Duration {
            Duration::from_secs(self.0.load(Ordering::Relaxed))
        }

        fn unix_time(&self) -> Duration {
            self.now()
        }
    }

    fn folder() -> Arc<dyn Fs> {
        let fs = MemFs::new();
        fs.create_dir(DIR.as_ref()).unwrap();
        Arc::new(fs)
    }

    /// Another number at each call, so that a renewed lease has another name.
    fn numbers_from(mut number: u64) -> impl FnMut() -> u64 + Send + 'static {
        move || {
            number += 1;
            number
        }
    }

    fn lease(fs: &Arc<dyn Fs>, id: u64, edit: u64) -> Lease {
        let random = Box::new(numbers_from(id * 100));
        let mut lease = Lease::take(fs.clone(), DIR.as_ref(), random).unwrap();
        lease.advance(edit, Duration::ZERO).unwrap();
        lease
    }

    #[test]
    fn beyond_the_limit_the_lease_that_holds_most_is_taken_away() {
        let fs = folder();
        let table = LeaseTable::new(Arc::new(ManualClock::default()), 100);
        let mut old = lease(&fs, 1, 3);
        let new = lease(&fs, 2, 8);
        // Each edit dropped 20 bytes, and the present one is 10.
        let holds = table.holds(&*fs, DIR.as_ref(), |released| (10 - released) * 20).unwrap();
        assert!(holds.release(8) && !holds.release(9));
        let lost = old.check().unwrap_err();
        assert_eq!(lost.kind(), crate::error::ErrorKind::LeaseLost);
        new.check().unwrap();
        old.renew().unwrap();
        let holds = table.holds(&*fs, DIR.as_ref(), |_| 0).unwrap();
        assert!(!holds.release(1), "a fresh lease holds everything");
    }

    /// Copies the leases of one machine to another one, which sees the same files and no locks.
    fn copy_leases(from: &dyn Fs, to: &dyn Fs) {
        for name in from.list_names(DIR.as_ref(), "reader-").unwrap() {
            let path = Path::new(DIR).join(name);
            let file = from.open_read(&path).unwrap();
            let mut bytes = vec![0; file.len().unwrap() as usize];
            file.read_at(0, &mut bytes).unwrap();
            to.delete(&path).unwrap();
            to.open_append(&path, AppendMode::IfAbsent).unwrap().append(&bytes).unwrap();
        }
    }

    #[test]
    fn a_lease_of_another_machine_lasts_while_it_grows() {
        let clock = Arc::new(ManualClock::default());
        let table = LeaseTable::new(clock.clone(), u64::MAX);
        let here = folder();
        let elsewhere = folder();
        let mut lease = lease(&elsewhere, 1, 3);
        for (second, is_released) in [(0, false), (50, false), (109, false), (111, true)] {
            clock.0.store(second, Ordering::Relaxed);
            if second == 50 {
                lease.advance(3, clock.now()).unwrap();
            }
            copy_leases(&*elsewhere, &*here);
            let holds = table.holds(&*here, DIR.as_ref(), |_| 0).unwrap();
            assert_eq!(holds.release(4), is_released, "{second} s");
        }
    }
}
