//! The limits that README.md states are the ones that the code enforces.

use lsm_core::limits;
use lsm_core::options::Options;

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
