//! Primaries whose commit cursor could not be created at the open, and appears later in their
//! epoch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lsm_core::clock::Clock;

use super::*;

/// A clock that the test moves, in milliseconds.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn add_seconds(&self, seconds: u64) {
        self.0.fetch_add(1000 * seconds, Ordering::SeqCst);
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1 << 30)
    }
}

/// Makes every creation of a file for a cursor fail.
fn fill(fault: &FaultFs) {
    let at = FaultAt::Nth { kind: OpKind::MapWords, suffix: String::new(), nth: 0 };
    fault.add_rule(FaultRule::sticky(at, FaultAction::Enospc));
}

/// A used primary without a cursor, on a disk that has room again, and its clock. An attempt is due.
fn without_cursor() -> (Stage, Hand) {
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let hand = Hand::default();
    fill(&fault);
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let builder = Db::builder(DIR).fs(fs).options(options()).clock(Arc::new(hand.clone()));
    let old = builder.background(BackgroundMode::Stepped).open().unwrap();
    PARTITIONS.iter().for_each(|name| drop(old.partition(name).unwrap()));
    let mut rng = Rng::from_env_or(21);
    for number in 0..DEEDS {
        random_write(&old, &mut rng, number).unwrap();
    }
    old.wait_idle().unwrap();
    hand.add_seconds(60);
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    (Stage { old, fault, mem, plain }, hand)
}

/// Background work without a flush or compaction; it tries to create the cursor.
fn tend(stage: &Stage) -> Result<()> {
    stage.old.wait_idle()
}

#[test]
fn a_cursor_that_found_no_space_appears_when_there_is_some() {
    let (stage, hand) = without_cursor();
    let Stage { old, fault, plain, .. } = &stage;
    let unlogged = PartitionOptions::new().logged(false);
    let unlogged = old.partition_with("u", unlogged, None).unwrap();
    unlogged.put("k", "in memory").unwrap();
    let follower = secondary(plain);
    let [a, u] = ["a", "u"].map(|name| follower.partition(name).unwrap());
    // The disk is full for a long time: the attempts become rare, and the last failure is the one
    // that is reported.
    let mut attempts = Vec::new();
    for _ in 0..60 {
        let before = fault.fault_count();
        hand.add_seconds(1);
        tend(&stage).unwrap();
        attempts.push(fault.fault_count() > before);
        assert!(old.health().cursor_failure.is_some());
        assert_eq!(a.at(Level::Strong).err().unwrap().kind(), ErrorKind::Unsupported);
    }
    let count = attempts.iter().filter(|tried| **tried).count();
    assert!((6..=9).contains(&count), "{attempts:?}");
    assert_eq!(take_over(plain).unwrap_err().kind(), ErrorKind::Unsupported);
    fault.heal();
    hand.add_seconds(60);
    tend(&stage).unwrap();
    assert!(old.health().is_healthy(), "{}", old.health());
    // At once, with the earlier commits and the later ones.
    let strong = a.at(Level::Strong).unwrap();
    assert!(content(&strong) == content_of(&old.open_partition("a").unwrap()));
    let refused = u.at(Level::Strong).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::NotLogged, "its entry is in memory: {refused}");
    unlogged.flush().unwrap();
    assert_eq!(u.at(Level::Strong).unwrap().get("k").unwrap().as_deref(), Some(&b"in memory"[..]));
    old.open_partition("a").unwrap().put("k", "after").unwrap();
    let strong = a.at(Level::Strong).unwrap();
    assert_eq!(strong.get("k").unwrap().as_deref(), Some(&b"after"[..]));
    let late = secondary(plain);
    let strong = late.partition("b").unwrap().at(Level::Strong).unwrap();
    assert!(content(&strong) == content_of(&old.open_partition("b").unwrap()));
    let kept = state_of(old);
    let new = take_over(plain).unwrap();
    assert!(state_of(&new) == kept);
    check_taken_over(stage, new, "after the cursor appeared");
}

/// A promotion finds no cursor, or one with everything that was settled.
#[test]
fn a_claimant_comes_at_each_operation_of_the_attempt() {
    let mut refusals = 0;
    for after in 0.. {
        let (stage, _hand) = without_cursor();
        stage.fault.heal();
        let kept = state_of(&stage.old);
        let taken = Arc::new(Mutex::new(None));
        let slot = taken.clone();
        let plain = stage.plain.clone();
        stage.before_op(after, move || *slot.lock().unwrap() = Some(take_over(&plain)));
        let tended = tend(&stage);
        stage.fault.clear_observer();
        let context = format!("operation {after}");
        match taken.lock().unwrap().take() {
            Some(Ok(new)) => {
                assert!(state_of(&new) == kept, "{context}");
                check_taken_over(stage, new, &context);
            }
            Some(Err(refused)) => {
                tended.unwrap();
                assert_eq!(refused.kind(), ErrorKind::Unsupported, "{context}: {refused}");
                refusals += 1;
                let a = stage.old.open_partition("a").unwrap();
                a.put("after", "1").unwrap();
                let kept = state_of(&stage.old);
                let new = take_over(&stage.plain).unwrap();
                assert!(state_of(&new) == kept, "{context}");
                check_taken_over(stage, new, &context);
            }
            None => {
                assert!(refusals > 0 && after > 1, "{refusals} of {after}");
                return;
            }
        }
    }
}

/// The process dies at that operation, and its files are those of an epoch without a cursor, or of
/// one with it. A failure is reported, and the next attempt is another one.
#[test]
fn the_attempt_fails_or_dies_at_each_of_its_operations() {
    for dies in [true, false] {
        for after in 0.. {
            let (stage, hand) = without_cursor();
            stage.fault.heal();
            let kept = state_of(&stage.old);
            let at = FaultAt::Op(stage.fault.op_count() + after);
            let before = stage.fault.fault_count();
            let rule = match dies {
                true => FaultRule::sticky(at, FaultAction::Eio),
                false => FaultRule::once(at, FaultAction::Eio),
            };
            stage.fault.add_rule(rule);
            let tended = tend(&stage);
            let context = format!("operation {after}, dies {dies}");
            if stage.fault.fault_count() == before {
                tended.unwrap();
                assert!(after > 1, "{context}");
                break;
            }
            if dies {
                drop(stage.old);
                let new = open(&stage.plain).unwrap();
                assert!(state_of(&new) == kept, "{context}");
                assert!(new.health().is_healthy(), "{context}: {}", new.health());
                continue;
            }
            hand.add_seconds(60);
            tend(&stage).unwrap();
            assert_eq!(stage.old.health().cursor_failure, None, "{context}");
            let new = take_over(&stage.plain).unwrap();
            assert!(state_of(&new) == kept, "{context}");
            check_taken_over(stage, new, &context);
        }
    }
}
