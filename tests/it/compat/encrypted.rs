//! Stores whose files are encrypted: `tests/fixtures/encrypted/`, of the first version with encryption, by
//! XChaCha20-Poly1305, and `tests/fixtures/encrypted-aes/`, by AES-256-GCM.
//!
//! `BLESS_FIXTURE=encrypted-aes cargo test fixtures_of_encrypted` writes the second one again. Do this only before its
//! format is released. Their keys are in [`keys`]: they protect nothing.

use encryption::{EncryptedFs, EncryptionKey, FileKeys, KeyId, KeyRing};
use siltstone::LargeValueOptions;

use super::*;

/// The first key and the second one, to which some of the files were changed.
fn keys() -> KeyRing {
    let keys = KeyRing::new(KeyId::new("first").unwrap(), EncryptionKey::new([11; 32]));
    keys.rotate_to(KeyId::new("second").unwrap(), EncryptionKey::new([22; 32]));
    keys
}

fn encrypted(inner: impl Fs, keys: KeyRing) -> Arc<EncryptedFs> {
    Arc::new(EncryptedFs::new(Arc::new(inner), Arc::new(keys)))
}

/// Tables by both keys, a large value, and a log that was not closed.
fn write_encrypted() -> MemFs {
    let fs = MemFs::new();
    let ring = KeyRing::new(KeyId::new("first").unwrap(), EncryptionKey::new([11; 32]));
    let keyed = encrypted(fs.clone(), ring.clone());
    let db = stepped(keyed.clone(), DIR, 1).options(Options::new()).open().unwrap();
    let large = LargeValueOptions::default().threshold_bytes(1000);
    let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
    p.put("large", "l".repeat(6000)).unwrap();
    for n in 0..100 {
        p.put(format!("{n:03}"), "old").unwrap();
    }
    db.flush().unwrap();
    ring.rotate_to(KeyId::new("second").unwrap(), EncryptionKey::new([22; 32]));
    for table in fs.paths().iter().filter(|path| path.extension().is_some_and(|it| it == "sst")) {
        keyed.rewrap(table).unwrap();
    }
    db.batch().put(&p, "050", "new").commit(Durability::Sync).unwrap();
    fs.crash_clone(CrashOutcome::Nothing, &mut || 0)
}

#[test]
fn fixtures_of_encrypted_stores_open_with_their_keys_and_go_on() {
    fixtures::bless("encrypted-aes", write_encrypted);
    for (name, version) in [("encrypted", 1), ("encrypted-aes", 2)] {
        let dir = fixtures::on_disk(name);
        let ring = keys();
        let fs = encrypted(OsFs, ring.clone());
        let mut ids = BTreeSet::new();
        for entry in OsFs.list(dir.path(), "").unwrap() {
            let path = dir.path().join(entry.name);
            if let FileKeys::One(id) = fs.keys_of(&path).unwrap() {
                ids.insert(id.as_str().to_owned());
                let mut front = [0; 9];
                OsFs.open_read(&path).unwrap().read_at(0, &mut front).unwrap();
                assert_eq!(front[8], version);
            }
        }
        assert_eq!(ids, BTreeSet::from(["first".to_owned(), "second".to_owned()]));
        let db = stepped(fs.clone(), dir.path(), 1).open().unwrap();
        let p = db.open_partition("p").unwrap();
        check(&db, 101);
        // Files of either cipher are continued, new ones come, and all get another key.
        p.put("after", "the open").unwrap();
        ring.rotate_to(KeyId::new("third").unwrap(), EncryptionKey::new([33; 32]));
        assert!(fs.rewrap_dir(dir.path()).unwrap().rewrapped > 3);
        p.put("and", "later").unwrap();
        db.close().unwrap();
        assert!(ring.remove(&KeyId::new("first").unwrap()));
        assert!(ring.remove(&KeyId::new("second").unwrap()));
        let db = stepped(fs, dir.path(), 1).open().unwrap();
        check(&db, 103);
    }
}

fn check(db: &Db, count: usize) {
    let p = db.open_partition("p").unwrap();
    assert_eq!(p.iter().count(), count);
    assert_eq!(p.get("050").unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(p.get("large").unwrap().as_deref(), Some("l".repeat(6000).as_bytes()));
    assert!(db.verify(VerifyOptions::default()).unwrap().is_sound());
}
