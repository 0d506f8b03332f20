//! Every part of the suite on the engines that have it.

use super::*;
use clap::ValueEnum;

/// Every part, with few records, on the engines that have it.
#[test]
fn every_part_has_figures() {
    let folder = std::env::temp_dir().join(format!("siltstone-features-{}", std::process::id()));
    let engines = ["siltstone", "rocksdb", "fjall"];
    for (engine, part) in engines
        .iter()
        .flat_map(|engine| Part::value_variants().iter().map(move |it| (*engine, *it)))
    {
        let has_it = match engine {
            "siltstone" => true,
            "rocksdb" => cfg!(feature = "rocksdb"),
            _ => matches!(part, Part::Fifo),
        };
        if !has_it {
            continue;
        }
        println!("{engine}: {part:?}");
        let out = folder.with_extension("json");
        let common = RunArgs {
            engine: engine.to_owned(),
            seed: 1,
            dir: folder.clone(),
            round: 1,
            memory_mib: None,
            out: out.clone(),
        };
        run(&Args { common, part, shrink: 500 }).unwrap();
        let result: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
        let rows = result["workloads"].as_array().unwrap();
        assert!(!rows.is_empty());
        for row in rows {
            assert!(row["figure"].as_f64().is_some_and(|figure| figure > 0.0), "{row}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::remove_file(&out).unwrap();
    }
}
