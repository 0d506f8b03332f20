//! The hit rate of a reader's cache on disk that holds a tenth of the data, with and without its rule of admission.

use siltstone::secondary::Level;

use crate::bench::{Bench, Outcome, key, mix, options};
use crate::reader::make;

/// Memory of the reader's own cache and of its block cache, so small that the disk serves nearly all.
const MEMORY: u64 = 1 << 20;
/// Gets that are measured, after as many that fill the cache.
const GETS: u64 = 10_000;

pub(crate) fn rates(bench: &Bench) -> Outcome<()> {
    bench.meter.set_delay(0);
    Bench::remove(&make(bench, "hits")?);
    let prefix = bench.name("hits");
    let bytes = bench.remote(&prefix)?.status()?.live.bytes;
    // As in YCSB: the rank r has a weight of r to the power of -0.99.
    let mut sum = 0.0;
    let mut sums = Vec::new();
    for rank in 1..=bench.records {
        sums.push(sum);
        sum += (rank as f64).powf(-0.99);
    }
    let mut sorted: Vec<_> = (0..bench.records).map(key).collect();
    sorted.sort_unstable();
    for what in ["uniform", "zipfian, hot keys all over", "zipfian, hot keys side by side"] {
        for admits_all in [false, true, true, false] {
            let dir = bench.folder("hits-cache");
            let remote = bench.remote(&prefix)?.cache_bytes(MEMORY).cache_dir(&dir, bytes / 10);
            let remote = if admits_all { remote.cache_admits_all() } else { remote };
            let reader = remote.reader()?;
            let secondary = reader.secondary().options(options(MEMORY)).open()?;
            let partition = secondary.partition("data")?;
            partition.sync(siltstone::secondary::Target::Latest)?;
            let reading = partition.at(Level::Eventual)?;
            let mut before = reader.cache_figures();
            for number in 0..2 * GETS {
                if number == GETS {
                    before = reader.cache_figures();
                }
                let random = mix(number) as f64 / u64::MAX as f64;
                let rank = sums.partition_point(|it| *it < random * sum).saturating_sub(1);
                let wanted = match what {
                    "uniform" => key(mix(number) % bench.records),
                    "zipfian, hot keys all over" => key(rank as u64),
                    _ => sorted[rank],
                };
                assert!(reading.get(wanted)?.is_some());
            }
            let now = reader.cache_figures();
            let hits = now.disk_hits - before.disk_hits;
            let gets = now.gets - before.gets;
            let rate = hits as f64 * 100.0 / (hits + gets) as f64;
            let rule = if admits_all { "each block" } else { "a block at its second request" };
            println!(
                "{what}, a full cache takes {rule}: {rate:.1} % ({hits} hits, {gets} GETs; {bytes} bytes of data)"
            );
        }
    }
    Ok(())
}
