//! Options of opens and of partitions.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;

use engine::operators::ready_made;
use engine::{
    CompactionStyle, Compression, Error, ErrorKind, LargeValueOptions, MetaHiveOptions, Options,
    PrefixExtractor, Result, TtlFilter,
};

use crate::error::Failure;
use crate::hooks::{CompactionFilter, MergeOperator, OwnHooks};
use crate::partition::Partition;
use crate::raw::{bytes, free, give, guard, object, object_mut, quietly, text};
use crate::resources::Resources;

/// Options of an open. They are not stored.
#[derive(Clone)]
pub struct OpenOptions {
    pub(crate) engine: Options,
    pub(crate) create_if_missing: bool,
    pub(crate) error_if_exists: bool,
    pub(crate) read_only: bool,
    pub(crate) beside_writer: bool,
    pub(crate) take_over: bool,
    pub(crate) resources: Option<engine::Resources>,
    pub(crate) hooks: OwnHooks,
    pub(crate) listeners: Vec<Arc<dyn engine::EventListener>>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            engine: Options::default(),
            create_if_missing: true,
            error_if_exists: false,
            read_only: false,
            beside_writer: false,
            take_over: false,
            resources: None,
            hooks: OwnHooks::default(),
            listeners: Vec::new(),
        }
    }
}

/// Options of a partition. They are stored with it.
#[derive(Clone, Default)]
pub struct PartitionOptions(pub(crate) engine::PartitionOptions);

/// Returns the default options of an open.
#[unsafe(no_mangle)]
pub extern "C" fn siltstone_options_create() -> *mut OpenOptions {
    give(OpenOptions::default())
}

/// Frees options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_free(options: *mut OpenOptions) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(options) };
}

/// Changes options of an open, unless they are NULL.
///
/// # Safety
/// Contracts 1 and 2 of `raw`.
unsafe fn set_open(options: *mut OpenOptions, change: impl FnOnce(&mut OpenOptions)) {
    // SAFETY: contracts 1 and 2 of `raw`.
    if let Ok(options) = unsafe { object_mut(options, "options") } {
        quietly(|| change(options));
    }
}

/// Sets whether the database is made if it does not exist. Default: true.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_create_if_missing(
    options: *mut OpenOptions,
    is_on: bool,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.create_if_missing = is_on) };
}

/// Sets whether a folder that has a database is refused. Default: false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_error_if_exists(
    options: *mut OpenOptions,
    is_on: bool,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.error_if_exists = is_on) };
}

/// Sets whether nothing is written. Default: false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_read_only(options: *mut OpenOptions, is_on: bool) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.read_only = is_on) };
}

/// Sets whether the committed state is read while another process writes. Default: false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_beside_writer(
    options: *mut OpenOptions,
    is_on: bool,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.beside_writer = is_on) };
}

/// Sets whether the database is taken over from a process of this machine that has it open. Default: false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_take_over(options: *mut OpenOptions, is_on: bool) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.take_over = is_on) };
}

/// Sets the size of the block cache. Default: a quarter of the memory of the machine, at most 1 GiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_cache_bytes(options: *mut OpenOptions, bytes: u64) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.engine.cache_bytes = bytes) };
}

/// Sets the memory for the memtables. Default: a sixteenth of the memory, from 1 MiB to 64 MiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_write_buffer_bytes(
    options: *mut OpenOptions,
    bytes: u64,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.engine.write_buffer_bytes = bytes) };
}

/// Sets the bytes of the log that stay for feeds of changes after their data are in tables. Default: 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_log_retained_bytes(
    options: *mut OpenOptions,
    bytes: u64,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.engine.log_retained_bytes = bytes) };
}

/// Sets the bytes a second that flushes and compactions write, 0 for no limit. Default: 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_background_bytes_per_second(
    options: *mut OpenOptions,
    bytes: u64,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.engine.background_bytes_per_second = bytes) };
}

/// Sets the time within which a write without `sync` reaches the device. Default: 1000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_sync_interval_ms(
    options: *mut OpenOptions,
    interval_ms: u64,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.engine.sync_interval_ms = interval_ms) };
}

/// Sets the maximum length of a value that is not streamed. Default: 64 MiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_value_bytes_max(
    options: *mut OpenOptions,
    bytes: u64,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.engine.value_bytes_max = bytes) };
}

/// Sets the number of threads that compact. Default: the number of cores less one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_compaction_threads(
    options: *mut OpenOptions,
    threads: usize,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.engine.compaction_threads = threads) };
}

/// Sets the number of files that stay open for reading. Default: half of the limit of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_open_files_max(
    options: *mut OpenOptions,
    files: usize,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_open(options, |it| it.engine.open_files_max = files) };
}

/// Shares the cache, the memory, the threads, the rate and the open files of `resources`. NULL shares none. Default: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_set_resources(
    options: *mut OpenOptions,
    resources: *const Resources,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        let resources = resources.as_ref().map(|resources| resources.0.clone());
        set_open(options, |it| it.resources = resources);
    }
}

/// Supplies the code of a merge operator, for partitions that store its name and parameters. May be called several times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_add_merge_operator(
    options: *mut OpenOptions,
    operator: *const MergeOperator,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let operator = object(operator, "operator")?.0.clone();
            object_mut(options, "options")?.hooks.operators.push(operator);
            Ok(true)
        })
    }
}

/// Supplies the code of a compaction filter, for partitions that store its name and parameters. May be called several
/// times. Without it a partition opens, and keeps what the filter would remove.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_add_compaction_filter(
    options: *mut OpenOptions,
    filter: *const CompactionFilter,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let filter = object(filter, "filter")?.0.clone();
            object_mut(options, "options")?.hooks.filters.push(filter);
            Ok(true)
        })
    }
}

/// Returns the default options of a partition.
#[unsafe(no_mangle)]
pub extern "C" fn siltstone_partition_options_create() -> *mut PartitionOptions {
    give(PartitionOptions::default())
}

/// Returns the stored options of a partition, to change some of them: siltstone_partition_open stores those that are not
/// set as their defaults. Hooks are not among them; a partition keeps them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_of(
    partition: *const Partition,
    error: *mut *mut Failure,
) -> *mut PartitionOptions {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            Ok(give(PartitionOptions(object(partition, "partition")?.0.options())))
        })
    }
}

/// Frees options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_free(options: *mut PartitionOptions) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(options) };
}

/// Changes options of a partition, unless they are NULL.
///
/// # Safety
/// Contracts 1 and 2 of `raw`.
unsafe fn set_partition(
    options: *mut PartitionOptions,
    change: impl FnOnce(engine::PartitionOptions) -> engine::PartitionOptions,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    if let Ok(options) = unsafe { object_mut(options, "options") } {
        quietly(|| options.0 = change(options.0.clone()));
    }
}

/// Sets whether writes go to the log. Fixed when the partition is made. Default: true.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_logged(
    options: *mut PartitionOptions,
    is_on: bool,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_partition(options, |it| it.logged(is_on)) };
}

/// Sets whether the tables of the deep levels are compressed, by LZ4. Default: true.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_compressed(
    options: *mut PartitionOptions,
    is_on: bool,
) {
    let compression = if is_on { Compression::Lz4 } else { Compression::None };
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_partition(options, |it| it.compression(compression)) };
}

/// Sets that the tables of the deep levels are compressed with Zstandard. A build without the feature `zstd` refuses the
/// partition as SILTSTONE_UNSUPPORTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_zstd(options: *mut PartitionOptions) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_partition(options, |it| it.compression(Compression::Zstd)) };
}

/// Sets the size beyond which a block is closed. Default: 4096.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_block_bytes(
    options: *mut PartitionOptions,
    bytes: u32,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_partition(options, |it| it.block_bytes(bytes)) };
}

/// Sets the bits of the Bloom filter for each key; 0 makes none. Default: 10.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_bloom_bits_per_key(
    options: *mut PartitionOptions,
    bits: u32,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_partition(options, |it| it.bloom_bits_per_key(bits)) };
}

/// Sets the size beyond which a table is closed. Default: 64 MiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_table_bytes(
    options: *mut PartitionOptions,
    bytes: u64,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_partition(options, |it| it.table_bytes(bytes)) };
}

/// Puts the first `len` bytes of keys into Bloom filters. Default: no prefix.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_fixed_prefix(
    options: *mut PartitionOptions,
    len: u16,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_partition(options, |it| it.prefix_extractor(PrefixExtractor::Fixed(len))) };
}

/// Puts the bytes of keys through the first `byte` into Bloom filters. Default: no prefix.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_prefix_through(
    options: *mut PartitionOptions,
    byte: u8,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_partition(options, |it| it.prefix_extractor(PrefixExtractor::Through(byte))) };
}

/// Merges no tables, and removes the oldest ones while all have more than `bytes_max` bytes, and those that are older than
/// `seconds_max` seconds. UINT64_MAX is no limit. Default: tables are merged into levels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_fifo(
    options: *mut PartitionOptions,
    bytes_max: u64,
    seconds_max: u64,
) {
    let style = CompactionStyle::Fifo { bytes_max, seconds_max };
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_partition(options, |it| it.compaction_style(style)) };
}

/// Sets whether a checksum is kept with every entry, which every compaction verifies. The other hooks of the partition
/// stay. Default: false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_metahive(
    options: *mut PartitionOptions,
    is_on: bool,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        set_partition(options, |it| match is_on {
            true => it.metahive(MetaHiveOptions::default()),
            false => it.without_metahive(),
        });
    }
}

/// Sets the rule of expiry, such as `value:0,ms` for the millisecond of the expiry in the first 8 bytes of the value;
/// docs/expiry.md has the form. NULL ends the rule. The other hooks of the partition stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_ttl(
    options: *mut PartitionOptions,
    rule: *const c_char,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let options = object_mut(options, "options")?;
            let before = options.0.clone();
            options.0 = match rule.is_null() {
                true => before.without_filter(TtlFilter::NAME),
                false => before.ttl(&text(rule, "rule")?.parse()?),
            };
            Ok(true)
        })
    }
}

/// Keeps values from `threshold_bytes` on in chunk files; 0 is the default, 64 KiB, and UINT64_MAX moves them back into
/// tables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_large_values(
    options: *mut PartitionOptions,
    threshold_bytes: u64,
) {
    let large = match threshold_bytes {
        0 => LargeValueOptions::new(),
        u64::MAX => LargeValueOptions::off(),
        bytes => LargeValueOptions::new().threshold_bytes(bytes),
    };
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { set_partition(options, |it| it.large_values(large)) };
}

/// Sets a ready-made merge operator: `add`, `max`, `min`, `set-bits`, or `append` with its separator as parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_set_merge_operator(
    options: *mut PartitionOptions,
    name: *const c_char,
    params: *const c_void,
    params_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let operator = operator(text(name, "name")?, bytes(params, params_len, "params")?)?;
            let options = object_mut(options, "options")?;
            options.0 = options.0.clone().merge_operator(operator);
            Ok(true)
        })
    }
}

/// Gives the partition a merge operator of the application. Its name and parameters are stored and never change; later
/// opens need siltstone_options_add_merge_operator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_use_merge_operator(
    options: *mut PartitionOptions,
    operator: *const MergeOperator,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let operator = object(operator, "operator")?.0.clone();
            let options = object_mut(options, "options")?;
            options.0 = options.0.clone().merge_operator(operator);
            Ok(true)
        })
    }
}

/// Adds a compaction filter of the application, after those that were added. The filters of the options replace those
/// of the partition. Later opens need siltstone_options_add_compaction_filter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_options_add_compaction_filter(
    options: *mut PartitionOptions,
    filter: *const CompactionFilter,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let filter = object(filter, "filter")?.0.clone();
            let options = object_mut(options, "options")?;
            options.0 = options.0.clone().filter(filter);
            Ok(true)
        })
    }
}

fn operator(name: &str, params: &[u8]) -> Result<Arc<dyn engine::operators::MergeOperator>> {
    ready_made(name, params).ok_or_else(|| {
        let message = format!("there is no merge operator {name:?} with these parameters");
        Error::new(ErrorKind::InvalidArgument, message)
    })
}
