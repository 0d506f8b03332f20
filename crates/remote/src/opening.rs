//! The claim of a writer, and the local folder that fits it.
//!
//! ```text
//! probe     the store enforces put-if-absent
//! load      the newest base, and the journal after it (journal.rs)
//! decide    new; own: a marker in the folder names the last claimant; another's: only a takeover goes on
//! claim     an empty object under the next free number: the writer before it can put nothing more
//! fit       own: what the journal lacks is noted, and is the first that is shipped; but logs and manifests
//!           wait for the recovery, also those of a database that was never shipped
//!           taken over, or own after a power cut: the folder is made as the journal says
//! mark      the folder names its claimant
//! wait      no writer before holds a read lease any more (read_lease.rs): only then anything is put
//! ```
//!
//! Invariants:
//! 1. A marker proves only that no other folder has written as this claimant. It says nothing of the state: each
//!    open compares the folder with the journal, and ships what the journal lacks or makes the folder again. So
//!    an own folder is marked before its claim, and a claim that is refused, or never stored, leaves a marker that
//!    does no harm.
//! 2. A folder that is being restored has no marker: it has another file that names the claimant. After a crash in the
//!    middle that claimant may still be the last writer. Then the next open claims as its continuation, and restores
//!    again: whatever the folder had was given up before the first restore began. If another writer has come, only
//!    a takeover goes on.
//! 3. The state is loaded up to the claim: what the old writer stored before it is kept, and nothing after it.

mod differences;
mod markers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lsm_core::fs::{AppendMode, ENCRYPTED_MAGIC, File, Fs, LockGuard};
use siltstone::{Error, ErrorKind, Result};

use crate::bucket::{Bucket, Put};
use crate::cache::ObjectCache;
use crate::folder::{FileClass, Folder, class_of};
use crate::format::{JournalObject, journal_name};
use crate::journal::{Boundary, ReplayEnd, follow, journal_object, last_number, load, load_before};
use crate::read_lease::{named_lease, wait_for_leases};
use crate::record::lost_end;
use crate::remote_file::RemoteFile;
use crate::settings::{Ack, Settings};
use crate::shipper::Shipper;
use crate::takeover::{REQUEST_ATTEMPTS, TakeoverRequest};

use markers::MARKER_PREFIX;

/// Bytes of a log that come with one GET, as far as an object has them.
const READ_BYTES: usize = 4 << 20;
/// Attempts to put a claim while the old writer, or other claimants, put objects.
const CLAIMS_MAX: u64 = 10_000;

/// A folder that is about to be shipped.
struct LocalFolder {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
}

/// The folder, next to the last writer of the journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// There is no writer.
    New,
    /// It is that of the last writer.
    Own,
    /// The last writer has begun to make it as the bucket says.
    Restoring,
    /// The last writer has another one.
    Other,
}

/// A claimed database: the journal continues with `shipper`.
pub(crate) struct ClaimedFolder {
    pub(crate) shipper: Arc<Shipper>,
    pub(crate) cache: Arc<ObjectCache>,
    pub(crate) lock: Box<dyn LockGuard>,
}

/// Claims the database for the folder `dir`.
///
/// # Errors
/// [`ErrorKind::Locked`] if another process uses the folder; [`ErrorKind::Fenced`] if the journal ends with
/// another writer's object and `takes_over` is not set; [`ErrorKind::Unsupported`] for a store that does not
/// enforce put-if-absent; those of store and folder.
pub(crate) fn claim(remote: &Settings, dir: &Path, takes_over: bool) -> Result<ClaimedFolder> {
    let bucket = remote.bucket();
    let local = LocalFolder { fs: remote.fs.clone(), dir: dir.to_owned() };
    let lock = local.lock()?;
    local.check_keys()?;
    bucket.probe(remote.is_stepped)?;
    let (folder, mut boundary) = load(&bucket)?;
    let markers = local.markers()?;
    let standing = local.standing(&folder, &markers)?;
    let is_own = standing == Standing::Own;
    let is_new = standing == Standing::New;
    let stored = if takes_over { 0 } else { local.recorded(&markers)? };
    let lost = (stored > folder.number && !is_new).then_some(folder.number + 1);
    let is_fenced = folder.fenced.iter().any(|it| markers.contains(&it.claimant));
    if let Some(lost) = lost.filter(|_| !is_own && !is_fenced) {
        // The claim of this folder is among the lost objects: the writer before looks like one that came later.
        return Err(lost_end(lost, stored));
    }
    local.check(&folder, &markers, standing, takes_over)?;
    let claimant = bucket.random_id();
    // Before the claim: a put whose answer is lost may store it. Without the marker the folder would then be refused
    // as that of another writer, though it may have the only copy of local commits.
    local.mark_claim(claimant, standing)?;
    let writer = folder.writer;
    let claims = ClaimAttempts {
        bucket: &bucket,
        claimant,
        ack: remote.ack,
        lease: named_lease(remote, &*bucket.timer)?,
        // A takeover of an empty bucket claims like a first primary: one that came first may have commits to ship.
        continues: (!takes_over || is_new).then_some(writer),
        has_asked: false,
    };
    let claim = claims.put(&mut boundary, folder.number + 1);
    let claim = claim.or_else(|error| local.unclaimed(error, is_new.then_some(claimant)))?;
    let claimed = bucket.timer.now();
    let mut folder = follow_to_claim(&bucket, &mut boundary, folder, claim.number)?;
    if !takes_over && folder.writer != writer {
        return Err(claimed_meanwhile());
    }
    let cache = Arc::new(ObjectCache::new(bucket.sibling(), remote.cache_bytes));
    let continues = is_own && folder.writer == writer;
    let is_extended = continues || is_new && folder.number == 0;
    let changes = if is_extended { local.extension(&folder, &cache)? } else { None };
    if changes.is_none() {
        if continues && !takes_over {
            // The folder lacks something that was deleted after the journal's end.
            lost.map_or(Ok(()), |lost| Err(lost_end(lost, stored)))?;
            local.check_restorable(&folder, remote.ack)?;
        }
        local.begin_restore(claimant)?;
        local.restore(&folder, &cache, continues)?;
        local.mark(claimant, b"")?;
    }
    // Also after a takeover that died between its mark and this: it had made the folder whole.
    local.end_restore()?;
    local.unmark(Some(claimant))?;
    let absent = local.absent(&folder)?;
    folder.drop_tails();
    wait_for_leases(&bucket, claimed, folder.wait);
    folder.take_in(&claim)?;
    let of_disk = (local.fs.clone(), local.dir.clone());
    let shipper = Arc::new(Shipper::new(bucket, claimant, remote.ack, of_disk, folder, absent));
    lost.iter().for_each(|number| shipper.note_lost(*number));
    local.ship(&shipper, changes.unwrap_or_default())?;
    shipper.ship_through(shipper.noted())?;
    Ok(ClaimedFolder { shipper, cache, lock })
}

/// The attempts to put a claim.
struct ClaimAttempts<'a> {
    bucket: &'a Bucket,
    claimant: u128,
    ack: Ack,
    lease: Duration,
    /// The only writer that may have put something meanwhile; `None` for a takeover, which continues from any.
    continues: Option<u128>,
    /// A busy writer was asked for a pause.
    has_asked: bool,
}

impl Drop for ClaimAttempts<'_> {
    fn drop(&mut self) {
        if self.has_asked {
            TakeoverRequest::withdraw(self.bucket);
        }
    }
}

impl ClaimAttempts<'_> {
    /// Puts the claim under the first free number from `from` on, and returns it.
    fn put(mut self, boundary: &mut Boundary, from: u64) -> Result<JournalObject> {
        let bucket = self.bucket;
        let mut number = from;
        for attempt in 0..CLAIMS_MAX {
            if attempt > 0 && attempt.is_multiple_of(REQUEST_ATTEMPTS) {
                self.has_asked = true;
                TakeoverRequest { claimant: self.claimant }.put(bucket)?;
                // The writer may have put many meanwhile.
                number = number.max(last_number(bucket)? + 1);
            }
            let put_id = bucket.random_id();
            let changes = Vec::new();
            let ClaimAttempts { claimant, ack, lease, .. } = self;
            let is_claim = true;
            let claim = JournalObject { number, claimant, put_id, is_claim, ack, lease, changes };
            if bucket.put_new(&journal_name(number), &claim.encode())? == Put::Taken {
                self.check_continues(number)?;
                number += 1;
                continue;
            }
            if !boundary.has_freed(bucket, number)? {
                // The old writer is fenced, so one refusal must not end the takeover. The store has taken calls of all kinds.
                bucket.await_credentials();
                return Ok(claim);
            }
            // This claimant has slept, and its number was used and deleted meanwhile: the claim fences nothing,
            // and no one reads it.
            let folder = load(bucket)?.0;
            if self.continues.is_some_and(|writer| writer != folder.writer) {
                return Err(claimed_meanwhile());
            }
            number = folder.number + 1;
        }
        let message = "other writers took each number that this claim tried; try again";
        Err(Error::new(ErrorKind::Locked, message))
    }

    /// Checks that the object `number`, which has the name of a claim, is not that of another writer: a further
    /// claim would fence it, and this open is refused all the same.
    fn check_continues(&self, number: u64) -> Result<()> {
        let Some(writer) = self.continues else { return Ok(()) };
        match journal_object(self.bucket, number)? {
            Some(object) if object.claimant != writer => Err(claimed_meanwhile()),
            _ => Ok(()),
        }
    }
}

fn claimed_meanwhile() -> Error {
    let message = "another writer has claimed the database at the same time; open it again";
    Error::new(ErrorKind::Fenced, message)
}

/// The state that a claim continues.
fn follow_to_claim(
    bucket: &Bucket,
    boundary: &mut Boundary,
    mut folder: Folder,
    number: u64,
) -> Result<Folder> {
    match follow(bucket, boundary, &mut folder, number)? {
        ReplayEnd::End => Ok(folder),
        ReplayEnd::Freed => Ok(load_before(bucket, number)?.0),
    }
}

/// A difference between the folder and the journal: what the journal lacks.
type Extension = Vec<(String, FileClass, u64)>;

impl LocalFolder {
    /// The result of a claim that failed. If another machine has the first number, the claim is not stored: with the
    /// marker of the `first` claimant the folder would look like one that was shipped, and a takeover would replace
    /// what it has.
    fn unclaimed(&self, error: Error, first: Option<u128>) -> Result<JournalObject> {
        if let Some(claimant) = first.filter(|_| error.kind() == ErrorKind::Fenced) {
            self.delete_mark(claimant)?;
            self.fs.sync_dir(&self.dir)?;
        }
        Err(error)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The files that are shipped, with their lengths.
    fn files(&self) -> Result<Vec<(String, FileClass, u64)>> {
        let entries = self.fs.list(&self.dir, "")?;
        let shipped = entries.into_iter().filter_map(|it| Some((class_of(&it.name)?, it)));
        Ok(shipped.map(|(class, it)| (it.name, class, it.len)).collect())
    }

    /// Returns an error if the files are encrypted and are opened without keys, or the other way round. Otherwise they
    /// would look like those of another state, and be replaced by what the bucket has.
    fn check_keys(&self) -> Result<()> {
        // All of them have keys, or none.
        let Some((name, ..)) = self.files()?.into_iter().find(|(.., len)| *len > 0) else {
            return Ok(());
        };
        let path = self.path(&name);
        let mut front = ENCRYPTED_MAGIC.map(|_| 0);
        match self.fs.open_read(&path).and_then(|file| file.read_at(0, &mut front)) {
            // Of the keys. What cannot be read for another reason may be in the bucket.
            Err(error) if error.kind() == ErrorKind::InvalidArgument => return Err(error),
            _ => {}
        }
        if front == ENCRYPTED_MAGIC {
            let message = format!("{} is encrypted, and was opened without keys", path.display());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(())
    }

    /// Returns `true` if a local file that a list shows with `listed` bytes has `len` bytes. A list of encrypted files
    /// shows more.
    fn has_len(&self, name: &str, listed: u64, len: u64) -> Result<bool> {
        Ok(listed == len || (listed > len && self.fs.open_read(&self.path(name))?.len()? == len))
    }

    /// Returns an error if this folder may not continue the journal.
    fn check(
        &self,
        folder: &Folder,
        markers: &BTreeSet<u128>,
        standing: Standing,
        takes_over: bool,
    ) -> Result<()> {
        match standing {
            Standing::New => self.check_new(markers),
            Standing::Own => Ok(()),
            Standing::Restoring => folder.check_opened(),
            Standing::Other => self.check_other(folder, markers, takes_over),
        }
    }

    /// Returns an error if this folder may not be the first one of a journal.
    fn check_new(&self, markers: &BTreeSet<u128>) -> Result<()> {
        let dir = self.dir.display();
        let message = if markers.is_empty() && self.is_restoring()? {
            format!(
                "a takeover from another bucket has left {dir} half made\n  \
                 call take_over with that bucket, or delete the files"
            )
        } else if markers.is_empty() || self.is_first(markers)? {
            return Ok(());
        } else {
            format!(
                "the journal is empty, but {dir} was shipped to one before\n  \
                 if the objects were deleted on purpose, delete the files {MARKER_PREFIX}* in it"
            )
        };
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Returns an error if this folder, which is not that of the last writer, may not take the database over.
    fn check_other(
        &self,
        folder: &Folder,
        markers: &BTreeSet<u128>,
        takes_over: bool,
    ) -> Result<()> {
        let dir = self.dir.display();
        if takes_over && markers.is_empty() && !self.is_restoring()? && !self.files()?.is_empty() {
            let message = format!(
                "{dir} holds a database that was never shipped; a takeover would replace it"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if takes_over {
            return folder.check_opened();
        }
        let number = folder.number;
        let message = match markers.is_empty() {
            true => format!(
                "{dir} is not the folder of the last writer of this database,\n  \
                 which has put journal object {number}\n  \
                 call take_over to continue here from the bucket"
            ),
            false => format!(
                "another writer has taken the database over from {dir},\n  \
                 and has put journal object {number}\n  \
                 call take_over to continue here from the bucket,\n  \
                 without the changes that were not stored"
            ),
        };
        Err(Error::new(ErrorKind::Fenced, message))
    }

    /// The changes that the journal lacks; `None` if the folder lacks something that the journal has.
    fn extension(&self, folder: &Folder, cache: &Arc<ObjectCache>) -> Result<Option<Extension>> {
        let files = self.files()?;
        for (name, file) in &folder.files {
            let class = class_of(name);
            let local = files.iter().find(|(local, ..)| local == name);
            let has_all = match (class, local) {
                // It was never restored from the bucket.
                (Some(FileClass::Table | FileClass::Chunk), None) => true,
                (Some(FileClass::Table), Some((.., len))) => {
                    let stored = file.read().len;
                    self.has_len(name, *len, stored)?
                }
                (Some(FileClass::Chunk), Some((.., len))) => *len >= file.read().len,
                (Some(FileClass::Log), Some((.., len))) => {
                    let written = file.read().written;
                    let remote = RemoteFile::new(file.clone(), cache.clone(), self.path(name));
                    *len >= file.read().len && self.begins_with(name, &remote, written)?
                }
                _ => false,
            };
            if !has_all {
                return Ok(None);
            }
        }
        let news =
            files.into_iter().filter(|(name, class, len)| match (folder.file(name), class) {
                (None, _) => true,
                (Some(_), FileClass::Table) => false,
                (Some(file), FileClass::Chunk) => *len > file.read().len,
                (Some(_), FileClass::Log) => true,
            });
        Ok(Some(news.collect()))
    }

    /// Returns whether a local file begins with the first `len` bytes of `remote`.
    fn begins_with(&self, name: &str, remote: &RemoteFile, len: u64) -> Result<bool> {
        let local = self.fs.open_read(&self.path(name))?;
        let mut ours = vec![0; READ_BYTES.min(len as usize)];
        let mut theirs = ours.clone();
        let mut at = 0;
        while at < len {
            let count = (len - at).min(ours.len() as u64) as usize;
            let read = local.read_at(at, &mut ours[..count])?;
            remote.read_at(at, &mut theirs[..count])?;
            if read < count || ours[..count] != theirs[..count] {
                return Ok(false);
            }
            at += count as u64;
        }
        Ok(true)
    }

    /// Returns an error if a restore could lose commits that were acknowledged before they were stored.
    fn check_restorable(&self, folder: &Folder, ack: Ack) -> Result<()> {
        if ack == Ack::Stored && folder.ack == Ack::Stored {
            return Ok(());
        }
        let message = format!(
            "after a crash of the machine {} lacks a part of what the bucket has,\n  \
             and may have commits that it lacks\n  \
             keep the folder, or call take_over to continue from the bucket without them",
            self.dir.display()
        );
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Makes the folder as the journal says. Tables and chunk files are left in the bucket; with `keeps_tables`
    /// those that are here, and as long as there, are kept.
    fn restore(&self, folder: &Folder, cache: &Arc<ObjectCache>, keeps_tables: bool) -> Result<()> {
        for (name, class, len) in self.files()? {
            let stored = folder.file(&name).map(|file| file.read().len);
            let stored = stored.filter(|_| keeps_tables && class != FileClass::Log);
            let is_kept = stored.map_or(Ok(false), |stored| self.has_len(&name, len, stored))?;
            if !is_kept {
                self.fs.delete(&self.path(&name))?;
            }
        }
        // The commit cursors of other epochs, which a number of this journal may be given again.
        for prefix in ["cursor-", "reader-"] {
            for name in self.fs.list_names(&self.dir, prefix)? {
                self.fs.delete(&self.path(&name))?;
            }
        }
        for (name, file) in &folder.files {
            if class_of(name) == Some(FileClass::Log) {
                let remote = RemoteFile::new(file.clone(), cache.clone(), self.path(name));
                let len = file.read().len;
                self.write_log(name, &remote, file.read().written, len)?;
            }
        }
        self.fs.sync_dir(&self.dir)
    }

    fn write_log(&self, name: &str, remote: &RemoteFile, written: u64, len: u64) -> Result<()> {
        let file = self.fs.open_append(&self.path(name), AppendMode::IfAbsent)?;
        let mut bytes = vec![0; READ_BYTES];
        let mut at = 0;
        while at < written {
            let count = (written - at).min(bytes.len() as u64) as usize;
            remote.read_at(at, &mut bytes[..count])?;
            file.append(&bytes[..count])?;
            at += count as u64;
        }
        if len > written {
            file.preallocate(len)?;
        }
        file.sync()
    }

    /// The files of the journal that are not here.
    fn absent(&self, folder: &Folder) -> Result<BTreeSet<String>> {
        let here: BTreeSet<String> = self.files()?.into_iter().map(|(name, ..)| name).collect();
        Ok(folder.files.keys().filter(|name| !here.contains(*name)).cloned().collect())
    }
}
