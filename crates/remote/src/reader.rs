//! [`RemoteReader`]: the folder of a database in a bucket, for secondaries of any machine. Its file system is read-only:
//! a replay of the journal, and blocks of objects in a bounded cache.
//!
//! Invariants:
//! 1. Changes are taken in in their order, those of a journal object under one lock: the folder is a prefix of
//!    the history, and a name is there before a manifest names it.
//! 2. A look at the journal ends with an answer that no further object exists, which was asked for after the look
//!    began, and then with a boundary below that object: it was not deleted. A look for those who want no present
//!    state may end without the boundary. Then it takes in changes of the writer that is known, and nothing else.
//! 3. If the next objects were deleted, the folder becomes that of the newest base and the journal after it. A file
//!    that goes on keeps its bytes for those that have it open.
//! 4. A table or chunk file opens by its name as long as a [`NameHold`] of a state with it lives, and the lease names
//!    its objects.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lsm_core::fs::{
    AppendMode, Caps, DirEntry, File, FolderLook, FolderState, Fs, LockGuard, NameHolder,
};
use parking_lot::{Mutex, RwLock};
use siltstone::{Builder, Db, Error, Result};

use crate::background::BackgroundThread;
use crate::bucket::Bucket;
use crate::cache::{CacheFigures, ObjectCache};
use crate::folder::{FileBytes, FileClass, Folder, RemovedFile, class_of};
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
    lease: Option<OwnLease>,
    /// The folder is that of one moment, and stays so.
    is_fixed: bool,
    /// Held over a look at the journal, and over a renewal: one thread asks, and the others get its answer.
    turn: Mutex<ReaderTurn>,
    /// A leaf.
    folder: Mutex<ReaderFolder>,
}

/// The folder, and what views of earlier states need.
#[derive(Default)]
struct ReaderFolder {
    folder: Folder,
    /// The states that are held, by the number of the hold.
    holds: BTreeMap<u64, StateRange>,
    /// The number of the last hold.
    last_hold: u64,
    /// Tables and chunk files that were deleted, and that a held state has.
    held: Vec<RemovedFile>,
}

/// States from a journal object to another one.
struct StateRange {
    first: u64,
    /// `u64::MAX` as long as newer states may be read with the names.
    last: u64,
}

impl ReaderFolder {
    fn new(folder: Folder) -> ReaderFolder {
        ReaderFolder { folder, ..ReaderFolder::default() }
    }

    /// The file of a name, also of one that was deleted and is held.
    fn file(&self, name: &str) -> Option<&Arc<RwLock<FileBytes>>> {
        let known = self.folder.file(name);
        known.or_else(|| self.held.iter().rev().find(|it| it.name == name).map(|it| &it.file))
    }

    /// Takes over the files that the folder has lost. Returns those that are open or held.
    fn take_removed(&mut self) -> Vec<Weak<RwLock<FileBytes>>> {
        self.folder.dropped.clear();
        self.folder.fenced.clear();
        let removed = self.folder.removed.as_mut().map(std::mem::take).unwrap_or_default();
        let mut needed = Vec::new();
        for removed in removed {
            let is_held = self.holds(&removed)
                && matches!(class_of(&removed.name), Some(FileClass::Table | FileClass::Chunk));
            if is_held || Arc::strong_count(&removed.file) > 1 {
                needed.push(Arc::downgrade(&removed.file));
            }
            if is_held {
                self.held.push(removed);
            }
        }
        needed
    }

    /// Returns `true` if a state that has the file is held.
    fn holds(&self, removed: &RemovedFile) -> bool {
        let created = removed.file.read().created;
        self.holds.values().any(|it| created <= it.last && it.first < removed.number)
    }
}

/// Holds the tables and chunk files of a range of states.
struct NameHold {
    state: Arc<ReaderState>,
    hold: u64,
}

impl NameHolder for NameHold {
    fn settle(&self) {
        let mut folder = self.state.folder.lock();
        let number = folder.folder.number;
        if let Some(held) = folder.holds.get_mut(&self.hold) {
            held.last = number;
        }
    }
}

impl Drop for NameHold {
    fn drop(&mut self) {
        let mut folder = self.state.folder.lock();
        folder.holds.remove(&self.hold);
        let held = std::mem::take(&mut folder.held);
        folder.held = held.into_iter().filter(|it| folder.holds(it)).collect();
    }
}

/// The lease of a reader.
struct OwnLease {
    /// A leaf. That of the last renewal.
    id: Mutex<u128>,
    interval: Duration,
}

struct ReaderTurn {
    boundary: Boundary,
    /// Files that are deleted, and may be open or held.
    removed: Vec<Weak<RwLock<FileBytes>>>,
    /// By the own timer.
    renewed: Duration,
    /// The last look for a newer base, too.
    looked: Duration,
    /// The last look found no object.
    is_idle: bool,
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
            let _ = self.state.bucket.store.delete(&BucketLease::name(*lease.id.lock()));
        }
    }
}

impl ReaderState {
    fn number(&self) -> u64 {
        self.folder.lock().folder.number
    }

    fn writer(&self) -> u128 {
        self.folder.lock().folder.writer
    }

    /// Takes in what is new in the journal. Returns `true` if that is all which was stored before the call:
    /// `wants_all` asks for that.
    fn refresh(&self, wants_all: bool) -> Result<bool> {
        if self.is_fixed {
            return Ok(true);
        }
        let mut turn = self.turn.lock();
        let has_all = loop {
            let from = self.number() + 1;
            let batch = ObjectBatch::look(&self.bucket, from, turn.is_idle)?;
            turn.is_idle = batch.is_empty();
            // Who wants no present state needs no proof that this is the end. If the next object was deleted, there is a
            // base after it, which is looked for below.
            let is_checked = wants_all || !batch.is_of(self.writer());
            if is_checked && turn.boundary.has_freed(&self.bucket, from)? {
                self.reload(&mut turn)?;
                continue;
            }
            let is_last = batch.is_last;
            let mut folder = self.folder.lock();
            let taken_in = batch.take_in(&mut folder.folder);
            turn.removed.extend(folder.take_removed());
            drop(folder);
            taken_in?;
            if !is_last {
                continue;
            }
            if self.is_before_a_base(&mut turn)? {
                self.reload(&mut turn)?;
                continue;
            }
            break is_checked;
        };
        self.renew_if_due(&mut turn)?;
        Ok(has_all)
    }

    /// Looks now and then for a base after the end of the journal: then the object that is missing there is lost, or was
    /// deleted. The base has what it had.
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
        old.folder.go_on_as(folder);
        turn.removed.extend(old.take_removed());
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
        let Some(kept) = &self.lease else { return Ok(()) };
        let now = self.bucket.timer.now();
        let mut lease = BucketLease::new(*kept.id.lock(), self.number(), kept.interval);
        turn.removed.retain(|file| file.strong_count() > 0);
        for file in turn.removed.iter().filter_map(Weak::upgrade) {
            lease.objects.extend(file.read().pieces.iter().map(|piece| piece.object.clone()));
        }
        let put = lease.renew(&self.bucket, now.saturating_sub(turn.renewed));
        // Also that of a put that may take effect later: a drop gives it up.
        *kept.id.lock() = lease.id;
        put?;
        turn.renewed = now;
        Ok(())
    }
}

impl Renewal for ReaderState {
    fn renew(&self) -> Result<()> {
        self.refresh(true).map(drop)
    }
}

impl ReaderTurn {
    fn new(boundary: Boundary, looked: Duration) -> ReaderTurn {
        ReaderTurn { boundary, removed: Vec::new(), renewed: looked, looked, is_idle: false }
    }
}

impl RemoteReader {
    pub(crate) fn open(remote: &Settings) -> Result<RemoteReader> {
        let bucket = remote.bucket();
        let (mut folder, boundary) = load(&bucket)?;
        folder.removed = Some(Vec::new());
        let cache = Arc::new(caches(remote, &bucket)?);
        let id = Mutex::new(bucket.random_id());
        let turn = ReaderTurn::new(boundary, bucket.timer.now());
        let state = Arc::new(ReaderState {
            bucket,
            cache,
            lease: remote.lease.map(|interval| OwnLease { id, interval }),
            is_fixed: false,
            turn: Mutex::new(turn),
            folder: Mutex::new(ReaderFolder::new(folder)),
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
        state.refresh(true)?;
        state.bucket.await_credentials();
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
            folder: Mutex::new(ReaderFolder::new(folder)),
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
    /// A GET for each new object, one or two that find none (one if the look before found none either), and one for the
    /// boundary of deletion.
    pub fn refresh(&self) -> Result<()> {
        self.state.refresh(true).map(drop)
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
fn caches(remote: &Settings, bucket: &Bucket) -> Result<ObjectCache> {
    let disk = remote.disk.as_ref().map(|folder| folder.open(&remote.fs)).transpose()?;
    Ok(ObjectCache::with_disk(bucket.sibling(), remote.cache_bytes, disk.flatten()))
}

impl Fs for RemoteReader {
    fn caps(&self) -> Caps {
        let is_encrypted = self.state.bucket.seal.is_some();
        Caps { link: false, punch: false, process_lock: false, is_encrypted, is_far: true }
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
        let files = folder.folder.files.iter().filter(|(name, _)| name.starts_with(prefix));
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

    fn folder_state(&self, _dir: &Path, wanted: FolderState) -> Result<FolderLook> {
        let has_all = self.state.refresh(wanted == FolderState::Current)?;
        let mut folder = self.state.folder.lock();
        let state = match folder.folder.ack {
            Ack::Stored if has_all => FolderState::Current,
            // Under `Ack::Local` commits are acknowledged that the bucket does not have.
            Ack::Stored | Ack::Local => FolderState::Settled,
        };
        folder.last_hold += 1;
        let hold = folder.last_hold;
        let first = folder.folder.number;
        folder.holds.insert(hold, StateRange { first, last: u64::MAX });
        drop(folder);
        Ok(FolderLook {
            state,
            names: Some(Arc::new(NameHold { state: self.state.clone(), hold })),
        })
    }
}
