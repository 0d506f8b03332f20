//! Metadata for every entry of a partition, hidden next to the entry itself: MetaHive.
//!
//! A metadata entry K+ follows each entry K of a partition, in the same block of the same table. K+ is
//! an ordinary tombstone. Its key is K with the byte `0x01` appended. Its payload V+ holds a checksum of
//! the entry and a checksum of that checksum ([`payload`]). Readers do not see K+. A node without
//! MetaHive reads it as a tombstone of a key that no application can write. The flush creates K+, so a
//! write does no extra work. Each compaction verifies K+, and creates it for entries that come from
//! nodes without MetaHive.
//!
//! The design follows Heidari, Ahmadi, Zhi and Zhang, "MetaHive: A Cache-Optimized Metadata Management
//! for Heterogeneous Key-Value Stores" (VLDB 2024 workshops). The authors mention a US patent
//! application on the mechanism, serial number 18/769665. Users of this crate should decide for
//! themselves whether that affects them.
//!
//! # Detected damage
//!
//! | damage | detected | by |
//! | --- | --- | --- |
//! | any bits of key, value, sequence number or kind | yes, but for 1 in 2^64 | the checksum |
//! | any bits of the metadata | yes, and but for 1 in 2^24 distinguished from damage of the entry | its two copies |
//! | key equal to value, both replaced | yes | each field has its own seed |
//! | key and value exchanged | yes | the same |
//! | a key that is the encoding of its sequence number | yes | the same |
//! | entry or metadata missing, in a sealed table | yes | the seal of the table |
//! | entry and metadata both missing, in a sealed table | yes | the digest of the block; in older seals the number of entries |
//! | entry and metadata replaced by an older or a foreign pair | yes, in seals with digests | the digest of the block |
//! | entries of a damaged block | yes | each entry that agrees with its metadata is kept |
//! | entries of a damaged block that do not decode | yes | the compaction records a gap; a scrub names the block and its keys |
//! | a single flipped bit anywhere in a block | yes, and corrected | the checksum of the block |
//! | damage before the flush | by the engine | the checksum of each operation, which the flush compares |
//! | tables that are never compacted | by a scrub | [`scrub()`] reads them and bypasses every cache |
//! | forgery | no | XXH3 is not a signature |
//!
//! A sealed table is a table that a job with MetaHive wrote: its properties say that each entry has
//! metadata. `docs/metahive.md` states what a read returns after each kind of damage.
//!
//! # Costs
//!
//! The call that writes does nothing more. For each entry of 20 + 100 bytes, a flush needs about 280 instructions more
//! (84 of them for the checksum), and a compaction, which also verifies, about 130. A verified get takes
//! about 50 ns more than a plain get. A table grows by 11 bytes per entry; see `docs/metahive.md`. A job
//! holds 16 bytes in memory for each version of a key whose metadata it has not reached yet, which is
//! nearly always one key.
//!
//! A scrub reads as fast as the device allows: 450 MiB/s in the measurement, 310 ns per entry of 20 +
//! 100 bytes. The verify of the engine takes as long for the same bytes.
//!
//! # Parts
//!
//! An application gives [`MetaHiveOptions`] to a partition. A [`MetaHive`] is made from them: the factory
//! of compaction filters, whose name the partition stores. [`verified_get`] and [`verified_range`]
//! compare each entry with its metadata before they return it:
//!
//! ```
//! use std::sync::Arc;
//!
//! use lsm_core::hooks::Hooks;
//! use lsm_core::options::PartitionOptions;
//! use metahive::{VerifiedBy, MetaHive, verified_get};
//!
//! # fn main() -> lsm_core::Result<()> {
//! # let fs = Arc::new(lsm_core::fs::MemFs::new());
//! let db = lsm_core::Db::builder("/db").fs(fs).open()?;
//! let hooks = Hooks::new().filter(Arc::new(MetaHive::default()));
//! let users = db.partition_with("users", PartitionOptions::new(), Some(hooks))?;
//! users.put("alice", "admin")?;
//! assert_eq!(verified_get(&users, "alice")?.map(|found| found.by), Some(VerifiedBy::Memory));
//! db.flush()?;
//! let found = verified_get(&users, "alice")?.expect("alice is there");
//! assert_eq!((&found.value[..], found.by), (&b"admin"[..], VerifiedBy::Metadata));
//! # Ok(())
//! # }
//! ```
//!
//! [`scrub()`] verifies a whole partition on the device. [`explain()`] reports everything that is stored
//! for one key. With a [`MetadataProvider`], an application stores its own metadata instead of checksums.
//! [`RepairOptions`], [`Replica`] and [`ErrorHandler`] control the repair of damaged entries.

mod bits;
mod block_digests;
pub mod checksum;
mod cluster;
mod copy_reads;
mod counts;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod decoders;
mod explain;
mod filter;
mod inspect;
mod mend;
mod metahive;
mod options;
pub mod payload;
mod provider;
mod repair;
mod scrub;
mod shared;
mod table_repair;
pub mod table_seal;
mod verdict;
mod verified;
mod verifier;

pub use copy_reads::{fetch_from, fetch_range_from};
pub use counts::Counts;
pub use explain::{ExplainedMetadata, ExplainedVersion, Explanation, explain};
pub use filter::{GROUP_BYTES_MAX, GROUP_OTHER_BYTES_MAX};
pub use inspect::{EntryFault, Sealing};
pub use metahive::MetaHive;
pub use options::MetaHiveOptions;
pub use provider::{Integrity, MetadataProvider, Statistics};
pub use repair::{ErrorHandler, RepairOptions, Replica};
pub use scrub::{
    ScrubCounts, ScrubMark, ScrubOptions, ScrubProgress, ScrubReport, TableReport, Unflushed, scrub,
};
pub use verdict::{Verdict, judge};
pub use verified::{
    Verified, VerifiedBy, VerifiedRange, verified_get, verified_get_at, verified_range,
    verified_range_at,
};
