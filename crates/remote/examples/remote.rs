//! A database in an object store: a primary, a reader with a cache of its own, and a takeover by another machine.
//!
//! The store is a local folder here. Run it with a folder as its argument to look at the objects afterwards.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::PathBuf;

use remote::Remote;
use siltstone::secondary::Level;
use siltstone::{Durability, Readable, Result};

fn main() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let root = std::env::args().nth(1).map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let bucket = root.join("bucket");
    make_dir(&bucket)?;
    // All three machines name the same place.
    let remote = Remote::url(&format!("file://{}", std::path::absolute(&bucket)?.display()))?;

    let primary = remote.primary(root.join("machine-1"))?;
    let db = primary.builder().open()?;
    let users = db.partition("users")?;
    users.put_with("alice", "admin", Durability::Sync)?;
    println!("machine 1: alice is in the bucket, journal object {}", primary.status().number);

    let reader = remote.reader()?;
    let secondary = reader.secondary().open()?;
    let read = secondary.partition("users")?;
    users.put_with("bob", "guest", Durability::Sync)?;
    // The read asks the bucket, after it has begun.
    assert!(read.at(Level::Strong)?.contains("bob")?);
    println!(
        "machine 2: reads bob strongly, {} bytes of objects in its cache",
        reader.cache_bytes()
    );

    let successor = remote.take_over(root.join("machine-3"))?;
    let new = successor.builder().open()?;
    let late = users.put_with("carol", "guest", Durability::Sync);
    println!("machine 1: {}", late.expect_err("it is fenced"));
    let users = new.partition("users")?;
    assert!(users.contains("alice")? && users.contains("bob")? && !users.contains("carol")?);
    users.put_with("dave", "guest", Durability::Sync)?;
    assert!(read.at(Level::Strong)?.contains("dave")?);
    successor.restore()?;
    println!("machine 3: has taken over, and {:?}", successor.status());
    new.close()
}

#[expect(clippy::disallowed_methods, reason = "the bucket is outside the database")]
fn make_dir(dir: &std::path::Path) -> Result<()> {
    Ok(std::fs::create_dir_all(dir)?)
}
