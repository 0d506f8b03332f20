//! Compaction filters: entries that expire, and a dropped prefix. Both respect snapshots.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone::{Db, PartitionOptions, PrefixDropFilter, Result, TtlFilter};

/// Each value begins with its time of expiry, in seconds.
fn expires_at(_key: &[u8], value: &[u8]) -> Option<u64> {
    value.first_chunk::<8>().map(|second| u64::from_be_bytes(*second))
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("siltstone-filter-{}", std::process::id()));
    let db = Db::open(&dir)?;
    let now = Arc::new(AtomicU64::new(100));
    let clock = now.clone();
    let expire = TtlFilter::new(expires_at, move || clock.load(Ordering::Relaxed));
    let options = PartitionOptions::new()
        .filter(Arc::new(expire))
        .filter(Arc::new(PrefixDropFilter::new(["tenant-7/"])));
    let sessions = db.partition_with("sessions", options)?;

    for (key, second) in [("a", 150u64), ("b", 250), ("tenant-7/x", 999)] {
        sessions.put(key, second.to_be_bytes())?;
    }
    let before = db.snapshot();
    now.store(200, Ordering::Relaxed);
    sessions.compact(..)?;
    // The snapshot still sees its entries: no filter decides about them.
    assert_eq!(before.iter(&sessions).count(), 3);
    drop(before);
    sessions.compact(..)?;
    let left: Vec<_> = sessions.keys().collect::<Result<_>>()?;
    println!("left after the compaction: {left:?}");
    assert_eq!(left, ["b"]);
    db.close()?;
    drop(sessions);
    std::fs::remove_dir_all(&dir).expect("the folder was made above");
    Ok(())
}
