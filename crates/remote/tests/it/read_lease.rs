//! Read leases: claimants wait, and a primary that was taken over serves no newest state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use remote::{Ack, Primary, Remote, Store, StoreError, StoreResult, Timer};
use siltstone::fs::MemFs;
use siltstone::{BackgroundMode, Db, Durability, ErrorKind};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, journal_name, remote_of, remote_with, with_poor_clock};
use crate::store_layer::{Layered, StoreLayer};

const LEASE: Duration = Duration::from_secs(60);
/// More than the clocks of the simulation run apart.
const ALMOST: Duration = Duration::from_secs(57);
const PATIENCE: Duration = Duration::from_secs(1);

struct Machine {
    store: Arc<SimStore>,
    primary: Primary,
    db: Db,
}

fn remote_on(objects: &Objects, lease: Duration, rng: &mut Rng) -> (Arc<SimStore>, Remote) {
    let store = SimStore::new(objects.clone(), rng.fork());
    let remote = with_poor_clock(&store, &MemFs::new(), rng).read_lease(lease);
    (store, remote)
}

fn opened(store: Arc<SimStore>, primary: Primary) -> Machine {
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    Machine { store, primary, db }
}

fn taken_over(objects: &Objects, lease: Duration, rng: &mut Rng) -> Machine {
    let (store, remote) = remote_on(objects, lease, rng);
    opened(store, remote.take_over("/db").unwrap())
}

fn put(db: &Db, key: &str, durability: Durability) {
    db.partition("users").unwrap().put_with(key, "x", durability).unwrap();
}

/// Also from a base, after which no one reads the claim.
#[test]
fn a_claimant_waits_for_the_lease_of_the_writer_before() {
    for (lease, has_base) in [(LEASE, false), (LEASE, true), (Duration::ZERO, true)] {
        let mut rng = Rng::new(44);
        let objects = Objects::default();
        let old = taken_over(&objects, lease, &mut rng);
        put(&old.db, "one", Durability::Sync);
        if has_base {
            old.primary.ship().unwrap();
            assert!(old.primary.status().base > 0);
        }
        assert_eq!(old.primary.holds_read_lease(), !lease.is_zero());
        let before = objects.true_time();
        let new = taken_over(&objects, Duration::ZERO, &mut rng);
        let waited = objects.true_time().saturating_sub(before);
        assert_eq!(waited > ALMOST, !lease.is_zero(), "{lease:?}, {has_base}: {waited:?}");
        put(&new.db, "two", Durability::Sync);
        // The old one does not know yet, and finds out when it is asked.
        assert!(!old.primary.holds_read_lease() && !old.primary.is_fenced());
        assert_eq!(old.primary.confirm(PATIENCE).unwrap_err().kind(), ErrorKind::Fenced);
        assert!(old.primary.is_fenced() && old.primary.status().is_fenced);
        new.primary.confirm(PATIENCE).unwrap();
    }
}

/// A claimant that dies between its claim and its wait has fenced the primary, which still serves from its memory.
#[test]
fn a_claimant_that_dies_leaves_the_lease_before_it_to_the_next_one() {
    let mut rng = Rng::new(45);
    let objects = Objects::default();
    let old = taken_over(&objects, LEASE, &mut rng);
    put(&old.db, "one", Durability::Sync);
    let next = old.primary.status().number + 1;
    let (store, remote) = remote_on(&objects, Duration::ZERO, &mut rng);
    let dying = store.clone();
    // After the put.
    store.pause_before_put(&journal_name(next), move || dying.die_in(1));
    remote.take_over("/db").map(drop).unwrap_err();
    assert!(objects.lock().contains_key(&journal_name(next)) && old.primary.holds_read_lease());
    let new = taken_over(&objects, Duration::ZERO, &mut rng);
    put(&new.db, "two", Durability::Sync);
    assert!(!old.primary.holds_read_lease());
}

/// A store whose answers are lost after the effect.
pub struct LossyStore {
    pub inner: Arc<SimStore>,
    pub loses_answers: AtomicBool,
}

impl StoreLayer for LossyStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        let stored = self.inner.put_if_absent(name, bytes)?;
        match self.loses_answers.load(Ordering::Relaxed) {
            true => Err(StoreError::transient("an answer that was lost")),
            false => Ok(stored),
        }
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        match self.loses_answers.load(Ordering::Relaxed) {
            true => Err(StoreError::transient("an answer that was lost")),
            false => self.inner.get(name),
        }
    }
}

/// A primary with a lease on such a store, and a commit.
fn lossy(objects: &Objects, rng: &mut Rng) -> (Arc<Layered<LossyStore>>, Primary, Db) {
    let inner = SimStore::new(objects.clone(), rng.fork());
    let store = Layered::new(LossyStore { inner, loses_answers: AtomicBool::new(false) });
    let remote = remote_with(store.clone(), objects.clone(), &MemFs::new(), rng);
    let primary = remote.read_lease(LEASE).primary("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    put(&db, "zero", Durability::Sync);
    (store, primary, db)
}

/// A look under the number of a put that is on its way would find its object, and take it for that of another writer.
#[test]
fn a_put_that_is_on_its_way_is_finished_before_a_look() {
    let mut rng = Rng::new(50);
    let objects = Objects::default();
    let (store, primary, db) = lossy(&objects, &mut rng);
    store.loses_answers.store(true, Ordering::Relaxed);
    put(&db, "one", Durability::Os);
    primary.ship().unwrap_err();
    store.loses_answers.store(false, Ordering::Relaxed);
    objects.advance(LEASE);
    primary.confirm(PATIENCE).unwrap();
    assert!(primary.holds_read_lease() && !primary.is_fenced());
}

#[test]
fn a_look_that_finishes_a_put_keeps_to_the_patience_of_the_read() {
    let mut rng = Rng::new(51);
    let objects = Objects::default();
    let inner = SimStore::new(objects.clone(), rng.fork());
    let store = Layered::new(LossyStore { inner, loses_answers: AtomicBool::new(false) });
    let remote = remote_with(store.clone(), objects.clone(), &MemFs::new(), &mut rng);
    let primary = remote.patience(LEASE).read_lease(LEASE).primary("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    put(&db, "one", Durability::Os);
    store.loses_answers.store(true, Ordering::Relaxed);
    primary.ship().unwrap_err();
    objects.advance(LEASE);
    let before = objects.true_time();
    assert_eq!(primary.confirm(PATIENCE).unwrap_err().kind(), ErrorKind::Io);
    let passed = objects.true_time().saturating_sub(before);
    assert!(passed < 4 * PATIENCE, "{passed:?}");
    store.loses_answers.store(false, Ordering::Relaxed);
    primary.confirm(PATIENCE).unwrap();
}

/// The timer of a system without a clock that goes on while the machine is suspended.
struct UptimeTimer(Objects, AtomicU64);

impl Timer for UptimeTimer {
    fn now(&self) -> Duration {
        self.0.true_time()
    }

    fn since_boot(&self) -> Option<Duration> {
        None
    }

    fn wait(&self, time: Duration) {
        self.0.advance(time);
    }

    fn random(&self) -> u64 {
        self.1.fetch_add(1, Ordering::Relaxed)
    }
}

#[test]
fn without_a_clock_that_goes_on_while_suspended_there_is_no_lease() {
    let mut rng = Rng::new(52);
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let timer = Arc::new(UptimeTimer(objects.clone(), AtomicU64::new(7)));
    let remote = remote_of(&store, &MemFs::new(), &mut rng).timer(timer).read_lease(LEASE);
    let old = opened(store.clone(), remote.primary("/db").unwrap());
    put(&old.db, "one", Durability::Sync);
    assert!(!old.primary.has_read_lease() && !old.primary.holds_read_lease());
    let before = gets(&store);
    (0..3).for_each(|_| old.primary.confirm(PATIENCE).unwrap());
    assert_eq!(gets(&store) - before, 3);
    let begun = objects.true_time();
    let new = taken_over(&objects, Duration::ZERO, &mut rng);
    assert!(objects.true_time().saturating_sub(begun) < ALMOST);
    put(&new.db, "two", Durability::Sync);
    assert_eq!(old.primary.confirm(PATIENCE).unwrap_err().kind(), ErrorKind::Fenced);
}

/// The put is stored, another machine takes over after it, and a later attempt finds what the first has stored.
#[test]
fn a_lease_counts_from_the_first_attempt_of_its_put() {
    let mut rng = Rng::new(46);
    let objects = Objects::default();
    let (store, primary, db) = lossy(&objects, &mut rng);
    let number = primary.status().number;
    store.loses_answers.store(true, Ordering::Relaxed);
    put(&db, "one", Durability::Os);
    primary.ship().unwrap_err();
    assert!(objects.lock().contains_key(&journal_name(number + 1)));
    let new = taken_over(&objects, LEASE, &mut rng);
    put(&new.db, "two", Durability::Sync);
    store.loses_answers.store(false, Ordering::Relaxed);
    primary.ship().unwrap();
    assert!(primary.status().number > number && !primary.holds_read_lease());
    assert_eq!(primary.confirm(PATIENCE).unwrap_err().kind(), ErrorKind::Fenced);
}

fn gets(store: &SimStore) -> u64 {
    store.gets.load(Ordering::Relaxed)
}

#[test]
fn a_lease_asks_nothing_of_the_bucket_until_it_ends() {
    for lease in [LEASE, Duration::ZERO] {
        let mut rng = Rng::new(47);
        let objects = Objects::default();
        let Machine { store, primary, db } = taken_over(&objects, lease, &mut rng);
        put(&db, "one", Durability::Sync);
        let before = gets(&store);
        (0..3).for_each(|_| primary.confirm(PATIENCE).unwrap());
        assert_eq!(gets(&store) - before, if lease.is_zero() { 3 } else { 0 });
        objects.advance(LEASE);
        assert!(!primary.holds_read_lease());
        let before = gets(&store);
        (0..3).for_each(|_| primary.confirm(PATIENCE).unwrap());
        assert_eq!(gets(&store) - before, if lease.is_zero() { 3 } else { 1 });
        assert_eq!(primary.holds_read_lease(), !lease.is_zero());
    }
}

#[test]
fn a_bucket_that_is_away_is_asked_for_the_patience_of_the_read() {
    let mut rng = Rng::new(48);
    let objects = Objects::default();
    let Machine { store, primary, .. } = taken_over(&objects, LEASE, &mut rng);
    objects.advance(LEASE);
    store.fails_one_of.store(1, Ordering::Relaxed);
    let before = objects.true_time();
    assert_eq!(primary.confirm(PATIENCE).unwrap_err().kind(), ErrorKind::Io);
    assert!(objects.true_time().saturating_sub(before) < 2 * PATIENCE);
    // No put has failed: the database goes on.
    store.fails_one_of.store(0, Ordering::Relaxed);
    primary.ship().unwrap();
    primary.confirm(PATIENCE).unwrap();
}

#[test]
fn a_lease_has_a_limit_and_needs_commits_that_are_stored() {
    let mut rng = Rng::new(49);
    let objects = Objects::default();
    let (_, remote) = remote_on(&objects, LEASE + Duration::from_millis(1), &mut rng);
    let error = remote.primary("/db").map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("at most 60 s") && objects.lock().len() <= 1, "{error}");
    let (_, remote) = remote_on(&objects, LEASE, &mut rng);
    let primary = remote.ack(Ack::Local).primary("/db").unwrap();
    assert!(!primary.holds_read_lease());
    assert_eq!(primary.confirm(PATIENCE).unwrap_err().kind(), ErrorKind::Unsupported);
}
