//! [`TakeoverRequest`]: a claimant asks a busy writer for a pause; [`PauseWatch`]: the writer looks for requests.
//!
//! A writer with a commit in each put takes one number after the other. A claimant whose calls are no faster always
//! comes one number late. It needs a moment without puts, and nothing but that: the claim alone fences.
//!
//! ```text
//! takeover/request
//! offset size name
//!      0    8 magic "SILTTAKE"
//!      8    4 format version 1
//!     12    4 zero
//!     16   16 claimant
//!     32    8 checksum: XXH3-64 of all before
//! ```
//!
//! Invariant: a request decides nothing. One that is lost, damaged, old or that of a dead claimant costs the writer a
//! few pauses, once.

use std::sync::Arc;
use std::time::Duration;

use lsm_core::codec::{put_sum, put_u32, put_u128};
use siltstone::Result;

use crate::bucket::Bucket;
use crate::format::{decode_named, header};
use crate::shipper::Shipper;

const REQUEST_MAGIC: [u8; 8] = *b"SILTTAKE";
const REQUEST: &str = "takeover/request";
/// A claimant asks after so many numbers that it did not get, and again after each so many.
pub(crate) const REQUEST_ATTEMPTS: u64 = 8;
/// The time between two looks of a writer.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Enough for several calls of a slow store.
const PAUSE: Duration = Duration::from_secs(2);
/// Pauses for one claimant: it may be dead.
const PAUSES_MAX: u32 = 5;

/// The wish of a claimant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakeoverRequest {
    pub(crate) claimant: u128,
}

impl TakeoverRequest {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = REQUEST_MAGIC.to_vec();
        put_u32(&mut bytes, 1);
        put_u32(&mut bytes, 0);
        put_u128(&mut bytes, self.claimant);
        put_sum(&mut bytes);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<TakeoverRequest> {
        decode_named(REQUEST.to_owned(), bytes, |reader| {
            if header(reader, REQUEST_MAGIC)? != 0 {
                return Err(reader.malformed("an unknown kind of request"));
            }
            Ok(TakeoverRequest { claimant: reader.u128()? })
        })
    }

    /// Asks.
    pub(crate) fn put(self, bucket: &Bucket) -> Result<()> {
        bucket.put(REQUEST, &self.encode())
    }

    /// Removes the request. Tried once: the next writer deletes one that stays.
    pub(crate) fn withdraw(bucket: &Bucket) {
        let _ = bucket.store.delete(REQUEST);
    }
}

/// The looks of a writer.
pub(crate) struct PauseWatch {
    bucket: Bucket,
    shipper: Arc<Shipper>,
    /// The journal at the last look.
    number: u64,
    /// The last claimant that got a pause, and how many.
    paused: (u128, u32),
}

impl PauseWatch {
    pub(crate) fn new(bucket: Bucket, shipper: Arc<Shipper>) -> PauseWatch {
        let number = shipper.number();
        PauseWatch { bucket, shipper, number, paused: (0, 0) }
    }

    /// Pauses the journal if a claimant asks for it. A writer that has put nothing since the last look needs no
    /// pause, and pays for no call.
    ///
    /// # Errors
    /// Those of the store; corruption of the request.
    pub(crate) fn look(&mut self) -> Result<()> {
        let number = self.shipper.number();
        if number == self.number {
            return Ok(());
        }
        self.number = number;
        let Some(bytes) = self.bucket.get(REQUEST)? else { return Ok(()) };
        let TakeoverRequest { claimant } = TakeoverRequest::decode(&bytes)?;
        let pauses = if self.paused.0 == claimant { self.paused.1 } else { 0 };
        if pauses == PAUSES_MAX || claimant == self.shipper.claimant() {
            // Left by a dead claimant, or by the own claim. A living one that is too slow asks again, in vain.
            return self.bucket.delete(REQUEST);
        }
        self.paused = (claimant, pauses + 1);
        self.shipper.pause_until(self.bucket.timer.now().saturating_add(PAUSE));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU64, Ordering};

    use lsm_core::fs::MemFs;

    use super::*;
    use crate::Remote;
    use crate::folder::{Folder, StoredChange};
    use crate::noted::NotedChange;
    use crate::settings::Ack;
    use crate::store::Timer;

    /// A timer whose waits take no time.
    #[derive(Default)]
    struct CountingTimer(AtomicU64);

    impl Timer for CountingTimer {
        fn now(&self) -> Duration {
            Duration::from_nanos(self.0.load(Ordering::Relaxed))
        }

        fn wait(&self, time: Duration) {
            self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        }

        fn random(&self) -> u64 {
            self.0.fetch_add(1, Ordering::Relaxed)
        }
    }

    const WRITER: u128 = 7;

    fn writer() -> (Bucket, Arc<Shipper>) {
        let store = Remote::memory().unwrap().store();
        let timer = Arc::new(CountingTimer::default());
        let bucket = Bucket::new(store, timer, Duration::from_secs(1));
        let folder = Folder { writer: WRITER, ..Folder::default() };
        let disk = (Arc::new(MemFs::new()) as _, "/db".into());
        let shipper =
            Shipper::new(bucket.clone(), WRITER, Ack::Stored, disk, folder, BTreeSet::new());
        (bucket, Arc::new(shipper))
    }

    /// Puts so many objects with a look after each; returns the pauses.
    fn pauses(bucket: &Bucket, shipper: &Arc<Shipper>, objects: u64) -> u64 {
        let mut watch = PauseWatch::new(bucket.clone(), shipper.clone());
        let begun = bucket.timer.now();
        for _ in 0..objects {
            let name = format!("epoch-{}", shipper.number());
            shipper.note(NotedChange::Whole(StoredChange::Create { name }));
            shipper.ship_through(shipper.noted()).unwrap();
            watch.look().unwrap();
        }
        (bucket.timer.now().saturating_sub(begun).as_nanos() / PAUSE.as_nanos()) as u64
    }

    #[test]
    fn the_request_of_a_dead_claimant_costs_a_few_pauses_once() {
        for (claimant, expected) in [(9, u64::from(PAUSES_MAX)), (WRITER, 0)] {
            let (bucket, shipper) = writer();
            TakeoverRequest { claimant }.put(&bucket).unwrap();
            assert_eq!(pauses(&bucket, &shipper, 20), expected);
            assert_eq!(bucket.get(REQUEST).unwrap(), None, "claimant {claimant}");
            // The next writer.
            assert_eq!(pauses(&bucket, &shipper, 20), 0);
        }
    }
}
