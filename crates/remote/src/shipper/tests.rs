//! Threads that wait for one put, and appends that share one change.

use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lsm_core::fs::MemFs;
use siltstone::ErrorKind;

use super::appends::MERGED_BYTES_MAX;
use super::*;
use crate::Remote;
use crate::store::{ObjectListing, Store, StoreError, StoreResult, Timer};

const WAITERS: usize = 4;

/// A store that is away.
#[derive(Default)]
struct AwayStore {
    calls: AtomicU64,
}

impl AwayStore {
    fn fail<T>(&self) -> StoreResult<T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Err(StoreError::transient("away"))
    }
}

impl Store for AwayStore {
    fn put_if_absent(&self, _name: &str, _bytes: &[u8]) -> StoreResult<bool> {
        self.fail()
    }

    fn put(&self, _name: &str, _bytes: &[u8]) -> StoreResult<()> {
        self.fail()
    }

    fn get(&self, _name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.fail()
    }

    fn get_range(&self, _name: &str, _range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.fail()
    }

    fn list(&self, _dir: &str) -> StoreResult<ObjectListing> {
        self.fail()
    }

    fn delete(&self, _name: &str) -> StoreResult<()> {
        self.fail()
    }
}

/// A timer whose first wait ends when all other threads wait for the one that puts.
#[derive(Default)]
struct GateTimer {
    now_s: AtomicU64,
    shipper: OnceLock<Weak<Shipper>>,
}

impl Timer for GateTimer {
    fn now(&self) -> Duration {
        Duration::from_secs(self.now_s.load(Ordering::Relaxed))
    }

    fn wait(&self, _time: Duration) {
        let is_first = self.now_s.load(Ordering::Relaxed) == 0;
        let shipper = self.shipper.get().and_then(Weak::upgrade).unwrap();
        while is_first && !all_wait(&shipper) {
            std::thread::yield_now();
        }
        self.now_s.fetch_add(60, Ordering::Relaxed);
    }

    fn random(&self) -> u64 {
        1
    }
}

/// Returns `true` if all threads but the one that puts wait for it.
fn all_wait(shipper: &Shipper) -> bool {
    let state = shipper.state.lock();
    // The state and the thread that puts have the outcome, too.
    state.turn.as_ref().is_some_and(|turn| Arc::strong_count(turn) == WAITERS + 2)
}

fn shipper(bucket: Bucket) -> Shipper {
    let local: (Arc<dyn Fs>, PathBuf) = (Arc::new(MemFs::new()), PathBuf::from("/db"));
    let folder = Folder { number: 1, writer: 7, ..Folder::default() };
    Shipper::new(bucket, 7, Ack::Stored, local, folder, BTreeSet::new())
}

#[test]
fn all_that_wait_get_the_error_of_the_thread_that_gives_up() {
    let store = Arc::<AwayStore>::default();
    let timer = Arc::<GateTimer>::default();
    let patience = Duration::from_secs(1);
    let bucket = Bucket::new(store.clone(), timer.clone(), patience);
    let shipper = Arc::new(shipper(bucket));
    timer.shipper.set(Arc::downgrade(&shipper)).unwrap();
    let mark = shipper.note(NotedChange::Whole(StoredChange::Create { name: "x.wal".to_owned() }));
    std::thread::scope(|scope| {
        let threads = (0..=WAITERS).map(|_| scope.spawn(|| shipper.ship_through(mark)));
        for thread in threads.collect::<Vec<_>>() {
            assert_eq!(thread.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
        }
    });
    assert_eq!(store.calls.load(Ordering::Relaxed), 2, "one thread makes two attempts");
}

#[test]
fn an_append_joins_the_last_change_that_waits_if_it_goes_on_there() {
    let shipper = shipper(Remote::memory().unwrap().0.bucket());
    for name in ["1.wal", "2.wal"] {
        shipper.note(NotedChange::Whole(StoredChange::Create { name: name.to_owned() }));
    }
    // The bytes of each append, and the number of changes after it.
    let full = vec![7; MERGED_BYTES_MAX - 6];
    let appends: [(&str, &[&[u8]], u64); 7] = [
        ("1.wal", &[b"ab"], 3),
        ("1.wal", &[b"c", b"d"], 3),
        ("2.wal", &[b"xyz"], 4),
        ("1.wal", &[b"ef"], 5),
        ("1.wal", &[b"ghij"], 5),
        ("1.wal", &[&full], 5),
        ("1.wal", &[b"k"], 6),
    ];
    let mut ends = BTreeMap::from([("1.wal", 0), ("2.wal", 0)]);
    let mut bytes = 2 * 64;
    for (name, pieces, noted) in appends {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        bytes += len as u64;
        let end = ends.get_mut(name).unwrap();
        assert_eq!(shipper.note_append(name, *end, pieces), bytes);
        *end += len as u64;
        assert_eq!(shipper.noted(), noted, "{name} up to {end}");
    }
    shipper.ship_through(6).unwrap();
    for (name, end) in &ends {
        assert_eq!(shipper.written(name), Some(*end));
    }
    // What is stored takes nothing more.
    assert_eq!(shipper.note_append("1.wal", ends["1.wal"], &[b"l"]), 1);
    assert_eq!(shipper.noted(), 7);
    shipper.ship_through(7).unwrap();
    assert_eq!(shipper.written("1.wal"), Some(ends["1.wal"] + 1));
}

/// A timer whose waits move the time on, each one by half of what was asked for.
struct HastyTimer(AtomicU64);

impl Timer for HastyTimer {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn wait(&self, time: Duration) {
        self.0.fetch_add((time.as_nanos() as u64).div_ceil(2), Ordering::Relaxed);
    }

    fn random(&self) -> u64 {
        1
    }
}

const LEASE: Duration = Duration::from_secs(2);

/// A shipper with a read lease, at the time of a second, and its timer.
fn leased(store: Arc<dyn Store>) -> (Shipper, Arc<HastyTimer>) {
    let timer = Arc::new(HastyTimer(AtomicU64::new(1_000_000_000)));
    let bucket = Bucket::new(store, timer.clone(), Duration::from_secs(1));
    (Shipper { lease: ReadLease::new(LEASE), ..shipper(bucket) }, timer)
}

fn creation(name: &str) -> NotedChange {
    NotedChange::Whole(StoredChange::Create { name: name.to_owned() })
}

#[test]
fn a_put_waits_for_the_end_of_a_promise() {
    const MOST: Duration = Duration::from_millis(4);
    let (shipper, timer) = leased(Remote::memory().unwrap().store());
    assert_eq!(shipper.promise(), Duration::ZERO, "without the lease");
    shipper.confirm(LEASE).unwrap();
    assert_eq!(shipper.promise(), MOST);
    let promised = timer.now() + MOST;
    let mark = shipper.note(creation("1.wal"));
    assert_eq!(shipper.promise(), Duration::ZERO, "while a change waits");
    shipper.ship_through(mark).unwrap();
    assert_eq!(timer.now(), promised);
    assert_eq!(shipper.promise(), Duration::ZERO, "right after a put");
    timer.0.fetch_add(1_600, Ordering::Relaxed);
    assert_eq!(shipper.promise(), Duration::from_nanos(100));
    // The put has renewed the lease, from before its wait.
    let end = (promised + LEASE).saturating_sub(MOST + LEASE / 16);
    timer.0.store(end.saturating_sub(MOST).as_nanos() as u64 - 1, Ordering::Relaxed);
    assert_eq!(shipper.promise(), MOST);
    timer.0.fetch_add(1, Ordering::Relaxed);
    assert_eq!(shipper.promise(), Duration::ZERO, "beyond the lease");
}

/// It may be stored at any time.
#[test]
fn an_object_whose_put_has_failed_is_a_promise_of_nothing() {
    let (shipper, timer) = leased(Arc::<AwayStore>::default());
    let mark = shipper.note(creation("1.wal"));
    assert!(shipper.ship_through(mark).is_err());
    shipper.lease.renew(timer.now());
    assert!(shipper.holds_lease());
    assert_eq!(shipper.promise(), Duration::ZERO);
}
