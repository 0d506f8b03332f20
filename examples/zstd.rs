//! zstd with a dictionary for each table, next to the other compressions: the size of small rows that resemble each other.
//! A build without the feature says so.
//!
//! `cargo run --release --features zstd --example zstd`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use siltstone::{Compression, Db, ErrorKind, PartitionOptions, Result};

/// A dictionary is trained with the first 1.6 MiB of a table.
const ROWS: u32 = 50_000;

fn row(n: u32) -> String {
    let city = ["Bern", "Basel", "Zug", "Chur"][n as usize % 4];
    format!(
        "{{\"id\":{n},\"city\":\"{city}\",\"active\":{},\"visits\":{}}}",
        n.is_multiple_of(3),
        n * 7 % 1000
    )
}

/// The bytes of the tables of a partition with this compression.
fn bytes_with(db: &Db, name: &str, compression: Compression) -> Result<u64> {
    let options = PartitionOptions::new().compression(compression);
    let rows = db.partition_with(name, options)?;
    for n in 0..ROWS {
        rows.put(n.to_be_bytes(), row(n))?;
    }
    rows.compact(..)?;
    assert_eq!(rows.get(7_u32.to_be_bytes())?.as_deref(), Some(row(7).as_bytes()));
    let stats = db.stats();
    let partition = stats.partitions.iter().find(|partition| partition.name == name);
    let levels = &partition.expect("it was made above").levels;
    Ok(levels.iter().map(|level| level.bytes).sum())
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-zstd-{}", std::process::id()));
    let db = Db::open(&folder)?;
    for (name, compression) in
        [("none", Compression::None), ("lz4", Compression::Lz4), ("zstd", Compression::Zstd)]
    {
        match bytes_with(&db, name, compression) {
            Ok(bytes) => println!("{name:<5} {bytes} bytes"),
            // Refused before anything is made.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                assert!(!db.has_partition(name));
                println!("{name:<5} {error}");
            }
            Err(error) => return Err(error),
        }
    }
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("the folder can be removed");
    Ok(())
}
