//! A primary that deletes files exactly when a secondary is about to read them.
//!
//! The lease of the secondary holds segments of the log and generations of the manifest as it holds
//! tables: by the edit that dropped them.

use std::sync::Mutex;

use lsm_core::fs::{FaultFs, OpKind};
use secondary::{Level, Target};

use super::*;

/// Interruptions of one test: more than a secondary makes attempts.
const TIMES: usize = 60;

/// The names in the folder with this ending.
fn names(fs: &Arc<dyn Fs>, ending: &str) -> Vec<String> {
    let all = fs.list(DIR.as_ref(), "").unwrap().into_iter().map(|entry| entry.name);
    all.filter(|name| name.ends_with(ending)).collect()
}

/// Fills some segments of the log, and flushes until none of them is needed.
fn replace_segments(db: &Db, round: usize) {
    let p = db.partition("p").unwrap();
    let value = format!("{round} {}", "x".repeat(4000));
    for key in 0..12 {
        p.put(format!("{key:02}"), &value).unwrap();
    }
    p.flush().unwrap();
    db.wait_idle().unwrap();
}

/// Installs edits until the manifest continues in another generation.
fn replace_manifest(db: &Db, fs: &Arc<dyn Fs>) {
    let before = names(fs, ".manifest").pop();
    while names(fs, ".manifest").pop() == before {
        db.partition("passing").unwrap();
        db.drop_partition("passing").unwrap();
    }
    db.wait_idle().unwrap();
}

/// A primary with small generations of the manifest.
fn primary_of(fs: &Arc<dyn Fs>) -> Db {
    let builder = Db::builder(DIR).fs(fs.clone()).options(options().manifest_bytes_max(1));
    builder.background(BackgroundMode::Stepped).open().unwrap()
}

/// Calls `act` with the number of the call before each of the first opens of a file whose name ends
/// in `ending`.
fn before_opens(fault: &FaultFs, ending: &'static str, act: impl Fn(usize) + Send + 'static) {
    let state = Mutex::new((0, act));
    fault.set_observer(Arc::new(move |op| {
        let mut state = state.lock().unwrap();
        let is_meant = op.kind == OpKind::OpenRead && op.path.to_string_lossy().ends_with(ending);
        if is_meant && state.0 < TIMES {
            state.0 += 1;
            (state.1)(state.0);
        }
    }));
}

/// Checks that the folder has only the files that the primary needs, once no secondary reads it.
fn check_nothing_is_left(db: &Db, fs: &Arc<dyn Fs>, follower: Secondary) {
    let partition = follower.partition("p").unwrap();
    follower.sync(Target::Latest).unwrap();
    let found = content(&partition.at(Level::Strong).unwrap());
    assert_eq!(found, content_of(&db.partition("p").unwrap()));
    drop((partition, follower));
    db.wait_idle().unwrap();
    let stats = db.stats();
    assert_eq!(stats.leased_bytes, 0);
    assert_eq!(names(fs, ".wal").len() as u64, stats.wal_segment_count);
    assert_eq!(names(fs, ".manifest").len(), 1);
}

#[test]
fn segments_that_a_secondary_is_about_to_open_stay() {
    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let db = primary_of(&plain);
    replace_segments(&db, 0);
    let fault = FaultFs::over_mem(mem);
    let follower = secondary(&(Arc::new(fault.clone()) as Arc<dyn Fs>));
    let partition = follower.partition("p").unwrap();
    db.partition("p").unwrap().put("k", "v").unwrap();
    let writer = db.clone();
    before_opens(&fault, ".wal", move |round| replace_segments(&writer, round));
    // One look is enough: the files that it needs are there, although no version has them any more.
    let reading = partition.at(Level::Strong).unwrap();
    assert_eq!(reading.get("k").unwrap().as_deref(), Some(&b"v"[..]));
    assert!(db.stats().leased_bytes > 0);
    assert!(names(&plain, ".wal").len() as u64 > db.stats().wal_segment_count);
    fault.clear_observer();
    drop((reading, partition));
    check_nothing_is_left(&db, &plain, follower);
}

#[test]
fn generations_of_the_manifest_that_a_secondary_is_about_to_open_stay() {
    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let db = primary_of(&plain);
    replace_segments(&db, 0);
    let fault = FaultFs::over_mem(mem);
    let writer = db.clone();
    let folder = plain.clone();
    before_opens(&fault, ".manifest", move |_| replace_manifest(&writer, &folder));
    let follower = secondary(&(Arc::new(fault.clone()) as Arc<dyn Fs>));
    for round in 1..4 {
        replace_segments(&db, round);
        let writer = db.clone();
        let folder = plain.clone();
        before_opens(&fault, ".manifest", move |_| replace_manifest(&writer, &folder));
        replace_manifest(&db, &plain);
        follower.sync(Target::Latest).unwrap();
    }
    fault.clear_observer();
    check_nothing_is_left(&db, &plain, follower);
}

/// The next primary deletes the files that it found like those that it dropped itself.
#[test]
fn files_of_an_earlier_epoch_stay_until_no_secondary_reads_them() {
    let plain = in_memory();
    let old = primary_of(&plain);
    replace_segments(&old, 0);
    old.partition("p").unwrap().put("k", "v").unwrap();
    let follower = secondary(&plain);
    let segments = names(&plain, ".wal");
    let manifest = names(&plain, ".manifest");
    drop(old);
    let db = primary_of(&plain);
    db.wait_idle().unwrap();
    for held in segments.iter().chain(&manifest) {
        assert_eq!(names(&plain, held).len(), 1, "{held}");
    }
    assert!(db.stats().leased_bytes > 0);
    check_nothing_is_left(&db, &plain, follower);
    for gone in segments.iter().chain(&manifest) {
        assert_eq!(names(&plain, gone), [""; 0]);
    }
}
