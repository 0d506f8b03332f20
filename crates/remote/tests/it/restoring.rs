//! The restore of a takeover's files in the background.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remote::{Primary, Remote, RestoreTarget};
use siltstone::fs::{AppendMode, File, Fs, MemFs};
use siltstone::{BackgroundMode, Db, Durability, ErrorKind, LargeValueOptions, PartitionOptions};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, remote_of};

const MIB: u64 = 1 << 20;
/// The bytes of one piece.
const PIECE: u64 = 4 * MIB;

/// A bucket with the tables of a database, whose machine is gone.
struct Tables {
    objects: Objects,
    rng: Rng,
}

fn name(number: u64) -> String {
    format!("00000000000000{number:02x}-00000001.sst")
}

fn byte_at(number: u64, offset: u64) -> u8 {
    (number + offset / 1000) as u8
}

fn bytes(number: u64, len: u64) -> Vec<u8> {
    (0..len).map(|offset| byte_at(number, offset)).collect()
}

impl Tables {
    /// Tables of the lengths `lens`, with the numbers from 1 on.
    fn new(seed: u64, lens: &[u64]) -> Tables {
        let mut tables = Tables { objects: Objects::default(), rng: Rng::new(seed) };
        let (primary, ..) = tables.take_over(&MemFs::new());
        // With one, the tables are those of a database that was opened.
        let manifest = Path::new("/db/1000000000000000-00000001.manifest");
        primary.fs().put_if_absent(manifest, b"edits").unwrap();
        for (number, len) in (1..).zip(lens) {
            let path = Path::new("/db").join(name(number));
            let file = primary.fs().open_append(&path, AppendMode::IfAbsent).unwrap();
            file.append(&bytes(number, *len)).unwrap();
            file.sync().unwrap();
        }
        primary.ship().unwrap();
        tables
    }

    fn remote(&mut self, disk: &MemFs) -> (Remote, Arc<SimStore>) {
        let store = SimStore::new(self.objects.clone(), self.rng.fork());
        (remote_of(&store, disk, &mut self.rng), store)
    }

    fn take_over(&mut self, disk: &MemFs) -> (Primary, Arc<SimStore>) {
        let (remote, store) = self.remote(disk);
        (remote.take_over("/db").unwrap(), store)
    }

    /// Takes the objects of a table out of the bucket, and returns them.
    fn lose(&self, number: u64) -> Vec<(String, Vec<u8>)> {
        let mut objects = self.objects.lock();
        let front = format!("table/{}", name(number));
        let names: Vec<_> = objects.keys().filter(|it| it.starts_with(&front)).cloned().collect();
        names.into_iter().map(|it| (it.clone(), objects.remove(&it).unwrap().to_vec())).collect()
    }
}

fn open(primary: &Primary, number: u64) -> Arc<dyn File> {
    primary.fs().open_read(&Path::new("/db").join(name(number))).unwrap()
}

fn check_read(file: &dyn File, number: u64, offset: u64) {
    let mut buf = [0; 3000];
    assert_eq!(file.read_at(offset, &mut buf).unwrap(), buf.len());
    assert!((offset..).zip(buf).all(|(at, byte)| byte == byte_at(number, at)));
}

fn partial_files(disk: &MemFs) -> usize {
    let names = disk.list_names(Path::new("/db"), "").unwrap();
    names.iter().filter(|name| name.ends_with(".restored")).count()
}

#[test]
fn a_takeover_restores_its_tables_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let remote = Remote::memory().unwrap();
    let first = remote.primary(folder.path().join("first")).unwrap();
    let db = first.builder().open().unwrap();
    let users = db.partition("users").unwrap();
    for number in 0..4u8 {
        users.put_with([number], vec![number; 100_000], Durability::Sync).unwrap();
        db.flush().unwrap();
    }
    let second = remote.take_over(folder.path().join("second")).unwrap();
    let db = second.builder().open().unwrap();
    let users = db.partition("users").unwrap();
    while !second.status().restore.is_done() {
        assert_eq!(users.get([1]).unwrap().unwrap(), vec![1; 100_000]);
        std::thread::yield_now();
    }
    let status = second.status();
    assert!(status.restore.files > 0 && status.remote_files == 0, "{status:?}");
    assert_eq!(status.restore.bytes_done, status.restore.bytes);
    assert_eq!(status.restore.error, None);
    assert!((0..4u8).all(|number| users.contains([number]).unwrap()));
    db.close().unwrap();
    drop(second);
    // With no rate it is left to the application.
    let third = remote.restore_rate(0).take_over(folder.path().join("third")).unwrap();
    let status = third.status();
    assert!(status.restore.files > 0 && status.restore.bytes_done == 0, "{status:?}");
    third.restore().unwrap();
    assert!(third.status().restore.is_done());
}

#[test]
fn reads_of_a_file_that_is_being_restored_are_served_and_then_come_from_the_disk() {
    let mut tables = Tables::new(61, &[9 * MIB, MIB]);
    let disk = MemFs::new();
    let (primary, store) = tables.take_over(&disk);
    let status = primary.status().restore;
    assert_eq!((status.files, status.bytes, status.bytes_done), (2, 10 * MIB, 0));
    let table = open(&primary, 1);
    for done in [PIECE, 2 * PIECE] {
        primary.ship().unwrap();
        assert_eq!(primary.status().restore.bytes_done, done);
        check_read(&*table, 1, PIECE - 1000);
        check_read(&*table, 1, 8 * MIB);
        check_read(&*open(&primary, 1), 1, done);
    }
    primary.ship().unwrap();
    let status = primary.status().restore;
    assert_eq!((status.files_done, status.bytes_done), (1, 9 * MIB));
    assert_eq!(partial_files(&disk), 0);
    // The handle that was open before, too.
    let lost = tables.lose(1);
    let gets = store.gets.load(Ordering::Relaxed);
    check_read(&*table, 1, 3 * MIB);
    check_read(&*open(&primary, 1), 1, 7 * MIB);
    assert_eq!((lost.len(), store.gets.load(Ordering::Relaxed)), (1, gets));
    primary.ship().unwrap();
    assert!(primary.status().restore.is_done());
}

#[test]
fn a_file_that_fails_is_shown_and_tried_again_after_the_others() {
    let mut tables = Tables::new(62, &[MIB, MIB, MIB]);
    let (primary, store) = tables.take_over(&MemFs::new());
    let lost = tables.lose(1);
    primary.ship().unwrap();
    let error = primary.status().restore.error.unwrap();
    assert!(error.contains(&name(1)), "{error}");
    for _ in 0..2 {
        primary.ship().unwrap();
    }
    assert_eq!(primary.status().restore.files_done, 2);
    // One attempt for each step, while the store is away.
    store.fails_one_of.store(1, Ordering::Relaxed);
    let gets = store.gets.load(Ordering::Relaxed);
    let _ = primary.ship();
    assert!(store.gets.load(Ordering::Relaxed) <= gets + 1);
    store.fails_one_of.store(0, Ordering::Relaxed);
    tables.objects.lock().extend(lost.into_iter().map(|(name, bytes)| (name, bytes.into())));
    primary.ship().unwrap();
    let status = primary.status().restore;
    assert!(status.is_done() && status.error.is_none(), "{status:?}");
}

#[test]
fn attempts_without_an_answer_leave_no_partial_file() {
    let mut tables = Tables::new(66, &[MIB; 5]);
    let disk = MemFs::new();
    let (primary, store) = tables.take_over(&disk);
    store.fails_one_of.store(1, Ordering::Relaxed);
    for _ in 0..5 {
        let _ = primary.ship();
        assert!(primary.status().restore.error.is_some());
        assert_eq!(partial_files(&disk), 0);
    }
}

/// Each is an open file, and most of its bytes may be those of a file that is lost.
#[test]
fn few_partial_files_are_kept_and_those_with_the_most_bytes() {
    const PIECE: u64 = 64 << 10;
    const FILES: u64 = 6;
    let mut tables = Tables::new(67, &[3 * PIECE; FILES as usize]);
    let disk = MemFs::new();
    let (remote, _) = tables.remote(&disk);
    let primary = remote.restore_rate(PIECE).take_over("/db").unwrap();
    let mut lost = Vec::new();
    for number in 1..=FILES {
        // Two pieces of the first one.
        (0..=u64::from(number == 1)).for_each(|_| primary.ship().unwrap());
        lost.extend(tables.lose(number));
        primary.ship().unwrap();
        assert!(primary.status().restore.error.unwrap().contains(&name(number)));
        assert_eq!(partial_files(&disk), number.min(4) as usize);
    }
    assert_eq!(primary.status().restore.bytes_done, 5 * PIECE);
    tables.objects.lock().extend(lost.into_iter().map(|(name, bytes)| (name, bytes.into())));
    primary.ship().unwrap();
    // The first file again, at its third piece.
    assert_eq!(primary.status().restore.files_done, 1);
    primary.restore().unwrap();
    assert_eq!(partial_files(&disk), 0);
    (1..=FILES).for_each(|number| check_read(&*open(&primary, number), number, 2 * PIECE));
}

#[test]
fn a_call_for_a_file_that_is_here_waits_for_no_piece_of_another_one() {
    let mut tables = Tables::new(68, &[MIB]);
    let (primary, store) = tables.take_over(&MemFs::new());
    let log = Path::new("/db/000000000000000a-00000001.wal");
    let fs = primary.fs();
    fs.open_append(log, AppendMode::IfAbsent).unwrap().append(b"one").unwrap();
    let is_here = Arc::new(AtomicBool::new(false));
    let opened = is_here.clone();
    // In the middle of the GET of the piece. A call that waited for its end would never return.
    store.pause_in(0, move || {
        let file = fs.open_append(log, AppendMode::Existing).unwrap();
        file.append(b"two").unwrap();
        opened.store(file.len().unwrap() == 6, Ordering::Relaxed);
    });
    primary.ship().unwrap();
    assert!(is_here.load(Ordering::Relaxed));
    assert!(primary.status().restore.is_done());
}

#[test]
fn a_full_disk_stops_the_restore_until_there_is_room() {
    let mut tables = Tables::new(63, &[9 * MIB]);
    let disk = MemFs::new();
    let (primary, _) = tables.take_over(&disk);
    // Room for the file, and not for what the restore leaves to others.
    disk.set_capacity(Some(20 * MIB));
    primary.ship().unwrap();
    let status = primary.status().restore;
    assert!(status.error.unwrap().contains("restore") && status.bytes_done == 0);
    assert_eq!(partial_files(&disk), 0);
    check_read(&*open(&primary, 1), 1, MIB);
    disk.set_capacity(None);
    primary.ship().unwrap();
    assert_eq!(primary.status().restore.bytes_done, PIECE);
    // Others have filled the disk meanwhile.
    disk.set_capacity(Some(5 * MIB));
    primary.ship().unwrap();
    let status = primary.status().restore;
    assert!(status.error.is_some() && status.bytes_done == 0, "{status:?}");
    assert_eq!(partial_files(&disk), 0);
    check_read(&*open(&primary, 1), 1, MIB);
    disk.set_capacity(None);
    (0..3).for_each(|_| primary.ship().unwrap());
    assert!(primary.status().restore.is_done());
}

#[test]
fn a_restore_that_was_interrupted_goes_on_with_the_next_open() {
    let mut tables = Tables::new(64, &[MIB, 9 * MIB]);
    let disk = MemFs::new();
    let (primary, _) = tables.take_over(&disk);
    (0..2).for_each(|_| primary.ship().unwrap());
    assert_eq!(primary.status().restore.bytes_done, MIB + PIECE);
    drop(primary);
    assert_eq!(partial_files(&disk), 1);
    let (remote, _) = tables.remote(&disk);
    let primary = remote.primary("/db").unwrap();
    assert_eq!(partial_files(&disk), 0);
    let status = primary.status().restore;
    assert_eq!((status.files, status.bytes, status.bytes_done), (1, 9 * MIB, 0));
    // A call that needs the local file goes on where the background is.
    primary.ship().unwrap();
    primary.restore().unwrap();
    check_read(&*disk.open_read(&Path::new("/db").join(name(2))).unwrap(), 2, 5 * MIB);
    assert!(primary.status().restore.is_done());
}

#[test]
fn a_file_that_is_deleted_while_it_is_restored_leaves_nothing() {
    let mut tables = Tables::new(65, &[9 * MIB]);
    let disk = MemFs::new();
    let (primary, _) = tables.take_over(&disk);
    primary.ship().unwrap();
    primary.fs().delete(&Path::new("/db").join(name(1))).unwrap();
    primary.ship().unwrap();
    assert!(primary.status().restore.is_done());
    assert_eq!(disk.list(Path::new("/db"), "0000").unwrap(), []);
}

const ENTRIES: u8 = 3;

fn value(number: u8) -> Vec<u8> {
    Rng::new(number.into()).bytes(100_000)
}

/// A machine that takes the database over, and restores it slowly.
fn machine(objects: &Objects, disk: &MemFs, rng: &mut Rng) -> (Primary, Db) {
    let store = SimStore::new(objects.clone(), rng.fork());
    let primary = remote_of(&store, disk, rng).restore_rate(64 << 10).take_over("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    (primary, db)
}

/// A database with tables and a large value, opened on another machine, in the middle of its restore.
fn half_restored(objects: &Objects, disk: &MemFs, rng: &mut Rng) -> (Primary, Db) {
    let (_first, db) = machine(objects, &MemFs::new(), rng);
    let users = db.partition("users").unwrap();
    for number in 0..ENTRIES {
        users.put([number], value(number)).unwrap();
        db.flush().unwrap();
    }
    let options = PartitionOptions::default().large_values(LargeValueOptions::default());
    let files = db.partition_with("files", options).unwrap();
    files.put_with("large", value(9), Durability::Sync).unwrap();
    let (second, db) = machine(objects, disk, rng);
    second.ship().unwrap();
    assert_eq!(partial_files(disk), 1);
    (second, db)
}

#[track_caller]
fn check_whole(db: &Db) {
    let users = db.partition("users").unwrap();
    assert!((0..ENTRIES).all(|number| users.get([number]).unwrap().unwrap() == value(number)));
    let files = db.partition("files").unwrap();
    assert_eq!(files.get("large").unwrap().unwrap(), value(9));
}

/// Neither a checkpoint nor an export nor a restored folder is one that is shipped.
#[test]
fn copies_that_are_made_during_a_restore_are_whole_and_open_without_the_bucket() {
    let mut rng = Rng::new(69);
    let objects = Objects::default();
    let disk = MemFs::new();
    let (primary, db) = half_restored(&objects, &disk, &mut rng);
    for partition in ["users", "files"] {
        db.partition(partition).unwrap().export(.., format!("/{partition}")).unwrap();
    }
    assert!(!primary.status().restore.is_done());
    db.checkpoint("/checkpoint").unwrap();
    let store = SimStore::new(objects.clone(), rng.fork());
    let remote = remote_of(&store, &disk, &mut rng);
    remote.restore("/restored", RestoreTarget::Latest).unwrap();
    objects.lock().clear();
    for folder in ["/checkpoint", "/restored", "/ingested"] {
        let copy = Db::builder(folder).fs(Arc::new(disk.clone())).open().unwrap();
        if folder == "/ingested" {
            for partition in ["users", "files"] {
                let ingested = copy.partition(partition).unwrap();
                ingested.ingest(format!("/{partition}")).unwrap();
            }
        }
        check_whole(&copy);
        copy.partition("users").unwrap().put("new", "x").unwrap();
        copy.close().unwrap();
    }
}

#[test]
fn a_takeover_during_a_restore_ends_it_and_has_all() {
    let mut rng = Rng::new(70);
    let objects = Objects::default();
    let disk = MemFs::new();
    let (second, db) = half_restored(&objects, &disk, &mut rng);
    let (third, third_db) = machine(&objects, &MemFs::new(), &mut rng);
    let refused = db.partition("users").unwrap().put_with("late", "x", Durability::Sync);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Fenced);
    let done = second.status().restore.bytes_done;
    second.ship().unwrap_err();
    assert_eq!(second.status().restore.bytes_done, done);
    while !third.status().restore.is_done() {
        third.ship().unwrap();
        check_whole(&third_db);
    }
    third_db.partition("users").unwrap().put_with("new", "x", Durability::Sync).unwrap();
    // The folder of the second one again, with a partial file and tables of its own.
    drop((db, second));
    assert_eq!(partial_files(&disk), 1);
    let store = SimStore::new(objects.clone(), rng.fork());
    let fourth = remote_of(&store, &disk, &mut rng).take_over("/db").unwrap();
    assert_eq!(partial_files(&disk), 0);
    fourth.restore().unwrap();
    let db = fourth.builder().background(BackgroundMode::Stepped).open().unwrap();
    objects.lock().retain(|name, _| !name.starts_with("table/"));
    check_whole(&db);
    let users = db.partition("users").unwrap();
    assert!(users.contains("new").unwrap() && !users.contains("late").unwrap());
}
