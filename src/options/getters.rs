//! The getters of [`PartitionOptions`]: each has the name of its option with the prefix `get_`.

use lsm_core::options::{CompactionStyle, Compression, PrefixExtractor};

use super::PartitionOptions;

impl PartitionOptions {
    /// Returns whether writes go to the log.
    #[must_use]
    pub fn get_logged(&self) -> bool {
        self.stored.logged
    }

    /// Returns the compression of tables in level 2 and deeper.
    #[must_use]
    pub fn get_compression(&self) -> Compression {
        self.stored.compression
    }

    /// Returns the size, in bytes, beyond which a data block is closed.
    #[must_use]
    pub fn get_block_bytes(&self) -> u32 {
        self.stored.block_bytes
    }

    /// Returns the bits of the Bloom filter per key.
    #[must_use]
    pub fn get_bloom_bits_per_key(&self) -> u32 {
        self.stored.bloom_bits_per_key
    }

    /// Returns the size, in bytes, beyond which a table is closed.
    #[must_use]
    pub fn get_table_bytes(&self) -> u64 {
        self.stored.table_bytes
    }

    /// Returns the number of tables that triggers a compaction of level 0.
    #[must_use]
    pub fn get_level0_tables(&self) -> u32 {
        self.stored.level0_tables
    }

    /// Returns the target size, in bytes, of the first level below level 0.
    #[must_use]
    pub fn get_level_base_bytes(&self) -> u64 {
        self.stored.level_base_bytes
    }

    /// Returns the ratio between the target sizes of two adjacent levels.
    #[must_use]
    pub fn get_level_multiplier(&self) -> u32 {
        self.stored.level_multiplier
    }

    /// Returns the prefix of keys that the Bloom filters of tables have as well.
    #[must_use]
    pub fn get_prefix_extractor(&self) -> Option<PrefixExtractor> {
        self.stored.prefix_extractor
    }

    /// Returns the rule by which tables are merged, or removed.
    #[must_use]
    pub fn get_compaction_style(&self) -> CompactionStyle {
        self.stored.compaction_style
    }
}
