//! Failed syncs of the folder: a name that such a sync contained is lost at a power cut, although a
//! later sync reports success. No acknowledged write may depend on such a name, whichever call made
//! the sync.

use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, FsOp, OpKind};

use super::*;

/// A database with large values in `p` and small ones in `q`, and the values that it has
/// acknowledged.
struct Store {
    mem: MemFs,
    fs: FaultFs,
    clock: ManualClock,
    db: Option<Db>,
    /// Every put that returned, and how many of them are certainly durable.
    puts: Vec<(u32, bool)>,
    durable: usize,
    copies: Vec<(String, usize)>,
}

/// The power is cut after so many steps that follow a fault, and at the end.
const STEPS_WITH_CUTS: u32 = 4;

/// A step of a script. The error of a call does not stop the script.
type Step = fn(&mut Store, u32) -> Result<()>;

const STEPS: &[Step] = &[
    |it, n| it.put(n, true, Durability::Os),
    |it, _| it.q().flush(),
    |it, n| it.put(n, false, Durability::Os),
    |it, n| it.put(n, true, Durability::Os),
    |it, _| it.q().flush(),
    |it, n| it.put(n, true, Durability::Sync),
    |it, n| it.stream(n),
    |it, n| it.put(n, false, Durability::Sync),
    |it, n| it.stream(n),
    |it, n| it.db().partition(&format!("r{n}"))?.put("key", "value").map(drop),
    |it, _| it.p().flush(),
    |it, n| it.stream(n),
    |it, n| it.checkpoint(n),
    |it, n| it.p().put_with("moved", vec![n as u8; 3000], Durability::Os).map(drop),
    |it, _| it.p().flush(),
    |it, _| it.p().compact(..),
    |it, _| it.p().reallocate(..).map(drop),
    |it, n| it.export(n),
    |it, n| it.put(n, false, Durability::Os),
    |it, _| it.rest(),
    |it, n| it.put(n, true, Durability::Sync),
    |it, _| it.reopen(),
    |it, n| it.put(n, true, Durability::Os),
    |it, n| it.put(n, true, Durability::Sync),
];

impl Store {
    fn new() -> Store {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem.clone());
        let clock = ManualClock::default();
        let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
        db.partition_with("p", options()).unwrap();
        db.partition("q").unwrap();
        db.wait_idle().unwrap();
        Store { mem, fs, clock, db: Some(db), puts: Vec::new(), durable: 0, copies: Vec::new() }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn p(&self) -> Partition {
        self.db().partition("p").unwrap()
    }

    fn q(&self) -> Partition {
        self.db().partition("q").unwrap()
    }

    fn put(&mut self, n: u32, is_large: bool, durability: Durability) -> Result<()> {
        let to = if is_large { self.p() } else { self.q() };
        let done = to.put_with(n.to_be_bytes(), value_of(n, is_large), durability);
        self.note(n, is_large, done.map(drop), durability)
    }

    fn stream(&mut self, n: u32) -> Result<()> {
        let done = self.p().put_stream(n.to_be_bytes(), None).and_then(|mut writer| {
            writer.write_all(&value_of(n, true)).map_err(siltstone::Error::from)?;
            writer.commit(Durability::Os).map(drop)
        });
        self.note(n, true, done, Durability::Os)
    }

    fn note(&mut self, n: u32, is_large: bool, done: Result<()>, how: Durability) -> Result<()> {
        done?;
        self.puts.push((n, is_large));
        if how == Durability::Sync {
            self.durable = self.puts.len();
        }
        Ok(())
    }

    fn checkpoint(&mut self, n: u32) -> Result<()> {
        let dir = format!("/copy-{n}");
        self.db().checkpoint(&dir)?;
        self.copies.push((dir, self.puts.len()));
        Ok(())
    }

    /// Exports `q`, and ingests the export as another partition.
    fn export(&mut self, n: u32) -> Result<()> {
        let dir = format!("/export-{n}");
        self.q().export(.., &dir)?;
        self.db().partition(&format!("of {n}"))?.ingest(&dir).map(drop)
    }

    fn rest(&self) -> Result<()> {
        (0..30).try_for_each(|_| {
            self.clock.pass(1);
            self.db().wait_idle()
        })
    }

    fn open(&self) -> Result<Db> {
        open_with(Arc::new(self.fs.clone()), "/db", &self.clock)
    }

    fn reopen(&mut self) -> Result<()> {
        let closed = self.db.take().unwrap().close();
        let opened = self.open();
        let is_whole = closed.is_ok() && opened.is_ok();
        // An open that failed can be repeated.
        let again = opened.or_else(|_| {
            self.fs.heal();
            self.open()
        });
        self.db = Some(again.unwrap());
        if is_whole {
            self.durable = self.puts.len();
        }
        closed
    }

    /// Checks that every acknowledged write is there after a power cut.
    fn check_cut(&self, outcome: CrashOutcome, when: &str) {
        let mut rng = Rng::new(3);
        let left = self.mem.crash_clone(outcome, &mut || rng.next_u64());
        let is_last = when.ends_with("at the end");
        check_puts(&left, "/db", &self.puts[..self.durable], is_last, when);
        for (dir, count) in self.copies.iter().filter(|_| is_last) {
            check_puts(&left, dir, &self.puts[..*count], is_last, when);
        }
    }
}

fn value_of(n: u32, is_large: bool) -> Vec<u8> {
    vec![n as u8; if is_large { 1500 } else { 20 }]
}

fn check_puts(fs: &MemFs, dir: &str, puts: &[(u32, bool)], is_verified: bool, when: &str) {
    let opened = open_with(Arc::new(fs.clone()), dir, &ManualClock::default());
    let db = opened.unwrap_or_else(|error| panic!("{when}: {dir} does not open: {error}"));
    for (n, is_large) in puts {
        let partition = db.partition(if *is_large { "p" } else { "q" }).unwrap();
        let found = partition.get(n.to_be_bytes());
        let found = found.unwrap_or_else(|error| panic!("{when}: {dir}, put {n}: {error}"));
        assert!(found.is_some_and(|found| found == value_of(*n, *is_large)), "{when}: {dir}, {n}");
    }
    if is_verified {
        let report = db.verify(Default::default()).unwrap();
        assert!(report.is_sound(), "{when}: {dir}: {report:?}");
    }
}

/// Runs the script with this fault. Returns the operations of the script.
fn run(fault: Option<FaultRule>, when: &str) -> Vec<FsOp> {
    let mut it = Store::new();
    let mut since_fault = 0;
    let is_without_handle = fault.as_ref().is_some_and(|rule| rule.action == FaultAction::Emfile);
    it.fs.start_log();
    fault.into_iter().for_each(|rule| it.fs.add_rule(rule));
    for (n, step) in (0..).zip(STEPS) {
        let done = step(&mut it, n);
        if it.fs.fault_count() == 0 {
            done.unwrap_or_else(|error| panic!("step {n} failed without a fault: {error}"));
            continue;
        }
        since_fault += 1;
        if is_without_handle {
            // A fault that lasts ends with the step.
            it.fs.heal();
            let health = it.db().health();
            assert!(health.read_only.is_none(), "{when}, step {n}: {health}");
            assert_eq!(value_store(it.db()).failure, None, "{when}, step {n}");
        }
        if since_fault <= STEPS_WITH_CUTS && !is_without_handle {
            it.check_cut(CrashOutcome::Nothing, &format!("{when}, cut after step {n}"));
        }
    }
    let log = it.fs.take_log();
    // The store recovers, and everything that it shows is durable at the next sync.
    it.db().wait_idle().unwrap();
    it.put(100, true, Durability::Sync).unwrap_or_else(|error| panic!("{when}: {error}"));
    it.check_cut(CrashOutcome::Nothing, &format!("{when}, cut at the end"));
    it.check_cut(CrashOutcome::Subset, &format!("{when}, half cut at the end"));
    // A commit cursor that could not be created is tried again after a while.
    it.clock.pass(10);
    it.db().wait_idle().unwrap();
    assert!(it.db().health().is_healthy(), "{when}: {}", it.db().health());
    log
}

#[test]
fn no_acknowledged_value_rests_on_a_name_of_a_failed_sync_of_the_folder() {
    let log = run(None, "without a fault");
    let syncs = log.iter().filter(|op| matches!(op.kind, OpKind::SyncDir | OpKind::PutIfAbsent));
    let syncs: Vec<&FsOp> = syncs.collect();
    assert!(syncs.len() > 20, "{} syncs of folders", syncs.len());
    for op in syncs {
        let when = format!("{:?} of {} failed (op {})", op.kind, op.path.display(), op.index);
        run(Some(FaultRule::once(FaultAt::Op(op.index), FaultAction::SyncLost)), &when);
    }
}

/// A file or folder that could not be opened for a sync is no failed sync: nothing is in doubt, and
/// only calls that need a handle fail.
#[test]
fn a_process_without_a_handle_has_no_failed_sync() {
    let log = run(None, "without a fault");
    let opens = log.iter().filter(|op| FaultAction::Emfile.can_happen_to(op.kind));
    let opens: Vec<&FsOp> = opens.collect();
    assert!(opens.len() > 50, "{} operations that open", opens.len());
    for op in opens {
        for sticky in [false, true] {
            let at = FaultAt::Op(op.index);
            let rule = FaultRule { at, action: FaultAction::Emfile, sticky };
            let lasting = if sticky { "and all later ones" } else { "alone" };
            let file = op.path.display();
            let when =
                format!("{:?} of {file} without a handle (op {}), {lasting}", op.kind, op.index);
            run(Some(rule), &when);
        }
    }
}

/// A stream has its file long before its value is committed.
#[test]
fn a_failed_sync_of_the_folder_by_a_flush_condemns_the_file_of_a_stream() {
    let mut it = Store::new();
    it.put(1, false, Durability::Os).unwrap();
    let p = it.p();
    let mut writer = p.put_stream(2_u32.to_be_bytes(), None).unwrap();
    writer.write_all(&value_of(2, true)).unwrap();
    let at = FaultAt::Nth { kind: OpKind::SyncDir, suffix: "db".to_owned(), nth: 0 };
    it.fs.add_rule(FaultRule::once(at, FaultAction::SyncLost));
    it.q().flush().unwrap_err();
    let refused = writer.commit(Durability::Sync).map(drop).unwrap_err().to_string();
    assert!(refused.contains("chunk file"), "{refused}");
    it.db().wait_idle().unwrap();
    it.note(2, true, Ok(()), Durability::Os).unwrap();
    it.put(3, true, Durability::Sync).unwrap();
    it.check_cut(CrashOutcome::Nothing, "after the flush");
}
