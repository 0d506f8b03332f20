//! Large values through the command: files of any size in, out and compared, and their chunk files.

#![expect(clippy::disallowed_methods, reason = "sources are files outside every database")]

mod runner;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use runner::{ended, siltstone};
use serde_json::Value;

/// Larger than a value may be in a table.
const BIG_BYTES: u64 = (64 << 20) + 12_345;

#[track_caller]
fn check(folder: &Path, args: &[&str], code: i32, expected: &str) {
    let output = ended(folder, args, code);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{args:?}: {errors}");
}

fn live(chunk: &Value) -> u64 {
    chunk["live_bytes"].as_u64().expect("it is a number")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

#[test]
fn a_folder_with_a_huge_file_is_loaded_compared_and_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::create_dir(at.join("tree")).unwrap();
    fs::write(at.join("tree/small"), "1").unwrap();
    fs::write(at.join("tree/streamed"), vec![7; (1 << 20) + 1]).unwrap();
    let mut big = File::create(at.join("tree/big")).unwrap();
    big.set_len(BIG_BYTES).unwrap();
    big.seek(SeekFrom::Start(BIG_BYTES - 3)).unwrap();
    big.write_all(b"end").unwrap();
    let bytes = BIG_BYTES + (1 << 20) + 1 + 1 + "smallstreamedbig".len() as u64;
    let load = ["load", "db", "tree", "--format", "files"];
    check(at, &load, 0, &format!("loaded 3 entries, {bytes} bytes; skipped 0\n"));
    let compare = ["load", "db", "tree", "--format", "files", "--check"];
    let equal = format!("equal 3 entries, {bytes} bytes; missing 0, different 0, skipped 0\n");
    check(at, &compare, 0, &equal);

    let chunks = lines(&siltstone(at, &["chunks", "db", "--json"]));
    let (sums, chunks) = chunks.split_last().unwrap();
    assert_eq!(sums["chunk_files"], chunks.len());
    assert_eq!(chunks.iter().map(live).sum::<u64>(), live(sums));
    assert!(live(sums) > BIG_BYTES && sums["dead_bytes"].as_u64().unwrap() < 4096, "{sums}");
    assert!(chunks.iter().any(|chunk| chunk["first_key"] == "big"), "{chunks:?}");
    let stats = &lines(&siltstone(at, &["stats", "db", "--json"]))[0];
    assert_eq!(stats["partitions"][0]["value_store"]["live_bytes"], live(sums));
    assert!(stats["disk_bytes"].as_u64().unwrap() > BIG_BYTES);

    // The same length, and one other byte in the middle.
    big.seek(SeekFrom::Start(BIG_BYTES / 2)).unwrap();
    big.write_all(b"x").unwrap();
    let other = bytes - BIG_BYTES - "big".len() as u64;
    let differs = format!("equal 2 entries, {other} bytes; missing 0, different 1, skipped 0\n");
    check(at, &compare, 1, &differs);
    let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
    let command = command.current_dir(at).args(["get", "db", "big", "--raw"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut got = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!((got.len() as u64, &got[got.len() - 3..]), (BIG_BYTES, &b"end"[..]));
    // Not beyond a limit of this partition: its absence is a difference.
    check(at, &["delete", "db", "big"], 0, "");
    let missing = format!("equal 2 entries, {other} bytes; missing 1, different 0, skipped 0\n");
    check(at, &compare, 1, &missing);
}

#[test]
fn a_value_from_a_file_is_streamed_into_a_partition_with_large_values() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("rows"), "a\t1\n").unwrap();
    let load = ["load", "db", "rows", "--format", "lines", "--large-values"];
    check(at, &load, 0, "loaded 1 entries, 2 bytes; skipped 0\n");
    File::create(at.join("film")).unwrap().set_len(BIG_BYTES).unwrap();
    check(at, &["put", "db", "film", "--value-file", "film"], 0, "");
    let sums = lines(&siltstone(at, &["chunks", "db", "--json"])).pop().unwrap();
    assert!(sums["live_bytes"].as_u64().unwrap() > BIG_BYTES, "{sums}");
    check(at, &["count", "db"], 0, "2\n");
    check(at, &["get", "db", "a"], 0, "1\n");
}

#[test]
fn entries_of_any_size_go_through_a_pipe_and_a_cut_import_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::create_dir(at.join("tree")).unwrap();
    fs::write(at.join("tree/small"), "1").unwrap();
    File::create(at.join("tree/big")).unwrap().set_len(BIG_BYTES).unwrap();
    let bytes = BIG_BYTES + 1 + "bigsmall".len() as u64;
    let load = ["load", "db", "tree", "--format", "files"];
    check(at, &load, 0, &format!("loaded 2 entries, {bytes} bytes; skipped 0\n"));

    let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
    let command = command.current_dir(at).args(["export", "db", "-", "--format", "stream"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
    let command = command.current_dir(at).args(["import", "other", "-"]);
    let output = command.stdin(child.stdout.take().unwrap()).output().unwrap();
    let imported = format!("imported 2 entries, {bytes} bytes; skipped 0\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), imported);
    let exporter = child.wait_with_output().unwrap();
    let printed = format!("exported 2 entries, {bytes} bytes; skipped 0\n");
    assert_eq!(String::from_utf8_lossy(&exporter.stderr), printed);
    let compare = ["load", "other", "tree", "--format", "files", "--check"];
    let equal = format!("equal 2 entries, {bytes} bytes; missing 0, different 0, skipped 0\n");
    check(at, &compare, 0, &equal);

    let export = ["export", "db", "stream", "--format", "stream", "--all-partitions"];
    check(at, &export, 0, &printed);
    check(at, &export, 1, "");
    let stream = File::options().write(true).open(at.join("stream")).unwrap();
    let whole = stream.metadata().unwrap().len();
    stream.set_len(whole - 3).unwrap();
    let cut = ended(at, &["import", "third", "stream"], 1);
    let errors = String::from_utf8_lossy(&cut.stderr).into_owned();
    let place = format!("ends before its end record in stream at offset {}\n", whole - 3);
    assert!(errors.ends_with(&place), "{errors}");
    fs::remove_file(at.join("stream")).unwrap();
    check(at, &export, 0, &printed);
    let resumed = format!("imported 2 entries, {bytes} bytes; skipped 2\n");
    check(at, &["import", "third", "stream", "--resume"], 0, &resumed);
    fs::write(at.join("stream"), [fs::read(at.join("stream")).unwrap(), b"x".into()].concat())
        .unwrap();
    check(at, &["import", "third", "stream", "--resume"], 2, "");
    check(at, &["export", "db", "tables", "--all-partitions"], 2, "");
}

#[test]
fn text_of_berkeley_db_goes_out_and_comes_in() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    check(at, &["put", "db", "key", "value"], 0, "");
    let text =
        "VERSION=3\nformat=bytevalue\ntype=btree\nHEADER=END\n 6b6579\n 76616c7565\nDATA=END\n";
    check(at, &["export", "db", "-", "--format", "db-dump"], 0, text);
    fs::write(at.join("text"), text).unwrap();
    let import = ["import", "db", "text", "--partition", "there", "--large-values", "--json"];
    check(at, &import, 0, "{\"bytes\":8,\"imported\":1,\"skipped\":0}\n");
    check(at, &["get", "db", "key", "--partition", "there"], 0, "value\n");
    check(at, &["import", "db", "nothing"], 1, "");
}

/// A file of large values is lost: their keys can still be read.
#[test]
fn keys_are_read_without_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::create_dir(at.join("tree")).unwrap();
    fs::write(at.join("tree/a"), "1").unwrap();
    fs::write(at.join("tree/b"), vec![7; 1 << 20]).unwrap();
    let load = ["load", "db", "tree", "--format", "files"];
    check(at, &load, 0, "loaded 2 entries, 1048579 bytes; skipped 0\n");
    let chunks = lines(&siltstone(at, &["chunks", "db", "--json"]));
    let chunk = at.join(chunks[0]["path"].as_str().unwrap());
    fs::remove_file(chunk).unwrap();
    check(at, &["scan", "db", "--keys"], 0, "a\nb\n");
    check(at, &["scan", "db", "--keys", "--reverse", "--limit", "1"], 0, "b\n");
    check(at, &["scan", "db"], 1, "a\t1\n");
}

#[test]
fn a_partition_without_large_values_has_no_chunks_to_show() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    check(at, &["put", "db", "a", "1"], 0, "");
    let output = siltstone(at, &["chunks", "db"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(errors, "error: partition \"default\" has no large values\n");
}

#[test]
fn the_workload_of_large_values_runs_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(
        at.join("workload"),
        r#"{ "sizes": [100, 70000], "repetitions": 4, "trim_percent": 7, "bytes_per_size": 1000000,
             "threads": [1, 3], "mixes": [{ "name": "all", "get": 1, "put": 1, "update": 1, "delete": 1 }],
             "mix_operations": 20, "mix_weights": [1, 1] }"#,
    )
    .unwrap();
    let all = ["bench", "large", "--workload", "workload", "--json", "--plots", "plots"];
    let output = siltstone(at, &all);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = lines(&output);
    assert_eq!(rows.len(), 2 + 1 + 1, "{rows:?}");
    for (row, size) in rows.iter().zip([100, 70_000]) {
        assert_eq!((&row["size"], &row["repetitions"]), (&size.into(), &4.into()));
        for rate in ["put", "put_synced", "get", "memcpy", "lent_first", "lent", "delete"] {
            assert!(row["bytes_per_ms"][rate].as_f64().unwrap() > 0.0, "{row}");
        }
        let by_threads = row["get_bytes_per_ms_by_threads"].as_object().unwrap();
        assert_eq!(by_threads.keys().collect::<Vec<_>>(), ["1", "3"]);
    }
    assert_eq!((&rows[2]["mix"], &rows[2]["operations"]), (&"all".into(), &20.into()));
    assert_eq!(rows[3]["chunk_bytes"], 0);
    for name in ["figure-6.svg", "figure-7.svg", "figure-9.svg"] {
        let drawing = fs::read_to_string(at.join("plots").join(name)).unwrap();
        assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"), "{name}");
    }
    let small = ["bench", "large", "--workload", "workload", "--size-max", "100B", "--json"];
    let rows = lines(&ended(at, &small, 0));
    assert_eq!((rows.len(), &rows[0]["size"], &rows[1]["mix"]), (3, &100.into(), &"all".into()));
    let beside = [&small[..], &["--files", "--plots", "beside"]].concat();
    let rows = lines(&ended(at, &beside, 0));
    assert_eq!((rows.len(), &rows[1]["files"]["size"]), (4, &100.into()));
    assert!(rows[1]["files"]["bytes_per_ms"]["get"].as_f64().unwrap() > 0.0, "{rows:?}");
    assert!(at.join("beside").join("figure-8.svg").exists());
    let refused = siltstone(at, &["bench", "large", "--size-max", "10B"]);
    assert_eq!(refused.status.code(), Some(2));
}
