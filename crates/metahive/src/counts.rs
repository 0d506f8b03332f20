//! The work of the filters of a partition, in numbers.

use std::ops::AddAssign;

/// Counts since the factory was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Entries that were written with metadata.
    pub sealed: u64,
    /// Entries whose metadata agreed, damaged copies included.
    pub verified: u64,
    /// Entries without metadata that were given some: from nodes that know nothing of it.
    pub made: u64,
    /// Metadata that was dropped because its entry is gone.
    pub orphans_dropped: u64,
    /// Metadata that was damaged and was rewritten from its good entry.
    pub metadata_rebuilt: u64,
    /// Entries of blocks that did not verify, taken because their metadata agreed.
    pub suspects_accepted: u64,
    /// Pairs that may lie in two blocks.
    pub split_pairs: u64,
    /// Verified reads that met damage in memory, and none when they read the device.
    pub reads_mended: u64,
    /// Entries that were found damaged, once for each run of a job. The fault that ends the
    /// first run of a compaction is not counted; what its judges found before that is, and again in the next
    /// run.
    pub faults: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.sealed += other.sealed;
        self.verified += other.verified;
        self.made += other.made;
        self.orphans_dropped += other.orphans_dropped;
        self.metadata_rebuilt += other.metadata_rebuilt;
        self.suspects_accepted += other.suspects_accepted;
        self.split_pairs += other.split_pairs;
        self.reads_mended += other.reads_mended;
        self.faults += other.faults;
    }
}
