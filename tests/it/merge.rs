//! Merge operators: operands are folded by reads, flushes and compactions, and all readers see the same value.

mod large;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsm_core::fs::{CrashOutcome, MemFs};
use siltstone::hooks::EntryKind;
use siltstone::metahive::ScrubOptions;
use siltstone::operators::{AppendOperator, IntegerOperator, MergeOperator};
use siltstone::secondary::{Level, Secondary};
use siltstone::{
    Builder, Db, Durability, Error, ErrorKind, MetaHiveOptions, Partition, PartitionOptions,
    Readable, Result,
};

use crate::filled::{open, pair, small};
use crate::store::Content;

/// Appends each operand after a comma.
fn list() -> PartitionOptions {
    small().merge_operator(Arc::new(AppendOperator::new(",")))
}

fn of(entries: &[(&str, &str)]) -> Content {
    entries
        .iter()
        .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

/// All reads of the partition agree on this content.
fn check(reader: &impl Readable, expected: &Content) {
    assert_eq!(reader.iter().map(pair).collect::<Content>(), *expected);
    assert_eq!(reader.iter().rev().map(pair).collect::<Content>(), *expected);
    let keys: Vec<&Vec<u8>> = expected.keys().collect();
    let many = reader.multi_get(&keys).unwrap();
    for ((key, value), found) in expected.iter().zip(many) {
        assert_eq!(reader.get(key).unwrap().as_deref(), Some(&value[..]), "{}", key.escape_ascii());
        assert_eq!(found.as_deref(), Some(&value[..]));
    }
}

fn live_operands(p: &Partition) -> usize {
    let versions = p.keys().flat_map(|key| p.versions(key.unwrap()).unwrap());
    versions.filter(|version| version.kind == EntryKind::Operand).count()
}

/// A seal gives back what the memtable counts. If that is more than the insertions have counted, the sum is below
/// nothing, and each later commit seals a memtable.
#[test]
fn the_memory_of_remembered_folds_is_counted_before_it_is_given_back() {
    let db = open(&MemFs::new());
    let p = db.partition_with("p", list()).unwrap();
    for _ in 0..500 {
        p.merge("counter", "1").unwrap();
    }
    db.flush().unwrap();
    let flushes = db.stats().flush_count;
    for _ in 0..20 {
        p.put("key", "value").unwrap();
    }
    db.wait_idle().unwrap();
    assert_eq!(db.stats().flush_count, flushes, "nothing was sealed: {}", db.stats());
    db.close().unwrap();
}

#[test]
fn every_reader_sees_the_fold_of_what_it_sees() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", list()).unwrap();
    p.put("base", "0").unwrap();
    p.put("gone", "x").unwrap();
    p.merge("new", "1").unwrap();
    let early = db.snapshot();
    let at_early = of(&[("base", "0"), ("gone", "x"), ("new", "1")]);
    p.merge("base", "1").unwrap();
    db.flush().unwrap();
    p.merge("base", "2").unwrap();
    p.delete("gone").unwrap();
    p.merge("gone", "y").unwrap();
    let middle = db.snapshot();
    let at_middle = of(&[("base", "0,1,2"), ("gone", "y"), ("new", "1")]);
    db.flush().unwrap();
    p.delete_range("base"..="base").unwrap();
    db.batch().merge(&p, "base", "3").merge(&p, "base", "4").commit(Durability::Os).unwrap();
    p.merge("new", "2").unwrap();
    let late = of(&[("base", "3,4"), ("gone", "y"), ("new", "1,2")]);
    let mut cursor = p.cursor();
    cursor.seek("base").unwrap();
    for round in 0..3 {
        check(&early.of(&p), &at_early);
        check(&middle.of(&p), &at_middle);
        check(&p, &late);
        assert_eq!(cursor.value().unwrap(), b"3,4", "round {round}");
        db.flush().unwrap();
        p.compact(..).unwrap();
        db.wait_idle().unwrap();
    }
    assert!(db.verify(Default::default()).unwrap().is_sound());
    drop((early, middle, cursor));
    p.compact(..).unwrap();
    check(&p, &late);
    assert_eq!(live_operands(&p), 0, "all are values now");
    assert!(p.stats().operands_folded > 0);
    drop(p);
    db.close().unwrap();
    let db = open(&fs);
    check(&db.partition("p").unwrap(), &late);
}

/// The operands that a get of the counter `n` folds.
fn folds_of_a_get(p: &Partition, expected: i64) -> u64 {
    let before = p.stats().operands_folded;
    assert_eq!(p.get("n").unwrap().as_deref(), Some(&expected.to_le_bytes()[..]));
    p.stats().operands_folded - before
}

/// Bounds of reads are counted in calls of the operator.
#[test]
fn a_read_folds_few_operands_however_many_there_are() {
    let fs = MemFs::new();
    let db = open(&fs);
    let options = PartitionOptions::new().merge_operator(Arc::new(IntegerOperator::Add));
    let p = db.partition_with("p", options.clone()).unwrap();
    for n in 1..=5000i64 {
        p.merge("n", 1i64.to_le_bytes()).unwrap();
        if n % 97 == 0 {
            // Of each memtable so many.
            let memtables = p.stats().sealed_memtable_count + 1;
            assert!(folds_of_a_get(&p, n) <= 66 * memtables, "after {n}");
        }
    }
    let snapshot = db.snapshot();
    p.merge("n", 1i64.to_le_bytes()).unwrap();
    db.flush().unwrap();
    assert!(folds_of_a_get(&p, 5001) <= 3);
    drop(snapshot);
    p.compact(..).unwrap();
    assert_eq!(folds_of_a_get(&p, 5001), 0, "it is a value");
    // A crash: the replayed operands are folded on the way to tables.
    for _ in 0..500 {
        p.merge("n", 1i64.to_le_bytes()).unwrap();
    }
    db.wait_durable(db.visible_seq()).unwrap();
    let copy = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
    let reader = Db::builder("/db").fs(Arc::new(copy.clone())).read_only(true).open().unwrap();
    let q = reader.open_partition("p").unwrap();
    assert_eq!(q.get("n").unwrap().as_deref(), Some(&5501i64.to_le_bytes()[..]));
    assert!(folds_of_a_get(&q, 5501) <= 3, "the first read is remembered");
    reader.close().unwrap();
    let db = open(&copy);
    assert!(folds_of_a_get(&db.partition("p").unwrap(), 5501) <= 3);
}

/// Fails and panics on demand.
struct Faulty {
    fails: AtomicBool,
    panics: AtomicBool,
}

impl MergeOperator for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn check(&self, _: &[u8], operand: &[u8]) -> Result<()> {
        if operand == b"bad" {
            return Err(Error::new(ErrorKind::InvalidArgument, "no operand"));
        }
        Ok(())
    }

    fn merge(&self, _: &[u8], value: &mut Vec<u8>, operand: &[u8]) -> Result<()> {
        assert!(!self.panics.load(Ordering::Relaxed), "a bug");
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::InvalidArgument, "no value"));
        }
        value.extend_from_slice(operand);
        Ok(())
    }
}

#[test]
fn what_an_operator_cannot_fold_is_kept() {
    let fs = MemFs::new();
    let operator = Arc::new(Faulty { fails: true.into(), panics: false.into() });
    let db = open(&fs);
    let p = db.partition_with("p", small().merge_operator(operator.clone())).unwrap();
    p.put("k", "0").unwrap();
    // Enough for folds in the memtable.
    for _ in 0..200 {
        p.merge("k", "1").unwrap();
    }
    p.merge("lone", "1").unwrap();
    let refused = p.merge("k", "bad").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    for round in 0..2 {
        let error = p.get("k").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(
            ["\"p\"", "\"k\"", "\"faulty\"", "no value"].iter().all(|it| text.contains(it)),
            "{text}"
        );
        assert_eq!(p.get("lone").unwrap().as_deref(), Some(&b"1"[..]), "round {round}");
        operator.panics.store(true, Ordering::Relaxed);
        let error = p.iter().find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::HookPanicked);
        db.flush().unwrap();
        p.compact(..).unwrap();
        operator.panics.store(false, Ordering::Relaxed);
    }
    operator.fails.store(false, Ordering::Relaxed);
    assert_eq!(p.get("k").unwrap().unwrap().len(), 201);
    p.compact(..).unwrap();
    assert_eq!(p.get("k").unwrap().unwrap().len(), 201);
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

fn builder(fs: &MemFs) -> Builder {
    Db::builder("/db").fs(Arc::new(fs.clone()))
}

/// The error of an operation on the key `k`.
fn missing(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(["\"p\"", "\"k\"", "\"faulty\""].iter().all(|it| text.contains(it)), "{text}");
}

#[test]
fn without_its_code_a_partition_opens_and_keeps_operands() {
    let fs = MemFs::new();
    let operator = Arc::new(Faulty { fails: false.into(), panics: false.into() });
    let db = builder(&fs).open().unwrap();
    let p = db.partition_with("p", small().merge_operator(operator.clone())).unwrap();
    p.put("k", "0").unwrap();
    db.flush().unwrap();
    p.merge("k", "1").unwrap();
    p.put("plain", "v").unwrap();
    db.close().unwrap();
    let db = builder(&fs).open().unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!(p.get("plain").unwrap().as_deref(), Some(&b"v"[..]));
    let gone = format!("{:?}", db.health());
    assert!(gone.contains("faulty"), "{gone}");
    for _ in 0..2 {
        missing(&p.get("k").unwrap_err());
        missing(&p.cursor_value("k").unwrap_err());
        missing(&p.merge("k", "2").unwrap_err());
        missing(&p.multi_get(&["k"]).unwrap_err());
        db.flush().unwrap();
        p.compact(..).unwrap();
    }
    assert_eq!(p.export(.., "/export").unwrap_err().kind(), ErrorKind::Unsupported);
    let error = db.partition_with("p", small().merge_operator(Arc::new(IntegerOperator::Add)));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument, "it has another one");
    // Other options, and hooks without an operator, leave it as it is.
    db.partition_with("p", small()).unwrap();
    db.partition_with("p", small().metahive(MetaHiveOptions::default())).unwrap();
    missing(&p.get("k").unwrap_err());
    // Supplied late, and at an open.
    db.partition_with("p", small().merge_operator(operator.clone())).unwrap();
    assert_eq!(p.get("k").unwrap().as_deref(), Some(&b"01"[..]));
    db.close().unwrap();
    let db = builder(&fs).merge_operator(operator).open().unwrap();
    let p = db.partition("p").unwrap();
    p.merge("k", "2").unwrap();
    assert_eq!(p.get("k").unwrap().as_deref(), Some(&b"012"[..]));
}

trait CursorValue {
    fn cursor_value(&self, key: &str) -> Result<Vec<u8>>;
}

impl CursorValue for Partition {
    fn cursor_value(&self, key: &str) -> Result<Vec<u8>> {
        let mut cursor = self.cursor();
        cursor.seek(key)?;
        Ok(cursor.value()?.to_vec())
    }
}

#[test]
fn a_partition_without_an_operator_takes_no_operands() {
    let db = open(&MemFs::new());
    let p = db.partition("p").unwrap();
    assert_eq!(p.merge("k", "1").unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(p.merge_operator(), None);
    let batch = db.batch().put(&p, "a", "b").merge(&p, "k", "1");
    assert_eq!(batch.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Unsupported);
    let mut transaction = db.transaction();
    transaction.merge(&p, "k", "1");
    assert_eq!(transaction.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(p.iter().count(), 0);
    // A partition with data gets one.
    p.put("k", "0").unwrap();
    let p = db.partition_with("p", list()).unwrap();
    p.merge("k", "1").unwrap();
    assert_eq!(p.get("k").unwrap().as_deref(), Some(&b"0,1"[..]));
    let limit = siltstone::limits::OPERAND_BYTES_MAX as usize;
    p.merge("long", vec![7; limit]).unwrap();
    assert_eq!(p.merge("long", vec![7; limit + 1]).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn a_transaction_reads_its_own_merges_and_a_merge_is_no_read() {
    let db = open(&MemFs::new());
    let p = db.partition_with("p", list()).unwrap();
    p.put("a", "0").unwrap();
    p.put("b", "0").unwrap();
    let mut t = db.transaction();
    t.merge(&p, "a", "1");
    t.merge(&p, "c", "1");
    t.set_savepoint();
    t.merge(&p, "a", "2");
    t.put(&p, "b", "x");
    t.merge(&p, "b", "y");
    t.delete(&p, "c");
    t.merge(&p, "c", "z");
    let seen = of(&[("a", "0,1,2"), ("b", "x,y"), ("c", "z")]);
    check(&t.of(&p), &seen);
    t.rollback_to_savepoint().unwrap();
    check(&t.of(&p), &of(&[("a", "0,1"), ("b", "0"), ("c", "1")]));
    drop(t);
    // Others write to the keys: no conflict without a read, one with a read.
    let mut blind = db.transaction();
    blind.merge(&p, "a", "1");
    let mut reads = db.transaction();
    reads.merge(&p, "a", "2");
    assert_eq!(reads.get(&p, "a").unwrap().as_deref(), Some(&b"0,2"[..]));
    p.merge("a", "9").unwrap();
    blind.commit(Durability::Os).unwrap();
    assert_eq!(reads.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(p.get("a").unwrap().as_deref(), Some(&b"0,9,1"[..]));
    // A merge of another writer is a write that conflicts with a read.
    let mut reads = db.transaction();
    assert!(reads.get(&p, "new").unwrap().is_none());
    reads.put(&p, "other", "x");
    p.merge("new", "1").unwrap();
    assert_eq!(reads.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Conflict);
    // Under a lock the newest value counts.
    let mut locked = db.transaction();
    locked.merge(&p, "a", "L");
    p.merge("a", "M").unwrap();
    assert_eq!(locked.get_for_update(&p, "a").unwrap().as_deref(), Some(&b"0,9,1,M,L"[..]));
    locked.commit(Durability::Os).unwrap();
    assert_eq!(p.get("a").unwrap().as_deref(), Some(&b"0,9,1,M,L"[..]));
}

#[test]
fn metadata_covers_operands_and_folded_values() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", list().metahive(MetaHiveOptions::default())).unwrap();
    let mut expected = Content::new();
    let mut snapshots = Vec::new();
    for round in 0..4 {
        for n in 0..60 {
            let key = format!("key {n:02}");
            p.merge(&key, format!("{round}")).unwrap();
            let value = expected.entry(key.into_bytes()).or_default();
            if !value.is_empty() {
                value.push(b',');
            }
            value.extend_from_slice(round.to_string().as_bytes());
        }
        db.flush().unwrap();
        if round == 2 {
            p.compact(..).unwrap();
        }
        snapshots.push((db.snapshot(), expected.clone()));
        let report = p.scrub(ScrubOptions::new()).unwrap();
        assert!(report.is_sound(), "{report:?}");
        for (key, value) in &expected {
            let found = p.verified_get(key).unwrap().unwrap();
            assert_eq!(found.value, value[..]);
        }
        let verified = p.verified_range(..).map(Result::unwrap);
        let verified: Content =
            verified.map(|(key, found)| (key.to_vec(), found.value.to_vec())).collect();
        assert_eq!(verified, expected);
        for (snapshot, expected) in &snapshots {
            check(&snapshot.of(&p), expected);
        }
    }
    snapshots.clear();
    p.compact(..).unwrap();
    check(&p, &expected);
    let report = p.scrub(ScrubOptions::new()).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(live_operands(&p), 0);
}

#[test]
fn operands_from_before_metahive_get_metadata_of_their_bytes() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", list()).unwrap();
    let mut snapshots = Vec::new();
    for round in 0..3 {
        for n in 0..20 {
            p.merge(format!("key {n:02}"), format!("{round}")).unwrap();
        }
        snapshots.push(db.snapshot());
        db.flush().unwrap();
    }
    db.partition_with("p", list().metahive(MetaHiveOptions::default())).unwrap();
    for _ in 0..2 {
        p.compact(..).unwrap();
        let report = p.scrub(ScrubOptions::new()).unwrap();
        assert!(report.is_sound(), "{report:?}");
    }
    assert_eq!(live_operands(&p), 40);
    drop(snapshots);
    p.compact(..).unwrap();
    check(&p, &(0..20).map(|n| (format!("key {n:02}").into(), b"0,1,2".to_vec())).collect());
}

#[test]
fn copies_have_folded_values_or_the_same_operands() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", list()).unwrap();
    p.put("a", "0").unwrap();
    db.flush().unwrap();
    p.merge("a", "1").unwrap();
    p.merge("b", "1").unwrap();
    let expected = of(&[("a", "0,1"), ("b", "1")]);
    p.export(.., "/export").unwrap();
    let q = db.partition("q").unwrap();
    q.ingest("/export").unwrap();
    check(&q, &expected);
    assert_eq!((live_operands(&q), q.merge_operator()), (0, None));
    let mut stream = Vec::new();
    db.export_stream(&mut stream, &Default::default()).unwrap();
    let other = open(&MemFs::new());
    other.import_stream(&mut &stream[..], &Default::default()).unwrap();
    check(&other.partition("p").unwrap(), &expected);
    db.checkpoint("/copy").unwrap();
    let copy = Db::builder("/copy").fs(Arc::new(fs.clone())).open().unwrap();
    let copied = copy.partition("p").unwrap();
    copied.merge("a", "2").unwrap();
    check(&copied, &of(&[("a", "0,1,2"), ("b", "1")]));
}

fn at(secondary: &Secondary) -> Result<Option<siltstone::Slice>> {
    secondary.partition("p")?.at(Level::Strong)?.get("k")
}

#[test]
fn a_secondary_folds_as_its_primary_does() {
    let fs = MemFs::new();
    let db = open(&fs);
    let operator = Arc::new(Faulty { fails: false.into(), panics: false.into() });
    let p = db.partition_with("p", small().merge_operator(operator.clone())).unwrap();
    p.put("k", "0").unwrap();
    db.flush().unwrap();
    p.merge("k", "1").unwrap();
    let secondary = Db::secondary_builder("/db").fs(Arc::new(fs.clone())).open().unwrap();
    let without = secondary.partition("p").unwrap();
    assert_eq!(at(&secondary).unwrap_err().kind(), ErrorKind::Unsupported);
    drop(without);
    let builder = Db::secondary_builder("/db").fs(Arc::new(fs.clone()));
    let secondary = builder.merge_operator(operator).open().unwrap();
    assert_eq!(at(&secondary).unwrap().as_deref(), Some(&b"01"[..]));
    for _ in 0..300 {
        p.merge("k", "2").unwrap();
    }
    assert_eq!(at(&secondary).unwrap().unwrap().len(), 302);
    db.flush().unwrap();
    p.compact(..).unwrap();
    assert_eq!(at(&secondary).unwrap().unwrap().len(), 302);
}

/// A filter sees values, and no operands.
#[test]
fn filters_decide_on_folded_values() {
    let fs = MemFs::new();
    let db = open(&fs);
    let filter = siltstone::PrefixDropFilter::new(["tmp/"]);
    let p = db.partition_with("p", list().filter(Arc::new(filter))).unwrap();
    p.merge("tmp/a", "1").unwrap();
    p.merge("kept", "1").unwrap();
    db.flush().unwrap();
    p.merge("tmp/a", "2").unwrap();
    db.flush().unwrap();
    p.compact(..).unwrap();
    check(&p, &of(&[("kept", "1")]));
}
