//! Entries that expire and are removed, by a stored rule and by code, and the removal of a prefix.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone::clock::Clock;
use siltstone::{
    Db, Partition, PartitionOptions, PrefixDropFilter, RemainingTime, Result, TtlFilter, TtlRule,
};

/// A clock that the example sets, in seconds.
#[derive(Clone, Default)]
struct HandClock(Arc<AtomicU64>);

impl Clock for HandClock {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn unix_time(&self) -> Duration {
        self.now()
    }
}

/// The first bytes of each value are the second at which it expires.
fn expires_at(_key: &[u8], value: &[u8]) -> Option<u64> {
    value.first_chunk::<8>().map(|second| u64::from_be_bytes(*second))
}

fn put_all(partition: &Partition) -> Result<()> {
    for (key, second) in [("a", 150u64), ("b", 250), ("tenant-7/x", 999)] {
        partition.put(key, second.to_be_bytes())?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("siltstone-filter-{}", std::process::id()));
    let clock = HandClock::default();
    let db = Db::builder(&dir).clock(Arc::new(clock.clone())).open()?;

    // The rule is stored: a later open needs no code for it.
    let options = PartitionOptions::new().ttl(&TtlRule::in_value(0));
    let sessions = db.partition_with("sessions", options)?;
    put_all(&sessions)?;
    db.flush()?;
    clock.0.store(200, Ordering::Relaxed);
    // From its time on, an entry is not there for any read.
    let left: Vec<_> = sessions.keys().collect::<Result<_>>()?;
    println!("left at second 200: {left:?}");
    assert_eq!(left, ["b", "tenant-7/x"]);
    let remaining = sessions.remaining_time("b")?;
    assert_eq!(remaining, Some(RemainingTime::Limited(Duration::from_secs(50))));
    // Compactions remove it automatically.
    while sessions.with_expired().contains("a")? {
        std::thread::yield_now();
    }

    // Code may look at anything. Each open supplies it again.
    let now = clock.clone();
    let expire = TtlFilter::new(expires_at, move || now.now().as_secs());
    let options = PartitionOptions::new()
        .filter(Arc::new(expire))
        .filter(Arc::new(PrefixDropFilter::new(["tenant-7/"])));
    let tenants = db.partition_with("tenants", options)?;
    put_all(&tenants)?;
    let before = db.snapshot();
    tenants.compact(..)?;
    // A snapshot does not change; the filter does not see the entries that it needs.
    assert_eq!(before.iter(&tenants).count(), 3);
    drop(before);
    tenants.compact(..)?;
    let left: Vec<_> = tenants.keys().collect::<Result<_>>()?;
    println!("left after the compaction: {left:?}");
    assert_eq!(left, ["b"]);

    // A snapshot has a time of its own.
    let before = db.snapshot();
    clock.0.store(251, Ordering::Relaxed);
    assert!(before.contains(&sessions, "b")? && !sessions.contains("b")?);
    drop(before);

    db.close()?;
    drop((sessions, tenants));
    std::fs::remove_dir_all(&dir).expect("the folder was made above");
    Ok(())
}
