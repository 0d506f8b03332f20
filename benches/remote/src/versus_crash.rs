//! Both engines after the death of the writer: children write, and abort.

use std::process::{Command, Stdio};
use std::time::Instant;

use siltstone::Durability;

use crate::bench::{Bench, Outcome, data, key, median, options, value};
use crate::slate;

const CACHE_BYTES: u64 = 256 << 20;

/// The folder of a child's primary.
fn path_of(bench: &Bench, prefix: &str) -> std::path::PathBuf {
    bench.dir.join(prefix)
}

pub(crate) fn child_siltstone(bench: &Bench, prefix: &str) -> Outcome<()> {
    let primary = bench.remote(prefix)?.primary(path_of(bench, prefix))?;
    let db = primary.builder().options(options(CACHE_BYTES)).open()?;
    let data = data(&db)?;
    for number in 0..bench.records {
        data.put_with(key(number), value(number), Durability::Os)?;
    }
    data.put_with("last", "last", Durability::Sync)?;
    std::process::abort()
}

pub(crate) fn child_slate(bench: &Bench, prefix: &str) -> Outcome<()> {
    bench.runtime.block_on(async {
        let db = slate::open(bench.object_store(), prefix, CACHE_BYTES, slate::INTERVAL).await?;
        for number in 0..bench.records {
            db.put(key(number), value(number)).await?;
        }
        db.put("last", "last").await?.await_durable().await?;
        std::process::abort()
    })
}

fn run_child(bench: &Bench, url: &str, kind: &str, prefix: &str) -> Outcome<()> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg(kind).arg("--dir").arg(&bench.dir).args(["--url", url, "--prefix", prefix]);
    child.args(["--records", &bench.records.to_string()]);
    let status = child.stderr(Stdio::null()).status()?;
    if status.code().is_some() {
        return Err(format!("the child {kind} has not aborted: {status}").into());
    }
    Ok(())
}

/// Seconds until the open, the first get, and the first durable put.
type Opened = [Vec<f64>; 3];

fn add(opened: &mut Opened, times: [f64; 3]) {
    for (list, time) in opened.iter_mut().zip(times) {
        list.push(time);
    }
}

fn print(what: &str, opened: Opened) {
    let [open, get, put] = opened.map(median);
    println!("{what}: open {open:.3} s, first get {get:.3}, first durable put {put:.3}");
}

pub(crate) fn opens(bench: &Bench, url: &str) -> Outcome<()> {
    for &delay in &bench.delays {
        let mut own = Opened::default();
        let mut other = Opened::default();
        let mut slated = Opened::default();
        for round in 0..bench.rounds {
            let prefix = bench.name(&format!("crash-{delay}-{round}"));
            bench.meter.set_delay(0);
            run_child(bench, url, "child-siltstone", &prefix)?;
            let path = path_of(bench, &prefix);
            // The machine comes again.
            add(&mut own, open_siltstone(bench, delay, &prefix, &path, false)?);
            Bench::remove(&path);
            let prefix = format!("{prefix}-moved");
            run_child(bench, url, "child-siltstone", &prefix)?;
            Bench::remove(&path_of(bench, &prefix));
            // Another machine takes over.
            let path = bench.folder(&format!("moved-{delay}-{round}"));
            add(&mut other, open_siltstone(bench, delay, &prefix, &path, true)?);
            Bench::remove(&path);
            let prefix = format!("{prefix}-slate");
            run_child(bench, url, "child-slate", &prefix)?;
            add(&mut slated, open_slate(bench, delay, &prefix)?);
        }
        print(&format!("+{delay} ms: after a crash, siltstone in its folder"), own);
        print(&format!("+{delay} ms: after a crash, siltstone in an empty folder"), other);
        print(&format!("+{delay} ms: after a crash, SlateDB"), slated);
    }
    Ok(())
}

fn open_siltstone(
    bench: &Bench,
    delay: u64,
    prefix: &str,
    path: &std::path::Path,
    takes_over: bool,
) -> Outcome<[f64; 3]> {
    bench.meter.set_delay(delay);
    let start = Instant::now();
    let remote = bench.remote(prefix)?;
    let primary = if takes_over { remote.take_over(path)? } else { remote.primary(path)? };
    let db = primary.builder().options(options(CACHE_BYTES)).open()?;
    let data = data(&db)?;
    let open = start.elapsed().as_secs_f64();
    assert!(data.get("last")?.is_some() && data.get(key(bench.records / 2))?.is_some());
    let get = start.elapsed().as_secs_f64();
    data.put_with("next", "next", Durability::Sync)?;
    let put = start.elapsed().as_secs_f64();
    bench.meter.set_delay(0);
    drop(data);
    db.close()?;
    Ok([open, get, put])
}

fn open_slate(bench: &Bench, delay: u64, prefix: &str) -> Outcome<[f64; 3]> {
    bench.meter.set_delay(delay);
    bench.runtime.block_on(async {
        let start = Instant::now();
        // With the interval that is the best for the first put.
        let db = slate::open(bench.object_store(), prefix, CACHE_BYTES, 1).await?;
        let open = start.elapsed().as_secs_f64();
        assert!(db.get("last").await?.is_some() && db.get(key(bench.records / 2)).await?.is_some());
        let get = start.elapsed().as_secs_f64();
        db.put("next", "next").await?.await_durable().await?;
        let put = start.elapsed().as_secs_f64();
        bench.meter.set_delay(0);
        db.close().await?;
        Outcome::Ok([open, get, put])
    })
}
