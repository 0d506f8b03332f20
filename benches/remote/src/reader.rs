//! Readers: the time until a commit is visible, gets, and what bounds their memory and caches.

use std::time::{Duration, Instant};

use siltstone::Durability;
use siltstone::secondary::{Follow, Level, Secondary, SecondaryPartition};

use crate::bench::{Bench, Outcome, Timed, data, key, median, memory, mix, options, value};

/// Cold gets of a reader.
const COLD: u64 = 100;

/// The time from the call of a commit until an eager reader sees it.
pub(crate) fn visible(bench: &Bench) -> Outcome<()> {
    for &delay in &bench.delays {
        for (what, durability) in [("Sync", Durability::Sync), ("Os", Durability::Os)] {
            bench.meter.set_delay(0);
            let name = format!("visible-{delay}-{what}");
            let path = bench.folder(&name);
            let remote = bench.remote(&bench.name(&name))?;
            let primary = remote.primary(&path)?;
            let db = primary.builder().options(options(64 << 20)).open()?;
            let written = data(&db)?;
            written.put_with(key(0), value(0), Durability::Sync)?;
            let reader = remote.reader()?;
            let secondary = reader.secondary().open()?;
            let followed = secondary.partition("data")?;
            bench.meter.set_delay(delay);
            followed.follow(Follow::Eager)?;
            let mut micros = Vec::new();
            let mut puts = Vec::new();
            let begin = Instant::now();
            for number in 1..=(15 * bench.rounds as u64) {
                // Not in step with the intervals.
                std::thread::sleep(Duration::from_millis(mix(number) % 150));
                let start = Instant::now();
                let commit = written.put_with(key(number), value(number), durability)?;
                puts.push(start.elapsed().as_micros() as u64);
                while followed.at(Level::Eventual)?.as_of().seq < commit.seq {
                    std::thread::sleep(Duration::from_micros(300));
                }
                micros.push(start.elapsed().as_micros() as u64);
            }
            let timed = Timed::of(micros, begin.elapsed());
            let puts = Timed::of(puts, begin.elapsed());
            println!(
                "+{delay} ms: visible on an eager reader, Durability::{what}, interval 100 ms: p50 {:.1} ms, p99 {:.1} after the begin of the call; the call itself {:.1}",
                timed.percentile(50.0),
                timed.percentile(99.0),
                puts.percentile(50.0)
            );
            drop(followed);
            drop(secondary);
            drop(written);
            db.close()?;
            drop(primary);
            Bench::remove(&path);
        }
    }
    Ok(())
}

/// A database of `records` records in the bucket, all of them in tables.
pub(crate) fn make(bench: &Bench, name: &str) -> Outcome<std::path::PathBuf> {
    let path = bench.folder(name);
    let primary = bench.remote(&bench.name(name))?.primary(&path)?;
    let db = primary.builder().options(options(64 << 20)).open()?;
    let data = data(&db)?;
    for number in 0..bench.records {
        data.put_with(key(number), value(number), Durability::Os)?;
    }
    db.flush()?;
    db.wait_idle()?;
    primary.ship()?;
    drop(data);
    db.close()?;
    Ok(path)
}

pub(crate) fn open(
    bench: &Bench,
    prefix: &str,
    cache: u64,
) -> Outcome<(remote::RemoteReader, Secondary, SecondaryPartition)> {
    let reader = bench.remote(prefix)?.cache_bytes(cache).reader()?;
    let secondary = reader.secondary().options(options(cache)).open()?;
    let partition = secondary.partition("data")?;
    partition.sync(siltstone::secondary::Target::Latest)?;
    Ok((reader, secondary, partition))
}

/// Cold gets with their requests, and warm ones next to those of a local database.
pub(crate) fn gets(bench: &Bench) -> Outcome<()> {
    bench.meter.set_delay(0);
    let path = make(bench, "gets")?;
    let prefix = bench.name("gets");
    for &delay in &bench.delays {
        bench.meter.set_delay(delay);
        let mut opens = Vec::new();
        let mut firsts = Vec::new();
        let mut later = Vec::new();
        let mut p50s = Vec::new();
        let mut open_millis = Vec::new();
        let mut most = 0;
        for round in 0..bench.rounds as u64 {
            let before = bench.meter.figures();
            let start = Instant::now();
            let (_reader, _secondary, partition) = open(bench, &prefix, 64 << 20)?;
            open_millis.push(start.elapsed().as_secs_f64() * 1000.0);
            opens.push((bench.meter.figures() - before).gets as f64);
            let mut micros = Vec::new();
            let begin = Instant::now();
            for number in 0..COLD {
                let before = bench.meter.figures();
                let start = Instant::now();
                let reading = partition.at(Level::Eventual)?;
                assert!(reading.get(key(mix(number ^ (round << 32)) % bench.records))?.is_some());
                micros.push(start.elapsed().as_micros() as u64);
                let gets = (bench.meter.figures() - before).gets;
                if number == 0 {
                    firsts.push(gets as f64);
                } else {
                    most = most.max(gets);
                    later.push(gets as f64);
                }
            }
            p50s.push(Timed::of(micros, begin.elapsed()).percentile(50.0));
        }
        let mean = later.iter().sum::<f64>() / later.len() as f64;
        println!(
            "+{delay} ms: a reader opens in {:.1} ms with {:.0} GETs; its first get takes {:.0} GETs, the next {} {mean:.2} on average and {most} at most; p50 {:.2} ms",
            median(open_millis),
            median(opens),
            median(firsts),
            COLD - 1,
            median(p50s)
        );
    }
    bench.meter.set_delay(0);
    let keys: Vec<_> = (0..10_000).map(|number| key(mix(number) % bench.records)).collect();
    let db = siltstone::Db::builder(&path).options(options(256 << 20)).read_only(true).open()?;
    let local = data(&db)?;
    let (_reader, _secondary, partition) = open(bench, &prefix, 256 << 20)?;
    let reading = partition.at(Level::Eventual)?;
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..=bench.rounds * 2 {
        for (place, rates) in rates.iter_mut().enumerate() {
            let start = Instant::now();
            for pass in 0..20 {
                for key in &keys {
                    let got = if place == 0 { local.get(key)? } else { reading.get(key)? };
                    assert!(got.is_some(), "pass {pass}");
                }
            }
            // The first round fills the caches.
            if round > 0 {
                rates.push(20.0 * keys.len() as f64 / start.elapsed().as_secs_f64());
            }
        }
    }
    let [local_rate, warm] = rates.map(median);
    println!(
        "warm gets: {local_rate:.0} a second of a local database, {warm:.0} of a reader: {:.2} times the time",
        local_rate / warm
    );
    drop(local);
    db.close()?;
    Bench::remove(&path);
    Ok(())
}

/// Reads much more than the caches take.
pub(crate) fn bounds(bench: &Bench) -> Outcome<()> {
    bench.meter.set_delay(0);
    let path = make(bench, "bounds")?;
    Bench::remove(&path);
    let cache_dir = bench.folder("cache");
    let memory_max: u64 = 16 << 20;
    let disk_max: u64 = 64 << 20;
    let remote = bench
        .remote(&bench.name("bounds"))?
        .cache_bytes(memory_max)
        .cache_dir(&cache_dir, disk_max);
    let before = memory();
    let reader = remote.reader()?;
    let secondary = reader.secondary().options(options(memory_max)).open()?;
    let partition = secondary.partition("data")?;
    let mut most_memory = 0;
    let mut most_disk = 0;
    let mut most_resident: f64 = 0.0;
    for number in 0..30_000_u64 {
        let reading = partition.at(Level::Eventual)?;
        assert!(reading.get(key(mix(number) % bench.records))?.is_some());
        if number.is_multiple_of(50) {
            let figures = reader.cache_figures();
            most_memory = most_memory.max(figures.memory_bytes);
            most_disk = most_disk.max(figures.disk_bytes);
            most_resident = most_resident.max(memory() - before);
        }
    }
    let figures = reader.cache_figures();
    println!(
        "bounds: memory {most_memory} of {memory_max} bytes, disk {most_disk} of {disk_max}; resident memory grew by {most_resident:.1} MiB at most, with a block cache of 16 MiB; {figures:?}"
    );
    drop(secondary);
    drop(reader);
    Bench::remove(&cache_dir);
    Ok(())
}
