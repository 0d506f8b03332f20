//! Options, from keywords of Python. `siltstone/_options.py` describes them.
//!
//! Invariant: an option that is not named keeps its stored value, or its default at an open.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};
use siltstone::hooks::CompactionFilterFactory;
use siltstone::operators::{MergeOperator, ready_made};
use siltstone::{
    Builder, CompactionStyle, Compression, LargeValueOptions, MetaHiveOptions, Options,
    PartitionOptions, PrefixExtractor, TimeUnit, TimeWidth, TtlFilter, TtlRule,
};

use crate::bytes::Bytes;
use crate::error::{Failure, Result, invalid_argument};
use crate::hooks::{self, SuppliedFilters};
use crate::listener::EventListener;
use crate::resources::Resources;

type Named<'a, 'py> = &'a Bound<'py, PyDict>;

pub fn unknown(of: &str, name: &str) -> Failure {
    PyTypeError::new_err(format!("{of} has no option {name:?}")).into()
}

/// `builder` with the options of an open.
pub fn open_options(mut builder: Builder, named: Named<'_, '_>) -> Result<Builder> {
    let mut options = Options::new();
    for (name, value) in named {
        let name: String = name.extract()?;
        match name.as_str() {
            "create_if_missing" => builder = builder.create_if_missing(value.extract()?),
            "error_if_exists" => builder = builder.error_if_exists(value.extract()?),
            "read_only" => builder = builder.read_only(value.extract()?),
            "beside_writer" => builder = builder.beside_writer(value.extract()?),
            "take_over" => builder = builder.take_over(value.extract()?),
            "merge_operators" => {
                for operator in merge_operators(&value)? {
                    builder = builder.merge_operator(operator);
                }
            }
            "compaction_filters" => {
                let filters = SuppliedFilters(compaction_filters(&value)?);
                builder = builder.hooks(Arc::new(filters));
            }
            "listeners" => {
                for listener in value.try_iter()? {
                    let listener = listener?.cast_into::<EventListener>().map_err(PyErr::from)?;
                    builder = builder.listener(listener.get().inner.clone());
                }
            }
            "resources" => builder = builder.resources(&resources(&value)?),
            _ => options = engine_option(options, &name, &value)?,
        }
    }
    Ok(builder.options(options))
}

/// `options` with the option `name`, which databases and secondaries have.
pub fn engine_option(options: Options, name: &str, value: &Bound<'_, PyAny>) -> Result<Options> {
    Ok(match name {
        "cache_bytes" => options.cache_bytes(value.extract()?),
        "background_bytes_per_second" => options.background_bytes_per_second(value.extract()?),
        "write_buffer_bytes" => options.write_buffer_bytes(value.extract()?),
        "wal_segment_bytes" => options.wal_segment_bytes(value.extract()?),
        "wal_mapped" => options.wal_mapped(value.extract()?),
        "tables_mapped" => options.tables_mapped(value.extract()?),
        "wal_bytes_max" => options.wal_bytes_max(value.extract()?),
        "sync_interval_ms" => options.sync_interval_ms(value.extract()?),
        "value_bytes_max" => options.value_bytes_max(value.extract()?),
        "batch_bytes_max" => options.batch_bytes_max(value.extract()?),
        "compaction_threads" => options.compaction_threads(value.extract()?),
        "manifest_bytes_max" => options.manifest_bytes_max(value.extract()?),
        "open_files_max" => options.open_files_max(value.extract()?),
        "leased_bytes_max" => options.leased_bytes_max(value.extract()?),
        "log_retained_bytes" => options.log_retained_bytes(value.extract()?),
        "log_retained_seconds" => options.log_retained_seconds(value.extract()?),
        _ => return Err(unknown("a database", name)),
    })
}

/// `options` of a partition with those that are named.
pub fn partition_options(
    mut options: PartitionOptions,
    named: Named<'_, '_>,
) -> Result<PartitionOptions> {
    for (name, value) in named {
        let name: String = name.extract()?;
        options = match name.as_str() {
            "logged" => options.logged(value.extract()?),
            "compression" => options.compression(compression(&value)?),
            "block_bytes" => options.block_bytes(value.extract()?),
            "bloom_bits_per_key" => options.bloom_bits_per_key(value.extract()?),
            "table_bytes" => options.table_bytes(value.extract()?),
            "level0_tables" => options.level0_tables(value.extract()?),
            "level_base_bytes" => options.level_base_bytes(value.extract()?),
            "level_multiplier" => options.level_multiplier(value.extract()?),
            "prefix_extractor" => options.prefix_extractor(prefix_extractor(&value)?),
            "fifo" => options.compaction_style(fifo(&value)?),
            "metahive" if value.extract()? => options.metahive(MetaHiveOptions::default()),
            "metahive" => options.without_metahive(),
            "large_values" => options.large_values(large_values(&value)?),
            "merge_operator" => options.merge_operator(merge_operator(&value)?),
            "compaction_filters" => {
                let filters = compaction_filters(&value)?;
                filters.into_iter().fold(options, PartitionOptions::filter)
            }
            "ttl" => match value.cast::<PyBool>() {
                Ok(is_on) if !is_on.is_true() => options.without_filter(TtlFilter::NAME),
                _ => options.ttl(&ttl_rule(value.cast::<PyDict>().map_err(PyErr::from)?)?),
            },
            _ => return Err(unknown("a partition", &name)),
        };
    }
    Ok(options)
}

/// The stored options of a partition, by the names that set them.
pub fn stored_options<'py>(
    py: Python<'py>,
    options: &PartitionOptions,
) -> Result<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("logged", options.get_logged())?;
    let compression = match options.get_compression() {
        Compression::None => "none",
        Compression::Zstd => "zstd",
        _ => "lz4",
    };
    dict.set_item("compression", compression)?;
    dict.set_item("block_bytes", options.get_block_bytes())?;
    dict.set_item("bloom_bits_per_key", options.get_bloom_bits_per_key())?;
    dict.set_item("table_bytes", options.get_table_bytes())?;
    dict.set_item("level0_tables", options.get_level0_tables())?;
    dict.set_item("level_base_bytes", options.get_level_base_bytes())?;
    dict.set_item("level_multiplier", options.get_level_multiplier())?;
    match options.get_prefix_extractor() {
        Some(PrefixExtractor::Fixed(len)) => dict.set_item("prefix_extractor", len)?,
        Some(PrefixExtractor::Through(byte)) => {
            dict.set_item("prefix_extractor", pyo3::types::PyBytes::new(py, &[byte]))?;
        }
        _ => dict.set_item("prefix_extractor", false)?,
    }
    match options.get_compaction_style() {
        CompactionStyle::Fifo { bytes_max, seconds_max } => {
            let limits = PyDict::new(py);
            limits.set_item("bytes_max", bytes_max)?;
            if seconds_max != u64::MAX {
                limits.set_item("seconds_max", seconds_max)?;
            }
            dict.set_item("fifo", limits)?;
        }
        _ => dict.set_item("fifo", false)?,
    }
    Ok(dict)
}

fn compression(value: &Bound<'_, PyAny>) -> Result<Compression> {
    match value.extract::<String>()?.as_str() {
        "lz4" => Ok(Compression::Lz4),
        "none" => Ok(Compression::None),
        "zstd" => Ok(Compression::Zstd),
        name => Err(invalid_argument(format!(
            "compression is {name:?}, not \"lz4\", \"zstd\" or \"none\""
        ))),
    }
}

fn prefix_extractor(value: &Bound<'_, PyAny>) -> Result<Option<PrefixExtractor>> {
    // Before the number, because a truth value of Python is one.
    if let Ok(truth) = value.cast::<PyBool>() {
        return match truth.is_true() {
            false => Ok(None),
            true => Err(invalid_argument("prefix_extractor is a length, one byte, or False")),
        };
    }
    if let Ok(len) = value.extract::<u16>() {
        return Ok(Some(PrefixExtractor::Fixed(len)));
    }
    match value.extract::<Bytes<'_>>()?.as_ref() {
        [byte] => Ok(Some(PrefixExtractor::Through(*byte))),
        _ => Err(invalid_argument("prefix_extractor is a length, one byte, or False")),
    }
}

fn fifo(value: &Bound<'_, PyAny>) -> Result<CompactionStyle> {
    if let Ok(truth) = value.cast::<PyBool>() {
        return match truth.is_true() {
            false => Ok(CompactionStyle::Leveled),
            true => Err(invalid_argument("fifo is a dict with limits, or False")),
        };
    }
    let mut bytes_max = u64::MAX;
    let mut seconds_max = u64::MAX;
    for (name, value) in value.cast::<PyDict>().map_err(PyErr::from)? {
        let name: String = name.extract()?;
        match name.as_str() {
            "bytes_max" => bytes_max = value.extract()?,
            "seconds_max" => seconds_max = value.extract()?,
            _ => return Err(unknown("fifo", &name)),
        }
    }
    Ok(CompactionStyle::Fifo { bytes_max, seconds_max })
}

/// The code of merge operators, of a sequence of them.
pub fn merge_operators(value: &Bound<'_, PyAny>) -> Result<Vec<Arc<dyn MergeOperator>>> {
    let mut operators = Vec::new();
    for operator in value.try_iter()? {
        let operator = operator?.cast_into::<hooks::MergeOperator>().map_err(PyErr::from)?;
        operators.push(operator.get().inner.clone());
    }
    Ok(operators)
}

/// The code of compaction filters, of a sequence of them.
fn compaction_filters(value: &Bound<'_, PyAny>) -> Result<Vec<Arc<dyn CompactionFilterFactory>>> {
    let mut filters = Vec::new();
    for filter in value.try_iter()? {
        let filter = filter?.cast_into::<hooks::CompactionFilter>().map_err(PyErr::from)?;
        filters.push(filter.get().inner.clone());
    }
    Ok(filters)
}

/// The resources that a database shares.
pub fn resources(value: &Bound<'_, PyAny>) -> Result<siltstone::Resources> {
    Ok(value.cast::<Resources>().map_err(PyErr::from)?.get().inner.clone())
}

fn merge_operator(value: &Bound<'_, PyAny>) -> Result<Arc<dyn MergeOperator>> {
    if let Ok(operator) = value.cast::<hooks::MergeOperator>() {
        return Ok(operator.get().inner.clone());
    }
    let found = if value.is_instance_of::<PyString>() {
        ready_made(&value.extract::<String>()?, &[])
    } else {
        let (name, params): (String, Bytes<'_>) = value.extract()?;
        ready_made(&name, params.as_ref())
    };
    found.ok_or_else(|| invalid_argument(format!("there is no merge operator {value}")))
}

fn large_values(value: &Bound<'_, PyAny>) -> Result<LargeValueOptions> {
    if let Ok(is_on) = value.cast::<PyBool>() {
        return Ok(match is_on.is_true() {
            true => LargeValueOptions::new(),
            false => LargeValueOptions::off(),
        });
    }
    let mut options = LargeValueOptions::new();
    for (name, value) in value.cast::<PyDict>().map_err(PyErr::from)? {
        let name: String = name.extract()?;
        options = match name.as_str() {
            "threshold_bytes" => options.threshold_bytes(value.extract()?),
            "chunk_bytes" => options.chunk_bytes(value.extract()?),
            "sub_block_bytes" => options.sub_block_bytes(value.extract()?),
            "garbage_permille" => options.garbage_permille(value.extract()?),
            "move_bytes_per_second" => options.move_bytes_per_second(value.extract()?),
            "compression" => options.compression(compression(&value)?),
            _ => return Err(unknown("large_values", &name)),
        };
    }
    Ok(options)
}

fn ttl_rule(named: Named<'_, '_>) -> Result<TtlRule> {
    let offset = match named.get_item("offset")? {
        Some(offset) => offset.extract()?,
        None => 0,
    };
    let place = named.get_item("place")?;
    let place = place.ok_or_else(|| invalid_argument("ttl needs a place"))?.extract::<String>()?;
    let mut rule = match place.as_str() {
        "key" => TtlRule::in_key(offset),
        "key_from_end" => TtlRule::in_key_from_end(offset),
        "value" => TtlRule::in_value(offset),
        "value_from_end" => TtlRule::in_value_from_end(offset),
        _ => return Err(invalid_argument(format!("the place of ttl is {place:?}"))),
    };
    for (name, value) in named {
        let name: String = name.extract()?;
        rule = match name.as_str() {
            "place" | "offset" => rule,
            "width" => match value.extract()? {
                4 => rule.width(TimeWidth::U32),
                8 => rule.width(TimeWidth::U64),
                width => return Err(invalid_argument(format!("width is {width}, not 4 or 8"))),
            },
            "little_endian" if value.extract()? => rule.little_endian(),
            "little_endian" => rule,
            "unit" => rule.unit(match value.extract::<String>()?.as_str() {
                "seconds" => TimeUnit::Seconds,
                "millis" => TimeUnit::Millis,
                "micros" => TimeUnit::Micros,
                "nanos" => TimeUnit::Nanos,
                unit => return Err(invalid_argument(format!("the unit of ttl is {unit:?}"))),
            }),
            "time_to_live" => rule.time_to_live(seconds(value.extract()?)?),
            "stays_at_most" => rule.stays_at_most(seconds(value.extract()?)?),
            "reads_see_expired" => rule.reads_see_expired(value.extract()?),
            _ => return Err(unknown("ttl", &name)),
        };
    }
    Ok(rule)
}

/// A time of Python, in seconds.
pub fn seconds(time: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(time)
        .map_err(|error| invalid_argument(format!("{time} seconds: {error}")))
}
