//! Compares the limits and defaults on the pages with those of the code.

use lsm_core::limits;
use lsm_core::options::{Options, PartitionOptions};

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn the_readme_states_the_limits_that_hold() {
    let readme = include_str!("../README.md");
    let options = Options::default();
    let stated = [
        ("`USER_KEY_BYTES_MAX`", limits::USER_KEY_BYTES_MAX as u64),
        ("`Options::value_bytes_max`", options.value_bytes_max),
        ("`FORMAT_VALUE_BYTES_MAX`", limits::FORMAT_VALUE_BYTES_MAX),
        ("`Options::batch_bytes_max`", options.batch_bytes_max),
        ("`FORMAT_BATCH_BYTES_MAX`", limits::FORMAT_BATCH_BYTES_MAX),
        ("`PARTITIONS_MAX`", limits::PARTITIONS_MAX as u64),
        ("`PARTITION_NAME_BYTES_MAX`", limits::PARTITION_NAME_BYTES_MAX as u64),
    ];
    for (name, limit) in stated {
        let row = readme.lines().find(|line| line.contains(name));
        let row = row.unwrap_or_else(|| panic!("README.md does not name {name}"));
        let limit = with_commas(limit);
        assert!(row.contains(&format!(" {limit} ")), "{name} is {limit}, README.md says {row}");
    }
}

/// A number of bytes as the pages write it.
fn with_unit(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

#[test]
fn the_page_on_tuning_states_the_defaults() {
    let page = include_str!("../docs/tuning.md");
    let options = Options::default();
    let partition = PartitionOptions::default();
    let stated = [
        ("wal_segment_bytes", with_unit(options.wal_segment_bytes)),
        ("wal_bytes_max", with_unit(options.wal_bytes_max)),
        ("wal_mapped", format!("`{}`", options.wal_mapped)),
        ("tables_mapped", format!("`{}`", options.tables_mapped)),
        ("sync_interval_ms", options.sync_interval_ms.to_string()),
        ("manifest_bytes_max", with_unit(options.manifest_bytes_max)),
        ("leased_bytes_max", with_unit(options.leased_bytes_max)),
        ("value_bytes_max", with_unit(options.value_bytes_max)),
        ("batch_bytes_max", with_unit(options.batch_bytes_max)),
        ("logged", format!("`{}`", partition.logged)),
        ("block_bytes", with_unit(partition.block_bytes.into())),
        ("bloom_bits_per_key", partition.bloom_bits_per_key.to_string()),
        ("table_bytes", with_unit(partition.table_bytes)),
        ("level0_tables", partition.level0_tables.to_string()),
        ("level_base_bytes", with_unit(partition.level_base_bytes)),
        ("level_multiplier", partition.level_multiplier.to_string()),
    ];
    for (name, default) in stated {
        let begin = format!("| `{name}`");
        let row = page.lines().find(|line| line.starts_with(&begin));
        let row = row.unwrap_or_else(|| panic!("docs/tuning.md has no row of {name}"));
        assert!(row.contains(&format!("| {default} |")), "{name} is {default}: {row}");
    }
}
