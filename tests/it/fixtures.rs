//! Fixtures: folders below `tests/fixtures/` with a store that some version wrote.
//!
//! `BLESS_FIXTURE=NAME` with the test that reads a fixture writes that fixture again, and no other.
//! Do this only for a format that was never released.

#![expect(clippy::disallowed_methods, reason = "fixtures are outside every database")]

use std::path::{Path, PathBuf};

use lsm_core::fs::{Fs, MemFs};
use tempfile::TempDir;

/// The folder of the databases in memory.
const DIR: &str = "/db";

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Writes the fixture again if the environment names it.
pub fn bless(name: &str, write: impl FnOnce() -> MemFs) {
    if std::env::var_os("BLESS_FIXTURE").is_none_or(|named| named != name) {
        return;
    }
    let to = folder(name);
    let _ = std::fs::remove_dir_all(&to);
    std::fs::create_dir_all(&to).unwrap();
    let fs = write();
    for path in fs.paths() {
        let bytes = fs.read_raw(&path).unwrap();
        let to = to.join(path.strip_prefix(DIR).unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, bytes).unwrap();
    }
}

/// A copy of the fixture in a folder of its own.
pub fn on_disk(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(&folder(name), dir.path());
    dir
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        if from.is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

/// A copy of the fixture in memory, in the folder `/db`.
pub fn in_memory(name: &str) -> MemFs {
    let fs = MemFs::new();
    fs.create_dir(Path::new(DIR)).unwrap();
    for entry in std::fs::read_dir(folder(name)).unwrap() {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        fs.write_raw(&Path::new(DIR).join(entry.file_name()), &bytes).unwrap();
    }
    fs
}
