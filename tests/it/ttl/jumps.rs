//! A jump of the calendar removes nothing until the jump has lasted, or is confirmed.

use std::sync::Mutex;

use siltstone::{Event, EventListener};

use super::*;

const HOUR: u64 = 3600;
const YEARS: i64 = 75 * 365 * 86_400;

/// The calendar of the tests begins here, far from the start of the monotonic clock.
const START: u64 = 1_800_000_000;

#[derive(Default)]
struct Jumps(Mutex<usize>);

impl EventListener for Jumps {
    fn on_event(&self, event: &Event) {
        if let Event::ClockJumped(_) = event {
            *self.0.lock().unwrap() += 1;
        }
    }
}

/// Each of a hundred entries expires in an hour.
fn filled(fs: &MemFs, clock: &ManualClock) -> (Db, Partition, Arc<Jumps>) {
    clock.jump(START.cast_signed());
    let jumps = Arc::new(Jumps::default());
    let db = builder(fs, clock).listener(jumps.clone()).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    put_all(&p, START + HOUR..START + HOUR + 100);
    db.flush().unwrap();
    settle(&db);
    (db, p, jumps)
}

/// Does all work that reads the time.
fn work(db: &Db, p: &Partition) {
    settle(db);
    p.put("key", [&u64::MAX.to_be_bytes()[..], &[7; 20]].concat()).unwrap();
    db.flush().unwrap();
    p.compact(..).unwrap();
    let load = [("loaded", (START + HOUR).to_be_bytes())];
    p.bulk_load(load).unwrap();
    p.compact("m"..).unwrap();
    settle(db);
}

/// A calendar at 2100 for three seconds used to remove everything that expired an hour later,
/// permanently.
#[test]
fn a_calendar_that_is_wrong_for_a_moment_removes_nothing() {
    let clock = ManualClock::default();
    let (db, p, jumps) = filled(&MemFs::new(), &clock);
    assert!(db.health().clock_jump.is_none());
    clock.jump(YEARS);
    work(&db, &p);
    assert_eq!(p.iter().count(), 102);
    let health = db.health();
    let jump = health.clock_jump.expect("it jumped");
    assert_eq!((jump.expected.as_secs(), jump.found.as_secs()), (START, START + YEARS as u64));
    assert!(!health.is_healthy() && health.to_string().contains("expiry waits"), "{health}");
    assert_eq!(*jumps.0.lock().unwrap(), 1);
    clock.pass(3);
    clock.jump(-YEARS);
    work(&db, &p);
    assert_eq!(p.iter().count(), 102);
    assert!(db.health().clock_jump.is_none() && db.health().is_healthy());
    assert_eq!(*jumps.0.lock().unwrap(), 1);
    // Time that passes counts as before.
    clock.pass(2 * HOUR);
    work(&db, &p);
    assert_eq!(p.iter().count(), 1);
}

#[test]
fn entries_expire_by_the_monotonic_clock_while_a_jump_is_not_confirmed() {
    let clock = ManualClock::default();
    let (_, p, _) = filled(&MemFs::new(), &clock);
    for minute in 0..70 {
        // Another jump each minute: none of them lasts.
        clock.jump(YEARS * if minute % 2 == 0 { 1 } else { -1 } + 600);
        clock.pass(60);
        p.compact(..).unwrap();
        // Each entry expires a second after the one before it.
        let left = (HOUR + 99).saturating_sub(60 * (minute + 1)).min(100);
        assert_eq!(p.iter().count() as u64, left, "minute {minute}");
    }
}

#[test]
fn a_jump_that_lasts_for_an_hour_counts() {
    let clock = ManualClock::default();
    let (db, p, _) = filled(&MemFs::new(), &clock);
    put_all(&p, START + 90 * 86_400..START + 90 * 86_400 + 100);
    // A machine that was suspended, and has no clock that shows it.
    clock.jump(100 * 86_400);
    settle(&db);
    clock.pass(HOUR - 1);
    settle(&db);
    p.compact(..).unwrap();
    assert_eq!(p.iter().count(), 200);
    clock.pass(1);
    settle(&db);
    p.compact(..).unwrap();
    assert_eq!(p.iter().count(), 0);
    assert!(db.health().clock_jump.is_none());
}

#[test]
fn a_jump_that_is_confirmed_counts_at_once() {
    let clock = ManualClock::default();
    let (db, p, jumps) = filled(&MemFs::new(), &clock);
    clock.jump(86_400);
    clock.pass(1);
    settle(&db);
    assert_eq!(p.iter().count(), 100);
    db.confirm_clock();
    clock.pass(1);
    settle(&db);
    assert_eq!(p.iter().count(), 0);
    assert!(db.health().clock_jump.is_none());
    assert_eq!(*jumps.0.lock().unwrap(), 1);
}

#[test]
fn nothing_expires_early_by_a_calendar_that_goes_back_and_returns() {
    let clock = ManualClock::default();
    let (db, p, _) = filled(&MemFs::new(), &clock);
    clock.jump(-10 * 86_400);
    clock.pass(HOUR + 200);
    work(&db, &p);
    assert_eq!(p.iter().count(), 102);
    clock.jump(10 * 86_400);
    work(&db, &p);
    assert_eq!(p.iter().count(), 1, "it is the confirmed time again");
}

/// Nothing that outlives a process records for how long the database was closed.
#[test]
fn an_open_believes_the_calendar() {
    let clock = ManualClock::default();
    let fs = MemFs::new();
    let (db, p, _) = filled(&fs, &clock);
    drop(p);
    db.close().unwrap();
    clock.jump(30 * 86_400);
    let db = builder(&fs, &clock).open().unwrap();
    settle(&db);
    assert_eq!(db.open_partition("p").unwrap().iter().count(), 0);
    assert!(db.health().clock_jump.is_none());
}
