//! Commits under `Ack::Stored`, and puts of the store in turn with them.

use siltstone::Durability;

use crate::bench::{Bench, Outcome, data, in_threads, key, median, options, value};

/// About the bytes of a journal object with one commit.
const PUT_BYTES: usize = 400;

pub(crate) fn commits(bench: &Bench) -> Outcome<()> {
    for &delay in &bench.delays {
        bench.meter.set_delay(delay);
        for writers in [1, 16, 64] {
            let mut puts = Vec::new();
            let mut p50s = Vec::new();
            let mut p99s = Vec::new();
            let mut rates = Vec::new();
            let mut a_put = Vec::new();
            for round in 0..bench.rounds {
                let name = format!("stored-{delay}-{writers}-{round}");
                let path = bench.folder(&name);
                let primary = bench.remote(&bench.name(&name))?.primary(&path)?;
                let db = primary.builder().options(options(64 << 20)).open()?;
                let data = data(&db)?;
                let count = (1000.0 * bench.seconds / 2.0 / (delay + 3) as f64) as u64;
                puts.push(
                    bench
                        .puts(&format!("put-{delay}-{writers}-{round}"), count, PUT_BYTES)?
                        .percentile(50.0),
                );
                let before = bench.meter.figures();
                let timed = in_threads(writers, bench.seconds, |number| {
                    data.put_with(key(number), value(number), Durability::Sync).map(drop)
                })?;
                let used = bench.meter.figures() - before;
                p50s.push(timed.percentile(50.0));
                p99s.push(timed.percentile(99.0));
                rates.push(timed.rate());
                a_put.push(timed.count() as f64 / used.journal_puts.max(1) as f64);
                drop(data);
                db.close()?;
                drop(primary);
                Bench::remove(&path);
            }
            println!(
                "+{delay} ms: Stored, {writers} writers: commit p50 {:.2} ms, p99 {:.2}; a put p50 {:.2}; {:.0} commits a second, {:.1} commits a put",
                median(p50s),
                median(p99s),
                median(puts),
                median(rates),
                median(a_put)
            );
        }
    }
    Ok(())
}
