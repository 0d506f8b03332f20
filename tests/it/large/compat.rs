//! A store with large values that was written by version 1 of the chunk format:
//! `tests/fixtures/large-v1/`. Every later version must open it. `BLESS_FIXTURE=1 cargo test
//! large::compat` writes it anew; do that only for a format that was never shipped.

#![expect(clippy::disallowed_methods, reason = "fixtures lie outside every database")]

use std::path::{Path, PathBuf};

use lsm_core::fs::{Fs, MemFs};

use super::{open, options};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/large-v1")
}

/// Values in two chunks and in the log, one deleted, one overwritten.
fn write() -> MemFs {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..8_u8 {
        p.put([n], vec![n; 250 + usize::from(n) * 300]).unwrap();
    }
    p.flush().unwrap();
    p.delete([7]).unwrap();
    p.put([6], vec![66; 1000]).unwrap();
    db.close().unwrap();
    fs
}

#[test]
fn a_store_of_version_1_opens_and_lives_on() {
    if std::env::var_os("BLESS_FIXTURE").is_some() {
        let _ = std::fs::remove_dir_all(folder());
        std::fs::create_dir_all(folder()).unwrap();
        let fs = write();
        for path in fs.paths() {
            let bytes = fs.read_raw(&path).unwrap();
            std::fs::write(folder().join(path.file_name().unwrap()), bytes).unwrap();
        }
    }
    let fs = MemFs::new();
    fs.create_dir("/db".as_ref()).unwrap();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        fs.write_raw(&Path::new("/db").join(entry.file_name()), &bytes).unwrap();
    }
    let db = open(&fs);
    let p = db.partition("p").unwrap();
    for n in 0..8_u8 {
        let expected = match n {
            6 => Some(vec![66; 1000]),
            7 => None,
            _ => Some(vec![n; 250 + usize::from(n) * 300]),
        };
        assert_eq!(p.get([n]).unwrap().map(|value| value.to_vec()), expected);
    }
    p.put([7], vec![77; 777]).unwrap();
    p.compact(..).unwrap();
    assert!(db.verify(Default::default()).unwrap().is_sound());
}
