//! Claimants that die at each of their operations, and two at once.

use std::path::PathBuf;

use lsm_core::codec::checksum64;
use lsm_core::fs::FsOp;

use super::*;

/// A claimant whose operations fail from `after` on, as if its process had died there.
pub fn die_while_taking_over(mem: &MemFs, after: u64) -> bool {
    let dying = FaultFs::over_mem(mem.clone());
    dying.add_rule(FaultRule::sticky(FaultAt::Op(after), FaultAction::Eio));
    let taken = take_over(&(Arc::new(dying.clone()) as Arc<dyn Fs>));
    let has_died = dying.fault_count() > 0;
    assert!(taken.is_ok() || has_died, "{:?}", taken.err());
    // Dropped without a clean close.
    drop(taken);
    has_died
}

#[test]
fn a_claimant_dies_at_each_of_its_operations_and_the_next_one_finishes() {
    for is_old_alive in [true, false] {
        for after in 0.. {
            let stage = Stage::new();
            let mut rng = Rng::from_env_or(5);
            for number in 0..DEEDS {
                random_write(&stage.old, &mut rng, number).unwrap();
            }
            let has_died = die_while_taking_over(&stage.mem, after);
            let context = format!("operation {after} of the claimant");
            let mut fenced = None;
            for number in 0..6 {
                match random_write(&stage.old, &mut rng, 100 + number) {
                    Ok(()) => assert_eq!(fenced, None, "{context}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Fenced, "{context}: {error}");
                        fenced = Some(number);
                    }
                }
            }
            if is_old_alive {
                let new = take_over(&stage.plain).unwrap();
                check_taken_over(stage, new, &context);
            } else {
                let kept = state_of(&stage.old);
                assert_eq!(stage.old.close().is_err(), fenced.is_some(), "{context}");
                let new = open(&stage.plain).unwrap();
                assert!(state_of(&new) == kept, "{context}: lost");
                new.open_partition("a").unwrap().put("new", "1").unwrap();
            }
            if !has_died {
                assert!(after > 20, "{after} operations");
                break;
            }
        }
    }
}

/// The call of the old primary in which a claimant dies.
#[derive(Clone, Copy, Debug)]
enum Call {
    Put,
    Load,
    Flush,
    Compact,
}

impl Call {
    fn run(self, db: &Db) -> Result<()> {
        let a = db.open_partition("a").unwrap();
        match self {
            Call::Put => a.put("k", "in doubt").map(drop),
            Call::Load => a.bulk_load([("l", "in doubt")]).map(drop),
            Call::Flush => a.flush(),
            Call::Compact => a.compact(..),
        }
    }
}

/// Stops the old primary in a call, lets a claimant die, and lets the old primary continue: it may
/// write, after the fork, frames that it then refuses. Returns `false` if there is no such
/// operation.
fn stop_and_die(call: Call, stopped_at: u64, after: u64) -> (bool, bool) {
    let stage = Stage::new();
    let a = stage.old.open_partition("a").unwrap();
    a.put("k", "1").unwrap();
    a.flush().unwrap();
    a.put("k", "2").unwrap();
    let follower = secondary(&stage.plain);
    let followed = follower.partition("a").unwrap();
    assert_eq!(content(&followed.at(Level::Strong).unwrap()), content_of(&a));
    let has_died = Arc::new(Mutex::new(None));
    let slot = has_died.clone();
    let mem = stage.mem.clone();
    stage.before_op(stopped_at, move || {
        *slot.lock().unwrap() = Some(die_while_taking_over(&mem, after));
    });
    let done = call.run(&stage.old);
    stage.fault.clear_observer();
    let Some(has_died) = has_died.lock().unwrap().take() else { return (false, false) };
    let context = format!("{call:?}, stopped at {stopped_at}, a claimant died at {after}");
    if let Err(error) = done {
        assert_eq!(error.kind(), ErrorKind::Fenced, "{context}: {error}");
    }
    follower.sync(Target::Latest).unwrap();
    let seen = content(&follower.cut().partition(&followed).unwrap());
    assert!(seen == content_of(&a), "{context}: a secondary sees {seen:?}");
    let new = take_over(&stage.plain).unwrap();
    check_taken_over(stage, new, &context);
    (true, has_died)
}

#[test]
fn a_primary_that_is_stopped_while_a_claimant_dies_leaves_nothing_that_it_refuses() {
    for call in [Call::Put, Call::Load, Call::Flush, Call::Compact] {
        let mut stopped_at = 0;
        loop {
            let mut after = 0;
            let mut outcome = stop_and_die(call, stopped_at, after);
            if !outcome.0 {
                break;
            }
            while outcome.1 {
                after += 1;
                outcome = stop_and_die(call, stopped_at, after);
            }
            stopped_at += 1;
        }
        assert!(stopped_at > 0, "{call:?}");
    }
}

#[test]
fn of_two_claimants_at_most_one_wins_at_each_operation() {
    let mut won = [0, 0];
    for after in 0.. {
        let stage = Stage::new();
        stage.old.open_partition("a").unwrap().put("k", "1").unwrap();
        let slow = FaultFs::over_mem(stage.mem.clone());
        let other = Arc::new(Mutex::new(None));
        let slot = other.clone();
        let plain = stage.plain.clone();
        let count = slow.clone();
        slow.set_observer(Arc::new(move |_| {
            let mut slot = slot.lock().unwrap();
            if count.op_count() >= after && slot.is_none() {
                *slot = Some(take_over(&plain));
            }
        }));
        let first = take_over(&(Arc::new(slow.clone()) as Arc<dyn Fs>));
        slow.clear_observer();
        let Some(second) = other.lock().unwrap().take() else { break };
        let mut winners = Vec::new();
        for (number, claimant) in [first, second].into_iter().enumerate() {
            match claimant {
                Ok(db) => {
                    won[number] += 1;
                    winners.push(db);
                }
                Err(error) => {
                    let kind = error.kind();
                    let is_loss = matches!(kind, ErrorKind::Locked | ErrorKind::Fenced);
                    assert!(is_loss, "operation {after}: {error}");
                }
            }
        }
        // A claim that two processes lose to each other would leave the database to no one.
        assert!(!winners.is_empty(), "operation {after}: no one wins");
        // The second one may have fenced the first: then that one takes no writes.
        let writes = winners.iter().map(|db| db.open_partition("a").unwrap().put("w", "v"));
        let writers = writes.flatten().count();
        assert!(writers <= 1, "operation {after}: {writers} writers");
        drop(winners);
        let new = take_over(&stage.plain).unwrap();
        assert_eq!(new.open_partition("a").unwrap().get("k").unwrap().as_deref(), Some(&b"1"[..]));
        drop(new);
        let Stage { old, .. } = stage;
        assert_eq!(old.close().unwrap_err().kind(), ErrorKind::Fenced, "operation {after}");
    }
    assert!(won[0] > 5 && won[1] > 5, "{won:?}");
}

/// The other processes that run while a claimant is stopped, and the writes of the process that has the database after that.
struct Meanwhile {
    fs: Arc<dyn Fs>,
    /// Set by the first of them.
    newest: Option<Db>,
    written: Vec<String>,
}

impl Meanwhile {
    /// Another process takes the claim, and ends when a third one has taken the database over.
    fn begin(&mut self) {
        let Ok(second) = take_over(&self.fs) else { return };
        self.newest = take_over(&self.fs).ok();
        drop(second);
    }

    /// Writes to the newest process, if it takes writes.
    fn write(&mut self) {
        let key = format!("w{:03}", self.written.len());
        let Some(newest) = &self.newest else { return };
        if newest.open_partition("a").unwrap().put(&key, "v").is_ok() {
            self.written.push(key);
        }
    }
}

/// A claimant is stopped, and its claim is used and left by others meanwhile. What the newest of them writes while
/// the claimant goes on is there, whoever has the database then.
#[test]
fn a_claim_that_another_process_has_used_gives_its_claimant_nothing() {
    let mut begun = 0;
    for after in 0.. {
        let stage = Stage::new();
        stage.old.open_partition("a").unwrap().put("k", "1").unwrap();
        let slow = FaultFs::over_mem(stage.mem.clone());
        let fs = stage.plain.clone();
        let meanwhile = Arc::new(Mutex::new(Meanwhile { fs, newest: None, written: Vec::new() }));
        let seen = meanwhile.clone();
        slow.set_observer(Arc::new(move |op: &FsOp| {
            let mut seen = seen.lock().unwrap();
            match op.index.cmp(&after) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => seen.begin(),
                std::cmp::Ordering::Greater => seen.write(),
            }
        }));
        let first = take_over(&(Arc::new(slow.clone()) as Arc<dyn Fs>));
        slow.clear_observer();
        if slow.op_count() <= after {
            break;
        }
        if let Err(error) = &first {
            let is_loss = matches!(error.kind(), ErrorKind::Locked | ErrorKind::Fenced);
            assert!(is_loss, "operation {after}: {error}");
        }
        let mut seen = meanwhile.lock().unwrap();
        begun += u32::from(seen.newest.is_some());
        seen.write();
        drop((first, seen.newest.take()));
        let new = take_over(&stage.plain).unwrap();
        let a = new.open_partition("a").unwrap();
        for key in &seen.written {
            assert!(
                a.get(key).unwrap().is_some(),
                "operation {after}: {key} of {:?}",
                seen.written
            );
        }
    }
    assert!(begun > 5, "{begun}");
}

/// A closed database that was promoted once.
fn promoted() -> Stage {
    let stage = Stage::new();
    stage.old.open_partition("a").unwrap().put("k", "1").unwrap();
    take_over(&stage.plain).unwrap().close().unwrap();
    stage
}

fn claim_path(epoch: u32) -> PathBuf {
    Path::new(DIR).join(format!("epoch-{epoch:08x}"))
}

/// Makes the claim of `epoch`, as a process that dies right after it.
fn claim_and_die(fs: &dyn Fs, epoch: u32) {
    let mut bytes = vec![0; 40];
    fs.open_read(&claim_path(2)).unwrap().read_at(0, &mut bytes).unwrap();
    bytes[12..16].copy_from_slice(&epoch.to_le_bytes());
    let sum = checksum64(&bytes[..32]);
    bytes[32..].copy_from_slice(&sum.to_le_bytes());
    assert!(fs.put_if_absent(&claim_path(epoch), &bytes).unwrap());
}

/// Without a promotion, and with a claim that comes while the database is opened: the opener has
/// the exclusive right to write until it closes.
#[test]
fn a_claim_during_an_open_gives_no_one_its_lock() {
    let mut opened = 0;
    for after in 0.. {
        let stage = promoted();
        let fault = FaultFs::over_mem(stage.mem.clone());
        let plain = stage.plain.clone();
        let count = fault.clone();
        let is_claimed = Arc::new(Mutex::new(false));
        let claimed = is_claimed.clone();
        fault.set_observer(Arc::new(move |_: &FsOp| {
            let mut claimed = claimed.lock().unwrap();
            if count.op_count() >= after && !*claimed {
                *claimed = true;
                claim_and_die(&*plain, 9);
            }
        }));
        let first = open(&(Arc::new(fault.clone()) as Arc<dyn Fs>));
        fault.clear_observer();
        if !*is_claimed.lock().unwrap() {
            break;
        }
        let Ok(first) = first else { continue };
        opened += 1;
        let a = first.open_partition("a").unwrap();
        a.put("k", "2").unwrap();
        let second = open(&stage.plain).map(drop).unwrap_err();
        assert_eq!(second.kind(), ErrorKind::Locked, "operation {after}: {second}");
        a.put("k", "3").unwrap();
        drop(a);
        first.close().unwrap();
        let again = open(&stage.plain).unwrap();
        let a = again.open_partition("a").unwrap();
        assert_eq!(a.get("k").unwrap().as_deref(), Some(&b"3"[..]), "operation {after}");
    }
    assert!(opened > 20, "{opened}");
}

/// Once an epoch has begun after it, the state in a fork is not needed.
#[test]
fn a_superseded_fork_may_be_damaged_after_its_header() {
    let stage = promoted();
    let fork = Path::new(DIR).join("fork-00000002");
    stage.mem.corrupt(&fork, 100, 1).unwrap();
    let again = open(&stage.plain).unwrap();
    assert!(again.open_partition("a").unwrap().get("k").unwrap().is_some());
    let follower = secondary(&stage.plain);
    assert!(follower.partition("a").unwrap().get("k").unwrap().is_some());
}
