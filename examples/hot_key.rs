//! A key that many threads change: repeated transactions against transactions that lock it, and two that
//! would wait for each other.
//!
//! `cargo run --release --example hot_key`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use siltstone::{Db, ErrorKind, Partition, Result, Transaction};

const THREADS: u64 = 8;
const EACH: u64 = 2_000;

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("this program writes 8 bytes"))
}

/// The way in which a transaction reads the counter.
type Read = fn(&mut Transaction, &Partition) -> Result<Option<siltstone::Slice>>;

/// Increments a counter `EACH` times on each of the threads. Returns the commits of a second and the number
/// of attempts.
fn count(db: &Db, name: &str, read: Read) -> Result<(f64, u64)> {
    let counters = db.partition("counters")?;
    let attempts = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let added = db.transact(|transaction| {
                        attempts.fetch_add(1, Ordering::Relaxed);
                        let old = read(transaction, &counters)?.map_or(0, |old| number(&old));
                        transaction.put(&counters, "visits", (old + 1).to_be_bytes());
                        Ok::<_, siltstone::Error>(())
                    });
                    added.expect("the disk is sound, and no owner takes a second");
                }
            });
        }
    });
    let rate = (THREADS * EACH) as f64 / start.elapsed().as_secs_f64();
    let counted = counters.get("visits")?.map_or(0, |visits| number(&visits));
    assert_eq!(counted, THREADS * EACH, "no increment is lost");
    counters.clear()?;
    let attempts = attempts.into_inner();
    println!("{name}: {rate:.0} commits a second, {attempts} attempts for {counted}");
    Ok((rate, attempts))
}

/// Two transactions that lock two keys in different order: the second to wait is refused.
fn deadlock(db: &Db) -> Result<()> {
    let users = db.partition("users")?;
    let mut first = db.transaction();
    first.get_for_update(&users, "alice")?;
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            db.transact(|second| {
                second.get_for_update(&users, "bob")?;
                second.get_for_update(&users, "alice")?;
                second.put(&users, "alice", "the second");
                Ok::<_, siltstone::Error>(())
            })
        });
        // Whichever of the two waits last is refused. The other goes on when the first has ended.
        match first.get_for_update(&users, "bob") {
            Err(error) if error.kind() == ErrorKind::Deadlock => println!("refused: {error}"),
            locked => drop(locked?),
        }
        drop(first);
        second.join().expect("it returns its errors")
    })
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-hot-key-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let (optimistic, _) =
        count(&db, "optimistic", |transaction, counters| transaction.get(counters, "visits"))?;
    let (locking, attempts) = count(&db, "locking", |transaction, counters| {
        transaction.get_for_update(counters, "visits")
    })?;
    println!("{:.1} times as many commits with locks", locking / optimistic);
    assert_eq!(attempts, THREADS * EACH, "an owner of the lock has no conflict");
    deadlock(&db)?;
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}
