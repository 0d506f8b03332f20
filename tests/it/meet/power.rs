//! Processes that are killed, and power cuts: what was durable is there, and the rest is a prefix of what came after.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use lsm_core::fs::{CrashOutcome, FaultFs, Fs, FsOp, MemFs};
use siltstone::Durability;
use testkit::Rng;

use super::faults::check_recovered;
use super::table::{Kind, Table};
use super::world::{Around, Outcome, Record, Trouble, World, check, observe};
use super::{Place, act, explained};
use crate::sim::RecordPosition;
use crate::sim::oracle::guarded;

/// Cuts of each kind in a script.
const CUTS: usize = 3;

/// Returns `true` for the kinds of this file.
pub fn is_cut(kind: Kind) -> bool {
    matches!(kind, Kind::Kill | Kind::PowerCut | Kind::CutAgain)
}

/// A state of the disks that a cut leaves, and what it must hold.
struct Image {
    cut: Cut,
    what: String,
    mem: MemFs,
    around: Around,
    dir: PathBuf,
    takes_over: bool,
    position: RecordPosition,
    record: Arc<Mutex<Record>>,
}

/// A cut before an operation.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub place: Place,
    kind: Kind,
    outcome: CrashOutcome,
    seed: u64,
}

impl Cut {
    /// The cuts of a script, in the last two thirds of it.
    pub fn draw_all(places: &[Place], rng: &mut Rng) -> Vec<Cut> {
        let first = places.len() / 3;
        let kinds = Kind::ALL.into_iter().filter(|kind| is_cut(*kind)).cycle();
        let cuts = kinds.take(3 * CUTS).map(|kind| {
            let place = places[first + rng.index(places.len() - first)];
            let outcome = match kind {
                Kind::Kill => CrashOutcome::Everything,
                _ => *rng.pick(&CrashOutcome::ALL),
            };
            Cut { place, kind, outcome, seed: rng.next_u64() }
        });
        cuts.collect()
    }
}

/// Runs these steps of a script, takes an image at each cut, and checks it. Returns the cut that failed.
pub fn run_cuts(
    seed: u64,
    steps: &[u64],
    cuts: &[Cut],
    table: Option<&Mutex<Table>>,
) -> Result<(), (Cut, String)> {
    let mut world = World::new(seed);
    let first = cuts.first().copied();
    let begun = explained(world.begin());
    begun.map_err(|what| (first.expect("there are cuts"), what))?;
    for step in steps {
        let here: Vec<_> = cuts.iter().filter(|cut| cut.place.step == *step).copied().collect();
        let images = take_images(&world, here);
        let (deed, outcome) = act(&mut world, seed, *step);
        world.fs.clear_observer();
        explained(outcome).map_err(|what| {
            (first.expect("there are cuts"), format!("step {step}, {deed:?}: {what}"))
        })?;
        let images = std::mem::take(&mut *images.lock().unwrap());
        for image in images {
            table
                .iter()
                .for_each(|it| it.lock().unwrap().note(image.cut.kind, world.record().used));
            guarded(|| explained(image.check())).map_err(|what| {
                (image.cut, format!("step {step}, {deed:?}, before {}: {what}", image.what))
            })?;
        }
    }
    Ok(())
}

/// Takes the images of the next step.
fn take_images(world: &World, chosen: Vec<Cut>) -> Arc<Mutex<Vec<Image>>> {
    let images = Arc::new(Mutex::new(Vec::new()));
    if chosen.is_empty() {
        return images;
    }
    let begin = world.fs.op_count();
    let taken = images.clone();
    let mem = world.mem.clone();
    let around = world.around.clone();
    let record = world.record.clone();
    let folder = world.folder_now.clone();
    world.fs.set_observer(Arc::new(move |op: &FsOp| {
        let here = chosen.iter().filter(|cut| begin + cut.place.offset == op.index);
        for cut in here {
            let mut random = Rng::new(cut.seed);
            let (dir, takes_over) = folder.lock().unwrap().clone();
            taken.lock().unwrap().push(Image {
                cut: *cut,
                what: format!("{:?} of {}", op.kind, op.path.display()),
                mem: mem.crash_clone(cut.outcome, &mut || random.next_u64()),
                around: around.copied(),
                dir,
                takes_over,
                position: record.lock().unwrap().position(),
                record: record.clone(),
            });
        }
    }));
    images
}

impl Image {
    fn check(&self) -> Outcome {
        if self.cut.kind == Kind::CutAgain {
            self.cut_again()?;
        }
        let fs: Arc<dyn Fs> = Arc::new(self.mem.clone());
        let (primary, db) = self.around.open(&fs, &self.dir, self.cut.seed, self.takes_over)?;
        let observed = observe(&db)?;
        self.check_prefix(&observed)?;
        let mut expected = observed;
        for (name, contents) in &mut expected {
            if name.len() > 1 || *name == "p" || *name == "q" {
                let partition = db.open_partition(name)?;
                partition.put_with("after", "the cut", Durability::Sync)?;
                contents.insert(b"after".to_vec(), (*b"the cut").into());
            }
        }
        if self.cut.seed.is_multiple_of(3) {
            db.flush()?;
            db.wait_idle()?;
        }
        check_same(&observe(&db)?, &expected)?;
        let report = db.verify(Default::default())?;
        check(report.is_sound(), || format!("a sound store is called damaged: {report}"))?;
        db.close()?;
        drop(primary);
        let opened = self.around.open(&fs, &self.dir, self.cut.seed ^ 1, false);
        let (primary, db) =
            opened.map_err(|error| Trouble::Wrong(format!("opened again: {error}")))?;
        check_same(&observe(&db)?, &expected)?;
        drop(db);
        drop(primary);
        Ok(())
    }

    fn check_prefix(&self, observed: &testkit::model::State) -> Outcome {
        let record = self.record.lock().unwrap();
        let now = siltstone::clock::Clock::now(&self.around.clock).as_secs();
        let checked = check_recovered(&record, &self.position, observed, now);
        checked.map(drop).map_err(Trouble::Wrong)
    }

    /// Cuts the power while a copy of the image is opened, and checks what that leaves.
    fn cut_again(&self) -> Outcome {
        let mem = self.mem.crash_clone(CrashOutcome::Everything, &mut || 0);
        let fault = FaultFs::over_mem(mem.clone());
        let around = self.around.copied();
        let mut rng = Rng::new(self.cut.seed);
        let at = rng.below(120);
        let outcome = *rng.pick(&CrashOutcome::ALL);
        let cut = Arc::new(Mutex::new(None));
        let slot = cut.clone();
        let now = around.clone();
        fault.set_observer(Arc::new(move |op: &FsOp| {
            if op.index == at {
                let mut random = Rng::new(at);
                let mem = mem.crash_clone(outcome, &mut || random.next_u64());
                *slot.lock().unwrap() = Some((mem, now.copied()));
            }
        }));
        let fs: Arc<dyn Fs> = Arc::new(fault.clone());
        drop(around.open(&fs, &self.dir, self.cut.seed, self.takes_over)?);
        fault.clear_observer();
        let Some((mem, around)) = cut.lock().unwrap().take() else { return Ok(()) };
        let again = Image {
            cut: Cut { kind: Kind::PowerCut, ..self.cut },
            what: String::new(),
            mem,
            around,
            dir: self.dir.clone(),
            takes_over: self.takes_over,
            position: self.position.clone(),
            record: self.record.clone(),
        };
        again.check().map_err(|trouble| match trouble {
            Trouble::Store(error) => Trouble::Wrong(format!("cut again with {outcome:?}: {error}")),
            Trouble::Wrong(what) => Trouble::Wrong(format!("cut again with {outcome:?}: {what}")),
        })
    }
}

/// The oldest entries of the FIFO may go at any time.
fn check_same(observed: &testkit::model::State, expected: &testkit::model::State) -> Outcome {
    let is_same = super::parts::with_removed(observed, expected) == *expected;
    check(is_same, || "the store lost something while it went on".to_owned())
}
