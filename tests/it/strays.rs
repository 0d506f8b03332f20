//! Foreign files: things in the folder of a database that it did not create, under the names of its
//! files.
//!
//! None of them may prevent a database from being opened, written, followed and closed, and nothing
//! outside of the folder may be changed through a link.

#![expect(clippy::disallowed_methods, reason = "it puts things into the folder of the database")]

use std::os::unix::fs::symlink;
use std::path::Path;

use siltstone::secondary::Target;
use siltstone::{Db, Options};

/// The forms of a foreign file.
#[derive(Clone, Copy, Debug)]
enum Form {
    Empty,
    Garbage,
    /// As long as a whole table, cursor or lease.
    LongGarbage,
    Folder,
    FullFolder,
    DanglingLink,
    LinkToFile,
    LinkToFolder,
    LinkToItself,
}

const FORMS: [Form; 9] = [
    Form::Empty,
    Form::Garbage,
    Form::LongGarbage,
    Form::Folder,
    Form::FullFolder,
    Form::DanglingLink,
    Form::LinkToFile,
    Form::LinkToFolder,
    Form::LinkToItself,
];

/// Names of each kind with numbers that are used, next, far away, and the last possible ones.
fn names() -> Vec<String> {
    let mut names = Vec::new();
    let near = 2..12_u64;
    let far = [1 << 40, u64::MAX / 2 - 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX];
    for number in near.chain(far) {
        for epoch in [1_u32, 2, u32::MAX] {
            for kind in ["sst", "wal", "chunk", "manifest"] {
                names.push(format!("{number:016x}-{epoch:08x}.{kind}"));
            }
        }
    }
    for epoch in [0_u32, 1, 2, 3, 9, u32::MAX] {
        names.extend(["cursor", "epoch", "fork"].map(|front| format!("{front}-{epoch:08x}")));
    }
    for id in [0, 1, u64::MAX] {
        names.push(format!("reader-{id:016x}"));
    }
    names.push("000000000000000a-00000001.manifest.123-4.tmp".to_owned());
    names.push("epoch-00000002.123-4.tmp".to_owned());
    names.push("EXPORT".to_owned());
    names
}

/// Puts foreign files into `dir`, under each name that is free.
fn put(dir: &Path, outside: &Path, form: Form, names: &[String]) {
    for name in names {
        let path = dir.join(name);
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match form {
            Form::Empty => std::fs::write(&path, b"").unwrap(),
            Form::Garbage => std::fs::write(&path, b"garbage").unwrap(),
            Form::LongGarbage => std::fs::write(&path, vec![0xa5; 70_000]).unwrap(),
            Form::Folder => std::fs::create_dir(&path).unwrap(),
            Form::FullFolder => {
                std::fs::create_dir(&path).unwrap();
                std::fs::write(path.join("file"), b"not ours").unwrap();
            }
            Form::DanglingLink => symlink(outside.join("nothing"), &path).unwrap(),
            Form::LinkToFile => symlink(outside.join("file"), &path).unwrap(),
            Form::LinkToFolder => symlink(outside.join("folder"), &path).unwrap(),
            Form::LinkToItself => symlink(&path, &path).unwrap(),
        }
    }
}

/// Opens, writes, follows, verifies, closes, and does so again.
fn use_database(dir: &Path, what: &str) {
    for round in 0..2 {
        let open = Db::builder(dir).options(Options::new().cache_bytes(0)).open();
        let db = open.unwrap_or_else(|error| panic!("{what}, round {round}: {error}"));
        let p = db.partition("p").unwrap();
        assert_eq!(p.get("k").unwrap().as_deref(), Some(&b"1"[..]), "{what}");
        p.put(format!("round {round}"), "x").unwrap();
        let flushed = db.flush().and_then(|()| p.compact(..)).and_then(|()| db.wait_idle());
        flushed.unwrap_or_else(|error| panic!("{what}, round {round}: {error}"));
        let follower = Db::secondary(dir);
        let follower = follower.unwrap_or_else(|error| panic!("{what}: a secondary: {error}"));
        follower.sync(Target::Latest).unwrap_or_else(|error| panic!("{what}: sync: {error}"));
        assert!(follower.partition("p").unwrap().get(format!("round {round}")).unwrap().is_some());
        drop(follower);
        let beside = Db::builder(dir).beside_writer(true).open();
        let beside = beside.unwrap_or_else(|error| panic!("{what}: read-only open: {error}"));
        assert!(beside.verify(Default::default()).unwrap().is_sound(), "{what}");
        drop(beside);
        let report = db.verify(Default::default()).unwrap();
        assert!(report.is_sound(), "{what}: {report}");
        drop(p);
        db.close().unwrap_or_else(|error| panic!("{what}, round {round}: close: {error}"));
        let read = Db::builder(dir).read_only(true).open();
        read.unwrap_or_else(|error| panic!("{what}, read only: {error}"));
    }
}

fn check(form: Form, names: &[String]) {
    let scene = tempfile::tempdir().unwrap();
    let dir = scene.path().join("db");
    let outside = scene.path().join("outside");
    std::fs::create_dir_all(outside.join("folder")).unwrap();
    std::fs::write(outside.join("file"), vec![7; 80_000]).unwrap();
    let db = Db::open(&dir).unwrap();
    db.partition("p").unwrap().put("k", "1").unwrap();
    db.close().unwrap();
    put(&dir, &outside, form, names);
    use_database(&dir, &format!("{form:?} {}", if names.len() == 1 { &names[0] } else { "all" }));
    assert_eq!(std::fs::read(outside.join("file")).unwrap(), vec![7; 80_000], "{form:?}");
    assert_eq!(std::fs::read_dir(outside.join("folder")).unwrap().count(), 0, "{form:?}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 2, "{form:?}");
}

#[test]
fn foreign_files_under_database_names_prevent_no_open() {
    let names = names();
    for form in FORMS {
        check(form, &names);
    }
}
