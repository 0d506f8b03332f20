//! The bound of open files.

use std::path::PathBuf;

use super::*;
use crate::fs::MemFs;

fn numbered(n: usize) -> PathBuf {
    PathBuf::from(format!("/d/{n}"))
}

fn files(count: usize) -> Arc<dyn Fs> {
    let fs = MemFs::new();
    fs.create_dir(Path::new("/d")).unwrap();
    for n in 0..count {
        let file = fs.open_append(&numbered(n), AppendMode::IfAbsent).unwrap();
        file.append(&[n as u8; 8]).unwrap();
    }
    Arc::new(fs)
}

fn read(file: &TableFile) -> u8 {
    let mut buf = [0; 1];
    assert_eq!(file.read_at(3, &mut buf).unwrap(), 1);
    buf[0]
}

#[test]
fn more_files_than_the_limit_are_read_and_no_more_are_open() {
    let set = OpenFiles::new(files(50), 7);
    let all: Vec<_> = (0..50).map(|n| TableFile::open(&set, &numbered(n)).unwrap()).collect();
    for _ in 0..3 {
        for (n, file) in all.iter().enumerate() {
            assert_eq!(read(file), n as u8);
            assert!(set.open_count() <= 7, "{}", set.open_count());
        }
    }
    assert!(set.reopened_count() > 100);
    // A file that is read often stays open while others come and go.
    let before = set.reopened_count();
    for file in &all[1..] {
        read(&all[0]);
        read(file);
    }
    assert!(set.reopened_count() - before <= 50, "the first one was opened again");
    drop(all);
    assert_eq!(set.open_count(), 0);
}

#[test]
fn files_that_are_gone_leave_no_places() {
    let set = OpenFiles::new(files(1), 4);
    for _ in 0..1000 {
        drop(TableFile::open(&set, &numbered(0)).unwrap());
    }
    assert!(set.queue.lock().len() <= 9);
    assert_eq!(set.open_count(), 0);
}

#[test]
fn a_file_that_is_adopted_is_opened_again_for_reading() {
    let fs = files(3);
    let set = OpenFiles::new(fs.clone(), 1);
    let path = numbered(7);
    let writer = set.fs().open_append(&path, AppendMode::IfAbsent).unwrap();
    let adopted = set.adopt(&path, writer.clone());
    assert!(Arc::ptr_eq(&adopted.file().unwrap(), &writer) && **adopted.path() == path);
    let others: Vec<_> = (0..3).map(|n| TableFile::open(&set, &numbered(n)).unwrap()).collect();
    others.iter().for_each(|other| assert!(read(other) < 3 && set.open_count() == 1));
    // What the writer appends meanwhile is there.
    writer.append(b"1234").unwrap();
    let mut buf = [0; 4];
    assert_eq!(adopted.file().unwrap().read_at(0, &mut buf).unwrap(), 4);
    assert_eq!((&buf, set.open_count()), (b"1234", 1));
    // A set without bounds.
    let set = OpenFiles::new(fs, usize::MAX);
    assert_eq!(read(&TableFile::open(&set, &numbered(2)).unwrap()), 2);
}

#[test]
fn threads_share_the_set() {
    let set = OpenFiles::new(files(20), 3);
    let all: Vec<_> = (0..20).map(|n| TableFile::open(&set, &numbered(n)).unwrap()).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let all = &all;
            scope.spawn(move || {
                for step in 0..500 {
                    let n = (step * 7 + thread * 3) % 20;
                    assert_eq!(read(&all[n]), n as u8);
                }
            });
        }
    });
    for file in &all {
        read(file);
    }
    assert!(set.open_count() <= 3);
}
