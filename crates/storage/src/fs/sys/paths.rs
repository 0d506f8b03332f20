//! [`PathAt`]: `At` for systems that cannot open a file from an open folder: every call uses the whole path.
//!
//! The calls and their results are those of `unix.rs`. On Windows a folder that is held cannot be renamed
//! (see [`open_folder`](super::open_folder)), so a path that was resolved by its name stays right.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::super::DirEntry;
use super::super::handles::with_handle;
use super::{free_bytes, open_folder, sync_folder, temporary_name};

/// A folder that is held as long as the file is open.
pub(in crate::fs) type Folder = File;

/// A file or folder, by its path.
#[derive(Clone, Copy)]
pub(in crate::fs) struct PathAt<'a> {
    /// The whole path.
    pub(in crate::fs) path: &'a Path,
    name: &'a Path,
}

impl<'a> PathAt<'a> {
    /// A path that the system resolves.
    pub(in crate::fs) fn whole(path: &'a Path) -> PathAt<'a> {
        PathAt { path, name: path }
    }

    /// The file at `path`, in a folder that is held.
    pub(in crate::fs) fn below(
        _dir: &'a Folder,
        _relative: &'a Path,
        path: &'a Path,
    ) -> PathAt<'a> {
        PathAt::whole(path)
    }

    /// The folder that holds it; a bare name lies in the current one.
    pub(in crate::fs) fn parent(&self) -> PathAt<'_> {
        let name = match self.name.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        PathAt { path: self.path, name }
    }

    pub(in crate::fs) fn open_read(&self) -> io::Result<File> {
        with_handle(|| File::open(self.name))
    }

    pub(in crate::fs) fn open_existing(&self) -> io::Result<File> {
        with_handle(|| OpenOptions::new().read(true).write(true).open(self.name))
    }

    pub(in crate::fs) fn create_new(&self) -> io::Result<File> {
        with_handle(|| OpenOptions::new().read(true).write(true).create_new(true).open(self.name))
    }

    pub(in crate::fs) fn open_or_create(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        with_handle(|| options.open(self.name))
    }

    pub(in crate::fs) fn open_dir(&self) -> io::Result<Folder> {
        with_handle(|| open_folder(self.name))
    }

    /// Makes the names in the folder as durable as the system can.
    pub(in crate::fs) fn sync_dir(&self) -> io::Result<()> {
        with_handle(|| sync_folder(self.name))
    }

    /// Returns `true` if the name is taken, by a file of any kind.
    pub(in crate::fs) fn exists(&self) -> bool {
        fs::symlink_metadata(self.name).is_ok()
    }

    /// Removes the name; no error if it does not exist.
    pub(in crate::fs) fn unlink(&self) -> io::Result<()> {
        match fs::remove_file(self.name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Gives the file the second name `to`.
    pub(in crate::fs) fn link(&self, to: &PathAt<'_>) -> io::Result<()> {
        fs::hard_link(self.name, to.name)
    }

    /// Gives the file the name `to`, which must be free. Without hard links this is an error: a rename of std
    /// would replace an existing file.
    pub(in crate::fs) fn publish(&self, to: &PathAt<'_>) -> io::Result<()> {
        self.link(to)
    }

    pub(in crate::fs) fn make_dir(&self) -> io::Result<()> {
        fs::create_dir(self.name)
    }

    pub(in crate::fs) fn free_bytes(&self) -> io::Result<u64> {
        free_bytes(self.name)
    }

    /// The files of the folder whose names begin with `prefix`, in order.
    pub(in crate::fs) fn list(&self, prefix: &str) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for name in self.list_names(prefix)? {
            // Not the length in the folder: on Windows that of an open file is outdated.
            match fs::symlink_metadata(self.name.join(&name)) {
                Ok(file) if file.is_file() => entries.push(DirEntry { name, len: file.len() }),
                Ok(_) => {}
                // Deleted since the folder was read.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(entries)
    }

    /// The names in the folder that begin with `prefix`, in order, of files of any kind.
    pub(in crate::fs) fn list_names(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.name)? {
            // A name that is not Unicode is not one of a database.
            if let Ok(name) = entry?.file_name().into_string()
                && name.starts_with(prefix)
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Creates an empty file under a fresh name next to this one; returns that name in the form of
    /// this path.
    pub(in crate::fs) fn create_temporary(&self) -> io::Result<(File, PathBuf)> {
        loop {
            let temporary = temporary_name(self.name);
            // Only a new file: the name may be that of another process, whose file must not be
            // overwritten.
            match self.temporary(&temporary).create_new() {
                Ok(file) => return Ok((file, temporary)),
                // A file of a killed process that had the id of this one.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The file that [`PathAt::create_temporary`] made for this one.
    pub(in crate::fs) fn temporary<'b>(&'b self, temporary: &'b Path) -> PathAt<'b> {
        PathAt { path: self.path, name: temporary }
    }
}
