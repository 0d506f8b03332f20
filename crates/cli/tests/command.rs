//! The command as its users see it: arguments in, text and exit code out.

#![expect(clippy::disallowed_methods, reason = "sources are files outside every database")]

mod runner;
mod verbs;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use runner::{ended, siltstone};

/// Runs the command in `folder` and compares its exit code and standard output.
#[track_caller]
fn check(folder: &Path, args: &[&str], code: i32, expected: &str) {
    let output = ended(folder, args, code);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{args:?}: {errors}");
    assert_eq!(code == 0, errors.is_empty(), "{args:?}: {errors}");
}

#[test]
fn entries_are_put_read_scanned_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    check(at, &["put", "db", "a", "1"], 0, "");
    check(at, &["put", "db", "b", "x\ty"], 0, "");
    check(at, &["put", "--hex", "db", "00ff", "0a"], 0, "");
    check(at, &["get", "db", "a"], 0, "1\n");
    check(at, &["get", "db", "b", "--raw"], 0, "x\ty");
    check(
        at,
        &["get", "db", "00ff", "--hex", "--json"],
        0,
        "{\"key_hex\":\"00ff\",\"value_hex\":\"0a\"}\n",
    );
    check(at, &["scan", "db"], 0, "\\x00\\xff\t\\n\na\t1\nb\tx\\ty\n");
    check(at, &["scan", "db", "--keys", "--from", "a", "--to", "b"], 0, "a\n");
    check(at, &["scan", "db", "--keys", "--prefix", "b"], 0, "b\n");
    check(at, &["scan", "db", "--keys", "--reverse", "--limit", "2"], 0, "b\na\n");
    check(at, &["scan", "db", "--from", "b", "--to", "a"], 0, "");
    check(at, &["delete", "db", "a"], 0, "");
    check(at, &["delete", "db", "a"], 1, "");
    check(at, &["compact", "db", "--all"], 0, "compacted default\n");
    check(at, &["count", "db", "--json"], 0, "{\"count\":2}\n");
}

#[test]
fn the_log_is_json_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--log-format", "json", "get", "none", "a"];
    let errors = String::from_utf8(ended(folder.path(), &args, 1).stderr).unwrap();
    assert!(errors.starts_with("{\"level\":\"error\",\"message\":\""), "{errors}");
    assert!(errors.contains("none") && errors.ends_with("}\n") && errors.lines().count() == 1);
    let text = ended(folder.path(), &args[2..], 1).stderr;
    assert!(text.starts_with(b"error: "));
}

#[test]
fn a_folder_with_other_files_gets_a_database_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir(at.join("letters")).unwrap();
    std::fs::write(at.join("letters/to alice"), "dear alice").unwrap();
    check(at, &["put", "letters", "a", "1"], 2, "");
    // So do all that make a database.
    std::fs::write(at.join("lines"), "a\t1\n").unwrap();
    check(
        at,
        &["load", "source", "lines", "--format", "lines"],
        0,
        "loaded 1 entries, 2 bytes; skipped 0\n",
    );
    check(at, &["load", "letters", "lines", "--format", "lines"], 2, "");
    ended(at, &["export", "source", "tables"], 0);
    check(at, &["ingest", "letters", "tables"], 2, "");
    ended(at, &["export", "source", "stream", "--format", "stream"], 0);
    check(at, &["import", "letters", "stream"], 2, "");
    assert_eq!(std::fs::read_dir(at.join("letters")).unwrap().count(), 1, "nothing was made");
    check(at, &["put", "letters", "a", "1", "--create"], 0, "");
    check(at, &["put", "letters", "b", "2"], 0, "");
    check(at, &["scan", "letters", "--keys"], 0, "a\nb\n");
    // An empty folder, and one that is missing, need no request.
    std::fs::create_dir(at.join("empty")).unwrap();
    check(at, &["put", "empty", "a", "1"], 0, "");
    check(at, &["put", "missing", "a", "1"], 0, "");
    // So does one that an open left before it made anything else.
    std::fs::create_dir(at.join("begun")).unwrap();
    std::fs::write(at.join("begun/LOCK"), "").unwrap();
    check(at, &["put", "begun", "a", "1"], 0, "");
    // A name that is not UTF-8 is one.
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::ffi::OsStrExt;
        std::fs::create_dir(at.join("latin")).unwrap();
        std::fs::write(at.join("latin").join(std::ffi::OsStr::from_bytes(b"\xe9")), "").unwrap();
        check(at, &["put", "latin", "a", "1"], 2, "");
    }
}

#[test]
fn operands_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    check(at, &["merge", "db", "n", "5"], 2, "");
    check(at, &["merge", "db", "n", "5", "--operator", "sum"], 2, "");
    check(at, &["merge", "db", "n", "five", "--operator", "add"], 2, "");
    assert!(!at.join("db").exists(), "wrong usage makes nothing");
    check(at, &["merge", "db", "n", "5", "--operator", "add"], 0, "");
    let other = ["--partition", "other"];
    check(at, &[&["merge", "db", "n", "5"][..], &other].concat(), 2, "");
    check(at, &[&["merge", "db", "n", "x", "--operator", "max"][..], &other].concat(), 2, "");
    check(at, &["partitions", "db"], 0, "default\n");
    check(at, &["merge", "db", "n", "-7"], 0, "");
    check(at, &["merge", "db", "6e", "0200000000000000", "--hex"], 0, "");
    check(at, &["merge", "db", "n", "five"], 2, "");
    check(at, &["get", "db", "6e", "--hex"], 0, "0000000000000000\n");
    let list = ["--partition", "list"];
    let append =
        [&["merge", "db", "k", "a", "--operator", "append", "--separator", ","][..], &list];
    check(at, &append.concat(), 0, "");
    let json = "{\"done\":\"merge\",\"key\":\"k\"}\n";
    check(at, &[&["merge", "db", "k", "b", "--json"][..], &list].concat(), 0, json);
    check(at, &[&["get", "db", "k"][..], &list].concat(), 0, "a,b\n");
    let other = [&["merge", "db", "k", "1", "--operator", "max"][..], &list].concat();
    check(at, &other, 2, "");
}

#[test]
fn ranges_of_keys_are_deleted_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for key in ["a1", "a2", "b1", "b2", "b3", "c1"] {
        check(at, &["put", "db", key, "value"], 0, "");
    }
    // Wrong usage deletes nothing.
    check(at, &["delete", "db"], 2, "");
    check(at, &["delete", "db", "a1", "--prefix", "a"], 2, "");
    check(at, &["delete", "db", "a1", "--from", "a"], 2, "");
    check(at, &["delete", "db", "--prefix", "a", "--to", "b"], 2, "");
    check(at, &["scan", "db", "--keys"], 0, "a1\na2\nb1\nb2\nb3\nc1\n");
    check(at, &["delete", "db", "--prefix", "a"], 0, "");
    check(at, &["scan", "db", "--keys"], 0, "b1\nb2\nb3\nc1\n");
    let json = "{\"done\":\"deleted\",\"from\":\"b2\",\"to\":\"b3\"}\n";
    check(at, &["delete", "db", "--from", "b2", "--to", "b3", "--json"], 0, json);
    check(at, &["scan", "db", "--keys"], 0, "b1\nb3\nc1\n");
    check(at, &["delete", "db", "--from", "b3"], 0, "");
    check(at, &["scan", "db", "--keys"], 0, "b1\n");
    check(at, &["delete", "db", "--hex", "--to", "6232"], 0, "");
    check(at, &["scan", "db", "--keys"], 0, "");
    // A range without keys is no error, as a scan of it is none.
    check(at, &["delete", "db", "--from", "b", "--to", "a"], 0, "");
}

#[test]
fn what_writes_takes_a_write_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    check(at, &["put", "db", "key", "value", "--write-buffer", "0"], 2, "");
    check(at, &["put", "db", "key", "value", "--write-buffer", "2TiB"], 2, "");
    check(at, &["put", "db", "key", "value", "--background-rate", "20"], 2, "");
    assert!(!at.join("db").exists(), "wrong usage makes nothing");
    check(at, &["put", "db", "key", "value", "--write-buffer", "2MiB"], 0, "");
    check(at, &["get", "db", "key"], 0, "value\n");
    check(at, &["delete", "db", "key", "--write-buffer", "1048576"], 0, "");
    let compact = ["compact", "db", "--write-buffer", "64KiB", "--background-rate", "1MiB"];
    check(at, &compact, 0, "compacted default\n");
}

/// Runs the command with `input` on its standard input.
fn siltstone_reading(folder: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
    let command = command.current_dir(folder).args(args);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command can be started");
    child.stdin.take().expect("it is piped").write_all(input).expect("the command reads it");
    child.wait_with_output().expect("the command ends")
}

#[test]
fn text_is_shown_as_it_is_and_bytes_in_hex_or_base64() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    check(at, &["put", "db", "schl\u{fc}ssel", "l'\u{e9}t\u{e9} \u{952e}"], 0, "");
    check(at, &["get", "db", "schl\u{fc}ssel"], 0, "l'\u{e9}t\u{e9} \u{952e}\n");
    check(at, &["put", "db", "--base64", "//4=", "AA=="], 0, "");
    check(at, &["get", "db", "--base64", "//4="], 0, "AA==\n");
    check(at, &["get", "db", "--hex", "fffe"], 0, "00\n");
    check(at, &["scan", "db", "--keys"], 0, "schl\u{fc}ssel\n\\xff\\xfe\n");
    check(at, &["scan", "db", "--base64", "--keys", "--from", "//0="], 0, "//4=\n");
    check(
        at,
        &["explain", "db", "--base64", "AAA="],
        1,
        "key \"\\x00\\x00\" in partition \"default\": 0 versions\n",
    );
    check(
        at,
        &["export", "db", "out", "--base64", "--from", "//4="],
        0,
        "exported 1 entries in 1 tables\n",
    );
    check(at, &["get", "db", "--base64", "--hex", "00"], 2, "");
    check(at, &["get", "db", "--base64", "AA"], 2, "");
    check(at, &["delete", "db", "--base64", "//4="], 0, "");
}

#[test]
fn what_scan_prints_as_json_loads_again_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let entries = [("61", "c3a9"), ("00ff", "0a0d09"), ("c3", "5c"), ("22", ""), ("e29c93", "ff")];
    for (key, value) in entries {
        check(at, &["put", "db", "--hex", key, value], 0, "");
    }
    let expected = siltstone(at, &["scan", "db", "--hex"]).stdout;
    assert_eq!(String::from_utf8_lossy(&expected).lines().count(), 5);
    for form in [&["scan", "db", "--json"][..], &["scan", "db", "--json", "--hex"]] {
        let json = siltstone(at, form).stdout;
        let name = format!("copy {}", form.len());
        let load = ["load", &name, "-", "--format", "jsonl"];
        let loaded = siltstone_reading(at, &load, &json);
        assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
        assert_eq!(siltstone(at, &["scan", &name, "--hex"]).stdout, expected);
    }
}

#[test]
fn values_come_from_a_file_or_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("value"), b"\xff\n\0").unwrap();
    check(at, &["put", "db", "a", "--value-file", "value"], 0, "");
    check(at, &["get", "db", "a", "--hex"], 2, "");
    check(at, &["get", "db", "61", "--hex"], 0, "ff0a00\n");
    let put = siltstone_reading(at, &["put", "db", "b", "--value-file", "-"], b"piped\n");
    assert!(put.status.success());
    check(at, &["get", "db", "b", "--raw"], 0, "piped\n");
    check(at, &["put", "db", "c", "--value-file", "missing"], 1, "");
    check(at, &["put", "db", "c"], 2, "");
    check(at, &["put", "db", "c", "v", "--value-file", "value"], 2, "");
}

#[test]
fn shells_get_their_completions() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = siltstone(folder.path(), &["completions", shell]);
        let text = String::from_utf8_lossy(&script.stdout);
        assert!(script.status.success() && text.contains("checkpoint"), "{shell}");
    }
}

#[test]
fn reading_makes_neither_a_database_nor_a_partition() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for command in ["scan", "count", "stats", "partitions", "compact"] {
        check(at, &[command, "db"], 1, "");
    }
    assert!(!at.join("db").exists());
    std::fs::create_dir(at.join("empty")).unwrap();
    check(at, &["count", "empty"], 1, "");
    std::fs::write(at.join("empty/notes.txt"), "no database").unwrap();
    check(at, &["count", "empty"], 1, "");
    assert_eq!(std::fs::read_dir(at.join("empty")).unwrap().count(), 1);
    check(at, &["put", "db", "k", "v"], 0, "");
    check(at, &["get", "db", "k", "--partition", "other"], 1, "");
    check(at, &["count", "db", "--partition", "other"], 1, "");
    check(at, &["put", "db", "k", "v", "--partition", "third"], 0, "");
    check(at, &["partitions", "db"], 0, "default\nthird\n");
}

#[test]
fn wrong_usage_ends_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    check(at, &["get", "db"], 2, "");
    check(at, &["get", "--hex", "db", "0"], 2, "");
    check(at, &["bench", "nothing"], 2, "");
    check(at, &["bench", "fillseq", "--cache", "1MB"], 2, "");
    check(at, &["bench", "fillseq", "--verified"], 2, "");
}

#[test]
fn a_tree_of_files_is_loaded_and_differences_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir_all(at.join("tree/deep")).unwrap();
    std::fs::write(at.join("tree/a"), "one").unwrap();
    std::fs::write(at.join("tree/deep/b"), [0, 255]).unwrap();
    std::fs::write(at.join("tree/empty"), "").unwrap();
    let load = ["load", "db", "tree", "--format", "files"];
    check(at, &load, 0, "loaded 3 entries, 17 bytes; skipped 0\n");
    check(at, &["get", "db", "deep/b", "--hex"], 2, "");
    check(at, &["get", "db", "deep/b"], 0, "\\x00\\xff\n");
    let compare = ["load", "db", "tree", "--format", "files", "--check"];
    let equal = "equal 3 entries, 17 bytes; missing 0, different 0, skipped 0\n";
    check(at, &compare, 0, equal);
    std::fs::write(at.join("tree/a"), "two").unwrap();
    std::fs::write(at.join("tree/new"), "3").unwrap();
    let other = "equal 2 entries, 13 bytes; missing 1, different 1, skipped 0\n";
    check(at, &compare, 1, other);
}

#[test]
fn values_beyond_the_limit_are_skipped_and_named_and_no_difference() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir(at.join("tree")).unwrap();
    std::fs::write(at.join("tree/small"), "1").unwrap();
    // A partition with entries keeps its options.
    check(at, &["put", "db", "small", "1"], 0, "");
    let big = std::fs::File::create(at.join("tree/big")).unwrap();
    big.set_len((64 << 20) + 1).unwrap();
    for (extra, expected) in [
        (None, "loaded 1 entries, 6 bytes; skipped 1\n"),
        (Some("--check"), "equal 1 entries, 6 bytes; missing 0, different 0, skipped 1\n"),
    ] {
        let load = ["load", "db", "tree", "--format", "files"];
        let output = siltstone(at, &load.into_iter().chain(extra).collect::<Vec<_>>());
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("skipped big: "));
    }
    check(at, &["load", "other", "tree", "--format", "lines"], 2, "");
    assert!(!at.join("other").exists());
}

#[cfg(unix)]
#[test]
fn names_and_lines_may_be_any_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir(at.join("tree")).unwrap();
    std::fs::write(at.join("tree").join(std::ffi::OsStr::from_bytes(b"\xff\n")), "1").unwrap();
    std::fs::write(at.join("lines"), b"a\0\tv\xff\n").unwrap();
    check(
        at,
        &["load", "db", "tree", "--format", "files"],
        0,
        "loaded 1 entries, 3 bytes; skipped 0\n",
    );
    check(
        at,
        &["load", "db", "lines", "--format", "lines"],
        0,
        "loaded 1 entries, 4 bytes; skipped 0\n",
    );
    check(at, &["scan", "db", "--hex"], 0, "6100\t76ff\nff0a\t31\n");
}

#[test]
fn stats_are_a_table_and_an_object_with_the_same_figures() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    check(at, &["put", "db", "k", "v", "--partition", "users"], 0, "");
    check(at, &["delete", "db", "k", "--partition", "users"], 0, "");
    check(at, &["put", "db", "k2", "v", "--partition", "users"], 0, "");
    let text = siltstone(at, &["stats", "db"]);
    let text = String::from_utf8(text.stdout).unwrap();
    for word in
        ["partition", "users", "tombstones", "cache", "stalled", "background error", "healthy"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let output = siltstone(at, &["stats", "db", "--json"]);
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let users = &stats["partitions"][1];
    assert_eq!(users["partition"], "users");
    let entries = users["levels"].as_array().unwrap().iter().map(|l| l["entry_count"].as_u64());
    assert!(entries.sum::<Option<u64>>() >= Some(2), "{users}");
    assert_eq!(stats["background_error"], serde_json::Value::Null);
    let health = &stats["health"];
    assert_eq!(
        (&health["healthy"], &health["read_only"]),
        (&true.into(), &stats["background_error"])
    );
    assert_eq!(
        (&health["stalls"], &health["background_errors"]),
        (&[0; 0][..].into(), &[0; 0][..].into())
    );
    let limits = &health["partitions"][1];
    assert_eq!(limits["partition"], "users");
    for gauge in [&limits["level0_tables"], &limits["compaction_debt_bytes"], &health["wal_bytes"]]
    {
        let [value, hard, left] =
            ["value", "hard", "left"].map(|name| gauge[name].as_u64().unwrap());
        assert!(hard > 0 && value + left == hard, "{health}");
    }
    assert!(text.contains("users: ") && text.contains(" left; slower from "), "{text}");
    assert_eq!(stats["since_open"]["user_bytes"], 0);
    let output = siltstone(at, &["stats", "db", "--prometheus"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let segments = format!("siltstone_wal_segments {}\n", stats["wal_segment_count"]);
    assert!(text.starts_with("# HELP siltstone_") && text.contains(&segments), "{text}");
    assert!(text.contains("siltstone_healthy 1\n"), "{text}");
}

#[test]
fn the_last_line_of_a_key_wins() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("lines"), "a\t1\nb\t2\t2\na\t3\n").unwrap();
    let load = ["load", "db", "lines", "--format", "lines", "--json"];
    check(at, &load, 0, "{\"bytes\":8,\"loaded\":3,\"skipped\":0}\n");
    check(at, &["scan", "db"], 0, "a\t3\nb\t2\\t2\n");
    check(
        at,
        &["load", "db", "lines", "--format", "lines", "--check"],
        0,
        "equal 2 entries, 6 bytes; missing 0, different 0, skipped 0\n",
    );
    std::fs::write(at.join("lines"), "a\t1\nb").unwrap();
    check(at, &load, 2, "");
}

#[test]
fn every_workload_runs_and_reads_find_what_was_filled() {
    let folder = tempfile::tempdir().unwrap();
    let names = "fillseq,readrandom,fillrandom,fillbatch,fillsync,overwrite,seekrandom,scan,\
                 scan-reverse,readwhilewriting,ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f,ycsb-w";
    let sizes = ["--records", "500", "--threads", "2", "--json", "--compact"];
    let apart = ["--metahive", "--verified", "--large-values", "256B", "--value-size", "300"];
    for more in [&[][..], &apart] {
        let bench = ["bench", names].into_iter().chain(sizes).chain(more.iter().copied());
        let bench: Vec<&str> = bench.collect();
        let output = siltstone(folder.path(), &bench);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = report["workloads"].as_array().unwrap();
        assert_eq!(rows.len(), 17);
        assert_eq!(report["config"]["verified"], !more.is_empty());
        for row in rows {
            let name = row["workload"].as_str().unwrap();
            assert_eq!(row["ops"], if name == "fillsync" { 1 } else { 500 }, "{name}");
            // In ycsb-d a thread may read what another one is about to insert.
            assert!(row["missed"] == 0 || name == "ycsb-d", "{row}");
        }
        assert!(report["total"]["live_bytes"].as_u64() >= Some(500 * 116));
    }

    let gone = ["bench", "deleterandom,readmissing,scan", "--records", "100", "--json"];
    let output = siltstone(folder.path(), &gone);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ops = |at: usize| report["workloads"][at]["ops"].as_u64().unwrap();
    assert_eq!([ops(0), ops(1), ops(2), ops(3)], [100, 100, 100, 0]);
    assert_eq!(report["workloads"][2]["found"], 0);
}

#[test]
fn sorted_lines_are_loaded_at_once_and_others_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let load = ["load", "db", "lines", "--format", "lines", "--sorted", "--json"];
    std::fs::write(at.join("lines"), "a\t1\nc\t22\nd\t3\n").unwrap();
    check(at, &["put", "db", "b", "own"], 0, "");
    check(at, &load, 0, "{\"bytes\":7,\"loaded\":3,\"skipped\":0}\n");
    check(at, &["scan", "db"], 0, "a\t1\nb\town\nc\t22\nd\t3\n");
    for (lines, named) in [("a\t1\nz\t2\ny\t3\n", "\"y\""), ("w\t1\nx\t2\nx\t3\n", "\"x\"")] {
        std::fs::write(at.join("lines"), lines).unwrap();
        let refused = siltstone(at, &load);
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && errors.contains(named), "{errors}");
    }
    std::fs::write(at.join("lines"), "w\t1\nno tab\n").unwrap();
    check(at, &load, 2, "");
    check(at, &["count", "db"], 0, "4\n");
    // An entry beyond a limit is skipped, and the others are loaded.
    let long = "o".repeat(siltstone::limits::USER_KEY_BYTES_MAX + 1);
    std::fs::write(at.join("lines"), format!("\tempty\ne\t5\n{long}\t6\np\t7\n")).unwrap();
    let loaded = siltstone(at, &load);
    let printed = String::from_utf8_lossy(&loaded.stdout);
    assert_eq!(printed, "{\"bytes\":9,\"loaded\":3,\"skipped\":1}\n");
    assert_eq!(loaded.status.code(), Some(0));
    check(at, &["scan", "db", "--from", "e"], 0, "e\t5\np\t7\n");
    check(at, &["get", "db", ""], 0, "empty\n");
}

#[test]
fn entries_go_from_one_database_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for key in ["a", "b", "c"] {
        check(at, &["put", "one", key, "1"], 0, "");
    }
    let exported = "exported 2 entries in 1 tables\n";
    check(at, &["export", "one", "part", "--from", "b"], 0, exported);
    check(at, &["export", "one", "part"], 2, "");
    check(at, &["put", "two", "c", "2"], 0, "");
    check(at, &["ingest", "two", "part"], 0, "ingested 2 entries in 1 tables\n");
    check(at, &["scan", "two"], 0, "b\t1\nc\t1\n");
    check(at, &["ingest", "two", "one"], 2, "");
    check(at, &["checkpoint", "two", "copy"], 0, "checkpoint in copy: sequence 2\n");
    check(at, &["checkpoint", "two", "copy"], 2, "");
    check(at, &["count", "copy"], 0, "2\n");
}
