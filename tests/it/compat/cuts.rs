//! A power cut at any operation of the open that takes a database of an earlier version over.

use std::sync::Mutex;

use lsm_core::fs::{FaultFs, FsOp};
use testkit::Rng;

use super::*;

/// The states that a cut before any operation of an open may leave, with the operation.
fn images_of_an_open(fs: &MemFs, rng: Rng) -> Vec<(String, MemFs)> {
    let faulty = FaultFs::over_mem(fs.clone());
    let images: Arc<Mutex<Vec<(String, MemFs)>>> = Arc::default();
    let taken = images.clone();
    let seen = fs.clone();
    let rng = Mutex::new(rng);
    faulty.set_observer(Arc::new(move |op: &FsOp| {
        if op.mutates() {
            let mut rng = rng.lock().unwrap();
            let outcome = *rng.pick(&CrashOutcome::ALL);
            let image = seen.crash_clone(outcome, &mut || rng.next_u64());
            taken.lock().unwrap().push((format!("{outcome:?} before {op:?}"), image));
        }
    }));
    drop(builder_on(Arc::new(faulty.clone())).open().unwrap());
    faulty.clear_observer();
    std::mem::take(&mut *images.lock().unwrap())
}

#[test]
fn a_power_cut_at_any_operation_of_the_first_open_loses_nothing() {
    let mut rng = Rng::from_env_or(5);
    for version in VERSIONS {
        for (name, _) in FIXTURES {
            let fs = fixtures::in_memory(&name_of(version, name));
            let images = images_of_an_open(&fs, rng.fork());
            assert!(images.len() > 20, "{} images of {version}/{name}", images.len());
            for (what, image) in images {
                let db = builder(&image).open();
                let db = db.unwrap_or_else(|error| panic!("{version}/{name}, {what}: {error}"));
                check(&db, &expected());
                db.partition("plain").unwrap().put("key 001", "later").unwrap();
                drop(db);
                let db = builder(&image).open().unwrap();
                let found = db.partition("plain").unwrap().get("key 001").unwrap();
                assert_eq!(found.as_deref(), Some(&b"later"[..]), "{version}/{name}, {what}");
            }
        }
    }
}
