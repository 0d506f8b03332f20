//! `siltstone bench scid --tcp`: the experiment of the thesis with servers.

#![cfg(feature = "server")]

mod runner;

use std::path::Path;

use serde_json::Value;

use self::runner::ended;

const SHORT: [&str; 11] = [
    "bench",
    "scid",
    "--records",
    "300",
    "--ops",
    "60",
    "--step",
    "100",
    "--rounds",
    "1",
    "--json",
];

fn name(of: &Value) -> String {
    of.as_str().expect("a name is text").to_owned()
}

/// The ways of each workload, with their shares of strong keys.
fn ways(more: &[&str]) -> Vec<(String, String, usize)> {
    let args: Vec<&str> = SHORT.iter().chain(more).copied().collect();
    let output = ended(Path::new("."), &args, 0);
    let text = String::from_utf8(output.stdout).expect("JSON is text");
    let mut all = Vec::new();
    for line in text.lines() {
        let load: Value = serde_json::from_str(line).expect("a line is an object");
        for way in load["series"].as_array().expect("a workload has ways") {
            let points = way["points"].as_array().expect("a way has shares");
            for point in points {
                let rate = point["ops_per_second"]["median"].as_f64().expect("a rate is a number");
                assert!(rate > 0.0, "{load}");
            }
            all.push((name(&load["workload"]), name(&way["way"]), points.len()));
        }
    }
    all
}

/// A read that does not see the write before it, where it must, ends the command.
#[test]
fn servers_of_a_folder_and_of_a_bucket_run_each_way_of_each_workload() {
    let place = tempfile::tempdir().unwrap();
    let url = format!("file://{}/bucket", place.path().display());
    let of_folder = ways(&["--tcp"]);
    assert_eq!(of_folder.len(), 2 + 3 + 3);
    assert!(of_folder.iter().all(|(_, _, shares)| *shares == 2), "{of_folder:?}");
    assert_eq!(ways(&["--tcp", "--remote", &url]), of_folder);
    ended(Path::new("."), &["bench", "scid", "--remote", &url], 2);
}
