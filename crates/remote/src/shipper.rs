//! [`Shipper`]: the journal of a primary. It notes the changes of the folder in order, and puts them as objects,
//! one put at a time: all changes that come during a put are in the next object (group commit).
//!
//! Invariants:
//! 1. An object is put only after the objects with the bytes that it names.
//! 2. The object of a number never changes: after a failed put exactly the same bytes are put again, before
//!    anything else.
//! 3. After another writer's object was found under the next number, nothing is put any more.
//! 4. A file of the local disk is deleted only after its deletion is stored. So after the death of the process
//!    the local folder lacks nothing that the journal has.
//! 5. An object is put only if its changes fit the stored state. If they do not, nothing is put any more.
//! 6. A base is put only after the object that it ends with.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lsm_core::fs::Fs;
use parking_lot::{Condvar, Mutex, RwLock};
use siltstone::{Error, Result};

use crate::bucket::{Bucket, Put};
use crate::folder::{FileBytes, Folder, ObjectPiece, StoredChange};
use crate::format::{JournalObject, journal_name};
use crate::noted::{NotedChange, SyncedFile, stored_changes};
use crate::read_lease::ReadLease;
use crate::remote_file::LocalCopy;
use crate::settings::Ack;

/// An object takes no further change beyond so many bytes.
const OBJECT_BYTES_MAX: usize = 8 << 20;
/// A base is due after so many objects, or so many bytes in objects.
const BASE_OBJECTS: u64 = 256;
const BASE_BYTES: u64 = 8 << 20;

/// An object whose put has not been answered yet.
struct InFlight {
    object: JournalObject,
    bytes: Vec<u8>,
    /// The number of changes that are noted through its last one.
    mark: u64,
    /// Before its first attempt: a later one may find that the first was stored, and another writer has come since.
    begun: Duration,
}

/// A deleted file that is still on the local disk.
struct Doomed {
    mark: u64,
    name: String,
    path: PathBuf,
    fs: Arc<dyn Fs>,
}

struct JournalState {
    pending: VecDeque<NotedChange>,
    pending_bytes: usize,
    /// Changes that were noted, and that are stored.
    noted: u64,
    stored: u64,
    /// The thread that puts has it, and those that wait for it.
    turn: Option<Arc<PutOutcome>>,
    in_flight: Option<Arc<InFlight>>,
    /// Nothing is put any more: another writer has the database, or changes do not fit.
    ended: Option<Error>,
    /// The state that is stored.
    folder: Folder,
    doomed: Vec<Doomed>,
    /// Files of the folder as it is now: with the changes that are not stored.
    names: BTreeSet<String>,
    /// Those of them that the local disk does not have.
    remote_only: BTreeMap<String, LocalCopy>,
    /// Logs and manifests of an earlier run, whose ends may be on the local disk alone.
    deferred: BTreeSet<String>,
    /// An object of the journal that is not in the bucket any more.
    lost: Option<u64>,
    base_number: u64,
    bytes_since_base: u64,
    objects: u64,
    notices: StoredNotices,
    /// The objects of puts that have failed, and may have taken effect all the same.
    vain: Vec<String>,
    /// No object is put before this time, because readers count on it; and the time of the last put. By the timer.
    promised_until: Duration,
    last_put: Duration,
}

impl JournalState {
    fn waiting_bytes(&self) -> u64 {
        let in_flight = self.in_flight.as_ref().map_or(0, |it| it.bytes.len());
        (self.pending_bytes + in_flight) as u64
    }

    /// Adds a change to those that wait. Returns its mark. A change of a file that is deleted is left out, as the local
    /// disk forgets it: the log thread may append to a segment that a flush deletes at the same time.
    fn note(&mut self, change: NotedChange) -> u64 {
        match &change {
            NotedChange::Whole(StoredChange::Create { name }) => {
                self.names.insert(name.clone());
            }
            NotedChange::Whole(StoredChange::Delete { .. }) => {}
            change if !self.names.contains(change.name()) => return self.noted,
            _ => {}
        }
        self.pending_bytes += change.bytes();
        self.pending.push_back(change);
        self.noted += 1;
        self.noted
    }
}

/// The journal of a primary.
pub(crate) struct Shipper {
    bucket: Bucket,
    claimant: u128,
    /// The number of the claim.
    claimed: u64,
    ack: Ack,
    /// The folder on the local disk, for the tails of bases.
    local: (Arc<dyn Fs>, PathBuf),
    lease: ReadLease,
    /// A leaf; not held during a call of the store or of the file system.
    state: Mutex<JournalState>,
    shipped: Condvar,
    /// No object is put before this time, in nanoseconds of the timer.
    paused_until: AtomicU64,
    /// The time of the last put, in nanoseconds. No other value depends on it.
    put_nanos: AtomicU64,
}

/// The error of a turn to put, for those that wait for its end.
type PutOutcome = OnceLock<Error>;

/// The turn to put, which ends with the value.
struct PutTurn<'a>(&'a Shipper);

impl Drop for PutTurn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().turn = None;
        self.0.shipped.notify_all();
    }
}

impl Shipper {
    /// Continues after `folder`, which ends with the claim of `claimant`.
    pub(crate) fn new(
        bucket: Bucket,
        claimant: u128,
        ack: Ack,
        local: (Arc<dyn Fs>, PathBuf),
        folder: Folder,
        remote_only: BTreeSet<String>,
    ) -> Shipper {
        let claimed = folder.number;
        let lease = ReadLease::new(folder.lease);
        let state = JournalState {
            pending: VecDeque::new(),
            pending_bytes: 0,
            noted: 0,
            stored: 0,
            turn: None,
            in_flight: None,
            ended: None,
            names: folder.files.keys().cloned().collect(),
            folder,
            doomed: Vec::new(),
            remote_only: remote_only.into_iter().map(|name| (name, LocalCopy::default())).collect(),
            deferred: BTreeSet::new(),
            lost: None,
            base_number: 0,
            // The next one is due at once: an open would have to read all that this one has read.
            bytes_since_base: BASE_BYTES,
            objects: 0,
            vain: Vec::new(),
            promised_until: Duration::ZERO,
            last_put: Duration::ZERO,
            notices: StoredNotices::default(),
        };
        let state = Mutex::new(state);
        let (shipped, paused_until, put_nanos) = Default::default();
        Shipper {
            bucket,
            claimant,
            claimed,
            ack,
            local,
            lease,
            state,
            shipped,
            paused_until,
            put_nanos,
        }
    }

    pub(crate) fn acknowledges_stored(&self) -> bool {
        self.ack == Ack::Stored
    }

    /// Returns the error of a primary that puts nothing any more, as far as it is known here.
    pub(crate) fn check_writer(&self) -> Result<()> {
        self.state.lock().ended.clone().map_or(Ok(()), Err)
    }

    /// Notes a change. Returns the mark to wait for.
    pub(crate) fn note(&self, change: NotedChange) -> u64 {
        self.state.lock().note(change)
    }

    /// Notes a file that came with all its bytes. Its creation and they are in one object: no reader sees a part.
    pub(crate) fn note_whole(&self, name: &str, bytes: Vec<u8>) -> u64 {
        let mut state = self.state.lock();
        state.note(NotedChange::Whole(StoredChange::Create { name: name.to_owned() }));
        let append = StoredChange::Append { name: name.to_owned(), offset: 0, bytes };
        state.note(NotedChange::Whole(append))
    }

    /// Notes the deletion of a file, if the folder has it. Returns `false` if it has not.
    pub(crate) fn note_deletion(&self, name: &str, path: PathBuf, fs: &Arc<dyn Fs>) -> bool {
        let mut state = self.state.lock();
        if !state.names.remove(name) {
            return false;
        }
        let deletion = StoredChange::Delete { name: name.to_owned() };
        let mark = state.note(NotedChange::Whole(deletion));
        if state.remote_only.remove(name).is_none() {
            state.doomed.push(Doomed { mark, name: name.to_owned(), path, fs: fs.clone() });
        }
        true
    }

    /// Leaves the end of a file to [`Shipper::take_deferred`].
    pub(crate) fn defer(&self, name: String) {
        self.state.lock().deferred.insert(name);
    }

    /// The place from which on the journal lacks the bytes of a deferred file, at the first append to it.
    pub(crate) fn take_deferred(&self, name: &str) -> Option<u64> {
        let mut state = self.state.lock();
        if !state.deferred.remove(name) {
            return None;
        }
        Some(state.folder.file(name).map_or(0, |file| file.read().written))
    }

    /// The mark of all that is noted.
    pub(crate) fn noted(&self) -> u64 {
        self.state.lock().noted
    }

    /// The bytes of changes that are not stored, with those of the object that is on its way.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.state.lock().waiting_bytes()
    }

    /// Returns `true` if the file is deleted, and still on the local disk.
    pub(crate) fn is_doomed(&self, name: &str) -> bool {
        let state = self.state.lock();
        !state.names.contains(name) && state.doomed.iter().any(|doomed| doomed.name == name)
    }

    /// Returns `true` if the folder has the file now.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.state.lock().names.contains(name)
    }

    /// The end of the bytes of a file that are stored; `None` if the journal does not have it.
    pub(crate) fn written(&self, name: &str) -> Option<u64> {
        self.state.lock().folder.file(name).map(|file| file.read().written)
    }

    /// The files that the local disk does not have.
    pub(crate) fn remote_only(&self) -> BTreeSet<String> {
        self.state.lock().remote_only.keys().cloned().collect()
    }

    /// A file that the local disk does not have, and the place of its local copy.
    pub(crate) fn remote_file(&self, name: &str) -> Option<(Arc<RwLock<FileBytes>>, LocalCopy)> {
        let state = self.state.lock();
        let local = state.remote_only.get(name)?.clone();
        Some((state.folder.file(name)?.clone(), local))
    }

    /// The length of a file that the local disk does not have; 0 for others.
    pub(crate) fn remote_bytes(&self, name: &str) -> u64 {
        self.remote_file(name).map_or(0, |(file, _)| file.read().len)
    }

    /// Notes that the local disk has the file now. Returns the place of the copy, `None` if the folder does not have
    /// the file any more.
    pub(crate) fn note_local(&self, name: &str) -> Option<LocalCopy> {
        self.state.lock().remote_only.remove(name)
    }

    /// Waits until everything through `mark` is in the bucket, and puts it if no other thread does. If the thread
    /// that puts gives up, all that wait for it get its error.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another writer has the database; corruption if the changes do not fit; those of
    /// the store, once the patience has ended: then it is unknown what is stored.
    pub(crate) fn ship_through(&self, mark: u64) -> Result<()> {
        loop {
            let mut state = self.state.lock();
            loop {
                if state.stored >= mark {
                    return Ok(());
                }
                if let Some(error) = &state.ended {
                    return Err(error.clone());
                }
                let Some(turn) = state.turn.clone() else { break };
                self.shipped.wait(&mut state);
                if state.stored < mark
                    && let Some(error) = turn.get()
                {
                    // Each one would be patient in its turn, and the last one as often as there are threads.
                    return Err(error.clone());
                }
            }
            let outcome = Arc::<PutOutcome>::default();
            state.turn = Some(outcome.clone());
            drop(state);
            let turn = PutTurn(self);
            let shipped = self.ship_object(&self.bucket);
            if let Err(error) = &shipped {
                outcome.get_or_init(|| error.clone());
            }
            drop(turn);
            shipped?;
        }
    }

    /// Puts the next object in `bucket`, that of this with some patience. Called in a turn.
    fn ship_object(&self, bucket: &Bucket) -> Result<()> {
        let waiting = self.state.lock().in_flight.clone();
        let in_flight = match waiting {
            Some(in_flight) => in_flight,
            None => self.make_object()?,
        };
        let name = journal_name(in_flight.object.number);
        self.wait_for_others();
        let begin = self.bucket.timer.now();
        let put = bucket.put_new(&name, &in_flight.bytes)?;
        self.note_put_time(self.bucket.timer.now().saturating_sub(begin));
        match put {
            Put::Stored => {
                self.lease.renew(in_flight.begun);
                self.note_stored(&in_flight)
            }
            Put::Taken => Err(self.note_fenced(&name)),
        }
    }

    /// Makes the next object of the changes that wait, after their parts are put.
    fn make_object(&self) -> Result<Arc<InFlight>> {
        let mut state = self.state.lock();
        let number = state.folder.number + 1;
        let mut taken = Vec::new();
        let mut bytes = 0;
        // A file is not created in one object and filled in the next.
        while (bytes < OBJECT_BYTES_MAX || taken.last().is_some_and(NotedChange::is_creation))
            && let Some(change) = state.pending.pop_front()
        {
            bytes += change.bytes();
            taken.push(change);
        }
        let mark = state.noted - state.pending.len() as u64;
        drop(state);
        let made = self.put_parts(&taken);
        let mut state = self.state.lock();
        let pieces = match made {
            Ok(pieces) => pieces,
            Err(error) => {
                // In their order, before those that came meanwhile.
                taken.into_iter().rev().for_each(|change| state.pending.push_front(change));
                return Err(error);
            }
        };
        state.pending_bytes -= bytes;
        let changes = stored_changes(taken, pieces);
        let put_id = self.bucket.random_id();
        let claimant = self.claimant;
        let ack = self.ack;
        let (is_claim, lease) = Default::default();
        let object = JournalObject { number, claimant, put_id, is_claim, ack, lease, changes };
        // A reader could take in nothing after an object that does not fit. The next open finds the difference.
        if let Err(error) = state.folder.check(&object) {
            return Err(notices::end(state, error));
        }
        let begun = self.lease_time();
        let in_flight = Arc::new(InFlight { bytes: object.encode(), object, mark, begun });
        state.in_flight = Some(in_flight.clone());
        Ok(in_flight)
    }

    /// Puts the ranges of chunk files among `changes`, those of one file together; returns their pieces.
    fn put_parts(&self, changes: &[NotedChange]) -> Result<BTreeMap<String, ObjectPiece>> {
        let mut ranges: BTreeMap<&str, (Range<u64>, &SyncedFile)> = BTreeMap::new();
        for change in changes {
            if let NotedChange::Range { name, offset, len, file } = change {
                let range = ranges.entry(name).or_insert((*offset..*offset, &**file));
                range.0.end = offset + len;
            }
        }
        let mut pieces = BTreeMap::new();
        for (name, (range, file)) in ranges {
            match self.put_part(name, range, file) {
                Ok(piece) => pieces.extend(piece.map(|piece| (name.to_owned(), piece))),
                Err(error) => {
                    // The next attempt puts all of them again.
                    self.note_vain(pieces.into_values().map(|piece| piece.object.to_string()));
                    return Err(error);
                }
            }
        }
        Ok(pieces)
    }

    fn note_stored(&self, in_flight: &InFlight) -> Result<()> {
        let mut state = self.state.lock();
        state.in_flight = None;
        state.last_put = self.bucket.timer.now();
        state.stored = in_flight.mark;
        state.objects += 1;
        state.bytes_since_base += in_flight.bytes.len() as u64;
        state.folder.take_in(&in_flight.object)?;
        let notices = state.notices.take_due(in_flight.mark);
        let due = state.doomed.iter().take_while(|doomed| doomed.mark <= in_flight.mark).count();
        let due: Vec<Doomed> = state.doomed.drain(..due).collect();
        drop(state);
        if !due.is_empty() {
            self.record_stored(in_flight.object.number);
        }
        for Doomed { path, fs, .. } in due {
            // The next open finds a file that no version names, and deletes it.
            let _ = fs.delete(&path);
        }
        notices::call(notices, &Ok(()));
        Ok(())
    }

    pub(crate) fn claimant(&self) -> u128 {
        self.claimant
    }

    /// The last journal object that is stored.
    pub(crate) fn number(&self) -> u64 {
        self.state.lock().folder.number
    }
}

mod appends;
mod base;
mod lease;
mod lost;
mod notices;
mod ranges;
mod status;
#[cfg(test)]
mod tests;

use notices::StoredNotices;
pub use status::{Status, StoreFailure};
