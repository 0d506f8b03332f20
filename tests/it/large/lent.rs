//! Values that are lent without a copy, on the real file system: they are mapped where that is possible,
//! verified before, and stay as long as somebody holds them.

use std::os::unix::fs::FileExt;
use std::path::Path;

use lsm_core::fs::{AppendMode, FaultAction, FaultAt, FaultFs, FaultRule, MapPages, OpKind};
use siltstone::large_values::ReadBlobs;

use super::*;

/// Returns whether files in `folder` can be mapped to be read.
fn is_borne(folder: &Path) -> bool {
    let file = OsFs.open_append(&folder.join("probe"), AppendMode::IfAbsent).unwrap();
    file.append(b"probe").unwrap();
    let is_borne =
        file.map(0, 5, MapPages::Now).is_some_and(|mapped| (*mapped).as_ref() == b"probe");
    file.preallocate(1 << 20).unwrap();
    // The log is mapped on fewer file systems.
    assert!(is_borne || !file.map_appends());
    is_borne
}

fn open_in(folder: &Path, fs: Arc<dyn Fs>) -> Db {
    let dir = folder.join("db");
    open_with(fs, dir.to_str().unwrap(), &ManualClock::default()).unwrap()
}

/// Returns whether a chunk file in `folder` is mapped into this process.
fn is_mapped(folder: &Path) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let folder = folder.to_str().unwrap();
    maps.lines().any(|line| line.contains(folder) && line.contains(".chunk"))
}

#[test]
fn a_lent_value_is_mapped_and_stays_until_it_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().canonicalize().unwrap();
    let is_borne = is_borne(&folder);
    let db = open_in(&folder, Arc::new(OsFs));
    let p = db.partition_with("p", options()).unwrap();
    let mut rng = Rng::from_env_or(3);
    let lens = [0, 1, 255, 256, 257, 512, 4095, 4096, 4097, 100_000];
    let values = lens.map(|len| value(&mut rng, len));
    for (n, value) in values.iter().enumerate() {
        p.put([n as u8], value).unwrap();
    }
    let before = db.snapshot();
    assert!(!is_mapped(&folder));
    for (n, value) in values.iter().enumerate() {
        let lent = p.get_ref([n as u8]).unwrap().unwrap();
        assert_eq!(*lent, value[..]);
        assert_eq!(lent.is_mapped(), is_borne && value.len() >= THRESHOLD, "{lent:?}");
    }
    assert!(!is_mapped(&folder), "they were given back");
    assert!(p.get_ref("none").unwrap().is_none());
    let lent = p.get_ref([9]).unwrap().unwrap().clone();
    assert_eq!(is_mapped(&folder), is_borne);
    assert_eq!(before.of(&p).get_ref([9]).unwrap().unwrap()[..], values[9]);
    drop(before);
    p.delete([9]).unwrap();
    p.reclaim().unwrap();
    assert_eq!(p.space().unwrap().pinned_bytes > 100_000, is_borne);
    assert_eq!(lent[..], values[9]);
    drop(lent);
    p.reclaim().unwrap();
    assert!(p.space().unwrap().total_bytes < 100_000);
    assert!(!is_mapped(&folder));
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
    // In place: another file under the name would not be the one that is open.
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[4], first as u64 + 600).unwrap();
    let error = p.get_ref("k").unwrap_err();
    let found = error.damage().unwrap();
    assert_eq!((found.file.as_path(), found.key.as_deref()), (path.as_path(), Some(&b"k"[..])));
    assert_eq!(found.offset, Some(first as u64 + 512), "{error}");
    file.write_all_at(&[5], first as u64 + 600).unwrap();
    assert_eq!(p.get_ref("k").unwrap().unwrap()[..], [5; 3000]);
    for len in [first + 100, first + 2999, sound.len() - 1] {
        file.set_len(len as u64).unwrap();
        let error = p.get_ref("k").unwrap_err();
        assert_eq!(error.damage().unwrap().key.as_deref(), Some(&b"k"[..]), "{error}");
    }
    file.write_all_at(&sound, 0).unwrap();
    assert_eq!(p.get_ref("k").unwrap().unwrap()[..], [5; 3000]);
}
