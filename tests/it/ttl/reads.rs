//! Reads obey a stored rule, each at its own time.

use std::ops::Bound;

use siltstone::operators::AppendOperator;
use siltstone::{PartitionTransaction, Readable, RemainingTime};

use super::*;

fn value(second: u64) -> Vec<u8> {
    [&second.to_be_bytes()[..], b" and more"].concat()
}

fn key(n: u64) -> String {
    format!("key {n:03}")
}

fn text(key: &[u8]) -> String {
    String::from_utf8(key.to_vec()).unwrap()
}

/// Checks that a reader finds exactly the keys with these numbers, by every kind of read.
fn check(p: &impl Readable, expected: &[u64]) {
    let expected: Vec<String> = expected.iter().map(|n| key(*n)).collect();
    let found: Vec<_> = p.range(..).map(|entry| text(&entry.unwrap().0)).collect();
    assert_eq!(found, expected, "forwards");
    let mut back: Vec<_> = p.range(..).rev().map(|entry| text(&entry.unwrap().0)).collect();
    back.reverse();
    assert_eq!(back, expected, "backwards");
    assert_eq!(p.keys().count(), expected.len());
    assert_eq!(
        p.prefix("key 00").count(),
        expected.iter().filter(|k| k.as_str() < "key 01").count()
    );
    let first = p.first().unwrap().map(|(key, _)| key.to_vec());
    assert_eq!(first.as_deref(), expected.first().map(String::as_bytes));
    let last = p.last().unwrap().map(|(key, _)| key.to_vec());
    assert_eq!(last.as_deref(), expected.last().map(String::as_bytes));
    let all: Vec<String> = (0..100).map(key).collect();
    let many = p.multi_get(&all).unwrap();
    for (key, value) in all.iter().zip(many) {
        let is_there = expected.contains(key);
        assert_eq!(p.get(key).unwrap().is_some(), is_there, "{key}");
        assert_eq!(p.contains(key).unwrap(), is_there, "{key}");
        assert_eq!(value.is_some(), is_there, "{key}");
        let alone = (Bound::Included(key.as_str()), Bound::Included(key.as_str()));
        assert_eq!(p.range(alone).count(), usize::from(is_there), "{key}");
    }
}

/// Keys in a table of a deep level, in one of level 0 and in a memtable, each with an older version that stays.
fn filled(p: &Partition) {
    for n in 0..60 {
        p.put(key(n), [0; 9]).unwrap();
    }
    p.compact(..).unwrap();
    for n in 0..60 {
        p.put(key(n), value(100 + n)).unwrap();
        if n == 30 {
            p.flush().unwrap();
        }
    }
}

#[test]
fn every_read_obeys_the_rule_at_its_own_time() {
    let sealed = with(&rule()).metahive(MetaHiveOptions::default());
    for (options, is_sealed) in [(with(&rule()), false), (sealed, true)] {
        let clock = ManualClock::default();
        let db = builder(&MemFs::new(), &clock).open().unwrap();
        let p = db.partition_with("p", options).unwrap();
        filled(&p);
        let all: Vec<u64> = (0..60).collect();
        let before = db.snapshot();
        let transaction = db.transaction();
        let mut range = p.range(..);
        clock.pass(140);
        // Of 60 keys, those of the seconds 100 to 140 have expired.
        check(&p, &all[41..]);
        check(&db.snapshot().of(&p), &all[41..]);
        check(&db.transaction().of(&p), &all[41..]);
        check(&p.with_expired(), &all);
        check(&before.of(&p), &all);
        let own: PartitionTransaction<'_> = transaction.of(&p);
        check(&own, &all);
        assert_eq!(range.by_ref().count(), 60, "a range has the time at which it began");
        let mut cursor = p.cursor();
        cursor.seek_before(key(41)).unwrap();
        assert!(!cursor.valid());
        if is_sealed {
            assert!(p.verified_get(key(41)).unwrap().is_some());
            assert!(p.verified_get(key(40)).unwrap().is_none());
            assert_eq!(p.verified_range(..).count(), 19);
        }
        assert!(p.open_blob(key(40)).unwrap().is_none());
        assert!(p.get_range(key(40), 0..4).unwrap().is_none());
        assert_eq!(p.remaining_time(key(40)).unwrap(), None);
        let left = RemainingTime::Limited(Duration::from_secs(1));
        assert_eq!(p.remaining_time(key(41)).unwrap(), Some(left));
        let then = RemainingTime::Limited(Duration::from_secs(140));
        assert_eq!(before.of(&p).remaining_time(key(40)).unwrap(), Some(then), "its own time");
        assert_eq!(own.remaining_time(key(40)).unwrap(), Some(then));
        assert_eq!(db.snapshot().remaining_time(&p, key(40)).unwrap(), None);
        let gone = p.explain(key(10).as_bytes()).unwrap();
        assert!(gone.to_string().contains("\n   expired 30s ago: reads do not see it"), "{gone}");
        let stays = p.explain(key(41).as_bytes()).unwrap();
        assert!(stays.to_string().contains("\n   expires in 1s"), "{stays}");
        drop((before, transaction, range, cursor));
        settle(&db);
        clock.pass(1);
        check(&p, &all[42..]);
        p.compact(..).unwrap();
        check(&p, &all[42..]);
        check(&p.with_expired(), &all[42..]);
        db.close().unwrap();
    }
}

/// The names of the filters, in the order in which they run.
fn filters(p: &Partition) -> Vec<String> {
    p.filters().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn a_rule_and_metahive_stay_when_the_other_one_is_named() {
    let clock = ManualClock::default();
    let fs = MemFs::new();
    let db = builder(&fs, &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    filled(&p);
    let all: Vec<u64> = (0..60).collect();
    clock.pass(140);
    for _ in 0..2 {
        let sealed = p.options().metahive(MetaHiveOptions::default());
        db.partition_with("p", sealed).unwrap();
        assert_eq!(filters(&p), ["ttl", "metahive"]);
        check(&p, &all[41..]);
    }
    // Another rule takes the place of the first one, and what MetaHive seals comes after it.
    let late = TtlRule::in_value(0).time_to_live(Duration::from_secs(10));
    let stored = TtlFilter::stored(&late);
    db.partition_with("p", p.options().ttl(&late)).unwrap();
    assert_eq!(filters(&p), ["ttl", "metahive"]);
    check(&p, &all[31..]);
    drop(p);
    db.close().unwrap();
    let db = builder(&fs, &clock).open().unwrap();
    let p = db.partition("p").unwrap();
    check(&p, &all[31..]);
    p.compact(..).unwrap();
    assert_eq!(p.verified_range(..).count(), 29);
    use siltstone::hooks::CompactionFilterFactory;
    assert_eq!(p.filters()[0].1, stored.params());
    // One goes alone, also with the name of a filter that the partition does not have, and over an open.
    let unsealed = p.options().without_metahive().without_filter("none");
    db.partition_with("p", unsealed).unwrap();
    assert_eq!(filters(&p), ["ttl"]);
    check(&p, &all[31..]);
    drop(p);
    db.close().unwrap();
    let db = builder(&fs, &clock).open().unwrap();
    let p = db.partition("p").unwrap();
    check(&p, &all[31..]);
    db.partition_with("p", p.options().metahive(MetaHiveOptions::default())).unwrap();
    let endless = p.options().ttl(&rule()).without_filter(TtlFilter::NAME);
    db.partition_with("p", endless).unwrap();
    assert_eq!(filters(&p), ["metahive"]);
    db.partition_with("p", p.options().ttl(&rule())).unwrap();
    // Filters that are named end all others, and MetaHive ends none.
    db.partition_with("p", p.options().hooks(Default::default())).unwrap();
    assert_eq!(filters(&p), [""; 0]);
    db.partition_with("p", p.options().metahive(MetaHiveOptions::default())).unwrap();
    db.partition_with("p", p.options().ttl(&rule())).unwrap();
    assert_eq!(filters(&p), ["ttl", "metahive"]);
    db.close().unwrap();
}

#[test]
fn a_rule_may_leave_expired_entries_to_reads() {
    let clock = ManualClock::default();
    let fs = MemFs::new();
    let db = builder(&fs, &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule().reads_see_expired(true))).unwrap();
    filled(&p);
    let all: Vec<u64> = (0..60).collect();
    clock.pass(140);
    check(&p, &all);
    let gone = p.explain(key(10).as_bytes()).unwrap().to_string();
    assert!(gone.contains("expired 30s ago: reads see it until it is removed"), "{gone}");
    assert_eq!(p.remaining_time(key(0)).unwrap(), Some(RemainingTime::Limited(Duration::ZERO)));
    // A change of the rule counts at once, for snapshots as well.
    let snapshot = db.snapshot();
    db.partition_with("p", with(&rule())).unwrap();
    check(&p, &all[41..]);
    check(&snapshot.of(&p), &all);
    check(&db.snapshot().of(&p), &all[41..]);
    drop(snapshot);
    db.close().unwrap();
    let db = builder(&fs, &clock).open().unwrap();
    check(&db.partition("p").unwrap(), &all[41..]);
}

#[test]
fn an_expired_entry_is_absent_for_changes_and_conflicts_with_nothing() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    p.put("a", value(100)).unwrap();
    p.put("b", value(100)).unwrap();
    let mut transaction = db.transaction();
    assert!(transaction.get(&p, "a").unwrap().is_some());
    transaction.put(&p, "c", value(500));
    transaction.put(&p, "gone", value(1));
    clock.pass(100);
    assert!(transaction.get(&p, "a").unwrap().is_some(), "it sees the time of its begin");
    assert!(transaction.get(&p, "gone").unwrap().is_some());
    transaction.commit(Durability::Os).unwrap();
    assert!(p.get("c").unwrap().is_some() && p.get("gone").unwrap().is_none());
    let mut later = db.transaction();
    later.put(&p, "gone", value(99));
    later.put(&p, "here", value(101));
    assert!(later.get(&p, "gone").unwrap().is_none(), "own writes are judged, too");
    assert!(later.multi_get(&p, &["gone"]).unwrap()[0].is_none());
    let own: Vec<_> = later.range(&p, ..).map(|entry| entry.unwrap().0.to_vec()).collect();
    assert_eq!(own, [b"c".to_vec(), b"here".to_vec()]);
    drop(later);
    assert!(
        p.compare_and_set("a", Some(&value(100)), Some(&value(200))).is_ok_and(|it| !it.is_done())
    );
    assert!(p.compare_and_set("a", None, Some(&value(200))).unwrap().is_done());
    assert_eq!(p.get("a").unwrap().as_deref(), Some(&value(200)[..]));
    let updated = p.update("b", |old| old.map(<[u8]>::to_vec)).unwrap();
    assert!(updated.old.is_none() && updated.new.is_none());
    assert!(p.get("b").unwrap().is_none());
}

/// A reader before and after a job, and the reader of a snapshot from before the expiry.
#[test]
fn an_expired_value_is_no_base_for_operands() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let options = with(&rule()).merge_operator(Arc::new(AppendOperator::default()));
    let p = db.partition_with("p", options).unwrap();
    for (key, second) in [("a", 100), ("b", 300), ("c", 100)] {
        p.put(key, value(second)).unwrap();
    }
    p.flush().unwrap();
    p.merge("a", value(400)).unwrap();
    p.merge("b", value(400)).unwrap();
    let mut before = Some(db.snapshot());
    clock.pass(200);
    let old = [value(100), value(400)].concat();
    for when in ["in memory", "after a job with the snapshot", "after one without it"] {
        if when == "after one without it" {
            before = None;
        }
        if when != "in memory" {
            p.compact(..).unwrap();
            let stats = db.stats();
            let p = stats.partitions.iter().find(|it| it.name == "p").unwrap();
            // The value of `c`, and that below the operand of `a`, once no one reads them.
            assert_eq!(p.expired_removed_count, 2 * u64::from(before.is_none()), "{when}");
        }
        if let Some(before) = &before {
            assert_eq!(before.get(&p, "a").unwrap().as_deref(), Some(&old[..]), "{when}");
        }
        assert_eq!(p.get("a").unwrap().as_deref(), Some(&value(400)[..]), "{when}");
        let both = [value(300), value(400)].concat();
        assert_eq!(p.get("b").unwrap().as_deref(), Some(&both[..]), "{when}");
        let keys: Vec<_> = p.keys().map(|key| key.unwrap().to_vec()).collect();
        assert_eq!(keys, [b"a".to_vec(), b"b".to_vec()], "{when}");
        let back = p.iter().rev().map(|entry| entry.unwrap().1.to_vec());
        assert_eq!(back.collect::<Vec<_>>(), [both, value(400)], "{when}");
    }
    clock.pass(100);
    assert!(p.get("b").unwrap().is_none(), "what was folded expires by its time");
    assert_eq!(p.keys().count(), 1);
}

/// Copies have what a reader of their time sees; values alone are copied with their time.
#[test]
fn exports_and_repairs_fold_no_expired_value() {
    let clock = ManualClock::default();
    let fs = MemFs::new();
    let db = builder(&fs, &clock).open().unwrap();
    let options = with(&rule()).merge_operator(Arc::new(AppendOperator::default()));
    let p = db.partition_with("p", options).unwrap();
    p.put("a", value(100)).unwrap();
    p.put("b", value(300)).unwrap();
    p.flush().unwrap();
    p.merge("a", value(400)).unwrap();
    p.merge("b", value(400)).unwrap();
    let both = [value(300), value(400)].concat();
    let all = p.with_expired();
    clock.pass(200);
    let expected = [("a".to_owned(), value(400)), ("b".to_owned(), both.clone())];
    p.export(.., "/export").unwrap();
    all.export(.., "/all").unwrap();
    for (from, into) in [("/export", "plain"), ("/export", "ruled"), ("/all", "all")] {
        let mut options = small();
        if into == "ruled" {
            options = with(&rule());
        }
        let copy = db.partition_with(into, options).unwrap();
        copy.ingest(from).unwrap();
        let mut found: Vec<_> = copy
            .iter()
            .map(|entry| entry.map(|(key, value)| (text(&key), value.to_vec())).unwrap())
            .collect();
        if into == "all" {
            assert_eq!(found[0].1, [value(100), value(400)].concat());
            found[0].1 = value(400);
        }
        assert_eq!(found, expected, "{into}");
    }
    db.close().unwrap();
    builder(&fs, &clock).repair_into("/new").unwrap();
    let new = stepped(Arc::new(fs.clone()), "/new", 1).clock(Arc::new(clock.clone()));
    let p = new.open().unwrap().partition("p").unwrap();
    let found: Vec<_> = p
        .iter()
        .map(|entry| entry.map(|(key, value)| (text(&key), value.to_vec())).unwrap())
        .collect();
    assert_eq!(found, expected);
}

/// The keys that a reader finds, in both directions.
fn keys(p: &impl Readable) -> Vec<String> {
    let forward: Vec<_> = p.range(..).map(|entry| text(&entry.unwrap().0)).collect();
    let mut back: Vec<_> = p.range(..).rev().map(|entry| text(&entry.unwrap().0)).collect();
    back.reverse();
    assert_eq!(forward, back);
    forward
}

/// Walks over deleted entries are remembered, for all readers. What has expired for one of them has not for another.
#[test]
fn expired_keys_among_deleted_ones_are_in_no_range_that_a_scan_remembers() {
    let clock = ManualClock::default();
    let db = builder(&MemFs::new(), &clock).open().unwrap();
    let p = db.partition_with("p", with(&rule())).unwrap();
    let all: Vec<u64> = (0..800).filter(|n| n % 40 == 7).collect();
    for n in 0..800 {
        p.put(key(n), value(100)).unwrap();
    }
    p.flush().unwrap();
    for n in (0..800).filter(|n| n % 40 != 7) {
        p.delete(key(n)).unwrap();
    }
    // Young deletions are not remembered.
    for n in 0..40 {
        p.put(format!("other {n}"), value(0)).unwrap();
        p.delete(format!("other {n}")).unwrap();
        p.put(format!("z {n}"), value(1)).unwrap();
    }
    let before = db.snapshot();
    let shown: Vec<String> = all.iter().map(|n| key(*n)).collect();
    clock.pass(1000);
    for _ in 0..3 {
        assert_eq!(keys(&p), [""; 0]);
        // Neither readers of an earlier time nor those that see everything miss a key.
        assert_eq!(keys(&before.of(&p))[..shown.len()], shown);
        assert_eq!(keys(&p.with_expired())[..shown.len()], shown);
    }
    // Nor does a reader miss what is put between them, or what a calendar that goes back gives back.
    p.put(key(47), value(5000)).unwrap();
    assert_eq!(keys(&p), [key(47)]);
    clock.jump(-990);
    assert_eq!(keys(&p)[..shown.len()], shown);
}
