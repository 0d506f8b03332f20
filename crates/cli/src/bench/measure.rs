//! What a workload costs: latencies, processor time, memory, bytes written, space.
//!
//! Latencies are kept in nanoseconds with three digits. Processor time is the whole process's and
//! written bytes are the whole engine's, so that background work is counted to the workload during
//! which it ran. Written bytes are those of log, flushes and compactions, as `Db::stats` counts
//! them. What a machine cannot tell is `None`, never zero.

use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use siltstone::Db;

use crate::output::Failure;

/// Latencies in nanoseconds, up to an hour.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("the bounds are in order")
}

/// What was used up to some moment, or between two.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Processor time of all threads.
    pub(crate) cpu: Duration,
    /// Bytes that the engine wrote to log and tables.
    pub(crate) written_bytes: u64,
}

impl Usage {
    /// Up to now, since `db` was opened.
    pub(crate) fn now(db: &Db) -> Usage {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let seconds = u64::try_from(cpu.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(cpu.tv_nsec).unwrap_or(0);
        let stats = db.stats();
        Usage {
            cpu: Duration::from_secs(seconds) + Duration::from_nanos(nanos),
            written_bytes: stats.wal_bytes + stats.flush_bytes + stats.compaction_written_bytes,
        }
    }

    /// Between `earlier` and this.
    pub(crate) fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
        }
    }
}

/// Memory of the process in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Resident now.
    pub(crate) resident_bytes: Option<u64>,
    /// The most that was resident at once since the process began.
    pub(crate) peak_bytes: Option<u64>,
}

impl Memory {
    /// Now.
    pub(crate) fn now() -> Memory {
        let kibibytes = |name| Some(number_after("/proc/self/status", name)? << 10);
        Memory { resident_bytes: kibibytes("VmRSS:"), peak_bytes: kibibytes("VmHWM:") }
    }
}

/// The number behind `name` in one of the kernel's text files.
fn number_after(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Bytes that the files of `folder` occupy on the device.
#[expect(clippy::disallowed_methods, reason = "looks from outside")]
pub(crate) fn disk_bytes(folder: &Path) -> Result<u64, Failure> {
    let list = |e: std::io::Error| Failure::io("list", folder, &e);
    let mut bytes = 0;
    for name in std::fs::read_dir(folder).map_err(list)? {
        let name = name.map_err(list)?;
        // A file may go while background work is under way.
        let Ok(metadata) = name.metadata() else { continue };
        bytes += if metadata.is_dir() { disk_bytes(&name.path())? } else { occupied(&metadata) };
    }
    Ok(bytes)
}

#[cfg(unix)]
fn occupied(metadata: &std::fs::Metadata) -> u64 {
    // The unit of st_blocks is 512 bytes, whatever the file system's blocks are.
    std::os::unix::fs::MetadataExt::blocks(metadata) * 512
}

#[cfg(not(unix))]
fn occupied(metadata: &std::fs::Metadata) -> u64 {
    metadata.len()
}
