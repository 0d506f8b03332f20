//! A checkpoint of an open database, and an export of one partition into another database.
//!
//! `cargo run --example checkpoint`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use siltstone::{Db, Result};

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-copies-{}", std::process::id()));
    let db = Db::open(folder.join("shop"))?;
    let orders = db.partition("orders")?;
    for day in 1..=28 {
        orders.put(format!("2026-02-{day:02}"), format!("{} crates", day * 3))?;
    }

    // A checkpoint contains every write that returned before the call. Tables are linked, not
    // copied. Later writes to one database do not affect the other.
    let backup = folder.join("backup");
    db.checkpoint(&backup)?;
    orders.delete("2026-02-01")?;
    let copy = Db::open(&backup)?;
    assert!(copy.partition("orders")?.contains("2026-02-01")?);

    // An export contains a range of one partition. Any database can ingest it, as one operation.
    let week = folder.join("first week");
    let exported = orders.export("2026-02-01".."2026-02-08", &week)?;
    let archive = Db::open(folder.join("archive"))?;
    let ingested = archive.partition("february")?.ingest(&week)?;
    assert_eq!((exported.entries, ingested.entries), (6, 6));
    for entry in archive.partition("february")?.iter() {
        let (day, what) = entry?;
        println!("{}: {}", String::from_utf8_lossy(&day), String::from_utf8_lossy(&what));
    }
    archive.close()?;
    copy.close()?;
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}
