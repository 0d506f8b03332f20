//! Runs with a fault of the storage: what was written stays, and the store works on when the fault is mended.

use std::sync::Mutex;

use lsm_core::fs::{FaultAction, FaultAt, FaultRule};
use testkit::Rng;
use testkit::model::{State, Step};

use super::bucket::Failure;
use super::parts::{alive_model, put_into_fifo, with_removed};
use super::steps::Deed;
use super::table::{Feature, Kind, Table};
use super::world::{Outcome, Record, Trouble, World, check, check_state, observe};
use super::{Place, act, explained};
use crate::sim::oracle::{Seen, check_logged};

/// A fault that lasts is mended after so many steps.
const STEPS_UNTIL_MENDED: u32 = 3;

/// A fault, and the operation at which it comes.
#[derive(Clone, Copy, Debug)]
pub struct Strike {
    pub kind: Kind,
    pub place: Place,
    action: FaultAction,
    /// Chooses the bit that changes, or the calls of the bucket.
    number: u64,
}

impl Strike {
    /// A fault somewhere in the last two thirds of a script.
    pub fn draw(kind: Kind, places: &[Place], rng: &mut Rng) -> Strike {
        let first = places.len() / 3;
        loop {
            let place = places[first + rng.index(places.len() - first)];
            let action = match kind {
                Kind::NoSpace => FaultAction::Enospc,
                Kind::ShortWrite if rng.chance(1, 2) => FaultAction::ShortWrite(place.len / 2),
                Kind::ShortWrite => FaultAction::ShortWriteNoSpace(place.len * 3 / 4),
                // Values that are gone at once are damage of their keys.
                Kind::LostSync if place.is_of_chunk => FaultAction::SyncLost,
                Kind::LostSync => *rng.pick(&[FaultAction::SyncLost, FaultAction::SyncReverted]),
                Kind::NoHandles => FaultAction::Emfile,
                _ => FaultAction::Eio,
            };
            if action.can_happen_to(place.kind) {
                return Strike { kind, place, action, number: rng.next_u64() };
            }
        }
    }

    /// The calls of the bucket that fail.
    fn failure(&self) -> Failure {
        let mut rng = Rng::new(self.number);
        let calls = rng.range(1..5);
        Failure { after: rng.below(6), calls, takes_effect: rng.chance(1, 2), failed: 0 }
    }

    fn is_lasting(&self) -> bool {
        matches!(self.kind, Kind::Lasting | Kind::NoSpace | Kind::NoHandles)
    }
}

/// Runs these steps of a script with a fault.
pub fn run_fault(
    seed: u64,
    steps: &[u64],
    strike: &Strike,
    table: Option<&Mutex<Table>>,
) -> Result<(), String> {
    let mut world = World::new(seed);
    explained(world.begin())?;
    let mut since = None;
    for step in steps {
        if *step == strike.place.step {
            if strike.kind == Kind::FlippedBit {
                return run_flip(world, seed, steps, strike, table);
            }
            if strike.kind == Kind::Bucket {
                world.around.bucket.iter().for_each(|bucket| bucket.fail(strike.failure()));
            } else {
                let at = FaultAt::Op(world.fs.op_count() + strike.place.offset);
                let rule = FaultRule { at, action: strike.action, sticky: strike.is_lasting() };
                world.fs.add_rule(rule);
            }
        }
        let (deed, outcome) = act(&mut world, seed, *step);
        let is_struck = world.is_struck();
        if is_struck && since.is_none() {
            since = Some(0);
            table.iter().for_each(|it| it.lock().unwrap().note(strike.kind, world.record().used));
        }
        let outcome = match outcome {
            Err(Trouble::Store(_)) if is_struck => world.resolve(deed),
            Ok(()) if since == Some(STEPS_UNTIL_MENDED) => {
                world.heal();
                world.check_now()
            }
            outcome => outcome,
        };
        since = since.map(|steps| steps + 1);
        explained(outcome).map_err(|what| format!("step {step}, {deed:?}: {what}"))?;
    }
    explained(world.finish()).map_err(|what| format!("at the end: {what}"))
}

impl World {
    /// Returns `true` if the fault has come.
    pub fn is_struck(&self) -> bool {
        self.fs.fault_count() > 0 || self.around.bucket.as_ref().is_some_and(|it| it.failed() > 0)
    }

    fn heal(&self) {
        self.fs.heal();
        if let Some(bucket) = &self.around.bucket {
            bucket.fail(Failure { failed: bucket.failed(), ..Failure::default() });
        }
    }

    /// Mends the fault after a step that failed, and takes the step into the record if it took effect.
    fn resolve(&mut self, deed: Deed) -> Outcome {
        // What the fault meets while it lasts.
        let _ = self.db.as_ref().map(|db| (db.flush(), db.step(), db.step()));
        self.heal();
        self.feed.has_hole = true;
        if deed == Deed::Use(Feature::Changes) {
            self.feed.forget();
        }
        if deed == Deed::Use(Feature::Promotion) {
            // The old primary may be refused, and the new one may be there.
            self.abandon();
        }
        if self.db.is_none() {
            self.abandon();
            self.open()?;
            return self.take_in();
        }
        self.settle()?;
        let observed = observe(&self.db())?;
        let Some(step) = self.record().in_flight.take() else { return self.check_now() };
        if check_state("the store", &observed, &self.written_state(), self.now()).is_ok() {
            let mut record = self.record();
            match step {
                Step::Create(name) | Step::Drop(name) => _ = record.doubtful.insert(name),
                commit @ Step::Commit(_) => record.refused = record.refused.take().or(Some(commit)),
            }
            return Ok(());
        }
        let mut record = self.record();
        record.in_flight = Some(step);
        record.done();
        drop(record);
        check_state(
            "neither without the failed step nor with it: the store",
            &observed,
            &self.written_state(),
            self.now(),
        )
    }

    /// Waits until the store has done what is due. Some of it is tried again only after a time.
    fn settle(&self) -> Outcome {
        for _ in 0..20 {
            match self.db().wait_idle() {
                Ok(()) => return Ok(()),
                Err(_) => self.around.clock.pass(1),
            }
        }
        Ok(self.db().wait_idle()?)
    }

    /// Takes the state after an open as the expected one, if it is allowed.
    fn take_in(&mut self) -> Outcome {
        let observed = observe(&self.db())?;
        let now = self.now();
        let mut record = self.record();
        let state = check_recovered(&record, &record.position(), &observed, now);
        let state =
            state.map_err(|what| Trouble::Wrong(format!("opened after a failure: {what}")))?;
        *record = Record::of(&state, record.used);
        Ok(())
    }

    /// The fault is over: nothing is lost, and the store is sound.
    fn finish(&mut self) -> Outcome {
        self.heal();
        self.settle()?;
        self.check_now()?;
        self.check_held()?;
        let db = self.db();
        db.partition("default")?.put_with("last", "write", siltstone::Durability::Sync)?;
        db.partition("default")?.delete("last")?;
        let stats = db.stats();
        let reported = stats.background_error.or(stats.read_only_because);
        check(reported.is_none(), || format!("still reported: {reported:?}"))?;
        drop(db);
        let is_doubtful = !self.record().doubtful.is_empty();
        self.close()?;
        self.open()?;
        if is_doubtful {
            self.take_in()?;
        }
        self.check_now()?;
        let report = self.db().verify(Default::default())?;
        check(report.is_sound(), || format!("a sound store is called damaged: {report}"))?;
        self.close()
    }
}

/// Checks a state after an open, and returns it with the entries of the FIFO that may be gone.
pub fn check_recovered(
    record: &Record,
    position: &crate::sim::RecordPosition,
    observed: &State,
    now: u64,
) -> Result<State, String> {
    let model = alive_model(&record.model, now);
    let all =
        State::from([(super::parts::FIFO.to_owned(), put_into_fifo(&model.after(position.steps)))]);
    let filled = with_removed(observed, &all);
    let seen = Seen { logged: filled.clone(), ..Seen::default() };
    let plain = Seen { logged: observed.clone(), ..Seen::default() };
    check_logged(&model, position, &plain)
        .map(|()| observed.clone())
        .or_else(|_| check_logged(&model, position, &seen).map(|()| filled))
}

/// A bit of a file changes. Readers get what was written, or an error.
fn run_flip(
    mut world: World,
    seed: u64,
    steps: &[u64],
    strike: &Strike,
    table: Option<&Mutex<Table>>,
) -> Result<(), String> {
    let dir = world.dir.clone();
    let mut files: Vec<_> =
        world.mem.paths().into_iter().filter(|it| it.starts_with(&dir)).collect();
    files.retain(|path| !world.mem.read_raw(path).unwrap().is_empty());
    let mut rng = Rng::new(strike.number);
    let path = rng.pick(&files).clone();
    let len = world.mem.read_raw(&path).unwrap().len();
    world.mem.corrupt(&path, rng.below(len as u64), 1 << rng.below(8)).unwrap();
    table.iter().for_each(|it| it.lock().unwrap().note(strike.kind, world.record().used));
    for step in steps.iter().filter(|step| **step >= strike.place.step) {
        match act(&mut world, seed, *step) {
            (_, Ok(())) => {}
            (_, Err(Trouble::Store(_))) => break,
            (deed, Err(Trouble::Wrong(what))) => {
                return Err(format!("{}, step {step}, {deed:?}: {what}", path.display()));
            }
        }
    }
    check_flipped(&mut world).map_err(|what| format!("{}: {what}", path.display()))
}

fn check_flipped(world: &mut World) -> Result<(), String> {
    let position = world.record().position();
    if let Some(db) = &world.db {
        read_around(world, db)?;
    }
    world.abandon();
    // A bit of the log may cost what came after it, as a lost sector does.
    let position = crate::sim::RecordPosition { durable: 0, ..position };
    if world.open().is_ok()
        && let Ok(observed) = observe(&world.db())
    {
        check_recovered(&world.record(), &position, &observed, world.now())
            .map_err(|what| format!("opened after a bit changed: {what}"))?;
    }
    world.abandon();
    Ok(())
}

/// Reads each key: the value that it has, or has after the step in flight, or an error.
fn read_around(world: &World, db: &siltstone::Db) -> Result<(), String> {
    let record = world.record();
    let now = world.now();
    let model = alive_model(&record.model, now);
    let mut with = record.model.clone();
    record.in_flight.iter().for_each(|step| with.step(step.clone()));
    let with = alive_model(&with, now);
    drop(record);
    for (name, contents) in model.state(model.seq()) {
        let Ok(partition) = db.open_partition(&name) else { continue };
        for (key, value) in contents {
            let Ok(got) = partition.get(&key) else { continue };
            let other = with.get(&name, &key, with.seq());
            let is_removed = name == super::parts::FIFO && got.is_none();
            if got.as_deref() != Some(&*value)
                && got.as_deref() != other.map(|it| &**it)
                && !is_removed
            {
                return Err(format!("{name}/{} has another value", key.escape_ascii()));
            }
        }
    }
    Ok(())
}
