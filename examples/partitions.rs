//! Partitions (column families): key spaces with their own options, created and dropped at run time.
//!
//! `cargo run --example partitions`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use siltstone::{Compression, Db, ErrorKind, PartitionOptions, Result};

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-partitions-{}", std::process::id()));
    // One cache, one log and one write buffer serve all partitions.
    let db = Db::builder(&folder).cache_bytes(16 << 20).write_buffer_bytes(8 << 20).open()?;

    let events = db.partition("events")?;
    let options = PartitionOptions::new().compression(Compression::None).bloom_bits_per_key(0);
    let media = db.partition_with("media", options)?;
    // The program can rebuild this data, so it does not need the log.
    let derived = db.partition_with("derived", PartitionOptions::new().logged(false))?;

    for n in 0..1000u32 {
        events.put(format!("2026-11-{:02}/{n:04}", 1 + n % 30), format!("event {n}"))?;
        derived.put(n.to_be_bytes(), (n * n).to_be_bytes())?;
    }
    media.put("cover", vec![7; 100_000])?;
    db.flush()?;

    let day = events.prefix("2026-11-21/").count();
    println!("{day} events on the 21st of November");
    assert_eq!(day, 33);
    for partition in &db.stats().partitions {
        let bytes: u64 = partition.levels.iter().map(|level| level.bytes).sum();
        println!("{:>8}: {bytes} bytes in tables", partition.name);
    }

    db.drop_partition("derived")?;
    let refused = derived.put("k", "v").expect_err("a dropped partition takes no writes");
    assert_eq!(refused.kind(), ErrorKind::PartitionNotFound);
    assert_eq!(db.partition_names(), ["default", "events", "media"]);
    println!("left: {}", db.partition_names().join(", "));

    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}
