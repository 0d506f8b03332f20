//! The hooks of an existing partition change by one durable edit, or not at all: no job runs with
//! hooks that are not yet accepted, and no job installs tables that it made with hooks that are
//! gone.

use std::sync::atomic::AtomicBool;

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, FsOp, OpKind};
use metahive::Statistics;
use siltstone::{Compression, MetaHiveOptions};

use super::*;

/// As [`builder`], over a file system that fails, and without a cache.
fn faulty(fs: &FaultFs, seed: u64) -> Builder {
    let options = Options::new().write_buffer_bytes(1 << 20).cache_bytes(0);
    stepped(Arc::new(fs.clone()), "/db", seed).options(options)
}

fn dropping() -> PartitionOptions {
    tiny().level0_tables(2).filter(Arc::new(PrefixDropFilter::new([b"d".to_vec()])))
}

/// Fills tables of `p` with keys that [`dropping`] names, and with others.
fn fill(db: &Db, p: &Partition) {
    for table in 0..4u8 {
        for n in 0..50u8 {
            p.put([b'd', n, table], [n; 20]).unwrap();
            p.put([b'k', n, table], [n; 20]).unwrap();
        }
        db.flush().unwrap();
    }
}

/// Calls `action` on another thread and waits for it, at the first operation that `is_it` accepts.
fn once_at(
    fs: &FaultFs,
    is_it: impl Fn(&FsOp) -> bool + Send + Sync + 'static,
    action: impl Fn() + Send + Sync + 'static,
) {
    let is_done = AtomicBool::new(false);
    fs.set_observer(Arc::new(move |op: &FsOp| {
        if is_it(op) && !is_done.swap(true, Ordering::Relaxed) {
            std::thread::scope(|scope| {
                scope.spawn(&action);
            });
        }
    }));
}

fn is_of_table(op: &FsOp, kind: OpKind) -> bool {
    op.kind == kind && op.path.extension().is_some_and(|it| it == "sst")
}

/// MetaHive with a provider other than the built-in one.
fn with_statistics() -> PartitionOptions {
    tiny().metahive(MetaHiveOptions::new().provider(Arc::new(Statistics::default())))
}

fn check_sound(db: &Db) {
    let report = db.verify(Default::default()).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// The hooks used to be in force during the search for keys with the ending that they reserve: a
/// compaction removed what their filter names, and then the call was refused.
#[test]
fn no_job_runs_with_hooks_that_are_refused() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = faulty(&fs, 1).open().unwrap();
    let p = db.partition_with("p", tiny()).unwrap();
    fill(&db, &p);
    p.put(b"z\x01", "reserved").unwrap();
    let before = content(&p);
    let stepping = db.clone();
    once_at(
        &fs,
        |op| is_of_table(op, OpKind::Read),
        move || {
            // A compaction; a second step would wait for the log.
            assert!(stepping.step().unwrap());
        },
    );
    let options = dropping().metahive(MetaHiveOptions::new());
    let refused = db.partition_with("p", options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReservedKey);
    fs.clear_observer();
    assert!(db.stats().compaction_count > 0, "the compaction ran");
    assert!(content(&p) == before, "{} of {} entries are left", p.iter().count(), before.len());
    p.put(b"y\x01", "not reserved").unwrap();
    p.compact(..).unwrap();
    assert_eq!(content(&p).len(), before.len() + 1);
    check_sound(&db);
}

/// Options used to be stored although the hooks of the same call were refused.
#[test]
fn a_refused_call_changes_no_option() {
    let db = builder(&MemFs::new(), 2).open().unwrap();
    let p = db.partition_with("p", tiny()).unwrap();
    p.put(b"z\x01", "reserved").unwrap();
    let before = format!("{:?}", p.options());
    let options = tiny().compression(Compression::None).block_bytes(4096);
    let refused = db.partition_with("p", options.metahive(MetaHiveOptions::new()));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReservedKey);
    assert_eq!(format!("{:?}", p.options()), before);
}

/// The edit that reserves an ending fails, and is on disk anyway. A key with this ending that was
/// written afterwards then broke the rule at the next open.
#[test]
fn a_write_after_a_failed_change_outlives_a_power_cut() {
    for change in [0, 1] {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem.clone());
        let db = faulty(&fs, 3).open().unwrap();
        let sealed = tiny().metahive(MetaHiveOptions::new().any_key(false));
        let other = db.partition_with("other", sealed.clone()).unwrap();
        other.put("exported", "value").unwrap();
        other.export(.., "/export").unwrap();
        let p = db.partition_with("p", tiny()).unwrap();
        p.put("a", "value").unwrap();
        let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".manifest".to_owned(), nth: 0 };
        fs.add_rule(FaultRule::once(at, FaultAction::Eio));
        let failed = match change {
            0 => db.partition_with("p", sealed).map(drop),
            _ => p.ingest("/export").map(drop),
        };
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
        fs.heal();
        p.put_with(b"a\x01", "kept", Durability::Sync).unwrap();
        let after = mem.crash_clone(CrashOutcome::Everything, &mut || 0);
        let db = builder(&after, 4).open().unwrap();
        let p = db.partition("p").unwrap();
        assert_eq!(p.get(b"a\x01").unwrap().as_deref(), Some(&b"kept"[..]));
        p.compact(..).unwrap();
        assert_eq!(p.get(b"a\x01").unwrap().as_deref(), Some(&b"kept"[..]));
        check_sound(&db);
    }
}

/// A flush that had begun with one provider of metadata used to install its table after the
/// partition had another provider, which could not compact the table.
#[test]
fn a_job_installs_nothing_that_it_made_under_hooks_that_are_gone() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = faulty(&fs, 5).open().unwrap();
    let p = db.partition_with("p", tiny().metahive(MetaHiveOptions::new())).unwrap();
    p.put("a", "value").unwrap();
    let changing = db.clone();
    once_at(
        &fs,
        |op| is_of_table(op, OpKind::Sync),
        move || {
            changing.partition_with("p", with_statistics()).unwrap();
        },
    );
    db.flush().unwrap();
    fs.clear_observer();
    p.put("b", "value").unwrap();
    p.compact(..).unwrap();
    assert_eq!(content(&p).len(), 2);
    check_sound(&db);
}

/// The same for the tables of a bulk load, whose build lasts as long as its entries arrive.
#[test]
fn a_bulk_load_installs_no_table_that_the_partition_could_not_compact() {
    let db = builder(&MemFs::new(), 6).open().unwrap();
    let p = db.partition_with("p", tiny().metahive(MetaHiveOptions::new())).unwrap();
    let refused = p.bulk_load_by(|load| {
        load.put("a", "value")?;
        db.partition_with("p", with_statistics()).map(drop)
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    p.put("b", "value").unwrap();
    p.compact(..).unwrap();
    assert_eq!(content(&p).len(), 1);
    check_sound(&db);
}
