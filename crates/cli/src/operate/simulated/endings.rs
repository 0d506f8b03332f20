//! The end of the operator in the simulated world: without the list of readers, without the list of nodes, and with readers
//! that become others meanwhile.

use super::*;

/// The control loop with the readers of a load.
fn serving(seed: u64, load: f64) -> (Shared, Control) {
    let world = world(Rng::new(seed), Trouble::default());
    let mut control = control(&world);
    world.borrow_mut().load = load;
    run(&mut control, &world, 40);
    (world, control)
}

#[test]
fn an_operator_that_does_not_know_its_readers_ends_none() {
    let (world, mut control) = serving(4, 290.0);
    let listed = world.borrow().listed();
    assert_eq!(listed.len(), 3);
    world.borrow_mut().trouble.failed_list = 1000;
    control.end();
    run(&mut control, &world, 100);
    assert_eq!((world.borrow().ends, world.borrow().listed()), (0, listed));
    assert!(!control.is_over());
    // Nor does one that has not seen them yet.
    let mut late = self::control(&world);
    late.end();
    run(&mut late, &world, 10);
    assert!(!late.is_over());
    // Another operator has them: nothing is left to do.
    world.borrow_mut().is_replaced = true;
    assert!(control.is_over());
    world.borrow_mut().is_replaced = false;
    world.borrow_mut().trouble.failed_list = 0;
    run(&mut control, &world, 60);
    assert!(control.is_over() && world.borrow().readers.is_empty());
}

#[test]
fn a_primary_that_becomes_a_reader_at_the_end_ends_too() {
    let (world, mut control) = serving(5, 290.0);
    let first = world.borrow().listed()[0].clone();
    world.borrow_mut().readers.get_mut(&first).unwrap().is_primary = true;
    run(&mut control, &world, 2);
    control.end();
    run(&mut control, &world, 2);
    assert!(!control.is_over());
    world.borrow_mut().readers.get_mut(&first).unwrap().is_primary = false;
    run(&mut control, &world, 60);
    assert!(control.is_over() && world.borrow().readers.is_empty());
}

/// The launcher cannot reach it for a while: it is killed only after it was asked.
#[test]
fn a_reader_that_cannot_be_asked_to_end_is_asked_again() {
    let (world, mut control) = serving(7, 290.0);
    world.borrow_mut().cannot_end = true;
    control.end();
    run(&mut control, &world, DRAIN.as_secs() + END.as_secs() + 10);
    assert_eq!(
        (world.borrow().ends, world.borrow().kills, world.borrow().readers.len()),
        (0, 0, 3)
    );
    assert!(world.borrow().said.iter().any(|it| it.contains("cannot end reader reader-1")));
    world.borrow_mut().cannot_end = false;
    run(&mut control, &world, 10);
    assert!(control.is_over(), "{:?}", world.borrow().said);
    assert_eq!((world.borrow().ends, world.borrow().kills), (3, 0));
}

#[test]
fn readers_end_within_their_limits_although_routers_do_not_know_it() {
    let (world, mut control) = serving(6, 290.0);
    world.borrow_mut().cannot_publish = true;
    for reader in world.borrow_mut().readers.values_mut() {
        reader.ends_after = None;
    }
    control.end();
    // They get requests until the last moment, so they do not end before it.
    run(&mut control, &world, DRAIN.as_secs());
    assert_eq!(world.borrow().ends, 0);
    run(&mut control, &world, END.as_secs() + 3);
    assert!(control.is_over(), "{:?}", world.borrow().said);
    assert_eq!((world.borrow().ends, world.borrow().kills), (3, 3));
}
