//! Compares the figures of disk space with the listing of the folder, while files are written.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, Fs, FsOp, MemFs, OpKind};
use siltstone::{Db, Durability, LargeValueOptions, Options, PartitionOptions};
use testkit::Rng;

use crate::store::stepped;

/// The commit cursor, which the file system in memory does not list.
const CURSOR_BYTES: u64 = 8192;

/// The total size of the files with these endings.
fn sum_of(mem: &MemFs, endings: &[&str]) -> u64 {
    let files = mem.list("/db".as_ref(), "").unwrap().into_iter();
    let counted = files.filter(|file| endings.iter().any(|ending| file.name.ends_with(ending)));
    counted.map(|file| file.len).sum()
}

/// Compares the figures with the files in the folder, without the log: a part of it may have been
/// returned to the file system.
fn check(db: &Db, mem: &MemFs, context: &str) {
    let stats = db.stats();
    let listed = sum_of(mem, &[".sst", ".chunk", ".manifest"]);
    let counted = stats.disk_bytes - stats.wal_disk_bytes;
    assert_eq!(counted, listed + CURSOR_BYTES, "{context}: {:?}", mem.list("/db".as_ref(), ""));
    let space = db.open_partition("p").unwrap().space().unwrap();
    assert_eq!(space.total_bytes, sum_of(mem, &[".chunk"]), "{context}");
    assert!(stats.wal_disk_bytes <= sum_of(mem, &[".wal"]), "{context}");
}

/// A database that stops at operations on tables, and is compared with its folder.
struct Watched {
    db: Db,
    mem: MemFs,
    fault: FaultFs,
    stops: Arc<AtomicU64>,
}

impl Watched {
    fn new() -> Watched {
        let mem = MemFs::new();
        let fault = FaultFs::over_mem(mem.clone());
        let builder = stepped(Arc::new(fault.clone()), "/db", 7);
        let options = Options::new().write_buffer_bytes(256 << 10).cache_bytes(0);
        let db = builder.options(options).open().unwrap();
        Watched { db, mem, fault, stops: Arc::default() }
    }

    fn watch(&self) {
        let db = self.db.clone();
        let mem = self.mem.clone();
        let stops = self.stops.clone();
        self.fault.set_observer(Arc::new(move |op: &FsOp| {
            // An operation on a table: no lock is held there.
            let is_table = op.path.extension().is_some_and(|it| it == "sst");
            if is_table && matches!(op.kind, OpKind::Append | OpKind::Sync) {
                stops.fetch_add(1, Ordering::Relaxed);
                check(&db, &mem, &format!("{op:?}"));
            }
        }));
    }

    /// Compares again, after work that was stopped.
    fn seen(&self, context: &str) {
        check(&self.db, &self.mem, context);
        assert!(self.stops.swap(0, Ordering::Relaxed) > 1, "{context}: nothing was stopped");
    }
}

#[test]
fn the_figures_are_those_of_the_folder_while_files_are_written() {
    let watched = Watched::new();
    let Watched { db, mem, fault, .. } = &watched;
    let large = LargeValueOptions::new().threshold_bytes(2 << 10).chunk_bytes(16 << 10);
    let options = PartitionOptions::new().table_bytes(8 << 10).large_values(large);
    let p = db.partition_with("p", options).unwrap();
    watched.watch();
    let mut rng = Rng::from_env_or(3);
    for round in 0..3 {
        for n in 0..300_u16 {
            let len = if n % 40 == 0 { 3000 } else { 200 };
            p.put(n.to_be_bytes(), rng.bytes(len)).unwrap();
        }
        p.flush().unwrap();
        watched.seen(&format!("flush {round}"));
    }
    // A reader holds the tables that the compaction drops.
    let mut reader = p.iter();
    reader.next().unwrap().unwrap();
    p.compact(..).unwrap();
    watched.seen("compaction");
    drop(reader);
    db.wait_idle().unwrap();
    check(db, mem, "after the compaction");
    p.export(.., "/out").unwrap();
    watched.seen("export");
    p.bulk_load((0..400_u16).map(|n| (format!("bulk {n:03}"), rng.bytes(300)))).unwrap();
    watched.seen("bulk load");
    let q = db.partition_with("q", PartitionOptions::new()).unwrap();
    q.ingest("/out").unwrap();
    watched.seen("ingest");
    db.checkpoint("/copy").unwrap();
    check(db, mem, "checkpoint");
    let mut stream = p.put_stream("stream", None).unwrap();
    for piece in 0..50 {
        stream.write_all(&rng.bytes(10_000)).unwrap();
        stream.flush().unwrap();
        check(db, mem, &format!("piece {piece} of a stream"));
    }
    stream.commit(Durability::Os).unwrap();
    check(db, mem, "stream");
    for kind in [OpKind::Append, OpKind::Sync] {
        let at = FaultAt::Nth { kind, suffix: ".sst".to_owned(), nth: 1 };
        fault.add_rule(FaultRule::once(at, FaultAction::Eio));
        p.compact(..).unwrap_err();
        watched.seen(&format!("failed {kind:?}"));
        fault.heal();
    }
    p.compact(..).unwrap();
    watched.seen("the compaction that follows");
    fault.clear_observer();
}
