//! Takeovers of a large database.

use std::time::Instant;

use siltstone::Durability;

use crate::bench::{Bench, Outcome, data, median, mix, options, sorted_key, value, value_of};

const PREFIX: &str = "takeover";
/// The bytes of a value.
const LARGE: usize = 1000;

/// Loads the database in order: each table is written once.
pub(crate) fn fill(bench: &Bench, gigabytes: f64) -> Outcome<()> {
    bench.meter.set_delay(0);
    let records = (gigabytes * 1e9 / 1016.0) as u64;
    let path = bench.dir.join("takeover-first");
    let primary = bench.remote(PREFIX)?.primary(&path)?;
    let db = primary.builder().options(options(64 << 20)).open()?;
    let loaded = data(&db)?;
    let parts = 20;
    for part in 0..parts {
        let range = records * part / parts..records * (part + 1) / parts;
        loaded.bulk_load(range.map(|number| (sorted_key(number), value_of(number, LARGE))))?;
        println!("filled {} of {parts}", part + 1);
    }
    // Some is in the log alone, as in any database.
    let log = db.partition("log")?;
    for number in 0..10_000 {
        log.put_with(sorted_key(number), value(number), Durability::Os)?;
    }
    primary.ship()?;
    println!(
        "filled: {records} records, {:?}; in the bucket {:?}",
        primary.status(),
        bench.stored(PREFIX)?
    );
    std::mem::forget(loaded);
    // As after a crash: the log is not flushed by a close.
    std::process::exit(0);
}

pub(crate) fn take_over(bench: &Bench) -> Outcome<()> {
    let records = count_records(bench)?;
    for &delay in &bench.delays {
        let mut claims = Vec::new();
        let mut opens = Vec::new();
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        let mut gets = Vec::new();
        for round in 0..bench.rounds as u64 {
            bench.meter.set_delay(delay);
            let path = bench.folder(&format!("takeover-{delay}-{round}"));
            let before = bench.meter.figures();
            let start = Instant::now();
            let primary = bench.remote(PREFIX)?.take_over(&path)?;
            claims.push(start.elapsed().as_secs_f64());
            let db = primary.builder().options(options(64 << 20)).open()?;
            opens.push(start.elapsed().as_secs_f64());
            let table = data(&db)?;
            let number = mix(round + 77) % records;
            let got = table.get(sorted_key(number))?;
            reads.push(start.elapsed().as_secs_f64());
            gets.push((bench.meter.figures() - before).gets as f64);
            assert_eq!(got.as_deref(), Some(&*value_of(number, LARGE)));
            db.partition("log")?.put_with(sorted_key(number), "new", Durability::Sync)?;
            writes.push(start.elapsed().as_secs_f64());
            assert!(primary.status().remote_files > 0, "it has waited for tables");
            bench.meter.set_delay(0);
            drop(table);
            db.close()?;
            drop(primary);
            Bench::remove(&path);
        }
        println!(
            "+{delay} ms: takeover: claimed after {:.2} s, open {:.2}, first read {:.2}, first write {:.2}; {:.0} GETs until the read",
            median(claims),
            median(opens),
            median(reads),
            median(writes),
            median(gets)
        );
    }
    Ok(())
}

/// The number of records, by bisection.
fn count_records(bench: &Bench) -> Outcome<u64> {
    let (_reader, _secondary, partition) = crate::reader::open(bench, PREFIX, 64 << 20)?;
    let reading = partition.at(siltstone::secondary::Level::Eventual)?;
    let mut low: u64 = 0;
    let mut high: u64 = 1 << 32;
    while low < high {
        let middle = low + (high - low) / 2;
        if reading.get(sorted_key(middle))?.is_some() { low = middle + 1 } else { high = middle }
    }
    Ok(low)
}
