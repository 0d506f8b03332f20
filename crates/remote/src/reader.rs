//! [`RemoteReader`]: the folder of a database in a bucket, for secondaries of any machine. Its file system is read-only:
//! a replay of the journal, and blocks of objects in a bounded cache.
//!
//! Invariants:
//! 1. Changes are taken in in their order, those of a journal object under one lock: the folder is a prefix of
//!    the history, and a name is there before a manifest names it.
//! 2. A look at the journal ends with an answer that no further object exists, which was asked for after the look
//!    began, and then with a boundary below that object: it was not deleted.
//! 3. If the next objects were deleted, the folder becomes that of the newest base and the journal after it. A file
//!    that goes on keeps its bytes for those that have it open.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lsm_core::fs::{AppendMode, Caps, DirEntry, File, FolderState, Fs, LockGuard};
use parking_lot::{Mutex, RwLock};
use siltstone::{Builder, Db, Error, Result};

use crate::background::BackgroundThread;
use crate::bucket::Bucket;
use crate::cache::{CacheFigures, ObjectCache};
use crate::folder::{FileBytes, Folder};
use crate::journal::{Boundary, ObjectBatch, load};
use crate::lease::BucketLease;
use crate::remote_file::{RemoteFile, Renewal};
use crate::retention::Retention;
use crate::settings::{Ack, Settings};

/// The time between two looks for a base after the end of the journal.
const BASE_LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// The path of the folder, in the file system of a reader.
const DIR: &str = "/remote";

/// The folder of a database in a bucket, for reading. See [`Remote::reader`](crate::Remote::reader).
#[derive(Clone)]
pub struct RemoteReader {
    state: Arc<ReaderState>,
    /// Ends with the last reader of this state.
    _lease: Option<Arc<KeptLease>>,
}

struct ReaderState {
    // Fixed after the open.
    bucket: Bucket,
    cache: Arc<ObjectCache>,
    lease: Option<LeaseOptions>,
    /// The folder is that of one moment, and stays so.
    is_fixed: bool,
    /// Held over a look at the journal, and over a renewal: one thread asks, and the others get its answer.
    turn: Mutex<ReaderTurn>,
    /// A leaf.
    folder: Mutex<Folder>,
}

struct LeaseOptions {
    id: u128,
    interval: Duration,
}

struct ReaderTurn {
    boundary: Boundary,
    /// Files that are deleted, and may be open.
    removed: Vec<Weak<RwLock<FileBytes>>>,
    /// By the own timer.
    renewed: Duration,
    /// The last look for a newer base, too.
    looked: Duration,
}

/// The thread that renews a lease. The lease is given up after its end.
struct KeptLease {
    thread: Option<BackgroundThread>,
    state: Arc<ReaderState>,
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        drop(self.thread.take());
        if let Some(lease) = &self.state.lease {
            // It expires by itself.
            let _ = self.state.bucket.store.delete(&BucketLease::name(lease.id));
        }
    }
}

impl ReaderState {
    fn number(&self) -> u64 {
        self.folder.lock().number
    }

    /// Takes in what is new in the journal.
    fn refresh(&self) -> Result<()> {
        if self.is_fixed {
            return Ok(());
        }
        let mut turn = self.turn.lock();
        loop {
            let from = self.number() + 1;
            let batch = ObjectBatch::read(&self.bucket, from, u64::MAX)?;
            if turn.boundary.has_freed(&self.bucket, from)? {
                self.reload(&mut turn)?;
                continue;
            }
            let is_last = batch.is_last;
            let mut folder = self.folder.lock();
            let taken_in = batch.take_in(&mut folder);
            turn.note_removed(&mut folder);
            drop(folder);
            taken_in?;
            if !is_last {
                continue;
            }
            if self.is_before_a_base(&mut turn)? {
                self.reload(&mut turn)?;
                continue;
            }
            break;
        }
        self.renew_if_due(&mut turn)
    }

    /// Looks now and then for a base after the end of the journal: then the object that is missing there is lost. The
    /// base has what it had.
    fn is_before_a_base(&self, turn: &mut ReaderTurn) -> Result<bool> {
        let now = self.bucket.timer.now();
        if now.saturating_sub(turn.looked) < BASE_LOOK_INTERVAL {
            return Ok(false);
        }
        let bases = Retention::read_bases(&self.bucket)?;
        turn.looked = now;
        Ok(bases.last().is_some_and(|(base, _)| *base > self.number()))
    }

    /// Begins again with the newest base.
    fn reload(&self, turn: &mut ReaderTurn) -> Result<()> {
        let (folder, boundary) = load(&self.bucket)?;
        turn.boundary = boundary;
        let mut old = self.folder.lock();
        old.go_on_as(folder);
        turn.note_removed(&mut old);
        drop(old);
        self.renew(turn)
    }

    fn renew_if_due(&self, turn: &mut ReaderTurn) -> Result<()> {
        let Some(lease) = &self.lease else { return Ok(()) };
        if self.bucket.timer.now().saturating_sub(turn.renewed) < lease.interval {
            return Ok(());
        }
        self.renew(turn)
    }

    /// Puts the lease as of now.
    fn renew(&self, turn: &mut ReaderTurn) -> Result<()> {
        let Some(options) = &self.lease else { return Ok(()) };
        let now = self.bucket.timer.now();
        let mut lease = BucketLease::new(options.id, self.number(), options.interval);
        turn.removed.retain(|file| file.strong_count() > 0);
        for file in turn.removed.iter().filter_map(Weak::upgrade) {
            lease.objects.extend(file.read().pieces.iter().map(|piece| piece.object.clone()));
        }
        lease.put(&self.bucket)?;
        turn.renewed = now;
        Ok(())
    }
}

impl Renewal for ReaderState {
    fn renew(&self) -> Result<()> {
        self.refresh()
    }
}

impl ReaderTurn {
    fn new(boundary: Boundary, looked: Duration) -> ReaderTurn {
        ReaderTurn { boundary, removed: Vec::new(), renewed: Duration::ZERO, looked }
    }

    /// Notes the files that `folder` has lost.
    fn note_removed(&mut self, folder: &mut Folder) {
        folder.dropped.clear();
        folder.fenced.clear();
        let removed = folder.removed.as_mut().map(std::mem::take).unwrap_or_default();
        let open = removed.iter().filter(|file| Arc::strong_count(file) > 1);
        self.removed.extend(open.map(Arc::downgrade));
    }
}

impl RemoteReader {
    pub(crate) fn open(remote: &Settings) -> Result<RemoteReader> {
        let bucket = remote.bucket();
        let (mut folder, boundary) = load(&bucket)?;
        folder.removed = Some(Vec::new());
        let cache = Arc::new(caches(remote)?);
        let id = u128::from(bucket.timer.random()) << 64 | u128::from(bucket.timer.random());
        let turn = ReaderTurn::new(boundary, bucket.timer.now());
        let state = Arc::new(ReaderState {
            bucket,
            cache,
            lease: remote.lease.map(|interval| LeaseOptions { id, interval }),
            is_fixed: false,
            turn: Mutex::new(turn),
            folder: Mutex::new(folder),
        });
        // Before the put: a lease is given up also if a later call fails, or the put itself after its effect.
        let mut held = remote.lease.map(|_| KeptLease { thread: None, state: state.clone() });
        state.renew(&mut state.turn.lock())?;
        if let (Some(held), Some(interval), false) = (&mut held, remote.lease, remote.is_stepped) {
            let state = state.clone();
            held.thread =
                Some(BackgroundThread::start("siltstone-lease", interval, false, move || {
                    // An error is that of the next look, too.
                    let _ = state.renew(&mut state.turn.lock());
                })?);
        }
        let held = held.map(Arc::new);
        // A boundary that was put before the lease is seen now.
        state.refresh()?;
        Ok(RemoteReader { state, _lease: held })
    }

    /// A reader of one moment, which looks at nothing new.
    pub(crate) fn of_state(remote: &Settings, folder: Folder) -> RemoteReader {
        let bucket = remote.bucket();
        let cache = Arc::new(ObjectCache::new(bucket.clone(), remote.cache_bytes));
        let boundary = Boundary::default();
        let turn = ReaderTurn::new(boundary, bucket.timer.now());
        let state = Arc::new(ReaderState {
            bucket,
            cache,
            lease: None,
            is_fixed: true,
            turn: Mutex::new(turn),
            folder: Mutex::new(folder),
        });
        RemoteReader { state, _lease: None }
    }

    /// The error of the last call of the store that was given up.
    pub(crate) fn given_up(&self) -> Option<String> {
        self.state.bucket.given_up()
    }

    /// Returns options of a secondary of this folder. Several may be opened.
    pub fn secondary(&self) -> siltstone::secondary::Builder {
        Db::secondary_builder(DIR).fs(Arc::new(self.clone()))
    }

    /// Returns options of a read-only database of this folder: of the state that it has at the open. The whole log is
    /// replayed into memory, see [`Builder::read_only`]. [`RemoteReader::refresh`] is called before the open, or
    /// not before the close.
    pub fn builder(&self) -> Builder {
        Db::builder(DIR).fs(Arc::new(self.clone())).read_only(true)
    }

    /// Takes in what is new in the journal. A secondary does that by itself whenever it catches up. If the next
    /// objects were deleted, the folder goes on from the newest base.
    ///
    /// # Errors
    /// Those of the store; corruption of an object. The folder then has all objects before the damaged one, and nothing of it.
    ///
    /// # Cost
    /// A GET for each new object, one that finds none, and one for the boundary of deletion.
    pub fn refresh(&self) -> Result<()> {
        self.state.refresh()
    }

    /// Puts the lease as of now. A thread does that every [`Remote::lease`](crate::Remote::lease).
    ///
    /// # Errors
    /// Those of the store.
    pub fn renew_lease(&self) -> Result<()> {
        self.state.renew(&mut self.state.turn.lock())
    }

    /// Returns the number of the last journal object that the folder has.
    pub fn number(&self) -> u64 {
        self.state.number()
    }

    /// Returns the bytes of objects in memory.
    pub fn cache_bytes(&self) -> u64 {
        self.state.cache.bytes()
    }

    /// Returns figures of the caches: hits, GETs, and damage that was healed.
    pub fn cache_figures(&self) -> CacheFigures {
        self.state.cache.figures()
    }

    fn read_only(path: &Path) -> Error {
        Error::io("write", path, io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// The caches of a reader, in memory and on disk.
fn caches(remote: &Settings) -> Result<ObjectCache> {
    let disk = remote.disk.as_ref().map(|folder| folder.open(&remote.fs)).transpose()?;
    Ok(ObjectCache::with_disk(remote.bucket(), remote.cache_bytes, disk.flatten()))
}

impl Fs for RemoteReader {
    fn caps(&self) -> Caps {
        Caps { link: false, punch: false, process_lock: false }
    }

    fn is_encrypted(&self) -> bool {
        self.state.bucket.seal.is_some()
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        Err(RemoteReader::read_only(dir))
    }

    fn open_append(&self, path: &Path, _mode: AppendMode) -> Result<Arc<dyn File>> {
        Err(RemoteReader::read_only(path))
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let file = self.state.folder.lock().file(name).cloned();
        match file {
            Some(file) => {
                let cache = self.state.cache.clone();
                let opened = RemoteFile::new(file, cache, PathBuf::from(path));
                Ok(Arc::new(opened.renewed_by(self.state.clone())))
            }
            None => Err(Error::io("open", path, io::ErrorKind::NotFound.into())),
        }
    }

    fn put_if_absent(&self, path: &Path, _content: &[u8]) -> Result<bool> {
        Err(RemoteReader::read_only(path))
    }

    fn list(&self, _dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        let folder = self.state.folder.lock();
        let files = folder.files.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(files
            .map(|(name, file)| DirEntry { name: name.clone(), len: file.read().len })
            .collect())
    }

    fn delete(&self, path: &Path) -> Result<()> {
        Err(RemoteReader::read_only(path))
    }

    fn link(&self, _from: &Path, to: &Path) -> Result<()> {
        Err(RemoteReader::read_only(to))
    }

    fn sync_dir(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        Err(RemoteReader::read_only(path))
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        Err(Error::io("open", path, io::ErrorKind::NotFound.into()))
    }

    fn free_bytes(&self, _dir: &Path) -> Result<u64> {
        Ok(0)
    }

    fn folder_state(&self, _dir: &Path) -> Result<FolderState> {
        self.refresh()?;
        Ok(match self.state.folder.lock().ack {
            Ack::Stored => FolderState::Current,
            // Commits are acknowledged that the bucket does not have.
            Ack::Local => FolderState::Settled,
        })
    }
}
