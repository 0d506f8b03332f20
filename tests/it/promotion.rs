//! Promotions of a whole store: a primary with large values and MetaHive, stopped at each of its
//! storage operations, and the calls of an application.

use std::sync::{Arc, Mutex};

use lsm_core::fs::{CrashOutcome, FaultFs, Fs, MemFs};
use siltstone::secondary::{Level, Secondary};
use siltstone::{
    BackgroundMode, Db, Durability, ErrorKind, LargeValueOptions, MetaHiveOptions, Options,
    Partition, PartitionOptions, Result, VerifyOptions,
};
use testkit::Rng;

use crate::store;

fn builder(fs: &Arc<dyn Fs>) -> siltstone::Builder {
    let options = Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(16 << 10);
    store::stepped(fs.clone(), "/db", 1).options(options)
}

fn secondary(fs: &Arc<dyn Fs>) -> Secondary {
    Db::secondary_builder("/db").fs(fs.clone()).open().unwrap()
}

fn promote(fs: &Arc<dyn Fs>) -> Result<Db> {
    Db::promotion(&secondary(fs)).background(BackgroundMode::Stepped).open()
}

fn media(db: &Db) -> Partition {
    let large = LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
    let options = PartitionOptions::new().large_values(large.chunk_bytes(4 << 10));
    db.partition_with("media", options.metahive(MetaHiveOptions::new())).unwrap()
}

fn content(db: &Db) -> store::Content {
    store::content(&db.open_partition("media").unwrap())
}

/// Makes a random write with large and small values.
fn random_write(db: &Db, media: &Partition, rng: &mut Rng, number: u64) -> Result<()> {
    let key = format!("{:02}", rng.below(12));
    match rng.below(10) {
        0 => media.flush(),
        1 => media.compact(..),
        2 => db.wait_idle(),
        3 | 4 => media.delete(&key).map(drop),
        _ => {
            let value = format!("{number} ").repeat(20 + rng.index(600));
            let durability = if rng.chance(1, 3) { Durability::Sync } else { Durability::Os };
            media.put_with(&key, value, durability).map(drop)
        }
    }
}

/// Stops a primary before its operation `after`, and promotes a secondary. Returns `false` if it
/// has no such operation.
fn stop_and_promote(seed: u64, after: u64) -> bool {
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let plain: Arc<dyn Fs> = Arc::new(mem);
    let old = builder(&(Arc::new(fault.clone()) as Arc<dyn Fs>)).open().unwrap();
    let partition = media(&old);
    let mut rng = Rng::from_env_or(seed);
    for number in 0..10 {
        random_write(&old, &partition, &mut rng, number).unwrap();
    }
    let taken = Arc::new(Mutex::new(None));
    let slot = taken.clone();
    let there = plain.clone();
    let counted = fault.clone();
    let at = fault.op_count() + after;
    fault.set_observer(Arc::new(move |_| {
        let mut slot = slot.lock().unwrap();
        if counted.op_count() >= at && slot.is_none() {
            *slot = Some(promote(&there).unwrap());
        }
    }));
    for number in 10..34 {
        if let Err(error) = random_write(&old, &partition, &mut rng, number) {
            assert_eq!(error.kind(), ErrorKind::Fenced, "operation {after}: {error}");
        }
    }
    fault.clear_observer();
    let Some(new) = taken.lock().unwrap().take() else { return false };
    let kept = content(&new);
    assert!(content(&old) == kept, "operation {after}: the old primary reads something else");
    let taken = media(&new);
    taken.put("new", "x".repeat(2_000)).unwrap();
    taken.compact(..).unwrap();
    new.wait_idle().unwrap();
    drop(partition);
    assert_eq!(old.close().unwrap_err().kind(), ErrorKind::Fenced, "operation {after}");
    taken.delete("new").unwrap();
    taken.compact(..).unwrap();
    new.wait_idle().unwrap();
    assert!(content(&new) == kept, "operation {after}: the old primary has changed something");
    let report = new.verify(VerifyOptions::default()).unwrap();
    assert!(report.damage().is_empty(), "operation {after}: {:?}", report.damage());
    drop(taken);
    new.close().unwrap();
    let again = builder(&plain).open().unwrap();
    assert!(content(&again) == kept, "operation {after}: lost by the next open");
    true
}

#[test]
fn a_primary_with_large_values_is_taken_over_at_each_of_its_storage_operations() {
    for seed in 0..2 {
        let mut after = 0;
        while stop_and_promote(seed, after) {
            after += 1;
        }
        assert!(after > 60, "{after} operations");
    }
}

#[test]
fn an_application_promotes_its_secondary_and_goes_on() {
    let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
    let old = builder(&fs).open().unwrap();
    old.partition("orders").unwrap().put("k", "1").unwrap();
    let follower = secondary(&fs);
    let orders = follower.partition("orders").unwrap();
    let db = Db::promote(&follower).unwrap();
    let refused = old.partition("orders").unwrap().put("k", "2").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert!(!refused.is_retryable(), "it never succeeds again");
    assert!(old.health().read_only.is_some_and(|why| why.contains("taken the database over")));
    let commit = db.partition("orders").unwrap().put("l", "3").unwrap();
    let reading = orders.at(Level::Session(commit)).unwrap();
    assert_eq!(reading.get("k").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(builder(&fs).open().err().unwrap().kind(), ErrorKind::Locked);
    let copy = builder(&fs).beside_writer(true).open().unwrap();
    assert_eq!(copy.partition("orders").unwrap().iter().count(), 2);
    copy.close().unwrap();
    db.close().unwrap();
    let again = builder(&fs).read_only(true).open().unwrap();
    assert_eq!(again.partition("orders").unwrap().iter().count(), 2);
}

/// The state at the fork stays on the disk, and must not replace the newer one.
#[test]
fn a_damaged_manifest_of_the_next_primary_does_not_bring_the_fork_back() {
    for edits in 0..3 {
        let mem = MemFs::new();
        let fs: Arc<dyn Fs> = Arc::new(mem.clone());
        let old = builder(&fs).open().unwrap();
        media(&old).put("old", "1").unwrap();
        let new = promote(&fs).unwrap();
        let partition = media(&new);
        partition.put_with("new", "2", Durability::Sync).unwrap();
        for _ in 0..edits {
            partition.flush().unwrap();
            partition.put_with("newer", "3", Durability::Sync).unwrap();
        }
        let expected = content(&new);
        let crashed = mem.crash_clone(CrashOutcome::Everything, &mut || 0);
        let mut paths = crashed.paths();
        paths.retain(|path| path.to_string_lossy().ends_with("-00000002.manifest"));
        let newest = &paths[0];
        for place in 0..crashed.read_raw(newest).unwrap().len() {
            let damaged = crashed.crash_clone(CrashOutcome::Everything, &mut || 0);
            damaged.corrupt(newest, place as u64, 1 << (place % 8)).unwrap();
            match builder(&(Arc::new(damaged) as Arc<dyn Fs>)).open() {
                Ok(db) => assert!(content(&db) == expected, "{edits} edits, byte {place}"),
                Err(error) => assert!(error.is_corruption(), "byte {place}: {error}"),
            }
        }
    }
}
