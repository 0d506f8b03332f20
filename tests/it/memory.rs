//! Bits that flip in memory between a write and its table: the written value arrives, or an error
//! names the damaged key. No older value is returned instead of the current one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lsm_core::db::InMemory;
use lsm_core::fs::{FaultFs, MemFs, OpKind};
use siltstone::hooks::{Event, EventListener};
use siltstone::metahive::ScrubOptions;
use siltstone::raw::EntryKind;
use siltstone::{
    Db, Durability, ErrorKind, MetaHiveOptions, Partition, PartitionOptions, VerifyOptions,
};

use crate::store::stepped;

const KEY: &str = "victim";
const VALUE: &str = "the new value";
/// Offsets of the key and of the value in the section of a single put.
const KEY_AT: usize = 2;
const VALUE_AT: usize = KEY_AT + KEY.len() + 1;

#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl EventListener for Log {
    fn on_event(&self, event: &Event) {
        let report = match event {
            Event::Corruption(_) => "corruption".to_owned(),
            Event::Repaired { source, .. } => format!("repaired: {source}"),
            Event::Quarantined { .. } => "quarantined".to_owned(),
            _ => return,
        };
        self.0.lock().unwrap().push(report);
    }
}

/// A store in which `flips` happen to the section of one put at `place`: byte and mask.
struct Case {
    db: Db,
    partition: Partition,
    armed: Arc<AtomicBool>,
    log: Arc<Log>,
}

impl Case {
    fn new(options: PartitionOptions, place: InMemory, flips: Vec<(usize, u8)>) -> Case {
        let armed = Arc::new(AtomicBool::new(false));
        let log = Arc::new(Log::default());
        let is_armed = armed.clone();
        let db = stepped(Arc::new(MemFs::new()), "/db", 3)
            .listener(log.clone())
            .inject_in_memory(move |at, bytes| {
                if at == place && is_armed.load(Ordering::Relaxed) {
                    flips.iter().for_each(|(byte, mask)| bytes[*byte] ^= mask);
                }
            })
            .open()
            .unwrap();
        let partition = db.partition_with("p", options).unwrap();
        // An older value in a table, and neighbours on both sides.
        for key in ["a", KEY, "z"] {
            partition.put(key, "old").unwrap();
        }
        db.flush().unwrap();
        partition.put("b", "nearby").unwrap();
        Case { db, partition, armed, log }
    }

    fn put(&self) -> siltstone::Result<()> {
        self.armed.store(true, Ordering::Relaxed);
        let put = self.partition.put(KEY, VALUE);
        self.armed.store(false, Ordering::Relaxed);
        put.map(drop)
    }

    fn pairs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let pairs = self.partition.iter().map(|pair| pair.unwrap());
        pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    fn assert_whole(&self) {
        let whole = [("a", "old"), ("b", "nearby"), (KEY, VALUE), ("z", "old")];
        let whole: Vec<_> =
            whole.map(|(k, v)| (k.as_bytes().to_vec(), v.as_bytes().to_vec())).into();
        assert_eq!(self.pairs(), whole);
        assert_eq!(self.partition.get(KEY).unwrap().as_deref(), Some(VALUE.as_bytes()));
    }

    fn reports(&self) -> Vec<String> {
        self.log.0.lock().unwrap().clone()
    }
}

fn every_bit() -> impl Iterator<Item = (usize, u8)> {
    let key = KEY_AT..KEY_AT + KEY.len();
    let value = VALUE_AT..VALUE_AT + VALUE.len();
    key.chain(value).flat_map(|byte| (0..8).map(move |bit| (byte, 1 << bit)))
}

fn all_sorts() -> [PartitionOptions; 3] {
    let plain = PartitionOptions::new;
    [plain(), plain().logged(false), plain().metahive(MetaHiveOptions::default())]
}

#[test]
fn a_bit_that_flips_in_a_memtable_is_undone_by_the_flush() {
    for (sort, options) in all_sorts().into_iter().enumerate() {
        for flip in every_bit() {
            let case = Case::new(options.clone(), InMemory::Memtable, vec![flip]);
            case.put().unwrap();
            case.db.flush().unwrap();
            case.assert_whole();
            let source = if sort == 1 { "one bit undone" } else { "the log" };
            assert_eq!(case.reports(), ["corruption".to_owned(), format!("repaired: {source}")]);
            case.partition.compact(..).unwrap();
            case.assert_whole();
        }
    }
}

/// The kind and the lengths of the operation are not in the memtable, so nothing is left to repair.
#[test]
fn a_bit_that_flips_in_a_kind_or_length_after_the_checksum_changes_nothing() {
    let key = KEY_AT..KEY_AT + KEY.len();
    for options in all_sorts() {
        let heads = (0..VALUE_AT).filter(|byte| !key.contains(byte));
        for flip in heads.flat_map(|byte| (0..8).map(move |bit| (byte, 1 << bit))) {
            let case = Case::new(options.clone(), InMemory::Memtable, vec![flip]);
            case.put().unwrap();
            case.assert_whole();
            case.db.flush().unwrap();
            case.assert_whole();
            assert!(case.reports().is_empty(), "{:?}", case.reports());
        }
    }
}

#[test]
fn a_bit_that_flips_before_the_log_has_its_checksum_fails_the_write() {
    for options in all_sorts() {
        for flip in every_bit() {
            let case = Case::new(options.clone(), InMemory::Section, vec![flip]);
            assert_eq!(case.put().unwrap_err().kind(), ErrorKind::Corruption);
            assert_eq!(case.partition.get(KEY).unwrap().as_deref(), Some(&b"old"[..]));
            case.put_again();
            case.db.flush().unwrap();
            case.assert_whole();
        }
    }
}

impl Case {
    /// Without a fault, in a batch.
    fn put_again(&self) {
        let batch = self.db.batch().put(&self.partition, KEY, VALUE);
        batch.commit(Durability::Os).unwrap();
    }
}

#[test]
fn an_unrepairable_value_reads_as_damaged_and_never_as_an_older_one() {
    for has_metadata in [false, true] {
        let options = PartitionOptions::new().logged(false);
        check_poisoned(match has_metadata {
            false => options,
            true => options.metahive(MetaHiveOptions::default()),
        });
    }
}

fn check_poisoned(options: PartitionOptions) {
    let flips = vec![(VALUE_AT, 0b11), (VALUE_AT + 3, 0b1000)];
    let case = Case::new(options, InMemory::Memtable, flips);
    case.put().unwrap();
    case.db.flush().unwrap();
    for _ in 0..2 {
        assert_eq!(case.partition.get(KEY).unwrap_err().kind(), ErrorKind::Corruption);
        assert_eq!(case.partition.get("b").unwrap().as_deref(), Some(&b"nearby"[..]));
        assert_eq!(case.reports(), ["corruption", "quarantined"]);
        // The table is as it was written. The record is damaged, and no check reports it as intact.
        let report = case.db.verify(VerifyOptions::default()).unwrap();
        let of_key = Some((KEY.as_bytes().to_vec(), KEY.as_bytes().to_vec()));
        let damaged: Vec<_> = report.damage().iter().map(|damage| damage.keys.clone()).collect();
        assert_eq!(damaged, [of_key]);
        let report = case.partition.scrub(ScrubOptions::new()).unwrap();
        let faults: Vec<_> = report.faults().map(|fault| (&fault.key[..], fault.kind)).collect();
        assert_eq!(faults, [(KEY.as_bytes(), EntryKind::Poison)], "{report}");
        assert_eq!(report.damage().count(), 0, "{report}");
        case.partition.compact(..).unwrap();
    }
    case.put_again();
    case.db.flush().unwrap();
    case.assert_whole();
    case.partition.compact(..).unwrap();
    assert!(case.db.verify(VerifyOptions::default()).unwrap().is_sound());
    assert!(case.partition.scrub(ScrubOptions::new()).unwrap().is_sound());
}

#[test]
fn an_unrepairable_key_fails_the_flush() {
    let flips = vec![(KEY_AT, 0b11), (KEY_AT + 3, 0b1000)];
    let case = Case::new(PartitionOptions::new().logged(false), InMemory::Memtable, flips.clone());
    case.put().unwrap();
    assert_eq!(case.db.flush().unwrap_err().kind(), ErrorKind::Corruption);
    // With a log the true key is known.
    let case = Case::new(PartitionOptions::new(), InMemory::Memtable, flips);
    case.put().unwrap();
    case.db.flush().unwrap();
    case.assert_whole();
}

#[test]
fn a_verified_read_refuses_an_entry_that_changed_in_a_memtable() {
    let flip = vec![(VALUE_AT, 1)];
    let case = Case::new(
        PartitionOptions::new().metahive(MetaHiveOptions::default()),
        InMemory::Memtable,
        flip,
    );
    case.put().unwrap();
    assert_eq!(case.partition.verified_get(KEY).unwrap_err().kind(), ErrorKind::Corruption);
    case.db.flush().unwrap();
    assert_eq!(&*case.partition.verified_get(KEY).unwrap().unwrap().value, VALUE.as_bytes());
}

/// A range of bad memory damages many entries; the log that has them is long.
#[test]
fn the_log_is_read_once_for_all_entries_that_a_flush_repairs() {
    let faults = FaultFs::over_mem(MemFs::new());
    let db = stepped(Arc::new(faults.clone()), "/db", 4)
        .inject_in_memory(|at, bytes| {
            if at == InMemory::Memtable {
                bytes[VALUE_AT] ^= 1;
            }
        })
        .open()
        .unwrap();
    let partition = db.partition("p").unwrap();
    let keys: Vec<String> = (0..20).map(|n| format!("key {n:02}")).collect();
    for key in &keys {
        partition.put(key, VALUE).unwrap();
    }
    faults.start_log();
    db.flush().unwrap();
    let operations = faults.take_log();
    let opened = operations.iter().filter(|operation| {
        operation.kind == OpKind::OpenRead && operation.path.extension() == Some("wal".as_ref())
    });
    assert_eq!(opened.count(), 1);
    for key in &keys {
        assert_eq!(partition.get(key).unwrap().as_deref(), Some(VALUE.as_bytes()), "{key}");
    }
}
