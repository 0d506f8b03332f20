//! The commands that look inside: `verify`, `scrub`, `explain`, `levels`, `dump`, `stats --watch`,
//! and `load` of rows.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]
#![expect(clippy::disallowed_methods, reason = "sources are files outside every database")]

#[cfg(target_os = "linux")]
mod interrupt;
mod runner;

use std::path::{Path, PathBuf};

use runner::{ended, siltstone};
use serde_json::Value;
use siltstone::{Compression, Db, MetaHiveOptions, PartitionOptions};

/// Runs the command, compares its exit code, and returns what it printed.
#[track_caller]
fn run(folder: &Path, args: &[&str], code: i32) -> String {
    let output = ended(folder, args, code);
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(folder: &Path, args: &[&str], code: i32) -> Value {
    serde_json::from_str(&run(folder, args, code)).unwrap()
}

/// A database with tables on two levels of two partitions.
fn filled(at: &Path) {
    let rows: String = (0..2000).map(|n| format!("key{n:05},{}\n", n * 7 % 2000)).collect();
    std::fs::write(at.join("rows.csv"), rows).unwrap();
    for partition in ["default", "users"] {
        let load = ["load", "db", "rows.csv", "--format", "csv", "--partition", partition];
        assert!(run(at, &load, 0).starts_with("loaded 2000 entries"));
        run(at, &["compact", "db", "--all"], 0);
    }
    run(at, &["put", "db", "new", "1"], 0);
    run(at, &["delete", "db", "key00003"], 0);
    run(at, &["stats", "db"], 0);
}

fn files(at: &Path, ending: &str) -> Vec<PathBuf> {
    let names = std::fs::read_dir(at.join("db")).unwrap().map(|name| name.unwrap().path());
    let mut paths: Vec<_> =
        names.filter(|path| path.extension().is_some_and(|e| e == ending)).collect();
    paths.sort();
    paths
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn verify_finds_nothing_in_a_sound_database_and_names_what_is_harmed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    filled(at);
    let text = run(at, &["verify", "db"], 0);
    assert!(text.starts_with("no damage; "), "{text}");
    let report = json(at, &["verify", "db", "--json", "--rate", "100MiB"], 0);
    assert_eq!(report["damage"].as_array().map(Vec::len), Some(0));
    assert!(report["entries"].as_u64() >= Some(4000), "{report}");

    let largest = files(at, "sst").into_iter().max_by_key(|path| path.metadata().unwrap().len());
    let largest = largest.unwrap();
    flip(&largest, 100);
    let report = json(at, &["verify", "db", "--json"], 1);
    let damage = &report["damage"][0];
    assert_eq!(report["damage"].as_array().map(Vec::len), Some(1), "{report}");
    let name = largest.file_name().unwrap().to_str().unwrap();
    assert!(damage["file"].as_str().unwrap().ends_with(name), "{damage}");
    assert_eq!((&damage["offset"], &damage["level"]), (&Value::from(0), &Value::from(6)));
    assert_eq!(damage["first_key"], "key00000");
    let text = run(at, &["verify", "db"], 1);
    assert!(text.starts_with("damage in 1 place; "), "{text}");
    assert!(text.contains(name) && text.contains("keys \"key00000\" to"), "{text}");

    // Damage that prevents the open is reported like any other.
    let manifest = files(at, "manifest").pop().unwrap();
    flip(&manifest, 90);
    let report = json(at, &["verify", "db", "--json"], 1);
    assert_eq!(report["opened"], false);
    assert!(report["damage"][0]["file"].as_str().unwrap().ends_with("manifest"), "{report}");
    assert_eq!(run(at, &["verify", "nothing"], 1), "");
}

#[test]
fn a_verification_in_parts_comes_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    filled(at);
    let part = ["verify", "db", "--json", "--resume", "mark", "--at-most", "1KiB"];
    let mut runs = 0;
    let mut files = 0;
    loop {
        let report = json(at, &part, 0);
        runs += 1;
        files += report["files"].as_u64().unwrap();
        assert_eq!(report["mark"].is_null(), !at.join("mark").exists());
        if report["mark"].is_null() {
            break;
        }
        assert!(runs < 100, "it goes on from the mark");
    }
    assert!(runs > 2 && files >= 4, "{runs} runs, {files} files");
    std::fs::write(at.join("mark"), "nonsense").unwrap();
    run(at, &part, 2);
    run(at, &["verify", "db", "--rate", "fast"], 2);
}

/// Ctrl-C ends the run after the file that it reads, and the next run continues after that.
#[cfg(target_os = "linux")]
#[test]
fn a_verification_that_is_interrupted_leaves_its_mark() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    filled(at);
    // So slow that it cannot end before the signal.
    let args = ["verify", "db", "--resume", "mark", "--rate", "16KiB"];
    assert_eq!(interrupt::interrupted(at, &args, b"").status.code(), Some(0));
    assert!(at.join("mark").exists());
    let rest = json(at, &["verify", "db", "--json", "--resume", "mark"], 0);
    let all = json(at, &["verify", "db", "--json"], 0);
    assert!(rest["files"].as_u64().unwrap() < all["files"].as_u64().unwrap(), "{rest}");
    assert!(rest["mark"].is_null() && !at.join("mark").exists());
}

/// A database with a partition whose entries have metadata, in several tables, and one without.
/// It is a checkpoint: this process never locks it, so no child that is about to start holds it.
fn sealed(at: &Path) {
    let db = Db::open(at.join("made")).unwrap();
    let options = PartitionOptions::new().compression(Compression::None).level0_tables(100);
    let hive = options.clone().metahive(MetaHiveOptions::default());
    let book = db.partition_with("book", hive).unwrap();
    let plain = db.partition_with("default", options).unwrap();
    for n in 0..4 {
        for m in 0..50 {
            book.put(format!("account{n}{m:02}"), format!("balance {n}{m:02}.")).unwrap();
        }
        plain.put("key", "value").unwrap();
        db.flush().unwrap();
    }
    db.checkpoint(at.join("db")).unwrap();
}

/// Flips a bit after `text`, in each table that has it.
fn flip_after(at: &Path, text: &str) {
    let mut hits = 0;
    for path in files(at, "sst") {
        let bytes = std::fs::read(&path).unwrap();
        let found = bytes.windows(text.len()).position(|window| window == text.as_bytes());
        if let Some(found) = found {
            flip(&path, found + text.len());
            hits += 1;
        }
    }
    assert_eq!(hits, 1);
}

#[test]
fn scrub_prints_sealed_tables_and_names_damaged_entries() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    sealed(at);
    let text = run(at, &["scrub", "db"], 0);
    let book = "partition \"book\": no damage; 4 tables, ";
    assert!(text.contains(book) && text.contains("200 entries: 200 sealed\n"), "{text}");
    assert!(text.contains("partition \"default\": no MetaHive, no damaged block; "), "{text}");
    assert!(text.contains("4 entries: 0 sealed, 4 unsealed"), "{text}");
    let only = ["scrub", "db", "--partition", "book", "--json", "--rate", "100MiB"];
    let report = json(at, &only, 0);
    assert_eq!(report["counts"]["sealed"], 200, "{report}");
    assert_eq!(report["tables"].as_array().map(Vec::len), Some(4));
    assert_eq!(report["tables"][0]["sealing"], "sealed");

    flip_after(at, "balance 249");
    let report = json(at, &only, 1);
    let faults: Vec<_> = report["tables"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|t| t["faults"].as_array().unwrap())
        .collect();
    assert_eq!(faults.len(), 1, "{report}");
    assert_eq!(
        (&faults[0]["key"], &faults[0]["verdict"]),
        (&"account249".into(), &"DataCorrupt".into())
    );
    assert_eq!(report["counts"]["sealed"], 199);
    let text = run(at, &["scrub", "db"], 1);
    assert!(text.contains("1 fault, damage in 1 place; 4 tables"), "{text}");
    assert!(text.contains("the entry disagrees with its metadata: key \"account249\""), "{text}");

    assert_eq!(run(at, &["scrub", "db", "--partition", "nothing"], 1), "");
    let manifest = files(at, "manifest").pop().unwrap();
    flip(&manifest, 90);
    assert_eq!(json(at, &["scrub", "db", "--json"], 1)["opened"], false);
    assert_eq!(run(at, &["scrub", "nothing"], 1), "");
}

#[test]
fn a_scrub_in_parts_comes_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    sealed(at);
    let part = ["scrub", "db", "--json", "--resume", "mark", "--at-most", "1KiB"];
    let mut runs = 0;
    let mut tables = 0;
    let mut entries = 0;
    loop {
        let printed = run(at, &part, 0);
        let mut mark = Value::Null;
        for line in printed.lines() {
            let report: Value = serde_json::from_str(line).unwrap();
            tables += report["tables"].as_array().unwrap().len();
            entries += report["counts"]["entries"].as_u64().unwrap();
            mark = report["mark"].clone();
        }
        runs += 1;
        assert_eq!(mark.is_null(), !at.join("mark").exists());
        if mark.is_null() {
            break;
        }
        assert!(runs < 100, "it goes on from the mark");
    }
    let whole = run(at, &["scrub", "db", "--json"], 0);
    let whole: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sum = |of: fn(&Value) -> u64| whole.iter().map(of).sum::<u64>();
    assert_eq!(tables as u64, sum(|report| report["tables"].as_array().unwrap().len() as u64));
    assert_eq!(entries, sum(|report| report["counts"]["entries"].as_u64().unwrap()));
    assert!(runs > 2 && entries > 200, "{runs} runs, {entries} entries");
    for wrong in ["nonsense".to_owned(), format!("{:032x}-{:08x}-{:016x}", 1, 1, 1)] {
        std::fs::write(at.join("mark"), wrong).unwrap();
        run(at, &part, 2);
    }
}

#[test]
fn explain_prints_every_version_of_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    sealed(at);
    let explain = ["explain", "db", "account249", "--partition", "book"];
    let text = run(at, &explain, 0);
    assert!(text.starts_with("key \"account249\" in partition \"book\": 1 version\n"), "{text}");
    assert!(text.contains("metadata in the same block") && text.ends_with("   Valid\n"), "{text}");
    let hex = ["explain", "db", "6b6579", "--hex", "--json"];
    let explanation = json(at, &hex, 0);
    assert_eq!(explanation["key_hex"], "6b6579");
    assert_eq!(explanation["versions"][0]["sealing"], "unsealed", "{explanation}");
    assert_eq!(explanation["versions"][0]["verdict"], Value::Null);

    flip_after(at, "balance 249");
    let text = run(at, &explain, 1);
    assert!(text.contains("DataCorrupt: the entry disagrees with its metadata"), "{text}");
    let explanation = json(at, &[&explain[..], &["--json"]].concat(), 1);
    let version = &explanation["versions"][0];
    assert_eq!(
        (&version["verdict"], &version["block_verified"]),
        (&"DataCorrupt".into(), &false.into())
    );
    assert_eq!(version["metadata"]["integrity"]["sequence"], version["sequence"]);
    assert_eq!(
        run(at, &["explain", "db", "absent"], 1),
        "key \"absent\" in partition \"default\": 0 versions\n"
    );
    assert_eq!(run(at, &["explain", "nothing", "key"], 1), "");
}

#[test]
fn levels_are_a_table_an_object_and_a_drawing() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    filled(at);
    run(at, &["put", "db", "k", "v", "--partition", "<&>\u{7f}"], 0);
    let text = run(at, &["levels", "db", "--tables", "--svg", "levels.svg"], 0);
    assert!(text.contains("key00000 to key01999"), "{text}");
    assert!(text.lines().filter(|line| line.contains(" #")).count() >= 3, "{text}");
    let levels = json(at, &["levels", "db", "--json"], 0);
    let users = levels["partitions"].as_array().unwrap();
    let users = users.iter().find(|partition| partition["partition"] == "users").unwrap();
    assert_eq!(users["levels"][0]["level"], 6);
    assert_eq!(users["levels"][0]["entries"], 2000);
    assert_eq!(users["levels"][0]["tables"][0]["first_key"], "key00000");
    let svg = std::fs::read_to_string(at.join("levels.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("&lt;&amp;&gt;\\u{7f}") && svg.contains("prefers-color-scheme:dark"));
    assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
    assert_eq!(svg.matches("class=\"table\"").count(), files(at, "sst").len());
}

#[test]
fn dump_prints_the_meaning_of_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    filled(at);
    run(at, &["put", "db", "in the log", "1"], 0);
    for (ending, says, inside) in [
        ("sst", "data block 0", "entry"),
        ("wal", "clean close", "put \"in the log\""),
        ("manifest", "snapshot", "table added"),
    ] {
        let path = files(at, ending).pop().unwrap();
        let path = path.to_str().unwrap();
        let brief = run(at, &["dump", path], 0);
        assert!(brief.contains(says), "{brief}");
        let whole = run(at, &["dump", path, "--entries"], 0);
        assert!(whole.contains(inside) && whole.len() > brief.len(), "{whole}");
        for line in run(at, &["dump", path, "--json"], 0).lines().skip(1) {
            let line: Value = serde_json::from_str(line).unwrap();
            assert!(line["from"].as_u64() < line["to"].as_u64(), "{line}");
        }
    }
    assert_eq!(run(at, &["dump", "rows.csv"], 1), "");
    assert_eq!(run(at, &["dump", "nothing"], 1), "");
}

#[test]
fn rows_are_loaded_compared_and_refused_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).unwrap();
    write("a.csv", "city,name\r\n\"Brno, CZ\",kurt\r\nLondon,ada\r\n");
    let csv = ["load", "db", "a.csv", "--format", "csv", "--header", "--key", "name"];
    let csv = [&csv[..], &["--value", "city"]].concat();
    assert_eq!(run(at, &csv, 0), "loaded 2 entries, 21 bytes; skipped 0\n");
    assert_eq!(run(at, &["scan", "db"], 0), "ada\tLondon\nkurt\tBrno, CZ\n");
    let equal = "equal 2 entries, 21 bytes; missing 0, different 0, skipped 0\n";
    assert_eq!(run(at, &[&csv[..], &["--check"]].concat(), 0), equal);
    write("a.jsonl", "{\"key_hex\": \"00ff\", \"value\": \"x\"}\n");
    run(at, &["load", "db", "a.jsonl", "--format", "jsonl"], 0);
    assert_eq!(run(at, &["get", "db", "00ff", "--hex"], 0), "78\n");
    write("a.tsv", "a\t1\nb\t2\tmore\n");
    run(at, &["load", "db", "a.tsv", "--format", "tsv"], 0);
    assert_eq!(run(at, &["get", "db", "b"], 0), "2\n");
    write("bad.csv", "a,1\n\"b,2\n");
    let output = siltstone(at, &["load", "other", "bad.csv", "--format", "csv"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors.contains("bad.csv:2: a quoted field has no end"), "{errors}");
}

#[test]
fn watched_stats_are_printed_again() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    run(at, &["put", "db", "k", "v"], 0);
    let text = run(at, &["stats", "db", "--json", "--watch", "1", "--count", "2"], 0);
    assert_eq!(text.lines().count(), 2);
    let objects: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    assert!(objects.unwrap().iter().all(|stats| stats["health"]["healthy"] == true), "{text}");
    let text = run(at, &["stats", "db", "--watch", "1", "--count", "2"], 0);
    assert_eq!(text.matches("\nhealthy              yes\n").count(), 2, "{text}");
    run(at, &["stats", "db", "--count", "2"], 2);
    run(at, &["stats", "db", "--watch", "0"], 2);
}

#[test]
fn scale_is_measured_for_partitions_snapshots_and_tables() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["bench", "scale", "--partitions", "3,20", "--snapshots", "50", "--tables", "6"];
    let args: Vec<&str> = args.into_iter().chain(["--dir", "scale", "--json"]).collect();
    let printed = run(folder.path(), &args, 0);
    let rows: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (beside, lines) in [("3 partitions", 9), ("20 partitions", 9), ("50 snapshots", 6)] {
        let found = rows.iter().filter(|row| row["beside"] == beside).count();
        assert_eq!(found, lines, "{beside}: {printed}");
    }
    assert!(rows.iter().any(|row| row["what"] == "get at random"), "{printed}");
    assert!(rows.iter().all(|row| row["us"].is_f64() || row["resident_bytes"].is_u64()));
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupted_load_says_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    run(at, &["put", "db", "before", "1"], 0);
    // More than a pipe holds, so that the load has begun.
    let rows: String = (0..20_000).map(|n| format!("key {n:06}\t{n}\n")).collect();
    let load = ["load", "db", "-", "--format", "lines"];
    let output = interrupt::interrupted(at, &load, rows.as_bytes());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert!(errors.contains("interrupted; db keeps what it had"), "{errors}");
    assert_eq!(run(at, &["get", "db", "before"], 0), "1\n");
}
