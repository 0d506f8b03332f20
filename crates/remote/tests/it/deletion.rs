//! Deletion in the bucket: what goes, what stays, and the races with those that have slept.

use std::sync::Arc;
use std::time::Duration;

use remote::{Primary, Remote};
use siltstone::fs::{FolderState, Fs, MemFs};
use siltstone::secondary::{Level, Reading, Secondary, Target};
use siltstone::{
    BackgroundMode, Db, Durability, ErrorKind, LargeValueOptions, Partition, PartitionOptions,
    Readable,
};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, journal_name, with_clock};

pub const HOUR: Duration = Duration::from_secs(3600);

/// A bucket, and machines that use it.
pub struct Place {
    pub objects: Objects,
    rng: Rng,
}

impl Place {
    pub fn new(seed: u64) -> Place {
        Place { objects: Objects::default(), rng: Rng::new(seed) }
    }

    /// A remote of a new machine, whose clock is that of the store.
    pub fn remote(&mut self) -> (Remote, Arc<SimStore>) {
        let store = SimStore::new(self.objects.clone(), self.rng.fork());
        let remote = with_clock(&store, &MemFs::new(), &mut self.rng);
        (remote.retention(2 * HOUR).grace(HOUR), store)
    }

    pub fn primary(&mut self) -> (Primary, Db) {
        let primary = self.remote().0.take_over("/db").unwrap();
        let db = opened(&primary);
        (primary, db)
    }

    pub fn has(&self, name: &str) -> bool {
        self.objects.lock().contains_key(name)
    }

    fn count(&self, front: &str) -> usize {
        self.objects.lock().keys().filter(|name| name.starts_with(front)).count()
    }

    pub fn names(&self, front: &str) -> Vec<String> {
        self.objects.lock().keys().filter(|name| name.starts_with(front)).cloned().collect()
    }

    /// A base, and time after which all before is old.
    pub fn age(&self, primary: &Primary, db: &Db) {
        write(db, primary, 300);
        self.objects.advance(3 * HOUR);
    }
}

pub fn put(db: &Db, key: &str) -> siltstone::Result<()> {
    db.partition("users")?.put_with(key, "x", Durability::Sync).map(drop)
}

/// Commits, a journal object for each; a base comes after 256.
pub fn write(db: &Db, primary: &Primary, count: u64) {
    for number in 0..count {
        put(db, &format!("{number}")).unwrap();
        primary.ship().unwrap();
    }
}

fn opened(primary: &Primary) -> Db {
    primary.builder().background(BackgroundMode::Stepped).open().unwrap()
}

/// A commit that is in a table.
pub fn flush_one(db: &Db) {
    put(db, "flushed").unwrap();
    db.flush().unwrap();
}

/// Drops all tables.
pub fn clear(db: &Db) {
    db.partition("users").unwrap().clear().unwrap();
    while db.step().unwrap() {}
}

/// A view that has the table of `flush_one` open.
fn view_of(secondary: &Secondary) -> Reading {
    secondary.sync(Target::Latest).unwrap();
    let view = secondary.partition("users").unwrap().at(Level::Eventual).unwrap();
    assert!(view.contains("flushed").unwrap());
    view
}

/// Rounds with the grace in between.
pub fn collect(place: &Place, primary: &Primary) -> u64 {
    let mut deleted = 0;
    for _ in 0..3 {
        deleted += primary.collect().unwrap();
        place.objects.advance(HOUR);
    }
    deleted
}

#[test]
fn what_no_state_within_the_retention_needs_is_deleted_after_the_grace() {
    let mut place = Place::new(71);
    let (primary, db) = place.primary();
    flush_one(&db);
    let tables = place.names("table/");
    place.age(&primary, &db);
    db.partition("users").unwrap().clear().unwrap();
    put(&db, "new").unwrap();
    while db.step().unwrap() {}
    assert_eq!(primary.collect().unwrap(), 0, "the boundary is put, and nothing is deleted");
    assert_eq!(place.count("boundary/"), 1);
    assert_eq!(primary.collect().unwrap(), 0, "the grace has not ended");
    place.objects.advance(HOUR);
    assert!(primary.collect().unwrap() > 200);
    // The claim stays.
    assert!(place.has(&journal_name(1)) && !place.has(&journal_name(2)));
    place.age(&primary, &db);
    assert!(collect(&place, &primary) > 200);
    assert!(tables.iter().all(|table| !place.has(table)), "the dropped tables are deleted");
    let (second, db) = place.primary();
    assert!(db.partition("users").unwrap().contains("new").unwrap());
    assert!(place.remote().0.verify().unwrap().is_sound());
    drop(second);
}

#[test]
fn within_the_retention_nothing_is_deleted() {
    let mut place = Place::new(72);
    let (primary, db) = place.primary();
    write(&db, &primary, 300);
    place.objects.advance(HOUR);
    let before = place.names("");
    assert_eq!(primary.collect().unwrap() + primary.collect().unwrap(), 0);
    assert_eq!(place.names(""), before);
}

#[test]
fn a_writer_that_sleeps_is_fenced_also_after_its_number_could_be_free() {
    let mut place = Place::new(73);
    let (old, old_db) = place.primary();
    put(&old_db, "before").unwrap();
    let (new, db) = place.primary();
    place.age(&new, &db);
    assert!(collect(&place, &new) > 200);
    let refused = put(&old_db, "late").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert_eq!(old.collect().unwrap_err().kind(), ErrorKind::Fenced);
    drop(old);
}

#[test]
fn a_claim_under_a_freed_number_fences_nothing_and_is_put_again() {
    let mut place = Place::new(74);
    let (first, first_db) = place.primary();
    write(&first_db, &first, 3);
    let number = first.status().number;
    let (remote, store) = place.remote();
    // The claimant sleeps between its look at the journal and its claim.
    let place = Arc::new(parking_lot::Mutex::new(place));
    let meanwhile = place.clone();
    let first = Arc::new(first);
    let writer = first.clone();
    let db = first_db.clone();
    store.pause_before_put(&journal_name(number + 1), move || {
        let place = meanwhile.lock();
        place.age(&writer, &db);
        assert!(collect(&place, &writer) > 200);
        assert!(!place.has(&journal_name(number + 1)), "the number is free");
    });
    let second = remote.take_over("/db").unwrap();
    let db = opened(&second);
    assert!(second.status().number > number + 300);
    assert!(db.partition("users").unwrap().contains("299").unwrap());
    assert_eq!(put(&first_db, "late").unwrap_err().kind(), ErrorKind::Fenced);
    put(&db, "mine").unwrap();
    let (third, db) = place.lock().primary();
    assert!(db.partition("users").unwrap().contains("mine").unwrap());
    drop(third);
}

#[test]
fn a_reader_without_a_lease_goes_on_from_the_newest_base() {
    let mut place = Place::new(75);
    let (primary, db) = place.primary();
    flush_one(&db);
    put(&db, "logged").unwrap();
    let reader = place.remote().0.lease(None).reader().unwrap();
    assert_eq!(place.count("lease/"), 0);
    let secondary = reader.secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    assert!(users.at(Level::Strong).unwrap().contains("flushed").unwrap());
    clear(&db);
    for _ in 0..2 {
        place.age(&primary, &db);
        collect(&place, &primary);
    }
    put(&db, "new").unwrap();
    let number = reader.number();
    assert!(!place.has(&journal_name(number + 1)), "the next object is deleted");
    let now = users.at(Level::Strong).unwrap();
    assert!(now.contains("new").unwrap() && !now.contains("logged").unwrap());
    assert_eq!(now.keys().count(), 301);
    assert!(reader.number() > number);
    // Nothing is there before a look either.
    put(&db, "newer").unwrap();
    secondary.sync(Target::Latest).unwrap();
    assert!(users.get("newer").unwrap().is_some());
}

/// A look that needs no present state does not ask for the boundary. It does not stay late for that.
#[test]
fn a_late_reader_that_only_looks_goes_on_within_a_minute() {
    let mut place = Place::new(95);
    let (primary, db) = place.primary();
    let reader = place.remote().0.lease(None).reader().unwrap();
    reader.folder_state("".as_ref(), FolderState::Settled).unwrap();
    for _ in 0..2 {
        place.age(&primary, &db);
        collect(&place, &primary);
    }
    let number = reader.number();
    assert!(!place.has(&journal_name(number + 1)), "the next object is deleted");
    // It has waited for long.
    reader.folder_state("".as_ref(), FolderState::Settled).unwrap();
    assert_eq!(reader.number(), primary.status().number);
}

#[test]
fn a_lease_keeps_what_its_reader_needs_until_it_expires() {
    let mut place = Place::new(76);
    let (primary, db) = place.primary();
    flush_one(&db);
    place.age(&primary, &db);
    let tables = place.names("table/");
    let (remote, _) = place.remote();
    let reader = remote.lease(Some(100 * HOUR)).reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let view = view_of(&secondary);
    clear(&db);
    // The reader follows: its lease names the table that the view has open.
    secondary.sync(Target::Latest).unwrap();
    reader.renew_lease().unwrap();
    for _ in 0..3 {
        place.age(&primary, &db);
        collect(&place, &primary);
        secondary.sync(Target::Latest).unwrap();
        reader.renew_lease().unwrap();
    }
    assert!(tables.iter().any(|table| place.has(table)), "the lease keeps the tables");
    assert!(view.contains("flushed").unwrap());
    assert!(!place.has(&journal_name(3)), "and not what was before it");
    // It is not renewed any more, once the primary has seen it.
    primary.collect().unwrap();
    place.objects.advance(600 * HOUR);
    for _ in 0..2 {
        place.age(&primary, &db);
        collect(&place, &primary);
    }
    assert!(tables.iter().all(|table| !place.has(table)));
    drop(view);
    assert!(secondary.sync(Target::Latest).is_ok());
}

#[test]
fn a_lease_that_comes_before_the_boundary_counts() {
    let mut place = Place::new(80);
    let (remote, store) = place.remote();
    let primary = remote.grace(Duration::ZERO).take_over("/db").unwrap();
    let db = opened(&primary);
    flush_one(&db);
    let reader = place.remote().0.lease(Some(HOUR)).reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let view = view_of(&secondary);
    clear(&db);
    primary.collect().unwrap();
    // The lease expires, and is renewed after the primary has read it.
    place.age(&primary, &db);
    place.age(&primary, &db);
    store.pause_before_put("boundary/00000000000000000001", move || reader.renew_lease().unwrap());
    primary.collect().unwrap();
    assert_eq!(place.count("boundary/"), 1);
    assert!(view.contains("flushed").unwrap());
    assert!(place.has(&journal_name(2)));
}

/// A primary that finds it expired may delete it at any later moment.
#[test]
fn a_lease_that_is_renewed_late_takes_another_name() {
    let mut place = Place::new(85);
    let (primary, _db) = place.primary();
    let reader = place.remote().0.lease(Some(HOUR)).reader().unwrap();
    let first = place.names("lease/");
    place.objects.advance(2 * HOUR);
    reader.renew_lease().unwrap();
    assert_eq!(place.names("lease/"), first);
    place.objects.advance(3 * HOUR);
    reader.renew_lease().unwrap();
    assert_eq!(place.count("lease/"), 2);
    drop(reader);
    assert_eq!(place.names("lease/"), first);
    drop(primary);
}

#[test]
fn a_reader_gives_its_lease_up() {
    let mut place = Place::new(77);
    let (primary, _db) = place.primary();
    let reader = place.remote().0.reader().unwrap();
    let copy = reader.clone();
    assert_eq!(place.count("lease/"), 1);
    drop(reader);
    assert_eq!(place.count("lease/"), 1);
    drop(copy);
    assert_eq!(place.count("lease/"), 0);
    drop(primary);
}

#[test]
fn what_a_dead_claimant_has_put_in_vain_is_deleted() {
    let mut place = Place::new(78);
    let (first, db) = place.primary();
    write(&db, &first, 3);
    let claimant = place.remote().0.status().unwrap().claimant;
    let orphan = format!(
        "table/00000000000000ff-00000001.sst/{:016x}-{:016x}-{:016x}-{claimant:032x}",
        0, 9, 1
    );
    place.objects.lock().insert(orphan.clone(), vec![1; 9].into());
    place.objects.lock().insert("probe/0123".to_owned(), vec![1].into());
    for _ in 0..2 {
        place.age(&first, &db);
        assert!(collect(&place, &first) > 0);
    }
    assert!(place.has(&orphan), "its writer lives, and its journal object may come");
    let (second, db) = place.primary();
    place.age(&second, &db);
    collect(&place, &second);
    assert!(!place.has(&orphan) && !place.has("probe/0123"));
    assert_eq!(place.remote().0.status().unwrap().garbage.objects, 0);
}

#[test]
fn a_clock_of_the_store_that_jumps_deletes_nothing_early() {
    let mut place = Place::new(79);
    let (primary, db) = place.primary();
    write(&db, &primary, 300);
    primary.collect().unwrap();
    // The own clock does not jump.
    place.objects.jump(1000 * HOUR);
    assert_eq!(primary.collect().unwrap() + primary.collect().unwrap(), 0);
    assert_eq!(place.count("boundary/"), 0);
    assert!(place.has(&journal_name(2)));
    place.objects.advance(3 * HOUR);
    assert!(collect(&place, &primary) > 200);
}

/// Makes the space of deleted values free, as far as that goes.
pub fn reclaim(primary: &Primary, db: &Db, values: &Partition) {
    db.flush().unwrap();
    values.compact(..).unwrap();
    values.reclaim().unwrap();
    while db.step().unwrap() {}
    primary.ship().unwrap();
}

#[test]
fn the_space_of_large_values_in_the_bucket_comes_back_with_the_last_of_their_file() {
    let mut place = Place::new(82);
    let (primary, db) = place.primary();
    let large = PartitionOptions::new().large_values(LargeValueOptions::default());
    let values = db.partition_with("values", large).unwrap();
    for number in 0..10 {
        values.put_with([number], vec![number; 100_000], Durability::Sync).unwrap();
    }
    let chunks = place.names("part/");
    assert!(chunks.iter().any(|name| name.contains(".chunk/")));
    for number in 1..10 {
        values.delete([number]).unwrap();
    }
    reclaim(&primary, &db, &values);
    // Ranges of the local file may be free now. The bucket has all of it, and other machines read what is left.
    let secondary = place.remote().0.reader().unwrap().secondary().open().unwrap();
    secondary.sync(Target::Latest).unwrap();
    let read = secondary.partition("values").unwrap().get([0]).unwrap();
    assert!(read.is_some_and(|value| value.to_vec() == vec![0; 100_000]));
    drop(secondary);
    values.delete([0]).unwrap();
    reclaim(&primary, &db, &values);
    for _ in 0..2 {
        place.age(&primary, &db);
        collect(&place, &primary);
    }
    let left = chunks.iter().filter(|name| place.has(name)).count();
    assert_eq!(left, 0, "of {} parts", chunks.len());
}

/// Writes until a base is due, which the next `ship` puts. The log since the last base is no short tail.
fn write_until_base(db: &Db, primary: &Primary) -> String {
    let users = db.partition("users").unwrap();
    loop {
        users.put_with("key", "x".repeat(500), Durability::Sync).unwrap();
        let status = primary.status();
        if status.number - status.base >= 256 {
            return format!("base/{:020}", status.number);
        }
        primary.ship().unwrap();
    }
}

#[test]
fn a_base_that_is_put_during_a_takeover_keeps_its_objects() {
    let mut place = Place::new(81);
    let (remote, store) = place.remote();
    let first = remote.retention(6 * HOUR).take_over("/db").unwrap();
    let db = opened(&first);
    place.age(&first, &db);
    place.objects.advance(4 * HOUR);
    let base = write_until_base(&db, &first);
    let next = place.remote().0.retention(6 * HOUR);
    let second = Arc::new(parking_lot::Mutex::new(None));
    let slot = second.clone();
    store.pause_before_put(&base, move || *slot.lock() = Some(next.take_over("/db").unwrap()));
    first.ship().unwrap();
    let second = second.lock().take().unwrap();
    assert!(place.has(&base), "the state before the claim");
    let parts = place.names("part/");
    let new = opened(&second);
    put(&new, "new").unwrap();
    // The base before is old, and what the fenced writer has put is found; twice its grace passes.
    for _ in 0..4 {
        second.collect().unwrap();
        place.objects.advance(HOUR);
    }
    assert!(!place.has(&journal_name(2)), "what is older is deleted");
    let report = place.remote().0.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");
    // At last it is garbage.
    write(&new, &second, 300);
    place.objects.advance(10 * HOUR);
    collect(&place, &second);
    write(&new, &second, 300);
    place.objects.advance(10 * HOUR);
    collect(&place, &second);
    assert!(parts.iter().any(|part| !place.has(part)) && !place.has(&base));
    assert!(place.remote().0.verify().unwrap().is_sound());
}

/// A writer is about to delete, and another one takes over at its call number `calls`. Returns `false` if the round has
/// fewer calls.
fn take_over_in_a_round(calls: u64) -> bool {
    let mut place = Place::new(82);
    let (remote, store) = place.remote();
    let first = remote.take_over("/db").unwrap();
    let db = opened(&first);
    flush_one(&db);
    clear(&db);
    place.age(&first, &db);
    first.collect().unwrap();
    place.objects.advance(HOUR);
    let next = place.remote().0;
    let second = Arc::new(parking_lot::Mutex::new(None));
    let slot = second.clone();
    store.pause_in(calls, move || {
        let second = next.take_over("/db").unwrap();
        let db = opened(&second);
        put(&db, "new").unwrap();
        db.flush().unwrap();
        *slot.lock() = Some((second, db));
    });
    let _ = first.collect();
    let Some((second, new)) = second.lock().take() else { return false };
    let tables = place.names("table/");
    for _ in 0..4 {
        place.objects.advance(HOUR);
        assert_eq!(first.collect().unwrap_err().kind(), ErrorKind::Fenced);
    }
    assert_eq!(place.names("table/"), tables, "a fenced writer deletes nothing: call {calls}");
    let report = place.remote().0.verify().unwrap();
    assert!(report.is_sound(), "call {calls}: {report:?}");
    put(&new, "newer").unwrap();
    let (third, db) = place.primary();
    let users = db.partition("users").unwrap();
    assert!(users.contains("new").unwrap() && users.contains("newer").unwrap());
    drop((second, third));
    true
}

#[test]
fn a_writer_that_is_fenced_during_a_round_deletes_nothing_of_the_next_one() {
    let rounds = (0..).step_by(3).take_while(|calls| take_over_in_a_round(*calls)).count();
    assert!(rounds > 3, "{rounds} rounds");
}
