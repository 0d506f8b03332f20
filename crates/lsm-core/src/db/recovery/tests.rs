//! Epochs begun over folders in memory after a crash, and refused ones.

use super::*;
use crate::clock::SystemClock;
use crate::db::{BackgroundMode, Db};
use crate::fs::{
    AppendMode, CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind,
};

const DIR: &str = "/db";

/// The folder of a database that lost power after these keys were written, each in a batch that
/// was synced.
fn crashed(keys: &[&str]) -> Arc<dyn Fs> {
    let mem = MemFs::new();
    let builder = Db::builder(DIR).fs(Arc::new(mem.clone())).random(|| 7);
    let db = builder.background(BackgroundMode::Stepped).open().unwrap();
    let partition = db.partition("users").unwrap();
    for key in keys {
        partition.put_with(key, "value", crate::options::Durability::Sync).unwrap();
    }
    Arc::new(mem.crash_clone(CrashOutcome::Nothing, &mut || 0))
}

fn read(fs: &Arc<dyn Fs>) -> OpenPlan {
    OpenPlan::read(&**fs, Path::new(DIR), Some(&mut || 9)).unwrap()
}

fn begin(fs: &Arc<dyn Fs>, opening: OpenPlan) -> Result<RecoveredState> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let files = OpenFiles::new(fs.clone(), 1);
    let context =
        opening.context(fs, Path::new(DIR), &clock, files, false, EventQueue::default())?;
    let hooks = opening.hooks(&context, None)?;
    opening.begin_epoch(&context, &Options::default(), &hooks)
}

/// Names in the folder that end so.
fn names(fs: &Arc<dyn Fs>, ending: &str) -> Vec<String> {
    let all = fs.list(Path::new(DIR), "").unwrap().into_iter().map(|entry| entry.name);
    all.filter(|name| name.ends_with(ending)).collect()
}

/// Checks the error of an epoch that must not begin: damage in the file with this ending.
fn check_refused(fs: &Arc<dyn Fs>, opening: OpenPlan, file: &str, what: &str) {
    let before = names(fs, "");
    let error = begin(fs, opening).err().expect("it must not begin");
    let damage = error.damage().expect("it is damage");
    assert!(damage.file.to_string_lossy().ends_with(file), "{error}");
    assert!(damage.what.contains(what), "{error}");
    assert_eq!(names(fs, ""), before, "nothing is made or removed");
}

#[test]
fn an_empty_folder_becomes_a_database_only_with_a_name() {
    let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
    fs.create_dir(Path::new(DIR)).unwrap();
    let error = OpenPlan::read(&*fs, Path::new(DIR), None).err().expect("there is nothing");
    assert_eq!(error.io_source().unwrap().kind(), std::io::ErrorKind::NotFound);
    let begun = begin(&fs, read(&fs)).unwrap();
    let version = begun.versions.current();
    assert_eq!((version.epoch, version.db_id), (Epoch(1), DbId(9 << 64 | 9)));
    assert_eq!(version.partitions.values().map(|p| &*p.name).collect::<Vec<_>>(), [DEFAULT]);
}

#[test]
fn an_epoch_begins_with_what_the_log_held_and_without_its_files() {
    let fs = crashed(&["a", "b", "c"]);
    assert!(!names(&fs, ".wal").is_empty());
    fs.open_append(&Path::new(DIR).join("foreign"), AppendMode::IfAbsent).unwrap();
    let opening = read(&fs);
    let before = opening.version.epoch;
    let begun = begin(&fs, opening).unwrap();
    let RecoveredState { versions, last_seq, memtables, orphans, .. } = begun;
    let version = versions.current();
    assert_eq!(version.epoch.0, before.0 + 1);
    assert!(memtables.is_empty() && version.log_segments.is_empty());
    let entries: u64 =
        version.partitions.values().flat_map(|p| p.tables()).map(|(_, t)| t.meta.entries).sum();
    assert_eq!((entries, last_seq), (3, version.last_seq));
    assert_eq!(version.log_cut.unwrap().last_seq, last_seq);
    let old_log: Vec<_> = orphans.files.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names(&fs, ".wal"), old_log);
    let old_manifest: Vec<_> = orphans.generations.iter().map(|past| past.edit).collect();
    assert_eq!(old_manifest, [version.edit_number], "a secondary may read it");
    assert_eq!((names(&fs, ".sst").len(), names(&fs, "foreign").len()), (1, 1));
}

#[test]
fn a_folder_with_files_and_no_manifest_is_refused() {
    let fs = crashed(&["a"]);
    for name in names(&fs, ".manifest") {
        fs.delete(&Path::new(DIR).join(name)).unwrap();
    }
    let error = OpenPlan::read(&*fs, Path::new(DIR), Some(&mut || 9)).err().expect("it is damage");
    assert!(error.is_corruption(), "{error}");
}

#[test]
fn a_segment_that_is_listed_and_missing_is_refused() {
    let fs = crashed(&["a"]);
    let segment = names(&fs, ".wal").pop().unwrap();
    fs.delete(&Path::new(DIR).join(&segment)).unwrap();
    let opening = read(&fs);
    check_refused(&fs, opening, &segment, "is missing");
}

#[test]
fn a_manifest_that_ends_before_the_edit_that_the_log_attests_is_refused() {
    let fs = crashed(&["a"]);
    let mut opening = read(&fs);
    opening.version.edit_number = 0;
    check_refused(&fs, opening, ".manifest", "the log attests edit");
}

#[test]
fn a_log_that_ends_before_what_was_flushed_is_refused() {
    let fs = crashed(&["a", "b"]);
    let mut opening = read(&fs);
    let flushed = Change::FlushedThrough {
        partition: opening.version.partitions.values().next().unwrap().id,
        seq: SeqNo::new(1000).unwrap(),
        memtables_through: crate::types::MemtableId(0),
    };
    let number = opening.version.edit_number + 1;
    let edit = VersionEdit { number, changes: vec![flushed] };
    opening.version = apply(&opening.version, &edit).unwrap();
    check_refused(&fs, opening, ".wal", "was durable through 1000");
}

#[test]
fn numbers_that_no_database_reaches_are_refused() {
    let fs = crashed(&["a"]);
    let mut opening = read(&fs);
    opening.version.edit_number = u64::MAX / 2 + 1;
    let error = begin(&fs, opening).err().expect("it must not begin");
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

/// A lease that could not be read used to fail the open for writing.
#[test]
fn a_lease_that_cannot_be_read_holds_orphan_files_and_fails_no_open() {
    let folder = crashed(&["a", "b"]);
    let segment = names(&folder, ".wal").pop().unwrap();
    let manifest = names(&folder, ".manifest").pop().unwrap();
    let lease = Path::new(DIR).join("reader-0000000000000007");
    folder.open_append(&lease, AppendMode::IfAbsent).unwrap().append(b"no lease").unwrap();
    let orphan = FileName::new(FileKind::Sst, FileNo(900), Epoch(1));
    let orphan_file = folder.open_append(&orphan.path(Path::new(DIR)), AppendMode::IfAbsent);
    orphan_file.unwrap().append(b"bytes").unwrap();
    let faulty = FaultFs::new(folder.clone());
    let suffix = "reader-0000000000000007".to_owned();
    let at = FaultAt::Nth { kind: OpKind::OpenRead, suffix, nth: 0 };
    faulty.add_rule(FaultRule::sticky(at, FaultAction::Eio));
    let builder = Db::builder(DIR).fs(Arc::new(faulty.clone()));
    let db = builder.background(BackgroundMode::Stepped).open().unwrap();
    assert!(faulty.fault_count() > 0);
    for held in [orphan.to_string(), segment.clone(), manifest.clone()] {
        let held_names = names(&folder, &held);
        assert_eq!(held_names, [held], "the maker of the lease may read it");
    }
    folder.delete(&lease).unwrap();
    faulty.heal();
    db.wait_idle().unwrap();
    for gone in [orphan.to_string(), segment, manifest] {
        assert_eq!(names(&folder, &gone), [""; 0]);
    }
}
