//! The rate of backups, and their threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lsm_core::clock::Clock;

use super::*;

/// So many seconds pass with each look.
struct Seconds {
    step: u64,
    passed: AtomicU64,
}

impl Clock for Seconds {
    fn now(&self) -> Duration {
        Duration::from_secs(self.passed.fetch_add(self.step, Ordering::Relaxed))
    }
}

/// The seconds that a call takes at 1,000 bytes a second.
fn seconds(fs: &Arc<dyn Fs>, threads: usize, call: impl Fn(&BackupEngine)) -> u64 {
    let clock = Arc::new(Seconds { step: 5, passed: AtomicU64::new(0) });
    let engine = engine(fs).clock(clock.clone()).rate_limit(1000).threads(threads);
    call(&engine);
    clock.passed.load(Ordering::Relaxed)
}

#[test]
fn a_rate_bounds_all_threads_of_a_backup_a_verification_and_a_restore_together() {
    for threads in [1, 3] {
        let mem = MemFs::new();
        let fs: Arc<dyn Fs> = Arc::new(mem.clone());
        let db = create(&fs, DIR, 1);
        let mut rng = Rng::new(2);
        for _ in 0..20 {
            write(&db, &mut rng);
        }
        let create = seconds(&fs, threads, |engine| drop(engine.create_backup(&db).unwrap()));
        let size = engine(&fs).info().unwrap()[0].new_bytes;
        assert!(size > 50_000, "{size}");
        let verify = seconds(&fs, threads, |engine| drop(engine.verify(None).unwrap()));
        let restore = seconds(&fs, threads, |engine| drop(engine.restore(1, NEW).unwrap()));
        for passed in [create, verify, restore] {
            // A burst of a tenth of a second is free, and the clock goes in steps, once or more for each wait.
            assert!(passed + 1 >= size / 1000, "{passed} seconds for {size} bytes");
            assert!(passed < 40 * size / 1000, "{passed} seconds for {size} bytes");
        }
        // Nothing is copied.
        let again = seconds(&fs, threads, |engine| drop(engine.create_backup(&db).unwrap()));
        assert!(again < create, "{again} seconds, {create} before");
    }
}

#[test]
fn files_with_equal_content_are_copied_at_the_same_time() {
    for _ in 0..3 {
        let mem = MemFs::new();
        let fs: Arc<dyn Fs> = Arc::new(mem.clone());
        let db = open(&fs, DIR, 1).unwrap();
        for name in ["a", "b", "c", "d"] {
            let options = LargeValueOptions::default().threshold_bytes(1000);
            let options = options.compression(Compression::None);
            let options = PartitionOptions::new().large_values(options);
            db.partition_with(name, options).unwrap().put("zeros", vec![0; 25 << 20]).unwrap();
        }
        // No table names the values, so their content names their pieces.
        let made = engine(&fs).threads(4).create_backup(&db).unwrap();
        assert!(made.new_bytes < made.size, "{made:?}");
        assert_eq!(engine(&fs).verify(None).unwrap().bytes, made.new_bytes);
    }
}

#[test]
fn several_threads_make_verify_and_restore_the_same_backup() {
    let mem = MemFs::new();
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let db = create(&fs, DIR, 1);
    let mut rng = Rng::new(3);
    for _ in 0..20 {
        write(&db, &mut rng);
    }
    let alone = engine(&fs).create_backup(&db).unwrap();
    let one = shared_files(&mem);
    engine(&fs).purge_old(0).unwrap();
    let engine = engine(&fs).threads(4);
    let several = engine.create_backup(&db).unwrap();
    assert_eq!((alone.new_bytes, alone.size), (several.new_bytes, several.size));
    assert_eq!(one.len(), shared_files(&mem).len());
    let report = engine.verify(None).unwrap();
    assert!(report.is_sound() && report.files as usize == one.len(), "{report:?}");
    engine.restore(several.backup_id, NEW).unwrap();
    assert!(state(&open(&fs, NEW, 4).unwrap()) == state(&db));
}
