//! Figures of the machine and of the process that defaults depend on.
//!
//! Called for defaults and for errors of open files. In layer 0, so it imports nothing of the engine. Where
//! the system is not asked, the answer is a careful guess that the docs of the options name.

#[cfg(target_os = "linux")]
mod container;

use std::io;
use std::sync::OnceLock;
use std::thread;

/// Memory that a machine is taken to have if the system is not asked for it.
#[cfg(not(target_os = "linux"))]
const MEMORY_BYTES_GUESS: u64 = 1 << 30;
/// Files that a process is taken to be allowed where there is no limit to ask for.
#[cfg(not(unix))]
const OPEN_FILES_GUESS: u64 = 4096;

/// Memory that this process may take in bytes, as of the first call: that of the machine, or the limit of the
/// container, if that is less.
#[cfg(target_os = "linux")]
pub fn memory_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let info = rustix::system::sysinfo();
        // Words of the machine: 32 bits on some.
        #[allow(clippy::useless_conversion, reason = "only some machines need it")]
        let units = u64::from(info.totalram);
        let all = units.saturating_mul(u64::from(info.mem_unit));
        all.min(container::memory_limit().unwrap_or(u64::MAX))
    })
}

/// Memory that this process may take in bytes.
#[cfg(not(target_os = "linux"))]
pub fn memory_bytes() -> u64 {
    MEMORY_BYTES_GUESS
}

/// The number of processors that this process may use, at least 1, as of the first call. On Linux std opens three files of
/// the process and of its container for each answer, which would be a tenth of an open of a small database.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// The number of files that this process may have open at once.
#[cfg(unix)]
pub fn open_files_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// The number of files that this process may have open at once.
#[cfg(not(unix))]
pub fn open_files_limit() -> u64 {
    OPEN_FILES_GUESS
}

/// The number of this process. 1 on WASI, where std panics: a module is alone there.
pub fn process_id() -> u32 {
    if cfg!(target_family = "wasm") { 1 } else { std::process::id() }
}

/// The errors of a process, and of a machine, without a handle for another open file.
#[cfg(unix)]
const OUT_OF_HANDLES: [i32; 2] =
    [rustix::io::Errno::MFILE.raw_os_error(), rustix::io::Errno::NFILE.raw_os_error()];
/// `ERROR_TOO_MANY_OPEN_FILES`, and `ERROR_NO_SYSTEM_RESOURCES`, of `winerror.h`.
#[cfg(windows)]
const OUT_OF_HANDLES: [i32; 2] = [4, 1450];
/// `EMFILE` and `ENFILE` of WASI.
#[cfg(not(any(unix, windows)))]
const OUT_OF_HANDLES: [i32; 2] = [33, 41];

/// Returns `true` if the process, or the machine, has no handle for another open file.
pub fn is_out_of_handles(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| OUT_OF_HANDLES.contains(&code))
}

/// The error of a process that has no handle for another open file, for file systems that fail on request.
#[cfg(any(test, feature = "internals"))]
pub fn out_of_handles() -> io::Error {
    io::Error::from_raw_os_error(OUT_OF_HANDLES[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_plausible_and_only_codes_of_open_files_count_as_such() {
        assert!(memory_bytes() >= 1 << 20, "{}", memory_bytes());
        assert!(open_files_limit() >= 16, "{}", open_files_limit());
        assert!(!is_out_of_handles(&io::ErrorKind::NotFound.into()));
        #[cfg(unix)]
        for (code, expected) in [(2, false), (23, true), (24, true), (28, false)] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(is_out_of_handles(&error), expected, "{error}");
        }
    }
}
