//! Prefix filters: which scans ask the tables for their prefix, which tables answer, and that the answers are those of a
//! partition without the option. The model test draws extractors and their changes.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use lsm_core::fs::MemFs;
use siltstone::secondary::Level;
use siltstone::{
    Db, MetaHiveOptions, Options, Partition, PartitionOptions, PrefixExtractor, Range, Readable,
    VerifyOptions,
};

use crate::store::{content, settle, stepped};

const THROUGH: PrefixExtractor = PrefixExtractor::Through(b'/');

fn open(fs: &MemFs, dir: &str) -> Db {
    stepped(Arc::new(fs.clone()), dir, dir.len() as u64).open().unwrap()
}

/// Tables stay on level 0; with 32 bits a key, no bloom of these tests says yes by chance.
fn options() -> PartitionOptions {
    PartitionOptions::new().level0_tables(100).bloom_bits_per_key(32)
}

fn put_table(db: &Db, partition: &Partition, keys: &[&str]) {
    for key in keys {
        partition.put(key, [b"value of ", key.as_bytes()].concat()).unwrap();
    }
    db.flush().unwrap();
}

/// The tables that were asked and spared since the last call with the same counts.
struct Counts(u64, u64);

impl Counts {
    fn passed(&mut self, db: &Db) -> (u64, u64) {
        let stats = db.stats();
        let now = (stats.prefix_asked_count, stats.prefix_spared_count);
        let before = (std::mem::replace(&mut self.0, now.0), std::mem::replace(&mut self.1, now.1));
        (now.0 - before.0, now.1 - before.1)
    }
}

fn keys_of(
    range: impl DoubleEndedIterator<Item = siltstone::Result<siltstone::Slice>>,
) -> Vec<String> {
    let keys = range.map(|key| String::from_utf8(key.unwrap().to_vec()).unwrap());
    keys.collect()
}

fn at(key: &str) -> Bound<Vec<u8>> {
    Bound::Included(key.as_bytes().to_vec())
}

fn before(key: &str) -> Bound<Vec<u8>> {
    Bound::Excluded(key.as_bytes().to_vec())
}

/// Three tables: of the users a and c, of a alone, of c and e and of keys without a prefix.
fn three_tables(fs: &MemFs, options: PartitionOptions) -> (Db, Partition) {
    let db = open(fs, "/db");
    let mails = db.partition_with("mails", options).unwrap();
    put_table(&db, &mails, &["a/1", "a/2", "c/1"]);
    put_table(&db, &mails, &["a/3"]);
    put_table(&db, &mails, &["b", "c", "c/2", "e/1"]);
    (db, mails)
}

#[test]
fn a_scan_asks_only_if_its_keys_have_one_prefix() {
    let fs = MemFs::new();
    let (db, mails) = three_tables(&fs, options().prefix_extractor(THROUGH));
    let plain = db.partition_with("plain", options()).unwrap();
    for (key, value) in content(&mails) {
        plain.put(key, value).unwrap();
    }
    let mut counts = Counts(0, 0);
    for (bounds, passed) in [
        // One prefix: that of the first key, to any key of it or to the first one after it.
        ((at("b/"), before("b0")), (3, 3)),
        ((at("b/"), at("b/~")), (3, 3)),
        ((at("b/5"), before("b/7")), (3, 3)),
        ((before("a/1"), before("a0")), (3, 1)),
        ((at("c/2"), at("c/2")), (3, 1)),
        ((at("e/"), before("e/2")), (3, 2)),
        // One key more than a prefix, no prefix, no bound.
        ((at("b/"), at("b0")), (0, 0)),
        ((at("b/"), before("b0\0")), (0, 0)),
        ((at("b/"), before("c/")), (0, 0)),
        ((at("b"), before("b/~")), (0, 0)),
        ((at("b"), at("b")), (0, 0)),
        ((Bound::Unbounded, before("b/")), (0, 0)),
        ((at("e/"), Bound::Unbounded), (0, 0)),
    ] {
        let found = keys_of(mails.range(bounds.clone()).keys());
        assert_eq!(counts.passed(&db), passed, "{bounds:?}");
        assert_eq!(found, keys_of(plain.range(bounds.clone()).keys()), "{bounds:?}");
        assert_eq!(counts.passed(&db), (0, 0), "the option is off");
        let mut back = keys_of(mails.range(bounds.clone()).keys().rev());
        assert_eq!(counts.passed(&db), passed, "{bounds:?}");
        back.reverse();
        assert_eq!(found, back);
        let snapshot = db.snapshot();
        assert_eq!(keys_of(snapshot.range(&mails, bounds.clone()).keys()), found);
        assert_eq!(counts.passed(&db), passed, "{bounds:?}");
        let transaction = db.transaction();
        let own = transaction.range(&mails, bounds.clone());
        assert_eq!(own.count(), found.len(), "{bounds:?}");
        counts.passed(&db);
    }
    assert_eq!(mails.prefix("b/").count() + mails.prefix("b/longer").count(), 0);
    assert_eq!(counts.passed(&db), (6, 6));
    assert_eq!((mails.prefix("").count(), mails.prefix("c").count()), (8, 3));
    // A cursor may go anywhere.
    let mut cursor = mails.cursor();
    cursor.seek("b/").unwrap();
    assert_eq!(cursor.key(), b"c");
    assert_eq!(counts.passed(&db), (0, 0));
}

#[test]
fn what_a_spared_table_could_hide_is_hidden() {
    let fs = MemFs::new();
    let (db, mails) = three_tables(&fs, options().prefix_extractor(THROUGH));
    // A table of nothing but a tombstone of the prefix is searched.
    mails.delete("a/2").unwrap();
    db.flush().unwrap();
    assert_eq!(keys_of(mails.prefix("a/").keys()), ["a/1", "a/3"]);
    mails.delete_prefix("c/").unwrap();
    mails.put("c/3", "after the deletion").unwrap();
    assert_eq!(keys_of(mails.prefix("c/").keys()), ["c/3"]);
    db.flush().unwrap();
    assert_eq!(keys_of(mails.prefix("c/").keys()), ["c/3"]);
    mails.clear().unwrap();
    assert_eq!(mails.prefix("a/").count(), 0);
}

#[test]
fn a_prefix_that_spans_tables_of_a_level_is_searched() {
    let fs = MemFs::new();
    let db = open(&fs, "spans");
    let small = options().prefix_extractor(THROUGH).table_bytes(1 << 10);
    let mails = db.partition_with("mails", small).unwrap();
    let names: Vec<String> = (100..500).map(|n| format!("b/{n}")).collect();
    put_table(&db, &mails, &names.iter().map(String::as_str).collect::<Vec<_>>());
    put_table(&db, &mails, &["a/1", "c/1"]);
    mails.compact(..).unwrap();
    let stats = db.stats();
    let mails_stats = stats.partitions.iter().find(|it| it.name == "mails").unwrap();
    assert!(mails_stats.levels.iter().any(|level| level.table_count > 3), "{stats}");
    assert_eq!(keys_of(mails.prefix("b/").keys()), names);
    assert_eq!(keys_of(mails.prefix("b/").keys().rev()).len(), names.len());
}

#[test]
fn tables_of_another_extractor_are_searched_until_they_are_rewritten() {
    let fs = MemFs::new();
    let (db, mails) = three_tables(&fs, options());
    let mut counts = Counts(0, 0);
    let all = content(&mails);
    let mut seen = BTreeSet::new();
    let extractors = [Some(THROUGH), Some(PrefixExtractor::Fixed(2)), Some(THROUGH), None];
    for (n, extractor) in extractors.into_iter().enumerate() {
        let mails = db.partition_with("mails", options().prefix_extractor(extractor)).unwrap();
        assert_eq!(mails.prefix("b/").count(), 0);
        // The tables before were written by others, but the first two of the third turn.
        seen.insert((n, counts.passed(&db)));
        put_table(&db, &mails, &["a/9", "c/9"]);
        mails.delete("a/9").unwrap();
        mails.delete("c/9").unwrap();
        db.flush().unwrap();
        assert_eq!(mails.prefix("b/").count(), 0);
        seen.insert((n, counts.passed(&db)));
        for user in ["a/", "c/", "e/"] {
            let expected = all.keys().filter(|key| key.starts_with(user.as_bytes())).count();
            assert_eq!(mails.prefix(user).count(), expected, "{user} {extractor:?}");
        }
        counts.passed(&db);
    }
    let expected =
        [(0, (0, 0)), (0, (2, 2)), (1, (0, 0)), (1, (2, 2)), (2, (2, 2)), (2, (4, 4)), (3, (0, 0))];
    assert_eq!(seen, BTreeSet::from(expected));
    let mails = db.partition_with("mails", options().prefix_extractor(THROUGH)).unwrap();
    mails.compact(..).unwrap();
    settle(&db);
    assert_eq!(mails.prefix("b/").count(), 0);
    let (asked, spared) = counts.passed(&db);
    assert!(asked == spared && content(&mails) == all);
}

/// Scans each prefix, and one that is missing, as often as tables have to be spared.
fn check_copy(db: &Db, what: &str) {
    let mails = db.open_partition("mails").unwrap();
    assert_eq!(mails.options().get_prefix_extractor(), Some(THROUGH), "{what}");
    let before = db.stats().prefix_spared_count;
    assert_eq!(mails.prefix("b/").count(), 0, "{what}");
    assert!(db.stats().prefix_spared_count > before, "{what}: no table was spared");
    check_answers(&mails, what);
}

fn check_answers(mails: &impl Readable<Range = Range>, what: &str) {
    for (user, count) in [("a/", 3), ("b/", 0), ("c/", 2), ("e/", 1)] {
        assert_eq!(mails.prefix(user).count(), count, "{what}: {user}");
    }
}

#[test]
fn copies_exports_loads_repairs_and_followers_know_prefixes() {
    let sealed = options().prefix_extractor(THROUGH).metahive(MetaHiveOptions::default());
    for (name, options) in [("plain", options().prefix_extractor(THROUGH)), ("sealed", sealed)] {
        let fs = MemFs::new();
        let (db, mails) = three_tables(&fs, options.clone());
        check_copy(&db, name);
        if name == "sealed" {
            let before = db.stats().prefix_spared_count;
            assert_eq!(mails.verified_range("b/".."b0").count(), 0);
            assert_eq!(db.stats().prefix_spared_count, before + 3);
            assert_eq!(mails.verified_range("a/".."a0").map(Result::unwrap).count(), 3);
        }
        db.checkpoint("/copy").unwrap();
        check_copy(&open(&fs, "/copy"), "a checkpoint");

        mails.export(.., "/export").unwrap();
        let other = open(&fs, "/other");
        let ingested = other.partition_with("mails", options.clone()).unwrap();
        ingested.ingest("/export").unwrap();
        check_copy(&other, "an ingested export");

        let loaded = open(&fs, "/loaded");
        let load = loaded.partition_with("mails", options.clone()).unwrap();
        load.bulk_load(content(&mails)).unwrap();
        check_copy(&loaded, "a bulk load");

        let secondary =
            Db::secondary_builder("/db").fs(Arc::new(fs.clone())).lease(false).open().unwrap();
        let view = secondary.partition("mails").unwrap().at(Level::Strong).unwrap();
        check_answers(&view, "a secondary");

        db.close().unwrap();
        stepped(Arc::new(fs.clone()), "/db", 9).repair_into("/repaired").unwrap();
        check_copy(&open(&fs, "/repaired"), "a repaired database");
        let mapped = stepped(Arc::new(fs.clone()), "/db", 3)
            .options(Options::new().tables_mapped(true))
            .open()
            .unwrap();
        check_copy(&mapped, "an open with mapped tables");
        assert!(mapped.verify(VerifyOptions::default()).unwrap().is_sound(), "{name}");
    }
}
