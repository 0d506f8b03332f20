//! Both engines: durable puts, gets, scans, and what a million puts leave and cost.

use std::time::Instant;

use siltstone::Durability;
use siltstone::secondary::Level;
use slatedb::config::{FlushOptions, FlushType};

use crate::bench::{Bench, Outcome, Timed, data, in_threads, key, median, mix, options, value};
use crate::store::Figures;
use crate::{reader, slate};

/// Flush intervals that are tried for the best durable puts.
const INTERVALS: [u64; 4] = [1, 5, 20, slate::INTERVAL];
const CACHE_BYTES: u64 = 256 << 20;
const COLD: u64 = 60;

struct PutFigures {
    p50: Vec<f64>,
    p99: Vec<f64>,
    rate: Vec<f64>,
    puts_a_million: Vec<f64>,
    bytes_a_put: Vec<f64>,
}

impl PutFigures {
    fn new() -> PutFigures {
        let (p50, p99, rate, puts_a_million, bytes_a_put) = Default::default();
        PutFigures { p50, p99, rate, puts_a_million, bytes_a_put }
    }

    fn add(&mut self, timed: &Timed, used: Figures) {
        let count = timed.count().max(1) as f64;
        self.p50.push(timed.percentile(50.0));
        self.p99.push(timed.percentile(99.0));
        self.rate.push(timed.rate());
        self.puts_a_million.push(used.puts as f64 / count * 1e6);
        self.bytes_a_put.push(used.put_bytes as f64 / count);
    }

    fn print(self, what: &str) {
        println!(
            "{what}: p50 {:.2} ms, p99 {:.2}, {:.0} a second; {:.0} PUTs a million puts, {:.0} bytes a put",
            median(self.p50),
            median(self.p99),
            median(self.rate),
            median(self.puts_a_million),
            median(self.bytes_a_put)
        );
    }
}

pub(crate) fn puts(bench: &Bench) -> Outcome<()> {
    for &delay in &bench.delays {
        for writers in [1, 16, 64] {
            let mut silt = PutFigures::new();
            let mut slates = INTERVALS.map(|_| PutFigures::new());
            for round in 0..bench.rounds {
                bench.meter.set_delay(delay);
                let name = format!("puts-{delay}-{writers}-{round}");
                let path = bench.folder(&name);
                let primary = bench.remote(&bench.name(&name))?.primary(&path)?;
                let db = primary.builder().options(options(CACHE_BYTES)).open()?;
                let data = data(&db)?;
                let before = bench.meter.figures();
                let timed = in_threads(writers, bench.seconds, |number| {
                    data.put_with(key(number), value(number), Durability::Sync).map(drop)
                })?;
                silt.add(&timed, bench.meter.figures() - before);
                bench.meter.set_delay(0);
                drop(data);
                db.close()?;
                drop(primary);
                Bench::remove(&path);
                for (figures, interval) in slates.iter_mut().zip(INTERVALS) {
                    bench.meter.set_delay(delay);
                    let name =
                        bench.name(&format!("slate-puts-{delay}-{writers}-{round}-{interval}"));
                    let store = bench.object_store();
                    bench.runtime.block_on(async {
                        let db = slate::open(store, &name, CACHE_BYTES, interval).await?;
                        let before = bench.meter.figures();
                        let timed = slate::durable(&db, writers, bench.seconds).await?;
                        figures.add(&timed, bench.meter.figures() - before);
                        bench.meter.set_delay(0);
                        db.close().await?;
                        Outcome::Ok(())
                    })?;
                }
            }
            silt.print(&format!("+{delay} ms: durable puts, {writers} writers, siltstone"));
            for (figures, interval) in slates.into_iter().zip(INTERVALS) {
                figures.print(&format!(
                    "+{delay} ms: durable puts, {writers} writers, SlateDB at {interval} ms"
                ));
            }
        }
    }
    Ok(())
}

/// Fills a database of SlateDB, flushes it, and closes it.
fn make_slate(bench: &Bench, name: &str) -> Outcome<()> {
    let store = bench.object_store();
    bench.runtime.block_on(async {
        let db = slate::open(store, name, CACHE_BYTES, slate::INTERVAL).await?;
        for number in 0..bench.records {
            db.put(key(number), value(number)).await?;
        }
        db.close().await?;
        Outcome::Ok(())
    })
}

/// A line of a comparison.
fn line(what: &str, silt: Vec<f64>, slate: Vec<f64>) {
    println!("{what}: siltstone {:.2}, SlateDB {:.2}", median(silt), median(slate));
}

pub(crate) fn reads(bench: &Bench) -> Outcome<()> {
    bench.meter.set_delay(0);
    let path = reader::make(bench, "reads")?;
    let prefix = bench.name("reads");
    let slate_path = bench.name("slate-reads");
    make_slate(bench, &slate_path)?;
    hot(bench, &path, &prefix, &slate_path)?;
    for &delay in &bench.delays {
        cold(bench, delay, &prefix, &slate_path)?;
    }
    Bench::remove(&path);
    Ok(())
}

/// Gets and scans of what is in memory: of the writers, and of readers.
fn hot(bench: &Bench, path: &std::path::Path, prefix: &str, slate_path: &str) -> Outcome<()> {
    let keys: Vec<_> = (0..10_000).map(|number| key(mix(number) % bench.records)).collect();
    let primary = bench.remote(prefix)?.primary(path)?;
    let db = primary.builder().options(options(CACHE_BYTES)).open()?;
    let local = data(&db)?;
    let (_reader, _secondary, partition) = reader::open(bench, prefix, CACHE_BYTES)?;
    let reading = partition.at(Level::Eventual)?;
    let store = bench.object_store();
    let (writer, follower) = bench.runtime.block_on(async {
        let writer = slate::open(store.clone(), slate_path, CACHE_BYTES, slate::INTERVAL).await?;
        let follower = slate::open_reader(store, slate_path, CACHE_BYTES).await?;
        Outcome::Ok((writer, follower))
    })?;
    let mut rates: [Vec<f64>; 4] = Default::default();
    let mut scans: [Vec<f64>; 4] = Default::default();
    for round in 0..=bench.rounds {
        for place in 0..4 {
            let start = Instant::now();
            for _ in 0..10 {
                match place {
                    0 => keys
                        .iter()
                        .try_for_each(|key| local.get(key).map(|it| assert!(it.is_some())))?,
                    1 => keys
                        .iter()
                        .try_for_each(|key| reading.get(key).map(|it| assert!(it.is_some())))?,
                    _ => bench.runtime.block_on(async {
                        for key in &keys {
                            let got = if place == 2 {
                                writer.get(key).await?
                            } else {
                                follower.get(key).await?
                            };
                            assert!(got.is_some());
                        }
                        Outcome::Ok(())
                    })?,
                }
            }
            let rate = 10.0 * keys.len() as f64 / start.elapsed().as_secs_f64();
            let start = Instant::now();
            let count = match place {
                0 => local.iter().count(),
                1 => reading.iter().count(),
                _ => bench.runtime.block_on(async {
                    let options = slate::scan_options().with_cache_blocks(true);
                    let mut scan = if place == 2 {
                        writer.scan_with_options::<std::ops::RangeFull>(.., &options).await?
                    } else {
                        follower.scan_with_options::<std::ops::RangeFull>(.., &options).await?
                    };
                    let mut count = 0;
                    while scan.next().await?.is_some() {
                        count += 1;
                    }
                    Outcome::Ok(count)
                })?,
            };
            assert_eq!(count as u64, bench.records);
            if round > 0 {
                rates[place].push(rate);
                scans[place].push(count as f64 / start.elapsed().as_secs_f64());
            }
        }
    }
    let [local_rate, reader_rate, slate_rate, slate_reader] = rates;
    line("hot gets a second, of the writer", local_rate, slate_rate);
    line("hot gets a second, of a reader", reader_rate, slate_reader);
    let [local_rate, reader_rate, slate_rate, slate_reader] = scans;
    line("hot scan, records a second, of the writer", local_rate, slate_rate);
    line("hot scan, records a second, of a reader", reader_rate, slate_reader);
    bench.runtime.block_on(async {
        follower.close().await?;
        writer.close().await?;
        Outcome::Ok(())
    })?;
    drop(local);
    db.close()?;
    Ok(())
}

#[derive(Default)]
struct ColdFigures {
    opens: Vec<f64>,
    p50s: Vec<f64>,
    gets: Vec<f64>,
    bytes: Vec<f64>,
    short: Vec<f64>,
    full: Vec<f64>,
}

/// Readers without anything in memory.
fn cold(bench: &Bench, delay: u64, prefix: &str, slate_path: &str) -> Outcome<()> {
    let mut silt = ColdFigures::default();
    let mut other = ColdFigures::default();
    for round in 0..bench.rounds as u64 {
        bench.meter.set_delay(delay);
        let keys: Vec<_> =
            (0..COLD).map(|number| key(mix(number ^ (round << 32)) % bench.records)).collect();
        let start = Instant::now();
        let (_reader, _secondary, partition) = reader::open(bench, prefix, CACHE_BYTES)?;
        silt.opens.push(start.elapsed().as_secs_f64() * 1000.0);
        let reading = partition.at(Level::Eventual)?;
        let before = bench.meter.figures();
        let mut micros = Vec::new();
        for key in &keys {
            let begin = Instant::now();
            assert!(reading.get(key)?.is_some());
            micros.push(begin.elapsed().as_micros() as u64);
        }
        silt.add(micros, bench.meter.figures() - before, start);
        drop(reading);
        let (_reader, _secondary, partition) = reader::open(bench, prefix, CACHE_BYTES)?;
        let reading = partition.at(Level::Eventual)?;
        let start = Instant::now();
        assert_eq!(reading.range(keys[0]..).take(1000).filter(Result::is_ok).count(), 1000);
        silt.short.push(start.elapsed().as_secs_f64() * 1000.0);
        let start = Instant::now();
        assert_eq!(reading.iter().filter(Result::is_ok).count() as u64, bench.records);
        silt.full.push(bench.records as f64 / start.elapsed().as_secs_f64());
        bench.runtime.block_on(cold_slate(bench, slate_path, &keys, &mut other))?;
    }
    bench.meter.set_delay(0);
    line(&format!("+{delay} ms: a reader opens, ms"), silt.opens, other.opens);
    line(&format!("+{delay} ms: cold gets of a reader, p50 ms"), silt.p50s, other.p50s);
    line(&format!("+{delay} ms: GETs a cold get"), silt.gets, other.gets);
    line(&format!("+{delay} ms: KiB a cold get"), silt.bytes, other.bytes);
    line(&format!("+{delay} ms: cold scan of 1,000 records, ms"), silt.short, other.short);
    line(&format!("+{delay} ms: cold scan of all, records a second"), silt.full, other.full);
    Ok(())
}

impl ColdFigures {
    fn add(&mut self, micros: Vec<u64>, used: Figures, start: Instant) {
        let timed = Timed::of(micros, start.elapsed());
        self.p50s.push(timed.percentile(50.0));
        self.gets.push(used.gets as f64 / timed.count() as f64);
        self.bytes.push(used.got_bytes as f64 / 1024.0 / timed.count() as f64);
    }
}

async fn cold_slate(
    bench: &Bench,
    path: &str,
    keys: &[[u8; 16]],
    other: &mut ColdFigures,
) -> Outcome<()> {
    let start = Instant::now();
    let db = slate::open_reader(bench.object_store(), path, CACHE_BYTES).await?;
    other.opens.push(start.elapsed().as_secs_f64() * 1000.0);
    let before = bench.meter.figures();
    let mut micros = Vec::new();
    for key in keys {
        let begin = Instant::now();
        assert!(db.get(key).await?.is_some());
        micros.push(begin.elapsed().as_micros() as u64);
    }
    other.add(micros, bench.meter.figures() - before, start);
    db.close().await?;
    let db = slate::open_reader(bench.object_store(), path, CACHE_BYTES).await?;
    let start = Instant::now();
    // Read ahead of 4 MiB would be more than these records.
    let options = slate::scan_options().with_read_ahead_bytes(256 << 10);
    let mut scan = db.scan_with_options(keys[0].to_vec().., &options).await?;
    for _ in 0..1000 {
        assert!(scan.next().await?.is_some());
    }
    other.short.push(start.elapsed().as_secs_f64() * 1000.0);
    drop(scan);
    let start = Instant::now();
    let mut scan = db.scan_with_options::<std::ops::RangeFull>(.., &slate::scan_options()).await?;
    let mut count = 0;
    while scan.next().await?.is_some() {
        count += 1;
    }
    assert_eq!(count, bench.records);
    other.full.push(bench.records as f64 / start.elapsed().as_secs_f64());
    db.close().await?;
    Ok(())
}

/// A million puts that nothing waits for, until all is stored and in tables.
pub(crate) fn million(bench: &Bench) -> Outcome<()> {
    bench.meter.set_delay(0);
    let name = bench.name("million");
    let path = bench.folder("million");
    let before = bench.meter.figures();
    let start = Instant::now();
    let primary = bench.remote(&name)?.primary(&path)?;
    let db = primary.builder().options(options(CACHE_BYTES)).open()?;
    let data = data(&db)?;
    for number in 0..bench.records {
        data.put_with(key(number), value(number), Durability::Os)?;
    }
    primary.ship()?;
    let shipped = start.elapsed().as_secs_f64();
    db.flush()?;
    db.wait_idle()?;
    primary.ship()?;
    report(bench, "siltstone", before, &name, shipped, start)?;
    drop(data);
    db.close()?;
    drop(primary);
    Bench::remove(&path);
    for interval in [slate::INTERVAL, 1] {
        let name = bench.name(&format!("slate-million-{interval}"));
        let before = bench.meter.figures();
        let start = Instant::now();
        let shipped = bench.runtime.block_on(async {
            let db = slate::open(bench.object_store(), &name, CACHE_BYTES, interval).await?;
            let mut last = None;
            for number in 0..bench.records {
                last = Some(db.put(key(number), value(number)).await?);
            }
            if let Some(last) = last {
                last.await_durable().await?;
            }
            let shipped = start.elapsed().as_secs_f64();
            db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable }).await?;
            db.close().await?;
            Outcome::Ok(shipped)
        })?;
        report(bench, &format!("SlateDB at {interval} ms"), before, &name, shipped, start)?;
    }
    Ok(())
}

fn report(
    bench: &Bench,
    what: &str,
    before: Figures,
    prefix: &str,
    shipped: f64,
    start: Instant,
) -> Outcome<()> {
    let elapsed = start.elapsed().as_secs_f64();
    let used = bench.meter.figures() - before;
    let (bytes, objects) = bench.stored(prefix)?;
    println!(
        "{} puts, {what}: durable after {shipped:.2} s, in tables after {elapsed:.2}; {} PUTs with {:.1} MB, {} GETs, {} lists, {} deletes; {objects} objects with {:.1} MB in the bucket",
        bench.records,
        used.puts,
        used.put_bytes as f64 / 1e6,
        used.gets,
        used.lists,
        used.deletes,
        bytes as f64 / 1e6
    );
    Ok(())
}
