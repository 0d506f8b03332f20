//! The cache on disk: its bound, restarts, damage, crashes, and what it keeps.

use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind};
use testkit::Rng;

use super::*;

const BLOCK: usize = 64 << 10;

fn dir() -> &'static Path {
    Path::new("/cache")
}

fn open(fs: &MemFs, blocks_max: u64) -> DiskCache {
    let bytes_max = blocks_max * (BLOCK as u64 + 256);
    DiskCache::open(Arc::new(fs.clone()), dir(), bytes_max, false).unwrap().unwrap()
}

fn block(number: u64) -> Block {
    let object: Arc<str> = format!("table/000001.sst/{}", number / 10).into();
    let mut bytes = vec![0; BLOCK - (number % 7) as usize];
    Rng::new(number).fill(&mut bytes);
    ((object, number % 10), bytes.into())
}

/// A read by way of the cache; returns `true` if it needed no GET.
fn read(cache: &DiskCache, number: u64) -> bool {
    let (key, bytes) = block(number);
    match cache.find(&key) {
        Some(found) => {
            assert_eq!(found, bytes, "block {number}");
            true
        }
        None => {
            cache.keep(&key, &bytes);
            false
        }
    }
}

fn hits(cache: &DiskCache, numbers: impl Iterator<Item = u64>) -> usize {
    numbers.filter(|number| read(cache, *number)).count()
}

#[test]
fn the_bytes_of_a_file_are_as_described() {
    let blocks: Vec<Block> = [("table/a", 3, &b"xyz"[..]), ("part/b", 200, b"")]
        .map(|(name, number, bytes)| ((name.into(), number), bytes.into()))
        .into();
    let (header, file) = encode(&blocks);
    let bytes = header.pieces(&blocks).concat();
    assert_eq!(bytes.len() as u64, file.len());
    let mut expected = b"SILTBLKS\x01\0\0\0\x3d\0\0\0\x02".to_vec();
    expected.extend(b"\x07table/a\x03\x03");
    expected.extend(checksum64(b"xyz").to_le_bytes());
    expected.extend(b"\x06part/b\xc8\x01\x00");
    expected.extend(checksum64(b"").to_le_bytes());
    let sum = checksum64(&expected);
    expected.extend(sum.to_le_bytes());
    assert_eq!(expected.len(), 0x3d);
    expected.extend(b"xyz");
    assert_eq!(bytes, expected);
}

fn folder_bytes(fs: &MemFs) -> u64 {
    fs.list(dir(), "").unwrap().iter().map(|entry| entry.len).sum()
}

#[test]
fn a_restart_reads_what_was_kept() {
    let fs = MemFs::new();
    let cache = open(&fs, 100);
    assert_eq!(hits(&cache, 0..50), 0);
    assert_eq!(hits(&cache, 0..50), 50);
    drop(cache);
    let cache = open(&fs, 100);
    assert_eq!(hits(&cache, 0..50), 50);
    assert_eq!(cache.figures().damaged, 0);
    // Less room than before.
    drop(cache);
    let cache = open(&fs, 10);
    assert!(folder_bytes(&fs) <= cache.bytes_max);
}

#[test]
fn the_files_never_have_more_than_the_bound() {
    let mut rng = Rng::from_env_or(1);
    for blocks_max in [0, 1, 3, 20, 200] {
        let fs = MemFs::new();
        let mut cache = open(&fs, blocks_max);
        // A write before its room is free would fail.
        fs.set_capacity(Some(cache.bytes_max));
        for round in 0..300 {
            read(&cache, rng.below(rng.clone().below(400) + 1));
            let bytes = folder_bytes(&fs);
            assert!(bytes <= cache.bytes_max, "{bytes} of {} in {round}", cache.bytes_max);
            assert_eq!(bytes, cache.figures().bytes);
            assert_eq!(cache.figures().failures, 0);
            if rng.chance(1, 200) {
                drop(cache);
                cache = open(&fs, blocks_max);
            }
        }
    }
}

#[test]
fn a_scan_displaces_nothing_and_a_new_working_set_does() {
    let fs = MemFs::new();
    let cache = open(&fs, 100);
    hits(&cache, 0..80);
    hits(&cache, 1000..2000);
    assert_eq!(hits(&cache, 0..80), 80);
    // Requested again, it takes the room.
    for _ in 0..4 {
        hits(&cache, 3000..3080);
    }
    let found = hits(&cache, 3000..3080);
    assert!(found >= 70, "{found} of 80");
}

#[test]
fn used_blocks_outlive_the_others_of_their_file() {
    let fs = MemFs::new();
    let cache = open(&fs, 100);
    hits(&cache, 0..90);
    for round in 0..20 {
        // One block in ten is used all the time, while others are requested twice.
        hits(&cache, (0..90).step_by(10));
        for _ in 0..2 {
            hits(&cache, 1000 + round * 20..1020 + round * 20);
        }
    }
    assert_eq!(hits(&cache, (0..90).step_by(10)), 9);
}

#[test]
fn a_changed_byte_is_healed_and_counted() {
    let mut rng = Rng::from_env_or(2);
    for _ in 0..30 {
        let fs = MemFs::new();
        let mut cache = open(&fs, 100);
        hits(&cache, 0..40);
        // So that all blocks are in files.
        drop(cache);
        cache = open(&fs, 100);
        let files = fs.list(dir(), "blocks-").unwrap();
        let entry = rng.pick(&files);
        let offset = rng.below(entry.len);
        fs.corrupt(&dir().join(&entry.name), offset, 1 << rng.below(8)).unwrap();
        if rng.chance(1, 2) {
            drop(cache);
            cache = open(&fs, 100);
        }
        let missed = 40 - hits(&cache, 0..40) as u64;
        let damaged = cache.figures().damaged;
        // A file whose header is damaged is not taken up, and has no damaged blocks.
        assert!(missed == damaged || damaged == 0, "{missed} missed, {damaged} damaged");
        assert_eq!(hits(&cache, 0..40), 40);
    }
}

#[test]
fn a_full_cache_admits_a_healed_block_at_once() {
    let fs = MemFs::new();
    let cache = open(&fs, 40);
    hits(&cache, 0..200);
    let entry = fs.list(dir(), "blocks-").unwrap().remove(1);
    fs.corrupt(&dir().join(&entry.name), entry.len - 1, 1).unwrap();
    let kept: Vec<_> = (0..200).filter(|number| cache.has(&block(*number).0)).collect();
    assert_eq!(hits(&cache, kept.iter().copied()), kept.len() - 1);
    assert_eq!(cache.figures().damaged, 1);
    assert_eq!(hits(&cache, kept.iter().copied()), kept.len());
}

#[test]
fn a_crash_at_any_moment_leaves_right_blocks() {
    let mut rng = Rng::from_env_or(3);
    for outcome in [
        CrashOutcome::Everything,
        CrashOutcome::Prefix,
        CrashOutcome::Subset,
        CrashOutcome::Garbage,
        CrashOutcome::DataWithoutNames,
        CrashOutcome::Nothing,
    ] {
        for _ in 0..5 {
            let fs = MemFs::new();
            let cache = open(&fs, 30);
            let requests = rng.below(200);
            for _ in 0..requests {
                read(&cache, rng.below(60));
            }
            let after = fs.crash_clone(outcome, &mut || rng.next_u64());
            let cache = open(&after, 30);
            // Compares each block that it serves.
            hits(&cache, 0..60);
            assert!(folder_bytes(&after) <= cache.bytes_max);
        }
    }
}

#[test]
fn a_folder_has_one_cache_at_a_time() {
    let fs = MemFs::new();
    let cache = open(&fs, 10);
    assert!(DiskCache::open(Arc::new(fs.clone()), dir(), 1 << 20, false).unwrap().is_none());
    drop(cache);
    assert!(DiskCache::open(Arc::new(fs), dir(), 1 << 20, false).unwrap().is_some());
}

#[test]
fn a_full_disk_is_counted_and_fails_no_read() {
    let fs = MemFs::new();
    let cache = open(&fs, 100);
    fs.set_capacity(Some(10 << 10));
    hits(&cache, 0..90);
    assert!(cache.figures().failures > 0);
    fs.set_capacity(None);
    hits(&cache, 100..190);
    assert!(hits(&cache, 100..190) > 40);
}

#[test]
fn a_file_of_another_length_than_its_header_says_is_deleted_at_the_open() {
    for is_longer in [false, true] {
        let fs = MemFs::new();
        let cache = open(&fs, 100);
        hits(&cache, 0..40);
        drop(cache);
        let entry = fs.list(dir(), "blocks-").unwrap().remove(0);
        let path = dir().join(&entry.name);
        let mut bytes = fs.read_raw(&path).unwrap();
        bytes.resize(if is_longer { bytes.len() + 1 } else { bytes.len() - 1 }, 0);
        fs.write_raw(&path, &bytes).unwrap();
        let cache = open(&fs, 100);
        assert_eq!(folder_bytes(&fs), cache.figures().bytes);
        let missed = 40 - hits(&cache, 0..40);
        assert!(missed > 1 && missed < 40, "{missed} missed");
        assert_eq!(cache.figures().damaged, 0);
    }
}

fn small(number: u64) -> Block {
    ((format!("part/{number:040}").into(), 0), number.to_le_bytes().into())
}

#[test]
fn many_small_blocks_make_files_of_the_usual_length() {
    let fs = MemFs::new();
    let cache = DiskCache::open(Arc::new(fs.clone()), dir(), 4 << 20, false).unwrap().unwrap();
    for number in 0..10_000 {
        let (key, block) = small(number);
        assert!(cache.find(&key).is_none());
        cache.keep(&key, &block);
    }
    drop(cache);
    let files = fs.list(dir(), "blocks-").unwrap();
    assert!(files.iter().all(|entry| entry.len < 600 << 10), "{files:?}");
    let cache = DiskCache::open(Arc::new(fs), dir(), 4 << 20, false).unwrap().unwrap();
    for number in 0..10_000 {
        let (key, block) = small(number);
        assert_eq!(cache.find(&key).unwrap(), block);
    }
}

#[test]
fn a_file_that_cannot_be_opened_at_the_start_is_not_deleted() {
    let disk = MemFs::new();
    let cache = open(&disk, 100);
    hits(&cache, 0..40);
    drop(cache);
    let bytes = folder_bytes(&disk);
    let faults = FaultFs::over_mem(disk.clone());
    let open_read = FaultAt::Nth { kind: OpKind::OpenRead, suffix: String::new(), nth: 1 };
    faults.add_rule(FaultRule::once(open_read, FaultAction::Emfile));
    let bytes_max = 100 * (BLOCK as u64 + 256);
    let cache = DiskCache::open(Arc::new(faults), dir(), bytes_max, false).unwrap().unwrap();
    assert_eq!(cache.figures().failures, 1);
    assert_eq!((folder_bytes(&disk), cache.figures().bytes), (bytes, bytes));
    drop(cache);
    assert_eq!(hits(&open(&disk, 100), 0..40), 40);
}

#[test]
fn the_number_of_a_file_does_not_come_again() {
    let fs = MemFs::new();
    // Room for one file of one block.
    let cache = open(&fs, 1);
    let mut names = HashSet::new();
    for number in [0, 1, 1, 2, 2] {
        read(&cache, number);
        names.extend(fs.list(dir(), "blocks-").unwrap().into_iter().map(|entry| entry.name));
    }
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn a_file_that_was_not_written_and_not_deleted_keeps_its_room() {
    let disk = MemFs::new();
    let faults = FaultFs::over_mem(disk.clone());
    let bytes_max = 20 * (BLOCK as u64 + 256);
    let cache =
        DiskCache::open(Arc::new(faults.clone()), dir(), bytes_max, false).unwrap().unwrap();
    let delete = FaultAt::Nth { kind: OpKind::Delete, suffix: String::new(), nth: 0 };
    faults.add_rule(FaultRule::sticky(delete, FaultAction::Eio));
    for round in 0..40 {
        // Two of the three blocks of a file are written, after its header.
        let append = FaultAt::Nth { kind: OpKind::Append, suffix: String::new(), nth: 3 };
        faults.add_rule(FaultRule::once(append, FaultAction::Eio));
        hits(&cache, round * 3..round * 3 + 3);
        assert!(folder_bytes(&disk) <= bytes_max, "in round {round}");
    }
    assert!(cache.figures().failures > 1);
}

#[test]
fn an_open_in_the_middle_of_a_close_waits_for_it() {
    let faults = FaultFs::over_mem(MemFs::new());
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let folder = Arc::new(CacheFolder::new(dir().to_owned(), 64 << 20));
    let cache = folder.open(&fs).unwrap().unwrap();
    let other = folder.open(&fs).unwrap().unwrap();
    read(&cache, 0);
    drop(other);
    let held = Arc::new(Mutex::new(Vec::new()));
    let noted = held.clone();
    let opened = folder.clone();
    faults.set_observer(Arc::new(move |_| noted.lock().push(opened.opened.is_locked())));
    drop(cache);
    faults.clear_observer();
    assert!(!held.lock().is_empty() && held.lock().iter().all(|is_held| *is_held));
    assert!(read(&folder.open(&fs).unwrap().unwrap(), 0));
}

#[test]
fn an_open_reads_the_headers_alone() {
    let disk = MemFs::new();
    let cache = open(&disk, 1000);
    hits(&cache, 0..900);
    drop(cache);
    let faults = FaultFs::over_mem(disk.clone());
    faults.start_log();
    let bytes_max = 1000 * (BLOCK as u64 + 256);
    let cache =
        DiskCache::open(Arc::new(faults.clone()), dir(), bytes_max, false).unwrap().unwrap();
    let ops = faults.take_log();
    let reads = ops.iter().filter(|op| op.kind == OpKind::Read);
    let read_bytes: u64 = reads.map(|op| op.len).sum();
    let headers_max = 900 * 128;
    assert!(read_bytes > 0 && read_bytes < headers_max, "{read_bytes} of {}", folder_bytes(&disk));
    assert_eq!(hits(&cache, 0..900), 900);
}

#[test]
fn no_lookup_waits_for_a_call_of_the_disk() {
    let faults = FaultFs::over_mem(MemFs::new());
    let bytes_max = 20 * (BLOCK as u64 + 256);
    let cache =
        DiskCache::open(Arc::new(faults.clone()), dir(), bytes_max, false).unwrap().unwrap();
    let cache = Arc::new(cache);
    let weak = Arc::downgrade(&cache);
    let calls = Arc::new(Mutex::new(HashSet::new()));
    let noted = calls.clone();
    faults.set_observer(Arc::new(move |op| {
        let is_held = weak.upgrade().is_some_and(|cache| cache.blocks.is_locked());
        noted.lock().insert((op.kind, is_held));
    }));
    for _ in 0..3 {
        hits(&cache, 0..40);
    }
    faults.clear_observer();
    let calls = calls.lock();
    for kind in [OpKind::OpenRead, OpKind::Read, OpKind::Append, OpKind::Delete] {
        assert!(calls.contains(&(kind, false)) && !calls.contains(&(kind, true)), "{kind:?}");
    }
}
