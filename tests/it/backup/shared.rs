//! The bytes that a backup reads and adds: only what no earlier one has.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::fs::{AppendMode, File};
use siltstone::backup::BackupInfo;

use crate::forward::forward_fs;

use super::*;

/// A file system that counts the bytes that are read.
struct CountingFs {
    fs: MemFs,
    read: Arc<AtomicU64>,
}

struct CountingFile {
    file: Arc<dyn File>,
    read: Arc<AtomicU64>,
}

impl Fs for CountingFs {
    forward_fs!(fs);

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        self.fs.open_append(path, mode)
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        let file = self.fs.open_read(path)?;
        Ok(Arc::new(CountingFile { file, read: self.read.clone() }))
    }
}

impl File for CountingFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.file.append(bytes)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let got = self.file.read_at(offset, buf)?;
        self.read.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.file.preallocate(len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.file.punch(offset, len)
    }
}

const ROWS: u32 = 20_000;

fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Makes a backup as another process does; returns the bytes that it has read.
fn back_up(mem: &MemFs, read: &Arc<AtomicU64>) -> (u64, BackupInfo) {
    let before = read.load(Ordering::Relaxed);
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let fs = CountingFs { fs: mem.clone(), read: read.clone() };
    let made = engine(&plain).create_backup_of(Db::builder(DIR).fs(Arc::new(fs))).unwrap();
    (read.load(Ordering::Relaxed) - before, made)
}

/// 20 MB in tables and 4 MB of large values; then one of a hundred rows, and of the values, changes.
#[test]
fn a_backup_after_one_percent_has_changed_reads_few_percent() {
    let (mem, plain) = memory();
    let db = stepped(plain, DIR, 1).options(options().wal_segment_bytes(64 << 10));
    let db = db.open().unwrap();
    let rows = db.partition_with("rows", PartitionOptions::new()).unwrap();
    let values = db.partition_with("large", partition_options("large")).unwrap();
    let mut rng = Rng::new(5);
    rows.bulk_load((0..ROWS).map(|n| (n.to_be_bytes(), bytes(&mut rng, 1000)))).unwrap();
    for n in 0..200_u32 {
        values.put(n.to_be_bytes(), bytes(&mut rng, 20_000)).unwrap();
    }
    db.flush().unwrap();
    let read = Arc::new(AtomicU64::new(0));
    let (first_read, first) = back_up(&mem, &read);
    assert!(first.size > 24_000_000 && first.new_bytes == first.size, "{first:?}");
    assert!(first_read >= first.size);
    for n in (0..ROWS).step_by(100) {
        rows.put(n.to_be_bytes(), bytes(&mut rng, 1000)).unwrap();
    }
    for n in [3_u32, 77] {
        values.put(n.to_be_bytes(), bytes(&mut rng, 20_000)).unwrap();
    }
    db.flush().unwrap();
    let (second_read, second) = back_up(&mem, &read);
    println!(
        "{first_read} and {second_read} bytes read, {} and {} new",
        first.size, second.new_bytes
    );
    assert!(second.new_bytes * 100 / first.size <= 2, "{second:?}");
    assert!(second_read * 100 / first.size <= 4, "{second_read} of {}", first.size);
    let (third_read, third) = back_up(&mem, &read);
    assert_eq!(third.new_bytes, 0, "nothing has changed");
    assert!(third_read * 100 / first.size <= 2, "{third_read}");
}

/// Without the code of hooks a backup is as complete.
#[test]
fn a_backup_needs_no_code_of_hooks() {
    let (mem, fs) = memory();
    let db = create(&fs, DIR, 1);
    let mut rng = Rng::new(3);
    for round in 0..3 {
        write(&db, &mut rng);
        if round == 1 {
            db.flush().unwrap();
        }
    }
    db.partition("unlogged").unwrap().flush().unwrap();
    let bare = lsm_core::Db::builder(DIR).fs(fs.clone()).backup_source();
    let engine = lsm_core::backup::BackupFolder::open(BACKUPS).fs(fs.clone());
    let backup = engine.create_backup_of(&bare).unwrap();
    assert!(restored(&fs, &mem, backup.backup_id).unwrap() == state(&db));
}

/// Writes each folder's database by `write`, which gets the place of the folder; the backup of each has its own values.
fn check_parted(fs: &Arc<dyn Fs>, mem: &MemFs, dirs: &[&str], write: impl Fn(u64, &Db)) {
    let mut expected = Vec::new();
    for (n, dir) in (1..).zip(dirs) {
        let db = open(fs, dir, 4).unwrap();
        write(n, &db);
        let backup = engine(fs).create_backup(&db).unwrap();
        expected.push((backup.backup_id, state(&db)));
        db.close().unwrap();
    }
    for (id, state) in expected {
        assert!(restored(fs, mem, id).unwrap() == state, "{id}");
    }
}

/// Databases that were restored from one backup give their files names that differ.
#[test]
fn restored_databases_that_part_share_no_file_by_mistake() {
    let (mem, fs) = memory();
    let db = create(&fs, DIR, 1);
    write(&db, &mut Rng::new(1));
    let first = engine(&fs).create_backup(&db).unwrap().backup_id;
    db.close().unwrap();
    for dir in ["/one", "/two"] {
        engine(&fs).restore(first, dir).unwrap();
    }
    check_parted(&fs, &mem, &["/one", "/two", DIR], |n, db| {
        // The same keys, and values of the same lengths.
        for key in 0..30_u64 {
            for name in PARTITIONS {
                let value = [n * 100 + key; 60].map(u64::to_le_bytes).concat();
                db.partition(name).unwrap().put(key.to_be_bytes(), value).unwrap();
            }
        }
    });
}

/// A folder that was copied has files of the same names, and both are written on.
#[test]
fn copies_of_a_folder_that_part_share_no_file_by_mistake() {
    let (mem, fs) = memory();
    let db = create(&fs, DIR, 1);
    write(&db, &mut Rng::new(1));
    db.close().unwrap();
    fs.create_dir(Path::new("/copy")).unwrap();
    for path in files_in(&mem, DIR) {
        let copy = Path::new("/copy").join(path.strip_prefix(DIR).unwrap());
        mem.write_raw(&copy, &mem.read_raw(&path).unwrap()).unwrap();
    }
    check_parted(&fs, &mem, &[DIR, "/copy"], |n, db| {
        for key in 0..30_u64 {
            db.partition("plain").unwrap().put(key.to_be_bytes(), [n as u8; 60]).unwrap();
        }
    });
}

#[test]
fn two_databases_of_one_backup_give_no_file_the_same_name() {
    let (mem, fs) = memory();
    let db = create(&fs, DIR, 1);
    write(&db, &mut Rng::new(1));
    engine(&fs).create_backup(&db).unwrap();
    let [one, two] = ["/one", "/two"].map(|dir| {
        engine(&fs).restore(1, dir).unwrap();
        let restored = names_of_data(&mem, dir);
        let db = open(&fs, dir, 4).unwrap();
        write(&db, &mut Rng::new(2));
        db.flush().unwrap();
        db.close().unwrap();
        &names_of_data(&mem, dir) - &restored
    });
    assert!(one.len() > 2, "{one:?}");
    assert!(one.is_disjoint(&two), "{one:?} and {two:?}");
}

/// The names of tables, segments and chunk files.
fn names_of_data(mem: &MemFs, dir: &str) -> BTreeSet<String> {
    let names = files_in(mem, dir).into_iter().filter_map(|path| {
        let is_data =
            path.extension().is_some_and(|it| it == "sst" || it == "wal" || it == "chunk");
        is_data.then(|| path.file_name().unwrap().to_string_lossy().into_owned())
    });
    names.collect()
}
