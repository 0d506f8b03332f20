//! Resources that many databases of a process share.

use std::ptr;

use engine::ResourceOptions;

use crate::error::Failure;
use crate::raw::{free, give, guard, object, object_mut, quietly, set};

/// Options of resources. They are not stored.
pub struct SharedOptions(ResourceOptions);

/// A block cache, memory for memtables, threads, a rate of background writes, and open files, which many databases share.
pub struct Resources(pub(crate) engine::Resources);

/// The use of resources by all databases together.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Open databases that are written to.
    pub databases: u64,
    /// Threads that run.
    pub threads: u64,
    /// Memory of the block cache in bytes.
    pub cache_bytes: u64,
    /// The most that it may take, in bytes.
    pub cache_bytes_max: u64,
    /// Memory of active memtables, in bytes.
    pub active_memtable_bytes: u64,
    /// The most that they should have, in bytes.
    pub write_buffer_bytes: u64,
    /// Memory of memtables that wait for their flush, in bytes.
    pub sealed_memtable_bytes: u64,
    /// Memory of the memtables of secondaries, in bytes. Up to half of `write_buffer_bytes` of it counts as active.
    pub followed_memtable_bytes: u64,
    /// Files that are open for reading.
    pub open_files: u64,
    /// The maximum of them.
    pub open_files_max: u64,
    /// The rate of flushes and compactions in bytes a second; 0 is no limit.
    pub background_bytes_per_second: u64,
}

/// Returns the default options of resources.
#[unsafe(no_mangle)]
pub extern "C" fn siltstone_resource_options_create() -> *mut SharedOptions {
    give(SharedOptions(ResourceOptions::new()))
}

/// Frees options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resource_options_free(options: *mut SharedOptions) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(options) };
}

/// Changes options, unless they are NULL.
///
/// # Safety
/// Contracts 1 and 2 of `raw`.
unsafe fn change(options: *mut SharedOptions, change: impl FnOnce(&mut ResourceOptions)) {
    // SAFETY: contracts 1 and 2 of `raw`.
    if let Ok(options) = unsafe { object_mut(options, "options") } {
        quietly(|| change(&mut options.0));
    }
}

/// Sets the size of the block cache; 0 turns it off for all. Default: a quarter of the memory of the machine, at most 1 GiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resource_options_set_cache_bytes(
    options: *mut SharedOptions,
    bytes: u64,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { change(options, |it| it.cache_bytes = bytes) };
}

/// Sets the memory for the memtables of all databases. Default: a sixteenth of the memory, from 1 MiB to 64 MiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resource_options_set_write_buffer_bytes(
    options: *mut SharedOptions,
    bytes: u64,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { change(options, |it| it.write_buffer_bytes = bytes) };
}

/// Sets the number of threads that flush, and of those that sync logs. Default: 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resource_options_set_flush_threads(
    options: *mut SharedOptions,
    threads: usize,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { change(options, |it| it.flush_threads = threads) };
}

/// Sets the number of threads that compact. Default: the number of cores less one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resource_options_set_compaction_threads(
    options: *mut SharedOptions,
    threads: usize,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { change(options, |it| it.compaction_threads = threads) };
}

/// Sets the bytes a second that the flushes and compactions of all databases write, 0 for no limit. Default: 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resource_options_set_background_bytes_per_second(
    options: *mut SharedOptions,
    bytes: u64,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { change(options, |it| it.background_bytes_per_second = bytes) };
}

/// Sets the number of files that stay open for reading. Default: half of the limit of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resource_options_set_open_files_max(
    options: *mut SharedOptions,
    files: usize,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { change(options, |it| it.open_files_max = files) };
}

/// Makes resources. `options` may be NULL. Threads start with the first database.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resources_create(
    options: *const SharedOptions,
    error: *mut *mut Failure,
) -> *mut Resources {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let options = options.as_ref().map(|options| options.0.clone());
            Ok(give(Resources(engine::Resources::new(options.unwrap_or_default())?)))
        })
    }
}

/// Frees resources. Open databases that use them keep what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resources_free(resources: *mut Resources) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(resources) };
}

/// Changes the bytes a second that flushes and compactions write, also of those that run now; 0 is no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resources_set_background_bytes_per_second(
    resources: *const Resources,
    bytes: u64,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            object(resources, "resources")?.0.set_background_bytes_per_second(bytes).map(|()| true)
        })
    }
}

/// Sets `usage` to what all databases together use now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_resources_usage(
    resources: *const Resources,
    usage: *mut ResourceUsage,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let found = object(resources, "resources")?.0.usage();
            let found = ResourceUsage {
                databases: found.databases,
                threads: found.threads,
                cache_bytes: found.cache_bytes,
                cache_bytes_max: found.cache_bytes_max,
                active_memtable_bytes: found.active_memtable_bytes,
                write_buffer_bytes: found.write_buffer_bytes,
                sealed_memtable_bytes: found.sealed_memtable_bytes,
                followed_memtable_bytes: found.followed_memtable_bytes,
                open_files: found.open_files,
                open_files_max: found.open_files_max,
                background_bytes_per_second: found.background_bytes_per_second,
            };
            set(usage, found);
            Ok(true)
        })
    }
}
