//! [`Machine`]: a machine of the simulation, with an open database; [`CommitShape`]: what its commits write, and the check
//! that the partitions of one state agree.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use remote::{Ack, Primary, Remote};
use siltstone::fs::MemFs;
use siltstone::operators::IntegerOperator;
use siltstone::{
    BackgroundMode, Db, Durability, Error, ErrorKind, LargeValueOptions, Partition,
    PartitionOptions, PrefixExtractor, Readable, Result, TtlFilter, TtlRule,
};
use testkit::Rng;

use crate::sim_model::{Commits, MARK, mark_of, number_of, try_commits};
use crate::sim_store::{SimBucket, SimClock, SimStore, with_poor_clock};

pub const MINUTE: Duration = Duration::from_secs(60);
/// The bytes of a key that are its prefix, where there is an extractor.
const PREFIX_BYTES: usize = 7;
/// The key of the number of all commits.
const ALL: &str = "all";

/// The remote of a machine: with little history, so that much is deleted.
pub fn remote_of(store: &Arc<SimStore>, fs: &MemFs, ack: Ack, rng: &mut Rng) -> Remote {
    let lease = *rng.pick(&[0, 50, 5_000, 60_000]);
    let remote = with_poor_clock(store, fs, rng).read_lease(Duration::from_millis(lease));
    remote.ack(ack).retention(120 * MINUTE).grace(10 * MINUTE)
}

/// The partitions that the commits of a world write to, in addition to `commits` and `values`.
#[derive(Clone, Copy)]
pub struct CommitShape {
    /// `values` has a prefix extractor.
    has_prefixes: bool,
    /// `counts` has a sum of merges.
    has_counts: bool,
    /// `brief` has entries that expire.
    has_brief: bool,
}

impl CommitShape {
    pub fn new(rng: &mut Rng) -> CommitShape {
        CommitShape {
            has_prefixes: rng.chance(1, 3),
            has_counts: rng.chance(1, 3),
            has_brief: rng.chance(1, 3),
        }
    }

    fn values(self) -> PartitionOptions {
        let options = PartitionOptions::new().large_values(LargeValueOptions::default());
        let extractor = PrefixExtractor::Fixed(PREFIX_BYTES as u16);
        options.prefix_extractor(self.has_prefixes.then_some(extractor))
    }

    /// The names of the partitions that a check reads.
    pub fn partitions(self) -> Vec<&'static str> {
        let all = [
            ("commits", true),
            ("values", self.has_prefixes),
            ("counts", self.has_counts),
            ("brief", self.has_brief),
        ];
        all.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
    }

    /// Checks that the partitions of one state agree, which was taken at `begun` by the calendar or later. Returns its
    /// commits.
    pub fn look<R: Readable>(
        self,
        objects: &SimBucket,
        begun: Duration,
        of: impl Fn(&str) -> Result<R>,
    ) -> Result<BTreeSet<u64>> {
        let commits = try_commits(&of("commits")?)?;
        let numbers: BTreeSet<u64> = commits.keys().copied().collect();
        let Some(last) = numbers.last() else { return Ok(numbers) };
        if self.has_counts {
            let count = of("counts")?.get(ALL)?.expect("each commit counts");
            assert_eq!(count[..], (numbers.len() as u64).to_le_bytes(), "{numbers:?}");
        }
        if self.has_prefixes {
            let prefix = &last.to_be_bytes()[..PREFIX_BYTES];
            let found = of("values")?.prefix(prefix).map(|it| Ok(number_of(&it?.0)));
            let found = found.collect::<Result<Vec<_>>>()?;
            let expected = numbers.iter().filter(|it| it.to_be_bytes().starts_with(prefix));
            assert!(expected.eq(&found), "values of a prefix: {found:?}, {numbers:?}");
        }
        if self.has_brief {
            let brief = of("brief")?.keys().map(|key| Ok(number_of(&key?)));
            let brief = brief.collect::<Result<BTreeSet<_>>>()?;
            assert!(brief.is_subset(&numbers), "brief entries: {brief:?}, {numbers:?}");
            let ended = objects.calendar().as_secs() + 1;
            for (number, expires) in commits {
                let is_right = match brief.contains(&number) {
                    true => expires + 1 >= begun.as_secs(),
                    false => expires <= ended,
                };
                assert!(is_right, "{number} expires at {expires}: {begun:?} to {ended}");
            }
        }
        Ok(numbers)
    }
}

/// A machine with an open database.
pub struct Machine {
    pub fs: MemFs,
    pub store: Arc<SimStore>,
    pub primary: Primary,
    pub db: Db,
    pub is_local: bool,
    shape: CommitShape,
    /// The number of the last claim when it was opened. A later one has fenced it.
    claimed: u64,
}

impl Machine {
    pub fn open(
        store: Arc<SimStore>,
        fs: MemFs,
        (ack, shape): (Ack, CommitShape),
        takes_over: bool,
        rng: &mut Rng,
    ) -> Result<Machine> {
        let remote = remote_of(&store, &fs, ack, rng);
        let primary = match takes_over {
            true => remote.take_over("/db")?,
            false => remote.primary("/db")?,
        };
        let clock = Arc::new(SimClock(store.objects.clone()));
        let db = primary.builder().background(BackgroundMode::Stepped).clock(clock);
        let db = db.write_buffer_bytes(64 << 10).open()?;
        let claimed = store.objects.last_claim();
        Ok(Machine { fs, store, primary, db, is_local: ack == Ack::Local, shape, claimed })
    }

    /// Returns whether another writer has claimed the database.
    pub fn is_fenced(&self) -> bool {
        self.store.objects.last_claim() > self.claimed
    }

    /// Returns whether `error` is one of those that a call may return.
    pub fn is_named(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Fenced => self.is_fenced(),
            // A sync has failed, and the database refuses writes until it can resume.
            ErrorKind::Io | ErrorKind::ReadOnly => self.store.may_fail(),
            _ => false,
        }
    }

    fn commits(&self) -> Result<Partition> {
        self.db.partition("commits")
    }

    /// Makes a commit: a small value, or a large one in a chunk file.
    pub fn commit(&self, number: u64, durability: Durability, is_large: bool) -> Result<()> {
        let key = number.to_be_bytes();
        let expires = self.store.objects.calendar() + MINUTE * (20 + number % 7 * 40) as u32;
        let expires = expires.as_secs().to_be_bytes();
        let commits = self.commits()?;
        let values = self.db.partition_with("values", self.shape.values())?;
        let len = if is_large { 100_000 } else { 20 };
        let mut batch = self.db.batch().put(&commits, key, expires);
        batch = batch.put(&values, key, vec![number as u8; len]);
        // Of all marks, only that of the last commit stays.
        let mark = mark_of(number);
        batch = batch.delete_range(&commits, [MARK].as_slice()..&mark);
        batch = batch.put(&commits, mark, 0u64.to_be_bytes());
        if self.shape.has_counts {
            let options = PartitionOptions::new().merge_operator(Arc::new(IntegerOperator::Add));
            let counts = self.db.partition_with("counts", options)?;
            batch = batch.merge(&counts, ALL, 1i64.to_le_bytes());
        }
        if self.shape.has_brief {
            let rule = TtlFilter::stored(&TtlRule::in_value(0));
            let options = PartitionOptions::new().filter(Arc::new(rule));
            let brief = self.db.partition_with("brief", options)?;
            batch = batch.put(&brief, key, expires);
        }
        batch.commit(durability).map(drop)
    }

    /// The commits of the database. Everything of each is there.
    pub fn seen(&self) -> BTreeSet<u64> {
        let begun = self.store.objects.calendar();
        let seen = self.shape.look(&self.store.objects, begun, |name| self.db.partition(name));
        let seen = seen.expect("the partitions are read");
        let values = self.db.partition("values").expect("it is there");
        for number in &seen {
            let value = values.get(number.to_be_bytes());
            let value = value.expect("it is read").expect("both are in one batch");
            // All bytes are alike.
            assert!(value[0] == *number as u8 && value[1..] == value[..value.len() - 1]);
        }
        seen
    }
}

/// A read of a primary, which may be a zombie: if it calls its state the newest one, then it is.
pub fn read_newest(machine: &Machine, commits: &Mutex<Commits>) {
    machine.db.newest_seq();
    let Ok(seen) = machine.commits().and_then(|it| try_commits(&it)) else { return };
    let seen = seen.into_keys().collect();
    let is_stored = machine.db.wait_durable(machine.db.visible_seq()).is_ok();
    if is_stored && !machine.is_local && machine.primary.confirm(MINUTE).is_ok() {
        commits.lock().check(&seen, true, "a read of a primary");
    }
}

/// A commit of a primary that another machine may have fenced.
pub fn commit_meanwhile(machine: &Machine, commits: &Mutex<Commits>) {
    let number = commits.lock().take_number();
    let committed = machine.commit(number, Durability::Sync, false);
    if let Err(error) = &committed {
        assert!(machine.is_named(error), "{error}");
    }
    commits.lock().note(number, committed, machine.is_local);
    if machine.is_local {
        // Only then it finds another writer.
        let _ = machine.primary.ship();
    }
}
