//! The tools of Berkeley DB and LMDB read text exports, and their output can be imported.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]
#![expect(clippy::disallowed_methods, reason = "the tools' files are outside every database")]

mod runner;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use runner::ended;
use siltstone::{Db, LargeValueOptions, PartitionOptions};
use testkit::Rng;

/// A tool that loads and one that dumps, with options of it.
type Tools = (&'static str, &'static [&'static str]);

/// The printable form of LMDB 0.9.24 does not escape a backslash, so it is unreadable.
const TOOLS: [Tools; 3] =
    [("db_load", &["db_dump"]), ("db_load", &["db_dump", "-p"]), ("mdb_load", &["mdb_dump"])];

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// Keys as LMDB takes them, and few bytes in all: a new file of its tools has room for 1 MiB.
fn entries() -> Entries {
    let mut rng = Rng::from_env_or(9);
    let mut entries = Entries::new();
    for n in 0..200 {
        let len = if n % 20 == 7 { 20_000 } else { n * 7 % 900 };
        entries.insert(random(&mut rng, 1 + n % 40), random(&mut rng, len));
    }
    entries.insert(b"printable \\ key".to_vec(), b"value\n".to_vec());
    entries
}

fn output_of(at: &Path, tool: &str, args: &[&str]) -> Vec<u8> {
    let output = Command::new(tool).current_dir(at).args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {args:?}: {errors}");
    output.stdout
}

#[test]
fn the_tools_of_berkeley_db_and_lmdb_read_the_text_and_theirs_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let entries = entries();
    let db = Db::open(at.join("db")).unwrap();
    let large = LargeValueOptions::new().threshold_bytes(1024);
    let p = db.partition_with("default", PartitionOptions::new().large_values(large)).unwrap();
    for (key, value) in &entries {
        p.put(key, value).unwrap();
    }
    drop(p);
    db.close().unwrap();
    ended(at, &["export", "db", "text", "--format", "db-dump", "--partition", "default"], 0);
    for (load, dump) in TOOLS {
        if Command::new(load).arg("-V").output().is_err() {
            println!("skipped: {load} is not installed");
            continue;
        }
        let loaded = format!("of {}", dump.join(" "));
        if load == "mdb_load" {
            std::fs::create_dir(at.join(&loaded)).unwrap();
        }
        output_of(at, load, &["-f", "text", &loaded]);
        let text = output_of(at, dump[0], &[&dump[1..], &[&loaded]].concat());
        std::fs::write(at.join("back"), text).unwrap();
        let copy = format!("copy {loaded}");
        ended(at, &["import", &copy, "back"], 0);
        let db = Db::open(at.join(&copy)).unwrap();
        let found = db.partition("default").unwrap().iter();
        let found: Entries = found
            .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
            .collect();
        assert!(found == entries, "{copy}: {} entries", found.len());
    }
}
