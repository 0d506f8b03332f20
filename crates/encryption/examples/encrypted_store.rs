//! An encrypted database: it is written and followed with its keys, its key is changed, and without keys it does not
//! open. Run it with `cargo run -p siltstone-encryption --example encrypted_store`.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]
#![expect(clippy::disallowed_methods, reason = "it looks at the files from outside")]

use std::path::Path;
use std::sync::Arc;

use encryption::{EncryptedFs, EncryptionKey, KeyId, KeyProvider, KeyRing};
use siltstone::fs::OsFs;
use siltstone::secondary::Level;
use siltstone::{Db, Durability, Result};

fn main() -> Result<()> {
    let folder = tempfile::tempdir().expect("the system has a folder for temporary files");
    let path = folder.path().join("db");
    // A program reads its keys from a key service, or from a file that lies elsewhere than the data.
    let text = format!("2026-11 {}\n", EncryptionKey::random()?.to_hex());
    let keys = KeyRing::parse(&text)?;
    let fs = Arc::new(EncryptedFs::new(Arc::new(OsFs), Arc::new(keys.clone())));

    let db = Db::builder(&path).fs(fs.clone()).open()?;
    let patients = db.partition("patients")?;
    db.batch().put(&patients, "jane", "diagnosis: none").commit(Durability::Sync)?;

    // Another process that has the keys follows it.
    let secondary = Db::secondary_builder(&path).fs(fs.clone()).open()?;
    let seen = secondary.partition("patients")?.at(Level::Strong)?.get("jane")?;
    assert_eq!(seen.as_deref(), Some(&b"diagnosis: none"[..]));
    drop(secondary);

    // Files that are made from here on belong to the new key. Then the older ones get it, too.
    let old = keys.current()?;
    keys.rotate_to(KeyId::new("2026-12")?, EncryptionKey::random()?);
    patients.put("john", "diagnosis: none")?;
    db.flush()?;
    let summary = fs.rewrap_dir(&path)?;
    println!("{} files have the new key now, {} had it", summary.rewrapped, summary.unchanged);
    assert!(summary.rewrapped > 0 && keys.remove(&old));
    db.close()?;

    let plain = plain_files(&path);
    println!("{plain} files show the plain text");
    assert_eq!(plain, 0);
    let refused = Db::open(&path).err().map(|error| error.to_string()).unwrap_or_default();
    println!("without keys: {refused}");
    assert!(refused.contains("is encrypted, and was opened without keys"));
    let db = Db::builder(&path).fs(fs).open()?;
    assert_eq!(db.partition("patients")?.iter().count(), 2);
    println!("with the new key both patients are there");
    db.close()
}

/// The number of files with a part of what was written.
fn plain_files(path: &Path) -> usize {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| std::fs::read(entry.path()).is_ok_and(shows_text)).count()
}

fn shows_text(bytes: Vec<u8>) -> bool {
    bytes.windows(9).any(|part| part == b"diagnosis")
}
