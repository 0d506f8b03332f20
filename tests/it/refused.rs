//! A storage that gives the database to another writer: its syncs fail as `Fenced`, and the database ends so.

use std::path::Path;
use std::sync::{Arc, Mutex};

use lsm_core::fs::{AppendMode, File, Fs};
use siltstone::fs::MemFs;
use siltstone::{BackgroundMode, Db, Durability, Error, ErrorKind, Partition, Result};

use crate::forward::{forward_file, forward_fs};

/// The error of syncs that fail; `None` while they work.
type Refusal = Arc<Mutex<Option<ErrorKind>>>;

/// A file system whose syncs of files with this ending are refused from some moment on.
#[derive(Clone)]
struct Refusing {
    mem: MemFs,
    ending: &'static str,
    refusal: Refusal,
}

struct RefusingFile {
    file: Arc<dyn File>,
    /// `None` for a file that is never refused.
    refusal: Option<Refusal>,
}

impl Refusing {
    fn file(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        let is_meant = path.to_string_lossy().ends_with(self.ending);
        Arc::new(RefusingFile { file, refusal: is_meant.then(|| self.refusal.clone()) })
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
        match self.refusal.as_ref().and_then(|refusal| *refusal.lock().unwrap()) {
            Some(kind) => Err(Error::new(kind, "the storage refuses it")),
            None => self.file.sync(),
        }
    }
}

impl Refusing {
    fn new(ending: &'static str) -> Refusing {
        Refusing { mem: MemFs::new(), ending, refusal: Arc::default() }
    }

    fn refuse(&self, kind: impl Into<Option<ErrorKind>>) {
        *self.refusal.lock().unwrap() = kind.into();
    }
}

fn open(fs: &Refusing) -> Result<Db> {
    Db::builder("/db").fs(Arc::new(fs.clone())).background(BackgroundMode::Stepped).open()
}

/// A database in which a write was synced.
fn begun(fs: &Refusing) -> (Db, Partition) {
    let db = open(fs).unwrap();
    let users = db.partition("users").unwrap();
    users.put_with("alice", "admin", Durability::Sync).unwrap();
    (db, users)
}

/// Checks that a database is fenced, and that what it had synced is in its folder.
fn check_fenced(fs: &Refusing, db: Db, users: &Partition) {
    assert!(db.is_fenced());
    let size = fs.mem.list("/db".as_ref(), "").unwrap();
    for _ in 0..3 {
        assert_eq!(users.put("carol", "guest").unwrap_err().kind(), ErrorKind::Fenced);
        assert_ne!(db.step().ok(), Some(true), "no attempt to resume");
    }
    assert_eq!(fs.mem.list("/db".as_ref(), "").unwrap(), size, "nothing is written");
    assert!(users.contains("alice").unwrap(), "reads go on");
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Fenced);
    fs.refuse(None);
    let db = open(fs).unwrap();
    assert!(db.partition("users").unwrap().contains("alice").unwrap());
}

/// Refuses syncs of files with this ending, and checks that the first write that needs one ends the database.
fn check(ending: &'static str, write: impl Fn(&Db) -> Result<()>) {
    let fs = Refusing::new(ending);
    let (db, users) = begun(&fs);
    fs.refuse(ErrorKind::Fenced);
    assert_eq!(write(&db).unwrap_err().kind(), ErrorKind::Fenced);
    check_fenced(&fs, db, &users);
}

#[test]
fn a_sync_of_the_log_that_is_refused_ends_the_database_as_fenced() {
    check(".wal", |db| db.partition("users")?.put_with("bob", "guest", Durability::Sync).map(drop));
}

#[test]
fn a_sync_of_the_manifest_that_is_refused_ends_the_database_as_fenced() {
    check(".manifest", |db| db.partition("groups").map(drop));
}

/// A storage that was out of reach when another writer took the database over: the first failure says nothing of
/// that.
#[test]
fn a_resumption_that_is_refused_ends_the_database_as_fenced() {
    for ending in [".wal", ".sst"] {
        let fs = Refusing::new(ending);
        let (db, users) = begun(&fs);
        fs.refuse(ErrorKind::Io);
        if ending == ".wal" {
            let failed = users.put_with("bob", "guest", Durability::Sync).unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::ReadOnly);
        }
        assert!(db.flush().is_err() && !db.is_fenced());
        fs.refuse(ErrorKind::Fenced);
        assert_eq!(db.step().unwrap_err().kind(), ErrorKind::Fenced);
        check_fenced(&fs, db, &users);
    }
}
