//! A key that many threads change: repeated transactions against transactions that lock it, and two that
//! would wait for each other.
//!
//! `cargo run --release --example hot_key`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use siltstone::{Db, Durability, ErrorKind, Partition, Result, Transaction};

const THREADS: u64 = 8;

/// The attempts of a measurement.
#[derive(Clone, Copy)]
struct Load {
    /// The number of increments of each thread.
    each: u64,
    /// The time for which an attempt computes between its read and its write, counted on its processor.
    work: Duration,
    durability: Durability,
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("this program writes 8 bytes"))
}

/// Work that is not shorter on a thread that waits for a processor, as a look at the clock would make it.
fn compute(steps: u64) -> u64 {
    (0..steps).fold(1, |sum, step| std::hint::black_box(sum ^ step).wrapping_mul(0x9e37_79b9))
}

/// The steps that take so long, by the fastest of some runs.
fn steps_of(work: Duration) -> u64 {
    const STEPS: u64 = 100_000;
    let runs = (0..20).map(|_| {
        let start = Instant::now();
        std::hint::black_box(compute(STEPS));
        start.elapsed().as_secs_f64()
    });
    (work.as_secs_f64() / runs.fold(f64::INFINITY, f64::min) * STEPS as f64) as u64
}

/// The way in which a transaction reads the counter.
type Read = fn(&mut Transaction, &Partition) -> Result<Option<siltstone::Slice>>;

/// Increments a counter on each of the threads. Returns the commits of a second and the number of attempts.
fn count(db: &Db, name: &str, load: Load, read: Read) -> Result<(f64, u64)> {
    let Load { each, work, durability } = load;
    let steps = steps_of(work);
    let counters = db.partition("counters")?;
    let attempts = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..each {
                    let added = db.transact_with(durability, |transaction| {
                        transaction.set_lock_timeout(Duration::from_secs(60));
                        attempts.fetch_add(1, Ordering::Relaxed);
                        let old = read(transaction, &counters)?.map_or(0, |old| number(&old));
                        std::hint::black_box(compute(steps));
                        transaction.put(&counters, "visits", (old + 1).to_be_bytes());
                        Ok::<_, siltstone::Error>(())
                    });
                    added.expect("the disk is sound, and no owner takes a minute");
                }
            });
        }
    });
    let rate = (THREADS * each) as f64 / start.elapsed().as_secs_f64();
    let counted = counters.get("visits")?.map_or(0, |visits| number(&visits));
    assert_eq!(counted, THREADS * each, "no increment is lost");
    counters.clear()?;
    let attempts = attempts.into_inner();
    println!("{name}: {rate:.0} commits a second, {attempts} attempts for {counted}");
    Ok((rate, attempts))
}

/// Compares both ways.
fn compare(db: &Db, load: Load) -> Result<()> {
    println!("{:?} of work in each attempt, {:?}", load.work, load.durability);
    let (optimistic, _) =
        count(db, "optimistic", load, |transaction, counters| transaction.get(counters, "visits"))?;
    let (locking, attempts) = count(db, "locking", load, |transaction, counters| {
        transaction.get_for_update(counters, "visits")
    })?;
    println!("{:.1} times as many commits with locks", locking / optimistic);
    assert_eq!(attempts, THREADS * load.each, "an owner of the lock has no conflict");
    Ok(())
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
    let works = [0, 200, 20_000].map(Duration::from_micros);
    for (each, work) in [5_000, 200, 5].into_iter().zip(works) {
        compare(&db, Load { each, work, durability: Durability::Os })?;
    }
    compare(&db, Load { each: 200, work: Duration::ZERO, durability: Durability::Sync })?;
    deadlock(&db)?;
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}
