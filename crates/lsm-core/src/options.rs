//! Options as plain data: every field with its unit, default and range.
//!
//! Living things (file system, clock, background work) are passed beside them, so options print,
//! compare and persist. A bad value is an error of `open`, never a panic.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{FORMAT_BATCH_BYTES_MAX, FORMAT_VALUE_BYTES_MAX};

/// When a write counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// In the kernel: survives a killed process, not a power cut. Synced at most
    /// [`Options::sync_interval_ms`] later. The default.
    #[default]
    Os,
    /// On the device when the call returns.
    Sync,
}

/// The compression of blocks. The numbers are on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    /// Not at all.
    None = 0,
    /// LZ4, where it saves at least an eighth.
    #[default]
    Lz4 = 1,
}

impl Compression {
    /// The compression with the on-disk number `n`, if this version knows it.
    pub fn from_u8(n: u8) -> Option<Compression> {
        match n {
            0 => Some(Compression::None),
            1 => Some(Compression::Lz4),
            _ => None,
        }
    }
}

/// Options of a database. Not stored: each open may choose others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Block cache in bytes. Default: a quarter of the machine's memory, at most 1 GiB; 0 turns
    /// it off.
    pub cache_bytes: u64,
    /// Memory that the active memtables of all partitions may take together before the largest
    /// is sealed and flushed, in bytes. Up to three times as much may wait for its flush before
    /// writes stop. Default 64 MiB, at least 4 KiB.
    pub write_buffer_bytes: u64,
    /// The greatest length of log segments, in bytes. A segment is made as long as what was written
    /// of late asks for, from 256 KiB up to this or to the write buffer, whichever is less; shorter
    /// where the disk has no room. Default 64 MiB, at least 4 KiB. A larger frame gets a segment of
    /// its own.
    pub wal_segment_bytes: u64,
    /// `true` if small writes to the log may be stored through a shared memory mapping, where the
    /// system and the file system are known to bear it (Linux 5.14 and later; ext4, XFS, tmpfs).
    /// They cost less that way and are as safe. If the device or the file system fails, they can
    /// end the process where a `write` reports an error: see `docs/MEDIA.md`. Default true; asked
    /// when a segment is made.
    pub wal_mapped: bool,
    /// Log that a reopening may have to replay, in bytes: the memtables that pin the oldest
    /// segments are flushed beyond it. Default 512 MiB, at least two segments.
    pub wal_bytes_max: u64,
    /// A write of [`Durability::Os`] reaches the device at most this many milliseconds later.
    /// Default 1000; 0 leaves it to the operating system.
    pub sync_interval_ms: u64,
    /// Largest inline value in bytes. Default 64 MiB, at most 1 GiB.
    pub value_bytes_max: u64,
    /// Largest batch, all keys and values, in bytes. Default 256 MiB, at most just under 2 GiB.
    pub batch_bytes_max: u64,
    /// Compactions that run at once. Default 1 up to 3 cores, then half the cores up to 4.
    pub compaction_threads: usize,
    /// The manifest begins a new generation beyond this many bytes. Default 4 MiB.
    pub manifest_bytes_max: u64,
    /// Table files that are open at once, but for those that are being read: a table beyond is
    /// closed, and opened again when it is read. Default: half of the files that the process may
    /// open (`ulimit -n`) when the options are made, at least 16, at most 1,048,576. At least 1.
    pub open_files_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            cache_bytes: default_cache_bytes(),
            write_buffer_bytes: 64 << 20,
            wal_segment_bytes: 64 << 20,
            wal_mapped: true,
            wal_bytes_max: 512 << 20,
            sync_interval_ms: 1000,
            value_bytes_max: 64 << 20,
            batch_bytes_max: 256 << 20,
            compaction_threads: (cores / 2).clamp(1, 4),
            manifest_bytes_max: 4 << 20,
            open_files_max: default_open_files(),
        }
    }
}

fn default_cache_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram * u64::from(info.mem_unit) / 4).min(1 << 30)
}

/// Half, because the log, the manifest, jobs and the application itself open files as well.
fn default_open_files() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let half = limit.current.unwrap_or(u64::MAX) / 2;
    usize::try_from(half).unwrap_or(usize::MAX).clamp(16, 1 << 20)
}

fn at_least(name: &str, got: u64, least: u64) -> Result<()> {
    if got >= least {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, format!("{name} is {got}, at least {least}")))
}

fn at_most(name: &str, got: u64, most: u64) -> Result<()> {
    if got <= most {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, format!("{name} is {got}, at most {most}")))
}

impl Options {
    /// Memory that all memtables may take: one write buffer that takes writes, and at three sealed
    /// ones writes stop.
    pub(crate) fn memtable_bytes_max(&self) -> u64 {
        self.write_buffer_bytes.saturating_mul(4)
    }

    /// Checks every range.
    pub fn check(&self) -> Result<()> {
        at_least("write_buffer_bytes", self.write_buffer_bytes, 4 << 10)?;
        at_most("write_buffer_bytes", self.write_buffer_bytes, 1 << 40)?;
        at_most("wal_segment_bytes", self.wal_segment_bytes, 1 << 40)?;
        at_most("wal_bytes_max", self.wal_bytes_max, 1 << 50)?;
        at_least("wal_segment_bytes", self.wal_segment_bytes, 4 << 10)?;
        at_least("wal_bytes_max", self.wal_bytes_max, 2 * self.wal_segment_bytes)?;
        at_least("compaction_threads", self.compaction_threads as u64, 1)?;
        at_least("open_files_max", self.open_files_max as u64, 1)?;
        at_most("value_bytes_max", self.value_bytes_max, FORMAT_VALUE_BYTES_MAX)?;
        at_most("batch_bytes_max", self.batch_bytes_max, FORMAT_BATCH_BYTES_MAX)
    }
}

/// Options of a partition. Stored with it; an open that names others changes them for the tables
/// written from then on, except for what is fixed at creation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionOptions {
    /// `true` if writes pass the WAL. Without it a write is durable only after a flush, and a
    /// batch cannot mix such partitions with others. Default true. Fixed at creation.
    pub logged: bool,
    /// Compression from level 2 on; levels 0 and 1 are never compressed. Default LZ4.
    pub compression: Compression,
    /// A data block is closed beyond this many bytes. Default 4096, 64 to 1 MiB.
    pub block_bytes: u32,
    /// Bits of the Bloom filter per key. Default 10, at most 32; 0 makes none.
    pub bloom_bits_per_key: u32,
    /// A table is closed beyond this many bytes. Default 64 MiB, at least 1 KiB.
    pub table_bytes: u64,
    /// Level 0 is compacted from this many tables on. Default 4, at least 2.
    pub level0_tables: u32,
    /// Size of the first level below level 0 in bytes. Default 256 MiB, at least 1 KiB.
    pub level_base_bytes: u64,
    /// Each level may hold this many times the one above it. Default 10, 2 to 100.
    pub level_multiplier: u32,
}

impl Default for PartitionOptions {
    fn default() -> PartitionOptions {
        PartitionOptions {
            logged: true,
            compression: Compression::Lz4,
            block_bytes: 4 << 10,
            bloom_bits_per_key: 10,
            table_bytes: 64 << 20,
            level0_tables: 4,
            level_base_bytes: 256 << 20,
            level_multiplier: 10,
        }
    }
}

macro_rules! setters {
    ($($name:ident: $type:ty),* $(,)?) => {
        /// The defaults.
        pub fn new() -> Self {
            Self::default()
        }

        $(
            #[doc = concat!("Sets [`", stringify!($name), "`](Self::", stringify!($name), ").")]
            #[must_use]
            pub fn $name(mut self, $name: $type) -> Self {
                self.$name = $name;
                self
            }
        )*
    };
}

impl Options {
    setters! {
        cache_bytes: u64,
        write_buffer_bytes: u64,
        wal_segment_bytes: u64,
        wal_mapped: bool,
        wal_bytes_max: u64,
        sync_interval_ms: u64,
        value_bytes_max: u64,
        batch_bytes_max: u64,
        compaction_threads: usize,
        manifest_bytes_max: u64,
        open_files_max: usize,
    }
}

impl PartitionOptions {
    setters! {
        logged: bool,
        compression: Compression,
        block_bytes: u32,
        bloom_bits_per_key: u32,
        table_bytes: u64,
        level0_tables: u32,
        level_base_bytes: u64,
        level_multiplier: u32,
    }
}

impl PartitionOptions {
    /// Checks every range.
    pub fn check(&self) -> Result<()> {
        at_least("block_bytes", self.block_bytes.into(), 64)?;
        at_most("block_bytes", self.block_bytes.into(), 1 << 20)?;
        at_most("bloom_bits_per_key", self.bloom_bits_per_key.into(), 32)?;
        at_least("table_bytes", self.table_bytes, 1 << 10)?;
        at_least("level0_tables", self.level0_tables.into(), 2)?;
        at_least("level_base_bytes", self.level_base_bytes, 1 << 10)?;
        at_least("level_multiplier", self.level_multiplier.into(), 2)?;
        at_most("level_multiplier", self.level_multiplier.into(), 100)
    }
}
