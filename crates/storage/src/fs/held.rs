//! [`HeldFs`]: the file system of the machine, with one folder held open.
//!
//! A path names a folder only until the folder is renamed, or, if the path is relative, until the
//! process changes its working folder. A database that used its path would then write its next table
//! into another folder, and call it durable. Here the folder is opened once, and every file of it is
//! opened from that handle: the database stays in the folder that it was opened in, even after a
//! rename.
//!
//! Invariants:
//! 1. A path below `root` is resolved from `folder`, and never by its name.
//! 2. A caller that holds `root` again, by this file system, holds the same folder.
//! 3. Any other path (a checkpoint's folder, an export's) goes to [`OsFs`].
//! 4. A child of the process that opened the folder changes nothing and takes no lock through it,
//!    whichever thread calls: the files that a dropped handle would delete or write belong to its parent.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::os;
use super::sync_files::sync_files;
use super::sys::{self, At, Folder};
use super::{AppendMode, Caps, DirEntry, File, Fs, HeldDir, LockGuard, MapMode, OsFs, SharedWords};
use crate::error::{Error, Result};
use crate::types::Process;

/// The file system of the machine, with one folder held open.
pub(super) struct HeldFs {
    /// The path under which the folder was opened, from the root on.
    root: PathBuf,
    folder: Folder,
    /// The only process that may change anything: see invariant 4.
    process: Process,
}

impl HeldFs {
    /// Opens the folder `dir`, which must exist.
    pub(super) fn open(dir: &Path) -> Result<(Arc<HeldFs>, PathBuf)> {
        // Absolute, so that the paths that are compared with it later do not depend on the working
        // folder.
        let root = std::path::absolute(dir).map_err(|e| Error::io("find", dir, e))?;
        let folder = At::whole(&root).open_dir().map_err(|e| Error::io("open", dir, e))?;
        let path = root.clone();
        let process = Process::current();
        Ok((Arc::new(HeldFs { root, folder, process }), path))
    }

    fn at<'a>(&'a self, path: &'a Path) -> At<'a> {
        match path.strip_prefix(&self.root) {
            Ok(relative) => At::below(&self.folder, relative, path),
            Err(_) => At::whole(path),
        }
    }
}

impl Fs for HeldFs {
    fn caps(&self) -> Caps {
        OsFs.caps()
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.process.check()?;
        let Ok(relative) = dir.strip_prefix(&self.root) else {
            return OsFs.create_dir(dir);
        };
        let mut folder = self.root.clone();
        // One level at a time, each from the handle: a call for the whole path would resolve it by
        // name.
        for name in relative {
            folder.push(name);
            os::create_one_dir(&self.at(&folder))?;
        }
        Ok(())
    }

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        self.process.check()?;
        os::open_append(&self.at(path), mode)
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        os::open_read(&self.at(path))
    }

    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        self.process.check()?;
        os::put_if_absent(&self.at(path), content)
    }

    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        self.at(dir).list(prefix).map_err(|e| Error::io("list", dir, e))
    }

    fn list_names(&self, dir: &Path, prefix: &str) -> Result<Vec<String>> {
        self.at(dir).list_names(prefix).map_err(|e| Error::io("list", dir, e))
    }

    fn map_words(&self, path: &Path, mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
        self.process.check()?;
        sys::map_words(&self.at(path), mode)
    }

    fn machine_run(&self) -> Option<u64> {
        sys::machine_run()
    }

    fn delete(&self, path: &Path) -> Result<()> {
        self.process.check()?;
        self.at(path).unlink().map_err(|e| Error::io("delete", path, e))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.process.check()?;
        self.at(from).link(&self.at(to)).map_err(|e| Error::io("link", to, e))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.process.check()?;
        os::sync_dir(&self.at(dir)).map_err(|e| Error::io("sync the folder", dir, e))
    }

    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        self.process.check()?;
        sync_files(files)
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.process.check()?;
        os::try_lock(&self.at(path))
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.process.check()?;
        os::try_lock_shared(&self.at(path))
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.at(dir).free_bytes().map_err(|e| Error::io("get the free space of", dir, e))
    }

    fn hold_dir(&self, dir: &Path) -> Result<HeldDir> {
        self.process.check()?;
        // By its handle: the path may name another folder by now.
        if dir == self.root {
            return Ok(HeldDir { path: self.root.clone(), fs: None });
        }
        // Another folder gets a handle of its own.
        OsFs.hold_dir(dir)
    }
}
