//! A store with everything around it, and the record of what it must hold.
//!
//! Invariant: the record is updated before the store is called (the step in flight) and after it has returned, so
//! that at every operation of the storage it describes what a power cut may leave.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use encryption::KeyRing;
use lsm_core::fs::{FaultFs, Fs, MemFs};
use remote::{Primary, Remote};
use siltstone::{
    BackgroundMode, Builder, Commit, Compression, Db, Durability, Error, Options, Partition,
    PartitionOptions, ResourceOptions, Resources, SeqNo, Snapshot,
};
use testkit::Rng;
use testkit::model::{Contents, Model, Op, State, Step};

use super::bucket::{Bucket, StillTimer};
use super::feed::Feed;
use super::parts::{PartSettings, alive};
use super::table::{Feature, FeatureSet};
use crate::clock::ManualClock;
use crate::neighbour::Neighbour;
use crate::sim::RecordPosition;
use crate::store;

/// The reason why a step ended early.
#[derive(Debug)]
pub enum Trouble {
    /// The store returned an error.
    Store(Error),
    /// The store did what it must not do.
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Store(error)
    }
}

pub type Outcome<T = ()> = Result<T, Trouble>;

/// Fails with a message if `is_right` is false.
pub fn check(is_right: bool, what: impl FnOnce() -> String) -> Outcome {
    if is_right { Ok(()) } else { Err(Trouble::Wrong(what())) }
}

/// One of the compressions of this build.
#[cfg(feature = "zstd")]
fn drawn_compression(rng: &mut Rng) -> Compression {
    *rng.pick(&[Compression::Lz4, Compression::Zstd])
}

/// The compression of this build.
#[cfg(not(feature = "zstd"))]
fn drawn_compression(_: &mut Rng) -> Compression {
    Compression::Lz4
}

/// The environment of a store for all of a run.
#[derive(Clone)]
pub struct Around {
    pub keys: Option<KeyRing>,
    pub resources: Option<Resources>,
    pub bucket: Option<Bucket>,
    /// Of tables; of large values if it is zstd.
    pub compression: Compression,
    pub clock: ManualClock,
    pub options: Options,
}

impl Around {
    pub fn new(rng: &mut Rng) -> Around {
        let options = Options::new()
            .cache_bytes(32 << 10)
            .write_buffer_bytes(8 << 10)
            .wal_segment_bytes(4 << 10)
            .wal_bytes_max(32 << 10)
            .manifest_bytes_max(*rng.pick(&[600, 4 << 10]))
            .compaction_threads(1)
            .log_retained_bytes(u64::MAX)
            .wal_mapped(rng.chance(1, 2))
            .tables_mapped(rng.chance(1, 2));
        let limits = ResourceOptions::new().cache_bytes(64 << 10).write_buffer_bytes(16 << 10);
        let resources = rng.chance(1, 2).then(|| Resources::new(limits.open_files_max(8)));
        Around {
            keys: rng.chance(1, 2).then(store::keys),
            resources: resources.map(|it| it.expect("the limits are in their ranges")),
            bucket: rng.chance(1, 2).then(Bucket::default),
            compression: drawn_compression(rng),
            clock: ManualClock::default(),
            options,
        }
    }

    /// The features that a run has from its begin on.
    pub fn features(&self) -> FeatureSet {
        let mut features = FeatureSet::default();
        let all = [
            (self.keys.is_some(), Feature::Encryption),
            (self.resources.is_some(), Feature::Resources),
            (self.bucket.is_some(), Feature::Remote),
        ];
        all.into_iter().filter(|(is_on, _)| *is_on).for_each(|(_, it)| features.add(it));
        features
    }

    /// The same with the objects of now, for a machine whose power was cut.
    pub fn copied(&self) -> Around {
        let mut copied = self.clone();
        copied.bucket = self.bucket.as_ref().map(Bucket::copied);
        copied
    }

    pub fn files(&self, fs: Arc<dyn Fs>) -> Arc<dyn Fs> {
        store::over(fs, self.keys.as_ref())
    }

    pub fn remote(&self, fs: Arc<dyn Fs>, seed: u64) -> Option<Remote> {
        let bucket = self.bucket.clone()?;
        let remote = Remote::with_store(Arc::new(bucket)).fs(self.files(fs));
        Some(remote.timer(Arc::new(StillTimer::new(seed))).stepped())
    }

    pub fn configured(&self, builder: Builder, seed: u64) -> Builder {
        let builder = builder.options(self.options.clone()).clock(Arc::new(self.clock.clone()));
        let builder = builder.background(BackgroundMode::Stepped);
        let mut random = Rng::new(seed);
        let builder = builder.random(move || random.next_u64());
        match &self.resources {
            Some(resources) => builder.resources(resources),
            None => builder,
        }
    }

    /// Opens the store of `dir`. The primary of a bucket outlives it.
    pub fn open(
        &self,
        fs: &Arc<dyn Fs>,
        dir: &Path,
        seed: u64,
        takes_over: bool,
    ) -> siltstone::Result<(Option<Primary>, Db)> {
        let Some(remote) = self.remote(fs.clone(), seed) else {
            let builder = Db::builder(dir).fs(self.files(fs.clone()));
            return Ok((None, self.configured(builder, seed).open()?));
        };
        let primary = if takes_over { remote.take_over(dir)? } else { remote.primary(dir)? };
        let db = self.configured(primary.builder(), seed).open()?;
        Ok((Some(primary), db))
    }
}

/// The commits, and the step in flight.
#[derive(Default)]
pub struct Record {
    pub model: Model,
    pub in_flight: Option<Step>,
    /// The first commit that was refused since the last one that was accepted. A crash may bring it back.
    pub refused: Option<Step>,
    /// So many steps of the model are known to be durable.
    pub durable: usize,
    /// Sequence number and length of the log of the model at each commit.
    pub seqs: Vec<(SeqNo, usize)>,
    /// Partitions whose creation or drop failed: it may take effect at the next open.
    pub doubtful: BTreeSet<String>,
    /// The features that the run has used so far.
    pub used: FeatureSet,
}

impl Record {
    /// Of a store that holds exactly this.
    pub fn of(state: &State, used: FeatureSet) -> Record {
        let mut model = Model::new();
        for (partition, contents) in state {
            model.create(partition);
            let puts = contents.iter().map(|(key, value)| Op::put(partition, key, value));
            model.commit(puts.collect());
        }
        Record { durable: model.log().len(), model, used, ..Record::default() }
    }

    pub fn position(&self) -> RecordPosition {
        RecordPosition {
            steps: self.model.log().len(),
            in_flight: self.in_flight.clone().or_else(|| self.refused.clone()),
            durable: self.durable,
            unlogged: 0,
            covered: 0,
            doubtful: self.doubtful.clone(),
        }
    }

    pub fn all_durable(&mut self) {
        self.durable = self.model.log().len();
    }

    /// Adds the step in flight.
    pub fn done(&mut self) {
        let Some(step) = self.in_flight.take() else { return };
        if let Step::Create(name) | Step::Drop(name) = &step {
            self.doubtful.remove(name);
        }
        self.model.step(step);
        self.refused = None;
    }
}

/// A snapshot, and what it sees.
pub struct HeldSnapshot {
    pub snapshot: Snapshot,
    pub state: State,
    pub handles: Vec<Partition>,
    pub time: u64,
}

/// The beginning of the log.
#[derive(Default)]
pub struct LogBeginning {
    has_logged: bool,
    /// A commit was made without the log.
    has_unlogged: bool,
    /// The log began in a later run than the first commit.
    pub is_late: bool,
}

pub struct World {
    pub mem: MemFs,
    pub fs: FaultFs,
    pub around: Around,
    pub dir: PathBuf,
    /// The folder to open after a crash, and whether it is being taken over into.
    pub folder_now: Arc<Mutex<(PathBuf, bool)>>,
    pub record: Arc<Mutex<Record>>,
    pub rng: Rng,
    pub parts: BTreeMap<&'static str, PartSettings>,
    pub feed: Feed,
    pub beginning: LogBeginning,
    pub held: Vec<HeldSnapshot>,
    /// Backups by their number, with what they hold.
    pub backups: Vec<(u32, State)>,
    // Declared before the primary, which outlives it.
    pub db: Option<Db>,
    pub primary: Option<Primary>,
    neighbour: Option<Neighbour>,
    pub values: u64,
    /// The store is being taken over into its folder.
    pub takes_over: bool,
    /// Folders that were used.
    pub folders: u32,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let around = Around::new(&mut rng);
        let mem = MemFs::new();
        let record = Record { used: around.features(), ..Record::default() };
        World {
            fs: FaultFs::over_mem(mem.clone()),
            mem,
            neighbour: around.resources.as_ref().map(Neighbour::new),
            around,
            dir: PathBuf::from("/db"),
            folder_now: Arc::new(Mutex::new((PathBuf::from("/db"), false))),
            record: Arc::new(Mutex::new(record)),
            rng,
            parts: BTreeMap::new(),
            feed: Feed::default(),
            beginning: LogBeginning::default(),
            held: Vec::new(),
            backups: Vec::new(),
            db: None,
            primary: None,
            values: 0,
            takes_over: false,
            folders: 0,
        }
    }

    pub fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no holder of the lock panics")
    }

    pub fn db(&self) -> Db {
        self.db.clone().expect("it is open")
    }

    pub fn now(&self) -> u64 {
        siltstone::clock::Clock::now(&self.around.clock).as_secs()
    }

    /// The file system of the store: with faults, and encrypted if it is so.
    pub fn files(&self) -> Arc<dyn Fs> {
        self.around.files(Arc::new(self.fs.clone()))
    }

    /// Opens the store, or takes it over into its folder.
    pub fn open(&mut self) -> Outcome {
        *self.folder_now.lock().expect("no holder panics") = (self.dir.clone(), self.takes_over);
        let fs: Arc<dyn Fs> = Arc::new(self.fs.clone());
        let seed = self.rng.next_u64();
        let opened = self.around.open(&fs, &self.dir, seed, self.takes_over)?;
        self.takes_over = false;
        self.folder_now.lock().expect("no holder panics").1 = false;
        self.primary = opened.0;
        self.db = Some(opened.1);
        self.note_epoch();
        Ok(())
    }

    /// Notes that another run of the writer has begun.
    pub fn note_epoch(&mut self) {
        self.beginning.is_late |= self.beginning.has_unlogged && !self.beginning.has_logged;
    }

    /// Opens the store for the first time.
    pub fn begin(&mut self) -> Outcome {
        self.record().model.create("default");
        self.open()?;
        self.db()
            .partition_with("default", self.part_options("default", PartSettings::default()))?;
        Ok(())
    }

    /// The options of a partition in this run.
    pub fn part_options(&self, name: &str, settings: PartSettings) -> PartitionOptions {
        super::parts::options(name, settings, self.around.compression)
    }

    /// Drops the store as a process does that ends without a word.
    pub fn abandon(&mut self) {
        self.held.clear();
        self.feed.close();
        self.db = None;
        self.primary = None;
    }

    pub fn close(&mut self) -> Outcome {
        self.held.clear();
        self.feed.close();
        let closed = self.db.take().map_or(Ok(()), Db::close);
        self.primary = None;
        closed?;
        let mut record = self.record();
        record.all_durable();
        record.seqs.clear();
        Ok(())
    }

    /// Lets the other database of shared resources do something.
    pub fn let_neighbour_act(&mut self) {
        self.neighbour.iter_mut().for_each(Neighbour::act);
    }

    /// A value that no other write has.
    pub fn value(&mut self, len: u64) -> Vec<u8> {
        self.values += 1;
        let mut value = format!("{}:", self.values).into_bytes();
        let filler =
            if self.values.is_multiple_of(2) { Vec::new() } else { self.rng.bytes(len as usize) };
        value.extend(filler);
        value.resize((len as usize).max(value.len()), b'.');
        value
    }

    /// Makes a commit.
    pub fn commit(
        &mut self,
        ops: Vec<Op>,
        durability: Durability,
        call: impl FnOnce(&Db) -> siltstone::Result<Commit>,
    ) -> Outcome {
        if ops.is_empty() {
            return Ok(());
        }
        let db = self.db();
        self.record().in_flight = Some(Step::Commit(ops));
        let commit = call(&db)?;
        self.beginning.has_logged = true;
        let mut record = self.record();
        record.done();
        let steps = record.model.log().len();
        record.seqs.push((commit.seq, steps));
        if durability == Durability::Sync {
            record.all_durable();
        }
        Ok(())
    }

    /// Makes a change that is durable when it returns; a commit of this kind with everything before it.
    pub fn change(
        &mut self,
        step: Step,
        call: impl FnOnce(&Db) -> siltstone::Result<()>,
    ) -> Outcome {
        let db = self.db();
        let is_commit = matches!(step, Step::Commit(_));
        self.feed.has_hole |= is_commit;
        self.record().in_flight = Some(step);
        call(&db)?;
        self.beginning.has_unlogged |= is_commit;
        let mut record = self.record();
        record.done();
        if is_commit {
            record.all_durable();
        }
        Ok(())
    }

    /// Notes what the store says to be durable.
    pub fn note_durable(&mut self) {
        let Some(db) = &self.db else { return };
        let durable = db.durable_seq();
        let mut record = self.record();
        let covered = record.seqs.iter().take_while(|(seq, _)| *seq <= durable).last();
        if let Some(steps) = covered.map(|(_, steps)| *steps) {
            record.durable = record.durable.max(steps);
        }
    }

    /// The entries that were written, with those that have expired.
    pub fn written(&self, name: &str) -> Contents {
        let record = self.record();
        let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let entries = record.model.range(name, all, record.model.seq());
        entries.map(|(key, value)| (key.to_vec(), value.clone())).collect()
    }

    /// Everything that was written.
    pub fn written_state(&self) -> State {
        let record = self.record();
        record.model.state(record.model.seq())
    }

    /// The names of the partitions that there are.
    pub fn names(&self) -> Vec<String> {
        self.record().model.partition_names().map(str::to_owned).collect()
    }

    /// Compares the store with the record.
    pub fn check_now(&self) -> Outcome {
        let observed = observe(&self.db())?;
        check_state("the store", &observed, &self.written_state(), self.now())
    }
}

/// Reads all partitions by a scan, by gets, and in one call.
pub fn observe(db: &Db) -> Outcome<State> {
    let mut state = State::new();
    for name in db.partition_names() {
        let partition = db.open_partition(&name)?;
        let mut contents = Contents::new();
        for entry in partition.iter() {
            let (key, value) = entry?;
            contents.insert(key.to_vec(), Arc::from(&*value));
        }
        let keys: Vec<_> = contents.keys().collect();
        let values = partition.multi_get(&keys)?;
        let same = values.iter().map(Option::as_deref).eq(contents.values().map(|it| Some(&**it)));
        check(same, || format!("multi_get and scan differ in {name}"))?;
        for (key, value) in contents.iter().step_by(3) {
            let got = partition.get(key)?;
            check(got.as_deref() == Some(value), || format!("get and scan differ in {name}"))?;
        }
        state.insert(name, contents);
    }
    Ok(state)
}

/// Compares a state that was seen at `time` with one that was written.
pub fn check_state(what: &str, observed: &State, written: &State, time: u64) -> Outcome {
    let mut expected = alive(written, time);
    let observed = super::parts::with_removed(observed, &expected);
    if observed == expected {
        return Ok(());
    }
    let mut text = format!("{what} has other entries:");
    for (name, contents) in &observed {
        let other = expected.remove(name).unwrap_or_default();
        let keys: BTreeSet<_> = contents.keys().chain(other.keys()).collect();
        for key in keys.into_iter().filter(|key| contents.get(*key) != other.get(*key)) {
            let texts = [contents.get(key), other.get(key)].map(|value| {
                value.map(|it| String::from_utf8_lossy(&it[..it.len().min(12)]).into_owned())
            });
            text += &format!(" {name}/{} {texts:?}", key.escape_ascii());
        }
    }
    Err(Trouble::Wrong(format!("{text}; missing {:?}", expected.keys())))
}
