//! Promotions that do not succeed leave the old primary its right to write: on a full disk, and
//! with a claimant that dies.

use lsm_core::fs::OpKind;

use super::claimants::die_while_taking_over;
use super::*;

/// Opens the committed state while the writer has the database open.
fn open_next_to(fs: &Arc<dyn Fs>) -> Result<Db> {
    let builder = Db::builder(DIR).fs(fs.clone()).options(options()).beside_writer(true);
    builder.background(BackgroundMode::Stepped).open()
}

/// The old primary used to be fenced before the fork found no space, and no process could write any
/// more.
#[test]
fn a_promotion_without_space_leaves_the_old_primary_alone() {
    let mut refused = 0;
    for step in 0_u64.. {
        // In small steps first, where the claim fits and the fork does not, and then in larger
        // ones.
        let free = if step < 24 { step << 9 } else { (step - 22) << 14 };
        let stage = Stage::new();
        let mut rng = Rng::from_env_or(7);
        for number in 0..DEEDS {
            random_write(&stage.old, &mut rng, number).unwrap();
        }
        let a = stage.old.open_partition("a").unwrap();
        a.put("k", "1").unwrap();
        let follower = secondary(&stage.plain);
        let used: u64 = stage.plain.list(DIR.as_ref(), "").unwrap().iter().map(|it| it.len).sum();
        stage.mem.set_capacity(Some(used + free));
        let taken = take_over(&stage.plain);
        stage.mem.set_capacity(None);
        let context = format!("{free} bytes are free");
        match taken {
            Ok(new) => {
                assert!(refused > 3, "{refused}");
                check_taken_over(stage, new, &context);
                return;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{context}: {error}");
                refused += 1;
                a.put("k", "2").unwrap();
                stage.old.flush().unwrap();
                let followed = follower.partition("a").unwrap();
                let seen = followed.at(Level::Strong).unwrap().get("k").unwrap();
                assert_eq!(seen.as_deref(), Some(&b"2"[..]), "{context}");
                let kept = state_of(&stage.old);
                assert!(state_of(&open_next_to(&stage.plain).unwrap()) == kept, "{context}");
                let orphans = stage.plain.list_names(DIR.as_ref(), "fork-").unwrap();
                assert_eq!(orphans, [""; 0], "{context}");
                let new = take_over(&stage.plain).unwrap();
                assert!(state_of(&new) == kept, "{context}");
            }
        }
    }
}

/// A claim whose claimant died used to keep read-only opens out, and secondaries at an old state,
/// although the old primary continued and closed.
#[test]
fn readers_after_a_dead_claimant_see_the_current_state() {
    for died_at in 0.. {
        let stage = Stage::new();
        let mut rng = Rng::from_env_or(11);
        for number in 0..DEEDS {
            random_write(&stage.old, &mut rng, number).unwrap();
        }
        let follower = secondary(&stage.plain);
        follower.sync(Target::Latest).unwrap();
        let context = format!("operation {died_at} of the claimant");
        let has_died = die_while_taking_over(&stage.mem, died_at);
        for number in 0..6 {
            drop(random_write(&stage.old, &mut rng, 100 + number));
        }
        let kept = state_of(&stage.old);
        let reader = open_next_to(&stage.plain).unwrap();
        assert!(state_of(&reader) == kept, "{context}: next to the old primary");
        let report = follower.verify(VerifyOptions::default()).unwrap();
        assert!(report.damage().is_empty(), "{context}: {:?}", report.damage());
        drop(reader);
        let Stage { old, plain, .. } = stage;
        drop(old.close());
        assert!(state_of(&open_next_to(&plain).unwrap()) == kept, "{context}: after its close");
        let seen = PARTITIONS.map(|name| {
            let partition = follower.partition(name).unwrap();
            partition.sync(Target::Latest).unwrap();
            content(&partition.at(Level::Strong).unwrap())
        });
        assert!(seen == kept, "{context}: a secondary after its close");
        if !has_died {
            return;
        }
    }
}

/// The next open deletes the space that a dead claimant had reserved.
#[test]
fn room_that_a_dead_claimant_has_taken_goes_with_the_next_open() {
    let stage = Stage::new();
    stage.old.open_partition("a").unwrap().put("k", "1").unwrap();
    let dying = FaultFs::over_mem(stage.mem.clone());
    let is_room = FaultAt::Nth { kind: OpKind::Delete, suffix: ".tmp".to_owned(), nth: 1 };
    dying.add_rule(FaultRule::sticky(is_room, FaultAction::Eio));
    let new = take_over(&(Arc::new(dying) as Arc<dyn Fs>)).unwrap();
    assert!(
        forks(&stage.plain).iter().any(|name| name.ends_with(".tmp")),
        "{:?}",
        forks(&stage.plain)
    );
    drop(new);
    drop(open(&stage.plain).unwrap());
    assert!(
        forks(&stage.plain).iter().all(|name| !name.ends_with(".tmp")),
        "{:?}",
        forks(&stage.plain)
    );
}

/// The names that begin like the name of a fork.
fn forks(fs: &Arc<dyn Fs>) -> Vec<String> {
    fs.list_names(DIR.as_ref(), "fork-").unwrap()
}
