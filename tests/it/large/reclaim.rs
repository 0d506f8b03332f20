//! Space that the application reclaims.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use lsm_core::fs::{FaultFs, FsOp, OpKind};
use siltstone::hooks::{CompactionFilter, CompactionFilterFactory, Job};
use siltstone::metahive::{ScrubOptions, VerifiedBy};
use siltstone::{Error, PrefixDropFilter};

use super::*;

#[test]
fn reallocated_values_lie_in_the_order_of_their_keys() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    // Each file has keys of the whole range.
    for n in 0..40_u8 {
        let key = (u16::from(n) * 7 % 40) as u8;
        p.put([key], vec![n; 1000]).unwrap();
    }
    let before = content(&p);
    p.reclaim().unwrap();
    assert_eq!(value_store(&db).moved_bytes, 0, "there is no garbage");
    p.reallocate([10]..[20]).unwrap();
    let moved = value_store(&db).moved_bytes;
    assert_eq!(moved, 40_000, "each file has a key of the range");
    let chunks = p.chunks().unwrap();
    let live = chunks.iter().filter(|chunk| chunk.live_blocks > 0);
    let spans: Vec<_> = live.map(|chunk| (chunk.smallest.clone(), chunk.largest.clone())).collect();
    assert!(spans.windows(2).all(|pair| pair[0].1 < pair[1].0), "{spans:?}");
    p.reallocate([12]..[15]).unwrap();
    let again = value_store(&db).moved_bytes - moved;
    assert!((4_000..=12_000).contains(&again), "files of other keys stay: {again} bytes");
    assert!(content(&p) == before);
    rest(&db, &clock);
    let space = p.space().unwrap();
    assert_eq!(space.total_bytes, chunk_bytes(&fs, "/db"));
    assert!(space.dead_bytes * 10 < space.total_bytes, "{space:?}");
    assert!(db.verify(Default::default()).unwrap().is_sound());
    let plain = db.partition("plain").unwrap();
    plain.put("k", "v").unwrap();
    plain.reallocate(..).unwrap();
}

#[test]
fn the_space_of_a_value_in_a_table_is_free_when_reclaim_returns() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..3_u8 {
        p.put("film", vec![n; 200_000]).unwrap();
        p.put("film", vec![n; 100_000]).unwrap();
        p.flush().unwrap();
        let used = chunk_bytes(&fs, "/db");
        assert!((100_000..120_000).contains(&used), "the flush has dropped one: {used} bytes");
        p.delete("film").unwrap();
        p.reclaim().unwrap();
        assert_eq!(chunk_bytes(&fs, "/db"), 0);
    }
    for n in 0..40_u8 {
        p.put([n], vec![n; 1000]).unwrap();
    }
    p.flush().unwrap();
    for n in (0..40_u8).filter(|n| n % 3 != 2) {
        p.delete([n]).unwrap();
    }
    p.reclaim().unwrap();
    let space = p.space().unwrap();
    assert_eq!((space.pinned_bytes, space.total_bytes), (0, chunk_bytes(&fs, "/db")));
    assert!(space.total_bytes * 10 <= 11 * 13 * 1100, "values were moved: {space:?}");
}

/// A partition with work that is always due would otherwise keep all others waiting.
#[test]
fn partitions_take_turns_when_values_are_moved() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let partitions = ["p", "q"].map(|name| db.partition_with(name, options()).unwrap());
    for p in &partitions {
        // There are several tables, and two of three values of each file are garbage at the end.
        for n in 0..90_u8 {
            p.put([n], vec![n; 900]).unwrap();
        }
        p.flush().unwrap();
        p.compact(..).unwrap();
        for n in (0..90_u8).filter(|n| n % 3 != 0) {
            p.delete([n]).unwrap();
        }
        p.flush().unwrap();
    }
    clock.pass(10);
    let mut served = String::new();
    let mut before = [0, 0];
    while db.step().unwrap() {
        for (at, name) in ["p", "q"].into_iter().enumerate() {
            let stats = db.stats().partitions.into_iter().find(|stats| stats.name == name);
            let moved = stats.and_then(|stats| stats.value_store).unwrap().moved_bytes;
            if moved > std::mem::replace(&mut before[at], moved) {
                served.push_str(name);
            }
        }
        clock.pass(10);
    }
    assert!(before[0] > 20_000 && before[1] > 20_000, "{before:?}");
    assert!(served.starts_with("pq") || served.starts_with("qp"), "{served}");
}

/// Fails to start a job once the test sets it to.
#[derive(Clone, Default)]
struct Failing(Arc<AtomicBool>);

impl CompactionFilterFactory for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn start(&self, job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Io, "no job begins"));
        }
        PrefixDropFilter::new(["no such key"]).start(job)
    }
}

/// No writer uses the file, and no put comes that would fill it.
#[test]
fn garbage_in_a_file_that_could_take_more_comes_back() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..4_u8 {
        p.put([n], vec![n; 900]).unwrap();
    }
    p.flush().unwrap();
    let is_sealed: Vec<bool> = p.chunks().unwrap().iter().map(|chunk| chunk.is_sealed).collect();
    assert_eq!(is_sealed, [false]);
    p.delete([0]).unwrap();
    p.delete([2]).unwrap();
    rest(&db, &clock);
    let space = p.space().unwrap();
    assert_eq!((space.dead_bytes, value_store(&db).moved_bytes), (0, 1800), "{space:?}");
    // They are in the file of compactions, which accepts more values, too.
    p.delete([1]).unwrap();
    rest(&db, &clock);
    let space = p.space().unwrap();
    assert_eq!((space.dead_bytes, value_store(&db).moved_bytes), (0, 2700), "{space:?}");
    assert_eq!(content(&p), [(vec![3], vec![3; 900])].into());
    assert_eq!(space.total_bytes, chunk_bytes(&fs, "/db"));
}

/// The value then has another handle, and is sealed again.
#[test]
fn a_value_that_moved_between_files_has_metadata_that_agrees() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    for (name, options) in [("plain", options()), ("packed", compressed())] {
        let p = db.partition_with(name, options.metahive(MetaHiveOptions::default())).unwrap();
        for n in 0..40_u8 {
            p.put([n], vec![n; 1000]).unwrap();
        }
        p.flush().unwrap();
        p.reallocate(..).unwrap();
        let stats = db.stats().partitions.into_iter().find(|stats| stats.name == name);
        assert!(stats.and_then(|stats| stats.value_store).unwrap().moved_bytes > 0, "{name}");
        for n in 0..40_u8 {
            let found = p.verified_get([n]).unwrap().unwrap();
            assert_eq!(
                (found.value, found.by),
                (vec![n; 1000].into(), VerifiedBy::Metadata),
                "{name}"
            );
        }
        let report = p.scrub(ScrubOptions::new()).unwrap();
        assert!(report.is_sound() && report.counts.entries == 40, "{report}");
        // A flipped bit of a moved value is damage of its key.
        let chunk = p.chunks().unwrap().into_iter().find(|chunk| chunk.live_blocks > 0).unwrap();
        fs.corrupt(&chunk.path, 64 + 60, 8).unwrap();
        assert!(!p.scrub(ScrubOptions::new()).unwrap().is_sound(), "{name}");
    }
}

/// Otherwise each attempt would begin, and end, with the partition that fails.
#[test]
fn a_partition_whose_work_fails_keeps_no_other_from_giving_back_space() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let failing = Failing::default();
    let p = db.partition_with("p", options().filter(Arc::new(failing.clone()))).unwrap();
    let q = db.partition_with("q", options()).unwrap();
    for partition in [&p, &q] {
        for n in 0..40_u8 {
            partition.put([n], vec![n; 900]).unwrap();
        }
        partition.flush().unwrap();
        for n in 0..40_u8 {
            partition.delete([n]).unwrap();
        }
        partition.flush().unwrap();
    }
    failing.0.store(true, Ordering::Relaxed);
    let mut failures = 0;
    for _ in 0..60 {
        clock.pass(1);
        // As the thread does, which tries again after some time.
        match db.wait_idle() {
            Ok(()) => {}
            Err(error) => {
                assert!(error.to_string().contains("no job begins"), "{error}");
                failures += 1;
            }
        }
    }
    assert!(failures > 10, "{failures} failures");
    let live = [&p, &q].map(|partition| partition.space().unwrap().live_bytes);
    assert!(live[0] > 30_000 && live[1] == 0, "{live:?}");
    failing.0.store(false, Ordering::Relaxed);
    rest(&db, &clock);
    let total = [&p, &q].map(|partition| partition.space().unwrap().total_bytes);
    assert_eq!(total, [0, 0]);
}

/// Its compaction is the only one that is due, again and again.
#[test]
fn a_partition_whose_compaction_fails_keeps_no_other_from_giving_back_space() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let failing = Failing::default();
    let plain = PartitionOptions::new().filter(Arc::new(failing.clone()));
    let p = db.partition_with("p", plain).unwrap();
    let q = db.partition_with("q", options()).unwrap();
    for n in 0..20_u8 {
        p.put("key", [n]).unwrap();
        p.flush().unwrap();
    }
    for n in 0..40_u8 {
        q.put([n], vec![n; 900]).unwrap();
    }
    q.flush().unwrap();
    for n in 0..40_u8 {
        q.delete([n]).unwrap();
    }
    failing.0.store(true, Ordering::Relaxed);
    let mut failures = 0;
    for _ in 0..30 {
        clock.pass(1);
        failures += u32::from(db.wait_idle().is_err());
    }
    assert_eq!(failures, 30, "its compaction is tried each time");
    assert_eq!(q.space().unwrap().total_bytes, 0);
    let tables = db.stats().partitions.into_iter().find(|stats| stats.name == "p").unwrap();
    assert_eq!(tables.levels[0].table_count, 20);
    failing.0.store(false, Ordering::Relaxed);
    db.wait_idle().unwrap();
}

/// The file that the next put would go to then has no other values.
#[test]
fn the_values_of_a_file_that_may_grow_are_reallocated_too() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    for n in [3_u8, 1, 2] {
        p.put([n], vec![n; 300]).unwrap();
    }
    let chunks = p.chunks().unwrap();
    assert!(chunks.len() == 1 && !chunks[0].is_sealed, "{chunks:?}");
    p.reallocate(..).unwrap();
    assert_eq!(value_store(&db).moved_bytes, 900);
    assert_eq!(content(&p).len(), 3);
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

#[test]
fn waiting_for_space_ends_when_readers_release_it() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..20_u8 {
        p.put([n], vec![n; 1000]).unwrap();
    }
    p.flush().unwrap();
    let reader = p.open_blob([3]).unwrap().unwrap();
    for n in 0..20_u8 {
        p.delete([n]).unwrap();
    }
    assert!(!p.wait_reclaimed(Duration::ZERO).unwrap(), "a reader holds it");
    assert!(p.space().unwrap().pinned_bytes > 20_000);
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let is_back = p.wait_reclaimed(Duration::from_secs(3600)).unwrap();
            done.send((is_back, chunk_bytes(&fs, "/db"))).unwrap();
        });
        assert!(is_done.try_recv().is_err(), "it waits");
        drop(reader);
        assert_eq!(is_done.recv().unwrap(), (true, 0));
    });
}

/// The total length of all files in a folder.
fn folder_bytes(dir: &Path) -> u64 {
    OsFs.list(dir, "").unwrap().iter().map(|entry| entry.len).sum()
}

/// All files of the folder count, on a real file system, and no call asks for the space.
#[test]
fn deletes_alone_give_back_the_space_of_the_whole_folder() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("db");
    let options = Options::new().sync_interval_ms(10).wal_segment_bytes(64 << 10);
    let builder = Db::builder(&dir).options(options).background(BackgroundMode::Threads);
    let clock = ManualClock::default();
    let db = builder.clock(Arc::new(clock.clone())).open().unwrap();
    let values = LargeValueOptions::new().chunk_bytes(1 << 20);
    let p = db.partition_with("p", PartitionOptions::new().large_values(values)).unwrap();
    for n in 0..200_u8 {
        p.put([n], vec![n; 70_000 + 1000 * usize::from(n)]).unwrap();
        p.put([n, 0], vec![n; 1000]).unwrap();
    }
    let full = folder_bytes(&dir);
    for n in 0..200_u8 {
        p.delete([n]).unwrap();
        p.delete([n, 0]).unwrap();
    }
    // A limit for a test that fails. The threads need a few milliseconds.
    let is_back = (0..1_000_000).any(|_| {
        clock.pass(1);
        std::thread::yield_now();
        folder_bytes(&dir) * 20 < full
    });
    assert!(is_back, "{} of {full}", folder_bytes(&dir));
}

/// The file is removed while the checkpoint links others: a reader of an older version held it
/// until then.
#[test]
fn a_checkpoint_copies_no_chunk_file_that_older_versions_alone_name() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..8_u8 {
        p.put([n], vec![n; 3000]).unwrap();
    }
    p.flush().unwrap();
    let files = chunk_files(&mem, "/db");
    let reader = p.iter();
    for n in 0..4_u8 {
        p.delete([n]).unwrap();
    }
    p.compact(..).unwrap();
    rest(&db, &clock);
    assert_eq!(chunk_files(&mem, "/db"), files, "the reader holds all of them");
    let held = Mutex::new(Some(reader));
    let beside = db.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let is_chunk = op.path.extension().is_some_and(|ending| ending == "chunk");
        let reader = held.lock().unwrap().take_if(|_| is_chunk && op.kind == OpKind::Link);
        if let Some(reader) = reader {
            drop(reader);
            beside.wait_idle().unwrap();
        }
    }));
    db.checkpoint("/copy").unwrap();
    fs.clear_observer();
    let left = chunk_files(&mem, "/db");
    assert!(!left.is_empty() && left.len() < files.len(), "{left:?}");
    assert_eq!(chunk_files(&mem, "/copy"), left);
    let expected = content(&p);
    assert_eq!(expected.len(), 4);
    let copy = open_with(Arc::new(mem.clone()), "/copy", &ManualClock::default()).unwrap();
    assert_eq!(content(&copy.partition("p").unwrap()), expected);
    assert!(copy.verify(Default::default()).unwrap().is_sound());
}

fn chunk_files(fs: &MemFs, dir: &str) -> Vec<String> {
    let mut names = fs.list_names(dir.as_ref(), "").unwrap();
    names.retain(|name| name.ends_with(".chunk"));
    names
}

/// Also directly after an open, and after moves during which a writer continues.
#[test]
fn a_checkpoint_has_the_chunk_files_that_its_manifest_names_and_no_others() {
    let mem = MemFs::new();
    let clock = ManualClock::default();
    let mut rng = Rng::from_env_or(14);
    for round in 0..12 {
        let db = open_with(Arc::new(mem.clone()), "/db", &clock).unwrap();
        let p = db.partition_with("p", options()).unwrap();
        let copies = [format!("/opened-{round}"), format!("/changed-{round}")];
        db.checkpoint(&copies[0]).unwrap();
        let opened = content(&p);
        let reader = p.iter();
        let mut open = p.put_stream("open", None).unwrap();
        open.write_all(&[1; 700]).unwrap();
        for _ in 0..rng.below(20) {
            let key = [rng.below(12) as u8];
            match rng.below(5) {
                0 => p.delete(key).map(drop).unwrap(),
                1 => p.flush().unwrap(),
                2 => p.compact(..).unwrap(),
                3 => p.reallocate(..).unwrap(),
                _ => p.put(key, value(&mut rng, 1200)).map(drop).unwrap(),
            }
        }
        db.checkpoint(&copies[1]).unwrap();
        let changed = content(&p);
        drop((reader, open));
        for (dir, expected) in copies.iter().zip([opened, changed]) {
            let files = chunk_files(&mem, dir);
            let copy = open_with(Arc::new(mem.clone()), dir, &ManualClock::default()).unwrap();
            assert_eq!(content(&copy.partition("p").unwrap()), expected, "{dir}");
            rest(&copy, &clock);
            assert_eq!(chunk_files(&mem, dir), files, "{dir}: a file that nothing names");
            assert!(copy.verify(Default::default()).unwrap().is_sound(), "{dir}");
        }
        drop(p);
        if round % 2 == 0 {
            db.close().unwrap();
        }
    }
}
