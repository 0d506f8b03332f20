//! The files and bytes that large values hold, and calls that several threads make at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, FsOp, OpKind};
use siltstone::clock::Clock;
use siltstone::large_values::ChunkInfo;

use super::*;

/// Files of this folder that the process has open and whose names have this ending.
#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "looks at the process from outside")]
fn open_files(dir: &std::path::Path, ending: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let paths = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    let of_folder = paths.filter(|path| path.starts_with(dir));
    of_folder.filter(|path| path.to_string_lossy().ends_with(ending)).count()
}

#[cfg(target_os = "linux")]
#[test]
fn many_chunk_files_do_not_stay_open() {
    let dir = tempfile::tempdir().unwrap();
    let db = stepped(Arc::new(OsFs), dir.path(), 1).open().unwrap();
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..300_u16 {
        let mut writer = p.put_stream(n.to_be_bytes(), None).unwrap();
        writer.write_all(&[7; 2000]).unwrap();
        writer.commit(Durability::Os).unwrap();
    }
    assert_eq!(p.chunks().unwrap().len(), 300);
    let path = dir.path().canonicalize().unwrap();
    assert!(open_files(&path, ".chunk") <= 140, "{}", open_files(&path, ".chunk"));
    p.flush().unwrap();
    assert_eq!(p.iter().count(), 300);
    assert!(open_files(&path, ".chunk") <= 140, "{}", open_files(&path, ".chunk"));
}

#[test]
fn a_large_value_is_the_last_of_its_file() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    // Nothing is moved before a whole file is garbage.
    let options = PartitionOptions::new().large_values(tiny().garbage_permille(1000));
    let p = db.partition_with("p", options).unwrap();
    p.put("large", vec![1; 2000]).unwrap();
    let mut writer = p.put_stream("streamed", None).unwrap();
    writer.write_all(&[2; 2000]).unwrap();
    writer.commit(Durability::Os).unwrap();
    for n in 0..3_u8 {
        p.put([n], vec![n; 300]).unwrap();
    }
    p.delete("large").unwrap();
    p.delete("streamed").unwrap();
    rest(&db, &clock);
    let chunks = p.chunks().unwrap();
    assert_eq!((chunks.len(), chunks[0].live_blocks), (1, 3), "{chunks:?}");
    assert!(chunks[0].last_offset < 2000, "no large value is in it: {chunks:?}");
    assert_eq!(value_store(&db).moved_bytes, 0);
}

#[test]
fn values_that_go_while_a_checkpoint_links_tables_are_in_it() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..20_u8 {
        p.put([n], vec![n; 1000]).unwrap();
    }
    let expected = content(&p);
    let compacting: Arc<Mutex<Option<Partition>>> = Arc::new(Mutex::new(Some(p.clone())));
    let taken = compacting.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let is_link = op.kind == OpKind::Link && op.path.starts_with("/copy");
        let partition = if is_link { taken.lock().unwrap().take() } else { None };
        if let Some(partition) = partition {
            for n in 0..20_u8 {
                partition.delete([n]).unwrap();
            }
            partition.compact(..).unwrap();
            assert_eq!(partition.iter().count(), 0);
        }
    }));
    db.checkpoint("/copy").unwrap();
    fs.clear_observer();
    assert!(compacting.lock().unwrap().is_none(), "it went on while tables were linked");
    let copy = open_with(Arc::new(mem.clone()), "/copy", &ManualClock::default()).unwrap();
    assert!(content(&copy.partition("p").unwrap()) == expected);
    assert!(copy.verify(Default::default()).unwrap().is_sound());
    rest(&db, &clock);
    assert_eq!(chunk_bytes(&mem, "/db"), 0, "and the copy keeps nothing here");
}

/// A thread that removes a table delays the edits that value stores are notified of, until tables
/// are linked.
#[test]
fn a_checkpoint_has_values_of_edits_that_their_store_has_not_seen() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let db = open_with(Arc::new(fs.clone()), "/db", &ManualClock::default()).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    p.put("key", vec![1; 1000]).unwrap();
    p.flush().unwrap();
    p.put("key", vec![2; 1000]).unwrap();
    let (removing, is_removing) = mpsc::channel();
    let (linked, is_linked) = mpsc::channel();
    let is_linked = Mutex::new(Some(is_linked));
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let is_table = op.path.extension().is_some_and(|ending| ending == "sst");
        match op.kind {
            OpKind::Delete if is_table => {
                let first = is_linked.lock().unwrap().take();
                if let Some(is_linked) = first {
                    removing.send(()).unwrap();
                    is_linked.recv().unwrap();
                }
            }
            // No one waits for the second.
            OpKind::Link => drop(linked.send(())),
            _ => {}
        }
    }));
    p.compact(..).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| db.wait_idle().unwrap());
        is_removing.recv().unwrap();
        // In a file of its own.
        p.put("new", vec![3; 2000]).unwrap();
        db.checkpoint("/copy").unwrap();
    });
    fs.clear_observer();
    let copy = open_with(Arc::new(mem), "/copy", &ManualClock::default()).unwrap();
    assert_eq!(copy.partition("p").unwrap().get("new").unwrap().unwrap(), vec![3; 2000]);
}

/// Returns `true` if so much of the file is garbage that its values should be moved.
fn is_due(chunk: &ChunkInfo) -> bool {
    chunk.is_sealed && chunk.dead_bytes * 1000 >= chunk.last_offset * 250
}

#[test]
fn concurrent_reclaims_leave_no_garbage() {
    let seed = Rng::from_env_or(3).next_u64();
    for round in 0..12 {
        let mut rng = Rng::new(seed ^ round);
        let fs = MemFs::new();
        let builder = Db::builder("/db").fs(Arc::new(fs.clone()));
        let db = builder.options(Options::new().compaction_threads(2)).open().unwrap();
        let p = db.partition_with("p", options()).unwrap();
        for n in 0..240_u8 {
            p.put([n], vec![n; 300 + rng.below(300) as usize]).unwrap();
        }
        p.flush().unwrap();
        for n in 0..240_u8 {
            if n % 3 > 0 {
                p.delete([n]).unwrap();
            }
        }
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| p.reclaim().unwrap());
            }
        });
        // Files without values stay as long as a thread reads a version that has them.
        let chunks = p.chunks().unwrap();
        let has_due = chunks.iter().any(|chunk| chunk.live_blocks > 0 && is_due(chunk));
        assert!(!has_due, "round {round} of seed {seed}: {chunks:?}");
        db.wait_idle().unwrap();
        let chunks = p.chunks().unwrap();
        assert!(!chunks.iter().any(is_due), "round {round} of seed {seed}: {chunks:?}");
        for n in 0..240_u8 {
            let found = p.get([n]).unwrap();
            assert_eq!(found.is_some_and(|value| value.iter().all(|&b| b == n)), n % 3 == 0);
        }
    }
}

/// A second passes at each look.
#[derive(Clone, Default)]
struct Ticking(Arc<AtomicU64>);

impl Clock for Ticking {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn unix_time(&self) -> Duration {
        self.now()
    }
}

fn open_ticking(fs: &MemFs, clock: &Ticking) -> Db {
    let builder = stepped(Arc::new(fs.clone()), "/db", 7);
    builder.clock(Arc::new(clock.clone())).open().unwrap()
}

/// The seconds in which 20 values of 1000 bytes move.
fn seconds_of_moving(bytes_per_second: u64) -> u64 {
    let clock = Ticking::default();
    let fs = MemFs::new();
    let db = open_ticking(&fs, &clock);
    let large = tiny().chunk_bytes(16 << 10).move_bytes_per_second(bytes_per_second);
    let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
    for n in 0..30_u8 {
        p.put([n], vec![n; 1000]).unwrap();
    }
    // A file that may grow stays as it is.
    db.close().unwrap();
    let db = open_ticking(&fs, &clock);
    let p = db.partition("p").unwrap();
    for n in (0..30_u8).step_by(3) {
        p.delete([n]).unwrap();
    }
    let begin = clock.0.load(Ordering::Relaxed);
    p.reclaim().unwrap();
    assert_eq!(value_store(&db).moved_bytes, 20_000);
    clock.0.load(Ordering::Relaxed) - begin
}

#[test]
fn values_move_no_faster_than_the_limit() {
    let free = seconds_of_moving(0);
    // 80 pieces; each waits for one look longer.
    let limited = seconds_of_moving(200);
    assert!(limited >= free + 60, "{limited} seconds, and {free} without a limit");
}

#[test]
fn few_bytes_wait_for_a_sync() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = stepped(Arc::new(fs.clone()), "/db", 1).open().unwrap();
    let large = PartitionOptions::new().large_values(LargeValueOptions::default());
    let p = db.partition_with("p", large).unwrap();
    // The bytes that wait now, and the most that ever waited.
    let waiting = Arc::new(Mutex::new((0, 0)));
    let seen = waiting.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let mut waiting = seen.lock().unwrap();
        let is_chunk = op.path.extension().is_some_and(|ending| ending == "chunk");
        match op.kind {
            OpKind::Append if is_chunk => waiting.0 += op.len,
            OpKind::Sync if is_chunk => waiting.0 = 0,
            _ => {}
        }
        waiting.1 = waiting.1.max(waiting.0);
    }));
    let mut writer = p.put_stream("film", None).unwrap();
    let piece = vec![5; 1 << 20];
    for _ in 0..150 {
        writer.write_all(&piece).unwrap();
    }
    let most = waiting.lock().unwrap().1;
    assert!((60 << 20..=68 << 20).contains(&most), "{most} bytes");
    drop(writer);
    fs.clear_observer();
}

/// The error used to say that the value does not have the promised length.
#[test]
fn finishing_a_stream_whose_write_failed_reports_the_failure() {
    let fs = FaultFs::over_mem(MemFs::new());
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    let mut writer = p.put_stream("film", Some(5000)).unwrap();
    let at = FaultAt::Nth { kind: OpKind::Append, suffix: ".chunk".to_owned(), nth: 1 };
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    writer.write_all(&[5; 5000]).unwrap_err();
    let failed = writer.finish().unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    assert!(p.get("film").unwrap().is_none());
}

fn long_value(seed: u64, key: u8, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(seed | 1) >> 24) as u8 ^ key).collect()
}

#[test]
fn values_that_several_threads_read_move_and_read_back() {
    let fs = MemFs::new();
    let db = open(&fs);
    let large = LargeValueOptions::default().garbage_permille(100);
    let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
    let seed = Rng::from_env_or(9).next_u64();
    for (key, len) in [(0, 20 << 20), (1, (32 << 20) + 5), (2, (32 << 20) - 1)] {
        p.put([key], long_value(seed, key, len)).unwrap();
    }
    db.close().unwrap();
    let db = open(&fs);
    let p = db.partition("p").unwrap();
    p.delete([0]).unwrap();
    p.reclaim().unwrap();
    assert_eq!(value_store(&db).moved_bytes, (64 << 20) + 4);
    for (key, len) in [(1, (32 << 20) + 5), (2, (32 << 20) - 1)] {
        let expected = long_value(seed, key, len);
        let mut buf = vec![0; len];
        let got = p.get_into([key], &mut buf, Parallelism::Auto).unwrap();
        assert!(got == Some(len as u64) && buf == expected, "value {key}");
        assert!(p.get([key]).unwrap().unwrap() == expected, "value {key}");
    }
}
