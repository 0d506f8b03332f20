//! Secondaries whose own operations are delayed, fail, or end with them, and that see old listings.

use std::sync::Mutex;

use lsm_core::Partition;
use lsm_core::error::{Error, Result};
use lsm_core::fs::{
    AppendMode, Caps, DirEntry, FaultAction, FaultAt, FaultFs, FaultRule, File, LockGuard, MapMode,
    SharedWords,
};
use lsm_core::options::Durability;
use secondary::{Level, Target};

use super::*;

/// A primary that runs one step after the other, and every state that it acknowledged.
pub(crate) struct Writer {
    pub(crate) db: Db,
    pub(crate) partition: Partition,
    number: u64,
    pub(crate) states: Vec<Content>,
}

impl Writer {
    pub(crate) fn new(fs: &Arc<dyn Fs>) -> Writer {
        let db = primary(fs);
        let partition = db.partition("p").unwrap();
        Writer { db, partition, number: 0, states: vec![Content::new()] }
    }

    /// Mostly a write; sometimes a step that creates and deletes files.
    pub(crate) fn step(&mut self) {
        self.number += 1;
        match self.number % 12 {
            5 => self.partition.flush().unwrap(),
            8 => self.partition.compact(..).unwrap(),
            10 => self.db.wait_idle().unwrap(),
            11 => {
                let name = format!("passing {}", self.number);
                self.db.partition(&name).unwrap().put("k", "v").unwrap();
                self.db.drop_partition(&name).unwrap();
            }
            _ => {
                let key = format!("{:02}", self.number % 17).into_bytes();
                let value = format!("{} {}", self.number, "x".repeat(900)).into_bytes();
                let batch = self.db.batch().put(&self.partition, &key, &value);
                batch.commit(Durability::Os).unwrap();
                let mut next = self.states.last().unwrap().clone();
                next.insert(key, value);
                self.states.push(next);
            }
        }
    }
}

#[test]
fn the_primary_goes_on_before_every_operation_of_a_secondary() {
    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let slow = FaultFs::over_mem(mem);
    let writer = Arc::new(Mutex::new(Writer::new(&plain)));
    for _ in 0..30 {
        writer.lock().unwrap().step();
    }
    let hasty = writer.clone();
    let follower = secondary(&(Arc::new(slow.clone()) as Arc<dyn Fs>));
    let followed = follower.partition("p").unwrap();
    let mut seen = 0;
    for round in 0..60 {
        let before = writer.lock().unwrap().states.len() - 1;
        let left = Arc::new(Mutex::new(round % 7));
        let hasty = hasty.clone();
        slow.set_observer(Arc::new(move |_| {
            // A few steps a round: a secondary that is always interrupted never finishes.
            let mut left = left.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                hasty.lock().unwrap().step();
            }
        }));
        let found = match round % 2 {
            0 => content(&followed.at(Level::Strong).unwrap()),
            _ => {
                follower.sync(Target::Latest).unwrap();
                content(&follower.cut().partition(&followed).unwrap())
            }
        };
        slow.clear_observer();
        let mut writer = writer.lock().unwrap();
        let place = writer.states.iter().rposition(|state| *state == found);
        let place = place.expect("a state that was acknowledged");
        assert!(place >= before.max(seen), "{place} after {before} and {seen}");
        seen = place;
        writer.step();
    }
    let states = writer.lock().unwrap().states.len();
    assert!(states > 100, "{states}");
}

/// One run of a secondary, with steps of the writer in between.
fn live(fs: &Arc<dyn Fs>, writer: &mut Writer) -> Result<Secondary> {
    let follower = Secondary::builder(DIR).fs(fs.clone()).options(options()).open()?;
    let followed = follower.partition("p")?;
    for round in 0..6 {
        for _ in 0..4 {
            writer.step();
        }
        match round % 3 {
            0 => drop(follower.sync(Target::Latest)?),
            1 => drop(followed.sync(Target::Durable)?),
            _ => drop(followed.at(Level::Strong)?.get("01")?),
        }
    }
    Ok(follower)
}

#[test]
fn any_operation_of_a_secondary_may_fail_and_it_goes_on() {
    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let mut writer = Writer::new(&plain);
    let mut failed = 0;
    let mut survived = 0;
    for op in 0..400 {
        let fault = FaultFs::over_mem(mem.clone());
        fault.add_rule(FaultRule::once(FaultAt::Op(op), FaultAction::Eio));
        let fs: Arc<dyn Fs> = Arc::new(fault.clone());
        let lived = live(&fs, &mut writer);
        if fault.fault_count() == 0 {
            assert!(op > 30 && failed > 10, "{op} operations, {failed} failed, {survived} did not");
            return;
        }
        match lived {
            Ok(follower) => {
                survived += 1;
                let followed = follower.partition("p").unwrap();
                let found = content(&followed.at(Level::Strong).unwrap());
                assert_eq!(&found, writer.states.last().unwrap(), "operation {op}");
            }
            Err(error) => {
                failed += 1;
                assert!(!error.is_corruption(), "operation {op}: {error}");
            }
        }
    }
    panic!("a run has more operations than the test expects");
}

#[test]
fn a_secondary_that_dies_at_any_operation_holds_nothing_back() {
    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let mut writer = Writer::new(&plain);
    for op in (0..120).step_by(3) {
        let fault = FaultFs::over_mem(mem.clone());
        // Every operation fails from here on, even the removal of its lease.
        fault.add_rule(FaultRule::sticky(FaultAt::Op(op), FaultAction::Eio));
        let fs: Arc<dyn Fs> = Arc::new(fault.clone());
        drop(live(&fs, &mut writer));
        writer.partition.put("k", "v").unwrap();
        writer.partition.compact(..).unwrap();
        writer.db.wait_idle().unwrap();
        assert_eq!(writer.db.stats().leased_bytes, 0, "operation {op}");
        writer.states.push(content_of(&writer.partition));
    }
    assert_eq!(plain.list_names(DIR.as_ref(), "reader-").unwrap(), [""; 0]);
}

/// A folder as another machine sees it.
pub(crate) struct Elsewhere {
    pub(crate) fs: Arc<dyn Fs>,
    /// A listing is one change late.
    pub(crate) is_late: bool,
    /// No lock can be taken, and so no lease.
    pub(crate) is_unwritable: bool,
    pub(crate) before: Mutex<Option<Vec<DirEntry>>>,
}

impl Fs for Elsewhere {
    fn caps(&self) -> Caps {
        self.fs.caps()
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.fs.create_dir(dir)
    }

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        self.fs.open_append(path, mode)
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.fs.open_read(path)
    }

    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        self.fs.put_if_absent(path, content)
    }

    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        let present = self.fs.list(dir, "")?;
        let before = self.before.lock().unwrap().replace(present.clone());
        let shown = before.filter(|_| self.is_late).unwrap_or(present);
        Ok(shown.into_iter().filter(|entry| entry.name.starts_with(prefix)).collect())
    }

    fn delete(&self, path: &Path) -> Result<()> {
        self.fs.delete(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.fs.link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.fs.sync_dir(dir)
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        if self.is_unwritable {
            let refused = std::io::ErrorKind::ReadOnlyFilesystem.into();
            return Err(Error::io("lock", path, refused));
        }
        self.fs.try_lock(path)
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.fs.try_lock_shared(path)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.fs.free_bytes(dir)
    }

    fn map_words(&self, path: &Path, mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
        self.fs.map_words(path, mode)
    }

    fn machine_run(&self) -> Option<u64> {
        self.fs.machine_run()
    }
}

#[test]
fn a_listing_that_is_late_costs_another_look_and_nothing_else() {
    for has_cursor in [true, false] {
        let plain = in_memory();
        let late: Arc<dyn Fs> = Arc::new(Elsewhere {
            fs: plain.clone(),
            is_late: true,
            is_unwritable: false,
            before: Mutex::default(),
        });
        let mut writer = Writer::new(&plain);
        let follower = secondary(&late);
        let followed = follower.partition("p").unwrap();
        for _ in 0..40 {
            for _ in 0..5 {
                writer.step();
            }
            if !has_cursor {
                delete_cursor(&plain);
                writer.db.wait_durable(writer.db.visible_seq()).unwrap();
                writer.db.wait_idle().unwrap();
            }
            // Twice: the second look finds what the first one may miss.
            follower.sync(Target::Latest).unwrap();
            follower.sync(Target::Latest).unwrap();
            let found = content(&followed.at(Level::Eventual).unwrap());
            assert_eq!(&found, writer.states.last().unwrap());
        }
    }
}
