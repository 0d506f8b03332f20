//! Backups that share what is the same: of an open database, and of a folder that another process writes; what they
//! cost, how one is restored, and how old ones are deleted.
//!
//! `cargo run --example backup`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use siltstone::backup::{BackupEngine, BackupInfo};
use siltstone::{Db, Result};

const ORDERS: u32 = 50_000;

fn show(what: &str, backup: &BackupInfo) {
    let BackupInfo { backup_id, seq, size, new_bytes, .. } = backup;
    println!("{what}: backup {backup_id}, sequence {seq}, {size} bytes, {new_bytes} of them new");
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-backup-{}", std::process::id()));
    let db = Db::open(folder.join("shop"))?;
    let orders = db.partition("orders")?;
    for order in 0..ORDERS {
        orders.put(order.to_be_bytes(), format!("{} crates of order {order}", order % 97))?;
    }
    db.flush()?;

    // Writers continue meanwhile. The backup has every commit that returned before the call.
    let backups = BackupEngine::open(folder.join("backups"));
    let first = backups.create_backup(&db)?;
    show("all is new", &first);
    for order in 0..ORDERS / 100 {
        orders.put((order * 100).to_be_bytes(), "cancelled")?;
    }
    // As another process does it, which has no handle of the database.
    let second = backups.create_backup_of(Db::builder(folder.join("shop")))?;
    show("one of a hundred has changed", &second);
    assert!(second.new_bytes < first.new_bytes);

    // Each is whole by itself: the second stays when the first is deleted.
    backups.restore(first.backup_id, folder.join("before"))?;
    let before = Db::open(folder.join("before"))?;
    assert!(
        before.partition("orders")?.get(0u32.to_be_bytes())?.is_some_and(|it| it != "cancelled")
    );
    let purged = backups.purge_old(1)?;
    println!(
        "deleted: backup {:?}, {} bytes that no other one needs",
        purged.backups, purged.bytes
    );
    assert!(backups.verify(None)?.is_sound());
    backups.restore_latest(folder.join("after"))?;
    let after = Db::open(folder.join("after"))?;
    assert!(
        after.partition("orders")?.get(0u32.to_be_bytes())?.is_some_and(|it| it == "cancelled")
    );

    after.close()?;
    before.close()?;
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}
