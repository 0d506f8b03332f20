//! Readers that hold no files while another process writes: a file that the writer deletes is no
//! damage.

use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, OpKind};

use super::*;

/// Ways in which a reader opens the database without a lease or lock.
#[derive(Clone, Copy, Debug)]
enum Reader {
    /// Its folder cannot be written.
    Beside,
    /// The file of the lock is not there.
    ReadOnly,
}

struct Scene {
    mem: MemFs,
    clock: ManualClock,
    db: Db,
    p: Partition,
}

impl Scene {
    fn new() -> Scene {
        let mem = MemFs::new();
        let clock = ManualClock::default();
        let db = open_with(Arc::new(mem.clone()), "/db", &clock).unwrap();
        let p = db.partition_with("p", options()).unwrap();
        let scene = Scene { mem, clock, db, p };
        scene.write(1);
        scene
    }

    /// Puts every value again, and drops all files with the old ones.
    fn write(&self, round: u8) {
        for n in 0..6_u8 {
            self.p.put([n], vec![round; 2000]).unwrap();
        }
        self.p.put("small", [round]).unwrap();
        self.p.flush().unwrap();
        self.p.compact(..).unwrap();
        self.clock.pass(60);
        self.db.wait_idle().unwrap();
    }

    fn open(&self, reader: Reader, fs: &FaultFs) -> Result<Db> {
        let builder = stepped(Arc::new(fs.clone()), "/db", 1);
        match reader {
            Reader::Beside => {
                // As on a full disk: see `Lease::take_if_writable`.
                let at = FaultAt::Nth { kind: OpKind::Append, suffix: String::new(), nth: 0 };
                fs.add_rule(FaultRule::sticky(at, FaultAction::Enospc));
                builder.beside_writer(true).open()
            }
            Reader::ReadOnly => {
                self.mem.delete("/db/LOCK".as_ref()).unwrap();
                builder.read_only(true).open()
            }
        }
    }
}

/// Reads all values of a reader: each one of the same round, or the error of a deleted file.
/// Returns the number of each.
fn read(reader: &Db, context: &str) -> (usize, usize) {
    let p = reader.partition("p").unwrap();
    let mut found = (0, 0);
    for n in 0..6_u8 {
        match p.get([n]) {
            Ok(value) => {
                let value = value.unwrap();
                assert!(value.len() == 2000 && value.iter().all(|byte| *byte == value[0]));
                found.0 += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::FileGone, "{context}: {error}");
                found.1 += 1;
            }
        }
    }
    let report = reader.verify(Default::default()).unwrap();
    assert!(report.damage().is_empty(), "{context}: {report}");
    found
}

#[test]
fn files_deleted_by_a_writer_are_no_damage_for_an_open_reader() {
    for reader in [Reader::Beside, Reader::ReadOnly] {
        let scene = Scene::new();
        let fs = FaultFs::over_mem(scene.mem.clone());
        let open = scene.open(reader, &fs).unwrap();
        scene.write(2);
        let (_, gone) = read(&open, &format!("{reader:?}"));
        assert_eq!(gone, 6, "{reader:?}");
        drop(open);
        let open = scene.open(reader, &fs).unwrap();
        assert_eq!(read(&open, "a new one"), (6, 0));
    }
}

/// The writer releases everything before each operation of the open.
#[test]
fn files_deleted_during_an_open_are_no_damage() {
    for reader in [Reader::Beside, Reader::ReadOnly] {
        for after in 0.. {
            let scene = Arc::new(Scene::new());
            let fs = FaultFs::over_mem(scene.mem.clone());
            let count = AtomicU64::new(0);
            let writer = Arc::downgrade(&scene);
            fs.set_observer(Arc::new(move |_| {
                if count.fetch_add(1, Ordering::SeqCst) == after {
                    writer.upgrade().unwrap().write(2);
                }
            }));
            let context = format!("{reader:?}, operation {after}");
            let open = scene.open(reader, &fs).unwrap_or_else(|error| panic!("{context}: {error}"));
            let is_over = fs.op_count() <= after;
            fs.clear_observer();
            read(&open, &context);
            if is_over {
                assert!(after > 8, "{context}");
                break;
            }
        }
    }
}

/// The newest manifest names it, so that the writer has not deleted it.
#[test]
fn a_missing_file_that_the_manifest_names_is_damage() {
    for reader in [Reader::Beside, Reader::ReadOnly] {
        for end in [".chunk", ".sst"] {
            let scene = Scene::new();
            let fs = FaultFs::over_mem(scene.mem.clone());
            let open = scene.open(reader, &fs).unwrap();
            let mut paths = scene.mem.paths().into_iter();
            let lost = paths.find(|path| path.to_string_lossy().ends_with(end)).unwrap();
            scene.mem.delete(&lost).unwrap();
            let p = open.partition("p").unwrap();
            let errors: Vec<_> = (0..6_u8).filter_map(|n| p.get([n]).err()).collect();
            assert!(!errors.is_empty(), "{reader:?}, {end}");
            for error in errors {
                assert!(error.is_corruption(), "{reader:?}, {end}: {error}");
            }
            assert!(!open.verify(Default::default()).unwrap().is_sound(), "{reader:?}, {end}");
        }
    }
}
