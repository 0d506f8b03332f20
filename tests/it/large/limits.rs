//! What large values hold at once, and what several threads ask of them at once.

use lsm_core::fs::{FaultFs, FsOp, OpKind};
use siltstone::large_values::ChunkInfo;

use super::*;

/// Files of this folder that the process has open and whose name ends so.
#[cfg(target_os = "linux")]
fn open_files(dir: &std::path::Path, ending: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let paths = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    let of_folder = paths.filter(|path| path.starts_with(dir));
    of_folder.filter(|path| path.to_string_lossy().ends_with(ending)).count()
}

#[cfg(target_os = "linux")]
#[test]
#[expect(clippy::disallowed_methods, reason = "looks at the process from outside")]
fn many_chunk_files_do_not_stay_open() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::builder(dir.path()).background(BackgroundMode::Stepped).open().unwrap();
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

/// Returns `true` if so much of the file is garbage that its values should be elsewhere.
fn is_due(chunk: &ChunkInfo) -> bool {
    chunk.is_sealed && chunk.dead_bytes * 1000 >= chunk.last_offset * 250
}

#[test]
fn reclaims_beside_each_other_and_the_background_leave_no_garbage() {
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
