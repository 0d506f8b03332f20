//! [`FileRestorer`]: brings the files that only the bucket has to the local disk: in the background after a takeover, and at
//! once for a call that needs a local file. [`RestoredFile`]: such a file, read from the bucket until it is here.
//!
//! Invariants:
//! 1. A name appears in the folder with all of its bytes, synced. Until then they are in a file of another name, which
//!    nothing reads, and which the next open deletes.
//! 2. No read waits for a restore, and no call for a file that is here. A call that needs the local file goes on at the
//!    place which the background has reached, and waits for one piece of it at most.
//! 3. A failed attempt changes nothing: the file is read from the bucket, and is tried again.
//! 4. The background makes one attempt for each call of the store, so that it ends soon. Its patience is the thread's.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lsm_core::fs::{AppendMode, File, Fs, MappedBytes};
use parking_lot::Mutex;
use siltstone::{Error, Result};

use crate::bucket::Bucket;
use crate::cache::ObjectCache;
use crate::folder::{FileClass, class_of};
use crate::fs::ShippingFs;
use crate::remote_file::{LocalCopy, RemoteFile};
use crate::settings::Settings;
use crate::shipper::Shipper;

/// The bytes of one GET, and of one turn.
const PIECE_BYTES: u64 = 4 << 20;
/// Those of a restore that is slower than a piece a second.
const PIECE_BYTES_MIN: u64 = 64 << 10;
/// The background leaves so much of the local disk to the log and to new tables.
const RESERVE_BYTES: u64 = 256 << 20;
/// Partial files of failed attempts that are kept: each has an open file.
const PARTIALS_MAX: usize = 4;
/// The pauses after a failed attempt: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The end of the name of a file that is being restored.
const PARTIAL_SUFFIX: &str = ".restored";

/// The progress of the restore after a takeover, see [`Status::restore`](crate::Status::restore).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreStatus {
    /// Tables and chunk files that only the bucket had when the primary was opened, and their bytes.
    pub files: u64,
    /// See `files`.
    pub bytes: u64,
    /// Those of them that are here, or that were deleted meanwhile.
    pub files_done: u64,
    /// See `files_done`; with the part of a file that is being restored.
    pub bytes_done: u64,
    /// The error of the last attempt in the background, until one succeeds. It is tried again after a second, later
    /// after a minute. A full disk is one: the restore leaves 256 MiB of it free, and goes on once there is room.
    pub error: Option<String>,
}

impl RestoreStatus {
    /// Returns `true` if the local disk has all files.
    pub fn is_done(&self) -> bool {
        self.files_done == self.files
    }
}

/// A file that is being restored.
struct PartialFile {
    file: Arc<dyn File>,
    at: u64,
}

/// Those that are kept, by the names of the whole files.
type PartialFiles = BTreeMap<String, PartialFile>;

/// The time between pieces that keeps a rate.
struct RestoreRate {
    /// In bytes a second; without a limit, `u64::MAX`.
    rate: u64,
    /// All pieces so far are paid for at this time.
    paid_at: Duration,
}

impl RestoreRate {
    fn piece_bytes(&self) -> u64 {
        self.rate.clamp(PIECE_BYTES_MIN, PIECE_BYTES)
    }

    /// The pause after a piece that was got from `begun` until `now`.
    fn pause_after(&mut self, bytes: u64, begun: Duration, now: Duration) -> Duration {
        if self.rate == u64::MAX {
            return Duration::ZERO;
        }
        let cost = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        self.paid_at = self.paid_at.max(begun) + cost;
        self.paid_at.saturating_sub(now)
    }
}

/// The work of the background.
struct RestoreAttempts {
    pace: RestoreRate,
    /// The file that is being restored.
    current: Option<String>,
    /// Files that failed since all were tried.
    failed: BTreeSet<String>,
    pause: Duration,
    error: Option<String>,
}

/// The restore of the files that only the bucket has.
pub(crate) struct FileRestorer {
    // Fixed after the open.
    bucket: Bucket,
    /// Of the background, with one attempt for each call.
    cache: Arc<ObjectCache>,
    is_automatic: bool,
    files: u64,
    bytes: u64,
    /// Held over a piece, with its GET: two threads would write one partial file.
    partials: Mutex<PartialFiles>,
    /// The bytes in them, for the status alone, which must not wait for a GET.
    partial_bytes: AtomicU64,
    /// A leaf.
    attempts: Mutex<RestoreAttempts>,
}

impl FileRestorer {
    pub(crate) fn new(settings: &Settings, shipper: &Shipper) -> FileRestorer {
        let mut bucket = settings.bucket();
        bucket.patience = Duration::ZERO;
        let remote = shipper.remote_only();
        let bytes = remote.iter().map(|name| shipper.remote_bytes(name)).sum();
        let attempts = RestoreAttempts {
            pace: RestoreRate { rate: settings.restore_rate, paid_at: Duration::ZERO },
            current: None,
            failed: BTreeSet::new(),
            pause: PAUSE_MIN,
            error: None,
        };
        FileRestorer {
            // Uncached reads alone go through it.
            cache: Arc::new(ObjectCache::new(bucket.clone(), 0)),
            bucket,
            is_automatic: settings.restore_rate > 0,
            files: remote.len() as u64,
            bytes,
            partials: Mutex::default(),
            partial_bytes: AtomicU64::new(0),
            attempts: Mutex::new(attempts),
        }
    }

    /// Returns `true` if the background has something to do.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_automatic && self.files > 0
    }

    pub(crate) fn status(&self, shipper: &Shipper) -> RestoreStatus {
        let remote = shipper.remote_only();
        let here = self.partial_bytes.load(Ordering::Relaxed);
        let bytes: u64 = remote.iter().map(|name| shipper.remote_bytes(name)).sum();
        RestoreStatus {
            files: self.files,
            bytes: self.bytes,
            files_done: self.files.saturating_sub(remote.len() as u64),
            bytes_done: self.bytes.saturating_sub(bytes.saturating_sub(here)),
            error: self.attempts.lock().error.clone(),
        }
    }

    fn note_partials(&self, partials: &PartialFiles) {
        let bytes = partials.values().map(|partial| partial.at).sum();
        self.partial_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The failure of the background, for the health of the database.
    pub(crate) fn failure(&self) -> Option<String> {
        let attempts = self.attempts.lock();
        attempts.error.as_ref().map(|error| format!("the restore after a takeover: {error}"))
    }

    /// The file to go on with: tables first, which each lookup may need.
    fn next(&self, shipper: &Shipper) -> Option<String> {
        let mut attempts = self.attempts.lock();
        let remote = shipper.remote_only();
        if let Some(current) = &attempts.current
            && remote.contains(current)
        {
            return Some(current.clone());
        }
        if remote.iter().all(|name| attempts.failed.contains(name)) {
            attempts.failed.clear();
        }
        let untried = remote.into_iter().filter(|name| !attempts.failed.contains(name));
        let next =
            untried.min_by_key(|name| (class_of(name) != Some(FileClass::Table), name.clone()));
        attempts.current.clone_from(&next);
        next
    }
}

/// Deletes what a restore that was interrupted has left in a folder.
pub(crate) fn clear_partials(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let names = fs.list_names(dir, "")?;
    names
        .iter()
        .filter(|name| {
            name.strip_suffix(PARTIAL_SUFFIX).is_some_and(|name| class_of(name).is_some())
        })
        .try_for_each(|name| fs.delete(&dir.join(name)))
}

impl ShippingFs {
    /// Makes a whole file that only the bucket has a local one.
    pub(crate) fn restore(&self, name: &str) -> Result<()> {
        // A file has its name before it counts as local. A log is not to wait for a piece of another file.
        while self.shipper.remote_file(name).is_some()
            && self.restore_piece(name, &self.cache, PIECE_BYTES, 0)?.is_some()
        {}
        Ok(())
    }

    /// Restores a piece in the background. Returns the pause before the next one; `None` if there is none.
    pub(crate) fn restore_step(&self) -> Option<Duration> {
        let restorer = &*self.restorer;
        if !restorer.is_automatic || self.shipper.check_writer().is_err() {
            return None;
        }
        let Some(name) = restorer.next(&self.shipper) else {
            // One that stays is deleted by the next open.
            let _ = self.drop_gone(&mut restorer.partials.lock());
            return None;
        };
        let piece_bytes = restorer.attempts.lock().pace.piece_bytes();
        let begun = restorer.bucket.timer.now();
        let restored = self.restore_piece(&name, &restorer.cache, piece_bytes, RESERVE_BYTES);
        let now = restorer.bucket.timer.now();
        let mut attempts = restorer.attempts.lock();
        match restored {
            Ok(bytes) => {
                attempts.error = None;
                attempts.pause = PAUSE_MIN;
                Some(attempts.pace.pause_after(bytes.unwrap_or(0), begun, now))
            }
            Err(error) => {
                attempts.error = Some(error.to_string());
                attempts.current = None;
                attempts.failed.insert(name);
                let pause = attempts.pause;
                attempts.pause = (pause * 2).min(PAUSE_MAX);
                Some(pause)
            }
        }
    }

    /// Brings the next piece of a file, and returns its bytes; `None` if there is none, as the file is here or was
    /// deleted. Begins no file, and adds nothing to one, that would leave less than `reserve` of the disk.
    fn restore_piece(
        &self,
        name: &str,
        cache: &Arc<ObjectCache>,
        piece_bytes: u64,
        reserve: u64,
    ) -> Result<Option<u64>> {
        let mut partials = self.restorer.partials.lock();
        self.drop_gone(&mut partials)?;
        let Some((state, _)) = self.shipper.remote_file(name) else { return Ok(None) };
        let len = state.read().len;
        let path = self.partial_path(name);
        let at = partials.get(name).map_or(0, |partial| partial.at);
        let wanted = (len - at).min(piece_bytes);
        let needed = if at == 0 { len } else { wanted };
        if reserve > 0 && self.inner.free_bytes(&self.root)? < needed.saturating_add(reserve) {
            self.drop_partial(&mut partials, name)?;
            let full = io::ErrorKind::StorageFull.into();
            return Err(Error::io("restore", &self.root.join(name), full));
        }
        let mut buf = vec![0; wanted as usize];
        if cache.read_at(&state, at, &mut buf, false)? < buf.len() {
            let what = "the file ends before its length";
            return Err(Error::corruption(self.root.join(name), at, what));
        }
        // Only now: the attempts of a bucket that is away leave no open file.
        let file = match partials.get(name) {
            Some(partial) => partial.file.clone(),
            None => {
                self.drop_shortest(&mut partials)?;
                self.inner.delete(&path)?;
                self.inner.open_append(&path, AppendMode::IfAbsent)?
            }
        };
        let at = at + buf.len() as u64;
        partials.insert(name.to_owned(), PartialFile { file: file.clone(), at });
        let taken = file.append(&buf).and_then(|()| match at < len {
            true => Ok(()),
            false => {
                file.sync()?;
                self.publish(name, &path)
            }
        });
        drop(file);
        let mut cleared = Ok(());
        if taken.is_err() || at == len {
            // A full disk has this room again.
            cleared = self.drop_partial(&mut partials, name);
        }
        self.restorer.note_partials(&partials);
        taken.and(cleared)?;
        Ok(Some(buf.len() as u64).filter(|_| at < len))
    }

    /// Gives a whole partial file its name.
    fn publish(&self, name: &str, partial: &Path) -> Result<()> {
        let path = self.root.join(name);
        // An attempt that failed after this may have left it.
        self.inner.delete(&path)?;
        if self.inner.caps().link {
            self.inner.link(partial, &path)?;
        } else {
            lsm_core::fs::copy(&*self.inner, partial, &path, None)?;
        }
        self.inner.sync_dir(&self.root)?;
        let local = self.inner.open_read(&path)?;
        if let Some(copy) = self.shipper.note_local(name) {
            // Those that have the file open read it from the disk from now on.
            copy.get_or_init(|| local);
            return Ok(());
        }
        // It was deleted meanwhile.
        drop(local);
        self.inner.delete(&path)
    }

    /// Gives up the partial files whose names were deleted, or that are here.
    fn drop_gone(&self, partials: &mut PartialFiles) -> Result<()> {
        let names = partials.keys().filter(|name| self.shipper.remote_file(name).is_none());
        let names: Vec<_> = names.cloned().collect();
        names.iter().try_for_each(|name| self.drop_partial(partials, name))
    }

    /// Gives up a partial file, if there is one.
    fn drop_partial(&self, partials: &mut PartialFiles, name: &str) -> Result<()> {
        if partials.remove(name).is_none() {
            return Ok(());
        }
        self.restorer.note_partials(partials);
        self.inner.delete(&self.partial_path(name))
    }

    /// Gives up the partial files with the fewest bytes, so that there is place for another one.
    fn drop_shortest(&self, partials: &mut PartialFiles) -> Result<()> {
        while partials.len() >= PARTIALS_MAX
            && let Some((name, _)) = partials.iter().min_by_key(|(_, partial)| partial.at)
        {
            let name = name.clone();
            self.drop_partial(partials, &name)?;
        }
        Ok(())
    }

    fn partial_path(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}{PARTIAL_SUFFIX}"))
    }

    /// The file as it is in the bucket, if the local disk does not have it.
    pub(crate) fn open_remote(&self, path: &Path, name: &str) -> Option<Arc<dyn File>> {
        let (state, local) = self.shipper.remote_file(name)?;
        let remote = RemoteFile::new(state, self.cache.clone(), path.to_owned());
        Some(Arc::new(RestoredFile { remote, local }))
    }
}

/// A file that was not on the local disk when it was opened.
struct RestoredFile {
    remote: RemoteFile,
    local: LocalCopy,
}

impl RestoredFile {
    fn file(&self) -> &dyn File {
        self.local.get().map_or(&self.remote, |local| &**local)
    }
}

impl File for RestoredFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.remote.append(bytes)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file().read_at(offset, buf)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file().prefetch(offset, len);
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file().read_cached_at(offset, buf)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file().read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        self.file().len()
    }

    fn readable(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.file().readable(range)
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.remote.preallocate(len)
    }

    fn map(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        self.file().map(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.remote.punch(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_over_pieces_and_calls_that_take_time() {
        let second = Duration::from_secs(1);
        let mut pace = RestoreRate { rate: 2 << 20, paid_at: Duration::ZERO };
        assert_eq!(pace.piece_bytes(), 2 << 20);
        assert_eq!(pace.pause_after(2 << 20, second, second), second);
        // A call that took half of the second, and one that took longer.
        assert_eq!(pace.pause_after(2 << 20, 2 * second, 2 * second + second / 2), second / 2);
        assert_eq!(pace.pause_after(2 << 20, 3 * second, 7 * second), Duration::ZERO);
        assert_eq!(pace.pause_after(4 << 20, 9 * second, 9 * second), 2 * second);
        // A piece that came before the last one was paid for.
        assert_eq!(pace.pause_after(2 << 20, 9 * second, 9 * second), 3 * second);
        assert_eq!(RestoreRate { rate: 1, ..pace }.piece_bytes(), PIECE_BYTES_MIN);
        let mut free = RestoreRate { rate: u64::MAX, paid_at: Duration::ZERO };
        assert_eq!(free.pause_after(1 << 30, second, second), Duration::ZERO);
    }
}
