//! The answers of replicas from a partition of another node of the same history.

use siltstone::raw::EntryKind;
use siltstone::secondary::{Level, ReadVerified, Reading, Target};

use super::*;

/// Keys that are stored as they are, and longer by a zero byte.
const KEYS: [&[u8]; 9] =
    [b"a", b"a\0", b"a\0\0", b"a\x01", b"a\x01a", b"a\x02", b"b", b"b\x01\x01", b"c"];

/// A database whose partition has a value of each key, then another one, and then none of every third.
struct Copied {
    db: Db,
    p: Partition,
    states: Vec<(SeqNo, Content)>,
    fs: MemFs,
}

fn copied() -> Copied {
    let fs = MemFs::new();
    let db = builder(Arc::new(fs.clone()), 17).open().unwrap();
    let p = db.partition_with("p", tiny().metahive(MetaHiveOptions::new())).unwrap();
    let mut states = Vec::new();
    let mut now = Content::new();
    for round in 0..3_u32 {
        for (number, key) in KEYS.iter().enumerate() {
            if round == 2 && number % 3 == 0 {
                p.delete(key).unwrap();
                now.remove(*key);
                continue;
            }
            let value = format!("{number} of round {round}");
            p.put(key, &value).unwrap();
            now.insert(key.to_vec(), value.into_bytes());
        }
        states.push((db.visible_seq(), now.clone()));
    }
    Copied { db, p, states, fs }
}

fn reading(fs: &MemFs) -> Reading {
    let secondary = Db::secondary_builder(DIR).fs(Arc::new(fs.clone())).open().unwrap();
    let p = secondary.partition("p").unwrap();
    p.sync(Target::Latest).unwrap();
    p.at(Level::Eventual).unwrap()
}

fn stored(key: &[u8]) -> Vec<u8> {
    siltstone::hooks::KeyForm::Escaped.stored(key.to_vec())
}

/// Checks the answers about every range that begins and ends with a stored key.
fn check(it: &Copied, ask: impl Fn(&[u8], &[u8], SeqNo) -> Vec<OwnedEntry>) {
    for (through, content) in &it.states {
        for from in KEYS.map(stored) {
            for to in KEYS.map(stored).into_iter().filter(|to| from <= *to) {
                let entries = ask(&from, &to, *through);
                assert!(entries.iter().all(|entry| entry.verified && entry.seq == *through));
                let found = entries.into_iter().map(|entry| (entry.key, entry.value));
                let all = content.iter().map(|(key, value)| (stored(key), value.clone()));
                let expected = all.filter(|(key, _)| from <= *key && *key <= to);
                assert_eq!(found.collect::<Content>(), expected.collect::<Content>());
            }
        }
    }
}

#[test]
fn a_copy_answers_for_each_range_and_each_operation() {
    let it = copied();
    check(&it, |from, to, seq| it.p.fetch_range(from, to, seq, 1000).unwrap().unwrap());
    it.db.flush().unwrap();
    let read = reading(&it.fs);
    // The newest versions are in a table, and the older ones are gone.
    let newest = Copied { states: it.states[2..].to_vec(), ..it };
    check(&newest, |from, to, seq| read.fetch_range(from, to, seq, 1000).unwrap().unwrap());
    let (through, _) = newest.states[0];
    let later = SeqNo::new(through.get() + 1).unwrap();
    assert!(read.fetch_range(b"a", b"z", later, 1000).unwrap().is_none());
    let refused = read.fetch_range(b"a", b"z", through, 20).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn a_copy_answers_for_an_entry_by_its_number() {
    let it = copied();
    it.db.flush().unwrap();
    let read = reading(&it.fs);
    let (through, content) = &it.states[2];
    let key = stored(b"a\0");
    let newest = it.p.versions(&key).unwrap()[0].clone();
    let found = read.fetch(&key, newest.seq).unwrap().unwrap();
    assert_eq!((found.kind, &found.value), (EntryKind::Value, &content[&b"a\0"[..]]));
    assert!(found.verified && newest.seq < *through);
    for other in [newest.seq.get() - 1, newest.seq.get() + 1] {
        assert!(read.fetch(&key, SeqNo::new(other).unwrap()).unwrap().is_none());
    }
    // Not the key of another form, and no metadata.
    assert!(read.fetch(b"a\0", newest.seq).unwrap().is_none());
    let metadata = [&key[..], &[SUFFIX]].concat();
    assert!(read.fetch(&metadata, newest.seq).unwrap().is_none());
}
