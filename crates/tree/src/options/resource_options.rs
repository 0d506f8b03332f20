//! [`ResourceOptions`]: options of resources that many databases of a process share.

#[cfg(doc)]
use super::Options;
use super::{
    at_least, at_most, check_background_rate, default_cache_bytes, default_compaction_threads,
    default_open_files, default_write_buffer_bytes,
};
use crate::error::Result;
use crate::machine;

/// Threads for flushes, and for logs, by default.
const FLUSH_THREADS_DEFAULT: usize = 2;

/// Options of the `Resources` that many databases of a process share. They are not stored.
///
/// # Examples
/// ```
/// use tree::options::ResourceOptions;
///
/// let options = ResourceOptions::new().cache_bytes(256 << 20).write_buffer_bytes(128 << 20);
/// assert_eq!(options.flush_threads, 2); // the default
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceOptions {
    /// Size of the block cache in bytes, as [`Options::cache_bytes`]. Default: the same. 0 turns the cache off for
    /// all; in the options of one database it turns it off for this one, and other values there do not count.
    pub cache_bytes: u64,
    /// Memory for the active memtables of all databases together, in bytes. Beyond it, the database with most is asked to
    /// seal its largest memtable. If one and a half times as much waits for its flush, the writers of the databases
    /// that have some of it are slowed down; at two and a half times they stop until those are flushed. Default: that
    /// of [`Options::write_buffer_bytes`], which is a limit for one database among them: a larger one is cut to this. From
    /// 4 KiB to 1 TiB.
    pub write_buffer_bytes: u64,
    /// Number of threads that flush, and of those that sync logs. Default 2, at least 1. A database uses one of each
    /// at a time. If they need longer for the logs of all than [`Options::sync_interval_ms`], syncs come later. One whose disk hangs keeps its threads.
    pub flush_threads: usize,
    /// Number of threads that compact. Default: as [`Options::compaction_threads`], which is the number that one
    /// database among them uses at once.
    pub compaction_threads: usize,
    /// Bytes of tables a second that the flushes and compactions of all databases write together. Default 0: no
    /// limit; otherwise at least 64 KiB. [`Options::background_bytes_per_second`] is a limit for one database among
    /// them: flushes and a compaction that runs are not interrupted for it, but no next one begins until what the
    /// database has written in the background is within it, or writers are delayed for lack of compactions.
    pub background_bytes_per_second: u64,
    /// Number of tables and chunk files of all databases that stay open for reading, as
    /// [`Options::open_files_max`]. Default: the same. At least 1. That of [`Options`] is a limit for one database among
    /// them.
    pub open_files_max: usize,
}

impl Default for ResourceOptions {
    fn default() -> ResourceOptions {
        ResourceOptions {
            cache_bytes: default_cache_bytes(),
            write_buffer_bytes: default_write_buffer_bytes(),
            flush_threads: FLUSH_THREADS_DEFAULT,
            compaction_threads: default_compaction_threads(machine::processors()),
            background_bytes_per_second: 0,
            open_files_max: default_open_files(),
        }
    }
}

impl ResourceOptions {
    /// The defaults.
    pub fn new() -> ResourceOptions {
        ResourceOptions::default()
    }

    /// Sets [`cache_bytes`](Self::cache_bytes).
    #[must_use]
    pub fn cache_bytes(self, cache_bytes: u64) -> ResourceOptions {
        ResourceOptions { cache_bytes, ..self }
    }

    /// Sets [`write_buffer_bytes`](Self::write_buffer_bytes).
    #[must_use]
    pub fn write_buffer_bytes(self, write_buffer_bytes: u64) -> ResourceOptions {
        ResourceOptions { write_buffer_bytes, ..self }
    }

    /// Sets [`flush_threads`](Self::flush_threads).
    #[must_use]
    pub fn flush_threads(self, flush_threads: usize) -> ResourceOptions {
        ResourceOptions { flush_threads, ..self }
    }

    /// Sets [`compaction_threads`](Self::compaction_threads).
    #[must_use]
    pub fn compaction_threads(self, compaction_threads: usize) -> ResourceOptions {
        ResourceOptions { compaction_threads, ..self }
    }

    /// Sets [`background_bytes_per_second`](Self::background_bytes_per_second).
    #[must_use]
    pub fn background_bytes_per_second(self, background_bytes_per_second: u64) -> ResourceOptions {
        ResourceOptions { background_bytes_per_second, ..self }
    }

    /// Sets [`open_files_max`](Self::open_files_max).
    #[must_use]
    pub fn open_files_max(self, open_files_max: usize) -> ResourceOptions {
        ResourceOptions { open_files_max, ..self }
    }

    /// Checks every range.
    pub fn check(&self) -> Result<()> {
        at_least("write_buffer_bytes", self.write_buffer_bytes, 4 << 10)?;
        at_most("write_buffer_bytes", self.write_buffer_bytes, 1 << 40)?;
        at_least("flush_threads", self.flush_threads as u64, 1)?;
        at_least("compaction_threads", self.compaction_threads as u64, 1)?;
        at_least("open_files_max", self.open_files_max as u64, 1)?;
        check_background_rate(self.background_bytes_per_second)
    }
}
