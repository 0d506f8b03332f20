//! Deletion while the clock of the store jumps in both directions.

use siltstone::Readable;
use siltstone::secondary::{Level, Target};

use crate::deletion::{HOUR, Place, clear, collect, flush_one, write};
use crate::sim_store::journal_name;

/// A jump of a clock.
const JUMP: std::time::Duration = HOUR.saturating_mul(1000);

/// Before the first round of a new primary the jump looks like time that has passed; a jump backward, like a renewal that
/// was made long ago.
#[test]
fn a_lease_lasts_over_jumps_of_the_clock_of_the_store() {
    for is_back in [false, true] {
        let mut place = Place::new(83);
        place.objects.jump(2 * JUMP);
        let (first, db) = place.primary();
        flush_one(&db);
        let tables = place.names("table/");
        let (remote, _) = place.remote();
        // It lasts for 50 hours.
        let reader = remote.lease(Some(10 * HOUR)).reader().unwrap();
        let secondary = reader.secondary().open().unwrap();
        secondary.sync(Target::Latest).unwrap();
        let view = secondary.partition("users").unwrap().at(Level::Eventual).unwrap();
        assert!(view.contains("flushed").unwrap());
        clear(&db);
        secondary.sync(Target::Latest).unwrap();
        first.collect().unwrap();
        let last = if is_back {
            place.objects.jump_back(JUMP);
            reader.renew_lease().unwrap();
            (first, db)
        } else {
            reader.renew_lease().unwrap();
            place.objects.jump(JUMP);
            place.primary()
        };
        for _ in 0..3 {
            place.age(&last.0, &last.1);
            collect(&place, &last.0);
        }
        assert!(tables.iter().any(|table| place.has(table)), "a jump back: {is_back}");
        // By the own clock it does expire.
        place.objects.advance(60 * HOUR);
        for _ in 0..2 {
            place.age(&last.0, &last.1);
            collect(&place, &last.0);
        }
        assert!(!tables.iter().any(|table| place.has(table)), "a jump back: {is_back}");
        assert!(!place.has(&journal_name(2)));
        assert!(place.names("lease/").is_empty(), "it is garbage then");
    }
}

#[test]
fn a_clock_of_the_store_that_jumps_back_deletes_nothing_early() {
    let mut place = Place::new(84);
    place.objects.jump(2 * JUMP);
    let (primary, db) = place.primary();
    primary.collect().unwrap();
    place.objects.jump_back(JUMP);
    primary.collect().unwrap();
    write(&db, &primary, 300);
    place.objects.advance(HOUR);
    assert_eq!(primary.collect().unwrap() + primary.collect().unwrap(), 0);
    assert!(place.names("boundary/").is_empty(), "the base is an hour old");
    assert!(place.has(&journal_name(2)));
    place.objects.advance(3 * HOUR);
    assert!(collect(&place, &primary) > 200);
}
