//! The power is cut before every mutating operation of a small script.

use lsm_core::fs::{CrashOutcome, FaultFs, FsOp};

use super::*;

/// Images that a cut could leave, with the number of durable commits and of all commits.
pub(super) type Images = Arc<Mutex<Vec<(String, MemFs, usize, usize)>>>;

pub(super) fn take_images(fs: &FaultFs, mem: &MemFs, made: &Arc<Mutex<(usize, usize)>>) -> Images {
    let images = Images::default();
    let taken = images.clone();
    let mem = mem.clone();
    let made = made.clone();
    let rng = Mutex::new(Rng::new(3));
    fs.set_observer(Arc::new(move |op: &FsOp| {
        if op.mutates() {
            let mut rng = rng.lock().unwrap();
            for outcome in [CrashOutcome::Nothing, *rng.pick(&CrashOutcome::ALL)] {
                let image = mem.crash_clone(outcome, &mut || rng.next_u64());
                let (durable, commits) = *made.lock().unwrap();
                let what = format!("{outcome:?} before {op:?}");
                taken.lock().unwrap().push((what, image, durable, commits));
            }
        }
    }));
    images
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_durable_and_leaves_every_pair_whole() {
    let mem = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let fs = FaultFs::over_mem(mem.clone());
    let made = Arc::new(Mutex::new((0, 0)));
    let images = take_images(&fs, &mem, &made);
    let open = builder(Arc::new(fs.clone()), 9).hooks(Arc::new(provider.clone()));
    let db = open.open().unwrap();
    let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
    let mut history = vec![Content::new()];
    for n in 0..90u8 {
        let mut content = history.last().unwrap().clone();
        let key = vec![n % 40, n % 3];
        let key = if key.ends_with(&[SUFFIX]) { vec![n % 40, 5] } else { key };
        made.lock().unwrap().1 += 1;
        if n % 7 == 6 {
            p.delete(&key).unwrap();
            content.remove(&key);
        } else {
            p.put(&key, [n; 60]).unwrap();
            content.insert(key, vec![n; 60]);
        }
        history.push(content);
        if n % 9 == 8 {
            db.flush().unwrap();
            made.lock().unwrap().0 = history.len() - 1;
        }
        if n % 30 == 29 {
            p.compact(..).unwrap();
        }
        while n % 4 == 0 && db.step().unwrap() {}
    }
    fs.clear_observer();
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 200);
    for (what, image, durable, commits) in images {
        let open = builder(Arc::new(image.clone()), 10).hooks(Arc::new(provider.clone()));
        let db = open.open().unwrap();
        let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
        let found = pairs(p.iter());
        let prefix = history[..=commits].iter().rposition(|content| *content == found);
        assert!(prefix.is_some_and(|prefix| prefix >= durable), "{what}");
        p.put("still", "writable").unwrap();
        p.compact(..).unwrap();
        assert_eq!(p.iter().count(), found.len() + 1, "{what}");
        census(&image).assert_all_sealed();
    }
    let counts = provider.0.counts();
    assert_eq!((counts.faults, counts.made, counts.orphans_dropped), (0, 0, 0));
}
