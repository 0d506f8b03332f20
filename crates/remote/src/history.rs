//! [`History`]: the states that can be made of a bucket, held by a lease while they are read.

use std::time::Duration;

use siltstone::{Error, ErrorKind, Result};

use crate::bucket::Bucket;
use crate::folder::Folder;
use crate::format::{FOLDER_OBJECTS, journal_folder, number_of_journal};
use crate::journal::{Boundary, ReplayEnd, follow, load, read_base};
use crate::lease::BucketLease;
use crate::retention::Retention;
use crate::settings::Settings;

/// Attempts to put a lease before the writer puts a boundary above it.
const HOLDS_MAX: u32 = 20;

/// The history of a database in a bucket, from the oldest base whose journal is kept.
pub(crate) struct History {
    pub(crate) bucket: Bucket,
    /// The bases from which states can be made, with the times of their puts, oldest first. The state 0 of a journal
    /// whose first objects are there is one.
    pub(crate) bases: Vec<(u64, Duration)>,
    pub(crate) boundary: Boundary,
    lease: Option<(BucketLease, Duration)>,
    renewed: Duration,
}

impl Drop for History {
    fn drop(&mut self) {
        if let Some((lease, _)) = &self.lease {
            // It expires by itself.
            let _ = self.bucket.store.delete(&BucketLease::name(lease.id));
        }
    }
}

impl History {
    /// Reads the bases, and puts a lease for the oldest one.
    pub(crate) fn hold(settings: &Settings) -> Result<History> {
        let bucket = settings.bucket();
        let id = bucket.random_id();
        let lease = settings.lease.map(|interval| (BucketLease::new(id, 0, interval), interval));
        let loaded = Boundary::load(&bucket)?;
        let renewed = bucket.timer.now();
        // Its drop gives the lease up, also if a call after the put fails, or the put itself after its effect.
        let mut history =
            History { bucket, bases: Vec::new(), boundary: loaded.clone(), lease, renewed };
        for _ in 0..HOLDS_MAX {
            history.boundary = loaded.clone();
            history.boundary.look(&history.bucket)?;
            history.bases = Retention::read_bases(&history.bucket)?;
            let first = history.boundary.first;
            if first <= 1 {
                history.bases.insert(0, (0, Duration::ZERO));
            }
            history.bases.retain(|(number, _)| number + 1 >= first);
            let Some(oldest) = history.bases.first().map(|(number, _)| *number) else { continue };
            history.renewed = history.bucket.timer.now();
            if let Some((lease, _)) = &mut history.lease {
                lease.number = oldest;
                lease.put(&history.bucket)?;
            }
            if !history.boundary.has_freed(&history.bucket, oldest + 1)? {
                // The work takes hours, and credentials expire.
                history.bucket.await_credentials();
                return Ok(history);
            }
        }
        let message = "the bases were deleted each time before they were read";
        Err(Error::new(ErrorKind::Io, message))
    }

    /// Renews the lease if that is due. Called again and again during long work.
    pub(crate) fn renew(&mut self) -> Result<()> {
        let now = self.bucket.timer.now();
        let elapsed = now.saturating_sub(self.renewed);
        if let Some((lease, interval)) = &mut self.lease
            && elapsed >= *interval
        {
            lease.renew(&self.bucket, elapsed)?;
            self.renewed = now;
        }
        Ok(())
    }

    /// The newest state.
    pub(crate) fn newest(&mut self) -> Result<Folder> {
        Ok(load(&self.bucket)?.0)
    }

    /// The state of the base `number`.
    pub(crate) fn base(&mut self, number: u64) -> Result<Folder> {
        self.renew()?;
        if number == 0 {
            return Ok(Folder::default());
        }
        read_base(&self.bucket, number)?.ok_or_else(|| gone(number))
    }

    /// The state after the journal object `number`, which exists, made from the newest base before.
    pub(crate) fn state(&mut self, number: u64) -> Result<Folder> {
        let bases = self.bases.iter().map(|(base, _)| *base);
        let base = bases.filter(|base| *base <= number).max().ok_or_else(|| gone(number))?;
        let mut folder = self.base(base)?;
        match follow(&self.bucket, &mut self.boundary, &mut folder, number + 1)? {
            ReplayEnd::End => Ok(folder),
            ReplayEnd::Freed => Err(gone(number)),
        }
    }

    /// The journal objects after `number` with the times of their puts, in order, without a hole.
    pub(crate) fn times_after(&mut self, number: u64) -> Result<Vec<(u64, Duration)>> {
        let mut times = Vec::new();
        let mut next = number + 1;
        loop {
            let before = next;
            for entry in self.bucket.list(&journal_folder(next))?.objects {
                if number_of_journal(&entry.name) == Some(next) {
                    times.push((next, entry.modified));
                    next += 1;
                }
            }
            self.renew()?;
            if next == before || !next.is_multiple_of(FOLDER_OBJECTS) {
                return Ok(times);
            }
        }
    }
}

fn gone(number: u64) -> Error {
    let message = format!("the state after journal object {number} was deleted while it was read");
    Error::new(ErrorKind::Io, message)
}
