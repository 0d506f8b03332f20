//! The part of a MetaHive that is not stored: when the builder is given it, it is there before the
//! first compaction, and an open refuses at once what does not match the tables.

use lsm_core::hooks::Fault;
use lsm_core::types::EntryKind;
use metahive::{ErrorHandler, Replica, Statistics};
use siltstone::{Compression, Result};

use super::damage::{harm, tables};
use super::verified::metadata_place;
use super::*;

/// A copy of every value.
struct Copy(Content);

impl Replica for Copy {
    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        Ok(self.0.get(key).map(|value| owned_entry(key, seq, value)))
    }
}

/// The answer of a replica that has verified it.
fn owned_entry(key: &[u8], seq: SeqNo, value: &[u8]) -> OwnedEntry {
    let kind = EntryKind::Value;
    OwnedEntry { key: key.to_vec(), seq, kind, value: value.to_vec(), verified: true }
}

/// Counts the damage that nothing repairs.
#[derive(Default)]
struct Heard(Mutex<u64>);

impl ErrorHandler for Heard {
    fn on_unrepaired(&self, _fault: &Fault, _found: Option<&OwnedEntry>) {
        *self.0.lock().unwrap() += 1;
    }
}

fn options() -> PartitionOptions {
    tiny().level0_tables(100)
}

fn statistics() -> MetaHiveOptions {
    MetaHiveOptions::new().provider(Arc::new(Statistics::default()))
}

/// A closed database whose partition `p` was filled with these options.
fn closed(metahive: Option<MetaHiveOptions>) -> (MemFs, Content) {
    let fs = MemFs::new();
    let db = builder(Arc::new(fs.clone()), 60).open().unwrap();
    let options = metahive.into_iter().fold(options(), PartitionOptions::metahive);
    let p = db.partition_with("p", options).unwrap();
    let mut model = Content::new();
    for n in 0..60 {
        let value = format!("value {n} ").repeat(8);
        p.put(key_of(n), &value).unwrap();
        model.insert(key_of(n), value.into_bytes());
    }
    db.flush().unwrap();
    drop(p);
    db.close().unwrap();
    (fs, model)
}

#[test]
fn replica_and_handler_of_the_builder_are_there_before_the_first_compaction() {
    for has_replica in [true, false] {
        let (fs, model) = closed(Some(MetaHiveOptions::default()));
        let victim = key_of(17);
        let masks = [0xff; 40];
        assert_eq!(harm(&fs, &model[&victim], &masks), 1);
        let heard = Arc::new(Heard::default());
        let mut given = MetaHiveOptions::new().error_handler(heard.clone());
        if has_replica {
            given = given.replica(Arc::new(Copy(model.clone())));
        }
        let db = builder(Arc::new(fs), 61).metahive("p", given).open().unwrap();
        let p = db.partition("p").unwrap();
        p.compact(..).unwrap();
        if has_replica {
            assert_eq!(pairs(p.iter()), model);
            assert_eq!(*heard.0.lock().unwrap(), 0);
        } else {
            assert_eq!(p.get(&victim).unwrap_err().kind(), ErrorKind::Corruption);
            assert!(*heard.0.lock().unwrap() > 0);
        }
    }
}

/// A copy that returns another value as verified than the one that was written.
struct Stale(Copy);

impl Replica for Stale {
    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        let found = self.0.fetch(key, seq)?;
        Ok(found.map(|found| OwnedEntry { value: b"stale".to_vec(), ..found }))
    }
}

#[test]
fn an_answer_of_a_replica_is_checked_against_the_stored_checksum() {
    let (fs, model) = closed(Some(MetaHiveOptions::default()));
    let victim = key_of(17);
    assert_eq!(harm(&fs, &model[&victim], &[0xff; 40]), 1);
    let p = compacted(fs, Stale(Copy(model.clone())));
    assert!(p.get(&victim).unwrap_err().is_corruption(), "the sum says that it was another value");
    assert!(p.verified_get(&victim).unwrap_err().is_corruption());
}

/// A closed database with two generations of keys, the older one at the bottom. Returns the current
/// values.
fn of_two_generations() -> (MemFs, Content) {
    let fs = MemFs::new();
    let db = builder(Arc::new(fs.clone()), 62).open().unwrap();
    let options = options().compression(Compression::None).metahive(MetaHiveOptions::default());
    let p = db.partition_with("p", options).unwrap();
    let mut model = Content::new();
    for n in 0..30 {
        p.put(key_of(n), "old").unwrap();
    }
    p.compact(..).unwrap();
    for n in 0..30 {
        let value = format!("value {n} ").repeat(4);
        p.put(key_of(n), &value).unwrap();
        model.insert(key_of(n), value.into_bytes());
    }
    db.flush().unwrap();
    drop(p);
    db.close().unwrap();
    (fs, model)
}

/// Compacts `p` with a replica.
fn compacted(fs: MemFs, replica: impl Replica) -> Partition {
    let given = MetaHiveOptions::new().replica(Arc::new(replica));
    let db = builder(Arc::new(fs), 61).metahive("p", given).open().unwrap();
    let p = db.partition("p").unwrap();
    p.compact(..).unwrap();
    p
}

/// Answers for every key: with its value, or with one that was never written.
struct Eager(Content);

impl Replica for Eager {
    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        let value = self.0.get(key).map_or(&b"nobody's"[..], |value| value);
        Ok(Some(owned_entry(key, seq, value)))
    }
}

/// If key and value are damaged, the replica is asked first for the key as it is stored, and then
/// for the keys of other tables.
#[test]
fn an_answer_for_another_entry_does_not_keep_the_right_one_away() {
    let (fs, model) = of_two_generations();
    let value = &model[&key_of(19)];
    // The last byte of the key is directly before the value: 9 becomes a colon, which sorts after
    // it.
    let needle = [&b"9"[..], value].concat();
    let masks = [vec![3], vec![0xff; 20], vec![0; value.len() - 20]].concat();
    assert_eq!(harm(&fs, &needle, &masks), 1);
    let p = compacted(fs, Eager(model.clone()));
    assert_eq!(pairs(p.iter()), model);
}

/// Has every value, but may not know whether it is right.
struct Unsure(Copy, bool);

impl Replica for Unsure {
    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        let found = self.0.fetch(key, seq)?;
        Ok(found.map(|found| OwnedEntry { verified: self.1, ..found }))
    }
}

/// Without metadata, the digest of the block leaves 32 bits of the checksum of the entry. These do
/// not suffice for an answer that was not verified.
#[test]
fn an_unverified_answer_needs_the_whole_checksum() {
    for verified in [true, false] {
        let (fs, model) = of_two_generations();
        let value = &model[&key_of(17)];
        for path in tables(&fs) {
            let bytes = fs.read_raw(&path).unwrap();
            let found = bytes.windows(value.len()).position(|window| window == value);
            let Some(at) = found else { continue };
            let (metadata, len) = metadata_place(&bytes, &key_of(17), value);
            for place in (at..at + 20).chain(metadata..metadata + len) {
                fs.corrupt(&path, place as u64, 0xff).unwrap();
            }
        }
        let p = compacted(fs, Unsure(Copy(model.clone()), verified));
        if verified {
            assert_eq!(pairs(p.iter()), model);
        } else {
            assert!(p.get(key_of(17)).unwrap_err().is_corruption());
        }
    }
}

fn hidden(p: &Partition) -> u64 {
    p.walk().unwrap().tables().map(|table| table.meta().hidden).sum()
}

#[track_caller]
fn check_refused(refused: siltstone::Error) {
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let text = refused.to_string();
    assert!(text.contains("integrity") && text.contains("statistics"), "{text}");
    assert!(text.contains("\"p\""), "{text}");
}

#[test]
fn another_provider_over_sealed_tables_is_refused_at_once() {
    for is_integrity_first in [true, false] {
        let mut pair = [MetaHiveOptions::default(), statistics()];
        if !is_integrity_first {
            pair.reverse();
        }
        let [first, other] = pair;
        let (fs, model) = closed(Some(first.clone()));
        // At open, by the builder.
        let open = builder(Arc::new(fs.clone()), 61).metahive("p", other.clone());
        check_refused(open.open().unwrap_err());
        // And while it is open.
        let db = builder(Arc::new(fs.clone()), 62).metahive("p", first.clone()).open().unwrap();
        check_refused(db.partition_with("p", options().metahive(other.clone())).unwrap_err());
        let p = db.partition("p").unwrap();
        p.put("new", "1").unwrap();
        p.compact(..).unwrap();
        // Sealed tables count, also after the partition has forgotten which provider sealed them.
        let p = db.partition_with("p", options().hooks(Hooks::new())).unwrap();
        check_refused(db.partition_with("p", options().metahive(other.clone())).unwrap_err());
        // Without metadata in the tables it is the next provider of the partition.
        p.put("new", "2").unwrap();
        p.compact(..).unwrap();
        assert_eq!(hidden(&p), 0);
        let p = db.partition_with("p", options().metahive(other.clone())).unwrap();
        p.put("new", "3").unwrap();
        p.compact(..).unwrap();
        assert_eq!(hidden(&p), 61);
        let mut expected = model;
        expected.insert(b"new".to_vec(), b"3".to_vec());
        assert_eq!(pairs(p.iter()), expected);
    }
}

#[test]
fn the_builder_turns_nothing_on() {
    let (fs, model) = closed(None);
    let open = builder(Arc::new(fs.clone()), 61).metahive("p", MetaHiveOptions::default());
    let db = open.open().unwrap();
    let p = db.partition("p").unwrap();
    p.compact(..).unwrap();
    assert_eq!((pairs(p.iter()), census(&fs).hidden), (model, 0));
}
