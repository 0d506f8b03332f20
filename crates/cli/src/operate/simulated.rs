//! The control loop in a simulated world: readers start, answer late or not at all, die, hang and are promoted, while the
//! load rises and falls. Time is a number.

mod endings;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use testkit::Rng;

use super::control::{Addresses, Control, Env, Instance, Launcher, Times};
use super::decide::{Decider, Targets};
use super::figures::Figures;
use crate::output::Failure;

const TARGET: f64 = 100.0;
const MIN: usize = 1;
const MAX: usize = 6;
const COOLDOWN: Duration = Duration::from_secs(5);
const WINDOW: Duration = Duration::from_secs(60);
const QUIET: Duration = Duration::from_secs(2);
const DRAIN: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(20);
/// The longest time from a start to the first answer, unless the reader dies.
const START_MILLIS: u64 = 3000;
/// Routers read the list again after so long, at most.
const REREAD: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Fake {
    ready_at: Duration,
    /// It ends by itself before it answers.
    fails: bool,
    operations: f64,
    last_request: Duration,
    asked_to_end: Option<Duration>,
    /// It ends so long after it was asked to; `None` for never.
    ends_after: Option<Duration>,
    is_dead: bool,
    is_primary: bool,
}

/// Troubles, as chances in a thousand a round.
#[derive(Clone, Copy, Default)]
struct Trouble {
    silence: u64,
    death: u64,
    failed_start: u64,
    failed_list: u64,
    hang: u64,
}

struct World {
    rng: Rng,
    now: Duration,
    load: f64,
    trouble: Trouble,
    next: usize,
    readers: BTreeMap<String, Fake>,
    /// Lists of nodes, with the times at which they were written.
    lists: Vec<(Duration, Vec<String>)>,
    were_listed: BTreeSet<String>,
    starts: usize,
    ends: usize,
    kills: usize,
    deaths: usize,
    /// The list of nodes cannot be written.
    cannot_publish: bool,
    /// Readers cannot be asked to end.
    cannot_end: bool,
    /// Another operator has the readers.
    is_replaced: bool,
    said: Vec<String>,
}

type Shared = Rc<RefCell<World>>;

impl World {
    fn trouble(&mut self, chance: u64) -> bool {
        self.rng.chance(chance, 1000)
    }

    /// Requests until `now`: routers use a list that is up to [`REREAD`] old, and send to those that are up.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        let age = Duration::from_millis(self.rng.below(REREAD.as_millis() as u64 + 1));
        let seen = self.now.saturating_sub(age);
        let list = self.lists.iter().rev().find(|(at, _)| *at <= seen);
        let list = list.map(|(_, list)| list.clone()).unwrap_or_default();
        let up: Vec<String> = list.into_iter().filter(|it| self.is_up(it)).collect();
        let each = self.load * time.as_secs_f64() / up.len().max(1) as f64;
        for name in up {
            let now = self.now;
            let reader = self.readers.get_mut(&name).unwrap();
            reader.operations += each;
            reader.last_request = now;
        }
        for reader in self.readers.values_mut() {
            let is_over = reader.asked_to_end.zip(reader.ends_after);
            reader.is_dead |= is_over.is_some_and(|(at, after)| self.now >= at + after);
            reader.is_dead |= reader.fails && self.now >= reader.ready_at;
        }
        if self.trouble(self.trouble.death) {
            let serving: Vec<String> =
                self.readers.keys().filter(|it| self.is_up(it)).cloned().collect();
            if !serving.is_empty() {
                let name = self.rng.pick(&serving).clone();
                self.deaths += 1;
                self.readers.get_mut(&name).unwrap().is_dead = true;
            }
        }
    }

    fn is_up(&self, name: &str) -> bool {
        let reader = self.readers.get(name);
        reader.is_some_and(|it| !it.is_dead && !it.fails && self.now >= it.ready_at)
    }

    /// Readers that serve or start: those in the list, and those that were never in it and that no one has asked to end.
    fn count(&self) -> usize {
        let listed = self.listed();
        let live = self.readers.iter().filter(|(_, it)| !it.is_dead && it.asked_to_end.is_none());
        let live =
            live.filter(|(name, _)| listed.contains(name) || !self.were_listed.contains(*name));
        live.filter(|(_, it)| !it.is_primary).count()
    }

    fn listed(&self) -> Vec<String> {
        self.lists.last().map(|(_, list)| list.clone()).unwrap_or_default()
    }
}

struct Handle(Shared);

impl Launcher for Handle {
    fn start(&mut self) -> Result<String, Failure> {
        let mut world = self.0.borrow_mut();
        world.starts += 1;
        let chances = world.trouble;
        if world.trouble(chances.failed_start) {
            return Err(Failure::Io("no more processes".to_owned()));
        }
        let fails = world.trouble(chances.failed_start);
        let hangs = world.trouble(chances.hang);
        let takes = Duration::from_millis(world.rng.below(START_MILLIS));
        let ends_after = Duration::from_millis(world.rng.below(5000));
        world.next += 1;
        let name = format!("reader-{}", world.next);
        let reader = Fake {
            ready_at: world.now + takes,
            fails,
            operations: 0.0,
            last_request: Duration::ZERO,
            asked_to_end: None,
            ends_after: (!hangs).then_some(ends_after),
            is_dead: false,
            is_primary: false,
        };
        world.readers.insert(name.clone(), reader);
        Ok(name)
    }

    fn readers(&mut self) -> Result<Vec<Instance>, Failure> {
        let mut world = self.0.borrow_mut();
        let chance = world.trouble.failed_list;
        if world.trouble(chance) {
            return Err(Failure::Io("no list".to_owned()));
        }
        let instances = world.readers.iter().map(|(name, reader)| Instance {
            name: name.clone(),
            addresses: Some(Addresses { requests: name.clone(), figures: name.clone() }),
            end: reader.is_dead.then(|| "dead".to_owned()),
            trouble: None,
        });
        let instances = instances.collect();
        world.readers.retain(|_, reader| !reader.is_dead);
        Ok(instances)
    }

    fn end(&mut self, name: &str) -> Result<(), Failure> {
        let mut world = self.0.borrow_mut();
        if world.cannot_end {
            return Err(Failure::Io("no answer".to_owned()));
        }
        world.ends += 1;
        let now = world.now;
        let cannot_publish = world.cannot_publish;
        if let Some(reader) = world.readers.get_mut(name) {
            assert!(!reader.is_primary, "the primary is asked to end");
            let is_quiet = reader.operations < 1.0
                || now.saturating_sub(reader.last_request) + REREAD >= QUIET;
            let may_end = is_quiet || reader.is_dead || cannot_publish;
            assert!(may_end, "{name} is asked to end while it gets requests");
            reader.asked_to_end = Some(now);
        }
        Ok(())
    }

    fn kill(&mut self, name: &str) -> Result<(), Failure> {
        let mut world = self.0.borrow_mut();
        world.kills += 1;
        let now = world.now;
        let reader = world.readers.get_mut(name).expect("a reader that is killed is there");
        let asked = reader.asked_to_end.expect("it was asked to end before");
        assert!(
            now.saturating_sub(asked) >= END && reader.ends_after.is_none(),
            "it was killed too soon"
        );
        reader.is_dead = true;
        Ok(())
    }

    fn is_replaced(&self) -> bool {
        self.0.borrow().is_replaced
    }
}

impl Env for Handle {
    fn ask(&mut self, addresses: &[String]) -> Vec<Option<Figures>> {
        let mut world = self.0.borrow_mut();
        let chance = world.trouble.silence;
        let answers = addresses.iter().map(|name| {
            if !world.is_up(name) || world.trouble(chance) {
                return None;
            }
            let reader = &world.readers[name];
            let mut figures = Figures::of_operations(reader.operations as u64, 500);
            figures.is_primary = reader.is_primary;
            Some(figures)
        });
        answers.collect()
    }

    fn publish(&mut self, readers: &[String]) -> Result<(), Failure> {
        let mut world = self.0.borrow_mut();
        if world.cannot_publish {
            return Err(Failure::Io("the disk is full".to_owned()));
        }
        if world.listed() != readers {
            for name in readers {
                let is_known = world.listed().contains(name) || world.is_up(name);
                assert!(is_known, "{name} is in the list before it serves");
            }
            world.were_listed.extend(readers.iter().cloned());
            let now = world.now;
            world.lists.push((now, readers.to_vec()));
        }
        Ok(())
    }

    fn say(&mut self, text: &str) {
        self.0.borrow_mut().said.push(text.to_owned());
    }
}

fn control(world: &Shared) -> Control {
    let targets = Targets {
        min: MIN,
        max: MAX,
        operations: Some(TARGET),
        p99: None,
        up_cooldown: COOLDOWN,
        down_window: WINDOW,
    };
    let times = Times { start: Duration::from_secs(10), quiet: QUIET, drain: DRAIN, end: END };
    let launcher = Box::new(Handle(world.clone()));
    let env = Box::new(Handle(world.clone()));
    Control::new(launcher, env, Decider::new(targets), times)
}

fn world(rng: Rng, trouble: Trouble) -> Shared {
    Rc::new(RefCell::new(World {
        rng,
        now: Duration::ZERO,
        load: 0.0,
        trouble,
        next: 0,
        readers: BTreeMap::new(),
        lists: Vec::new(),
        were_listed: BTreeSet::new(),
        starts: 0,
        ends: 0,
        kills: 0,
        deaths: 0,
        cannot_publish: false,
        cannot_end: false,
        is_replaced: false,
        said: Vec::new(),
    }))
}

/// Rounds of one second. In each one the bounds hold, and requests have a reader if one was up before.
fn run(control: &mut Control, world: &Shared, seconds: u64) {
    for _ in 0..seconds {
        world.borrow_mut().pass(Duration::from_secs(1));
        let now = world.borrow().now;
        control.round(now);
        let count = world.borrow().count();
        assert!(count <= MAX, "{count} at {now:?}");
    }
}

/// The readers that a load needs, and those that are enough without a stop.
fn bounds(load: f64) -> std::ops::RangeInclusive<usize> {
    // Counts are whole, so a rate may be off by an operation a reader.
    let needed = (((load - MAX as f64) / TARGET).ceil() as usize).clamp(MIN, MAX);
    let enough = (((load + MAX as f64) / (0.8 * TARGET)).ceil() as usize).clamp(MIN, MAX);
    needed..=enough
}

#[test]
fn readers_follow_the_load_within_the_stated_time() {
    for seed in 0..60 {
        let mut rng = Rng::from_env_or(seed);
        let loads: Vec<f64> = (0..6).map(|_| rng.below(800) as f64).collect();
        let world = world(rng, Trouble::default());
        let mut control = control(&world);
        for load in loads {
            world.borrow_mut().load = load;
            // A start: the first reader must serve before there is load, then two looks, the cooldown and a start.
            run(&mut control, &world, 4 + 2 + COOLDOWN.as_secs() + 4);
            let listed = world.borrow().listed().len();
            assert!(listed >= *bounds(load).start(), "{load}: {listed}, seed {seed}");
            // A stop: the window, two looks, and the drain.
            run(&mut control, &world, WINDOW.as_secs() + 2 + 10);
            let listed = world.borrow().listed().len();
            assert!(bounds(load).contains(&listed), "{load}: {listed}, seed {seed}");
            assert_eq!(world.borrow().readers.len(), listed, "{load}: seed {seed}");
        }
        let world = world.borrow();
        assert_eq!((world.kills, world.deaths), (0, 0), "seed {seed}: {:?}", world.said);
    }
}

#[test]
fn a_load_that_wavers_within_the_slack_starts_and_stops_nothing() {
    for seed in 0..40 {
        let mut rng = Rng::from_env_or(seed);
        let low = 1.0 + rng.below(500) as f64;
        let world = world(rng, Trouble::default());
        let mut control = control(&world);
        world.borrow_mut().load = low / 0.81;
        run(&mut control, &world, 200);
        let before = world.borrow().starts;
        for _ in 0..600 {
            let load = low * (1.0 + world.borrow_mut().rng.unit() * (1.0 / 0.81 - 1.0));
            world.borrow_mut().load = load;
            run(&mut control, &world, 1);
        }
        let world = world.borrow();
        assert_eq!((world.starts, world.ends), (before, 0), "{low}, seed {seed}: {:?}", world.said);
    }
}

#[test]
fn bounds_and_drains_hold_over_silence_deaths_and_failed_starts() {
    for seed in 0..60 {
        let mut rng = Rng::from_env_or(seed);
        let trouble = Trouble {
            silence: rng.below(100),
            death: rng.below(30),
            failed_start: rng.below(300),
            failed_list: rng.below(100),
            hang: rng.below(300),
        };
        let world = world(rng, trouble);
        let mut control = control(&world);
        for _ in 0..20 {
            let load = world.borrow_mut().rng.below(900) as f64;
            world.borrow_mut().load = load;
            run(&mut control, &world, 60);
        }
        // Without trouble all is as it must be, after the longest pause of a restart.
        world.borrow_mut().trouble = Trouble::default();
        run(&mut control, &world, 300);
        let load = world.borrow().load;
        let listed = world.borrow().listed().len();
        assert!(bounds(load).contains(&listed), "{load}: {listed}, seed {seed}");
        control.end();
        run(&mut control, &world, 60);
        assert!(control.is_over() && world.borrow().readers.is_empty(), "seed {seed}");
        assert!(world.borrow().listed().is_empty());
    }
}

#[test]
fn silent_readers_are_neither_stopped_nor_replaced() {
    let world = world(Rng::new(1), Trouble::default());
    let mut control = control(&world);
    world.borrow_mut().load = 290.0;
    run(&mut control, &world, 30);
    assert_eq!(world.borrow().listed().len(), 3);
    world.borrow_mut().trouble.silence = 1000;
    world.borrow_mut().load = 0.0;
    run(&mut control, &world, 500);
    assert_eq!(world.borrow().listed().len(), 3);
    world.borrow_mut().trouble.silence = 0;
    run(&mut control, &world, 100);
    assert_eq!((world.borrow().listed().len(), world.borrow().kills), (1, 0));
}

#[test]
fn a_reader_that_is_promoted_is_left_alone() {
    let world = world(Rng::new(2), Trouble::default());
    let mut control = control(&world);
    world.borrow_mut().load = 150.0;
    run(&mut control, &world, 30);
    let first = world.borrow().listed()[0].clone();
    world.borrow_mut().readers.get_mut(&first).unwrap().is_primary = true;
    run(&mut control, &world, 300);
    assert!(world.borrow().listed().contains(&first));
    // It serves reads, too, so that one reader is enough for the rest.
    assert_eq!(world.borrow().listed().len(), 2);
    control.end();
    run(&mut control, &world, 60);
    assert!(control.is_over());
    assert_eq!(world.borrow().listed(), [first]);
}

#[test]
fn readers_of_an_earlier_operator_are_taken_over() {
    let world = world(Rng::new(3), Trouble::default());
    let mut first = control(&world);
    world.borrow_mut().load = 390.0;
    run(&mut first, &world, 30);
    drop(first);
    let starts = world.borrow().starts;
    let mut second = control(&world);
    run(&mut second, &world, 100);
    let world = world.borrow();
    assert_eq!(
        (world.starts, world.ends, world.listed().len()),
        (starts, 0, 4),
        "{:?}",
        world.said
    );
}

#[test]
fn readers_that_are_taken_over_are_listed_once_they_answer() {
    let world = world(Rng::new(7), Trouble::default());
    let mut first = control(&world);
    world.borrow_mut().load = 290.0;
    run(&mut first, &world, 30);
    drop(first);
    let starts = world.borrow().starts;
    world.borrow_mut().trouble.silence = 1000;
    let mut second = control(&world);
    run(&mut second, &world, 5);
    // They may be anything, and no other one is started in their place.
    assert!(world.borrow().listed().is_empty());
    world.borrow_mut().trouble.silence = 0;
    run(&mut second, &world, 5);
    let world = world.borrow();
    assert_eq!((world.listed().len(), world.starts, world.ends), (3, starts, 0));
}
