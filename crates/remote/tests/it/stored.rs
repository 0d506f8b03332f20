//! Notices that the bucket has a commit: each is called once, not before, and with the true outcome.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use remote::{Ack, Primary};
use siltstone::fs::MemFs;
use siltstone::{BackgroundMode, Db, Durability, ErrorKind, SeqNo};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, remote_of};

struct Place {
    objects: Objects,
    rng: Rng,
}

impl Place {
    fn new(seed: u64) -> Place {
        Place { objects: Objects::default(), rng: Rng::new(seed) }
    }

    fn take_over(&mut self, ack: Ack) -> (Primary, Db, Arc<SimStore>) {
        let store = SimStore::new(self.objects.clone(), self.rng.fork());
        let remote = remote_of(&store, &MemFs::new(), &mut self.rng).ack(ack);
        let primary = remote.take_over("/db").unwrap();
        let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
        (primary, db, store)
    }
}

/// The outcomes of notices, in the order of their calls.
type Outcomes = Arc<Mutex<Vec<(u64, Option<ErrorKind>)>>>;

fn put(db: &Db, durability: Durability) -> SeqNo {
    db.partition("users").unwrap().put_with("key", "x", durability).unwrap().seq
}

fn ask(primary: &Primary, db: &Db, seq: SeqNo, outcomes: &Outcomes) {
    let outcomes = outcomes.clone();
    let asked = primary.on_stored(db, seq, move |outcome| {
        outcomes.lock().push((seq.get(), outcome.err().map(|error| error.kind())));
    });
    asked.unwrap();
}

fn take(outcomes: &Outcomes) -> Vec<(u64, Option<ErrorKind>)> {
    std::mem::take(&mut *outcomes.lock())
}

#[test]
fn a_notice_comes_when_another_machine_would_have_the_commit() {
    let mut place = Place::new(91);
    let (primary, db, store) = place.take_over(Ack::Local);
    let outcomes = Outcomes::default();
    let first = put(&db, Durability::Sync);
    ask(&primary, &db, first, &outcomes);
    let second = put(&db, Durability::Os);
    ask(&primary, &db, second, &outcomes);
    assert!(take(&outcomes).is_empty() && primary.stored_seq(&db) < first);
    // A bucket that is away ends no notice.
    store.fails_one_of.store(1, Ordering::Relaxed);
    primary.ship().unwrap_err();
    assert!(take(&outcomes).is_empty() && primary.stored_seq(&db) < first);
    store.fails_one_of.store(0, Ordering::Relaxed);
    primary.ship().unwrap();
    assert_eq!(take(&outcomes), [(first.get(), None)]);
    assert_eq!(primary.stored_seq(&db), first);
    // The second is durable once the log is synced.
    while take(&outcomes).is_empty() {
        assert!(db.step().unwrap());
        primary.ship().unwrap();
    }
    assert_eq!(primary.stored_seq(&db), second);
    // It is stored already; and one that was not written is refused.
    ask(&primary, &db, first, &outcomes);
    assert_eq!(take(&outcomes), [(first.get(), None)]);
    let later = SeqNo::new(second.get() + 1).unwrap();
    let refused = primary.on_stored(&db, later, |_| unreachable!("it was refused")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let third = put(&db, Durability::Os);
    primary.wait_stored(&db, third).unwrap();
    assert_eq!(primary.stored_seq(&db), third);
    let (_other, copy, _) = place.take_over(Ack::Local);
    assert!(copy.visible_seq() >= third);
}

#[test]
fn the_stored_number_goes_on_while_commits_go_on() {
    let mut place = Place::new(92);
    let (primary, db, _) = place.take_over(Ack::Local);
    let mut last = SeqNo::ZERO;
    for _ in 0..10 {
        let durable = put(&db, Durability::Sync);
        assert_eq!(primary.stored_seq(&db), last);
        primary.ship().unwrap();
        put(&db, Durability::Sync);
        // Of the call before.
        assert_eq!(primary.stored_seq(&db), durable);
        last = durable;
    }
}

/// Both appends are in one change.
#[test]
fn the_stored_number_is_that_of_the_last_call_before_the_put() {
    let mut place = Place::new(97);
    let (primary, db, _) = place.take_over(Ack::Local);
    put(&db, Durability::Sync);
    primary.stored_seq(&db);
    let last = put(&db, Durability::Sync);
    primary.stored_seq(&db);
    primary.ship().unwrap();
    put(&db, Durability::Sync);
    assert_eq!(primary.stored_seq(&db), last);
}

#[test]
fn the_stored_number_of_a_fenced_primary_is_not_one_that_it_has_not_stored() {
    let mut place = Place::new(96);
    let (primary, db, _) = place.take_over(Ack::Local);
    let stored = put(&db, Durability::Sync);
    primary.ship().unwrap();
    assert_eq!(primary.stored_seq(&db), stored);
    let lost = put(&db, Durability::Sync);
    assert_eq!(primary.stored_seq(&db), stored);
    let (_other, copy, _) = place.take_over(Ack::Local);
    assert_eq!(primary.ship().unwrap_err().kind(), ErrorKind::Fenced);
    assert!(copy.partition("users").unwrap().get("key").unwrap().is_some());
    assert!(primary.stored_seq(&db) < lost);
}

#[test]
fn a_notice_of_a_fenced_or_dropped_primary_gets_its_error() {
    let mut place = Place::new(93);
    for is_fenced in [true, false] {
        let (primary, db, _) = place.take_over(Ack::Local);
        // The bucket has the database, without the commit.
        primary.ship().unwrap();
        let outcomes = Outcomes::default();
        let seq = put(&db, Durability::Sync);
        ask(&primary, &db, seq, &outcomes);
        let mut expected = ErrorKind::Closed;
        if is_fenced {
            drop(place.take_over(Ack::Local));
            assert_eq!(primary.ship().unwrap_err().kind(), ErrorKind::Fenced);
            expected = ErrorKind::Fenced;
        }
        drop(primary);
        assert_eq!(take(&outcomes), [(seq.get(), Some(expected))]);
        drop(db);
    }
}

#[test]
fn a_notice_that_panics_stops_no_other_one() {
    let mut place = Place::new(94);
    let (primary, db, _) = place.take_over(Ack::Local);
    let seq = put(&db, Durability::Sync);
    let outcomes = Outcomes::default();
    ask(&primary, &db, seq, &outcomes);
    primary.on_stored(&db, seq, |_| std::panic::resume_unwind(Box::new("a notice"))).unwrap();
    ask(&primary, &db, seq, &outcomes);
    primary.ship().unwrap();
    assert_eq!(take(&outcomes), [(seq.get(), None); 2]);
}

#[test]
fn a_commit_that_is_acknowledged_as_stored_is_noticed_at_once() {
    let mut place = Place::new(95);
    let (primary, db, _) = place.take_over(Ack::Stored);
    let outcomes = Outcomes::default();
    let seq = put(&db, Durability::Sync);
    ask(&primary, &db, seq, &outcomes);
    assert_eq!(take(&outcomes), [(seq.get(), None)]);
    assert_eq!(primary.stored_seq(&db), seq);
}

/// A segment of the log is made and listed without a put: an unsynced write promises nothing of the bucket.
#[test]
fn unsynced_writes_wait_for_no_put_when_a_segment_is_full() {
    let mut place = Place::new(98);
    let (primary, db, store) = place.take_over(Ack::Stored);
    let users = db.partition("users").unwrap();
    store.fails_one_of.store(1, Ordering::Relaxed);
    for n in 0_u32..3000 {
        users.put_with(n.to_be_bytes(), [7; 1000], Durability::Os).unwrap();
    }
    assert!(db.stats().wal_segment_count > 4, "{}", db.stats().wal_segment_count);
    store.fails_one_of.store(0, Ordering::Relaxed);
    let seq = put(&db, Durability::Sync);
    assert_eq!(primary.stored_seq(&db), seq);
    let (_other, copy, _) = place.take_over(Ack::Stored);
    assert_eq!(copy.partition("users").unwrap().iter().count(), 3001);
}
