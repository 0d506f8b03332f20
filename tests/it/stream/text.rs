//! The text format of Berkeley DB: export and import.

use lsm_core::fs::MemFs;
use siltstone::stream::{StreamExport, StreamFormat, StreamImport};
use siltstone::{Db, ErrorKind};

use super::{Trickle, content, filled, hash, imported, open};

fn text_of(db: &Db, names: &[&str]) -> String {
    let mut text = Vec::new();
    let options = StreamExport::new().format(StreamFormat::BerkeleyText);
    db.export_stream(&mut text, &options.partitions(names.iter().copied())).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn the_text_is_that_of_db_dump() {
    let db = open(&MemFs::new());
    let p = db.partition("p").unwrap();
    p.put("key", "value").unwrap();
    p.put([0, 0xff], "").unwrap();
    let data = "type=btree\nHEADER=END\n 00ff\n \n 6b6579\n 76616c7565\nDATA=END\n";
    assert_eq!(text_of(&db, &["p"]), format!("VERSION=3\nformat=bytevalue\n{data}"));
    let both = text_of(&db, &["p", "default"]);
    let first = format!("VERSION=3\nformat=bytevalue\ndatabase=p\n{data}");
    let second =
        "VERSION=3\nformat=bytevalue\ndatabase=default\ntype=btree\nHEADER=END\nDATA=END\n";
    assert_eq!(both, first + second);
}

#[test]
fn all_partitions_come_back_from_text_with_the_same_hash() {
    let db = filled();
    let text = text_of(&db, &["media", "words"]);
    let other = open(&MemFs::new());
    other.partition_with("media", super::large()).unwrap();
    let summary = other.import_stream(text.as_bytes(), &StreamImport::new()).unwrap();
    assert_eq!(summary.entries, 20);
    assert_eq!(hash(&content(&other)), hash(&content(&db)));
    let resume = StreamImport::new().resume(true);
    let summary = other.import_stream(Trickle(text.as_bytes()), &resume).unwrap();
    assert_eq!((summary.entries, summary.skipped), (20, 20));
    let one = text_of(&db, &["words"]);
    let there = StreamImport::new().partition("there");
    other.import_stream(one.as_bytes(), &there).unwrap();
    assert_eq!(content(&other)["there"], content(&db)["words"]);
    let refused = other.import_stream(text.as_bytes(), &there).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
}

#[test]
fn a_partition_without_entries_gets_large_values_if_they_are_asked_for() {
    let text = "VERSION=3\nHEADER=END\n 61\n 62\nDATA=END\n";
    let options = StreamImport::new().large_values(true);
    let db = open(&MemFs::new());
    db.partition("full").unwrap().put("k", "v").unwrap();
    db.import_stream(text.as_bytes(), &options).unwrap();
    db.import_stream(text.as_bytes(), &options.clone().partition("full")).unwrap();
    db.import_stream(text.as_bytes(), &StreamImport::new().partition("plain")).unwrap();
    for (name, has_large_values) in [("default", true), ("full", false), ("plain", false)] {
        let partition = db.partition(name).unwrap();
        assert_eq!(partition.space().is_some(), has_large_values, "{name}");
        assert_eq!(partition.get("a").unwrap().unwrap(), &b"b"[..]);
    }
}

/// As `db_dump -p` and the `mdb_dump` of LMDB write it.
#[test]
fn printable_text_and_lines_of_other_engines_are_understood() {
    let header = "VERSION=3\nformat=print\ntype=hash\nmapsize=1048576\ndb_pagesize=4096\n";
    let text = format!("{header}HEADER=END\n a\\\\b\\0a\n x y\\ff\nDATA=END\n");
    let db = open(&MemFs::new());
    assert_eq!(db.import_stream(text.as_bytes(), &StreamImport::new()).unwrap().entries, 1);
    let p = db.partition("default").unwrap();
    assert_eq!(p.get(b"a\\b\n").unwrap().unwrap(), &b"x y\xff"[..]);
}

#[test]
fn text_that_is_not_understood_is_refused_with_its_line() {
    let header = "VERSION=3\ntype=btree\nHEADER=END\n";
    let printed = "VERSION=3\nformat=print\nHEADER=END\n";
    let cases = [
        ("VERSION=4\n", "VERSION=4 in the header of a text, on line 1"),
        ("VERSION=3\nformat=blocks\n", "format=blocks in the header of a text, on line 2"),
        ("VERSION=3\nformat=\u{1b}[2J\n", "format=\\u{1b}[2J in the header of a text, on line 2"),
        ("VERSION=3\ntype=recno\n", "type=recno in the header of a text, on line 2"),
        ("VERSION=3\nkeys=0\n", "a database without keys, on line 2"),
        ("VERSION=3\nVERSION=3\n", "does not begin with its version, on line 2"),
        ("VERSION=3\nnonsense\n", "without `=`, on line 2"),
        (&format!("{header} 61\n 6\nDATA=END\n"), "ends inside of a byte, on line 5"),
        (&format!("{header} 61\n 6g\nDATA=END\n"), "no hex digit, on line 5"),
        (&format!("{header} 61\nDATA=END\n"), "a key without a value, on line 6"),
        (
            &format!("{header}61\n 62\nDATA=END\n"),
            "neither an entry nor the end of the data, on line 4",
        ),
        (&format!("{header} 61\n 62\n 61\n 63\nDATA=END\n"), "several values, on line 6"),
        (&format!("{header} 61\n 62\nDATA=END\nHEADER=END\n"), "with its version, on line 7"),
        (&format!("{printed} a\n \\6\nDATA=END\n"), "ends inside of a byte, on line 5"),
        (&format!("{printed} a\n \\zz\nDATA=END\n"), "no hex digit, on line 5"),
    ];
    for (text, expected) in cases {
        let (outcome, _) = imported(text.as_bytes());
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    let long = format!("{header} {}\n 61\nDATA=END\n", "6".repeat(140_000));
    let error = imported(long.as_bytes()).0.unwrap_err().to_string();
    assert!(error.contains("longer than any key") && error.contains("line 4"), "{error}");
    let long = ["VERSION=3\n", &"x".repeat(5000), "=\nHEADER=END\nDATA=END\n"].concat();
    let error = imported(long.as_bytes()).0.unwrap_err().to_string();
    assert!(error.contains("a long line in a header"), "{error}");
}

#[test]
fn text_that_is_cut_at_any_byte_is_refused() {
    let db = open(&MemFs::new());
    let p = db.partition("p").unwrap();
    for key in ["a", "b", "c"] {
        p.put(key, key.repeat(3)).unwrap();
    }
    let text = text_of(&db, &["p"]);
    for len in 0..text.len() {
        let (outcome, part) = imported(&text.as_bytes()[..len]);
        assert!(outcome.is_err(), "cut at {len}");
        for (key, value) in part.values().flatten() {
            assert_eq!(*value, key.repeat(3), "cut at {len}");
        }
    }
    assert_eq!(imported(text.as_bytes()).0, Ok(3));
}

#[test]
fn a_name_that_fits_into_no_line_is_refused() {
    let db = open(&MemFs::new());
    db.partition("two\nlines").unwrap();
    let options = StreamExport::new().format(StreamFormat::BerkeleyText);
    let mut text = Vec::new();
    let refused = db.export_stream(&mut text, &options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert!(text.is_empty(), "whole text of the databases before it would be no error");
}
