//! The first five minutes: open, put, get, delete, iterate both ways, close, open again.
//!
//! `cargo run --example quickstart`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use siltstone::{Db, Result};

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-quickstart-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let users = db.partition("users")?;

    for (name, role) in [("alice", "admin"), ("bob", "author"), ("carol", "reader")] {
        users.put(name, role)?;
    }
    assert_eq!(users.get("alice")?.as_deref(), Some(&b"admin"[..]));
    users.delete("bob")?;
    assert!(!users.contains("bob")?);

    println!("from the last user to the first:");
    for entry in users.iter().rev() {
        let (key, value) = entry?;
        println!("  {} is {}", key.escape_ascii(), value.escape_ascii());
    }

    // A cursor lends the current entry and copies nothing.
    let mut cursor = users.cursor();
    cursor.seek("b")?;
    assert_eq!(cursor.key(), b"carol");
    drop(cursor);
    drop(users);
    db.close()?;

    // What was committed is there again.
    let db = Db::open(&folder)?;
    let users = db.partition("users")?;
    assert_eq!(users.iter().count(), 2);
    println!("after opening again there are {} users", users.iter().count());
    drop(users);
    db.close()?;

    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}
