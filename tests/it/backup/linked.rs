//! Checkpoints of a folder that another process may write: what is linked, what is copied, and that the copy and the
//! database part.

use std::sync::Mutex;

use lsm_core::fs::{CrashOutcome, FaultFs, FsOp, OpKind};

use super::*;

struct Prepared {
    db: Db,
    /// The content of a copy: of the partition without a log, what was flushed.
    expected: State,
}

/// A database with tables and chunk files, flushed, and then written again.
fn prepared(fs: &Arc<dyn Fs>) -> Prepared {
    let db = create(fs, DIR, 1);
    let mut rng = Rng::new(4);
    for _ in 0..6 {
        write(&db, &mut rng);
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let flushed = content(&db.partition("unlogged").unwrap());
    write(&db, &mut rng);
    db.partition("plain").unwrap().put("last", "commit").unwrap();
    let mut expected = state(&db);
    assert!(expected.insert("unlogged", flushed.clone()) != Some(flushed), "it was written since");
    Prepared { db, expected }
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "sst")
}

/// All files with their bytes.
fn all_files(mem: &MemFs) -> Vec<(PathBuf, Vec<u8>)> {
    mem.paths().into_iter().map(|path| (path.clone(), mem.read_raw(&path).unwrap())).collect()
}

fn copied(fs: &Arc<dyn Fs>) -> State {
    let db = open(fs, NEW, 9).unwrap();
    assert!(db.verify(VerifyOptions::new()).unwrap().is_sound());
    state(&db)
}

#[test]
fn a_checkpoint_of_a_folder_links_tables_and_reads_none_of_them() {
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let Prepared { db, expected } = prepared(&fs);
    let ops = Arc::new(Mutex::new(Vec::new()));
    let seen = ops.clone();
    fault.set_observer(Arc::new(move |op: &FsOp| seen.lock().unwrap().push(op.clone())));
    let made = Db::builder(DIR).fs(fs.clone()).checkpoint(NEW).unwrap();
    fault.clear_observer();
    assert_eq!((made.seq, &made.unlogged[..]), (db.visible_seq(), &["unlogged".to_owned()][..]));
    let ops = ops.lock().unwrap();
    let links = ops.iter().filter(|op| op.kind == OpKind::Link && is_table(&op.path)).count();
    let tables = files_in(&mem, NEW).iter().filter(|path| is_table(path)).count();
    assert!(links == tables && tables > 3, "{links} links, {tables} tables");
    assert!(
        !ops.iter().any(|op| op.kind != OpKind::Link && is_table(&op.path)),
        "a table was read"
    );
    drop(ops);
    assert!(copied(&fs) == expected);
}

#[test]
fn a_checkpoint_of_a_folder_and_its_database_part() {
    let (_, fs) = memory();
    let Prepared { db, expected } = prepared(&fs);
    Db::builder(DIR).fs(fs.clone()).checkpoint(NEW).unwrap();
    // The writer appends to the files that it has open, merges, and deletes what was linked.
    let mut rng = Rng::new(5);
    for _ in 0..6 {
        write(&db, &mut rng);
    }
    for name in PARTITIONS {
        db.partition(name).unwrap().compact(..).unwrap();
    }
    db.wait_idle().unwrap();
    let after = state(&db);
    assert!(copied(&fs) == expected, "the copy has what it had");
    let copy = open(&fs, NEW, 7).unwrap();
    write(&copy, &mut rng);
    for name in PARTITIONS {
        copy.partition(name).unwrap().clear().unwrap();
        copy.partition(name).unwrap().compact(..).unwrap();
    }
    copy.wait_idle().unwrap();
    copy.close().unwrap();
    assert!(state(&db) == after);
    db.close().unwrap();
    let db = open(&fs, DIR, 8).unwrap();
    assert!(db.verify(VerifyOptions::new()).unwrap().is_sound());
    assert!(state(&db) == after);
}

/// The newest commits of the database are on no device, and neither are their large values, which follow older ones in
/// the same file. The copy has all of them after a power cut.
#[test]
fn a_checkpoint_of_a_folder_is_durable_where_its_database_is_not() {
    let (mem, fs) = memory();
    let Prepared { db, expected } = prepared(&fs);
    assert!(db.durable_seq() < db.visible_seq());
    Db::builder(DIR).fs(fs).checkpoint(NEW).unwrap();
    let mut rng = Rng::new(7);
    let cut = mem.crash_clone(CrashOutcome::Nothing, &mut || rng.next_u64());
    let fs: Arc<dyn Fs> = Arc::new(cut);
    assert!(copied(&fs) == expected);
}

/// Both are backed up into one folder afterwards: their files have other names.
#[test]
fn a_checkpoint_of_a_folder_shares_no_later_file_with_its_database_by_mistake() {
    let (mem, fs) = memory();
    let Prepared { db, .. } = prepared(&fs);
    Db::builder(DIR).fs(fs.clone()).checkpoint(NEW).unwrap();
    let copy = open(&fs, NEW, 7).unwrap();
    let mut rng = Rng::new(6);
    for db in [&db, &copy] {
        write(db, &mut rng);
        db.flush().unwrap();
    }
    let states = [&db, &copy].map(|db| {
        let made = engine(&fs).create_backup(db).unwrap();
        (made.backup_id, state(db))
    });
    drop((db, copy));
    for (id, state) in states {
        assert!(restored(&fs, &mem, id).unwrap() == state, "{id}");
    }
}

#[test]
fn a_checkpoint_of_a_folder_refuses_a_target_with_files_and_a_source_without_a_database() {
    let (mem, fs) = memory();
    let Prepared { db, .. } = prepared(&fs);
    let before = state(&db);
    Db::builder(DIR).fs(fs.clone()).checkpoint("/first").unwrap();
    let files = all_files(&mem);
    for target in ["/first", DIR] {
        let refused = Db::builder(DIR).fs(fs.clone()).checkpoint(target).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains(target), "{refused}");
    }
    let missing = Db::builder("/none").fs(fs.clone()).checkpoint("/other").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Io, "{missing}");
    assert_eq!(missing.io_source().map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
    assert!(all_files(&mem) == files && state(&db) == before, "nothing has changed");
    assert!(fs.list(Path::new("/other"), "").is_err(), "no folder was made");
}
