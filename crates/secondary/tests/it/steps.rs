//! A secondary that looks before every single storage operation of its primary, and the state after
//! a power cut at each of them.

use std::sync::Mutex;

use lsm_core::ErrorKind;
use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule};
use lsm_core::hooks::Hooks;
use lsm_core::options::{Durability, PartitionOptions, PrefixExtractor};
use secondary::{Level, Target};
use testkit::Rng;

use super::*;

const PARTITIONS: [&str; 2] = ["a", "b"];

/// Both partitions.
type State = [Content; 2];

/// The states that a reader may see: the last acknowledged one, and one in flight.
#[derive(Default)]
struct Oracle {
    acknowledged: State,
    under_way: Option<State>,
    /// The state that a secondary saw last. It never goes back, and never is a refused one.
    seen: State,
    /// The last state that was acknowledged as durable, by the number of states before it.
    durable_at: usize,
    /// States that were acknowledged.
    acknowledged_count: usize,
    looks: usize,
    news: usize,
}

impl Oracle {
    fn check(&mut self, found: &State) {
        let is_known = *found == self.acknowledged || self.under_way.as_ref() == Some(found);
        let under_way = self.under_way.as_ref().map(brief);
        assert!(is_known, "{}\nof {}\nor {under_way:?}", brief(found), brief(&self.acknowledged));
        if self.under_way.as_ref() == Some(&self.seen) && self.seen != self.acknowledged {
            assert!(*found != self.acknowledged, "it went back to {}", brief(found));
        }
        self.looks += 1;
        if self.seen != *found {
            self.news += 1;
            self.seen.clone_from(found);
        }
    }
}

/// The keys with the numbers of the writes that wrote them.
fn brief(state: &State) -> String {
    let of = |content: &Content| -> Vec<String> {
        let entry = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            let text = String::from_utf8_lossy(value).into_owned();
            format!("{}={}", key.escape_ascii(), text.split(' ').next().unwrap_or_default())
        };
        content.iter().map(entry).collect()
    };
    format!("{:?}", state.each_ref().map(of))
}

fn look(follower: &Secondary) -> State {
    follower.sync(Target::Latest).unwrap();
    let cut = follower.cut();
    PARTITIONS.map(|name| match follower.partition(name) {
        Ok(partition) => content(&cut.partition(&partition).expect("the sync has seen it")),
        // A crash may have lost it. Nothing else is a reason to find nothing.
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PartitionNotFound, "{error}");
            Content::new()
        }
    })
}

fn make_partitions(db: &Db) {
    for name in PARTITIONS {
        let hooks = Hooks::new().merge_operator(append());
        let extractor = Some(PrefixExtractor::Fixed(1));
        let options = PartitionOptions::new().prefix_extractor(extractor);
        db.partition_with(name, options, Some(hooks)).unwrap();
    }
}

/// Makes a random write, and records it in the oracle.
fn random_write(db: &Db, fault: &FaultFs, rng: &mut Rng, number: u64, oracle: &Mutex<Oracle>) {
    let [a, b] = PARTITIONS.map(|name| db.partition(name).unwrap());
    match rng.below(10) {
        0 => drop(a.flush()),
        1 => drop(b.compact(..)),
        2 => drop(db.wait_idle()),
        3 => drop(db.step()),
        _ => {
            let key = format!("{:02}", rng.below(30)).into_bytes();
            let value = format!("{number} {}", "x".repeat(rng.index(300))).into_bytes();
            let mut batch = db.batch();
            let mut next = oracle.lock().unwrap().acknowledged.clone();
            for (partition, content) in [&a, &b].into_iter().zip(&mut next) {
                if rng.chance(1, 12) {
                    batch.add_clear(partition);
                    content.clear();
                }
                if rng.chance(1, 8) {
                    let last = format!("{:02}", rng.below(33)).into_bytes();
                    batch.add_delete_range(partition, &key[..]..&last[..]);
                    content.retain(|other, _| *other < key || *other >= last);
                }
                if rng.chance(1, 5) {
                    batch.add_delete(partition, &key);
                    content.remove(&key);
                } else if rng.chance(1, 3) {
                    batch.add_merge(partition, &key, &value);
                    content.entry(key.clone()).or_default().extend_from_slice(&value);
                } else {
                    batch.add_put(partition, &key, &value);
                    content.insert(key.clone(), value.clone());
                }
            }
            oracle.lock().unwrap().under_way = Some(next.clone());
            let durability = if rng.chance(1, 3) { Durability::Sync } else { Durability::Os };
            let committed = batch.commit(durability);
            fault.heal();
            let found = [&a, &b].map(content_of);
            let mut oracle = oracle.lock().unwrap();
            oracle.under_way = None;
            // A batch is visible although its sync failed: then the call returns an error, and the
            // batch stays. Any other batch that the call refuses is not visible, not even in one
            // partition.
            let may_stay = durability == Durability::Sync && found == next;
            if committed.is_ok() || may_stay {
                assert!(found == next, "write {number}: {} for {}", brief(&found), brief(&next));
                oracle.acknowledged = next;
                oracle.acknowledged_count += 1;
                if durability == Durability::Sync && committed.is_ok() {
                    oracle.durable_at = oracle.acknowledged_count;
                }
            } else {
                let before = &oracle.acknowledged;
                assert!(found == *before, "write {number} was refused: {}", brief(&found));
                let is_unseen = oracle.seen != next || next == *before;
                assert!(is_unseen, "write {number} was refused, and seen: {}", brief(&next));
            }
        }
    }
}

/// Runs a primary; `before` sees its every storage operation first.
fn run(seed: u64, writes: u64, faults: bool) -> (usize, usize) {
    let mut rng = Rng::from_env_or(seed);
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let watched: Arc<dyn Fs> = Arc::new(fault.clone());
    let plain: Arc<dyn Fs> = Arc::new(mem);
    let db = primary(&watched);
    make_partitions(&db);
    let follower = secondary(&plain);
    let oracle = Arc::new(Mutex::new(Oracle::default()));
    let seen = oracle.clone();
    fault.set_observer(Arc::new(move |_| {
        let found = look(&follower);
        seen.lock().unwrap().check(&found);
        let strong = PARTITIONS.map(|name| {
            let partition = follower.partition(name).unwrap();
            content(&partition.at(Level::Strong).unwrap())
        });
        seen.lock().unwrap().check(&strong);
    }));
    for number in 0..writes {
        if faults && rng.chance(1, 4) {
            let at = FaultAt::Op(fault.op_count() + rng.below(12));
            let action = match rng.below(5) {
                0 => FaultAction::ShortWrite(rng.below(400)),
                // The whole batch is in the file, and refused.
                1 => FaultAction::ShortWrite(u64::MAX),
                2 => FaultAction::Enospc,
                _ => FaultAction::Eio,
            };
            fault.add_rule(FaultRule::once(at, action));
        }
        random_write(&db, &fault, &mut rng, number, &oracle);
    }
    fault.clear_observer();
    let oracle = oracle.lock().unwrap();
    (oracle.looks, oracle.news)
}

#[test]
fn a_look_before_every_operation_of_the_primary_finds_whole_commits() {
    let (looks, news) = run(21, 250, false);
    assert!(looks > 500 && news > 50, "{looks} looks, {news} news");
}

#[test]
fn operations_that_fail_show_nothing_that_was_refused() {
    for seed in 0..4 {
        let (looks, news) = run(300 + seed, 120, true);
        assert!(looks > 100 && news > 20, "{looks} looks, {news} news");
    }
}

/// After a power cut a secondary has no cursor to trust, and the log may contain refused writes or
/// writes that were never acknowledged. It sees a state that was acknowledged. The next primary has
/// that state or a later one, and none before the last one acknowledged as durable.
#[test]
fn after_a_power_cut_a_secondary_sees_what_the_next_primary_has() {
    let mut rng = Rng::from_env_or(5);
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let watched: Arc<dyn Fs> = Arc::new(fault.clone());
    let db = primary(&watched);
    make_partitions(&db);
    let oracle = Mutex::new(Oracle::default());
    let mut states: Vec<State> = vec![State::default()];
    for number in 0..120 {
        random_write(&db, &fault, &mut rng, number, &oracle);
        let acknowledged = oracle.lock().unwrap().acknowledged.clone();
        // Including operations that change nothing, so that the numbers of the oracle are positions
        // here.
        if states.len() <= oracle.lock().unwrap().acknowledged_count {
            states.push(acknowledged);
        }
        let outcome = *rng.pick(&CrashOutcome::ALL);
        let left = mem.crash_clone(outcome, &mut || rng.next_u64());
        let left: Arc<dyn Fs> = Arc::new(left);
        let follower = secondary(&left);
        let found = look(&follower);
        let place = states.iter().rposition(|state| *state == found);
        let place =
            place.unwrap_or_else(|| panic!("write {number}, {outcome:?}: {}", brief(&found)));
        let next = primary(&left);
        let after = look(&follower);
        let recovered = PARTITIONS.map(|name| content_of(&next.partition(name).unwrap()));
        assert!(after == recovered, "write {number}, {outcome:?}: {}", brief(&after));
        let later = states.iter().rposition(|state| *state == recovered);
        let least = place.max(oracle.lock().unwrap().durable_at);
        assert!(later.is_some_and(|later| later >= least), "write {number}, {outcome:?}");
    }
    assert!(states.len() > 40);
}
