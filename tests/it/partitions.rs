//! Partitions that are created and dropped while the database is in use: writers, readers, files.

use std::path::Path;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use lsm_core::fs::{CrashOutcome, FaultFs, Fs, FsOp, MemFs, OpKind};
use siltstone::{Db, ErrorKind, Options};

use crate::store::{settle, stepped};

fn open(fs: Arc<dyn Fs>) -> Db {
    let options = Options::new().cache_bytes(0).write_buffer_bytes(1 << 20);
    // By default it is what the process may have open, and the number of syncs depends on it.
    let options = options.open_files_max(1024);
    stepped(fs, "/db", 1).options(options.wal_segment_bytes(1 << 20)).open().unwrap()
}

fn tables(fs: &MemFs) -> usize {
    let entries = fs.list(Path::new("/db"), "").unwrap();
    entries.iter().filter(|entry| entry.name.ends_with(".sst")).count()
}

/// The files used to stay until the last handle was dropped, so that a handle that an application
/// keeps permanently kept them permanently.
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
    assert_eq!(tables(&fs), 0, "no reader is left");
    assert_eq!(q.get("007").unwrap_err().kind(), ErrorKind::PartitionNotFound);
    assert_eq!(q.put("007", "").unwrap_err().kind(), ErrorKind::PartitionNotFound);
}

/// Both used to hold the lock of the commit path during the sync of the manifest: with a sync of
/// half a second every writer of every partition waited for half a second.
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
        // Long enough for any machine; it ends at once where the writer need not wait.
        let in_time = written.recv_timeout(Duration::from_secs(20));
        fs.clear_observer();
        go_on.wait();
        changing.join().unwrap();
        writer.join().unwrap();
        assert!(in_time.is_ok(), "a writer waited for the manifest");
    }
}

/// Operations on files and bytes that are appended while `action` runs.
fn cost(fs: &FaultFs, action: impl FnOnce()) -> (usize, u64) {
    fs.start_log();
    action();
    let log = fs.take_log();
    let appended = log.iter().filter(|op| op.kind == OpKind::Append);
    (log.len(), appended.map(|op| op.len).sum())
}

/// The costs of creating, writing to, flushing and dropping one partition when there are so many
/// others, each of which has a table and entries in memory.
fn costs_with(others: usize) -> Vec<(usize, u64)> {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = open(Arc::new(fs.clone()));
    let others: Vec<_> =
        (0..others).map(|n| db.partition(&format!("other {n:05}")).unwrap()).collect();
    for other in &others {
        other.put("key", "value").unwrap();
    }
    db.flush().unwrap();
    settle(&db);
    for other in &others {
        other.put("key", "value").unwrap();
    }
    settle(&db);
    let mut costs = vec![cost(&fs, || drop(db.partition("one").unwrap()))];
    let one = db.partition("one").unwrap();
    costs.push(cost(&fs, || {
        one.put("key", "value").unwrap();
    }));
    costs.push(cost(&fs, || one.flush().unwrap()));
    costs.push(cost(&fs, || settle(&db)));
    assert_eq!(one.stats().levels[0].table_count, 1);
    costs.push(cost(&fs, || db.drop_partition("one").unwrap()));
    costs
}

#[test]
fn one_partition_costs_the_same_among_a_thousand_others() {
    let few = costs_with(10);
    let many = costs_with(1000);
    for (few, many) in few.iter().zip(&many) {
        assert_eq!(few.0, many.0, "operations: {few:?} and {many:?}");
        // Larger numbers of partitions, files and offsets take some bytes more.
        assert!(few.1.abs_diff(many.1) <= 64, "bytes: {few:?} and {many:?}");
    }
}

fn count(log: &[FsOp], kind: OpKind) -> usize {
    log.iter().filter(|op| op.kind == kind).count()
}

/// Each table of the replayed log used to be synced by itself, and the folder with it: two thousand
/// syncs one after the other.
#[test]
fn an_open_after_a_write_to_each_of_a_thousand_partitions_syncs_the_folder_a_few_times() {
    let mem = MemFs::new();
    let db = open(Arc::new(mem.clone()));
    for n in 0..1000 {
        db.partition(&format!("p{n}")).unwrap().put("key", "value").unwrap();
    }
    let after = FaultFs::over_mem(mem.crash_clone(CrashOutcome::Everything, &mut || 0));
    after.start_log();
    let db = open(Arc::new(after.clone()));
    let log = after.take_log();
    let of_tables = log.iter().filter(|op| op.path.to_string_lossy().ends_with(".sst"));
    let of_tables = of_tables.filter(|op| matches!(op.kind, OpKind::Create | OpKind::Sync));
    let of_tables: Vec<OpKind> = of_tables.map(|op| op.kind).collect();
    assert_eq!(of_tables.iter().filter(|kind| **kind == OpKind::Create).count(), 1000);
    // 64 tables are synced together, so that no more of them are open.
    let batches = of_tables.windows(2).filter(|pair| *pair == [OpKind::Create, OpKind::Sync]);
    assert_eq!(batches.count(), 1000_usize.div_ceil(64));
    assert!(
        count(&log, OpKind::SyncDir) <= 6,
        "{} syncs of the folder",
        count(&log, OpKind::SyncDir)
    );
    assert!(count(&log, OpKind::Sync) <= 1010, "{} syncs of files", count(&log, OpKind::Sync));
    let last = db.open_partition("p999").unwrap();
    assert_eq!(last.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}
