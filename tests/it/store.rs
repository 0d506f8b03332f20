//! The common part of several test files: a database that runs in steps, and its content.
//!
//! `testkit` cannot have it, because it depends on no engine type.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use encryption::{EncryptedFs, EncryptionKey, KeyId, KeyRing};
use lsm_core::fs::Fs;
use siltstone::changes::KeyChange;
use siltstone::{BackgroundMode, Builder, Db, ErrorKind, Partition, Result, SeqNo};
use testkit::Rng;

/// The keys and values of a partition.
pub type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns a builder of the database in `dir` that does background work only in `Db::step`, one
/// step at a time. The seed determines its random numbers, and so its id.
pub fn stepped(fs: Arc<dyn Fs>, dir: impl AsRef<Path>, seed: u64) -> Builder {
    let mut random = Rng::new(seed);
    let builder = Db::builder(dir).fs(fs).background(BackgroundMode::Stepped);
    builder.random(move || random.next_u64())
}

/// Keys for a store whose files are encrypted.
pub fn keys() -> KeyRing {
    let id = KeyId::new("simulated").unwrap();
    KeyRing::new(id, EncryptionKey::new([1; 32]))
}

/// The file system of a store: `fs`, or an encrypted one over it if there are keys.
pub fn over(fs: Arc<dyn Fs>, keys: Option<&KeyRing>) -> Arc<dyn Fs> {
    match keys {
        Some(keys) => Arc::new(EncryptedFs::new(fs, Arc::new(keys.clone()))),
        None => fs,
    }
}

/// Does background work until nothing is left to do.
pub fn settle(db: &Db) {
    while db.step().unwrap() {}
}

/// Returns all entries of a partition, as a scan finds them: each key once, in order.
pub fn content(partition: &Partition) -> Content {
    let mut content = Content::new();
    for entry in partition.iter() {
        let (key, value) = entry.unwrap();
        let last = content.last_key_value().map(|(last, _)| last);
        assert!(last.is_none_or(|last| last[..] < key[..]), "the scan is out of order at {key:?}");
        content.insert(key.to_vec(), value.to_vec());
    }
    content
}

/// Applies a change to the contents of a partition whose operands are appended, and that has no large values.
pub fn follow_change(contents: &mut Content, change: &KeyChange) {
    match change {
        KeyChange::Put { key, value } => {
            contents.insert(key.to_vec(), value.to_vec());
        }
        KeyChange::Merge { key, operand } => {
            contents.entry(key.to_vec()).or_default().extend_from_slice(operand);
        }
        KeyChange::Delete { key } => {
            contents.remove(&key[..]);
        }
        KeyChange::DeleteRange { start, end } => contents.retain(|key, _| {
            key[..] < start[..] || end.as_ref().is_some_and(|end| key[..] >= end[..])
        }),
        KeyChange::Clear => contents.clear(),
        other => panic!("{other:?}"),
    }
}

/// Follows the changes from several tokens on. One that is too old is no error here.
pub fn follow_all(db: &Db) -> Result<()> {
    let last = db.visible_seq().get();
    for back in [last, 60, 20] {
        let mut changes = db.changes(SeqNo::new(last.saturating_sub(back)).unwrap())?;
        // Invalid content may make them longer, but not endless.
        for _ in 0..100_000 {
            match changes.try_next() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::TooOld => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
