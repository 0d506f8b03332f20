//! The new database: interrupted repairs, full disks, refusals, and what a stream has.

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, Fs};
use siltstone::ErrorKind;
use siltstone::stream::{StreamExport, StreamImport};

use super::*;

fn files_in_new(fs: &MemFs) -> Vec<PathBuf> {
    fs.paths().into_iter().filter(|path| path.starts_with(NEW)).collect()
}

/// A power cut before each operation of a repair: NEW is the whole database or none, and the next repair makes it.
#[test]
fn an_interrupted_repair_leaves_no_database_and_can_be_repeated() {
    let story = Story::new(3, 2);
    let whole = FaultFs::over_mem(copy_of(&story.fs));
    stepped(Arc::new(whole.clone()), DIR, 1).options(options()).repair_into(NEW).unwrap();
    let count = whole.mutation_count();
    let mut cuts = [0; 2];
    for cut_at in (0..count).step_by(3) {
        let mem = copy_of(&story.fs);
        let fault = FaultFs::over_mem(mem.clone());
        fault.add_rule(FaultRule::sticky(FaultAt::Mutation(cut_at), FaultAction::Eio));
        let cut = stepped(Arc::new(fault), DIR, 1).options(options()).repair_into(NEW);
        let after = mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
        let opened = builder(&after, NEW, 9).create_if_missing(false).open();
        cuts[usize::from(opened.is_ok())] += 1;
        match opened {
            Ok(db) => {
                drop(db);
                assert!(cut.is_ok(), "cut {cut_at} of {count}: it is whole");
                assert!(repaired(&after) == story.now, "cut {cut_at} of {count}: a part");
            }
            Err(error) => {
                assert!(cut.is_err(), "cut {cut_at} of {count}: {error}");
                for path in files_in_new(&after) {
                    after.remove_raw(&path).unwrap();
                }
                repair(&after).unwrap();
                assert!(repaired(&after) == story.now, "cut {cut_at} of {count}: again");
            }
        }
    }
    assert!(cuts[0] > 10, "{cuts:?} of {count}");
}

#[test]
fn a_full_disk_ends_a_repair_and_leaves_nothing() {
    let story = Story::new(4, 3);
    let used: u64 =
        story.fs.paths().iter().map(|it| story.fs.read_raw(it).unwrap().len() as u64).sum();
    let mut refused = 0;
    for room in (0..40).map(|step| step * 3000) {
        let fs = copy_of(&story.fs);
        fs.set_capacity(Some(used + room));
        match repair(&fs) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
        }
        refused += 1;
        assert_eq!(files_in_new(&fs), Vec::<PathBuf>::new(), "room {room}");
        fs.set_capacity(None);
        repair(&fs).unwrap();
        assert!(repaired(&fs) == story.now, "room {room}");
    }
    assert!(refused > 0, "the disk was full");
}

#[test]
fn a_repair_is_refused_while_a_writer_lives_and_into_a_folder_with_files() {
    let fs = MemFs::new();
    let db = builder(&fs, DIR, 1).open().unwrap();
    db.partition("plain").unwrap().put("a", "1").unwrap();
    assert_eq!(repair(&fs).unwrap_err().kind(), ErrorKind::Locked);
    db.close().unwrap();
    let other = builder(&fs, NEW, 2).open().unwrap();
    other.partition("other").unwrap().put("b", "2").unwrap();
    other.close().unwrap();
    assert_eq!(repair(&fs).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let other = builder(&fs, NEW, 2).open().unwrap();
    assert!(other.partition("other").unwrap().contains("b").unwrap(), "it is not touched");
    let nothing = builder(&fs, "/nothing", 2).repair_into("/elsewhere").unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::Io, "{nothing}");
}

/// The work folder of a repair into `NEW`.
fn work() -> PathBuf {
    PathBuf::from(format!("{NEW}.unfinished"))
}

#[test]
fn a_database_where_a_repair_works_is_not_touched() {
    let fs = MemFs::new();
    let db = builder(&fs, DIR, 1).open().unwrap();
    db.close().unwrap();
    let other = builder(&fs, work().to_str().unwrap(), 2).open().unwrap();
    other.partition("other").unwrap().put("b", "2").unwrap();
    for _ in 0..2 {
        let refused = repair(&fs).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains("no repair has left"), "{refused}");
    }
    assert!(other.partition("other").unwrap().contains("b").unwrap());
    other.close().unwrap();
    // It may be the damaged one.
    let own = builder(&fs, work().to_str().unwrap(), 1).repair_into(NEW).unwrap_err();
    assert_eq!(own.kind(), ErrorKind::InvalidArgument, "{own}");
    let other = builder(&fs, work().to_str().unwrap(), 2).open().unwrap();
    assert!(other.partition("other").unwrap().contains("b").unwrap());
}

/// A crash has left the work folder, and someone repairs the database in it into the same place.
#[test]
fn what_an_interrupted_repair_has_left_is_no_place_to_repair_it() {
    let story = Story::new(7, 2);
    let whole = FaultFs::over_mem(copy_of(&story.fs));
    stepped(Arc::new(whole.clone()), DIR, 1).options(options()).repair_into(NEW).unwrap();
    let fs = copy_of(&story.fs);
    let fault = FaultFs::over_mem(fs.clone());
    let late = FaultAt::Mutation(whole.mutation_count() * 2 / 3);
    fault.add_rule(FaultRule::sticky(late, FaultAction::Eio));
    stepped(Arc::new(fault), DIR, 1).options(options()).repair_into(NEW).unwrap_err();
    files_in_new(&fs).iter().for_each(|path| fs.remove_raw(path).unwrap());
    let left = fs.paths();
    let lock = work().join("repair-lock");
    assert!(left.contains(&lock), "{left:?}");
    let refused = builder(&fs, work().to_str().unwrap(), 1).repair_into(NEW).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert!(refused.to_string().contains("is the damaged database"), "{refused}");
    assert!(left.iter().all(|path| fs.paths().contains(path)), "nothing of it is removed");
    // Another repair is at work.
    let held = fs.try_lock(&lock).unwrap();
    assert_eq!(repair(&fs).unwrap_err().kind(), ErrorKind::Locked);
    drop(held);
    repair(&fs).unwrap();
    assert!(repaired(&fs) == story.now);
    assert!(!fs.paths().iter().any(|path| path.starts_with(work())), "{:?}", fs.paths());
}

#[test]
fn the_error_of_a_refused_open_names_the_command() {
    let story = Story::new(5, 1);
    let fs = copy_of(&story.fs);
    story.files(FileKind::Manifest).iter().for_each(|path| fs.remove_raw(path).unwrap());
    let refused = builder(&fs, DIR, 1).open().err().unwrap();
    assert!(refused.to_string().contains("siltstone repair"), "{refused}");
    assert!(refused.damage().is_some(), "{refused}");
}

#[test]
fn a_stream_of_a_damaged_database_has_what_a_repair_has() {
    let story = Story::new(6, 4);
    let fs = copy_of(&story.fs);
    story.files(FileKind::Manifest).iter().for_each(|path| fs.remove_raw(path).unwrap());
    let table = story.files(FileKind::Sst).pop().unwrap();
    fs.corrupt(&table, 40, 7).unwrap();
    let report = repair(&fs).unwrap();
    let mut stream = Vec::new();
    let (_, streamed) =
        builder(&fs, DIR, 1).export_salvaged(&mut stream, &StreamExport::new()).unwrap();
    assert_eq!(streamed, report);
    let into = builder(&fs, "/imported", 3).open().unwrap();
    into.import_stream(&stream[..], &StreamImport::new()).unwrap();
    for (name, entries) in repaired(&fs) {
        assert!(content(&into.partition(name).unwrap()) == entries, "{name}");
    }
}
