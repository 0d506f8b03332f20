//! The verbs that change partitions, compare databases, and list gaps; manual pages.

mod forms;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use siltstone::clock::{Clock, SystemClock};
use siltstone::{Db, PartitionOptions, TimeWidth, TtlFilter, TtlRule};

use crate::runner::{ended, siltstone};

#[track_caller]
fn printed(at: &Path, args: &[&str], code: i32) -> String {
    String::from_utf8(ended(at, args, code).stdout).expect("it prints UTF-8")
}

#[track_caller]
fn refused(at: &Path, args: &[&str], code: i32, what: &str) {
    let errors = String::from_utf8(ended(at, args, code).stderr).expect("it prints UTF-8");
    assert!(errors.contains(what), "{args:?}: {errors}");
}

#[test]
fn partitions_are_created_changed_cleared_and_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let create = ["partition", "create", "db", "users", "--compression", "none", "--metahive"];
    let text = printed(at, &create, 0);
    assert!(text.contains("compression       none\n"), "{text}");
    refused(at, &create, 2, "partition set");
    let set = ["partition", "set", "db", "users", "--block-bytes", "16KiB", "--level0-tables", "8"];
    let text = printed(at, &set, 0);
    // What was not named stays.
    assert!(text.contains("block_bytes       16384\n") && text.contains("none\n"), "{text}");
    assert_eq!(printed(at, &["partition", "show", "db", "users"], 0), text);
    let object = printed(at, &["partition", "show", "db", "users", "--json"], 0);
    assert!(object.contains("\"level0_tables\":8"), "{object}");
    assert!(object.contains("\"prefix_extractor\":\"none\""), "{object}");
    for (given, shown) in [
        ("fixed:8", "fixed:8"),
        ("through:/", "through:0x2f"),
        ("through:0x00", "through:0x00"),
        ("none", "none"),
    ] {
        let text =
            printed(at, &["partition", "set", "db", "users", "--prefix-extractor", given], 0);
        assert!(text.contains(&format!("prefix_extractor  {shown}\n")), "{text}");
    }
    for (given, shown) in [
        (&["--fifo-bytes", "10MiB"][..], "fifo:10485760"),
        (&["--fifo-seconds", "60"], "fifo:10485760,60s"),
        (&["--fifo-bytes", "1KiB"], "fifo:1024,60s"),
        (&["--fifo-seconds", "0"], "fifo:1024"),
        (&["--fifo-bytes", "0"], "leveled"),
        (&["--fifo-seconds", "5"], "fifo:18446744073709551615,5s"),
        (&["--fifo-bytes", "0"], "leveled"),
    ] {
        let text = printed(at, &[&["partition", "set", "db", "users"], given].concat(), 0);
        assert!(text.contains(&format!("compaction_style  {shown}\n")), "{text}");
    }
    for wrong in ["fixed:0", "fixed:65536", "fixed:", "through:", "through:ab", "through:0x+1", "8"]
    {
        let set = ["partition", "set", "db", "users", "--prefix-extractor", wrong];
        refused(at, &set, 2, "prefix");
    }
    refused(at, &["partition", "set", "db", "users", "--block-bytes", "1"], 2, "block");
    refused(at, &["partition", "set", "db", "none", "--bloom-bits", "1"], 1, "no partition");

    printed(at, &["put", "db", "a", "1", "--partition", "users"], 0);
    assert_eq!(printed(at, &["partition", "clear", "db", "users"], 0), "cleared users\n");
    assert_eq!(printed(at, &["count", "db", "--partition", "users"], 0), "0\n");
    let explained = printed(at, &["scrub", "db", "--partition", "users", "--json"], 0);
    assert!(explained.contains("\"has_metahive\":true"), "{explained}");
    assert_eq!(printed(at, &["partition", "drop", "db", "users"], 0), "dropped users\n");
    assert_eq!(printed(at, &["partitions", "db"], 0), "default\n");
    refused(at, &["partition", "drop", "db", "users"], 1, "no partition");
    refused(at, &["partition", "drop", "nothing", "users"], 1, "no database");
}

#[test]
fn databases_are_compared_by_partition_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (name, changes) in [("one", ["a", "1", "b", "2"]), ("two", ["b", "3", "c", "4"])] {
        let db = Db::open(at.join(name)).unwrap();
        let users = db.partition("users").unwrap();
        users.put("same", "value").unwrap();
        for change in changes.chunks(2) {
            users.put(change[0], change[1]).unwrap();
        }
        db.partition(name).unwrap().put("k", "v").unwrap();
        db.close().unwrap();
    }
    assert_eq!(printed(at, &["diff", "one", "one"], 0), "");
    let all = "< one\t(the partition)\n< one\tk\n> two\t(the partition)\n> two\tk\n\
               < users\ta\n! users\tb\n> users\tc\n";
    assert_eq!(printed(at, &["diff", "one", "two"], 1), all);
    refused(at, &["diff", "one", "two"], 1, "7 differences");
    assert_eq!(printed(at, &["diff", "one", "two", "--quiet"], 1), "");
    let limited = ["diff", "one", "two", "--partition", "users", "--limit", "2", "--json"];
    assert_eq!(
        printed(at, &limited, 1),
        "{\"difference\":\"only_left\",\"key\":\"a\",\"partition\":\"users\"}\n\
         {\"difference\":\"value\",\"key\":\"b\",\"partition\":\"users\"}\n"
    );
    // A copy that another process writes is compared as it is now.
    printed(at, &["checkpoint", "one", "copy"], 0);
    let db = Db::open(at.join("copy")).unwrap();
    db.partition("users").unwrap().put("d", "5").unwrap();
    assert_eq!(printed(at, &["diff", "one", "copy"], 1), "> users\td\n");
    db.close().unwrap();
}

#[test]
fn wrong_arguments_make_no_database() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (arguments, code, what) in [
        (["put", "db", "k", "--value-file", "missing"], 1, "cannot open missing"),
        (["put", "db", "k", "--value-file", "."], 2, ". is a folder"),
        (["put", "db", "aa", "zz", "--hex"], 2, "hex digits"),
        (["ingest", "db", "missing", "--partition", "users"], 2, "there is no export in missing"),
    ] {
        refused(at, &arguments, code, what);
        assert!(!at.join("db").exists(), "{arguments:?}");
    }
}

#[test]
fn a_database_without_gaps_has_none_to_repair_or_accept() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    printed(at, &["partition", "create", "db", "default2", "--metahive"], 0);
    for verb in ["list", "repair", "accept"] {
        assert_eq!(printed(at, &["gaps", verb, "db", "--partition", "default2"], 0), "");
    }
    refused(at, &["gaps", "repair", "db", "--partition", "none"], 1, "no partition");
}

#[test]
fn levels_of_long_keys_fit_into_80_columns() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let long = "k".repeat(300);
    printed(at, &["put", "db", &long, "1"], 0);
    printed(at, &["put", "db", "b", "1"], 0);
    printed(at, &["compact", "db"], 0);
    let text = printed(at, &["levels", "db", "--tables"], 0);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("b to kkkkkkkkkkk.."), "{text}");
}

#[test]
fn manual_pages_are_written_for_each_subcommand() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    printed(at, &["man", "."], 0);
    let page = std::fs::read_to_string(at.join("siltstone-partition-set.1")).unwrap();
    assert!(page.contains(".TH") && page.contains("bloom"), "{page}");
    assert!(at.join("siltstone.1").exists() && at.join("siltstone-diff.1").exists());
    assert_eq!(siltstone(at, &["man", "nothing"]).status.code(), Some(1));
}

#[test]
fn a_stressed_database_loses_nothing_when_its_writer_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let stress =
        ["stress", ".", "--seed", "7", "--rounds", "3", "--keys", "60", "--commits", "150"];
    let text = printed(at, &stress, 0);
    assert!(text.starts_with("3 kills, ") && text.ends_with("nothing lost, seed 7\n"), "{text}");
    assert_eq!(std::fs::read_dir(at).unwrap().count(), 0, "it removes its database");
    let text = printed(at, &[&stress[..], &["--keep", "--json"]].concat(), 0);
    assert!(text.contains("\"kills\":3") && text.contains("\"seed\":7"), "{text}");
    assert!(printed(at, &["partitions", "siltstone-stress-7"], 0).contains("metahive"));
    refused(at, &stress, 2, "exists");
}

#[test]
fn a_stressed_database_loses_nothing_while_calls_of_its_disk_fail() {
    let folder = tempfile::tempdir().unwrap();
    let stress = [
        "stress",
        ".",
        "--seed",
        "7",
        "--rounds",
        "4",
        "--keys",
        "60",
        "--commits",
        "300",
        "--fault-one-in",
        "40",
        "--json",
    ];
    let text = printed(folder.path(), &stress, 0);
    let faults = text.split("\"faults\":").nth(1).and_then(|rest| rest.split(['}', ',']).next());
    let faults = faults.and_then(|digits| digits.parse::<u64>().ok()).unwrap_or(0);
    assert!(text.contains("\"kills\":4") && faults > 10, "{text}");
    refused(folder.path(), &["stress", ".", "--fault-one-in", "2"], 2, "fault-one-in");
}

#[test]
fn a_gap_that_damage_left_is_listed_and_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let db = Db::open(at.join("db")).unwrap();
    let options = siltstone::PartitionOptions::new().metahive(Default::default());
    let users = db.partition_with("users", options).unwrap();
    for n in 0..2000 {
        users.put(format!("key {n:04}"), format!("value {n}").repeat(5)).unwrap();
    }
    users.compact(..).unwrap();
    db.close().unwrap();
    let files = std::fs::read_dir(at.join("db")).unwrap().map(|name| name.unwrap().path());
    let tables = files.filter(|path| path.extension().is_some_and(|kind| kind == "sst"));
    let table = tables.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 100].fill(0x55);
    std::fs::write(&table, bytes).unwrap();
    let in_users = ["db", "--partition", "users"];
    let text = printed(at, &[&["gaps", "repair"], &in_users[..]].concat(), 1);
    assert!(text.starts_with("entries between key ") && text.ends_with(" are lost\n"), "{text}");
    assert_eq!(printed(at, &[&["gaps", "list"], &in_users[..]].concat(), 1), text);
    printed(at, &[&["count"], &in_users[..]].concat(), 1);
    assert!(printed(at, &[&["gaps", "accept"], &in_users[..]].concat(), 0).contains("key "));
    let count: u64 = printed(at, &[&["count"], &in_users[..]].concat(), 0).trim().parse().unwrap();
    assert!((1..2000).contains(&count), "{count}");
}

/// The shell, with the lines of the file `script`.
#[expect(clippy::unwrap_used, reason = "a test that fails should say where")]
fn shell(at: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_siltstone"));
    let script = std::fs::File::open(at.join("script")).unwrap();
    command.current_dir(at).arg("shell").args(arguments).stdin(script).output().unwrap()
}

#[test]
fn a_shell_runs_the_lines_of_a_script_on_one_database() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    printed(at, &["put", "db", "a", "1"], 0);
    printed(at, &["partition", "create", "db", "users"], 0);
    let script = "# a comment\n\nget a\nuse users\nput \"b c\" 2\nscan\nuse none\nget nothing\ncount\nexit\nget a\n";
    std::fs::write(at.join("script"), script).unwrap();
    let output = shell(at, &["db"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\nb c\t2\n1\n", "{errors}");
    assert!(errors.contains("no partition \"none\"") && errors.contains("no key"), "{errors}");
    assert!(output.status.success(), "the last line was a success");
    let script =
        "use users\nexport out --format stream --all-partitions\nimport out\nuse default\nget a\n";
    std::fs::write(at.join("script"), script).unwrap();
    let output = shell(at, &["db"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("exported 2 entries, "), "{text}");
    assert_eq!(printed(at, &["scan", "db", "--partition", "users"], 0), "b c\t2\n");
    assert_eq!(shell(at, &["nothing"]).status.code(), Some(1));
    assert_eq!(shell(at, &["db", "--partition", "none"]).status.code(), Some(1));
    std::fs::write(at.join("script"), "get nothing\n").unwrap();
    assert_eq!(shell(at, &["db"]).status.code(), Some(1));
}

#[test]
fn a_damaged_database_is_repaired_into_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    printed(at, &["put", "db", "a", "1", "--partition", "users"], 0);
    // A table names its partition; the log has only its number.
    printed(at, &["compact", "db", "--partition", "users"], 0);
    let whole = printed(at, &["repair", "db", "--into", "same"], 0);
    assert!(whole.contains("partition users: 1 entries\n"), "{whole}");
    assert!(whole.contains("complete: every key is what it was\n"), "{whole}");
    for entry in std::fs::read_dir(at.join("db")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "manifest") {
            std::fs::remove_file(path).unwrap();
        }
    }
    refused(at, &["get", "db", "a", "--partition", "users"], 1, "siltstone repair");
    let text = printed(at, &["repair", "db", "--into", "new"], 0);
    assert!(text.contains("doubtful: all partitions, all keys: the manifest"), "{text}");
    assert!(!at.join("new.unfinished").exists(), "nothing is left next to it");
    let lines = printed(at, &["repair", "db", "--into", "third", "--json"], 0);
    assert!(lines.contains("{\"complete\":false}"), "{lines}");
    let export = ["export", "db", "stream", "--format", "stream", "--salvage", "--all-partitions"];
    printed(at, &export, 0);
    printed(at, &["import", "copy", "stream"], 0);
    for db in ["same", "new", "third", "copy"] {
        assert_eq!(printed(at, &["get", db, "a", "--partition", "users"], 0), "1\n", "{db}");
    }
    refused(at, &["repair", "db", "--into", "new"], 2, "is not empty");
    refused(at, &["export", "db", "tables", "--salvage"], 2, "--format stream");
    refused(
        at,
        &["export", "bd", "out", "--format", "stream", "--salvage"],
        1,
        "no database in bd",
    );
    assert!(!at.join("out").exists(), "a path that is mistyped leaves no file");
}

/// While this process writes, and after it has closed the database.
#[test]
fn get_reads_several_keys_and_says_how_long_they_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let db = Db::open(at.join("db")).unwrap();
    let users = db.partition("users").unwrap();
    users.put("a", "1").unwrap();
    users.put("b", "2").unwrap();
    let hour = Duration::from_secs(3600);
    let rule = TtlRule::in_value(0).width(TimeWidth::U32).time_to_live(hour);
    let options = PartitionOptions::new().filter(Arc::new(TtlFilter::stored(&rule)));
    let cache = db.partition_with("cache", options).unwrap();
    let now = SystemClock::new().unix_time().as_secs() as u32;
    cache.put("alive", now.to_be_bytes()).unwrap();
    cache.put("old", (now - 7200).to_be_bytes()).unwrap();
    check_gets(at);
    check_expired(at, now);
    db.close().unwrap();
    // What has expired is not stored any more.
    check_gets(at);
}

#[test]
fn partitions_get_rules_and_operators_and_show_their_hooks() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let create = ["partition", "create", "db", "cache", "--expire", "value:0,ms", "--metahive"];
    let text = printed(at, &create, 0);
    assert!(text.contains("expire            value:0,ms\n"), "{text}");
    assert!(text.contains("operator          none\nmetahive          true\n"), "{text}");
    let put = ["put", "db", "6f6c64", "0000000000000001", "--hex", "--partition", "cache"];
    printed(at, &put, 0);
    refused(at, &["get", "db", "old", "--partition", "cache"], 1, "no key");
    // In the year 2100.
    printed(at, &["put", "db", "6c617465", "000003bb2cc3d800", "--hex", "--partition", "cache"], 0);
    let explained = printed(at, &["explain", "db", "late", "--partition", "cache"], 0);
    assert!(explained.contains("\n   expires in "), "{explained}");
    let explained = printed(at, &["explain", "db", "late", "--partition", "cache", "--json"], 0);
    assert!(explained.contains("\"expired\":false"), "{explained}");

    let append = ["partition", "create", "db", "tags", "--operator", "append", "--separator", ","];
    assert!(printed(at, &append, 0).contains("operator          append:,\n"));
    for tag in ["red", "blue"] {
        printed(at, &["merge", "db", "--partition", "tags", "a", tag], 0);
    }
    assert_eq!(printed(at, &["get", "db", "a", "--partition", "tags"], 0), "red,blue\n");
    let large = printed(at, &["partition", "set", "db", "tags", "--large-values"], 0);
    assert!(large.contains("append:,\nmetahive          false\nlarge_values      true"), "{large}");
    let off = printed(at, &["partition", "set", "db", "tags", "--no-large-values"], 0);
    assert!(off.contains("large_values      false"), "{off}");
    let off = printed(at, &["partition", "set", "db", "cache", "--no-metahive"], 0);
    assert!(off.contains("value:0,ms\noperator          none\nmetahive          false"), "{off}");
    let off = printed(at, &["partition", "set", "db", "cache", "--no-expire", "--metahive"], 0);
    assert!(off.contains("none\noperator          none\nmetahive          true"), "{off}");

    // Entries without times would be taken for expired ones.
    printed(at, &["put", "db", "a", "administrator", "--partition", "users"], 0);
    let set = ["partition", "set", "db", "users", "--expire", "value"];
    refused(at, &set, 2, "the key \"a\"");
    assert_eq!(printed(at, &["get", "db", "a", "--partition", "users"], 0), "administrator\n");
    let text = printed(at, &[&set[..], &["--expire-stored"]].concat(), 0);
    assert!(text.contains("expire            value:0\n"), "{text}");
    // The same rule again changes nothing.
    assert_eq!(printed(at, &set, 0), text);
    assert!(printed(at, &["partition", "show", "db", "users", "--json"], 0).contains("value:0"));
    refused(at, &["partition", "set", "db", "users", "--expire", "values"], 2, "\"values\"");
    let wrong = ["partition", "create", "db", "other", "--operator", "minus"];
    refused(at, &wrong, 2, "no operator \"minus\"");
}

#[test]
fn metahive_that_is_turned_on_keeps_a_rule_of_expiry() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let db = Db::open(at.join("db")).unwrap();
    let options = PartitionOptions::new().ttl(&TtlRule::in_value(0));
    let cache = db.partition_with("cache", options).unwrap();
    cache.put("old", 1u64.to_be_bytes()).unwrap();
    db.close().unwrap();
    let get = ["get", "db", "old", "--partition", "cache"];
    refused(at, &get, 1, "no key");
    printed(at, &["partition", "set", "db", "cache", "--metahive"], 0);
    let put = ["put", "db", "6f6c64", "0000000000000001", "--hex", "--partition", "cache"];
    printed(at, &put, 0);
    refused(at, &get, 1, "no key");
    let scrubbed = printed(at, &["scrub", "db", "--partition", "cache", "--json"], 0);
    assert!(scrubbed.contains("\"has_metahive\":true"), "{scrubbed}");
}

fn check_gets(at: &Path) {
    let users = ["--partition", "users"];
    let args = [&["get", "db", "b", "none", "a"][..], &users].concat();
    let some = ended(at, &args, 1);
    assert_eq!(String::from_utf8_lossy(&some.stdout), "b\t2\na\t1\n");
    let errors = String::from_utf8_lossy(&some.stderr);
    assert!(errors.contains("no key none"), "{errors}");
    let args = [&["get", "db", "a", "b", "--json", "--remaining"][..], &users].concat();
    assert_eq!(
        printed(at, &args, 0),
        "{\"key\":\"a\",\"remaining\":\"unlimited\",\"value\":\"1\"}\n\
         {\"key\":\"b\",\"remaining\":\"unlimited\",\"value\":\"2\"}\n"
    );
    refused(
        at,
        &[&["get", "db", "a", "b", "--raw"][..], &users].concat(),
        2,
        "--raw takes one key",
    );
    assert_eq!(printed(at, &[&["get", "db", "a", "--raw"][..], &users].concat(), 0), "1");
}

fn check_expired(at: &Path, now: u32) {
    let cache = ["--partition", "cache", "--hex"];
    // "old" and "alive".
    let [old, alive] = ["6f6c64", "616c697665"];
    refused(at, &[&["get", "db", old][..], &cache].concat(), 1, "no key");
    let all = [&["get", "db", old, alive, "--expired", "--remaining"][..], &cache];
    let text = printed(at, &all.concat(), 0);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines[0][1..], [&format!("{:08x}", now - 7200), "expired"]);
    assert_eq!(lines[1][1], format!("{now:08x}"));
    let left: u64 = lines[1][2].parse().expect("seconds");
    assert!((3000..=3600).contains(&left), "{left}");
}

/// With the feature `zstd` the partition takes values; without it the command names the feature, and makes none.
#[test]
fn zstd_is_a_compression_of_builds_that_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let create = ["partition", "create", "db", "packed", "--compression", "zstd"];
    if cfg!(feature = "zstd") {
        let text = printed(at, &create, 0);
        assert!(text.contains("compression       zstd\n"), "{text}");
        let value = "sand and silt ".repeat(500);
        printed(at, &["put", "db", "k", &value, "--partition", "packed"], 0);
        printed(at, &["compact", "db", "--partition", "packed"], 0);
        assert_eq!(printed(at, &["get", "db", "k", "--partition", "packed"], 0), value + "\n");
    } else {
        refused(at, &create, 1, "this build lacks the feature `zstd`");
        assert_eq!(printed(at, &["count", "db"], 0), "0\n");
        refused(at, &["count", "db", "--partition", "packed"], 1, "no partition");
    }
}
