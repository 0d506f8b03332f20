//! A storage that answers for its folder: secondaries read strongly without a commit cursor, and show what no
//! later frame attests.

use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{AppendMode, File, FolderLook, FolderState, Fs};
use siltstone::fs::MemFs;
use siltstone::secondary::{Level, Secondary};
use siltstone::{BackgroundMode, Db, Durability, ErrorKind, Readable, Result};

use crate::forward::forward_fs;

/// A file system without commit cursors.
#[derive(Clone)]
struct Answering {
    mem: MemFs,
    state: FolderState,
}

impl Fs for Answering {
    forward_fs!(mem);

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        self.mem.open_append(path, mode)
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.mem.open_read(path)
    }

    fn folder_state(&self, _dir: &Path, _wanted: FolderState) -> Result<FolderLook> {
        Ok(FolderLook { state: self.state, names: None })
    }
}

/// A primary that has committed a key, which no later frame attests, and a secondary by a storage that answers
/// `state`.
fn pair(state: FolderState) -> (Db, Secondary) {
    let fs = Answering { mem: MemFs::new(), state };
    let db = Db::builder("/db").fs(Arc::new(fs.clone())).background(BackgroundMode::Stepped).open();
    let db = db.unwrap();
    let users = db.partition("users").unwrap();
    let secondary = Db::secondary_builder("/db").fs(Arc::new(fs)).open().unwrap();
    users.put_with("alice", "admin", Durability::Sync).unwrap();
    (db, secondary)
}

#[test]
fn a_current_folder_is_read_strongly_without_a_cursor() {
    let (db, secondary) = pair(FolderState::Current);
    let users = secondary.partition("users").unwrap();
    assert!(users.at(Level::Strong).unwrap().contains("alice").unwrap());
    for number in 0..20_u32 {
        let commit = db.partition("users").unwrap();
        commit.put_with(number.to_le_bytes(), "x", Durability::Sync).unwrap();
        assert!(users.at(Level::Strong).unwrap().contains(number.to_le_bytes()).unwrap());
        if number % 7 == 0 {
            db.flush().unwrap();
        }
    }
    let unlogged = siltstone::PartitionOptions::new().logged(false);
    db.partition_with("cache", unlogged).unwrap().put("k", "v").unwrap();
    let cache = secondary.partition("cache").unwrap();
    assert_eq!(cache.at(Level::Strong).map(drop).unwrap_err().kind(), ErrorKind::NotLogged);
}

#[test]
fn a_settled_folder_shows_what_no_frame_attests_and_is_not_read_strongly() {
    let (_db, secondary) = pair(FolderState::Settled);
    let users = secondary.partition("users").unwrap();
    secondary.sync(siltstone::secondary::Target::Latest).unwrap();
    assert!(users.at(Level::Eventual).unwrap().contains("alice").unwrap());
    let refused = users.at(Level::Strong).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

#[test]
fn an_unknown_folder_shows_what_the_log_attests() {
    let (_db, secondary) = pair(FolderState::Unknown);
    secondary.sync(siltstone::secondary::Target::Latest).unwrap();
    let users = secondary.partition("users").unwrap();
    assert!(!users.at(Level::Eventual).unwrap().contains("alice").unwrap());
}
