//! [`At`]: a path as the system calls of Unix take it, and the calls that the real file systems share.
//!
//! Every call of [`OsFs`](super::super::OsFs) and of [`HeldFs`](super::super::held::HeldFs) that names a
//! file comes here. The former resolves paths in the working folder of the process, as the system does;
//! the latter resolves those of its folder from an open handle. It must never fall back from the handle
//! to the path: by then the path may name another folder. It returns open files, and leaves their
//! appends to `os.rs`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};

use super::super::DirEntry;
use super::super::handles::with_handle;
use super::temporary_name;

/// The descriptors below it are those of the standard streams. A program that has closed these still prints
/// to them, and would print into a file that got one of their numbers.
const FIRST_DESCRIPTOR: i32 = 3;

/// Opens the standard streams that the program has closed, so that no file gets their descriptors, now or
/// later. The alternative, a copy with a higher number of each file that gets one, leaves a moment in which
/// another thread may print into the file.
#[cold]
fn fill_standard_streams() -> io::Result<()> {
    loop {
        // As the standard library does at the start of a program.
        let null = match rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()) {
            // A changed root without devices. A write to a folder is refused.
            Err(_) => rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?,
            Ok(null) => null,
        };
        if null.as_raw_fd() >= FIRST_DESCRIPTOR {
            return Ok(());
        }
        // It stays open.
        let _ = null.into_raw_fd();
    }
}

/// An open folder, to find files from.
pub(in crate::fs) type Folder = OwnedFd;

/// Errors of a link where the file system, or the policy of the system, has none.
const NO_LINKS: [Errno; 5] =
    [Errno::PERM, Errno::ACCESS, Errno::OPNOTSUPP, Errno::NOSYS, Errno::MLINK];

/// A file or folder: its path for errors, and the folder and path to find it by.
#[derive(Clone, Copy)]
pub(in crate::fs) struct At<'a> {
    /// The whole path.
    pub(in crate::fs) path: &'a Path,
    dir: BorrowedFd<'a>,
    relative: &'a Path,
}

impl<'a> At<'a> {
    /// A path that the system resolves.
    pub(in crate::fs) fn whole(path: &'a Path) -> At<'a> {
        At { path, dir: rustix::fs::CWD, relative: path }
    }

    /// The file `relative`, from the folder of an open handle on.
    pub(in crate::fs) fn below(dir: &'a Folder, relative: &'a Path, path: &'a Path) -> At<'a> {
        // The folder itself.
        let is_dir = relative.as_os_str().is_empty();
        At { path, dir: dir.as_fd(), relative: if is_dir { Path::new(".") } else { relative } }
    }

    fn with<'b>(&'b self, relative: &'b Path) -> At<'b> {
        At { path: self.path, dir: self.dir, relative }
    }

    /// The folder that holds it; a bare name lies in the folder that it is resolved from.
    pub(in crate::fs) fn parent(&self) -> At<'_> {
        match self.relative.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => self.with(dir),
            _ => self.with(Path::new(".")),
        }
    }

    /// Returns `true` if it is the folder of the open handle itself.
    fn is_held_folder(&self) -> bool {
        // The mark of the working folder is no descriptor.
        self.relative == Path::new(".") && self.dir.as_raw_fd() >= 0
    }

    fn open_with(&self, flags: OFlags) -> io::Result<OwnedFd> {
        // As the standard library: the umask of the process narrows it.
        let mode = Mode::from_raw_mode(0o666);
        // Not inherited: a child process would keep the lock, and the space of deleted files.
        let flags = flags | OFlags::CLOEXEC;
        loop {
            let opened = with_handle(|| {
                let opened =
                    retry_on_intr(|| rustix::fs::openat(self.dir, self.relative, flags, mode))?;
                Ok(opened)
            })?;
            if opened.as_raw_fd() >= FIRST_DESCRIPTOR {
                return Ok(opened);
            }
            if flags.contains(OFlags::EXCL) {
                // It was just made, and is made again below.
                self.unlink()?;
            }
            // Closed before the descriptor is used: another thread may be printing.
            drop(opened);
            fill_standard_streams()?;
        }
    }

    fn open_file(&self, flags: OFlags) -> io::Result<File> {
        self.open_with(flags).map(File::from)
    }

    pub(in crate::fs) fn open_read(&self) -> io::Result<File> {
        self.open_file(OFlags::RDONLY)
    }

    pub(in crate::fs) fn open_existing(&self) -> io::Result<File> {
        self.open_file(OFlags::RDWR)
    }

    pub(in crate::fs) fn create_new(&self) -> io::Result<File> {
        self.open_file(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    pub(in crate::fs) fn open_or_create(&self) -> io::Result<File> {
        self.open_file(OFlags::RDWR | OFlags::CREATE)
    }

    pub(in crate::fs) fn open_dir(&self) -> io::Result<Folder> {
        self.open_with(OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Makes the names in the folder durable.
    pub(in crate::fs) fn sync_dir(&self) -> io::Result<()> {
        // The folder that is held needs no further descriptor: where there is none, that would look like a
        // failed sync. Not on macOS, where std also asks the device to empty its cache.
        if cfg!(not(target_vendor = "apple")) && self.is_held_folder() {
            return Ok(retry_on_intr(|| rustix::fs::fsync(self.dir))?);
        }
        // Durability: of std, for the reason above.
        File::from(self.open_dir()?).sync_all()
    }

    /// Returns `true` if the name is taken, by a file of any kind.
    pub(in crate::fs) fn exists(&self) -> bool {
        rustix::fs::statat(self.dir, self.relative, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Removes the name; no error if it does not exist.
    pub(in crate::fs) fn unlink(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(self.dir, self.relative, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Gives the file the second name `to`.
    pub(in crate::fs) fn link(&self, to: &At<'_>) -> io::Result<()> {
        let flags = AtFlags::empty();
        Ok(rustix::fs::linkat(self.dir, self.relative, to.dir, to.relative, flags)?)
    }

    /// Gives the file the name `to`, which must be free. It may lose its own.
    pub(in crate::fs) fn publish(&self, to: &At<'_>) -> io::Result<()> {
        match self.link(to) {
            // Without hard links: FAT, exFAT, and folders of applications on Android.
            Err(e) if Errno::from_io_error(&e).is_some_and(|e| NO_LINKS.contains(&e)) => {
                self.rename_new(to)
            }
            done => done,
        }
    }

    /// Gives the file the name `to` instead of its own, in one step; `to` must be free.
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    pub(in crate::fs) fn rename_new(&self, to: &At<'_>) -> io::Result<()> {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(self.dir, self.relative, to.dir, to.relative, flags)?)
    }

    /// An error: a rename of this system would replace an existing file.
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    #[expect(clippy::unused_self, reason = "other systems rename it")]
    pub(in crate::fs) fn rename_new(&self, _to: &At<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::fs) fn make_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(self.dir, self.relative, Mode::from_raw_mode(0o777))?)
    }

    pub(in crate::fs) fn free_bytes(&self) -> io::Result<u64> {
        let stat = if self.is_held_folder() {
            retry_on_intr(|| rustix::fs::fstatvfs(self.dir))?
        } else {
            let dir = self.open_dir()?;
            retry_on_intr(|| rustix::fs::fstatvfs(&dir))?
        };
        // The blocks that are left for this user. Those that are kept for the administrator do not
        // count.
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// The files of the folder whose names begin with `prefix`, in order.
    pub(in crate::fs) fn list(&self, prefix: &str) -> io::Result<Vec<DirEntry>> {
        let mut dir = rustix::fs::Dir::new(self.open_dir()?)?;
        let mut entries = Vec::new();
        while let Some(entry) = dir.read() {
            let entry = entry?;
            // A name that is not UTF-8 is not one of a database.
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if !name.starts_with(prefix) {
                continue;
            }
            let stat = match rustix::fs::statat(dir.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Deleted since the folder was read.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno.into()),
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                entries.push(DirEntry { name: name.to_owned(), len: stat.st_size as u64 });
            }
        }
        // Folders list their names in any order; recovery and tests need one.
        entries.sort();
        Ok(entries)
    }

    /// The names in the folder that begin with `prefix`, in order, of files of any kind.
    pub(in crate::fs) fn list_names(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut dir = rustix::fs::Dir::new(self.open_dir()?)?;
        let mut names = Vec::new();
        while let Some(entry) = dir.read() {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && name.starts_with(prefix)
                // The folder itself and the one above.
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Creates an empty file under a fresh name next to this one; returns that name in the form of
    /// this path.
    pub(in crate::fs) fn create_temporary(&self) -> io::Result<(File, PathBuf)> {
        loop {
            let temporary = temporary_name(self.relative);
            // Only a new file: the name may be that of another process, whose file must not be
            // overwritten.
            match self.with(&temporary).create_new() {
                Ok(file) => return Ok((file, temporary)),
                // A file of a killed process that had the id of this one.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The file that [`At::create_temporary`] made for this one.
    pub(in crate::fs) fn temporary<'b>(&'b self, temporary: &'b Path) -> At<'b> {
        self.with(temporary)
    }
}

pub(in crate::fs) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(buf, offset)
}

pub(in crate::fs) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(bytes, offset)
}

/// Locks the file until it is closed, for itself or shared, without waiting. Returns `false` if it is locked
/// by another handle. Not by std, which refuses to on Android.
pub(in crate::fs) fn try_lock(file: &File, is_exclusive: bool) -> io::Result<bool> {
    let kind = match is_exclusive {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    match retry_on_intr(|| flock(file, kind)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Releases the lock, also where a child of the process has a copy of the open file.
pub(in crate::fs) fn unlock(file: &File) -> io::Result<()> {
    retry_on_intr(|| flock(file, FlockOperation::Unlock)).map_err(io::Error::from)
}

/// Writes pieces one after the other, as many as a call takes.
pub(in crate::fs) fn write_pieces_at(
    file: &File,
    pieces: &[io::IoSlice<'_>],
    offset: u64,
) -> io::Result<usize> {
    rustix::io::pwritev(file, pieces, offset).map_err(io::Error::from)
}
