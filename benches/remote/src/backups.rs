//! Backups in a bucket: the time to make, verify and restore one, by the number of threads.

use std::time::Instant;

use siltstone::Db;

use crate::bench::{Bench, Outcome, data, key, median, options, value};

/// Seconds of three calls.
#[derive(Default)]
struct Seconds {
    create: Vec<f64>,
    verify: Vec<f64>,
    restore: Vec<f64>,
}

fn timed<T>(call: impl FnOnce() -> siltstone::Result<T>) -> Outcome<f64> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed().as_secs_f64())
}

/// One database, backed up again and again under new prefixes.
pub(crate) fn backups(bench: &Bench) -> Outcome<()> {
    let path = bench.folder("backups");
    let db = Db::builder(&path).options(options(64 << 20)).open()?;
    let partition = data(&db)?;
    for number in 0..bench.records {
        partition.put(key(number), value(number))?;
    }
    db.flush()?;
    db.wait_idle()?;
    for &delay in &bench.delays {
        for threads in [1, 4, 8] {
            let mut seconds = Seconds::default();
            let mut size = 0;
            for round in 0..bench.rounds {
                let remote =
                    bench.remote(&bench.name(&format!("backups-{delay}-{threads}-{round}")))?;
                let engine = remote.backups().threads(threads);
                bench.meter.set_delay(delay);
                seconds.create.push(timed(|| engine.create_backup(&db))?);
                seconds.verify.push(timed(|| engine.verify(None))?);
                let into = bench.folder("restored");
                seconds.restore.push(timed(|| engine.restore_latest(&into))?);
                bench.meter.set_delay(0);
                size = engine.info()?.first().map_or(0, |it| it.size);
                Bench::remove(&into);
            }
            println!(
                "+{delay} ms, {threads} threads, {} MiB: create {:.2} s, verify {:.2} s, restore {:.2} s",
                size >> 20,
                median(seconds.create),
                median(seconds.verify),
                median(seconds.restore)
            );
        }
    }
    db.close()?;
    Bench::remove(&path);
    Ok(())
}
