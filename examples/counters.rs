//! Counters that many threads increment: merges of operands, compared with read-modify-write, and reads of a counter
//! before and after its operands are folded.
//!
//! `cargo run --release --example counters -- [INCREMENTS] [THREADS]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use siltstone::operators::IntegerOperator;
use siltstone::{Db, Partition, PartitionOptions, Result};

const GETS: u64 = 20_000;
const ROUNDS: u32 = 5;
const ONE: [u8; 8] = 1i64.to_le_bytes();

fn count(counters: &Partition, key: &str) -> Result<i64> {
    let value = counters.get(key)?.unwrap_or_default();
    Ok(i64::from_le_bytes(value[..].try_into().unwrap_or_default()))
}

fn add_one(old: Option<&[u8]>) -> [u8; 8] {
    let old = old.and_then(|old| old.try_into().ok()).map_or(0, i64::from_le_bytes);
    (old + 1).to_le_bytes()
}

/// Calls `increment` so often from each thread; returns the nanoseconds of one call by the wall clock.
fn nanos(threads: u64, calls: u64, increment: impl Fn() -> Result<()> + Sync) -> Result<f64> {
    let began = Instant::now();
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| (0..calls).try_for_each(|_| increment())))
            .collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    Ok(began.elapsed().as_secs_f64() * 1e9 / (threads * calls) as f64)
}

/// The nanoseconds of a get of `key`: the best of some rounds.
fn get_nanos(counters: &Partition, key: &str) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..GETS {
            counters.get(key)?.expect("it has a value");
        }
        best = best.min(began.elapsed().as_secs_f64() * 1e9 / GETS as f64);
    }
    Ok(best)
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let increments: u64 = args.next().unwrap_or(20_000);
    let threads: u64 = args.next().unwrap_or(2);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(dir.path())?;
    let options = PartitionOptions::new().merge_operator(Arc::new(IntegerOperator::Add));
    let counters = db.partition_with("counters", options)?;
    counters.put("plain", ONE)?;

    // Each in its turn, so that both have the same conditions.
    let merged = nanos(threads, increments, || counters.merge("merged", ONE).map(drop))?;
    let updated = nanos(threads, increments, || {
        counters.update("updated", |old| Some(add_one(old))).map(drop)
    })?;
    let total = i64::try_from(threads * increments).expect("a count of calls");
    assert_eq!((count(&counters, "merged")?, count(&counters, "updated")?), (total, total));
    println!("increments of one counter by {threads} threads, {increments} each:");
    println!("  merge  {merged:8.0} ns");
    println!("  update {updated:8.0} ns, {:.1} times", updated / merged);

    let unfolded = get_nanos(&counters, "merged")?;
    let plain = get_nanos(&counters, "plain")?;
    println!("gets from memory: {plain:.0} ns of a plain key, {unfolded:.0} ns of the counter");
    db.flush()?;
    counters.compact(..)?;
    let folded = get_nanos(&counters, "merged")?;
    let plain = get_nanos(&counters, "plain")?;
    let ratio = folded / plain;
    println!(
        "gets after a fold: {plain:.0} ns of a plain key, {folded:.0} ns of the counter, {ratio:.2} times"
    );
    println!("operands folded: {}", counters.stats().operands_folded);
    db.close()
}
