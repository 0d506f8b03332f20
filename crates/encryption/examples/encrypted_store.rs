//! An encrypted database: it is written and followed with its keys, its key is changed, and without keys it does not
//! open. Run it with `cargo run -p siltstone-encryption --example encrypted_store`.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]
#![expect(clippy::disallowed_methods, reason = "it looks at the files from outside")]

use std::path::Path;
use std::sync::Arc;

use encryption::{EncryptedFs, EncryptionKey, KeyId, KeyRing};
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
    println!("a secondary with the keys reads {} bytes", seen.map_or(0, |value| value.len()));
    drop(secondary);

    // Files that are made from here on belong to the new key. The old one is needed for older files.
    keys.rotate_to(KeyId::new("2026-12")?, EncryptionKey::random()?);
    patients.put("john", "diagnosis: none")?;
    db.flush()?;
    db.close()?;

    println!("{} files show the plain text", plain_files(&path));
    match Db::open(&path) {
        Ok(_) => println!("it opens without keys"),
        Err(error) => println!("without keys: {:?}", error.kind()),
    }
    let db = Db::builder(&path).fs(fs).open()?;
    println!("with both keys: {} patients", db.partition("patients")?.iter().count());
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
