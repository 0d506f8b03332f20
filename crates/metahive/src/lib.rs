//! Metadata for every entry of a partition, hidden beside the entry itself: MetaHive.
//!
//! Each entry K of a partition is followed by a metadata entry K+ in the same block of the same
//! table: an ordinary tombstone under the key K with the byte `0x01` behind it, whose payload V+
//! holds a checksum of the entry and a checksum of that checksum ([`payload`]). Readers do not
//! see it, and neither do nodes that know nothing of it: to them it deletes a key that nobody can
//! have. It is made when a memtable is flushed, never on the way of a write, verified whenever
//! the entry is compacted, and made for entries that come from nodes without it.
//!
//! The design is that of Heidari, Ahmadi, Zhi and Zhang, "MetaHive: A Cache-Optimized Metadata
//! Management for Heterogeneous Key-Value Stores" (VLDB 2024 workshops). The authors name a US
//! patent application on the mechanism, serial number 18/769665; whoever uses this crate should
//! judge for themselves what that means for them.
//!
//! # What is caught
//!
//! | damage | caught | by what |
//! | --- | --- | --- |
//! | any bits of key, value, sequence number or kind | yes, but for 1 in 2^64 | the checksum |
//! | any bits of the metadata | yes, and told from damage of the entry | its two copies |
//! | key equal to value, both replaced | yes | each field has a seed of its own |
//! | key and value have changed places | yes | the same |
//! | a key that is the encoding of its sequence number | yes | the same |
//! | entry or metadata missing, in a table made here | yes | the table is marked as sealed |
//! | entry and metadata both missing, in a table made here | yes, and the compaction fails | the table's seal has the number of entries |
//! | a block of a damaged table, entry by entry | yes | what agrees with its metadata is kept |
//! | entry and metadata replaced by an older or a foreign pair | no | the engine's block and file checksums, which know place and file |
//! | an entry of another partition or database | no | an entry must verify wherever it moves to |
//! | what was damaged before the flush | no | the log's and the batch's checksums |
//! | a single flipped bit anywhere in a block | yes, and turned back | the block's own checksum |
//! | entries of a damaged block that do not decode | yes | the compaction fails, a scrub names the block and its keys |
//! | tables that are never compacted | by a scrub | [`scrub()`] reads them past every cache, whenever it is called |
//! | forgery | no | XXH3 is no signature |
//!
//! # What it costs
//!
//! Nothing on the way of a write. For each entry of 20 + 100 bytes a flush pays some 40 ns, of
//! which 8 are for its checksum, and a compaction, which verifies as well, some 70 ns. A verified
//! get takes some 50 ns more than a plain one.
//! A table grows by 18 bytes an entry: see `docs/metahive.md`. A job holds 16 bytes for each version of the keys whose
//! metadata it has not met yet, which is nearly always one key.
//!
//! A scrub reads as fast as the device gives: 450 MiB/s where it was measured, 310 ns for each entry
//! of 20 + 100 bytes, as long as the engine's verify takes for the same bytes.
//!
//! # Parts
//!
//! [`MetaHiveOptions`] are what an application gives to a partition; [`MetaHive`] is the factory
//! that they make and that the partition names. [`verified_get`] and [`verified_range`] compare what
//! they hand out with its metadata at each read:
//!
//! ```
//! use std::sync::Arc;
//!
//! use lsm_core::hooks::Hooks;
//! use lsm_core::options::PartitionOptions;
//! use metahive::{By, MetaHive, verified_get};
//!
//! # fn main() -> lsm_core::Result<()> {
//! # let fs = Arc::new(lsm_core::fs::MemFs::new());
//! let db = lsm_core::Db::builder("/db").fs(fs).open()?;
//! let hooks = Hooks::new().filter(Arc::new(MetaHive::default()));
//! let users = db.partition_with("users", PartitionOptions::new(), Some(hooks))?;
//! users.put("alice", "admin")?;
//! assert_eq!(verified_get(&users, "alice")?.map(|found| found.by), Some(By::Memory));
//! db.flush()?;
//! let found = verified_get(&users, "alice")?.expect("alice is there");
//! assert_eq!((&found.value[..], found.by), (&b"admin"[..], By::Metadata));
//! # Ok(())
//! # }
//! ```
//!
//! [`scrub()`] verifies a whole partition as it lies on the device, [`explain()`] tells all that is
//! known of one key, [`group`] verifies what is in memory already. [`MetadataProvider`] lets an
//! application keep metadata of its own in the place of checksums. [`RepairOptions`], [`Replica`]
//! and [`ErrorHandler`] say what happens to an entry that is found damaged.

mod bits;
pub mod checksum;
mod cluster;
mod counts;
mod detail;
mod explain;
mod filter;
pub mod group;
mod inspect;
mod metahive;
mod options;
pub mod payload;
mod provider;
mod repair;
mod scrub;
pub mod table_seal;
mod verdict;
mod verified;

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
    By, Verified, VerifiedRange, verified_get, verified_get_at, verified_range, verified_range_at,
};
