//! A power cut before every operation of a manifest's life, and the recovered state.

use super::*;
use crate::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind};

/// The bounds of what a recovery at some moment may find: an edit number from `acked` to `tried`.
#[derive(Clone, Copy, Debug, Default)]
struct Promise {
    acked: Option<u64>,
    tried: u64,
}

struct Life {
    mem: MemFs,
    fs: FaultFs,
    promise: Arc<Mutex<Promise>>,
    /// By edit number; a number whose edit failed has two.
    versions: Vec<DbVersion>,
}

impl Life {
    fn create(&mut self, name: u64, version: &DbVersion) -> Manifest {
        self.promise.lock().tried = version.edit_number;
        self.versions.push(version.clone());
        Manifest::create(&self.fs, dir(), generation(name), version).unwrap()
    }

    fn append(&mut self, manifest: &mut Manifest, version: &mut DbVersion) -> Result<()> {
        let edit = next(version, vec![added(0, meta(version.next_file.0, "a", "z"))]);
        *version = apply(version, &edit).unwrap();
        self.versions.push(version.clone());
        self.promise.lock().tried = edit.number;
        manifest.append(&edit)?;
        self.promise.lock().acked = Some(edit.number);
        Ok(())
    }

    /// Rotations, an open after a torn tail's worth of garbage, and a failed sync.
    fn run(&mut self) {
        let mut version = base();
        let mut first = self.create(100, &version);
        self.promise.lock().acked = Some(version.edit_number);
        self.append(&mut first, &mut version).unwrap();
        self.append(&mut first, &mut version).unwrap();
        // A generation that its writer never used.
        version.next_file = FileNo(1000);
        self.create(110, &version);
        let mut second = self.create(120, &version);
        first.supersede(generation(120)).unwrap();
        self.append(&mut second, &mut version).unwrap();
        self.delete(&[110, 100]);
        self.append(&mut second, &mut version).unwrap();
        // A sync fails, and so does the first one of the generation that replaces this one: the numbers
        // of the edits are used up, and no generation names the next one.
        version = self.fail_append(&mut second, version);
        let mut unused = self.create(125, &version);
        version = self.fail_append(&mut unused, version);
        let mut third = self.create(130, &version);
        self.append(&mut third, &mut version).unwrap();
        self.delete(&[120, 125]);
        // A sync fails and the process dies. The next one reads bytes that the disk does not have.
        self.fail_sync();
        assert!(self.append(&mut third, &mut version).is_err());
        let found = recover(&self.fs, dir(), &names(&self.mem)).unwrap().unwrap();
        assert_eq!(found.version.edit_number, version.edit_number);
        let mut old = Manifest::reopen(&self.fs, dir(), found.generation, &version).unwrap();
        let mut fourth = self.create(140, &version);
        old.supersede(generation(140)).unwrap();
        self.promise.lock().acked = Some(version.edit_number);
        self.append(&mut fourth, &mut version).unwrap();
        self.delete(&[130]);
    }

    /// An edit whose sync fails; returns the version after it, which lacks it.
    fn fail_append(&mut self, manifest: &mut Manifest, mut version: DbVersion) -> DbVersion {
        let before = version.clone();
        self.fail_sync();
        assert!(self.append(manifest, &mut version).is_err());
        DbVersion { edit_number: before.edit_number + 1, ..before }
    }

    /// Deletes generations in this order, each for good.
    fn delete(&self, generations: &[u64]) {
        for number in generations {
            self.fs.delete(&generation(*number).path(dir())).unwrap();
            self.fs.sync_dir(dir()).unwrap();
        }
    }

    fn fail_sync(&self) {
        let at = FaultAt::Nth { kind: OpKind::Sync, suffix: String::new(), nth: 0 };
        self.fs.heal();
        self.fs.add_rule(FaultRule::once(at, FaultAction::SyncLost));
    }
}

fn names(fs: &MemFs) -> Vec<FileName> {
    let entries = fs.list(dir(), "").unwrap();
    entries.iter().filter_map(|entry| FileName::parse(&entry.name)).collect()
}

/// The crash images before one operation, with the promises made by then.
type Image = (CrashOutcome, MemFs, Promise);

#[test]
fn a_power_cut_before_any_operation_loses_no_edit_that_was_acknowledged() {
    let mem = MemFs::new();
    mem.create_dir(dir()).unwrap();
    let mut life = Life {
        fs: FaultFs::over_mem(mem.clone()),
        mem,
        promise: Arc::default(),
        versions: Vec::new(),
    };
    let images: Arc<Mutex<Vec<Image>>> = Arc::default();
    let mem = life.mem.clone();
    let promise = life.promise.clone();
    let list = images.clone();
    let seed = Mutex::new(1_u64);
    life.fs.set_observer(Arc::new(move |op| {
        let rounds = if op.mutates() { 4 } else { 0 };
        for outcome in CrashOutcome::ALL.into_iter().cycle().take(7 * rounds) {
            let image = mem.crash_clone(outcome, &mut || {
                let mut seed = seed.lock();
                *seed = seed.wrapping_add(1);
                crate::codec::checksum64(&seed.to_le_bytes())
            });
            list.lock().push((outcome, image, *promise.lock()));
        }
    }));
    life.run();
    life.fs.clear_observer();
    let images = std::mem::take(&mut *images.lock());
    assert!(images.len() > 700, "{}", images.len());
    for (at, (outcome, image, promise)) in images.into_iter().enumerate() {
        let found = recover(&image, dir(), &names(&image));
        let found = found.unwrap_or_else(|e| panic!("image {at}, {outcome:?}, {promise:?}: {e}"));
        let Some(found) = found else {
            assert_eq!(promise.acked, None, "image {at}, {outcome:?}");
            continue;
        };
        let number = found.version.edit_number;
        let said = format!("image {at}, {outcome:?}, {promise:?}: edit {number}");
        assert!(promise.acked <= Some(number) && number <= promise.tried, "{said}");
        let mut like = life.versions.iter().filter(|version| version.edit_number == number);
        assert!(like.any(|version| version.partitions == found.version.partitions), "{said}");
    }
}
