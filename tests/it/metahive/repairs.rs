//! Repairs of damaged tables: one job for each, in the level of the table.

use std::sync::atomic::{AtomicU32, Ordering};

use lsm_core::fs::{FaultFs, FsOp, OpKind};
use lsm_core::hooks::{CompactionFilter, Entry, Fault, Faults, Input, Origin, VerifiedEntry};
use siltstone::{Compression, Result};

use super::around::{Around, Change};
use super::crash::take_images;
use super::damage::{harm, no_log};
use super::*;

fn value(n: u32) -> Vec<u8> {
    format!("value {n} ").repeat(4).into_bytes()
}

/// A closed store with tables in several levels, and its content.
fn at_rest(provider: &Provider) -> (MemFs, Content) {
    let fs = MemFs::new();
    let db = builder(Arc::new(fs.clone()), 4).hooks(Arc::new(provider.clone())).open().unwrap();
    let options = tiny().compression(Compression::None).hooks(provider.hooks());
    let p = db.partition_with("p", options).unwrap();
    let mut model = Content::new();
    for n in 0..300 {
        p.put(key_of(n), value(n)).unwrap();
        model.insert(key_of(n), value(n));
    }
    p.compact(..).unwrap();
    // Level 0: deletions and new versions above the tables of the deep levels.
    for n in (0..300).step_by(10) {
        p.delete(key_of(n)).unwrap();
        model.remove(&key_of(n));
        p.put(key_of(n + 1), value(1000 + n)).unwrap();
        model.insert(key_of(n + 1), value(1000 + n));
    }
    db.flush().unwrap();
    drop(p);
    db.close().unwrap();
    (fs, model)
}

fn open(fs: &MemFs, provider: &Provider, log: &Arc<Log>) -> (Db, Partition) {
    let open = builder(Arc::new(fs.clone()), 5).hooks(Arc::new(provider.clone()));
    let db = open.listener(log.clone()).open().unwrap();
    let p = db.partition("p").unwrap();
    (db, p)
}

fn without_log() -> Provider {
    Provider::new(MetaHive::new(MetaHiveOptions::new().repair_options(no_log())))
}

/// Flips one bit of the value of each of these keys.
fn turn_bits(fs: &MemFs, numbers: &[u32]) {
    for n in numbers {
        assert_eq!(harm(fs, &value(*n), &[0x10]), 1, "{n}");
    }
}

/// The tables of the partition: level, first key, last key.
fn shape(p: &Partition) -> Vec<(usize, Vec<u8>, Vec<u8>)> {
    let walk = p.walk().unwrap();
    let tables = walk.tables().map(|table| {
        let meta = table.meta();
        (table.level(), meta.smallest.user.to_vec(), meta.largest.user.to_vec())
    });
    tables.collect()
}

/// An export repairs the tables that it reads, and no compaction follows.
#[test]
fn damaged_tables_are_repaired_in_their_levels() {
    let provider = without_log();
    let (fs, model) = at_rest(&provider);
    // 1050 is in level 0.
    let numbers = [7, 58, 123, 124, 239, 1050];
    turn_bits(&fs, &numbers);
    let log = Arc::new(Log::default());
    let (db, p) = open(&fs, &provider, &log);
    let before = shape(&p);
    let levels: BTreeSet<usize> = before.iter().map(|table| table.0).collect();
    assert!(levels.len() > 1 && levels.contains(&0), "{levels:?}");
    let snapshot = db.snapshot();
    for n in numbers {
        let key = if n < 1000 { key_of(n) } else { key_of(n - 999) };
        assert!(p.get(key).unwrap_err().is_corruption(), "{n}");
    }
    p.export(.., "/export").unwrap();
    assert_eq!(shape(&p), before);
    assert_eq!(pairs(p.iter()), model);
    assert_eq!(pairs(snapshot.iter(&p)), model);
    assert_eq!(p.gaps(), []);
    let (repaired, quarantined) = log.take();
    assert_eq!((repaired.len(), quarantined.len()), (numbers.len(), 0), "{repaired:?}");
    assert!(repaired.iter().all(|source| source == "one-bit search"), "{repaired:?}");
    census(&fs).assert_all_sealed();
    p.compact(..).unwrap();
    assert_eq!(pairs(p.iter()), model);
    assert_eq!(log.take(), (Vec::new(), Content::new()));
}

/// The repair used to find no table in the dropped partition, and the export was tried again
/// without end.
#[test]
fn an_export_of_a_partition_that_is_dropped_meanwhile_ends() {
    let provider = without_log();
    let (mem, _) = at_rest(&provider);
    turn_bits(&mem, &[123]);
    let fs = FaultFs::over_mem(mem);
    let open = builder(Arc::new(fs.clone()), 6).hooks(Arc::new(provider.clone()));
    let db = open.open().unwrap();
    let p = db.partition("p").unwrap();
    let reads = AtomicU32::new(0);
    let dropping = db.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let is_read = op.kind == OpKind::Read && op.path.extension().is_some_and(|it| it == "sst");
        let number = if is_read { reads.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if is_read && number == 0 {
            dropping.drop_partition("p").unwrap();
        }
        assert!(number < 1000, "it is tried again and again");
    }));
    let error = p.export(.., "/export").unwrap_err();
    fs.clear_observer();
    assert_eq!(error.kind(), ErrorKind::PartitionNotFound, "{error}");
}

#[test]
fn a_crash_in_a_repair_loses_nothing() {
    let provider = without_log();
    let (mem, model) = at_rest(&provider);
    turn_bits(&mem, &[7, 123, 1050]);
    let fs = FaultFs::over_mem(mem.clone());
    let images = take_images(&fs, &mem, &Arc::default());
    let open_damaged = builder(Arc::new(fs.clone()), 6).hooks(Arc::new(provider.clone()));
    let db = open_damaged.open().unwrap();
    let p = db.partition("p").unwrap();
    p.export(.., "/export").unwrap();
    p.put("new", "value").unwrap();
    p.compact(..).unwrap();
    fs.clear_observer();
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 50, "{}", images.len());
    // All of them take minutes.
    for (what, image, ..) in images.into_iter().step_by(5) {
        let (_db, p) = open(&image, &provider, &Arc::default());
        for n in 0..300 {
            match p.get(key_of(n)) {
                Ok(found) => {
                    assert_eq!(
                        found.as_deref(),
                        model.get(&key_of(n)).map(Vec::as_slice),
                        "{what}"
                    );
                }
                Err(error) => assert!(error.is_corruption(), "{what}: {error}"),
            }
        }
        p.put("another", "value").unwrap();
        p.compact(..).unwrap();
        let mut found = pairs(p.iter());
        found.remove(&b"new"[..]);
        found.remove(&b"another"[..]);
        assert_eq!(found, model, "{what}");
        census(&image).assert_all_sealed();
    }
}

#[test]
fn a_repair_on_a_full_disk_says_what_it_needs_and_is_tried_again() {
    let provider = without_log();
    let (fs, model) = at_rest(&provider);
    turn_bits(&fs, &[123]);
    let log = Arc::new(Log::default());
    let (_db, p) = open(&fs, &provider, &log);
    let used: usize = fs.paths().iter().map(|path| fs.read_raw(path).unwrap().len()).sum();
    fs.set_capacity(Some(used as u64 + 600));
    let error = p.export(.., "/export").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let error = p.compact(..).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(log.take().1, Content::new());
    fs.set_capacity(None);
    p.compact(..).unwrap();
    assert_eq!(pairs(p.iter()), model);
}

/// A MetaHive that always finds a fault in one entry, and counts its checks of the entry.
#[derive(Clone, Default)]
struct Stubborn(Arc<AtomicU32>);

impl Change for Stubborn {
    fn input(
        &mut self,
        job: &mut dyn CompactionFilter,
        entry: &Entry<'_>,
        at: &Origin,
        verified: Option<&VerifiedEntry<'_>>,
        faults: &mut Faults,
    ) -> Result<Input> {
        if entry.key.starts_with(&key_of(123)) {
            self.0.fetch_add(1, Ordering::Relaxed);
            faults.push(Fault {
                key: entry.key.to_vec(),
                seq: entry.seq,
                kind: entry.kind,
                value: Vec::new(),
                at: *at,
                what: "stubborn".to_owned(),
            });
        }
        job.input(entry, at, verified, faults)
    }
}

#[test]
fn a_fault_that_no_repair_takes_away_is_a_final_error() {
    let (fs, model) = at_rest(&without_log());
    let stubborn = Stubborn::default();
    let db = builder(Arc::new(fs.clone()), 7).open().unwrap();
    let hooks = Hooks::new().filter(Arc::new(Around::new(stubborn.clone())));
    let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
    p.put(key_of(123).repeat(2), "inside").unwrap();
    let error = p.compact(..).unwrap_err();
    let damage = error.damage().unwrap();
    assert_eq!(damage.what, "stubborn");
    assert!(damage.file.extension().is_some_and(|ending| ending == "sst"));
    assert!(damage.key.as_deref().is_some_and(|key| key.starts_with(&key_of(123))));
    // The compaction and the repair each check the entry twice.
    let looks = stubborn.0.load(Ordering::Relaxed);
    assert!((18..60).contains(&looks), "{looks}");
    assert!(p.compact(..).unwrap_err().is_corruption());
    assert_eq!(stubborn.0.load(Ordering::Relaxed), looks, "it is not tried again");
    let mut found = pairs(p.iter());
    found.remove(&key_of(123).repeat(2));
    assert_eq!(found, model);
}

/// An entry that changes in memory after the check of its block is read again: no table is
/// rewritten for it.
#[test]
fn an_entry_that_changes_in_memory_is_read_again() {
    let provider = without_log();
    let (fs, model) = at_rest(&provider);
    let log = Arc::new(Log::default());
    let db = builder(Arc::new(fs.clone()), 7)
        .hooks(Arc::new(provider.clone()))
        .listener(log.clone())
        .inject(|at: Origin, entry: &mut OwnedEntry| {
            if at.file.is_some() && entry.key.starts_with(&key_of(123)) && entry.value.len() > 30 {
                entry.value[0] ^= 4;
            }
        })
        .open()
        .unwrap();
    let p = db.partition("p").unwrap();
    let before = shape(&p);
    p.export(.., "/export").unwrap();
    assert_eq!(shape(&p), before);
    p.compact(..).unwrap();
    assert_eq!(pairs(p.iter()), model);
    let (repaired, quarantined) = log.take();
    assert!(repaired.len() >= 2 && repaired.iter().all(|source| source == "re-read"));
    assert_eq!(quarantined, Content::new());
}
