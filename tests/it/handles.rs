//! More tables and chunk files than the process may have files open.

use std::path::Path;
use std::process::Command;

use siltstone::{Db, LargeValueOptions, Options, PartitionOptions};

const FOLDER: &str = "SILTSTONE_HANDLES_FOLDER";
const PARTITIONS: usize = 300;
/// Partitions with large values, and values of each, which are in a chunk file of their own.
const STORES: usize = 10;
const VALUES: usize = 60;

/// Runs only with a low limit of open files, which is a limit of the whole process.
#[test]
fn child_with_few_file_handles() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let options = Options::new();
    assert!(options.open_files_max <= 128, "{}", options.open_files_max);
    let db = Db::builder(folder).options(options).open().unwrap();
    let partitions: Vec<_> =
        (0..PARTITIONS).map(|n| db.partition(&format!("p{n:03}")).unwrap()).collect();
    for (n, partition) in partitions.iter().enumerate() {
        partition.put("key", n.to_string()).unwrap();
    }
    db.flush().unwrap();
    let mut ranges: Vec<_> = partitions.iter().map(siltstone::Partition::iter).collect();
    for _ in 0..2 {
        for (n, partition) in partitions.iter().enumerate() {
            assert_eq!(partition.get("key").unwrap().unwrap(), n.to_string().as_bytes());
        }
    }
    for (n, range) in ranges.iter_mut().enumerate() {
        let (_, value) = range.next().unwrap().unwrap();
        assert_eq!(value, n.to_string().as_bytes());
    }
    let stats = db.stats();
    assert!(stats.open_files <= stats.open_files_max, "{stats:?}");
    assert!(stats.file_reopen_count > 0 || stats.cache_hits > 0);
    let health = db.health();
    assert!(health.is_healthy(), "{health}");
    assert_eq!(health.open_files.hard, 256);
    drop((ranges, partitions));
    db.close().unwrap();
}

fn large_value(store: usize, n: usize) -> Vec<u8> {
    vec![(store + 7 * n) as u8; 4 << 10]
}

/// As [`child_with_few_file_handles`].
#[test]
fn child_with_few_file_handles_and_large_values() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let db = Db::open(Path::new(&folder)).unwrap();
    let large = LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
    let options = PartitionOptions::new().large_values(large.chunk_bytes(4 << 10));
    let partitions: Vec<_> = (0..STORES)
        .map(|n| db.partition_with(&format!("large{n}"), options.clone()).unwrap())
        .collect();
    for n in 0..VALUES {
        for (store, partition) in partitions.iter().enumerate() {
            // A file that waits for a sync stays open.
            let written = partition.put(n.to_be_bytes(), large_value(store, n)).unwrap();
            db.wait_durable(written.seq).unwrap();
        }
    }
    for _ in 0..2 {
        for n in 0..VALUES {
            for (store, partition) in partitions.iter().enumerate() {
                let found = partition.get(n.to_be_bytes()).unwrap().unwrap();
                assert_eq!(found, large_value(store, n), "value {n} of {store}");
            }
        }
    }
    let stats = db.stats();
    assert!(stats.open_files <= stats.open_files_max && stats.open_files_max <= 128, "{stats:?}");
    assert!(stats.file_reopen_count > 0, "{stats:?}");
    assert!(db.health().is_healthy(), "{}", db.health());
    drop(partitions);
    db.close().unwrap();
}

/// Reads used to fail permanently while `health` reported that all was well.
#[test]
fn three_hundred_partitions_work_with_256_file_handles() {
    run_twice_with_256_handles("handles::child_with_few_file_handles");
}

/// Each partition used to keep 128 chunk files open, in addition to those that the database may
/// have open.
#[test]
fn six_hundred_chunk_files_are_read_with_256_file_handles() {
    run_twice_with_256_handles("handles::child_with_few_file_handles_and_large_values");
}

fn run_twice_with_256_handles(child: &str) {
    let folder = tempfile::tempdir().unwrap();
    for round in ["made", "opened again"] {
        let done = Command::new("sh")
            .args(["-c", "ulimit -n 256 && exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args([child, "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{round}: {}", String::from_utf8_lossy(&done.stderr));
    }
}
