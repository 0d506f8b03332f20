//! A primary, and a database without a remote, in turn: reads, unsynced writes, synced writes under `Ack::Local`.

use std::path::Path;
use std::time::Instant;

use remote::{Ack, Primary};
use siltstone::{Db, Durability};

use crate::bench::{Bench, Outcome, data, in_threads, key, median, mix, options, value};

const CACHE_BYTES: u64 = 256 << 20;

/// Opens the database in `path`, of a primary if there is a prefix.
fn open(
    bench: &Bench,
    path: &Path,
    prefix: Option<&str>,
    ack: Ack,
) -> Outcome<(Option<Primary>, Db)> {
    let Some(prefix) = prefix else {
        return Ok((None, Db::builder(path).options(options(CACHE_BYTES)).open()?));
    };
    let primary = bench.remote(prefix)?.ack(ack).primary(path)?;
    let db = primary.builder().options(options(CACHE_BYTES)).open()?;
    Ok((Some(primary), db))
}

/// Puts at most `rate` a second, if given; returns puts a second, by the time that the calls took.
fn fill(db: &Db, records: u64, rate: Option<f64>) -> Outcome<f64> {
    let data = data(db)?;
    let start = Instant::now();
    let mut waited = 0.0;
    for number in 0..records {
        data.put_with(key(number), value(number), Durability::Os)?;
        if let Some(rate) = rate
            && number.is_multiple_of(64)
        {
            let ahead = number as f64 / rate - start.elapsed().as_secs_f64();
            if ahead > 0.0 {
                let begin = Instant::now();
                std::thread::sleep(std::time::Duration::from_secs_f64(ahead));
                waited += begin.elapsed().as_secs_f64();
            }
        }
    }
    Ok(records as f64 / (start.elapsed().as_secs_f64() - waited))
}

fn read(db: &Db, records: u64) -> Outcome<f64> {
    let data = data(db)?;
    let mut rate = 0.0;
    // The first pass fills the cache.
    for salt in 1..=2 {
        let start = Instant::now();
        for number in 0..records {
            let got = data.get(key(mix(number ^ salt) % records))?;
            assert!(got.is_some(), "a record is missing");
        }
        rate = records as f64 / start.elapsed().as_secs_f64();
    }
    Ok(rate)
}

/// Reads and unsynced writes.
pub(crate) fn unsynced(bench: &Bench) -> Outcome<()> {
    for &delay in &bench.delays {
        bench.meter.set_delay(delay);
        for (what, rate) in [("at full speed", None), ("at most 50,000 a second", Some(50_000.0))] {
            let records = if rate.is_some() { bench.records / 10 } else { bench.records };
            let mut plain = Vec::new();
            let mut shipped = Vec::new();
            let mut read_plain = Vec::new();
            let mut read_shipped = Vec::new();
            for round in 0..bench.rounds * 2 {
                // Each is first as often as the other.
                for turn in 0..2 {
                    let has_remote = (round + turn) % 2 == 0;
                    let name = format!("local-{delay}-{round}-{has_remote}-{}", rate.is_some());
                    let prefix = bench.name(&name);
                    let path = bench.folder(&name);
                    let prefix = has_remote.then_some(&*prefix);
                    let (primary, db) = open(bench, &path, prefix, Ack::Stored)?;
                    let writes = fill(&db, records, rate)?;
                    db.flush()?;
                    db.wait_idle()?;
                    if let Some(primary) = &primary {
                        primary.ship()?;
                    }
                    if rate.is_none() {
                        let reads = read(&db, records)?;
                        if has_remote {
                            read_shipped.push(reads)
                        } else {
                            read_plain.push(reads)
                        };
                    }
                    if has_remote {
                        shipped.push(writes)
                    } else {
                        plain.push(writes)
                    };
                    db.close()?;
                    drop(primary);
                    Bench::remove(&path);
                }
            }
            report(&format!("+{delay} ms: unsynced writes {what}"), plain, shipped);
            if rate.is_none() {
                report(&format!("+{delay} ms: reads"), read_plain, read_shipped);
            }
        }
    }
    Ok(())
}

fn report(what: &str, plain: Vec<f64>, shipped: Vec<f64>) {
    let plain = median(plain);
    let shipped = median(shipped);
    let percent = (shipped / plain - 1.0) * 100.0;
    println!(
        "{what}: {plain:.0} a second without a remote, {shipped:.0} with one ({percent:+.1} %)"
    );
}

/// Synced writes under `Ack::Local`.
pub(crate) fn synced(bench: &Bench) -> Outcome<()> {
    for &delay in &bench.delays {
        bench.meter.set_delay(delay);
        for writers in [1, 16] {
            let mut rates = [Vec::new(), Vec::new()];
            let mut p50s = [Vec::new(), Vec::new()];
            for round in 0..bench.rounds {
                for turn in 0..2 {
                    let has_remote = (round + turn) % 2;
                    let name = format!("synced-{delay}-{writers}-{round}-{has_remote}");
                    let prefix = bench.name(&name);
                    let path = bench.folder(&name);
                    let prefix = (has_remote == 1).then_some(&*prefix);
                    let (primary, db) = open(bench, &path, prefix, Ack::Local)?;
                    let data = data(&db)?;
                    let timed = in_threads(writers, bench.seconds, |number| {
                        data.put_with(key(number), value(number), Durability::Sync).map(drop)
                    })?;
                    rates[has_remote].push(timed.rate());
                    p50s[has_remote].push(timed.percentile(50.0));
                    drop(data);
                    db.close()?;
                    drop(primary);
                    Bench::remove(&path);
                }
            }
            let [plain, shipped] = p50s.map(median);
            println!(
                "+{delay} ms: synced writes under Local, {writers} writers: p50 {plain:.3} ms without a remote, {shipped:.3} with one"
            );
            let [plain, shipped] = rates;
            report(
                &format!("+{delay} ms: synced writes under Local, {writers} writers"),
                plain,
                shipped,
            );
        }
    }
    Ok(())
}
