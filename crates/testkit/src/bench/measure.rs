//! The costs of a workload: latencies, processor time, memory, bytes written, space.
//!
//! Latencies are kept in nanoseconds with three digits. Processor time and written bytes are the
//! whole engine's, so that background work is counted to the workload during which it ran. A figure
//! that the machine cannot provide is `None`, never zero. The one exception is processor time,
//! which is zero on systems that are not Unix.

use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies in nanoseconds, up to an hour.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("the bounds are in order")
}

/// The resources used up to some time, or between two times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Processor time of all threads.
    pub cpu: Duration,
    /// Bytes that the engine wrote.
    pub written_bytes: Option<u64>,
}

impl Usage {
    /// The usage up to now; `written_bytes` as the engine reports it.
    pub fn now(written_bytes: Option<u64>) -> Usage {
        Usage { cpu: processor_time(), written_bytes }
    }

    /// The difference between `earlier` and this.
    #[must_use]
    pub fn since(&self, earlier: &Usage) -> Usage {
        let written = self.written_bytes.zip(earlier.written_bytes);
        Usage {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            written_bytes: written.map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// Processor time that the threads of this process have taken.
#[cfg(unix)]
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// Zero: std does not have it.
#[cfg(not(unix))]
pub fn processor_time() -> Duration {
    Duration::ZERO
}

/// Bytes that the process has handed to `write` and its relatives.
pub fn process_written_bytes() -> Option<u64> {
    number_after("/proc/self/io", "wchar:")
}

/// Bytes of the pages of files that the process made dirty, by `write` or through a map, without
/// those that were removed before they reached the device. A page counts again once it was written
/// back.
pub fn process_dirtied_bytes() -> Option<u64> {
    let dirtied = number_after("/proc/self/io", "write_bytes:")?;
    Some(dirtied.saturating_sub(number_after("/proc/self/io", "cancelled_write_bytes:")?))
}

/// Memory of the process in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Resident now.
    pub resident_bytes: Option<u64>,
    /// The most that was resident at once since the process began.
    pub peak_bytes: Option<u64>,
}

impl Memory {
    /// Now.
    pub fn now() -> Memory {
        let kibibytes = |name| Some(number_after("/proc/self/status", name)? << 10);
        Memory { resident_bytes: kibibytes("VmRSS:"), peak_bytes: kibibytes("VmHWM:") }
    }
}

/// The number after `name` in one of the kernel's text files.
fn number_after(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Bytes that the files of `folder` occupy on the device.
#[expect(clippy::disallowed_methods, reason = "looks from outside")]
pub fn disk_bytes(folder: &Path) -> Option<u64> {
    let mut bytes = 0;
    for name in std::fs::read_dir(folder).ok()? {
        let name = name.ok()?;
        // A file may be deleted while background work runs.
        let Ok(metadata) = name.metadata() else { continue };
        bytes += if metadata.is_dir() {
            disk_bytes(&name.path()).unwrap_or(0)
        } else {
            occupied(&metadata)
        };
    }
    Some(bytes)
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
