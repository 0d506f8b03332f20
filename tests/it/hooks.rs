//! Compaction filters, hidden entries and a value store, through the whole engine.

mod change;
mod sealer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lsm_core::codec::checksum64_seeded;
use lsm_core::fs::{CrashOutcome, MemFs};
use lsm_core::hooks::{
    CompactionFilter, CompactionFilterFactory, Cut, Emitter, EndedBlock, Entry, Fault, Faults,
    HookProvider, Hooks, Input, InputTable, Job, Origin, Output, Properties, Rules, VerifiedEntry,
    WhenAbsent,
};
use lsm_core::types::{EntryKind, KeyForm, SeqNo, VALUE_SEED};
use proptest::prelude::*;
use siltstone::{
    Builder, Db, Durability, ErrorKind, Options, Partition, PartitionOptions, PrefixDropFilter,
    Result, TtlFilter,
};
use testkit::Rng;

use crate::store::{content, stepped};
use crate::test_value_store::{FailureMode, ShelfProvider, TestValueStore};

/// Small limits, so that every path runs.
fn builder(fs: &MemFs, seed: u64) -> Builder {
    let options =
        Options::new().write_buffer_bytes(4 << 10).wal_segment_bytes(8 << 10).cache_bytes(64 << 10);
    stepped(Arc::new(fs.clone()), "/db", seed).options(options)
}

fn tiny() -> PartitionOptions {
    PartitionOptions::new().block_bytes(128).table_bytes(1 << 10).level_base_bytes(2 << 10)
}

// ---- filters that decide ----------------------------------------------------------------------

fn expires_at(_key: &[u8], value: &[u8]) -> Option<u64> {
    value.first_chunk::<8>().map(|at| u64::from_be_bytes(*at))
}

#[test]
fn a_ttl_filter_deletes_what_expired_and_leaves_snapshots_alone() {
    let now = Arc::new(AtomicU64::new(10));
    let clock = now.clone();
    let db = builder(&MemFs::new(), 1).open().unwrap();
    let filter = Arc::new(TtlFilter::new(expires_at, move || clock.load(Ordering::Relaxed)));
    let p = db.partition_with("p", tiny().filter(filter)).unwrap();
    for n in 0..100u64 {
        p.put(n.to_be_bytes(), n.to_be_bytes()).unwrap();
    }
    let snapshot = db.snapshot();
    now.store(50, Ordering::Relaxed);
    p.compact(..).unwrap();
    assert_eq!(snapshot.iter(&p).count(), 100);
    assert_eq!(p.iter().count(), 100, "what a snapshot sees is not decided on");
    drop(snapshot);
    now.store(60, Ordering::Relaxed);
    // New versions over old ones: removing the newest must not bring the older back.
    for n in 0..100u64 {
        p.put(n.to_be_bytes(), (n / 2).to_be_bytes()).unwrap();
    }
    p.compact(..).unwrap();
    assert!(content(&p).is_empty());
    db.wait_idle().unwrap();
    assert_eq!(db.stats().partitions[1].levels.iter().map(|l| l.entry_count).sum::<u64>(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The rule of every filter that decides: a key reads as without the filter, or as deleted if
    /// the filter would delete its current value; a snapshot reads as if there were no filter.
    #[test]
    fn deciding_filters_never_show_an_older_value_nor_change_a_snapshot(
        ops in prop::collection::vec((0u8..6, 0u8..8, 0u8..10), 1..150),
        seed: u64,
    ) {
        let db = builder(&MemFs::new(), seed).open().unwrap();
        let filter = Arc::new(PrefixDropFilter::new([b"d".to_vec()]));
        let options = tiny().level0_tables(2).level_multiplier(2);
        let p = db.partition_with("p", options.filter(filter)).unwrap();
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut snapshots = Vec::new();
        for (n, (what, key, arg)) in ops.iter().enumerate() {
            let key = [if key % 2 == 0 { b'd' } else { b'k' }, *key];
            match what {
                0 | 1 => {
                    let value = [vec![n as u8], vec![*arg; 200]].concat();
                    p.put(key, &value).unwrap();
                    model.insert(key.to_vec(), value);
                }
                2 => {
                    p.delete(key).unwrap();
                    model.remove(&key[..]);
                }
                3 if snapshots.len() < 3 => snapshots.push((db.snapshot(), model.clone(), content(&p))),
                3 => drop(snapshots.remove(usize::from(*arg) % 3)),
                4 => db.flush().unwrap(),
                _ => p.compact(..).unwrap(),
            }
            let seen = content(&p);
            for (key, value) in &model {
                let got = seen.get(key);
                prop_assert!(got == Some(value) || (got.is_none() && key[0] == b'd'));
            }
            prop_assert!(seen.keys().all(|key| model.contains_key(key)));
            for (snapshot, _, then) in &snapshots {
                let seen: BTreeMap<_, _> = snapshot.iter(&p)
                    .map(|kv| kv.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect();
                prop_assert_eq!(&seen, then);
            }
        }
    }
}

#[test]
fn a_snapshot_taken_while_a_filter_decides_keeps_its_view() {
    /// Takes a snapshot during the job.
    struct Meddler(Mutex<Option<Db>>, Arc<Mutex<Option<siltstone::Snapshot>>>);
    struct MeddlerJob;
    impl CompactionFilter for MeddlerJob {
        fn decide(&mut self, _entry: Entry<'_>) -> Result<lsm_core::hooks::Decision> {
            Ok(lsm_core::hooks::Decision::Remove)
        }
    }
    impl CompactionFilterFactory for Meddler {
        fn name(&self) -> &'static str {
            "meddler"
        }
        fn start(&self, job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
            if job.kind == lsm_core::hooks::JobKind::Compaction
                && let Some(db) = self.0.lock().unwrap().take()
            {
                *self.1.lock().unwrap() = Some(db.snapshot());
            }
            Ok(Box::new(MeddlerJob))
        }
    }
    let db = builder(&MemFs::new(), 7).open().unwrap();
    let plain = db.partition_with("p", tiny()).unwrap();
    for n in 0..50u8 {
        plain.put([n], [n; 50]).unwrap();
    }
    db.flush().unwrap();
    let taken = Arc::new(Mutex::new(None));
    let filter = Arc::new(Meddler(Mutex::new(Some(db.clone())), taken.clone()));
    let p = db.partition_with("p", tiny().filter(filter)).unwrap();
    p.compact(..).unwrap();
    assert!(content(&p).is_empty());
    let snapshot = taken.lock().unwrap().take().unwrap();
    assert_eq!(snapshot.iter(&p).count(), 50);
    assert_eq!(snapshot.get(&p, [3]).unwrap().as_deref(), Some(&[3; 50][..]));
}

#[test]
fn the_error_of_a_filter_names_partition_key_and_filter() {
    struct Refusing;
    impl CompactionFilter for Refusing {
        fn decide(&mut self, entry: Entry<'_>) -> Result<lsm_core::hooks::Decision> {
            match entry.key {
                b"bad" => Err(siltstone::Error::new(ErrorKind::InvalidArgument, "not this one")),
                _ => Ok(lsm_core::hooks::Decision::Keep),
            }
        }
    }
    impl CompactionFilterFactory for Refusing {
        fn name(&self) -> &'static str {
            "refusing"
        }
        fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
            Ok(Box::new(Refusing))
        }
    }
    let db = builder(&MemFs::new(), 7).open().unwrap();
    let p = db.partition_with("p", tiny().filter(Arc::new(Refusing))).unwrap();
    p.put("bad", "1").unwrap();
    let refused = db.flush().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let text = "partition \"p\", key \"bad\", compaction filter \"refusing\": not this one";
    assert!(refused.to_string().contains(text), "{refused}");
    assert_eq!(p.get("bad").unwrap().as_deref(), Some(&b"1"[..]));
}

// ---- a filter that seals ----------------------------------------------------------------------

// ---- a value store ----------------------------------------------------------------------------

#[test]
fn values_stay_in_their_store_until_no_reader_is_left() {
    let fs = MemFs::new();
    let shelf = TestValueStore::default();
    let db = builder(&fs, 3).open().unwrap();
    let hooks = Hooks::new().value_store(Arc::new(shelf.clone()));
    let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
    for n in 0..20u8 {
        p.put([n], vec![n; 150]).unwrap();
        p.put([n, 0], vec![n; 20]).unwrap();
    }
    assert_eq!(shelf.live(), 20);
    let check = |p: &Partition| {
        for n in 0..20u8 {
            assert_eq!(p.get([n]).unwrap().as_deref(), Some(&vec![n; 150][..]));
        }
        assert_eq!(p.iter().map(|kv| kv.unwrap().1.len()).sum::<usize>(), 20 * 170);
    };
    check(&p);
    p.compact(..).unwrap();
    check(&p);
    let held = p.range([5]..[6]);
    for n in 0..10u8 {
        p.delete([n]).unwrap();
    }
    let long = vec![0; siltstone::limits::USER_KEY_BYTES_MAX + 1];
    let refused = db.batch().put(&p, "big", vec![1; 200]).put(&p, long, "").commit(Durability::Os);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(shelf.live(), 20, "a batch that was refused leaves no value");
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(shelf.live(), 20, "an iterator may still read what was deleted");
    let values: Vec<_> = held.map(|kv| kv.unwrap().1.len()).collect();
    assert_eq!(values, [150, 20]);
    db.wait_idle().unwrap();
    assert_eq!(shelf.live(), 10);
    drop(p);
    db.close().unwrap();
    let error = builder(&fs, 4).open().unwrap().partition("p").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("shelf"), "{error}");
    let db = builder(&fs, 5).hooks(Arc::new(ShelfProvider(shelf.clone()))).open().unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!(p.iter().flatten().count(), 30);
}

#[test]
fn after_a_power_cut_no_handle_points_to_a_missing_value() {
    for seed in 0..200u64 {
        let fs = MemFs::new();
        let shelf = TestValueStore::default();
        let mut rng = Rng::new(seed);
        let db = builder(&fs, seed).open().unwrap();
        let hooks = Hooks::new().value_store(Arc::new(shelf.clone()));
        let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
        let mut synced = 0;
        let count = 5 + rng.below(20);
        for n in 0..count {
            let durability = if rng.chance(1, 4) { Durability::Sync } else { Durability::Os };
            db.batch().put(&p, n.to_be_bytes(), vec![n as u8; 120]).commit(durability).unwrap();
            if durability == Durability::Sync {
                synced = n + 1;
            }
            if rng.chance(1, 8) {
                db.flush().unwrap();
                synced = n + 1;
            }
        }
        let outcome = CrashOutcome::ALL[seed as usize % CrashOutcome::ALL.len()];
        let after = fs.crash_clone(outcome, &mut || rng.next_u64());
        let shelf = shelf.cut();
        let db = builder(&after, seed).hooks(Arc::new(ShelfProvider(shelf))).open().unwrap();
        let p = db.partition("p").unwrap();
        let values: Vec<_> = p.iter().map(|kv| kv.unwrap().1).collect();
        assert!(values.len() as u64 >= synced, "seed {seed}: {} of {synced}", values.len());
        for (n, value) in values.iter().enumerate() {
            assert_eq!(*value, vec![n as u8; 120], "seed {seed}");
        }
    }
}

#[test]
fn a_damaged_value_hides_no_log_that_ends_after_it() {
    let fs = MemFs::new();
    let shelf = TestValueStore::default();
    let db = builder(&fs, 1).open().unwrap();
    let hooks = Hooks::new().value_store(Arc::new(shelf.clone()));
    let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
    let put = |key, durability| db.batch().put(&p, key, [7; 120]).commit(durability).unwrap();
    put("damaged", Durability::Sync);
    put("sound", Durability::Sync);
    // A later frame proves both durable.
    db.wait_idle().unwrap();
    put("lost", Durability::Os);
    let after = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
    let shelf = shelf.cut();
    shelf.lose(1);
    let db = builder(&after, 2).hooks(Arc::new(ShelfProvider(shelf))).open().unwrap();
    let p = db.partition("p").unwrap();
    assert!(p.get("damaged").unwrap_err().is_corruption());
    assert_eq!(p.get("sound").unwrap().as_deref(), Some(&[7; 120][..]));
    assert_eq!(p.get("lost").unwrap(), None, "the log ends before it");
}

/// A store that cannot say whether it has a value keeps the database closed. The log must not end there: that
/// loses the commit and all later ones. Bytes that are no handle end the log.
#[test]
fn a_log_ends_before_bytes_that_are_no_handle_and_not_before_damage_of_the_store() {
    let refused = Some(ErrorKind::Corruption);
    // A later frame proves the first value durable.
    for (call, opened, kept) in [("is_durable", refused, 2), ("value", None, 1)] {
        let fs = MemFs::new();
        let shelf = TestValueStore::default();
        let db = builder(&fs, 1).open().unwrap();
        let hooks = Hooks::new().value_store(Arc::new(shelf.clone()));
        let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
        for key in ["a", "b"] {
            db.batch().put(&p, key, [7; 120]).commit(Durability::Sync).unwrap();
        }
        let after = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
        let shelf = shelf.cut();
        let provider = Arc::new(ShelfProvider(shelf.clone()));
        shelf.fuse.set(call, FailureMode::Corrupt);
        let result = builder(&after, 2).hooks(provider.clone()).open();
        assert_eq!(result.err().map(|error| error.kind()), opened, "{call}");
        shelf.fuse.clear();
        let db = builder(&after, 2).hooks(provider).open().unwrap();
        assert_eq!(content(&db.partition("p").unwrap()).len(), kept, "{call}");
    }
}

#[test]
fn no_table_is_installed_before_the_values_that_it_points_to_are_durable() {
    for (logged, moves, outcome) in [(true, true), (false, false), (false, true)]
        .into_iter()
        .flat_map(|(logged, moves)| CrashOutcome::ALL.map(|outcome| (logged, moves, outcome)))
    {
        let fs = MemFs::new();
        let shelf = TestValueStore::moving(moves);
        let mut rng = Rng::new(5);
        let db = builder(&fs, 5).open().unwrap();
        let hooks = Hooks::new().value_store(Arc::new(shelf.clone()));
        let p = db.partition_with("p", tiny().logged(logged).hooks(hooks)).unwrap();
        for round in 0..3u8 {
            for n in 0..20u8 {
                p.put([n], vec![round; 120]).unwrap();
            }
            match round {
                0 => db.flush().unwrap(),
                1 => p.compact(..).unwrap(),
                _ => db.wait_idle().unwrap(),
            }
            // Twice: what an open writes has to be durable as well.
            let mut fs = fs.clone();
            let mut shelf = shelf.clone();
            for _ in 0..2 {
                fs = fs.crash_clone(outcome, &mut || rng.next_u64());
                shelf = shelf.cut();
                let provider = Arc::new(ShelfProvider(shelf.clone()));
                let left = builder(&fs, 6).hooks(provider).open().unwrap();
                let left = left.partition("p").unwrap();
                let values: Vec<_> = left.iter().map(|kv| kv.unwrap().1).collect();
                assert_eq!(values.len(), 20, "{logged}, {moves}, {outcome:?}");
                assert!(round == 2 || values.iter().all(|value| *value == vec![round; 120]));
            }
        }
    }
}

#[test]
fn properties_of_filters_reach_the_next_job() {
    struct Reader(Arc<Mutex<Vec<InputTable>>>);
    struct ReaderJob;
    impl CompactionFilter for ReaderJob {
        fn finish_table(&mut self, _: &[EndedBlock], properties: &mut Properties) -> Result<()> {
            properties.0.insert("note".to_owned(), vec![42]);
            Ok(())
        }
    }
    impl CompactionFilterFactory for Reader {
        fn name(&self) -> &'static str {
            "reader"
        }
        fn start(&self, job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
            self.0.lock().unwrap().extend_from_slice(job.inputs);
            Ok(Box::new(ReaderJob))
        }
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let db = builder(&MemFs::new(), 1).open().unwrap();
    let hooks = Hooks::new().filter(Arc::new(Reader(seen.clone())));
    let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
    for round in 0..2u8 {
        p.put("k", [round]).unwrap();
        db.flush().unwrap();
    }
    p.compact(..).unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen.len() >= 2 && seen.iter().all(|t| t.properties.0["note"] == [42]));
}
