//! The settings of every engine, equal where that is possible.
//!
//! An engine without such a setting keeps its default; each file in `engines/` lists its other
//! settings and their reasons. The table in the report is printed from here.

/// Sizes, threads, and what is switched on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Memory for entries that are not in a file yet, in bytes.
    pub write_buffer_bytes: usize,
    /// Cache of uncompressed blocks or pages in bytes. LMDB has none but the page cache.
    pub cache_bytes: usize,
    /// Block of a table in bytes, or page of a tree where it can be set.
    pub block_bytes: usize,
    /// Bits of the Bloom filter per key.
    pub bloom_bits: u8,
    /// Threads that flush and compact.
    pub background_threads: u8,
    /// Values from this many bytes on go to blob files, in the engines that are measured for them.
    pub blob_bytes_min: u64,
    /// Milliseconds between siltstone's own syncs of writes with `Os`; 0 for none, as
    /// its rivals do.
    pub sync_interval_ms: u64,
    /// Blocks of tables are compressed with LZ4, in the engines that have it.
    pub lz4: bool,
    /// Siltstone puts large values into chunk files, from its default size on.
    pub large_values: bool,
    /// Options for the suite of features alone.
    pub features: Features,
}

/// Options that few engines have; all are off by default.
#[derive(Clone, Debug, Default)]
pub struct Features {
    /// The values are integers of 8 bytes, little-endian, and merges add to them.
    pub counters: bool,
    /// A prefix has so many bytes, and the filters of tables have it.
    pub prefix_bytes: Option<u16>,
    /// The oldest tables go when all have more than so many bytes together.
    pub fifo_bytes: Option<u64>,
    /// The log is kept for programs that follow it.
    pub keeps_log: bool,
    /// Bytes of a table and of the first level; each level has three times those of the one above.
    pub level_base_bytes: Option<u64>,
}

impl Settings {
    /// The same for all, except for how often siltstone syncs by itself.
    pub fn new(sync_interval_ms: u64) -> Settings {
        Settings {
            write_buffer_bytes: 64 << 20,
            cache_bytes: 256 << 20,
            block_bytes: 4 << 10,
            bloom_bits: 10,
            background_threads: 2,
            blob_bytes_min: 1 << 10,
            sync_interval_ms,
            lz4: false,
            large_values: false,
            features: Features::default(),
        }
    }

    /// For the report: the name and the value of each setting.
    pub fn rows(&self) -> [(&'static str, String); 9] {
        let mebibytes = |bytes: usize| format!("{} MiB", bytes >> 20);
        [
            ("write buffer", mebibytes(self.write_buffer_bytes)),
            ("block cache", mebibytes(self.cache_bytes)),
            ("block", format!("{} KiB", self.block_bytes >> 10)),
            ("bits of the Bloom filter per key", self.bloom_bits.to_string()),
            ("compression", "none, unless stated otherwise".to_owned()),
            ("threads in the background", self.background_threads.to_string()),
            ("blob files, if any, for values from", format!("{} KiB", self.blob_bytes_min >> 10)),
            (
                "checksums",
                "written; verified when a block comes from a file, but see the differences"
                    .to_owned(),
            ),
            (
                "a write is done",
                "when the kernel has it, but see redb and sled; in `fillsync`, the device"
                    .to_owned(),
            ),
        ]
    }
}
