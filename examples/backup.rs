//! Backups that share what is the same: of an open database, and of a folder that another process writes; what they
//! cost, how one is restored, and how old ones are deleted.
//!
//! `cargo run --example backup`, and `cargo run --release --example backup -- MIB` with so many MiB of records: it
//! measures what a second backup of them reads.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::Path;

use siltstone::backup::{BackupEngine, BackupInfo};
use siltstone::{Compression, Db, Partition, PartitionOptions, Result};

const ORDERS: u32 = 50_000;

fn show(what: &str, backup: &BackupInfo) {
    let BackupInfo { backup_id, seq, size, new_bytes, .. } = backup;
    println!("{what}: backup {backup_id}, sequence {seq}, {size} bytes, {new_bytes} of them new");
}

/// The bytes that this process has read by calls of the system so far; `None` where the system does not count them.
fn read_bytes() -> Option<u64> {
    let figures = std::fs::read_to_string("/proc/self/io").ok()?;
    figures.lines().find_map(|line| line.strip_prefix("rchar: "))?.trim().parse().ok()
}

/// Puts a record of 1,000 bytes that cannot be compressed.
fn put(records: &Partition, number: u64, round: u64) -> Result<()> {
    let mut state = number ^ round << 40;
    let mut value = Vec::with_capacity(1000);
    for _ in 0..125 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        value.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    records.put(number.to_be_bytes(), value)?;
    Ok(())
}

/// Prints what backups of so many MiB read and add: the first one, one after one record of a hundred was overwritten at
/// random places, and one after neighbouring records were. The database is open and does nothing meanwhile.
fn measure(mib: u64, folder: &Path) -> Result<()> {
    let db = Db::open(folder.join("large"))?;
    let records =
        db.partition_with("records", PartitionOptions::new().compression(Compression::None))?;
    let count = mib * 1024;
    for number in 0..count {
        put(&records, number, 0)?;
    }
    records.compact(..)?;
    let backups = BackupEngine::open(folder.join("backups"));
    for (round, what) in
        ["all of it", "1 % at random places", "1 % of neighbours"].iter().enumerate()
    {
        for number in 0..count / 100 {
            match round {
                0 => break,
                1 => put(&records, number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count, 1)?,
                _ => put(&records, count / 2 + number, 2)?,
            }
        }
        db.wait_durable(db.visible_seq())?;
        db.wait_idle()?;
        let before = read_bytes();
        let made = backups.create_backup(&db)?;
        let read = before.and_then(|before| Some(read_bytes()? - before));
        let read = read.map_or("unknown".to_owned(), |read| format!("{:.1}", read as f64 / 1e6));
        let new = made.new_bytes as f64 / 1e6;
        println!("{what}: {read} MB read, {new:.1} MB new, of {:.1} MB", made.size as f64 / 1e6);
    }
    db.close()
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-backup-{}", std::process::id()));
    if let Some(mib) = std::env::args().nth(1) {
        measure(mib.parse().expect("a number of MiB"), &folder)?;
        let removed = std::fs::remove_dir_all(&folder);
        removed.expect("no other program uses the folder");
        return Ok(());
    }
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
