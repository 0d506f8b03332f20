//! [`Collector`]: the deletion of objects that nothing needs. Run by the primary, in rounds.
//!
//! ```text
//! cut       the newest base that is older than the retention; an older one if a lease needs it
//! boundary  one is put: nothing below it is read from now on
//! grace     the next steps come in a later round, after Remote::grace by the clock of the store and by the own one
//! leases    read once more: one that was put before its reader saw the boundary counts
//! check     no other writer has put its claim
//! vain      what this primary has put in vain goes a grace after it was found, whatever the boundary is
//! delete    journal objects below, bases below, dropped objects, what fenced writers have put in vain,
//!           expired leases, forgotten probes
//! ```
//!
//! Invariants:
//! 1. No object is deleted that the newest base or the journal after it needs, whatever the clocks say. Clocks decide
//!    only on the states before: how far back a restore reaches, and which leases count. A lease counts as long as the own
//!    clock says so, which does not jump: from the moment on at which a round has seen its last renewal.
//! 2. A claim is never deleted. A writer that has slept puts its next object under the number of the claim that
//!    fenced it, so that name is taken for ever.
//! 3. Objects of the own claimant are deleted only after the journal has dropped them, or if their put has failed: no
//!    later put has their name (`shipper/ranges.rs`).
//! 4. Objects of a fenced writer that nothing names are garbage for good: only their own writer names objects in the
//!    journal. A writer puts no data before its claim, so the check that follows a listing proves that it has none of a
//!    later writer.
//! 5. A writer that was fenced in the middle of a round does no harm: all that it was about to delete stays garbage.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use siltstone::Result;

use crate::bucket::{Bucket, unfinished_target};
use crate::format::{CLAIM_BYTES, FOLDER_OBJECTS, base_name, number_of_journal};
use crate::journal::{Boundary, journal_object};
use crate::lease::{BucketLease, FoundLease};
use crate::retention::Retention;
use crate::settings::Settings;
use crate::shipper::Shipper;

/// A probe is the object of an open that has begun so long ago, at least.
const PROBE_AGE: Duration = Duration::from_secs(3600);

/// A moment by two clocks. Time has passed only if it has by both.
#[derive(Clone, Copy)]
struct Moment {
    store: Duration,
    own: Duration,
}

impl Moment {
    /// The time since `earlier`. A clock that jumps forward does not count, if the other one does not.
    fn since(self, earlier: Moment) -> Duration {
        let store = self.store.saturating_sub(earlier.store);
        store.min(self.own.saturating_sub(earlier.own))
    }
}

/// The last renewal of a lease that a round has seen.
struct SeenRenewal {
    /// By the clock of the store: another time is another renewal.
    renewed: Duration,
    /// The first look that has seen it, by the own clock.
    seen: Duration,
}

/// The findings of earlier rounds. Held over a round, with its calls of the store: one thread makes a round.
#[derive(Default)]
struct Rounds {
    boundary: Option<Boundary>,
    /// Boundaries whose grace has not ended, with the moment at which this collector knew of them.
    waiting: Vec<(u64, Moment)>,
    /// The boundary through which all is deleted.
    swept: u64,
    /// The moment from which the own clock counts on by that of the store.
    begun: Option<Moment>,
    leases: BTreeMap<u128, SeenRenewal>,
    /// Objects of fenced writers, and the moment at which they were found.
    orphans: Option<(Moment, Vec<String>)>,
    /// Objects that this primary has put in vain, and the moment at which they were found, oldest first.
    vain: VecDeque<(Moment, String)>,
    deleted: u64,
}

/// The deletion in the bucket of a primary.
pub(crate) struct Collector {
    bucket: Bucket,
    shipper: Arc<Shipper>,
    retention: Duration,
    grace: Duration,
    rounds: Mutex<Rounds>,
}

impl Collector {
    pub(crate) fn new(settings: &Settings, shipper: Arc<Shipper>) -> Collector {
        Collector {
            bucket: shipper.other_bucket(),
            shipper,
            retention: settings.retention,
            grace: settings.grace,
            rounds: Mutex::default(),
        }
    }

    /// Makes a round. Returns the number of objects that it has deleted.
    ///
    /// # Errors
    /// `Fenced` if another writer has the database; those of the store. What was not deleted is so by the next round.
    pub(crate) fn collect(&self) -> Result<u64> {
        let mut rounds = self.rounds.lock();
        let rounds = &mut *rounds;
        rounds.deleted = 0;
        self.shipper.check_writer()?;
        self.shipper.check_journal()?;
        let moment = self.moment()?;
        let begun = rounds.begun.get_or_insert(moment);
        // As far as the store's clock is ahead of the own one since the first round, it has jumped. If it has jumped
        // back, what is put from now on would look older than it is.
        if moment.store < begun.store + moment.own.saturating_sub(begun.own) {
            *begun = moment;
        }
        let now = begun.store + moment.since(*begun);
        self.put_boundary(rounds, moment, now)?;
        self.delete_vain(rounds, moment)?;
        let Some(first) = self.ripe(rounds, moment) else { return Ok(rounds.deleted) };
        let (seen, expired) = self.read_retention(rounds, now)?;
        let Some(base) = seen.base_under_leases(first - 1) else { return Ok(rounds.deleted) };
        self.check_last_writer()?;
        self.delete_journal(rounds, base + 1)?;
        for (number, _) in seen.bases.iter().filter(|(number, _)| *number < base) {
            self.delete(rounds, &base_name(*number))?;
        }
        let held = seen.held();
        let dropped = self.shipper.dropped_through(base);
        let mut gone = BTreeSet::new();
        for object in dropped.into_iter().filter(|object| !held.contains(object)) {
            self.delete(rounds, &object)?;
            gone.insert(object);
        }
        self.delete_orphans(rounds, moment, base, &held)?;
        self.shipper.forget(base, &gone);
        for found in expired {
            if now.saturating_sub(found.renewed) > found.lease.expires + self.grace {
                rounds.deleted += 1;
                self.bucket.delete(&BucketLease::name(found.lease.id))?;
            }
        }
        rounds.swept = base + 1;
        Ok(rounds.deleted)
    }

    /// The time of the store, of an object that is put now; and the own one. Deletes forgotten probes.
    fn moment(&self) -> Result<Moment> {
        let name = format!("probe/{:016x}", self.bucket.timer.random());
        let own = self.bucket.timer.now();
        self.bucket.put(&name, b"time")?;
        let probes = self.bucket.list_all("probe")?.objects;
        let store = probes.iter().find(|it| it.name == name).map(|it| it.modified);
        let store = store.unwrap_or_default();
        self.bucket.delete(&name)?;
        let age = PROBE_AGE.max(self.grace);
        for probe in probes.iter().filter(|it| store.saturating_sub(it.modified) > age) {
            self.bucket.delete(&probe.name)?;
        }
        Ok(Moment { store, own })
    }

    /// The bases, and the leases that count; and those that have expired, by the clock of the store and by the own one.
    fn read_retention(
        &self,
        rounds: &mut Rounds,
        now: Duration,
    ) -> Result<(Retention, Vec<FoundLease>)> {
        let mut retention = Retention::read(&self.bucket)?;
        let own = self.bucket.timer.now();
        let mut before = std::mem::take(&mut rounds.leases);
        for FoundLease { lease, renewed } in &retention.leases {
            let known = before.remove(&lease.id).filter(|known| known.renewed == *renewed);
            let seen = known.unwrap_or(SeenRenewal { renewed: *renewed, seen: own });
            rounds.leases.insert(lease.id, seen);
        }
        let expired = retention.expire(|found| {
            let seen = rounds.leases.get(&found.lease.id).map_or(own, |it| it.seen);
            found.is_live(now) || own.saturating_sub(seen) <= found.lease.expires
        });
        Ok((retention, expired))
    }

    /// Puts a boundary, if more may be deleted than by the last one.
    fn put_boundary(&self, rounds: &mut Rounds, moment: Moment, now: Duration) -> Result<()> {
        let (seen, _) = self.read_retention(rounds, now)?;
        let boundary = match &mut rounds.boundary {
            Some(boundary) => boundary,
            none => {
                let boundary = Boundary::load(&self.bucket)?;
                rounds.waiting.push((boundary.first, moment));
                none.insert(boundary)
            }
        };
        boundary.look(&self.bucket)?;
        let base = seen.base_of_age(now, self.retention);
        let base = base.and_then(|base| seen.base_under_leases(base));
        let Some(first) = base.map(|base| base + 1) else { return Ok(()) };
        if first > boundary.first && boundary.put(&self.bucket, first, self.shipper.claimant())? {
            rounds.waiting.push((first, moment));
        }
        Ok(())
    }

    /// The highest boundary whose grace has ended.
    fn ripe(&self, rounds: &mut Rounds, moment: Moment) -> Option<u64> {
        let ripe = rounds.waiting.iter().filter(|(_, put)| moment.since(*put) >= self.grace);
        let first = ripe.map(|(first, _)| *first).max().filter(|first| *first > 0)?;
        rounds.waiting.retain(|(waiting, _)| *waiting >= first);
        Some(first)
    }

    /// Checks that no other writer has put its claim.
    fn check_last_writer(&self) -> Result<()> {
        let mut number = self.shipper.number() + 1;
        while let Some(object) = journal_object(&self.bucket, number)? {
            if object.claimant != self.shipper.claimant() {
                return Err(self.shipper.note_fenced(&crate::format::journal_name(number)));
            }
            // An own put without an answer yet, or one since. A claim may follow it.
            number = self.shipper.number().max(number) + 1;
        }
        Ok(())
    }

    fn delete(&self, rounds: &mut Rounds, name: &str) -> Result<()> {
        rounds.deleted += 1;
        self.bucket.delete(name)
    }

    /// Deletes the journal objects below `first`, but for the claims.
    fn delete_journal(&self, rounds: &mut Rounds, first: u64) -> Result<()> {
        for folder in self.bucket.list("journal")?.folders {
            let digits = folder.strip_prefix("journal/").and_then(|it| it.parse::<u64>().ok());
            let Some(begin) = digits.and_then(|it| it.checked_mul(FOLDER_OBJECTS)) else {
                continue;
            };
            // The folder has only claims after an earlier round.
            if begin >= first || begin + FOLDER_OBJECTS <= rounds.swept {
                continue;
            }
            for entry in self.bucket.list_all(&folder)?.objects {
                let target = unfinished_target(&entry.name);
                let number = number_of_journal(target.as_deref().unwrap_or(&entry.name));
                let is_claim = target.is_none() && entry.len <= CLAIM_BYTES;
                if number.is_some_and(|it| it < first) && !is_claim {
                    self.delete(rounds, &entry.name)?;
                }
            }
        }
        Ok(())
    }

    /// Deletes objects that this primary has put in vain, a grace after they were found: a put that has failed may take
    /// effect late.
    fn delete_vain(&self, rounds: &mut Rounds, moment: Moment) -> Result<()> {
        rounds.vain.extend(self.shipper.take_vain().into_iter().map(|name| (moment, name)));
        while let Some((found, name)) = rounds.vain.front().cloned()
            && moment.since(found) >= self.grace
        {
            self.delete(rounds, &name)?;
            rounds.vain.pop_front();
        }
        Ok(())
    }

    /// Deletes objects that fenced writers have put in vain, once they were found a grace ago. Looks for them once
    /// in each retention: that lists all tables and parts.
    fn delete_orphans(
        &self,
        rounds: &mut Rounds,
        moment: Moment,
        base: u64,
        held: &BTreeSet<Arc<str>>,
    ) -> Result<()> {
        let found = rounds.orphans.as_ref().map(|(found, _)| *found);
        if found.is_none_or(|found| moment.since(found) >= self.retention.max(self.grace)) {
            let orphans = self.find_orphans(base, moment.store)?;
            rounds.orphans = Some((moment, orphans));
        }
        let Some((found, orphans)) = &mut rounds.orphans else { return Ok(()) };
        if moment.since(*found) < self.grace {
            return Ok(());
        }
        let orphans = std::mem::take(orphans);
        if orphans.is_empty() {
            return Ok(());
        }
        self.check_last_writer()?;
        for name in orphans.iter().filter(|name| !held.contains(name.as_str())) {
            self.delete(rounds, name)?;
        }
        Ok(())
    }

    fn find_orphans(&self, base: u64, now: Duration) -> Result<Vec<String>> {
        let mut orphans = Vec::new();
        for kind in ["table", "part"] {
            for folder in self.bucket.list(kind)?.folders {
                orphans.extend(self.bucket.list_all(&folder)?.objects);
            }
        }
        // After the listing.
        self.check_last_writer()?;
        let needed = self.shipper.needed();
        orphans.retain(|entry| {
            let target = unfinished_target(&entry.name);
            let claimant = claimant_of(target.as_deref().unwrap_or(&entry.name));
            let is_fenced = claimant.is_some_and(|it| self.shipper.is_long_fenced(it, base));
            is_fenced && !needed.contains(entry.name.as_str())
        });
        // A put of one of these takes a moment. If it goes on all the same, it fails and is made again.
        let age = PROBE_AGE.max(self.grace);
        for dir in ["base", "boundary", "lease", "takeover"] {
            let listed = self.bucket.list_all(dir)?.objects.into_iter();
            orphans.extend(listed.filter(|entry| {
                unfinished_target(&entry.name).is_some() && now.saturating_sub(entry.modified) > age
            }));
        }
        Ok(orphans.into_iter().map(|entry| entry.name).collect())
    }
}

/// The claimant in the name of an object with data.
pub(crate) fn claimant_of(name: &str) -> Option<u128> {
    let (_, digits) = name.rsplit_once('-')?;
    u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)
}
