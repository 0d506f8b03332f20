//! Disks that are really full: every failure is an error of a call, with the log written and mapped.

#![expect(clippy::disallowed_methods, reason = "the test fills the disk without the database")]
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

mod mount;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use mount::{Mount, skipped};
use siltstone::{Db, ErrorKind, LargeValueOptions, Options, Partition, PartitionOptions};
use testkit::Rng;

const DISK_BYTES: u64 = 24 << 20;
/// Puts that are refused each time. Each of them asks the disk for space.
const REFUSED_MAX: usize = 200;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Takes all the space that is left.
fn fill(path: &Path) {
    let mut filler = File::options().append(true).create(true).open(path).unwrap();
    for bytes in [256 << 10, 4096, 1] {
        while filler.write_all(&vec![1; bytes]).is_ok() {}
    }
}

/// Puts one of a few keys. Returns `false` if there is no space; the key has its old value then.
fn put(p: &Partition, rng: &mut Rng, model: &mut Model) -> bool {
    let key = format!("key {:06}", rng.below(5000)).into_bytes();
    let mut value = vec![0; 100];
    rng.fill(&mut value);
    match p.put(&key, &value) {
        Ok(_) => {
            model.insert(key, value);
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            false
        }
    }
}

fn check(p: &Partition, model: &Model) {
    let found = p.iter().map(Result::unwrap);
    let found: Model = found.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert!(found == *model, "{} entries, expected {}", found.len(), model.len());
}

/// Returns whether a segment of the log in `dir` is mapped into this process.
fn is_log_mapped(dir: &Path) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let dir = dir.to_str().unwrap();
    maps.lines().any(|line| line.contains(dir) && line.ends_with(".wal"))
}

/// Syncs end mappings; a timed one would come at any time.
fn open(dir: &Path, options: Options) -> Db {
    Db::builder(dir).options(options).sync_interval_ms(0).open().unwrap()
}

/// Fills the disk again and again while a partition is written, with a window of the log mapped or
/// not.
fn fill_up(mount: &Mount, wal_mapped: bool) {
    let dir = mount.0.join(if wal_mapped { "mapped" } else { "written" });
    let options = Options::new().wal_mapped(wal_mapped).write_buffer_bytes(1 << 20);
    let options = options.wal_segment_bytes(1 << 20);
    let mut rng = Rng::from_env_or(8);
    let mut model = Model::new();
    let mut mapped_rounds = 0;
    for round in 0..3 {
        let db = open(&dir, options.clone());
        let p = db.partition("p").unwrap();
        check(&p, &model);
        for _ in 0..4 {
            for _ in 0..500 + rng.below(3000) {
                assert!(put(&p, &mut rng, &mut model), "there is space: {:?}", db.health());
            }
            mapped_rounds += u32::from(is_log_mapped(&dir));
            let filler = mount.0.join("filler");
            // Until writes are stopped permanently, or were refused several times. Flushes and
            // compactions that were in progress free space, which would suffice for all further
            // puts.
            let puts = (0..60_000).filter(|n| {
                if n % 1000 == 0 {
                    fill(&filler);
                }
                !put(&p, &mut rng, &mut model)
            });
            let refused = puts.take(REFUSED_MAX).count();
            assert!(refused > 0, "the disk was full");
            check(&p, &model);
            std::fs::remove_file(filler).unwrap();
            // It would be retried automatically, but only later.
            p.flush().unwrap();
            assert!(put(&p, &mut rng, &mut model), "there is space again: {:?}", db.health());
            check(&p, &model);
        }
        drop((p, db));
        let report = open(&dir, options.clone()).verify(Default::default()).unwrap();
        assert!(report.is_sound(), "round {round}");
    }
    assert_eq!(mapped_rounds > 0, wal_mapped, "{mapped_rounds}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_full_disk_is_an_error_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    for kind in ["tmpfs", "ext4"] {
        let Some(mount) = Mount::new(&folder.path().join(kind), kind, DISK_BYTES) else {
            skipped("no such file system may be mounted");
            continue;
        };
        [true, false].into_iter().for_each(|wal_mapped| fill_up(&mount, wal_mapped));
    }
}

/// Large values on a disk with room for a few of their files: the space of the deleted ones comes
/// back, and no value is copied without need.
#[test]
fn the_space_of_deleted_large_values_comes_back_on_a_nearly_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    for kind in ["tmpfs", "ext4"] {
        let Some(mount) = Mount::new(&folder.path().join(kind), kind, DISK_BYTES) else {
            skipped("no such file system may be mounted");
            continue;
        };
        let dir = mount.0.join("db");
        let db = open(&dir, Options::new().wal_segment_bytes(1 << 20));
        let large = LargeValueOptions::new().chunk_bytes(2 << 20);
        let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
        // Of 24 MiB, 15 are in chunk files. In addition to the log and a filler, a MiB and a half
        // is free.
        for n in 0..240_u8 {
            p.put([n], vec![n; 64 << 10]).unwrap();
        }
        p.flush().unwrap();
        let filler = mount.0.join("filler");
        fill(&filler);
        let filler = File::options().write(true).open(&filler).unwrap();
        filler.set_len(filler.metadata().unwrap().len() - (3 << 19)).unwrap();
        for n in (0..240_u8).step_by(2) {
            p.delete([n]).unwrap();
        }
        // A job in the background may have the last file open when it is done.
        assert!(p.wait_reclaimed(Duration::from_secs(60)).unwrap());
        let space = p.space().unwrap();
        assert!(space.dead_bytes * 4 < space.total_bytes, "{kind}: {space:?}");
        let stats = p.stats().value_store.unwrap();
        assert!(stats.moved_bytes <= 120 * (64 << 10), "{kind}: {stats:?}");
        for n in 0..240_u8 {
            let expected = (n % 2 == 1).then(|| vec![n; 64 << 10]);
            assert!(p.get([n]).unwrap().map(|value| value.to_vec()) == expected, "{kind}: {n}");
        }
        assert!(db.verify(Default::default()).unwrap().is_sound());
    }
}

/// The copy of a database that this process writes is on a disk without room for its log.
#[test]
fn a_checkpoint_beside_a_writer_leaves_nothing_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = Db::open(&path).unwrap();
    let p = db.partition("p").unwrap();
    for n in 0..40_u32 {
        p.put(n.to_be_bytes(), vec![n as u8; 1 << 20]).unwrap();
    }
    for kind in ["tmpfs", "ext4"] {
        let Some(mount) = Mount::new(&folder.path().join(kind), kind, DISK_BYTES) else {
            skipped("no such file system may be mounted");
            continue;
        };
        let copy = mount.0.join("copy");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_siltstone"));
        let refused = command.arg("checkpoint").args([&path, &copy]).output().unwrap();
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{errors}");
        assert!(errors.contains("No space left on device"), "{errors}");
        assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 0, "{kind}");
    }
    assert_eq!(p.iter().keys().count(), 40);
    p.put("more", "1").unwrap();
}
