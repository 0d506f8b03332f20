//! Partitions that come and go beside everything else: writers, readers, files.

use std::path::Path;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use lsm_core::fs::{FaultFs, Fs, FsOp, MemFs, OpKind};
use siltstone::{BackgroundMode, Db, ErrorKind, Options};
use testkit::Rng;

fn open(fs: Arc<dyn Fs>) -> Db {
    let mut random = Rng::new(1);
    let options = Options::new().cache_bytes(0).write_buffer_bytes(64 << 10);
    Db::builder("/db")
        .options(options.wal_segment_bytes(64 << 10))
        .fs(fs)
        .background(BackgroundMode::Stepped)
        .random(move || random.next_u64())
        .open()
        .unwrap()
}

fn settle(db: &Db) {
    while db.step().unwrap() {}
}

fn tables(fs: &MemFs) -> usize {
    let entries = fs.list(Path::new("/db"), "").unwrap();
    entries.iter().filter(|entry| entry.name.ends_with(".sst")).count()
}

/// The files stayed until the last handle was gone, and a handle that an application keeps for good
/// kept them for good.
#[test]
fn files_of_a_dropped_partition_go_with_its_last_reader_though_handles_live() {
    let fs = MemFs::new();
    let db = open(Arc::new(fs.clone()));
    let q = db.partition("q").unwrap();
    for key in 0..100 {
        q.put(format!("{key:03}"), "value").unwrap();
    }
    db.flush().unwrap();
    q.put("in memory", "value").unwrap();
    let iter = q.iter();
    let snapshot = db.snapshot();
    db.drop_partition("q").unwrap();
    settle(&db);
    assert_eq!(tables(&fs), 1);
    assert_eq!(iter.count(), 101, "an iterator goes on");
    settle(&db);
    assert_eq!(tables(&fs), 1);
    assert_eq!(snapshot.get(&q, "007").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(snapshot.iter(&q).count(), 101, "so does a snapshot");
    let later = db.snapshot();
    assert_eq!(later.get(&q, "007").unwrap_err().kind(), ErrorKind::PartitionNotFound);
    drop(snapshot);
    settle(&db);
    assert_eq!(tables(&fs), 0, "nobody can read them any more");
    assert_eq!(q.get("007").unwrap_err().kind(), ErrorKind::PartitionNotFound);
    assert_eq!(q.put("007", "").unwrap_err().kind(), ErrorKind::PartitionNotFound);
}

/// Both held the commit path's lock over the manifest's sync: with a sync of half a second every
/// writer of every partition waited for half a second.
#[test]
fn writers_do_not_wait_for_the_sync_that_creates_or_drops_a_partition() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = open(Arc::new(fs.clone()));
    let p = db.partition("p").unwrap();
    p.put("warm", "up").unwrap();
    let change: [fn(&Db); 2] =
        [|db| drop(db.partition("new").unwrap()), |db| db.drop_partition("new").unwrap()];
    for change in change {
        let reached = Arc::new(Barrier::new(2));
        let go_on = Arc::new(Barrier::new(2));
        let at = reached.clone();
        let until = go_on.clone();
        fs.set_observer(Arc::new(move |op: &FsOp| {
            if op.kind == OpKind::Sync && op.path.to_string_lossy().ends_with(".manifest") {
                at.wait();
                until.wait();
            }
        }));
        let changing = std::thread::spawn({
            let db = db.clone();
            move || change(&db)
        });
        reached.wait();
        let (done, written) = mpsc::channel();
        let writer = std::thread::spawn({
            let p = p.clone();
            move || {
                p.put("key", "value").unwrap();
                done.send(()).unwrap();
            }
        });
        // Long enough for any machine; over at once where the writer need not wait.
        let in_time = written.recv_timeout(Duration::from_secs(20));
        fs.clear_observer();
        go_on.wait();
        changing.join().unwrap();
        writer.join().unwrap();
        assert!(in_time.is_ok(), "a writer waited for the manifest");
    }
}
