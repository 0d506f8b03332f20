//! A storage that gives the database to another writer: its syncs fail as `Fenced`, and the database ends so.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsm_core::fs::{AppendMode, File, Fs};
use siltstone::fs::MemFs;
use siltstone::{BackgroundMode, Db, Durability, Error, ErrorKind, Result};

use crate::forward::{forward_file, forward_fs};

/// A file system whose syncs of files with this ending are refused from some moment on.
#[derive(Clone)]
struct Refusing {
    mem: MemFs,
    ending: &'static str,
    is_lost: Arc<AtomicBool>,
}

struct RefusingFile {
    file: Arc<dyn File>,
    /// `None` for a file that is never refused.
    is_lost: Option<Arc<AtomicBool>>,
}

impl Refusing {
    fn file(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        let is_meant = path.to_string_lossy().ends_with(self.ending);
        Arc::new(RefusingFile { file, is_lost: is_meant.then(|| self.is_lost.clone()) })
    }
}

impl Fs for Refusing {
    forward_fs!(mem);

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        Ok(self.file(path, self.mem.open_append(path, mode)?))
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        Ok(self.file(path, self.mem.open_read(path)?))
    }
}

impl File for RefusingFile {
    forward_file!();

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file.read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        match &self.is_lost {
            Some(is_lost) if is_lost.load(Ordering::Acquire) => {
                Err(Error::new(ErrorKind::Fenced, "another writer has this folder"))
            }
            _ => self.file.sync(),
        }
    }
}

fn open(fs: &Refusing) -> Result<Db> {
    Db::builder("/db").fs(Arc::new(fs.clone())).background(BackgroundMode::Stepped).open()
}

/// Refuses syncs of files with this ending, and checks that the first write that needs one ends the database.
fn check(ending: &'static str, write: impl Fn(&Db) -> Result<()>) {
    let fs = Refusing { mem: MemFs::new(), ending, is_lost: Arc::default() };
    let db = open(&fs).unwrap();
    let users = db.partition("users").unwrap();
    users.put_with("alice", "admin", Durability::Sync).unwrap();
    fs.is_lost.store(true, Ordering::Release);
    assert_eq!(write(&db).unwrap_err().kind(), ErrorKind::Fenced);
    assert!(db.is_fenced());
    let size = fs.mem.list("/db".as_ref(), "").unwrap();
    for _ in 0..3 {
        assert_eq!(users.put("carol", "guest").unwrap_err().kind(), ErrorKind::Fenced);
        assert_ne!(db.step().ok(), Some(true), "no attempt to resume");
    }
    assert_eq!(fs.mem.list("/db".as_ref(), "").unwrap(), size, "nothing is written");
    assert!(users.contains("alice").unwrap(), "reads go on");
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Fenced);
    fs.is_lost.store(false, Ordering::Release);
    let db = open(&fs).unwrap();
    assert!(db.partition("users").unwrap().contains("alice").unwrap());
}

#[test]
fn a_sync_of_the_log_that_is_refused_ends_the_database_as_fenced() {
    check(".wal", |db| db.partition("users")?.put_with("bob", "guest", Durability::Sync).map(drop));
}

#[test]
fn a_sync_of_the_manifest_that_is_refused_ends_the_database_as_fenced() {
    check(".manifest", |db| db.partition("groups").map(drop));
}
