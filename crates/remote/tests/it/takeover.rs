//! A takeover from a writer whose puts are always faster than those of the claimant, and one that dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule};
use remote::{Remote, Store, StoreError, StoreErrorKind, StoreResult};
use siltstone::fs::{CrashOutcome, Fs, MemFs};
use siltstone::{BackgroundMode, Db, Durability, ErrorKind};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, journal_name, remote_of};
use crate::store_layer::{Layered, StoreLayer};

/// The writer is so many times as fast as the claimant.
const AHEAD: u64 = 50;

/// The store as the two machines see it: a journal object of the claimant is put long after one of the writer has the
/// name, until the writer has looked for the wish of the claimant, and found it.
struct Race {
    inner: Arc<SimStore>,
    is_claimant: bool,
    writer_knows: Arc<AtomicBool>,
}

impl StoreLayer for Race {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        if self.is_claimant
            && let Some((_, number)) = name.rsplit_once('/')
        {
            let ahead = number.parse().map_or(0, |number: u64| number * AHEAD);
            let ahead = journal_name(ahead);
            while !self.writer_knows.load(Ordering::Acquire)
                && name.starts_with("journal/")
                && self.inner.get(&ahead)?.is_none()
            {
                std::thread::yield_now();
            }
        }
        self.inner.put_if_absent(name, bytes)
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        let found = self.inner.get(name)?;
        if !self.is_claimant && name.starts_with("takeover/") && found.is_some() {
            self.writer_knows.store(true, Ordering::Release);
        }
        Ok(found)
    }
}

/// A machine with a disk of its own.
fn machine(objects: &Objects, is_claimant: bool, writer_knows: &Arc<AtomicBool>) -> Remote {
    let inner = SimStore::new(objects.clone(), Rng::new(7));
    let store = Race { inner, is_claimant, writer_knows: writer_knows.clone() };
    let remote = Remote::with_store(Layered::new(store)).fs(Arc::new(MemFs::new()));
    // On a busy machine the start of a thread for each get takes longer than many puts in memory.
    if is_claimant { remote.stepped() } else { remote }
}

#[test]
fn a_writer_that_is_always_faster_is_taken_over() {
    let objects = Objects::default();
    let writer_knows = Arc::default();
    let writer = machine(&objects, false, &writer_knows);
    let claimant = machine(&objects, true, &writer_knows);
    let first = writer.primary("/db").unwrap();
    let db = first.builder().open().unwrap();
    let users = db.partition("users").unwrap();
    let busy = std::thread::spawn(move || {
        let mut acknowledged = 0u64;
        loop {
            let put = users.put_with(acknowledged.to_be_bytes(), "x", Durability::Sync);
            match put {
                Ok(_) => acknowledged += 1,
                Err(error) => return (acknowledged, error.kind()),
            }
        }
    });
    let second = claimant.take_over("/db").unwrap();
    let new = second.builder().open().unwrap();
    let (acknowledged, end) = busy.join().unwrap();
    assert_eq!(end, ErrorKind::Fenced);
    let users = new.partition("users").unwrap();
    assert!((0..acknowledged).all(|n| users.contains(n.to_be_bytes()).unwrap()));
    assert_eq!(claimant.status().unwrap().leases.len(), 0);
}

/// A store in which another writer has taken each number, until it fails for good.
struct Crowded {
    inner: Arc<SimStore>,
    claims: AtomicU64,
    has_asked: AtomicBool,
}

impl StoreLayer for Crowded {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        if name.starts_with("journal/") {
            if self.claims.fetch_add(1, Ordering::Relaxed) == 10 {
                return Err(StoreError::new(StoreErrorKind::Final, "gone"));
            }
            self.inner.put(name, b"that of another writer")?;
        }
        self.inner.put_if_absent(name, bytes)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.has_asked.fetch_or(name.starts_with("takeover/"), Ordering::Relaxed);
        self.inner.put(name, bytes)
    }
}

#[test]
fn a_claimant_that_fails_withdraws_its_request() {
    let objects = Objects::default();
    let mut rng = Rng::new(8);
    let inner = SimStore::new(objects.clone(), rng.fork());
    let first = remote_of(&inner, &MemFs::new(), &mut rng).primary("/db").unwrap();
    drop(first.builder().open().unwrap());
    let store = Layered::new(Crowded { inner, claims: AtomicU64::new(0), has_asked: false.into() });
    let failed = remote_of(&store, &MemFs::new(), &mut rng).take_over("/db").map(drop).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Unsupported);
    assert!(store.has_asked.load(Ordering::Relaxed));
    assert!(!objects.lock().keys().any(|name| name.starts_with("takeover/")));
}

#[test]
fn a_takeover_that_dies_at_any_change_of_its_folder_is_made_again() {
    let mut rng = Rng::new(9);
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let first = remote_of(&store, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let db = first.builder().open().unwrap();
    let users = db.partition("users").unwrap();
    users.put_with("one", "x", Durability::Sync).unwrap();
    db.flush().unwrap();
    users.put_with("two", "x", Durability::Sync).unwrap();
    let stored = objects.lock().clone();
    for change in 0..100 {
        let objects = Objects::default();
        *objects.lock() = stored.clone();
        let store = SimStore::new(objects, rng.fork());
        let disk = MemFs::new();
        let faults = FaultFs::new(Arc::new(disk.clone()));
        faults.add_rule(FaultRule::sticky(FaultAt::Mutation(change), FaultAction::Eio));
        let dies = remote_of(&store, &disk, &mut rng).fs(Arc::new(faults));
        let is_done = dies.take_over("/db").map(drop).is_ok();
        disk.create_dir("/db".as_ref()).unwrap();
        // Nothing of it is taken for a database that is not shipped, or for one of another bucket.
        let local = Db::builder("/db").fs(Arc::new(disk.clone())).create_if_missing(false);
        local.open().map(drop).unwrap_err();
        let remote = remote_of(&store, &disk, &mut rng);
        let again = remote.primary("/db").or_else(|error| {
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
            // The folder does not name the claim yet.
            let names = disk.list_names("/db".as_ref(), "remote-restoring").unwrap();
            assert!(names.is_empty() && change < 8, "{change}: {names:?}");
            remote.take_over("/db")
        });
        let again = again.unwrap();
        let db = again.builder().open().unwrap_or_else(|error| panic!("{change}: {error}"));
        let users = db.partition("users").unwrap();
        assert!(users.contains("one").unwrap() && users.contains("two").unwrap());
        if is_done {
            assert!(change > 8, "{change}");
            return;
        }
    }
    panic!("no takeover has ended");
}

/// The log in the folder lacks its end after a power cut, and the bucket has it. The restore is cut, too.
#[test]
fn a_restore_of_the_own_folder_that_is_cut_at_any_change_is_continued_by_the_next_open() {
    let mut rng = Rng::new(11);
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let disk = MemFs::new();
    let first = remote_of(&store, &disk, &mut rng).primary("/db").unwrap();
    let db = first.builder().background(BackgroundMode::Stepped).open().unwrap();
    let users = db.partition("users").unwrap();
    users.put_with("one", "x", Durability::Sync).unwrap();
    db.flush().unwrap();
    users.put_with("two", "x", Durability::Os).unwrap();
    first.ship().unwrap();
    let disk = disk.crash_clone(CrashOutcome::Nothing, &mut || 0);
    let stored = objects.lock().clone();
    let mut unmarked = 0;
    for change in 0..200 {
        let objects = Objects::default();
        *objects.lock() = stored.clone();
        let store = SimStore::new(objects, rng.fork());
        let disk = disk.crash_clone(CrashOutcome::Everything, &mut || 0);
        let faults = FaultFs::over_mem(disk.clone());
        faults.add_rule(FaultRule::sticky(FaultAt::Mutation(change), FaultAction::Eio));
        let dies = remote_of(&store, &disk, &mut rng).fs(Arc::new(faults));
        let is_done = dies.primary("/db").map(drop).is_ok();
        let outcome = CrashOutcome::ALL[change as usize % CrashOutcome::ALL.len()];
        let disk = disk.crash_clone(outcome, &mut || rng.next_u64());
        unmarked += u32::from(disk.list_names("/db".as_ref(), "remote-claim-").unwrap().is_empty());
        let again = remote_of(&store, &disk, &mut rng).primary("/db");
        let again = again.unwrap_or_else(|error| panic!("{change}, {outcome:?}: {error}"));
        assert!(disk.list_names("/db".as_ref(), "remote-restoring").unwrap().is_empty());
        let db = again.builder().background(BackgroundMode::Stepped).open().unwrap();
        let users = db.partition("users").unwrap();
        assert!(users.contains("one").unwrap() && users.contains("two").unwrap(), "{change}");
        if is_done {
            assert!(unmarked > 3, "the folder was never without a marker");
            return;
        }
    }
    panic!("no restore has ended");
}

#[test]
fn a_folder_that_a_takeover_has_left_half_made_is_shipped_to_no_other_bucket() {
    let mut rng = Rng::new(10);
    let disk = MemFs::new();
    disk.create_dir("/db".as_ref()).unwrap();
    disk.put_if_absent("/db/remote-restoring".as_ref(), b"").unwrap();
    let store = SimStore::new(Objects::default(), rng.fork());
    let remote = remote_of(&store, &disk, &mut rng);
    for refused in [remote.primary("/db"), remote.take_over("/db")] {
        let refused = refused.map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    }
}

/// Its commits are in the log alone, which waits for the open.
#[test]
fn a_folder_that_was_claimed_and_not_opened_is_not_taken_over() {
    let [folder, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let db = Db::open(folder.path()).unwrap();
    db.partition("users").unwrap().put_with("logged", "x", Durability::Sync).unwrap();
    db.close().unwrap();
    let remote = Remote::memory().unwrap();
    drop(remote.primary(folder.path()).unwrap());
    let refused = remote.take_over(other.path()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert!(refused.to_string().contains("has not been opened since"), "{refused}");
    for path in [folder.path(), other.path()] {
        let primary = match path == folder.path() {
            true => remote.primary(path).unwrap(),
            false => remote.take_over(path).unwrap(),
        };
        let db = primary.builder().open().unwrap();
        assert!(db.partition("users").unwrap().contains("logged").unwrap());
    }
}
