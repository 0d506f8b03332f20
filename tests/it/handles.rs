//! More tables than the process may have files open.

use std::path::Path;
use std::process::Command;

use siltstone::{Db, Options};

const FOLDER: &str = "SILTSTONE_HANDLES_FOLDER";
const PARTITIONS: usize = 300;

/// Runs only where the limit of open files is low, which is the whole process's.
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
    assert!(stats.open_table_files <= stats.open_table_files_max, "{stats:?}");
    assert!(stats.table_file_reopen_count > 0 || stats.cache_hits > 0);
    let health = db.health();
    assert!(health.is_healthy(), "{health}");
    assert_eq!(health.open_table_files.hard, 256);
    drop((ranges, partitions));
    db.close().unwrap();
}

/// Reads failed for good while `health` said that all was well.
#[test]
fn three_hundred_partitions_work_with_256_file_handles() {
    let folder = tempfile::tempdir().unwrap();
    for round in ["made", "opened again"] {
        let done = Command::new("sh")
            .args(["-c", "ulimit -n 256 && exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["handles::child_with_few_file_handles", "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{round}: {}", String::from_utf8_lossy(&done.stderr));
    }
}
