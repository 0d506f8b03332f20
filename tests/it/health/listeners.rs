//! Listeners that call the database, and that write during a call.

use super::*;

/// Calls everything that takes a lock.
#[derive(Default)]
struct CallsBack {
    db: OnceLock<Db>,
    calls: AtomicU64,
}

impl EventListener for CallsBack {
    fn on_event(&self, event: &Event) {
        let Some(db) = self.db.get() else { return };
        if self.calls.fetch_add(1, Ordering::Relaxed) > 20 {
            return;
        }
        let p = db.partition("p").unwrap();
        let _ = p.put("from a listener", format!("{event:?}").as_bytes());
        let _ = (db.health(), db.stats(), db.snapshot());
        let _ = db.partition("made by a listener");
        let _ = db.flush();
        let _ = db.wait_durable(db.durable_seq());
        let _ = db.wait_idle();
    }
}

#[test]
fn a_listener_may_call_the_database() {
    for mode in [BackgroundMode::Stepped, BackgroundMode::Threads] {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem);
        let calls = Arc::new(CallsBack::default());
        let builder = Db::builder(Path::new(DIR)).options(small()).fs(Arc::new(fs.clone()));
        let db = builder.background(mode).listener(calls.clone()).open().unwrap();
        calls.db.set(db.clone()).unwrap();
        let p = db.partition("p").unwrap();
        for _ in 0..200 {
            p.put("k", [7; 500]).unwrap();
        }
        let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".wal".to_owned(), nth: 0 };
        fs.add_rule(FaultRule::once(at, FaultAction::SyncLost));
        let _ = db.batch().put(&p, "k", "v").commit(Durability::Sync);
        // With threads the failure may be recorded only now, and `wait_idle` reports it, once.
        if let Err(error) = db.wait_idle() {
            assert_eq!((mode, error.kind()), (BackgroundMode::Threads, ErrorKind::Io));
            db.wait_idle().unwrap();
        }
        p.put("k", "v").unwrap();
        p.compact(..).unwrap();
        assert!(calls.calls.load(Ordering::Relaxed) > 3);
        db.clone().close().unwrap();
    }
}

/// Writes more than memory holds, on the thread that would have to flush it.
struct WritesMuch {
    db: OnceLock<Db>,
    done: mpsc::Sender<Option<ErrorKind>>,
}

impl EventListener for WritesMuch {
    fn on_event(&self, event: &Event) {
        if let (Event::Flushed { .. }, Some(db)) = (event, self.db.get()) {
            let p = db.partition("p").unwrap();
            let mut puts = (0..1_000).map(|_| p.put("k", [7; 500]));
            let _ = self.done.send(puts.find_map(Result::err).map(|error| error.kind()));
        }
    }
}

#[test]
fn a_listener_that_writes_too_much_is_refused() {
    let (done, refused) = mpsc::channel();
    let writes = Arc::new(WritesMuch { db: OnceLock::new(), done });
    let builder = Db::builder(Path::new(DIR)).options(small()).fs(Arc::new(MemFs::new()));
    let db = builder.listener(writes.clone()).open().unwrap();
    writes.db.set(db.clone()).unwrap();
    let p = db.partition("p").unwrap();
    // One sealed memtable, and no writer that is delayed.
    while db.stats().flush_count == 0 && db.stats().memtable_bytes < (20 << 10) {
        p.put("k", [7; 500]).unwrap();
    }
    assert_eq!(refused.recv().unwrap(), Some(ErrorKind::WouldStall));
    db.close().unwrap();
}
