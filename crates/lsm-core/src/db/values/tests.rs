//! The state of the maintenance, and the choice of tables.

use std::time::Duration;

use super::gc_goals::{FLUSH_AGE, LOOK_AGAIN, QUIET_AGE};
use super::*;
use crate::compaction::drawing::{draw, seq};
use crate::types::{MemtableId, PartitionId};

const ID: PartitionId = PartitionId(3);

#[test]
fn a_memtable_is_old_when_it_had_entries_for_some_seconds() {
    let goals = BlobGcGoals::default();
    let began = Duration::from_secs(100);
    let just_before = began + FLUSH_AGE.saturating_sub(Duration::from_millis(1));
    let active = Some(MemtableId(7));
    assert!(!goals.is_old(ID, None, Duration::ZERO));
    assert!(!goals.is_old(ID, active, began));
    assert!(!goals.is_old(ID, active, just_before));
    assert!(goals.is_old(ID, active, began + FLUSH_AGE));
    assert!(!goals.is_old(ID, active, began + FLUSH_AGE), "it counts again once it was returned");
    assert!(!goals.is_old(ID, Some(MemtableId(8)), began + 3 * FLUSH_AGE), "another one");
    assert!(!goals.is_old(PartitionId(4), active, began + 9 * FLUSH_AGE));
}

#[test]
fn tables_that_overlap_are_merged_once_after_each_flush() {
    let goals = BlobGcGoals::default();
    assert_eq!(goals.idle_state(ID, seq(10), Duration::ZERO), IdleState::Busy);
    assert_eq!(goals.idle_state(ID, seq(10), QUIET_AGE), IdleState::Unmerged);
    assert_eq!(goals.idle_state(ID, seq(10), 2 * QUIET_AGE), IdleState::Merged);
    assert_eq!(
        goals.idle_state(ID, seq(20), 3 * QUIET_AGE),
        IdleState::Busy,
        "a flush restarts the wait"
    );
    assert_eq!(goals.idle_state(ID, seq(20), 4 * QUIET_AGE), IdleState::Unmerged);
}

/// The hull in a drawing, as text.
fn span(drawing: &str, overlaps: bool) -> Option<(String, String)> {
    let KeySpan { smallest, largest } = shadowed(&draw(drawing), &[], overlaps)?;
    Some((String::from_utf8(smallest).unwrap(), String::from_utf8(largest).unwrap()))
}

#[test]
fn what_may_be_shadowed_is_the_hull_of_tables_over_others() {
    assert_eq!(span("L1: 4:a-c\nL6: 1:b-d 2:x-z", true), Some(("a".into(), "c".into())));
    assert_eq!(span("L0: 5:m-n 4:a-n\nL6: 2:x-z", true), Some(("a".into(), "n".into())));
    assert_eq!(span("L1: 4:a-c\nL6: 1:d-e", true), None);
    assert_eq!(span("L1: 4:a-c\nL6: 1:b-d", false), None);
}

#[test]
fn a_dropped_partition_is_forgotten_with_its_goal() {
    let goals = BlobGcGoals::default();
    goals.choose(ID, None).unwrap().set(Some(goal()));
    assert!(goals.has_goal() && goals.goal(ID).is_some());
    goals.forget(ID);
    assert!(!goals.has_goal());
}

fn goal() -> Goal {
    let span = KeySpan { smallest: b"a".to_vec(), largest: b"b".to_vec() };
    Goal { span, through: seq(1), moves: None }
}

#[test]
fn one_thread_chooses_the_goal_after_the_present_one() {
    let goals = BlobGcGoals::default();
    let choice = goals.choose(ID, None).unwrap();
    assert!(goals.choose(ID, None).is_none(), "another one is choosing");
    let first = choice.set(Some(goal())).unwrap();
    drop(choice);
    assert!(goals.choose(ID, None).is_none(), "there is one");
    let choice = goals.choose(ID, Some(&first)).unwrap();
    let second = choice.set(Some(goal())).unwrap();
    drop(choice);
    assert!(goals.choose(ID, Some(&first)).is_none(), "another has followed it");
    // A store that panics is asked again.
    drop(goals.choose(ID, Some(&second)).unwrap());
    goals.choose(ID, Some(&second)).unwrap().set(None);
    assert!(!goals.has_goal());
}

#[test]
fn a_look_that_found_nothing_counts_for_a_moment() {
    let goals = BlobGcGoals::default();
    let now = Duration::from_secs(9);
    assert!(!goals.was_looked_at(ID, now));
    goals.note_look(ID, now);
    assert!(goals.was_looked_at(ID, now) && !goals.was_looked_at(ID, now + LOOK_AGAIN));
    assert!(!goals.was_looked_at(PartitionId(4), now));
    goals.choose(ID, None).unwrap().set(Some(goal()));
    assert!(!goals.was_looked_at(ID, now), "there is a goal since");
}
