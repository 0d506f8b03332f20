//! [`SimReader`]: a reader of the simulation, on a machine whose calls of the store fail, and which may die in one.
//!
//! Whatever the store does, each read is a prefix of the history or an error of the store, and a view under a lease stays
//! as it is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use remote::{Ack, RemoteReader};
use siltstone::fs::MemFs;
use siltstone::secondary::{Level, Reading, Secondary, SecondaryCut, SecondaryPartition, Target};
use siltstone::{Error, ErrorKind, Options, Readable, Result};
use testkit::Rng;

use crate::sim_machine::{CommitShape, remote_of};
use crate::sim_model::{Commits, number_of, try_commits};
use crate::sim_store::{Objects, SimClock, SimStore};

/// The renewals of leases, and the time for which one surely counts.
const LEASE: Duration = Duration::from_secs(3600);
const LEASE_COUNTS: Duration = Duration::from_secs(4 * 3600);
/// The memory of readers for blocks of objects: with little of it, old views ask the bucket again.
const CACHE_BYTES_MAX: u64 = 300_000;

/// A view that is kept under a lease.
struct KeptView {
    commits: Reading,
    seen: BTreeSet<u64>,
    /// The partition of entries that expire, and what it had.
    brief: Option<(Reading, Vec<u64>)>,
    until: Duration,
}

impl KeptView {
    fn check(&self) -> Result<()> {
        let seen = try_commits(&self.commits)?;
        assert!(seen.keys().eq(&self.seen), "a view under a lease stays as it is");
        if let Some((brief, expected)) = &self.brief {
            assert_eq!(&keys(brief)?, expected, "a view judges expiry by its own time");
        }
        Ok(())
    }
}

fn keys(reading: &Reading) -> Result<Vec<u64>> {
    Readable::keys(reading).map(|key| Ok(number_of(&key?))).collect()
}

/// A reader, and a view that it keeps under its lease.
pub struct SimReader {
    store: Arc<SimStore>,
    reader: RemoteReader,
    secondary: Secondary,
    /// As they were opened, by their names.
    partitions: Vec<(&'static str, SecondaryPartition)>,
    shape: CommitShape,
    has_lease: bool,
    view: Option<KeptView>,
    /// The last renewal of the lease.
    renewed: Duration,
    /// The calendar before the last look at all partitions.
    looked: Duration,
}

/// Returns whether `error` is one of a store that fails.
fn is_named(error: &Error, store: &SimStore) -> bool {
    error.kind() == ErrorKind::Io && store.may_fail() && !error.is_missing()
}

impl SimReader {
    /// Opens a reader; returns `None` if its calls fail.
    pub fn open(
        objects: &Objects,
        (ack, shape): (Ack, CommitShape),
        rng: &mut Rng,
    ) -> Option<SimReader> {
        let store = SimStore::new(objects.clone(), rng.fork());
        store.fails_one_of.store(*rng.pick(&[0, 0, 40, 8]), Ordering::Relaxed);
        if rng.chance(1, 16) {
            store.die_in(rng.below(30));
        }
        let opened = SimReader::open_on(store.clone(), (ack, shape), rng);
        if let Err(error) = &opened {
            assert!(is_named(error, &store), "{error}");
        }
        opened.ok().filter(|it| !it.store.is_dead())
    }

    fn open_on(
        store: Arc<SimStore>,
        (ack, shape): (Ack, CommitShape),
        rng: &mut Rng,
    ) -> Result<SimReader> {
        let remote = remote_of(&store, &MemFs::new(), ack, rng);
        let has_lease = rng.chance(1, 2);
        let cache_bytes = *rng.pick(&[0, CACHE_BYTES_MAX, CACHE_BYTES_MAX]);
        let remote = remote.cache_bytes(cache_bytes).lease(has_lease.then_some(LEASE));
        let renewed = store.objects.true_time();
        let reader = remote.reader()?;
        let clock = Arc::new(SimClock(store.objects.clone()));
        let options = Options::new().cache_bytes(cache_bytes);
        let secondary = reader.secondary().clock(clock).options(options).open()?;
        let names = shape.partitions().into_iter();
        let partitions = names.map(|name| Ok((name, secondary.partition(name)?)));
        let partitions = partitions.collect::<Result<_>>()?;
        let looked = store.objects.calendar();
        Ok(SimReader {
            store,
            reader,
            secondary,
            partitions,
            shape,
            has_lease,
            view: None,
            renewed,
            looked,
        })
    }

    pub fn is_dead(&self) -> bool {
        self.store.is_dead()
    }

    /// Reads once, perhaps while the store is away, and checks all that it returns.
    pub fn read(&mut self, ack: Ack, commits: &Mutex<Commits>, rng: &mut Rng) {
        if rng.chance(1, 20) {
            self.store.die_in(rng.below(20));
        }
        if rng.chance(1, 8) {
            let store = self.store.clone();
            store.be_away(|| self.check_read(ack, commits, rng));
        } else {
            self.check_read(ack, commits, rng);
        }
    }

    fn check_read(&mut self, ack: Ack, commits: &Mutex<Commits>, rng: &mut Rng) {
        let read = self.try_read(ack, commits, rng);
        if let Err(error) = read {
            assert!(self.is_named(&error), "{error}");
            // The state before is read on, as far as the caches have it.
            let older = self.secondary.cut();
            match older.as_of().map(|_| self.shown(&older)) {
                Some(Ok(seen)) => commits.lock().check(&seen, false, "a reader without a store"),
                Some(Err(error)) => assert!(self.is_named(&error), "{error}"),
                // It has never looked.
                None => {}
            }
        }
    }

    fn try_read(&mut self, ack: Ack, commits: &Mutex<Commits>, rng: &mut Rng) -> Result<()> {
        let now = self.store.objects.true_time();
        self.view.take_if(|view| view.until < now);
        if let Err(error) = self.view.as_ref().map_or(Ok(()), KeptView::check) {
            assert!(is_named(&error, &self.store), "a view under a lease: {error}");
            return Err(error);
        }
        if ack == Ack::Stored && rng.chance(1, 2) {
            let strong = self.partitions[0].1.at(Level::Strong)?;
            let seen = try_commits(&strong)?.into_keys().collect();
            commits.lock().check(&seen, true, "a strong read");
        }
        let group: Vec<&SecondaryPartition> = self.partitions.iter().map(|it| &it.1).collect();
        let looked = self.store.objects.calendar();
        let cut = self.secondary.sync_group(&group, Target::Latest)?;
        self.looked = looked;
        let seen = self.shown(&cut)?;
        commits.lock().check(&seen, false, "a reader");
        assert!(self.reader.cache_bytes() <= CACHE_BYTES_MAX);
        if self.has_lease {
            self.reader.renew_lease()?;
            self.renewed = now;
            let until = now + LEASE_COUNTS;
            match &mut self.view {
                Some(view) if rng.chance(2, 3) => view.until = until,
                _ => self.view = Some(self.kept(&cut, seen, until)?),
            }
        }
        Ok(())
    }

    /// Returns whether a read may return `error`: also that of an object that is deleted, without a lease that counts.
    fn is_named(&self, error: &Error) -> bool {
        let until = self.renewed + LEASE_COUNTS;
        let is_held = self.has_lease && self.store.objects.true_time() <= until;
        is_named(error, &self.store) || error.is_missing() && !is_held
    }

    /// The reading of a partition as of `cut`.
    fn reading(&self, cut: &SecondaryCut, name: &str) -> Option<Reading> {
        let (_, partition) = self.partitions.iter().find(|it| it.0 == name)?;
        cut.partition(partition)
    }

    /// The commits of `cut`, that of the last look.
    fn shown(&self, cut: &SecondaryCut) -> Result<BTreeSet<u64>> {
        self.shape.look(&self.store.objects, self.looked, |name| {
            Ok(self.reading(cut, name).expect("each commit writes to it"))
        })
    }

    fn kept(&self, cut: &SecondaryCut, seen: BTreeSet<u64>, until: Duration) -> Result<KeptView> {
        let commits = self.reading(cut, "commits").expect("it is there");
        let brief = match self.reading(cut, "brief") {
            Some(brief) => {
                let shown = keys(&brief)?;
                Some((brief, shown))
            }
            None => None,
        };
        Ok(KeptView { commits, seen, brief, until })
    }
}
