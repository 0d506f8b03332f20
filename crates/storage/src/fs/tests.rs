//! One suite of behaviours that every file system has to show: the real one, the one in memory,
//! and the one that counts and breaks, over either.

#[cfg(target_os = "linux")]
pub(super) mod cached;
mod mapped;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Barrier;

use super::{AppendMode, DirEntry, FaultFs, File, Fs, MemFs, OsFs};
use crate::error::{Error, ErrorKind, Result};

/// Runs `check` in a fresh folder of each file system.
fn on_each(check: impl Fn(&Arc<dyn Fs>, &Path)) {
    let temporary = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let cases: [(&str, Arc<dyn Fs>, PathBuf); 4] = [
        ("os", Arc::new(OsFs), temporary[0].path().join("db")),
        ("mem", Arc::new(MemFs::new()), "/data/db".into()),
        ("fault over mem", Arc::new(FaultFs::over_mem(MemFs::new())), "data/db".into()),
        ("fault over os", Arc::new(FaultFs::new(Arc::new(OsFs))), temporary[1].path().join("db")),
    ];
    for (name, fs, dir) in cases {
        eprintln!("on {name}");
        fs.create_dir(&dir).unwrap();
        check(&fs, &dir);
    }
}

fn create(fs: &Arc<dyn Fs>, path: &Path, bytes: &[u8]) -> Arc<dyn File> {
    let file = fs.open_append(path, AppendMode::IfAbsent).unwrap();
    file.append(bytes).unwrap();
    file
}

fn read_all(file: &Arc<dyn File>) -> Vec<u8> {
    let mut buf = vec![0xee; usize::try_from(file.len().unwrap()).unwrap() + 5];
    let n = file.read_at(0, &mut buf).unwrap();
    let mut uncached = vec![0xee; buf.len()];
    assert_eq!(file.read_at_uncached(0, &mut uncached).unwrap(), n);
    assert_eq!(buf, uncached);
    let mut cached = vec![0xee; buf.len()];
    let got = file.read_cached_at(0, &mut cached).unwrap();
    assert!(got <= n && cached[..got] == buf[..got]);
    buf.truncate(n);
    buf
}

fn load(fs: &Arc<dyn Fs>, path: &Path) -> Vec<u8> {
    read_all(&fs.open_read(path).unwrap())
}

fn io_kind<T>(result: Result<T>) -> io::ErrorKind {
    let e: Error = result.err().expect("it should fail");
    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
    e.io_source().unwrap().kind()
}

fn entry(name: &str, len: u64) -> DirEntry {
    DirEntry { name: name.to_owned(), len }
}

#[test]
fn appends_follow_one_another_and_are_read_by_position() {
    on_each(|fs, dir| {
        let path = dir.join("a");
        let file = create(fs, &path, b"hello ");
        file.append(b"").unwrap();
        file.append(b"world").unwrap();
        file.sync().unwrap();
        let reader = fs.open_read(&path).unwrap();
        for file in [&file, &reader] {
            let mut buf = [b'.'; 4];
            assert_eq!((file.read_at(6, &mut buf).unwrap(), &buf), (4, b"worl"));
            let mut buf = [b'.'; 4];
            assert_eq!((file.read_at(9, &mut buf).unwrap(), &buf), (2, b"ld.."));
            for offset in [11, 12, 1 << 40, u64::MAX - 1, u64::MAX] {
                assert_eq!(file.read_at(offset, &mut buf).unwrap(), 0, "{offset}");
            }
            assert_eq!(file.read_at(0, &mut []).unwrap(), 0);
            assert_eq!(file.len().unwrap(), 11);
        }
        file.append(b"!").unwrap();
        assert_eq!(read_all(&reader), b"hello world!");
    });
}

#[test]
fn a_reader_cannot_write() {
    on_each(|fs, dir| {
        let path = dir.join("a");
        create(fs, &path, b"x");
        let reader = fs.open_read(&path).unwrap();
        assert!(reader.append(b"y").is_err());
        assert!(reader.preallocate(100).is_err());
        assert!(!fs.caps().punch || reader.punch(0, 1).is_err());
        assert_eq!(read_all(&reader), b"x");
    });
}

#[test]
fn opening_to_append_respects_the_mode() {
    on_each(|fs, dir| {
        let path = dir.join("a");
        let existing = fs.open_append(&path, AppendMode::Existing);
        assert_eq!(io_kind(existing), io::ErrorKind::NotFound);
        create(fs, &path, b"one");
        let again = fs.open_append(&path, AppendMode::IfAbsent);
        assert_eq!(io_kind(again), io::ErrorKind::AlreadyExists);
        fs.open_append(&path, AppendMode::Existing).unwrap().append(b"two").unwrap();
        assert_eq!(load(fs, &path), b"onetwo");
    });
}

#[test]
fn what_is_missing_is_not_found() {
    on_each(|fs, dir| {
        let nowhere = dir.join("no/a");
        assert_eq!(io_kind(fs.open_read(&dir.join("a"))), io::ErrorKind::NotFound);
        assert_eq!(io_kind(fs.open_read(&nowhere)), io::ErrorKind::NotFound);
        let created = fs.open_append(&nowhere, AppendMode::IfAbsent);
        assert_eq!(io_kind(created), io::ErrorKind::NotFound);
        assert_eq!(io_kind(fs.put_if_absent(&nowhere, b"x")), io::ErrorKind::NotFound);
        assert_eq!(io_kind(fs.list(&dir.join("no"), "")), io::ErrorKind::NotFound);
        assert_eq!(io_kind(fs.sync_dir(&dir.join("no"))), io::ErrorKind::NotFound);
        assert_eq!(io_kind(fs.try_lock(&nowhere)), io::ErrorKind::NotFound);
        assert_eq!(io_kind(fs.free_bytes(&dir.join("no"))), io::ErrorKind::NotFound);
        assert_eq!(io_kind(fs.link(&dir.join("a"), &dir.join("b"))), io::ErrorKind::NotFound);
        fs.delete(&dir.join("a")).unwrap();
        fs.delete(&nowhere).unwrap();
    });
}

#[test]
fn folders_come_with_their_parents_and_may_exist() {
    on_each(|fs, dir| {
        let deep = dir.join("a/b/c");
        fs.create_dir(&deep).unwrap();
        fs.create_dir(&deep).unwrap();
        fs.create_dir(&dir.join("a/b/d")).unwrap();
        create(fs, &deep.join("f"), b"x");
        assert_eq!(fs.list(&deep, "").unwrap(), [entry("f", 1)]);
        assert_eq!(fs.list(dir, "").unwrap(), [], "folders are not listed");
        assert!(fs.create_dir(&deep.join("f")).is_err(), "a file is in the way");
        assert!(fs.create_dir(&deep.join("f/g")).is_err());
        assert!(fs.free_bytes(&deep).unwrap() > 0);
    });
}

#[test]
fn lists_are_in_the_order_of_names_with_lengths() {
    on_each(|fs, dir| {
        for (name, len) in [("b1", 3), ("a", 1), ("b", 0), ("c", 2), ("b0", 70_000)] {
            create(fs, &dir.join(name), &vec![1; len]);
        }
        let b = [entry("b", 0), entry("b0", 70_000), entry("b1", 3)];
        assert_eq!(fs.list(dir, "b").unwrap(), b);
        assert_eq!(fs.list(dir, "").unwrap().len(), 5);
        assert_eq!(fs.list(dir, "d").unwrap(), []);
        fs.delete(&dir.join("b0")).unwrap();
        assert_eq!(fs.list(dir, "b").unwrap(), [entry("b", 0), entry("b1", 3)]);
    });
}

#[test]
fn publishing_takes_a_free_name_only() {
    on_each(|fs, dir| {
        let path = dir.join("m");
        assert!(fs.put_if_absent(&path, b"first").unwrap());
        assert!(!fs.put_if_absent(&path, b"second").unwrap());
        assert_eq!(fs.list(dir, "").unwrap(), [entry("m", 5)], "nothing else is left");
        assert_eq!(load(fs, &path), b"first");
        fs.delete(&path).unwrap();
        assert!(fs.put_if_absent(&path, b"").unwrap());
        assert_eq!(load(fs, &path), b"");
    });
}

#[test]
fn of_many_publishers_one_wins_whole() {
    on_each(|fs, dir| {
        let path = dir.join("m");
        let start = Barrier::new(4);
        let wins: Vec<(u8, bool)> = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for id in 0..4u8 {
                let start = &start;
                let path = &path;
                threads.push(scope.spawn(move || {
                    start.wait();
                    (id, fs.put_if_absent(path, &vec![id; 50_000]).unwrap())
                }));
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winners: Vec<u8> = wins.iter().filter(|(_, won)| *won).map(|(id, _)| *id).collect();
        assert_eq!(winners.len(), 1);
        assert_eq!(load(fs, &path), vec![winners[0]; 50_000]);
        assert_eq!(fs.list(dir, "").unwrap().len(), 1);
    });
}

#[test]
fn a_link_is_a_second_name_of_the_same_bytes() {
    on_each(|fs, dir| {
        let a = dir.join("a");
        let b = dir.join("b");
        let file = create(fs, &a, b"one");
        fs.link(&a, &b).unwrap();
        file.append(b"two").unwrap();
        assert_eq!(load(fs, &b), b"onetwo");
        assert_eq!(io_kind(fs.link(&a, &b)), io::ErrorKind::AlreadyExists);
        fs.delete(&a).unwrap();
        assert_eq!(load(fs, &b), b"onetwo");
        fs.sync_dir(dir).unwrap();
    });
}

#[test]
fn an_open_file_outlives_its_name() {
    on_each(|fs, dir| {
        let path = dir.join("a");
        let file = create(fs, &path, b"old");
        fs.delete(&path).unwrap();
        create(fs, &path, b"new");
        file.append(b"er").unwrap();
        file.sync().unwrap();
        assert_eq!(read_all(&file), b"older");
        assert_eq!(load(fs, &path), b"new");
    });
}

#[test]
fn bytes_are_written_over_others_where_they_are() {
    on_each(|fs, dir| {
        let path = dir.join("a");
        let file = create(fs, &path, b"abcdef");
        file.overwrite(1, b"XY").unwrap();
        file.append(b"g").unwrap();
        assert_eq!(read_all(&file), b"aXYdefg");
        let other = fs.open_append(&path, AppendMode::Existing).unwrap();
        other.overwrite(6, b"G").unwrap();
        other.append(b"h").unwrap();
        assert_eq!(load(fs, &path), b"aXYdefGh");
    });
}

#[test]
fn preallocation_does_not_move_the_append() {
    on_each(|fs, dir| {
        let path = dir.join("a");
        let file = create(fs, &path, b"ab");
        file.preallocate(10_000).unwrap();
        file.preallocate(5).unwrap();
        file.append(b"cd").unwrap();
        let mut expected = b"abcd".to_vec();
        expected.resize(10_000, 0);
        assert_eq!(read_all(&file), expected);
        assert_eq!(fs.list(dir, "").unwrap(), [entry("a", 10_000)]);
        fs.open_append(&path, AppendMode::Existing).unwrap().append(b"z").unwrap();
        expected.push(b'z');
        assert_eq!(load(fs, &path), expected, "a new handle appends at the end");
    });
}

#[test]
fn punched_ranges_read_as_zeros() {
    on_each(|fs, dir| {
        if !fs.caps().punch {
            return;
        }
        let file = create(fs, &dir.join("a"), &vec![7; 20_000]);
        file.punch(5000, 10_000).unwrap();
        file.punch(19_999, 1 << 20).unwrap();
        file.punch(3, 0).unwrap();
        let mut expected = vec![7; 20_000];
        expected[5000..15_000].fill(0);
        expected[19_999] = 0;
        assert_eq!(read_all(&file), expected);
    });
}

#[test]
fn a_lock_excludes_until_it_is_dropped() {
    on_each(|fs, dir| {
        let path = dir.join("LOCK");
        let guard = fs.try_lock(&path).unwrap();
        assert!(guard.is_some());
        assert!(fs.try_lock(&path).unwrap().is_none());
        assert!(fs.try_lock(&dir.join("OTHER")).unwrap().is_some());
        drop(guard);
        assert!(fs.try_lock(&path).unwrap().is_some());
        assert!(fs.try_lock(&path).unwrap().is_some());
    });
}

#[test]
fn a_shared_lock_excludes_writers_alone_and_makes_no_file() {
    on_each(|fs, dir| {
        let path = dir.join("LOCK");
        assert_eq!(io_kind(fs.try_lock_shared(&path)), io::ErrorKind::NotFound);
        assert!(fs.list(dir, "").unwrap().is_empty());
        assert!(fs.list_names(dir, "").unwrap().is_empty());
        let writer = fs.try_lock(&path).unwrap();
        assert!(fs.try_lock_shared(&path).unwrap().is_none());
        drop(writer);
        let readers = [fs.try_lock_shared(&path).unwrap(), fs.try_lock_shared(&path).unwrap()];
        assert!(readers.iter().all(Option::is_some));
        let [one, other] = readers;
        drop(one);
        assert!(fs.try_lock(&path).unwrap().is_none());
        drop(other);
        assert!(fs.try_lock(&path).unwrap().is_some());
    });
}

#[test]
fn appends_of_many_threads_do_not_overlap_while_one_syncs() {
    on_each(|fs, dir| {
        let file = create(fs, &dir.join("a"), b"");
        std::thread::scope(|scope| {
            for id in 1..=3u8 {
                let file = &file;
                scope.spawn(move || (0..500).for_each(|_| file.append(&[id; 100]).unwrap()));
            }
            (0..10).for_each(|_| file.sync().unwrap());
        });
        let bytes = read_all(&file);
        assert_eq!(bytes.len(), 150_000);
        let mut counts = [0; 4];
        for record in bytes.chunks(100) {
            assert!(record.iter().all(|byte| *byte == record[0]), "an append was torn");
            counts[usize::from(record[0])] += 1;
        }
        assert_eq!(counts, [0, 500, 500, 500]);
    });
}
