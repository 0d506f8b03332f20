//! Notices of durability: each is called once, in time, and with the true outcome.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use lsm_core::fs::{
    CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, Fs, FsOp, MemFs, OpKind,
};
use siltstone::{BackgroundMode, Db, Durability, ErrorKind, PartitionOptions, SeqNo};

fn builder(fs: impl Fs + 'static) -> siltstone::Builder {
    Db::builder("/db").fs(Arc::new(fs)).sync_interval_ms(0)
}

fn stepped(fs: impl Fs + 'static) -> Db {
    builder(fs).background(BackgroundMode::Stepped).open().unwrap()
}

/// Outcomes in the order in which they were reported.
type Outcomes = Arc<Mutex<Vec<(u64, Option<ErrorKind>)>>>;

fn ask(db: &Db, seq: SeqNo, outcomes: &Outcomes) {
    let outcomes = outcomes.clone();
    let asked = db.on_durable(seq, move |outcome| {
        outcomes.lock().unwrap().push((seq.get(), outcome.err().map(|error| error.kind())));
    });
    asked.unwrap();
}

fn take(outcomes: &Outcomes) -> Vec<(u64, Option<ErrorKind>)> {
    std::mem::take(&mut *outcomes.lock().unwrap())
}

#[test]
fn a_notice_comes_when_the_commit_survives_a_crash() {
    let fs = MemFs::new();
    let db = stepped(fs.clone());
    let p = db.partition("p").unwrap();
    let outcomes = Outcomes::default();
    let first = p.put("k", "1").unwrap().seq;
    let second = p.put("k", "2").unwrap().seq;
    ask(&db, second, &outcomes);
    ask(&db, first, &outcomes);
    assert_eq!(take(&outcomes), []);
    assert!(db.durable_seq() < first);
    while take(&outcomes).is_empty() {
        assert!(db.step().unwrap());
    }
    let after = stepped(fs.crash_clone(CrashOutcome::Nothing, &mut || 0));
    assert_eq!(after.partition("p").unwrap().get("k").unwrap().unwrap(), b"2");
    // A durable commit needs no sync, and a sequence number that was not written is refused.
    ask(&db, first, &outcomes);
    assert_eq!(take(&outcomes), [(first.get(), None)]);
    let later = SeqNo::new(second.get() + 1).unwrap();
    let refused = db.on_durable(later, |_| unreachable!("it was refused")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn closing_completes_every_waiting_notice() {
    let fs = MemFs::new();
    let outcomes = Outcomes::default();
    for is_dropped in [false, true] {
        let db = stepped(fs.clone());
        let seq = db.partition("p").unwrap().put("k", "1").unwrap().seq;
        ask(&db, seq, &outcomes);
        if is_dropped {
            drop(db);
        } else {
            db.close().unwrap();
        }
        assert_eq!(take(&outcomes), [(seq.get(), None)]);
    }
}

#[test]
fn a_failed_sync_is_reported_to_its_notices_and_later_ones() {
    let faults = FaultFs::over_mem(MemFs::new());
    let db = stepped(faults.clone());
    let p = db.partition("p").unwrap();
    let outcomes = Outcomes::default();
    let seq = p.put("k", "1").unwrap().seq;
    ask(&db, seq, &outcomes);
    let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".wal".into(), nth: 0 };
    faults.add_rule(FaultRule::once(at, FaultAction::SyncLost));
    while db.step().is_ok_and(|more| more) {}
    assert_eq!(take(&outcomes), [(seq.get(), Some(ErrorKind::ReadOnly))]);
    // The store recovers by itself; from then on notices report success again.
    db.flush().unwrap();
    ask(&db, seq, &outcomes);
    assert_eq!(take(&outcomes), [(seq.get(), None)]);
    let seq = p.put("k", "2").unwrap().seq;
    ask(&db, seq, &outcomes);
    while db.step().unwrap() {}
    assert_eq!(take(&outcomes), [(seq.get(), None)]);
}

/// With threads: every commit of every writer is reported once, although no one else syncs the log.
#[test]
fn every_commit_of_many_writers_is_reported_once() {
    const WRITERS: u64 = 4;
    const EACH: u64 = 200;
    let db = builder(MemFs::new()).open().unwrap();
    let p = db.partition("p").unwrap();
    let (tell, outcomes) = mpsc::channel();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let db = &db;
            let p = &p;
            let tell = tell.clone();
            scope.spawn(move || {
                for n in 0..EACH {
                    let seq = p.put(format!("{writer}/{n}"), "").unwrap().seq;
                    let tell = tell.clone();
                    let store = db.clone();
                    db.on_durable(seq, move |outcome| {
                        outcome.unwrap();
                        assert!(store.durable_seq() >= seq);
                        tell.send(seq).unwrap();
                    })
                    .unwrap();
                    if n.is_multiple_of(50) {
                        // A notice that panics stops no other notice.
                        let last = p.put("panic", "").unwrap().seq;
                        let _ = catch_unwind(AssertUnwindSafe(|| {
                            db.on_durable(last, |_| resume_unwind(Box::new("a notice")))
                        }));
                    }
                }
            });
        }
    });
    drop(tell);
    let mut seqs: Vec<SeqNo> = outcomes.iter().collect();
    let count = seqs.len() as u64;
    seqs.sort();
    seqs.dedup();
    assert_eq!((count, seqs.len() as u64), (WRITERS * EACH, WRITERS * EACH));
    assert!(db.durable_seq() >= seqs[seqs.len() - 1]);
    db.close().unwrap();
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_future_is_ready_when_the_commit_is_durable() {
    let db = builder(MemFs::new()).open().unwrap();
    let p = db.partition("p").unwrap();
    for n in 0..50_u32 {
        let seq = p.put(n.to_be_bytes(), "").unwrap().seq;
        block_on(db.durable(seq)).unwrap();
        assert!(db.durable_seq() >= seq);
        // No one needs to poll.
        drop(db.durable(p.put("dropped", "").unwrap().seq));
    }
    let refused = block_on(db.durable(SeqNo::MAX)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let last = db.durable(p.put("last", "").unwrap().seq);
    drop((p, db));
    block_on(last).unwrap();
}

/// The durable number that was read last.
struct DurableNumber<'a> {
    db: &'a Db,
    /// Written before each look: a later commit that is not durable must not hide what came before
    /// it.
    later: Option<&'a siltstone::Partition>,
    least: SeqNo,
}

impl DurableNumber<'_> {
    /// Compares it with `seq`, which was reported as durable.
    fn check(&mut self, seq: SeqNo, what: &str) {
        if let Some(later) = self.later {
            later.put("later", "1").unwrap();
        }
        let durable = self.db.durable_seq();
        assert!(durable >= seq, "{what}: {durable} after {seq}");
        assert!(durable >= self.least, "{what}: it went back to {durable} from {}", self.least);
        assert_eq!(durable < self.db.visible_seq(), self.later.is_some(), "{what}");
        self.least = durable;
    }
}

/// The number stayed at the last operation that passed the log, so that a token compared with it
/// was never durable.
#[test]
fn the_durable_number_reaches_every_number_that_was_called_durable() {
    for is_open_ended in [false, true] {
        let db = stepped(MemFs::new());
        let logged = db.partition("logged").unwrap();
        let unlogged =
            db.partition_with("unlogged", PartitionOptions::new().logged(false)).unwrap();
        let later = is_open_ended.then_some(&logged);
        let mut number = DurableNumber { db: &db, later, least: SeqNo::ZERO };
        let seq = unlogged.put("k", "1").unwrap().seq;
        db.wait_durable(seq).unwrap();
        number.check(seq, "waited for an unlogged put");
        let outcomes = Outcomes::default();
        let seq = unlogged.put("k", "2").unwrap().seq;
        ask(&db, seq, &outcomes);
        while take(&outcomes).is_empty() {
            assert!(db.step().unwrap());
        }
        number.check(seq, "a notice of an unlogged put");
        let seq = db.batch().put(&logged, "k", "1").commit(Durability::Sync).unwrap().seq;
        number.check(seq, "a synced batch");
        logged.bulk_load([("x", "1"), ("y", "2")]).unwrap();
        let loaded = db.visible_seq();
        db.wait_durable(loaded).unwrap();
        number.check(loaded, "a bulk load");
        logged.put("k", "4").unwrap();
        assert!(db.durable_seq() < db.visible_seq(), "a put that was not synced");
        db.flush().unwrap();
        db.wait_durable(db.visible_seq()).unwrap();
        assert_eq!(db.durable_seq(), db.visible_seq());
    }
}

/// The device does not answer a sync of the log. Only those wait for it who asked for durability.
#[test]
fn a_sync_that_hangs_delays_neither_readers_nor_writers_that_ask_for_none() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = stepped(fs.clone());
    let p = db.partition("p").unwrap();
    p.put("key", "1").unwrap();
    let reached = Arc::new(Barrier::new(2));
    let go_on = Arc::new(Barrier::new(2));
    let at = reached.clone();
    let until = go_on.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        if op.kind == OpKind::Sync && op.path.to_string_lossy().ends_with(".wal") {
            at.wait();
            until.wait();
        }
    }));
    let synced = std::thread::spawn({
        let p = p.clone();
        move || p.put_with("synced", "2", Durability::Sync).unwrap()
    });
    reached.wait();
    let (done, is_done) = mpsc::channel();
    let other = std::thread::spawn({
        let db = db.clone();
        let p = p.clone();
        move || {
            let commit = p.put("key", "3").unwrap();
            assert_eq!(p.get("key").unwrap().unwrap(), b"3");
            assert_eq!(p.get("synced").unwrap().unwrap(), b"2", "it is visible, and not durable");
            assert_eq!(db.snapshot().iter(&p).count(), 2);
            assert!(db.durable_seq() < commit.seq && db.health().read_only.is_none());
            done.send(()).unwrap();
        }
    });
    // Long enough for any machine; it ends at once where nothing waits.
    let in_time = is_done.recv_timeout(Duration::from_secs(20));
    fs.clear_observer();
    go_on.wait();
    let synced = synced.join().unwrap();
    other.join().unwrap();
    assert!(in_time.is_ok(), "a reader or a writer waited for the sync");
    assert!(db.durable_seq() >= synced.seq);
}
