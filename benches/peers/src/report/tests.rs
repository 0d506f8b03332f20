//! A report of made-up runs.

use super::data::{Run, median};
use super::*;

fn made_up(engine: &str, round: u64, rate: f64, found: u64) -> Run {
    let value = json!({
        "engine": engine,
        "version": "1.2",
        "sequence": "fillseq,readrandom",
        "round": round,
        "config": { "records": 20_000, "ops": null, "key_size": 16, "value_size": 100 },
        "workloads": [
            { "workload": "fillseq", "ops": 20_000, "ops_per_second": rate, "p99_us": 5.0 },
            { "workload": "settle", "seconds": 1.0 },
            { "workload": "readrandom", "ops": 9, "found": found, "ops_per_second": rate },
        ],
        "total": { "seconds": 3.0, "cores_of_others": 0.5, "peak_memory_bytes": 1 << 20 },
    });
    Run::from_json(&value).unwrap()
}

fn set(runs: Vec<Run>) -> DataSet {
    DataSet { command: "run.sh".to_owned(), runs }
}

#[test]
fn medians_are_of_all_rounds_and_the_table_names_every_workload() {
    let rates = [10.0, 30.0, 20.0];
    let ours = (1..).zip(rates).map(|(round, rate)| made_up("siltstone", round, rate, 9));
    let theirs = (1..).zip(rates).map(|(round, rate)| made_up("fjall", round, rate / 2.0, 9));
    let set = set(ours.chain(theirs).collect());
    let versions = versions(std::slice::from_ref(&set), "abc");
    assert_eq!(versions, json!({ "siltstone": "1.2 (abc)", "fjall": "1.2" }));
    let json = set.json();
    assert_eq!(json["workloads"][1]["engines"]["fjall"]["ops_per_second"]["median"], 10.0);
    let text = markdown(&[set], "a machine", &versions).unwrap();
    for line in [
        "| fillseq | **20.0** | 10.0 | 2.00 | 100 % |",
        "| readrandom | **20.0** | 10.0 | 2.00 | 100 % |",
        "Machine: a machine.",
        "### core: 20,000 records of 16 + 100 bytes",
        "| peak memory, MiB | **1.00** | **1.00** | 1.00 | |",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(text.contains("not quiet"));
}

/// Copies a report to a new folder and returns whether it is there.
fn is_published(name: &str, sets: &[DataSet]) -> (Result<(), Fault>, bool) {
    let folder = std::env::temp_dir().join(format!("siltstone-{name}-{}", std::process::id()));
    let docs = folder.join("docs");
    std::fs::create_dir_all(&docs).unwrap();
    let markdown = folder.join("benchmarks.md");
    let json = folder.join("benchmarks.json");
    std::fs::write(&markdown, "tables").unwrap();
    std::fs::write(&json, "figures").unwrap();
    let result = publish(sets, [&markdown, &json], &docs);
    let is_there = docs.join("benchmarks.md").exists() || docs.join("benchmarks.json").exists();
    std::fs::remove_dir_all(&folder).unwrap();
    (result, is_there)
}

/// A quiet run, and one during which others used `cores`.
fn set_with_others(cores: Value) -> DataSet {
    let mut quiet = made_up("siltstone", 1, 1.0, 9);
    quiet.total["cores_of_others"] = json!(0.0);
    let mut run = made_up("siltstone", 2, 1.0, 9);
    run.total["cores_of_others"] = cores;
    set(vec![quiet, run])
}

#[test]
fn only_a_valid_report_is_published() {
    let quiet = set_with_others(json!(QUIET_CORES_MAX));
    let loud = set_with_others(json!(QUIET_CORES_MAX + 0.01));
    let unknown = set_with_others(Value::Null);

    let (result, is_there) = is_published("quiet", std::slice::from_ref(&quiet));
    result.unwrap();
    assert!(is_there);
    for (name, sets) in [("loud", vec![quiet, loud]), ("unknown", vec![unknown]), ("none", vec![])]
    {
        let (result, is_there) = is_published(name, &sets);
        assert!(result.unwrap_err().to_string().starts_with("not published"), "{name}");
        assert!(!is_there, "{name}");
    }
}

#[test]
fn a_report_of_large_values_has_one_table_of_rates() {
    let value = json!({
        "engine": "siltstone",
        "version": "1.2",
        "sequence": "large",
        "round": 1,
        "config": {
            "suite": "large", "repetitions": 2000, "bytes_per_size": 256 << 20, "sizes": [1024, 4096],
        },
        "workloads": [{ "workload": "put, 1 MB", "ops": 5, "mb_per_second": 1234.5 }],
        "total": { "seconds": 3.0, "cores_of_others": 0.0, "empty_bytes": 3 << 20 },
    });
    let set = set(vec![Run::from_json(&value).unwrap()]);
    let text = markdown(&[set], "", &json!({})).unwrap();
    for line in [
        "### large: values of 2 sizes",
        "Up to 2,000 values and 256 MiB of each size, but three values at least. Rounds: 1.",
        "| put, 1 MB | **1,234** | - | 0 % |",
        "| on disk with everything deleted, MiB | **3.00** | - | |",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    // The method in front of the tables names it.
    let (_, tables) = text.split_once("## Results").unwrap();
    assert!(!tables.contains("p99"), "{tables}");
}

fn feature(engine: &str, figure: f64) -> Run {
    let value = json!({
        "engine": engine,
        "version": "1.2",
        "sequence": "Ranges",
        "config": { "suite": "features" },
        "workloads": [
            { "workload": "time, us", "figure": figure, "good": "less" },
            { "workload": "rate", "figure": figure, "good": "more" },
        ],
        "total": { "cores_of_others": 0.0 },
    });
    Run::from_json(&value).unwrap()
}

#[test]
fn a_feature_says_which_end_of_its_figure_is_good() {
    let set = set(vec![feature("siltstone", 20.0), feature("rocksdb", 10.0)]);
    let text = markdown(&[set], "", &json!({})).unwrap();
    for line in [
        "### features: calls beyond puts, gets and scans",
        "| time, us | 20.0 | **10.0** | 2.00 | 0 % |",
        "| rate | **20.0** | 10.0 | 2.00 | 0 % |",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_report_names_the_settings_that_are_not_those_of_all() {
    let mut run = made_up("siltstone", 1, 1.0, 9);
    let plain = markdown(&[set(vec![run.clone()])], "", &json!({})).unwrap();
    run.config["cache_mib"] = json!(1536);
    run.config["write_rate"] = json!(70_000);
    let text = markdown(&[set(vec![run])], "", &json!({})).unwrap();
    for stated in [
        "### core: 20,000 records of 16 + 100 bytes, block cache of 1,536 MiB",
        "Block cache: 1,536 MiB",
        "Writes during reads: 70,000 per second",
    ] {
        assert!(text.contains(stated) && !plain.contains(stated), "{stated}");
    }
}

#[test]
fn a_heading_begins_with_the_suite_and_names_a_workload_that_is_alone() {
    let mut run = made_up("siltstone", 1, 1.0, 9);
    run.sequence = "fillseq".to_owned();
    run.rows.truncate(1);
    let set = DataSet { command: "run.sh --rounds 1 --suite many".to_owned(), runs: vec![run] };
    let text = markdown(&[set], "", &json!({})).unwrap();
    let heading = "\n### many: fillseq of 20,000 records of 16 + 100 bytes\n";
    assert!(text.contains(heading), "{text}");
}

#[test]
fn a_workload_that_occurs_twice_says_where() {
    let mut run = made_up("siltstone", 1, 1.0, 9);
    run.rows.push(json!({ "workload": "readrandom" }));
    let mut other = run.clone();
    other.sequence = "load".to_owned();
    other.rows[0]["workload"] = json!("load");
    let names: Vec<String> =
        set(vec![run, other]).places().into_iter().map(|place| place.name).collect();
    let twice = ["readrandom (1.2)", "readrandom (1.3)", "readrandom (2.2)", "readrandom (2.3)"];
    assert_eq!(names, ["fillseq", twice[0], twice[1], "load", twice[2], twice[3]]);
}

#[test]
fn engines_that_found_other_things_are_not_compared() {
    let runs = vec![made_up("siltstone", 1, 1.0, 9), made_up("rocksdb", 1, 1.0, 8)];
    let fault = markdown(&[set(runs)], "", &json!({})).unwrap_err().to_string();
    assert_eq!(fault, "siltstone and rocksdb did other work in fillseq,readrandom");
}

#[test]
fn without_runs_the_report_has_no_figure() {
    let text = markdown(&[], "a machine", &json!({})).unwrap();
    assert!(text.ends_with("## Results\n\nNot measured yet.\n"));
}

#[test]
fn a_median_is_the_middle() {
    assert_eq!(median(vec![]), None);
    assert_eq!(median(vec![3.0]), Some(3.0));
    assert_eq!(median(vec![5.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
}
