//! `siltstone bench scid-ml`: its table, and the seed that repeats it.

#![cfg(feature = "scid-ml")]

mod runner;

use std::path::Path;

use serde_json::Value;

use self::runner::ended;

/// The shares of right predictions, by split and model.
fn right(seed: &str) -> Vec<(String, String, f64)> {
    let args = ["bench", "scid-ml", "--records", "3000", "--ops", "6000", "--trees", "3", "--json"];
    let args: Vec<&str> = args.into_iter().chain(["--updates", "10", "--seed", seed]).collect();
    let output = ended(Path::new("."), &args, 0);
    let text = String::from_utf8(output.stdout).expect("JSON is text");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("a line is an object"));
    let lines: Vec<Value> = lines.collect();
    assert_eq!(lines[0]["seed"].to_string(), seed);
    let mut all = Vec::new();
    for split in &lines[1..] {
        for model in split["models"].as_array().expect("a split has models") {
            let name = model["model"].as_str().expect("a model has a name");
            let right = model["right"].as_f64().expect("a share is a number");
            all.push((split["split"].to_string(), name.to_owned(), right));
        }
    }
    all
}

#[test]
fn a_seed_repeats_the_experiment() {
    let first = right("3");
    assert_eq!(first.len(), 4 * 10);
    assert!(first.iter().all(|(.., right)| (0.0..=1.0).contains(right)));
    assert_eq!(right("3"), first);
    assert_ne!(right("4"), first);
}

#[test]
fn the_table_names_splits_and_models() {
    let args = ["bench", "scid-ml", "--records", "1000", "--ops", "2000", "--trees", "0"];
    let output = ended(Path::new("."), &args, 0);
    let text = String::from_utf8(output.stdout).expect("a table is text");
    assert!(
        text.starts_with("2000 operations on 1000 keys, zipfian, 0 % updates, 0 trees, seed 1\n")
    );
    for split in ["random", "by key", "by time", "drift"] {
        assert!(text.contains(&format!("| split {split} | right |")), "{text}");
    }
    assert_eq!(text.matches("| server, corrected |").count(), 4, "{text}");
    assert!(!text.contains("forest"), "{text}");
    ended(Path::new("."), &["bench", "scid-ml", "--records", "9"], 2);
    ended(Path::new("."), &["bench", "scid-ml", "--ops", "99"], 2);
    ended(Path::new("."), &["bench", "scid-ml", "--updates", "91"], 2);
}
