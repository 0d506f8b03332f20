//! Rules apply to the operations that they name and to no others; the medium is left as the action
//! describes.

use super::*;
use crate::error::ErrorKind;
use crate::fs::CrashOutcome;

fn new_fs() -> (MemFs, FaultFs) {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    fs.create_dir(Path::new("/d")).unwrap();
    (mem, fs)
}

fn create(fs: &FaultFs, path: &str) -> Arc<dyn File> {
    fs.open_append(Path::new(path), AppendMode::IfAbsent).unwrap()
}

/// Returns the durable content of a file.
fn durable(mem: &MemFs, path: &str) -> Option<Vec<u8>> {
    let left = mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    left.read_raw(Path::new(path)).ok()
}

fn nth(kind: OpKind, suffix: &str, nth: u64) -> FaultAt {
    FaultAt::Nth { kind, suffix: suffix.to_owned(), nth }
}

/// An error unless it is done, for the one operation that returns a boolean.
fn refused_unless(done: bool) -> Result<()> {
    if done { Ok(()) } else { Err(Error::new(ErrorKind::Io, "refused")) }
}

/// One call of each kind, in a fixed order; returns the outcomes.
fn every_kind(fs: &FaultFs) -> Vec<(OpKind, Result<()>)> {
    let dir = Path::new("/e");
    let path = Path::new("/e/a");
    let file = fs.open_append(path, AppendMode::IfAbsent);
    let mut done = vec![(OpKind::Create, file.as_ref().map(drop).map_err(Clone::clone))];
    let Ok(file) = file else { return done };
    done.extend([
        (OpKind::CreateDir, fs.create_dir(dir)),
        (OpKind::OpenExisting, fs.open_append(path, AppendMode::Existing).map(drop)),
        (OpKind::OpenRead, fs.open_read(path).map(drop)),
        (OpKind::PutIfAbsent, fs.put_if_absent(Path::new("/e/p"), b"123").map(drop)),
        (OpKind::List, fs.list(dir, "").map(drop)),
        (OpKind::Link, fs.link(path, Path::new("/e/l")).map(drop)),
        (OpKind::Delete, fs.delete(Path::new("/e/p"))),
        (OpKind::SyncDir, fs.sync_dir(dir)),
        (OpKind::Lock, fs.try_lock(Path::new("/e/LOCK")).map(drop)),
        (OpKind::LockShared, fs.try_lock_shared(path).map(drop)),
        (OpKind::Append, file.append(b"12345")),
        (OpKind::Read, file.read_at(0, &mut [0; 2]).map(drop)),
        (OpKind::Read, file.read_at_uncached(0, &mut [0; 2]).map(drop)),
        (OpKind::Preallocate, file.preallocate(100)),
        (OpKind::Map, refused_unless(file.map_appends())),
        (OpKind::Overwrite, file.overwrite(0, b"1")),
        (OpKind::Punch, file.punch(0, 2)),
        (OpKind::Sync, file.sync()),
        (OpKind::BeginSync, begun(fs, &*file)),
        (OpKind::BeginNextSync, file.begin_next_sync()),
        (OpKind::Len, file.len().map(drop)),
        (OpKind::FreeBytes, fs.free_bytes(dir).map(drop)),
        (OpKind::MapWords, fs.map_words(Path::new("/e/w"), MapMode::Create(1)).map(drop)),
    ]);
    done
}

/// It returns nothing: a fault counts.
fn begun(fs: &FaultFs, file: &dyn File) -> Result<()> {
    let before = fs.fault_count();
    file.begin_sync();
    refused_unless(fs.fault_count() == before)
}

fn fresh() -> FaultFs {
    let mem = MemFs::new();
    mem.create_dir(Path::new("/e")).unwrap();
    FaultFs::over_mem(mem)
}

#[test]
fn every_operation_is_counted_logged_and_can_be_failed() {
    let fs = fresh();
    fs.start_log();
    let kinds: Vec<OpKind> = every_kind(&fs)
        .into_iter()
        .map(|(kind, done)| {
            done.unwrap();
            kind
        })
        .collect();
    assert!(OpKind::ALL.iter().all(|kind| kinds.contains(kind)));
    let log = fs.take_log();
    assert_eq!(log.iter().map(|op| op.kind).collect::<Vec<_>>(), kinds);
    assert!(log.iter().enumerate().all(|(i, op)| op.index == i as u64));
    assert_eq!(fs.op_count(), log.len() as u64);
    assert_eq!(fs.mutation_count(), log.iter().filter(|op| op.mutates()).count() as u64);
    let append = log.iter().find(|op| op.kind == OpKind::Append).unwrap();
    assert_eq!((&*append.path, append.len), (Path::new("/e/a"), 5));
    assert!(fs.take_log().is_empty());

    for (index, kind) in kinds.iter().enumerate() {
        let fs = fresh();
        fs.add_rule(FaultRule::once(FaultAt::Op(index as u64), FaultAction::Eio));
        let failed: Vec<OpKind> =
            every_kind(&fs).into_iter().filter(|(_, done)| done.is_err()).map(|it| it.0).collect();
        assert_eq!((failed, fs.fault_count()), (vec![*kind], 1));
    }
}

#[test]
fn mutations_are_numbered_apart() {
    let (_, fs) = new_fs();
    fs.add_rule(FaultRule::once(FaultAt::Mutation(3), FaultAction::Eio));
    let file = create(&fs, "/d/a");
    file.append(b"2").unwrap();
    file.len().unwrap();
    file.read_at(0, &mut [0]).unwrap();
    assert!(file.sync().is_err());
    file.sync().unwrap();
}

#[test]
fn a_rule_hits_the_nth_of_its_kind_and_suffix() {
    let (_, fs) = new_fs();
    let wal = create(&fs, "/d/1.wal");
    let sst = create(&fs, "/d/2.sst");
    fs.add_rule(FaultRule::once(nth(OpKind::Append, ".wal", 1), FaultAction::Eio));
    fs.add_rule(FaultRule::sticky(nth(OpKind::Sync, "", 2), FaultAction::Eio));
    let appended: Vec<bool> =
        (0..4).flat_map(|_| [&wal, &sst]).map(|f| f.append(b"x").is_ok()).collect();
    assert_eq!(appended, [true, true, false, true, true, true, true, true]);
    assert_eq!([(); 5].map(|()| wal.sync().is_ok()), [true, true, false, false, false]);
    fs.heal();
    assert_eq!([(); 2].map(|()| wal.sync().is_ok()), [true, true]);
    assert_eq!(fs.fault_count(), 4);
}

#[test]
fn of_two_rules_the_older_acts_and_both_count() {
    let (_, fs) = new_fs();
    let file = create(&fs, "/d/a");
    fs.add_rule(FaultRule::once(nth(OpKind::Append, "", 1), FaultAction::Enospc));
    fs.add_rule(FaultRule::once(nth(OpKind::Append, "", 1), FaultAction::Eio));
    fs.add_rule(FaultRule::once(nth(OpKind::Append, "", 3), FaultAction::Eio));
    let kinds: Vec<Option<ErrorKind>> =
        (0..4).map(|_| file.append(b"x").err().map(|e| e.kind())).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::NoSpace), None, Some(ErrorKind::Io)]);
}

#[test]
fn a_full_disk_refuses_growth_and_nothing_else() {
    let (mem, fs) = new_fs();
    let file = create(&fs, "/d/a");
    fs.add_rule(FaultRule::sticky(FaultAt::Op(0), FaultAction::Enospc));
    assert_eq!(file.append(b"x").unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(file.sync().unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(fs.put_if_absent(Path::new("/d/m"), b"x").is_err());
    assert_eq!(file.read_at(0, &mut [0]).unwrap(), 0);
    fs.delete(Path::new("/d/a")).unwrap();
    assert!(mem.paths().is_empty());
}

#[test]
fn a_short_write_leaves_its_front() {
    let (mem, fs) = new_fs();
    let file = create(&fs, "/d/a");
    let next_append = nth(OpKind::Append, "", 0);
    fs.add_rule(FaultRule::once(next_append.clone(), FaultAction::ShortWrite(2)));
    assert_eq!(file.append(b"12345").unwrap_err().kind(), ErrorKind::Io);
    fs.add_rule(FaultRule::once(next_append, FaultAction::ShortWriteNoSpace(9)));
    assert_eq!(file.append(b"678").unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(mem.read_raw(Path::new("/d/a")).unwrap(), b"12678");
}

/// Appends, syncs under `action`, syncs again; returns the outcome of the first sync, the bytes
/// that reads see, and those that are durable.
fn sync_under(action: FaultAction) -> (bool, Vec<u8>, Vec<u8>) {
    let (mem, fs) = new_fs();
    let file = create(&fs, "/d/a");
    fs.sync_dir(Path::new("/d")).unwrap();
    fs.add_rule(FaultRule::once(nth(OpKind::Sync, "a", 0), action));
    file.append(b"x").unwrap();
    let said = file.sync().is_ok();
    assert_eq!(durable(&mem, "/d/a").unwrap(), b"", "{action:?}");
    file.sync().unwrap();
    (said, mem.read_raw(Path::new("/d/a")).unwrap(), durable(&mem, "/d/a").unwrap())
}

#[test]
fn a_failed_sync_is_as_bad_as_its_action_says() {
    let x = b"x".to_vec();
    let none = Vec::new();
    assert_eq!(sync_under(FaultAction::Eio), (false, x.clone(), x.clone()));
    assert_eq!(sync_under(FaultAction::SyncLie), (true, x.clone(), x.clone()));
    assert_eq!(sync_under(FaultAction::SyncLost), (false, x, none.clone()));
    assert_eq!(sync_under(FaultAction::SyncReverted), (false, none.clone(), none));
}

#[test]
fn a_lost_sync_reaches_a_file_without_a_name() {
    let (mem, fs) = new_fs();
    let file = create(&fs, "/d/a");
    fs.link(Path::new("/d/a"), Path::new("/d/b")).unwrap();
    fs.delete(Path::new("/d/a")).unwrap();
    fs.sync_dir(Path::new("/d")).unwrap();
    file.append(b"x").unwrap();
    fs.add_rule(FaultRule::once(nth(OpKind::Sync, "", 0), FaultAction::SyncLost));
    assert!(file.sync().is_err() && file.sync().is_ok());
    assert_eq!(durable(&mem, "/d/b").unwrap(), b"");
}

#[test]
fn names_can_be_lost_and_lied_about() {
    for (action, said, after_another_sync) in [
        (FaultAction::SyncLie, true, true),
        (FaultAction::SyncLost, false, false),
        (FaultAction::Eio, false, true),
    ] {
        let (mem, fs) = new_fs();
        create(&fs, "/d/a");
        fs.add_rule(FaultRule::once(nth(OpKind::SyncDir, "", 0), action));
        assert_eq!(fs.sync_dir(Path::new("/d")).is_ok(), said);
        assert_eq!(durable(&mem, "/d/a"), None);
        fs.sync_dir(Path::new("/d")).unwrap();
        assert_eq!(durable(&mem, "/d/a").is_some(), after_another_sync, "{action:?}");
    }
}

#[test]
fn a_doubtful_publication_is_visible_and_not_durable() {
    for (action, said) in [(FaultAction::SyncLost, false), (FaultAction::SyncLie, true)] {
        let (mem, fs) = new_fs();
        let path = Path::new("/d/m");
        fs.add_rule(FaultRule::once(nth(OpKind::PutIfAbsent, "", 0), action));
        assert_eq!(fs.put_if_absent(path, b"whole").is_ok(), said);
        assert_eq!(durable(&mem, "/d/m"), None);
        assert_eq!(mem.read_raw(path).unwrap(), b"whole");
        assert!(!fs.put_if_absent(path, b"other").unwrap());
        create(&fs, "/d/later");
        fs.sync_dir(Path::new("/d")).unwrap();
        // The last step of a publication is a sync of the folder: if it is lost, a later one does not save
        // the name.
        assert_eq!(durable(&mem, "/d/m").is_some(), said);
        assert!(durable(&mem, "/d/later").is_some());
    }
}

#[test]
fn the_observer_sees_the_state_before_each_operation_and_may_add_rules() {
    let (mem, fs) = new_fs();
    let file = create(&fs, "/d/a");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let under = mem.clone();
    let over = fs.clone();
    let out = Arc::clone(&seen);
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let image = under.crash_clone(CrashOutcome::Everything, &mut || 0);
        out.lock().push((op.kind, image.read_raw(Path::new("/d/a")).unwrap().len()));
        if op.kind == OpKind::Sync {
            over.add_rule(FaultRule::once(FaultAt::Op(op.index), FaultAction::Eio));
        }
    }));
    file.append(b"one").unwrap();
    file.append(b"two").unwrap();
    assert!(file.sync().is_err());
    fs.clear_observer();
    file.append(b"3").unwrap();
    let expected = [(OpKind::Append, 0), (OpKind::Append, 3), (OpKind::Sync, 6)];
    assert_eq!(*seen.lock(), expected);
}

#[test]
fn over_another_file_system_a_lost_sync_does_not_reach_it() {
    let mem = MemFs::new();
    mem.create_dir(Path::new("/d")).unwrap();
    let fs = FaultFs::new(Arc::new(mem.clone()));
    let file = create(&fs, "/d/a");
    fs.sync_dir(Path::new("/d")).unwrap();
    file.append(b"x").unwrap();
    fs.add_rule(FaultRule::once(nth(OpKind::Sync, "", 0), FaultAction::SyncLost));
    assert!(file.sync().is_err());
    assert_eq!(durable(&mem, "/d/a").unwrap(), b"");
}
