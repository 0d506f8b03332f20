//! The storage seam: every byte that the engine reads or writes passes [`Fs`] and [`File`].
//!
//! Blocking and object-safe, so that the simulated file system of the tests is the production
//! path. Implementable on an object store too: nothing relies on unlinking open files, on
//! rewriting published bytes, or on rename where [`Fs::put_if_absent`] serves.
//!
//! Invariants:
//! 1. Only `fs/os.rs` and the files of `fs/sys/` name `std::fs`.
//! 2. A name is durable after [`Fs::sync_dir`] of its folder, bytes after [`File::sync`].
//! 3. A failed or doubtful `sync` condemns that file for good: it is never synced again, and its content
//!    beyond the last successful sync is never trusted. The same holds for a folder and the names that were
//!    in the sync: `folder.rs`.

mod appended_file;
mod copying;
#[cfg(any(test, feature = "internals"))]
mod fault;
mod folder;
mod handles;
mod held;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "a store into a mapped file goes through a pointer")]
mod map;
mod mem;
pub mod names;
mod open_files;
mod open_files_bound;
mod os;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the words of a mapped file are reached through a pointer")]
mod shared_map;
mod sync_files;
mod sys;

/// A folder that a file system holds, see [`Fs::hold_dir`].
pub struct HeldDir {
    /// The path of the folder from now on.
    pub path: PathBuf,
    /// The file system to use from now on; `None` is the one that was called.
    pub fs: Option<Arc<dyn Fs>>,
}

#[cfg(test)]
mod tests;
mod uncached;
mod under_way;
mod whole;
mod words;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "a call of the C library without a safe wrapper")]
mod writeback;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

pub use appended_file::AppendedFile;
pub use copying::{Placed, copy, link_or_copy};
#[cfg(any(test, feature = "internals"))]
#[doc(hidden)]
pub use fault::{FaultAction, FaultAt, FaultFs, FaultRule, FsOp, Observer, OpKind};
pub use folder::FolderFs;

pub use mem::{CrashOutcome, MemFs, SyncLoss};
pub use names::{RESTORING, SHIPPED_PREFIX, is_shipped_mark};
pub use open_files::TableFile;
pub use open_files::{OpenFiles, SharedFile, is_out_of_handles, is_unreadable};
pub use open_files_bound::OpenFilesBound;
pub use os::OsFs;
pub use under_way::FilesUnderWay;
pub use words::{MapMode, SharedWords};

pub use uncached::Uncached;

/// The first bytes of a file that the file system of the crate `encryption` wrote. Other file systems see them when
/// an encrypted database is opened without its keys.
pub const ENCRYPTED_MAGIC: [u8; 8] = *b"SILTCRYP";

/// The first bytes of an object in a store that the crate `encryption` encrypted.
pub const ENCRYPTED_PAGE_MAGIC: [u8; 4] = *b"SILP";

/// The treatment of the name by [`Fs::open_append`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendMode {
    /// The name must not exist yet; it is created.
    IfAbsent,
    /// The file must exist; appends continue at its end.
    Existing,
}

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The file's name without its folder.
    pub name: String,
    /// Its length in bytes. One that encrypts may count more than [`File::len`] does, and never less.
    pub len: u64,
}

/// The abilities of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each stands for itself")]
pub struct Caps {
    /// [`Fs::link`] gives a second name to the same bytes.
    pub link: bool,
    /// [`File::punch`] gives space back.
    pub punch: bool,
    /// [`Fs::try_lock`] excludes everyone else who uses the medium.
    pub process_lock: bool,
    /// The bytes of files are encrypted on the medium.
    pub is_encrypted: bool,
    /// A read waits for another machine. So reads that are independent are asked for together, by [`File::prefetch`].
    pub is_far: bool,
}

/// The part of a folder that counts for a reader in another process, see [`Fs::folder_state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderState {
    /// Unknown here: the commit cursor of the writer shows it, or the log attests it.
    Unknown,
    /// Each byte is of a frame or edit that its writer had settled, and durable.
    Settled,
    /// As [`FolderState::Settled`], and everything that any writer had acknowledged before the call is in it.
    Current,
}

/// The answer of [`Fs::folder_state`].
pub struct FolderLook {
    /// The part that counts.
    pub state: FolderState,
    /// Holds the tables and the files of large values that the folder has: until it is dropped, each opens by its name,
    /// also after the writer has deleted it; the same for files that appear before the call of [`NameHolder::settle`].
    /// `None` where a lease in the folder does that, or nothing.
    pub names: Option<HeldNames>,
}

/// Holds names of files, see [`FolderLook::names`]. Dropped, it holds none.
pub type HeldNames = Arc<dyn NameHolder>;

/// Files that stay open to a follower by their names.
pub trait NameHolder: Send + Sync {
    /// All files have appeared that the follower needs by now. Those that are created after this are not held, until the
    /// next call.
    fn settle(&self);
}

/// A held lock; dropped, it is released.
pub trait LockGuard: Send + Sync {}

/// A file system. Paths are whole paths.
pub trait Fs: Send + Sync + 'static {
    /// The abilities of the medium.
    fn caps(&self) -> Caps;

    /// Creates the folder and its parents, durably; fine if it exists.
    fn create_dir(&self, dir: &Path) -> Result<()>;

    /// Opens a file for appending (and reading).
    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>>;

    /// Opens an existing file for positional reads. A missing file is [`ErrorKind::Io`] with
    /// [`std::io::ErrorKind::NotFound`] as its [`Error::io_source`].
    ///
    /// [`ErrorKind::Io`]: crate::error::ErrorKind::Io
    /// [`Error::io_source`]: crate::error::Error::io_source
    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>>;

    /// Publishes a whole file under a name that must be free: `Ok(false)`, and nothing is done,
    /// if it is taken. After `Ok(true)` content and name are durable; after an error or a crash
    /// the name holds the whole content or does not exist.
    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool>;

    /// The entries of a folder that are files and whose name starts with `prefix`, in the order
    /// of their names. A missing folder is an error as in [`Fs::open_read`].
    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>>;

    /// Removes a name; no error if it does not exist. Durable after [`Fs::sync_dir`].
    fn delete(&self, path: &Path) -> Result<()>;

    /// Gives the bytes of `from` a second name, which must be free. Durable after [`Fs::sync_dir`].
    fn link(&self, from: &Path, to: &Path) -> Result<()>;

    /// Makes the names in a folder durable: creations, links and removals so far. A caller that relies on a
    /// name that was made calls [`Fs::sync_names`] instead.
    fn sync_dir(&self, dir: &Path) -> Result<()>;

    /// Makes these names in the folder `dir` durable. A name is doubtful for good after a failed sync of its
    /// folder by any caller: a later sync may succeed without it. The default does not know other callers;
    /// the database uses `FolderFs`, which does.
    ///
    /// # Errors
    /// Those of [`Fs::sync_dir`], now or since one of the names was made. Its file is condemned.
    fn sync_names(&self, dir: &Path, _names: &[PathBuf]) -> Result<()> {
        self.sync_dir(dir)
    }

    /// Makes the appends to each of these files durable, as [`File::sync`] does for one; an error
    /// of one is returned, and condemns that one alone. By default one after the other.
    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        files.iter().try_for_each(|file| file.sync())
    }

    /// Takes the lock `path` for this process without waiting: `None` if another holds it.
    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>>;

    /// Takes the lock `path` shared with other readers: `None` if a writer holds it. Writes
    /// nothing; a lock that does not exist yet, or that may not be opened, is an error as in
    /// [`Fs::open_read`].
    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>>;

    /// Free space where `dir` lies, in bytes.
    fn free_bytes(&self, dir: &Path) -> Result<u64>;

    /// The names in a folder that begin with `prefix`, in order: as [`Fs::list`], without the
    /// length and the kind of each.
    fn list_names(&self, dir: &Path, prefix: &str) -> Result<Vec<String>> {
        Ok(self.list(dir, prefix)?.into_iter().map(|entry| entry.name).collect())
    }

    /// Maps a small file as words of memory, shared by all processes that map it. `Ok(None)`, and
    /// no file, if the medium has no such memory: the default.
    ///
    /// # Errors
    /// A missing file as in [`Fs::open_read`]; a name that is taken; no space.
    fn map_words(&self, _path: &Path, _mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
        Ok(None)
    }

    /// Names the present run of the machine: processes that get the same number see one another's
    /// stores to [`SharedWords`]. `None`, the default, if it is unknown.
    fn machine_run(&self) -> Option<u64> {
        None
    }

    /// Looks at the folder again, and returns the part of it that counts. A follower calls this when it begins
    /// to catch up, before it reads manifest and log, and settles the names of the look before. If `wanted` is [`FolderState::Settled`], what has come so far is
    /// enough, and a medium that is far away may save calls. A medium on which files appear by themselves knows
    /// nothing: [`FolderState::Unknown`], the default.
    ///
    /// # Errors
    /// Those of the medium. The folder is as before.
    fn folder_state(&self, _dir: &Path, _wanted: FolderState) -> Result<FolderLook> {
        Ok(FolderLook { state: FolderState::Unknown, names: None })
    }

    /// The present failure of the medium that no call shows, for the health of the database: `None`, the default, if
    /// there is none. Does not block.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Holds the existing folder `dir`: under the returned path, by the returned file system, it
    /// stays this very folder even if it is renamed or the working folder of the process changes.
    /// If names cannot change unnoticed, this is the path itself.
    fn hold_dir(&self, dir: &Path) -> Result<HeldDir> {
        Ok(HeldDir { path: dir.to_owned(), fs: None })
    }
}

/// Bytes of a file in memory that the system shares with its cache: [`File::map`]. They are read from the
/// device when they are first used: if the device fails then, the process ends with a signal.
pub trait MappedFile: AsRef<[u8]> + Send + Sync {
    /// Reads those of the bytes in `range` that are not in memory. Returns `false` if the device fails, or
    /// if the system cannot do so: the bytes may be missing then. The system may evict them again later.
    fn populate(&self, range: Range<usize>) -> bool;

    /// Returns `false` if bytes in `range` would have to be read from the device. If the system cannot tell,
    /// they count as in memory.
    fn is_resident(&self, _range: Range<usize>) -> bool {
        true
    }
}

/// See [`MappedFile`]. The mapping ends when the last clone is dropped.
pub type MappedBytes = Arc<dyn MappedFile>;

/// A copy of the bytes of a file, as file systems in memory return it. It has no pages to populate, so
/// callers that need that read the bytes instead.
impl MappedFile for Vec<u8> {
    fn populate(&self, _range: Range<usize>) -> bool {
        false
    }
}

/// An open file. All calls take `&self`: a sync must not stop an append.
#[expect(clippy::len_without_is_empty, reason = "no caller needs it, and it costs a system call")]
pub trait File: Send + Sync + 'static {
    /// Appends all of `bytes` after the previous appends. After an error any part of them, from the
    /// front, may have reached the file, and the place of a further append is undefined.
    ///
    /// # Errors
    /// Those of the medium. [`ErrorKind::Unsupported`], by default, for a file that is open for reading alone.
    ///
    /// [`ErrorKind::Unsupported`]: crate::error::ErrorKind::Unsupported
    fn append(&self, bytes: &[u8]) -> Result<()> {
        let _ = bytes;
        Err(read_only_file())
    }

    /// Appends pieces one after the other, as [`File::append`] does with all of them in one buffer.
    /// By default an append for each, between which another append may come.
    fn append_pieces(&self, pieces: &[&[u8]]) -> Result<()> {
        pieces.iter().filter(|piece| !piece.is_empty()).try_for_each(|piece| self.append(piece))
    }

    /// Reads at `offset` until `buf` is full or the file ends; returns the number of bytes.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Makes the system start to read a range into its cache, and returns without waiting. Does nothing
    /// by default.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// As [`File::read_at`], but stops before a byte that the system would have to read from the device;
    /// returns the number of bytes before it. By default, and if the system cannot tell, it reads all.
    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buf)
    }

    /// As [`File::read_at`], from the device: past every cache if the system allows it.
    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Makes all appends before this call durable, and the length with them.
    fn sync(&self) -> Result<()>;

    /// As [`File::sync`], for bytes that nothing but later changes on this machine relies on. A file system that ships
    /// its changes in their order returns before they have arrived; the sync of a file that was changed later waits for
    /// them too. By default a sync.
    fn sync_locally(&self) -> Result<()> {
        self.sync()
    }

    /// The time that a sync of several writers may wait for the next appends of those that the sync before has
    /// released, so that one sync covers them all. Zero by default: a sync of a disk is short.
    fn gather_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Makes the system start to write all appends before this call to the device, and returns without
    /// waiting, so that a later [`File::sync`] has less to wait for. Makes nothing durable. Does nothing
    /// by default.
    fn begin_sync(&self) {}

    /// As [`File::begin_sync`], and first waits until the device has the bytes of the earlier call. So the
    /// queue of the device stays short, and readers wait for less. By default it does not wait.
    ///
    /// # Errors
    /// The device failed to write. As after a failed sync, a later sync need not report that again.
    fn begin_next_sync(&self) -> Result<()> {
        self.begin_sync();
        Ok(())
    }

    /// Length in bytes, preallocated ones included.
    fn len(&self) -> Result<u64>;

    /// Returns the parts of `range`, which ends with the file or before, that [`File::read_at`] reads; in order and
    /// apart from each other. By default all of it. A file system that verifies what it reads leaves out what was
    /// torn, lost or changed.
    ///
    /// # Errors
    /// Those of [`File::read_at`], but for bytes that do not verify.
    fn readable(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        Ok(vec![range])
    }

    /// Extends the file to `len` bytes of zeros with their space reserved. The place of the next
    /// append does not change.
    ///
    /// # Errors
    /// As [`File::append`].
    fn preallocate(&self, len: u64) -> Result<()> {
        let _ = len;
        Err(read_only_file())
    }

    /// Allows small appends to go through a shared mapping from now on, up to the end of the
    /// preallocated range, if the medium is known to support that. Nothing else changes: appends
    /// are read, synced and lost as before, and an append that cannot be stored is written. See
    /// `docs/MEDIA.md` for the one danger. Returns `false`, as by default, if nothing changes.
    fn map_appends(&self) -> bool {
        false
    }

    /// Maps `len` bytes at `offset` for reading, if the medium supports it; `None`, the default, if it does
    /// not. The bytes stay readable after the file is deleted or closed. The caller has checked that the file
    /// has them, and never overwrites, truncates or punches them. See `docs/MEDIA.md` for the danger.
    fn map(&self, _offset: u64, _len: usize) -> Option<MappedBytes> {
        None
    }

    /// Writes `bytes` over those at `offset`, which exist. Only for bytes that the file has twice: a crash
    /// may tear them, and other readers may see a part. The place of the next append does not change.
    ///
    /// # Errors
    /// Those of the medium. [`ErrorKind::Unsupported`], by default, if it cannot do so.
    ///
    /// [`ErrorKind::Unsupported`]: crate::error::ErrorKind::Unsupported
    fn overwrite(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        let message = "this file system writes no bytes over others";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Frees the space of a range; it reads as zeros from then on.
    ///
    /// # Errors
    /// As [`File::append`].
    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let _ = (offset, len);
        Err(read_only_file())
    }
}

/// The error of a call that changes a file which is open for reading alone.
fn read_only_file() -> Error {
    Error::new(ErrorKind::Unsupported, "the file is open for reading alone")
}
