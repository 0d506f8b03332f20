//! [`BucketLease`]: what a reader, or a restore, still needs of a bucket; the only objects that a reader puts.
//!
//! ```text
//! lease/{id, 32 hex digits}
//! offset size name
//!      0    8 magic "SILTLEAS"
//!      8    4 format version 1
//!     12    4 seconds after which it has expired
//!     16    8 number: all states from this journal object on are needed
//!     24   16 id
//!     40    v number of objects, then each: name of an object with data that an open file needs
//!   last    8 checksum: XXH3-64 of all before
//! ```
//!
//! Invariants:
//! 1. A reader puts its lease, and then looks at the boundary. The writer puts a boundary, and then reads the leases.
//!    So one of them sees the other: a lease at or after the boundary is kept.
//! 2. A lease that takes effect late needs no less than a newer one of its reader, but for what the reader has given
//!    up: its number is lower, and what was opened since is of a state after it.

use std::sync::Arc;
use std::time::Duration;

use lsm_core::codec::{put_sum, put_u32, put_u64, put_u128, put_varint};
use siltstone::Result;

use crate::bucket::Bucket;
use crate::format::{data_name_of, decode_named, header, put_name};

const LEASE_MAGIC: [u8; 8] = *b"SILTLEAS";
/// A lease expires after so many intervals without a renewal.
const INTERVALS: u32 = 5;

/// The needs of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketLease {
    pub(crate) id: u128,
    /// All states from this journal object on are needed.
    pub(crate) number: u64,
    pub(crate) expires: Duration,
    /// Objects of open files that the state at `number` does not have.
    pub(crate) objects: Vec<Arc<str>>,
}

/// A lease in a bucket.
#[derive(Clone, Debug)]
pub(crate) struct FoundLease {
    pub(crate) lease: BucketLease,
    /// The time of its last renewal, by the clock of the store.
    pub(crate) renewed: Duration,
}

impl FoundLease {
    pub(crate) fn is_live(&self, now: Duration) -> bool {
        now.saturating_sub(self.renewed) <= self.lease.expires
    }
}

impl BucketLease {
    pub(crate) fn name(id: u128) -> String {
        format!("lease/{id:032x}")
    }

    /// A lease that is renewed every `interval`.
    pub(crate) fn new(id: u128, number: u64, interval: Duration) -> BucketLease {
        // At least a second, as it is stored.
        let expires = (interval * INTERVALS).max(Duration::from_secs(1));
        BucketLease { id, number, expires, objects: Vec::new() }
    }

    /// Puts the lease `elapsed` after its last renewal, in the place of the one before. A renewal that is late takes
    /// another name: a primary may be deleting the lease as one that has expired, and a deletion may take effect late.
    /// Half of the time counts as late, because clocks differ.
    ///
    /// # Errors
    /// Those of the store, after a try of one interval: a put that goes on for longer would be late itself.
    pub(crate) fn renew(&mut self, bucket: &Bucket, elapsed: Duration) -> Result<()> {
        if elapsed >= self.expires / 2 {
            self.id = bucket.random_id();
        }
        self.put(&bucket.with_patience(self.expires / INTERVALS))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = LEASE_MAGIC.to_vec();
        put_u32(&mut out, 1);
        put_u32(&mut out, u32::try_from(self.expires.as_secs()).unwrap_or(u32::MAX));
        put_u64(&mut out, self.number);
        put_u128(&mut out, self.id);
        put_varint(&mut out, self.objects.len() as u64);
        self.objects.iter().for_each(|object| put_name(&mut out, object));
        put_sum(&mut out);
        out
    }

    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<BucketLease> {
        decode_named(name.to_owned(), bytes, |reader| {
            let expires = Duration::from_secs(header(reader, LEASE_MAGIC)?.into());
            let number = reader.u64()?;
            let id = reader.u128()?;
            let mut objects = Vec::new();
            for _ in 0..reader.varint()? {
                objects.push(data_name_of(reader)?.into());
            }
            Ok(BucketLease { id, number, expires, objects })
        })
    }

    /// Puts the lease under its name.
    pub(crate) fn put(&self, bucket: &Bucket) -> Result<()> {
        bucket.put(&BucketLease::name(self.id), &self.encode())
    }

    /// All leases, also those that have expired.
    ///
    /// # Errors
    /// Those of the store; corruption of a lease: then it is unknown what its reader needs.
    pub(crate) fn list(bucket: &Bucket) -> Result<Vec<FoundLease>> {
        let mut found = Vec::new();
        for entry in bucket.list("lease")?.objects {
            // It may be given up meanwhile.
            if let Some(bytes) = bucket.get(&entry.name)? {
                let lease = BucketLease::decode(&entry.name, &bytes)?;
                found.push(FoundLease { lease, renewed: entry.modified });
            }
        }
        Ok(found)
    }
}
