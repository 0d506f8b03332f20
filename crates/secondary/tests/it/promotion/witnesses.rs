//! Secondaries during a promotion that is stopped, killed or slow: whatever they showed before, all
//! of them show the one current state, at every level.
//!
//! Nothing changes while they look. So each look has one right result: the state that the readers
//! of the old primary see, once it has continued. Every other result, and every error, is a
//! failure.

use std::panic::resume_unwind;
use std::time::Duration;

use secondary::SecondaryPartition;

use super::claimants::die_while_taking_over;
use super::*;

/// Maximum number of operations of the primary between two stops.
const STRIDE: u64 = 20;

/// The outcome of a look, or its panic.
type Looked<T> = std::thread::Result<T>;

/// Secondaries that have read different states before.
struct Witnesses {
    /// Opened before the first write, and never used since.
    early: Secondary,
    /// Has read one partition for some time, and has then looked only for new partitions.
    partial: Secondary,
    /// Has caught up again and again.
    steady: Secondary,
    /// Is synced only to what is durable.
    durable: Secondary,
    /// Every state that the old primary has had.
    states: Vec<State>,
}

impl Witnesses {
    fn new(stage: &Stage) -> Witnesses {
        let [early, partial, steady, durable] = [0; 4].map(|_| secondary(&stage.plain));
        let states = vec![State::default(), state_of(&stage.old)];
        Witnesses { early, partial, steady, durable, states }
    }

    /// Looks with each of them, after a write that left the old primary at `state`.
    fn after_write(&mut self, state: State, number: u64) {
        self.states.push(state);
        self.steady.sync(Target::Latest).unwrap();
        if number < DEEDS / 2 {
            self.partial.partition("a").unwrap().sync(Target::Latest).unwrap();
        }
        let missing = self.partial.partition("there is none").err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::PartitionNotFound);
    }

    /// The one state that all of them show.
    fn look(&self, fs: &Arc<dyn Fs>, context: &str) -> State {
        let late = secondary(fs);
        let seen = [
            ("late", shown(&late, true, context)),
            ("early", shown(&self.early, false, context)),
            ("partial", shown(&self.partial, true, context)),
            ("steady", shown(&self.steady, false, context)),
        ];
        for (name, state) in &seen {
            assert!(*state == seen[0].1, "{context}: {name} sees something else than late");
        }
        self.durable.sync(Target::Durable).unwrap();
        let cut = self.durable.cut();
        let durable = PARTITIONS.map(|name| {
            let partition = self.durable.partition(name).unwrap();
            content(&cut.partition(&partition).unwrap())
        });
        let is_whole = self.states.contains(&durable) || durable == seen[0].1;
        assert!(is_whole, "{context}: a torn cut of what is durable");
        seen.into_iter().next().unwrap().1
    }
}

/// The one state that a secondary shows at every level.
fn shown(follower: &Secondary, begins_with_cut: bool, context: &str) -> State {
    let partitions = PARTITIONS.map(|name| follower.partition(name).unwrap());
    let first = (!begins_with_cut).then(|| at_once(&partitions, Level::Strong, context));
    let group = follower.sync_group(&partitions.each_ref(), Target::Latest).unwrap();
    let grouped = partitions.each_ref().map(|it| content(&group.partition(it).unwrap()));
    let token = follower.sync(Target::Latest).unwrap();
    let cut = follower.cut();
    let all = partitions.each_ref().map(|it| content(&cut.partition(it).unwrap()));
    let near = Level::Bounded { operations: Some(0), age: None };
    for (name, state) in [
        ("group", grouped),
        ("strong", at_once(&partitions, Level::Strong, context)),
        ("session", at_once(&partitions, Level::Session(token), context)),
        ("bounded", at_once(&partitions, near, context)),
        ("prefix", at_once(&partitions, Level::Prefix, context)),
        ("eventual", at_once(&partitions, Level::Eventual, context)),
        ("strong at first", first.unwrap_or_else(|| all.clone())),
    ] {
        assert!(state == all, "{context}: {name} is another state than the cut of all");
    }
    all
}

/// The partitions at a level, without a wait.
fn at_once(partitions: &[SecondaryPartition; 2], level: Level, context: &str) -> State {
    partitions.each_ref().map(|partition| {
        let reading = partition.read(&ReadOptions::new(level).wait(Duration::ZERO));
        content(&reading.unwrap_or_else(|error| panic!("{context}, {level:?}: {error}")))
    })
}

/// Keeps a panic for the end of the test: in the middle of an operation it might end the process.
fn caught<T>(look: impl FnOnce() -> T) -> Looked<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(look))
}

/// The looks of an observer at a promotion that ended at some operation.
struct Seen {
    before: State,
    after: State,
    claimant_has_died: bool,
}

/// Stops the old primary before its operation `stopped_at`, lets a claimant die at its operation
/// `died_at`, and lets the old primary continue and write; secondaries look in between. Returns
/// `None` if there is no such operation.
fn stop_and_look(seed: u64, stopped_at: u64, died_at: u64) -> Option<bool> {
    let stage = Stage::new();
    let mut rng = Rng::from_env_or(seed);
    let witnesses = Arc::new(parking_lot::Mutex::new(Witnesses::new(&stage)));
    let context = format!("seed {seed}, stopped at {stopped_at}, a claimant died at {died_at}");
    let outcome: Arc<Mutex<Option<Looked<Seen>>>> = Arc::default();
    {
        let slot = outcome.clone();
        let witnesses = witnesses.clone();
        let plain = stage.plain.clone();
        let mem = stage.mem.clone();
        let context = context.clone();
        stage.before_op(stopped_at, move || {
            *slot.lock().unwrap() = Some(caught(|| {
                let witnesses = witnesses.lock();
                let before = shown(&witnesses.steady, true, &context);
                let claimant_has_died = die_while_taking_over(&mem, died_at);
                let after = witnesses.look(&plain, &context);
                Seen { before, after, claimant_has_died }
            }));
        });
    }
    let mut fenced = false;
    let mut at_stop = None;
    for number in 0..DEEDS + 6 {
        let was_stopped = outcome.lock().unwrap().is_some();
        let done = random_write(&stage.old, &mut rng, number);
        fenced |= done.is_err();
        if let Err(error) = done {
            assert_eq!(error.kind(), ErrorKind::Fenced, "{context}: {error}");
        }
        // Before the lock: a read is an operation too, and the old primary may be stopped before
        // it.
        let state = state_of(&stage.old);
        let is_stopped = outcome.lock().unwrap().is_some();
        let mut witnesses = witnesses.lock();
        if is_stopped && !was_stopped {
            at_stop = Some((witnesses.states.last().unwrap().clone(), state.clone()));
        }
        witnesses.after_write(state, number);
        if is_stopped && number >= DEEDS {
            break;
        }
    }
    stage.fault.clear_observer();
    let seen = outcome.lock().unwrap().take()?.unwrap_or_else(|panic| resume_unwind(panic));
    let (acknowledged, write_done) = at_stop.unwrap();
    let known = [&acknowledged, &write_done];
    assert!(known.contains(&&seen.before), "{context}: a state that never was");
    assert!(known.contains(&&seen.after), "{context}: a state that never was, after the claimant");
    let went_back = seen.before != seen.after && seen.after != write_done;
    assert!(!went_back, "{context}: a partition went back");
    let kept = state_of(&stage.old);
    // It closes, unless it is fenced.
    let Stage { old, plain, .. } = stage;
    let last_look = witnesses.lock().look(&plain, &context);
    assert!(last_look == kept, "{context}: at the end");
    let is_fenced = old.close().is_err();
    assert!(is_fenced || !fenced, "{context}: it was fenced, and closes");
    if is_fenced {
        assert!(seen.after == kept, "{context}: at the fence something else was seen");
    }
    let witnesses = witnesses.lock();
    assert!(witnesses.look(&plain, &context) == kept, "{context}: after its end");
    let new = open(&plain).unwrap();
    assert!(state_of(&new) == kept, "{context}: the next primary");
    assert!(witnesses.look(&plain, &context) == kept, "{context}: next to the next primary");
    Some(seen.claimant_has_died)
}

#[test]
fn secondaries_show_the_current_state_wherever_primary_and_claimant_are_stopped() {
    let mut looks = 0;
    for seed in 40..43 {
        let mut rng = Rng::from_env_or(seed);
        let mut stopped_at = rng.below(STRIDE);
        while stop_and_look(seed, stopped_at, rng.below(45)).is_some() {
            stopped_at += 1 + rng.below(STRIDE);
            looks += 1;
        }
    }
    assert!(looks > 60, "{looks} looks");
}

/// Stops the claimant at every operation, while the old primary is between two commits.
#[test]
fn secondaries_show_the_current_state_wherever_a_claimant_dies() {
    let mut died_at = 0;
    while stop_and_look(50, 30, died_at).unwrap() {
        died_at += 1;
    }
    assert!(died_at > 20, "{died_at} operations");
}

/// A claimant that is stopped before each of its operations.
#[test]
fn secondaries_show_the_current_state_before_each_operation_of_a_promotion() {
    let stage = Stage::new();
    let mut rng = Rng::from_env_or(60);
    let mut witnesses = Witnesses::new(&stage);
    for number in 0..DEEDS {
        random_write(&stage.old, &mut rng, number).unwrap();
        witnesses.after_write(state_of(&stage.old), number);
    }
    let kept = state_of(&stage.old);
    let slow = FaultFs::over_mem(stage.mem.clone());
    let looks = Arc::new(Mutex::new((0, None)));
    {
        let plain = stage.plain.clone();
        let looks = looks.clone();
        let kept = kept.clone();
        slow.set_observer(Arc::new(move |op| {
            let mut looks = looks.lock().unwrap();
            looks.0 += 1;
            let context = format!("before {op:?}, operation {}", looks.0);
            let looked = caught(|| assert!(witnesses.look(&plain, &context) == kept, "{context}"));
            let first = looks.1.take();
            looks.1 = first.or(looked.err());
        }));
    }
    let new = take_over(&(Arc::new(slow.clone()) as Arc<dyn Fs>)).unwrap();
    slow.clear_observer();
    let (count, panic) = std::mem::take(&mut *looks.lock().unwrap());
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
    assert!(count > 20, "{count} looks");
    assert!(state_of(&new) == kept);
}

/// A claimant fences a primary that a secondary knows only from before its first write.
#[test]
fn a_strong_read_of_a_fenced_primary_sees_what_it_acknowledged() {
    for died_at in 0.. {
        let stage = Stage::new();
        let follower = secondary(&stage.plain);
        let followed = follower.partition("a").unwrap();
        let a = stage.old.open_partition("a").unwrap();
        a.put("k", "1").unwrap();
        stage.old.batch().put(&a, "k", "2").commit(Durability::Sync).unwrap();
        let has_died = die_while_taking_over(&stage.mem, died_at);
        let reading = followed.at(Level::Strong).unwrap();
        assert_eq!(reading.get("k").unwrap().as_deref(), Some(&b"2"[..]), "{died_at}");
        if !has_died {
            return;
        }
    }
}
