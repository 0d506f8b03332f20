//! Values that are lent without a copy, on the real file system: their files are mapped where that
//! is possible; values are verified when they are first lent, and stay valid as long as they are
//! held.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lsm_core::fs::{AppendMode, FaultAction, FaultAt, FaultFs, FaultRule, OpKind};
use siltstone::large_values::ReadBlobs;
use siltstone::secondary::Level;

use super::*;

/// Returns `true` if files in `folder` can be mapped to be read.
fn is_borne(folder: &Path) -> bool {
    let file = OsFs.open_append(&folder.join("probe"), AppendMode::IfAbsent).unwrap();
    file.append(b"probe").unwrap();
    let mapped = file.map(0, 5);
    let is_borne = mapped.is_some_and(|it| it.populate(1..4) && (*it).as_ref() == b"probe");
    file.preallocate(1 << 20).unwrap();
    // The log is mapped on fewer file systems.
    assert!(is_borne || !file.map_appends());
    is_borne
}

/// A database in a folder of the real file system.
struct Opened {
    /// Removed at the end.
    dir: tempfile::TempDir,
    folder: PathBuf,
    /// Files there can be mapped.
    is_borne: bool,
    db: Db,
    p: Partition,
}

fn opened() -> Opened {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().canonicalize().unwrap();
    let is_borne = is_borne(&folder);
    let db = open_in(&folder, Arc::new(OsFs));
    let p = db.partition_with("p", options()).unwrap();
    Opened { dir, folder, is_borne, db, p }
}

fn open_in(folder: &Path, fs: Arc<dyn Fs>) -> Db {
    let dir = folder.join("db");
    open_with(fs, dir.to_str().unwrap(), &ManualClock::default()).unwrap()
}

/// Returns the number of mappings of chunk files in `folder`, and how many of these files are
/// deleted.
fn mappings(folder: &Path) -> (usize, usize) {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return (0, 0) };
    let folder = folder.to_str().unwrap();
    let chunks = maps.lines().filter(|line| line.contains(folder) && line.contains(".chunk"));
    let deleted = chunks.clone().filter(|line| line.ends_with("(deleted)"));
    (chunks.count(), deleted.count())
}

#[test]
fn a_lent_value_is_mapped_and_stays_until_it_is_given_back() {
    let Opened { dir: _dir, folder, is_borne, db, p } = opened();
    let mut rng = Rng::from_env_or(3);
    let lens = [0, 1, 255, 256, 257, 512, 4095, 4096, 4097, 100_000];
    let values = lens.map(|len| value(&mut rng, len));
    for (n, value) in values.iter().enumerate() {
        p.put([n as u8], value).unwrap();
    }
    let before = db.snapshot();
    assert_eq!(mappings(&folder), (0, 0));
    for (n, value) in values.iter().enumerate() {
        let lent = p.get_ref([n as u8]).unwrap().unwrap();
        assert_eq!(*lent, value[..]);
        assert_eq!(lent.is_mapped(), is_borne && value.len() >= THRESHOLD, "{lent:?}");
    }
    let files = p.chunks().unwrap().len();
    assert!(files > 1, "{files}");
    assert_eq!(mappings(&folder), (if is_borne { files } else { 0 }, 0), "one for each file");
    assert!(p.get_ref("none").unwrap().is_none());
    let lent = p.get_ref([9]).unwrap().unwrap().clone();
    assert_eq!(before.of(&p).get_ref([9]).unwrap().unwrap()[..], values[9]);
    drop(before);
    p.delete([9]).unwrap();
    p.reclaim().unwrap();
    assert_eq!(p.space().unwrap().pinned_bytes > 100_000, is_borne);
    assert_eq!(lent[..], values[9]);
    drop(lent);
    p.reclaim().unwrap();
    assert!(p.space().unwrap().total_bytes < 100_000);
    assert_eq!(mappings(&folder).1, 0, "a file that is gone is not mapped");
    drop((p, db));
    assert_eq!(mappings(&folder), (0, 0));
}

/// A file is mapped again when it has grown; values of the earlier mapping stay readable.
#[test]
fn values_are_lent_from_a_file_that_grows() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().canonicalize().unwrap();
    let is_borne = is_borne(&folder);
    let db = open_in(&folder, Arc::new(OsFs));
    let large = LargeValueOptions::new().threshold_bytes(THRESHOLD as u64);
    let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
    let mut rng = Rng::from_env_or(4);
    let mut lent = Vec::new();
    for n in 0..200_u8 {
        let value = value(&mut rng, 300 + 40 * usize::from(n));
        p.put([n], &value).unwrap();
        lent.push((p.get_ref([n]).unwrap().unwrap(), value));
        let (of, expected) = &lent[rng.below(lent.len() as u64) as usize];
        assert_eq!(of[..], expected[..]);
        assert_eq!(of.is_mapped(), is_borne);
    }
    assert_eq!(p.chunks().unwrap().len(), 1, "a single file grew");
    for (n, (lent, expected)) in lent.iter().enumerate() {
        assert_eq!(lent[..], expected[..]);
        assert_eq!(p.get_ref([n as u8]).unwrap().unwrap()[..], expected[..]);
    }
    drop(lent);
    assert_eq!(mappings(&folder), (usize::from(is_borne), 0), "the ones before are gone");
}

/// 128 files are kept. A file that is dropped while a value of it is lent stays mapped for that
/// value.
#[test]
fn files_that_were_not_read_for_longest_are_not_kept() {
    let Opened { dir: _dir, folder, is_borne, db: _db, p } = opened();
    for n in 0..140_u8 {
        p.put([n], vec![n; 5000]).unwrap();
    }
    let first = p.get_ref([0]).unwrap().unwrap();
    for n in 0..140_u8 {
        assert_eq!(p.get_ref([n]).unwrap().unwrap()[..], [n; 5000]);
    }
    assert_eq!(first[..], [0; 5000]);
    assert_eq!(mappings(&folder).0, if is_borne { 129 } else { 0 });
    drop(first);
    assert_eq!(mappings(&folder).0, if is_borne { 128 } else { 0 });
}

/// Otherwise the system would keep the space of the files, and the primary is another process.
#[test]
#[expect(clippy::disallowed_methods, reason = "it looks at the files that the process has open")]
fn a_secondary_closes_files_that_its_primary_deletes() {
    let Opened { dir: _dir, folder, is_borne, db: _db, p } = opened();
    for n in 0..20_u8 {
        p.put([n], vec![n; 3000]).unwrap();
    }
    // A lease would delay the deletes until the view is dropped and the primary looks again.
    let follower = Db::secondary_builder(folder.join("db")).lease(false).open().unwrap();
    let followed = follower.partition("p").unwrap();
    let view = followed.at(Level::Strong).unwrap();
    for n in 0..20_u8 {
        assert_eq!(view.get_ref([n]).unwrap().unwrap()[..], [n; 3000]);
        assert_eq!(view.get([n]).unwrap().unwrap()[..], [n; 3000]);
    }
    let held = view.get_ref([7]).unwrap().unwrap();
    drop(view);
    for n in 0..20_u8 {
        p.delete([n]).unwrap();
    }
    p.reclaim().unwrap();
    assert_eq!(p.chunks().unwrap().len(), 0);
    let all = if is_borne { 20 } else { 0 };
    assert_eq!(mappings(&folder), (all, all), "it has not looked since");
    assert_eq!(followed.at(Level::Strong).unwrap().get([7]).unwrap(), None);
    assert_eq!(held[..], [7; 3000]);
    let lent = usize::from(is_borne);
    assert_eq!(mappings(&folder), (lent, lent));
    drop(held);
    assert_eq!(mappings(&folder), (0, 0));
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let open: Vec<_> = open.filter(|path| path.starts_with(&folder)).collect();
    assert!(!open.iter().any(|path| path.to_string_lossy().contains(".chunk")), "{open:?}");
}

#[test]
fn where_nothing_is_mapped_a_lent_value_is_a_copy() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    p.put("k", vec![5; 3000]).unwrap();
    let lent = p.get_ref("k").unwrap().unwrap();
    assert!(!lent.is_mapped() && lent[..] == [5; 3000]);

    let dir = tempfile::tempdir().unwrap();
    let faults = FaultFs::new(Arc::new(OsFs));
    let db = open_in(dir.path(), Arc::new(faults.clone()));
    let p = db.partition_with("p", options()).unwrap();
    p.put("k", vec![5; 3000]).unwrap();
    let maps = FaultAt::Nth { kind: OpKind::Map, suffix: ".chunk".into(), nth: 0 };
    faults.add_rule(FaultRule::sticky(maps, FaultAction::Eio));
    let lent = p.get_ref("k").unwrap().unwrap();
    assert!(!lent.is_mapped() && lent[..] == [5; 3000]);
}

/// A value is verified when it is first lent. Reads and a verification find later damage.
#[test]
#[expect(clippy::disallowed_methods, reason = "the file is damaged in place, while it is open")]
fn a_damaged_or_short_file_is_an_error_and_no_signal() {
    let dir = tempfile::tempdir().unwrap();
    let db = open_in(dir.path(), Arc::new(OsFs));
    let p = db.partition_with("p", options()).unwrap();
    p.put("k", vec![5; 3000]).unwrap();
    let path = p.chunks().unwrap()[0].path.clone();
    let sound = std::fs::read(&path).unwrap();
    let first = sound.iter().position(|byte| *byte == 5).unwrap();
    // In place: another file with the same name would not be the one that is open.
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[4], first as u64 + 600).unwrap();
    let error = p.get_ref("k").unwrap_err();
    let found = error.damage().unwrap();
    assert_eq!((found.file.as_path(), found.key.as_deref()), (path.as_path(), Some(&b"k"[..])));
    assert_eq!(found.offset, Some(first as u64 + 512), "{error}");
    file.write_all_at(&[5], first as u64 + 600).unwrap();
    assert_eq!(p.get_ref("k").unwrap().unwrap()[..], [5; 3000]);
    p.flush().unwrap();
    file.write_all_at(&[4], first as u64 + 600).unwrap();
    assert!(p.get("k").unwrap_err().is_corruption());
    assert!(!db.verify(Default::default()).unwrap().is_sound());
    file.write_all_at(&[5], first as u64 + 600).unwrap();
    for len in [first + 100, first + 2999, sound.len() - 1] {
        file.set_len(len as u64).unwrap();
        let error = p.get_ref("k").unwrap_err();
        assert_eq!(error.damage().unwrap().key.as_deref(), Some(&b"k"[..]), "{error}");
    }
    file.write_all_at(&sound, 0).unwrap();
    assert_eq!(p.get_ref("k").unwrap().unwrap()[..], [5; 3000]);
}

/// Memory may have bytes that the device has lost, until the system reads them again.
#[test]
#[expect(clippy::disallowed_methods, reason = "the file is damaged in place, while it is open")]
fn a_value_of_a_file_whose_sync_failed_is_verified_at_each_call() {
    let dir = tempfile::tempdir().unwrap();
    let faults = FaultFs::new(Arc::new(OsFs));
    let db = open_in(dir.path(), Arc::new(faults.clone()));
    let p = db.partition_with("p", options()).unwrap();
    p.put("k", vec![5; 3000]).unwrap();
    assert_eq!(p.get_ref("k").unwrap().unwrap()[..], [5; 3000]);
    let syncs = FaultAt::Nth { kind: OpKind::Sync, suffix: ".chunk".into(), nth: 0 };
    faults.add_rule(FaultRule::sticky(syncs, FaultAction::Eio));
    p.put_with("other", [6; 300], Durability::Sync).unwrap_err();
    let path = p.chunks().unwrap()[0].path.clone();
    let sound = std::fs::read(&path).unwrap();
    let first = sound.iter().position(|byte| *byte == 5).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(p.get_ref("k").unwrap().unwrap()[..], [5; 3000]);
    file.write_all_at(&[4], first as u64).unwrap();
    assert!(p.get_ref("k").unwrap_err().is_corruption());
}
