//! Deleted ranges: what it costs to delete many keys at once, to read between many deleted ranges, and to scan a
//! partition in which everything was deleted.
//!
//! `cargo run --release --example delete_range -- [RECORDS] [RANGES]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::time::Instant;

use siltstone::{Db, Durability, Partition, Result};

/// Keys of a deleted range.
const RANGE_KEYS: u64 = 10;
const GETS: u64 = 200_000;
const ROUNDS: u32 = 5;

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"metric: ........";
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

fn fill(db: &Db, page: &Partition, records: u64) -> Result<()> {
    let mut batch = db.batch();
    for n in 0..records {
        batch = batch.put(page, key(n), [n.to_le_bytes(); 12].concat());
        if n % 1000 == 999 || n == records - 1 {
            std::mem::replace(&mut batch, db.batch()).commit(Durability::Os)?;
        }
    }
    page.flush()?;
    page.compact(..)
}

/// The microseconds of a get of a key that is there: the best of some rounds.
fn get_micros(page: &Partition, records: u64, ranges: u64) -> Result<f64> {
    let step = records / ranges;
    let mut best = f64::INFINITY;
    for round in 0..ROUNDS {
        let mut n = u64::from(round);
        let began = Instant::now();
        for _ in 0..GETS {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // A key of a step that comes after its range.
            let at = (n >> 33) % ranges * step + RANGE_KEYS + (n >> 20) % (step - RANGE_KEYS);
            assert!(page.get(key(at))?.is_some());
        }
        best = best.min(began.elapsed().as_secs_f64() * 1e6 / GETS as f64);
    }
    Ok(best)
}

/// The microseconds of a scan that returns nothing, the best of some rounds.
fn empty_scan_micros(page: &Partition) -> f64 {
    let times = (0..100).map(|_| {
        let began = Instant::now();
        assert_eq!(page.iter().count() + page.iter().rev().count(), 0);
        began.elapsed().as_secs_f64() * 1e6
    });
    times.fold(f64::INFINITY, f64::min)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let records: u64 = arguments.next().unwrap_or(100_000);
    let ranges: u64 = arguments.next().unwrap_or(1000);
    assert!(records / ranges > 2 * RANGE_KEYS, "more than {} records a range", 2 * RANGE_KEYS);

    let folder = std::env::temp_dir().join(format!("siltstone-ranges-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let page = db.partition("metrics")?;
    fill(&db, &page, records)?;

    let without = get_micros(&page, records, ranges)?;
    let began = Instant::now();
    for n in 0..ranges {
        let first = n * (records / ranges);
        page.delete_range(key(first)..key(first + RANGE_KEYS))?;
    }
    let each = began.elapsed().as_secs_f64() * 1e6 / ranges as f64;
    println!("{ranges} ranges of {RANGE_KEYS} keys: {each:.1} us each");
    let in_memtable = get_micros(&page, records, ranges)?;
    page.flush()?;
    let live = page.stats().deleted_range_count;
    let in_version = get_micros(&page, records, ranges)?;
    println!(
        "get: {without:.3} us without ranges; {in_memtable:.3} us with them in a memtable ({:.2}), {in_version:.3} us \
         with {live} in the version ({:.2})",
        in_memtable / without,
        in_version / without
    );

    // The first commit after a flush makes a memtable.
    page.put(key(0), "a value")?;
    let began = Instant::now();
    page.delete_range(key(0)..key(records))?;
    let all = began.elapsed().as_secs_f64() * 1e6;
    println!("{records} keys: {all:.1} us");
    let soon = empty_scan_micros(&page);
    db.wait_idle()?;
    let later = empty_scan_micros(&page);
    let never = empty_scan_micros(&db.partition("always empty")?);
    println!(
        "empty scan: {soon:.2} us at once, {later:.2} us later, {never:.2} us where nothing ever was"
    );
    println!("{} bytes of tables are left", db.stats().table_bytes);

    db.close()?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
