//! Options as plain data: every field with its unit, default and range.
//!
//! File system, clock and background work are separate arguments, so options can be printed,
//! compared and stored. A bad value is an error of `open`, never a panic.

mod compaction_style;
mod prefix_extractor;
mod resource_options;

pub use compaction_style::CompactionStyle;
pub use prefix_extractor::PrefixExtractor;
pub use resource_options::ResourceOptions;

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    BACKGROUND_BYTES_PER_SECOND_MIN, FORMAT_BATCH_BYTES_MAX, FORMAT_VALUE_BYTES_MAX,
};
use crate::machine;

/// The point at which a write counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// The kernel has the write when the call returns. It survives a killed process. It survives a
    /// power cut after the next sync, at most [`Options::sync_interval_ms`] later. The default.
    #[default]
    Os,
    /// The device has the write when the call returns. It survives a power cut.
    Sync,
}

/// Options of one write. A [`Durability`] converts into them: `batch.commit(Durability::Sync)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WriteOptions {
    // Every method that writes passes the whole struct on, from the public call to the commit path. As
    // arguments of their own, each new option would change all of these methods.
    /// The point at which the write counts as done. Default [`Durability::Os`].
    pub durability: Durability,
    /// With `true`, the default, the write waits for compactions if it must. With `false` it returns
    /// [`WouldStall`](crate::error::ErrorKind::WouldStall) with the reason then, and writes nothing (RocksDB:
    /// `no_slowdown`). It waits for the sync of [`Durability::Sync`] in any case.
    pub waits: bool,
}

impl Default for WriteOptions {
    fn default() -> WriteOptions {
        WriteOptions { durability: Durability::default(), waits: true }
    }
}

impl From<Durability> for WriteOptions {
    fn from(durability: Durability) -> WriteOptions {
        WriteOptions { durability, ..WriteOptions::default() }
    }
}

/// The compression of blocks. The numbers are on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Compression {
    /// No compression.
    None = 0,
    /// LZ4, if it saves at least an eighth of the block.
    #[default]
    Lz4 = 1,
    /// Zstandard at level 3, if it saves at least an eighth of the block. From its first 1.6 MiB on, a table has a
    /// dictionary, which is trained with them, if that saves a sixteenth more. It is C code, so a program has it with
    /// the feature `zstd` alone. Without the feature, a partition cannot be created with it or set to it, and reads of
    /// what was written with it return `Unsupported`.
    Zstd = 2,
}

impl Compression {
    /// The compression with the on-disk number `n`, if this version knows it.
    pub fn from_u8(n: u8) -> Option<Compression> {
        match n {
            0 => Some(Compression::None),
            1 => Some(Compression::Lz4),
            2 => Some(Compression::Zstd),
            _ => None,
        }
    }

    /// Returns `true` if this build compresses so.
    pub fn is_built_in(self) -> bool {
        self != Compression::Zstd || cfg!(feature = "zstd")
    }
}

/// The most compaction threads by default. Each keeps the blocks that it reads ahead and writes in memory.
const COMPACTION_THREADS_DEFAULT_MAX: usize = 16;

/// Options of a database. They are not stored: each open may choose other values.
///
/// # Examples
/// ```
/// use tree::options::Options;
///
/// let options = Options::new().cache_bytes(64 << 20).write_buffer_bytes(16 << 20);
/// assert_eq!(options.sync_interval_ms, 1000); // the default
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Size of the block cache in bytes. Default: a quarter of the memory that the process may take, at most 1
    /// GiB (256 MiB with pointers of 32 bits): that of the machine, or the limit of the container (cgroup) if that is
    /// less. On systems other than Linux 256 MiB. 0 turns the cache off. Blocks that flushes and compactions write go
    /// into it while it has room and readers use it, unless their entries are longer than 512 bytes on average; nothing
    /// leaves it for them. From 16 MiB on, up to an eighth of it is taken beyond it, for free places in its memory.
    pub cache_bytes: u64,
    /// Memory for the active memtables of all partitions together, in bytes. Beyond it, the largest
    /// memtable is sealed and flushed. If one and a half times as much waits for its
    /// flush, writes are slowed down; at two and a half times they stop. Default: a sixteenth of the memory that the process
    /// may take, as for [`Options::cache_bytes`], from 1 MiB to 64 MiB. From 4 KiB to 1 TiB.
    pub write_buffer_bytes: u64,
    /// Maximum length of a log segment in bytes. The recent writes determine the length of a new segment:
    /// eight times their bytes, but no more than 131,072 writes of their size take, from 256 KiB to this
    /// maximum or to the size of the write buffer, whichever is less; shorter if the disk lacks space. After
    /// an open the least length is 4 KiB, and doubles with each segment. Default 64 MiB, from 4 KiB to 1 TiB.
    /// A larger frame gets its own segment.
    pub wal_segment_bytes: u64,
    /// `true` if small writes to the log may go through a shared memory mapping, on systems and file
    /// systems that are known to support it (Linux 5.14 and later; ext4, XFS, tmpfs). They cost less
    /// and are as safe. If the device or the file system fails, such a write can end the process with
    /// a signal, where `write` would return an error: see `docs/MEDIA.md`. Default true; in effect
    /// for new segments.
    pub wal_mapped: bool,
    /// `true` if point reads and cursors may read tables through memory mappings of their files, as LMDB and
    /// LevelDB do, on Linux, with the feature `mmap`, on file systems that are known to support it. Only
    /// tables without compression, of up to about 50,000 blocks (200 MiB with blocks of 4 KiB), are mapped;
    /// `Stats::mapped_table_bytes` says how much it is. Their
    /// blocks take no room in the block cache. For data that are much larger than the cache and fit into the
    /// memory of the machine, point reads take half of the time. A point read verifies the checksum of a
    /// block only the first time. If the device fails later, the process can end with a signal, where a read
    /// would return an error: see `docs/MEDIA.md`. Default false.
    pub tables_mapped: bool,
    /// Maximum length of the log that the next open may have to replay, in bytes. Beyond it, the
    /// memtables that need the oldest segments are flushed. Default 512 MiB, from two segments to 1 PiB.
    pub wal_bytes_max: u64,
    /// Time in milliseconds within which a write of [`Durability::Os`] reaches the device. Default
    /// 1000; 0 leaves the sync to the operating system. Databases that share `Resources` take turns on its threads for logs:
    /// if a round takes longer, so does this.
    pub sync_interval_ms: u64,
    /// Maximum length of an inline value in bytes. Default 64 MiB, at most 1 GiB.
    pub value_bytes_max: u64,
    /// Maximum size of a batch in bytes, with all keys and values. Default 256 MiB, at most just
    /// under 2 GiB.
    pub batch_bytes_max: u64,
    /// Number of threads that compact. Default: the number of cores less one, at least 1 and at most
    /// 16, so that writers and the flush have a core.
    pub compaction_threads: usize,
    /// Bytes of tables a second that flushes and compactions write together, by the clock of the database. Flushes
    /// come first, then compactions of level 0; each kind that waits gets a tenth at least. Default 0: no limit;
    /// otherwise at least 64 KiB. Writers that are faster for long are slowed down to what it leaves them: each byte
    /// is written by a flush and by several compactions. `Db::set_background_bytes_per_second` changes it while the
    /// database is open. It does not hold for the open, a close, exports and ingests, or a database that is stepped.
    pub background_bytes_per_second: u64,
    /// Size in bytes beyond which the manifest begins a new generation. Default 4 MiB.
    pub manifest_bytes_max: u64,
    /// Number of tables and chunk files that stay open for reading, in addition to those that are being read
    /// or written. Others are closed, and opened again for each read. Default: half of the limit of open
    /// files of the process (`ulimit -n`; on Windows 4,096) when the options are made, at least 16, at most
    /// 1,048,576. At least 1. Each database and each secondary has its own; if the process has no file handle left,
    /// all of them close half of these files.
    pub open_files_max: usize,
    /// Bytes of tables, log segments, manifests and large values that are in no version any more and stay
    /// because secondaries read them. Beyond it the secondary that holds most loses its lease: it reads on
    /// from a newer state, and what it showed before ends with [`ErrorKind::LeaseLost`]. Default 16 GiB; 0
    /// lets secondaries hold nothing.
    pub leased_bytes_max: u64,
    /// Bytes of the log that stay on the disk for those who follow the changes (`Db::changes`), after the database
    /// needs them no more. The oldest segments go first. Writers never wait for a slow follower: it gets
    /// [`ErrorKind::TooOld`]. Default 0: the log is as long as recovery needs it. In effect from the open on.
    pub log_retained_bytes: u64,
    /// Time in seconds for which such bytes stay. They are deleted by the flush or the open after that. Default
    /// `u64::MAX`: as long as [`Options::log_retained_bytes`] allows.
    pub log_retained_seconds: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_bytes: default_cache_bytes(),
            write_buffer_bytes: default_write_buffer_bytes(),
            wal_segment_bytes: 64 << 20,
            wal_mapped: true,
            tables_mapped: false,
            wal_bytes_max: 512 << 20,
            sync_interval_ms: 1000,
            value_bytes_max: 64 << 20,
            batch_bytes_max: 256 << 20,
            compaction_threads: default_compaction_threads(machine::processors()),
            background_bytes_per_second: 0,
            manifest_bytes_max: 4 << 20,
            open_files_max: default_open_files(),
            leased_bytes_max: 16 << 30,
            log_retained_bytes: 0,
            log_retained_seconds: u64::MAX,
        }
    }
}

fn default_cache_bytes() -> u64 {
    // A quarter of what pointers of 32 bits reach is 1 GiB, which the rest of the process needs.
    let most = if cfg!(target_pointer_width = "32") { 256 << 20 } else { 1 << 30 };
    (machine::memory_bytes() / 4).min(most)
}

fn default_write_buffer_bytes() -> u64 {
    write_buffer_bytes_for(machine::memory_bytes())
}

/// With what waits for its flush, a quarter of the memory at most: as much as the cache.
fn write_buffer_bytes_for(memory: u64) -> u64 {
    (memory / 16).clamp(1 << 20, 64 << 20)
}

/// All processors but one, for writers and the flush.
fn default_compaction_threads(processors: usize) -> usize {
    processors.saturating_sub(1).clamp(1, COMPACTION_THREADS_DEFAULT_MAX)
}

/// Half, because the log, the manifest, jobs and the application itself open files as well.
fn default_open_files() -> usize {
    let half = machine::open_files_limit() / 2;
    usize::try_from(half).unwrap_or(usize::MAX).clamp(16, 1 << 20)
}

fn at_least(name: &str, got: u64, least: u64) -> Result<()> {
    if got >= least {
        return Ok(());
    }
    let message = format!("{name} is {got}, but must be at least {least}");
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

fn at_most(name: &str, got: u64, most: u64) -> Result<()> {
    if got <= most {
        return Ok(());
    }
    let message = format!("{name} is {got}, but must be at most {most}");
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

/// Returns an error unless 0 or a rate that a database can work with.
pub fn check_background_rate(bytes_per_second: u64) -> Result<()> {
    if bytes_per_second == 0 || bytes_per_second >= BACKGROUND_BYTES_PER_SECOND_MIN {
        return Ok(());
    }
    let least = BACKGROUND_BYTES_PER_SECOND_MIN;
    let message = format!(
        "background_bytes_per_second is {bytes_per_second}, but must be 0 or at least {least}"
    );
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

impl Options {
    /// Memory that all memtables may take: one write buffer that takes writes, and two sealed ones. When the
    /// first is sealed too, writes stop.
    pub fn memtable_bytes_max(&self) -> u64 {
        self.write_buffer_bytes.saturating_mul(3)
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
        check_background_rate(self.background_bytes_per_second)?;
        at_most("value_bytes_max", self.value_bytes_max, FORMAT_VALUE_BYTES_MAX)?;
        at_most("batch_bytes_max", self.batch_bytes_max, FORMAT_BATCH_BYTES_MAX)
    }
}

/// Options of a partition. They are stored with the partition. An open with other values changes them
/// for the tables written from then on, except for options that are fixed at creation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionOptions {
    /// `true` if writes pass the WAL. Without it a write is durable only after a flush, and a
    /// batch cannot mix such partitions with others. Default true. Fixed at creation.
    pub logged: bool,
    /// Compression from level 2 on; levels 0 and 1 are never compressed. Default LZ4.
    pub compression: Compression,
    /// A data block is closed beyond this many bytes, hidden entries not counted; with them, beyond twice
    /// as many. Default 4096, 64 to 1 MiB.
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
    /// The prefix of a key that blooms have as well. A scan within one prefix passes over the tables that do not
    /// have it. Default `None`. No effect without blooms. Tables that were written with another extractor are not
    /// asked.
    pub prefix_extractor: Option<PrefixExtractor>,
    /// The rule by which tables are merged, or removed. Default [`CompactionStyle::Leveled`].
    pub compaction_style: CompactionStyle,
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
            prefix_extractor: None,
            compaction_style: CompactionStyle::Leveled,
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
            #[doc = concat!(
                "Sets [`", stringify!($name), "`](field@Self::", stringify!($name),
                "); the field has unit, default and range."
            )]
            #[must_use]
            pub fn $name(mut self, $name: $type) -> Self {
                self.$name = $name;
                self
            }
        )*
    };
}

impl WriteOptions {
    setters! {
        durability: Durability,
        waits: bool,
    }
}

impl Options {
    setters! {
        cache_bytes: u64,
        write_buffer_bytes: u64,
        wal_segment_bytes: u64,
        wal_mapped: bool,
        tables_mapped: bool,
        wal_bytes_max: u64,
        sync_interval_ms: u64,
        value_bytes_max: u64,
        batch_bytes_max: u64,
        compaction_threads: usize,
        background_bytes_per_second: u64,
        manifest_bytes_max: u64,
        open_files_max: usize,
        leased_bytes_max: u64,
        log_retained_bytes: u64,
        log_retained_seconds: u64,
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
        prefix_extractor: Option<PrefixExtractor>,
        compaction_style: CompactionStyle,
    }
}

impl PartitionOptions {
    /// Checks what this build can do for the partition `name`, apart from ranges. Stored options are not checked so:
    /// a partition that another build has set can still be read as far as its files allow.
    pub fn check_built_in(&self, name: &str) -> Result<()> {
        if self.compression.is_built_in() {
            return Ok(());
        }
        let message = format!(
            "compression of partition {name:?} with zstd: this build lacks the feature `zstd`"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Checks every range.
    pub fn check(&self) -> Result<()> {
        at_least("block_bytes", self.block_bytes.into(), 64)?;
        at_most("block_bytes", self.block_bytes.into(), 1 << 20)?;
        at_most("bloom_bits_per_key", self.bloom_bits_per_key.into(), 32)?;
        at_least("table_bytes", self.table_bytes, 1 << 10)?;
        at_least("level0_tables", self.level0_tables.into(), 2)?;
        at_least("level_base_bytes", self.level_base_bytes, 1 << 10)?;
        at_least("level_multiplier", self.level_multiplier.into(), 2)?;
        at_most("level_multiplier", self.level_multiplier.into(), 100)?;
        if let CompactionStyle::Fifo { bytes_max, .. } = self.compaction_style {
            at_least("bytes_max of the FIFO", bytes_max, 1)?;
        }
        match self.prefix_extractor {
            Some(PrefixExtractor::Fixed(len)) => {
                at_least("the length of prefix_extractor", len.into(), 1)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_core_but_one_compacts() {
        let threads = [1, 2, 3, 4, 8, 17, 64].map(default_compaction_threads);
        assert_eq!(threads, [1, 1, 2, 3, 7, 16, 16]);
    }

    #[test]
    fn memtables_take_a_part_of_a_small_memory() {
        let mib = [1, 64, 256, 1024, 1 << 20].map(|mib| write_buffer_bytes_for(mib << 20) >> 20);
        assert_eq!(mib, [1, 4, 16, 64, 64]);
        let defaults =
            (Options::new().write_buffer_bytes, ResourceOptions::new().write_buffer_bytes);
        assert_eq!(defaults, (default_write_buffer_bytes(), default_write_buffer_bytes()));
    }
}
